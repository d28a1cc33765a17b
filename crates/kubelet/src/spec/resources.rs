//! CPU, memory and hugepage limits as the kernel takes them
//! (kubernetes pkg/kubelet/cm/helpers_linux.go, pkg/kubelet/qos/policy.go for the values).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::pod::{self, ContainerKind};
use crate::amount::{self, Amounts};
use crate::runtime::{PodCgroup, Resources};

const PERIOD_US: i64 = 100_000;

fn shares(milli_cpu: i128) -> i64 {
    i64::try_from(milli_cpu * 1024 / 1000).unwrap_or(262_144).clamp(2, 262_144)
}

fn quota_us(milli_cpu: i128) -> i64 {
    if milli_cpu <= 0 {
        return 0;
    }
    // The kernel takes no quota under 1 ms.
    i64::try_from(milli_cpu * i128::from(PERIOD_US) / 1000).unwrap_or(i64::MAX).max(1000)
}

fn bytes(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).map_or(0, |m| i64::try_from(m / 1000).unwrap_or(i64::MAX))
}

/// Score adjustment: what is guaranteed dies last, what promised nothing dies first.
#[must_use]
pub fn oom_score_adj(pod: &Pod, memory_request_bytes: i64, node_memory_bytes: u64) -> i64 {
    if matches!(pod::spec(pod).priority_class_name.as_deref(), Some("system-node-critical")) {
        return -997;
    }
    match pod::qos_class(pod) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let node = i64::try_from(node_memory_bytes).unwrap_or(i64::MAX).max(1);
            let share = i64::try_from(i128::from(memory_request_bytes) * 1000 / i128::from(node)).unwrap_or(1000);
            (1000 - share).clamp(3, 999)
        }
    }
}

/// Limits of one container.
#[must_use]
pub fn of_container(pod: &Pod, c: &Container, node_memory_bytes: u64) -> Resources {
    let r = c.resources.clone().unwrap_or_default();
    let limits = amount::amounts(r.limits.as_ref());
    let mut requests = limits.clone();
    requests.extend(amount::amounts(r.requests.as_ref()));
    let cpu_limit = limits.get("cpu").copied().unwrap_or(0);
    Resources {
        cpu_period_us: if cpu_limit > 0 { PERIOD_US } else { 0 },
        cpu_quota_us: quota_us(cpu_limit),
        cpu_shares: shares(requests.get("cpu").copied().unwrap_or(0)),
        memory_limit_bytes: bytes(&limits, "memory"),
        oom_score_adj: oom_score_adj(pod, bytes(&requests, "memory"), node_memory_bytes),
        hugepages: hugepages(&limits),
    }
}

fn hugepages(limits: &Amounts) -> BTreeMap<String, u64> {
    limits
        .iter()
        .filter_map(|(name, m)| {
            let size = amount::units(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(
                name.strip_prefix("hugepages-")?.to_owned(),
            ));
            Some((hugepage_name(u64::try_from(size).ok()?), u64::try_from(m / 1000).ok()?))
        })
        .collect()
}

/// A page size in the notation of the hugetlb cgroup: `2MB`, `1GB`.
#[must_use]
pub fn hugepage_name(size_bytes: u64) -> String {
    match size_bytes {
        s if s >= 1 << 30 => format!("{}GB", s >> 30),
        s if s >= 1 << 20 => format!("{}MB", s >> 20),
        s => format!("{}KB", s >> 10),
    }
}

/// The pod's own control group with the limits that hold for all of it: a CPU or memory limit only
/// when every container has one.
#[must_use]
pub fn of_pod(pod: &Pod, root: &str) -> PodCgroup {
    let qos = pod::qos_class(pod);
    let path = match qos {
        "Guaranteed" => format!("/{root}/pod{}", pod::uid(pod)),
        "BestEffort" => format!("/{root}/besteffort/pod{}", pod::uid(pod)),
        _ => format!("/{root}/burstable/pod{}", pod::uid(pod)),
    };
    let limit = |name: &str| -> i128 {
        let of = |c: &Container| {
            c.resources.as_ref().and_then(|r| r.limits.as_ref()?.get(name)).and_then(amount::milli).unwrap_or(0)
        };
        let mut sum = 0;
        for c in &pod::spec(pod).containers {
            match of(c) {
                0 => return 0,
                n => sum += n,
            }
        }
        let mut peak = 0;
        for (kind, c) in pod::init_containers(pod) {
            let n = of(c);
            if n == 0 {
                return 0;
            }
            match kind {
                ContainerKind::Sidecar => sum += n,
                _ => peak = n.max(peak),
            }
        }
        sum.max(peak)
    };
    let cpu_limit = limit("cpu");
    let requests = pod::requests(pod);
    PodCgroup {
        path,
        resources: Resources {
            cpu_period_us: if cpu_limit > 0 { PERIOD_US } else { 0 },
            cpu_quota_us: quota_us(cpu_limit),
            cpu_shares: shares(requests.get("cpu").copied().unwrap_or(0)),
            memory_limit_bytes: i64::try_from(limit("memory") / 1000).unwrap_or(i64::MAX),
            oom_score_adj: 0,
            hugepages: BTreeMap::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_translate() {
        for (resources, expected) in [
            (json!({}), (0, 0, 2, 0, 1000)),
            (json!({"limits": {"cpu": "500m", "memory": "1Gi"}}), (100_000, 50_000, 512, 1 << 30, -997)),
            (json!({"requests": {"cpu": "2", "memory": "1Gi"}}), (0, 0, 2048, 0, 750)),
            (json!({"limits": {"cpu": "1m"}}), (100_000, 1000, 2, 0, 999)),
        ] {
            let pod: Pod = serde_json::from_value(
                json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a", "resources": resources}]}}),
            )
            .unwrap();
            let r = of_container(&pod, &pod::spec(&pod).containers[0], 4 << 30);
            assert_eq!(
                (r.cpu_period_us, r.cpu_quota_us, r.cpu_shares, r.memory_limit_bytes, r.oom_score_adj),
                expected,
                "{resources}"
            );
        }
    }

    #[test]
    fn hugepages_are_named_as_the_kernel_does() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [
            {"name": "a", "resources": {"limits": {"hugepages-2Mi": "64Mi", "hugepages-1Gi": "2Gi"}}}]}}))
        .unwrap();
        let r = of_container(&pod, &pod::spec(&pod).containers[0], 4 << 30);
        assert_eq!(r.hugepages, BTreeMap::from([("2MB".into(), 64 << 20), ("1GB".into(), 2 << 30)]));
    }
}
