//! A node that attaches few volumes of a driver, and a set whose pods all want one there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiRequest, Rng, Time};
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use super::claims::give;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, beside, key_of, terminal, text, uid};
use crate::workload::{Act, create, up_to};

/// The invariant.
pub(crate) const NAME: &str = "nodes-attach-what-they-can";
/// The name of this part of the work.
pub(crate) const PART: &str = "attachment limits";
/// The driver.
pub(super) const DRIVER: &str = "few.carrack.io";

const SET: &str = "attached";
/// So many pods of the set there are at the most, each with a volume of its own.
const WANTED: u64 = 3;
/// How long a claim and a node's limits must have been there before a pod is made, for its scheduler to know of them for certain:
/// longer than a watch is waited for that nobody answers, and than the next one lags.
const HEARD: Duration = Duration::from_secs(60);
/// For how long a scheduler may believe a volume attached that is no more: longer than watches lag.
const LATELY: Duration = Duration::from_secs(10);

/// A node says how many volumes it attaches, which are fewer than there are, and a set that wants them is scaled. In the end it
/// wants as many as the node attaches, whoever has one by then.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let mut make =
        |resource: Resource, object: Value| acts.push(create(Duration::from_millis(3), resource, object, None));
    let node = super::nodes().name(usize::try_from(rng.below(super::NODES as u64)).unwrap_or(0));
    let most = 1 + rng.below(WANTED - 1);
    let driver = json!({"name": DRIVER, "nodeID": node, "allocatable": {"count": most}});
    make(CSINode::resource(), json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}}));
    let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}}});
    for n in 0..WANTED {
        let name = format!("few{n}");
        let volume = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": name}}});
        make(PersistentVolume::resource(), volume);
        let mut own = claim.clone();
        own["volumeName"] = name.into();
        let metadata = json!({"namespace": "default", "name": format!("data-{SET}-{n}")});
        make(PersistentVolumeClaim::resource(), json!({"metadata": metadata, "spec": own}));
    }
    // The later it comes, the surer has its scheduler heard of the limits.
    let later = if rng.one_in(2) { safety / 2 } else { Duration::ZERO };
    let at = start(rng, safety) + later;
    let mut work = Work { resource: StatefulSet::resource(), kind: "statefulset", name: SET, at, safety };
    let mut template = template(SET, 1);
    template["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    let mut spec = json!({"replicas": WANTED, "serviceName": SET, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": SET}}, "template": template});
    give(&mut spec, &claim, json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
    work.create(spec, acts);
    for _ in 0..3 + rng.below(up_to(8, safety)) {
        if !work.wait(rng) {
            break;
        }
        work.patch(json!({"replicas": rng.below(WANTED + 1)}), acts);
    }
    work.at = work.at.max(safety);
    work.patch(json!({ "replicas": most }), acts);
}

/// The claims of a pod whose volumes are of a driver.
fn claims_of<'a>(pod: &'a Value, driver: &'a str, observer: &'a Observer) -> impl Iterator<Item = &'a Value> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let claims = volumes.filter_map(move |volume| {
        let name = text(volume, "/persistentVolumeClaim/claimName");
        observer.get("claim", &beside(pod, name))
    });
    claims.filter(move |claim| {
        let volume = observer.get("volume", text(claim, "/spec/volumeName"));
        volume.is_some_and(|volume| text(volume, "/spec/csi/driver") == driver)
    })
}

/// Node and volume of an attachment.
fn place_of(attachment: &Value) -> (String, String) {
    let volume = text(attachment, "/spec/source/persistentVolumeName");
    (text(attachment, "/spec/nodeName").to_owned(), volume.to_owned())
}

/// What pods that come to a node are judged by.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// Since when nodes' limits, claims and pods have been there, by UID.
    since: BTreeMap<String, Time>,
    /// When volumes ceased to be attached to nodes, by node and volume.
    ended: BTreeMap<(String, String), Time>,
}

impl Attached {
    pub(super) fn changed(&mut self, now: Time, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        if change.resource == "attachment" && change.after.is_none() {
            self.ended.insert(place_of(change.object()), now);
        }
        if !matches!(change.resource, "csinode" | "claim" | "pod") {
            return;
        }
        let id = uid(change.object());
        match (&change.before, &change.after) {
            (None, Some(_)) => _ = self.since.insert(id.to_owned(), now),
            (_, None) => _ = self.since.remove(id),
            (Some(_), Some(_)) => {}
        }
        let has_node = |pod: &Value| !text(pod, "/spec/nodeName").is_empty();
        let was_bound = change.before.as_ref().is_some_and(has_node);
        if let Some(pod) = change.after.as_ref().filter(|pod| change.resource == "pod" && !was_bound && has_node(pod)) {
            self.bound(now, pod, observer, breaches);
        }
    }

    /// A pod was just bound to a node, which attaches all that is wanted there of what this one wants. A volume that is attached
    /// there has its place, though it may be one too many: it was attached for a pod that had gone by then.
    fn bound(&self, now: Time, pod: &Value, observer: &Observer, breaches: &mut Vec<Breach>) {
        let node = text(pod, "/spec/nodeName");
        let Some(made) = self.since.get(uid(pod)) else { return };
        let is_known = |object: &Value| self.since.get(uid(object)).is_some_and(|since| made.since(*since) >= HEARD);
        let Some(said) = observer.get("csinode", node).filter(|said| is_known(said)) else { return };
        for driver in said.pointer("/spec/drivers").and_then(Value::as_array).into_iter().flatten() {
            let name = text(driver, "/name");
            let Some(most) = driver.pointer("/allocatable/count").and_then(Value::as_u64) else { continue };
            let wants = |pod: &Value| -> BTreeSet<String> {
                claims_of(pod, name, observer).filter(|claim| is_known(claim)).map(key_of).collect()
            };
            let is_other =
                |other: &&Value| text(other, "/spec/nodeName") == node && uid(other) != uid(pod) && !terminal(other);
            let mut wanted: BTreeSet<String> = observer.all("pod").filter(is_other).flat_map(wants).collect();
            let own = wants(pod);
            let is_new =
                own.iter().any(|claim| !wanted.contains(claim) && !self.is_attached(now, node, claim, observer));
            wanted.extend(own);
            if is_new && wanted.len() as u64 > most {
                let what = format!("{} comes to {node}, which attaches {most} volumes, of {wanted:?}", key_of(pod));
                breaches.push(Breach::new(NAME, what));
            }
        }
    }

    /// Whether the volume of a claim is attached to a node, or was lately.
    fn is_attached(&self, now: Time, node: &str, claim: &str, observer: &Observer) -> bool {
        let volume = observer.get("claim", claim).map_or("", |claim| text(claim, "/spec/volumeName"));
        let place = (node.to_owned(), volume.to_owned());
        let ended_lately = self.ended.get(&place).is_some_and(|ended| now.since(*ended) < LATELY);
        ended_lately || observer.all("attachment").any(|attachment| place_of(attachment) == place)
    }
}

/// Whether a request asks which limits nodes have.
pub(crate) fn asks_for_limits(request: &ApiRequest) -> bool {
    request.path.contains("/csinodes")
}

/// The same of a node that is not there: whoever asks hears of no limits.
pub(crate) fn of_nobody(request: ApiRequest) -> ApiRequest {
    let mark = if request.path.contains('?') { '&' } else { '?' };
    let path = format!("{}{mark}fieldSelector=metadata.name%3Dnobody", request.path);
    ApiRequest { path, ..request }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Method;

    use super::*;
    use crate::workload::What;

    fn pod(name: &str, claim: &str, node: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": name, "uid": name},
            "spec": {"nodeName": node, "volumes": [{"persistentVolumeClaim": {"claimName": claim}}]}})
    }

    /// A pod with one of these claims comes to a node that attaches so many, so many seconds after all that is there, and others
    /// with these are on it. Its volume was attached there until so many seconds before; none: never, 0: it still is.
    fn check(after_s: u64, most: u64, claim: &str, others: &[&str], attached_s: Option<u64>, holds: bool) {
        let (begin, mut attached, mut breaches) = (Time::from_unix_s(100), Attached::default(), Vec::new());
        let driver = json!({"name": DRIVER, "nodeID": "n", "allocatable": {"count": most}});
        let csi_node = json!({"metadata": {"name": "n", "uid": "csi"}, "spec": {"drivers": [driver]}});
        let mut there = vec![("csinode", csi_node)];
        for (n, of) in [DRIVER, DRIVER, DRIVER, "another.carrack.io"].into_iter().enumerate() {
            let name = format!("v{n}");
            let volume = json!({"metadata": {"name": name}, "spec": {"csi": {"driver": of, "volumeHandle": name}}});
            let metadata = json!({"namespace": "default", "name": format!("c{n}"), "uid": format!("c{n}")});
            there.push(("volume", volume));
            there.push(("claim", json!({"metadata": metadata, "spec": {"volumeName": name}})));
        }
        there.extend(others.iter().enumerate().map(|(n, claim)| ("pod", pod(&format!("other{n}"), claim, "n"))));
        let new = |resource, object: &Value| Change { resource, before: None, after: Some(object.clone()) };
        let nothing = Observer::of([]);
        for (resource, object) in &there {
            attached.changed(begin, &new(*resource, object), &nothing, &mut breaches);
        }
        let (waits, comes) = (pod("p", claim, ""), pod("p", claim, "n"));
        let made = begin + Duration::from_secs(after_s);
        attached.changed(made, &new("pod", &waits), &nothing, &mut breaches);
        let source = json!({"persistentVolumeName": claim.replace('c', "v")});
        let attachment = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n", "source": source}});
        match attached_s {
            Some(0) => there.push(("attachment", attachment)),
            Some(ago_s) => {
                let ended = Change { resource: "attachment", before: Some(attachment), after: None };
                let at = made + Duration::from_secs(60 - ago_s);
                attached.changed(at, &ended, &nothing, &mut breaches);
            }
            None => {}
        }
        there.push(("pod", comes.clone()));
        let bound = Change { resource: "pod", before: Some(waits), after: Some(comes) };
        let later = made + Duration::from_secs(60);
        attached.changed(later, &bound, &Observer::of(there), &mut breaches);
        assert_eq!(breaches.is_empty(), holds, "{after_s} s: {most} {claim} {others:?} {attached_s:?}: {breaches:?}");
    }

    #[test]
    fn a_node_that_gets_more_volumes_than_it_attaches_is_found() {
        check(60, 2, "c0", &["c1"], None, true);
        check(60, 2, "c0", &["c1", "c2"], None, false);
        check(60, 1, "c0", &["c1"], None, false);
        // They share it.
        check(60, 1, "c0", &["c0"], None, true);
        // Of another driver, which attaches as many as one likes.
        check(60, 1, "c3", &["c1", "c2"], None, true);
        check(60, 1, "c0", &["c3"], None, true);
        check(60, 1, "none", &["c1", "c2"], None, true);
        // Its scheduler may not know of all that yet.
        check(1, 1, "c0", &["c1"], None, true);
        check(59, 1, "c0", &["c1"], None, true);
        // It is attached there, or its scheduler may believe so.
        check(60, 1, "c0", &["c1"], Some(0), true);
        check(60, 1, "c0", &["c1"], Some(5), true);
        check(60, 1, "c0", &["c1"], Some(15), false);
    }

    #[test]
    fn the_set_wants_in_the_end_what_its_node_attaches() {
        for (seed, safety_s) in (0..20).zip([4, 12, 90].into_iter().cycle()) {
            let (safety, mut all) = (Duration::from_secs(safety_s), Vec::new());
            acts(&mut Rng::new(seed), safety, &mut all);
            let said = all.iter().find_map(|act| match &act.what {
                What::Create { object, .. } => object.pointer("/spec/drivers/0/allocatable/count").cloned(),
                _ => None,
            });
            let last = all.last().expect("an act");
            let What::Patch { patch, .. } = &last.what else { panic!("seed {seed}: {last:?}") };
            assert_eq!((last.at >= safety, Some(&patch["spec"]["replicas"])), (true, said.as_ref()), "seed {seed}");
        }
    }

    #[test]
    fn limits_are_asked_for_of_nobody() {
        let request = |path: &str| ApiRequest::new(Method::Get, path);
        let nobody = |path: &str| of_nobody(request(path)).path;
        let csi_nodes = "/apis/storage.k8s.io/v1/csinodes";
        assert!(asks_for_limits(&request(csi_nodes)) && !asks_for_limits(&request("/api/v1/nodes")));
        assert_eq!(nobody(csi_nodes), format!("{csi_nodes}?fieldSelector=metadata.name%3Dnobody"));
        let watch = format!("{csi_nodes}?watch=true");
        assert_eq!(nobody(&watch), format!("{watch}&fieldSelector=metadata.name%3Dnobody"));
    }
}
