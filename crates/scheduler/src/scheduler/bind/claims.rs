//! What has become of the claims for which a pod waits on its way to a node (plugins/volumebinding, `checkBindings`).
//!
//! A provisioner that cannot make a volume at the chosen node takes the node off the claim again. Then the pod is to go
//! elsewhere, and not to wait until its time is over. A claim or a volume that is not shown yet as it was written says
//! nothing of that. And where a volume was made is looked at before the pod is bound: not every provisioner does as it
//! is told.

use std::collections::BTreeMap;

use carrack_engine::ApiResponse;
use carrack_types::resource::{Object as _, PartialObject};
use carrack_types::volume::SELECTED_NODE;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};

use crate::Cluster;
use crate::cluster::{ObjectName, Objects, name_of};
use crate::plugins::volumes::{Plan, is_bound, reaches};

/// At which revisions claims and volumes were as the pod's plan wants them; the namespace of volumes is empty.
pub type Written = BTreeMap<ObjectName, u64>;

/// How far the claims of a pod are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All have their volumes, where the pod can use them.
    Bound,
    /// Some are still to get theirs.
    Awaited,
    /// They get none at this node, for this reason.
    Lost(String),
}

/// What was written, as its reply tells it, and its revision.
pub fn written(reply: &ApiResponse) -> Option<(ObjectName, u64)> {
    let object = reply.object::<PartialObject>().ok()?;
    Some((name_of(&object), object.revision())).filter(|(_, revision)| *revision > 0)
}

/// How far the claims of a plan for a node are.
pub fn progress(plan: &Plan, written: &Written, node: &str, cluster: &Cluster) -> Progress {
    let Some(object) = cluster.named(node).and_then(|known| known.node.as_deref()) else {
        return Progress::Lost(format!("node {node} is not there any more"));
    };
    let look = Look { written, node: object, objects: &cluster.objects };
    let existing = plan.bindings.iter().map(|(claim, volume)| look.has_taken(claim, volume));
    let made = plan.provisions.iter().map(|claim| look.is_provided(claim));
    let mut all = true;
    for one in existing.chain(made) {
        match one {
            Ok(bound) => all &= bound,
            Err(why) => return Progress::Lost(why),
        }
    }
    if all { Progress::Bound } else { Progress::Awaited }
}

/// What is looked at.
struct Look<'a> {
    written: &'a Written,
    node: &'a Node,
    objects: &'a Objects,
}

impl Look<'_> {
    fn claim(&self, (namespace, name): &ObjectName) -> Result<&PersistentVolumeClaim, String> {
        let claim = self.objects.claim(namespace, name).filter(|claim| !claim.is_deleting());
        claim.map(|claim| &**claim).ok_or_else(|| format!("claim {namespace}/{name} is gone, or to go"))
    }

    /// Whether a claim is bound to the volume that was promised to it.
    ///
    /// # Errors
    /// It will not be.
    fn has_taken(&self, name: &ObjectName, volume: &str) -> Result<bool, String> {
        let claim = self.claim(name)?;
        let key: ObjectName = (String::new(), volume.to_owned());
        let Some(object) = self.objects.volumes.get(&key) else { return Err(format!("volume {volume} is gone")) };
        let since = self.written.get(&key);
        if since.is_some_and(|since| object.revision() < *since) {
            return Ok(false);
        }
        self.is_reached(volume)?;
        let owner = object.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
        if since.is_some() && owner != Some(claim.uid()) {
            return Err(format!("volume {volume} is claim {}/{}'s no more", name.0, name.1));
        }
        Ok(is_bound(claim))
    }

    /// Whether a volume was made for a claim.
    ///
    /// # Errors
    /// None will be at this node.
    fn is_provided(&self, name: &ObjectName) -> Result<bool, String> {
        let claim = self.claim(name)?;
        let since = self.written.get(name);
        if since.is_some_and(|since| claim.revision() < *since) {
            return Ok(false);
        }
        let node = self.node.name();
        let is_taken_back = match claim.annotation(SELECTED_NODE) {
            Some(selected) => selected != node,
            None => since.is_some() && !is_bound(claim),
        };
        if is_taken_back {
            return Err(format!("claim {}/{} is not provisioned for node {node} any more", name.0, name.1));
        }
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
        Ok((volume.is_empty() || self.is_reached(volume)?) && is_bound(claim))
    }

    /// Whether a volume is known. It may be told later than its claim.
    ///
    /// # Errors
    /// It is, and the node does not reach it.
    fn is_reached(&self, volume: &str) -> Result<bool, String> {
        let Some(object) = Objects::global(&self.objects.volumes, volume) else { return Ok(false) };
        if reaches(object, self.node) {
            return Ok(true);
        }
        Err(format!("volume {volume} cannot be used at node {}", self.node.name()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use carrack_types::resource::Object;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(object: Value) -> Arc<T> {
        Arc::new(serde_json::from_value(object).expect("an object"))
    }

    fn put<T: Object>(map: &mut BTreeMap<ObjectName, Arc<T>>, object: Arc<T>) {
        map.insert(name_of(&*object), object);
    }

    fn claim(revision: &str, selected: Option<&str>, volume: Option<&str>, is_bound: bool) -> Value {
        let mut claim = json!({"metadata": {"namespace": "d", "name": "c", "uid": "c", "resourceVersion": revision,
            "annotations": {}}, "spec": {"volumeName": volume}});
        if let Some(selected) = selected {
            claim["metadata"]["annotations"][SELECTED_NODE] = selected.into();
        }
        if is_bound {
            claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
        }
        claim
    }

    /// A volume of a claim, at one node alone.
    fn volume(revision: &str, owner: Option<&str>, node: &str) -> Value {
        json!({"metadata": {"name": "v", "resourceVersion": revision}, "spec": {
            "claimRef": owner.map(|uid| json!({"namespace": "d", "name": "c", "uid": uid})),
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}})
    }

    const BOUND: Option<&str> = None;
    const AWAITED: Option<&str> = Some("");

    /// How far a claim is that was written at revision 5, or the volume for it: bound, awaited, or lost for a reason.
    fn check(existing: bool, claims: Option<Value>, volumes: Option<Value>, nodes: &[&str], expected: Option<&str>) {
        let mut cluster = Cluster::default();
        let words = format!("{claims:?} {volumes:?} {nodes:?}");
        for node in nodes {
            cluster.set_node(read(json!({"metadata": {"name": node}})));
        }
        claims.into_iter().for_each(|claim| put(&mut cluster.objects.claims, read::<PersistentVolumeClaim>(claim)));
        volumes.into_iter().for_each(|volume| put(&mut cluster.objects.volumes, read::<PersistentVolume>(volume)));
        let name: ObjectName = ("d".to_owned(), "c".to_owned());
        let (plan, key) = if existing {
            let plan = Plan { bindings: vec![(name, "v".to_owned())], provisions: Vec::new() };
            (plan, (String::new(), "v".to_owned()))
        } else {
            (Plan { bindings: Vec::new(), provisions: vec![name.clone()] }, name)
        };
        let found = progress(&plan, &Written::from([(key, 5)]), "a", &cluster);
        match (expected, found) {
            (BOUND, Progress::Bound) | (AWAITED, Progress::Awaited) => {}
            (Some(why), Progress::Lost(found)) if !why.is_empty() && found.contains(why) => {}
            (_, found) => panic!("{words}: {found:?}, not {expected:?}"),
        }
    }

    /// The rows of upstream's `TestCheckBindings` that differ in what is to be done.
    #[test]
    fn a_claim_is_waited_for_until_it_is_bound_or_will_not_be() {
        let made = |claim, volume, expected| check(false, claim, volume, &["a", "b"], expected);
        made(Some(claim("5", Some("a"), None, false)), None, AWAITED);
        made(Some(claim("6", Some("a"), Some("v"), true)), Some(volume("6", Some("c"), "a")), BOUND);
        // What was written is not shown yet.
        made(Some(claim("4", None, None, false)), None, AWAITED);
        // Its provisioner has given up, and somebody has chosen another node.
        made(Some(claim("6", None, None, false)), None, Some("not provisioned"));
        made(Some(claim("6", Some("b"), None, false)), None, Some("not provisioned"));
        made(None, None, Some("gone"));
        // Its volume is told later, is made elsewhere, and is not quite bound.
        made(Some(claim("6", Some("a"), Some("v"), true)), None, AWAITED);
        made(Some(claim("6", Some("a"), Some("v"), true)), Some(volume("6", Some("c"), "b")), Some("cannot be used"));
        made(Some(claim("6", Some("a"), Some("v"), false)), Some(volume("6", Some("c"), "a")), AWAITED);
        check(false, Some(claim("5", Some("a"), None, false)), None, &["b"], Some("not there"));
    }

    #[test]
    fn a_volume_that_was_promised_is_waited_for_until_it_is_somebody_elses() {
        let takes = |claim, volume, expected| check(true, claim, volume, &["a", "b"], expected);
        let waits = || Some(claim("1", None, None, false));
        takes(waits(), Some(volume("5", Some("c"), "a")), AWAITED);
        takes(Some(claim("6", None, Some("v"), true)), Some(volume("5", Some("c"), "a")), BOUND);
        takes(waits(), Some(volume("4", None, "a")), AWAITED);
        takes(waits(), Some(volume("6", None, "a")), Some("no more"));
        takes(waits(), Some(volume("6", Some("other"), "a")), Some("no more"));
        takes(waits(), Some(volume("5", Some("c"), "b")), Some("cannot be used"));
        takes(waits(), None, Some("gone"));
        takes(None, Some(volume("5", Some("c"), "a")), Some("gone"));
    }

    #[test]
    fn what_was_written_is_read_of_its_reply() {
        let read = |body: Value| written(&ApiResponse { status: 200, body: body.to_string().into() });
        let claim = json!({"metadata": {"namespace": "d", "name": "c", "resourceVersion": "7"}});
        assert_eq!(read(claim), Some((("d".to_owned(), "c".to_owned()), 7)));
        let volume = json!({"metadata": {"name": "v", "resourceVersion": "8"}});
        assert_eq!(read(volume), Some(((String::new(), "v".to_owned()), 8)));
        assert_eq!(read(json!({})), None);
    }
}
