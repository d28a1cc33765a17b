//! The container runtime: sandboxes, containers and the processes in them.
//!
//! It does what containerd does where the difference shows: a sandbox or container whose name (pod
//! UID or sandbox, container, attempt) is taken is not made again, stopping what is stopped is done,
//! and after a reboot everything that ran is there, exited.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::allocation::{GroupLimits, Reading};
use carrack_kubelet::cpus::CpuSet;
use carrack_kubelet::runtime::{
    ContainerRecord, ContainerSize, ContainerSpec, ContainerState, PodCgroup, PodRef, Resources, RuntimeSnapshot,
    SandboxRecord, SandboxSpec, Uid, labels,
};
use carrack_kubelet::{Op, OpError, Outcome, Reply};
use carrack_types::well_known::kubevirt::COMPUTE_CONTAINER;

use super::copying::{Work, work_of};
use super::plugins::DEVICE_DIR;
use super::unkind::ONCE;
use crate::chance::below;
use crate::counted::Counted;
use crate::invariants::Breach;
use crate::observer::{Observer, deleting, terminal};
use crate::pressure::{Growth, Used};

/// How long after its start a container that holds a disk does not hear that it is to end, where it is deaf: its first process
/// ignores a signal for which it has no handler yet.
const DEAF: Duration = Duration::from_millis(300);

/// How long what has ended is remembered by the runtime itself: for ever, until it is removed.
#[derive(Clone, Debug)]
struct Sandbox {
    pod: PodRef,
    attempt: u32,
    ready: bool,
    /// Its own process has ended by itself, and not with the node's power.
    died: bool,
    created_at: Time,
    ip: std::net::IpAddr,
    network: Network,
}

/// What of its network a sandbox has. A power cut takes nothing back: addresses are kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Held,
    /// CNI DEL was done.
    Given,
    /// And a kubelet was told so.
    Acknowledged,
}

impl Sandbox {
    fn record(&self, id: &str) -> SandboxRecord {
        SandboxRecord {
            id: id.to_owned(),
            pod: self.pod.clone(),
            attempt: self.attempt,
            ready: self.ready,
            created_at: self.created_at,
            ips: vec![self.ip],
            runtime_handler: String::new(),
        }
    }
}

/// A container.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub record: ContainerRecord,
    /// Devices, as `resource/id`.
    pub devices: Vec<String>,
    /// How large it is, and the CPUs that it was given, as the kernel writes them.
    pub limits: Resources,
    /// The last request to give it something else. The runtime does one thing after another to a container.
    updated: u64,
    /// How quickly its process ends when asked to, in seconds.
    stops_in_s: u64,
    /// With what its process ends then.
    stops_with: i32,
    /// It ended since its kubelet stopped it.
    is_stopped: bool,
    /// It has passed a probe.
    has_passed: bool,
    /// The file that it writes when it ends well, and what it writes there.
    writes: Option<(String, String)>,
    /// What it does, where it copies disks.
    copies: Option<Work>,
    /// What it uses more and more of.
    grows: Option<Growth>,
}

impl Life {
    /// Whether it does nothing but hold a machine's disk.
    pub(super) fn is_disk(&self) -> bool {
        self.record.name.starts_with("volume")
    }

    /// What it uses.
    fn uses(&self, now: Time) -> Used {
        let Some((growth, begun)) = self.grows.zip(self.record.started_at) else { return Used::default() };
        match &self.record.state {
            ContainerState::Exited { finished_at, .. } => growth.used(finished_at.since(begun), false),
            _ => growth.used(now.since(begun), true),
        }
    }

    /// Whether it would not hear, where such are deaf, that it is to end: it holds a disk and has just started.
    fn is_deaf(&self, now: Time) -> bool {
        self.is_disk() && self.record.started_at.is_some_and(|at| now.since(at) < DEAF)
    }
}

/// The runtime of a node.
#[derive(Debug)]
pub(crate) struct Runtime {
    node: u8,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: Counted<BTreeMap<String, Life>>,
    /// Control groups of pods, by their paths.
    groups: BTreeMap<String, GroupLimits>,
    /// Somebody has shut the node down since it was started, even if that was called off: pods that were to end by then do.
    pub(super) pods_end: bool,
    /// UIDs of pods that run whatever the API says: those of manifests.
    pub(super) of_manifests: BTreeSet<String>,
    /// Containers that hold disks do not hear that they are to end when they have just started.
    pub deaf_disks: bool,
    /// Containers that it has lost sight of, and until when; those without a time are lost for good.
    unknown: BTreeMap<String, Option<Time>>,
    /// Containers that cannot be stopped while their sandboxes, which have died, are there.
    clinging: BTreeSet<String>,
    /// Pods that the kubelet evicts, by their UIDs.
    pub(super) evicted: BTreeSet<Uid>,
    next: u64,
}

fn missing(id: &str) -> OpError {
    OpError::NotFound(format!("{id} is not there"))
}

/// A pod is wanted when its object is there with this UID, runs, and is not to go.
fn wanted(observer: &Observer, pod: &PodRef) -> bool {
    observer.pod(pod).is_some_and(|p| !deleting(p) && !terminal(p))
}

impl Runtime {
    pub(super) fn new(node: u8) -> Self {
        Self {
            node,
            sandboxes: BTreeMap::new(),
            containers: Counted::default(),
            groups: BTreeMap::new(),
            pods_end: false,
            of_manifests: BTreeSet::new(),
            deaf_disks: false,
            unknown: BTreeMap::new(),
            clinging: BTreeSet::new(),
            evicted: BTreeSet::new(),
            next: 0,
        }
    }

    fn id(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{}-{}", self.node, self.next)
    }

    pub(super) fn snapshot(&self) -> RuntimeSnapshot {
        RuntimeSnapshot {
            sandboxes: self.sandboxes.iter().map(|(id, s)| s.record(id)).collect(),
            containers: self.containers.values().map(|c| self.shown(c)).collect(),
            unread: BTreeMap::new(),
        }
    }

    /// A container as it is listed.
    fn shown(&self, c: &Life) -> ContainerRecord {
        let mut record = c.record.clone();
        if record.state == ContainerState::Running && self.unknown.contains_key(&record.id) {
            record.state = ContainerState::Unknown;
        }
        record
    }

    /// It has lost sight of a container, until then or for good. One that is lost already stays so for as long as before.
    pub(super) fn loses(&mut self, id: String, until: Option<Time>) {
        self.unknown.entry(id).or_insert(until);
    }

    /// It has found again what it had lost until now.
    pub(super) fn finds_again(&mut self, now: Time) {
        self.unknown.retain(|_, until| until.is_none_or(|until| now < until));
    }

    /// A container cannot be stopped any more while its sandbox is there.
    pub(super) fn clings(&mut self, id: &str) {
        self.clinging.insert(id.to_owned());
    }

    /// Whether a container is a machine's launcher, or holds a disk of one.
    pub(super) fn is_of_machine(&self, id: &str) -> bool {
        self.is_launcher(id) || self.containers.get(id).is_some_and(Life::is_disk)
    }

    pub(super) fn run_sandbox(
        &mut self,
        now: Time,
        spec: &SandboxSpec,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Outcome {
        if self.sandboxes.values().any(|s| s.pod.uid == spec.pod.uid && s.attempt == spec.attempt) {
            return Err(OpError::Failed(format!("the name of sandbox {} of {} is taken", spec.attempt, spec.pod)));
        }
        if let Some(pod) = observer.pod(&spec.pod) {
            let bound = crate::observer::text(pod, "/spec/nodeName");
            if bound != crate::role::node_name(self.node) {
                let what = format!("{} runs on node{} and is bound to {bound:?}", spec.pod, self.node);
                breaches.push(Breach::new("pod-runs-where-bound", what));
            }
        }
        let id = self.id("sandbox");
        let octet = u8::try_from(self.next % 250).unwrap_or(0);
        let sandbox = Sandbox {
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            ready: true,
            died: false,
            created_at: now,
            ip: std::net::IpAddr::from([10, 42, self.node, octet + 2]),
            network: Network::Held,
        };
        let record = sandbox.record(&id);
        self.sandboxes.insert(id, sandbox);
        self.limit_groups(std::slice::from_ref(&spec.cgroup));
        Ok(Reply::Sandbox(Box::new(record)))
    }

    pub(super) fn stop_sandbox(
        &mut self,
        now: Time,
        id: &str,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Outcome {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return Err(missing(id)) };
        sandbox.ready = false;
        if sandbox.network == Network::Held {
            sandbox.network = Network::Given;
        }
        let inside: Vec<String> =
            self.containers.values().filter(|c| c.record.sandbox_id == id).map(|c| c.record.id.clone()).collect();
        for container in inside {
            self.end(now, &container, 137, observer, breaches);
        }
        Ok(Reply::Done)
    }

    /// A sandbox's own process ends by itself. Returns what runs in it, which may run on; none where it does not run.
    pub(crate) fn loses_sandbox(&mut self, id: &str) -> Option<Vec<String>> {
        let sandbox = self.sandboxes.get_mut(id).filter(|sandbox| sandbox.ready)?;
        (sandbox.ready, sandbox.died) = (false, true);
        Some(self.running_in(id))
    }

    /// A kubelet is told that a sandbox was stopped.
    pub(super) fn acknowledge(&mut self, id: &str) {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.network = Network::Acknowledged;
        }
    }

    pub(super) fn remove_sandbox(&mut self, id: &str, breaches: &mut Vec<Breach>) -> Outcome {
        match self.sandboxes.get(id) {
            Some(s) if s.ready => return Err(OpError::Failed(format!("{id} is running"))),
            Some(s) if s.network == Network::Held => {
                let what = format!("{id} of {} is forgotten with its addresses", s.pod);
                breaches.push(Breach::new("gone-means-disconnected", what));
            }
            _ => {}
        }
        self.sandboxes.remove(id);
        self.containers.retain(|_, c| c.record.sandbox_id != id);
        Ok(Reply::Done)
    }

    pub(super) fn create(&mut self, now: Time, spec: &ContainerSpec) -> Outcome {
        if !self.sandboxes.get(&spec.sandbox_id).is_some_and(|s| s.ready) {
            return Err(OpError::NotFound(format!("sandbox {} does not run", spec.sandbox_id)));
        }
        let taken = |c: &Life| {
            c.record.pod.uid == spec.pod.uid && c.record.name == spec.name && c.record.attempt == spec.attempt
        };
        if self.containers.values().any(taken) {
            return Err(OpError::Failed(format!("the name of container {} is taken", spec.name)));
        }
        let id = self.id("container");
        let devices = spec.devices.iter().filter_map(|d| Some(d.container_path.strip_prefix(DEVICE_DIR)?.to_owned()));
        let life = Life {
            devices: devices.collect(),
            limits: spec.resources.clone(),
            updated: 0,
            stops_with: crate::probed::stops_with(spec),
            is_stopped: false,
            has_passed: false,
            writes: crate::env_files::written_by(spec),
            copies: work_of(&spec.args, &spec.mounts),
            grows: Growth::of(&spec.env),
            stops_in_s: spec.env.iter().find(|(k, _)| k == "STOPS_IN_S").and_then(|(_, v)| v.parse().ok()).unwrap_or(1),
            record: ContainerRecord {
                id: id.clone(),
                sandbox_id: spec.sandbox_id.clone(),
                pod: spec.pod.clone(),
                name: spec.name.clone(),
                attempt: spec.attempt,
                state: ContainerState::Created,
                created_at: now,
                started_at: None,
                image: spec.image.clone(),
                image_ref: spec.image_ref.clone(),
                hash: spec.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
                round: labels::round(spec.annotations.get(labels::ROUND)),
                size: ContainerSize { made_with: spec.annotations.get(labels::SIZE).cloned(), actual: None },
                user: None,
            },
        };
        self.containers.insert(id.clone(), life);
        Ok(Reply::Made(id))
    }

    pub(super) fn start(&mut self, now: Time, id: &str, breaches: &mut Vec<Breach>) -> Outcome {
        let Some(record) = self.record(id) else { return Err(missing(id)) };
        let is_same = |c: &&Life| c.record.pod.uid == record.pod.uid && c.record.name == record.name;
        let other = self.running().find(|c| c.record.id != id && is_same(c)).map(|c| c.record.id.clone());
        let Some(container) = self.containers.get_mut(id) else { return Err(missing(id)) };
        if container.record.state != ContainerState::Created {
            return Err(OpError::Failed(format!("{id} was started before")));
        }
        if !self.sandboxes.get(&container.record.sandbox_id).is_some_and(|s| s.ready) {
            return Err(OpError::Failed(format!("the sandbox of {id} does not run")));
        }
        if let Some(other) = other {
            let (name, pod) = (&container.record.name, &container.record.pod);
            breaches.push(Breach::new(ONCE, format!("{id} ({name}) of {pod} starts beside {other}")));
        }
        container.record.state = ContainerState::Running;
        container.record.started_at = Some(now);
        Ok(Reply::Started(Box::new(container.record.clone())))
    }

    /// A container does not start. It has ended by that, without having run, and is never started again: so containerd has it, with
    /// this code and this reason (`StartContainer`, `internal/cri/server`).
    pub(super) fn spoils_start(&mut self, now: Time, id: &str) -> OpError {
        let why = "no process could be started in it".to_owned();
        let made = self.containers.get_mut(id).filter(|c| c.record.state == ContainerState::Created);
        if let Some(container) = made {
            let (reason, message) = ("StartError".to_owned(), why.clone());
            container.record.state = ContainerState::Exited { code: 128, reason, message, finished_at: now };
        }
        OpError::Failed(why)
    }

    /// A container is given other CPUs.
    pub(super) fn give_cpus(
        &mut self,
        id: &str,
        cpus: &CpuSet,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Outcome {
        let Some(c) = self.containers.get_mut(id) else { return Err(missing(id)) };
        if c.record.state != ContainerState::Running {
            return Err(OpError::Failed(format!("{id} does not run")));
        }
        let to = cpus.to_string();
        crate::cpus::moved((&c.record.pod, &c.record.name, &c.limits.cpus), &to, observer, breaches);
        c.limits.cpus = to;
        Ok(Reply::Done)
    }

    /// Pods' groups are limited.
    pub(super) fn limit_groups(&mut self, groups: &[PodCgroup]) {
        self.groups.extend(groups.iter().map(|group| (group.path.clone(), (&group.resources).into())));
    }

    /// Groups of pods go, but for those of these and those in which something runs.
    pub(super) fn sweep_groups(&mut self, keep: &BTreeSet<Uid>) {
        let sandboxes = &self.sandboxes;
        let runs = |uid: &str| sandboxes.values().any(|s| s.ready && s.pod.uid.as_ref() == uid);
        self.groups.retain(|path, _| {
            let uid = path.rsplit('/').next().and_then(|name| name.strip_prefix("pod"));
            uid.is_none_or(|uid| keep.contains(uid) || runs(uid))
        });
    }

    /// How a pod's group is limited.
    pub(super) fn group(&self, path: &str) -> Reading {
        Reading { limits: self.groups.get(path).copied(), ..Reading::default() }
    }

    /// The group of a pod.
    pub(crate) fn group_of(&self, uid: &str) -> Option<&GroupLimits> {
        let ends = format!("/pod{uid}");
        self.groups.iter().find(|(path, _)| path.ends_with(&ends)).map(|(_, limits)| limits)
    }

    /// Whether a request to give a container something else comes after a later one, whose caller came when its own was dead.
    pub(super) fn is_overtaken(&mut self, number: u64, op: &Op) -> bool {
        let Op::UpdateContainer { id, .. } = op else { return false };
        let Some(c) = self.containers.get_mut(id) else { return false };
        c.updated = c.updated.max(number);
        c.updated > number
    }

    /// A container is given other CPUs and other memory.
    pub(super) fn resize(&mut self, id: &str, limits: &Resources) -> Outcome {
        let Some(c) = self.containers.get_mut(id) else { return Err(missing(id)) };
        if c.record.state != ContainerState::Running {
            return Err(OpError::Failed(format!("{id} does not run")));
        }
        c.limits.cpu_period_us = limits.cpu_period_us;
        c.limits.cpu_quota_us = limits.cpu_quota_us;
        c.limits.cpu_shares = limits.cpu_shares;
        c.limits.memory_limit_bytes = limits.memory_limit_bytes;
        Ok(Reply::Done)
    }

    /// The CPUs of a container that is about to start, with its pod and its name.
    pub(super) fn cpus_of(&self, id: &str) -> Option<(&PodRef, &str, &str)> {
        let c = self.containers.get(id).filter(|c| c.record.state == ContainerState::Created)?;
        Some((&c.record.pod, &c.record.name, &c.limits.cpus))
    }

    /// The NUMA nodes of a container that is about to start, with its pod and its name.
    pub(super) fn memory_of(&self, id: &str) -> Option<(&PodRef, &str, &str)> {
        let c = self.containers.get(id).filter(|c| c.record.state == ContainerState::Created)?;
        Some((&c.record.pod, &c.record.name, &c.limits.memory_nodes))
    }

    /// How long a container takes to end after its stop signal. One that does not hear it is killed when its time is over.
    pub(super) fn time_to_stop(&self, now: Time, id: &str, timeout_s: i64, rng: &mut Rng) -> Duration {
        let Some(container) = self.containers.get(id) else { return Duration::ZERO };
        let limit = Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0));
        let takes = below(rng, Duration::from_secs(container.stops_in_s)).min(limit);
        let misses = self.deaf_disks && self.is_running(id) && container.is_deaf(now);
        if misses { limit } else { takes }
    }

    /// The containers of a pod that hold disks and end when they are told to.
    pub(super) fn disks_that_hear(&self, uid: &str, now: Time) -> Vec<String> {
        let misses = |c: &Life| self.deaf_disks && c.is_deaf(now);
        let hears = |c: &&Life| &*c.record.pod.uid == uid && c.is_disk() && !misses(c);
        self.running().filter(hears).map(|c| c.record.id.clone()).collect()
    }

    /// A container that holds a disk of a pod and runs, while the pod's launcher does not.
    pub(crate) fn disk_left_of(&self, uid: &str) -> Option<&str> {
        let of_pod: Vec<&Life> = self.running().filter(|c| &*c.record.pod.uid == uid).collect();
        let has_launcher = of_pod.iter().any(|c| c.record.name == COMPUTE_CONTAINER);
        of_pod.into_iter().find(|c| c.is_disk() && !has_launcher).map(|c| c.record.id.as_str())
    }

    pub(super) fn stop(&mut self, now: Time, id: &str, observer: &Observer, breaches: &mut Vec<Breach>) -> Outcome {
        let Some(code) = self.containers.get(id).map(|c| c.stops_with) else { return Err(missing(id)) };
        let ran = self.is_running(id);
        if ran && self.clinging.contains(id) {
            return Err(OpError::Failed(format!("an exit event of {id} was waited for in vain")));
        }
        self.end(now, id, code, observer, breaches);
        if let Some(container) = self.containers.get_mut(id) {
            // Where the machine is shut down, that is why.
            container.is_stopped |= ran && !self.pods_end;
        }
        Ok(Reply::Done)
    }

    /// Ends a container from outside.
    fn end(&mut self, now: Time, id: &str, code: i32, observer: &Observer, breaches: &mut Vec<Breach>) {
        let Some(container) = self.containers.get(id) else { return };
        let pod = &container.record.pod;
        // Its sandbox has died under it: it is to be in another one.
        let is_lost = || self.sandboxes.get(&container.record.sandbox_id).is_some_and(|sandbox| sandbox.died);
        // Nobody would hear of its end.
        let is_unseen = || self.unknown.get(id).is_some_and(Option::is_none);
        // Who shuts the node down asks for the end of all its pods.
        let may_end = || {
            is_lost()
                || is_unseen()
                || self.evicted.contains(&pod.uid)
                || crate::resizes::may_start_again(pod, observer)
                || crate::reimaged::may_start_again(pod, observer)
                || crate::probed::may_start_again(pod, observer)
                || crate::rounds::may_start_again(pod, observer)
                || crate::critical::may_be_preempted(pod, observer)
        };
        let of_manifest = self.of_manifests.contains(&*pod.uid);
        let asked_for = || self.pods_end || !(of_manifest || wanted(observer, pod)) || may_end();
        if container.record.state == ContainerState::Running && !asked_for() {
            let what = format!(
                "{id} ({}) of {} is killed, and nobody asked for it",
                container.record.name, container.record.pod
            );
            let name = if of_manifest { crate::statics::PICTURES } else { "wanted-containers-are-not-killed" };
            breaches.push(Breach::new(name, what));
        }
        self.exit(now, id, code);
    }

    /// Whether a container is a machine's launcher.
    pub(super) fn is_launcher(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|container| container.record.name == COMPUTE_CONTAINER)
    }

    /// A container's process ends. False when it did not run.
    pub(super) fn exit(&mut self, now: Time, id: &str, code: i32) -> bool {
        let Some(container) = self.containers.get_mut(id) else { return false };
        let ran = container.record.state == ContainerState::Running;
        if ran || container.record.state == ContainerState::Created {
            let reason = if code == 0 { "Completed" } else { "Error" };
            container.record.state =
                ContainerState::Exited { code, reason: reason.into(), message: String::new(), finished_at: now };
        }
        ran
    }

    pub(super) fn remove(&mut self, id: &str, observer: &Observer, breaches: &mut Vec<Breach>) -> Outcome {
        match self.containers.get(id) {
            Some(c) if c.record.state == ContainerState::Running => Err(OpError::Failed(format!("{id} is running"))),
            found => {
                let newer = |c: &Life, o: &Life| {
                    let same = o.record.pod.uid == c.record.pod.uid && o.record.name == c.record.name;
                    same && (o.record.attempt, o.record.created_at) > (c.record.attempt, c.record.created_at)
                };
                if let Some(c) = found.filter(|c| c.record.exit_code().is_some())
                    && !self.containers.values().any(|o| newer(c, o))
                {
                    crate::invariants::forgotten(id, &c.record.pod.uid, observer, breaches);
                }
                self.containers.remove(id);
                Ok(Reply::Done)
            }
        }
    }

    pub(super) fn power_off(&mut self, now: Time) {
        self.groups.clear();
        self.pods_end = false;
        for sandbox in self.sandboxes.values_mut() {
            sandbox.ready = false;
        }
        for container in self.containers.values_mut() {
            if container.record.state == ContainerState::Running {
                container.record.state = ContainerState::Exited {
                    code: 255,
                    reason: "Unknown".into(),
                    message: String::new(),
                    finished_at: now,
                };
            }
        }
    }

    /// Nothing is kept of what ran; what comes has other names.
    pub(super) fn forget(&mut self) {
        self.sandboxes.clear();
        self.containers.clear();
    }

    /// Whether somebody has shut the node down since it was started.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.pods_end
    }

    /// A container, whether it runs or not.
    pub(crate) fn record(&self, id: &str) -> Option<&ContainerRecord> {
        self.containers.get(id).map(|c| &c.record)
    }

    /// The containers of a pod, whether they run or not.
    pub(crate) fn records_of(&self, uid: &str) -> impl Iterator<Item = &ContainerRecord> {
        self.containers.values().map(|c| &c.record).filter(move |r| &*r.pod.uid == uid)
    }

    /// Containers, whether they run or not, with what each uses.
    pub(super) fn uses(&self, now: Time) -> impl Iterator<Item = (&ContainerRecord, Used)> {
        self.containers.values().map(move |c| (&c.record, c.uses(now)))
    }

    /// Whether a container runs.
    pub(crate) fn is_running(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|c| c.record.state == ContainerState::Running)
    }

    /// UID of the pod of a sandbox or a container.
    pub(super) fn pod_of(&self, id: &str) -> Option<&str> {
        let of_sandbox = self.sandboxes.get(id).map(|sandbox| &sandbox.pod);
        of_sandbox.or_else(|| self.record(id).map(|record| &record.pod)).map(|pod| &*pod.uid)
    }

    /// A running container of a pod.
    pub(crate) fn alive_of(&self, uid: &str) -> Option<&str> {
        self.running().find(|c| &*c.record.pod.uid == uid).map(|c| c.record.id.as_str())
    }

    /// The file that a container writes when it ends well, and what it writes there.
    pub(super) fn writes(&self, id: &str) -> Option<&(String, String)> {
        self.containers.get(id)?.writes.as_ref()
    }

    /// What a container does, where it copies disks.
    pub(super) fn copies(&self, id: &str) -> Option<&Work> {
        self.containers.get(id)?.copies.as_ref()
    }

    /// The newest container of a pod, if it ended since its kubelet stopped it.
    pub(crate) fn stopped_last(&self, uid: &str) -> Option<&str> {
        let of_pod = self.containers.values().filter(|c| &*c.record.pod.uid == uid);
        let newest = of_pod.max_by_key(|c| (c.record.attempt, c.record.created_at))?;
        newest.is_stopped.then_some(newest.record.id.as_str())
    }

    /// A container passes a probe.
    pub(super) fn passes(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            container.has_passed = true;
        }
    }

    /// Whether a container has ever passed a probe; none when it is not there any more.
    pub(crate) fn has_passed(&self, id: &str) -> Option<bool> {
        Some(self.containers.get(id)?.has_passed)
    }

    /// Whether a sandbox of a pod is up.
    pub(crate) fn sandbox_of(&self, uid: &str) -> Option<&str> {
        self.sandboxes.iter().find(|(_, s)| s.ready && &*s.pod.uid == uid).map(|(id, _)| id.as_str())
    }

    /// The sandboxes that run.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &String> {
        self.sandboxes.iter().filter(|(_, sandbox)| sandbox.ready).map(|(id, _)| id)
    }

    /// Whether a pod's newest sandbox has ended by itself.
    pub(crate) fn has_lost_sandbox(&self, uid: &str) -> bool {
        let of_pod = self.sandboxes.values().filter(|sandbox| &*sandbox.pod.uid == uid);
        of_pod.max_by_key(|sandbox| sandbox.attempt).is_some_and(|sandbox| sandbox.died)
    }

    /// The containers that run in a sandbox.
    pub(crate) fn running_in(&self, sandbox: &str) -> Vec<String> {
        self.running().filter(|c| c.record.sandbox_id == sandbox).map(|c| c.record.id.clone()).collect()
    }

    /// A sandbox of a pod that may still have its addresses, as far as kubelets were told.
    pub(crate) fn connected(&self, uid: &str) -> Option<&str> {
        let holds = |s: &Sandbox| &*s.pod.uid == uid && s.network != Network::Acknowledged;
        self.sandboxes.iter().find(|(_, s)| holds(s)).map(|(id, _)| id.as_str())
    }

    /// The devices of a container that is about to start, with its pod and its name.
    pub(super) fn devices_of(&self, id: &str) -> Option<(&PodRef, &str, &[String])> {
        let c = self.containers.get(id).filter(|c| c.record.state == ContainerState::Created)?;
        Some((&c.record.pod, &c.record.name, &c.devices))
    }

    /// How often what is to be seen of the containers may have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.containers.changes()
    }

    /// The containers that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Life> {
        self.containers.values().filter(|c| c.record.state == ContainerState::Running)
    }
}

#[cfg(test)]
mod tests {
    use carrack_kubelet::{In, OpId};
    use serde_json::json;

    use super::*;
    use crate::attacher::Rack;
    use crate::invariants::Checker;
    use crate::node::Node;
    use crate::options::NodeFaults;
    use crate::sandboxes::Heard;

    fn running(pod: &str, device: &str) -> Life {
        Life {
            record: ContainerRecord {
                id: pod.into(),
                sandbox_id: "s".into(),
                pod: PodRef { namespace: "default".into(), name: pod.into(), uid: pod.into() },
                name: "main".into(),
                attempt: 0,
                state: ContainerState::Running,
                created_at: Time::default(),
                started_at: Some(Time::default()),
                image: String::new(),
                image_ref: String::new(),
                hash: String::new(),
                round: 0,
                size: ContainerSize { made_with: None, actual: None },
                user: None,
            },
            devices: vec![device.to_owned()],
            limits: Resources::default(),
            updated: 0,
            stops_in_s: 1,
            stops_with: 0,
            is_stopped: false,
            has_passed: false,
            writes: None,
            copies: None,
            grows: None,
        }
    }

    /// Nodes are looked at only where something may have changed: what is wrong is found when it comes.
    #[test]
    fn what_runs_is_looked_at_when_it_changes() {
        let node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        let (mut nodes, observer, mut checker) = (BTreeMap::from([(1, node)]), Observer::of([]), Checker::default());
        let mut found = |change: &dyn Fn(&mut Runtime)| {
            nodes.values_mut().for_each(|node| change(&mut node.runtime));
            let mut breaches = Vec::new();
            checker.nodes(&nodes, &observer, &mut breaches);
            breaches.len()
        };
        for (pod, device, expected) in [("a", "w/1", 0), ("b", "w/2", 0), ("c", "w/1", 1), ("d", "w/3", 1)] {
            let starts = |runtime: &mut Runtime| drop(runtime.containers.insert(pod.to_owned(), running(pod, device)));
            assert_eq!(found(&starts), expected, "{pod}");
            assert_eq!(found(&|_| {}), 0, "nothing has changed since {pod}");
        }
        assert_eq!(found(&|runtime| assert!(runtime.exit(Time::default(), "c", 0))), 0);
    }

    /// A container `a` that runs in a sandbox `s`, which has ended by itself or not.
    fn with_sandbox(died: bool) -> Runtime {
        let (mut runtime, life) = (Runtime::new(1), running("a", "w/1"));
        let sandbox = Sandbox {
            pod: life.record.pod.clone(),
            attempt: 0,
            ready: true,
            died: false,
            created_at: Time::default(),
            ip: std::net::IpAddr::from([10, 42, 1, 2]),
            network: Network::Held,
        };
        runtime.sandboxes.insert("s".into(), sandbox);
        runtime.containers.insert("a".into(), life);
        if died {
            assert_eq!(runtime.loses_sandbox("s"), Some(vec!["a".to_owned()]));
        }
        assert_eq!((runtime.has_lost_sandbox("a"), runtime.sandboxes().count()), (died, usize::from(!died)));
        runtime
    }

    #[test]
    fn what_runs_in_a_sandbox_that_has_died_may_be_stopped() {
        let pod =
            json!({"metadata": {"namespace": "default", "name": "a", "uid": "a"}, "status": {"phase": "Running"}});
        let observer = Observer::of([("pod", pod)]);
        for died in [false, true] {
            let (mut runtime, mut breaches) = (with_sandbox(died), Vec::new());
            assert!(runtime.stop(Time::default(), "a", &observer, &mut breaches).is_ok());
            assert_eq!(breaches.len(), usize::from(!died), "{breaches:?}");
        }
    }

    #[test]
    fn a_container_that_does_not_start_has_ended_and_one_that_runs_goes_on() {
        let now = Time::from_unix_s(9);
        for (state, code) in [(ContainerState::Created, Some(128)), (ContainerState::Running, None)] {
            let mut runtime = with_sandbox(false);
            if let Some(container) = runtime.containers.get_mut("a") {
                container.record.state = state;
            }
            let why = runtime.spoils_start(now, "a");
            assert_eq!(runtime.record("a").and_then(ContainerRecord::exit_code), code, "{why}");
            assert!(runtime.start(now, "a", &mut Vec::new()).is_err(), "it is started once");
        }
    }

    #[test]
    fn no_container_starts_beside_another_one_of_its_name() {
        for (name, ended, expected) in [("main", false, 1), ("main", true, 0), ("other", false, 0)] {
            let (mut runtime, mut breaches) = (with_sandbox(false), Vec::new());
            let mut next = running("a", "w/2");
            (next.record.id, next.record.name, next.record.attempt) = ("b".into(), name.into(), 1);
            next.record.state = ContainerState::Created;
            runtime.containers.insert("b".into(), next);
            // It has lost sight of the other one, which runs all the same.
            runtime.loses("a".into(), None);
            if ended {
                assert!(runtime.exit(Time::default(), "a", 0));
            }
            assert!(runtime.start(Time::default(), "b", &mut breaches).is_ok());
            assert_eq!(breaches.len(), expected, "{name}, the other one has ended: {ended}");
        }
    }

    #[test]
    fn what_is_lost_is_shown_to_be_and_may_be_stopped_when_that_is_for_good() {
        let pod =
            json!({"metadata": {"namespace": "default", "name": "a", "uid": "a"}, "status": {"phase": "Running"}});
        let observer = Observer::of([("pod", pod)]);
        let state = |runtime: &Runtime| runtime.snapshot().containers.pop().map(|c| c.state);
        for until in [None, Some(Time::from_unix_s(9))] {
            let (mut runtime, mut breaches) = (with_sandbox(false), Vec::new());
            runtime.loses("a".into(), until);
            runtime.finds_again(Time::from_unix_s(8));
            assert_eq!(state(&runtime), Some(ContainerState::Unknown));
            assert!(runtime.stop(Time::from_unix_s(8), "a", &observer, &mut breaches).is_ok());
            assert_eq!(breaches.len(), usize::from(until.is_some()), "{breaches:?}");
        }
        let mut runtime = with_sandbox(false);
        runtime.loses("a".into(), Some(Time::from_unix_s(9)));
        runtime.finds_again(Time::from_unix_s(9));
        assert_eq!(state(&runtime), Some(ContainerState::Running));
    }

    #[test]
    fn what_cannot_be_stopped_goes_with_its_sandbox() {
        let (mut runtime, mut heard, mut breaches) = (with_sandbox(true), Heard::default(), Vec::new());
        runtime.clings("a");
        heard.hears(&In::Done(OpId(1), Ok(Reply::Snapshot(runtime.snapshot()))));
        heard.stops(OpId(2), &Op::StopContainer { id: "a".into(), timeout_s: 5 });
        let outcome = runtime.stop(Time::default(), "a", &Observer::of([]), &mut breaches);
        assert!(outcome.is_err() && runtime.is_running("a"));
        heard.hears(&In::Done(OpId(2), outcome));
        heard.asks(1, &Op::StopSandbox("s".to_owned()), &runtime, &mut breaches);
        assert!(runtime.stop_sandbox(Time::default(), "s", &Observer::of([]), &mut breaches).is_ok());
        assert!(breaches.is_empty() && !runtime.is_running("a"), "{breaches:?}");
    }

    #[test]
    fn a_sandbox_is_stopped_when_nothing_is_known_to_run_in_it() {
        let (mut runtime, mut heard) = (with_sandbox(true), Heard::default());
        let found = |heard: &Heard, runtime: &Runtime, sandbox: &str| {
            let mut breaches = Vec::new();
            heard.asks(1, &Op::StopSandbox(sandbox.to_owned()), runtime, &mut breaches);
            breaches.len()
        };
        // Nobody has heard of it.
        assert_eq!(found(&heard, &runtime, "s"), 0);
        heard.hears(&In::Done(OpId(1), Ok(Reply::Snapshot(runtime.snapshot()))));
        assert_eq!((found(&heard, &runtime, "s"), found(&heard, &runtime, "other")), (1, 0));
        // That it ends need not have been heard.
        assert!(runtime.exit(Time::default(), "a", 137));
        assert_eq!(found(&heard, &runtime, "s"), 0);
        assert_eq!(runtime.loses_sandbox("s"), None, "it ends once");
    }
}
