//! CustomResourceDefinitions.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place, unchanged};
use super::{admission, names, structural};
use crate::error::FieldError;
use crate::jsonpath::JsonPath;
use crate::schema::Schema;

pub(super) fn definition(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let names_place = spec.field("names");
    if let Some(group) = spec.needs_text("group", errors) {
        spec.has_form("group", names::dns1123_subdomain, errors);
        if !group.contains('.') {
            spec.invalid("group", "should be a domain with at least one dot", errors);
        }
    }
    spec.one_of("scope", &["Cluster", "Namespaced"], errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        if let Some(name) = names_place.needs_text(field, errors)
            && let Some(problem) = names::dns1035_label(&name.to_lowercase())
        {
            errors.push(FieldError::invalid(names_place.path_of(field), name, problem));
        }
    }
    for field in ["shortNames", "categories"] {
        for name in names_place.items(field) {
            let text = name.value.as_str().unwrap_or_default();
            errors.extend(
                names::dns1035_label(text).map(|problem| FieldError::invalid(name.path.clone(), text, problem)),
            );
        }
    }
    if names_place.text("kind") == names_place.text("listKind") && !names_place.text("kind").is_empty() {
        errors.push(FieldError::invalid(
            names_place.path_of("listKind"),
            names_place.text("listKind"),
            "kind and listKind may not be the same",
        ));
    }
    let metadata = object.field("metadata");
    let expected = format!("{}.{}", names_place.text("plural"), spec.text("group"));
    if metadata.text("name") != expected {
        errors.push(FieldError::invalid(
            "metadata.name",
            metadata.text("name"),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if spec.flag("preserveUnknownFields") {
        let text =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, text));
    }
    let conversion = spec.field("conversion");
    match conversion.text("strategy") {
        "None" | "" => {}
        "Webhook" => {
            let webhook = conversion.field("webhook");
            if !webhook.exists() {
                errors.push(FieldError::required(webhook.path.clone(), "required when strategy is set to Webhook"));
            } else {
                admission::client_config(&webhook.field("clientConfig"), errors);
                if !webhook.texts("conversionReviewVersions").contains(&"v1") {
                    let text = "must include at least one of v1";
                    errors.push(FieldError::invalid(
                        webhook.path_of("conversionReviewVersions"),
                        webhook.texts("conversionReviewVersions"),
                        text,
                    ));
                }
            }
        }
        _ => conversion.one_of("strategy", &["None", "Webhook"], errors),
    }
    versions(&spec, errors);
}

fn versions(spec: &Place<'_>, errors: &mut Errors) {
    let path = spec.path_of("versions");
    let mut seen: Vec<&str> = Vec::new();
    let mut stored = 0;
    for version in spec.items("versions") {
        if let Some(name) = version.needs_text("name", errors) {
            version.has_form("name", names::dns1035_label, errors);
            if seen.contains(&name) {
                errors.push(FieldError::invalid(
                    path.clone(),
                    seen.into_iter().chain([name]).collect::<Vec<_>>(),
                    "must contain unique version names",
                ));
                return;
            }
            seen.push(name);
        }
        stored += usize::from(version.flag("storage"));
        self::version(&version, errors);
    }
    if seen.is_empty() {
        errors.push(FieldError::invalid(path, Value::Null, "must have exactly one version marked as storage version"));
    } else if stored != 1 {
        let names: Vec<Value> = seen.into_iter().map(Value::from).collect();
        errors.push(FieldError::invalid(path, names, "must have exactly one version marked as storage version"));
    }
}

fn version(version: &Place<'_>, errors: &mut Errors) {
    let schema = version.at(&["schema", "openAPIV3Schema"]);
    if schema.exists() {
        match Schema::parse(schema.value) {
            Ok(_) => structural::check(&schema, errors),
            Err(error) => {
                let before = errors.len();
                structural::types(&schema, errors);
                if errors.len() == before {
                    errors.push(FieldError::invalid(
                        format!("{}.{}", schema.path, error.path),
                        Value::Null,
                        error.problem,
                    ));
                }
            }
        }
    } else {
        errors.push(FieldError::required(schema.path.clone(), "schemas are required"));
    }
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    for column in version.items("additionalPrinterColumns") {
        column.needs_text("name", errors);
        column.one_of("type", &TYPES, errors);
        // Upstream takes whatever begins so, and shows nothing where it cannot read it.
        if !column.text("jsonPath").starts_with('.') {
            json_path(&column, "jsonPath", false, errors);
        }
    }
    selectable(version, &schema, errors);
    let scale = version.at(&["subresources", "scale"]);
    if scale.exists() {
        for (field, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            json_path(&scale, field, true, errors);
            if !scale.text(field).starts_with(prefix) && !scale.text(field).is_empty() {
                let text = format!("should be a json path under {}", prefix.trim_end_matches('.'));
                errors.push(FieldError::invalid(scale.path_of(field), scale.text(field), text));
            }
        }
    }
}

/// Fields that lists can be selected by: few, scalar, each once, and none of the metadata.
fn selectable(version: &Place<'_>, schema: &Place<'_>, errors: &mut Errors) {
    const MOST: usize = 8;
    let mut seen = BTreeSet::new();
    for field in version.items("selectableFields") {
        let before = errors.len();
        json_path(&field, "jsonPath", true, errors);
        let text = field.text("jsonPath");
        let path = JsonPath::parse(text).ok();
        let Some(steps) = path.as_ref().and_then(JsonPath::plain_fields).filter(|_| errors.len() == before) else {
            continue;
        };
        let found = steps.iter().fold(schema.clone(), |place, step| place.field("properties").field(step));
        if steps.first() == Some(&"metadata") {
            field.invalid("jsonPath", "must not point to fields in metadata", errors);
        } else if schema.exists() && !found.exists() {
            field.invalid("jsonPath", "is an invalid path: does not refer to a valid field", errors);
        } else if found.exists() && !matches!(found.text("type"), "boolean" | "integer" | "string") {
            let text = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            field.invalid("jsonPath", text, errors);
        }
        if !seen.insert(text) {
            errors.push(FieldError::duplicate(field.path_of("jsonPath"), text));
        }
    }
    if seen.len() > MOST {
        errors.push(FieldError::too_many(version.path_of("selectableFields"), seen.len(), MOST as u64));
    }
}

fn json_path(place: &Place<'_>, field: &str, plain: bool, errors: &mut Errors) {
    let Some(text) = place.needs_text(field, errors) else { return };
    match JsonPath::parse(text) {
        Err(error) => errors.push(FieldError::invalid(place.path_of(field), text, error.to_string())),
        Ok(path) if plain && path.plain_fields().is_none() => {
            errors.push(FieldError::invalid(
                place.path_of(field),
                text,
                "must be a simple json path without array notation",
            ));
        }
        Ok(_) => {}
    }
}

/// What may not change once the definition is in use.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    unchanged(&new_spec.field("group"), &old_spec.field("group"), errors);
    let established =
        old.field("status").items("conditions").any(|c| (c.text("type"), c.text("status")) == ("Established", "True"));
    if established {
        unchanged(&new_spec.field("scope"), &old_spec.field("scope"), errors);
        unchanged(&new_spec.at(&["names", "kind"]), &old_spec.at(&["names", "kind"]), errors);
    }
    unchanged(&new_spec.at(&["names", "plural"]), &old_spec.at(&["names", "plural"]), errors);
    stored_versions(new, errors);
}

/// A version in which objects are stored cannot go, and none is told that is not there.
pub(super) fn stored_versions(definition: &Place<'_>, errors: &mut Errors) {
    let spec = definition.field("spec");
    let names: Vec<&str> = spec.items("versions").map(|version| version.text("name")).collect();
    for (index, version) in definition.field("status").texts("storedVersions").into_iter().enumerate() {
        if !names.contains(&version) {
            let text = "missing from spec.versions; ".to_owned()
                + version
                + " was previously a storage version, and must remain in spec.versions until a storage migration ensures no data \
                   remains persisted in "
                + version
                + " and removes "
                + version
                + " from status.storedVersions";
            errors.push(FieldError::invalid(format!("status.storedVersions[{index}]"), version, text));
        }
    }
}
