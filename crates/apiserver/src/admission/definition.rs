//! CustomResourceDefinitions: completes their names, says in their status whether they are served, and
//! ties the life of custom resources to that of their definition.
//!
//! A definition is established by the write that makes it valid; there is no controller to wait for.

use std::collections::BTreeSet;

use carrack_schema::crd::approval::{ANNOTATION, Approval};
use carrack_schema::table::builtin;
use carrack_schema::validate::is_qualified_finalizer;
use serde_json::{Map, Value, json};

use super::accepted::{self, Accepted};
use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::catalog::{CRD_GROUP, CRDS};
use crate::env::rfc3339_s;
use crate::object::{Object, at, child_mut, finalizers, is_deleting, name, str_at};
use crate::status::Status;

/// Holds a definition until its custom resources are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What is said of a finalizer without a domain.
const UNQUALIFIED: &str = "prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers";

pub(super) struct Definitions;

impl AdmissionPlugin for Definitions {
    fn name(&self) -> &'static str {
        "CustomResourceDefinitions"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if is_definition(attributes) && attributes.operation != Operation::Delete {
            return vec![Needed::all(CRD_GROUP, CRDS, "")];
        }
        if attributes.row.is_custom && attributes.operation == Operation::Create && attributes.subresource.is_empty() {
            // The write rests on it (`Cx::definition`), so that no instance slips in while the definition goes away.
            return vec![Needed::one(CRD_GROUP, CRDS, "", &attributes.row.group_resource())];
        }
        Vec::new()
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !is_definition(attributes) || attributes.operation == Operation::Delete {
            return Ok(());
        }
        complete(&mut attributes.object);
        let group = str_at(&attributes.object, &["spec", "group"]);
        let others = accepted::of_group(lookup.entries(CRD_GROUP, CRDS, ""), group);
        let now = rfc3339_s(attributes.env.now());
        let old = attributes.old.cloned();
        // Who writes the status says which versions are stored no more, and adds conditions.
        let sent = (attributes.subresource == "status").then(|| attributes.object.clone());
        settle(&mut attributes.object, old.as_ref(), sent.as_ref().or(old.as_ref()), &others, &now);
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if is_definition(attributes) && attributes.operation != Operation::Delete {
            let value = Value::Object(attributes.object.clone());
            if let Err(error) = carrack_schema::crd::resource_info(&value) {
                return Err(Status::invalid(
                    CRD_GROUP,
                    "CustomResourceDefinition",
                    &attributes.name,
                    &[("FieldValueInvalid".to_owned(), "spec".to_owned(), format!("Invalid value: {}", error.problem))],
                ));
            }
        }
        let creates_instance =
            attributes.row.is_custom && attributes.operation == Operation::Create && attributes.subresource.is_empty();
        if creates_instance && lookup.get(CRD_GROUP, CRDS, "", &attributes.row.group_resource()).is_none_or(is_deleting)
        {
            let mut status = Status::method_not_allowed();
            status.message = "create not allowed while custom resource definition is terminating".to_owned();
            return Err(status);
        }
        Ok(())
    }

    /// Finalizers of custom resources need no domain, but who adds one without is told that others may take that name
    /// (`k8s.io/apiextensions-apiserver/pkg/registry/customresource/strategy.go`).
    fn warnings(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Vec<String> {
        if !attributes.row.is_custom || !attributes.subresource.is_empty() {
            return Vec::new();
        }
        let before = attributes.old.map(finalizers).unwrap_or_default();
        let added: BTreeSet<String> = finalizers(&attributes.object)
            .into_iter()
            .filter(|name| !before.contains(name) && !is_qualified_finalizer(name))
            .collect();
        added.iter().map(|name| format!("metadata.finalizers: {name:?}: {UNQUALIFIED}")).collect()
    }
}

fn is_definition(attributes: &Attributes<'_>) -> bool {
    (&*attributes.row.group, &*attributes.row.plural) == (CRD_GROUP, CRDS)
}

/// Names that follow from the kind, and the strategy that is the only one here.
fn complete(definition: &mut Object) {
    let spec = child_mut(definition, "spec");
    spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    let names = child_mut(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let missing =
        |names: &Map<String, Value>, key: &str| names.get(key).and_then(Value::as_str).unwrap_or("").is_empty();
    if missing(names, "singular") {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if missing(names, "listKind") {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}

/// The approval of a definition whose group needs one, and what its annotation says of it.
fn approval(definition: &Object) -> Option<(Approval, String)> {
    let said = str_at(definition, &["metadata", "annotations", ANNOTATION]);
    let approval = Approval::of(str_at(definition, &["spec", "group"]), said)?;
    Some((approval, approval.message(said)))
}

/// Sets the status that upstream's naming, establishing and approval controllers would. `told` has the stored versions and the
/// conditions from which it goes on; `others` are the definitions of the group.
pub(crate) fn settle(
    definition: &mut Object,
    old: Option<&Object>,
    told: Option<&Object>,
    others: &[Accepted],
    now: &str,
) {
    let (names, conflict) = accept(definition, old, others);
    let approval = approval(definition);
    let stored: Vec<String> = {
        // Who says nothing of them has moved no objects.
        let mut lists =
            [told, old].into_iter().flatten().filter_map(|of| at(of, &["status", "storedVersions"])?.as_array());
        let named = lists.find(|list| !list.is_empty());
        let mut stored: Vec<String> =
            named.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let versions = at(definition, &["spec", "versions"]).and_then(Value::as_array);
        for version in versions.into_iter().flatten() {
            let name = version["name"].as_str().unwrap_or_default();
            if version["storage"] == true && !stored.iter().any(|s| s == name) {
                stored.push(name.to_owned());
            }
        }
        stored
    };
    let (accepted, why, what) = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found".to_owned()),
        Some((reason, message)) => ("False", *reason, message.clone()),
    };
    let was_established = old.is_some_and(|old| condition(old, "Established") == Some("True"));
    let (established, e_why, e_what) = if was_established || conflict.is_none() {
        ("True", "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        ("False", "NotAccepted", "not all names are accepted")
    };
    let status = child_mut(definition, "status");
    status.insert("acceptedNames".to_owned(), names.into());
    status.insert("storedVersions".to_owned(), json!(stored));
    let mut conditions = told
        .and_then(|told| at(told, &["status", "conditions"]))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    set_condition(&mut conditions, "NamesAccepted", accepted, why, &what, now);
    set_condition(&mut conditions, "Established", established, e_why, e_what, now);
    if let Some((approval, what)) = approval {
        let conforms = if approval == Approval::Approved { "True" } else { "False" };
        set_condition(
            &mut conditions,
            "KubernetesAPIApprovalPolicyConformant",
            conforms,
            approval.reason(),
            &what,
            now,
        );
    }
    status.insert("conditions".to_owned(), conditions.into());
}

pub(crate) fn set_condition(
    conditions: &mut Vec<Value>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let found = conditions.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &found {
        Some(condition) if condition["status"] == status => condition["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    match found {
        Some(slot) => *slot = condition,
        None => conditions.push(condition),
    }
}

fn condition<'a>(definition: &'a Object, kind: &str) -> Option<&'a str> {
    at(definition, &["status", "conditions"])?
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
        .and_then(|condition| condition["status"].as_str())
}

/// The names that a definition has from now on, and of those that it wants and does not get the last one: another of its group
/// has it, or a built-in kind. Each that is free becomes its own, whatever comes of the others
/// (`k8s.io/apiextensions-apiserver/pkg/controller/status`, `calculateNamesAndConditions`).
fn accept(definition: &Object, old: Option<&Object>, others: &[Accepted]) -> (Object, Option<(&'static str, String)>) {
    let (own, group) = (name(definition), str_at(definition, &["spec", "group"]));
    let wanted = at(definition, &["spec", "names"]).and_then(Value::as_object);
    let had = old.and_then(|old| at(old, &["status", "acceptedNames"])).and_then(Value::as_object);
    let is_taken = |field: &str, name: &str| {
        let is_built_in = builtin().iter().filter(|row| row.group == group).any(|row| match field {
            "plural" => row.plural == name,
            "kind" => row.kind == name,
            _ => false,
        });
        is_built_in
            || others.iter().filter(|other| other.definition() != own).any(|other| match field {
                "kind" | "listKind" => other.has_kind(name),
                // Nobody has these to himself.
                "categories" => false,
                _ => other.has_resource(name),
            })
    };
    let mut accepted = had.cloned().unwrap_or_default();
    let mut conflict = None;
    for (field, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("shortNames", "ShortNamesConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
        ("categories", ""),
    ] {
        let value = wanted.and_then(|wanted| wanted.get(field));
        let kept = texts(had.and_then(|had| had.get(field)));
        let taken: Vec<String> = texts(value)
            .into_iter()
            .filter(|name| !kept.contains(name) && is_taken(field, name))
            .map(|name| format!("{name:?} is already in use"))
            .collect();
        match (taken.as_slice(), value) {
            ([], Some(value)) => drop(accepted.insert(field.to_owned(), value.clone())),
            ([], None) => drop(accepted.remove(field)),
            ([one], _) => conflict = Some((reason, one.clone())),
            (many, _) => conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    for field in ["kind", "plural"] {
        accepted.entry(field).or_insert_with(|| "".into());
    }
    (accepted, conflict)
}

/// The names in a field: one, or a list of them.
fn texts(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        one => one.and_then(Value::as_str).into_iter().collect(),
    }
}
