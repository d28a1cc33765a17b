//! `carrack down`

use anyhow::bail;
use carrack_noderuntime::teardown::{self, Options};

use crate::cli::DownArgs;
use crate::logging;
use crate::progress::Progress;

/// Seconds that pods other than guests get between SIGTERM and SIGKILL.
const POD_GRACE_S: u32 = 2;

/// Stops the cluster and removes what it put on the machine.
pub async fn run(args: DownArgs) -> anyhow::Result<()> {
    logging::start("warn")?;
    let layout = args.data_dir.layout()?;
    if !layout.data_dir().exists() {
        eprintln!("nothing to stop: {} does not exist", layout.data_dir().display());
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("not running as root: containers, mounts and networks need it; use sudo");
    }
    let options = Options { guest_grace_s: args.grace, pod_grace_s: POD_GRACE_S.min(args.grace), purge: args.purge };
    let mut progress = Progress::new();
    let failures = teardown::teardown(&layout, &options, &mut |step| progress.step(step)).await;
    progress.finish();
    if failures.is_empty() {
        eprintln!("stopped; nothing is left running");
        return Ok(());
    }
    bail!("something is left:\n  {}", failures.join("\n  "))
}
