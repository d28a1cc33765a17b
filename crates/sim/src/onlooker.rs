//! Somebody who may get, list and watch everything, and no more.
//!
//! ```text
//!   a machine's guest runs ─▶ he asks for the machine to be stopped, started anew …, as if he watched it ─▶ refused
//!                          └▶ he reads, and sends a body along that nobody asked for
//! ```
//!
//! A path below `watch/` is authorised as a watch, whatever is to be done there. So nothing but a watch may be done there.

use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{ApiRequest, Method, Rng};
use carrack_types::well_known::kubevirt::{GROUP, SUBRESOURCES_GROUP};
use serde_json::{Value, json};

use crate::chance::below;
use crate::invariants::Breach;
use crate::meddler::granted;
use crate::observer::{Change, text};
use crate::options::Options;
use crate::plants::Bug;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "onlookers-change-nothing";
/// Who he is to the API server.
pub(crate) const USER: &str = "sim:onlooker";
/// The ClusterRole that he has.
const ROLE: &str = "sim-onlooker";
/// How soon, at the latest, he does something about a guest that runs.
const SOON: Duration = Duration::from_secs(20);
/// What he would have a machine do.
const ACTS: [&str; 3] = ["start", "stop", "restart"];

/// Whether he is there: where there are machines on whole nodes, in some runs, and beside no other planted bug.
pub(crate) fn is_there(root: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    let drawn = || options.faults && !options.small && root.fork("whether somebody looks on").one_in(4);
    let fits = options.machines && options.has_whole_nodes();
    planted.map_or_else(|| fits && drawn(), |bug| bug == Bug::WritingWatches)
}

/// What lets him read: collections, and the object to be made in each.
pub(crate) fn rights() -> [(String, Value); 2] {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]});
    [(format!("/apis/{group}/v1/clusterroles"), role), granted(USER, ROLE)]
}

/// Him, if he is there.
pub(crate) struct Onlooker {
    rng: Rng,
    is_there: bool,
}

impl Onlooker {
    pub(crate) fn new(rng: Rng, is_there: bool) -> Self {
        Self { rng, is_there }
    }

    /// What he sends when he sees these changes, and how soon.
    pub(crate) fn sees(&mut self, changes: &[Change]) -> Vec<(Duration, ApiRequest)> {
        if !self.is_there {
            return Vec::new();
        }
        let mut sent = Vec::new();
        for vmi in changes.iter().filter_map(begun) {
            let act = ACTS[usize::try_from(self.rng.below(ACTS.len() as u64)).unwrap_or(0)];
            sent.extend(writes(vmi, act));
            sent.extend(reads(vmi));
        }
        sent.into_iter().map(|request| (below(&mut self.rng, SOON), request)).collect()
    }

    /// One of so many servers.
    pub(crate) fn server(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap_or(0)
    }
}

/// An instance whose guest has just begun to run.
fn begun(change: &Change) -> Option<&Value> {
    let runs = |vmi: &Value| text(vmi, "/status/phase") == "Running";
    let ran = change.before.as_ref().is_some_and(runs);
    change.after.as_ref().filter(|vmi| change.resource == "vmi" && !ran && runs(vmi))
}

fn with_body(method: Method, path: String) -> ApiRequest {
    ApiRequest { body: Bytes::from_static(b"{}"), ..ApiRequest::new(method, path) }
}

/// Changes that call themselves watches. A machine bears the name of its instance.
fn writes(vmi: &Value, act: &str) -> [ApiRequest; 3] {
    let (namespace, name) = (text(vmi, "/metadata/namespace"), text(vmi, "/metadata/name"));
    let below = |group: &str| format!("/apis/{group}/v1/watch/namespaces/{namespace}");
    [
        with_body(Method::Put, format!("{}/virtualmachines/{name}/{act}", below(SUBRESOURCES_GROUP))),
        with_body(Method::Delete, format!("{}/virtualmachineinstances/{name}", below(GROUP))),
        with_body(Method::Post, format!("/api/v1/watch/namespaces/{namespace}/pods")),
    ]
}

/// Reads with a body.
fn reads(vmi: &Value) -> [ApiRequest; 2] {
    let (namespace, name) = (text(vmi, "/metadata/namespace"), text(vmi, "/metadata/name"));
    let machine = format!("/apis/{SUBRESOURCES_GROUP}/v1/namespaces/{namespace}/virtualmachines/{name}");
    [
        with_body(Method::Get, format!("{machine}/expand-spec")),
        with_body(Method::Get, format!("/api/v1/namespaces/{namespace}/pods")),
    ]
}

/// A request of his was answered, with this HTTP status.
pub(crate) fn answered(status: u16, label: &str) -> Option<Breach> {
    let is_done = (200..300).contains(&status) && !label.starts_with("GET ");
    is_done.then(|| Breach::new(NAME, format!("somebody who may only read did {label}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn he_acts_on_guests_that_begin_to_run() {
        let vmi =
            |phase: &str| Some(json!({"metadata": {"namespace": "default", "name": "a"}, "status": {"phase": phase}}));
        for (resource, before, after, expected) in [
            ("vmi", vmi("Scheduled"), vmi("Running"), 5),
            ("vmi", None, vmi("Running"), 5),
            ("vmi", vmi("Running"), vmi("Running"), 0),
            ("vmi", vmi("Running"), vmi("Succeeded"), 0),
            ("vmi", vmi("Running"), None, 0),
            ("pod", None, vmi("Running"), 0),
        ] {
            let changes = [Change { resource, before, after }];
            for (is_there, expected) in [(true, expected), (false, 0)] {
                let sent = Onlooker::new(Rng::new(1), is_there).sees(&changes);
                assert_eq!(sent.len(), expected, "{changes:?}");
            }
        }
    }

    #[test]
    fn what_he_changes_is_a_breach() {
        for (status, label, expected) in [
            (200, "GET /a", false),
            (200, "POST /a", true),
            (202, "PUT /a", true),
            (404, "PUT /a", false),
            (405, "POST /a", false),
        ] {
            assert_eq!(answered(status, label).is_some(), expected, "{status} {label}");
        }
    }
}
