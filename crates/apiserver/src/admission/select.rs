//! Which requests a webhook or a policy is about: rules, selectors, and the version that it wants to see.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/{rules,predicates}`.

use std::collections::BTreeMap;

use carrack_types::selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{Attributes, Operation};
use crate::object::{Object, meta_str, metadata};

/// The group of webhook configurations and policies, which no webhook or policy is asked about.
const OWN_GROUP: &str = "admissionregistration.k8s.io";

/// One rule: all of these lists must have something that fits.
#[derive(Clone, Debug, Default)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    /// `Cluster`, `Namespaced`, or anything else for both.
    scope: String,
    /// When not empty, the names that it is about.
    names: Vec<String>,
}

/// What requests something is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// Only the versions that the rules name, not their equivalents.
    exact: bool,
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn rules(value: &Value) -> Vec<Rule> {
    let rule = |rule: &Value| Rule {
        operations: texts(&rule["operations"]),
        groups: texts(&rule["apiGroups"]),
        versions: texts(&rule["apiVersions"]),
        resources: texts(&rule["resources"]),
        scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        names: texts(&rule["resourceNames"]),
    };
    value.as_array().into_iter().flatten().map(rule).collect()
}

fn selector_of(value: &Value) -> Option<LabelSelector> {
    // Validation has read it as one; an empty one chooses everything, as none does.
    serde_json::from_value(value.clone()).ok().filter(|selector: &LabelSelector| *selector != LabelSelector::default())
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn labels_of(object: &Object) -> BTreeMap<String, String> {
    metadata(object)
        .and_then(|metadata| metadata.get("labels"))
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

impl Rule {
    fn fits(&self, attributes: &Attributes<'_>, version: &str) -> bool {
        let operation = verb(attributes.operation);
        let row = attributes.row;
        let is_namespaced = row.namespaced;
        let scope = match self.scope.as_str() {
            "Cluster" => !is_namespaced,
            "Namespaced" => is_namespaced,
            _ => true,
        };
        let resource = |wanted: &String| {
            let (resource, subresource) = wanted.split_once('/').unwrap_or((wanted, ""));
            (resource == "*" || resource == row.plural) && (subresource == "*" || subresource == attributes.subresource)
        };
        scope
            && has(&self.operations, operation)
            && has(&self.groups, &row.group)
            && has(&self.versions, version)
            && self.resources.iter().any(resource)
            && (self.names.is_empty() || self.names.contains(&attributes.name))
    }
}

/// What rules call an operation.
pub(crate) fn verb(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

impl Selection {
    /// Of a webhook.
    pub(crate) fn of_webhook(webhook: &Value) -> Selection {
        Selection {
            rules: rules(&webhook["rules"]),
            excluded: Vec::new(),
            exact: webhook["matchPolicy"] == "Exact",
            namespaces: selector_of(&webhook["namespaceSelector"]),
            objects: selector_of(&webhook["objectSelector"]),
        }
    }

    /// Of a policy's `matchConstraints`, or of a binding's `matchResources`.
    pub(crate) fn of_policy(resources: &Value) -> Selection {
        Selection {
            rules: rules(&resources["resourceRules"]),
            excluded: rules(&resources["excludeResourceRules"]),
            exact: resources["matchPolicy"] == "Exact",
            namespaces: selector_of(&resources["namespaceSelector"]),
            objects: selector_of(&resources["objectSelector"]),
        }
    }

    /// Whether it has any rules; a binding without is about all that its policy is about.
    pub(crate) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether it is about this request, and in which version of the resource (a place in the row's
    /// versions) it wants to see the object.
    pub(crate) fn version_for(&self, attributes: &Attributes<'_>, namespace: Option<&Object>) -> Option<usize> {
        let row = attributes.row;
        if row.group == OWN_GROUP || !self.selects(attributes, namespace) {
            return None;
        }
        let versions = || row.versions.iter().enumerate().filter(|(_, version)| version.served);
        let asked = row.versions.iter().position(|version| version.name == attributes.version)?;
        let fits = |rules: &[Rule], name: &str| rules.iter().any(|rule| rule.fits(attributes, name));
        let any = |rules: &[Rule]| {
            if fits(rules, attributes.version) {
                return Some(asked);
            }
            versions().find(|(_, version)| !self.exact && fits(rules, &version.name)).map(|(index, _)| index)
        };
        if any(&self.excluded).is_some() {
            return None;
        }
        any(&self.rules)
    }

    /// Whether the selectors choose the request.
    pub(crate) fn selects(&self, attributes: &Attributes<'_>, namespace: Option<&Object>) -> bool {
        if let Some(selector) = &self.namespaces {
            // A namespace is selected by its own labels, other objects without one always.
            let object = if attributes.row.group.is_empty() && attributes.row.plural == "namespaces" {
                Some(if attributes.object.is_empty() {
                    attributes.old.unwrap_or(&attributes.object)
                } else {
                    &attributes.object
                })
            } else {
                namespace
            };
            if let Some(object) = object
                && !selector::selects(selector, Some(&labels_of(object)))
            {
                return false;
            }
        }
        match &self.objects {
            None => true,
            Some(selector) => {
                let chosen =
                    |object: &Object| !object.is_empty() && selector::selects(selector, Some(&labels_of(object)));
                chosen(&attributes.object) || attributes.old.is_some_and(chosen)
            }
        }
    }
}

/// The name that a request is about: that of the object, where the path has none.
pub(crate) fn name_of(attributes: &Attributes<'_>) -> String {
    if attributes.name.is_empty() { meta_str(&attributes.object, "name").to_owned() } else { attributes.name.clone() }
}
