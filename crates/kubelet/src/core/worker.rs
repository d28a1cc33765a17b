//! What the core keeps for one pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{CallId, Time};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};

use super::actuate::Acting;
use super::stuck::Stuck;
use crate::allocation::{Allocation, GroupLimits};
use crate::devices::PreStart;
use crate::effects::OpId;
use crate::pods::backoff::Backoff;
use crate::pods::plan::{End, Start};
use crate::probes::Prober;
use crate::records::EndedRecord;
use crate::runtime::{ContainerRecord, ImageRecord, SandboxRecord, SandboxSpec};
use crate::spec::env_file::EnvFiles;
use crate::spec::pod::{grace_s, spec};
use crate::spec::pull::Credential;
use crate::status::pod::{Ended, Waiting};
use crate::status::resize::{Pending, Progress};

/// How admission stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Admission {
    /// Not decided yet.
    #[default]
    Undecided,
    /// Waiting, for what, since when, and when it is told again.
    Waiting { message: String, since: Time, report_at: Time },
    /// Admitted.
    Admitted,
    /// Rejected with reason and message.
    Rejected(String, String),
}

/// What the runtime shows of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodRuntime {
    pub sandboxes: Vec<SandboxRecord>,
    pub containers: Vec<ContainerRecord>,
}

impl PodRuntime {
    /// Whether it shows a container that is not over, and not its sandbox: they were listed at different times.
    pub fn is_torn(&self) -> bool {
        let is_here = |c: &ContainerRecord| self.sandboxes.iter().any(|s| s.id == c.sandbox_id);
        self.containers.iter().any(|c| c.exit_code().is_none() && !is_here(c))
    }

    /// Whether something of it may run.
    pub fn may_run(&self) -> bool {
        self.containers.iter().any(ContainerRecord::may_run) || self.sandboxes.iter().any(|s| s.ready)
    }
}

/// A pod that must stop.
#[derive(Clone, Debug)]
pub(super) struct Stopping {
    /// When containers that still run are killed.
    pub deadline: Time,
    /// Listings of the runtime at least as new as this count as proof.
    pub since: OpId,
    /// Why, when the kubelet itself ended the pod.
    pub because: Option<Ended>,
}

impl Stopping {
    /// What of it must be known after a restart: else the pod would go on. One that ends with the machine is judged anew when
    /// that is back.
    pub fn record(&self) -> Option<EndedRecord> {
        let because = self.because.as_ref().filter(|ended| ended.reason != crate::shutdown::REASON)?;
        Some(EndedRecord {
            reason: because.reason.clone(),
            message: because.message.clone(),
            disrupts: because.disrupts,
            deadline_ns: self.deadline.0,
        })
    }

    /// What an earlier life of the kubelet began. Listings as new as `since` count. The clock may have been set back since then:
    /// nobody has longer than he ever had.
    pub fn restored(record: EndedRecord, since: OpId, now: Time, pod: &Pod) -> Self {
        let EndedRecord { reason, message, disrupts, deadline_ns } = record;
        let most = Duration::from_secs(u64::try_from(grace_s(pod)).unwrap_or(0).max(1));
        let deadline = Time(deadline_ns).min(now + most);
        Self { deadline, since, because: Some(Ended { reason, message, disrupts }) }
    }
}

/// Where the start of a container is.
#[derive(Clone, Debug)]
pub(super) enum Step {
    FindImage,
    /// That it is to be pulled is being written down, or others are pulled before.
    MeanPull {
        image: String,
    },
    PullImage,
    /// With what it was pulled is being written down.
    NotePull,
    Prefer {
        resource: String,
    },
    /// The intention is being written down; then the plugin is asked.
    Intend {
        version: u64,
        resource: String,
        epoch: u64,
        ids: BTreeSet<String>,
    },
    Allocate {
        resource: String,
        ids: BTreeSet<String>,
    },
    /// The grant is being written down.
    Grant {
        version: u64,
    },
    PreStart {
        rest: Vec<PreStart>,
    },
    /// The CPUs that it is to have for itself are not on disk yet, or somebody still runs there; or its pod's group is not as
    /// large yet as it is to be.
    Cpus,
    /// The files are being read that it gets variables from.
    ReadEnv,
    Create,
    Start {
        id: String,
    },
    PostStart {
        id: String,
    },
    /// Its postStart hook sleeps.
    PostStartSleep {
        id: String,
        until: Time,
    },
}

/// A container on its way up.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub start: Start,
    pub op: OpId,
    pub step: Step,
    /// The image that it names, as it was when this began.
    pub reference: String,
    /// When its pull was asked for.
    pub pulling_since: Time,
    /// When that began.
    pub pull_began: Time,
    pub image: Option<ImageRecord>,
    /// What the pod gives for pulling it.
    pub credentials: Vec<Credential>,
    pub preferred: Option<(String, Vec<String>)>,
    /// What is in the files that it gets variables from, once they were read.
    pub files: Option<EnvFiles>,
    /// The CPUs that it is being made with; none where nobody says.
    pub cpus: Option<crate::cpus::CpuSet>,
    /// The size that it is being made with.
    pub size: ResourceRequirements,
}

/// A container on its way down.
#[derive(Clone, Debug)]
pub(super) struct Killing {
    /// The operation under way; none while a sleep hook lasts, or others are waited for.
    pub op: Option<OpId>,
    /// By when it was to be stopped, as it was last asked for.
    pub deadline: Time,
    pub hook: Hook,
    /// It need not wait for others.
    pub in_turn: bool,
}

/// How far its preStop hook is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// Running as an operation.
    Running,
    /// Sleeping until a time.
    Sleeping(Time),
    /// Over, or none: the container waits until others have ended.
    Waiting,
    /// Over, or none: the container is being stopped.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct StatusState {
    /// A patch on its way.
    pub call: Option<CallId>,
    pub retry_at: Time,
    /// Until when a change waits that nobody waits for.
    pub held_until: Option<Time>,
    /// What the API server took and did not keep as it was, and until when it is not told that again.
    pub unkept: Option<(PodStatus, Time)>,
    pub failures: u32,
    /// How often in a row the API server would not take it. One that is away, or too busy, has refused nothing.
    pub refused: u32,
    /// How often in a row somebody else had written meanwhile.
    pub conflicts: u32,
}

/// How far a pod's resize is.
#[derive(Debug, Default)]
pub(super) struct Resize {
    /// It asks for something else than it is allocated, and that was judged.
    pub pending: Option<Pending>,
    /// What it is allocated is being brought about.
    pub progress: Option<Progress>,
    /// The version of what is allocated that must be on disk before anything of the pod rests on it.
    pub rests_on: u64,
    /// Some container that runs is to be started again for its size.
    pub is_outgrown: bool,
    /// Those of them that may be stopped by now.
    pub outgrown: BTreeSet<String>,
    /// Those that may be stopped by now for another definition or for a probe, and might not be started again, or not alone, for
    /// how they end.
    pub renewed: BTreeSet<String>,
    /// All that are to be stopped for either, and those that have been and were not started yet.
    pub restarting: BTreeSet<String>,
    /// Those of them that an earlier life of the kubelet was about to stop, or had stopped.
    pub inherited: BTreeSet<String>,
    /// The version of what was brought about that must be on disk before they are stopped, or anything is given.
    pub stops_on: u64,
    pub acting: Option<Acting>,
    /// Not before this time is it tried again.
    pub retry_at: Time,
    /// The limits with which the pod's group is being made.
    pub group_sent: Option<GroupLimits>,
    /// It was looked at in this life.
    pub was_looked_at: bool,
}

impl Resize {
    /// What an earlier life of the kubelet had begun to stop is still to be started again.
    pub fn inherit(&mut self, restarting: BTreeSet<String>) {
        self.inherited.clone_from(&restarting);
        self.restarting = restarting;
    }
}

/// One pod.
#[derive(Debug)]
pub(super) struct Worker {
    /// With what it is allocated in place of what its spec asks for ([`Self::take`]).
    pub pod: Arc<Pod>,
    /// As it was last read.
    pub desired: Arc<Pod>,
    pub resize: Resize,
    /// The API's picture of it, when it is a static pod.
    pub mirror: Option<Arc<Pod>>,
    /// Its spec was read from the API in this life of the kubelet.
    pub confirmed: bool,
    /// It is known to be gone from the API.
    pub deleted: bool,
    pub admission: Admission,
    /// The record says that it was admitted before.
    pub admitted_before: bool,
    /// A record may be on disk, whatever was heard of its writing.
    pub record_made: bool,
    /// The record that is on disk, and the one being written.
    pub record_saved: Option<RecordMark>,
    pub record_op: Option<(OpId, RecordMark)>,
    pub record_retry_at: Time,
    pub stopping: Option<Stopping>,
    pub end: Option<End>,
    /// Everything is stopped, by a listing newer than the decision to stop.
    pub stopped_all: bool,
    /// A listing must be at least this new to be acted on.
    pub fresh_after: OpId,
    /// What is known of the runtime shows all changes up to this one: the last one came back with what it made.
    pub shown: OpId,
    /// Images that were looked up while the sandbox was made.
    pub found: BTreeMap<String, ImageRecord>,
    pub sandbox_op: Option<OpId>,
    pub sandbox_failures: u32,
    pub sandbox_retry_at: Time,
    pub sandbox_spec: Option<Arc<SandboxSpec>>,
    /// Sandboxes whose stop was acknowledged.
    pub stopped: BTreeSet<String>,
    /// Containers that are over and to be forgotten.
    pub surplus: BTreeSet<String>,
    /// Whether it went on when these were counted last; none when the runtime has shown something else since.
    pub counted: Option<bool>,
    /// Sandboxes and containers that are being stopped (sandboxes) or removed (both).
    pub busy: BTreeMap<String, OpId>,
    pub lanes: BTreeMap<String, Lane>,
    pub killing: BTreeMap<String, Killing>,
    /// Containers whose preStop hook failed, and when: whether that is told depends on when they ended.
    pub failed_hooks: BTreeMap<String, Time>,
    /// Containers that the runtime has lost sight of, or cannot stop.
    pub stuck: Stuck,
    pub waiting: BTreeMap<String, Waiting>,
    pub crash: Backoff,
    pub pulls: Backoff,
    pub pull_failed_at: BTreeMap<String, (Time, String)>,
    /// Not before this time is a container (or `rm:<id>`) tried again.
    pub retry_at: BTreeMap<String, Time>,
    pub probers: BTreeMap<String, Prober>,
    pub status: StatusState,
    /// The status last computed.
    pub last_status: Option<PodStatus>,
    pub delete_call: Option<CallId>,
    pub delete_retry_at: Time,
    pub remove_op: Option<OpId>,
    pub removed: bool,
    pub drop_op: Option<OpId>,
    /// Nothing of it is left here.
    pub gone: bool,
    pub mount_said_at: Time,
    /// When it is looked at next for a volume that is to be published again.
    pub republish_look_at: Time,
    /// Since when volumes are missing without which its containers cannot start.
    pub volumes_lack_since: Option<Time>,
    pub secrets_said_at: Time,
    /// When it was looked at first, and whether it has run since.
    pub seen_at: Option<Time>,
    pub ran: bool,
}

/// What of a record matters for whether it must be written again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordMark {
    pub terminating: bool,
    pub deleted: bool,
    /// Version of the mount journal.
    pub journal: u32,
    /// More may be mounted than the journal says.
    pub may_have_more: bool,
}

/// The containers of a pod but for ephemeral ones, in the order in which they start. Their images may be exchanged while it is
/// there.
pub(super) fn in_order(pod: &Pod) -> impl Iterator<Item = &Container> {
    let s = spec(pod);
    s.init_containers.iter().flatten().chain(&s.containers)
}

/// Containers that have another image than before.
fn other_images<'a>(before: &Pod, now: &'a Pod) -> Vec<&'a str> {
    let before: BTreeMap<&str, Option<&str>> =
        in_order(before).map(|c| (c.name.as_str(), c.image.as_deref())).collect();
    let is_other = |c: &&Container| before.get(c.name.as_str()).is_some_and(|image| *image != c.image.as_deref());
    in_order(now).filter(is_other).map(|c| c.name.as_str()).collect()
}

impl Worker {
    pub fn new(pod: Arc<Pod>) -> Self {
        Self {
            desired: pod.clone(),
            pod,
            resize: Resize::default(),
            mirror: None,
            confirmed: false,
            deleted: false,
            admission: Admission::Undecided,
            admitted_before: false,
            record_made: false,
            record_saved: None,
            record_op: None,
            record_retry_at: Time::default(),
            stopping: None,
            end: None,
            stopped_all: false,
            fresh_after: OpId(0),
            shown: OpId(0),
            found: BTreeMap::new(),
            sandbox_op: None,
            sandbox_failures: 0,
            sandbox_retry_at: Time::default(),
            sandbox_spec: None,
            stopped: BTreeSet::new(),
            surplus: BTreeSet::new(),
            counted: None,
            busy: BTreeMap::new(),
            lanes: BTreeMap::new(),
            killing: BTreeMap::new(),
            failed_hooks: BTreeMap::new(),
            stuck: Stuck::default(),
            waiting: BTreeMap::new(),
            crash: Backoff::default(),
            pulls: Backoff::default(),
            pull_failed_at: BTreeMap::new(),
            retry_at: BTreeMap::new(),
            probers: BTreeMap::new(),
            status: StatusState::default(),
            last_status: None,
            delete_call: None,
            delete_retry_at: Time::default(),
            remove_op: None,
            removed: false,
            drop_op: None,
            gone: false,
            mount_said_at: Time::default(),
            republish_look_at: Time::default(),
            volumes_lack_since: None,
            secrets_said_at: Time::default(),
            seen_at: None,
            ran: false,
        }
    }

    /// It is read anew: it is looked at as it is allocated. Whoever crashed with another image has not with this one, and does
    /// not wait for having done so (upstream keeps a wait under the container's hash, `doBackOff`).
    pub fn take(&mut self, pod: Arc<Pod>, allocated: Option<&Allocation>) {
        for name in other_images(&self.desired, &pod) {
            self.crash.clear(name);
        }
        self.pod = allocated.map_or_else(|| pod.clone(), |allocated| allocated.applied(&pod));
        self.desired = pod;
    }

    /// Whether it asks for something else than it is allocated. [`Self::take`] has compared them, and made another pod of it
    /// only where they differ.
    pub fn asks_otherwise(&self) -> bool {
        !Arc::ptr_eq(&self.pod, &self.desired)
    }

    /// Whether it holds, or may hold, resources of the node.
    pub fn counts(&self) -> bool {
        self.admission == Admission::Admitted && !self.stopped_all
    }

    /// How long after it was seen first it runs; told once, and not of one that ran before this process was there.
    pub fn start_took(&mut self, now: Time, status: &PodStatus) -> Option<Duration> {
        let runs = |status: &PodStatus| status.phase.as_deref() == Some("Running");
        if self.ran || !runs(status) {
            return None;
        }
        self.ran = true;
        let ran_before = self.pod.status.as_ref().is_some_and(runs);
        self.seen_at.filter(|_| !ran_before).map(|at| now.since(at))
    }

    pub fn wait(&mut self, container: &str, reason: &str, message: impl Into<String>) {
        self.waiting.insert(container.to_owned(), Waiting { reason: reason.into(), message: message.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_gives_a_pod_more_time_than_it_ever_had() {
        let pod: Pod = carrack_types::json::from_value(serde_json::json!({"metadata": {"name": "p"}, "spec": {
            "containers": [], "terminationGracePeriodSeconds": 30}}))
        .unwrap();
        let now = Time::from_unix_s(1000);
        for (deadline_s, expected_s) in [(900, 900), (1010, 1010), (1030, 1030), (1_000_000, 1030)] {
            let record = EndedRecord {
                reason: "Evicted".into(),
                message: String::new(),
                disrupts: true,
                deadline_ns: Time::from_unix_s(deadline_s).0,
            };
            let restored = Stopping::restored(record, OpId(1), now, &pod);
            assert_eq!(restored.deadline, Time::from_unix_s(expected_s), "{deadline_s}");
        }
    }
}
