//! The Endpoints object of a service with a selector, for readers older than EndpointSlices.
//!
//! As kube-controller-manager's endpoints controller (pkg/controller/endpoint): addresses by ports, at most 1000 of
//! them, in order. Endpoints go with their service: those that this controller wrote, and what somebody else wrote for a service
//! without selector, if this controller knew that.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{Controller, EventRecord, Key, Plan, Refusal, Setup, Time, View, Write};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::desired::{families, hostname, ips, publishes_not_ready, reference, target_port};
use super::{
    SINCE, chooses, difference, first_label, has_selector, is_external_name, labels_of, ready_since, services_of,
};
use crate::pods;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// How many addresses an Endpoints object holds.
const FULL: usize = 1000;

/// The endpoints controller.
#[derive(Default)]
pub struct EndpointsController {
    /// Services whose Endpoints somebody else writes.
    unselected: BTreeSet<Key>,
}

/// Name, protocol, number and application protocol.
type Port = (String, String, i32, Option<String>);

fn subsets(service: &Service, view: &View<'_>) -> (Vec<EndpointSubset>, bool) {
    let family = families(service).into_iter().next().unwrap_or_default();
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let mut addresses: Vec<(EndpointAddress, bool)> = Vec::new();
    // Which of them have a port; those of a headless service may have none.
    let mut by_port: BTreeMap<Option<Port>, Vec<usize>> = BTreeMap::new();
    let mut count = 0;
    let mut pods: Vec<_> = view
        .cache::<Pod>()
        .labelled(service.namespace(), first_label(service))
        .filter(|p| chooses(service, p) && !is_terminal(p))
        .collect();
    // Where there are too many, those that are ready come first.
    pods.sort_by_key(|p| !pods::is_ready(p));
    for pod in pods {
        if pod.is_deleting() && !publishes_not_ready(service) {
            continue;
        }
        let Some(ip) = ips(pod).into_iter().find(|ip| ip.contains(':') == (family == "IPv6")) else { continue };
        let found = ports.iter().filter_map(|p| {
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some((p.name.clone().unwrap_or_default(), protocol, target_port(pod, p)?, p.app_protocol.clone()))
        });
        let found: BTreeSet<Option<Port>> =
            if ports.is_empty() { BTreeSet::from([None]) } else { found.map(Some).collect() };
        // One that has none of the ports cannot be reached.
        count += usize::from(!found.is_empty());
        if found.is_empty() || count > FULL {
            continue;
        }
        let address = EndpointAddress {
            ip,
            hostname: hostname(pod, service),
            node_name: Some(pods::node_of(pod)).filter(|n| !n.is_empty()).map(str::to_owned),
            target_ref: Some(reference(pod)),
        };
        found.into_iter().for_each(|port| by_port.entry(port).or_default().push(addresses.len()));
        addresses.push((address, pods::is_ready(pod) || publishes_not_ready(service)));
    }
    // Ports that the same pods have are told together.
    let mut by_pods: BTreeMap<Vec<usize>, Vec<Port>> = BTreeMap::new();
    for (port, pods) in by_port {
        by_pods.entry(pods).or_default().extend(port);
    }
    let mut groups: Vec<_> = by_pods.into_iter().map(|(pods, ports)| (ports, pods)).collect();
    groups.sort();
    let list = |pods: &[usize], ready: bool| {
        let found = pods.iter().filter_map(|at| addresses.get(*at)).filter(|(_, is_ready)| *is_ready == ready);
        let mut found: Vec<_> = found.map(|(address, _)| address.clone()).collect();
        found.sort_by(|a, b| a.ip.cmp(&b.ip));
        Some(found).filter(|found| !found.is_empty())
    };
    let subsets = groups
        .into_iter()
        .map(|(ports, pods)| {
            let ports: Vec<_> = ports
                .into_iter()
                .map(|(name, protocol, port, app_protocol)| EndpointPort {
                    name: Some(name).filter(|n| !n.is_empty()),
                    protocol: Some(protocol),
                    port,
                    app_protocol,
                })
                .collect();
            EndpointSubset {
                addresses: list(&pods, true),
                not_ready_addresses: list(&pods, false),
                ports: Some(ports).filter(|p| !p.is_empty()),
            }
        })
        .collect();
    (subsets, count > FULL)
}

/// An address as a reader sees it: with its ports, and whether it is ready.
type Told<'a> = (&'a EndpointAddress, Option<&'a Vec<EndpointPort>>, bool);

fn told(subsets: &[EndpointSubset]) -> impl Iterator<Item = Told<'_>> {
    subsets.iter().flat_map(|subset| {
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let others = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        ready.chain(others).map(|(address, ready)| (address, subset.ports.as_ref(), ready))
    })
}

/// Since when what is told anew is so: the earliest of the pods whose addresses are other than they were, and the service
/// itself where nothing was told of it before.
fn since(
    service: &Service,
    had: Option<&[EndpointSubset]>,
    subsets: &[EndpointSubset],
    view: &View<'_>,
) -> Option<String> {
    let mut known: BTreeMap<&str, Vec<Told<'_>>> = BTreeMap::new();
    for one in told(had.unwrap_or_default()) {
        known.entry(one.0.ip.as_str()).or_default().push(one);
    }
    let is_fresh = |one: &Told<'_>| known.get(one.0.ip.as_str()).is_none_or(|all| !all.contains(one));
    let pods = told(subsets).filter(is_fresh).filter_map(|(address, ..)| {
        ready_since(view.cache::<Pod>(), service.namespace(), address.target_ref.as_ref()?.name.as_deref()?)
    });
    let made = service.metadata.creation_timestamp.clone().filter(|_| had.is_none());
    pods.chain(made).min().map(|first| Time::from(&first).rfc3339())
}

impl Controller for EndpointsController {
    fn name(&self) -> &'static str {
        "endpoint-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Service>();
        setup.watch_own::<Endpoints>();
        setup.index_labels::<Pod>();
        // Each pod that changes is held against all services of its namespace.
        setup.keep_open::<Service>();
        setup.watch::<Pod>(services_of);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let there = view.get::<Endpoints>(&key.namespace, &key.name).filter(|e| !e.is_deleting());
        let Some(service) = view.get::<Service>(&key.namespace, &key.name) else {
            let Some(there) = there else {
                self.unselected.remove(key);
                return Plan::none();
            };
            if there.label(MANAGED_BY) != Some(CONTROLLER) && !self.unselected.contains(key) {
                // Perhaps its service is made after it.
                return Plan::none();
            }
            return Plan::none().confirm_absent(&Service::resource(), key.clone(), "").delete(there.as_ref());
        };
        if !has_selector(service) || is_external_name(service) {
            self.unselected.insert(key.clone());
            return Plan::none();
        }
        self.unselected.remove(key);
        let (subsets, truncated) = subsets(service, view);
        let mut labels = labels_of(service);
        labels.insert(MANAGED_BY.into(), CONTROLLER.into());
        let Some(old) = there else {
            if service.is_deleting() || view.get::<Endpoints>(&key.namespace, &key.name).is_some() {
                // Another follows one that is being deleted.
                return Plan::none();
            }
            let since = since(service, None, &subsets, view).map(|since| (SINCE.to_owned(), since));
            let mark = truncated.then(|| (OVER_CAPACITY.to_owned(), "truncated".to_owned()));
            let annotations: BTreeMap<String, String> = since.into_iter().chain(mark).collect();
            return Plan::none().create(&Endpoints {
                metadata: ObjectMeta {
                    namespace: Some(key.namespace.clone()),
                    name: Some(key.name.clone()),
                    labels: Some(labels),
                    annotations: Some(annotations).filter(|all| !all.is_empty()),
                    ..ObjectMeta::default()
                },
                subsets: Some(subsets).filter(|s| !s.is_empty()),
            });
        };
        let marked = old.annotation(OVER_CAPACITY).is_some();
        let have = old.subsets.as_deref().unwrap_or_default();
        if have == subsets && old.metadata.labels.as_ref() == Some(&labels) && marked == truncated {
            return Plan::none();
        }
        let mut patch = json!({ "subsets": subsets });
        if let Some(labels) = difference(old.metadata.labels.as_ref(), &labels) {
            patch["metadata"]["labels"] = labels;
        }
        if marked != truncated {
            patch["metadata"]["annotations"][OVER_CAPACITY] = if truncated { "truncated".into() } else { Value::Null };
        }
        let since = since(service, Some(have), &subsets, view);
        if old.annotation(SINCE) != since.as_deref() {
            patch["metadata"]["annotations"][SINCE] = since.into();
        }
        Plan::none().patch(old.as_ref(), patch)
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let why = &refusal.error.message;
        let (reason, message) = match refusal.write {
            Write::Create { .. } => {
                ("FailedToCreateEndpoint", format!("Failed to create endpoint for service {key}: {why}"))
            }
            Write::Patch { .. } => ("FailedToUpdateEndpoint", format!("Failed to update endpoint {key}: {why}")),
            _ => return Plan::none(),
        };
        let (namespace, name) = (Some(key.namespace.clone()), Some(key.name.clone()));
        let unmade = || Endpoints { metadata: ObjectMeta { namespace, name, ..ObjectMeta::default() }, subsets: None };
        let about = view.get::<Endpoints>(&key.namespace, &key.name).map_or_else(unmade, |there| (**there).clone());
        Plan::none().event(EventRecord::warning(&about, reason, message))
    }
}
