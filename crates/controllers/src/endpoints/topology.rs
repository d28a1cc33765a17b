//! Hints by zone for services that ask for them (`service.kubernetes.io/topology-mode: Auto`): each zone gets endpoints in
//! proportion to the processors of its nodes.
//!
//! ```text
//!   nodes ─▶ capacity: processors by zone ─┐
//!   endpoints of one address family ───────┴▶ each for its own zone; zones with too many lend some to those with too few
//!                                            └▶ or no hints at all, and an event that says why
//! ```
//!
//! No zone's endpoints may get more than a fifth more than their share of the load; where that cannot be, nobody has hints.
//! What is in a slice that need not be written keeps its hints, as long as no zone has too many by them, so that a pod that
//! comes or goes does not change all slices. Behaviour follows kube-controller-manager (k8s.io/endpointslice/topologycache),
//! which counts in fractions and takes zones of equal need in any order; here shares are whole numbers of one unit, and the
//! zone that is first by name comes first.

use std::collections::BTreeMap;

use carrack_engine::{Cache, EventRecord};
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};

use super::desired::ZONE;

const MODE: &str = "service.kubernetes.io/topology-mode";
/// What it was called before. It has precedence, as upstream's `hintsEnabled` (pkg/controller/endpointslice, topology cache) has it.
const FORMER_MODE: &str = "service.kubernetes.io/topology-aware-hints";
/// Nodes with these are not counted, whatever the value.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether a service asks for hints by the capacity of zones.
pub(super) fn is_asked(service: &Service) -> bool {
    let mode = service.annotation(FORMER_MODE).or_else(|| service.annotation(MODE));
    matches!(mode, Some("Auto" | "auto"))
}

/// Thousandths of processors, by zone.
pub(super) type Capacity = BTreeMap<String, i128>;

/// What of a node counts: its zone and thousandths of processors, if it counts at all.
pub(super) fn counted(node: &Node) -> Option<(&str, i64)> {
    let status = node.status.as_ref();
    let ready = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten().find(|c| c.type_ == "Ready");
    if ready.is_none_or(|c| c.status != "True") || EXCLUDED.iter().any(|label| node.label(label).is_some()) {
        return None;
    }
    let cpu = status.and_then(|s| s.allocatable.as_ref()?.get("cpu"));
    let millis = cpu.and_then(|cpu| Quantity::parse(&cpu.0).ok()).map_or(0, Quantity::millis);
    Some((node.label(ZONE).unwrap_or_default(), millis.max(0)))
}

/// What there is in each zone. None when a node that counts does not say, or there are fewer than two zones.
pub(super) fn capacity(nodes: &Cache<Node>) -> Option<Capacity> {
    let mut capacity = Capacity::new();
    for (zone, millis) in nodes.iter().filter_map(|node| counted(node)) {
        if zone.is_empty() || millis == 0 {
            return None;
        }
        *capacity.entry(zone.to_owned()).or_default() += i128::from(millis);
    }
    (capacity.len() > 1).then_some(capacity)
}

/// An event about a service's hints.
pub(super) fn told(service: &Service, family: &str, why: Result<(), &str>) -> EventRecord {
    let what = why.err().unwrap_or("Topology Aware Hints has been enabled");
    let message = format!("{what}, addressType: {family}");
    match why {
        Ok(()) => EventRecord::normal(service, "TopologyAwareHintsEnabled", message),
        Err(_) => EventRecord::warning(service, "TopologyAwareHintsDisabled", message),
    }
}

/// What is told when the service does not ask for them any more.
pub(super) const NOT_ASKED: &str = "Topology Aware Hints has been disabled";

/// Whether two endpoints differ in nothing but their hints. Each of a slice is held against all others of it, so nothing is copied.
pub(super) fn is_alike(one: &Endpoint, other: &Endpoint) -> bool {
    let Endpoint { addresses, conditions, deprecated_topology, hints: _, hostname, node_name, target_ref, zone } = one;
    *addresses == other.addresses
        && *conditions == other.conditions
        && *deprecated_topology == other.deprecated_topology
        && *hostname == other.hostname
        && *node_name == other.node_name
        && *target_ref == other.target_ref
        && *zone == other.zone
}

/// What one slice is to hold, without hints yet; and what it holds, if nothing of it has to be written but hints.
pub(super) struct Part<'a> {
    pub endpoints: &'a mut [Endpoint],
    pub kept: Option<&'a [Endpoint]>,
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

/// How many endpoints a zone is to have. `desired` counts in parts of an endpoint, of which the capacity of all zones makes one.
struct Share {
    most: i128,
    desired: i128,
}

/// The shares of so many endpoints, and how many parts make one.
fn shares(capacity: Option<&Capacity>, endpoints: i128) -> Result<(BTreeMap<&str, Share>, i128), String> {
    let Some(capacity) = capacity else {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(why.to_owned());
    };
    let zones = i128::try_from(capacity.len()).unwrap_or(i128::MAX);
    let counts = format!("({endpoints} endpoints, {zones} zones)");
    if zones > endpoints {
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    let whole: i128 = capacity.values().sum();
    // With fewer than five sixths of its share, a zone's endpoints get over a fifth more than theirs.
    let least = |millis: i128| (millis * endpoints * 5 + whole * 6 - 1) / (whole * 6);
    let spare = endpoints - capacity.values().map(|millis| least(*millis)).sum::<i128>();
    if spare < 0 {
        let why = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(format!("{why} {counts}"));
    }
    let share =
        |millis: i128| Share { most: least(millis) + spare, desired: (millis * endpoints).max(least(millis) * whole) };
    Ok((capacity.iter().map(|(zone, millis)| (zone.as_str(), share(*millis))).collect(), whole))
}

/// The hints of a slice by zone, if they may stay as they are beside those that others have.
fn kept(endpoints: &[Endpoint], shares: &BTreeMap<&str, Share>, given: &Given) -> Option<Given> {
    let mut own = Given::new();
    for endpoint in endpoints.iter().filter(|e| is_ready(e)) {
        let zones = endpoint.hints.as_ref()?.for_zones.as_ref().filter(|zones| !zones.is_empty())?;
        for zone in zones {
            *own.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = |(zone, count): (&String, &i128)| {
        shares.get(zone.as_str()).is_some_and(|share| count + given.get(zone).unwrap_or(&0) <= share.most)
    };
    own.iter().all(fits).then_some(own)
}

/// How many endpoints are for each zone.
type Given = BTreeMap<String, i128>;

fn greatest(zones: &BTreeMap<&str, i128>) -> Option<(String, i128)> {
    let most = zones.values().max().filter(|parts| **parts > 0)?;
    zones.iter().find(|(_, parts)| *parts == most).map(|(zone, parts)| ((*zone).to_owned(), *parts))
}

/// How many endpoints zones with more than their share give to others, and how many those get.
fn exchange(shares: &BTreeMap<&str, Share>, whole: i128, given: &Given) -> (Given, Given) {
    let over = |zone: &str, share: &Share| given.get(zone).unwrap_or(&0) * whole - share.desired;
    let mut give: BTreeMap<&str, i128> = shares.iter().map(|(zone, share)| (*zone, over(zone, share))).collect();
    let mut take: BTreeMap<&str, i128> = give.iter().map(|(zone, parts)| (*zone, -parts)).collect();
    let (mut gives, mut takes) = (Given::new(), Given::new());
    while let (Some((from, giving)), Some((to, taking))) = (greatest(&give), greatest(&take)) {
        if (giving < whole && taking < whole) || giving * 2 < whole || taking * 2 < whole {
            break;
        }
        take_off(&mut give, &mut gives, from, whole);
        take_off(&mut take, &mut takes, to, whole);
    }
    (gives, takes)
}

/// One endpoint of what a zone has to give, or to get, is settled.
fn take_off(parts: &mut BTreeMap<&str, i128>, settled: &mut Given, zone: String, whole: i128) {
    if let Some(parts) = parts.get_mut(zone.as_str()) {
        *parts -= whole;
    }
    *settled.entry(zone).or_default() += 1;
}

fn for_zone(zone: &str) -> EndpointHints {
    EndpointHints { for_zones: Some(vec![ForZone { name: zone.to_owned() }]), for_nodes: None }
}

/// One less of a zone's; false when there is none.
fn draw(counts: &mut Given, zone: &str) -> bool {
    let Some(count) = counts.get_mut(zone).filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

/// Gives the endpoints of one address family their hints, or none, and says why.
pub(super) fn hint(capacity: Option<&Capacity>, parts: &mut [Part<'_>]) -> Result<(), String> {
    spread(capacity, parts).inspect_err(|_| {
        parts.iter_mut().flat_map(|part| part.endpoints.iter_mut()).for_each(|endpoint| endpoint.hints = None);
    })
}

fn spread(capacity: Option<&Capacity>, parts: &mut [Part<'_>]) -> Result<(), String> {
    let count = parts.iter().flat_map(|part| part.endpoints.iter()).filter(|e| is_ready(e)).count();
    let (shares, whole) = shares(capacity, i128::try_from(count).unwrap_or(i128::MAX))?;
    let mut given = Given::new();
    let mut written = Vec::new();
    for part in parts {
        match part.kept.and_then(|endpoints| Some((endpoints, kept(endpoints, &shares, &given)?))) {
            Some((endpoints, own)) => {
                own.into_iter().for_each(|(zone, count)| *given.entry(zone).or_default() += count);
                part.endpoints.clone_from_slice(endpoints);
            }
            None => written.push(part),
        }
    }
    for endpoint in written.iter().flat_map(|part| part.endpoints.iter()).filter(|e| is_ready(e)) {
        let Some(zone) = endpoint.zone.as_ref().filter(|zone| !zone.is_empty()) else {
            return Err("One or more endpoints do not have a zone specified".to_owned());
        };
        *given.entry(zone.clone()).or_default() += 1;
    }
    let (mut gives, mut takes) = exchange(&shares, whole, &given);
    for endpoint in written.iter_mut().flat_map(|part| part.endpoints.iter_mut()).filter(|e| is_ready(e)) {
        let own = endpoint.zone.clone().unwrap_or_default();
        let other = takes.iter().find(|(_, count)| **count > 0).map(|(zone, _)| zone.clone());
        let zone = match other {
            Some(other) if draw(&mut gives, &own) && draw(&mut takes, &other) => other,
            _ => own,
        };
        endpoint.hints = Some(for_zone(&zone));
    }
    Ok(())
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
