//! Services.

use serde_json::Value;

use super::access::{Errors, Place};
use super::{metadata, names};
use crate::error::FieldError;

pub(super) fn service(spec: &Place<'_>, errors: &mut Errors) {
    let kind = spec.text("type");
    spec.one_of("type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    spec.one_of("sessionAffinity", &["ClientIP", "None"], errors);
    metadata::labels(spec, "selector", errors);
    let headless = spec.text("clusterIP") == "None";
    let ports: Vec<Place<'_>> = spec.items("ports").collect();
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(spec.path_of("ports"), ""));
    }
    if kind == "ExternalName" {
        if spec.needs_text("externalName", errors).is_some() {
            spec.has_form("externalName", |name| names::dns1123_subdomain(name.trim_end_matches('.')), errors);
        }
        if !spec.text("clusterIP").is_empty() {
            errors.push(FieldError::forbidden(spec.path_of("clusterIP"), "may not be set for ExternalName services"));
        }
    }
    let (mut seen_names, mut seen_ports): (Vec<&str>, Vec<(&str, i64)>) = (Vec::new(), Vec::new());
    for port in &ports {
        let name = port.text("name");
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(port.path_of("name"), ""));
        } else if !name.is_empty() {
            port.has_form("name", names::dns1123_label, errors);
            if seen_names.contains(&name) {
                errors.push(FieldError::duplicate(port.path_of("name"), name));
            }
            seen_names.push(name);
        }
        let number = port.number("port").unwrap_or(0);
        errors.extend(names::port_number(number).map(|p| FieldError::invalid(port.path_of("port"), number, p)));
        port.one_of("protocol", &["SCTP", "TCP", "UDP"], errors);
        match port.value.get("targetPort") {
            Some(Value::Number(target)) => {
                let problem = names::port_number(target.as_i64().unwrap_or(0));
                errors.extend(problem.map(|p| FieldError::invalid(port.path_of("targetPort"), target.clone(), p)));
            }
            Some(Value::String(target)) => {
                errors.extend(
                    names::port_name(target)
                        .map(|p| FieldError::invalid(port.path_of("targetPort"), target.as_str(), p)),
                );
            }
            _ => {}
        }
        if kind == "ClusterIP" && port.number("nodePort").is_some_and(|n| n != 0) {
            errors.push(FieldError::forbidden(port.path_of("nodePort"), "may not be used when `type` is 'ClusterIP'"));
        }
        let identity = (port.text("protocol"), number);
        if seen_ports.contains(&identity) {
            errors.push(FieldError::duplicate(port.path.clone(), port.value.clone()));
        }
        seen_ports.push(identity);
    }
    let ip = spec.text("clusterIP");
    if !ip.is_empty() && !headless && ip.parse::<std::net::IpAddr>().is_err() {
        spec.invalid("clusterIP", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", errors);
    }
}

/// An address that was given stays, as long as the service has one.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    let (was, is) = (old.text("clusterIP"), new.text("clusterIP"));
    if old.text("type") != "ExternalName" && new.text("type") != "ExternalName" && !was.is_empty() && was != is {
        let ips = new.field("clusterIPs");
        let shown = if ips.exists() { ips.value.clone() } else { serde_json::json!([is]) };
        errors.push(FieldError::invalid(new.path_of("clusterIPs[0]"), shown, "may not change once set"));
    }
}
