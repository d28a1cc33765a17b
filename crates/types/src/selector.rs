//! Label selectors as API objects carry them: which labels they choose, and their text.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

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

/// Reads a selector from its text, as a scale has it: `app=web,tier in (a,b),!old`.
///
/// # Errors
/// It is none, in words.
pub fn parse(text: &str) -> Result<LabelSelector, String> {
    let mut depth = 0_i32;
    // Commas between parentheses part values.
    let terms = text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let all: Result<Vec<_>, _> = terms.map(str::trim).filter(|_| !text.trim().is_empty()).map(requirement).collect();
    Ok(LabelSelector { match_expressions: Some(all?).filter(|all| !all.is_empty()), match_labels: None })
}

fn requirement(term: &str) -> Result<LabelSelectorRequirement, String> {
    let faulty = || format!("unable to parse requirement: {term:?}");
    let values = |text: &str| Some(text.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>());
    let (key, operator, values) = if let Some(key) = term.strip_prefix('!') {
        (key, "DoesNotExist", None)
    } else if let Some((left, set)) = term.strip_suffix(')').and_then(|term| term.split_once('(')) {
        let words: Vec<&str> = left.split_whitespace().collect();
        match words[..] {
            [key, "in"] => (key, "In", values(set)),
            [key, "notin"] => (key, "NotIn", values(set)),
            _ => return Err(faulty()),
        }
    } else if let Some((key, value)) = term.split_once("!=") {
        (key, "NotIn", values(value))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key, "In", values(value))
    } else {
        (term, "Exists", None)
    };
    let is_of_label = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let key = key.trim();
    if key.is_empty() || !key.chars().chain(values.iter().flatten().flat_map(|value| value.chars())).all(is_of_label) {
        return Err(faulty());
    }
    Ok(LabelSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values })
}

/// Writes a selector as text, in the order of its keys, as upstream does.
#[must_use]
pub fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| (key, format!("{key}={value}")));
    let expressions = selector.match_expressions.iter().flatten().map(|r| {
        let mut values = r.values.clone().unwrap_or_default();
        values.sort();
        let (key, values) = (&r.key, values.join(","));
        let term = match r.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        };
        (key, term)
    });
    let mut terms: Vec<(&String, String)> = labels.chain(expressions).collect();
    terms.sort();
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_are_read_from_their_text_and_written_as_it() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned()), ("a/tier".to_owned(), "1".to_owned())]);
        for (given, chosen, written) in [
            ("", true, ""),
            ("app=web", true, "app in (web)"),
            ("app==web, a/tier = 1", true, "a/tier in (1),app in (web)"),
            ("app!=web", false, "app notin (web)"),
            ("app in (web,db),a/tier notin ( 2, 3 )", true, "a/tier notin (2,3),app in (db,web)"),
            ("app in(db)", false, "app in (db)"),
            ("app,!none", true, "app,!none"),
            ("!app", false, "!app"),
            ("app=", false, "app in ()"),
        ] {
            let selector = parse(given).expect(given);
            assert_eq!((selects(&selector, Some(&labels)), text(&selector)), (chosen, written.to_owned()), "{given}");
        }
        let plain: LabelSelector = serde_json::from_value(json!({"matchLabels": {"b": "1", "a": "2"},
            "matchExpressions": [{"key": "aa", "operator": "Exists"}]}))
        .expect("a selector");
        assert_eq!(text(&plain), "a=2,aa,b=1");
        for faulty in [",", "a,", "a b", "=web", "a like (b)", "a in (b", "a=(b)", "a>1", "in (b)"] {
            assert!(parse(faulty).is_err(), "{faulty}");
        }
    }

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
