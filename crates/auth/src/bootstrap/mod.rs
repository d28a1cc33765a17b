//! The roles and bindings that a cluster starts with, as data.
//!
//! [`objects`] gives them as JSON ready to be stored; [`reconcile`] says what to write at a start
//! where some are there already, as upstream does: objects with the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "true"` get missing rules and subjects back,
//! others are left alone. KubeVirt's among them hold exactly what is given here, as with its operator: what a newer release takes
//! away is gone from older clusters too.
//! Upstream: `plugin/pkg/auth/authorizer/rbac/bootstrappolicy` and KubeVirt's
//! `pkg/virt-operator/resource/generate/rbac`.

mod cluster;
mod controllers;
mod kubevirt;
mod node;
mod storage;
#[cfg(test)]
mod tests;
mod user_facing;

pub(crate) use kubevirt::NODE_LEASE_NAMESPACE;

use serde_json::{Map, Value, json};

pub use node::node_rules;

use crate::rbac::{GROUP, Kind, Rule, covers};

/// Objects with this annotation set to `true` are kept up to date.
pub const AUTOUPDATE_ANNOTATION: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// All upstream bootstrap objects carry this label.
pub const BOOTSTRAP_LABEL: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
/// ClusterRoles with this label set to `true` make up what the controllers role may do.
pub const AGGREGATE_TO_CONTROLLERS: &str = "rbac.carrack.io/aggregate-to-controllers";

/// An object to begin with.
#[derive(Clone, Debug, PartialEq)]
pub struct BootstrapObject {
    /// Which of the RBAC kinds.
    pub kind: Kind,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The whole object, with `apiVersion` and `kind`.
    pub json: Value,
}

/// All of them, roles before bindings.
#[must_use]
pub fn objects() -> Vec<BootstrapObject> {
    let mut builder = Builder::default();
    cluster::add(&mut builder);
    user_facing::add(&mut builder);
    controllers::add(&mut builder);
    kubevirt::add(&mut builder);
    storage::add(&mut builder);
    node::add(&mut builder);
    let mut objects = builder.roles;
    objects.extend(builder.bindings);
    objects
}

const CORE: &[&str] = &[""];
const APPS: &[&str] = &["apps"];
const BATCH: &[&str] = &["batch"];
const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A rule, its lists written as words.
fn rule(verbs: &str, groups: &[&str], resources: &str) -> Rule {
    Rule {
        verbs: words(verbs),
        api_groups: groups.iter().map(|&g| g.to_owned()).collect(),
        resources: words(resources),
        ..Rule::default()
    }
}

/// A rule for objects of certain names.
fn named(verbs: &str, groups: &[&str], resources: &str, names: &str) -> Rule {
    Rule { resource_names: words(names), ..rule(verbs, groups, resources) }
}

/// A rule for paths.
fn paths(verbs: &str, urls: &str) -> Rule {
    Rule { verbs: words(verbs), non_resource_urls: words(urls), ..Rule::default() }
}

/// Writing events, of the old and the new API group.
fn events() -> Rule {
    rule("create update patch", &["", "events.k8s.io"], "events")
}

#[derive(Clone, Copy)]
enum To<'a> {
    User(&'a str),
    Group(&'a str),
    ServiceAccount(&'a str, &'a str),
}

#[derive(Default)]
struct Builder {
    roles: Vec<BootstrapObject>,
    bindings: Vec<BootstrapObject>,
}

impl Builder {
    fn object(kind: Kind, namespace: &str, name: &str, labels: &[(&str, &str)], rest: Value) -> BootstrapObject {
        let labels: Map<String, Value> = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let mut metadata = json!({
            "name": name,
            "labels": labels,
            "annotations": { AUTOUPDATE_ANNOTATION: "true" },
        });
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        let mut json = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": kind.name(),
            "metadata": metadata,
        });
        if let (Value::Object(json), Value::Object(rest)) = (&mut json, rest) {
            json.extend(rest);
        }
        BootstrapObject { kind, namespace: namespace.into(), name: name.into(), json }
    }

    fn cluster_role(&mut self, name: &str, rules: Vec<Rule>) {
        self.labelled(name, &[BOOTSTRAP_LABEL], rules);
    }

    fn labelled(&mut self, name: &str, labels: &[(&str, &str)], rules: Vec<Rule>) {
        let rest = json!({ "rules": rules });
        self.roles.push(Self::object(Kind::ClusterRole, "", name, labels, rest));
    }

    /// A ClusterRole made up of all those with a label.
    fn aggregated(&mut self, name: &str, labels: &[(&str, &str)], selected: &str) {
        let rest = json!({
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { selected: "true" } }] },
            "rules": [],
        });
        self.roles.push(Self::object(Kind::ClusterRole, "", name, labels, rest));
    }

    fn role(&mut self, namespace: &str, name: &str, rules: Vec<Rule>) {
        let rest = json!({ "rules": rules });
        self.roles.push(Self::object(Kind::Role, namespace, name, &[BOOTSTRAP_LABEL], rest));
    }

    fn bind(&mut self, name: &str, role: &str, to: &[To<'_>]) {
        self.binding(Kind::ClusterRoleBinding, "", name, "ClusterRole", role, to);
    }

    fn bind_role(&mut self, namespace: &str, name: &str, role: &str, to: &[To<'_>]) {
        self.binding(Kind::RoleBinding, namespace, name, "Role", role, to);
    }

    fn binding(&mut self, kind: Kind, namespace: &str, name: &str, role_kind: &str, role: &str, to: &[To<'_>]) {
        let subjects: Vec<Value> = to
            .iter()
            .map(|to| match to {
                To::User(name) => json!({ "apiGroup": GROUP, "kind": "User", "name": name }),
                To::Group(name) => json!({ "apiGroup": GROUP, "kind": "Group", "name": name }),
                To::ServiceAccount(namespace, name) => {
                    json!({ "kind": "ServiceAccount", "namespace": namespace, "name": name })
                }
            })
            .collect();
        let rest = json!({
            "roleRef": { "apiGroup": GROUP, "kind": role_kind, "name": role },
            "subjects": subjects,
        });
        self.bindings.push(Self::object(kind, namespace, name, &[BOOTSTRAP_LABEL], rest));
    }
}

/// What to write for a bootstrap object, given what is stored: the object itself when there is
/// none, the stored one with what it lacks, and of KubeVirt's without what it is not to have, or nothing.
///
/// A binding whose `roleRef` differs is left alone: it cannot be updated, and somebody meant it.
#[must_use]
pub fn reconcile(desired: &BootstrapObject, stored: Option<&Value>) -> Option<Value> {
    let Some(stored) = stored else {
        return Some(desired.json.clone());
    };
    let autoupdate =
        stored.pointer("/metadata/annotations").and_then(|a| a.get(AUTOUPDATE_ANNOTATION)).and_then(Value::as_str);
    if autoupdate != Some("true") {
        return None;
    }
    let is_exact = desired.json["metadata"]["labels"].get(kubevirt::LABEL).is_some();
    let mut merged = stored.clone();
    for field in ["labels", "annotations"] {
        merge_metadata(&mut merged, &desired.json, field);
    }
    match desired.kind {
        Kind::Role | Kind::ClusterRole => {
            let has_aggregation = desired.json.get("aggregationRule").is_some();
            if has_aggregation {
                // The rules of an aggregated role are computed, and not ours to set.
                if merged.get("aggregationRule").is_none() {
                    merged["aggregationRule"] = desired.json["aggregationRule"].clone();
                }
            } else if is_exact {
                if read_rules(&merged) != read_rules(&desired.json) {
                    merged["rules"] = desired.json["rules"].clone();
                }
            } else {
                add_missing_rules(&mut merged, &desired.json);
            }
        }
        Kind::RoleBinding | Kind::ClusterRoleBinding => {
            if merged.get("roleRef") != desired.json.get("roleRef") {
                return None;
            }
            if is_exact {
                merged["subjects"] = desired.json["subjects"].clone();
            } else {
                add_missing_items(&mut merged, &desired.json, "subjects");
            }
        }
    }
    (merged != *stored).then_some(merged)
}

fn merge_metadata(merged: &mut Value, desired: &Value, field: &str) {
    let Some(wanted) = desired["metadata"][field].as_object() else {
        return;
    };
    if wanted.is_empty() {
        return;
    }
    if !merged["metadata"][field].is_object() {
        merged["metadata"][field] = json!({});
    }
    for (key, value) in wanted {
        merged["metadata"][field][key] = value.clone();
    }
}

/// The rules of a role, in whichever way lists are written that are empty.
fn read_rules(role: &Value) -> Vec<Rule> {
    serde_json::from_value(role["rules"].clone()).unwrap_or_default()
}

fn add_missing_rules(merged: &mut Value, desired: &Value) {
    let missing: Vec<Rule> = {
        let held = read_rules(merged);
        read_rules(desired)
            .into_iter()
            .filter(|wanted| !covers(&held, std::slice::from_ref(wanted)).is_empty())
            .collect()
    };
    if missing.is_empty() {
        return;
    }
    if !merged["rules"].is_array() {
        merged["rules"] = json!([]);
    }
    if let Some(rules) = merged["rules"].as_array_mut() {
        rules.extend(missing.iter().map(|rule| json!(rule)));
    }
}

fn add_missing_items(merged: &mut Value, desired: &Value, field: &str) {
    let held = merged[field].as_array().cloned().unwrap_or_default();
    let wanted = desired[field].as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> = wanted.into_iter().filter(|item| !held.contains(item)).collect();
    if !missing.is_empty() {
        merged[field] = Value::Array([held, missing].concat());
    }
}
