//! Which resources there are now: what is served of the built-in table, and the rows made from CustomResourceDefinitions.
//!
//! The catalog follows the definitions in the store, so a new kind is served by the request after
//! the one that created its definition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_schema::table::{ResourceInfo, Text};
use carrack_store::Entry;
use serde_json::Value;

use crate::follow::Fold;
use crate::keys;
use crate::object::str_at;
use crate::runtime_config::RuntimeConfig;
use crate::stored;

/// The group of CustomResourceDefinitions.
pub(crate) const CRD_GROUP: &str = "apiextensions.k8s.io";
/// Their plural name.
pub(crate) const CRDS: &str = "customresourcedefinitions";

/// A consistent view of all resources.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// By group, then by plural name.
    rows: BTreeMap<Text, BTreeMap<Text, Arc<ResourceInfo>>>,
    /// Rows in the order of discovery.
    ordered: Vec<Arc<ResourceInfo>>,
    /// Counts changes, so that documents made from the catalog can be kept.
    pub generation: u64,
}

impl Catalog {
    /// The row of a plural name in a group.
    pub fn find(&self, group: &str, plural: &str) -> Option<&Arc<ResourceInfo>> {
        self.rows.get(group)?.get(plural)
    }

    /// The row of a kind in a group.
    pub fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<ResourceInfo>> {
        self.ordered.iter().find(|row| row.group == group && row.kind == kind)
    }

    /// All rows, built-in ones first, in the order of discovery.
    pub fn rows(&self) -> &[Arc<ResourceInfo>] {
        &self.ordered
    }

    /// Whether a group is served in a version.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.ordered.iter().any(|row| row.group == group && row.version(version).is_some())
    }

    /// Groups with their versions, preferred first, in the order of discovery.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for row in &self.ordered {
            let at = match groups.iter().position(|(group, _)| *group == row.group) {
                Some(at) => at,
                None => {
                    groups.push((row.group.to_string(), Vec::new()));
                    groups.len() - 1
                }
            };
            for version in row.versions.iter().filter(|v| v.served) {
                if !groups[at].1.iter().any(|known| *known == version.name) {
                    groups[at].1.push(version.name.to_string());
                }
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        }
        groups
    }
}

/// Kubernetes' order of versions: v2 over v1 over v1beta2 over v1beta1 over v1alpha1 over others.
pub(crate) fn version_rank(version: &str) -> (u8, u64, u64) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let (stage, minor) = if tail.is_empty() {
            (3, "0")
        } else if let Some(minor) = tail.strip_prefix("beta") {
            (2, minor)
        } else {
            (1, tail.strip_prefix("alpha")?)
        };
        Some((stage, major, minor.parse().ok()?))
    };
    parse().unwrap_or((0, 0, 0))
}

/// Follows the definitions and makes catalogs.
pub(crate) struct CatalogFold {
    /// The built-in kinds that are served.
    builtin: Vec<Arc<ResourceInfo>>,
    definitions: BTreeMap<String, Arc<ResourceInfo>>,
    catalog: Arc<Catalog>,
    generation: u64,
}

impl CatalogFold {
    pub(crate) fn new(config: &RuntimeConfig) -> Self {
        let builtin = config.rows();
        let mut fold = CatalogFold { builtin, definitions: BTreeMap::new(), catalog: Arc::default(), generation: 0 };
        fold.settle();
        fold
    }

    pub(crate) fn prefixes() -> Vec<String> {
        vec![keys::of(CRD_GROUP, CRDS, None)]
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }
}

impl Fold for CatalogFold {
    fn clear(&mut self) {
        self.definitions.clear();
    }

    fn apply(&mut self, key: &str, entry: Option<&Entry>) {
        self.definitions.remove(key);
        let Some(entry) = entry else { return };
        let object = stored::parse(entry);
        if !is_established(&object) {
            return;
        }
        let definition = Value::Object(object);
        match carrack_schema::crd::resource_info(&definition) {
            Ok(mut row) => {
                row.defined_at = entry.mod_revision.0;
                self.definitions.insert(key.to_owned(), Arc::new(row));
            }
            // Validation refuses such a definition; one that an older release let in is not served.
            Err(why) => tracing::warn!(key, %why, "a CustomResourceDefinition cannot be served"),
        }
    }

    fn settle(&mut self) {
        self.generation += 1;
        let mut ordered = self.builtin.clone();
        let taken: BTreeSet<(String, String)> =
            ordered.iter().map(|row| (row.group.to_string(), row.plural.to_string())).collect();
        let mut custom: Vec<_> = self
            .definitions
            .values()
            .filter(|row| !taken.contains(&(row.group.to_string(), row.plural.to_string())))
            .cloned()
            .collect();
        custom.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        ordered.extend(custom);
        let mut rows: BTreeMap<Text, BTreeMap<Text, Arc<ResourceInfo>>> = BTreeMap::new();
        for row in &ordered {
            rows.entry(row.group.clone()).or_default().insert(row.plural.clone(), Arc::clone(row));
        }
        self.catalog = Arc::new(Catalog { rows, ordered, generation: self.generation });
    }
}

/// Whether the kind of a definition is served: it has been given all the names that it began with.
pub(crate) fn is_established(definition: &crate::object::Object) -> bool {
    definition
        .get("status")
        .and_then(|status| status.get("conditions"))
        .and_then(Value::as_array)
        .is_some_and(|conditions| conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
        && !str_at(definition, &["spec", "names", "plural"]).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rank() {
        let mut versions = ["v1beta1", "x", "v2", "v1", "v1alpha3", "v1beta10", "v10"];
        versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta10", "v1beta1", "v1alpha3", "x"]);
    }
}
