//! CustomResourceDefinitions.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place, unchanged};
use super::{admission, names, structural};
use crate::crd::approval::{ANNOTATION, Approval};
use crate::error::FieldError;
use crate::jsonpath::JsonPath;

pub(super) fn definition(object: &Place<'_>, errors: &mut Errors) {
    head(object, errors);
    versions(&object.field("spec"), errors);
}

/// Checks everything but the versions.
fn head(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let names_place = spec.field("names");
    if let Some(group) = spec.needs_text("group", errors) {
        spec.has_form("group", names::dns1123_subdomain, errors);
        if !group.contains('.') {
            spec.invalid("group", "should be a domain with at least one dot", errors);
        }
    }
    spec.one_of("scope", &["Cluster", "Namespaced"], errors);
    for field in ["plural", "singular"] {
        names_place.needs_text(field, errors);
        names_place.has_form(field, names::dns1035_label, errors);
    }
    for field in ["kind", "listKind"] {
        names_place.needs_text(field, errors);
        names_place.has_form(field, names::kind, errors);
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
    let webhook = conversion.field("webhook");
    match conversion.text("strategy") {
        "None" | "" => {
            let has_versions = webhook.items("conversionReviewVersions").next().is_some();
            let fields =
                [("clientConfig", webhook.some("clientConfig").is_some()), ("conversionReviewVersions", has_versions)];
            for (field, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
                let text = "should not be set when strategy is not set to Webhook";
                errors.push(FieldError::forbidden(webhook.path_of(field), text));
            }
        }
        "Webhook" => {
            if !webhook.exists() {
                errors.push(FieldError::required(webhook.path.clone(), "required when strategy is set to Webhook"));
            } else {
                admission::client_config(&webhook.field("clientConfig"), errors);
                admission::review_versions(&webhook, "conversionReviewVersions", errors);
            }
        }
        _ => conversion.one_of("strategy", &["None", "Webhook"], errors),
    }
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

/// Checks what users of a version are warned with.
fn deprecation(version: &Place<'_>, errors: &mut Errors) {
    const MOST_BYTES: usize = 256;
    let Some(warning) = version.some("deprecationWarning") else { return };
    let mut invalid = |problem: &str| {
        errors.push(FieldError::invalid(warning.path.clone(), warning.value.clone(), problem));
    };
    if !version.flag("deprecated") {
        invalid("can only be set for deprecated versions");
        return;
    }
    let text = warning.value.as_str().unwrap_or_default();
    if text.len() > MOST_BYTES {
        invalid(&format!("must be <= {MOST_BYTES} characters long"));
    }
    if text.is_empty() {
        invalid("must not be an empty string");
    }
    if let Some((index, _)) = text.char_indices().find(|(_, character)| !is_printable(*character)) {
        let problem =
            format!("must only contain printable UTF-8 characters; non-printable character found at index {index}");
        invalid(&problem);
    }
}

/// Whether a character is one that Go's `unicode.IsPrint` lets pass. The standard library tells by what it escapes; within a
/// text it escapes none for being combined with the one before it.
fn is_printable(character: char) -> bool {
    matches!(character, '\\' | '\'' | '"') || format!("-{character}").escape_debug().count() == 2
}

fn version(version: &Place<'_>, errors: &mut Errors) {
    deprecation(version, errors);
    let schema = version.at(&["schema", "openAPIV3Schema"]);
    if schema.exists() {
        structural::check(&schema, version.at(&["subresources", "status"]).exists(), errors);
    } else {
        errors.push(FieldError::required(schema.path.clone(), "schemas are required"));
    }
    for column in version.items("additionalPrinterColumns") {
        self::column(&column, errors);
    }
    selectable(version, &schema, errors);
    let scale = version.at(&["subresources", "scale"]);
    if scale.exists() {
        self::scale(&scale, errors);
    }
}

fn column(column: &Place<'_>, errors: &mut Errors) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    column.needs_text("name", errors);
    let (type_, format) = (column.text("type"), column.text("format"));
    let types = format!("must be one of {}", TYPES.join(","));
    if type_.is_empty() {
        errors.push(FieldError::required(column.path_of("type"), types));
    } else if !TYPES.contains(&type_) {
        column.invalid("type", types, errors);
    }
    if !format.is_empty() && !FORMATS.contains(&format) {
        column.invalid("format", format!("must be one of {}", FORMATS.join(",")), errors);
    }
    // Upstream takes whatever begins so, and shows nothing where it cannot read it.
    if !column.text("jsonPath").starts_with('.') {
        json_path(column, "jsonPath", false, errors);
    }
}

/// Checks where a scale's numbers are, and its selector if there is one.
fn scale(scale: &Place<'_>, errors: &mut Errors) {
    const PATHS: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ];
    for (field, places, problem) in PATHS {
        if field == "labelSelectorPath" && scale.text(field).is_empty() {
            continue;
        }
        let before = errors.len();
        json_path(scale, field, true, errors);
        if errors.len() == before && !places.iter().any(|place| scale.text(field).starts_with(place)) {
            scale.invalid(field, problem, errors);
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

/// What holds of a new definition.
pub(super) fn create(object: &Place<'_>, errors: &mut Errors) {
    approved(object, None, errors);
}

/// What a definition says of its approval, in its own words too; none where it needs none.
fn approval<'a>(definition: &Place<'a>) -> (&'a str, Option<Approval>) {
    let annotation = definition.at(&["metadata", "annotations"]).text(ANNOTATION);
    (annotation, Approval::of(definition.field("spec").text("group"), annotation))
}

/// Who says of an approval what was said before is not held to it.
fn approved(new: &Place<'_>, old: Option<&Place<'_>>, errors: &mut Errors) {
    let (annotation, now) = approval(new);
    if old.is_some_and(|old| approval(old).1 == now) {
        return;
    }
    let path = format!("metadata.annotations[{ANNOTATION}]");
    match now {
        Some(missing @ Approval::Missing) => errors.push(FieldError::required(path, missing.message(annotation))),
        Some(invalid @ Approval::Invalid) => {
            errors.push(FieldError::invalid(path, annotation, invalid.message(annotation)));
        }
        Some(Approval::Approved | Approval::Bypassed) | None => {}
    }
}

/// What may not change once the definition is in use.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    approved(new, Some(old), errors);
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    if !errors.is_empty() {
        let known = faults_before(&new_spec, old);
        errors.retain(|error| !known.contains(&error.to_string()));
    }
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

/// What was wrong with the definition as it was, each version's told at its place now. An older release has let it in, and it
/// holds up no change of something else.
fn faults_before(new_spec: &Place<'_>, old: &Place<'_>) -> BTreeSet<String> {
    let mut faults = Errors::new();
    head(old, &mut faults);
    let old_spec = old.field("spec");
    for now in new_spec.items("versions") {
        let before = old_spec.items("versions").find(|before| before.text("name") == now.text("name"));
        if let Some(before) = before {
            version(&Place { value: before.value, path: now.path }, &mut faults);
        }
    }
    faults.iter().map(ToString::to_string).collect()
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
