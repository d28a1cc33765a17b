//! What a pod's status says of the devices that its containers hold: whether they are well (upstream's
//! `UpdateAllocatedResourcesStatus`, `pkg/kubelet/cm/devicemanager`).
//!
//! While a plugin is away what was told of its devices stands: plugins are exchanged within moments, and each exchange would
//! else be two writes for every pod that holds a device. Of what nobody has ever told, and of a device that its plugin lists no
//! more, nothing is known.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodStatus, ResourceHealth, ResourceStatus};

use super::{Devices, Held};
use crate::runtime::Uid;

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";
const UNKNOWN: &str = "Unknown";

/// What was told of each container's devices, by its name.
fn told_of(told: Option<&PodStatus>) -> BTreeMap<&str, &[ResourceStatus]> {
    let all = told.into_iter().flat_map(|status| status.container_statuses.iter().flatten());
    all.filter_map(|c| Some((c.name.as_str(), c.allocated_resources_status.as_deref()?))).collect()
}

impl Devices {
    /// Adds it to a new status, for containers that have been made. `told` is the status before: of devices that were let go, by
    /// a pod that has ended say, it says the last.
    pub fn tell_health(&self, uid: &str, told: Option<&PodStatus>, status: &mut PodStatus) {
        let held = self.allocations.get(uid);
        let told = told_of(told);
        for c in status.container_statuses.iter_mut().flatten() {
            let before = told.get(c.name.as_str()).copied().unwrap_or_default();
            let holdings = held.and_then(|held| held.get(&c.name)).filter(|_| c.container_id.is_some());
            let of_each: Vec<ResourceStatus> = match holdings {
                Some(holdings) => holdings.iter().map(|(name, held)| self.health(name, &held.ids, before)).collect(),
                None => before.to_vec(),
            };
            c.allocated_resources_status = Some(of_each).filter(|all| !all.is_empty());
        }
    }

    fn health(&self, resource: &str, ids: &BTreeSet<String>, before: &[ResourceStatus]) -> ResourceStatus {
        let listed = self.resources.get(resource).filter(|r| r.plugin.is_some_and(|p| p.listed)).map(|r| &r.devices);
        let last = |id: &String| {
            let mut told = before.iter().filter(|s| s.name == resource).flat_map(|s| s.resources.iter().flatten());
            told.find(|health| health.resource_id == *id)?.health.clone()
        };
        let of = |id: &String| {
            let word = match listed.map(|devices| devices.get(id)) {
                Some(Some(device)) if device.healthy => HEALTHY,
                Some(Some(_)) => UNHEALTHY,
                Some(None) => UNKNOWN,
                None => return last(id).unwrap_or_else(|| UNKNOWN.to_owned()),
            };
            word.to_owned()
        };
        let one = |id: &String| ResourceHealth { resource_id: id.clone(), health: Some(of(id)), message: None };
        let resources = ids.iter().map(one);
        ResourceStatus { name: resource.to_owned(), resources: Some(resources.collect()) }
    }

    /// Pods that hold devices of a resource.
    pub fn holders<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = Uid> + 'a {
        let holds = move |(uid, containers): (&Uid, &Held)| {
            containers.values().any(|held| held.contains_key(resource)).then(|| uid.clone())
        };
        self.allocations.iter().filter_map(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Allocation, Device, PluginOptions};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const GPU: &str = "x.io/gpu";

    /// What is told of device `a`, which container `c` of pod `u` holds: its plugin lists these, or is away.
    fn check(listed: Option<&[(&str, bool)]>, held: bool, made: bool, told: Option<&str>, expected: Option<&str>) {
        let holding = Allocation { ids: BTreeSet::from(["a".to_owned()]), ..Allocation::default() };
        let by_container = BTreeMap::from([("c".to_owned(), BTreeMap::from([(GPU.to_owned(), holding)]))]);
        let held = if held { BTreeMap::from([("u".into(), by_container)]) } else { BTreeMap::new() };
        let mut devices = Devices::restore(held, BTreeSet::new(), true);
        if let Some(listed) = listed {
            devices.plugin_up(GPU, 1, PluginOptions::default());
            let device = |(id, healthy): &(&str, bool)| (id.to_string(), *healthy);
            let listed = listed.iter().map(device).map(|(id, healthy)| Device { id, healthy, numa_nodes: vec![] });
            devices.plugin_devices(GPU, 1, listed.collect());
        }
        let health = |word: &str| json!([{"name": GPU, "resources": [{"resourceID": "a", "health": word}]}]);
        let status = |told: Option<&str>| -> PodStatus {
            let mut c = json!({"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": ""});
            c["containerID"] = if made { json!("containerd://1") } else { Value::Null };
            c["allocatedResourcesStatus"] = told.map_or(Value::Null, health);
            serde_json::from_value(json!({"containerStatuses": [c]})).unwrap()
        };
        let mut new = status(None);
        devices.tell_health("u", Some(&status(told)), &mut new);
        assert_eq!(new, status(expected), "{listed:?} {told:?}");
        assert_eq!(devices.holders(GPU).count(), usize::from(!devices.allocations().is_empty()));
    }

    #[test]
    fn health_is_told() {
        let (well, ill) = (Some("Healthy"), Some("Unhealthy"));
        for (listed, told, expected) in [
            (Some(&[("a", true)][..]), None, well),
            (Some(&[("a", false)][..]), well, ill),
            (Some(&[("a", true), ("b", false)][..]), ill, well),
            (Some(&[("b", true)][..]), well, Some("Unknown")),
            // Its plugin is away.
            (None, ill, ill),
            (None, well, well),
            (None, None, Some("Unknown")),
        ] {
            check(listed, true, true, told, expected);
        }
        // It is not made yet, and it has let go.
        check(Some(&[("a", true)]), true, false, None, None);
        check(Some(&[("a", true)]), false, true, ill, ill);
        check(Some(&[("a", true)]), false, true, None, None);
    }
}
