//! The agents of the node where machines run: a kubelet that binds, runs and ends pods, and a virt-handler. What they start is in
//! the [`Room`], and goes on without them.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, DeleteOptions, Key, Manager, Plan, Premise, Rng, Setup, Time, View, Write};
use carrack_types::kubevirt::snapshot::names::COPYING_LABEL;
use carrack_types::kubevirt::{VirtualMachineInstance, Volume, phase};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::{APP_LABEL, HEARTBEAT_ANNOTATION, LAUNCHER, SCHEDULABLE_LABEL};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume as PodVolume};
use serde_json::{Value, json};

use super::room::{Disk, End, INSTANT, Room, Work};
use super::storage::{bound, watch_volumes};
use crate::provisioner::DATA;

/// How often it is looked at what runs.
const LOOK: Duration = Duration::from_millis(500);
/// How long a container gets to end before it is killed.
const GRACE: Duration = Duration::from_secs(3);
const LEASES: &str = "kube-node-lease";
const RENEWAL: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The pod's volume with what a machine keeps beside its disks.
const STATE_VOLUME: &str = "vm-state";
/// Machines whose names begin so have guests without an agent.
pub(super) const MUTE: &str = "mute";
/// Machines whose names begin so have guests that shut down before long.
pub(super) const BRIEF: &str = "brief";

fn config() -> carrack_hollow::Config {
    let labels = [(SCHEDULABLE_LABEL.to_owned(), "true".to_owned())].into();
    carrack_hollow::Config { prefix: "host".into(), labels, ..carrack_hollow::Config::default() }
}

/// The node as it registers.
pub(super) fn node() -> Node {
    carrack_hollow::hollow_node(&config(), 0, Time::default())
}

/// Its Lease.
pub(super) fn lease() -> Value {
    let name = config().name(0);
    json!({"metadata": {"namespace": LEASES, "name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}})
}

/// All of them.
pub(crate) fn manager(rng: Rng, room: &Room) -> Manager {
    let (kubelet, handler) = (Kubelet(room.clone()), Handler(room.clone()));
    Manager::new("host", rng).with(Beats::default()).with(kubelet).with(handler)
}

/// Says that the node is there.
#[derive(Default)]
struct Beats {
    renewed: Option<Time>,
}

impl Controller for Beats {
    fn name(&self) -> &'static str {
        "beats"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Node>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(node) = view.get::<Node>("", &key.name) else { return Plan::none() };
        let mut plan = Plan::none();
        if self.renewed.is_none_or(|last| now.since(last) >= RENEWAL) {
            self.renewed = Some(now);
            plan = plan.write(Write::Patch {
                resource: Lease::resource(),
                key: Key::new(LEASES, &key.name),
                uid: String::new(),
                sub: "",
                content_type: carrack_engine::ContentType::MergePatch,
                patch: json!({"spec": {"renewTime": now.rfc3339_micros()}}),
            });
        }
        let said = node.annotation(HEARTBEAT_ANNOTATION).and_then(Time::parse);
        if said.is_none_or(|last| now.since(last) >= HEARTBEAT) {
            let beat = json!({"metadata": {"annotations": {HEARTBEAT_ANNOTATION: now.rfc3339()}}});
            plan = plan.patch(node.as_ref(), beat);
        }
        plan.requeue_after(RENEWAL)
    }
}

/// Runs pods.
struct Kubelet(Room);

fn volumes(pod: &Pod) -> impl Iterator<Item = (&PodVolume, &str)> {
    let all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    all.filter_map(|volume| Some((volume, volume.persistent_volume_claim.as_ref()?.claim_name.as_str())))
}

fn disk(volume: &PersistentVolume) -> Disk {
    let data = volume.annotation(DATA).unwrap_or_default();
    Disk { volume: volume.name().to_owned(), data: data.to_owned(), written: None }
}

/// What a pod's process is to do; nothing as long as a volume of it is not there.
fn work(pod: &Pod, view: &View<'_>) -> Option<Work> {
    let mut disks = BTreeMap::new();
    for (volume, claim) in volumes(pod) {
        disks.insert(volume.name.clone(), disk(bound(view, pod.namespace(), claim)?));
    }
    let side = |side: &str| -> Vec<Disk> {
        (0..).map_while(|number| disks.get(&format!("{side}-{number}")).cloned()).collect()
    };
    match pod.label(COPYING_LABEL) {
        None => Some(Work::Launch),
        Some("receive") => {
            let args = pod.spec.as_ref()?.containers.first()?.args.as_ref()?;
            let uid = args.iter().skip_while(|arg| *arg != "--uid").nth(1)?;
            Some(Work::Receive(uid.clone(), side("target")))
        }
        Some(_) => Some(Work::Copy(side("source").into_iter().zip(side("target")).collect())),
    }
}

fn status(phase: &str, pod: &Pod, state: &Value, now: Time) -> Value {
    let runs = phase == "Running";
    let containers: Vec<Value> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| {
            json!({"name": container.name, "image": "sim", "imageID": "sim", "ready": runs, "started": runs, "restartCount": 0,
                "containerID": format!("sim://{}", pod.uid()), "state": state})
        })
        .collect();
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, Time::from);
    json!({"status": {"phase": phase, "startTime": started.rfc3339(), "containerStatuses": containers,
        "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "172.16.0.0", "hostIPs": [{"ip": "172.16.0.0"}]}})
}

impl Kubelet {
    fn ended(&self, pod: &Pod, end: &End, view: &View<'_>, now: Time) -> Plan {
        // What was written is on its volume before anybody is told.
        let mut plan = Plan::none();
        for written in self.0.written(pod.uid()) {
            let Some(volume) = view.get::<PersistentVolume>("", &written.volume) else { continue };
            let instant = written.written.map(|at| at.rfc3339_micros());
            if volume.annotation(DATA) != Some(&written.data) || volume.annotation(INSTANT) != instant.as_deref() {
                let annotations = json!({DATA: written.data, INSTANT: instant});
                plan = plan.patch(volume.as_ref(), json!({"metadata": {"annotations": annotations}}));
            }
        }
        if !plan.is_none() {
            return plan;
        }
        let (phase, code, why) = match end {
            End::Well => ("Succeeded", 0, ""),
            End::Badly(why) => ("Failed", 1, *why),
        };
        let at = now.rfc3339();
        let state = json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
            "message": why, "startedAt": at, "finishedAt": at}});
        plan.patch_status(pod, status(phase, pod, &state, now))
    }

    fn to_go(&self, pod: &Pod, now: Time) -> Plan {
        let grace_s = u64::try_from(pod.metadata.deletion_grace_period_seconds.unwrap_or(0)).unwrap_or(0);
        let asked = pod.metadata.deletion_timestamp.as_ref().map_or(now, Time::from) - Duration::from_secs(grace_s);
        let left = GRACE.saturating_sub(now.since(asked));
        if self.0.runs(pod.uid()) && pod.label(APP_LABEL) == Some(LAUNCHER) && !left.is_zero() {
            return Plan::none().requeue_after(left.min(LOOK));
        }
        self.0.kill(pod.uid());
        let options = DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
        Plan::none().delete_with(&Pod::resource(), pod, options)
    }
}

impl Controller for Kubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Pod>();
        watch_volumes(setup);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let pod = view.get::<Pod>(&key.namespace, &key.name);
        self.0.kill_others(&key.to_string(), pod.map_or("", |pod| pod.uid()));
        let Some(pod) = pod else { return Plan::none() };
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if !is_bound {
            let claims = volumes(pod).filter_map(|(_, claim)| view.get::<PersistentVolumeClaim>(&key.namespace, claim));
            let claims: Vec<_> = claims.collect();
            if pod.is_deleting() || claims.iter().any(|claim| claim.is_deleting()) || work(pod, view).is_none() {
                return Plan::none();
            }
            let target = json!({"apiVersion": "v1", "kind": "Node", "name": config().name(0)});
            let body = json!({"apiVersion": "v1", "kind": "Binding", "target": target,
                "metadata": {"namespace": key.namespace, "name": key.name, "uid": pod.uid()}});
            let (resource, key) = (Pod::resource(), key.clone());
            // It is the scheduler and the kubelet in one: this one looks at the claims themselves once the pod is bound, and does
            // not start it with one that is going.
            let plan = Plan::none().write(Write::Post { resource, key, sub: "binding", body });
            return claims.iter().fold(plan, |plan, claim| plan.resting_on(&Premise::unchanged(claim.as_ref())));
        }
        if pod.is_deleting() {
            return self.to_go(pod, now);
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Plan::none();
        }
        if let Some(end) = self.0.end_of(pod.uid()) {
            return self.ended(pod, &end, view, now);
        }
        if !self.0.runs(pod.uid()) {
            let Some(work) = work(pod, view) else { return Plan::none() };
            self.0.start(pod.uid(), &key.to_string(), work);
        }
        if phase == "Running" {
            return Plan::none().requeue_after(LOOK);
        }
        let state = json!({"running": {"startedAt": now.rfc3339()}});
        Plan::none().patch_status(pod.as_ref(), status("Running", pod, &state, now)).requeue_after(LOOK)
    }
}

/// Runs guests.
struct Handler(Room);

impl Handler {
    fn says(vmi: &VirtualMachineInstance, phase: &str, now: Time) -> Plan {
        let old = vmi.status.clone().unwrap_or_default();
        let mut entered: Vec<Value> = old.phase_transition_timestamps.iter().map(|entry| json!(entry)).collect();
        entered.push(json!({"phase": phase, "phaseTransitionTimestamp": now.rfc3339()}));
        let mut conditions: Vec<Value> = old.conditions.iter().map(|condition| json!(condition)).collect();
        conditions.retain(|condition| condition["type"] != "AgentConnected");
        if phase == phase::RUNNING && !vmi.name().starts_with(MUTE) {
            conditions.push(json!({"type": "AgentConnected", "status": "True", "lastTransitionTime": now.rfc3339()}));
        }
        let status = json!({"phase": phase, "phaseTransitionTimestamps": entered, "conditions": conditions});
        Plan::none().patch(vmi, json!({"status": status}))
    }

    fn boots(&self, vmi: &VirtualMachineInstance, view: &View<'_>) -> Option<bool> {
        let pod = view.cache::<Pod>().by_owner(vmi.uid()).find(|pod| !pod.is_deleting() && self.0.runs(pod.uid()))?;
        let mut disks = BTreeMap::new();
        for volume in &vmi.spec.volumes {
            let Some(claim) = Volume::claim_name(volume) else { continue };
            disks.insert(volume.name.clone(), disk(bound(view, vmi.namespace(), claim)?));
        }
        // What its firmware keeps is open like a disk.
        if let Some((volume, claim)) = volumes(pod).find(|(volume, _)| volume.name == STATE_VOLUME) {
            disks.insert(volume.name.clone(), disk(bound(view, vmi.namespace(), claim)?));
        }
        let is_up = self.0.boot(vmi.uid(), &Key::of(vmi).to_string(), pod.uid(), disks);
        if is_up && vmi.name().starts_with(BRIEF) {
            self.0.ends_by_itself(pod.uid());
        }
        Some(is_up)
    }
}

impl Controller for Handler {
    fn name(&self) -> &'static str {
        "handler"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineInstance>();
        setup.watch_owned::<Pod, VirtualMachineInstance>();
        setup.read::<PersistentVolumeClaim>();
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(vmi) = view.get::<VirtualMachineInstance>(&key.namespace, &key.name) else { return Plan::none() };
        if !matches!(vmi.phase(), phase::SCHEDULED | phase::RUNNING) {
            return Plan::none();
        }
        let up = self.0.is_up(vmi.uid());
        if vmi.is_deleting() || up == Some(false) {
            let fails = up == Some(false) && !vmi.is_deleting();
            self.0.shut(vmi.uid());
            return Self::says(vmi, if fails { phase::FAILED } else { phase::SUCCEEDED }, now);
        }
        match (up, vmi.phase()) {
            (Some(true), phase::RUNNING) => {
                let said = vmi.status.as_ref().map_or("", |status| status.fs_freeze_status.as_str());
                let is = if self.0.is_frozen(vmi.uid()) { "frozen" } else { "" };
                let plan = if said == is {
                    Plan::none()
                } else {
                    let is = if is.is_empty() { Value::Null } else { is.into() };
                    Plan::none().patch(vmi.as_ref(), json!({"status": {"fsFreezeStatus": is}}))
                };
                plan.requeue_after(LOOK * 2)
            }
            (Some(true), _) => Self::says(vmi, phase::RUNNING, now),
            // A guest that was handed over and is not there has been lost.
            (_, phase::RUNNING) => Self::says(vmi, phase::FAILED, now),
            // Its pod was taken away before there was a guest.
            _ if view.cache::<Pod>().by_owner(vmi.uid()).next().is_none() => Self::says(vmi, phase::FAILED, now),
            _ => match self.boots(vmi, view) {
                Some(true) => Self::says(vmi, phase::RUNNING, now),
                _ => Plan::none().requeue_after(LOOK),
            },
        }
    }
}
