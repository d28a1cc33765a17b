//! Quotas, limit ranges, disruption budgets, certificate requests.

use std::collections::BTreeSet;

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{NOT_NEGATIVE, quantity as amount};
use super::{names, workloads};
use crate::error::FieldError;

/// A number, or a percentage, which is no more than `most`.
pub(super) fn number_or_percent(spec: &Place<'_>, field: &str, most: Option<u64>, errors: &mut Errors) {
    match spec.value.get(field) {
        Some(Value::String(text)) => {
            let digits = text.strip_suffix('%').filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
            match digits.map(str::parse::<u64>) {
                Some(Ok(percent)) if most.is_none_or(|most| percent <= most) => {}
                Some(_) => spec.invalid(field, "must not be greater than 100%", errors),
                None => spec.invalid(
                    field,
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                    errors,
                ),
            }
        }
        _ => spec.not_negative(field, errors),
    }
}

pub(super) fn disruption_budget(spec: &Place<'_>, errors: &mut Errors) {
    if spec.some("minAvailable").is_some() && spec.some("maxUnavailable").is_some() {
        errors.push(FieldError::invalid(
            spec.path.clone(),
            spec.value.clone(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    number_or_percent(spec, "minAvailable", Some(100), errors);
    number_or_percent(spec, "maxUnavailable", Some(100), errors);
    if spec.some("unhealthyPodEvictionPolicy").is_some() {
        spec.one_of("unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], errors);
    }
    workloads::selector(&spec.field("selector"), errors);
}

/// Names without a domain that a quota may limit.
const QUOTA_RESOURCES: [&str; 17] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
];
const QUOTA_OBJECTS: [&str; 2] = ["configmaps", "persistentvolumeclaims"];
/// What a quota may be narrowed to.
pub const QUOTA_SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Scopes that an object is in or not, whatever it says.
const SCOPES_OF_NO_VALUES: [&str; 5] =
    ["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity"];

/// Whether a resource can be limited for objects of a scope: others are never in it (upstream's
/// `IsResourceQuotaScopeValidForResource`).
fn can_be_scoped(scope: &str, name: &str) -> bool {
    let computed = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"].contains(&name);
    match scope {
        "BestEffort" => name == "pods",
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            name == "pods" || computed
        }
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&name),
        _ => true,
    }
}

/// Whether a quota's scopes can hold together, and for what it limits.
fn scopes_fit(place: &Place<'_>, scopes: &[&str], spec: &Place<'_>, errors: &mut Errors) {
    let mut invalid = |text: &str| errors.push(FieldError::invalid(place.path.clone(), place.value.clone(), text));
    for scope in scopes {
        let limited = spec.entries("hard").filter(|(name, _)| is_standard(name));
        for _ in limited.filter(|(name, _)| !can_be_scoped(scope, name)) {
            invalid("unsupported scope applied to resource");
        }
    }
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&one) && scopes.contains(&other) {
            invalid("conflicting scopes");
        }
    }
}

/// Whether a name without a domain is one that a quota may limit.
fn is_standard(name: &str) -> bool {
    QUOTA_RESOURCES.contains(&name)
        || QUOTA_OBJECTS.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Amounts of what a quota limits, by name.
pub(super) fn quota_amounts(list: &Place<'_>, errors: &mut Errors) {
    for (name, value) in list.map().into_iter().flatten() {
        let path = format!("{}[{name}]", list.path);
        if let Some(problem) = names::qualified_name(name) {
            errors.push(FieldError::invalid(path, name.as_str(), problem));
            continue;
        }
        if !name.contains('/') && !is_standard(name) {
            errors.push(FieldError::invalid(path, name.as_str(), "must be a standard resource for quotas"));
            continue;
        }
        let Some(quantity) = amount(value) else { continue };
        if quantity.is_negative() {
            errors.push(FieldError::invalid(path, value.clone(), NOT_NEGATIVE));
        } else if !quantity.is_whole() && !name.contains("cpu") && !name.contains("memory") && !name.contains("storage")
        {
            errors.push(FieldError::invalid(path, value.clone(), "must be an integer"));
        }
    }
}

pub(super) fn quota(spec: &Place<'_>, errors: &mut Errors) {
    quota_amounts(&spec.field("hard"), errors);
    let scopes = spec.texts("scopes");
    for scope in &scopes {
        if !QUOTA_SCOPES.contains(scope) {
            errors.push(FieldError::invalid(spec.path_of("scopes"), *scope, "unsupported scope"));
        }
    }
    scopes_fit(&spec.field("scopes"), &scopes, spec, errors);
    let selector = spec.field("scopeSelector");
    let selected: Vec<&str> =
        selector.items("matchExpressions").map(|expression| expression.text("scopeName")).collect();
    scopes_fit(&selector.field("matchExpressions"), &selected, spec, errors);
    for expression in selector.items("matchExpressions") {
        let scope = expression.text("scopeName");
        if !QUOTA_SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(expression.path_of("scopeName"), scope, "unsupported scope"));
        }
        if SCOPES_OF_NO_VALUES.contains(&scope) && expression.text("operator") != "Exists" {
            let text = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            expression.invalid("operator", text, errors);
        }
        let values = expression.texts("values");
        match expression.text("operator") {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                expression.path_of("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            )),
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                expression.invalid(
                    "values",
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                    errors,
                );
            }
            "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(expression.path_of("operator"), other, "not a valid selector operator"))
            }
        }
    }
}

pub(super) fn limit_range(spec: &Place<'_>, errors: &mut Errors) {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for item in spec.items("limits") {
        let kind = item.text("type");
        if item.needs_text("type", errors).is_some() && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
            let unknown = || "must be a standard limit type or fully qualified".to_owned();
            let form = |kind: &str| names::qualified_name(kind).or_else(|| (!kind.contains('/')).then(unknown));
            item.has_form("type", form, errors);
        }
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(item.path_of("type"), kind));
        }
        let get = |list: &str, name: &str| item.value.get(list).and_then(|list| list.get(name)).and_then(amount);
        if kind == "Pod" {
            for list in ["default", "defaultRequest"] {
                if item.entries(list).next().is_some() {
                    errors.push(FieldError::forbidden(item.path_of(list), "may not be specified when `type` is 'Pod'"));
                }
            }
        }
        if kind == "PersistentVolumeClaim" && get("min", "storage").or(get("max", "storage")).is_none() {
            let text = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(FieldError::required(item.path_of("limits"), text));
        }
        let order = [
            ("min", "min value", "max", "max value"),
            ("defaultRequest", "default request value", "max", "max value"),
            ("default", "default value", "max", "max value"),
            ("defaultRequest", "default request value", "default", "default limit value"),
        ];
        for (list, what, bound_list, bound_what) in order {
            for (name, value) in item.entries(list) {
                let (Some(quantity), Some(bound)) = (amount(value), get(bound_list, name)) else { continue };
                if quantity > bound {
                    let text = format!("{what} {quantity} is greater than {bound_what} {bound}");
                    errors.push(FieldError::invalid(
                        format!("{}[{name}]", item.path_of(list)),
                        quantity.to_string(),
                        text,
                    ));
                }
            }
        }
        for list in ["default", "defaultRequest"] {
            for (name, value) in item.entries(list) {
                let (Some(quantity), Some(min)) = (amount(value), get("min", name)) else { continue };
                if quantity < min {
                    let what = if list == "default" { "default value" } else { "default request value" };
                    let text = format!("min value {min} is greater than {what} {quantity}");
                    errors.push(FieldError::invalid(format!("{}[{name}]", item.path_of("min")), min.to_string(), text));
                }
            }
        }
        for (name, value) in item.entries("maxLimitRequestRatio") {
            if amount(value).is_some_and(|ratio| ratio < Quantity::from_units(1, Default::default())) {
                let path = format!("{}[{name}]", item.path_of("maxLimitRequestRatio"));
                let shown = amount(value).unwrap_or_default().to_string();
                errors.push(FieldError::invalid(path, shown.as_str(), format!("ratio {shown} is less than 1")));
            }
        }
    }
}

const USAGES: [&str; 23] = [
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];
/// Certificates are asked for this many seconds at least.
const MIN_VALIDITY_S: i64 = 600;

/// What holds for new requests.
pub(super) fn new_certificate_request(spec: &Place<'_>, errors: &mut Errors) {
    let signer = spec.text("signerName");
    if signer == "kubernetes.io/legacy-unknown" {
        let text = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid(spec.path_of("signerName"), signer, text));
    }
}

/// Whose bundle it is decides how it is named; the certificates in it are looked at by who can read some.
pub(super) fn trust_bundle(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let (signer, metadata) = (spec.text("signerName"), object.field("metadata"));
    let name = metadata.text("name");
    if signer.is_empty() {
        if name.contains(':') {
            let text = "ClusterTrustBundle without signer name must not have \":\" in its name";
            errors.push(FieldError::invalid("metadata.name", name, text));
        } else {
            metadata.has_form("name", names::dns1123_subdomain, errors);
        }
        return;
    }
    signer_name(&spec, signer, errors);
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        None => {
            let text = format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
            errors.push(FieldError::invalid("metadata.name", name, text));
        }
        Some(rest) => {
            errors.extend(names::dns1123_subdomain(rest).map(|why| FieldError::invalid("metadata.name", name, why)));
        }
    }
}

pub(super) fn certificate_request(spec: &Place<'_>, errors: &mut Errors) {
    if let Some(signer) = spec.needs_text("signerName", errors) {
        signer_name(spec, signer, errors);
    }
    request_usages(spec, errors);
}

pub(super) fn signer_name(spec: &Place<'_>, signer: &str, errors: &mut Errors) {
    let problem = match signer.split_once('/') {
        None => Some("must be a fully qualified domain and path of the form 'example.com/signer-name'".into()),
        Some((domain, _)) => names::dns1123_subdomain(domain),
    };
    errors.extend(problem.map(|problem| FieldError::invalid(spec.path_of("signerName"), signer, problem)));
}

fn request_usages(spec: &Place<'_>, errors: &mut Errors) {
    let usages = spec.texts("usages");
    if usages.is_empty() {
        errors.push(FieldError::required(spec.path_of("usages"), "usages cannot be empty"));
    }
    let mut seen = BTreeSet::new();
    for (index, usage) in usages.iter().enumerate() {
        let path = format!("{}[{index}]", spec.path_of("usages"));
        if !USAGES.contains(usage) {
            errors.push(FieldError::not_supported(path, *usage, &USAGES));
        } else if !seen.insert(*usage) {
            errors.push(FieldError::duplicate(path, *usage));
        }
    }
    if let Some(seconds) = spec.number("expirationSeconds").filter(|seconds| *seconds < MIN_VALIDITY_S) {
        let text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(spec.path_of("expirationSeconds"), seconds, text));
    }
}
