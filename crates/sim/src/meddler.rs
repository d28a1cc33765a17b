//! Somebody who may write everything, and is none of the components that look after machines: what they say is not his to say.
//!
//! ```text
//!   an instance comes ─▶ he makes a pod its launcher, and says something of it
//!   it is to go, and its guest may still run ─▶ he says something of it, changes what it is, and takes it from its node
//! ```
//!
//! What components say of an instance decides when another copy of its guest may start, and a launcher gets what its node has for
//! it. So all of this is refused, whoever lets him write.

use std::time::Duration;

use carrack_apiserver::admission::Attributes;
use carrack_engine::{ApiRequest, ContentType, Rng};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Kind as _;
use carrack_types::well_known::kubevirt::NODE_NAME_LABEL;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::{below, between};
use crate::invariants::Breach;
use crate::observer::{Change, deleting, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, machine, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "launchers-are-made-by-components";
/// Who he is to the API server.
pub(crate) const USER: &str = "sim:meddler";
/// How soon, at the latest, he does something about an instance that has come, and about one that is to go.
const SOON: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(3));

/// Whether he is there: where there are machines on whole nodes, in some runs, and beside no other planted bug.
pub(crate) fn is_there(root: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    let drawn = || options.faults && !options.small && root.fork("whether somebody meddles").one_in(4);
    let fits = options.machines && options.has_whole_nodes();
    planted.map_or_else(|| fits && drawn(), |bug| bug == Bug::GoingUnminded)
}

/// What lets him write.
pub(crate) fn rights() -> (String, Value) {
    granted(USER, "cluster-admin")
}

/// What gives a user the rights of a ClusterRole: the collection, and the object to be made in it.
pub(crate) fn granted(user: &str, role: &str) -> (String, Value) {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": user.replace(':', "-")},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}]});
    (format!("/apis/{group}/v1/clusterrolebindings"), binding)
}

/// With the planted bug: machines that are deleted while their guests run.
pub(crate) fn acts(rng: &mut Rng, acts: &mut Vec<Act>) {
    for n in 0..3 {
        let name = format!("leaver{n}");
        let at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        let (resource, object) = (VirtualMachine::resource(), machine(&name, "Always", 30));
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("vm", Want::Any)) } });
        let gone = at + between(rng, Duration::from_secs(10), Duration::from_secs(25));
        acts.push(delete(gone, VirtualMachine::resource(), "default", &name, "vm"));
    }
}

/// Him, if he is there.
pub(crate) struct Meddler {
    rng: Rng,
    is_there: bool,
}

impl Meddler {
    pub(crate) fn new(rng: Rng, is_there: bool) -> Self {
        Self { rng, is_there }
    }

    /// What he sends when he sees these changes, and how soon.
    pub(crate) fn sees(&mut self, changes: &[Change]) -> Vec<(Duration, ApiRequest)> {
        let mut sent = Vec::new();
        for change in changes.iter().filter(|change| self.is_there && change.resource == "vmi") {
            let Some(vmi) = &change.after else { continue };
            if change.before.is_none() {
                sent.extend([launcher(vmi), patch(vmi, &status())].map(|request| (SOON.0, request)));
            }
            if deleting(vmi) && !change.before.as_ref().is_some_and(deleting) {
                let spec = json!({"spec": {"nodeSelector": {"sim/meddled": "true"}}});
                let meta = json!({"metadata": {"labels": {NODE_NAME_LABEL: "nowhere"}}});
                sent.extend([status(), spec, meta].map(|said| (SOON.1, patch(vmi, &said))));
            }
        }
        sent.into_iter().map(|(most, request)| (below(&mut self.rng, most), request)).collect()
    }

    /// One of so many servers.
    pub(crate) fn server(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap_or(0)
    }
}

/// What he says of an instance: nobody goes by it, and it is never what was said before.
fn status() -> Value {
    json!({"status": {"reason": "Meddled"}})
}

fn patch(vmi: &Value, change: &Value) -> ApiRequest {
    let (namespace, name) = (text(vmi, "/metadata/namespace"), text(vmi, "/metadata/name"));
    ApiRequest::patch(&VirtualMachineInstance::resource(), namespace, name, "", ContentType::MergePatch, change)
}

/// A pod that says that it is an instance's launcher.
fn launcher(vmi: &Value) -> ApiRequest {
    let (namespace, name) = (text(vmi, "/metadata/namespace"), text(vmi, "/metadata/name"));
    let mut pod = mounting(&format!("impostor-of-{name}"), 1, "scratch", "emptyDir", json!({}));
    pod["metadata"]["namespace"] = namespace.into();
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "name": name, "uid": uid(vmi), "controller": true}]);
    ApiRequest::create_value(&Pod::resource(), namespace, &pod)
}

/// A request of his was answered, with this HTTP status.
pub(crate) fn answered(status: u16, label: &str) -> Option<Breach> {
    (200..300).contains(&status).then(|| Breach::new(NAME, format!("somebody who is no component did {label}")))
}

/// What a planted bug does not look at: what is going away.
pub(crate) fn is_going(attributes: &Attributes<'_>) -> bool {
    let at = attributes.object.get("metadata").and_then(|meta| meta.get("deletionTimestamp"));
    at.is_some_and(|at| !at.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn he_meddles_with_what_comes_and_what_goes() {
        let vmi = |going: bool| {
            let at = if going { json!("2026-11-01T00:00:00Z") } else { Value::Null };
            Some(json!({"metadata": {"namespace": "default", "name": "a", "uid": "a", "deletionTimestamp": at}}))
        };
        for (before, after, expected) in [
            (None, vmi(false), 2),
            (vmi(false), vmi(false), 0),
            (vmi(false), vmi(true), 3),
            (vmi(true), vmi(true), 0),
            (vmi(true), None, 0),
        ] {
            let changes = [Change { resource: "vmi", before, after }];
            for (is_there, expected) in [(true, expected), (false, 0)] {
                let sent = Meddler::new(Rng::new(1), is_there).sees(&changes);
                assert_eq!(sent.len(), expected, "{changes:?}");
            }
        }
    }

    #[test]
    fn what_he_is_allowed_to_do_is_a_breach() {
        for (status, expected) in [(200, true), (201, true), (403, false), (404, false), (422, false), (500, false)] {
            assert_eq!(answered(status, "POST /").is_some(), expected, "{status}");
        }
    }
}
