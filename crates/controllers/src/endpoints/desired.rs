//! The endpoints that a service ought to have, by address family and ports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use carrack_engine::{EventRecord, View};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Endpoints, Node, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{chooses, first_label, topology};
use crate::pods;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// What all endpoints of a slice have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// (name, protocol, port, application protocol) in order.
    pub ports: Vec<(String, String, i32, Option<String>)>,
}

impl Group {
    pub(super) fn ports(&self) -> Vec<EndpointPort> {
        self.ports
            .iter()
            .map(|(name, protocol, port, app)| EndpointPort {
                name: Some(name.clone()),
                protocol: Some(protocol.clone()),
                port: Some(*port),
                app_protocol: app.clone(),
            })
            .collect()
    }
    /// The group of a slice that exists.
    pub(super) fn of_slice(slice: &EndpointSlice) -> Self {
        let mut ports: Vec<_> = slice
            .ports
            .iter()
            .flatten()
            .map(|p| {
                let name = p.name.clone().unwrap_or_default();
                (name, protocol(p.protocol.as_deref()), p.port.unwrap_or(0), p.app_protocol.clone())
            })
            .collect();
        ports.sort();
        Self { family: slice.address_type.clone(), ports }
    }
}

/// Endpoints by what they have in common, and among those by whom they are: a UID, or an address.
pub(super) type Desired = BTreeMap<Group, BTreeMap<String, Endpoint>>;

/// By what an endpoint is known again.
pub(super) fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|t| t.uid.clone());
    uid.unwrap_or_else(|| endpoint.addresses.first().cloned().unwrap_or_default())
}

/// The same of what is mirrored: whoever wrote it may tell several addresses of one thing, and several names of one address
/// (k8s.io/endpointslice/util, `hashEndpoint`).
pub(super) fn mirrored_identity(endpoint: &Endpoint) -> String {
    let address = endpoint.addresses.first().map_or("", String::as_str);
    format!("{address} {} {}", endpoint.hostname.as_deref().unwrap_or_default(), identity(endpoint))
}

fn protocol(protocol: Option<&str>) -> String {
    protocol.filter(|p| !p.is_empty()).unwrap_or("TCP").to_owned()
}

/// The port of a pod that a service's port leads to, if the pod has one.
pub(super) fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match &port.target_port {
        Some(IntOrString::Int(n)) if *n > 0 => return Some(*n),
        Some(IntOrString::String(name)) if !name.is_empty() => name,
        _ => return Some(port.port),
    };
    let spec = pod.spec.as_ref()?;
    let wanted = protocol(port.protocol.as_deref());
    // Sidecars are init containers that stay; the others have no port that anybody could reach.
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let fits = |p: &&k8s_openapi::api::core::v1::ContainerPort| {
        p.name.as_ref() == Some(name) && protocol(p.protocol.as_deref()) == wanted
    };
    spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()).find(fits).map(|p| p.container_port)
}

/// Families of a service: those that it was given, or IPv4.
pub(super) fn families(service: &Service) -> Vec<String> {
    let spec = service.spec.as_ref();
    let given = spec.and_then(|s| s.ip_families.clone()).filter(|f| !f.is_empty());
    given.unwrap_or_else(|| {
        let ip = spec.and_then(|s| s.cluster_ip.as_deref()).unwrap_or_default();
        vec![family_of(ip).to_owned()]
    })
}

fn family_of(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}

/// All addresses of a pod.
pub(super) fn ips(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let many: Vec<String> = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    if many.is_empty() { status.pod_ip.iter().cloned().collect() } else { many }
}

/// Whether a pod that is not ready counts nevertheless.
pub(super) fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|s| s.publish_not_ready_addresses == Some(true))
}

/// A name under which DNS knows the pod in the service.
pub(super) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let name = spec.hostname.as_ref().filter(|h| !h.is_empty())?;
    (spec.subdomain.as_deref() == Some(service.name())).then(|| name.clone())
}

pub(super) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace().to_owned()),
        name: Some(pod.name().to_owned()),
        uid: Some(pod.uid().to_owned()),
        ..ObjectReference::default()
    }
}

/// What is known of the node that a pod is bound to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeOf {
    There,
    /// It went, or never was: nobody can be reached on it.
    Gone,
    /// Nodes are not known as far as this pod is.
    Unknown,
}

fn node_of(pod: &Pod, view: &View<'_>) -> NodeOf {
    let name = pods::node_of(pod);
    if name.is_empty() || view.get::<Node>("", name).is_some() {
        NodeOf::There
    } else if view.revision::<Node>() >= pod.revision() {
        NodeOf::Gone
    } else {
        NodeOf::Unknown
    }
}

/// What the pods that a service chooses come to, and whether it is unknown of one's node if that is there. `hasty` is a planted
/// bug. Pods of nodes that are gone are left out, as upstream does, unless they are told of whatever they are like.
pub(super) fn from_pods(service: &Service, hasty: bool, view: &View<'_>) -> (Desired, bool) {
    let mut desired = Desired::new();
    let mut unknown = false;
    let families = families(service);
    let service_ports = service.spec.as_ref().and_then(|s| s.ports.clone()).unwrap_or_default();
    let pods = view.cache::<Pod>().labelled(service.namespace(), first_label(service));
    for pod in pods.filter(|p| chooses(service, p) && !is_terminal(p)) {
        let node = node_of(pod, view);
        if node == NodeOf::Gone && !publishes_not_ready(service) {
            continue;
        }
        unknown |= node == NodeOf::Unknown;
        let mut ports: Vec<_> = service_ports
            .iter()
            .filter_map(|port| {
                let number = target_port(pod, port)?;
                let name = port.name.clone().unwrap_or_default();
                Some((name, protocol(port.protocol.as_deref()), number, port.app_protocol.clone()))
            })
            .collect();
        ports.sort();
        let ips = ips(pod);
        for family in &families {
            let Some(ip) = ips.iter().find(|ip| family_of(ip) == family) else { continue };
            let group = Group { family: family.clone(), ports: ports.clone() };
            desired.entry(group).or_default().insert(pod.uid().to_owned(), endpoint(service, pod, ip, hasty, view));
        }
    }
    (desired, unknown)
}

fn endpoint(service: &Service, pod: &Pod, ip: &str, hasty: bool, view: &View<'_>) -> Endpoint {
    let serving = hasty || pods::is_ready(pod);
    let terminating = pod.is_deleting();
    let node = Some(pods::node_of(pod)).filter(|n| !n.is_empty()).map(str::to_owned);
    let told = node.as_deref().and_then(|n| view.get::<Node>("", n)).and_then(|n| n.label(ZONE));
    let zone = told.filter(|zone| !zone.is_empty()).map(str::to_owned);
    let ready = publishes_not_ready(service) || (serving && !terminating);
    let hints = match service.spec.as_ref().and_then(|s| s.traffic_distribution.as_deref()) {
        // A service that asks for hints by capacity gets those.
        _ if topology::is_asked(service) => None,
        Some("PreferClose" | "PreferSameZone" | "PreferSameNode") if ready => {
            hints(service, node.as_deref(), zone.as_deref())
        }
        _ => None,
    };
    Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service),
        node_name: node,
        zone,
        hints,
        target_ref: Some(reference(pod)),
        ..Endpoint::default()
    }
}

fn hints(service: &Service, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let same_node = service.spec.as_ref().and_then(|s| s.traffic_distribution.as_deref()) == Some("PreferSameNode");
    let hints = EndpointHints {
        for_zones: zone.map(|name| vec![ForZone { name: name.to_owned() }]),
        for_nodes: node.filter(|_| same_node).map(|name| vec![ForNode { name: name.to_owned() }]),
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}

/// How many addresses of a subset are mirrored.
pub(super) const MIRRORED: usize = 1000;

/// What the Endpoints that somebody wrote for a service without selector come to, and what is left out of it.
pub(super) fn from_endpoints(endpoints: &Endpoints) -> (Desired, Vec<EventRecord>) {
    let mut desired = Desired::new();
    let (mut invalid, mut skipped) = (0, 0);
    for subset in endpoints.subsets.iter().flatten() {
        let mut ports: Vec<_> = subset
            .ports
            .iter()
            .flatten()
            .map(|p| {
                let name = p.name.clone().unwrap_or_default();
                (name, protocol(p.protocol.as_deref()), p.port, p.app_protocol.clone())
            })
            .collect();
        ports.sort();
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let all: Vec<_> = ready.chain(subset.not_ready_addresses.iter().flatten().map(|a| (a, false))).collect();
        let mut taken = 0;
        for (address, ready) in &all {
            if taken == MIRRORED {
                break;
            }
            // As everybody writes it, whoever wrote it.
            let Ok(ip) = address.ip.parse::<IpAddr>().map(|ip| ip.to_canonical()) else {
                invalid += 1;
                continue;
            };
            taken += 1;
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            let group = Group { family: family.to_owned(), ports: ports.clone() };
            let endpoint = Endpoint {
                addresses: vec![ip.to_string()],
                conditions: Some(EndpointConditions { ready: Some(*ready), ..EndpointConditions::default() }),
                hostname: address.hostname.clone(),
                node_name: address.node_name.clone(),
                target_ref: address.target_ref.clone(),
                ..Endpoint::default()
            };
            desired.entry(group).or_default().insert(mirrored_identity(&endpoint), endpoint);
        }
        skipped += all.len() - taken;
    }
    let warn = |reason: &str, message: String| EventRecord {
        component: Some("endpoint-slice-mirroring-controller"),
        ..EventRecord::warning(endpoints, reason, message)
    };
    let mut told = Vec::new();
    if invalid > 0 {
        let message = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
        told.push(warn("InvalidIPAddress", message));
    }
    if skipped > invalid {
        let message = format!(
            "A max of {MIRRORED} addresses can be mirrored to EndpointSlices per Endpoints subset. \
             {skipped} addresses were skipped"
        );
        told.push(warn("TooManyAddressesToMirror", message));
    }
    (desired, told)
}
