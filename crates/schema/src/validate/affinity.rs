//! Where pods want to be: affinity to nodes and to other pods, and selectors of nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check};
use super::names;
use crate::error::FieldError;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn check_all(affinity: &Place<'_>, errors: &mut Errors) {
    if let Some(nodes) = affinity.some("nodeAffinity") {
        if let Some(required) = nodes.some(REQUIRED) {
            node_selector(&required, errors);
        }
        for term in nodes.items(PREFERRED) {
            weight(&term, errors);
            node_term(&term.field("preference"), false, errors);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.field(kind);
        for term in pods.items(REQUIRED) {
            pod_term(&term, errors);
        }
        for term in pods.items(PREFERRED) {
            weight(&term, errors);
            pod_term(&term.field("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &Place<'_>, errors: &mut Errors) {
    let weight = term.number("weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(term.path_of("weight"), weight, "must be in the range 1-100"));
    }
}

/// Checks a NodeSelector: at least one term, of which one must hold.
pub(super) fn node_selector(selector: &Place<'_>, errors: &mut Errors) {
    if selector.items("nodeSelectorTerms").next().is_none() {
        let path = selector.path_of("nodeSelectorTerms");
        errors.push(FieldError::required(path, "must have at least one node selector term"));
    }
    for term in selector.items("nodeSelectorTerms") {
        node_term(&term, true, errors);
    }
}

fn node_term(term: &Place<'_>, strict: bool, errors: &mut Errors) {
    for requirement in term.items("matchExpressions") {
        let values = requirement.texts("values");
        let path = requirement.path_of("values");
        match requirement.text("operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(FieldError::required(path.clone(), "must be specified when `operator` is 'In' or 'NotIn'"));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(path.clone(), text));
            }
            "Gt" | "Lt" if values.len() != 1 => {
                let text = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(path.clone(), text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                let path = requirement.path_of("operator");
                errors.push(FieldError::invalid(path, other, "not a valid selector operator"));
            }
        }
        let key = requirement.text("key");
        let problem = names::qualified_name(key);
        errors.extend(problem.map(|problem| FieldError::invalid(requirement.path_of("key"), key, problem)));
        for (index, value) in values.into_iter().enumerate().filter(|_| strict) {
            let problem = names::label_value(value);
            errors.extend(problem.map(|problem| FieldError::invalid(format!("{path}[{index}]"), value, problem)));
        }
    }
    for requirement in term.items("matchFields") {
        let values = requirement.texts("values");
        match requirement.text("operator") {
            "In" | "NotIn" if values.len() == 1 => {}
            "In" | "NotIn" => {
                let text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(requirement.path_of("values"), text));
            }
            other => {
                let path = requirement.path_of("operator");
                errors.push(FieldError::invalid(path, other, "not a valid selector operator"));
            }
        }
        let key = requirement.text("key");
        if key != "metadata.name" {
            errors.push(FieldError::invalid(requirement.path_of("key"), key, "not a valid field selector key"));
            continue;
        }
        check(&requirement, &[("values", Demand::Each(names::dns1123_subdomain))], errors);
    }
}

fn pod_term(term: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("labelSelector", Demand::Selector),
        ("namespaceSelector", Demand::Selector),
        ("topologyKey", Demand::Needed("can not be empty")),
        ("topologyKey", Demand::Form(names::qualified_name)),
    ];
    check(term, ROWS, errors);
    for namespace in term.texts("namespaces") {
        let problem = names::dns1123_label(namespace);
        errors.extend(problem.map(|problem| FieldError::invalid(term.path_of("namespace"), namespace, problem)));
    }
    label_keys(term, errors);
}

/// Keys of labels of which a term of affinity, or a constraint of spreading, selects what its pod has. A new pod's selectors say
/// that too, after what they were given: a key that is there once more was in both.
pub(super) fn label_keys(term: &Place<'_>, errors: &mut Errors) {
    let (matching, differing) = (term.texts("matchLabelKeys"), term.texts("mismatchLabelKeys"));
    for (field, keys) in [("matchLabelKeys", &matching), ("mismatchLabelKeys", &differing)] {
        if !keys.is_empty() && term.some("labelSelector").is_none() {
            let text = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(term.path_of(field), text));
        }
        for (index, key) in keys.iter().enumerate() {
            let path = format!("{}[{index}]", term.path_of(field));
            errors.extend(names::qualified_name(key).map(|problem| FieldError::invalid(path, *key, problem)));
        }
    }
    if matching.is_empty() {
        return;
    }
    let selector = term.field("labelSelector");
    let indexes: BTreeMap<&str, usize> = matching.iter().enumerate().map(|(index, key)| (*key, index)).collect();
    let mut selected: BTreeSet<&str> = selector.entries("matchLabels").map(|(key, _)| key.as_str()).collect();
    for requirement in selector.items("matchExpressions") {
        let key = requirement.text("key");
        if let (false, Some(index)) = (selected.insert(key), indexes.get(key)) {
            let path = format!("{}[{index}]", term.path);
            errors.push(FieldError::invalid(path, key, "exists in both matchLabelKeys and labelSelector"));
        }
    }
    let differing: BTreeSet<&str> = differing.into_iter().collect();
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| differing.contains(*key)) {
        let path = format!("{}[{index}]", term.path_of("matchLabelKeys"));
        errors.push(FieldError::invalid(path, *key, "exists in both matchLabelKeys and mismatchLabelKeys"));
    }
}
