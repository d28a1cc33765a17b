//! Ingresses, network policies, endpoint slices, IP addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, NOT_A_RANGE, NOT_AN_ADDRESS, Row, check, unique};
use super::{names, workloads};
use crate::error::FieldError;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Most endpoints of a slice.
const MAX_ENDPOINTS: usize = 1000;
/// Most addresses of an endpoint, and ports of a slice.
const MAX_ADDRESSES: usize = 100;
/// Most zones, and most nodes, that an endpoint is for.
const MAX_HINTS: usize = 8;

fn host(place: &Place<'_>, text: &str, errors: &mut Errors) {
    let problem = if text.parse::<IpAddr>().is_ok() {
        Some("must be a DNS name, not an IP address".to_owned())
    } else if let Some(rest) = text.strip_prefix("*.") {
        names::dns1123_subdomain(rest)
    } else {
        names::dns1123_subdomain(text)
    };
    errors.extend(problem.map(|problem| FieldError::invalid(place.path.clone(), text, problem)));
}

fn backend(place: &Place<'_>, errors: &mut Errors) {
    let (service, resource) = (place.field("service"), place.field("resource"));
    match (service.exists(), resource.exists()) {
        (true, true) => {
            errors.push(FieldError::invalid(place.path.clone(), "", "cannot set both resource and service backends"));
        }
        (false, false) => {
            errors.push(FieldError::required(place.path.clone(), "resource or service backend is required"));
        }
        (false, true) => {
            resource.needs_text("kind", errors);
            resource.needs_text("name", errors);
        }
        (true, false) => {
            if service.needs_text("name", errors).is_some() {
                service.has_form("name", names::dns1035_label, errors);
            }
            let port = service.field("port");
            match (port.text("name"), port.number("number").unwrap_or(0)) {
                ("", 0) => errors.push(FieldError::required(place.path.clone(), "port name or number is required")),
                ("", number) => {
                    let problem = names::port_number(number);
                    errors.extend(problem.map(|p| FieldError::invalid(port.path_of("number"), number, p)));
                }
                (_, 0) => port.has_form("name", names::port_name, errors),
                _ => {
                    errors.push(FieldError::invalid(place.path.clone(), "", "cannot set both port name & port number"))
                }
            }
        }
    }
}

pub(super) fn ingress(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let rules: Vec<Place<'_>> = spec.items("rules").collect();
    match spec.some("defaultBackend") {
        Some(default) => backend(&default, errors),
        None if rules.is_empty() => {
            errors.push(FieldError::invalid(
                "spec",
                spec.value.clone(),
                "either `defaultBackend` or `rules` must be specified",
            ));
        }
        None => {}
    }
    for tls in spec.items("tls") {
        for (index, text) in tls.texts("hosts").into_iter().enumerate() {
            let path = format!("{}[{index}]", tls.path_of("hosts"));
            host(&Place { value: tls.value, path }, text, errors);
        }
    }
    for rule in &rules {
        if !rule.text("host").is_empty() {
            host(&rule.field("host"), rule.text("host"), errors);
        }
        let Some(http) = rule.some("http") else { continue };
        if http.items("paths").next().is_none() {
            errors.push(FieldError::required(http.path_of("paths"), ""));
        }
        for path in http.items("paths") {
            let text = path.text("path");
            match path.text("pathType") {
                "" => errors.push(FieldError::required(path.path_of("pathType"), "pathType must be specified")),
                "Exact" | "Prefix" if !text.starts_with('/') => {
                    errors.push(FieldError::invalid(path.path_of("path"), text, "must be an absolute path"));
                }
                "Exact" | "Prefix" => {
                    for bad in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|bad| text.contains(bad)) {
                        let text_of = format!("must not contain '{bad}'");
                        errors.push(FieldError::invalid(path.path_of("path"), text, text_of));
                    }
                    for bad in ["/..", "/."].into_iter().filter(|bad| text.ends_with(*bad)) {
                        let text_of = format!("cannot end with '{bad}'");
                        errors.push(FieldError::invalid(path.path_of("path"), text, text_of));
                    }
                }
                "ImplementationSpecific" if !text.is_empty() && !text.starts_with('/') => {
                    errors.push(FieldError::invalid(path.path_of("path"), text, "must be an absolute path"));
                }
                "ImplementationSpecific" => {}
                _ => path.one_of("pathType", &["Exact", "ImplementationSpecific", "Prefix"], errors),
            }
            backend(&path.field("backend"), errors);
        }
    }
    spec.has_form("ingressClassName", names::dns1123_subdomain, errors);
}

fn tls_secrets(ingress: &Place<'_>, errors: &mut Errors) {
    check(ingress, &[("spec.tls[].secretName", Demand::Form(names::dns1123_subdomain))], errors);
}

/// Names of secrets are looked at in an ingress that had none but good ones.
pub(super) fn ingress_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let mut before = Errors::new();
    tls_secrets(old, &mut before);
    if before.is_empty() {
        tls_secrets(new, errors);
    }
}

/// A new ingress names its class in one way, not in both.
pub(super) fn new_ingress(object: &Place<'_>, errors: &mut Errors) {
    const OLD_WAY: &str = "kubernetes.io/ingress.class";
    tls_secrets(object, errors);
    let annotations = object.at(&["metadata", "annotations"]);
    if annotations.some(OLD_WAY).is_some() && object.field("spec").some("ingressClassName").is_some() {
        annotations.invalid(OLD_WAY, "can not be set when the class field is also set", errors);
    }
}

/// A class of ingresses.
pub(super) fn ingress_class(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("spec.controller", Demand::Required),
        ("spec.parameters.kind", Demand::Required),
        ("spec.parameters.kind", Demand::Form(names::path_segment)),
        ("spec.parameters.name", Demand::Required),
        ("spec.parameters.name", Demand::Form(names::path_segment)),
        ("spec.parameters.apiGroup", Demand::Form(names::dns1123_subdomain)),
        ("spec.parameters.scope", Demand::OneOf(&["Cluster", "Namespace"])),
    ];
    check(object, ROWS, errors);
    let spec = object.field("spec");
    let controller = spec.text("controller");
    if controller.len() > 250 {
        errors.push(FieldError::too_long(spec.path_of("controller"), 250));
    }
    // A domain, then a path.
    let (domain, path) = controller.split_once('/').unwrap_or((controller, ""));
    if !controller.is_empty() && (names::dns1123_subdomain(domain).is_some() || path.is_empty()) {
        let text = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid(spec.path_of("controller"), controller, text));
    }
    let parameters = spec.field("parameters");
    match parameters.text("scope") {
        "Namespace" if parameters.text("namespace").is_empty() => {
            let text = "`parameters.scope` is set to 'Namespace'";
            errors.push(FieldError::required(parameters.path_of("namespace"), text));
        }
        "Namespace" => parameters.has_form("namespace", names::dns1123_label, errors),
        "Cluster" if parameters.some("namespace").is_some() => {
            let text = "`parameters.scope` is set to 'Cluster'";
            errors.push(FieldError::forbidden(parameters.path_of("namespace"), text));
        }
        _ => {}
    }
}

/// A port of a network policy: a number or a name.
fn policy_port(port: &Place<'_>, errors: &mut Errors) {
    if port.some("protocol").is_some() {
        port.one_of("protocol", &PROTOCOLS, errors);
    }
    let number = match port.value.get("port") {
        Some(Value::Number(number)) => {
            let number = number.as_i64().unwrap_or(0);
            errors.extend(names::port_number(number).map(|p| FieldError::invalid(port.path_of("port"), number, p)));
            Some(number)
        }
        Some(Value::String(name)) => {
            errors.extend(names::port_name(name).map(|p| FieldError::invalid(port.path_of("port"), name.as_str(), p)));
            None
        }
        _ => None,
    };
    let Some(end) = port.number("endPort") else { return };
    match (number, port.some("port").is_some()) {
        (Some(first), _) if end < first => {
            errors.push(FieldError::invalid(port.path_of("endPort"), end, "must be greater than or equal to `port`"));
        }
        (Some(_), _) => {
            errors.extend(names::port_number(end).map(|p| FieldError::invalid(port.path_of("endPort"), end, p)));
        }
        (None, true) => errors.push(FieldError::invalid(
            port.path_of("endPort"),
            end,
            "may not be specified when `port` is non-numeric",
        )),
        (None, false) => {
            errors.push(FieldError::invalid(
                port.path_of("endPort"),
                end,
                "may not be specified when `port` is not specified",
            ));
        }
    }
}

fn range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, bits))
}

fn prefix(address: IpAddr, bits: u8) -> u128 {
    let (number, width) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    number.checked_shr(u32::from(width - bits)).unwrap_or(0)
}

fn block(block: &Place<'_>, errors: &mut Errors) {
    let Some(text) = block.needs_text("cidr", errors) else { return };
    let Some((outer, outer_bits)) = range(text) else {
        errors.push(FieldError::invalid(block.path_of("cidr"), text, NOT_A_RANGE));
        return;
    };
    for (index, text) in block.texts("except").into_iter().enumerate() {
        let path = format!("{}[{index}]", block.path_of("except"));
        match range(text) {
            None => errors.push(FieldError::invalid(path, text, NOT_A_RANGE)),
            Some((inner, bits)) => {
                let inside = inner.is_ipv4() == outer.is_ipv4()
                    && bits > outer_bits
                    && prefix(inner, outer_bits) == prefix(outer, outer_bits);
                if !inside {
                    errors.push(FieldError::invalid(path, text, "must be a strict subset of `cidr`"));
                }
            }
        }
    }
}

pub(super) fn policy(spec: &Place<'_>, errors: &mut Errors) {
    workloads::selector(&spec.field("podSelector"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.items(direction) {
            for port in rule.items("ports") {
                policy_port(&port, errors);
            }
            for peer in rule.items(peers) {
                let selectors = ["podSelector", "namespaceSelector"].map(|name| peer.some(name));
                for selector in selectors.iter().flatten() {
                    workloads::selector(selector, errors);
                }
                let selects = selectors.iter().any(Option::is_some);
                match peer.some("ipBlock") {
                    Some(_) if selects => {
                        errors.push(FieldError::forbidden(
                            peer.path.clone(),
                            "may not specify both ipBlock and another peer",
                        ));
                    }
                    Some(given) => block(&given, errors),
                    None if !selects => errors.push(FieldError::required(peer.path.clone(), "must specify a peer")),
                    None => {}
                }
            }
        }
    }
    let types = spec.texts("policyTypes");
    if types.len() > 2 {
        spec.invalid("policyTypes", "may not specify more than two policyTypes", errors);
        return;
    }
    for (index, kind) in types.into_iter().enumerate() {
        if !matches!(kind, "Ingress" | "Egress") {
            let path = format!("{}[{index}]", spec.path_of("policyTypes"));
            errors.push(FieldError::not_supported(path, kind, &["Egress", "Ingress"]));
        }
    }
}

pub(super) fn endpoint_slice(object: &Place<'_>, errors: &mut Errors) {
    let kind = object.text("addressType");
    if object.needs_text("addressType", errors).is_some() {
        object.one_of("addressType", &["FQDN", "IPv4", "IPv6"], errors);
    }
    let endpoints: Vec<Place<'_>> = object.items("endpoints").collect();
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS as u64));
        return;
    }
    for endpoint in &endpoints {
        let addresses = endpoint.texts("addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(endpoint.path_of("addresses"), "must contain at least 1 address"));
        }
        if addresses.len() > MAX_ADDRESSES {
            errors.push(FieldError::too_many(endpoint.path_of("addresses"), addresses.len(), MAX_ADDRESSES as u64));
        }
        for (index, text) in addresses.into_iter().enumerate() {
            let path = format!("{}[{index}]", endpoint.path_of("addresses"));
            let problem = match (kind, text.parse::<IpAddr>()) {
                ("IPv4", Ok(address @ IpAddr::V4(_))) => local_only(address),
                ("IPv6", Ok(address @ IpAddr::V6(v6))) if v6.to_ipv4_mapped().is_none() => local_only(address),
                ("IPv4", _) => Some("must be a valid IPv4 address".to_owned()),
                ("IPv6", _) => Some("must be a valid IPv6 address".to_owned()),
                ("FQDN", _) => names::dns1123_subdomain(text.trim_end_matches('.')),
                _ => None,
            };
            errors.extend(problem.map(|problem| FieldError::invalid(path, text, problem)));
        }
        const ROWS: &[Row] =
            &[("nodeName", Demand::Form(names::dns1123_subdomain)), ("hostname", Demand::Form(names::dns1123_label))];
        check(endpoint, ROWS, errors);
        hints(&endpoint.field("hints"), errors);
        if let Some(topology) = endpoint.some("deprecatedTopology") {
            super::metadata::label_map(&topology, errors);
        }
    }
    let ports: Vec<Place<'_>> = object.items("ports").collect();
    if ports.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many("ports", ports.len(), MAX_ADDRESSES as u64));
    }
    let mut seen = BTreeSet::new();
    for port in &ports {
        let name = port.text("name");
        port.has_form("name", names::dns1123_label, errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(port.path_of("name"), name));
        }
        if port.some("protocol").is_some() {
            port.one_of("protocol", &PROTOCOLS, errors);
        }
        check(port, &[("appProtocol", Demand::Form(names::qualified_name))], errors);
    }
}

/// For whom an endpoint is.
fn hints(hints: &Place<'_>, errors: &mut Errors) {
    const LISTS: [(&str, Row); 2] = [
        ("forZones", ("name", Demand::Form(names::label_value))),
        ("forNodes", ("name", Demand::Form(names::dns1123_subdomain))),
    ];
    for (list, form) in LISTS {
        let given: Vec<Place<'_>> = hints.items(list).collect();
        if given.len() > MAX_HINTS {
            errors.push(FieldError::too_many(hints.path_of(list), given.len(), MAX_HINTS as u64));
            continue;
        }
        for hint in &given {
            check(hint, &[("name", Demand::Required), form], errors);
        }
        unique(
            given.into_iter(),
            |hint| Some(hint.text("name")),
            |hint| FieldError::duplicate(hint.path_of("name"), hint.text("name")),
            errors,
        );
    }
}

/// The older form of endpoints.
pub(super) fn endpoints(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("subsets[].ports[].port", Demand::Required),
        ("subsets[].ports[].port", Demand::Port),
        ("subsets[].ports[].name", Demand::Form(names::dns1123_label)),
        ("subsets[].ports[].protocol", Demand::OneOf(&PROTOCOLS)),
        ("subsets[].ports[].appProtocol", Demand::Form(names::qualified_name)),
        ("subsets[].addresses[].ip", Demand::Required),
        ("subsets[].addresses[].hostname", Demand::Form(names::dns1123_label)),
        ("subsets[].addresses[].nodeName", Demand::Form(names::dns1123_subdomain)),
        ("subsets[].notReadyAddresses[].ip", Demand::Required),
    ];
    check(object, ROWS, errors);
    for subset in object.items("subsets") {
        let addresses: Vec<Place<'_>> =
            ["addresses", "notReadyAddresses"].iter().flat_map(|list| subset.items(list).collect::<Vec<_>>()).collect();
        if addresses.is_empty() {
            let text = "must specify `addresses` or `notReadyAddresses`";
            errors.push(FieldError::required(subset.path.clone(), text));
        }
        for address in &addresses {
            special(address, "ip", address.text("ip"), errors);
        }
        let ports: Vec<Place<'_>> = subset.items("ports").collect();
        for port in ports.iter().filter(|port| ports.len() > 1 && port.text("name").is_empty()) {
            errors.push(FieldError::required(port.path_of("name"), ""));
        }
    }
}

/// Looks whether an address can be an endpoint.
fn special(place: &Place<'_>, field: &str, text: &str, errors: &mut Errors) {
    if text.is_empty() {
        return;
    }
    let problem = text.parse::<IpAddr>().map_or_else(|_| Some(NOT_AN_ADDRESS.to_owned()), local_only);
    errors.extend(problem.map(|problem| FieldError::invalid(place.path_of(field), text, problem)));
}

/// Why an address can be no endpoint, and no external one of a service: it leads back into the machine that sends
/// there, or to what is beside it (`ValidateEndpointIP`).
pub(super) fn local_only(address: IpAddr) -> Option<String> {
    // An IPv4 address in the form of an IPv6 one leads to the same place.
    let address = address.to_canonical();
    let (is_link_local, is_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), matches!(v4.octets(), [224, 0, 0, _])),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    let problem = if address.is_unspecified() {
        return Some(format!("may not be unspecified ({address})"));
    } else if address.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    } else if is_link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    } else if is_multicast {
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
    } else {
        return None;
    };
    Some(problem.to_owned())
}

pub(super) fn address(object: &Place<'_>, errors: &mut Errors) {
    let name = object.at(&["metadata", "name"]);
    let text = name.value.as_str().unwrap_or_default();
    match text.parse::<IpAddr>() {
        Ok(address) if address.to_string() == text => {}
        Ok(address) => {
            let why = format!("must be in canonical form (\"{address}\")");
            errors.push(FieldError::invalid(name.path, text, why));
        }
        Err(_) => errors.push(FieldError::invalid(name.path, text, NOT_AN_ADDRESS)),
    }
    match object.field("spec").some("parentRef") {
        None => errors.push(FieldError::required("spec.parentRef", "")),
        Some(parent) => {
            parent.needs_text("resource", errors);
            parent.needs_text("name", errors);
        }
    }
}

pub(super) fn service_range(spec: &Place<'_>, errors: &mut Errors) {
    let cidrs = spec.texts("cidrs");
    if cidrs.is_empty() {
        errors.push(FieldError::required(spec.path_of("cidrs"), "at least one CIDR required"));
    }
    if cidrs.len() > 2 {
        spec.invalid("cidrs", "may only hold up to 2 values", errors);
    }
    let families: Vec<bool> = cidrs.iter().map(|text| text.contains(':')).collect();
    if matches!(families.as_slice(), [one, other] if one == other) {
        let text = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(spec.path_of("cidrs"), spec.value.clone(), text));
    }
    for (index, text) in cidrs.into_iter().enumerate() {
        if range(text).is_none() {
            errors.push(FieldError::invalid(format!("{}[{index}]", spec.path_of("cidrs")), text, NOT_A_RANGE));
        }
    }
}

/// Services have addresses of a range: it stays, and one of the other family may come beside it
/// (`ValidateServiceCIDRUpdate`).
pub(super) fn service_range_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    const IMMUTABLE: &str = "field is immutable";
    let (new, old) = (new.field("spec"), old.field("spec"));
    let (now, before) = (new.texts("cidrs"), old.texts("cidrs"));
    if now.len() != before.len() && (before.len(), now.len()) != (1, 2) {
        new.invalid("cidrs", IMMUTABLE, errors);
        return;
    }
    for (index, (now, _)) in now.iter().zip(&before).enumerate().filter(|(_, (now, before))| now != before) {
        errors.push(FieldError::invalid(format!("{}[{index}]", new.path_of("cidrs")), *now, IMMUTABLE));
    }
}
