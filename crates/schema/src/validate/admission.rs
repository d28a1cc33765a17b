//! Webhook configurations, admission policies and their bindings.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/admissionregistration/validation`.

use std::collections::BTreeSet;

use carrack_cel::Type;
use serde_json::Value;

use super::access::{Errors, Place};
use super::{expressions, names, workloads};
use crate::error::FieldError;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];

pub(super) fn webhooks(object: &Place<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for webhook in object.items("webhooks") {
        if let Some(name) = webhook.needs_text("name", errors) {
            webhook.has_form("name", names::dns1123_subdomain, errors);
            if name.split('.').count() < 3 {
                webhook.invalid("name", "should be a domain with at least three segments separated by dots", errors);
            }
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(webhook.path_of("name"), name));
            }
        }
        webhook.one_of("sideEffects", &["None", "NoneOnDryRun"], errors);
        let versions = webhook.texts("admissionReviewVersions");
        let path = webhook.path_of("admissionReviewVersions");
        if versions.is_empty() {
            errors.push(FieldError::required(path, "must specify one of v1, v1beta1"));
        } else if !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
            errors.push(FieldError::invalid(path, versions, "must include at least one of v1, v1beta1"));
        }
        if webhook.number("timeoutSeconds").is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            webhook.invalid("timeoutSeconds", "the timeout value must be between 1 and 30 seconds", errors);
        }
        for (field, allowed) in [
            ("failurePolicy", &["Fail", "Ignore"][..]),
            ("matchPolicy", &["Equivalent", "Exact"]),
            ("reinvocationPolicy", &["IfNeeded", "Never"]),
        ] {
            if webhook.some(field).is_some() {
                webhook.one_of(field, allowed, errors);
            }
        }
        client_config(&webhook.field("clientConfig"), errors);
        for rule in webhook.items("rules") {
            self::rule(&rule, errors);
        }
        for field in ["namespaceSelector", "objectSelector"] {
            workloads::selector(&webhook.field(field), errors);
        }
        expressions::conditions(&webhook, &expressions::conditions_env(), errors);
    }
}

/// Where a webhook is: by URL or by Service.
pub(super) fn client_config(config: &Place<'_>, errors: &mut Errors) {
    let (url, service) = (config.some("url"), config.some("service"));
    match (&url, &service) {
        (Some(_), None) => {
            let text = config.text("url");
            if !text.starts_with("https://") {
                config.invalid("url", "'https' is the only allowed URL scheme", errors);
            } else if text.contains('#') || text.contains('?') || text.contains('@') {
                config.invalid("url", "fragments, query parameters and user information are not permitted", errors);
            }
        }
        (None, Some(service)) => {
            service.needs_text("name", errors);
            service.needs_text("namespace", errors);
            if service.number("port").is_some_and(|port| !(1..=65535).contains(&port)) {
                service.invalid("port", "port is not valid: must be between 1 and 65535, inclusive", errors);
            }
        }
        _ => errors.push(FieldError::required(config.path.clone(), "exactly one of url or service is required")),
    }
}

fn rule(rule: &Place<'_>, errors: &mut Errors) {
    for field in ["apiGroups", "apiVersions", "resources", "operations"] {
        let all = rule.texts(field);
        if all.is_empty() {
            errors.push(FieldError::required(rule.path_of(field), ""));
        } else if all.len() > 1 && all.contains(&"*") && field != "resources" {
            let text = "if '*' is present, must not specify other values";
            errors.push(FieldError::invalid(rule.path_of(field), all.clone(), text));
        }
        if field == "operations" {
            for (index, operation) in all.iter().enumerate().filter(|(_, operation)| !OPERATIONS.contains(operation)) {
                errors.push(FieldError::not_supported(
                    format!("{}[{index}]", rule.path_of(field)),
                    *operation,
                    &OPERATIONS,
                ));
            }
        }
    }
    if rule.some("scope").is_some() {
        rule.one_of("scope", &SCOPES, errors);
    }
}

fn resources(place: &Place<'_>, errors: &mut Errors) {
    for field in ["resourceRules", "excludeResourceRules"] {
        for rule in place.items(field) {
            self::rule(&rule, errors);
        }
    }
    for field in ["namespaceSelector", "objectSelector"] {
        workloads::selector(&place.field(field), errors);
    }
}

pub(super) fn policy(object: &Place<'_>, mutates: bool, errors: &mut Errors) {
    let spec = object.field("spec");
    if !spec.exists() {
        errors.push(FieldError::required("spec", ""));
        return;
    }
    let constraints = spec.field("matchConstraints");
    if !constraints.exists() {
        errors.push(FieldError::required(constraints.path.clone(), ""));
    } else if constraints.items("resourceRules").next().is_none() {
        errors.push(FieldError::required(constraints.path_of("resourceRules"), ""));
    }
    resources(&constraints, errors);
    spec.one_of("failurePolicy", &["Fail", "Ignore"], errors);
    let kind = spec.field("paramKind");
    if kind.exists() {
        kind.needs_text("apiVersion", errors);
        kind.needs_text("kind", errors);
    }
    expressions::conditions(&spec, &expressions::policy_conditions_env(kind.exists()), errors);
    let variables: Vec<&Value> = spec.items("variables").map(|variable| variable.value).collect();
    for (index, variable) in spec.items("variables").enumerate() {
        let env = expressions::policy_env(kind.exists(), variables[..index].iter().copied());
        expressions::compiles(&variable, "expression", &env, &[Type::Dyn], errors);
        if let Some(name) = variable.needs_text("name", errors) {
            let is_identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_identifier {
                variable.invalid("name", "name is not a valid CEL identifier", errors);
            }
        }
    }
    let env = expressions::policy_env(kind.exists(), variables.into_iter());
    if mutates {
        mutations(&spec, &env, errors);
    } else {
        validations(&spec, &env, errors);
    }
}

fn validations(spec: &Place<'_>, env: &carrack_cel::Env, errors: &mut Errors) {
    let has_some = |field: &str| spec.items(field).next().is_some();
    if !has_some("validations") && !has_some("auditAnnotations") {
        for field in ["validations", "auditAnnotations"] {
            let text = "validations or auditAnnotations must contain at least one item";
            errors.push(FieldError::required(spec.path_of(field), text));
        }
    }
    for validation in spec.items("validations") {
        expressions::compiles(&validation, "expression", env, &[Type::Bool], errors);
        if validation.some("messageExpression").is_some() {
            expressions::compiles(&validation, "messageExpression", env, &[Type::string()], errors);
        }
        if validation.text("message").contains('\n') {
            validation.invalid("message", "message must not contain line breaks", errors);
        }
        if validation.some("reason").is_some() {
            validation.one_of("reason", &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"], errors);
        }
    }
    for annotation in spec.items("auditAnnotations") {
        annotation.needs_text("key", errors);
        expressions::compiles(&annotation, "valueExpression", env, &[Type::string(), Type::Null], errors);
    }
}

fn mutations(spec: &Place<'_>, env: &carrack_cel::Env, errors: &mut Errors) {
    if spec.items("mutations").next().is_none() {
        errors.push(FieldError::required(spec.path_of("mutations"), ""));
    }
    for mutation in spec.items("mutations") {
        match mutation.text("patchType") {
            "JSONPatch" => {
                let list = Type::list(Type::Dyn, carrack_cel::UNBOUNDED);
                expressions::compiles(&mutation.field("jsonPatch"), "expression", env, &[list], errors);
            }
            "ApplyConfiguration" => {
                let place = mutation.field("applyConfiguration");
                expressions::compiles(&place, "expression", env, &[Type::Dyn], errors);
            }
            _ => mutation.one_of("patchType", &["ApplyConfiguration", "JSONPatch"], errors),
        }
    }
}

pub(super) fn binding(object: &Place<'_>, mutates: bool, errors: &mut Errors) {
    let spec = object.field("spec");
    spec.needs_text("policyName", errors);
    resources(&spec.field("matchResources"), errors);
    let reference = spec.field("paramRef");
    if reference.exists() {
        if reference.text("name").is_empty() == reference.some("selector").is_none() {
            errors.push(FieldError::required(
                reference.path.clone(),
                "exactly one of name or selector must be specified",
            ));
        }
        reference.one_of("parameterNotFoundAction", &["Allow", "Deny"], errors);
    }
    if mutates {
        return;
    }
    let actions = spec.texts("validationActions");
    let path = spec.path_of("validationActions");
    if actions.is_empty() {
        errors.push(FieldError::required(path.clone(), "at least one validation action is required"));
    }
    for (index, action) in actions.iter().enumerate() {
        const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
        if !ACTIONS.contains(action) {
            errors.push(FieldError::not_supported(format!("{path}[{index}]"), *action, &ACTIONS));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        errors.push(FieldError::invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"));
    }
}

/// An APIService: `version.group` is its name.
pub(super) fn api_service(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let expected = format!("{}.{}", spec.text("version"), spec.text("group"));
    let name = object.at(&["metadata"]).text("name");
    if name.trim_end_matches('.') != expected.trim_end_matches('.') {
        let text = format!("must be `spec.version+\".\"+spec.group`: {expected:?}");
        errors.push(FieldError::invalid("metadata.name", name, text));
    }
    spec.needs_text("version", errors);
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        if spec.number(field).is_none_or(|number| number <= 0 || number > most) {
            spec.invalid(field, format!("must be positive and less than {most}"), errors);
        }
    }
    let service = spec.field("service");
    if service.exists() {
        service.needs_text("name", errors);
        service.needs_text("namespace", errors);
        if spec.flag("insecureSkipTLSVerify") && !spec.text("caBundle").is_empty() {
            spec.invalid("insecureSkipTLSVerify", "may not be true if caBundle is present", errors);
        }
    } else if spec.flag("insecureSkipTLSVerify") {
        spec.invalid("insecureSkipTLSVerify", "may not be set for a local APIService", errors);
    }
}
