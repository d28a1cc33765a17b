//! What writes may do to an object's metadata.

use carrack_schema::error::FieldError;
use serde_json::{Map, Value};

use crate::context::Cx;
use crate::env::{name_suffix, new_uid, rfc3339_s};
use crate::object::{Object, meta, meta_str, metadata_mut, put_meta, set_meta};
use crate::registry::strategy;
use crate::status::Status;

/// The longest generated name; longer prefixes are cut.
const MAX_NAME_BYTES: usize = 63;
const SUFFIX_BYTES: usize = 5;

/// Fields of metadata that only the server sets.
const SYSTEM_FIELDS: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// Puts the object into the request's namespace; it may not say another one.
pub(crate) fn settle_namespace(cx: &Cx<'_>, object: &mut Object) -> Result<(), Status> {
    let given = meta_str(object, "namespace").to_owned();
    match cx.namespace() {
        Some(namespace) => {
            if !given.is_empty() && given != namespace {
                return Err(Status::bad_request(format!(
                    "the namespace of the provided object does not match the namespace sent on the request ({given:?} is not {namespace:?})"
                )));
            }
            set_meta(object, "namespace", namespace);
        }
        None if cx.row.namespaced => {
            return Err(Status::bad_request("an empty namespace may not be set during creation"));
        }
        None => {
            metadata_mut(object).remove("namespace");
        }
    }
    Ok(())
}

/// Prepares the metadata of a new object. Names that are to be generated stay empty here.
pub(crate) fn prepare_create(cx: &Cx<'_>, object: &mut Object) -> Result<(), Status> {
    if !matches!(meta_str(object, "resourceVersion"), "" | "0") {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    settle_namespace(cx, object)?;
    let env = &*cx.server.env;
    let uid = new_uid(env);
    let created = rfc3339_s(env.now());
    let generation = cx.row.has_generation;
    let metadata = metadata_mut(object);
    drop_nulls(metadata);
    for field in SYSTEM_FIELDS.iter().chain(&["resourceVersion", "managedFields", "selfLink"]) {
        metadata.remove(*field);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), created.into());
    if generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    Ok(())
}

/// Fields that are null or empty are as good as absent.
fn drop_nulls(metadata: &mut Map<String, Value>) {
    metadata.retain(|_, value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    });
}

/// A name for an object that has `generateName`; the name it has otherwise.
pub(crate) fn generated_name(cx: &Cx<'_>, object: &Object) -> String {
    let (name, prefix) = (meta_str(object, "name"), meta_str(object, "generateName"));
    if !name.is_empty() || prefix.is_empty() {
        return name.to_owned();
    }
    let mut end = prefix.len().min(MAX_NAME_BYTES - SUFFIX_BYTES);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &prefix[..end], name_suffix(&*cx.server.env))
}

/// Whatever the kind allows, a name is one segment of a path: here and in the store's keys.
pub(crate) fn check_name(cx: &Cx<'_>, name: &str) -> Result<(), Status> {
    let fault = if name.is_empty() {
        FieldError::required("metadata.name", "name or generateName is required")
    } else if matches!(name, "." | "..") {
        FieldError::invalid("metadata.name", name, format!("may not be '{name}'"))
    } else if let Some(bad) = ["/", "%"].iter().find(|bad| name.contains(**bad)) {
        FieldError::invalid("metadata.name", name, format!("may not contain '{bad}'"))
    } else {
        return Ok(());
    };
    Err(invalid(cx, name, &[fault]))
}

/// Refuses a replacement that does not say what it replaces, where it has to: it would undo what others did meanwhile.
pub(crate) fn check_names_state(cx: &Cx<'_>, new: &Object) -> Result<(), Status> {
    if !strategy::is_replaced_at_revision(cx) || !matches!(meta_str(new, "resourceVersion"), "" | "0") {
        return Ok(());
    }
    let text = "Invalid value: 0: must be specified for an update";
    let fault = ("FieldValueInvalid".to_owned(), "metadata.resourceVersion".to_owned(), text.to_owned());
    // The resource stands for the kind, as upstream has it.
    Err(Status::invalid(&cx.row.group, &cx.row.plural, cx.name(), &[fault]))
}

/// Refuses what is not the object that the path names, or does not say which it is.
pub(crate) fn check_path_name(cx: &Cx<'_>, object: &Object) -> Result<(), Status> {
    let (given, name) = (meta_str(object, "name"), cx.name());
    if given == name {
        return Ok(());
    }
    Err(Status::bad_request(if given.is_empty() {
        format!("the name of the object ({name} based on URL) was undeterminable: name must be provided")
    } else {
        format!("the name of the object ({given}) does not match the name on the URL ({name})")
    }))
}

/// An object that is applied is the one that the path names, and need not say so.
pub(crate) fn settle_name(cx: &Cx<'_>, object: &mut Object) -> Result<(), Status> {
    if meta_str(object, "name").is_empty() {
        set_meta(object, "name", cx.name());
    }
    check_path_name(cx, object)
}

/// Checks what the client claims about the object against what it is, and restores what it cannot
/// change. `revision` is that of the stored object.
pub(crate) fn prepare_update(cx: &Cx<'_>, new: &mut Object, old: &Object, revision: &str) -> Result<(), Status> {
    let name = cx.name();
    settle_namespace(cx, new)?;
    check_path_name(cx, new)?;
    let uid = meta_str(new, "uid");
    let old_uid = meta_str(old, "uid");
    if !uid.is_empty() && uid != old_uid {
        return Err(cx.conflict(
            name,
            &format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"),
        ));
    }
    let wanted = meta_str(new, "resourceVersion");
    if !matches!(wanted, "" | "0") && wanted != revision {
        return Err(cx.modified(name));
    }
    let metadata = metadata_mut(new);
    drop_nulls(metadata);
    metadata.remove("selfLink");
    for field in SYSTEM_FIELDS.iter().chain(&["generateName"]) {
        put_meta(new, field, meta(old, field).cloned());
    }
    set_meta(new, "resourceVersion", revision);
    Ok(())
}

/// Counts up `metadata.generation`.
pub(crate) fn bump_generation(object: &mut Object) {
    let generation = meta(object, "generation").and_then(Value::as_i64).unwrap_or(0);
    set_meta(object, "generation", generation + 1);
}

/// A 422 with these faults.
pub(crate) fn invalid(cx: &Cx<'_>, name: &str, errors: &[FieldError]) -> Status {
    Status::faulty(&cx.row.group, &cx.row.kind, name, errors)
}
