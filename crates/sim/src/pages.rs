//! Lists that come in several pages.
//!
//! Nothing here has as many objects of a kind as fit on a page. So in one run of eight, half of the managers that start anew ask
//! for a few at a time: pages are lost, and the history that they are of is forgotten between two of them.

use carrack_engine::{Manager, Rng, Source};
use carrack_types::resource::PartialObject;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use serde_json::Value;

use crate::invariants::Breach;
use crate::observer::{Observer, key_of, text};
use crate::plants::Bug;
use crate::role::Role;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "caches-know-what-is-there";

/// How many objects a small page holds.
pub(crate) const SMALL: usize = 3;

/// Whether there are such managers in a run. Beside other planted bugs than that of pages there are none.
pub(crate) fn are_played(root: &Rng, planted: Option<Bug>) -> bool {
    match planted {
        None => root.fork("paged lists").one_in(8),
        Some(bug) => bug == Bug::FirstPages,
    }
}

/// Whether a manager is one of them in a life, which has random numbers of its own.
pub(crate) fn are_small(root: &Rng, own: &Rng, life: u32, planted: Option<Bug>) -> bool {
    let is_one = planted.is_some() || life > 1 && own.fork("paged lists").one_in(2);
    is_one && are_played(root, planted)
}

/// What the observer calls a kind, of those that there are many of.
fn called(source: &Source) -> Option<&'static str> {
    Some(match (&*source.resource.group, &*source.resource.plural) {
        ("", "namespaces") => "namespace",
        ("", "nodes") => "node",
        ("", "pods") => "pod",
        ("", "configmaps") => "configmap",
        ("", "secrets") => "secret",
        _ => return None,
    })
}

/// Looks at the caches of a manager.
pub(crate) fn look(role: Role, core: &Manager, observer: &Observer, breaches: &mut Vec<Breach>) {
    let view = core.view();
    let mut known = |source: &Source, has: &dyn Fn(&str, &str) -> bool| {
        let is_whole = source.selector.is_all() && source.every.is_none() && view.synced(source);
        let Some(kind) = called(source).filter(|_| is_whole) else { return };
        if view.revision_of(source) < observer.changed(kind).0 {
            return;
        }
        let is_unknown = |object: &&Value| !has(text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        if let Some(object) = observer.all(kind).find(is_unknown) {
            let (name, revision) = (key_of(object), view.revision_of(source));
            let what = format!("{role} has heard of every {kind} up to {revision}, and does not know {name}");
            breaches.push(Breach::new(NAME, what));
        }
    };
    for (source, cache) in view.caches::<PartialObject>() {
        known(source, &|namespace, name| cache.has(namespace, name));
    }
    for (source, cache) in view.caches::<Pod>() {
        known(source, &|namespace, name| cache.has(namespace, name));
    }
    for (source, cache) in view.caches::<Node>() {
        known(source, &|namespace, name| cache.has(namespace, name));
    }
    for (source, cache) in view.caches::<Namespace>() {
        known(source, &|namespace, name| cache.has(namespace, name));
    }
}
