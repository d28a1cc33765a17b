//! Which numbers GPUs had in a former life of the plugin, or before a reboot.
//!
//! A driver that misses a card numbers the others anew, and what was chosen for pods is written down by number as well as by
//! UUID. So the numbers are those that the node tells of (annotation `gpu-devices`), and nothing is offered before that was read:
//! a number that is not known is not a new one.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{ApiRequest, Selector, Transport};
use carrack_gpu_extender::{Names, annotations, demand};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::inventory::Inventory;
use crate::plugin::Config;

/// How long to wait before asking again what got no answer.
const AGAIN: Duration = Duration::from_secs(1);

/// GPUs that were found, by the numbers that they had before. It asks until it is told.
pub(crate) async fn recall(config: &Config, api: &dyn Transport, found: Inventory) -> Inventory {
    loop {
        match noted(config, api).await {
            Ok(Some((noted, in_use))) => return found.recalled(&noted, &in_use),
            Ok(None) => return found,
            Err(error) => {
                tracing::warn!(node = config.node, error, "which numbers the GPUs had before cannot be read yet");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What the node tells of its GPUs, and which of their numbers its pods have. None where it tells of none, or is a new one.
async fn noted(config: &Config, api: &dyn Transport) -> Result<Option<(Inventory, BTreeSet<usize>)>, String> {
    let Config { names, node, .. } = config;
    let told = match api.send(ApiRequest::get(&Node::resource(), "", node)).await {
        Ok(reply) => reply.object::<Node>().map_err(|error| error.to_string())?,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let Some(noted) = told.annotation(&names.devices).and_then(Inventory::noted) else { return Ok(None) };
    let pods = pods(api, node).await?;
    Ok(Some((noted, in_use(names, node, &pods))))
}

fn in_use(names: &Names, node: &str, pods: &[Pod]) -> BTreeSet<usize> {
    let places = |pod: &Pod| {
        let demand = demand::of(pod, names).ok()?;
        annotations::read(names, pod, node, &demand)
    };
    pods.iter().filter_map(places).flat_map(|places| places.into_values().flatten()).collect()
}

/// The pods of a node, read live: who was bound a moment ago is among them.
///
/// # Errors
/// The API server does not answer.
pub(crate) async fn pods(api: &dyn Transport, node: &str) -> Result<Vec<Pod>, String> {
    let mut pods = Vec::new();
    let mut token = String::new();
    let selector = Selector::fields(format!("spec.nodeName={node}"));
    loop {
        let request = ApiRequest::list(&Pod::resource(), &selector, 500, &token);
        let reply = api.send(request).await.map_err(|error| error.to_string())?;
        let page: k8s_openapi::List<Pod> = reply.json().map_err(|error| error.to_string())?;
        pods.extend(page.items);
        token = page.metadata.continue_.unwrap_or_default();
        if token.is_empty() {
            return Ok(pods);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_of_pods_are_in_use() {
        let pod = |gpus: &str, node: &str| -> Pod {
            carrack_types::json::from_value(json!({"metadata": {"annotations": {
                "tencent.com/predicate-node": node, "tencent.com/predicate-gpu-idx-0": gpus}},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"tencent.com/vcuda-core": "200"}}}]}}))
            .expect("a pod")
        };
        let pods = [pod("0,2", "n"), pod("3,4", "m"), pod("x", "n"), Pod::default()];
        assert_eq!(in_use(&Names::default(), "n", &pods), [0, 2].into());
    }
}
