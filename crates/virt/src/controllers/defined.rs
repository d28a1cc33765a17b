//! Objects of kinds that a cluster may not have: somebody installs them with a definition, and may take them away again.
//!
//! A kind is read as soon as it is defined, and no longer than that. Until it has been read whole, nothing is known of its
//! objects.

use std::marker::PhantomData;

use carrack_engine::{Setup, Source, View};
use carrack_types::resource::Kind;

use super::snapshot::classes::is_defined;

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
