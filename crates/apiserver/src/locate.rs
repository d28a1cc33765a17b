//! Where the server behind a Service is. There is no proxy in front of Services here, so an endpoint is chosen.

use std::net::IpAddr;

use carrack_store::{Range, Store};
use serde_json::Value;

use crate::env::Env;
use crate::keys;
use crate::object::{Object, at, str_at};
use crate::status::Status;
use crate::stored;

/// A server to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// The name that its certificate carries: the Service's, wherever the server is
    /// (`k8s.io/apiserver/pkg/util/webhook/client.go`; `handler_proxy.go` of kube-aggregator).
    pub server_name: String,
    /// Where it is.
    pub place: Place,
    pub port: u16,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At one of the Service's endpoints.
    Endpoint(IpAddr),
    /// Outside the cluster, under this name.
    External(String),
}

impl Place {
    /// As text: a name or an address.
    pub(crate) fn text(&self) -> String {
        match self {
            Place::Endpoint(address) => address.to_string(),
            Place::External(name) => name.clone(),
        }
    }
}

/// An endpoint of a port of a Service.
pub(crate) async fn service(
    store: &dyn Store,
    env: &dyn Env,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Located, Status> {
    let key = keys::of("", "services", Some(namespace)) + name;
    let (entry, _) = store.get(&key).await?;
    let service = stored::parse(&*entry.ok_or_else(|| Status::unavailable(format!("service \"{name}\" not found")))?);
    let server_name = format!("{name}.{namespace}.svc");
    if str_at(&service, &["spec", "type"]) == "ExternalName" {
        let external = str_at(&service, &["spec", "externalName"]).to_owned();
        return Ok(Located { server_name, place: Place::External(external), port });
    }
    let ports = at(&service, &["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let Some(found) = ports.iter().find(|found| found["port"] == port) else {
        return Err(Status::unavailable(format!("no service port {port} found for service \"{name}\"")));
    };
    let port_name = found["name"].as_str().unwrap_or_default();
    let mut all = slices(store, namespace, name, port_name).await?;
    if all.is_empty() {
        all = endpoints(store, namespace, name, port_name).await?;
    }
    if all.is_empty() {
        return Err(Status::unavailable(format!("no endpoints available for service \"{name}\"")));
    }
    let chosen = usize::try_from(env.random() % all.len() as u64).unwrap_or(0);
    let (address, port) = all.swap_remove(chosen);
    Ok(Located { server_name, place: Place::Endpoint(address), port })
}

/// The port of that name in a list of ports.
fn port_named(ports: &Value, name: &str) -> Option<u16> {
    let found = ports.as_array()?.iter().find(|port| port["name"].as_str().unwrap_or_default() == name)?;
    u16::try_from(found["port"].as_u64()?).ok()
}

/// Addresses of ready endpoints, by the Service's EndpointSlices.
async fn slices(store: &dyn Store, namespace: &str, name: &str, port: &str) -> Result<Vec<(IpAddr, u16)>, Status> {
    let prefix = keys::of("discovery.k8s.io", "endpointslices", Some(namespace));
    let page = store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
    let mut found = Vec::new();
    for entry in &page.entries {
        let memo = stored::memo(entry);
        if memo.labels.get("kubernetes.io/service-name") != Some(name) {
            continue;
        }
        let slice: Object = stored::parse(entry);
        let Some(port) = slice.get("ports").and_then(|ports| port_named(ports, port)) else { continue };
        for endpoint in slice.get("endpoints").and_then(Value::as_array).into_iter().flatten() {
            if endpoint["conditions"]["ready"] == false {
                continue;
            }
            let address = endpoint["addresses"][0].as_str().and_then(|address| address.parse().ok());
            found.extend(address.map(|address| (address, port)));
        }
    }
    Ok(found)
}

/// The same by the Service's Endpoints, which somebody may keep by hand.
async fn endpoints(store: &dyn Store, namespace: &str, name: &str, port: &str) -> Result<Vec<(IpAddr, u16)>, Status> {
    let (entry, _) = store.get(&(keys::of("", "endpoints", Some(namespace)) + name)).await?;
    let Some(entry) = entry else { return Ok(Vec::new()) };
    let object = stored::parse(&entry);
    let mut found = Vec::new();
    for subset in object.get("subsets").and_then(Value::as_array).into_iter().flatten() {
        let Some(port) = port_named(&subset["ports"], port) else { continue };
        for address in subset["addresses"].as_array().into_iter().flatten() {
            let address = address["ip"].as_str().and_then(|address| address.parse().ok());
            found.extend(address.map(|address| (address, port)));
        }
    }
    Ok(found)
}
