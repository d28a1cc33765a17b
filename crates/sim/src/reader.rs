//! Somebody who reads what has just been made, and watches from whatever there is, as people and their tools do.
//!
//! ```text
//!   an object is there ─┬▶ it is read, by whichever API server
//!                       └▶ its collection is watched, without a list before: what is there is told first
//! ```
//!
//! Carrack's own caches list, and watch from there on, so that nobody else in a run asks for either. What is answered is held against
//! the commits ([`crate::ledger`]).

use std::time::Duration;

use carrack_engine::{ApiRequest, Method, Rng};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Resource;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::Value;

use crate::chance::below;
use crate::observer::{Change, text};
use crate::options::Options;
use crate::plants::Bug;

/// Of how many new objects one is read, and how soon at the latest.
const READS_ONE_IN: u64 = 4;
const SOON: Duration = Duration::from_secs(2);
/// For how many new objects one watch begins, and how many do in all.
const WATCHES_ONE_IN: u64 = 8;
const MOST_WATCHES: u32 = 16;
/// For how long each watches.
const WATCH_S: u64 = 60;

/// A kind of objects, by its name here.
type Kind = (&'static str, fn() -> Resource);
/// Of what kinds objects are read and watched.
const KINDS: [Kind; 10] = [
    ("pod", Resource::of::<Pod>),
    ("node", Resource::of::<Node>),
    ("configmap", Resource::of::<ConfigMap>),
    ("secret", Resource::of::<Secret>),
    ("claim", Resource::of::<PersistentVolumeClaim>),
    ("volume", Resource::of::<PersistentVolume>),
    ("attachment", Resource::of::<VolumeAttachment>),
    ("replicaset", Resource::of::<ReplicaSet>),
    ("vm", Resource::of::<VirtualMachine>),
    ("vmi", Resource::of::<VirtualMachineInstance>),
];

/// Whether he is there: in some runs, and beside no planted bug but those that he meets.
pub(crate) fn is_there(root: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    let drawn = || options.faults && root.fork("whether somebody reads").one_in(4);
    planted.map_or_else(drawn, Bug::is_of_reads)
}

/// Whether he watches with a request.
pub(crate) fn is_watch(request: &ApiRequest) -> bool {
    request.path.contains("?watch=true")
}

/// Him, if he is there.
pub(crate) struct Reader {
    rng: Rng,
    is_there: bool,
    /// How many more watches he begins.
    watches: u32,
}

impl Reader {
    pub(crate) fn new(rng: Rng, is_there: bool) -> Self {
        Self { rng, is_there, watches: MOST_WATCHES }
    }

    /// What he asks for when he sees these changes, and how soon.
    pub(crate) fn sees(&mut self, changes: &[Change]) -> Vec<(Duration, ApiRequest)> {
        let mut asked = Vec::new();
        if !self.is_there {
            return asked;
        }
        for (object, resource) in changes.iter().filter_map(made) {
            if self.rng.one_in(READS_ONE_IN) {
                asked.push((below(&mut self.rng, SOON), read(object, &resource)));
            }
            if self.watches > 0 && self.rng.one_in(WATCHES_ONE_IN) {
                self.watches -= 1;
                let streams =
                    if self.rng.one_in(2) { "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan" } else { "" };
                let namespace = text(object, "/metadata/namespace");
                let within = if namespace.is_empty() || self.rng.one_in(2) { "" } else { namespace };
                let path = format!(
                    "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}{streams}",
                    resource.collection_path(within)
                );
                asked.push((below(&mut self.rng, SOON), ApiRequest::new(Method::Get, path)));
            }
        }
        asked
    }

    /// One of so many servers.
    pub(crate) fn server(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap_or(0)
    }
}

/// An object that was made, of one of the kinds, whose name is part of a path as it is.
fn made(change: &Change) -> Option<(&Value, Resource)> {
    let object = change.after.as_ref().filter(|_| change.before.is_none())?;
    let (_, resource) = KINDS.into_iter().find(|(kind, _)| *kind == change.resource)?;
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'.';
    text(object, "/metadata/name").bytes().all(is_plain).then(|| (object, resource()))
}

/// He reads an object.
fn read(object: &Value, resource: &Resource) -> ApiRequest {
    ApiRequest::get(resource, text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(resource: &'static str, namespace: &str, name: &str) -> Change {
        Change { resource, before: None, after: Some(json!({"metadata": {"namespace": namespace, "name": name}})) }
    }

    #[test]
    fn what_was_made_has_a_path() {
        let path = |change: &Change| made(change).map(|(object, resource)| read(object, &resource).path);
        for (change, expected) in [
            (change("pod", "a", "b"), Some("/api/v1/namespaces/a/pods/b")),
            (change("node", "", "b.c"), Some("/api/v1/nodes/b.c")),
            (change("vm", "a", "b"), Some("/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b")),
            (change("pod", "a", "b/c"), None),
            (change("lease", "a", "b"), None),
            (Change { before: Some(Value::Null), ..change("pod", "a", "b") }, None),
            (Change { after: None, ..change("pod", "a", "b") }, None),
        ] {
            assert_eq!(path(&change).as_deref(), expected, "{change:?}");
        }
    }

    /// He reads all the time, and watches a few times.
    #[test]
    fn he_reads_and_watches() {
        let changes: Vec<Change> = (0..1000).map(|n| change("pod", "default", &format!("p{n}"))).collect();
        let asked = Reader::new(Rng::new(1), true).sees(&changes);
        let (watches, reads): (Vec<_>, Vec<_>) = asked.iter().partition(|(_, request)| is_watch(request));
        assert_eq!(watches.len(), usize::try_from(MOST_WATCHES).expect("few"));
        assert!((200..300).contains(&reads.len()), "{} reads", reads.len());
        for part in ["sendInitialEvents", "/namespaces/default/pods?", "/api/v1/pods?"] {
            let some = watches.iter().filter(|(_, request)| request.path.contains(part)).count();
            assert!((1..watches.len()).contains(&some), "{part}: {some}");
        }
        assert!(Reader::new(Rng::new(1), false).sees(&changes).is_empty());
    }
}
