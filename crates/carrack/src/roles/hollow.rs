//! Hollow nodes: what the control plane sees of nodes, without nodes.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::shell::{NoDoer, random_seed, run_core};
use carrack_engine::{Core, Never, Rng, Transport};
use carrack_hollow::{Config, HollowHandlers, HollowNodes};
use carrack_types::well_known::kubevirt::DEVICE_RESOURCES;
use tokio_util::sync::CancellationToken;

use crate::cli::roles::HollowArgs;

/// How many of each device that virtual machines need a node has, as KubeVirt's.
const DEVICES_OF_EACH: u32 = 1000;

/// Plays the nodes until `stop`, with `machines` also what virtual machines need of them. Their objects stay.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(
    mut config: Config,
    machines: bool,
    api: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if machines {
        let each = DEVICES_OF_EACH.to_string();
        config.allocatable.extend(DEVICE_RESOURCES.map(|resource| (resource.to_owned(), each.clone())));
    }
    let rng = Rng::new(random_seed());
    let handlers = machines.then(|| HollowHandlers::new(config.clone(), &rng.fork("handlers")));
    let kubelets = HollowNodes::new(config, &rng.fork("kubelets"));
    // The error of one ends both.
    tokio::try_join!(play(Some(kubelets), &api, &stop), play(handlers, &api, &stop)).map(drop)
}

/// Runs a core that has nothing to do but to talk to the API server, if there is one.
async fn play<C>(core: Option<C>, api: &Arc<dyn Transport>, stop: &CancellationToken) -> anyhow::Result<()>
where
    C: Core<In = Never, Out = Never>,
{
    let Some(core) = core else { return Ok(()) };
    run_core(core, api.clone(), NoDoer, stop.clone().cancelled_owned()).await.map_err(anyhow::Error::msg)
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
    super::alone("hollow", &args.role, |transport, stop| run(config, args.machines, transport, stop)).await
}
