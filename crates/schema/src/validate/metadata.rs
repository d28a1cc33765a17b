//! Metadata that every object has.

use std::collections::BTreeSet;

use carrack_types::well_known::finalizer::{FOREGROUND, ORPHAN};
use serde_json::{Value, json};

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;
use crate::table::ResourceInfo;

/// Most bytes of all annotations.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// The name that is generated is the given one, cut to this, and five letters.
const MAX_GENERATED_BASE: usize = 58;

/// What a generated name starts with: `generateName`, cut so that the name stays a DNS label.
fn generated_name_base(generate_name: &str) -> &str {
    let end = (0..=MAX_GENERATED_BASE.min(generate_name.len()))
        .rev()
        .find(|at| generate_name.is_char_boundary(*at))
        .unwrap_or(0);
    generate_name.get(..end).unwrap_or_default()
}

/// The form of names of a kind.
fn name_form(info: &ResourceInfo) -> fn(&str) -> names::Problem {
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Namespace") => names::dns1123_label,
        ("", "Service") => names::dns1035_label,
        ("certificates.k8s.io", "PodCertificateRequest") => names::dns1123_subdomain,
        ("rbac.authorization.k8s.io", _) | ("certificates.k8s.io", _) => names::path_segment,
        // A name is an address here, or a group and version with a dot.
        ("networking.k8s.io", "IPAddress") | ("internal.apiserver.k8s.io", _) => names::path_segment,
        _ => names::dns1123_subdomain,
    }
}

/// Checks metadata of a new object.
pub(super) fn create(info: &ResourceInfo, object: &Value) -> Errors {
    let mut errors = Errors::new();
    let metadata = Place::root(object).field("metadata");
    let form = name_form(info);
    let (name, base) = (metadata.text("name"), metadata.text("generateName"));
    if !base.is_empty() {
        // Only the start of a name is known; a letter stands for the rest.
        let example = format!("{}a", generated_name_base(base));
        if let Some(problem) = form(&example) {
            errors.push(FieldError::invalid("metadata.generateName", base, problem));
        }
    }
    match name {
        "" if info.is_virtual => {}
        "" => errors.push(FieldError::required("metadata.name", "name or generateName is required")),
        _ => errors.extend(form(name).map(|problem| FieldError::invalid("metadata.name", name, problem))),
    }
    namespace(info, &metadata, &mut errors);
    common(&metadata, &mut errors);
    if !needs_no_domain(info) {
        qualified_finalizers(&metadata, &[], &mut errors);
    }
    let finalizers = metadata.texts("finalizers");
    if [ORPHAN, FOREGROUND].iter().all(|standard| finalizers.contains(standard)) {
        let text = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid("metadata.finalizers", json!(finalizers), text));
    }
    errors
}

fn namespace(info: &ResourceInfo, metadata: &Place<'_>, errors: &mut Errors) {
    let namespace = metadata.text("namespace");
    match (info.namespaced, namespace) {
        (true, "") => errors.push(FieldError::required("metadata.namespace", "")),
        (true, _) => metadata.has_form("namespace", names::dns1123_label, errors),
        (false, "") => {}
        (false, _) => errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type")),
    }
}

/// What holds for new and for changed objects.
fn common(metadata: &Place<'_>, errors: &mut Errors) {
    labels(metadata, "labels", errors);
    annotation_map(&metadata.field("annotations"), names::qualified_name, errors);
    owner_references(metadata, errors);
    for finalizer in metadata.items("finalizers") {
        let text = finalizer.value.as_str().unwrap_or_default();
        if let Some(problem) = names::qualified_name(text) {
            errors.push(FieldError::invalid(metadata.path_of("finalizers"), text, problem));
        }
    }
    metadata.not_negative("generation", errors);
}

/// Checks the metadata of a resource that is a part of another one: where it is to be, and how its kind is called there, is not
/// known.
pub(super) fn embedded(metadata: &Place<'_>, errors: &mut Errors) {
    metadata.has_form("generateName", |base| names::path_segment(&format!("{base}a")), errors);
    metadata.has_form("name", names::path_segment, errors);
    metadata.has_form("namespace", names::dns1123_label, errors);
    common(metadata, errors);
}

/// Checks the labels of an object, or its annotations, that somebody else has written.
#[must_use]
pub fn written(field: &str, map: &Value) -> Vec<FieldError> {
    let place = Place { value: map, path: format!("metadata.{field}") };
    let mut errors = Errors::new();
    if field == "labels" {
        label_map(&place, &mut errors);
    } else {
        annotation_map(&place, names::qualified_name, &mut errors);
    }
    errors
}

/// Whether a finalizer says whose it is, or is one that everybody knows.
#[must_use]
pub fn is_qualified_finalizer(name: &str) -> bool {
    name.contains('/') || ["kubernetes", ORPHAN, FOREGROUND].contains(&name)
}

/// Groups and kinds whose finalizers need no domain: their validation upstream is that of the API machinery
/// (`k8s.io/apimachinery/pkg/api/validation`) and not that of core kinds (`pkg/apis/core/validation`).
const WITHOUT_DOMAIN: [(&str, &str); 8] = [
    ("", "Event"),
    ("admissionregistration.k8s.io", ""),
    ("apiextensions.k8s.io", ""),
    ("apiregistration.k8s.io", ""),
    ("coordination.k8s.io", ""),
    ("events.k8s.io", ""),
    ("node.k8s.io", ""),
    ("policy", ""),
];

fn needs_no_domain(info: &ResourceInfo) -> bool {
    let is_free = |(group, kind): &(&str, &str)| *group == info.group && (kind.is_empty() || *kind == info.kind);
    info.is_custom || WITHOUT_DOMAIN.iter().any(is_free)
}

/// Finalizers of built-in kinds have a domain (upstream's `validateKubeFinalizerName`). Upstream asks that of all with
/// each write; here those that an older release let in may stay, so that the object can still be written.
pub(super) fn qualified_finalizers(holder: &Place<'_>, before: &[&str], errors: &mut Errors) {
    let before: BTreeSet<&str> = before.iter().copied().collect();
    for finalizer in holder.items("finalizers") {
        let name = finalizer.value.as_str().unwrap_or_default();
        if !is_qualified_finalizer(name) && !before.contains(name) {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(finalizer.path, name, text));
        }
    }
}

/// Checks a map of labels.
pub(super) fn labels(place: &Place<'_>, name: &str, errors: &mut Errors) {
    label_map(&place.field(name), errors);
}

/// Checks labels at their own place.
pub(super) fn label_map(place: &Place<'_>, errors: &mut Errors) {
    let path = &place.path;
    for (key, value) in place.map().into_iter().flatten() {
        if let Some(problem) = names::qualified_name(key) {
            errors.push(FieldError::invalid(path.clone(), key.as_str(), problem));
        }
        let value = value.as_str().unwrap_or_default();
        if let Some(problem) = names::label_value(value) {
            errors.push(FieldError::invalid(path.clone(), value, problem));
        }
    }
}

/// Checks annotations at their own place, whose keys are of this form.
pub(super) fn annotation_map(place: &Place<'_>, form: fn(&str) -> names::Problem, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in place.map().into_iter().flatten() {
        // Case does not matter in keys of annotations.
        if let Some(problem) = form(&key.to_lowercase()) {
            errors.push(FieldError::invalid(place.path.clone(), key.as_str(), problem));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(place.path.clone(), MAX_ANNOTATIONS as u64));
    }
}

/// How many controllers too many are told of: each is told with the whole list.
const MAX_CONTROLLERS_TOLD: usize = 8;

fn owner_references(metadata: &Place<'_>, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    let mut told = 0;
    for owner in metadata.items("ownerReferences") {
        let api_version = owner.text("apiVersion");
        if api_version.is_empty() || api_version.ends_with('/') {
            errors.push(FieldError::invalid(owner.path_of("apiVersion"), api_version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if owner.text(field).is_empty() {
                errors.push(FieldError::invalid(owner.path_of(field), "", "must not be empty"));
            }
        }
        if (api_version, owner.text("kind")) == ("v1", "Event") {
            errors.push(FieldError::invalid(
                owner.path.clone(),
                owner.value.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.flag("controller") {
            let name = format!("{}/{}", owner.text("kind"), owner.text("name"));
            match &controller {
                None => controller = Some(name),
                Some(first) if told < MAX_CONTROLLERS_TOLD => {
                    told += 1;
                    let text = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    let list = metadata.field("ownerReferences");
                    errors.push(FieldError::invalid(list.path, list.value.clone(), text));
                }
                Some(_) => {}
            }
        }
    }
}

/// Checks metadata of a changed object.
pub(super) fn update(info: &ResourceInfo, object: &Value, old: &Value) -> Errors {
    let mut errors = Errors::new();
    let (new, old) = (Place::root(object).field("metadata"), Place::root(old).field("metadata"));
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, old) = (new.field(field), old.field(field));
        // A client may leave out what only the server knows.
        let optional = !matches!(field, "name" | "namespace");
        if new.value != old.value && (new.exists() || !optional) {
            errors.push(FieldError::invalid(new.path, new.value.clone(), "field is immutable"));
        }
    }
    if old.some("deletionTimestamp").is_some() {
        let before: BTreeSet<&str> = old.texts("finalizers").into_iter().collect();
        let added: Vec<_> =
            new.texts("finalizers").into_iter().filter(|f| !before.contains(f)).map(|f| format!("\"{f}\"")).collect();
        if !added.is_empty() {
            let text = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", text));
        }
    }
    if let (Some(new), Some(old)) = (new.number("generation"), old.number("generation"))
        && new < old
    {
        errors.push(FieldError::invalid("metadata.generation", json!(new), "must not be decremented"));
    }
    namespace(info, &new, &mut errors);
    common(&new, &mut errors);
    if !needs_no_domain(info) {
        qualified_finalizers(&new, &old.texts("finalizers"), &mut errors);
    }
    errors
}
