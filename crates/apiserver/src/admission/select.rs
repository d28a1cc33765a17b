//! Which requests a webhook or a policy is about: rules, selectors, and the version that it wants to see.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/{rules,predicates}`.

use std::collections::BTreeMap;
use std::iter;
use std::sync::LazyLock;

use carrack_schema::table::{self, ResourceInfo};
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

/// As what somebody sees the object of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// As one of this resource.
    pub row: &'a ResourceInfo,
    /// In this one of its versions.
    pub version: usize,
}

impl Seen<'_> {
    pub(crate) fn version(&self) -> &str {
        &self.row.versions[self.version].name
    }

    /// Whether that is as the request has it.
    pub(crate) fn is_requested(&self, attributes: &Attributes<'_>) -> bool {
        let asked = attributes.row;
        self.row.group == asked.group && self.row.plural == asked.plural && self.version() == attributes.version
    }
}

/// Whether one resource shows the objects of another one, in a group of its own.
fn shows(other: &ResourceInfo, row: &ResourceInfo) -> bool {
    other.storage == row.storage && other.group != row.group
}

/// Resources whose objects another one shows, too: few of all that there are, through which no request goes for each rule.
static SHARED: LazyLock<Vec<&'static ResourceInfo>> = LazyLock::new(|| {
    let all = || table::builtin().iter().map(|row| &**row);
    all().filter(|row| all().any(|other| shows(other, row))).collect()
});

/// The other resources that show the objects of one.
fn equivalents(row: &ResourceInfo) -> impl Iterator<Item = &ResourceInfo> {
    SHARED.iter().copied().filter(move |other| shows(other, row))
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
    fn fits(&self, attributes: &Attributes<'_>, seen: &Seen<'_>) -> bool {
        let operation = verb(attributes.operation);
        let row = seen.row;
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
            && has(&self.versions, seen.version())
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

    /// Whether it is about this request, and as what it wants to see the object.
    pub(crate) fn seen_as<'a>(&self, attributes: &Attributes<'a>, namespace: Option<&Object>) -> Option<Seen<'a>> {
        let row = attributes.row;
        if row.group == OWN_GROUP || !self.selects(attributes, namespace) {
            return None;
        }
        let version = row.versions.iter().position(|version| version.name == attributes.version)?;
        let asked = Seen { row, version };
        if self.chosen(&self.excluded, attributes, asked).is_some() {
            return None;
        }
        self.chosen(&self.rules, attributes, asked)
    }

    /// As what rules choose the object: as it was asked for, else as anything that is equivalent.
    fn chosen<'a>(&self, rules: &[Rule], attributes: &Attributes<'a>, asked: Seen<'a>) -> Option<Seen<'a>> {
        let fits = |seen: &Seen<'_>| rules.iter().any(|rule| rule.fits(attributes, seen));
        if fits(&asked) {
            return Some(asked);
        }
        if self.exact || rules.is_empty() {
            return None;
        }
        let rows = iter::once(asked.row).chain(equivalents(asked.row));
        let in_versions = |row: &'a ResourceInfo| {
            let served = row.versions.iter().enumerate().filter(|(_, version)| version.served);
            served.map(move |(version, _)| Seen { row, version })
        };
        rows.flat_map(in_versions).find(fits)
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
