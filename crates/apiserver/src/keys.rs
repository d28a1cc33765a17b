//! Where objects are in the store: as upstream has them, so that its tools for etcd find them.
//!
//! ```text
//!   /registry/<resource>[/<namespace>]/<name>             built-in kinds, and some under other names
//!   /registry/<group>/<resource>[/<namespace>]/<name>     kinds of definitions, definitions, API services
//! ```
//!
//! Upstream: `SpecialDefaultResourcePrefixes` in `k8s.io/kubernetes/pkg/kubeapiserver`, and what the
//! servers of definitions and of API services set for themselves.

use std::collections::BTreeMap;

use carrack_schema::table::{self, ResourceInfo};

/// Upstream's own groups that have a dot, as far as their kinds lie directly under `/registry/`.
const GROUPS: [&str; 16] = [
    "admissionregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Prefix of all objects of a resource, ending in a slash.
pub(crate) fn prefix(row: &ResourceInfo, namespace: Option<&str>) -> String {
    let (group, plural) = (&row.storage.0, &row.storage.1);
    let namespace = namespace.filter(|_| row.namespaced);
    if row.is_custom { custom(group, plural, namespace) } else { of(group, plural, namespace) }
}

/// Key of one object.
pub(crate) fn key(row: &ResourceInfo, namespace: Option<&str>, name: &str) -> String {
    prefix(row, namespace) + name
}

/// Prefix by names alone, for those that have no row at hand. A kind of a definition in one of upstream's
/// own groups is not found so.
pub fn of(group: &str, plural: &str, namespace: Option<&str>) -> String {
    let place = match (group, plural) {
        ("", "endpoints") => "services/endpoints",
        ("", "nodes") => "minions",
        ("", "replicationcontrollers") => "controllers",
        ("", "services") => "services/specs",
        ("networking.k8s.io", "ingresses") => "ingress",
        _ if !group.contains('.') || GROUPS.contains(&group) => plural,
        _ => return custom(group, plural, namespace),
    };
    under(&["/registry/", place, "/"], namespace)
}

fn custom(group: &str, plural: &str, namespace: Option<&str>) -> String {
    // No built-in kind has a dot in its place, so that a group, whatever it is called, lies apart from them.
    let dot = if group.contains('.') { "" } else { "." };
    under(&["/registry/", group, dot, "/", plural, "/"], namespace)
}

fn under(parts: &[&str], namespace: Option<&str>) -> String {
    let namespace = namespace.map(|namespace| [namespace, "/"]).unwrap_or_default();
    let mut key = String::with_capacity(96);
    key.extend(parts.iter().copied().chain(namespace));
    key
}

/// Whose objects are where: the way back from a key to its resource.
pub(crate) struct Places(BTreeMap<String, (String, String)>);

impl Places {
    /// Knows the places of built-in kinds; those of definitions name their resource themselves.
    pub(crate) fn new() -> Places {
        let resource = |row: &ResourceInfo| (row.storage.0.to_string(), row.storage.1.to_string());
        Places(table::builtin().iter().map(|row| (prefix(row, None), resource(row))).collect())
    }

    /// Group and plural of the resource that a key or a prefix is of; nothing where none is there.
    pub(crate) fn resource<'k>(&'k self, key: &'k str) -> (&'k str, &'k str) {
        // The first slash begins the key, the second ends `/registry`.
        let mut places = key.match_indices('/').skip(2).take(2).map(move |(at, _)| &key[..=at]);
        if let Some((group, plural)) = places.clone().find_map(|place| self.0.get(place)) {
            return (group.as_str(), plural.as_str());
        }
        let of_definition = places.nth(1).and_then(|place| place.strip_prefix("/registry/")?.split_once('/'));
        match of_definition {
            // What has no dot is no place of a definition's kind.
            Some((group, plural)) if group.contains('.') => {
                (group.strip_suffix('.').unwrap_or(group), plural.trim_end_matches('/'))
            }
            _ => ("", ""),
        }
    }
}

/// Where earlier versions of this program had the objects of a resource.
pub(crate) fn former_prefix(row: &ResourceInfo) -> String {
    let (group, plural) = (&row.storage.0, &row.storage.1);
    let group = if group.is_empty() { "core" } else { group };
    format!("/registry/{group}/{plural}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_keys() {
        let places = Places::new();
        for (key, want) in [
            ("/registry/pods/default/a", ("", "pods")),
            ("/registry/pods/", ("", "pods")),
            ("/registry/minions/", ("", "nodes")),
            ("/registry/services/specs/default/a", ("", "services")),
            ("/registry/deployments/default/a", ("apps", "deployments")),
            ("/registry/roles/default/a", ("rbac.authorization.k8s.io", "roles")),
            ("/registry/kubevirt.io/virtualmachines/default/a", ("kubevirt.io", "virtualmachines")),
            ("/registry/example.com/widgets/default/a", ("example.com", "widgets")),
            ("/registry/example.com/widgets/", ("example.com", "widgets")),
            ("/registry/pods./default/a", ("pods", "default")),
            ("/registry/nonsense/a", ("", "")),
            ("/registry/nonsense/a/b", ("", "")),
            ("/registry/", ("", "")),
            ("", ("", "")),
        ] {
            assert_eq!(places.resource(key), want, "{key}");
        }
    }

    #[test]
    fn keys_are_upstreams() {
        let check = |group, plural, namespace, want: &str| assert_eq!(of(group, plural, namespace), want);
        check("", "pods", Some("default"), "/registry/pods/default/");
        check("", "nodes", None, "/registry/minions/");
        check("", "services", Some("a"), "/registry/services/specs/a/");
        check("", "endpoints", None, "/registry/services/endpoints/");
        check("apps", "deployments", None, "/registry/deployments/");
        check("networking.k8s.io", "ingresses", None, "/registry/ingress/");
        check("rbac.authorization.k8s.io", "roles", Some("a"), "/registry/roles/a/");
        check(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            None,
            "/registry/apiextensions.k8s.io/customresourcedefinitions/",
        );
        check("apiregistration.k8s.io", "apiservices", None, "/registry/apiregistration.k8s.io/apiservices/");
        check("kubevirt.io", "virtualmachines", Some("a"), "/registry/kubevirt.io/virtualmachines/a/");
    }

    #[test]
    fn no_two_kinds_lie_in_one_place() {
        let mut taken: BTreeMap<String, (String, String)> = BTreeMap::new();
        for row in carrack_schema::table::builtin() {
            let place = prefix(row, None);
            let storage = (row.storage.0.to_string(), row.storage.1.to_string());
            for (other, owner) in &taken {
                let apart = !place.starts_with(other.as_str()) && !other.starts_with(&place);
                assert!(apart || *owner == storage, "{place} and {other}");
            }
            taken.insert(place, storage);
        }
        // Nor does a definition get at a built-in one, however its group is called.
        assert!(!taken.contains_key(&custom("pods", "default", None)));
        assert_eq!(custom("pods", "default", None), "/registry/pods./default/");
        assert_eq!(custom("storage.k8s.io", "pods", None), "/registry/storage.k8s.io/pods/");
    }
}
