//! The scheduler.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use carrack_engine::shell::{random_seed, run_core};
use carrack_engine::{LeaderElector, Rng, Transport};
use carrack_scheduler::{Config, Scheduler};
use tokio_util::sync::CancellationToken;

use super::extenders::Extenders;
use crate::cli::roles::SchedulerArgs;

/// Schedules the pods that name one of the configuration's profiles, until `stop`. With an identity, only while it is the
/// elected one.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(
    config: Config,
    identity: Option<String>,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let extenders = Extenders::new(&config.extenders)?;
    let (namespace, name) = config.lease.clone();
    let core = Scheduler::new(config, Rng::new(random_seed()));
    let core = match identity {
        Some(identity) => core.with_elector(LeaderElector::new(namespace, name, identity)),
        None => core,
    };
    run_core(core, transport, extenders, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// Reads a configuration file.
///
/// # Errors
/// What is wrong with it.
pub fn read_config(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the scheduler's configuration {}", path.display()))?;
    let base = path.parent().unwrap_or(Path::new("."));
    let read = |file: &str| std::fs::read(base.join(file)).map_err(|e| format!("cannot read {file}: {e}"));
    Config::parse(&text, read)
        .with_context(|| format!("the scheduler's configuration {} cannot be used", path.display()))
}

/// `carrack scheduler`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: SchedulerArgs) -> anyhow::Result<()> {
    let config = match &args.config {
        Some(path) => read_config(path)?,
        None => Config::named(&args.scheduler_name),
    };
    let identity = if args.leader_elect || config.leader_elect { Some(super::process_identity()?) } else { None };
    super::alone(
        "kube-scheduler",
        &args.role,
        |transport, stop| async move { run(config, identity, transport, stop).await },
    )
    .await
}
