//! What a pod may keep on the disk of its node: the `sizeLimit` of its emptyDirs, and limits of `ephemeral-storage`, of all of
//! it and of each container (upstream's `localStorageEviction`, `pkg/kubelet/eviction/eviction_manager.go`).
//!
//! An emptyDir in memory cannot grow beyond its limit, but one of huge pages can, and both are measured alike.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::amount;
use crate::eviction::Usage;
use crate::spec::pod::spec;

const RESOURCE: &str = "ephemeral-storage";

/// The emptyDirs that have limits. One of nothing is none (upstream's `emptyDirLimitEviction`).
fn empty_dirs(pod: &Pod) -> impl Iterator<Item = (&str, &Quantity)> {
    let volumes = spec(pod).volumes.iter().flatten();
    let limit = |limit: &&Quantity| amount::units(limit) > 0;
    volumes.filter_map(move |v| Some((v.name.as_str(), v.empty_dir.as_ref()?.size_limit.as_ref().filter(limit)?)))
}

fn limit(c: &Container) -> Option<&Quantity> {
    c.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)
}

/// Whether anything limits what a pod keeps.
#[must_use]
pub fn is_limited(pod: &Pod) -> bool {
    empty_dirs(pod).next().is_some() || carrack_types::pod::limits(pod).contains_key(RESOURCE)
}

/// Why a pod has to go that keeps more than it may: the limit, as upstream's metrics name it, and the same for people. None where
/// it keeps to its limits.
#[must_use]
pub fn exceeded(pod: &Pod, usage: &Usage) -> Option<(&'static str, String)> {
    let is_above = |used: u64, limit: &Quantity| i128::from(used) > i128::from(amount::units(limit));
    for (name, limit) in empty_dirs(pod) {
        if usage.empty_dirs.get(name).is_some_and(|used| is_above(*used, limit)) {
            let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ", limit.0);
            return Some(("emptydirfs.limit", message));
        }
    }
    if let Some(all) = carrack_types::pod::limits(pod).get(RESOURCE)
        && i128::from(usage.disk_bytes) > i128::from(all.units())
    {
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {all}. ");
        return Some(("ephemeralpodfs.limit", message));
    }
    let over =
        |c: &&Container| limit(c).is_some_and(|l| usage.containers.get(&c.name).is_some_and(|u| is_above(*u, l)));
    let container = spec(pod).containers.iter().find(over)?;
    let limit = limit(container).map(|l| l.0.as_str()).unwrap_or_default();
    let message = format!("Container {} exceeded its local ephemeral storage limit {limit:?}. ", container.name);
    Some(("ephemeralcontainerfs.limit", message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn who_keeps_more_than_it_may_goes() {
        let of = |size_limit: Value, a: Value, b: Value| -> Pod {
            let container = |name: &str, limit: Value| json!({"name": name, "resources": {"limits": limit}});
            let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": size_limit}}]);
            let spec = json!({"containers": [container("a", a), container("b", b)], "volumes": volumes});
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
        };
        let used = |volume: u64, a: u64, b: u64| Usage {
            disk_bytes: volume + a + b,
            containers: BTreeMap::from([("a".into(), a), ("b".into(), b)]),
            empty_dirs: BTreeMap::from([("v".into(), volume)]),
            ..Usage::default()
        };
        let some = |limit: &str| json!({"ephemeral-storage": limit});
        let none = Value::Null;
        let volume = Some(("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "));
        let total = "Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. ";
        let total = Some(("ephemeralpodfs.limit", total));
        let one = "Container b exceeded its local ephemeral storage limit \"1Ki\". ";
        let one = Some(("ephemeralcontainerfs.limit", one));
        for (size_limit, a, b, usage, limited, expected) in [
            (none.clone(), none.clone(), none.clone(), used(9999, 9999, 9999), false, None),
            (json!("1Ki"), none.clone(), none.clone(), used(1024, 9999, 0), true, None),
            (json!("1Ki"), none.clone(), none.clone(), used(1025, 0, 0), true, volume),
            (json!("0"), none.clone(), none.clone(), used(1025, 0, 0), false, None),
            (none.clone(), some("1Ki"), some("1Ki"), used(1024, 512, 512), true, None),
            (none.clone(), some("1Ki"), some("1Ki"), used(1025, 512, 512), true, total),
            (none.clone(), some("1Ki"), some("1Ki"), used(0, 512, 1025), true, one),
            // The volume comes first.
            (json!("1Ki"), some("1Ki"), some("1Ki"), used(1025, 2048, 2048), true, volume),
            // As upstream counts: who has no limit counts towards the sum of the others'.
            (none.clone(), some("2Ki"), none.clone(), used(0, 0, 2049), true, total),
            // What was not measured is no reason.
            (json!("1Ki"), some("1Ki"), none, Usage::default(), true, None),
        ] {
            let pod = of(size_limit, a, b);
            assert_eq!(is_limited(&pod), limited, "{pod:?}");
            let found = exceeded(&pod, &usage);
            assert_eq!(found.as_ref().map(|(l, m)| (*l, m.as_str())), expected, "{usage:?} of {pod:?}");
        }
    }
}
