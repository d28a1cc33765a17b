//! Which pods a service stands for, written down as EndpointSlices and, for older readers, as Endpoints.
//!
//! ```text
//!   Service, Pods, Nodes ─▶ desired: endpoints by address family and ports ─┬▶ slices: at most 100 in each
//!   Endpoints that somebody wrote for a service without selector ───────────┘  (mirrored)
//!   Nodes, slices of services that ask for it ─▶ topology: hints by the capacity of zones
//!   Service, Pods ─▶ legacy: one Endpoints object of the service's name
//! ```

mod desired;
mod legacy;
mod slices;
mod topology;

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{Cache, Key, View};
use carrack_types::resource::Object as _;
use carrack_types::selector::map_selects;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use serde_json::{Map, Value};

pub use legacy::EndpointsController;
pub use slices::EndpointSliceController;

/// Since when what is told of a service is so (as in core/v1, `EndpointsLastChangeTriggerTime`). kube-proxy makes its latencies
/// from it. Upstream remembers for it what it has seen of each pod; here it is read from the endpoints that are other than
/// they were.
const SINCE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Since when a pod has been as ready as it is.
fn ready_since(pods: &Cache<Pod>, namespace: &str, name: &str) -> Option<MetaTime> {
    crate::pods::condition(pods.get(namespace, name)?, "Ready")?.last_transition_time.clone()
}

/// Keys of the services that choose a pod.
fn services_of(pod: &Pod, view: &View<'_>) -> Vec<Key> {
    view.cache::<Service>()
        .in_namespace(pod.namespace())
        .filter(|s| chooses(s, pod))
        .map(|s| Key::of(s.as_ref()))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn chooses(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    map_selects(selector, pod.metadata.labels.as_ref())
}

/// One of the labels that a pod must have for a service to choose it.
fn first_label(service: &Service) -> Option<(&String, &String)> {
    service.spec.as_ref()?.selector.as_ref()?.first_key_value()
}

fn has_selector(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.selector.as_ref()).is_some_and(|s| !s.is_empty())
}

fn is_external_name(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.type_.as_deref()) == Some("ExternalName")
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None")
}

/// What has to be written, if anything, so that labels or annotations become others.
fn difference(old: Option<&BTreeMap<String, String>>, new: &BTreeMap<String, String>) -> Option<Value> {
    let old = || old.into_iter().flatten();
    let gone = old().filter(|(key, _)| !new.contains_key(*key)).map(|(key, _)| (key.clone(), Value::Null));
    let set = new.iter().filter(|one| !old().any(|had| had == *one));
    let all: Map<String, Value> = gone.chain(set.map(|(key, value)| (key.clone(), value.clone().into()))).collect();
    (!all.is_empty()).then(|| all.into())
}

/// Labels that the service hands on to what is written for it.
fn labels_of(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

const HEADLESS: &str = "service.kubernetes.io/headless";
