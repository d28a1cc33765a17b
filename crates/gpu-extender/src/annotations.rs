//! A choice of GPUs as annotations of its pod, in upstream's form: what node plugins read.
//!
//! Upstream names GPUs by number alone. Numbers are the driver's, and mean other cards once it misses one after a reboot; so
//! the UUIDs of the cards are written beside the numbers, where the node tells them, and count for more.

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use crate::demand::{Demand, MAX_GPUS, Slot};
use crate::names::Names;
use crate::node::Gpu;
use crate::place::Places;

fn key(names: &Names, slot: Slot) -> String {
    match slot {
        Slot::Main(number) => names.container(number),
        Slot::Init(number) => names.init_container(number),
    }
}

fn uuids_key(names: &Names, slot: Slot) -> String {
    match slot {
        Slot::Main(number) => names.container_uuids(number),
        Slot::Init(number) => names.init_container_uuids(number),
    }
}

/// The annotations that say it, of a node with these GPUs.
#[must_use]
pub fn write(names: &Names, node: &str, places: &Places, on: &[Gpu], now: Time) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = [
        (names.node.clone(), node.to_owned()),
        (names.time.clone(), now.0.to_string()),
        (names.assigned.clone(), "false".to_owned()),
    ]
    .into();
    let uuid = |number: &usize| on.get(*number).map(|gpu| gpu.uuid.as_str()).filter(|uuid| !uuid.is_empty());
    for (slot, gpus) in places {
        let numbers: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        all.insert(key(names, *slot), numbers.join(","));
        if let Some(uuids) = gpus.iter().map(uuid).collect::<Option<Vec<&str>>>() {
            all.insert(uuids_key(names, *slot), uuids.join(","));
        }
    }
    all
}

/// The keys of all such annotations that a pod has.
#[must_use]
pub fn keys(names: &Names, pod: &Pod) -> Vec<String> {
    let spec = pod.spec.as_ref();
    let mains = spec.map_or(0, |s| s.containers.len());
    let inits = spec.and_then(|s| s.init_containers.as_ref()).map_or(0, Vec::len);
    let all = [&names.node, &names.time, &names.assigned].into_iter().cloned();
    let slots = (0..mains).map(Slot::Main).chain((0..inits).map(Slot::Init));
    let all = all.chain(slots.flat_map(|slot| [key(names, slot), uuids_key(names, slot)]));
    all.filter(|key| pod.annotation(key).is_some()).collect()
}

/// The choice that a pod's annotations tell, if they tell one for this node and for all that it asks for.
#[must_use]
pub fn read(names: &Names, pod: &Pod, node: &str, demand: &Demand) -> Option<Places> {
    if pod.annotation(&names.node) != Some(node) {
        return None;
    }
    let gpus = |text: &str, count: usize| -> Option<Vec<usize>> {
        let mut gpus: Vec<usize> = text.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
        gpus.sort_unstable();
        gpus.dedup();
        (gpus.len() == count && gpus.iter().all(|n| *n < MAX_GPUS)).then_some(gpus)
    };
    let slots = demand.iter().map(|asking| {
        let text = pod.annotation(&key(names, asking.slot))?;
        Some((asking.slot, gpus(text, asking.want.gpus())?))
    });
    slots.collect()
}

/// The UUIDs of the GPUs of a container that is on so many, if they were known when these were chosen.
#[must_use]
pub fn uuids<'p>(names: &Names, pod: &'p Pod, slot: Slot, count: usize) -> Option<Vec<&'p str>> {
    let uuids: Vec<&str> = pod.annotation(&uuids_key(names, slot))?.split(',').map(str::trim).collect();
    (uuids.len() == count && uuids.iter().all(|uuid| !uuid.is_empty())).then_some(uuids)
}

/// What [`read`] reads, by the numbers that the node's GPUs have by now. GPUs that it has no more are left out.
#[must_use]
pub fn read_by_uuid(names: &Names, pod: &Pod, node: &str, demand: &Demand, on: &[Gpu]) -> Option<Places> {
    let mut places = read(names, pod, node, demand)?;
    if on.is_empty() || on.iter().any(|gpu| gpu.uuid.is_empty()) {
        return Some(places);
    }
    for (slot, numbers) in &mut places {
        if let Some(uuids) = uuids(names, pod, *slot, numbers.len()) {
            *numbers = uuids.iter().filter_map(|uuid| on.iter().position(|gpu| gpu.uuid == *uuid)).collect();
        }
    }
    Some(places)
}

/// When the choice was made, in nanoseconds since the epoch.
#[must_use]
pub fn chosen_at(names: &Names, pod: &Pod) -> Option<i64> {
    pod.annotation(&names.time)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Asking, Want};
    use serde_json::json;

    #[test]
    fn what_is_written_is_read() {
        let names = Names::default();
        let want = |slot, want| Asking { slot, name: "c".into(), want, before: matches!(slot, Slot::Init(_)) };
        let demand =
            vec![want(Slot::Init(1), Want::Whole(2)), want(Slot::Main(0), Want::Share { cores: 5, memory: 1 })];
        let places = Places::from([(Slot::Init(1), vec![0, 2]), (Slot::Main(0), vec![2])]);
        let annotations = write(&names, "n", &places, &[], Time(5));
        assert_eq!(annotations["tencent.com/predicate-gpu-idx-0"], "2");
        assert_eq!(annotations["tencent.com/predicate-gpu-init-idx-1"], "0,2");
        assert_eq!(annotations["tencent.com/gpu-assigned"], "false");
        let check = |changed: &[(&str, &str)], node: &str, good: bool| {
            let mut annotations = annotations.clone();
            for (key, value) in changed {
                annotations.insert(format!("tencent.com/{key}"), (*value).to_owned());
            }
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "a"}, {"name": "b"}]}}))
            .expect("a pod");
            let read = read(&names, &pod, node, &demand);
            assert_eq!(read.is_some(), good, "{changed:?}: {read:?}");
            if changed.is_empty() && good {
                assert_eq!(read, Some(places.clone()));
            }
            assert_eq!(keys(&names, &pod).len(), 5);
            assert_eq!(chosen_at(&names, &pod).is_some(), !changed.iter().any(|(k, _)| *k == "predicate-time"));
        };
        check(&[], "n", true);
        check(&[], "m", false);
        check(&[("predicate-gpu-idx-0", "x")], "n", false);
        check(&[("predicate-gpu-idx-0", "1,2")], "n", false);
        check(&[("predicate-gpu-idx-0", "99999")], "n", false);
        check(&[("predicate-gpu-init-idx-1", "1,1")], "n", false);
        check(&[("predicate-gpu-init-idx-1", "")], "n", false);
        check(&[("predicate-time", "soon")], "n", true);
    }

    /// GPUs of a node by UUID.
    fn gpus(uuids: &[&str]) -> Vec<Gpu> {
        uuids.iter().map(|uuid| Gpu { uuid: (*uuid).to_owned(), memory: 4, ..Gpu::default() }).collect()
    }

    /// What a pod has by now that two GPUs, 0 and 2, of a node with these were chosen for.
    fn check_uuids(before: &[&str], now: &[&str], expected: &[usize]) {
        let names = Names::default();
        let demand = vec![Asking { slot: Slot::Main(0), name: "c".into(), want: Want::Whole(2), before: false }];
        let places = Places::from([(Slot::Main(0), vec![0, 2])]);
        let annotations = write(&names, "n", &places, &gpus(before), Time(5));
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "c"}]}}))
        .expect("a pod");
        let named = before.iter().all(|uuid| !uuid.is_empty());
        assert_eq!(keys(&names, &pod).len(), if named { 5 } else { 4 }, "what is written is taken away again");
        let read = read_by_uuid(&names, &pod, "n", &demand, &gpus(now));
        assert_eq!(read, Some(Places::from([(Slot::Main(0), expected.to_vec())])), "{before:?} {now:?}");
    }

    #[test]
    fn cards_are_known_by_their_uuids() {
        check_uuids(&["a", "b", "c"], &["a", "b", "c"], &[0, 2]);
        check_uuids(&["a", "b", "c"], &["b", "c", "a"], &[2, 1]);
        // One is lost, and the others have moved up.
        check_uuids(&["a", "b", "c"], &["b", "c"], &[1]);
        check_uuids(&["a", "b", "c"], &["d"], &[]);
        // Where nobody names them, numbers are all there is.
        check_uuids(&["", "", ""], &["b", "c", "a"], &[0, 2]);
        check_uuids(&["a", "b", "c"], &["", "", ""], &[0, 2]);
        check_uuids(&["a", "b", "c"], &[], &[0, 2]);
    }
}
