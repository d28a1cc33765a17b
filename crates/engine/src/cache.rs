//! What a core knows of one kind: objects by name, with indexes.
//!
//! ```text
//!   insert ──▶ open (a value) ──many others were opened since──▶ packed (its words) ──read──▶ open
//! ```
//!
//! A cache that packs keeps only so many objects as values; of all others it has the words, packed by what they share with others,
//! which take a fraction of the room. Who
//! reads one opens it, and it stays open until many others were. Readers do not see the difference, but for the time: to go through all
//! of a large cache opens each object once, so what is looked for often has an index. Who has to go through very many all the same (the
//! pods of a workload of thousands, at each change of one) finds them open the next time: they are packed again one by one, and as
//! soon as many of them are missed they are kept anew.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use carrack_pack::Examples;
use carrack_types::resource::Object;

use crate::fnv1a;
use crate::keys::Keys;
use crate::packed::Packed;

/// Namespace and name of an object, or of a unit of work. Cluster-scoped: an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// From its parts.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
    /// The key of an object.
    #[must_use]
    pub fn of<K: Object>(object: &K) -> Self {
        Self::new(object.namespace(), object.name())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// Computes the values under which an index files an object.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

struct Index<K> {
    of: IndexFn<K>,
    entries: BTreeMap<Box<str>, Keys>,
}

/// An object: as a value, as words, or as both.
struct Entry<K> {
    open: OnceLock<Arc<K>>,
    packed: Option<Packed>,
}

impl<K: Object> Entry<K> {
    /// The key of an entry, and its value.
    fn apart((key, entry): (Arc<Key>, Self)) -> (Arc<Key>, Option<Arc<K>>) {
        let packed = entry.packed;
        (key, entry.open.into_inner().or_else(|| packed.and_then(|packed| packed.open()).map(Arc::new)))
    }
}

/// Objects of one kind as last seen.
pub struct Cache<K> {
    objects: BTreeMap<Arc<Key>, Entry<K>>,
    indexes: BTreeMap<&'static str, Index<K>>,
    changes: u64,
    /// How many objects are open at most while nobody reads; none where no object is ever packed.
    most_open: Option<usize>,
    /// How many more stay open for now, since so many were gone through at once.
    more_open: usize,
    opened: Mutex<Opened>,
    /// What objects that are packed are like.
    examples: Examples,
}

/// Who reads more packed objects than this between two rests goes through many of them, and may do so again and again.
const MANY: usize = 256;
/// How many objects stay open at most because of that.
const MOST_MORE: usize = 16_384;

/// What was opened.
#[derive(Default)]
struct Opened {
    /// In that order. It may name what is gone, or closed.
    keys: VecDeque<Arc<Key>>,
    /// How many were packed before, since the last rest.
    read: usize,
}

/// Name of the index by the UIDs of all owners, which every cache has.
pub const BY_OWNER: &str = "owner";
/// Name of the index by labels, where there is one ([`Cache::index_labels`]).
const BY_LABEL: &str = "label";

/// Under which values objects with a label are filed: a number for each namespace, key and value, since all labels of all objects
/// would take more room than the objects. Who looks compares the labels themselves.
fn label_value(namespace: &str, key: &str, value: &str) -> String {
    format!("{:x}", fnv1a(format!("{namespace}/{key}={value}").as_bytes()))
}

fn labels<K: Object>(object: &K) -> Vec<String> {
    let labels = object.meta().labels.iter().flatten();
    labels.map(|(key, value)| label_value(object.namespace(), key, value)).collect()
}

fn owners<K: Object>(object: &K) -> Vec<String> {
    object.meta().owner_references.iter().flatten().map(|o| o.uid.clone()).collect()
}

impl<K: Object> Default for Cache<K> {
    fn default() -> Self {
        let mut cache = Self {
            objects: BTreeMap::new(),
            indexes: BTreeMap::new(),
            changes: 0,
            most_open: None,
            more_open: 0,
            opened: Mutex::default(),
            examples: Examples::default(),
        };
        cache.add_index(BY_OWNER, owners::<K>);
        cache
    }
}

impl<K: Object> Cache<K> {
    /// Adds an index, or leaves the one of that name as it is.
    pub fn add_index(&mut self, name: &'static str, of: IndexFn<K>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut entries: BTreeMap<Box<str>, Keys> = BTreeMap::new();
        for (key, entry) in &self.objects {
            for value in of(self.open(key, entry)) {
                entries.entry(value.into()).or_default().insert(key);
            }
        }
        self.indexes.insert(name, Index { of, entries });
    }
    /// Files objects by their labels, for [`Self::labelled`].
    pub fn index_labels(&mut self) {
        self.add_index(BY_LABEL, labels::<K>);
    }
    /// Objects of a namespace that may have a label, ordered by name: all that have it, where labels are indexed, and all of the
    /// namespace, where they are not, or no label is asked for.
    pub fn labelled<'a>(
        &'a self,
        namespace: &'a str,
        label: Option<(&String, &String)>,
    ) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        let indexed = label.filter(|_| self.indexes.contains_key(BY_LABEL));
        let value = indexed.map(|(key, value)| label_value(namespace, key, value));
        let all = value.is_none().then(|| self.in_namespace(namespace));
        let some = value.map(|value| self.filed(BY_LABEL, &value).filter(move |o| o.namespace() == namespace));
        some.into_iter().flatten().chain(all.into_iter().flatten())
    }
    /// From now on it packs all but the so many objects that were read last.
    pub fn pack_beyond(&mut self, most_open: usize) {
        self.most_open = Some(most_open);
        let all = self.objects.iter().filter(|(_, entry)| entry.open.get().is_some());
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner);
        opened.keys = all.map(|(key, _)| key.clone()).collect();
        self.rest();
    }
    /// From now on it packs nothing, whatever was said before.
    pub fn keep_open(&mut self) {
        self.most_open = None;
        self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).keys.clear();
    }
    /// Packs what has not been read for long. Nobody holds a reference into the cache now.
    pub fn rest(&mut self) {
        let Some(most_open) = self.most_open else { return };
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner);
        let read = std::mem::take(&mut opened.read);
        let fewer = self.more_open.saturating_sub(1 + self.more_open / 1024);
        self.more_open = if read > MANY { (self.more_open + read).min(MOST_MORE) } else { fewer };
        while opened.keys.len() > most_open + self.more_open {
            let Some(key) = opened.keys.pop_front() else { break };
            let Some(entry) = self.objects.get_mut(&key) else { continue };
            if entry.packed.is_none() {
                let examples = &mut self.examples;
                entry.packed = entry.open.get().and_then(|object| Packed::of::<K>(object, examples));
            }
            // What cannot be packed stays as it is.
            if entry.packed.is_some() {
                entry.open = OnceLock::new();
            }
        }
    }
    /// The value of an entry.
    #[expect(
        clippy::expect_used,
        reason = "an entry without a value has words, which were read once when they were written"
    )]
    fn open<'a>(&'a self, key: &Arc<Key>, entry: &'a Entry<K>) -> &'a Arc<K> {
        entry.open.get_or_init(|| {
            {
                let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
                opened.keys.push_back(key.clone());
                opened.read += 1;
            }
            Arc::new(entry.packed.as_ref().and_then(Packed::open).expect("an object was packed that can be read"))
        })
    }
    /// One object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.get_key(&Key::new(namespace, name))
    }
    /// One object by key.
    #[must_use]
    pub fn get_key(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get_key_value(key).map(|(key, entry)| self.open(key, entry))
    }
    /// Whether there is an object of this name. It is not opened for that.
    #[must_use]
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.objects.contains_key(&Key::new(namespace, name))
    }
    /// All objects, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.iter().map(move |(key, entry)| self.open(key, entry))
    }
    /// All objects of a namespace, ordered by name.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let from = self.objects.range(Key::new(namespace, "")..);
        from.take_while(move |(key, _)| key.namespace == namespace).map(move |(key, entry)| self.open(key, entry))
    }
    /// The objects of a name, in whatever namespace, ordered by namespace. This costs a look-up or two for each namespace.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let mut from = Some(Key::new("", name));
        std::iter::from_fn(move || {
            loop {
                let (key, entry) = self.objects.range(from.take()?..).next()?;
                let is_it = key.name == name;
                // To that name in its namespace, or beyond it: the next namespace is at least one character longer.
                let beyond = || Key::new(format!("{}\0", key.namespace), "");
                from = Some(if key.name.as_str() < name { Key::new(&*key.namespace, name) } else { beyond() });
                if is_it {
                    return Some(self.open(key, entry));
                }
            }
        })
    }
    /// All objects filed under a value of an index, ordered by key. An unknown index holds nothing.
    pub fn by_index<'a>(&'a self, index: &str, value: &str) -> impl Iterator<Item = &'a Arc<K>> {
        self.filed(index, value)
    }
    /// How many objects are filed under a value of an index. None of them is opened for that.
    #[must_use]
    pub fn count(&self, index: &str, value: &str) -> usize {
        self.indexes.get(index).and_then(|i| i.entries.get(value)).map_or(0, Keys::len)
    }
    /// The first value, from this one on, under which an index files anything, in the order of texts.
    #[must_use]
    pub fn first_value(&self, index: &str, from: &str) -> Option<&str> {
        let from = (Bound::Included(from), Bound::Unbounded);
        self.indexes.get(index)?.entries.range::<str, _>(from).next().map(|(value, _)| &**value)
    }
    fn filed<'a>(&'a self, index: &str, value: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.indexes
            .get(index)
            .and_then(|i| i.entries.get(value))
            .into_iter()
            .flat_map(Keys::iter)
            .filter_map(move |key| self.objects.get(key).map(|entry| self.open(key, entry)))
    }
    /// All objects that name this UID among their owners.
    pub fn by_owner<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<K>> {
        self.by_index(BY_OWNER, uid)
    }
    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
    /// How often objects were put in or taken out: where this is as it was, so is the cache.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }
    /// Puts an object in; returns the one that it replaces.
    pub fn insert(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        self.changes += 1;
        let named = Key::of(object.as_ref());
        let old = self.objects.remove_entry(&named);
        let was_open = old.as_ref().is_some_and(|(_, entry)| entry.open.get().is_some());
        let (key, old) = old.map_or_else(|| (Arc::new(named), None), Entry::apart);
        self.unindex(&key, old.as_deref());
        for index in self.indexes.values_mut() {
            for value in (index.of)(&object) {
                index.entries.entry(value.into()).or_default().insert(&key);
            }
        }
        if self.most_open.is_some() && !was_open {
            self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).keys.push_back(key.clone());
        }
        self.objects.insert(key, Entry { open: OnceLock::from(object), packed: None });
        old
    }
    /// Takes an object out.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        self.changes += 1;
        let (key, old) = Entry::apart(self.objects.remove_entry(key)?);
        self.unindex(&key, old.as_deref());
        old
    }
    /// Keys of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys().map(AsRef::as_ref)
    }
    /// How many objects are values now.
    #[cfg(test)]
    fn count_open(&self) -> usize {
        self.objects.values().filter(|entry| entry.open.get().is_some()).count()
    }
    fn unindex(&mut self, key: &Arc<Key>, old: Option<&K>) {
        let Some(old) = old else { return };
        for index in self.indexes.values_mut() {
            for value in (index.of)(old) {
                if let Some(keys) = index.entries.get_mut(value.as_str()) {
                    keys.remove(key);
                    if keys.is_empty() {
                        index.entries.remove(value.as_str());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(name: u8, labels: u8, version: u64) -> Arc<ConfigMap> {
        let object = json!({"metadata": {"namespace": format!("ns{}", name % 2), "name": format!("o{name}"),
            "uid": format!("u{name}"), "resourceVersion": version.to_string(), "labels": {"l": format!("{}", labels % 3)},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": format!("p{}", labels % 2)}]},
            "data": {"version": version.to_string()}});
        Arc::new(serde_json::from_value(object).expect("a config map"))
    }

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u8, u8),
        Remove(u8),
        Read(u8),
        ReadAll,
        Rest,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0_u8..12, any::<u8>()).prop_map(|(name, labels)| Act::Insert(name, labels)),
            1 => (0_u8..12).prop_map(Act::Remove),
            2 => (0_u8..12).prop_map(Act::Read),
            1 => Just(Act::ReadAll),
            2 => Just(Act::Rest),
        ]
    }

    proptest! {
        /// Whoever reads a cache that packs sees what one that packs nothing shows, and it keeps no more open than it should.
        #[test]
        fn packing_is_not_seen(acts in prop::collection::vec(act(), 0..80), most_open in 0_usize..5) {
            let (mut packs, mut keeps) = (Cache::<ConfigMap>::default(), Cache::default());
            packs.index_labels();
            packs.pack_beyond(most_open);
            let label = ("l".to_owned(), "1".to_owned());
            for (version, act) in (1..).zip(acts) {
                let key = |name: u8| Key::of(object(name, 0, 0).as_ref());
                match act {
                    Act::Insert(name, labels) => {
                        let new = object(name, labels, version);
                        prop_assert_eq!(packs.insert(new.clone()), keeps.insert(new));
                    }
                    Act::Remove(name) => prop_assert_eq!(packs.remove(&key(name)), keeps.remove(&key(name))),
                    Act::Read(name) => {
                        let key = key(name);
                        prop_assert_eq!(packs.has(&key.namespace, &key.name), keeps.get_key(&key).is_some());
                        prop_assert_eq!(packs.get_key(&key), keeps.get_key(&key));
                    }
                    Act::ReadAll => {
                        prop_assert!(packs.iter().eq(keeps.iter()));
                        prop_assert!(packs.in_namespace("ns1").eq(keeps.in_namespace("ns1")));
                        prop_assert!(packs.by_owner("p1").eq(keeps.by_owner("p1")));
                        prop_assert_eq!(packs.count(BY_OWNER, "p1"), keeps.by_owner("p1").count());
                        let first = ["p0", "p1"].into_iter().find(|owner| keeps.by_owner(owner).next().is_some());
                        prop_assert_eq!(packs.first_value(BY_OWNER, "p"), first);
                        prop_assert_eq!(packs.first_value(BY_OWNER, "p2"), None);
                        let has = |o: &&Arc<ConfigMap>| o.metadata.labels.as_ref().is_some_and(|l| l["l"] == "1");
                        let chosen = keeps.in_namespace("ns0").filter(has);
                        prop_assert!(packs.labelled("ns0", Some((&label.0, &label.1))).eq(chosen));
                        // Without a label to look for, and without an index, it is the whole namespace.
                        prop_assert!(packs.labelled("ns0", None).eq(keeps.in_namespace("ns0")));
                        prop_assert!(keeps.labelled("ns0", Some((&label.0, &label.1))).eq(keeps.in_namespace("ns0")));
                    }
                    Act::Rest => {
                        packs.rest();
                        prop_assert!(packs.count_open() <= most_open, "{} are open", packs.count_open());
                    }
                }
                prop_assert!(packs.keys().eq(keeps.keys()));
                prop_assert_eq!((packs.len(), packs.changes()), (keeps.len(), keeps.changes()));
            }
        }
    }

    /// Who goes through all of a large cache again and again reads few of them anew, and nobody else keeps them open.
    #[test]
    fn what_is_gone_through_again_and_again_stays_open() {
        let (mut cache, many) = (Cache::<ConfigMap>::default(), 3 * MANY);
        cache.pack_beyond(2);
        for n in 0..many {
            let map = json!({"metadata": {"namespace": "ns", "name": format!("o{n}"), "uid": format!("u{n}")}});
            cache.insert(Arc::new(serde_json::from_value(map).expect("a config map")));
            cache.rest();
        }
        assert_eq!(cache.count_open(), 2);
        let mut go_through = || {
            assert_eq!(cache.iter().count(), many);
            let read = cache.opened.get_mut().unwrap_or_else(PoisonError::into_inner).read;
            cache.rest();
            read
        };
        assert_eq!(go_through(), many - 2);
        let read: Vec<usize> = (0..30).map(|_| go_through()).collect();
        assert!(read.iter().all(|read| *read <= MANY), "{read:?}");
        assert!(cache.count_open() > many / 2);
        (0..2 * many).for_each(|_| cache.rest());
        assert_eq!(cache.count_open(), 2);
    }

    /// What was read last stays open.
    #[test]
    fn what_is_read_stays_open() {
        let mut cache = Cache::<Pod>::default();
        cache.pack_beyond(2);
        for name in ["a", "b", "c", "d"] {
            let pod = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"containers": []}});
            cache.insert(Arc::new(serde_json::from_value(pod).expect("a pod")));
            cache.rest();
        }
        let is_open = |cache: &Cache<Pod>, name: &str| {
            cache.objects.get(&Key::new("ns", name)).is_some_and(|entry| entry.open.get().is_some())
        };
        assert_eq!(["a", "b", "c", "d"].map(|name| is_open(&cache, name)), [false, false, true, true]);
        let read = cache.get("ns", "a").cloned();
        cache.rest();
        assert_eq!(["a", "b", "c", "d"].map(|name| is_open(&cache, name)), [true, false, false, true]);
        assert!(Arc::ptr_eq(&read.expect("there"), cache.get("ns", "a").expect("there")), "nothing is read twice");
        // Who goes through all of them again and again has them all.
        cache.keep_open();
        assert_eq!(cache.iter().count(), 4);
        cache.rest();
        assert_eq!(cache.count_open(), 4);
    }
}
