//! The Node object and its Lease: registered once, kept current, renewed.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, EventRecord, Time};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::{Users, VOLUME_USERS, users, users_text};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use super::staged::user_name;
use super::worker::Admission;
use super::{Call, Fx, KubeletCore, Wake};
use crate::planted::Planted;
use crate::status::node as status;

/// Labels that say what the machine is: they stay as this kubelet knows them.
const KEPT_LABELS: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];
/// How soon they are set right again: as often as upstream looks (`nodeStatusUpdateFrequency`).
const LABELS_AGAIN: Duration = Duration::from_secs(10);
/// How soon an API server that took a status and kept another one is told the same again: as often as upstream looks, too.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// The reason of events about device plugins that are refused.
const PLUGIN_REFUSED: &str = "DevicePluginRefused";
/// Most of them that are told of later, when there is no Node yet.
const MOST_REFUSED: usize = 16;

/// What this kubelet has said of its volumes in use and of who may have them, and what of it may still reach the API server.
///
/// A write rests on the revision that it was computed from, so it can land only while the Node is still at that
/// revision. Writes of an earlier life of this kubelet may still be under way until this life has written once.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// This life has written; nothing of an earlier one can land any more.
    heard: bool,
    /// The revision that is known, and the volumes and users that every write resting on it names.
    resting_on: u64,
    named: Option<BTreeSet<String>>,
}

impl Said {
    /// A write is sent that rests on a revision.
    fn sends(&mut self, revision: u64, names: &BTreeSet<String>) {
        if self.resting_on != revision {
            (self.resting_on, self.named) = (revision, None);
        }
        self.named = Some(match self.named.take() {
            Some(before) => before.intersection(names).cloned().collect(),
            None => names.clone(),
        });
    }

    /// The Node is known at a revision.
    fn sees(&mut self, revision: u64) {
        if self.resting_on != revision {
            (self.resting_on, self.named) = (revision, None);
        }
    }

    /// A volume or a user that the known revision names stays named, whatever is still under way.
    pub fn stands(&self, id: &str) -> bool {
        self.heard && self.named.as_ref().is_none_or(|names| names.contains(id))
    }
}

/// What the core keeps about its Node.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// Something that shows in the status changed.
    pub dirty: bool,
    registered: bool,
    register_call: Option<CallId>,
    labels_call: Option<CallId>,
    labels_done: bool,
    /// Not before this time are labels set right again that others have changed.
    labels_again_at: Time,
    status_call: Option<CallId>,
    retry_at: Time,
    /// How often in a row somebody else had written meanwhile.
    conflicts: u32,
    /// The status and the users of volumes that were written last.
    written: Option<(NodeStatus, Users)>,
    /// The API server took them and kept something else: until when it is not told the same again.
    unkept_until: Time,
    /// The Node as last seen in the watch or in a reply, whichever is newer.
    pub seen: Option<Arc<Node>>,
    pub said: Said,
    sent_at: Time,
    /// Conditions that events were told of, and how they were.
    told: BTreeMap<String, bool>,
    /// What is to be told of device plugins that were refused before there was a Node.
    refused: BTreeSet<String>,
    lease: Option<Lease>,
    lease_call: Option<CallId>,
}

impl KubeletCore {
    fn node_inputs<'a>(
        &'a self,
        now: Time,
        devices: &'a std::collections::BTreeMap<String, (usize, usize)>,
    ) -> status::Inputs<'a> {
        status::Inputs {
            now,
            host: &self.host,
            runtime: self.runtime_info.as_ref(),
            runtime_error: self.runtime_error.as_deref(),
            devices,
            images: &self.images,
            pressure: self.pressure(),
            goes_down: self.shutdown.is_under_way(),
            volumes_in_use: match self.planted {
                Some(Planted::MountsUntold) => Vec::new(),
                _ => self.volumes_in_use(),
            },
            config: &self.config,
        }
    }

    /// Creates the Node, or takes over the one that is there; unless that is somebody else's to do.
    pub(super) fn register(&mut self, now: Time, fx: &mut Fx) {
        if !self.config.register_node || self.node.registered || self.node.register_call.is_some() {
            return;
        }
        let devices = self.devices.capacity();
        let node = status::node(&self.node_inputs(now, &devices));
        let call = fx.api(ApiRequest::create(&node));
        self.calls.insert(call, Call::Register);
        self.node.register_call = Some(call);
    }

    pub(super) fn node_seen(&mut self) {
        self.resizes.due = true;
        let cached = self.nodes.cache().get("", &self.config.node_name).cloned();
        let newer = match (&self.node.seen, &cached) {
            (Some(seen), Some(new)) => new.revision() >= seen.revision() || new.uid() != seen.uid(),
            _ => true,
        };
        if newer {
            self.node.said.sees(cached.as_ref().map_or(0, |n| n.revision()));
            self.see_node(cached);
        }
        self.node.dirty = true;
        // Who waited for the Node to be read.
        self.dirty.extend(
            self.workers.iter().filter(|(_, w)| w.admission != Admission::Admitted).map(|(uid, _)| uid.clone()),
        );
    }

    /// The Node as a write of ours left it.
    pub(super) fn node_written(&mut self, node: Node) {
        if self.node.seen.as_ref().is_none_or(|s| node.revision() >= s.revision()) {
            self.node.said.sees(node.revision());
            self.see_node(Some(Arc::new(node)));
        }
    }

    fn see_node(&mut self, node: Option<Arc<Node>>) {
        if self.node.seen.is_none() {
            // Their volumes may wait for where this node is.
            self.dirty.extend(self.workers.keys().cloned());
        }
        if let Some(node) = &node {
            self.csi_node.is_of(node.uid());
        }
        self.sources.node.clone_from(&node);
        self.node.seen = node;
        self.staged_due = true;
    }

    /// Brings the Node's labels and status up to date.
    pub(super) fn node_tick(&mut self, now: Time, fx: &mut Fx) {
        self.node.dirty = false;
        if !self.loaded {
            return;
        }
        if now < self.node.retry_at {
            self.wake(self.node.retry_at, Wake::NodeTick);
            return;
        }
        // Who does not create the Node waits until it is there.
        let keeps = self.config.register_node;
        if keeps && !self.node.registered {
            self.register(now, fx);
            return;
        }
        let Some(node) = self.node.seen.clone() else { return };
        if keeps && !self.node.labels_done && self.node.labels_call.is_none() {
            let wanted = status::labels(&self.host, &self.config);
            let has = node.metadata.labels.clone().unwrap_or_default();
            let attach = self.config.controller_attach.then_some("true");
            if wanted.iter().all(|(k, v)| has.get(k) == Some(v)) && node.annotation(status::CONTROLLER_ATTACH) == attach
            {
                self.node.labels_done = true;
            } else {
                let annotations = json!({status::CONTROLLER_ATTACH: attach});
                self.patch_labels(&json!({"metadata": {"labels": wanted, "annotations": annotations}}), fx);
            }
        }
        if keeps && self.node.labels_done {
            self.keep_labels(now, &node, fx);
        }
        if self.node.status_call.is_some() {
            return;
        }
        let devices = self.devices.capacity();
        let old = node.status.clone().unwrap_or_else(NodeStatus::default);
        let new = status::node_status(&self.node_inputs(now, &devices), Some(&old));
        self.tell_node(now, &node, &old, &new, fx);
        let stale = now.since(self.node.sent_at) >= self.config.status_report_period;
        // In one write with the volumes in use: no revision has the one without the other.
        let has = self.volume_users();
        let is_told = users(node.annotation(VOLUME_USERS)).unwrap_or_default() == has;
        if !status::differs(&old, &new) && is_told && !stale {
            return;
        }
        let is_written =
            self.node.written.as_ref().is_some_and(|(told, of)| !status::differs(told, &new) && *of == has);
        if now < self.node.unkept_until && is_written {
            self.wake(self.node.unkept_until, Wake::NodeTick);
            return;
        }
        let by_user = has.iter().flat_map(|(id, users)| users.iter().map(|user| user_name(id, user)));
        let names = new.volumes_in_use.iter().flatten().cloned().chain(by_user).collect();
        self.node.said.sends(node.revision(), &names);
        let mut metadata = json!({"uid": node.uid(), "resourceVersion": node.metadata.resource_version});
        if !is_told {
            metadata["annotations"] = json!({VOLUME_USERS: users_text(&has)});
        }
        let patch = json!({"metadata": metadata, "status": new});
        let call = fx.api(ApiRequest::patch(
            &Node::resource(),
            "",
            &self.config.node_name,
            "status",
            ContentType::MergePatch,
            &patch,
        ));
        self.calls.insert(call, Call::NodeStatus);
        self.node.status_call = Some(call);
        self.node.written = Some((new, has));
    }

    /// What others make of the labels that say what the machine is, and by which pods choose it, does not last (upstream's
    /// `updateNode`, `pkg/kubelet/kubelet_node_status.go`). Its other labels are whoever's they are once it is registered.
    fn keep_labels(&mut self, now: Time, node: &Node, fx: &mut Fx) {
        let wanted = status::labels(&self.host, &self.config);
        let kept: BTreeMap<&str, &String> = KEPT_LABELS.iter().filter_map(|k| Some((*k, wanted.get(*k)?))).collect();
        let lacks = kept.iter().any(|(k, v)| node.label(k) != Some(v.as_str()));
        if !lacks || self.node.labels_call.is_some() {
            return;
        }
        if now < self.node.labels_again_at {
            self.wake(self.node.labels_again_at, Wake::NodeTick);
            return;
        }
        self.node.labels_again_at = now + LABELS_AGAIN;
        self.patch_labels(&json!({"metadata": {"labels": kept}}), fx);
    }

    fn patch_labels(&mut self, patch: &Value, fx: &mut Fx) {
        let call = fx.api(ApiRequest::patch(
            &Node::resource(),
            "",
            &self.config.node_name,
            "",
            ContentType::MergePatch,
            patch,
        ));
        self.calls.insert(call, Call::NodeLabels);
        self.node.labels_call = Some(call);
    }

    /// Events about the node: at the first look, and when a condition turns.
    fn tell_node(&mut self, now: Time, node: &Node, old: &NodeStatus, new: &NodeStatus, fx: &mut Fx) {
        let mut records = Vec::new();
        let normal = |reason: &str, message: String| EventRecord::normal(node, reason, message);
        if self.node.told.is_empty() {
            records.push(normal("Starting", "Starting kubelet.".into()));
            let boot = |s: &NodeStatus| s.node_info.as_ref().map(|i| i.boot_id.clone()).unwrap_or_default();
            let (before, id) = (boot(old), boot(new));
            if !before.is_empty() && before != id {
                let message = format!("Node {} has been rebooted, boot id: {id}", self.config.node_name);
                records.push(EventRecord::warning(node, "Rebooted", message));
            }
            let unread = self.unread_told().into_iter();
            records.extend(unread.map(|message| EventRecord::warning(node, "UnreadableRecord", message)));
        }
        let refused = std::mem::take(&mut self.node.refused).into_iter();
        records.extend(refused.map(|message| EventRecord::warning(node, PLUGIN_REFUSED, message)));
        for c in new.conditions.iter().flatten() {
            let holds = c.status == "True";
            let reason = match (c.type_.as_str(), holds) {
                ("MemoryPressure", true) => "NodeHasInsufficientMemory",
                ("MemoryPressure", false) => "NodeHasSufficientMemory",
                ("DiskPressure", true) => "NodeHasDiskPressure",
                ("DiskPressure", false) => "NodeHasNoDiskPressure",
                ("PIDPressure", true) => "NodeHasInsufficientPID",
                ("PIDPressure", false) => "NodeHasSufficientPID",
                ("Ready", true) => "NodeReady",
                ("Ready", false) => "NodeNotReady",
                _ => continue,
            };
            let before = self.node.told.insert(c.type_.clone(), holds);
            // That it is not ready yet at its start is no news.
            if before == Some(holds) || (before.is_none() && reason == "NodeNotReady") {
                continue;
            }
            records.push(normal(reason, format!("Node {} status is now: {reason}", self.config.node_name)));
        }
        for record in records {
            self.event(now, record, fx);
        }
    }

    /// A device plugin was refused, or some of its devices were: whoever looks at the Node is told why.
    pub(super) fn plugin_refused(&mut self, now: Time, resource: &str, why: &str, fx: &mut Fx) {
        let message = format!("Device plugin of {resource}: {why}");
        if let Some(node) = self.node.seen.clone() {
            self.event(now, EventRecord::warning(node.as_ref(), PLUGIN_REFUSED, message), fx);
        } else if self.node.refused.len() < MOST_REFUSED {
            self.node.refused.insert(message);
        }
    }

    /// The machine has run out of memory, and the kernel has ended a process (upstream's `SystemOOM`, `pkg/kubelet/oom`). Before the Node
    /// was seen there is nothing that an event could be about.
    pub(super) fn out_of_memory(&mut self, now: Time, process: &str, pid: u32, fx: &mut Fx) {
        tracing::warn!(process, pid, "the machine has run out of memory, and the kernel has ended a process");
        let Some(node) = self.node.seen.clone() else { return };
        let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        self.event(now, EventRecord::warning(node.as_ref(), "SystemOOM", message), fx);
    }

    /// Whether the Node is as it was written last: an older API server knows not all fields, and a webhook may change them.
    fn keeps_what_was_written(&self, node: &Node) -> bool {
        let has = users(node.annotation(VOLUME_USERS)).unwrap_or_default();
        let kept = node.status.as_ref().zip(self.node.written.as_ref());
        kept.is_some_and(|(now, (written, of))| !status::differs(now, written) && *of == has)
    }

    /// Renews the Lease, and sets the next time for it.
    pub(super) fn renew_lease(&mut self, now: Time, fx: &mut Fx) {
        self.wake(now + self.config.lease_period, Wake::Lease);
        self.renew_now(now, fx);
    }

    fn put_lease(&mut self, now: Time, fx: &mut Fx) -> CallId {
        let node_uid = self.node.seen.as_ref().map(|n| n.uid().to_owned());
        let lease = status::lease(now, &self.config, node_uid.as_deref(), self.node.lease.as_ref());
        if lease.metadata.resource_version.is_some() {
            fx.api(ApiRequest::update(&lease))
        } else {
            fx.api(ApiRequest::create(&lease))
        }
    }

    pub(super) fn node_answered(&mut self, now: Time, call: Call, result: Result<ApiResponse, ApiError>, fx: &mut Fx) {
        match call {
            Call::Register => {
                self.node.register_call = None;
                match result {
                    Ok(reply) => {
                        tracing::info!(node = self.config.node_name, "node registered");
                        self.node.registered = true;
                        self.node.labels_done = true;
                        self.node.sent_at = now;
                        self.node.said.heard = true;
                        // The reply may be late: what the watch told meanwhile is newer.
                        if let Ok(node) = reply.object::<Node>() {
                            self.node_written(node);
                        }
                        self.dirty.extend(self.workers.keys().cloned());
                    }
                    Err(e) if e.is_already_exists() => self.node.registered = true,
                    Err(error) => {
                        tracing::warn!(%error, "the node could not be registered; trying again");
                        self.node.retry_at = now + Duration::from_secs(1);
                    }
                }
                self.node.dirty = true;
            }
            Call::NodeLabels => {
                self.node.labels_call = None;
                match result {
                    Ok(reply) => {
                        self.node.labels_done = true;
                        // Else they would seem to lack until the watch shows them.
                        if let Ok(node) = reply.object::<Node>() {
                            self.node_written(node);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the node's labels were not taken");
                        self.node.retry_at = now + Duration::from_secs(1);
                        self.node.dirty = true;
                    }
                }
            }
            Call::NodeStatus => {
                self.node.status_call = None;
                match result.and_then(|r| r.object::<Node>()) {
                    Ok(node) => {
                        self.node.sent_at = now;
                        self.node.conflicts = 0;
                        // What changed meanwhile is still to be told.
                        self.node.dirty = true;
                        self.node.said.heard = true;
                        let kept = self.keeps_what_was_written(&node);
                        self.node.unkept_until = if kept { Time::default() } else { now + TELL_AGAIN };
                        self.node_written(node);
                    }
                    // The watch brings what others wrote, and this is computed anew. One that is late is not waited for by asking
                    // ten times a second.
                    Err(e) if e.is_conflict() => {
                        self.node.retry_at = now + Duration::from_millis(100 << self.node.conflicts.min(5));
                        self.node.conflicts += 1;
                        self.node.dirty = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the node's status was not taken");
                        self.node.retry_at = now + Duration::from_secs(1);
                        self.node.dirty = true;
                    }
                }
            }
            Call::LeaseGet => {
                self.node.lease_call = None;
                match result {
                    Ok(reply) => {
                        self.node.lease = reply.object::<Lease>().ok();
                        self.renew_now(now, fx);
                    }
                    Err(e) if e.is_not_found() => {
                        let call = self.put_lease(now, fx);
                        self.calls.insert(call, Call::LeasePut);
                        self.node.lease_call = Some(call);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the node's lease cannot be read");
                        self.renew_soon(now);
                    }
                }
            }
            Call::LeasePut => {
                self.node.lease_call = None;
                match result.and_then(|r| r.object::<Lease>()) {
                    Ok(lease) => self.node.lease = Some(lease),
                    Err(error) => {
                        tracing::warn!(%error, "the node's lease was not renewed");
                        // Somebody else wrote it, or it is not known what is there.
                        self.node.lease = None;
                        self.renew_soon(now);
                    }
                }
            }
            Call::Status(_) | Call::Delete(_) | Call::Mirror(_) | Call::CsiNode(_) | Call::Grown(..) => {}
        }
    }

    /// Renews in a second. One retry at a time: each period may fail, and must not start one of its own.
    fn renew_soon(&mut self, now: Time) {
        self.wakes.retain(|(_, wake)| *wake != Wake::LeaseNow);
        self.wake(now + Duration::from_secs(1), Wake::LeaseNow);
    }

    /// Renews without waiting for the next period.
    pub(super) fn renew_now(&mut self, now: Time, fx: &mut Fx) {
        if self.node.lease_call.is_some() {
            return;
        }
        let (call, what) = match &self.node.lease {
            None => (
                fx.api(ApiRequest::get(&Lease::resource(), status::LEASE_NAMESPACE, &self.config.node_name)),
                Call::LeaseGet,
            ),
            Some(_) => (self.put_lease(now, fx), Call::LeasePut),
        };
        self.calls.insert(call, what);
        self.node.lease_call = Some(call);
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::{Effects, Rng, StatusError};

    use super::*;
    use crate::config::NodeConfig;

    #[test]
    fn a_watch_that_is_late_is_not_waited_for_by_asking() {
        let mut core = KubeletCore::new(NodeConfig::default(), &Rng::new(1));
        let (now, mut fx) = (Time::from_unix_s(1000), Effects::new());
        let conflict = StatusError { code: 409, reason: "Conflict".into(), ..StatusError::default() };
        let conflict = || Err(ApiError::Status(Box::new(conflict.clone())));
        for expected_ms in [100, 200, 400, 800, 1600, 3200, 3200] {
            core.node_answered(now, Call::NodeStatus, conflict(), &mut fx);
            assert_eq!(core.node.retry_at, now + Duration::from_millis(expected_ms));
        }
        let body = serde_json::to_vec(&Node::default()).unwrap().into();
        core.node_answered(now, Call::NodeStatus, Ok(ApiResponse { status: 200, body }), &mut fx);
        core.node_answered(now, Call::NodeStatus, conflict(), &mut fx);
        assert_eq!(core.node.retry_at, now + Duration::from_millis(100));
    }
}
