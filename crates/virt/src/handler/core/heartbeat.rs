//! The node's sign of life, and whether it takes instances.
//!
//! Every minute or so (KubeVirt's 60 s, up to a fifth more) the annotation `kubevirt.io/heartbeat` is written. The
//! label `kubevirt.io/schedulable` becomes true once guests can really run: the tools are in place, acceleration is
//! chosen, and every device that exists here is offered by the kubelet.
//!
//! The handler never takes the label back. It does not end with the process, nor with a kubelet that is away for a
//! moment: a restart of an agent is no reason to refuse or move anything. What is really gone shows elsewhere: a device
//! in the node's allocatable amounts, the kubelet in the node's readiness, a silent handler by the node controller,
//! which sets the label to false.
//!
//! The labels `cpumanager` and `kubevirt.io/cpumanager` say whether the kubelet gives whole CPUs to pods, as machines with
//! dedicated CPUs need it (upstream: `isCPUManagerEnabled` in pkg/virt-handler/heartbeat).
//!
//! A kubelet lists for ever what plugins have once offered it. So that nobody waits for what is gone for good, the
//! annotation `kubevirt.io/lost-devices` names the devices that this machine had once and has not any more.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiResponse, Rng, Time};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{
    CPU_MANAGER_LABELS, DEVICE_RESOURCES, FENCED_BY_ANNOTATION, HANDLER_PORT, HANDLER_PORT_ANNOTATION,
    HEARTBEAT_ANNOTATION, LOST_DEVICES_ANNOTATION, SCHEDULABLE_LABEL, WATCHDOG_ANNOTATION,
};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

const PERIOD: Duration = Duration::from_secs(60);
const JITTER_PERCENT: u32 = 20;
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the heartbeat.
pub(super) struct Heartbeat {
    rng: Rng,
    devices: BTreeMap<String, (bool, bool)>,
    /// When the next one is due.
    due: Option<Time>,
    /// After a failure, not before that.
    not_before: Option<Time>,
    writing: bool,
    /// The node as written; older states of it say nothing.
    barrier: u64,
    /// Everything has been listed once.
    pub all_seen: bool,
    /// The port of the console server.
    pub port: u16,
    /// Whether the kubelet gives whole CPUs away, once that is known.
    pub cpu_manager: Option<bool>,
}

impl Heartbeat {
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            devices: BTreeMap::new(),
            due: None,
            not_before: None,
            writing: false,
            barrier: 0,
            all_seen: false,
            port: HANDLER_PORT,
            cpu_manager: None,
        }
    }

    /// A device's state.
    pub fn device(&mut self, resource: String, present: bool, registered: bool) {
        self.devices.insert(resource, (present, registered));
    }

    /// Whether a device was looked for and was not there.
    pub fn is_missing(&self, resource: &str) -> bool {
        self.devices.get(resource).is_some_and(|(present, _)| !present)
    }

    /// Whether instances may come: every device is accounted for, and those that exist are on offer.
    fn offers_devices(&self, node: &Node) -> bool {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        DEVICE_RESOURCES.iter().all(|resource| match self.devices.get(*resource) {
            None => false,
            Some((false, _)) => true,
            Some((true, registered)) => {
                *registered && capacity.and_then(|c| c.get(*resource)).is_some_and(|amount| amount.0 != "0")
            }
        })
    }

    /// The devices that the kubelet lists and that are not here. Until all have been looked for, what was said before
    /// stands.
    fn lost(&self, node: &Node) -> Option<String> {
        if DEVICE_RESOURCES.iter().any(|resource| !self.devices.contains_key(*resource)) {
            return node.annotation(LOST_DEVICES_ANNOTATION).map(str::to_owned);
        }
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let is_lost = |resource: &&str| {
            capacity.is_some_and(|listed| listed.contains_key(*resource))
                && self.devices.get(*resource).is_some_and(|(present, _)| !present)
        };
        let lost: Vec<&str> = DEVICE_RESOURCES.into_iter().filter(is_lost).collect();
        (!lost.is_empty()).then(|| lost.join(","))
    }

    /// What to write to the node now, and when to look again.
    /// `watchdog` is how the machine's watchdog stands, where one was asked for.
    pub fn next(
        &mut self,
        now: Time,
        node: Option<&Node>,
        able: bool,
        watchdog: Option<&str>,
    ) -> (Option<Value>, Option<Time>) {
        let may = !self.writing && self.not_before.is_none_or(|at| at <= now);
        let Some(node) = node.filter(|node| may && node.revision() >= self.barrier) else {
            return (None, None);
        };
        let current = node.label(SCHEDULABLE_LABEL);
        let label = if able && self.offers_devices(node) { "true" } else { current.unwrap_or("false") };
        let lost = self.lost(node);
        // What is not known stays as it was said.
        let [first, second] = CPU_MANAGER_LABELS;
        let cpus = self.cpu_manager.map(|is_on| is_on.to_string());
        let cpus = cpus.as_deref().or_else(|| node.label(first));
        let said = current == Some(label)
            && CPU_MANAGER_LABELS.iter().all(|name| node.label(name) == cpus)
            && node.annotation(LOST_DEVICES_ANNOTATION) == lost.as_deref()
            && node.annotation(WATCHDOG_ANNOTATION) == watchdog;
        if said && self.due.is_some_and(|due| now < due) {
            return (None, None);
        }
        self.writing = true;
        let due = now + self.rng.jitter(PERIOD, JITTER_PERCENT);
        self.due = Some(due);
        // The usual port is nowhere written down, so that nodes look as upstream's.
        let port = (self.port != HANDLER_PORT).then(|| self.port.to_string());
        let patch = json!({"metadata": {
            "labels": {SCHEDULABLE_LABEL: label, first: cpus, second: cpus},
            "annotations": {HEARTBEAT_ANNOTATION: now.rfc3339(), HANDLER_PORT_ANNOTATION: port,
                FENCED_BY_ANNOTATION: null, LOST_DEVICES_ANNOTATION: lost, WATCHDOG_ANNOTATION: watchdog},
        }});
        (Some(patch), Some(due))
    }

    /// The write came back. A time to look again comes with a failure.
    pub fn answered(&mut self, now: Time, result: &Result<ApiResponse, ApiError>) -> Option<Time> {
        self.writing = false;
        match result.as_ref().map_err(Clone::clone).and_then(|reply| reply.object::<Node>()) {
            Ok(node) => {
                self.barrier = node.revision();
                self.not_before = None;
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the heartbeat was not written");
                self.due = Some(now + RETRY);
                self.not_before = self.due;
                self.due
            }
        }
    }
}
