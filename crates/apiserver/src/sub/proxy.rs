//! pods/proxy and services/proxy: a request goes on to a pod, or to an endpoint of a service.
//!
//! `[scheme:]name[:port]` in the path names what is meant, as upstream's `kubectl get --raw
//! /api/v1/namespaces/n/services/https:web:8443/proxy/` has it. What leads back into the machine that
//! the API server runs on (loopback, link-local addresses) is refused.

use std::net::IpAddr;

use carrack_store::Range;
use serde_json::Value;

use crate::body::{Body, NodeTarget, Response, Scheme, json};
use crate::context::Cx;
use crate::keys;
use crate::object::{Object, at, str_at};
use crate::status::Status;
use crate::stored;

/// What the path's name says.
struct Named<'a> {
    scheme: Scheme,
    name: &'a str,
    port: &'a str,
}

/// Reads `name`, `name:port` or `scheme:name:port`.
fn named(text: &str) -> Option<Named<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [name] => Some(Named { scheme: Scheme::Http, name, port: "" }),
        [name, port] => Some(Named { scheme: Scheme::Http, name, port }),
        ["http" | "", name, port] => Some(Named { scheme: Scheme::Http, name, port }),
        ["https", name, port] => Some(Named { scheme: Scheme::Https, name, port }),
        _ => None,
    }
}

/// Forwards a request below pods/proxy.
pub(crate) async fn pod(cx: &Cx<'_>) -> Result<Response, Status> {
    let given = cx.name().to_owned();
    let wanted = named(&given).ok_or_else(|| Status::bad_request(format!("invalid pod request {given:?}")))?;
    let path = super::connect::may_proxy(cx).await?;
    let pod = object(cx, "pods", wanted.name).await?;
    let declared = || -> Option<u16> {
        let containers = at(&pod, &["spec", "containers"])?.as_array()?;
        let mut ports = containers.iter().filter_map(|container| container["ports"].as_array()).flatten();
        let port = ports.find(|port| matches!(port["protocol"].as_str(), None | Some("TCP")))?;
        u16::try_from(port["containerPort"].as_u64()?).ok()
    };
    let port = match wanted.port {
        "" => declared().unwrap_or(80),
        text => text.parse().map_err(|_| Status::bad_request(format!("invalid port {text:?}")))?,
    };
    let address = str_at(&pod, &["status", "podIP"]).to_owned();
    if address.is_empty() {
        return Err(Status::unavailable(format!("pod {:?} has no address yet", wanted.name)));
    }
    forward(wanted.scheme, &address, port, path)
}

/// Forwards a request below services/proxy to one of the service's endpoints.
pub(crate) async fn service(cx: &Cx<'_>) -> Result<Response, Status> {
    let given = cx.name().to_owned();
    let wanted = named(&given).ok_or_else(|| Status::bad_request(format!("invalid service request {given:?}")))?;
    let path = super::connect::may_proxy(cx).await?;
    let service = object(cx, "services", wanted.name).await?;
    let none = || Status::unavailable(format!("no endpoints available for service {given:?}"));
    if str_at(&service, &["spec", "type"]) == "ExternalName" {
        return Err(none());
    }
    let port_name = port_name(&service, wanted.port).ok_or_else(|| {
        Status::unavailable(format!("no service port {:?} found for service {:?}", wanted.port, wanted.name))
    })?;
    let prefix = keys::of("discovery.k8s.io", "endpointslices", cx.namespace());
    let page = cx.server.store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
    let mut found: Vec<(String, u16)> = Vec::new();
    for entry in &page.entries {
        let memo = stored::memo(entry);
        if memo.labels.get("kubernetes.io/service-name") != Some(wanted.name) {
            continue;
        }
        found.extend(endpoints(&stored::parse(entry), &port_name));
    }
    if found.is_empty() {
        return Err(none());
    }
    let draw = usize::try_from(cx.server.env.random() % found.len() as u64).unwrap_or(0);
    let (address, port) = &found[draw];
    forward(wanted.scheme, address, *port, path)
}

/// The name of the service port that is meant: by its name, its number, or the only one.
fn port_name(service: &Object, wanted: &str) -> Option<String> {
    let ports = at(service, &["spec", "ports"])?.as_array()?;
    let name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
    if wanted.is_empty() {
        return ports.first().filter(|_| ports.len() == 1).map(name);
    }
    let number = wanted.parse::<u64>().ok();
    ports.iter().find(|port| name(port) == wanted || (number.is_some() && port["port"].as_u64() == number)).map(name)
}

/// The ready endpoints of a slice, with the port of this name.
fn endpoints(slice: &Object, port_name: &str) -> Vec<(String, u16)> {
    let ports = slice.get("ports").and_then(Value::as_array).into_iter().flatten();
    let port = ports
        .filter(|port| port["name"].as_str().unwrap_or_default() == port_name)
        .find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    let all = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
    all.filter(|endpoint| endpoint["conditions"]["ready"] != Value::Bool(false))
        .filter_map(|endpoint| endpoint["addresses"].as_array()?.first()?.as_str())
        .map(|address| (address.to_owned(), port))
        .collect()
}

async fn object(cx: &Cx<'_>, plural: &str, name: &str) -> Result<Object, Status> {
    let (entry, _) = cx.server.store.get(&(keys::of("", plural, cx.namespace()) + name)).await?;
    entry.map(|entry| stored::parse(&entry)).ok_or_else(|| cx.not_found(name))
}

/// Whether an address may be proxied to.
fn is_proxyable(address: IpAddr) -> bool {
    // An IPv4 address in the form of an IPv6 one leads to the same place.
    let address = address.to_canonical();
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || local)
}

fn forward(scheme: Scheme, address: &str, port: u16, path_and_query: String) -> Result<Response, Status> {
    if !address.parse::<IpAddr>().is_ok_and(is_proxyable) {
        return Err(Status::bad_request("address not allowed"));
    }
    let target = NodeTarget { node: String::new(), scheme, host: address.to_owned(), port, path_and_query };
    Ok(json(200, Body::Node(target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_say_where() {
        for (text, want) in [
            ("web", Some((Scheme::Http, "web", ""))),
            ("web:80", Some((Scheme::Http, "web", "80"))),
            ("https:web:8443", Some((Scheme::Https, "web", "8443"))),
            (":web:80", Some((Scheme::Http, "web", "80"))),
            ("ftp:web:80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(named(text).map(|n| (n.scheme, n.name, n.port)), want, "{text}");
        }
    }

    #[test]
    fn ready_endpoints_only() {
        let slice = json!({"ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"]}]});
        let slice = slice.as_object().expect("an object");
        assert_eq!(endpoints(slice, "http"), [("10.0.0.1".to_owned(), 8080), ("10.0.0.3".to_owned(), 8080)]);
        assert!(endpoints(slice, "other").is_empty());
        for (address, want) in [
            ("10.0.0.1", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("::1", false),
            ("fd00::1", true),
            ("::ffff:10.0.0.1", true),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
        ] {
            assert_eq!(is_proxyable(address.parse().expect(address)), want, "{address}");
        }
    }
}
