//! What watches must tell: each change of their objects, once, in order, and nothing else, from where they began.
//!
//! The ledger has every commit of the store. It follows each watch connection at the server's end, before the network
//! may lose anything, and compares line by line.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use carrack_store::{MemStore, Revision, Store, Watch, WatchItem};
use serde::Deserialize;

use crate::invariants::Breach;
use crate::server::ConnId;

/// The name of the invariant about watches.
pub(crate) const NAME: &str = "watches-tell-each-change-once";
/// Of how many lines it is kept what they say.
const KEPT: usize = 32;
/// Everything that the API server stores.
const ALL: &str = "/registry/";

/// A watch as its client asked for it.
struct Followed {
    /// The keys that it watches.
    prefix: String,
    /// Whether it was asked for all of them.
    is_whole: bool,
    /// The newest revision that it has told of.
    told: Revision,
    /// Which objects it has told of at that revision.
    at: BTreeSet<String>,
}

/// What is looked at of a line.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: Said<'a>,
}
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// What a line says.
struct Told {
    kind: String,
    revision: Option<Revision>,
    /// How the key of its object ends.
    place: String,
}

impl Metadata<'_> {
    /// How the key of the object ends.
    fn place(&self) -> String {
        let Self { namespace, name, .. } = self;
        if namespace.is_empty() { format!("/{name}") } else { format!("/{namespace}/{name}") }
    }
    fn revision(&self) -> Option<Revision> {
        self.resource_version.parse().ok().map(Revision)
    }
}

impl Told {
    fn read(line: &[u8]) -> Self {
        let Line { kind, object: Said { metadata } } = serde_json::from_slice(line).unwrap_or_default();
        Self { kind: kind.into_owned(), revision: metadata.revision(), place: metadata.place() }
    }
}

/// Commits, and the watches that tell of them.
pub(crate) struct Ledger {
    watch: Option<Watch>,
    /// What was there before is not in it.
    begun: Revision,
    known: Revision,
    /// Lines that were said lately: one watch after the other tells of the same few changes.
    lately: BTreeMap<Vec<u8>, Told>,
    /// The keys that changed at each revision, and whether each was removed.
    changes: BTreeMap<Revision, BTreeMap<Arc<str>, bool>>,
    followed: BTreeMap<ConnId, Followed>,
}

impl Ledger {
    pub(crate) fn new(store: &MemStore) -> Self {
        let known = store.revision();
        let watch = store.watch(ALL, known).ok();
        let (lately, changes, followed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { watch, begun: known, known, lately, changes, followed }
    }

    /// Takes in what has been committed since the last call.
    pub(crate) fn update(&mut self, store: &MemStore) {
        while let Some(watch) = &mut self.watch {
            match Pin::as_mut(watch).poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(WatchItem::Events(events)))) => {
                    for event in &**events {
                        self.known = event.revision;
                        let Some(entry) = event.current.as_ref().or(event.previous.as_ref()) else { continue };
                        let removed = event.current.is_none();
                        self.changes.entry(event.revision).or_default().insert(Arc::clone(&entry.key), removed);
                    }
                }
                Poll::Ready(Some(Ok(WatchItem::Progress(revision)))) => self.known = revision,
                // All watches were interrupted, this one too; it had everything before that.
                Poll::Ready(Some(Err(_)) | None) => self.watch = store.watch(ALL, self.known).ok(),
                Poll::Pending => break,
            }
        }
    }

    /// What was never committed of an object that is said to be stored like this. What shows no revision says nothing of that.
    pub(crate) fn lacks(&self, object: &[u8]) -> Option<String> {
        let Said { metadata } = serde_json::from_slice(object).unwrap_or_default();
        let revision = metadata.revision().filter(|revision| *revision > self.begun && !metadata.name.is_empty())?;
        let place = metadata.place();
        let is_there = self.changes.get(&revision).is_some_and(|keys| keys.keys().any(|key| key.ends_with(&place)));
        (!is_there).then(|| format!("{place} at {revision}, when nothing happened to it"))
    }

    /// A watch begins that was asked for like this: `GET <path>?<query>`.
    pub(crate) fn opened(&mut self, conn: ConnId, label: &str) {
        let url = label.trim_start_matches("GET ");
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return,
        };
        let (plural, namespace) = match rest {
            [plural] => (*plural, None),
            ["namespaces", namespace, plural] => (*plural, Some(*namespace)),
            _ => return,
        };
        let parameter = |name: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v)
        };
        let Some(after) = parameter("resourceVersion").and_then(|text| text.parse().ok()).filter(|after| *after > 0)
        else {
            // It begins with the state as it is; only those that go on from a list are followed.
            return;
        };
        let is_whole = parameter("fieldSelector").is_none() && parameter("labelSelector").is_none();
        let prefix = carrack_apiserver::storage_prefix(group, plural, namespace);
        self.followed.insert(conn, Followed { prefix, is_whole, told: Revision(after), at: BTreeSet::new() });
    }

    /// A watch is over.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        self.followed.remove(&conn);
    }

    /// A watch says a line.
    pub(crate) fn said(&mut self, conn: ConnId, line: &[u8]) -> Option<Breach> {
        let followed = self.followed.get_mut(&conn)?;
        if !self.lately.contains_key(line) {
            if self.lately.len() >= KEPT {
                self.lately.clear();
            }
            self.lately.insert(line.to_owned(), Told::read(line));
        }
        let Told { kind, revision, place } = self.lately.get(line)?;
        if kind == "ERROR" {
            return None;
        }
        let breach = |why: String| Some(Breach::new(NAME, format!("watch of {}: {why}", followed.prefix)));
        let Some(revision) = *revision else {
            return breach(format!("{kind} without a revision"));
        };
        let in_order = if kind == "BOOKMARK" {
            revision >= followed.told
        } else {
            revision > followed.told || !followed.at.is_empty() && revision == followed.told
        };
        if !in_order {
            return breach(format!("{kind} at {revision} after {}", followed.told));
        }
        // What was to be told before this.
        let until = if kind == "BOOKMARK" { Revision(revision.0 + 1) } else { revision };
        let is_ours = |key: &Arc<str>| key.starts_with(&*followed.prefix);
        if followed.is_whole {
            let missed = self.changes.range(followed.told..until).find_map(|(at, keys)| {
                let told: &BTreeSet<String> = &followed.at;
                keys.keys()
                    .filter(|key| is_ours(key))
                    .find(|key| *at > followed.told || !told.is_empty() && !told.contains(&***key))
                    .map(|key| (*at, Arc::clone(key)))
            });
            if let Some((at, key)) = missed {
                return breach(format!("{kind} at {revision}, but nothing was said of {key} at {at}"));
            }
        }
        if kind == "BOOKMARK" {
            followed.told = revision;
            followed.at.clear();
            return None;
        }
        let mut changed = self.changes.get(&revision).into_iter().flatten();
        let changed = changed.find(|(key, _)| is_ours(key) && key.ends_with(&**place));
        let Some((key, removed)) = changed else {
            return breach(format!("{kind} of {place} at {revision}, when nothing happened to it"));
        };
        // Who sees a part of the objects is told of those that leave it as of those that go.
        if *removed != (kind == "DELETED") && (followed.is_whole || *removed) {
            return breach(format!(
                "{kind} of {key} at {revision}, which was {}",
                if *removed { "removed" } else { "written" }
            ));
        }
        if revision > followed.told {
            followed.at.clear();
        }
        followed.told = revision;
        if !followed.at.insert(key.to_string()) {
            return breach(format!("{kind} of {key} at {revision} twice"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use carrack_store::{Op, Txn, Value, stamp_place};

    use super::*;

    #[test]
    fn what_is_said_to_be_stored_was_committed() {
        let store = MemStore::default();
        let put = |key: &str| {
            let bytes = r#"{"metadata":{"resourceVersion":""}}"#;
            let value = Value { bytes: bytes.into(), stamp_at: stamp_place(bytes.as_bytes()) };
            store.commit(Txn { checks: Vec::new(), ops: vec![Op::Put(key.into(), value)] }).expect("it is well-formed");
            store.revision().0
        };
        let before = put("/registry/pods/default/old");
        let mut ledger = Ledger::new(&store);
        let (pod, node) = (put("/registry/pods/default/a"), put("/registry/minions/a"));
        ledger.update(&store);
        for (namespace, name, revision, lacks) in [
            ("default", "a", pod.to_string(), false),
            ("", "a", node.to_string(), false),
            ("default", "b", pod.to_string(), true),
            ("default", "a", node.to_string(), true),
            ("default", "a", (node + 1).to_string(), true),
            // Nothing is known of that time.
            ("default", "b", before.to_string(), false),
            // A status, and a list.
            ("", "", String::new(), false),
            ("", "", node.to_string(), false),
        ] {
            let object = format!(
                r#"{{"metadata":{{"resourceVersion":"{revision}","namespace":"{namespace}","name":"{name}"}}}}"#
            );
            assert_eq!(ledger.lacks(object.as_bytes()).is_some(), lacks, "{object}");
        }
    }
}
