//! Roles and their bindings.

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn role(object: &Place<'_>, namespaced: bool, errors: &mut Errors) {
    for rule in object.items("rules") {
        let has = |field: &str| rule.items(field).next().is_some();
        if !has("verbs") {
            errors.push(FieldError::required(rule.path_of("verbs"), "verbs must contain at least one value"));
        }
        if has("nonResourceURLs") {
            if namespaced {
                rule.invalid("nonResourceURLs", "namespaced rules cannot apply to non-resource URLs", errors);
            }
            if has("apiGroups") || has("resources") || has("resourceNames") {
                rule.invalid(
                    "nonResourceURLs",
                    "rules cannot apply to both regular resources and non-resource URLs",
                    errors,
                );
            }
            continue;
        }
        if !has("apiGroups") {
            errors.push(FieldError::required(
                rule.path_of("apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if !has("resources") {
            errors.push(FieldError::required(
                rule.path_of("resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
}

pub(super) fn binding(object: &Place<'_>, namespaced: bool, errors: &mut Errors) {
    let role = object.field("roleRef");
    role.one_of("apiGroup", &[GROUP], errors);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    role.one_of("kind", kinds, errors);
    if role.needs_text("name", errors).is_some() {
        role.has_form("name", names::path_segment, errors);
    }
    for subject in object.items("subjects") {
        subject.needs_text("name", errors);
        match subject.text("kind") {
            "ServiceAccount" => {
                subject.has_form("name", names::dns1123_subdomain, errors);
                subject.one_of("apiGroup", &[""], errors);
                if subject.text("namespace").is_empty() {
                    errors.push(FieldError::required(subject.path_of("namespace"), ""));
                }
            }
            "User" | "Group" => subject.one_of("apiGroup", &[GROUP], errors),
            _ => subject.one_of("kind", &["ServiceAccount", "User", "Group"], errors),
        }
    }
}
