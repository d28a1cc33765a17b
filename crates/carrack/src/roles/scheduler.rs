//! The scheduler.

use std::sync::Arc;

use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{Rng, Transport};
use carrack_scheduler::{Profile, Scheduler};
use tokio_util::sync::CancellationToken;

use crate::cli::roles::SchedulerArgs;

/// Schedules the pods that name this scheduler, until `stop`.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(name: &str, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    let core = Scheduler::new(name, Profile::default(), Rng::new(random_seed()));
    run_core(core, transport, NoDoer, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// `carrack scheduler`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: SchedulerArgs) -> anyhow::Result<()> {
    let name = args.scheduler_name;
    super::alone(&args.role, |transport, stop| async move { run(&name, transport, stop).await }).await
}
