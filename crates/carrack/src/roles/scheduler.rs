//! The scheduler.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use carrack_engine::requests::Requests;
use carrack_engine::shell::{random_seed, run_core_asked, scrapes};
use carrack_engine::{LeaderElector, Rng, Transport};
use carrack_scheduler::{Config, Scheduler};
use tokio_util::sync::CancellationToken;

use super::diagnostics::{self, Listen};
use super::extenders::Extenders;
use crate::cli::roles::SchedulerArgs;

/// Schedules the pods that name one of the configuration's profiles, until `stop`. With an identity, only while it is the
/// elected one. With a place to listen, it tells its metrics there.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(
    config: Config,
    identity: Option<String>,
    listen: Option<Listen>,
    mut transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let extenders = Extenders::new(&config.extenders)?;
    // The port is let go of when this run of the role ends, however it does.
    let serving = stop.child_token();
    let _ends = serving.clone().drop_guard();
    let (asks, asked) = scrapes();
    if let Some(listen) = listen {
        let requests = Requests::of(&listen.server);
        transport = requests.counted(transport);
        let metrics = diagnostics::measures(asks, requests);
        let address = diagnostics::serve("kube-scheduler", listen, metrics, transport.clone(), serving).await?;
        tracing::info!(%address, "metrics are served");
    }
    let (namespace, name) = config.lease.clone();
    let core = Scheduler::new(config, Rng::new(random_seed())).with_stopwatch(stopwatch);
    let core = match identity {
        Some(identity) => core.with_elector(LeaderElector::new(namespace, name, identity)),
        None => core,
    };
    run_core_asked(core, transport, extenders, asked, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// Time since this process first asked.
#[expect(clippy::disallowed_methods, reason = "shell: it hands the core's metrics their clock")]
fn stopwatch() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGUN.elapsed()
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
    let elects = args.leader_elect.unwrap_or(config.leader_elect);
    let identity = elects.then(super::process_identity);
    let listen = args.secure.listen(&args.role.kubeconfig)?;
    super::alone("kube-scheduler", &args.role, |transport, stop| async move {
        if identity.is_none() {
            tracing::warn!(
                lease = format!("{}/{}", config.lease.0, config.lease.1),
                "this scheduler is not elected: only ever one with these profiles may run, and what one that has died has sent may \
                 still bind pods; leaderElection in its configuration, with a Lease that its user may write, is the way out"
            );
        }
        run(config, identity, listen, transport, stop).await
    })
    .await
}
