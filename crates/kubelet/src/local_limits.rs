//! Limits of pods on the node's disk: of a volume of their own, of a container, of all containers together. Who holds more
//! is evicted (kubelet `eviction_manager.go`, `localStorageEviction`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::amount;
use crate::eviction::Usage;
use crate::spec::pod::{self, spec};

const STORAGE: &str = "ephemeral-storage";

fn bytes(q: &Quantity) -> u64 {
    u64::try_from(amount::units(q)).unwrap_or(0)
}

/// The pod's volumes that have a limit, with it.
pub fn volumes(pod: &Pod) -> impl Iterator<Item = (&str, &Quantity)> {
    let all = spec(pod).volumes.iter().flatten();
    let limited = all.filter_map(|v| Some((v.name.as_str(), v.empty_dir.as_ref()?.size_limit.as_ref()?)));
    limited.filter(|(_, limit)| bytes(limit) > 0)
}

fn limit(c: &Container) -> Option<&Quantity> {
    c.resources.as_ref()?.limits.as_ref()?.get(STORAGE)
}

/// Containers that have a limit.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &str> {
    pod::init_containers(pod)
        .map(|(_, c)| c)
        .chain(&spec(pod).containers)
        .filter(|c| limit(c).is_some())
        .map(|c| c.name.as_str())
}

/// Whether anything of the pod has a limit.
#[must_use]
pub fn any(pod: &Pod) -> bool {
    volumes(pod).next().is_some() || containers(pod).next().is_some()
}

/// What the pod holds more of than it may, in upstream's words.
#[must_use]
pub fn exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    let holds = |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
    if let Some((name, limit)) = volumes(pod).find(|(name, limit)| holds(&usage.volumes, name) > bytes(limit)) {
        return Some(format!("Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ", limit.0));
    }
    let of_pod = carrack_types::pod::limits(pod).get(STORAGE).copied().filter(|_| containers(pod).next().is_some());
    if let Some(limit) = of_pod.filter(|limit| i128::from(usage.disk_bytes) > i128::from(limit.units())) {
        return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "));
    }
    let all = pod::init_containers(pod).map(|(_, c)| c).chain(&spec(pod).containers);
    let mut over = all
        .filter_map(|c| Some((&c.name, limit(c)?)))
        .filter(|(name, limit)| holds(&usage.containers, name) > bytes(limit));
    over.next()
        .map(|(name, limit)| format!("Container {name} exceeded its local ephemeral storage limit {:?}. ", limit.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_holds_more_than_he_may_is_named() {
        let limited = |size: &str| json!({"limits": {STORAGE: size}});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "w", "emptyDir": {}}],
            "containers": [{"name": "a", "resources": limited("2Ki")}, {"name": "b", "resources": limited("1Ki")}]}}))
        .unwrap();
        let map = |name: &str, bytes: u64| BTreeMap::from([(name.to_owned(), bytes)]);
        for (usage, expected) in [
            (Usage::default(), None),
            (Usage { volumes: map("v", 1024), containers: map("a", 2048), disk_bytes: 3072, ..Usage::default() }, None),
            (
                Usage { volumes: map("v", 1025), ..Usage::default() },
                Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "),
            ),
            (Usage { volumes: map("w", 9999), ..Usage::default() }, None),
            (
                Usage { disk_bytes: 3073, ..Usage::default() },
                Some("Pod ephemeral local storage usage exceeds the total limit of containers 3Ki. "),
            ),
            (
                Usage { containers: map("b", 1025), ..Usage::default() },
                Some("Container b exceeded its local ephemeral storage limit \"1Ki\". "),
            ),
        ] {
            assert_eq!(exceeded(&pod, &usage).as_deref(), expected, "{usage:?}");
        }
        let free: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).unwrap();
        assert!(any(&pod) && !any(&free));
        assert_eq!(exceeded(&free, &Usage { disk_bytes: 9999, ..Usage::default() }), None);
    }
}
