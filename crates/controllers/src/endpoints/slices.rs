//! EndpointSlices of services: endpoints stay in the slice that they are in, new ones fill the room that there is, and
//! what has no room gets a slice of its own. A slice's name is derived from the service and its number.
//!
//! Otherwise as kube-controller-manager's endpoint slice and endpoint slice mirroring controllers
//! (pkg/controller/endpointslice, endpointslicemirroring). A slice that changes says since when what it tells was so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    Cache, Controller, EventRecord, Key, Plan, Setup, Source, Time, View, controller_ref, derived_suffix,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time as MetaTime};
use serde_json::json;

use super::desired::{Desired, Group, ZONE, families, from_endpoints, from_pods, identity};
use super::topology::{self, Capacity, Part};
use super::{SINCE, has_selector, is_external_name, labels_of, ready_since, services_of};
use crate::Planted;
use crate::pods::{self, BY_NODE};

/// How many endpoints a slice holds.
const FULL: usize = 100;
/// How soon to look again whether nodes are known as far as pods are.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";
/// Endpoints with this label set to `true` are not mirrored.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// The endpoint slice controller.
#[derive(Default)]
pub struct EndpointSliceController {
    /// Services, each with an address family, whose endpoints have hints by the capacity of zones: that they get them and lose
    /// them is told once.
    hinted: BTreeSet<(Key, String)>,
    /// A planted bug: pods that run are told as ready.
    hasty: bool,
}

/// What the slices of a service are to be, and by whom they are owned.
struct Wanted<'a> {
    desired: Desired,
    managed_by: &'static str,
    owner: OwnerReference,
    labels: BTreeMap<String, String>,
    since: Since<'a>,
    /// What is to be told if anything is written.
    told: Vec<EventRecord>,
    /// Whether it is unknown of the node of a pod if that is there.
    unknown: bool,
}

/// Where it is written since when an endpoint is as it is.
enum Since<'a> {
    /// In the Ready condition of its pod. The first slices of a service tell the age of that.
    Pods(&'a Cache<Pod>, Option<MetaTime>),
    /// In what is mirrored.
    Mirrored(Option<String>),
}

impl Since<'_> {
    /// What a slice says that is to have these endpoints and had those.
    fn of(&self, service: &Service, had: &[Endpoint], endpoints: &[Endpoint]) -> Option<String> {
        let (pods, made) = match self {
            Self::Mirrored(since) => return since.clone(),
            Self::Pods(pods, made) => (pods, made),
        };
        let fresh = endpoints.iter().filter(|endpoint| !had.iter().any(|had| topology::is_alike(had, endpoint)));
        let pods = fresh.filter_map(|endpoint| {
            ready_since(pods, service.namespace(), endpoint.target_ref.as_ref()?.name.as_deref()?)
        });
        let first = pods.chain(made.clone()).min()?;
        Some(Time::from(&first).rfc3339())
    }
}

fn wanted<'a>(service: &Service, is_first: bool, hasty: bool, view: &'a View<'_>) -> Option<Wanted<'a>> {
    if is_external_name(service) {
        return None;
    }
    if has_selector(service) {
        let (mut desired, unknown) = from_pods(service, hasty, view);
        if desired.is_empty() {
            // An empty slice says that nobody is behind the service, which no slice at all would not.
            for family in families(service) {
                desired.insert(Group { family, ports: Vec::new() }, BTreeMap::new());
            }
        }
        let labels = labels_of(service);
        let made = service.metadata.creation_timestamp.clone().filter(|_| is_first);
        let since = Since::Pods(view.cache::<Pod>(), made);
        let owner = controller_ref(service);
        return Some(Wanted { desired, managed_by: CONTROLLER, owner, labels, since, told: Vec::new(), unknown });
    }
    let endpoints = view.get::<Endpoints>(service.namespace(), service.name())?;
    if endpoints.is_deleting() || endpoints.label(SKIP_MIRROR) == Some("true") {
        return None;
    }
    let labels = endpoints.metadata.labels.clone().unwrap_or_default();
    let (desired, told) = from_endpoints(endpoints);
    let since = Since::Mirrored(endpoints.annotation(SINCE).map(str::to_owned));
    let owner = controller_ref(endpoints.as_ref());
    Some(Wanted { desired, managed_by: MIRRORING, owner, labels, since, told, unknown: false })
}

impl Wanted<'_> {
    fn labels(&self, service: &Service) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(SERVICE_LABEL.into(), service.name().to_owned());
        labels.insert(MANAGED_BY.into(), self.managed_by.into());
        labels
    }

    fn slice(&self, service: &Service, name: String, group: &Group, endpoints: Vec<Endpoint>) -> EndpointSlice {
        let since = self.since.of(service, &[], &endpoints);
        EndpointSlice {
            metadata: ObjectMeta {
                namespace: Some(service.namespace().to_owned()),
                name: Some(name),
                labels: Some(self.labels(service)),
                annotations: since.map(|since| BTreeMap::from([(SINCE.to_owned(), since)])),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            address_type: group.family.clone(),
            endpoints: Some(endpoints),
            ports: Some(group.ports()),
        }
    }
}

fn is_ours(slice: &EndpointSlice) -> bool {
    matches!(slice.label(MANAGED_BY), Some(CONTROLLER | MIRRORING))
}

/// A name for a new slice that none of the others has.
fn free_name(service: &Service, group: &Group, taken: &mut BTreeSet<String>) -> String {
    let ports = format!("{:?}", group.ports);
    let mut n = 0_u32;
    loop {
        let suffix = derived_suffix(&[service.uid(), &group.family, &ports, &n.to_string()], 5);
        // Room for the dash and the suffix within a name's length.
        let stem: String = service.name().chars().take(247).collect();
        let name = format!("{stem}-{suffix}");
        if taken.insert(name.clone()) {
            return name;
        }
        n += 1;
    }
}

/// Brings a slice to these endpoints, if it differs.
fn bring(plan: Plan, service: &Service, wanted: &Wanted<'_>, slice: &EndpointSlice, endpoints: &[Endpoint]) -> Plan {
    let labels = wanted.labels(service);
    let had = had(slice);
    if had == endpoints && slice.metadata.labels.as_ref() == Some(&labels) {
        return plan;
    }
    let mut patch = json!({"metadata": {"labels": labels}, "endpoints": endpoints});
    let since = wanted.since.of(service, had, endpoints);
    if slice.annotation(SINCE) != since.as_deref() {
        patch["metadata"]["annotations"][SINCE] = since.into();
    }
    for gone in slice.metadata.labels.iter().flatten().map(|(k, _)| k).filter(|k| !labels.contains_key(*k)) {
        patch["metadata"]["labels"][gone] = serde_json::Value::Null;
    }
    plan.patch(slice, patch)
}

fn had(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

/// A slice as it is to be: one that there is, or a new one.
struct Place<'a> {
    group: &'a Group,
    slice: Option<&'a EndpointSlice>,
    endpoints: Vec<Endpoint>,
}

/// Which endpoints go into which slice, and the slices that go.
fn places<'a>(wanted: &'a Wanted<'_>, slices: &[&'a Arc<EndpointSlice>]) -> (Vec<Place<'a>>, Vec<&'a EndpointSlice>) {
    let (mut places, mut gone) = (Vec::new(), Vec::new());
    let mut by_group: BTreeMap<Group, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices {
        let group = Group::of(&slice.address_type, slice.ports.as_deref().unwrap_or_default());
        by_group.entry(group).or_default().push(slice);
    }
    for (group, endpoints) in &wanted.desired {
        let slices = by_group.remove(group).unwrap_or_default();
        if endpoints.is_empty() {
            places.push(Place { group, slice: slices.first().copied(), endpoints: Vec::new() });
            gone.extend(slices.into_iter().skip(1));
            continue;
        }
        // First what each slice keeps, in its new form; then those with room take the others.
        let mut left = endpoints.clone();
        let mut kept: Vec<Vec<Endpoint>> = slices
            .iter()
            .map(|s| s.endpoints.iter().flatten().filter_map(|e| left.remove(&identity(e))).take(FULL).collect())
            .collect();
        let mut rest = left.into_values();
        for slice in &mut kept {
            let room = FULL.saturating_sub(slice.len());
            slice.extend(rest.by_ref().take(room));
        }
        for (slice, endpoints) in slices.into_iter().zip(kept) {
            if endpoints.is_empty() {
                gone.push(slice);
            } else {
                places.push(Place { group, slice: Some(slice), endpoints });
            }
        }
        for chunk in rest.collect::<Vec<_>>().chunks(FULL) {
            places.push(Place { group, slice: None, endpoints: chunk.to_vec() });
        }
    }
    gone.extend(by_group.into_values().flatten());
    (places, gone)
}

/// What slices are to be written so that they hold what goes into each.
fn plan(
    service: &Service,
    wanted: &Wanted<'_>,
    slices: &[&Arc<EndpointSlice>],
    places: &[Place<'_>],
    gone: &[&EndpointSlice],
) -> Plan {
    let mut taken: BTreeSet<String> = slices.iter().map(|s| s.name().to_owned()).collect();
    let mut plan = Plan::none();
    for place in places {
        plan = match place.slice {
            Some(slice) => bring(plan, service, wanted, slice, &place.endpoints),
            None => {
                let name = free_name(service, place.group, &mut taken);
                plan.create(&wanted.slice(service, name, place.group, place.endpoints.clone()))
            }
        };
    }
    // What is to go goes last, so that no endpoint is missing meanwhile.
    gone.iter().fold(plan, |plan, slice| plan.delete(*slice))
}

impl EndpointSliceController {
    pub(crate) fn with_planted(mut self, bug: Option<Planted>) -> Self {
        self.hasty = bug == Some(Planted::HastySlices);
        self
    }

    /// Gives endpoints hints where the service asks for them by the capacity of zones, and what is to be told of that.
    fn hint(&mut self, service: &Service, view: &View<'_>, places: &mut [Place<'_>]) -> Vec<EventRecord> {
        let key = Key::of(service);
        let families: BTreeSet<String> = places.iter().map(|place| place.group.family.clone()).collect();
        if !topology::is_asked(service) {
            let had = |family: &&String| self.hinted.remove(&(key.clone(), (*family).clone()));
            let had: Vec<&String> = families.iter().filter(had).collect();
            return had.iter().map(|family| topology::told(service, family, Err(topology::NOT_ASKED))).collect();
        }
        let capacity: Option<Capacity> = topology::capacity(view.cache::<Node>());
        let mut told = Vec::new();
        for family in families {
            let mut parts: Vec<Part<'_>> = places
                .iter_mut()
                .filter(|place| place.group.family == family)
                .map(|place| {
                    let had = place.slice.map(had).filter(|had| {
                        let alike = had.iter().zip(&place.endpoints).all(|(one, other)| topology::is_alike(one, other));
                        had.len() == place.endpoints.len() && alike
                    });
                    Part { endpoints: &mut place.endpoints, kept: had }
                })
                .collect();
            match topology::hint(capacity.as_ref(), &mut parts) {
                Ok(()) if !self.hinted.insert((key.clone(), family.clone())) => {}
                Ok(()) => told.push(topology::told(service, &family, Ok(()))),
                Err(why) => {
                    self.hinted.remove(&(key.clone(), family.clone()));
                    told.push(topology::told(service, &family, Err(&why)));
                }
            }
        }
        told
    }
}

impl Controller for EndpointSliceController {
    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }
    fn event_source(&self) -> &'static str {
        "endpoint-slice-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Service>();
        setup.watch::<Endpoints>(|e, view| {
            // Those of services with a selector are written by our own controller, and not mirrored.
            let service = view.get::<Service>(e.namespace(), e.name());
            if service.is_some_and(|s| !has_selector(s)) { vec![Key::of(e)] } else { Vec::new() }
        });
        setup.index::<Pod>(BY_NODE, pods::by_node);
        setup.watch::<Pod>(services_of);
        setup.watch::<EndpointSlice>(|slice, _| {
            let service = slice.label(SERVICE_LABEL).filter(|_| is_ours(slice));
            service.map(|name| Key::new(slice.namespace(), name)).into_iter().collect()
        });
        // A node may be seen after its pods, and its zone be told later.
        let zone = |old: &Node, new: &Node| old.label(ZONE) != new.label(ZONE);
        setup.watch_changes::<Node>(Source::of::<Node>(), zone, |node, view| {
            let pods = view.cache::<Pod>().by_index(BY_NODE, node.name());
            pods.flat_map(|pod| services_of(pod, view)).collect::<BTreeSet<_>>().into_iter().collect()
        });
        let capacity = |old: &Node, new: &Node| topology::counted(old) != topology::counted(new);
        setup.watch_changes::<Node>(Source::of::<Node>(), capacity, |_, view| {
            let services = view.cache::<Service>().iter();
            services.filter(|s| topology::is_asked(s)).map(|s| Key::of(s.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        // What belonged to a service that is gone is the garbage collector's.
        let Some(service) = view.get::<Service>(&key.namespace, &key.name).filter(|s| !s.is_deleting()) else {
            self.hinted.retain(|(of, _)| of != key);
            return Plan::none();
        };
        let slices: Vec<_> = view
            .cache::<EndpointSlice>()
            .in_namespace(&key.namespace)
            .filter(|s| s.label(SERVICE_LABEL) == Some(&key.name) && is_ours(s) && !s.is_deleting())
            .collect();
        match wanted(service, slices.is_empty(), self.hasty, view) {
            Some(mut wanted) => {
                let told = std::mem::take(&mut wanted.told);
                // Those of another kind of owner (a selector came or went) are replaced.
                let (ours, others): (Vec<_>, Vec<_>) =
                    slices.into_iter().partition(|s| s.label(MANAGED_BY) == Some(wanted.managed_by));
                let (mut places, gone) = places(&wanted, &ours);
                let mut hints = Vec::new();
                if wanted.managed_by == CONTROLLER {
                    hints = self.hint(service, view, &mut places);
                }
                let plan = plan(service, &wanted, &ours, &places, &gone);
                let plan = others.into_iter().fold(plan, |plan, slice| plan.delete(slice.as_ref()));
                let plan = if plan.is_none() { plan } else { told.into_iter().fold(plan, Plan::event) };
                let plan = hints.into_iter().fold(plan, Plan::event);
                if wanted.unknown { plan.requeue_after(LOOK_AGAIN) } else { plan }
            }
            None => slices.into_iter().fold(Plan::none(), |plan, slice| plan.delete(slice.as_ref())),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
