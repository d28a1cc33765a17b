//! virt-controller, and the kinds that it works on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use carrack_engine::shell::{NoDoer, random_seed, run_core_asked, scrapes};
use carrack_engine::{ApiRequest, ContentType, LeaderElector, Method, Rng, Transport};
use carrack_types::kubevirt::crds;
use carrack_virt::controllers::metrics::{Measures, MetricsController};
use carrack_virt::controllers::{Config, manager};
use carrack_virt::requests::Requests;
use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::diagnostics::{self, Listen};
use crate::cli::roles::VirtControllerArgs;

/// Where custom resource definitions are.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Namespace and name of the object that holds the installation's settings, as KubeVirt's own installer names them.
const INSTALLATION: (&str, &str) = ("kubevirt", "kubevirt");
/// Where such objects are, of all namespaces; there is no more than one.
const INSTALLATIONS: &str = "/apis/kubevirt.io/v1/kubevirts";

/// Runs the controllers until `stop`. With `elect_as`, only while they hold the Lease under that identity. With a place to
/// listen, it tells its metrics there.
///
/// # Errors
/// Why they cannot go on; a lost election is one.
pub async fn run(
    config: &Config,
    elect_as: Option<&str>,
    listen: Option<Listen>,
    mut transport: Arc<dyn Transport>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // KubeVirt's components have its name before those of their queues' measures, too.
    let manager = manager(config, Rng::new(random_seed()));
    let mut manager = manager.measuring_as("kubevirt_").telling_lead_as("kubevirt_virt_controller");
    let (asks, asked) = scrapes();
    // The port is let go of when this run of the role ends, however it does.
    let serving = stop.child_token();
    let _ends = serving.clone().drop_guard();
    if let Some(listen) = listen {
        let (measures, requests) = (Measures::default(), Requests::default());
        transport = requests.counted(transport);
        manager = manager.with(MetricsController::new(measures.clone()));
        let metrics: diagnostics::Metrics = Arc::new(move || {
            let (asks, text) = (asks.clone(), measures.text() + &requests.text());
            async move { Some(text + &asks.text().await?) }.boxed()
        });
        let address = diagnostics::serve("virt-controller", listen, metrics, transport.clone(), serving).await?;
        tracing::info!(%address, "metrics are served");
    }
    if let Some(identity) = elect_as {
        manager = manager.with_elector(LeaderElector::new(INSTALLATION.0, "virt-controller", identity));
    }
    run_core_asked(manager, transport, NoDoer, asked, stop.cancelled_owned()).await.map_err(anyhow::Error::msg)
}

/// `carrack virt-controller`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: VirtControllerArgs) -> anyhow::Result<()> {
    let identity = (!args.no_leader_elect).then(super::process_identity);
    let config = config(args.launcher_image.as_deref(), &args.data_dir.layout()?.virt_dir());
    let listen = args.secure.listen(&args.role.kubeconfig)?;
    super::alone("virt-controller", &args.role, |transport, stop| async move {
        run(&config, identity.as_deref(), listen, transport, stop).await
    })
    .await
}

/// The controllers' settings.
#[must_use]
pub fn config(launcher_image: Option<&str>, virt_dir: &Path) -> Config {
    Config {
        launcher_image: launcher_image.map_or_else(|| carrack_images::reference("virt-launcher"), str::to_owned),
        keep_alive_dir: keep_alive_dir(virt_dir).display().to_string(),
        planted: None,
    }
}

/// Where a node has the program that keeps containers of container disks alive.
#[must_use]
pub fn keep_alive_dir(virt_dir: &Path) -> PathBuf {
    virt_dir.join("bin")
}

/// Sees to it that KubeVirt's kinds are defined as this program knows them, and that the installation has its object: this one, or
/// one that somebody has put in its place.
///
/// # Errors
/// The first write that was refused.
pub async fn install(api: &dyn Transport) -> anyhow::Result<()> {
    for definition in crds() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        ensure(api, &name, &definition).await?;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": INSTALLATION.0}});
    create(api, "/api/v1/namespaces", &namespace).await?;
    let there: Value = match api.send(ApiRequest::new(Method::Get, INSTALLATIONS)).await {
        Ok(response) => response.json().map_err(|error| anyhow::anyhow!("{INSTALLATIONS}: {error}"))?,
        Err(error) => bail!("cannot list {INSTALLATIONS}: {error}"),
    };
    if there["items"].as_array().is_some_and(|installations| !installations.is_empty()) {
        return Ok(());
    }
    let installation = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"namespace": INSTALLATION.0, "name": INSTALLATION.1}, "spec": {},
    });
    create(api, &format!("/apis/kubevirt.io/v1/namespaces/{}/kubevirts", INSTALLATION.0), &installation).await
}

/// The name of a definition that is there with another spec, which [`install`] would change.
///
/// # Errors
/// One cannot be read.
pub async fn other_definition(api: &dyn Transport) -> anyhow::Result<Option<String>> {
    for definition in crds() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let there = read(api, name).await?;
        if there.is_some_and(|there| !covers(&there["spec"], &definition["spec"])) {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// A definition, if it is there.
async fn read(api: &dyn Transport, name: &str) -> anyhow::Result<Option<Value>> {
    match api.send(ApiRequest::new(Method::Get, format!("{DEFINITIONS}/{name}"))).await {
        Ok(response) => response.json().map(Some).map_err(|error| anyhow::anyhow!("{name}: {error}")),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => bail!("cannot read the definition {name}: {error}"),
    }
}

/// Creates the definition, or gives it its own spec back. Everything else about it is left alone.
async fn ensure(api: &dyn Transport, name: &str, wanted: &Value) -> anyhow::Result<()> {
    let Some(there) = read(api, name).await? else { return create(api, DEFINITIONS, wanted).await };
    if covers(&there["spec"], &wanted["spec"]) {
        return Ok(());
    }
    let patch = json!({"metadata": {"resourceVersion": there["metadata"]["resourceVersion"]}, "spec": wanted["spec"]});
    let request = ApiRequest {
        content_type: ContentType::MergePatch,
        body: serde_json::to_vec(&patch).context("a definition is no JSON")?.into(),
        ..ApiRequest::new(Method::Patch, format!("{DEFINITIONS}/{name}"))
    };
    api.send(request).await.map_err(|error| anyhow::anyhow!("cannot update the definition {name}: {error}"))?;
    Ok(())
}

/// Whether all that is wanted is there. The server adds defaults to what it stores.
fn covers(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, value)| there.get(key).map_or_else(|| is_zero(value), |found| covers(found, value))),
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len() && there.iter().zip(wanted).all(|(there, wanted)| covers(there, wanted))
        }
        _ => there == wanted,
    }
}

/// Whether a value may be stored as no value.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}

async fn create(api: &dyn Transport, collection: &str, object: &Value) -> anyhow::Result<()> {
    let request = ApiRequest {
        body: serde_json::to_vec(object).context("an object is no JSON")?.into(),
        ..ApiRequest::new(Method::Post, collection)
    };
    match api.send(request).await {
        Err(error) if !error.is_already_exists() => {
            bail!("cannot create {} in {collection}: {error}", object["metadata"]["name"])
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_adds_does_not_count() {
        let check = |there: Value, wanted: Value, expected: bool| {
            assert_eq!(covers(&there, &wanted), expected, "{there} {wanted}")
        };
        check(json!({"a": 1, "b": 2}), json!({"a": 1}), true);
        check(json!({"a": 1}), json!({"a": 2}), false);
        check(json!({"a": [{"x": 1, "y": 2}]}), json!({"a": [{"x": 1}]}), true);
        check(json!({"a": [1, 2]}), json!({"a": [1]}), false);
        check(json!({}), json!({"a": false, "b": ""}), true);
        check(json!({}), json!({"a": true}), false);
    }
}
