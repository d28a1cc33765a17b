//! Hollow nodes: what the control plane sees of nodes, without nodes.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{Rng, Transport};
use carrack_hollow::{Config, HollowNodes};
use tokio_util::sync::CancellationToken;

use crate::cli::roles::HollowArgs;

/// Plays the nodes until `stop`. Their objects stay.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(config: Config, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    let core = HollowNodes::new(config, &Rng::new(random_seed()));
    run_core(core, transport, NoDoer, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// `carrack hollow`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: HollowArgs) -> anyhow::Result<()> {
    let mut config = Config {
        nodes: usize::try_from(args.nodes).unwrap_or(usize::MAX),
        prefix: args.prefix,
        start_after: Duration::from_millis(args.start_after_ms),
        ..Config::default()
    };
    config.allocatable.extend(args.allocatable);
    super::alone("hollow", &args.role, |transport, stop| run(config, transport, stop)).await
}
