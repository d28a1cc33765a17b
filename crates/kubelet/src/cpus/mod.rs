//! CPU manager: which containers have CPUs of their own (<https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/>,
//! kubelet `cm/cpumanager`).
//!
//! ```text
//!  all CPUs ─┬─ reserved: nobody's own
//!            ├─ assigned: one container's, from the pod's admission until its containers are over
//!            └─ the rest      reserved and rest are shared by everybody else
//! ```
//!
//! With the policy `static` a container of a Guaranteed pod that asks for whole CPUs is assigned as many when the pod is
//! admitted. It is on disk before the container is made with them, and those who share have let go of them. What is assigned
//! stays so: a restart reads it, and a policy, a reservation or a set of CPUs that has become another one meanwhile changes
//! nothing for who runs (upstream's kubelet does not start then, until the node was drained). A container keeps what is left of
//! its CPUs when some went offline, and others are added if there are any.
//!
//! This says which CPUs a container is to have; who brings it about is `core/cpus.rs`.

mod checkpoint;
mod distribute;
mod hints;
mod options;
mod set;
mod take;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::BTreeMap;

pub use checkpoint::{State, StateError, decode, encode};
pub use options::{CpuConfig, Options, Policy};
pub use set::{CpuSet, NoCpuSet};
pub use topology::{Place, Topology};

use crate::runtime::Uid;
use crate::topology::Nodes;

/// Who has which CPUs for himself: pod, container.
pub type Assignments = BTreeMap<Uid, BTreeMap<String, CpuSet>>;

/// Why a container gets no CPUs of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It asks for a part of a core.
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    Torn {
        /// What it asks for.
        requested: usize,
        /// CPUs of a core.
        per_core: usize,
    },
    /// Not as many are free in whole cores.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {requested}, CPUs per core = {per_core}"
    )]
    NoCores {
        /// What it asks for.
        requested: usize,
        /// What there is.
        available: usize,
        /// CPUs of a core.
        per_core: usize,
    },
    /// Not as many are free.
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    TooFew {
        /// What it asks for.
        requested: usize,
        /// What there is.
        available: usize,
    },
}

impl Refusal {
    /// Reason of a pod that is rejected for it, and what is said.
    #[must_use]
    pub fn rejection(&self) -> (&'static str, String) {
        match self {
            Self::Torn { .. } | Self::NoCores { .. } => ("SMTAlignmentError", self.to_string()),
            Self::TooFew { .. } => {
                ("UnexpectedAdmissionError", format!("Allocate failed due to {self}, which is unexpected"))
            }
        }
    }
}

/// What those who ask are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuView {
    /// Who has which.
    pub assigned: Assignments,
    /// What can be assigned at all; nothing where the policy assigns none.
    pub assignable: CpuSet,
    /// What is assigned to nobody, and could be.
    pub free: CpuSet,
    /// How often containers asked for CPUs of their own, and how often in vain.
    pub asked: (u64, u64),
    /// How often CPUs were assigned in whole cores because the node insists on it.
    pub in_whole_cores: u64,
    /// How many are assigned on each NUMA node.
    pub by_node: BTreeMap<u32, usize>,
}

/// The CPU manager's state.
#[derive(Clone, Debug, Default)]
pub struct Cpus {
    config: CpuConfig,
    /// CPUs that the node keeps back, in thousandths.
    reserved_milli: i128,
    topology: Topology,
    reserved: CpuSet,
    assigned: Assignments,
    /// CPUs were assigned, and the policy assigns none any more: what runs is to have all of them again.
    widening: bool,
    asked: (u64, u64),
    in_whole_cores: u64,
}

impl Cpus {
    /// A manager of CPUs that are not known yet.
    #[must_use]
    pub fn new(config: CpuConfig, reserved_milli: i128) -> Self {
        Self { config, reserved_milli, ..Self::default() }
    }

    /// Takes over what was on disk.
    ///
    /// # Errors
    /// When it cannot be read: then nothing is assigned, as far as anybody knows.
    pub fn load(&mut self, bytes: Option<&[u8]>) -> Result<(), StateError> {
        let Some(bytes) = bytes else { return Ok(()) };
        let state = decode(bytes)?;
        if !state.intact {
            tracing::warn!("the checksum of the CPU manager's state is wrong; what it says is believed");
        }
        let before = Policy::named(&state.policy);
        match self.config.policy {
            Policy::Static => self.assigned = state.assigned,
            Policy::None => self.widening = before == Some(Policy::Static),
        }
        if before != Some(self.config.policy) {
            tracing::info!(from = state.policy, to = self.config.policy.name(), "the CPU manager's policy has changed");
        }
        Ok(())
    }

    /// The machine's CPUs, as they are now. Returns whether they have changed.
    ///
    /// # Errors
    /// What of the configuration does not go with them, for people.
    pub fn set_topology(&mut self, topology: &Topology) -> Result<bool, String> {
        if self.topology == *topology {
            return Ok(false);
        }
        if self.assigns() {
            self.reserved = self.reserve(topology)?;
        }
        self.topology = topology.clone();
        self.mend();
        Ok(true)
    }

    /// Chooses the CPUs that are nobody's own.
    fn reserve(&self, topology: &Topology) -> Result<CpuSet, String> {
        let (all, named) = (topology.all(), &self.config.reserved);
        if !named.is_empty() {
            let missing = named.minus(&all);
            if !missing.is_empty() {
                return Err(format!("reservedSystemCPUs names {missing}, and there are {all}"));
            }
            return Ok(named.clone());
        }
        let count = usize::try_from(self.reserved_milli.max(0).unsigned_abs().div_ceil(1000)).unwrap_or(usize::MAX);
        if count == 0 {
            return Err(
                "cpuManagerPolicy static needs CPUs that are kept back: reservedSystemCPUs, or cpu in kubeReserved or \
                        systemReserved"
                    .into(),
            );
        }
        let taken = take::take(topology, &all, count, self.config.options);
        taken.ok_or_else(|| format!("{count} CPUs are to be kept back, and there are {}", all.len()))
    }

    /// Whoever has CPUs that are gone gets others in their place, as far as there are any.
    fn mend(&mut self) {
        let all = self.topology.all();
        let torn: Vec<(Uid, String, CpuSet)> = self
            .assigned
            .iter()
            .flat_map(|(uid, of)| of.iter().map(move |(name, cpus)| (uid.clone(), name.clone(), cpus.clone())))
            .filter(|(_, _, cpus)| !cpus.within(&all))
            .collect();
        for (uid, container, had) in torn {
            let mut has = had.and(&all);
            let lacks = had.len() - has.len();
            let free = self.free();
            let near = self.topology.on(has.iter().map(|cpu| self.topology.node(cpu)).collect(), &free);
            let others =
                [near, free].into_iter().find_map(|from| take::take(&self.topology, &from, lacks, self.config.options));
            tracing::warn!(pod = %uid, container, cpus = %had.minus(&all), "CPUs of a container went offline");
            has.add(&others.unwrap_or_default());
            let of_pod = self.assigned.entry(uid).or_default();
            if has.is_empty() { drop(of_pod.remove(&container)) } else { drop(of_pod.insert(container, has)) }
        }
        self.assigned.retain(|_, of_pod| !of_pod.is_empty());
    }

    /// Whether containers get CPUs of their own.
    #[must_use]
    pub fn assigns(&self) -> bool {
        self.config.policy == Policy::Static
    }

    /// Whether containers that run have to be looked at.
    #[must_use]
    pub fn acts(&self) -> bool {
        self.assigns() || self.widening
    }

    /// What runs has all CPUs again. Returns whether that is news.
    pub fn widened(&mut self) -> bool {
        std::mem::take(&mut self.widening)
    }

    /// What the configuration says.
    #[must_use]
    pub fn config(&self) -> &CpuConfig {
        &self.config
    }

    fn taken(&self) -> CpuSet {
        let mut out = CpuSet::default();
        for cpus in self.assigned.values().flat_map(BTreeMap::values) {
            out.add(cpus);
        }
        out
    }

    /// What can be assigned at all.
    #[must_use]
    pub fn assignable(&self) -> CpuSet {
        if self.assigns() { self.topology.all().minus(&self.reserved) } else { CpuSet::default() }
    }

    /// What can be assigned now.
    #[must_use]
    pub fn free(&self) -> CpuSet {
        self.assignable().minus(&self.taken())
    }

    /// What those share who have none of their own.
    #[must_use]
    pub fn shared(&self) -> CpuSet {
        let all = self.topology.all();
        if !self.assigns() {
            return all;
        }
        let shared = all.minus(&self.taken());
        if !self.config.options.strict_reservation {
            return shared;
        }
        let strict = shared.minus(&self.reserved);
        // Somewhere they have to run: where all others are taken, on what is reserved.
        if strict.is_empty() { shared } else { strict }
    }

    /// The CPUs that a container is to have; none where nobody says.
    #[must_use]
    pub fn of(&self, uid: &str, container: &str) -> Option<CpuSet> {
        self.acts()
            .then(|| self.own(uid, container).cloned().unwrap_or_else(|| self.shared()))
            .filter(|cpus| !cpus.is_empty())
    }

    /// The CPUs that a container has for itself.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.assigned.get(uid)?.get(container)
    }

    /// The NUMA nodes that these are on.
    #[must_use]
    pub fn nodes_of(&self, uid: &str, container: &str) -> Option<Nodes> {
        Some(self.own(uid, container)?.iter().map(|cpu| self.topology.node(cpu)).collect())
    }

    /// Whether a container of this pod has CPUs for itself.
    #[must_use]
    pub fn holds(&self, uid: &str) -> bool {
        self.assigned.contains_key(uid)
    }

    /// Pods that have CPUs for themselves.
    pub fn holders(&self) -> impl Iterator<Item = &Uid> {
        self.assigned.keys()
    }

    /// What a container may choose from: what is free and what containers had that are over before it starts, and of this
    /// what it takes first.
    fn choice(&self, uid: &str, container: &str, reusable: &[String]) -> (CpuSet, CpuSet) {
        let (mut again, mut others) = (CpuSet::default(), CpuSet::default());
        for (name, cpus) in self.assigned.get(uid).into_iter().flatten() {
            if reusable.contains(name) {
                again.add(cpus);
            } else if name != container {
                others.add(cpus);
            }
        }
        // Who went offline is no choice.
        let again = again.minus(&others).and(&self.topology.all());
        let mut available = self.free();
        available.add(&again);
        if self.config.options.full_cores_only {
            available = self.topology.in_whole_cores(&available);
        }
        let again = again.and(&available);
        (available, again)
    }

    /// Whether as many can be had at all, and if not, why.
    fn judge(&self, requested: usize, available: usize) -> Result<(), Refusal> {
        let per_core = self.topology.threads_per_core();
        if !self.config.options.full_cores_only {
            return if requested > available { Err(Refusal::TooFew { requested, available }) } else { Ok(()) };
        }
        if !requested.is_multiple_of(per_core) {
            Err(Refusal::Torn { requested, per_core })
        } else if requested > available {
            Err(Refusal::NoCores { requested, available, per_core })
        } else {
            Ok(())
        }
    }

    /// Whether [`Self::assign`] would.
    ///
    /// # Errors
    /// Why not.
    pub fn allows(&self, uid: &str, container: &str, requested: usize, reusable: &[String]) -> Result<(), Refusal> {
        self.judge(requested, self.choice(uid, container, reusable).0.len())
    }

    /// Assigns CPUs to a container, on these nodes as far as they have any. `reusable` names the containers of its pod that
    /// are over before it starts.
    ///
    /// # Errors
    /// Why it gets none.
    pub fn assign(
        &mut self,
        uid: &Uid,
        container: &str,
        requested: usize,
        nodes: Option<Nodes>,
        reusable: &[String],
    ) -> Result<(), Refusal> {
        self.asked.0 += 1;
        let chosen = self.choose(uid, container, requested, nodes, reusable);
        if chosen.is_err() {
            self.asked.1 += 1;
        }
        let chosen = chosen?;
        self.in_whole_cores += u64::from(self.config.options.full_cores_only);
        self.assigned.entry(uid.clone()).or_default().insert(container.to_owned(), chosen);
        Ok(())
    }

    fn choose(
        &self,
        uid: &str,
        container: &str,
        requested: usize,
        nodes: Option<Nodes>,
        reusable: &[String],
    ) -> Result<CpuSet, Refusal> {
        let (available, again) = self.choice(uid, container, reusable);
        self.judge(requested, available.len())?;
        let mut chosen = CpuSet::default();
        let near = nodes.map(|nodes| self.topology.on(nodes, &available));
        // What is used again comes first, then what is on the wanted nodes.
        let wanted = near.as_ref().map_or_else(|| again.clone(), |near| again.and(near));
        for from in [Some(wanted), near, Some(again), Some(available)].into_iter().flatten() {
            let from = from.minus(&chosen);
            let more = from.len().min(requested - chosen.len());
            if let Some(taken) = take::take(&self.topology, &from, more, self.config.options) {
                chosen.add(&taken);
            }
        }
        if chosen.len() == requested { Ok(chosen) } else { Err(Refusal::TooFew { requested, available: chosen.len() }) }
    }

    /// The pod's containers are over: what they had is free. Returns whether they had anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.assigned.remove(uid).is_some()
    }

    /// What a pod's containers have, to be put back by [`Self::put_back`].
    pub(crate) fn held(&self, uid: &str) -> Option<BTreeMap<String, CpuSet>> {
        self.assigned.get(uid).cloned()
    }

    /// Takes back what was assigned to a pod since.
    pub(crate) fn put_back(&mut self, uid: &Uid, held: Option<BTreeMap<String, CpuSet>>) {
        match held {
            Some(held) => drop(self.assigned.insert(uid.clone(), held)),
            None => drop(self.assigned.remove(uid)),
        }
    }

    /// How many could be assigned if these pods were gone.
    #[must_use]
    pub fn free_without(&self, gone: impl Fn(&Uid) -> bool) -> usize {
        let leaving = self.assigned.iter().filter(|(uid, _)| gone(uid)).flat_map(|(_, of)| of.values());
        let mut free = self.free();
        leaving.for_each(|cpus| free.add(cpus));
        free.len()
    }

    /// The state as it is kept on disk.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        let shared = if self.assigns() { self.shared() } else { CpuSet::default() };
        encode(self.config.policy.name(), &shared, &self.assigned)
    }

    /// A copy for those who ask.
    #[must_use]
    pub fn view(&self) -> CpuView {
        let taken = self.taken();
        let by_node = self.topology.groups(&taken, |place| place.numa);
        CpuView {
            assigned: self.assigned.clone(),
            assignable: self.assignable(),
            free: self.free(),
            asked: self.asked,
            in_whole_cores: self.in_whole_cores,
            by_node: by_node.into_iter().map(|(node, cpus)| (node, cpus.len())).collect(),
        }
    }
}
