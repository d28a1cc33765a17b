//! EndpointSlices of services: endpoints stay in the slice that they are in; new ones go where something is written anyway, or
//! into one slice that has room for all of them, or into a slice of their own. A slice that would go becomes one that would be
//! made. A slice's name is derived from the service and its number.
//!
//! Otherwise as kube-controller-manager's endpoint slice and endpoint slice mirroring controllers
//! (pkg/controller/endpointslice, endpointslicemirroring). A slice that changes says since when what it tells was so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    Cache, Controller, EventRecord, Key, Plan, Refusal, Setup, Source, Time, View, Write, controller_ref,
    derived_suffix,
};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time as MetaTime};
use serde_json::json;

use super::desired::{
    Desired, Group, MIRRORED, ZONE, families, from_endpoints, from_pods, identity, mirrored_identity,
};
use super::topology::{self, Capacity, Part};
use super::{SINCE, difference, has_selector, is_external_name, labels_of, ready_since, services_of};
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
/// Nor are those with this annotation: by them leaders were told before there were Leases.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// What `kubectl apply` notes of an object, and is of no concern to another one.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
    annotations: Annotations<'a>,
    /// How many endpoints a slice holds.
    full: usize,
    /// What is to be told if anything is written.
    told: Vec<EventRecord>,
    /// Whether it is unknown of the node of a pod if that is there.
    unknown: bool,
}

/// What the annotations of slices are made of.
enum Annotations<'a> {
    /// Of pods: their Ready conditions tell since when an endpoint is as it is. The first slices of a service tell the age of that.
    Pods(&'a Cache<Pod>, Option<MetaTime>),
    /// Of what is mirrored: they are its own.
    Mirrored(BTreeMap<String, String>),
}

impl Annotations<'_> {
    /// Those of a slice that has these, had those endpoints, and is to have others.
    fn of(
        &self,
        service: &Service,
        old: Option<&BTreeMap<String, String>>,
        had: &[Endpoint],
        endpoints: &[Endpoint],
    ) -> BTreeMap<String, String> {
        let (pods, made) = match self {
            Self::Mirrored(all) => return all.clone(),
            Self::Pods(pods, made) => (pods, made),
        };
        let fresh = endpoints.iter().filter(|endpoint| !had.iter().any(|had| topology::is_alike(had, endpoint)));
        let pods = fresh.filter_map(|endpoint| {
            ready_since(pods, service.namespace(), endpoint.target_ref.as_ref()?.name.as_deref()?)
        });
        let mut all = old.cloned().unwrap_or_default();
        all.remove(SINCE);
        all.extend(pods.chain(made.clone()).min().map(|first| (SINCE.to_owned(), Time::from(&first).rfc3339())));
        all
    }
}

fn wanted<'a>(service: &Service, is_first: bool, hasty: bool, view: &'a View<'_>) -> Option<Wanted<'a>> {
    if is_external_name(service) {
        return None;
    }
    if has_selector(service) {
        let (mut desired, unknown) = from_pods(service, hasty, view);
        for family in families(service) {
            // An empty slice says that nobody is behind the service, which no slice at all would not.
            if !desired.keys().any(|group| group.family == family) {
                desired.insert(Group { family, ports: Vec::new() }, BTreeMap::new());
            }
        }
        let labels = labels_of(service);
        let made = service.metadata.creation_timestamp.clone().filter(|_| is_first);
        let annotations = Annotations::Pods(view.cache::<Pod>(), made);
        let owner = controller_ref(service);
        let (managed_by, full, told) = (CONTROLLER, FULL, Vec::new());
        return Some(Wanted { desired, managed_by, owner, labels, annotations, full, told, unknown });
    }
    let endpoints = view.get::<Endpoints>(service.namespace(), service.name())?;
    let skipped = endpoints.label(SKIP_MIRROR) == Some("true") || endpoints.annotation(LEADER).is_some();
    if endpoints.is_deleting() || skipped {
        return None;
    }
    let labels = endpoints.metadata.labels.clone().unwrap_or_default();
    let (desired, told) = from_endpoints(endpoints);
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !matches!(key.as_str(), SINCE | LAST_APPLIED));
    let annotations = Annotations::Mirrored(annotations);
    let owner = controller_ref(endpoints.as_ref());
    // A subset comes to one slice.
    let (managed_by, full) = (MIRRORING, MIRRORED);
    Some(Wanted { desired, managed_by, owner, labels, annotations, full, told, unknown: false })
}

impl Wanted<'_> {
    fn labels(&self, service: &Service) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(SERVICE_LABEL.into(), service.name().to_owned());
        labels.insert(MANAGED_BY.into(), self.managed_by.into());
        labels
    }

    fn slice(&self, service: &Service, name: String, group: &Group, endpoints: Vec<Endpoint>) -> EndpointSlice {
        let annotations = self.annotations.of(service, None, &[], &endpoints);
        EndpointSlice {
            metadata: ObjectMeta {
                namespace: Some(service.namespace().to_owned()),
                name: Some(name),
                labels: Some(self.labels(service)),
                annotations: Some(annotations).filter(|all| !all.is_empty()),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            address_type: group.family.clone(),
            endpoints: Some(endpoints),
            ports: Some(group.ports()),
        }
    }

    /// By what its endpoints are known again.
    fn who(&self) -> fn(&Endpoint) -> String {
        if self.managed_by == MIRRORING { mirrored_identity } else { identity }
    }

    /// Whether a slice is of those that are looked after here: not of a former service of that name, nor made for another reason.
    fn has(&self, slice: &EndpointSlice) -> bool {
        let owners = slice.metadata.owner_references.as_deref().unwrap_or_default();
        slice.label(MANAGED_BY) == Some(self.managed_by) && owners.iter().any(|owner| owner.uid == self.owner.uid)
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

/// Brings a slice to what it is to hold, if it differs.
fn bring(plan: Plan, service: &Service, wanted: &Wanted<'_>, slice: &EndpointSlice, place: &Place<'_>) -> Plan {
    let labels = wanted.labels(service);
    let moves = Group::of_slice(slice) != *place.group;
    let had: &[Endpoint] = if moves { &[] } else { had(slice) };
    let old = slice.metadata.annotations.as_ref();
    let annotations = wanted.annotations.of(service, old, had, &place.endpoints);
    let labels = difference(slice.metadata.labels.as_ref(), &labels);
    let annotations = difference(old, &annotations);
    // Since when it is so is told with what is so.
    let is_annotated = annotations.is_none() || matches!(wanted.annotations, Annotations::Pods(..));
    if !moves && had == place.endpoints && labels.is_none() && is_annotated {
        return plan;
    }
    let mut patch = json!({"endpoints": place.endpoints});
    for (part, changes) in [("labels", labels), ("annotations", annotations)] {
        if let Some(changes) = changes {
            patch["metadata"][part] = changes;
        }
    }
    if moves {
        patch["ports"] = json!(place.group.ports());
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

/// What one slice keeps of what it has, in its new form, and whether it is written.
struct Kept<'a> {
    slice: &'a EndpointSlice,
    endpoints: Vec<Endpoint>,
    is_written: bool,
}

/// What each slice of a group keeps, and what is added to each; and what goes into slices of its own.
fn fill<'a>(
    slices: Vec<&'a EndpointSlice>,
    mut left: BTreeMap<String, Endpoint>,
    full: usize,
    who: fn(&Endpoint) -> String,
    is_labelled: impl Fn(&EndpointSlice) -> bool,
) -> (Vec<Kept<'a>>, Vec<Endpoint>) {
    let mut kept: Vec<Kept<'a>> = Vec::new();
    for slice in slices {
        let had = had(slice);
        let endpoints: Vec<_> = had.iter().filter_map(|e| left.remove(&who(e))).take(full).collect();
        let same = endpoints.len() == had.len() && endpoints.iter().zip(had).all(|(a, b)| topology::is_alike(a, b));
        kept.push(Kept { slice, endpoints, is_written: !same || !is_labelled(slice) });
    }
    // The fullest first.
    kept.sort_by_key(|kept| std::cmp::Reverse(kept.endpoints.len()));
    let mut rest: VecDeque<Endpoint> = left.into_values().collect();
    for kept in kept.iter_mut().filter(|kept| kept.is_written && !kept.endpoints.is_empty()) {
        let room = full.saturating_sub(kept.endpoints.len()).min(rest.len());
        kept.endpoints.extend(rest.drain(..room));
    }
    // What fills no slice goes into one that has room for all of it.
    let over = rest.len() % full;
    let fits = |kept: &&mut Kept<'_>| !kept.is_written && kept.endpoints.len() + over <= full;
    if over > 0
        && let Some(kept) = kept.iter_mut().find(fits)
    {
        kept.endpoints.extend(rest.drain(..over));
    }
    (kept, rest.into())
}

/// Which endpoints go into which slice, and the slices that go.
fn places<'a>(
    service: &Service,
    wanted: &'a Wanted<'_>,
    slices: &[&'a Arc<EndpointSlice>],
) -> (Vec<Place<'a>>, Vec<&'a EndpointSlice>) {
    let (mut places, mut gone) = (Vec::new(), Vec::new());
    let mut by_group: BTreeMap<Group, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices {
        by_group.entry(Group::of_slice(slice)).or_default().push(slice);
    }
    let labels = wanted.labels(service);
    for (group, endpoints) in &wanted.desired {
        let slices = by_group.remove(group).unwrap_or_default();
        if endpoints.is_empty() {
            places.push(Place { group, slice: slices.first().copied(), endpoints: Vec::new() });
            gone.extend(slices.into_iter().skip(1));
            continue;
        }
        let is_labelled = |slice: &EndpointSlice| slice.metadata.labels.as_ref() == Some(&labels);
        let (kept, rest) = fill(slices, endpoints.clone(), wanted.full, wanted.who(), is_labelled);
        for Kept { slice, endpoints, .. } in kept {
            if endpoints.is_empty() {
                gone.push(slice);
            } else {
                places.push(Place { group, slice: Some(slice), endpoints });
            }
        }
        for chunk in rest.chunks(wanted.full) {
            places.push(Place { group, slice: None, endpoints: chunk.to_vec() });
        }
    }
    gone.extend(by_group.into_values().flatten());
    // One that would go becomes one that would be made: one write less, and the name stays.
    for place in places.iter_mut().filter(|place| place.slice.is_none()) {
        if let Some(at) = gone.iter().position(|slice| slice.address_type == place.group.family) {
            place.slice = Some(gone.remove(at));
        }
    }
    (places, gone)
}

/// What slices are to be written so that they hold what goes into each.
fn plan(
    service: &Service,
    wanted: &Wanted<'_>,
    mut taken: BTreeSet<String>,
    places: &[Place<'_>],
    gone: &[&EndpointSlice],
) -> Plan {
    let mut plan = Plan::none();
    for place in places {
        plan = match place.slice {
            Some(slice) => bring(plan, service, wanted, slice, place),
            // What is made for a service that is to go would only have to be deleted with it.
            None if service.is_deleting() => plan,
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
                    let stays = |slice: &&EndpointSlice| Group::of_slice(slice) == *place.group;
                    let had = place.slice.filter(stays).map(had).filter(|had| {
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
        setup.index_labels::<Pod>();
        setup.index_labels::<EndpointSlice>();
        // Each pod that changes is held against all services of its namespace.
        setup.keep_open::<Service>();
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
        let label = SERVICE_LABEL.to_owned();
        let slices: Vec<_> = view
            .cache::<EndpointSlice>()
            .labelled(&key.namespace, Some((&label, &key.name)))
            .filter(|s| s.label(SERVICE_LABEL) == Some(&key.name) && is_ours(s) && !s.is_deleting())
            .collect();
        let Some(service) = view.get::<Service>(&key.namespace, &key.name) else {
            self.hinted.retain(|(of, _)| of != key);
            // What belonged to a service that is gone is the garbage collector's, but what is mirrored belongs to Endpoints.
            let mut mirrored = slices.into_iter().filter(|s| s.label(MANAGED_BY) == Some(MIRRORING)).peekable();
            if mirrored.peek().is_none() {
                return Plan::none();
            }
            let gone = Plan::none().confirm_absent(&Service::resource(), key.clone(), "");
            return mirrored.fold(gone, |plan, slice| plan.delete(slice.as_ref()));
        };
        let taken: BTreeSet<String> = slices.iter().map(|s| s.name().to_owned()).collect();
        match wanted(service, slices.is_empty(), self.hasty, view) {
            Some(mut wanted) => {
                let told = std::mem::take(&mut wanted.told);
                // Those of another owner (a selector came or went, a service of that name was there before) are replaced.
                let (ours, others): (Vec<_>, Vec<_>) = slices.into_iter().partition(|s| wanted.has(s));
                let (mut places, gone) = places(service, &wanted, &ours);
                let mut hints = Vec::new();
                if wanted.managed_by == CONTROLLER {
                    hints = self.hint(service, view, &mut places);
                }
                let plan = plan(service, &wanted, taken, &places, &gone);
                let plan = others.into_iter().fold(plan, |plan, slice| plan.delete(slice.as_ref()));
                let plan = if plan.is_none() { plan } else { told.into_iter().fold(plan, Plan::event) };
                let plan = hints.into_iter().fold(plan, Plan::event);
                if wanted.unknown { plan.requeue_after(LOOK_AGAIN) } else { plan }
            }
            None => slices.into_iter().fold(Plan::none(), |plan, slice| plan.delete(slice.as_ref())),
        }
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let service = view.get::<Service>(&key.namespace, &key.name).filter(|service| has_selector(service));
        let Some(service) = service else { return Plan::none() };
        let name = refusal.write.key().name;
        let what = match refusal.write {
            Write::Create { .. } => "create".to_owned(),
            Write::Patch { .. } => format!("update {name}"),
            Write::Delete { .. } => format!("delete {name}"),
            _ => return Plan::none(),
        };
        let why = &refusal.error.message;
        let why = format!("failed to {what} EndpointSlice for Service {key}: {why}");
        let message = format!("Error updating Endpoint Slices for Service {key}: {why}");
        Plan::none().event(EventRecord::warning(service.as_ref(), "FailedToUpdateEndpointSlices", message))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
