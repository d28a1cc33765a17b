//! Handlers that only pretend: what the control plane sees of virt-handlers and guests, without either.
//!
//! One core plays the handlers of all hollow nodes. Each says that its node takes instances, keeps its Lease, says of every
//! instance that is handed over to it that its guest runs, and of those that are to go that it has ended.
//!
//! ```text
//!   instance Scheduled here ──start_after──▶ Running
//!                               │ deletionTimestamp
//!                               └──────────▶ Succeeded
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, ContentType, Core, Delta, Effects, Informer, Input, Key, Never, Rng,
    Selector, Time, TimerId,
};
use carrack_types::kubevirt::{VirtualMachineInstance, phase};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt::{HEARTBEAT_ANNOTATION, NODE_LEASE_NAMESPACE, SCHEDULABLE_LABEL};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{AGAIN, Config, MOST_OPEN, node};

/// How often a handler says that it is there (KubeVirt's 60 s).
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(60);
/// How often a Lease is renewed, and what it says of how long it holds: as handlers do.
const RENEW_PERIOD: Duration = Duration::from_secs(2);
const LEASE_DURATION: Duration = Duration::from_secs(10);

/// What handlers that pretend read of an instance.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Instance {
    metadata: ObjectMeta,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    node_name: String,
    phase_transition_timestamps: Vec<Value>,
    conditions: Vec<Value>,
}

carrack_types::json_here!(Instance);

impl Object for Instance {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What a call was for.
enum Call {
    /// A node's heartbeat.
    Beat(usize),
    /// A node's Lease.
    Renew(usize),
    /// An instance, and the revision that was acted on.
    Guest(Key, u64),
}

/// What a timer is for.
enum Alarm {
    Beat(usize),
    Renew(usize),
    Guest(Key),
}

/// The handlers of all hollow nodes.
pub struct HollowHandlers {
    config: Config,
    nodes: BTreeMap<String, usize>,
    instances: Informer<Instance>,
    calls: BTreeMap<CallId, Call>,
    alarms: BTreeMap<TimerId, Alarm>,
    /// Instances with a call or an alarm under way.
    busy: BTreeSet<Key>,
}

impl HollowHandlers {
    /// Handlers that have not started, for the nodes of this configuration.
    #[must_use]
    pub fn new(config: Config, rng: &Rng) -> Self {
        let resource = VirtualMachineInstance::resource();
        Self {
            nodes: (0..config.nodes).map(|n| (config.name(n), n)).collect(),
            instances: Informer::new(resource, Selector::all(), rng.fork("instances"))
                .trimmed_by(trim)
                .packed_beyond(MOST_OPEN),
            config,
            calls: BTreeMap::new(),
            alarms: BTreeMap::new(),
            busy: BTreeSet::new(),
        }
    }

    fn beat(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        let patch = json!({"metadata": {
            "labels": {SCHEDULABLE_LABEL: "true"}, "annotations": {HEARTBEAT_ANNOTATION: now.rfc3339()}}});
        let (name, merge) = (self.config.name(number), ContentType::MergePatch);
        let request = ApiRequest::patch(&Node::resource(), "", &name, "", merge, &patch);
        self.calls.insert(fx.api(request), Call::Beat(number));
    }

    fn renew(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        let request = node::renewal(NODE_LEASE_NAMESPACE, &self.config.name(number), now);
        self.calls.insert(fx.api(request), Call::Renew(number));
    }

    /// A node's Lease, in its first term.
    fn lease(&self, number: usize, now: Time) -> Lease {
        let mut lease = node::lease(NODE_LEASE_NAMESPACE, self.config.name(number), LEASE_DURATION, now);
        lease.spec.get_or_insert_default().lease_transitions = Some(1);
        lease
    }

    /// Does what is due for an instance, or waits for it.
    fn look_at(&mut self, now: Time, key: &Key, fx: &mut Effects<Never>) {
        let Some(instance) = self.instances.cache().get_key(key).cloned() else { return };
        if !self.nodes.contains_key(&instance.status.node_name) || self.busy.contains(key) {
            return;
        }
        let Some((due, phase)) = due(&instance, self.config.start_after) else { return };
        self.busy.insert(key.clone());
        if due > now {
            self.alarms.insert(fx.timer(due), Alarm::Guest(key.clone()));
            return;
        }
        let (resource, merge) = (VirtualMachineInstance::resource(), ContentType::MergePatch);
        let patch = entered(&instance, phase, now);
        let request = ApiRequest::patch(&resource, &key.namespace, &key.name, "", merge, &patch);
        self.calls.insert(fx.api(request), Call::Guest(key.clone(), instance.revision()));
    }

    fn answered(&mut self, now: Time, call: Call, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<Never>) {
        let error = result.as_ref().err();
        match call {
            // A node that is not there yet will be.
            Call::Beat(number) => {
                let wait = if error.is_some() { AGAIN } else { HEARTBEAT_PERIOD };
                self.alarms.insert(fx.timer(now + wait), Alarm::Beat(number));
            }
            Call::Renew(number) => match error {
                Some(error) if error.is_not_found() => {
                    let lease = self.lease(number, now);
                    self.calls.insert(fx.api(ApiRequest::create(&lease)), Call::Renew(number));
                }
                _ => _ = self.alarms.insert(fx.timer(now + RENEW_PERIOD), Alarm::Renew(number)),
            },
            Call::Guest(key, acted_on) => match error {
                // What the watch has not told yet it will tell; what it has told already was passed over.
                Some(error) if error.is_not_found() || error.is_conflict() => self.go_on(now, &key, acted_on, fx),
                Some(_) => _ = self.alarms.insert(fx.timer(now + AGAIN), Alarm::Guest(key)),
                None => self.go_on(now, &key, acted_on, fx),
            },
        }
    }

    fn go_on(&mut self, now: Time, key: &Key, acted_on: u64, fx: &mut Effects<Never>) {
        self.busy.remove(key);
        if self.instances.cache().get_key(key).is_some_and(|instance| instance.revision() != acted_on) {
            self.look_at(now, key, fx);
        }
    }
}

/// Leaves out what these handlers don't read.
fn trim(instance: &mut Instance) {
    let meta = std::mem::take(&mut instance.metadata);
    instance.metadata = ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        deletion_timestamp: meta.deletion_timestamp,
        ..ObjectMeta::default()
    };
}

/// The phase that a handler sees for an instance next, and when.
fn due(instance: &Instance, start_after: Duration) -> Option<(Time, &'static str)> {
    let Status { phase, phase_transition_timestamps, .. } = &instance.status;
    match (phase.as_str(), instance.is_deleting()) {
        (phase::SCHEDULED | phase::RUNNING, true) => Some((Time::default(), phase::SUCCEEDED)),
        (phase::SCHEDULED, false) if start_after.is_zero() => Some((Time::default(), phase::RUNNING)),
        (phase::SCHEDULED, false) => {
            let entered = phase_transition_timestamps.iter().find(|entry| entry["phase"] == phase::SCHEDULED);
            let since = entered.and_then(|entry| Time::parse(entry["phaseTransitionTimestamp"].as_str()?));
            Some((since.unwrap_or_default() + start_after, phase::RUNNING))
        }
        _ => None,
    }
}

/// The patch that says that an instance has entered a phase. It rests on its UID and resourceVersion.
fn entered(instance: &Instance, phase: &str, now: Time) -> Value {
    let mut timestamps = instance.status.phase_transition_timestamps.clone();
    timestamps.push(json!({"phase": phase, "phaseTransitionTimestamp": now.rfc3339()}));
    let mut status = json!({"phase": phase, "phaseTransitionTimestamps": timestamps});
    // A guest that runs is ready, which handlers say in the same write.
    if phase == phase::RUNNING {
        let mut conditions = instance.status.conditions.clone();
        conditions.retain(|condition| condition["type"] != "Ready");
        conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": now.rfc3339()}));
        status["conditions"] = conditions.into();
    }
    json!({
        "metadata": {"uid": instance.uid(), "resourceVersion": instance.metadata.resource_version},
        "status": status})
}

impl Core for HollowHandlers {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        if let Some(deltas) = self.instances.step(now, &input, fx) {
            for delta in deltas.iter().filter(|delta| !matches!(delta, Delta::Removed(_))) {
                self.look_at(now, &Key::of(delta.object().as_ref()), fx);
            }
            return;
        }
        match input {
            Input::Start => {
                self.instances.start(fx);
                for number in 0..self.config.nodes {
                    self.beat(now, number, fx);
                    self.renew(now, number, fx);
                }
            }
            Input::Api { id, result } => {
                if let Some(call) = self.calls.remove(&id) {
                    self.answered(now, call, &result, fx);
                }
            }
            Input::Timer(id) => match self.alarms.remove(&id) {
                Some(Alarm::Beat(number)) => self.beat(now, number, fx),
                Some(Alarm::Renew(number)) => self.renew(now, number, fx),
                Some(Alarm::Guest(key)) => {
                    self.busy.remove(&key);
                    self.look_at(now, &key, fx);
                }
                None => {}
            },
            Input::Watch { .. } => {}
            Input::Own(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which phase is due for an instance, and how many seconds after the epoch.
    fn check(instance: Value, expected: Option<(i64, &str)>) {
        let parsed: Instance = serde_json::from_value(instance.clone()).expect("an instance");
        let found = due(&parsed, Duration::from_secs(2));
        assert_eq!(found.map(|(at, phase)| (at.unix_s(), phase)), expected, "{instance}");
    }

    #[test]
    fn guests_start_and_end() {
        let since = json!([{"phase": "Scheduled", "phaseTransitionTimestamp": "1970-01-01T00:00:10Z"}]);
        let status = |phase: &str| json!({"phase": phase, "nodeName": "n", "phaseTransitionTimestamps": since});
        let going = json!({"deletionTimestamp": "1970-01-01T00:00:20Z"});
        check(json!({"status": status("Scheduling")}), None);
        check(json!({"status": status("Scheduled")}), Some((12, "Running")));
        check(json!({"status": status("Running")}), None);
        check(json!({"metadata": going, "status": status("Scheduling")}), None);
        check(json!({"metadata": going, "status": status("Scheduled")}), Some((0, "Succeeded")));
        check(json!({"metadata": going, "status": status("Running")}), Some((0, "Succeeded")));
        check(json!({"metadata": going, "status": status("Succeeded")}), None);
    }

    #[test]
    fn a_phase_is_added_to_those_before() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "status": {"phase": "Scheduled", "phaseTransitionTimestamps": [{"phase": "Scheduled"}]}}))
        .expect("an instance");
        let patch = entered(&instance, "Running", Time::from_unix_s(5));
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(patch["status"]["phase"], "Running");
        let phases: Vec<&Value> = patch["status"]["phaseTransitionTimestamps"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|t| &t["phase"])
            .collect();
        assert_eq!(phases, ["Scheduled", "Running"]);
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"}]);
        assert_eq!(patch["status"]["conditions"], ready);
        assert!(entered(&instance, "Succeeded", Time::from_unix_s(5))["status"]["conditions"].is_null());
    }
}
