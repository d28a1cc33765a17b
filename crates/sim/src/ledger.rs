//! What watches must tell: each change of their objects, once, in order, and nothing else, from where they began.
//!
//! The ledger has every commit of the store. It follows each watch connection at the server's end, before the network
//! may lose anything, and compares line by line. One that goes on from a list begins there; one without a revision begins with all
//! that there is, each object once and as it is. What is read is held against the commits, too: nothing is as it was before, and
//! nothing that is there is said not to be.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use carrack_store::{Entry, MemStore, Range, Revision, Store, Watch, WatchItem};
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
    /// What it has yet to begin with: keys, and the revisions at which they changed last.
    left: BTreeMap<Arc<str>, Revision>,
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

/// What is looked at of an answer that says that something is not there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Missed<'a> {
    #[serde(borrow)]
    details: Metadata<'a>,
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

impl Followed {
    /// The key of what it has yet to begin with, if that is what a line tells of.
    fn beginning(&self, told: &Told) -> Option<Arc<str>> {
        if told.kind != "ADDED" {
            return None;
        }
        let name = told.place.rsplit('/').next().unwrap_or_default();
        // A watch of one namespace has that in its prefix already.
        let keys = [format!("{}{}", self.prefix.trim_end_matches('/'), told.place), format!("{}{name}", self.prefix)];
        let mut own = keys.iter().filter(|key| key.ends_with(&told.place));
        let (key, at) = own.find_map(|key| self.left.get_key_value(key.as_str()))?;
        (told.revision == Some(*at)).then(|| Arc::clone(key))
    }
}

/// Something that is stored now.
struct There {
    /// Since when there is something of that key all the time, or since before that.
    since: Revision,
    /// When it changed last.
    at: Revision,
}

/// What a path is about: the prefix of a collection's keys, and the name of one object in it.
fn place_of(path: &str) -> Option<(String, Option<&str>)> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let (group, rest) = match segments.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (plural, namespace, name) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, None, Some(*name)),
        ["namespaces", namespace, plural] => (*plural, Some(*namespace), None),
        ["namespaces", namespace, plural, name] => (*plural, Some(*namespace), Some(*name)),
        _ => return None,
    };
    Some((carrack_apiserver::storage_prefix(group, plural, namespace), name))
}

/// The path and the query of a request that is called like this: `GET <path>?<query>`, and what else there is to say of it.
fn url_of(label: &str) -> (&str, &str) {
    let url = label.split(' ').nth(1).unwrap_or_default();
    url.split_once('?').unwrap_or((url, ""))
}

/// What is stored before anything is followed.
fn stored(store: &MemStore) -> BTreeMap<Arc<str>, There> {
    let mut page = store.range(Range { prefix: ALL.to_owned(), after: None, limit: 0, at: None });
    let Poll::Ready(Ok(page)) = page.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        return BTreeMap::new();
    };
    let there = |entry: &Entry| There { since: entry.create_revision, at: entry.mod_revision };
    page.entries.iter().map(|entry| (Arc::clone(&entry.key), there(entry))).collect()
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
    there: BTreeMap<Arc<str>, There>,
    followed: BTreeMap<ConnId, Followed>,
}

impl Ledger {
    pub(crate) fn new(store: &MemStore) -> Self {
        let known = store.revision();
        let watch = store.watch(ALL, known).ok();
        let (lately, changes, followed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { watch, begun: known, known, lately, changes, there: stored(store), followed }
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
                        if removed {
                            self.there.remove(&entry.key);
                        } else {
                            let new = There { since: event.revision, at: event.revision };
                            self.there.entry(Arc::clone(&entry.key)).or_insert(new).at = event.revision;
                        }
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

    /// What had become by then of an object that is shown as it was before. What was stored before the ledger began is not told of.
    pub(crate) fn outdated(&self, object: &[u8], by: Revision) -> Option<String> {
        let Said { metadata } = serde_json::from_slice(object).unwrap_or_default();
        let shown = metadata.revision().filter(|shown| *shown < by && !metadata.name.is_empty())?;
        let place = metadata.place();
        let mut own = self.changes.get(&shown)?.keys().filter(|key| key.ends_with(&place));
        let (Some(key), None) = (own.next(), own.next()) else { return None };
        // Mostly it is shown as it is now, however long it has been so.
        if self.there.get(key).is_some_and(|there| there.at <= shown) {
            return None;
        }
        let since = (Bound::Excluded(shown), Bound::Included(by));
        let (changed, _) = self.changes.range(since).find(|(_, keys)| keys.contains_key(key))?;
        Some(format!("{key} as of {shown}, and it changed at {changed}"))
    }

    /// What is there, and was when it was asked for, of which it is said that it is not: of a request that is called like this,
    /// and the body of its answer. An answer that names nothing is of a path that nobody serves.
    pub(crate) fn hidden(&self, label: &str, answer: &[u8], by: Revision) -> Option<String> {
        let (prefix, name) = place_of(url_of(label).0)?;
        let name = name?;
        let Missed { details } = serde_json::from_slice(answer).unwrap_or_default();
        let there = self.there.get(&*format!("{prefix}{name}")).filter(|there| there.since <= by)?;
        (details.name == name).then(|| format!("{prefix}{name} is not there, which has been since {}", there.since))
    }

    /// A watch begins that was asked for like this: `GET <path>?<query>`. `known`: what was committed then.
    pub(crate) fn opened(&mut self, conn: ConnId, label: &str, known: Revision) {
        let (path, query) = url_of(label);
        let Some((prefix, None)) = place_of(path) else { return };
        let parameter = |name: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v)
        };
        let after = parameter("resourceVersion").map(|text| text.parse().unwrap_or(0));
        let (told, left) = match (after, parameter("sendInitialEvents")) {
            (Some(after), None) if after > 0 => (Revision(after), BTreeMap::new()),
            // Which state it is that it begins with is known where nothing has happened since it was asked for.
            (None, begins) if !self.has_changed(&prefix, known) => {
                let left = if begins == Some("false") { BTreeMap::new() } else { self.under(&prefix) };
                (known, left)
            }
            // Any state will do, or it is one of several.
            _ => return,
        };
        let is_whole = parameter("fieldSelector").is_none() && parameter("labelSelector").is_none();
        self.followed.insert(conn, Followed { prefix, is_whole, left, told, at: BTreeSet::new() });
    }

    /// Whether something of these keys has changed since.
    fn has_changed(&self, prefix: &str, since: Revision) -> bool {
        let mut later = self.changes.range((Bound::Excluded(since), Bound::Unbounded));
        later.any(|(_, keys)| keys.keys().any(|key| key.starts_with(prefix)))
    }

    /// What is there of these keys, and when each changed last.
    fn under(&self, prefix: &str) -> BTreeMap<Arc<str>, Revision> {
        let from = self.there.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let own = from.take_while(|(key, _)| key.starts_with(prefix));
        own.map(|(key, there)| (Arc::clone(key), there.at)).collect()
    }

    /// Whether a line of a watch tells of what that begins with.
    pub(crate) fn begins(&self, conn: ConnId, line: &[u8]) -> bool {
        let followed = self.followed.get(&conn).filter(|followed| !followed.left.is_empty());
        followed.is_some_and(|followed| followed.beginning(&Told::read(line)).is_some())
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
        let told = self.lately.get(line)?;
        let Told { kind, revision, place } = told;
        if kind == "ERROR" {
            return None;
        }
        let breach = |why: String| Some(Breach::new(NAME, format!("watch of {}: {why}", followed.prefix)));
        let Some(revision) = *revision else {
            return breach(format!("{kind} without a revision"));
        };
        if !followed.left.is_empty() {
            if let Some(key) = followed.beginning(told) {
                followed.left.remove(&key);
                return None;
            }
            if let Some((key, at)) = followed.left.first_key_value().filter(|_| followed.is_whole) {
                return breach(format!("{kind} at {revision}, and nothing was said of {key}, which was there at {at}"));
            }
            // Who asked for a part has heard of that.
            followed.left.clear();
        }
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

    /// Writes something there, and returns the revision.
    fn put_into(store: &MemStore, key: &str) -> u64 {
        let bytes = r#"{"metadata":{"resourceVersion":""}}"#;
        let value = Value { bytes: bytes.into(), stamp_at: stamp_place(bytes.as_bytes()) };
        store.commit(Txn { checks: Vec::new(), ops: vec![Op::Put(key.into(), value)] }).expect("it is well-formed");
        store.revision().0
    }

    #[test]
    fn what_is_read_is_as_new_as_what_was_known() {
        let store = MemStore::default();
        let put = |key: &str| put_into(&store, key);
        let before = put("/registry/pods/default/a");
        let mut ledger = Ledger::new(&store);
        let (first, node) = (put("/registry/pods/default/a"), put("/registry/minions/a"));
        let second = put("/registry/pods/default/a");
        ledger.update(&store);
        for (namespace, name, shown, by, outdated) in [
            ("default", "a", first, second, true),
            ("default", "a", first, node, false),
            ("default", "a", first, first, false),
            ("default", "a", second, second, false),
            // It was asked for earlier.
            ("default", "a", second, first, false),
            ("", "a", node, second, false),
            ("default", "b", first, second, false),
            // Nothing is known of that time.
            ("default", "a", before, second, false),
        ] {
            let object =
                format!(r#"{{"metadata":{{"resourceVersion":"{shown}","namespace":"{namespace}","name":"{name}"}}}}"#);
            assert_eq!(ledger.outdated(object.as_bytes(), Revision(by)).is_some(), outdated, "{object} by {by}");
        }
        assert_eq!(ledger.outdated(b"a line of a log", Revision(second)), None);
    }

    #[test]
    fn what_is_said_to_be_stored_was_committed() {
        let store = MemStore::default();
        let put = |key: &str| put_into(&store, key);
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

    #[test]
    fn what_is_there_is_not_said_to_be_missing() {
        let store = MemStore::default();
        let old = put_into(&store, "/registry/pods/default/old");
        let mut ledger = Ledger::new(&store);
        let pod = put_into(&store, "/registry/pods/default/a");
        let node = put_into(&store, "/registry/minions/a");
        let newest = put_into(&store, "/registry/pods/default/a");
        let gone = put_into(&store, "/registry/pods/default/gone");
        let ops = vec![Op::Delete("/registry/pods/default/gone".into())];
        store.commit(Txn { checks: Vec::new(), ops }).expect("it is well-formed");
        ledger.update(&store);
        let pods = "/api/v1/namespaces/default/pods";
        for (path, named, by, hidden) in [
            (format!("{pods}/a"), "a", pod, true),
            (format!("{pods}/a"), "a", newest, true),
            (format!("{pods}/a?pretty=true"), "a", newest, true),
            (format!("{pods}/a (again)"), "a", newest, true),
            (format!("{pods}/old"), "old", old, true),
            ("/api/v1/nodes/a".to_owned(), "a", node, true),
            // It came while it was asked for, it went, it is part of one, or it was never there.
            (format!("{pods}/a"), "a", old, false),
            (format!("{pods}/gone"), "gone", gone, false),
            (format!("{pods}/a/log"), "a", newest, false),
            (format!("{pods}/b"), "b", newest, false),
            (pods.to_owned(), "a", newest, false),
            // Nobody serves it.
            (format!("{pods}/a"), "", newest, false),
        ] {
            let answer = format!(r#"{{"kind":"Status","details":{{"name":"{named}","kind":"pods"}},"code":404}}"#);
            let told = ledger.hidden(&format!("GET {path}"), answer.as_bytes(), Revision(by));
            assert_eq!(told.is_some(), hidden, "{path} by {by}: {told:?}");
        }
    }

    /// What a watch without a revision begins with.
    #[test]
    fn a_watch_begins_with_all_that_is_there() {
        let store = MemStore::default();
        let a = put_into(&store, "/registry/pods/default/a");
        let mut ledger = Ledger::new(&store);
        put_into(&store, "/registry/pods/default/b");
        let b = put_into(&store, "/registry/pods/default/b");
        let known = put_into(&store, "/registry/minions/a");
        ledger.update(&store);
        let line = |kind: &str, name: &str, revision: u64| {
            format!(
                r#"{{"type":"{kind}","object":{{"metadata":{{"resourceVersion":"{revision}","namespace":"default","name":"{name}"}}}}}}"#
            )
        };
        let (added, bookmark) = (|name: &str, at: u64| line("ADDED", name, at), line("BOOKMARK", "", known));
        let pods = "GET /api/v1/pods?watch=true&allowWatchBookmarks=true";
        let streamed = format!("{pods}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        let bare = streamed.replace("Events=true", "Events=false");
        let some = format!("{pods}&labelSelector=x");
        let of_one = pods.replace("/pods", "/namespaces/default/pods");
        // How it is asked for, the lines that it says, and which of these is a breach.
        let cases: [(&str, Vec<String>, Option<usize>); 12] = [
            (pods, vec![added("a", a), added("b", b), bookmark.clone()], None),
            (&of_one, vec![added("b", b), added("a", a), bookmark.clone()], None),
            (&of_one, vec![added("b", b - 1)], Some(0)),
            (pods, vec![added("b", b), added("a", a), bookmark.clone()], None),
            (&streamed, vec![added("a", a), added("b", b), bookmark.clone()], None),
            (&bare, vec![bookmark.clone()], None),
            (&some, vec![added("b", b), bookmark.clone()], None),
            // One is missing, is there twice, as it was before, or as what was not.
            (pods, vec![added("a", a), bookmark.clone()], Some(1)),
            (pods, vec![added("a", a), added("a", a)], Some(1)),
            (pods, vec![added("b", b - 1)], Some(0)),
            (pods, vec![line("MODIFIED", "a", a)], Some(0)),
            (&bare, vec![added("a", a)], Some(0)),
        ];
        for (n, (asked, lines, expected)) in (1..).zip(cases) {
            ledger.opened(n, asked, Revision(known));
            let broken = lines.iter().position(|line| ledger.said(n, line.as_bytes()).is_some());
            assert_eq!(broken, expected, "{asked}: {lines:?}");
        }
        // Where all of it is left out, that is missed as soon as anything else is said.
        ledger.opened(19, pods, Revision(known));
        let lines = [added("b", b), added("a", a), bookmark];
        assert_eq!(lines.each_ref().map(|line| ledger.begins(19, line.as_bytes())), [true, true, false]);
        assert!(ledger.said(19, lines[2].as_bytes()).is_some());
        // It changed while it was asked for: nobody can say with what it has to begin. Nor where any state will do.
        put_into(&store, "/registry/pods/default/c");
        ledger.update(&store);
        for (n, asked) in [(20, pods.to_owned()), (21, format!("{pods}&resourceVersion=0"))] {
            ledger.opened(n, &asked, Revision(known));
            assert!(!ledger.begins(n, added("a", a).as_bytes()), "{asked}");
            assert!(ledger.said(n, added("a", a - 1).as_bytes()).is_none(), "{asked}");
        }
    }
}
