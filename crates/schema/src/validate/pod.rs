//! What a pod demands. What may change in one is in [`super::pod_update`].

use std::collections::BTreeSet;
use std::sync::LazyLock;

use carrack_types::well_known::MIRROR_ANNOTATION;
use serde_json::{Value, json};

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, unique};
use super::{affinity, containers, metadata, names, os, resources, security, volumes};
use crate::error::FieldError;

const RESTART_POLICIES: &[&str] = &["Always", "OnFailure", "Never"];
const DNS_POLICIES: &[&str] = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const PREEMPTION_POLICIES: &[&str] = &["PreemptLowerPriority", "Never"];
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// Limits of the C library's resolver.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// What Linux has room for (`sethostname(2)`).
const MAX_HOSTNAME: usize = 64;

const SPEC: &[Row] = &[
    ("terminationGracePeriodSeconds", Demand::Required),
    ("activeDeadlineSeconds", Demand::Between(1, i32::MAX as i64)),
    ("restartPolicy", Demand::OneOf(RESTART_POLICIES)),
    ("dnsPolicy", Demand::OneOf(DNS_POLICIES)),
    ("preemptionPolicy", Demand::OneOf(PREEMPTION_POLICIES)),
    ("nodeSelector", Demand::Labels),
    ("serviceAccountName", Demand::Form(names::dns1123_subdomain)),
    ("nodeName", Demand::Form(names::dns1123_subdomain)),
    ("hostname", Demand::Form(names::dns1123_label)),
    ("hostnameOverride", Demand::Form(names::dns1123_subdomain)),
    ("subdomain", Demand::Form(names::dns1123_label)),
    ("priorityClassName", Demand::Form(names::dns1123_subdomain)),
    ("runtimeClassName", Demand::Form(names::dns1123_subdomain)),
    ("os.name", Demand::Needed("cannot be empty")),
    ("hostAliases[].ip", Demand::Required),
    ("hostAliases[].ip", Demand::Address),
    ("hostAliases[].hostnames", Demand::Each(names::dns1123_subdomain)),
    ("readinessGates[].conditionType", Demand::Form(names::qualified_name)),
    ("resourceClaims[].name", Demand::Required),
    ("resourceClaims[].name", Demand::Form(names::dns1123_label)),
    ("resourceClaims[].resourceClaimName", Demand::Form(names::dns1123_subdomain)),
    ("resourceClaims[].resourceClaimTemplateName", Demand::Form(names::dns1123_subdomain)),
    ("dnsConfig.nameservers[]", Demand::Address),
];

/// Checks a template of pods: its metadata and its spec. Each pod gets a volume besides for each of the claims that are made
/// for it, by these names; a volume of the template that has the same name gives way.
pub(super) fn template(template: &Place<'_>, claims: &[&str], errors: &mut Errors) {
    let before = errors.len();
    metadata::labels(&template.field("metadata"), "labels", errors);
    // Upstream names these without the metadata that they are in.
    let (of_metadata, shown) = (format!("{}.metadata.", template.path), format!("{}.", template.path));
    for error in errors.iter_mut().skip(before) {
        error.path = error.path.replacen(&of_metadata, &shown, 1);
    }
    let spec = template.field("spec");
    let annotations = Place { path: template.path_of("annotations"), ..template.at(&["metadata", "annotations"]) };
    security::annotations(&annotations, &spec, errors);
    of_named(&spec, "", claims, errors);
    if spec.items("ephemeralContainers").next().is_some() {
        let path = spec.path_of("ephemeralContainers");
        errors.push(FieldError::forbidden(path, "ephemeral containers not allowed in pod template"));
    }
}

/// Checks a pod, new or changed.
pub(super) fn object(object: &Place<'_>, errors: &mut Errors) {
    let (metadata, spec) = (object.field("metadata"), object.field("spec"));
    of_named(&spec, metadata.text("name"), &[], errors);
    annotated(object, errors);
}

/// What annotations of a pod may say.
pub(super) fn annotated(object: &Place<'_>, errors: &mut Errors) {
    let (metadata, spec) = (object.field("metadata"), object.field("spec"));
    let annotations = metadata.field("annotations");
    if annotations.some(MIRROR_ANNOTATION).is_some() && spec.text("nodeName").is_empty() {
        errors.push(FieldError::invalid(
            format!("metadata.annotations[{MIRROR_ANNOTATION}]"),
            annotations.text(MIRROR_ANNOTATION),
            "must set spec.nodeName if mirror pod annotation is set",
        ));
    }
    if let Some(cost) = annotations.some("controller.kubernetes.io/pod-deletion-cost")
        && cost.value.as_str().is_none_or(|text| text.parse::<i32>().is_err())
    {
        let path = "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]";
        errors.push(FieldError::invalid(path, cost.value.clone(), "must be a 32bit integer"));
    }
    if spec.text("serviceAccountName").is_empty() {
        for source in spec.items("volumes").flat_map(|volume| volume.field("projected").items("sources")) {
            if let Some(token) = source.some("serviceAccountToken") {
                let text = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(token.path, text));
            }
        }
    }
}

/// Checks a new pod, which brings nothing that only an existing one may have.
pub(super) fn create(place: &Place<'_>, errors: &mut Errors) {
    object(place, errors);
    let spec = place.field("spec");
    // They do not change, nor do the containers' names.
    security::annotations(&place.at(&["metadata", "annotations"]), &spec, errors);
    security::annotations_agree(place, errors);
    if spec.items("ephemeralContainers").next().is_some() {
        errors.push(FieldError::forbidden(spec.path_of("ephemeralContainers"), "cannot be set on create"));
    }
    if !spec.text("nodeName").is_empty() && spec.items("schedulingGates").next().is_some() {
        let text = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(spec.path_of("nodeName"), text));
    }
}

/// What a volume of a claim is for those who mount it.
static CLAIMED: LazyLock<Value> = LazyLock::new(|| json!({"persistentVolumeClaim": {}}));

fn of_named(spec: &Place<'_>, pod_name: &str, claims: &[&str], errors: &mut Errors) {
    check(spec, SPEC, errors);
    let mut volumes = volumes::of_pod(spec, pod_name, errors);
    let claimed: BTreeSet<&str> = claims.iter().copied().collect();
    volumes.retain(|(name, _)| !claimed.contains(name));
    volumes.extend(claims.iter().map(|name| (*name, &*CLAIMED)));
    containers::of_pod(spec, volumes, errors);
    if let Some(resources) = spec.some("resources") {
        pod_resources(&resources, spec, errors);
    }
    security::of_pod(&spec.field("securityContext"), spec, errors);
    hostname(spec, errors);
    affinity::check_all(&spec.field("affinity"), errors);
    dns(spec, errors);
    for (index, gate) in spec.items("schedulingGates").enumerate() {
        let name = gate.text("name");
        let path = format!("{}[{index}]", spec.path_of("schedulingGates"));
        errors.extend(names::qualified_name(name).map(|problem| FieldError::invalid(path, name, problem)));
    }
    unique(
        spec.items("schedulingGates"),
        |gate| Some(gate.text("name")),
        |gate| FieldError::duplicate(gate.path.clone(), gate.text("name")),
        errors,
    );
    unique(
        spec.items("resourceClaims"),
        |claim| Some(claim.text("name")),
        |claim| FieldError::duplicate(claim.path_of("name"), claim.text("name")),
        errors,
    );
    for claim in spec.items("resourceClaims") {
        let given = ["resourceClaimName", "resourceClaimTemplateName"].map(|field| claim.some(field).is_some());
        let text = match given {
            [true, true] => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            [false, false] => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            _ => continue,
        };
        errors.push(FieldError::invalid(claim.path.clone(), claim.value.clone(), text));
    }
    containers::spreading(spec, errors);
    for toleration in spec.items("tolerations") {
        self::toleration(&toleration, errors);
    }
    let system = spec.field("os").text("name");
    if !matches!(system, "" | "linux" | "windows") {
        errors.push(FieldError::not_supported(spec.path_of("os"), system, &["linux", "windows"]));
    }
    os::check(spec, errors);
    if let Some(overhead) = spec.some("overhead") {
        resources::amounts(&overhead, &format!("{}.limits", overhead.path), errors);
    }
}

/// Resources of the pod as a whole, which bound those of its containers.
fn pod_resources(place: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    const SUPPORTED: [&str; 2] = ["cpu", "memory"];
    for list in ["limits", "requests"] {
        let listed = place.field(list);
        for (name, _) in place.entries(list) {
            if !SUPPORTED.contains(&name.as_str()) && !name.starts_with("hugepages-") {
                let path = format!("{}[{name}]", listed.path);
                errors.push(FieldError::not_supported(path, name.as_str(), &["cpu", "hugepages-*", "memory"]));
            }
        }
    }
    if place.items("claims").next().is_some() {
        let text = "claims cannot be set for Resources at pod-level";
        errors.push(FieldError::forbidden(place.path_of("claims"), text));
    }
    resources::check(place, errors);
    resources::within_pod(place, spec, errors);
}

/// A host name that a pod gives itself is that of no node, and no other than the one it asks for.
fn hostname(spec: &Place<'_>, errors: &mut Errors) {
    const FIELD: &str = "hostnameOverride";
    let text = spec.text(FIELD);
    if text.is_empty() {
        return;
    }
    if text.len() > MAX_HOSTNAME {
        errors.push(FieldError::too_long(spec.path_of(FIELD), MAX_HOSTNAME as u64));
    }
    for flag in ["hostNetwork", "setHostnameAsFQDN"].into_iter().filter(|flag| spec.flag(flag)) {
        errors.push(FieldError::forbidden(spec.path_of(FIELD), format!("may not be set when `{flag}` is true")));
    }
}

fn dns(spec: &Place<'_>, errors: &mut Errors) {
    let config = spec.field("dnsConfig");
    let nameservers = config.texts("nameservers");
    if spec.text("dnsPolicy") == "None" {
        if !config.exists() {
            let text = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(config.path, text));
            return;
        }
        if nameservers.is_empty() {
            let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(config.path_of("nameservers"), text));
            return;
        }
    }
    if nameservers.len() > MAX_NAMESERVERS {
        config.invalid("nameservers", format!("must not have more than {MAX_NAMESERVERS} nameservers"), errors);
    }
    let searches = config.texts("searches");
    if searches.len() > MAX_SEARCHES {
        config.invalid("searches", format!("must not have more than {MAX_SEARCHES} search paths"), errors);
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARS {
        let text =
            format!("must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list");
        config.invalid("searches", text, errors);
    }
    for (index, search) in searches.into_iter().enumerate().filter(|(_, search)| *search != ".") {
        let plain = search.trim_end_matches('.').replace('_', "-");
        let problem = names::dns1123_subdomain(plain.trim_matches('-'));
        let path = format!("{}[{index}]", config.path_of("searches"));
        errors.extend(problem.map(|problem| FieldError::invalid(path, search, problem)));
    }
    for option in config.items("options") {
        if option.text("name").is_empty() {
            errors.push(FieldError::required(option.path, "must not be empty"));
        }
    }
}

/// Checks a toleration of taints. Upstream's `Lt` and `Gt` are behind a gate that is off unless somebody turns it on
/// (`TaintTolerationComparisonOperators`, alpha since 1.35), and without it are as any other operator that there is not.
pub(super) fn toleration(toleration: &Place<'_>, errors: &mut Errors) {
    let (key, operator, value) = (toleration.text("key"), toleration.text("operator"), toleration.text("value"));
    toleration.has_form("key", names::qualified_name, errors);
    if key.is_empty() && operator != "Exists" {
        errors.push(FieldError::invalid(
            toleration.path_of("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    match operator {
        "" | "Equal" => {
            let problem = names::label_value(value);
            errors.extend(problem.map(|p| FieldError::invalid(toleration.path_of("operator"), value, p)));
        }
        "Exists" if !value.is_empty() => {
            errors.push(FieldError::invalid(
                toleration.path_of("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            ));
        }
        "Exists" => {}
        other => errors.push(FieldError::not_supported(toleration.path_of("operator"), other, &["Equal", "Exists"])),
    }
    let effect = toleration.text("effect");
    if !effect.is_empty() {
        toleration.one_of("effect", EFFECTS, errors);
    }
    if toleration.number("tolerationSeconds").is_some() && effect != "NoExecute" {
        errors.push(FieldError::invalid(
            toleration.path_of("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
}
