//! The core: takes pods from the queue, chooses a node for each, and binds it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, ContentType, Core, Delta, Effects, EventRecord, EventRecorder, Informer,
    Input, LeaderElector, Never, Rng, Selector, Time, TimerId,
};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::{NodeCache, PodInfo, Profile, SchedulingQueue};

/// Name of the scheduler that pods get when they name none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// Time between tries to learn what became of a binding.
const CHECK_RETRY: Duration = Duration::from_secs(1);

enum Call {
    Bind {
        pod: Arc<Pod>,
        node: String,
    },
    /// A live read of a pod whose binding's outcome is unknown.
    CheckBinding {
        pod: Arc<Pod>,
        node: String,
    },
    Condition {
        pod: String,
    },
}

/// The scheduler.
pub struct Scheduler {
    name: String,
    profile: Profile,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    queue: SchedulingQueue,
    cache: NodeCache,
    calls: BTreeMap<CallId, Call>,
    /// Bindings whose outcome could not be read yet; each is asked about again when its timer fires.
    checks: BTreeMap<TimerId, (Arc<Pod>, String)>,
    recorder: EventRecorder,
    elector: Option<LeaderElector>,
    wake: Option<(TimerId, Time)>,
    rng: Rng,
}

impl Scheduler {
    /// A scheduler for pods that name it, with these plugins.
    #[must_use]
    pub fn new(name: &str, profile: Profile, rng: Rng) -> Self {
        Self {
            name: name.to_owned(),
            profile,
            pods: Informer::new(Pod::resource(), Selector::all(), rng.fork("pods")),
            nodes: Informer::new(Node::resource(), Selector::all(), rng.fork("nodes")),
            queue: SchedulingQueue::default(),
            cache: NodeCache::default(),
            calls: BTreeMap::new(),
            checks: BTreeMap::new(),
            recorder: EventRecorder::new("default-scheduler", rng.fork("events")),
            elector: None,
            wake: None,
            rng,
        }
    }
    /// Schedules only while this elector leads.
    #[must_use]
    pub fn with_elector(mut self, elector: LeaderElector) -> Self {
        self.elector = Some(elector);
        self
    }
    /// What it counts on the nodes, for the simulator's invariants.
    #[must_use]
    pub fn cache(&self) -> &NodeCache {
        &self.cache
    }
    /// What waits, for the simulator's invariants.
    #[must_use]
    pub fn queue(&self) -> &SchedulingQueue {
        &self.queue
    }

    fn mine(&self, pod: &Pod) -> bool {
        let spec = pod.spec.as_ref();
        let scheduler = spec.and_then(|s| s.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER_NAME);
        let gated = spec.and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
        scheduler == self.name && !gated && !pod.is_deleting() && !is_terminal(pod)
    }

    fn pod_changed(&mut self, now: Time, delta: &Delta<Pod>) {
        let (pod, gone) = match delta {
            Delta::Added(p) => (p, false),
            Delta::Updated(old, p) => {
                if old.uid() != p.uid() {
                    self.pod_gone(now, old.uid());
                }
                (p, false)
            }
            Delta::Removed(p) => (p, true),
        };
        let uid = pod.uid();
        let bound = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
        if gone {
            self.pod_gone(now, uid);
        } else if bound {
            self.queue.remove(uid);
            let ended = is_terminal(pod) && self.cache.node_of(uid).is_some();
            self.cache.set_pod(pod.clone());
            if ended {
                self.queue.cluster_changed(now);
            }
        } else if self.cache.is_assumed(uid) {
            // Its binding is on its way; what else changes about it is the kubelet's matter.
        } else if self.mine(pod) {
            self.queue.set(pod.clone(), now);
        } else {
            self.queue.remove(uid);
        }
    }

    fn pod_gone(&mut self, now: Time, uid: &str) {
        self.queue.remove(uid);
        if self.cache.remove_pod(uid) {
            self.queue.cluster_changed(now);
        }
    }

    fn node_changed(&mut self, now: Time, delta: &Delta<Node>) {
        match delta {
            Delta::Added(node) => self.cache.set_node(node.clone()),
            Delta::Updated(old, node) => {
                self.cache.set_node(node.clone());
                // A heartbeat helps nobody.
                let allocatable = |n: &Node| n.status.as_ref().and_then(|s| s.allocatable.clone());
                if old.spec == node.spec
                    && old.metadata.labels == node.metadata.labels
                    && allocatable(old) == allocatable(node)
                {
                    return;
                }
            }
            Delta::Removed(node) => return self.cache.remove_node(node.name()),
        }
        self.queue.cluster_changed(now);
    }

    fn schedule(&mut self, now: Time, fx: &mut Effects<Never>) {
        if !self.pods.synced() || !self.nodes.synced() || self.elector.as_ref().is_some_and(|e| !e.leading(now)) {
            return;
        }
        while let Some(pod) = self.queue.pop(now) {
            let info = PodInfo::new(pod.clone());
            match self.choose(&info) {
                Ok(node) => {
                    self.cache.assume(info, &node);
                    let body = json!({"apiVersion": "v1", "kind": "Binding",
                        "metadata": {"namespace": pod.namespace(), "name": pod.name(), "uid": pod.uid()},
                        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
                    let id =
                        fx.api(ApiRequest::create_sub(&Pod::resource(), pod.namespace(), pod.name(), "binding", &body));
                    self.calls.insert(id, Call::Bind { pod, node });
                }
                Err(message) => self.refused(now, pod, message, fx),
            }
        }
        if let Some(due) = self.queue.next_due()
            && self.wake.is_none_or(|(_, at)| due < at || at <= now)
        {
            self.wake = Some((fx.timer(due), due));
        }
    }

    /// The best node for a pod, or why there is none.
    fn choose(&mut self, pod: &PodInfo) -> Result<String, String> {
        let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
        let mut best: Vec<&str> = Vec::new();
        let mut best_score = 0;
        let mut total = 0;
        for (name, node) in self.cache.nodes() {
            total += 1;
            if let Some(refusal) = self.profile.filters.iter().find_map(|f| f.filter(pod, node).err()) {
                for reason in refusal.reasons {
                    *refusals.entry(reason).or_default() += 1;
                }
                continue;
            }
            let score: u64 = self.profile.scores.iter().map(|s| s.score(pod, node).min(100) * s.weight()).sum();
            if best.is_empty() || score > best_score {
                best.clear();
                best_score = score;
            }
            if score == best_score {
                best.push(name);
            }
        }
        if total == 0 {
            return Err("no nodes available to schedule pods".into());
        }
        if best.is_empty() {
            let mut counts: Vec<String> = refusals.into_iter().map(|(reason, n)| format!("{n} {reason}")).collect();
            counts.sort();
            return Err(format!("0/{total} nodes are available: {}.", counts.join(", ")));
        }
        let chosen = self.rng.below(best.len() as u64) as usize;
        Ok(best[chosen].to_owned())
    }

    fn refused(&mut self, now: Time, pod: Arc<Pod>, message: String, fx: &mut Effects<Never>) {
        self.recorder.record(now, EventRecord::warning(pod.as_ref(), "FailedScheduling", message.clone()), fx);
        self.condition(now, &pod, &message, fx);
        self.queue.unschedulable(pod, now);
    }

    fn condition(&mut self, now: Time, pod: &Pod, message: &str, fx: &mut Effects<Never>) {
        let same = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "PodScheduled" && c.status == "False" && c.message.as_deref() == Some(message));
        if same {
            return;
        }
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": now.rfc3339()}]}});
        let id = fx.api(ApiRequest::patch(
            &Pod::resource(),
            pod.namespace(),
            pod.name(),
            "status",
            ContentType::StrategicMergePatch,
            &patch,
        ));
        self.calls.insert(id, Call::Condition { pod: format!("{}/{}", pod.namespace(), pod.name()) });
    }

    fn answered(&mut self, now: Time, call: Call, result: Result<ApiResponse, ApiError>, fx: &mut Effects<Never>) {
        match (call, result) {
            (Call::Bind { pod, node }, Ok(_)) => self.bound(now, &pod, &node, fx),
            (Call::Bind { pod, node }, Err(error)) if error.is_unknown() || error.is_conflict() => {
                // It may have taken effect, now or before: only the pod itself can tell.
                tracing::warn!(pod = pod.name(), namespace = pod.namespace(), node, %error, "a binding's outcome is unknown");
                self.check_binding(pod, node, fx);
            }
            (Call::Bind { pod, node }, Err(error)) => {
                if !error.is_not_found() {
                    let message = format!("binding to node {node} failed: {error}");
                    self.recorder.record(now, EventRecord::warning(pod.as_ref(), "FailedScheduling", message), fx);
                }
                self.forget(now, pod);
            }
            (Call::CheckBinding { pod, node }, Ok(reply)) => match reply.json::<Pod>() {
                Ok(live) if live.uid() != pod.uid() => self.forget(now, pod),
                Ok(live) => match live.spec.as_ref().and_then(|s| s.node_name.clone()) {
                    Some(there) if !there.is_empty() => {
                        self.cache.set_pod(Arc::new(live));
                        self.bound(now, &pod, &there, fx);
                    }
                    // The request may still be on its way, but it names this UID and a second binding
                    // is refused: trying again is safe.
                    _ => self.forget(now, Arc::new(live)),
                },
                Err(error) => {
                    tracing::warn!(pod = pod.name(), node, %error, "a pod could not be read");
                    self.forget(now, pod);
                }
            },
            (Call::CheckBinding { pod, .. }, Err(error)) if error.is_not_found() => self.forget(now, pod),
            (Call::CheckBinding { pod, node }, Err(_)) => {
                self.checks.insert(fx.timer(now + CHECK_RETRY), (pod, node));
            }
            (Call::Condition { pod }, Err(error)) if !error.is_not_found() => {
                tracing::warn!(pod, %error, "the pod's condition could not be written");
            }
            (Call::Condition { .. }, _) => {}
        }
    }

    fn check_binding(&mut self, pod: Arc<Pod>, node: String, fx: &mut Effects<Never>) {
        let id = fx.api(ApiRequest::get(&Pod::resource(), pod.namespace(), pod.name()));
        self.calls.insert(id, Call::CheckBinding { pod, node });
    }

    fn bound(&mut self, now: Time, pod: &Pod, node: &str, fx: &mut Effects<Never>) {
        self.queue.done(pod.uid());
        let message = format!("Successfully assigned {}/{} to {node}", pod.namespace(), pod.name());
        self.recorder.record(now, EventRecord::normal(pod, "Scheduled", message), fx);
    }

    /// Takes back an assumption and puts the pod back into the queue, unless it went meanwhile.
    fn forget(&mut self, now: Time, pod: Arc<Pod>) {
        if self.cache.is_assumed(pod.uid()) {
            self.cache.remove_pod(pod.uid());
            self.queue.cluster_changed(now);
        }
        self.queue.retry(pod, now);
    }
}

impl Core for Scheduler {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        if matches!(input, Input::Start) {
            self.pods.start(fx);
            self.nodes.start(fx);
            if let Some(elector) = &mut self.elector {
                elector.start(now, fx);
            }
        } else if let Some(deltas) = self.pods.step(now, &input, fx) {
            for delta in &deltas {
                self.pod_changed(now, delta);
            }
        } else if let Some(deltas) = self.nodes.step(now, &input, fx) {
            for delta in &deltas {
                self.node_changed(now, delta);
            }
        } else if let Input::Timer(id) = &input
            && let Some((pod, node)) = self.checks.remove(id)
        {
            self.check_binding(pod, node, fx);
        } else if !self.recorder.step(now, &input, fx)
            && !self.elector.as_mut().is_some_and(|e| e.step(now, &input, fx))
            && let Input::Api { id, result } = input
            && let Some(call) = self.calls.remove(&id)
        {
            self.answered(now, call, result, fx);
        }
        if self.elector.as_ref().is_some_and(|e| e.lost(now)) {
            fx.exit("scheduler: the leader lease was lost");
            return;
        }
        self.schedule(now, fx);
    }
}
