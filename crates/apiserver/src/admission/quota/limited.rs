//! What nobody may have without a quota for it.
//!
//! ```text
//!   limitedResources ─┬─ matchContains ─► names of what the object counts for ─► is each in a quota that is for the object?
//!                     └─ matchScopes ───► scopes that the object is in ────────► has a quota each of these scopes?
//! ```
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/resourcequota` (`ResourceQuotaConfiguration`, `CheckRequest`).

use std::collections::BTreeSet;

use carrack_schema::validate::QUOTA_SCOPES;
use carrack_types::pod::ResourceList;
use carrack_types::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use super::scopes::{self, Selector};
use crate::admission::configuration::check_kind;
use crate::object::{Object, at};

/// The names of the file's kind, with its version; the older ones say the same.
const KINDS: [(&str, &str); 3] = [
    ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
    ("resourcequota.admission.k8s.io/v1beta1", "Configuration"),
    ("resourcequota.admission.k8s.io/v1alpha1", "Configuration"),
];
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// What the plugin is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Limits {
    api_version: String,
    kind: String,
    #[serde(default)]
    limited_resources: Vec<Limited>,
}

/// A resource that is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Limited {
    api_group: String,
    resource: String,
    /// Parts of names that an object counts by.
    match_contains: Vec<String>,
    match_scopes: Vec<Selector>,
}

impl Limits {
    /// Reads what the plugin is told.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse(value: Value) -> Result<Self, String> {
        let read: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        check_kind(&read.api_version, &read.kind, KINDS)?;
        for (index, limited) in read.limited_resources.iter().enumerate() {
            let place = format!("limitedResources[{index}]");
            if limited.resource.is_empty() {
                return Err(format!("{place}.resource: Required value"));
            }
            // A scope that there is none of would never match, and nothing would be limited by it.
            for (index, selector) in limited.match_scopes.iter().enumerate() {
                let place = format!("{place}.matchScopes[{index}]");
                if !QUOTA_SCOPES.contains(&selector.scope_name.as_str()) {
                    return Err(format!("{place}.scopeName: {:?} is no scope", selector.scope_name));
                }
                if !OPERATORS.contains(&selector.operator.as_str()) {
                    return Err(format!(
                        "{place}.operator: {:?} is none of {}",
                        selector.operator,
                        OPERATORS.join(", ")
                    ));
                }
                if matches!(selector.operator.as_str(), "In" | "NotIn") == selector.values.is_empty() {
                    let needs = if selector.values.is_empty() { "needs" } else { "has no" };
                    return Err(format!("{place}.values: {} {needs} values", selector.operator));
                }
            }
        }
        Ok(read)
    }

    /// Whether nothing is limited.
    pub(super) fn is_empty(&self) -> bool {
        self.limited_resources.is_empty()
    }

    /// Why an object of a resource that counts for so much may not be, with these quotas in its namespace.
    pub(super) fn uncovered(
        &self,
        (group, plural): (&str, &str),
        object: &Object,
        used: &ResourceList,
        quotas: &[&Object],
    ) -> Option<Uncovered> {
        let own =
            self.limited_resources.iter().filter(|limited| limited.api_group == group && limited.resource == plural);
        let parts: Vec<&String> = own.flat_map(|limited| &limited.match_contains).collect();
        let consumed = used.iter().filter(|(_, quantity)| **quantity > Quantity::ZERO).map(|(name, _)| name.as_str());
        let mut names: BTreeSet<&str> =
            consumed.filter(|name| parts.iter().any(|part| name.contains(part.as_str()))).collect();
        for quota in quotas.iter().filter(|quota| scopes::matches(quota, plural, object)) {
            let hard = at(quota, &["status", "hard"]).or_else(|| at(quota, &["spec", "hard"]));
            names.retain(|name| hard.is_none_or(|hard| hard.get(name).is_none()));
        }
        if !names.is_empty() {
            return Some(Uncovered::Names(names.into_iter().collect::<Vec<_>>().join(",")));
        }
        // Of whatever resource a scope is named for: it is the object that is in it, or is not.
        let limited = self.limited_resources.iter().flat_map(|limited| &limited.match_scopes);
        let mut limited: Vec<&Selector> = limited.filter(|selector| selector.holds(plural, object)).collect();
        for selector in quotas.iter().flat_map(|quota| scopes::selectors(quota)) {
            limited.retain(|limited| limited.scope_name != selector.scope_name || !selector.holds(plural, object));
        }
        let shown = |selector: &&Selector| {
            format!("{{{} {} [{}]}}", selector.scope_name, selector.operator, selector.values.join(" "))
        };
        let all: Vec<String> = limited.iter().map(shown).collect();
        (!all.is_empty()).then(|| Uncovered::Scopes(all.join(" ")))
    }
}

/// For what no quota is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Uncovered {
    /// What the object counts by.
    Names(String),
    /// What it is in.
    Scopes(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(limited: Value) -> Value {
        json!({"apiVersion": KINDS[0].0, "kind": KINDS[0].1, "limitedResources": limited})
    }

    #[track_caller]
    fn check_read(value: Value, want: Result<(), &str>) {
        let got = Limits::parse(value.clone());
        match want {
            Ok(()) => assert!(got.is_ok(), "{value}: {got:?}"),
            Err(why) => {
                assert!(got.as_ref().is_err_and(|error| error.contains(why)), "{value}: {got:?}, and not {why}")
            }
        }
    }

    #[test]
    fn what_the_plugin_is_told_is_read() {
        let scope = |name: &str, operator: &str, values: &[&str]| {
            told(
                json!([{"resource": "pods", "matchScopes": [{"scopeName": name, "operator": operator, "values": values}]}]),
            )
        };
        check_read(told(json!([])), Ok(()));
        check_read(told(json!([{"resource": "pods", "matchContains": ["cpu"]}])), Ok(()));
        check_read(scope("PriorityClass", "In", &["a"]), Ok(()));
        check_read(scope("BestEffort", "Exists", &[]), Ok(()));
        let mut old = told(json!([]));
        (old["apiVersion"], old["kind"]) = (KINDS[2].0.into(), KINDS[2].1.into());
        check_read(old, Ok(()));
        check_read(
            json!({"apiVersion": "v1", "kind": "Pod"}),
            Err("is not apiserver.config.k8s.io/v1 ResourceQuotaConfiguration"),
        );
        check_read(told(json!([{"apiGroup": "apps"}])), Err("limitedResources[0].resource: Required value"));
        check_read(told(json!([{"resource": "pods", "contains": []}])), Err("unknown field `contains`"));
        check_read(scope("Priority", "Exists", &[]), Err("limitedResources[0].matchScopes[0].scopeName: \"Priority\""));
        check_read(scope("PriorityClass", "Is", &[]), Err("matchScopes[0].operator: \"Is\" is none of In"));
        check_read(scope("PriorityClass", "In", &[]), Err("matchScopes[0].values: In needs values"));
        check_read(scope("PriorityClass", "Exists", &["a"]), Err("matchScopes[0].values: Exists has no values"));
    }

    /// Why a pod of the class `high` that asks for cpu is refused, with these limits and quotas.
    #[track_caller]
    fn check(limited: Value, quotas: &[Value], want: Option<Uncovered>) {
        let object = |value: &Value| value.as_object().cloned().expect("an object");
        let pod = object(&json!({"spec": {"priorityClassName": "high",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}));
        let used = super::super::usage::of("", "pods", &pod, 0);
        let quotas: Vec<Object> = quotas.iter().map(object).collect();
        let quotas: Vec<&Object> = quotas.iter().collect();
        let limits = Limits::parse(told(limited.clone())).expect("limits");
        assert_eq!(limits.uncovered(("", "pods"), &pod, &used, &quotas), want, "{limited}");
    }

    #[test]
    fn what_is_limited_needs_a_quota() {
        let names = |names: &str| Some(Uncovered::Names(names.to_owned()));
        let cpu = || json!([{"resource": "pods", "matchContains": ["cpu", "memory"]}]);
        let hard = |names: &[&str]| {
            let hard: serde_json::Map<_, _> = names.iter().map(|name| ((*name).to_owned(), json!("9"))).collect();
            json!({"spec": {"hard": hard}, "status": {"hard": hard}})
        };
        check(cpu(), &[], names("cpu,requests.cpu"));
        check(cpu(), &[hard(&["cpu", "pods"])], names("requests.cpu"));
        check(cpu(), &[hard(&["cpu"]), hard(&["requests.cpu"])], None);
        // One that is not for this pod covers nothing of it.
        let mut other = hard(&["cpu", "requests.cpu"]);
        other["spec"]["scopes"] = json!(["BestEffort"]);
        check(cpu(), &[other], names("cpu,requests.cpu"));
        check(json!([{"apiGroup": "apps", "resource": "pods", "matchContains": ["cpu"]}]), &[], None);
        check(json!([{"resource": "services", "matchContains": ["cpu"]}]), &[], None);
    }

    #[test]
    fn limited_scopes_need_a_quota() {
        let scopes = |scopes: &str| Some(Uncovered::Scopes(scopes.to_owned()));
        let selector = |operator: &str, values: &[&str]| json!({"scopeName": "PriorityClass", "operator": operator, "values": values});
        let limited = |selector: Value| json!([{"resource": "pods", "matchScopes": [selector]}]);
        let quota = |selector: Value| json!({"spec": {"scopeSelector": {"matchExpressions": [selector]}}});
        check(limited(selector("Exists", &[])), &[], scopes("{PriorityClass Exists []}"));
        check(limited(selector("In", &["high", "top"])), &[], scopes("{PriorityClass In [high top]}"));
        check(limited(selector("In", &["low"])), &[], None);
        check(limited(selector("DoesNotExist", &[])), &[], None);
        // Whichever selector of that scope the object is in.
        check(limited(selector("In", &["high"])), &[quota(selector("Exists", &[]))], None);
        check(
            limited(selector("In", &["high"])),
            &[quota(selector("In", &["low"]))],
            scopes("{PriorityClass In [high]}"),
        );
        let both = json!([{"resource": "pods", "matchScopes": [selector("Exists", &[]),
            {"scopeName": "NotBestEffort", "operator": "Exists"}]}]);
        check(both.clone(), &[], scopes("{PriorityClass Exists []} {NotBestEffort Exists []}"));
        check(both, &[json!({"spec": {"scopes": ["NotBestEffort"]}})], scopes("{PriorityClass Exists []}"));
    }
}
