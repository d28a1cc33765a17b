//! Between scheduler and extender, and what must hold of the scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::Time;
use carrack_scheduler::extender::{Answer, Ask};
use carrack_scheduler::{Decider, Place, Plugin, Pod as Known, Question, Row, Scheduler};
use carrack_types::held::requests;
use carrack_types::pod::{ResourceList, add, resource_list};
use carrack_types::resource::Object;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::value::MapDeserializer;
use serde_json::Value;

use super::{Happening, Process, World};
use crate::chance::between;
use crate::extender::{FILTER, PREEMPT};
use crate::hosted::{Hosted, OwnIn};
use crate::invariants::Breach;
use crate::observer::{Made, Observer, terminal, text, uid};
use crate::plants::Bug;
use crate::role::Role;

/// How long the scheduler's shell waits for an extender.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What extenders were asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// For which attempts of which pods of which process one was asked to filter.
    attempts: BTreeSet<(Role, u32, Arc<str>, u32)>,
    /// Who asked under which number, by the number under which the extender knows it.
    calls: BTreeMap<u64, (Role, u32, u64)>,
}

impl Asked {
    /// The scheduler asks.
    pub(super) fn filter(&mut self, who: (Role, u32), scheduler: &Scheduler, ask: &Ask, breaches: &mut Vec<Breach>) {
        if ask.verb != FILTER {
            return;
        }
        let args: Value = serde_json::from_slice(&ask.body).unwrap_or_default();
        let uid = args.pointer("/Pod/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let mut broken = |what: String| breaches.push(Breach::new("one-filter-a-pop", what));
        if let Some(node) = scheduler.cluster().node_of(uid) {
            return broken(format!("an extender is asked about {uid}, which is on {node} already"));
        }
        let Some(row) = scheduler.queue().get(uid) else {
            return broken(format!("an extender is asked about {uid}, which is not in flight"));
        };
        if !self.attempts.insert((who.0, who.1, row.pod.uid.clone(), row.attempts)) {
            broken(format!("an extender is asked twice about attempt {} of {uid}", row.attempts));
        }
        // Who waits for an extender waits in the queue, where nothing has to be remembered for it.
        let looking = scheduler.queue().looking();
        if looking != 1 {
            broken(format!("an extender is asked about {uid}, and {looking} pods were popped and have no node yet"));
        }
    }
}

/// What nominations there are.
pub(super) fn nominations(scheduler: &Scheduler, breaches: &mut Vec<Breach>) {
    let mut broken = |what: String| breaches.push(Breach::new("nominations-follow-the-queue", what));
    for (uid, node) in scheduler.nominations() {
        if node.is_empty() {
            broken(format!("{uid} is nominated to a node without a name"));
        }
        if let Some(there) = scheduler.cluster().node_of(uid) {
            broken(format!("{uid} is nominated to {node}, and counted on {there}"));
        } else if scheduler.queue().get(uid).is_none() {
            broken(format!("{uid} is nominated to {node}, and nobody waits for it"));
        }
    }
}

fn pods_of<'a>(observer: &'a Observer, node: &'a str) -> impl Iterator<Item = &'a Value> {
    observer.all("pod").filter(move |p| text(p, "/spec/nodeName") == node && !terminal(p))
}

/// An object as somebody reads it; none when it cannot be read.
struct Read<K>(Option<Arc<K>>);

impl<K: Object> Made for Read<K> {
    fn of(object: &Value) -> Self {
        Self(K::deserialize(object).ok().map(Arc::new))
    }
}

/// An object without its metadata, which is often most of it.
fn read_body<K: Object>(object: &Value) -> Option<K> {
    let fields = object.as_object()?.iter().filter(|(name, _)| *name != "metadata");
    let fields = fields.map(|(name, value)| (name.as_str(), value));
    K::deserialize(MapDeserializer::<_, serde_json::Error>::new(fields)).ok()
}

/// What a pod holds of its node.
struct Held(ResourceList);

impl Made for Held {
    fn of(pod: &Value) -> Self {
        Self(read_body::<Pod>(pod).map(|pod| requests(&pod)).unwrap_or_default())
    }
}

/// What a node offers.
struct Offered(ResourceList);

impl Made for Offered {
    fn of(node: &Value) -> Self {
        let status = read_body::<Node>(node).and_then(|node| node.status);
        Self(status.map(|status| resource_list(status.allocatable.as_ref())).unwrap_or_default())
    }
}

/// The scheduler's books against the API.
fn books(role: Role, scheduler: &Scheduler, observer: &Observer, breaches: &mut Vec<Breach>) {
    let mut broken = |what: String| breaches.push(Breach::new("room-is-what-the-api-says", what));
    let cluster = scheduler.cluster();
    let mut assumed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for id in cluster.assumed() {
        let waits = observer.all("pod").any(|p| uid(p) == id && text(p, "/spec/nodeName").is_empty());
        let flies = scheduler.queue().get(id).is_some_and(|row| matches!(row.place, Place::InFlight { .. }));
        if !(waits && flies) {
            broken(format!("{role} assumes {id}: waits for a node {waits}, in flight {flies}"));
        }
        assumed.entry(cluster.node_of(id).unwrap_or_default()).or_default().insert(id);
    }
    for node in observer.seen("node") {
        let name = text(&node.object, "/metadata/name");
        let mut wanted: BTreeSet<&str> = pods_of(observer, name).map(uid).collect();
        wanted.extend(assumed.get(name).into_iter().flatten());
        let Some(known) = cluster.named(name) else {
            broken(format!("{role} does not know {name}"));
            continue;
        };
        let counted: BTreeSet<&str> = known.pods.keys().map(|uid| &**uid).collect();
        if counted != wanted {
            broken(format!("{role} counts {counted:?} on {name}, and there are {wanted:?}"));
            continue;
        }
        let mut asked = ResourceList::new();
        for pod in observer.seen("pod").filter(|pod| wanted.contains(uid(&pod.object))) {
            add(&mut asked, &pod.made::<Held>().0);
        }
        let offered = node.made::<Offered>();
        for (resource, amount) in &asked {
            let Some(id) = cluster.tables.resources.find(resource) else { continue };
            let number = |q: carrack_types::quantity::Quantity| if resource == "cpu" { q.millis() } else { q.units() };
            if known.requested.get(id) != i128::from(number(*amount)) {
                broken(format!(
                    "{role} counts {} of {resource} on {name}, and it is {amount}",
                    known.requested.get(id)
                ));
            }
            let whole = offered.0.get(resource).copied().unwrap_or_default();
            if resource != "pods" && known.allocatable.get(id) != number(whole) {
                broken(format!(
                    "{role} knows {} of {resource} on {name}, and it is {whole}",
                    known.allocatable.get(id)
                ));
            }
        }
    }
}

/// Pods that wait for an event, asked about anew: of nodes and pods as the API has them, of claims and volumes as the scheduler
/// has heard of them.
fn waiting(role: Role, scheduler: &Scheduler, observer: &Observer, breaches: &mut Vec<Breach>) {
    let own = |row: &&Row| {
        // What an extender will say nobody knows; for whom a node is being made free, it is not free yet.
        matches!(row.place, Place::Unschedulable { .. })
            && !row.refused_by.has(Plugin::Extender)
            && row.nominated.is_none()
    };
    let rows: Vec<&Row> = scheduler.queue().iter().filter(own).collect();
    if rows.is_empty() {
        return;
    }
    let mut cluster = scheduler.cluster().bare();
    for node in observer.seen("node") {
        if let Some(node) = &node.made::<Read<Node>>().0 {
            cluster.set_node(node.clone());
        }
    }
    for pod in observer.seen("pod") {
        let (id, read) = (uid(&pod.object), pod.made::<Read<Known>>());
        let Some(known) = &read.0 else { continue };
        cluster.set_pod(known);
        let there = scheduler.cluster().node_of(id).filter(|_| scheduler.cluster().is_assumed(id));
        if let Some(id) = there.and_then(|name| cluster.find(name)) {
            let info = cluster.read(known.clone());
            cluster.assume(info, id);
        }
    }
    let mut decider = Decider::new(cluster);
    // Each cluster numbers resources by itself.
    let nominees: Vec<_> = scheduler.queue().nominations().collect();
    let nominees: Vec<_> =
        nominees.into_iter().map(|(pod, node)| (node, decider.cluster.read(pod.pod.clone()))).collect();
    for row in rows {
        let beside = |node: &str| {
            let others = nominees.iter().filter(|(to, pod)| *to == node && pod.uid != row.pod.uid);
            others.map(|(_, pod)| pod.clone()).collect()
        };
        let info = decider.cluster.read(row.pod.pod.clone());
        let question = Question { pod: &info, profile: &row.profile, nominated: &beside };
        if let Some(fits) = decider.answers(question).into_iter().find(|answer| answer.refusals.is_empty()) {
            let what = format!(
                "{role} lets {} ({}) wait, refused by {:?}, and {} takes it",
                row.pod.name(),
                row.pod.uid,
                row.refused_by.iter().collect::<Vec<_>>(),
                fits.node
            );
            breaches.push(Breach::new("waiting-pods-fit-nowhere", what));
        }
    }
}

/// The schedulers that are there and do not hang.
fn schedulers(processes: &BTreeMap<Role, Process>, now: Time) -> impl Iterator<Item = (Role, &Process, &Scheduler)> {
    [Role::Scheduler, Role::StandbyScheduler].into_iter().filter_map(move |role| {
        let process = processes.get(&role).filter(|p| !p.hang.hangs(now))?;
        let Some(Hosted::Scheduler(core, _)) = &process.hosted else { return None };
        Some((role, process, &**core))
    })
}

impl World {
    /// Looks at schedulers that have heard of everything.
    pub(super) fn check_schedulers(&mut self) {
        // Its nominations of pods that are bound break more than one invariant.
        if self.bug() == Some(Bug::StoredNominations) {
            return;
        }
        let now = self.queue.now();
        for (role, process, core) in schedulers(&self.processes, now) {
            let Some((pods, nodes)) = core.heard_up_to() else { continue };
            let committed = (self.observer.changed("pod").0, self.observer.changed("node").0);
            if pods < committed.0 || nodes < committed.1 {
                continue;
            }
            // Where neither side has changed since, both say what they said.
            let state = (process.life, process.observed, committed);
            if self.compared.insert(role, state) == Some(state) {
                continue;
            }
            books(role, core, &self.observer, &mut self.breaches);
            if core.is_leading() {
                waiting(role, core, &self.observer, &mut self.breaches);
            }
        }
    }

    /// Looks at what pods say of where they are to go, with the scheduler that leads, once it has heard of all pods.
    pub(super) fn check_nominations(&mut self) {
        // Its other table of nominations is not looked at.
        if self.bug() == Some(Bug::StoredNominations) {
            return;
        }
        let (now, committed) = (self.queue.now(), self.observer.changed("pod"));
        for (.., core) in schedulers(&self.processes, now) {
            if core.is_leading() && core.heard_up_to().is_some_and(|(pods, _)| pods >= committed.0) {
                self.nominations.look(now, core, &self.observer, &mut self.breaches);
            }
        }
    }

    pub(super) fn ask_extender(&mut self, role: Role, asker: u32, mut ask: Ask) {
        if self.options.gpus {
            self.ask_gpus(&ask, asker);
        }
        let rng = &mut self.extender_rng;
        let there = self.swarm.net.latency.draw(rng);
        let thinks = self.options.hint() == Some(Bug::StaleProposals) && ask.verb == PREEMPT;
        let (least, most) = crate::closings::THINKS;
        let there = if thinks { there + between(rng, least, most) } else { there };
        let own = ask.id;
        ask.id = self.asked.calls.len() as u64;
        self.asked.calls.insert(ask.id, (role, asker, own));
        if let Some(life) = self.life(Role::Extender) {
            self.queue.after(there, Happening::News(Role::Extender, life, OwnIn::Extender(Box::new(ask))));
        }
        // Its shell gives up some day, whatever the extender does.
        let late = Answer { id: own, result: Err("no answer within 5000 ms".to_owned()) };
        self.queue.after(TIMEOUT, Happening::News(role, asker, OwnIn::Scheduler(Box::new(late))));
    }

    pub(super) fn answer_scheduler(&mut self, mut answer: Answer) {
        let back = self.swarm.net.latency.draw(&mut self.extender_rng);
        if let Some((role, asker, own)) = self.asked.calls.get(&answer.id).copied() {
            answer.id = own;
            self.queue.after(back, Happening::News(role, asker, OwnIn::Scheduler(Box::new(answer))));
        }
    }
}
