//! Between the version that a client speaks and the one that is stored.
//!
//! Converting is mostly renaming `apiVersion` (CustomResourceDefinitions' strategy `None`). The
//! exceptions are kinds whose versions differ (the schema crate knows them), and `events.k8s.io`, a
//! view of core events under other field names, as upstream has it.

use std::sync::Arc;

use carrack_schema::convert;
use carrack_schema::table::{ResourceInfo, Version, find};
use carrack_store::Entry;
use serde_json::{Map, Value};

use crate::context::Cx;
use crate::kinds;
use crate::object::Object;
use crate::server::Inner;
use crate::status::Status;
use crate::stored;

/// (field of events.k8s.io/v1, field of core/v1)
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Whether the row shows objects that another row stores.
pub(crate) fn is_view(row: &ResourceInfo) -> bool {
    row.storage.0 != row.group || row.storage.1 != row.plural
}

/// Whether objects in this version are other than what is stored, by more than their `apiVersion`.
pub(crate) fn differs(row: &ResourceInfo, version: &Version) -> bool {
    let stored = row.storage_version().is_none_or(|stored| stored.name == version.name);
    is_view(row) || (!stored && !row.is_custom && convert::differs(&row.group, &row.kind))
}

/// `apiVersion` and `kind` under which a row's objects are stored.
pub(crate) fn storage_type(row: &ResourceInfo) -> (String, String) {
    let viewed = if is_view(row) { find(&row.storage.0, &row.storage.1) } else { None };
    let stored = viewed.map_or(row, |row| row);
    let version = stored.storage_version().map_or("v1", |version| &version.name);
    (stored.api_version(version), stored.kind.to_string())
}

/// An object out of the store, in a version of the row.
pub(crate) fn from_storage(row: &ResourceInfo, version: &Version, mut object: Object) -> Object {
    if is_view(row) {
        object = renamed(object, |name| EVENT_FIELDS.iter().find(|(_, core)| *core == name).map(|(view, _)| *view));
    }
    if differs(row, version) && !is_view(row) {
        object = converted(row, &version.name, object);
    }
    set_type(&mut object, &row.api_version(&version.name), &row.kind);
    object
}

pub(crate) fn converted(row: &ResourceInfo, version: &str, object: Object) -> Object {
    let mut value = Value::Object(object);
    convert::convert(&row.group, &row.kind, version, &mut value);
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

/// An object in any version of the row, as it is stored.
pub(crate) fn to_storage(row: &ResourceInfo, mut object: Object) -> Object {
    if is_view(row) {
        object = renamed(object, |name| EVENT_FIELDS.iter().find(|(view, _)| *view == name).map(|(_, core)| *core));
    }
    let (api_version, kind) = storage_type(row);
    if let Some(stored) = row.storage_version().filter(|_| !row.is_custom && convert::differs(&row.group, &row.kind)) {
        object = converted(row, &stored.name, object);
    }
    set_type(&mut object, &api_version, &kind);
    object
}

/// An object in any version of a row, in another one: of the same row, or of one that shows the same objects.
pub(crate) async fn between(
    server: &Inner,
    from: &ResourceInfo,
    (to, version): (&ResourceInfo, usize),
    object: Object,
) -> Result<Object, Status> {
    if to.conversion.is_some() {
        return server.converter(&Arc::new(to.clone())).object(object, version).await;
    }
    Ok(from_storage(to, &to.versions[version], to_storage(from, object)))
}

/// Completes and prunes a custom resource that is older than its definition, as upstream does with what it reads:
/// programs that were brought up to date together with a definition rely on its new defaults.
pub(crate) fn catch_up(row: &ResourceInfo, entry: &Entry, object: &mut Object) {
    if !row.is_custom || entry.mod_revision.0 >= row.defined_at {
        return;
    }
    let is_own =
        |version: &&Version| object.get("apiVersion").is_some_and(|given| *given == *row.api_version(&version.name));
    let Some(version) = row.versions.iter().find(is_own) else { return };
    // What the definition before let in is shown all the same.
    if let Err(error) = kinds::conform(row, version, object) {
        tracing::debug!(key = &*entry.key, %error, "a stored object does not fit its definition");
    }
    kinds::default(row, version, object);
}

/// A stored object in the version of a request.
pub(crate) async fn load(cx: &Cx<'_>, entry: &Entry) -> Result<Object, Status> {
    let mut object = stored::parse(entry);
    catch_up(&cx.row, entry, &mut object);
    if cx.row.conversion.is_some() {
        return cx.server.converter(&cx.row).object(object, cx.version_index).await;
    }
    Ok(from_storage(&cx.row, cx.version(), object))
}

/// Like [`load`], with its managers apart, as they are stored.
pub(crate) async fn load_apart(cx: &Cx<'_>, entry: &Entry) -> Result<(Object, Option<Box<str>>), Status> {
    let (mut object, managers) = stored::parse_apart(entry);
    catch_up(&cx.row, entry, &mut object);
    if cx.row.conversion.is_some() {
        return Ok((cx.server.converter(&cx.row).object(object, cx.version_index).await?, managers));
    }
    Ok((from_storage(&cx.row, cx.version(), object), managers))
}

/// An object in the version of a request, as it is stored.
pub(crate) async fn save(cx: &Cx<'_>, object: Object) -> Result<Object, Status> {
    if cx.row.conversion.is_some() {
        let version = cx.row.versions.iter().position(|version| version.storage).unwrap_or(cx.version_index);
        return cx.server.converter(&cx.row).object(object, version).await;
    }
    Ok(to_storage(&cx.row, object))
}

/// Says what the object is.
pub(crate) fn set_type(object: &mut Object, api_version: &str, kind: &str) {
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
}

fn renamed(object: Object, name_of: impl Fn(&str) -> Option<&'static str>) -> Object {
    object
        .into_iter()
        .map(|(key, value)| match name_of(&key) {
            Some(name) => (name.to_owned(), value),
            None => (key, value),
        })
        .collect::<Map<String, Value>>()
}
