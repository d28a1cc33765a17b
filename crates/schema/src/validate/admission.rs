//! Webhook configurations, admission policies and their bindings.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/admissionregistration/validation`.

use std::collections::BTreeSet;

use carrack_cel::Type;
use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::unique;
use super::{expressions, formats, names, workloads};
use crate::error::FieldError;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const MATCH_POLICIES: &[&str] = &["Equivalent", "Exact"];
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const REINVOCATION_POLICIES: &[&str] = &["IfNeeded", "Never"];
/// Most annotations of a policy, and most bytes of what gives the value of one.
const MAX_ANNOTATIONS: usize = 20;
const MAX_ANNOTATION: usize = 5 << 10;
/// What CEL has for itself, and is no name.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

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
        match webhook.some("sideEffects") {
            None => {
                let text = "must specify one of None, NoneOnDryRun";
                errors.push(FieldError::required(webhook.path_of("sideEffects"), text));
            }
            Some(_) => webhook.one_of("sideEffects", &["None", "NoneOnDryRun"], errors),
        }
        review_versions(&webhook, "admissionReviewVersions", errors);
        if webhook.number("timeoutSeconds").is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            webhook.invalid("timeoutSeconds", "the timeout value must be between 1 and 30 seconds", errors);
        }
        for (field, allowed) in [
            ("failurePolicy", &["Fail", "Ignore"][..]),
            ("matchPolicy", MATCH_POLICIES),
            ("reinvocationPolicy", REINVOCATION_POLICIES),
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

/// The versions in which a webhook takes what it is asked, of which one at least is known here.
pub(super) fn review_versions(webhook: &Place<'_>, field: &str, errors: &mut Errors) {
    let (versions, path) = (webhook.texts(field), webhook.path_of(field));
    let wanted = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        errors.push(FieldError::required(path, format!("must specify one of {wanted}")));
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let is_new = seen.insert(*version);
        let problem = if is_new { names::dns1035_label(version) } else { Some("duplicate version".to_owned()) };
        errors.extend(problem.map(|problem| FieldError::invalid(format!("{path}[{index}]"), *version, problem)));
    }
    if !versions.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        errors.push(FieldError::invalid(path, versions, format!("must include at least one of {wanted}")));
    }
}

/// Where a webhook is: by URL or by Service.
pub(super) fn client_config(config: &Place<'_>, errors: &mut Errors) {
    match (config.some("url"), config.some("service")) {
        (Some(url), None) => self::url(&url, errors),
        (None, Some(service)) => {
            for field in ["name", "namespace"] {
                if service.text(field).is_empty() {
                    let text = format!("service {field} is required");
                    errors.push(FieldError::required(service.path_of(field), text));
                }
            }
            if service.number("port").is_some_and(|port| !(1..=65535).contains(&port)) {
                service.invalid("port", "port is not valid: must be between 1 and 65535, inclusive", errors);
            }
            service_path(&service, errors);
        }
        _ => errors.push(FieldError::required(config.path.clone(), "exactly one of url or service is required")),
    }
}

/// A URL with a scheme, a host and a path, and nothing else.
fn url(place: &Place<'_>, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let text = place.value.as_str().unwrap_or_default();
    let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.strip_prefix("//").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_https = scheme.eq_ignore_ascii_case("https");
    if is_https && !host.is_empty() && !formats::is_uri(text) {
        errors.push(FieldError::required(place.path.clone(), format!("url must be a valid URL{FORM}")));
    }
    let wrong = [
        (!is_https, scheme, format!("'https' is the only allowed URL scheme{FORM}")),
        (host.is_empty(), host, format!("host must be provided{FORM}")),
        (authority.contains('@'), user, "user information is not permitted in the URL".to_owned()),
        (!fragment.is_empty(), fragment, "fragments are not permitted in the URL".to_owned()),
        (!query.is_empty(), query, "query parameters are not permitted in the URL".to_owned()),
    ];
    for (_, part, why) in wrong.into_iter().filter(|(is_wrong, ..)| *is_wrong) {
        errors.push(FieldError::invalid(place.path.clone(), part, why));
    }
}

/// A path below a service: names that could stand in a host, divided by slashes.
fn service_path(service: &Place<'_>, errors: &mut Errors) {
    let path = service.text("path");
    if matches!(path, "" | "/") {
        return;
    }
    if !path.starts_with('/') {
        service.invalid("path", "must start with a '/'", errors);
    }
    let segments = path.strip_prefix('/').unwrap_or(path);
    for (index, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        if segment.is_empty() {
            service.invalid("path", format!("segment[{index}] may not be empty"), errors);
        } else if let Some(problem) = names::dns1123_subdomain(segment) {
            service.invalid("path", format!("segment[{index}]: {problem}"), errors);
        }
    }
}

fn rule(rule: &Place<'_>, errors: &mut Errors) {
    for (field, what) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let all = rule.texts(field);
        if all.is_empty() {
            errors.push(FieldError::required(rule.path_of(field), ""));
        } else if all.len() > 1 && all.contains(&"*") {
            rule.invalid(field, format!("if '*' is present, must not specify other {what}"), errors);
        }
    }
    for operation in rule.items("operations") {
        let text = operation.value.as_str().unwrap_or_default();
        if !OPERATIONS.contains(&text) {
            errors.push(FieldError::not_supported(operation.path, text, &OPERATIONS));
        }
    }
    for version in rule.items("apiVersions").filter(|version| version.value == "") {
        errors.push(FieldError::required(version.path, ""));
    }
    rule_resources(rule, errors);
    if rule.some("scope").is_some() {
        rule.one_of("scope", &SCOPES, errors);
    }
    for name in rule.items("resourceNames") {
        let text = name.value.as_str().unwrap_or_default();
        errors.extend(names::path_segment(text).map(|problem| FieldError::invalid(name.path, text, problem)));
    }
    unique(
        rule.items("resourceNames"),
        |name| name.value.as_str(),
        |name| FieldError::duplicate(name.path.clone(), name.value.clone()),
        errors,
    );
}

/// The resources of a rule, and their subresources: none is covered by another one (`validateResources`).
fn rule_resources(rule: &Place<'_>, errors: &mut Errors) {
    const FIELD: &str = "resources";
    let all = rule.texts(FIELD);
    if all.is_empty() {
        errors.push(FieldError::required(rule.path_of(FIELD), ""));
    }
    let (mut with_all, mut of_all) = (BTreeSet::new(), BTreeSet::new());
    for place in rule.items(FIELD) {
        let given = place.value.as_str().unwrap_or_default();
        if given.is_empty() {
            errors.push(FieldError::required(place.path, ""));
            continue;
        }
        let Some((resource, subresource)) = given.split_once('/') else { continue };
        for (is_covered, by) in [
            (with_all.contains(resource), format!("{resource}/*")),
            (of_all.contains(subresource), format!("*/{subresource}")),
        ] {
            if is_covered {
                let text = format!("if '{by}' is present, must not specify {given}");
                errors.push(FieldError::invalid(place.path.clone(), given, text));
            }
        }
        if subresource == "*" {
            with_all.insert(resource);
        }
        if resource == "*" {
            of_all.insert(subresource);
        }
    }
    if all.len() > 1 && all.contains(&"*/*") {
        rule.invalid(FIELD, "if '*/*' is present, must not specify other resources", errors);
    }
    // Upstream looks at the last one without a subresource, so that `*` may follow others.
    let last = all.iter().rfind(|given| !given.is_empty() && !given.contains('/'));
    if all.contains(&"*") && last.is_some_and(|last| *last != "*") {
        let text = "if '*' is present, must not specify other resources without subresources";
        rule.invalid(FIELD, text, errors);
    }
}

fn resources(place: &Place<'_>, errors: &mut Errors) {
    if place.some("matchPolicy").is_some() {
        place.one_of("matchPolicy", MATCH_POLICIES, errors);
    }
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
        param_kind(&kind, errors);
    }
    expressions::conditions(&spec, &expressions::policy_conditions_env(kind.exists()), errors);
    let variables: Vec<&Value> = spec.items("variables").map(|variable| variable.value).collect();
    for (index, variable) in spec.items("variables").enumerate() {
        let env = expressions::policy_env(kind.exists(), variables[..index].iter().copied());
        expressions::compiles(&variable, "expression", &env, &[Type::Dyn], errors);
        if let Some(name) = variable.needs_text("name", errors) {
            let is_identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_identifier || RESERVED.contains(&name) {
                variable.invalid("name", "name is not a valid CEL identifier", errors);
            }
        }
    }
    let env = expressions::policy_env(kind.exists(), variables.into_iter());
    if mutates {
        mutations(&spec, &env, errors);
    } else {
        validations(&spec, &env, errors);
        audit_annotations(&spec, object.field("metadata").text("name"), &env, errors);
    }
}

/// Which kind of objects has the parameters of a policy.
fn param_kind(place: &Place<'_>, errors: &mut Errors) {
    if let Some(given) = place.needs_text("apiVersion", errors) {
        let (group, version) = given.split_once('/').unwrap_or(("", given));
        if version.contains('/') {
            place.invalid("apiVersion", format!("unexpected GroupVersion string: {given}"), errors);
        } else if version.is_empty() {
            place.invalid("apiVersion", "version must be specified", errors);
        } else {
            let of_group = Some(group).filter(|group| !group.is_empty()).and_then(names::dns1123_subdomain);
            for (part, problem) in [(group, of_group), (version, names::dns1035_label(version))] {
                let path = place.path_of("apiVersion");
                errors.extend(problem.map(|problem| FieldError::invalid(path, part, problem)));
            }
        }
    }
    place.needs_text("kind", errors);
    place.has_form("kind", names::kind, errors);
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
        let expression = validation.text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            validation.invalid("messageExpression", "must be non-empty if specified", errors);
        } else if !expression.is_empty() {
            expressions::compiles(&validation, "messageExpression", env, &[Type::string()], errors);
        }
        let message = validation.text("message");
        if !message.is_empty() && message.trim().is_empty() {
            validation.invalid("message", "message must be non-empty if specified", errors);
        } else if message.trim().contains(['\n', '\r']) {
            validation.invalid("message", "message must not contain line breaks", errors);
        }
        if validation.some("reason").is_some() {
            validation.one_of("reason", &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"], errors);
        }
    }
}

/// What a policy of this name says in the audit log: each key stands behind the name there.
fn audit_annotations(spec: &Place<'_>, policy: &str, env: &carrack_cel::Env, errors: &mut Errors) {
    const FIELD: &str = "auditAnnotations";
    if spec.items(FIELD).count() > MAX_ANNOTATIONS {
        spec.invalid(FIELD, format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations"), errors);
    }
    for annotation in spec.items(FIELD) {
        let key = format!("{policy}/{}", annotation.text("key"));
        if let Some(problem) = names::qualified_name(&key) {
            errors.push(FieldError::invalid(annotation.path_of("key"), key, problem));
        }
        if annotation.text("valueExpression").trim().len() > MAX_ANNOTATION {
            let text = format!("must not exceed {MAX_ANNOTATION} bytes in length");
            errors.push(FieldError::required(annotation.path_of("valueExpression"), text));
            continue;
        }
        expressions::compiles(&annotation, "valueExpression", env, &[Type::string(), Type::Null], errors);
    }
    unique(
        spec.items(FIELD),
        |annotation| Some(annotation.text("key")),
        |annotation| FieldError::duplicate(annotation.path_of("key"), annotation.text("key")),
        errors,
    );
}

fn mutations(spec: &Place<'_>, env: &carrack_cel::Env, errors: &mut Errors) {
    if spec.needs_text("reinvocationPolicy", errors).is_some() {
        spec.one_of("reinvocationPolicy", REINVOCATION_POLICIES, errors);
    }
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
                // What is written as an object is of its own type: a map is none, though it may have the same fields.
                let place = mutation.field("applyConfiguration");
                expressions::compiles(&place, "expression", env, &[Type::Opaque("Object")], errors);
            }
            _ => mutation.one_of("patchType", &["ApplyConfiguration", "JSONPatch"], errors),
        }
    }
}

pub(super) fn binding(object: &Place<'_>, mutates: bool, errors: &mut Errors) {
    let spec = object.field("spec");
    spec.needs_text("policyName", errors);
    spec.has_form("policyName", names::dns1123_subdomain, errors);
    resources(&spec.field("matchResources"), errors);
    if let Some(reference) = spec.some("paramRef") {
        param_ref(&reference, errors);
    }
    if mutates {
        return;
    }
    let actions = spec.texts("validationActions");
    let path = spec.path_of("validationActions");
    if actions.is_empty() {
        errors.push(FieldError::required(path.clone(), "at least one validation action is required"));
    }
    let mut seen = BTreeSet::new();
    for (index, action) in actions.iter().enumerate() {
        const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
        if !ACTIONS.contains(action) {
            errors.push(FieldError::not_supported(format!("{path}[{index}]"), *action, &ACTIONS));
        }
        if !seen.insert(*action) {
            errors.push(FieldError::duplicate(format!("{path}[{index}]"), *action));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        errors.push(FieldError::invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"));
    }
}

/// Which objects have the parameters that a policy is bound with.
fn param_ref(reference: &Place<'_>, errors: &mut Errors) {
    reference.has_form("name", names::path_segment, errors);
    workloads::selector(&reference.field("selector"), errors);
    match (reference.text("name").is_empty(), reference.some("selector").is_none()) {
        (false, false) => {
            for field in ["name", "selector"] {
                let text = "name and selector are mutually exclusive";
                errors.push(FieldError::forbidden(reference.path_of(field), text));
            }
        }
        (true, true) => {
            let text = "one of name or selector must be specified";
            errors.push(FieldError::required(reference.path.clone(), text));
        }
        _ => {}
    }
    if reference.needs_text("parameterNotFoundAction", errors).is_some() {
        reference.one_of("parameterNotFoundAction", &["Deny", "Allow"], errors);
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
