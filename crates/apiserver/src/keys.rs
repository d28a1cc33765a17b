//! Where objects are in the store: `/registry/<group or core>/<resource>/<namespace>/<name>`.

use carrack_schema::table::ResourceInfo;

/// Prefix of all objects of a resource, ending in a slash.
pub(crate) fn prefix(row: &ResourceInfo, namespace: Option<&str>) -> String {
    let (group, plural) = (&row.storage.0, &row.storage.1);
    of(group, plural, namespace.filter(|_| row.namespaced))
}

/// Key of one object.
pub(crate) fn key(row: &ResourceInfo, namespace: Option<&str>, name: &str) -> String {
    prefix(row, namespace) + name
}

/// Prefix by names alone, for those that have no row at hand.
pub(crate) fn of(group: &str, plural: &str, namespace: Option<&str>) -> String {
    let group = if group.is_empty() { "core" } else { group };
    match namespace {
        None => format!("/registry/{group}/{plural}/"),
        Some(namespace) => format!("/registry/{group}/{plural}/{namespace}/"),
    }
}
