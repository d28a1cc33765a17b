//! The status of a pod, computed whole from its spec and what the runtime shows
//! (kubernetes pkg/kubelet/kubelet_pods.go `generateAPIPodStatus` for the values).
//!
//! Conditions that others own (readiness gates and the like) are carried over. A terminal phase is
//! told only when everything of the pod is stopped, and is never taken back.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, ContainerUser, HostIP, LinuxContainerUser, Pod, PodCondition, PodIP, PodReadinessGate, PodStatus,
};

use crate::pods::plan::{Facts, initialized};
use crate::pods::records::Records;
use crate::pods::rounds;
use crate::runtime::{ContainerRecord, ContainerState, RunsAs};
use crate::spec::pod::{self, ContainerKind, spec};
use crate::status::mounts;
use crate::status::resize::{self, Sizes};

/// Why a container does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// CamelCase reason.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// How admission stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Not decided, or waiting for what this says.
    NotYet(Option<String>),
    /// Yes.
    Yes,
    /// Yes, and it waits for what this says before it may start its containers, or start them again. Without a word it may do so
    /// still, and what was told of it stands.
    Lacks(Option<String>),
    /// No, with reason and message.
    No(String, String),
}

/// Why the kubelet itself ended a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// In a word, such as `Evicted`.
    pub reason: String,
    /// For those who read it.
    pub message: String,
    /// It goes for the sake of others or of the node, and not of its own doing (condition DisruptionTarget): who counts a pod's
    /// failures may leave that out.
    pub disrupts: bool,
}

/// What a status rests on.
pub struct Inputs<'a> {
    /// Now.
    pub now: Time,
    /// Spec and runtime.
    pub facts: Facts<'a>,
    /// Why containers wait, by name.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Admission.
    pub admitted: &'a Admitted,
    /// Everything of the pod is stopped for good.
    pub stopped: bool,
    /// Why the kubelet itself ended it, if it did.
    pub ended_because: Option<&'a Ended>,
    /// Addresses of the node.
    pub host_ips: &'a [String],
    /// Addresses of the pod; none before it is ready to start containers.
    pub pod_ips: &'a [String],
    /// How large it is, and is to be.
    pub sizes: Sizes<'a>,
    /// Whether its runtime can keep from being written what is mounted below a mount; none where that is not known.
    pub recursive_read_only: Option<bool>,
}

/// Longest texts with which all containers of a pod ended, together, in bytes (upstream's `MaxPodTerminationMessageLogLength`):
/// each has an equal part of that, so that a pod of many does not have a status that no API server takes.
const MAX_MESSAGES: usize = 12 << 10;

/// Condition that a pod's sandbox, its network and its volumes are there.
pub const READY_TO_START: &str = "PodReadyToStartContainers";

/// Condition that all containers of a pod are ended, to be started again together.
pub const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Condition that shows what a pod waits for before it may start, or start again.
pub const ADMITTED: &str = "carrack.io/Admitted";

fn terminated(r: &ContainerRecord) -> Option<ApiState> {
    let ContainerState::Exited { code, reason, message, finished_at } = &r.state else { return None };
    Some(ApiState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(container_id(&r.id)),
            exit_code: *code,
            reason: Some(match (reason.as_str(), code) {
                ("", 0) => "Completed".into(),
                ("", _) => "Error".into(),
                (r, _) => r.to_owned(),
            }),
            message: Some(message.clone()).filter(|m| !m.is_empty()),
            // One that never started shows the beginning of time, as upstream's does: without a time clients
            // show the year 1.
            started_at: Some(r.started_at.unwrap_or_default().meta()),
            finished_at: Some(finished_at.meta()),
            signal: None,
        }),
        ..ApiState::default()
    })
}

/// An end of which nobody knows when it was. No time is told, as upstream tells none: whoever counts from when a pod ended, such as
/// its Job, would count from the one that is made up.
fn ended(exit_code: i32, reason: &str, message: &str) -> ApiState {
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ApiState::default()
    }
}

/// How a container ended of which nobody knows how it did, or that it began at all.
fn lost() -> ApiState {
    ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
}

/// How an init container ended that the runtime knows no more, and that has let on what comes after it.
fn completed() -> ApiState {
    ended(0, "Completed", "The runtime knows no more of it, and its pod is initialized: it has succeeded")
}

fn container_id(id: &str) -> String {
    format!("containerd://{id}")
}

fn user(who: &RunsAs) -> ContainerUser {
    let supplemental_groups = Some(who.groups.clone()).filter(|groups| !groups.is_empty());
    ContainerUser { linux: Some(LinuxContainerUser { uid: who.uid, gid: who.gid, supplemental_groups }) }
}

fn waiting_state(reason: &str, message: &str) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()).filter(|r| !r.is_empty()),
            message: Some(message.to_owned()).filter(|m| !m.is_empty()),
        }),
        ..ApiState::default()
    }
}

fn container_status(
    i: &Inputs<'_>,
    known: &Known<'_>,
    kind: ContainerKind,
    c: &Container,
    init_done: bool,
) -> ContainerStatus {
    let old = known.told(kind, &c.name);
    let latest = known.records.newest(&c.name);
    let before = |r: &ContainerRecord| {
        let earlier = known.records.named(&c.name).iter().filter(|o| o.attempt < r.attempt);
        earlier.max_by_key(|o| (o.attempt, o.created_at)).and_then(|o| terminated(o))
    };
    let mut s = ContainerStatus {
        name: c.name.clone(),
        image: c.image.clone().unwrap_or_default(),
        restart_count: old.map_or(0, |o| o.restart_count),
        last_state: Some(old.and_then(|o| o.last_state.clone()).unwrap_or_default()),
        volume_mounts: mounts::told(c, old, i.recursive_read_only),
        started: Some(false),
        ..ContainerStatus::default()
    };
    let waiting = i.waiting.get(&c.name);
    let Some(r) = latest else {
        let was_there = old.is_some_and(|o| o.container_id.as_ref().is_some_and(|id| !id.is_empty()));
        let told = old.and_then(|o| o.state.clone()).filter(|st| st.terminated.is_some());
        s.state = Some(match waiting {
            Some(w) => waiting_state(&w.reason, &w.message),
            None if kind == ContainerKind::Init && init_done => told.unwrap_or_else(completed),
            None if was_there && (i.stopped || i.facts.ran_before.contains_key(&c.name)) => told.unwrap_or_else(lost),
            None if init_done && matches!(kind, ContainerKind::Regular | ContainerKind::Ephemeral) => {
                waiting_state("ContainerCreating", "")
            }
            None => waiting_state("PodInitializing", ""),
        });
        let ended_well = s.state.as_ref().and_then(|st| st.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
        s.ready = ended_well && kind == ContainerKind::Init;
        if was_there {
            s.container_id = old.and_then(|o| o.container_id.clone());
            s.image_id = old.map(|o| o.image_id.clone()).unwrap_or_default();
            s.user = old.and_then(|o| o.user.clone());
        }
        return s;
    };
    s.restart_count = i32::try_from(r.attempt).unwrap_or(i32::MAX);
    s.image = if r.image.is_empty() { s.image } else { r.image.clone() };
    s.image_id.clone_from(&r.image_ref);
    s.container_id = Some(container_id(&r.id));
    s.user = r.user.as_ref().map(user);
    if let Some(last) = before(r) {
        s.last_state = Some(last);
    }
    match &r.state {
        ContainerState::Running => {
            let verdict = i.facts.verdicts.get(&r.id).copied().unwrap_or_default();
            s.state = Some(ApiState {
                running: Some(ContainerStateRunning { started_at: r.started_at.map(Time::meta) }),
                ..ApiState::default()
            });
            s.started = Some(verdict.started);
            s.ready = verdict.started && verdict.ready && !i.stopped;
        }
        ContainerState::Created => {
            s.state = Some(match waiting {
                Some(w) => waiting_state(&w.reason, &w.message),
                None => waiting_state("ContainerCreating", ""),
            });
        }
        // What the runtime cannot tell stays as it was told before.
        ContainerState::Unknown => {
            s.state = old.and_then(|o| o.state.clone()).or_else(|| Some(waiting_state("ContainerStatusUnknown", "")));
        }
        ContainerState::Exited { code, .. } => match waiting {
            // Who runs once waits for nothing when he has ended, whatever was said of his start.
            Some(w) if !i.stopped && kind != ContainerKind::Ephemeral => {
                s.state = Some(waiting_state(&w.reason, &w.message));
                s.last_state = terminated(r);
            }
            // It ended in an earlier round of its pod, and is to run in this one.
            None if !i.stopped && r.round < i.facts.round && kind != ContainerKind::Ephemeral => {
                let is_next = init_done && kind == ContainerKind::Regular;
                s.state = Some(waiting_state(if is_next { "ContainerCreating" } else { "PodInitializing" }, ""));
                s.last_state = terminated(r);
            }
            _ => {
                s.state = terminated(r);
                // While it waited to be started again its own end was the last state; now it is the state.
                let id = container_id(&r.id);
                if s.last_state
                    .as_ref()
                    .and_then(|l| l.terminated.as_ref())
                    .is_some_and(|t| t.container_id.as_ref() == Some(&id))
                {
                    s.last_state = Some(before(r).unwrap_or_default());
                }
                s.ready = *code == 0 && kind == ContainerKind::Init;
            }
        },
    }
    s
}

fn sized_status(
    i: &Inputs<'_>,
    known: &Known<'_>,
    kind: ContainerKind,
    c: &Container,
    init_done: bool,
) -> ContainerStatus {
    let mut s = container_status(i, known, kind, c, init_done);
    i.sizes.tell_container(&mut s, c.resources.as_ref());
    s
}

/// Says of a pod that is over how those of its containers ended of which that is not known (upstream's `TerminatePod`, in
/// `pkg/kubelet/status`). Regular ones that were never begun, since an init container has not let them on, still wait.
fn conclude(pod: &Pod, init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    let succeeded = |st: &Option<ApiState>| {
        st.as_ref().and_then(|st| st.terminated.as_ref()).is_some_and(|ended| ended.exit_code == 0)
    };
    let let_on = match pod::init_containers(pod).last().zip(init.last()) {
        None => true,
        Some(((ContainerKind::Sidecar, _), _)) => false,
        Some((_, last)) => succeeded(&last.state) || succeeded(&last.last_state),
    };
    let begun = init.iter().rposition(has_run).map_or(1, |last| last + 1);
    let regular: &mut [ContainerStatus] = if let_on || regular.iter().any(has_run) { regular } else { &mut [] };
    for s in init.iter_mut().take(begun).chain(regular) {
        if s.state.as_ref().is_none_or(|st| st.terminated.is_none()) {
            s.state = Some(lost());
            s.ready = false;
        }
    }
}

/// What is there of a pod's containers and what was told of them, by their names.
struct Known<'a> {
    records: Records<'a>,
    init: BTreeMap<&'a str, &'a ContainerStatus>,
    regular: BTreeMap<&'a str, &'a ContainerStatus>,
    ephemeral: BTreeMap<&'a str, &'a ContainerStatus>,
}

impl<'a> Known<'a> {
    fn of(facts: &Facts<'a>) -> Self {
        let told = facts.pod.status.as_ref();
        Self {
            records: facts.records(),
            init: by_name(told.and_then(|s| s.init_container_statuses.as_deref())),
            regular: by_name(told.and_then(|s| s.container_statuses.as_deref())),
            ephemeral: by_name(told.and_then(|s| s.ephemeral_container_statuses.as_deref())),
        }
    }

    fn told(&self, kind: ContainerKind, name: &str) -> Option<&'a ContainerStatus> {
        let list = match kind {
            ContainerKind::Init | ContainerKind::Sidecar => &self.init,
            ContainerKind::Regular => &self.regular,
            ContainerKind::Ephemeral => &self.ephemeral,
        };
        list.get(name).copied()
    }
}

/// The first of each name.
fn by_name(list: Option<&[ContainerStatus]>) -> BTreeMap<&str, &ContainerStatus> {
    list.unwrap_or_default().iter().rev().map(|s| (s.name.as_str(), s)).collect()
}

fn has_run(s: &ContainerStatus) -> bool {
    let over = |st: &Option<ApiState>| st.as_ref().is_some_and(|s| s.terminated.is_some());
    s.state.as_ref().is_some_and(|st| st.running.is_some()) || over(&s.state) || over(&s.last_state)
}

fn phase(i: &Inputs<'_>, regular: &[ContainerStatus], init_done: bool) -> &'static str {
    match i.facts.pod.status.as_ref().and_then(|s| s.phase.as_deref()) {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    if matches!(i.admitted, Admitted::No(..)) {
        return "Failed";
    }
    if i.stopped {
        let good = !regular.is_empty()
            && regular
                .iter()
                .all(|s| s.state.as_ref().and_then(|st| st.terminated.as_ref()).is_some_and(|t| t.exit_code == 0));
        return if good && i.ended_because.is_none() { "Succeeded" } else { "Failed" };
    }
    if init_done && !regular.is_empty() && regular.iter().all(has_run) { "Running" } else { "Pending" }
}

struct Conditions<'a> {
    list: Vec<PodCondition>,
    now: Time,
    pod: &'a Pod,
}

impl Conditions<'_> {
    fn set(&mut self, type_: &str, holds: bool, reason: &str, message: &str) {
        let status = if holds { "True" } else { "False" };
        let text = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
        let new = PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: text(reason),
            message: text(message),
            last_transition_time: Some(self.now.meta()),
            observed_generation: self.pod.metadata.generation,
            last_probe_time: None,
        };
        match self.list.iter_mut().find(|c| c.type_ == type_) {
            Some(c) => {
                let since = if c.status == new.status { c.last_transition_time.clone() } else { None };
                *c = new;
                if since.is_some() {
                    c.last_transition_time = since;
                }
            }
            None => self.list.push(new),
        }
    }
}

/// Conditions of a resize are there while they hold. They are of the spec that was judged or allocated.
fn tell_resize(conditions: &mut Conditions<'_>, sizes: &Sizes<'_>) {
    let error = |p: &resize::Progress| p.error.as_ref().map_or(("", String::new()), |e| ("Error", e.clone()));
    let pending = sizes.pending.map(|p| (p.reason, p.message.clone(), p.generation));
    let progress = sizes.progress.map(|p| (error(p).0, error(p).1, p.generation));
    for (type_, told) in [(resize::PENDING, pending), (resize::IN_PROGRESS, progress)] {
        let Some((reason, message, generation)) = told else {
            conditions.list.retain(|c| c.type_ != type_);
            continue;
        };
        // Another reason is news as another status is.
        conditions.list.retain(|c| c.type_ != type_ || c.reason.as_deref().unwrap_or_default() == reason);
        conditions.set(type_, true, reason, &message);
        if let Some(c) = conditions.list.iter_mut().find(|c| c.type_ == type_) {
            c.observed_generation = generation;
        }
    }
}

/// That all containers are started again together is told until none is left of the round before, as upstream tells it
/// (`GenerateAllContainersRestartingCondition`), and only of pods that have a rule for it.
fn tell_round(conditions: &mut Conditions<'_>, i: &Inputs<'_>, phase: &str) {
    let facts = &i.facts;
    if pod::restarters(facts.pod).next().is_none() {
        return;
    }
    let is_left = |r: &ContainerRecord| r.may_run() && rounds::is_left(facts.pod, r, facts.round);
    match phase {
        "Succeeded" => conditions.set(ALL_RESTARTING, false, "PodCompleted", ""),
        "Failed" => conditions.set(ALL_RESTARTING, false, "PodFailed", ""),
        _ if !i.stopped && facts.containers.iter().any(|r| is_left(r)) => {
            let message = "container exited with restart policy rule";
            conditions.set(ALL_RESTARTING, true, "RestartAllContainersStarted", message);
        }
        _ => conditions.set(ALL_RESTARTING, false, "", ""),
    }
}

/// What is told of all of a pod's containers.
pub fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let others = status.init_container_statuses.iter().chain(&status.ephemeral_container_statuses).flatten();
    status.container_statuses.iter().flatten().chain(others)
}

/// Whether a pod's last word was said, of each of its containers: the runtime may forget them.
#[must_use]
pub fn is_told_whole(status: &PodStatus) -> bool {
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let has_any = status.container_statuses.as_ref().is_some_and(|all| !all.is_empty());
    is_over && has_any && statuses(status).all(|s| s.state.as_ref().is_some_and(|state| state.running.is_none()))
}

/// Whether two statuses say the same of each container, whatever else they say.
#[must_use]
pub fn tell_same_states(one: &PodStatus, other: &PodStatus) -> bool {
    fn states(of: &PodStatus) -> impl Iterator<Item = (&str, Option<&str>, Option<&ApiState>)> {
        statuses(of).map(|s| (s.name.as_str(), s.container_id.as_deref(), s.state.as_ref()))
    }
    states(one).eq(states(other))
}

/// Whether nothing more is to be told of a pod: its last word was said, and the runtime has forgotten containers of it, one or all,
/// or has never had any. A pod that was rejected has none, and is not told to have had some by a kubelet that starts.
fn is_final(told: &PodStatus, containers: &[&ContainerRecord]) -> bool {
    let is_over = matches!(told.phase.as_deref(), Some("Succeeded" | "Failed"));
    let runs = statuses(told).any(|s| s.state.as_ref().is_some_and(|state| state.running.is_some()));
    if is_over && !runs && containers.is_empty() {
        return true;
    }
    if !is_told_whole(told) || containers.iter().any(|c| c.exit_code().is_none()) {
        return false;
    }
    let here: BTreeSet<String> = containers.iter().map(|c| container_id(&c.id)).collect();
    let mut ids = statuses(told).filter_map(|s| s.container_id.as_deref()).filter(|id| !id.is_empty());
    ids.any(|id| !here.contains(id))
}

/// Computes the status.
#[must_use]
pub fn pod_status(i: &Inputs<'_>) -> PodStatus {
    let pod = i.facts.pod;
    if let Some(told) = pod.status.as_ref().filter(|told| is_final(told, i.facts.containers)) {
        return PodStatus { observed_generation: pod.metadata.generation, ..told.clone() };
    }
    let known = Known::of(&i.facts);
    let was_made = |c: &Container| known.records.newest(&c.name).is_some();
    let init_done = initialized(&i.facts) || (i.stopped && spec(pod).containers.iter().any(was_made));
    let mut status = pod.status.clone().unwrap_or_default();
    let mut init: Vec<ContainerStatus> =
        pod::init_containers(pod).map(|(k, c)| sized_status(i, &known, k, c, init_done)).collect();
    let mut regular: Vec<ContainerStatus> =
        spec(pod).containers.iter().map(|c| sized_status(i, &known, ContainerKind::Regular, c, init_done)).collect();
    let ephemeral: Vec<ContainerStatus> = pod::ephemeral_containers(pod)
        .iter()
        .map(|(c, _)| container_status(i, &known, ContainerKind::Ephemeral, c, init_done))
        .collect();
    if i.stopped {
        conclude(pod, &mut init, &mut regular);
    }
    let phase = phase(i, &regular, init_done);
    let over = matches!(phase, "Succeeded" | "Failed");

    let mut conditions = Conditions { list: status.conditions.take().unwrap_or_default(), now: i.now, pod };
    conditions.set(READY_TO_START, !i.pod_ips.is_empty() && !over && !i.stopped, "", "");
    let waiting_init: Vec<&str> = pod::init_containers(pod)
        .zip(&init)
        .filter(|((kind, _), s)| match kind {
            ContainerKind::Sidecar => s.started != Some(true),
            _ => !s.ready,
        })
        .map(|(_, s)| s.name.as_str())
        .collect();
    if init_done || phase == "Succeeded" {
        let reason = if phase == "Succeeded" { "PodCompleted" } else { "" };
        conditions.set("Initialized", true, reason, "");
    } else {
        let message = format!("containers with incomplete status: [{}]", waiting_init.join(" "));
        conditions.set("Initialized", false, "ContainersNotInitialized", &message);
    }
    let unready: Vec<&str> = regular
        .iter()
        .filter(|s| !s.ready)
        .map(|s| s.name.as_str())
        .chain(
            pod::init_containers(pod)
                .zip(&init)
                .filter(|((k, _), s)| *k == ContainerKind::Sidecar && !s.ready)
                .map(|(_, s)| s.name.as_str()),
        )
        .collect();
    let shut = |g: &PodReadinessGate| {
        let name = &g.condition_type;
        match conditions.list.iter().find(|c| c.type_ == *name) {
            None => Some(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
            Some(c) if c.status == "True" => None,
            Some(c) => Some(format!("the status of pod readiness gate {name:?} is not \"True\", but {}", c.status)),
        }
    };
    let shut: Vec<String> = spec(pod).readiness_gates.iter().flatten().filter_map(shut).collect();
    let not_ready = match phase {
        "Succeeded" => Some(("PodCompleted", String::new())),
        "Failed" => Some(("PodFailed", String::new())),
        _ if !unready.is_empty() => {
            Some(("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" "))))
        }
        _ => None,
    };
    let gate_message = (!shut.is_empty()).then(|| ("ReadinessGatesNotReady", shut.join(", ")));
    match not_ready.clone().or(gate_message) {
        Some((reason, message)) => conditions.set("Ready", false, reason, &message),
        None => conditions.set("Ready", true, "", ""),
    }
    match not_ready {
        Some((reason, message)) => conditions.set("ContainersReady", false, reason, &message),
        None => conditions.set("ContainersReady", true, "", ""),
    }
    conditions.set("PodScheduled", true, "", "");
    match i.admitted {
        Admitted::NotYet(Some(message)) | Admitted::Lacks(Some(message)) => {
            conditions.set(ADMITTED, false, "Waiting", message);
        }
        // Told only of pods that had to wait.
        Admitted::Yes if conditions.list.iter().any(|c| c.type_ == ADMITTED) => conditions.set(ADMITTED, true, "", ""),
        _ => {}
    }
    if let Some(ended) = i.ended_because.filter(|ended| ended.disrupts) {
        conditions.set("DisruptionTarget", true, "TerminationByKubelet", &ended.message);
    }
    tell_round(&mut conditions, i, phase);
    tell_resize(&mut conditions, &i.sizes);
    status.conditions = Some(conditions.list);
    status.phase = Some(phase.into());
    match (i.admitted, i.ended_because) {
        (Admitted::No(reason, message), _) => {
            status.reason = Some(reason.clone());
            status.message = Some(format!("Pod was rejected: {message}"));
        }
        (_, Some(ended)) => {
            status.reason = Some(ended.reason.clone());
            status.message = Some(ended.message.clone());
        }
        _ => {}
    }
    status.observed_generation = pod.metadata.generation;
    status.host_ip = i.host_ips.first().cloned();
    status.host_ips = Some(i.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    // The last addresses stay when the sandbox is gone.
    if !i.pod_ips.is_empty() {
        status.pod_ip = i.pod_ips.first().cloned();
        status.pod_ips = Some(i.pod_ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect());
    }
    status.qos_class = Some(status.qos_class.unwrap_or_else(|| pod::qos_class(pod).into()));
    if status.start_time.is_none() {
        status.start_time = Some(i.now.meta());
    }
    if matches!(i.admitted, Admitted::No(..)) && i.facts.containers.is_empty() {
        return status;
    }
    i.sizes.tell_pod(&mut status);
    let list = |l: Vec<ContainerStatus>| Some(l).filter(|l| !l.is_empty());
    status.init_container_statuses = list(init);
    status.container_statuses = list(regular);
    status.ephemeral_container_statuses = list(ephemeral);
    shorten(pod, &mut status);
    status
}

/// Cuts the texts with which containers ended to what each may say (upstream's `normalizeStatus`).
fn shorten(pod: &Pod, status: &mut PodStatus) {
    let s = spec(pod);
    let init = s.init_containers.iter().flatten().count();
    let count = s.containers.len() + init + s.ephemeral_containers.iter().flatten().count();
    let most = MAX_MESSAGES / count.max(1);
    let lists =
        [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    for c in lists.into_iter().flatten().flatten() {
        for state in [&mut c.state, &mut c.last_state].into_iter().flatten() {
            let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut()) else { continue };
            let mut end = most.min(message.len());
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
        }
    }
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
