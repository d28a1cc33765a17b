//! One attempt to find a node for a pod.

use std::sync::Arc;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, ContentType, Effects, EventRecord, Rng, Time};
use carrack_types::resource::{Kind as _, Object as _};
use serde_json::{Value, json};

use super::told::Words;
use super::{Ask, Call, Planted, Scheduler, path_of};
use crate::decide::Laps;
use crate::metrics::{Point, Status};
use crate::queue::{Place, Row};
use crate::text::for_event;
use crate::{Decider, Ended, Event, FitError, Found, NodeId, Plugin, PluginSet, Pod, PodInfo, Question};

impl Scheduler {
    pub(super) fn attempt(&mut self, now: Time, row: Row, fx: &mut Effects<Ask>) {
        if row.asks {
            return self.begin_asking(now, row, fx);
        }
        match self.look(&row, false) {
            Found::Node(node, plan) => self.reserve(now, row, node, plan, fx),
            Found::List(..) => self.queue.retry(&row.pod.uid, now),
            Found::Nobody(error) => self.nobody(now, row, *error, fx),
        }
    }

    /// Asks the plugins.
    pub(super) fn look(&mut self, row: &Row, list: bool) -> Found {
        let preferred: Option<NodeId> = row.nominated.as_deref().and_then(|name| self.decider.cluster.find(name));
        let begun = (self.decider.laps.stopwatch)();
        self.decider.probe.begin(&row.profile.scheduler_name);
        let found = self.with_question(row, |decider, question, rng| decider.find(question, preferred, list, rng));
        self.decider.probe.end();
        let Laps { stopwatch, filter, score } = self.decider.laps;
        let (profile, metrics) = (row.profile.scheduler_name.as_str(), &mut self.metrics);
        metrics.algorithm(stopwatch().saturating_sub(begun));
        let status = if matches!(found, Found::Nobody(_)) { Status::Unschedulable } else { Status::Success };
        metrics.point(Point::Filter, profile, status, filter);
        if status == Status::Success {
            metrics.point(Point::Score, profile, status, score);
        }
        found
    }

    /// Asks the decider about a pod, with the pod's own nomination out of its way.
    pub(super) fn with_question<T>(
        &mut self,
        row: &Row,
        ask: impl FnOnce(&mut Decider, Question<'_>, &mut Rng) -> T,
    ) -> T {
        let own = row.nominated.clone();
        if own.is_some() {
            self.queue.nominate(&row.pod.uid, None);
        }
        self.touch_renominated();
        let (queue, planted) = (&self.queue, self.planted.as_ref());
        let nominated = |node: &str| {
            let mut pods: Vec<Arc<PodInfo>> = queue.nominated_to(node).cloned().collect();
            pods.extend(planted.into_iter().flat_map(|p| p.on(node)));
            pods
        };
        let question = Question { pod: &row.pod, profile: &row.profile, nominated: &nominated };
        let answer = ask(&mut self.decider, question, &mut self.rng);
        if own.is_some() {
            self.queue.nominate(&row.pod.uid, own);
            self.touch_renominated();
        }
        answer
    }

    /// No node takes a pod.
    pub(super) fn nobody(&mut self, now: Time, row: Row, error: FitError, fx: &mut Effects<Ask>) {
        if !row.profile.preemption || error.nodes == 0 {
            return self.refused(now, &row, error, None, fx);
        }
        self.preempt(now, row, error, &super::ask::Refused::default(), fx);
    }

    /// The attempt ends: the pod waits for something to change, perhaps with a node being made free for it.
    pub(super) fn refused(
        &mut self,
        now: Time,
        row: &Row,
        error: FitError,
        nominated: Option<Arc<str>>,
        fx: &mut Effects<Ask>,
    ) {
        // The node that is being made free for it may have gone while somebody was asked about it.
        let is_gone = |name: &Arc<str>| self.decider.cluster.find_existing(name).is_none();
        let gone = nominated.as_ref().is_some_and(is_gone);
        let nominated = nominated.filter(|_| !gone);
        let message = error.to_string();
        let refused_by: PluginSet = error.refusals.keys().map(|refusal| refusal.plugin).collect();
        let refused_by = if refused_by.is_empty() { PluginSet::of(Plugin::NodeName) } else { refused_by };
        self.metrics.attempt(Ended::Unschedulable, &row.profile.scheduler_name, now.since(row.popped));
        let pod = self.latest(row);
        let told = EventRecord::warning(&*pod, "FailedScheduling", for_event(&message));
        self.record(now, &row.profile.scheduler_name, told, fx);
        self.tell(now, &pod, "Unschedulable", &message, nominated.as_deref(), fx);
        self.queue.unschedulable(&row.pod.uid, refused_by, now, &self.decider.cluster);
        self.renominate(now, &row.pod.uid, nominated);
        if gone {
            self.queue.hurry(&row.pod.uid, now);
        }
        self.touch_renominated();
    }

    /// Says to which node a pod is nominated. Where that was another one before, others may want the room there; itself
    /// has looked at it.
    pub(super) fn renominate(&mut self, now: Time, uid: &str, node: Option<Arc<str>>) {
        let kept = node.clone();
        let Some(before) = self.queue.nominate(uid, node).filter(|before| Some(before) != kept.as_ref()) else {
            return;
        };
        if let Some(pod) = self.queue.get(uid).map(|row| row.pod.clone()) {
            self.queue.happened_to_others(uid, Event::PodGone(pod, before), now, &self.decider.cluster);
        }
    }

    /// Something went wrong, other than that no node takes the pod: it is tried again.
    pub(super) fn failed(&mut self, now: Time, row: &Row, message: &str, fx: &mut Effects<Ask>) {
        self.metrics.attempt(Ended::Error, &row.profile.scheduler_name, now.since(row.popped));
        let pod = self.latest(row);
        let told = EventRecord::warning(&*pod, "FailedScheduling", for_event(message));
        self.record(now, &row.profile.scheduler_name, told, fx);
        // Whoever was reserved a node is nominated to none any more.
        let nominated = self.queue.get(&row.pod.uid).and_then(|row| row.nominated.clone());
        self.tell(now, &pod, "SchedulerError", message, nominated.as_deref(), fx);
        self.queue.retry(&row.pod.uid, now);
    }

    /// A pod as last heard of, while it is in the queue.
    fn latest(&self, row: &Row) -> Arc<Pod> {
        self.queue.get(&row.pod.uid).map_or_else(|| row.pod.pod.clone(), |row| row.pod.pod.clone())
    }

    /// Writes what a pod waits for into its status, if that is news. The write rests on the pod as it is known: one that is
    /// late comes to a pod that was bound meanwhile, and must not say of it that it has no node.
    fn tell(
        &mut self,
        now: Time,
        pod: &Pod,
        reason: &'static str,
        message: &str,
        nominated: Option<&str>,
        fx: &mut Effects<Ask>,
    ) {
        self.told.take_unsaid(pod.uid());
        let known = pod.unplaced.as_ref().is_some_and(|why| why.reason == reason && why.message == message);
        // What was written, and was not seen yet, counts too: it would stay when it is not so any more.
        let row = self.queue.get(pod.uid());
        let (attempts, is_written) = row.map_or((0, true), |row| (row.attempts, row.is_written(nominated)));
        if known && is_written {
            return;
        }
        let path = path_of(pod);
        if !self.told.is_news(&path, pod, [reason, message, nominated.unwrap_or_default()]) {
            return;
        }
        let words = Words {
            uid: pod.uid().into(),
            path,
            reason,
            message: message.to_owned(),
            attempts,
            rests_on: revision(pod).filter(|_| self.planted_bug != Some(Planted::LateWords)),
        };
        let mut patch = json!({"metadata": {"uid": pod.uid(), "resourceVersion": words.rests_on},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}});
        // Another reason is no transition (`UpdatePodCondition` in pkg/api/v1/pod).
        if pod.unplaced.is_none() {
            patch["status"]["conditions"][0]["lastTransitionTime"] = now.rfc3339().into();
        }
        if !is_written {
            patch["status"]["nominatedNodeName"] = nominated.map_or(Value::Null, Value::from);
            self.queue.wrote_nomination(pod.uid(), nominated);
        }
        let request = status_patch(pod, &patch);
        self.awaits(now, self.send(request, fx), Call::Condition(Box::new(words)));
    }

    /// What became of [`Self::tell`].
    pub(super) fn said(
        &mut self,
        now: Time,
        words: Words,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        let Some(error) = result.err().filter(|error| !error.is_not_found()) else { return };
        self.told.forget(&words.path);
        if !error.is_conflict() {
            tracing::warn!(pod = words.path, %error, "the pod's status could not be written");
            return;
        }
        self.say_again(now, words, fx);
    }

    /// Somebody else had written a pod when something was to be said of it. It is said of the pod as it is now, once that
    /// is known, if it is still what there is to say: the pod waits, and was not looked at since.
    pub(super) fn say_again(&mut self, now: Time, words: Words, fx: &mut Effects<Ask>) {
        let waits = |row: &&Row| row.attempts == words.attempts && !matches!(row.place, Place::InFlight { .. });
        let Some(row) = self.queue.get(&words.uid).filter(waits).filter(|_| self.led) else { return };
        let (pod, nominated) = (row.pod.pod.clone(), row.nominated.clone());
        if revision(&pod) == words.rests_on {
            return self.told.keep_unsaid(words);
        }
        self.tell(now, &pod, words.reason, &words.message, nominated.as_deref(), fx);
    }
}

/// The revision of a pod.
pub(super) fn revision(pod: &Pod) -> Option<String> {
    pod.meta().resource_version.clone().filter(|revision| !revision.is_empty())
}

pub(super) fn status_patch(pod: &Pod, patch: &Value) -> ApiRequest {
    let merge = ContentType::StrategicMergePatch;
    ApiRequest::patch(&Pod::resource(), pod.namespace(), pod.name(), "status", merge, patch)
}
