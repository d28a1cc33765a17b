//! The controllers of the core kinds, and beside them the calls to FlexVolume drivers.

use std::path::PathBuf;
use std::sync::Arc;

use carrack_apiserver::RuntimeConfig;
use carrack_controllers::Config;
use carrack_engine::requests::Requests;
use carrack_engine::shell::{random_seed, run_core_asked, scrapes};
use carrack_engine::{LeaderElector, Manager, Rng, Transport};
use carrack_schema::table;
use carrack_storage::asking::Asking;
use carrack_storage::flex;
use carrack_types::resource::Resource;
use tokio_util::sync::CancellationToken;

use super::diagnostics::{self, Listen};
use crate::cli::roles::ControllersArgs;

/// Runs them until `stop`. With `elect_as`, only while they hold the Lease under that identity. The drivers of FlexVolumes are
/// below `plugins`. With a place to listen, they tell their metrics there.
///
/// # Errors
/// Why they cannot go on; a lost election is one.
pub async fn run(
    ca_pem: &str,
    elect_as: Option<&str>,
    plugins: PathBuf,
    listen: Option<Listen>,
    mut transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The port is let go of when this run of the role ends, however it does.
    let serving = stop.child_token();
    let _ends = serving.clone().drop_guard();
    let (asks, asked) = scrapes();
    if let Some(listen) = listen {
        let requests = Requests::of(&listen.server);
        transport = requests.counted(transport);
        let metrics = diagnostics::measures(asks, requests);
        let address =
            diagnostics::serve("kube-controller-manager", listen, metrics, transport.clone(), serving).await?;
        tracing::info!(%address, "metrics are served");
    }
    let config = Config { collected: collected(), ca_pem: ca_pem.to_owned(), ..Config::default() };
    let calls = flex::Calls::default();
    let mut manager = Manager::new("controllers", Rng::new(random_seed()))
        .with_all(carrack_controllers::all(&config))
        .with_all(flex::controllers(&calls));
    if let Some(identity) = elect_as {
        manager = manager.with_elector(LeaderElector::new("kube-system", "kube-controller-manager", identity));
    }
    let caller = flex::shell::Caller::new(plugins);
    let core = Asking::around(manager, calls);
    run_core_asked(core, transport, caller, asked, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// `carrack controllers`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: ControllersArgs) -> anyhow::Result<()> {
    let ca_pem = super::cluster_ca(&args.role.kubeconfig)?;
    let identity = (!args.no_leader_elect).then(super::process_identity);
    let listen = args.secure.listen(&args.role.kubeconfig)?;
    super::alone("kube-controller-manager", &args.role, |transport, stop| async move {
        run(&ca_pem, identity.as_deref(), args.flex_volume_plugin_dir.clone(), listen, transport, stop).await
    })
    .await
}

/// The built-in kinds whose objects can have owners and can be deleted with their namespace. Events age out by
/// themselves, and reading them all would cost more than everything else together. Kinds that an API server serves only
/// where it is told to are found by discovery, as those of other servers are: elsewhere they would be waited for without end.
fn collected() -> Vec<Resource> {
    let served = RuntimeConfig::default();
    let rows = table::builtin().iter().filter(|row| {
        let is_stored_here = !row.is_virtual && row.storage.0 == row.group && row.storage.1 == row.plural;
        is_stored_here && row.plural != "events" && row.allows("watch") && row.allows("delete")
    });
    let resources = rows.filter_map(|row| row.resource());
    resources.filter(|found| served.serves(&found.group, &found.version, &found.plural)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_collected_and_reviews_are_not() {
        let plurals: Vec<_> = collected().into_iter().map(|resource| resource.plural).collect();
        assert!(plurals.iter().any(|plural| plural == "pods"));
        assert!(plurals.iter().any(|plural| plural == "secrets"));
        for absent in ["events", "tokenreviews", "bindings", "componentstatuses", "leasecandidates"] {
            assert!(plurals.iter().all(|plural| plural != absent), "{absent}");
        }
    }
}
