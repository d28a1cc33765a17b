//! What a core knows of one kind: objects by name, with indexes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::resource::Object;

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

/// The objects that are filed under a value. Mostly that is one, and a set has room for eleven from the first on.
enum Filed {
    One(Arc<Key>),
    Many(BTreeSet<Arc<Key>>),
}

impl Filed {
    fn iter(&self) -> impl Iterator<Item = &Arc<Key>> {
        let (one, many) = match self {
            Self::One(key) => (Some(key), None),
            Self::Many(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

struct Index<K> {
    of: IndexFn<K>,
    entries: BTreeMap<String, Filed>,
}

impl<K> Index<K> {
    fn file(&mut self, key: &Arc<Key>, object: &K) {
        for value in (self.of)(object) {
            match self.entries.entry(value) {
                Entry::Vacant(slot) => drop(slot.insert(Filed::One(key.clone()))),
                Entry::Occupied(mut slot) => match slot.get_mut() {
                    Filed::One(only) if only == key => {}
                    Filed::One(only) => *slot.get_mut() = Filed::Many([only.clone(), key.clone()].into()),
                    Filed::Many(keys) => drop(keys.insert(key.clone())),
                },
            }
        }
    }
    fn take_out(&mut self, key: &Key, object: &K) {
        for value in (self.of)(object) {
            let is_empty = match self.entries.get_mut(&value) {
                None => false,
                Some(Filed::One(only)) => **only == *key,
                Some(Filed::Many(keys)) => {
                    keys.remove(key);
                    keys.is_empty()
                }
            };
            if is_empty {
                self.entries.remove(&value);
            }
        }
    }
}

/// Objects of one kind as last seen.
pub struct Cache<K> {
    objects: BTreeMap<Arc<Key>, Arc<K>>,
    indexes: BTreeMap<&'static str, Index<K>>,
    changes: u64,
}

/// Name of the index by the UIDs of all owners, which every cache has.
pub const BY_OWNER: &str = "owner";

fn owners<K: Object>(object: &K) -> Vec<String> {
    object.meta().owner_references.iter().flatten().map(|o| o.uid.clone()).collect()
}

impl<K: Object> Default for Cache<K> {
    fn default() -> Self {
        let mut cache = Self { objects: BTreeMap::new(), indexes: BTreeMap::new(), changes: 0 };
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
        let mut index = Index { of, entries: BTreeMap::new() };
        for (key, object) in &self.objects {
            index.file(key, object);
        }
        self.indexes.insert(name, index);
    }
    /// One object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(&Key::new(namespace, name))
    }
    /// One object by key.
    #[must_use]
    pub fn get_key(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }
    /// All objects, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }
    /// All objects of a namespace, ordered by name.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let from = self.objects.range::<Key, _>(Key::new(namespace, "")..);
        from.take_while(move |(k, _)| k.namespace == namespace).map(|(_, o)| o)
    }
    /// The objects of a name, in whatever namespace, ordered by namespace. This costs a look-up or two for each namespace.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let mut from = Some(Key::new("", name));
        std::iter::from_fn(move || {
            loop {
                let (key, object) = self.objects.range::<Key, _>(from.take()?..).next()?;
                let is_it = key.name == name;
                // To that name in its namespace, or beyond it: the next namespace is at least one character longer.
                let beyond = || Key::new(format!("{}\0", key.namespace), "");
                from = Some(if key.name.as_str() < name { Key::new(&*key.namespace, name) } else { beyond() });
                if is_it {
                    return Some(object);
                }
            }
        })
    }
    /// All objects filed under a value of an index, ordered by key. An unknown index holds nothing.
    pub fn by_index<'a>(&'a self, index: &str, value: &str) -> impl Iterator<Item = &'a Arc<K>> {
        self.indexes
            .get(index)
            .and_then(|i| i.entries.get(value))
            .into_iter()
            .flat_map(Filed::iter)
            .filter_map(|key| self.objects.get(key))
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
        let key = Key::of(object.as_ref());
        let (key, old) = match self.objects.get_key_value(&key) {
            Some((key, old)) => (key.clone(), Some(old.clone())),
            None => (Arc::new(key), None),
        };
        self.objects.insert(key.clone(), object.clone());
        self.unindex(&key, old.as_deref());
        self.indexes.values_mut().for_each(|index| index.file(&key, &object));
        old
    }
    /// Takes an object out.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        self.changes += 1;
        let old = self.objects.remove(key);
        self.unindex(key, old.as_deref());
        old
    }
    /// Keys of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys().map(|key| &**key)
    }
    fn unindex(&mut self, key: &Key, old: Option<&K>) {
        let Some(old) = old else { return };
        self.indexes.values_mut().for_each(|index| index.take_out(key, old));
    }
}
