//! A label selector (`metav1.LabelSelector`), as far as aggregation rules need it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A label selector. An empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Requirement>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

impl Selector {
    /// A selector for one label.
    #[must_use]
    pub fn label(key: &str, value: &str) -> Self {
        Self { match_labels: Some(BTreeMap::from([(key.into(), value.into())])), match_expressions: None }
    }

    /// Whether the labels are selected. An operator that is not known selects nothing.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let labels_match = self.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
        labels_match
            && self.match_expressions.iter().flatten().all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed =
                    value.is_some_and(|v| requirement.values.as_ref().is_some_and(|values| values.contains(v)));
                match requirement.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}
