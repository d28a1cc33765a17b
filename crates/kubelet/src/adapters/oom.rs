//! The out-of-memory scores that this machine lets a runtime give.
//!
//! Lowering a score needs `CAP_SYS_RESOURCE`, which a kubelet and a containerd inside a container may
//! lack; a container that asks for less would not start at all. There scores are raised to the least
//! that can be had, which is said once.

use std::fs;
use std::sync::LazyLock;

use k8s_cri::v1;

const OWN: &str = "/proc/self/oom_score_adj";

/// The least score that may be given; -1000 where any may.
static LEAST: LazyLock<i64> = LazyLock::new(|| {
    let Some(own) = fs::read_to_string(OWN).ok().and_then(|t| t.trim().parse::<i64>().ok()) else { return -1000 };
    if own <= -1000 {
        return -1000;
    }
    // Tried on this process, whose parent's rights the runtime shares.
    match fs::write(OWN, (own - 1).to_string()).and_then(|()| fs::write(OWN, own.to_string())) {
        Ok(()) => -1000,
        Err(error) => {
            tracing::warn!(%error, least = own, "out-of-memory scores cannot be lowered here; containers get at least this");
            own
        }
    }
});

/// A container with a score that it can be given.
pub(super) fn clamped(mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    if let Some(r) = config.linux.as_mut().and_then(|l| l.resources.as_mut()) {
        r.oom_score_adj = r.oom_score_adj.max(*LEAST);
    }
    config
}
