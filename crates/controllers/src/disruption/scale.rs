//! How many pods an owner is asked for: what its `/scale` says, read where the scale reads it.
//!
//! Built-in kinds are read as what they are; kinds of custom resource definitions that serve `/scale` are watched, and their
//! number is where the definition says.

use std::collections::BTreeMap;

use carrack_engine::{Key, Setup, Source, View};
use carrack_schema::table;
use carrack_types::definition::Definition;
use carrack_types::resource::{Kind, Object, Resource};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::custom::resource_of;

/// An object of a custom kind with a scale.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Scaled {
    metadata: ObjectMeta,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

carrack_types::json_here!(Scaled);

impl Object for Scaled {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Scaled {
    /// The number at a path as definitions write it (`.spec.replicas`).
    fn number(&self, path: &str) -> Option<i64> {
        let mut names = path.split('.').filter(|name| !name.is_empty());
        let first = self.rest.get(names.next()?)?;
        names.try_fold(first, |value, name| value.get(name))?.as_i64()
    }
}

/// Why it cannot be said how many pods an owner is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Its kind is not read yet.
    NotYet,
    /// There is no such owner.
    NoOwner,
    /// For this reason, in words.
    Never(String),
}

/// The custom kinds with a scale, by the name of their definition, each with where the number is.
#[derive(Default)]
pub(super) struct Scales {
    kinds: BTreeMap<String, (Resource, String)>,
    /// Which state of the cache of definitions this is.
    changes: Option<u64>,
}

impl Scales {
    /// Takes over the definitions as they are now. `keys` says who looks again when such an object changes its number.
    pub(super) fn refresh(
        &mut self,
        view: &View<'_>,
        setup: &mut Setup<'_>,
        keys: impl Fn(&Scaled, &View<'_>) -> Vec<Key> + Clone + Send + 'static,
    ) {
        let definitions = view.cache::<Definition>();
        if self.changes.replace(definitions.changes()) == Some(definitions.changes()) {
            return;
        }
        let established = definitions.iter().filter(|crd| crd.is_established());
        let now: BTreeMap<String, (Resource, String)> =
            established.filter_map(|crd| Some((crd.name().to_owned(), scaled(crd)?))).collect();
        for (name, (resource, _)) in &self.kinds {
            if now.get(name).is_none_or(|(kept, _)| kept != resource) {
                setup.drop_source(source(resource));
            }
        }
        for (name, (resource, path)) in &now {
            if self.kinds.get(name).is_some_and(|(known, _)| known == resource) {
                continue;
            }
            let path = path.clone();
            let matters = move |old: &Scaled, new: &Scaled| old.number(&path) != new.number(&path);
            setup.watch_changes::<Scaled>(source(resource), matters, keys.clone());
        }
        self.kinds = now;
    }

    /// The controller that counts for a pod's owner, by its UID, and how many pods it is asked for.
    pub(super) fn of(
        &self,
        owner: &OwnerReference,
        namespace: &str,
        view: &View<'_>,
    ) -> Result<(String, i64), Unknown> {
        if is::<ReplicaSet>(owner) {
            let set = mine::<ReplicaSet>(owner, namespace, view)?;
            let of_set = || count(set, set.spec.as_ref().and_then(|s| s.replicas));
            let parents = set.metadata.owner_references.iter().flatten();
            let parent = parents.into_iter().find(|o| o.controller == Some(true) && is::<Deployment>(o));
            return match parent {
                None => Ok(of_set()),
                // A set whose Deployment is gone still says how many it is asked for.
                Some(parent) => Ok(mine::<Deployment>(parent, namespace, view).map_or_else(
                    |_| of_set(),
                    |deployment| count(deployment, deployment.spec.as_ref().and_then(|s| s.replicas)),
                )),
            };
        }
        if is::<StatefulSet>(owner) {
            let set = mine::<StatefulSet>(owner, namespace, view)?;
            return Ok(count(set, set.spec.as_ref().and_then(|s| s.replicas)));
        }
        if is::<ReplicationController>(owner) {
            let set = mine::<ReplicationController>(owner, namespace, view)?;
            return Ok(count(set, set.spec.as_ref().and_then(|s| s.replicas)));
        }
        self.of_custom(owner, namespace, view)
    }

    fn of_custom(&self, owner: &OwnerReference, namespace: &str, view: &View<'_>) -> Result<(String, i64), Unknown> {
        let group = group(owner);
        let known = self.kinds.values().find(|(r, _)| r.group == group && r.kind == owner.kind);
        let Some((resource, path)) = known else {
            return Err(Unknown::Never(without_scale(group, owner, view)));
        };
        let source = source(resource);
        if !view.synced(&source) {
            return Err(Unknown::NotYet);
        }
        let cache = view.cache_of::<Scaled>(&source).ok_or(Unknown::NotYet)?;
        let namespace = if resource.namespaced { namespace } else { "" };
        let found = cache.get(namespace, &owner.name).filter(|o| o.uid() == owner.uid).ok_or(Unknown::NoOwner)?;
        // Built-in kinds cannot ask for more, and these numbers are summed.
        let asked = found.number(path).unwrap_or(0).clamp(0, i64::from(i32::MAX));
        Ok((owner.uid.clone(), asked))
    }
}

fn source(resource: &Resource) -> Source {
    Source { metadata_only: false, ..Source::metadata(resource.clone()) }
}

/// The resource of a definition and where its scale has the number.
fn scaled(crd: &Definition) -> Option<(Resource, String)> {
    let resource = resource_of(crd)?;
    let version = crd.spec.versions.iter().find(|v| v.name == resource.version)?;
    let scale = version.subresources.as_ref()?.scale.as_ref()?;
    Some((resource, scale.spec_replicas_path.clone()))
}

fn group(owner: &OwnerReference) -> &str {
    owner.api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Whether an owner is of a kind, in whatever version.
fn is<K: Kind>(owner: &OwnerReference) -> bool {
    let resource = K::resource();
    owner.kind == resource.kind && group(owner) == resource.group
}

fn mine<'a, K: Kind>(owner: &OwnerReference, namespace: &str, view: &'a View<'_>) -> Result<&'a K, Unknown> {
    let found = view.get::<K>(namespace, &owner.name).filter(|o| o.uid() == owner.uid);
    found.map(AsRef::as_ref).ok_or(Unknown::NoOwner)
}

fn count<K: Object>(object: &K, replicas: Option<i32>) -> (String, i64) {
    (object.uid().to_owned(), i64::from(replicas.unwrap_or(1)))
}

/// What is said of a kind without a scale.
fn without_scale(group: &str, owner: &OwnerReference, view: &View<'_>) -> String {
    let builtin = table::builtin().iter().find(|row| row.group == group && row.kind == owner.kind);
    let custom = || {
        let definitions = view.cache::<Definition>();
        let found = definitions.iter().find(|crd| crd.spec.group == group && crd.spec.names.kind == owner.kind);
        found.map(|crd| crd.spec.names.plural.clone())
    };
    match builtin.map(|row| row.plural.to_string()).or_else(custom) {
        Some(plural) if group.is_empty() => format!("{plural} does not implement the scale subresource"),
        Some(plural) => format!("{plural}.{group} does not implement the scale subresource"),
        None => format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version),
    }
}
