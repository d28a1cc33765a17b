//! The Endpoints object of a service with a selector, for readers older than EndpointSlices.
//!
//! As kube-controller-manager's endpoints controller (pkg/controller/endpoint): addresses by ports, at most 1000 of
//! them, in order; and Endpoints that this controller wrote go when their service does.

use std::collections::BTreeMap;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::desired::{families, hostname, ips, publishes_not_ready, reference, target_port};
use super::{SINCE, chooses, has_selector, is_external_name, labels_of, ready_since, services_of};
use crate::pods;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// How many addresses an Endpoints object holds.
const FULL: usize = 1000;

/// The endpoints controller.
pub struct EndpointsController;

type Ports = Vec<(String, String, i32, Option<String>)>;

fn subsets(service: &Service, view: &View<'_>) -> (Vec<EndpointSubset>, bool) {
    let family = families(service).into_iter().next().unwrap_or_default();
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let mut by_ports: BTreeMap<Ports, (Vec<EndpointAddress>, Vec<EndpointAddress>)> = BTreeMap::new();
    let mut count = 0;
    let mut pods: Vec<_> = view
        .cache::<Pod>()
        .in_namespace(service.namespace())
        .filter(|p| chooses(service, p) && !is_terminal(p))
        .collect();
    // Where there are too many, those that are ready come first.
    pods.sort_by_key(|p| !pods::is_ready(p));
    for pod in pods {
        if pod.is_deleting() && !publishes_not_ready(service) {
            continue;
        }
        let Some(ip) = ips(pod).into_iter().find(|ip| ip.contains(':') == (family == "IPv6")) else { continue };
        count += 1;
        if count > FULL {
            continue;
        }
        let mut key: Ports = ports
            .iter()
            .filter_map(|p| {
                let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
                Some((p.name.clone().unwrap_or_default(), protocol, target_port(pod, p)?, p.app_protocol.clone()))
            })
            .collect();
        key.sort();
        let address = EndpointAddress {
            ip,
            hostname: hostname(pod, service),
            node_name: Some(pods::node_of(pod)).filter(|n| !n.is_empty()).map(str::to_owned),
            target_ref: Some(reference(pod)),
        };
        let (ready, not_ready) = by_ports.entry(key).or_default();
        if pods::is_ready(pod) || publishes_not_ready(service) { ready } else { not_ready }.push(address);
    }
    let list = |mut addresses: Vec<EndpointAddress>| {
        addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
        Some(addresses).filter(|a| !a.is_empty())
    };
    let subsets = by_ports
        .into_iter()
        .map(|(ports, (ready, not_ready))| {
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
                addresses: list(ready),
                not_ready_addresses: list(not_ready),
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
        setup.watch::<Pod>(services_of);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let there = view.get::<Endpoints>(&key.namespace, &key.name).filter(|e| !e.is_deleting());
        let Some(service) = view.get::<Service>(&key.namespace, &key.name) else {
            return match there.filter(|e| e.label(MANAGED_BY) == Some(CONTROLLER)) {
                Some(e) => Plan::none().confirm_absent(&Service::resource(), key.clone(), "").delete(e.as_ref()),
                None => Plan::none(),
            };
        };
        if service.is_deleting() || !has_selector(service) || is_external_name(service) {
            return Plan::none();
        }
        let (subsets, truncated) = subsets(service, view);
        let mut labels = labels_of(service);
        labels.insert(MANAGED_BY.into(), CONTROLLER.into());
        let Some(old) = there else {
            if view.get::<Endpoints>(&key.namespace, &key.name).is_some() {
                // It is being deleted; another follows.
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
        let mut patch = json!({"metadata": {"labels": labels}, "subsets": subsets});
        for gone in old.metadata.labels.iter().flatten().map(|(k, _)| k).filter(|k| !labels.contains_key(*k)) {
            patch["metadata"]["labels"][gone] = Value::Null;
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
}
