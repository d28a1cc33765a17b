//! Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::access::{Errors, Place};
use super::demand::{Change, Demand, Row, changes as held_to, check, unique};
use super::{names, networking};
use crate::error::FieldError;

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const AFFINITIES: &[&str] = &["ClientIP", "None"];
const DISTRIBUTIONS: &[&str] = &["PreferClose", "PreferSameNode", "PreferSameZone"];
const POLICIES: &[&str] = &["Cluster", "Local"];
/// Where kubelets listen, which is not for others to reach.
const KUBELET_PORT: i64 = 10_250;
/// The older way of saying from where a balancer is reached, in a list with commas.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// How addresses are chosen by topology, in its names of today and of old.
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// Longest time for which a client stays with an endpoint, in seconds.
const MAX_AFFINITY_S: i64 = 86_400;

const ROWS: &[Row] = &[
    ("type", Demand::OneOf(TYPES)),
    ("sessionAffinity", Demand::OneOf(AFFINITIES)),
    ("selector", Demand::Labels),
    ("ports[].name", Demand::Form(names::dns1123_label)),
    ("ports[].port", Demand::Required),
    ("ports[].port", Demand::Port),
    ("ports[].protocol", Demand::OneOf(&["SCTP", "TCP", "UDP"])),
    ("ports[].targetPort", Demand::Port),
    ("ports[].appProtocol", Demand::Form(names::qualified_name)),
    ("ports[].nodePort", Demand::Between(0, 65_535)),
    ("ipFamilies[]", Demand::OneOf(&["IPv4", "IPv6"])),
    ("ipFamilyPolicy", Demand::OneOf(&["PreferDualStack", "RequireDualStack", "SingleStack"])),
    ("externalIPs[]", Demand::Address),
    ("internalTrafficPolicy", Demand::OneOf(POLICIES)),
    ("trafficDistribution", Demand::OneOf(DISTRIBUTIONS)),
    ("loadBalancerClass", Demand::Form(names::qualified_name)),
];

pub(super) fn service(object: &Place<'_>, errors: &mut Errors) {
    let (spec, annotations) = (&object.field("spec"), object.at(&["metadata", "annotations"]));
    let kind = spec.text("type");
    if let (Some(mode), Some(hints)) = (annotations.some(TOPOLOGY_MODE), annotations.some(TOPOLOGY_HINTS))
        && mode.value != hints.value
    {
        let text = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        let path = format!("{}[{TOPOLOGY_MODE}]", annotations.path);
        errors.push(FieldError::invalid(path, mode.value.clone(), text));
    }
    check(spec, ROWS, errors);
    let headless = spec.text("clusterIP") == "None";
    let ports: Vec<Place<'_>> = spec.items("ports").collect();
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(spec.path_of("ports"), ""));
    }
    if headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let text = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid(spec.path_of("clusterIPs[0]"), "None", text));
    }
    if kind == "ExternalName" {
        external_name(spec, errors);
    }
    for port in ports.iter().filter(|port| kind == "LoadBalancer" && port.number("port") == Some(KUBELET_PORT)) {
        let text = format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
        errors.push(FieldError::invalid(port.path.clone(), KUBELET_PORT, text));
    }
    for port in ports.iter().filter(|port| ports.len() > 1 && port.text("name").is_empty()) {
        errors.push(FieldError::required(port.path_of("name"), ""));
    }
    unique(
        ports.iter().cloned(),
        |port| Some(port.text("name")).filter(|name| !name.is_empty()),
        |port| FieldError::duplicate(port.path_of("name"), port.text("name")),
        errors,
    );
    unique(
        ports.iter().cloned(),
        |port| Some((port.text("protocol"), port.number("port"))),
        |port| FieldError::duplicate(port.path.clone(), port.value.clone()),
        errors,
    );
    unique(
        ports.iter().cloned(),
        |port| port.number("nodePort").filter(|number| *number != 0).map(|number| (port.text("protocol"), number)),
        |port| FieldError::duplicate(port.path_of("nodePort"), port.number("nodePort").unwrap_or(0)),
        errors,
    );
    for port in ports.iter().filter(|port| kind == "ClusterIP" && port.number("nodePort").unwrap_or(0) != 0) {
        errors.push(FieldError::forbidden(port.path_of("nodePort"), "may not be used when `type` is 'ClusterIP'"));
    }
    affinity(spec, errors);
    addresses(spec, errors);
    load_balancing(spec, &annotations, kind, errors);
    traffic(spec, kind, errors);
}

fn external_name(spec: &Place<'_>, errors: &mut Errors) {
    let is_set = |field: &str| {
        let given = spec.field(field).value;
        !given.is_null() && given != "" && given.as_array().is_none_or(|list| !list.is_empty())
    };
    // The first address has two names, of which the list's is told.
    for (shown, is_set) in [
        ("clusterIPs", is_set("clusterIPs") || is_set("clusterIP")),
        ("ipFamilies", is_set("ipFamilies")),
        ("ipFamilyPolicy", is_set("ipFamilyPolicy")),
    ] {
        if is_set {
            errors.push(FieldError::forbidden(spec.path_of(shown), "may not be set for ExternalName services"));
        }
    }
    if spec.needs_text("externalName", errors).is_some() {
        spec.has_form("externalName", |name| names::dns1123_subdomain(name.trim_end_matches('.')), errors);
    }
}

fn affinity(spec: &Place<'_>, errors: &mut Errors) {
    let config = spec.field("sessionAffinityConfig");
    match spec.text("sessionAffinity") {
        "ClientIP" => {
            let timeout = config.field("clientIP").number("timeoutSeconds");
            let missing = [config.clone(), config.field("clientIP"), config.at(&["clientIP", "timeoutSeconds"])];
            if let Some(place) = missing.into_iter().find(|place| !place.exists()) {
                errors.push(FieldError::required(place.path, "when session affinity type is ClientIP"));
            } else if let Some(seconds) = timeout.filter(|seconds| !(1..=MAX_AFFINITY_S).contains(seconds)) {
                let text = format!("must be greater than 0 and less than {MAX_AFFINITY_S}");
                errors.push(FieldError::invalid(format!("{}.clientIP.timeoutSeconds", config.path), seconds, text));
            }
        }
        "None" if config.exists() => {
            errors.push(FieldError::forbidden(config.path, "must not be set when session affinity is None"));
        }
        _ => {}
    }
}

fn addresses(spec: &Place<'_>, errors: &mut Errors) {
    let all = spec.texts("clusterIPs");
    if all.len() > 1 && all.first() == Some(&"None") && spec.text("type") != "ExternalName" {
        spec.invalid("clusterIPs", "'None' must be the first and only value", errors);
    }
    for (index, text) in all.iter().enumerate().filter(|(index, text)| *index > 0 || **text != "None") {
        if text.parse::<IpAddr>().is_err() {
            let path = format!("{}[{index}]", spec.path_of("clusterIPs"));
            errors.push(FieldError::invalid(path, *text, super::demand::NOT_AN_ADDRESS));
        }
    }
    let primary = spec.text("clusterIP");
    match all.first() {
        _ if spec.text("type") == "ExternalName" => {}
        None if !matches!(primary, "" | "None") && primary.parse::<IpAddr>().is_err() => {
            let path = spec.path_of("clusterIPs[0]");
            errors.push(FieldError::invalid(path, primary, super::demand::NOT_AN_ADDRESS));
        }
        Some(_) if primary.is_empty() => {
            spec.invalid("clusterIPs", "must be empty when `clusterIP` is not specified", errors);
        }
        Some(first) if *first != primary => {
            spec.invalid("clusterIPs", "first value must match `clusterIP`", errors);
        }
        _ => {}
    }
    if all.len() > 2 {
        let text = "may only hold up to 2 values";
        spec.invalid("clusterIPs", text, errors);
    }
    let families = spec.texts("ipFamilies");
    let mut seen = BTreeSet::new();
    for (index, family) in families.iter().enumerate().filter(|(_, family)| !seen.insert(**family)) {
        errors.push(FieldError::duplicate(format!("{}[{index}]", spec.path_of("ipFamilies")), *family));
    }
    for (index, text) in spec.texts("externalIPs").into_iter().enumerate() {
        let Ok(address) = text.parse::<IpAddr>() else { continue };
        let path = format!("{}[{index}]", spec.path_of("externalIPs"));
        errors.extend(networking::local_only(address).map(|problem| FieldError::invalid(path, text, problem)));
    }
}

fn load_balancing(spec: &Place<'_>, annotations: &Place<'_>, kind: &str, errors: &mut Errors) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balances = kind == "LoadBalancer";
    let ranges = spec.texts("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // Upstream writes this one with a capital letter.
        let path = spec.path_of("LoadBalancerSourceRanges");
        for (index, range) in ranges.iter().enumerate().filter(|(_, range)| !super::demand::is_range(range.trim())) {
            errors.push(FieldError::invalid(format!("{path}[{index}]"), *range, super::demand::NOT_A_RANGE));
        }
        if !balances {
            errors.push(FieldError::forbidden(path, ONLY));
        }
    } else if let Some(listed) = annotations.some(SOURCE_RANGES) {
        let path = format!("{}[{SOURCE_RANGES}]", annotations.path);
        if !balances {
            errors.push(FieldError::forbidden(path.clone(), ONLY));
        }
        let listed = listed.value.as_str().unwrap_or_default().trim();
        let ranges = listed.split(',').map(str::trim).filter(|_| !listed.is_empty());
        for range in ranges.filter(|range| !super::demand::is_range(range)) {
            errors.push(FieldError::invalid(path.clone(), range, super::demand::NOT_A_RANGE));
        }
    }
    for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
        if !balances && spec.some(field).is_some() {
            errors.push(FieldError::forbidden(spec.path_of(field), ONLY));
        }
    }
}

fn traffic(spec: &Place<'_>, kind: &str, errors: &mut Errors) {
    let policy = spec.text("externalTrafficPolicy");
    let reached = matches!(kind, "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && spec.items("externalIPs").next().is_some());
    match (reached, policy) {
        (false, "") => {}
        (false, _) => {
            spec.invalid("externalTrafficPolicy", "may only be set for externally-accessible services", errors);
        }
        (true, "") => errors.push(FieldError::required(spec.path_of("externalTrafficPolicy"), "")),
        (true, _) => spec.one_of("externalTrafficPolicy", POLICIES, errors),
    }
    let port = spec.number("healthCheckNodePort").unwrap_or(0);
    if kind == "LoadBalancer" && policy == "Local" {
        let path = spec.path_of("healthCheckNodePort");
        if port == 0 {
            errors.push(FieldError::required(path, ""));
        } else {
            errors.extend(names::port_number(port).map(|problem| FieldError::invalid(path, port, problem)));
        }
    } else if port != 0 {
        let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        spec.invalid("healthCheckNodePort", text, errors);
    }
    let needs = matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort");
    if needs && spec.text("internalTrafficPolicy").is_empty() {
        errors.push(FieldError::required(spec.path_of("internalTrafficPolicy"), ""));
    }
}

/// An address that was given stays, as long as the service has one; and so do some more.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    let had = old.text("type") != "ExternalName" && new.text("type") != "ExternalName";
    let (was, is) = (old.text("clusterIP"), new.text("clusterIP"));
    if had && !was.is_empty() && was != is {
        let ips = new.field("clusterIPs");
        let shown = if ips.exists() { ips.value.clone() } else { serde_json::json!([is]) };
        errors.push(FieldError::invalid(new.path_of("clusterIPs[0]"), shown, "may not change once set"));
    }
    fn second<'a>(spec: &Place<'a>) -> Option<&'a str> {
        spec.texts("clusterIPs").get(1).copied()
    }
    if let (true, Some(before), Some(now)) = (had, second(&old), second(&new))
        && before != now
    {
        errors.push(FieldError::invalid(new.path_of("clusterIPs[1]"), now, "may not change once set"));
    }
    let families = [old.texts("ipFamilies"), new.texts("ipFamilies")];
    if let ([before, ..], [now, ..]) = (families[0].as_slice(), families[1].as_slice())
        && had
        && was != "None"
        && before != now
    {
        errors.push(FieldError::invalid(new.path_of("ipFamilies[0]"), *now, "may not change once set"));
    }
    let balances = |spec: &Place<'_>| spec.text("type") == "LoadBalancer";
    if balances(&new) && balances(&old) {
        let same = new.field("loadBalancerClass").value == old.field("loadBalancerClass").value;
        if !same {
            new.invalid("loadBalancerClass", "may not change once set", errors);
        }
        if [&new, &old].iter().all(|spec| spec.text("externalTrafficPolicy") == "Local") {
            held_to(&new, &old, &[("healthCheckNodePort", Change::Forbidden("field is immutable"))], errors);
        }
    }
}

/// Where a load balancer is, of a service or of an ingress.
pub(super) fn balanced(balancer: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] =
        &[("ingress[].ip", Demand::Address), ("ingress[].hostname", Demand::Form(names::dns1123_subdomain))];
    check(balancer, ROWS, errors);
    for ingress in balancer.items("ingress") {
        if ingress.text("hostname").parse::<IpAddr>().is_ok() {
            ingress.invalid("hostname", "must be a DNS name, not an IP address", errors);
        }
    }
}

/// The status of a service: where its load balancer is.
pub(super) fn status(object: &Place<'_>, errors: &mut Errors) {
    let balancer = object.at(&["status", "loadBalancer"]);
    if object.field("spec").text("type") != "LoadBalancer" && balancer.items("ingress").next().is_some() {
        let text = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(balancer.path_of("ingress"), text));
        return;
    }
    balanced(&balancer, errors);
    check(&balancer, &[("ingress[].ipMode", Demand::OneOf(&["Proxy", "VIP"]))], errors);
    for ingress in balancer.items("ingress") {
        match (ingress.text("ip").is_empty(), ingress.text("ipMode").is_empty()) {
            (true, false) => {
                let text = "may not be specified when `ip` is not set";
                errors.push(FieldError::forbidden(ingress.path_of("ipMode"), text));
            }
            (false, true) => {
                let text = "must be specified when `ip` is set";
                errors.push(FieldError::required(ingress.path_of("ipMode"), text));
            }
            _ => {}
        }
    }
}
