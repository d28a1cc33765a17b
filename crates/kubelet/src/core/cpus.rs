//! Who has which CPUs, brought about: at a container's creation, and in what runs when the shared ones have become others.
//!
//! ```text
//!  assigned at admission ─▶ on disk ─▶ those who share have let go ─▶ the container is made with them
//! ```
//!
//! Which CPUs a container that runs was given last is not on disk: after a restart each is told once more, which changes
//! nothing where nothing has changed. One that the runtime refuses is tried again, and holds up nobody meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{EventRecord, Time};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::worker::{Lane, Step, Worker, in_order};
use super::{Fx, KubeletCore, Owner, Wake};
use crate::align::Need;
use crate::cpus::{CpuSet, Cpus};
use crate::effects::{Op, OpId, Outcome};
use crate::planted::Planted;
use crate::runtime::{ContainerState, Uid};
use crate::spec::pod::{self, ContainerKind};

/// What is known of the CPUs that containers were given.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// By container id.
    last: BTreeMap<String, CpuSet>,
    /// Being given.
    busy: BTreeMap<String, (OpId, CpuSet)>,
    /// Refused, and not tried again before this time.
    refused: BTreeMap<String, Time>,
    /// Something has changed since it was looked at.
    pub due: bool,
}

/// What a pod's containers need at most at one time. Sidecars that have begun run beside the init containers after them, and
/// beside all others.
fn peak(pod: &Pod, of: impl Fn(&Container) -> u64) -> u64 {
    let (mut beside, mut peak) = (0_u64, 0_u64);
    for (kind, c) in pod::init_containers(pod) {
        match kind {
            ContainerKind::Sidecar => beside += of(c),
            _ => peak = peak.max(beside + of(c)),
        }
    }
    peak.max(beside + pod::spec(pod).containers.iter().map(of).sum::<u64>())
}

/// What a pod needs at most at one time, of what each of its containers needs.
pub(super) fn total_need(pod: &Pod, needs: &[Need]) -> Need {
    let named = |resource: &String| needs.iter().any(|n| n.counts.contains_key(resource));
    let counts = pod::requests(pod)
        .into_iter()
        .filter(|(resource, _)| named(resource))
        .map(|(resource, milli)| (resource, usize::try_from(milli / 1000).unwrap_or(0)))
        .collect();
    let of = |c: &Container| needs.iter().find(|need| need.container == c.name);
    let cpus = peak(pod, |c| of(c).map_or(0, |need| need.cpus as u64));
    let kinds: BTreeSet<&String> = needs.iter().flat_map(|need| need.memory.keys()).collect();
    let of_kind = |kind: &String| peak(pod, |c| of(c).and_then(|need| need.memory.get(kind)).copied().unwrap_or(0));
    let memory = kinds.into_iter().map(|kind| (kind.clone(), of_kind(kind))).collect();
    Need { counts, cpus: usize::try_from(cpus).unwrap_or(usize::MAX), memory, ..Need::default() }
}

impl KubeletCore {
    /// Which CPUs containers have for themselves, for those who check invariants.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// Takes over what was on disk, and the machine's CPUs.
    pub(super) fn load_cpus(&mut self, state: Option<&[u8]>, fx: &mut Fx) {
        if let Err(error) = self.cpus.load(state.filter(|_| self.planted != Some(Planted::ForgottenCpus))) {
            tracing::error!(%error, "starting with no CPUs assigned");
        }
        if let Err(why) = self.cpus.set_topology(&self.host.cpu_topology) {
            fx.exit(why);
        }
        if self.cpus.assigns() && state != Some(self.cpus.checkpoint().as_slice()) {
            self.cpu_checkpoint.touch();
        }
        self.given.due = true;
    }

    /// The machine's CPUs may have become others.
    pub(super) fn see_cpus(&mut self) {
        match self.cpus.set_topology(&self.host.cpu_topology) {
            Ok(true) if self.cpus.assigns() => self.cpus_changed(),
            Ok(news) => self.given.due |= news,
            // What was known goes on, as long as this process does.
            Err(why) => tracing::error!(why, "the CPU manager does not follow the machine's CPUs"),
        }
    }

    /// How many CPUs of its own a container is to have: the whole ones that it asks for in a Guaranteed pod.
    pub(super) fn own_cpus(&self, pod: &Pod, c: &Container) -> usize {
        if self.cpus.assigns() { pod::whole_cpus(pod, c) } else { 0 }
    }

    /// Assigns CPUs to containers of a pod that began here before and has none: the policy was another one, or the disk has
    /// forgotten. Nothing of it is rejected for that; who gets none goes on among those who share.
    pub(super) fn adopt_cpus(&mut self, now: Time, uid: &Uid, w: &Worker, fx: &mut Fx) {
        if !self.cpus.assigns() || self.planted == Some(Planted::ForgottenCpus) {
            return;
        }
        for need in self.needs(&w.pod).into_iter().filter(|need| need.cpus > 0) {
            if self.cpus.own(uid, &need.container).is_some() {
                continue;
            }
            let near = self.numa.memory.nodes_of(uid, &need.container);
            match self.cpus.assign(uid, &need.container, need.cpus, near, &need.reusable) {
                Ok(()) => self.cpus_changed(),
                Err(refusal) => {
                    let message = format!("Container {} shares its CPUs: {refusal}", need.container);
                    self.event(now, EventRecord::warning(w.pod.as_ref(), "NoExclusiveCPUs", message), fx);
                }
            }
        }
    }

    /// What each container needs to be given.
    pub(super) fn needs(&self, pod: &Pod) -> Vec<Need> {
        in_order(pod)
            .filter_map(|c| {
                let (counts, reusable) = self.device_needs(pod, &c.name)?;
                let reusable = reusable.into_iter().map(str::to_owned).collect();
                let (cpus, memory) = (self.own_cpus(pod, c), self.own_memory(pod, c));
                let before = pod::init_containers(pod).take_while(|(_, i)| i.name != c.name);
                let over = before.filter(|(kind, _)| *kind == ContainerKind::Init).map(|(_, i)| i.name.clone());
                Some(Need { container: c.name.clone(), counts, cpus, memory, reusable, over: over.collect() })
            })
            .collect()
    }

    /// Who has which CPUs has changed.
    pub(super) fn cpus_changed(&mut self) {
        self.cpu_checkpoint.touch();
        self.given.due = true;
    }

    /// Whether a container may be made with the CPUs that it is to have. One that has some for itself waits until that is on
    /// disk, and until nobody else runs there.
    pub(super) fn may_have_cpus(&self, uid: &Uid, w: &Worker, name: &str) -> bool {
        let Some(own) = self.cpus.own(uid, name) else { return true };
        if self.cpu_checkpoint.is_behind() {
            return false;
        }
        let begun = |lane: &Lane| matches!(lane.step, Step::Create | Step::Start { .. });
        let there = |(other, lane): (&String, &Lane)| {
            other != name && begun(lane) && lane.cpus.as_ref().is_some_and(|cpus| cpus.meets(own))
        };
        let making = self.workers.values().flat_map(|o| &o.lanes).any(there) || w.lanes.iter().any(there);
        !making && !self.others_run_on(uid, name, own)
    }

    fn others_run_on(&self, uid: &Uid, name: &str, own: &CpuSet) -> bool {
        self.running().any(|(of, id, other)| {
            let itself = of == uid && other == name;
            !itself
                && self.given.last.get(id).is_none_or(|cpus| cpus.meets(own))
                && !self.given.refused.contains_key(id)
                // What it is to have is elsewhere: else it was not assigned together, and waiting is in vain.
                && self.cpus.of(of, other).is_some_and(|cpus| !cpus.meets(own))
        })
    }

    fn running(&self) -> impl Iterator<Item = (&Uid, &String, &String)> {
        let containers = self.runtime.iter().flat_map(|(uid, r)| r.containers.iter().map(move |c| (uid, c)));
        containers.filter(|(_, c)| c.state == ContainerState::Running).map(|(uid, c)| (uid, &c.id, &c.name))
    }

    /// A container was made with these CPUs.
    pub(super) fn given_cpus(&mut self, id: &str, cpus: Option<CpuSet>) {
        if let Some(cpus) = cpus {
            self.given.last.insert(id.to_owned(), cpus);
            self.given.due = true;
        }
    }

    /// Gives what runs the CPUs that it is to have.
    pub(super) fn give_cpus(&mut self, now: Time, fx: &mut Fx) {
        if !self.given.due || !self.loaded || !self.cpus.acts() || self.listed.is_none() {
            return;
        }
        self.given.due = false;
        let running: Vec<(String, CpuSet)> =
            self.running().filter_map(|(uid, id, name)| Some((id.clone(), self.cpus.of(uid, name)?))).collect();
        let lives: BTreeSet<&String> = running.iter().map(|(id, _)| id).collect();
        let listed = self.runtime.values().flat_map(|r| &r.containers).map(|c| &c.id);
        let made = self.workers.values().flat_map(|w| w.lanes.values()).filter_map(|lane| match &lane.step {
            Step::Start { id } => Some(id),
            _ => None,
        });
        let known: BTreeSet<&String> = listed.chain(made).collect();
        self.given.last.retain(|id, _| known.contains(id));
        self.given.refused.retain(|id, _| lives.contains(id));
        self.wake_those_who_wait_for_cpus();
        let mut all_have = true;
        for (id, cpus) in running {
            if self.given.last.get(&id) == Some(&cpus) {
                continue;
            }
            all_have = false;
            if self.given.busy.contains_key(&id) {
                continue;
            }
            if let Some(at) = self.given.refused.get(&id).filter(|at| **at > now) {
                self.wakes.insert((*at, Wake::Cpus));
                continue;
            }
            let op = self.op(Owner::Cpus(id.clone()), Op::GiveCpus { id: id.clone(), cpus: cpus.clone() }, fx);
            self.given.busy.insert(id, (op, cpus));
        }
        if all_have && self.given.busy.is_empty() && self.cpus.widened() {
            self.cpu_checkpoint.touch();
        }
    }

    pub(super) fn cpus_given(&mut self, now: Time, container: &str, id: OpId, outcome: &Outcome) {
        let Some((_, cpus)) = self.given.busy.remove(container).filter(|(op, _)| *op == id) else { return };
        match outcome {
            Ok(_) => {
                self.given.refused.remove(container);
                self.given.last.insert(container.to_owned(), cpus);
            }
            Err(error) => {
                if self.given.refused.insert(container.to_owned(), now + self.cpus.config().retry).is_none() {
                    tracing::warn!(container, cpus = %cpus, %error, "a container was not given its CPUs");
                }
            }
        }
        self.given.due = true;
        self.wake_those_who_wait_for_cpus();
    }

    /// Containers that wait for their CPUs are looked at again.
    pub(super) fn wake_those_who_wait_for_cpus(&mut self) {
        let waits = |w: &Worker| w.lanes.values().any(|lane| matches!(lane.step, Step::Cpus));
        self.dirty.extend(self.workers.iter().filter(|(_, w)| waits(w)).map(|(uid, _)| uid.clone()));
    }

    /// Writes the CPU manager's state if it is behind.
    pub(super) fn save_cpus(&mut self, now: Time, fx: &mut Fx) {
        if self.loaded && self.cpu_checkpoint.may_save(now) {
            let id = self.op(Owner::CpuState, Op::SaveCpus(self.cpus.checkpoint()), fx);
            self.cpu_checkpoint.saving(id);
        }
    }

    pub(super) fn cpus_saved(&mut self, now: Time, outcome: &Outcome) {
        match self.cpu_checkpoint.saved(now, outcome.is_ok()) {
            Some(at) => {
                tracing::error!(?outcome, "the CPU manager's state was not written");
                self.wake(at, Wake::Cpus);
            }
            None => self.wake_those_who_wait_for_cpus(),
        }
    }
}
