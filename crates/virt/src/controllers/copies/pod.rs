//! The pod that copies disks: what it may do, and how far it is.
//!
//! It runs the launcher's program, which treats what it copies as anybody's (`carrack_launcher::copy`). It has no token, no
//! network of the host's, no capability but the one to read images whoever owns them, which the launcher has, too, and
//! bounds of its own for memory and CPU. Its disk space is bounded by the claims that it writes to.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{DeleteOptions, Key, Plan, Time, View, controller_ref};
use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use carrack_types::kubevirt::snapshot::names::{COPYING_LABEL, SPEC_DIGEST_ANNOTATION};
use carrack_types::resource::{Kind, Object as _};
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerStatus, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, PersistentVolumeClaimVolumeSource, Pod, PodSpec, ResourceRequirements, SeccompProfile,
    SecurityContext, Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as MetaTime};

use crate::controllers::vmi::state::NVRAM_SUBDIRECTORY;
use crate::copying::DIRECTORY;
use crate::identity::digest;

/// The launcher's word for [`Purpose::Receive`].
const RECEIVE: &str = "receive";
/// Annotation of a pod that receives: UID of the instance whose disks it waits for.
const INSTANCE_ANNOTATION: &str = "snapshot.kubevirt.io/copied-instance";
/// Name of the container.
const CONTAINER: &str = "copy";
/// A pod that could not copy in so many more tries, which take some five minutes, will not.
const MOST_RESTARTS: i32 = 5;
/// How far pods for the same are apart at least, and how far they get at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// The file of a disk on the machine's side, as the launcher names it.
const DISK: &str = "disk.img";
/// The directory of what firmware keeps: the launcher knows the files in it.
const STATE: &str = NVRAM_SUBDIRECTORY;
/// The file of a copy.
const COPY: &str = "disk.qcow2";

/// What a pod copies for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    /// To keep what is on a machine's disks.
    Keep,
    /// To take what a running machine's QEMU writes; the pod itself only waits.
    Receive(Running<'a>),
    /// To make disks of what was kept.
    Restore,
}

/// A machine that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running<'a> {
    /// UID of its instance.
    pub uid: &'a str,
    /// Its node: there the pod must be.
    pub node: &'a str,
}

impl Purpose<'_> {
    /// As the launcher's command line has it.
    fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Receive(_) => RECEIVE,
            Self::Restore => "restore",
        }
    }
}

/// Where what is copied lies on the machine's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is an image in a file system.
    Disk,
    /// It is a block device. A copy is a file.
    Device,
    /// It is what firmware keeps.
    State,
}

/// Two claims of the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// What is read.
    pub source: String,
    /// What is written.
    pub target: String,
    /// The UID of that claim: one that was deleted and made anew holds nothing, whatever a pod has copied before.
    pub target_uid: String,
    /// Where it lies on the machine's side.
    pub place: Place,
}

impl Pair {
    /// The place, as digests have it.
    fn word(&self) -> &'static str {
        match self.place {
            Place::Disk => "disk",
            Place::Device => "device",
            Place::State => "state",
        }
    }
}

/// What a pod is to copy.
pub(crate) struct Job<'a> {
    /// The pod's name.
    pub name: String,
    pub purpose: Purpose<'a>,
    pub pairs: Vec<Pair>,
    /// The machine: the pod may run where it may.
    pub machine: Option<&'a VirtualMachineInstanceSpec>,
}

/// How far a pod is.
pub(crate) enum Stage<'a> {
    /// There is none.
    Absent,
    /// There is somebody else's.
    Foreign,
    /// It is the owner's and of no use: it failed, is going, or was made for something else. It goes.
    Useless(&'a Pod),
    /// It works, or waits for something, which is told.
    Running(&'a Pod, Option<String>),
    /// All is copied.
    Done,
}

impl Job<'_> {
    /// What it is made for.
    fn what(&self) -> String {
        let pairs: Vec<_> =
            self.pairs.iter().map(|pair| (&pair.source, &pair.target, &pair.target_uid, pair.word())).collect();
        digest(&(self.purpose.word(), pairs))
    }

    /// How far it is. What a pod says of its end does not change any more.
    pub fn stage<'a, O: Kind>(&self, owner: &O, view: &'a View<'_>) -> Stage<'a> {
        let Some(pod) = view.get::<Pod>(owner.namespace(), &self.name) else { return Stage::Absent };
        if pod.controller_uid() != Some(owner.uid()) {
            return Stage::Foreign;
        }
        if pod.annotation(SPEC_DIGEST_ANNOTATION) != Some(self.what().as_str()) {
            return Stage::Useless(pod);
        }
        match phase(pod) {
            "Succeeded" => Stage::Done,
            "Failed" => Stage::Useless(pod),
            _ if pod.is_deleting() => Stage::Useless(pod),
            _ if matches!(self.purpose, Purpose::Receive(running) if instance(pod) != running.uid) => {
                Stage::Useless(pod)
            }
            _ => Stage::Running(pod, trouble(pod)),
        }
    }

    /// The pod.
    pub fn pod<O: Kind>(&self, owner: &O, image: &str) -> Pod {
        let mut volumes = Vec::new();
        let mut mounts = Vec::new();
        let mut devices = Vec::new();
        let mut args = match self.purpose {
            Purpose::Receive(running) => vec![RECEIVE.to_owned(), "--uid".to_owned(), running.uid.to_owned()],
            Purpose::Keep | Purpose::Restore => vec!["copy".to_owned(), self.purpose.word().to_owned()],
        };
        for (number, pair) in self.pairs.iter().enumerate() {
            let sides = [
                ("source", &pair.source, self.purpose == Purpose::Keep),
                ("target", &pair.target, self.purpose == Purpose::Restore),
            ];
            // What a running machine has is copied by the machine itself.
            let received = matches!(self.purpose, Purpose::Receive(_));
            for (side, claim, of_machine) in sides.into_iter().filter(|(side, ..)| !received || *side == "target") {
                let name = format!("{side}-{number}");
                let source = PersistentVolumeClaimVolumeSource { claim_name: claim.clone(), read_only: None };
                volumes.push(Volume { name: name.clone(), persistent_volume_claim: Some(source), ..Volume::default() });
                if of_machine && pair.place == Place::Device {
                    let device_path = format!("/dev/{name}");
                    args.push(device_path.clone());
                    devices.push(VolumeDevice { name, device_path });
                    continue;
                }
                let mount_path = format!("{DIRECTORY}/{name}");
                args.push(match (received, of_machine) {
                    (true, _) => mount_path.clone(),
                    (false, true) if pair.place == Place::State => format!("{mount_path}/{STATE}"),
                    (false, true) => format!("{mount_path}/{DISK}"),
                    (false, false) => format!("{mount_path}/{COPY}"),
                });
                let read_only = (side == "source").then_some(true);
                mounts.push(VolumeMount { name, mount_path, read_only, ..VolumeMount::default() });
            }
        }
        let mut node_selector: BTreeMap<String, String> =
            self.machine.map(|machine| machine.node_selector.clone()).unwrap_or_default();
        // Where machines run, their launcher's image is.
        node_selector.insert(SCHEDULABLE_LABEL.to_owned(), "true".to_owned());
        let container = Container {
            name: CONTAINER.to_owned(),
            image: Some(image.to_owned()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            args: Some(args),
            resources: Some(ResourceRequirements {
                requests: amounts("50m", "64Mi"),
                limits: amounts("1", "512Mi"),
                claims: None,
            }),
            security_context: Some(SecurityContext {
                run_as_user: Some(0),
                privileged: Some(false),
                allow_privilege_escalation: Some(false),
                read_only_root_filesystem: Some(true),
                capabilities: Some(Capabilities {
                    add: Some(vec!["DAC_OVERRIDE".to_owned()]),
                    drop: Some(vec!["ALL".to_owned()]),
                }),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
                ..SecurityContext::default()
            }),
            // Why it failed is told from its last lines.
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            volume_mounts: (!mounts.is_empty()).then_some(mounts),
            volume_devices: (!devices.is_empty()).then_some(devices),
            ..Container::default()
        };
        let mut annotations = BTreeMap::from([(SPEC_DIGEST_ANNOTATION.to_owned(), self.what())]);
        // What has ended cannot go on: another pod begins anew.
        let mut restart_policy = "OnFailure";
        let mut affinity = None;
        if let Purpose::Receive(running) = self.purpose {
            annotations.insert(INSTANCE_ANNOTATION.to_owned(), running.uid.to_owned());
            restart_policy = "Never";
            affinity = Some(on_node(running.node));
        }
        let tolerations = self.machine.map(|machine| machine.tolerations.clone()).unwrap_or_default();
        Pod {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(owner.namespace().to_owned()),
                labels: Some([(COPYING_LABEL.to_owned(), self.purpose.word().to_owned())].into()),
                annotations: Some(annotations),
                owner_references: Some(vec![controller_ref(owner)]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![container],
                volumes: Some(volumes),
                restart_policy: Some(restart_policy.to_owned()),
                affinity,
                automount_service_account_token: Some(false),
                enable_service_links: Some(false),
                // A copy that is interrupted is begun again.
                termination_grace_period_seconds: Some(1),
                node_selector: Some(node_selector),
                tolerations: (!tolerations.is_empty()).then_some(tolerations),
                ..PodSpec::default()
            }),
            status: None,
        }
    }
}

fn on_node(name: &str) -> Affinity {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![name.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![field]), match_expressions: None };
    let required = NodeSelector { node_selector_terms: vec![term] };
    let node_affinity = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(required),
        preferred_during_scheduling_ignored_during_execution: None,
    };
    Affinity { node_affinity: Some(node_affinity), ..Affinity::default() }
}

/// The instance whose disks a pod waits for; empty when it copies by itself.
pub(crate) fn instance(pod: &Pod) -> &str {
    pod.annotation(INSTANCE_ANNOTATION).unwrap_or_default()
}

/// Whether a pod's container was started again so often that it will come to nothing.
pub(crate) fn is_hopeless(pod: &Pod) -> bool {
    let mut containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.any(|container| container.restart_count >= MOST_RESTARTS)
}

/// Whether a pod has copied everything.
pub(crate) fn has_succeeded(pod: &Pod) -> bool {
    phase(pod) == "Succeeded"
}

/// Whether a pod copies, or waits for what is copied to it, or has all: what is left takes as long as it takes. One that
/// begins again and again does not count.
pub(crate) fn is_at_work(pod: &Pod) -> bool {
    has_succeeded(pod) || phase(pod) == "Running" && !pod.is_deleting() && !is_hopeless(pod)
}

/// How long a pod that failed is left there before the next one is made: each comes twice as long after its owner as the one
/// before it, but at least two seconds and at most a minute after that. By the API server's clock, which dates both.
pub(crate) fn pause_left<O: Kind>(pod: &Pod, owner: &O, now: Time) -> Duration {
    if phase(pod) == "Failed" { pause(pod, owner, now) } else { Duration::ZERO }
}

/// The same for a pod that is of no use, whether it failed or not. Whose clock says that the pod is yet to be made, by more than the
/// longest pause, can count nothing by its date: there is none then, as by a clock that is ahead.
pub(crate) fn pause<O: Kind>(pod: &Pod, owner: &O, now: Time) -> Duration {
    let dated = |created: &Option<MetaTime>| created.as_ref().map(Time::from);
    let dates = (dated(&pod.metadata.creation_timestamp), dated(&owner.meta().creation_timestamp));
    let (Some(made), Some(begun)) = dates else { return Duration::ZERO };
    let [least, most] = PAUSES;
    if made.since(now) > most {
        return Duration::ZERO;
    }
    (made + made.since(begun).clamp(least, most)).since(now)
}

/// The id of a pod's container that runs, without the runtime's name.
pub(crate) fn container_id(pod: &Pod) -> Option<&str> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    container.state.as_ref()?.running.as_ref()?;
    let id = container.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id))
}

fn amounts(cpu: &str, memory: &str) -> Option<BTreeMap<String, Quantity>> {
    Some([("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The pod of this name, if it is this owner's.
pub(crate) fn own<'a, O: Kind>(owner: &O, name: &str, view: &'a View<'_>) -> Option<&'a Pod> {
    let pod = view.get::<Pod>(owner.namespace(), name)?.as_ref();
    (pod.controller_uid() == Some(owner.uid())).then_some(pod)
}

/// Deletes a pod. One that is over runs nothing any more, and goes at once, wherever its node is.
pub(crate) fn remove(pod: &Pod) -> Plan {
    let over = matches!(phase(pod), "Succeeded" | "Failed");
    if pod.is_deleting() && !over {
        return Plan::none();
    }
    let options = DeleteOptions { grace_period_s: over.then_some(0), ..DeleteOptions::default() };
    Plan::none().delete_with(&Pod::resource(), pod, options)
}

/// Makes sure that no pod of this name is this owner's.
pub(crate) fn confirm_none<O: Kind>(owner: &O, name: &str) -> Plan {
    Plan::none().confirm_no_child(&Pod::resource(), Key::new(owner.namespace(), name), owner.uid())
}

/// What a pod waits for, or why it failed last.
pub(crate) fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let of_container = status.container_statuses.iter().flatten().find_map(of_container);
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    let unscheduled = || scheduled.filter(|condition| condition.status == "False")?.message.clone();
    let why = of_container.or_else(unscheduled).or_else(|| status.message.clone())?;
    Some(format!("copying pod {}: {}", pod.name(), why.trim()))
}

fn of_container(container: &ContainerStatus) -> Option<String> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ended =
        states.into_iter().flatten().find_map(|state| state.terminated.as_ref()).filter(|end| end.exit_code != 0);
    if let Some(end) = ended {
        return end.message.clone().filter(|text| !text.is_empty()).or_else(|| end.reason.clone());
    }
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    // What comes before each start is no trouble.
    waiting.message.clone().filter(|text| !text.is_empty())
}
