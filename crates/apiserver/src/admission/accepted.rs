//! The names that definitions of custom resources have been given: no two of a group have the same.
//!
//! A definition is long, for its schemas, and each write of one asks for the names of the others. So only those of its
//! group are looked at, and nothing of them is read but this.

use carrack_store::Entry;
use serde::Deserialize;

/// The accepted names of a definition.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Accepted {
    metadata: Metadata,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    accepted_names: Names,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Names {
    plural: String,
    singular: String,
    short_names: Option<Vec<String>>,
    kind: String,
    list_kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl Accepted {
    /// The name of the definition.
    pub(crate) fn definition(&self) -> &str {
        &self.metadata.name
    }

    /// Whether its resource is called so: in paths, or by those who type less.
    pub(super) fn has_resource(&self, name: &str) -> bool {
        let names = &self.status.accepted_names;
        names.plural == name || names.singular == name || names.short_names.iter().flatten().any(|short| short == name)
    }

    /// Whether its objects or their lists are of this kind.
    pub(super) fn has_kind(&self, name: &str) -> bool {
        let names = &self.status.accepted_names;
        names.kind == name || names.list_kind == name
    }

    /// Whether it has not all the names that it wants.
    pub(crate) fn waits(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == "NamesAccepted" && condition.status == "False")
    }
}

/// The names of a group's definitions among all that are stored. Of which group they are is seen by their own names,
/// which are plural and group, or validation refuses them.
pub(crate) fn of_group<'e>(entries: impl IntoIterator<Item = &'e Entry>, group: &str) -> Vec<Accepted> {
    let is_of_it = |entry: &&Entry| {
        let name = entry.key.rsplit('/').next().unwrap_or_default();
        name.split_once('.').is_some_and(|(_, of)| of == group)
    };
    entries.into_iter().filter(is_of_it).filter_map(|entry| serde_json::from_slice(&entry.value()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use carrack_store::Revision;

    use super::*;

    #[test]
    fn names_of_a_group() {
        let entry = |name: &str, value: &'static str| {
            let key: Arc<str> = format!("/registry/apiextensions.k8s.io/customresourcedefinitions/{name}").into();
            Entry::new(key, value.into(), Revision(1), Revision(1))
        };
        let ships = r#"{"metadata":{"name":"ships.sea.io"},"spec":{"names":{"kind":"Vessel"},"versions":[{}]},
            "status":{"acceptedNames":{"plural":"ships","kind":"Ship","listKind":"ShipList","shortNames":["sh"]},
            "conditions":[{"type":"NamesAccepted","status":"False","reason":"KindConflict"}]}}"#;
        let boats = r#"{"metadata":{"name":"boats.sea.io"},"status":{"acceptedNames":{"kind":"","plural":""}}}"#;
        let all = [
            entry("ships.sea.io", ships),
            entry("boats.sea.io", boats),
            entry("nets.sea.io", r#"{"metadata":{"name":"nets.sea.io"}}"#),
            // Of other groups, whatever they end in; nobody looks into them.
            entry("ships.deep.sea.io", ships),
            entry("ships.io", ships),
        ];
        let found = of_group(&all, "sea.io");
        let told: Vec<_> = found.iter().map(|one| (one.definition(), one.waits())).collect();
        assert_eq!(told, [("ships.sea.io", true), ("boats.sea.io", false), ("nets.sea.io", false)]);
        for (name, is_resource, is_kind) in [
            ("ships", true, false),
            ("sh", true, false),
            ("Ship", false, true),
            ("ShipList", false, true),
            ("Vessel", false, false),
        ] {
            assert_eq!((found[0].has_resource(name), found[0].has_kind(name)), (is_resource, is_kind), "{name}");
        }
    }
}
