//! Services: their addresses and node ports, and the service that the API itself is reached by.
//!
//! ```text
//!   service ─► families ─► addresses, ports ─► store: service + one IPAddress each + one key a port
//! ```
//!
//! What is handed out is recorded in the transaction that stores the service, each address as an
//! `IPAddress` of its name (as upstream) and each port under a key of its own; that the name was free
//! is a precondition. So two services never share one, also between two API servers, and nothing is
//! left behind. <https://kubernetes.io/docs/concepts/services-networking/service/>

mod allocate;
mod families;
mod kubernetes;
mod range;
mod repair;

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use crate::admission::{AdmissionPlugin, Along, Attributes, Change, Lookup, Needed, Operation};
use crate::env::{Env, new_uid, rfc3339_s};
use crate::object::{Object, at, child_mut, str_at};
use crate::status::Status;

pub use range::{Cidr, Family};

pub(crate) const NET: &str = "networking.k8s.io";
const ADDRESSES: &str = "ipaddresses";
pub(crate) const RANGES: &str = "servicecidrs";
/// Ports have keys below this place, which is where upstream keeps its bitmap of them.
const PORTS: (&str, &str) = ("", "ranges/servicenodeports");

/// What services are given.
#[derive(Clone, Debug)]
pub struct Network {
    /// Ranges of cluster addresses, one or one of each family; the first one's is the cluster's own.
    pub service_ranges: Vec<Cidr>,
    /// The first and the last node port.
    pub node_ports: (u16, u16),
    /// Where clients in the cluster reach this API server; without it, the `kubernetes` service has no endpoints.
    pub advertise: Option<SocketAddr>,
}

impl Default for Network {
    /// Upstream's ranges.
    fn default() -> Network {
        Network {
            service_ranges: Cidr::parse("10.96.0.0/12").into_iter().collect(),
            node_ports: (30_000, 32_767),
            advertise: None,
        }
    }
}

/// Hands out addresses and ports.
pub(crate) struct ServiceAddresses {
    network: Network,
}

impl ServiceAddresses {
    pub(crate) fn new(network: Network) -> ServiceAddresses {
        ServiceAddresses { network }
    }

    /// The ranges that addresses come from now: those of the ServiceCIDRs, which begin with the configured ones.
    fn ranges(&self, lookup: &dyn Lookup) -> Vec<Cidr> {
        let mut all = self.network.service_ranges.clone();
        for object in lookup.list(NET, RANGES, "").into_iter().filter(|object| !crate::object::is_deleting(object)) {
            let cidrs = at(object, &["spec", "cidrs"]).and_then(Value::as_array).into_iter().flatten();
            for range in cidrs.filter_map(Value::as_str).filter_map(Cidr::parse) {
                if !all.contains(&range) {
                    all.push(range);
                }
            }
        }
        all
    }

    fn configured(&self) -> Vec<Family> {
        let mut all: Vec<Family> = Vec::new();
        for family in self.network.service_ranges.iter().map(Cidr::family) {
            if !all.contains(&family) {
                all.push(family);
            }
        }
        all
    }
}

fn spec(service: &Object) -> Option<&Object> {
    service.get("spec").and_then(Value::as_object)
}

/// Whether the write may change what a service holds.
fn concerns(attributes: &Attributes<'_>) -> bool {
    if !attributes.is("", "services") {
        return false;
    }
    match (attributes.operation, attributes.old.and_then(spec)) {
        (Operation::Delete, _) | (_, None) => true,
        (_, Some(old)) => {
            Some(old) != spec(&attributes.object)
                || (families::has_addresses(old) && families::addresses(old).is_empty())
        }
    }
}

/// What a service holds: its addresses and its node ports.
fn held(service: Option<&Object>) -> (Vec<IpAddr>, Vec<u16>) {
    let Some(spec) = service.and_then(spec) else { return Default::default() };
    let addresses = families::addresses(spec).iter().filter_map(|text| text.parse().ok()).collect();
    (addresses, allocate::node_ports(spec))
}

impl AdmissionPlugin for ServiceAddresses {
    fn name(&self) -> &'static str {
        "ServiceAddresses"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if !concerns(attributes) {
            return Vec::new();
        }
        let mut needed: Vec<Needed> = Vec::new();
        if attributes.operation != Operation::Delete {
            needed.push(Needed::all(NET, ADDRESSES, ""));
            needed.push(Needed::all(NET, RANGES, ""));
            needed.push(Needed::all(PORTS.0, PORTS.1, ""));
        }
        let (addresses, _) = held(attributes.old);
        needed.extend(addresses.iter().map(|address| Needed::one(NET, ADDRESSES, "", &address.to_string())));
        needed
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !concerns(attributes) || attributes.operation == Operation::Delete {
            return Ok(());
        }
        let old = attributes.old.and_then(spec).cloned();
        let pool = allocate::Pool {
            ranges: &self.ranges(lookup),
            configured: &self.configured(),
            node_ports: self.network.node_ports,
            addresses: &lookup.names(NET, ADDRESSES, ""),
            ports: &lookup.names(PORTS.0, PORTS.1, ""),
        };
        let env = attributes.env;
        let new = child_mut(&mut attributes.object, "spec");
        let outcome = allocate::allocate(new, old.as_ref(), &pool, || env.random());
        outcome.map_err(|fault| match fault {
            allocate::Fault::Field(field, reason, text) => {
                Status::invalid("", "Service", &attributes.name, &[(reason.to_owned(), format!("spec.{field}"), text)])
            }
            allocate::Fault::Full(why) => Status::internal(why),
        })
    }

    fn along(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<Vec<Along>, Status> {
        if !concerns(attributes) {
            return Ok(Vec::new());
        }
        let (old_addresses, old_ports) = held(attributes.old);
        let (addresses, ports) = match attributes.operation {
            Operation::Delete | Operation::Connect => Default::default(),
            _ => held(Some(&attributes.object)),
        };
        let owner = Owner { namespace: attributes.namespace, name: &attributes.name, env: attributes.env };
        let mut changes = Vec::new();
        for address in addresses.iter().filter(|address| !old_addresses.contains(address)) {
            changes.push(owner.take_address(*address));
        }
        for address in old_addresses.iter().filter(|address| !addresses.contains(address)) {
            let name = address.to_string();
            // Should it be somebody else's by a fault of the past, it stays theirs.
            if lookup.get(NET, ADDRESSES, "", &name).is_some_and(|found| owner.owns(found)) {
                changes.push(Along {
                    group: NET,
                    resource: ADDRESSES,
                    namespace: String::new(),
                    name,
                    change: Change::Delete,
                });
            }
        }
        for port in ports.iter().filter(|port| !old_ports.contains(port)) {
            changes.push(owner.take_port(*port));
        }
        for port in old_ports.iter().filter(|port| !ports.contains(port)) {
            changes.push(at_port(*port, Change::Delete));
        }
        Ok(changes)
    }
}

fn at_port(port: u16, change: Change) -> Along {
    Along { group: PORTS.0, resource: PORTS.1, namespace: String::new(), name: port.to_string(), change }
}

/// The service that something is taken for.
struct Owner<'a> {
    namespace: &'a str,
    name: &'a str,
    env: &'a dyn Env,
}

impl Owner<'_> {
    fn parent(&self) -> Value {
        json!({"group": "", "resource": "services", "namespace": self.namespace, "name": self.name})
    }

    fn owns(&self, address: &Object) -> bool {
        str_at(address, &["spec", "parentRef", "resource"]) == "services"
            && str_at(address, &["spec", "parentRef", "namespace"]) == self.namespace
            && str_at(address, &["spec", "parentRef", "name"]) == self.name
    }

    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "uid": new_uid(self.env), "creationTimestamp": rfc3339_s(self.env.now())})
    }

    fn take_address(&self, address: IpAddr) -> Along {
        let name = address.to_string();
        let mut metadata = self.metadata(&name);
        metadata["labels"] = json!({
            "ipaddress.kubernetes.io/ip-family": Family::of(address).text(),
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
        });
        let object = object(json!({"metadata": metadata, "spec": {"parentRef": self.parent()}}));
        Along { group: NET, resource: ADDRESSES, namespace: String::new(), name, change: Change::Create(object) }
    }

    fn take_port(&self, port: u16) -> Along {
        let object = object(json!({
            "apiVersion": "carrack.io/v1", "kind": "NodePort",
            "metadata": self.metadata(&port.to_string()), "spec": {"parentRef": self.parent()},
        }));
        at_port(port, Change::Create(object))
    }
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
