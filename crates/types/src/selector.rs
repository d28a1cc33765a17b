//! Label selectors as API objects carry them: which labels they choose.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether a selector chooses these labels. An empty selector chooses everything; one with an operator that does not
/// exist chooses nothing, since admission refuses those (apimachinery, `LabelSelectorAsSelector`).
#[must_use]
pub fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    chooses(selector, |key| labels?.get(key).map(String::as_str))
}

/// Whether a selector chooses what has these labels, as [`selects`].
#[must_use]
pub fn chooses<'l>(selector: &LabelSelector, label: impl Fn(&str) -> Option<&'l str>) -> bool {
    selector.match_labels.iter().flatten().all(|(key, wanted)| label(key) == Some(wanted))
        && selector.match_expressions.iter().flatten().all(|r| {
            let values = r.values.as_deref().unwrap_or_default();
            match (r.operator.as_str(), label(&r.key)) {
                ("In", have) => have.is_some_and(|v| values.iter().any(|value| value == v)),
                ("NotIn", have) => have.is_none_or(|v| values.iter().all(|value| value != v)),
                ("Exists", have) => have.is_some(),
                ("DoesNotExist", have) => have.is_none(),
                _ => false,
            }
        })
}

/// Whether a plain map of labels, as services and replication controllers have them, chooses these labels. An empty map
/// chooses nothing.
#[must_use]
pub fn map_selects(selector: Option<&BTreeMap<String, String>>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector
        .is_some_and(|s| !s.is_empty() && s.iter().all(|(key, wanted)| labels.and_then(|l| l.get(key)) == Some(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_choose_labels() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "1".to_owned())]);
        for (selector, chosen) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchLabels": {"other": ""}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}), true),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["db"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Like"}]}), false),
            (json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}), false),
        ] {
            let parsed: LabelSelector = serde_json::from_value(selector.clone()).expect("a selector");
            assert_eq!(selects(&parsed, Some(&labels)), chosen, "{selector}");
        }
        let map = |k: &str, v: &str| BTreeMap::from([(k.to_owned(), v.to_owned())]);
        assert!(map_selects(Some(&map("app", "web")), Some(&labels)));
        assert!(!map_selects(Some(&map("app", "db")), Some(&labels)));
        assert!(!map_selects(Some(&BTreeMap::new()), Some(&labels)));
        assert!(!map_selects(None, Some(&labels)));
    }
}
