//! Aggregated ClusterRoles hold the rules of those that they select, changed in the same write.
//!
//! Authorization resolves them by itself; this is for people and programs that read the objects.
//! Upstream has a controller for it (`clusterrole-aggregation-controller`).

use carrack_auth::rbac::{GROUP, Index, Key, Kind, Object as Rbac};
use serde_json::{Value, json};

use super::{AdmissionPlugin, Along, Attributes, Change, Lookup, Needed, Operation};
use crate::kinds;
use crate::object::{Object, name};
use crate::status::Status;

const ROLES: &str = "clusterroles";

pub(super) struct Aggregation;

/// The server's own writes at its start are aggregated when all are there.
fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, ROLES) && *attributes.caller != carrack_auth::Caller::apiserver()
}

/// Whether something is wrong with the rules that the role was sent with.
fn has_faulty_rules(attributes: &mut Attributes<'_>) -> bool {
    let (row, spoken) = (attributes.row, attributes.version);
    let Some(version) = row.versions.iter().find(|version| version.name == spoken) else { return false };
    let faults = kinds::validate_create(row, version, &mut attributes.object);
    faults.iter().any(|fault| fault.path.starts_with("rules"))
}

/// The rules of each aggregated role, by name.
pub(crate) fn aggregated(roles: &[&Object]) -> Vec<(String, Value)> {
    let objects = roles.iter().filter_map(|role| {
        let json = serde_json::to_vec(role).unwrap_or_default();
        // What cannot be read allows nothing, and adds nothing.
        Some((Key::new(Kind::ClusterRole, "", name(role)), Rbac::parse(Kind::ClusterRole, "", &json).ok()?))
    });
    let index = Index::from_objects(objects);
    index.aggregated().map(|(name, rules)| (name.to_owned(), json!(rules))).collect()
}

/// All roles as they are after the write.
fn after<'a>(attributes: &'a Attributes<'_>, lookup: &'a dyn Lookup) -> Vec<&'a Object> {
    let others = lookup.list(GROUP, ROLES, "").into_iter().filter(|role| name(role) != attributes.name);
    let own = (attributes.operation != Operation::Delete).then_some(&attributes.object);
    others.chain(own).collect()
}

impl AdmissionPlugin for Aggregation {
    fn name(&self) -> &'static str {
        "ClusterRoleAggregation"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if concerns(attributes) { vec![Needed::all(GROUP, ROLES, "")] } else { Vec::new() }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let is_aggregated = attributes.object.get("aggregationRule").is_some_and(|rule| !rule.is_null());
        // What is wrong with rules stays where it is, for validation to refuse it: put in their place, nobody would tell.
        if concerns(attributes) && is_aggregated && !has_faulty_rules(attributes) {
            let all = aggregated(&after(attributes, lookup));
            if let Some((_, rules)) = all.into_iter().find(|(name, _)| *name == attributes.name) {
                attributes.object.insert("rules".to_owned(), rules);
            }
        }
        Ok(())
    }

    fn along(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<Vec<Along>, Status> {
        if !concerns(attributes) {
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        for (role, rules) in aggregated(&after(attributes, lookup)) {
            let stored = lookup.list(GROUP, ROLES, "").into_iter().find(|object| name(object) == role);
            let Some(stored) = stored.filter(|stored| role != attributes.name && stored.get("rules") != Some(&rules))
            else {
                continue;
            };
            let mut changed = stored.clone();
            changed.insert("rules".to_owned(), rules);
            changes.push(Along {
                group: GROUP,
                resource: ROLES,
                namespace: String::new(),
                name: role,
                change: Change::Replace(changed),
            });
        }
        Ok(changes)
    }
}
