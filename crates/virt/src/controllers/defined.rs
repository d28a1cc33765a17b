//! Objects of kinds that a cluster may not have: somebody installs them with a definition, and may take them away again.
//!
//! A kind is read as soon as it is defined, and no longer than that. Until it has been read whole, nothing is known of its
//! objects.

use std::marker::PhantomData;

use carrack_engine::{Setup, Source, View};
use carrack_types::definition::Definition;
use carrack_types::resource::{Kind, Object as _, PartialObject, Resource};

/// The resource of definitions.
pub(crate) fn definitions() -> Resource {
    Definition::resource()
}

/// What is read in any case.
pub(crate) fn setup(setup: &mut Setup<'_>) {
    setup.watch_source::<PartialObject>(Source::metadata(definitions()), |_, _| Vec::new());
}

/// Whether a kind that comes with a definition is defined.
pub(crate) fn is_defined<K: Kind>(view: &View<'_>) -> bool {
    let cache = view.cache_of::<PartialObject>(&Source::metadata(definitions()));
    let there = cache.and_then(|cache| cache.get("", &K::resource().qualified()));
    there.is_some_and(|found| !found.is_deleting())
}

/// What a controller remembers of such a kind: whether it reads it.
#[derive(Debug, Default)]
pub(crate) struct Reading<K> {
    read: bool,
    kind: PhantomData<K>,
}

impl<K: Kind> Reading<K> {
    /// Begins to read the kind, or ends.
    pub(crate) fn refresh(&mut self, view: &View<'_>, setup: &mut Setup<'_>, watch: impl FnOnce(&mut Setup<'_>)) {
        match (is_defined::<K>(view), self.read) {
            (true, false) => watch(setup),
            (false, true) => setup.drop_source(Source::of::<K>()),
            _ => return,
        }
        self.read = !self.read;
    }
}

/// What is known of an object.
pub(crate) enum Found<'a, K> {
    /// Its kind is not defined.
    Undefined,
    /// Its kind is defined, and not read yet.
    Unknown,
    /// It is not there.
    Absent,
    /// It is there.
    There(&'a K),
}

/// An object of such a kind.
pub(crate) fn find<'a, K: Kind>(view: &'a View<'_>, namespace: &str, name: &str) -> Found<'a, K> {
    let source = Source::of::<K>();
    if !is_defined::<K>(view) {
        return Found::Undefined;
    }
    match view.cache_of::<K>(&source).filter(|_| view.synced(&source)) {
        None => Found::Unknown,
        Some(cache) => cache.get(namespace, name).map_or(Found::Absent, |found| Found::There(found.as_ref())),
    }
}
