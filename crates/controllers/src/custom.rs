//! Kinds that custom resource definitions bring and take away, for controllers that read every kind.

use std::collections::BTreeMap;

use carrack_engine::{Setup, Source, View};
use carrack_types::resource::{Object as _, Resource};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// The resources of all established definitions, by the definition's name.
#[derive(Default)]
pub(crate) struct CustomKinds {
    now: BTreeMap<String, Resource>,
    /// Those that were there once, by group and kind: their objects are gone with them, but others may still name them.
    former: BTreeMap<(String, String), Resource>,
    /// Which state of the cache of definitions this is.
    changes: Option<u64>,
}

impl CustomKinds {
    /// The resources.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Resource> {
        self.now.values()
    }

    /// The resource of a kind that was there once and is not any more.
    pub(crate) fn former(&self, group: &str, kind: &str) -> Option<&Resource> {
        self.former.get(&(group.to_owned(), kind.to_owned()))
    }

    /// Takes over the definitions as they are now; `watch` is called for each kind that is new. Sources
    /// of kinds that are gone are dropped.
    pub(crate) fn refresh(
        &mut self,
        view: &View<'_>,
        setup: &mut Setup<'_>,
        watch: impl Fn(&mut Setup<'_>, &Resource),
    ) {
        let definitions = view.cache::<CustomResourceDefinition>();
        // This is asked at every change of anything.
        if self.changes.replace(definitions.changes()) == Some(definitions.changes()) {
            return;
        }
        let now: BTreeMap<String, Resource> = definitions
            .iter()
            .filter(|crd| is_established(crd))
            .filter_map(|crd| Some((crd.name().to_owned(), resource_of(crd)?)))
            .collect();
        for (name, resource) in &now {
            if self.now.get(name) != Some(resource) {
                self.former.remove(&(resource.group.to_string(), resource.kind.to_string()));
                watch(setup, resource);
            }
        }
        for (name, resource) in &self.now {
            if now.get(name) != Some(resource) {
                if !now.contains_key(name) && view.get::<CustomResourceDefinition>("", name).is_none() {
                    let kind = (resource.group.to_string(), resource.kind.to_string());
                    self.former.insert(kind, resource.clone());
                }
                setup.drop_source(Source::metadata(resource.clone()));
            }
        }
        self.now = now;
    }
}

/// Whether the API server serves the definition's objects by now.
pub(crate) fn is_established(crd: &CustomResourceDefinition) -> bool {
    crd.status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .any(|c| c.type_ == "Established" && c.status == "True")
}

/// The resource of a definition, in the version that is stored.
pub(crate) fn resource_of(crd: &CustomResourceDefinition) -> Option<Resource> {
    let served = || crd.spec.versions.iter().filter(|v| v.served);
    let version = served().find(|v| v.storage).or_else(|| served().next())?;
    Some(Resource {
        group: crd.spec.group.clone().into(),
        version: version.name.clone().into(),
        plural: crd.spec.names.plural.clone().into(),
        kind: crd.spec.names.kind.clone().into(),
        namespaced: crd.spec.scope == "Namespaced",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn custom_resources_are_read_once_they_are_served() {
        let crd = |established: &str| -> CustomResourceDefinition {
            serde_json::from_value(json!({
                "metadata": {"name": "things.example.com", "uid": "1"},
                "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                    "versions": [{"name": "v2", "served": true, "storage": false},
                        {"name": "v1", "served": true, "storage": true}]},
                "status": {"conditions": [{"type": "Established", "status": established}]}}))
            .expect("a definition")
        };
        assert!(!is_established(&crd("False")));
        assert!(is_established(&crd("True")));
        let resource = resource_of(&crd("True")).expect("a resource");
        assert_eq!(resource.collection_path("ns"), "/apis/example.com/v1/namespaces/ns/things");
    }
}
