//! Making room: victims are marked and deleted, and the pod is nominated to their node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, DeleteOptions, Effects, EventRecord, LeaderElector, Time};
use carrack_types::resource::{Kind as _, Object as _};
use serde_json::json;

use super::ask::Refused;
use super::attempt::{revision, status_patch};
use super::evictions::Next;
use super::{Ask, Call, Scheduler, path_of};
use crate::class::rank;
use crate::metrics::{Point, Status};
use crate::queue::Row;
use crate::text::unavailable;
use crate::{Cluster, FitError, Found, NodeInfo, Pod, PodInfo, Profile, Seat};

/// So many nodes are shown to extenders.
const MOST_PROPOSALS: usize = 100;

/// A node that could be made free.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub node: Arc<str>,
    pub victims: Vec<Arc<PodInfo>>,
    pub violations: usize,
    priority: i32,
}

impl Proposal {
    /// As extenders are shown it.
    pub fn named(&self) -> (Vec<&PodInfo>, usize) {
        (self.victims.iter().map(|p| &**p).collect(), self.violations)
    }
    /// Other victims, each once. False where one of them is not there, or too important.
    pub fn choose(&mut self, uids: &[String], cluster: &Cluster) -> bool {
        let Some((_, node)) = cluster.find_existing(&self.node) else { return false };
        let mut named = BTreeSet::new();
        let chosen: Option<Vec<_>> = uids
            .iter()
            .filter(|uid| named.insert(uid.as_str()))
            .map(|uid| node.pods.get(&**uid).map(|seat| seat.info.clone()).filter(|p| p.priority < self.priority))
            .collect();
        self.victims = chosen.unwrap_or_default();
        !self.victims.is_empty()
    }
    /// What it takes, as a number that is less where that is better.
    pub fn rank(&self, cluster: &Cluster) -> impl Ord + use<> {
        let seats: Vec<Seat> = self.victims.iter().filter_map(|p| cluster.pod(&p.uid).cloned()).collect();
        rank(&seats, self.violations)
    }
}

/// A pod that goes so that another can come.
#[derive(Clone, Debug)]
pub struct Victim {
    pod: Arc<PodInfo>,
    /// Who comes.
    for_pod: Arc<str>,
    /// Where to.
    node: Arc<str>,
    /// Since which term this scheduler had led when it was chosen.
    of_term: u64,
    /// With which others it was chosen (`Evictions`).
    of: u64,
    /// That of who comes.
    profile: Arc<Profile>,
}

/// The fourth incident's table of nominations beside the queue.
#[derive(Debug, Default)]
pub struct StoredNominations {
    by_uid: BTreeMap<Arc<str>, (Arc<PodInfo>, Arc<str>)>,
    updated: BTreeSet<Arc<str>>,
}

impl StoredNominations {
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_uid.iter().map(|(uid, (_, node))| (&**uid, &**node))
    }
    pub fn on(&self, node: &str) -> Vec<Arc<PodInfo>> {
        self.by_uid.values().filter(|(_, n)| **n == *node).map(|(pod, _)| pod.clone()).collect()
    }
    pub fn forget(&mut self, uid: &str) {
        self.by_uid.remove(uid);
        self.updated.remove(uid);
    }
    pub fn updated_in_flight(&mut self, uid: &str) {
        self.updated.insert(uid.into());
    }
    /// Whether an update of the pod arrived while it was in flight; told once.
    pub fn was_updated(&mut self, uid: &str) -> bool {
        self.updated.remove(uid)
    }
    fn store(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.by_uid.insert(pod.uid.clone(), (pod, node));
    }
}

impl Scheduler {
    pub(super) fn preempt(
        &mut self,
        now: Time,
        row: Row,
        mut error: FitError,
        refused: &Refused,
        fx: &mut Effects<Ask>,
    ) {
        self.metrics.preempts();
        if let Err(why) = self.may_preempt(&row) {
            error.preemption = format!("preemption: {why}");
            let keeps = row.nominated.clone();
            return self.refused(now, &row, error, keeps, fx);
        }
        let asks = self.must_ask_of_victims(&row) && self.planted.is_none();
        // Those that an extender has refused for good are none.
        let most = if asks { MOST_PROPOSALS } else { 1 } + refused.hopeless.len();
        let begun = (self.decider.laps.stopwatch)();
        let found = self.with_question(&row, |decider, question, _| decider.candidates(question, most));
        let took = (self.decider.laps.stopwatch)().saturating_sub(begun);
        let status = if found.is_ok() { Status::Success } else { Status::Unschedulable };
        self.metrics.point(Point::PostFilter, &row.profile.scheduler_name, status, took);
        let without_victims = if asks { self.without_victims(&row, refused) } else { Vec::new() };
        let candidates = match found {
            Ok(candidates) => candidates,
            Err(_) if !without_victims.is_empty() => Vec::new(),
            Err(_) if self.planted.is_some() => return self.nominate_as_in_1_14(now, row, error, fx),
            Err(reasons) => {
                error.preemption = format!("preemption: {}", unavailable(error.nodes, &reasons));
                return self.refused(now, &row, error, None, fx);
            }
        };
        let (cluster, heeds) = (&self.decider.cluster, self.planted.is_none());
        let proposals = candidates.into_iter().filter_map(|c| {
            let node = cluster.node(c.node)?.name.clone();
            let (victims, violations, priority) = (c.victims, c.violations, row.pod.priority);
            let is_refused = heeds && refused.hopeless.contains(&node);
            (!is_refused).then_some(Proposal { node, victims, violations, priority })
        });
        let mut proposals: Vec<Proposal> = proposals.chain(without_victims).collect();
        if proposals.is_empty() {
            return self.give_up_preempting(now, &row, error, "no extender accepts a node", fx);
        }
        if asks {
            return self.ask_victims(now, row, proposals, 0, Box::new(error), fx);
        }
        let best = proposals.swap_remove(0);
        self.evict(now, row, error, best, fx);
    }

    /// Nodes that an extender does not take as they are though the plugins do, where somebody less important is: it may
    /// say who of them has to go.
    fn without_victims(&mut self, row: &Row, refused: &Refused) -> Vec<Proposal> {
        if refused.full.is_empty() {
            return Vec::new();
        }
        let found = self.with_question(row, |decider, question, rng| decider.find(question, None, true, rng));
        let Found::List(fitting, _) = found else { return Vec::new() };
        let priority = row.pod.priority;
        let nodes = fitting.into_iter().filter_map(|id| self.decider.cluster.node(id));
        let nodes = nodes.filter(|node| refused.full.contains(&node.name));
        let nodes = nodes.filter(|node| node.pods.values().any(|seat| seat.info.priority < priority));
        let proposal =
            |node: &NodeInfo| Proposal { node: node.name.clone(), victims: Vec::new(), violations: 0, priority };
        nodes.take(MOST_PROPOSALS).map(proposal).collect()
    }

    /// The fourth incident: a node that the plugins alone accept is taken for one that can be made free, and the
    /// nomination is stored, whatever has become of the pod in the meantime.
    fn nominate_as_in_1_14(&mut self, now: Time, row: Row, error: FitError, fx: &mut Effects<Ask>) {
        let Found::List(nodes, _) = self.look(&row, true) else { return self.refused(now, &row, error, None, fx) };
        let name = nodes.first().and_then(|id| self.decider.cluster.node(*id)).map(|n| n.name.clone());
        if let (Some(planted), Some(name)) = (&mut self.planted, name) {
            planted.store(row.pod.clone(), name);
        }
        self.refused(now, &row, error, None, fx);
    }

    /// Whether a pod may have others deleted (plugins/defaultpreemption, `PodEligibleToPreemptOthers`).
    fn may_preempt(&mut self, row: &Row) -> Result<(), &'static str> {
        if row.pod.spec().preemption_policy.as_deref() == Some("Never") {
            return Err("not eligible due to preemptionPolicy=Never.");
        }
        let cluster = &self.decider.cluster;
        let nominated = row.nominated.as_deref().and_then(|name| cluster.find_existing(name));
        // Of a node that is not there any more nobody knows when its pods end.
        let Some((id, _)) = nominated else { return Ok(()) };
        // Who goes for another reason may take its time (`podTerminatingByPreemption`).
        let going = |p: &PodInfo| p.is_terminating() && p.pod.preempted || self.doomed.contains_key(&p.uid);
        let waits =
            |n: &NodeInfo| n.pods.values().any(|seat| seat.info.priority < row.pod.priority && going(&seat.info));
        // A node that refuses the pod by now whoever leaves it, or offers too little by now, is not waited for.
        let hopeless = |scheduler: &mut Self| {
            let refusal = scheduler.with_question(row, |decider, question, _| decider.refusal(question, id));
            refusal.is_some_and(|refusal| !refusal.resolvable)
        };
        let name = row.nominated.as_deref().unwrap_or_default();
        if self.decider.cluster.node(id).is_some_and(waits) && self.may_become_free(row, name) && !hopeless(self) {
            return Err("not eligible due to a terminating pod on the nominated node.");
        }
        Ok(())
    }

    pub(super) fn give_up_preempting(
        &mut self,
        now: Time,
        row: &Row,
        mut error: FitError,
        why: &str,
        fx: &mut Effects<Ask>,
    ) {
        error.preemption = format!("preemption: {why}.");
        self.refused(now, row, error, None, fx);
    }

    /// Deletes the victims and nominates the pod.
    pub(super) fn evict(&mut self, now: Time, row: Row, error: FitError, proposal: Proposal, fx: &mut Effects<Ask>) {
        let (count, mut goes, mut going) = (proposal.victims.len(), false, Vec::new());
        let (mut eviction, of_term) = (None, self.since);
        for pod in proposal.victims {
            if self.doomed.contains_key(&pod.uid) || pod.is_terminating() {
                continue;
            }
            goes = true;
            if self.gives_way(now, &pod.uid, fx) {
                self.tell_preempted(now, &row.profile, &pod, (&*row.pod.uid, &*proposal.node), fx);
                continue;
            }
            let of = *eviction.get_or_insert_with(|| self.evictions.begin(now));
            self.doomed.insert(pod.uid.clone(), of);
            let (for_pod, node, profile) = (row.pod.uid.clone(), proposal.node.clone(), row.profile.clone());
            going.push(Victim { pod, for_pod, node, of_term, of, profile });
        }
        if going.len() > 1
            && let Some(last) = going.pop()
        {
            self.evictions.keep_for_last(last.of, last);
        }
        for victim in going {
            self.evictions.add(victim.of);
            self.mark(now, victim, fx);
        }
        // Where all of them are going already, nobody goes for this pod.
        if goes {
            self.metrics.preempted(count);
        }
        if let Some(planted) = &mut self.planted {
            planted.store(row.pod.clone(), proposal.node.clone());
        }
        self.refused(now, &row, error, Some(proposal.node.clone()), fx);
        self.renounce_lower(now, &row, &proposal.node, fx);
    }

    /// Tells that a pod goes so that another can come to its node.
    fn tell_preempted(
        &mut self,
        now: Time,
        profile: &Profile,
        pod: &PodInfo,
        (for_pod, node): (&str, &str),
        fx: &mut Effects<Ask>,
    ) {
        let message = format!("Preempted by pod {for_pod} on node {node}");
        self.record(now, &profile.scheduler_name, EventRecord::normal(&*pod.pod, "Preempted", message), fx);
    }

    /// Says in a victim's status why it goes.
    fn mark(&mut self, now: Time, victim: Victim, fx: &mut Effects<Ask>) {
        self.tell_preempted(now, &victim.profile, &victim.pod, (&*victim.for_pod, &*victim.node), fx);
        let (pod, name) = (&victim.pod, &victim.profile.scheduler_name);
        let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{name}: preempting to accommodate a higher priority pod"),
            "lastTransitionTime": now.rfc3339()}]}});
        let call = self.send(status_patch(&pod.pod, &patch), fx);
        self.awaits(now, call, Call::Mark(Box::new(victim)));
    }

    /// Whether a victim is still to go: whoever leads has chosen it, all others go that have to, and somebody more
    /// important waits for its room. Who was to come may be gone by now, or have found another node.
    fn is_to_go(&self, now: Time, victim: &Victim) -> bool {
        let is_more_important = |pod: &Arc<PodInfo>| pod.priority > victim.pod.priority;
        self.leads(now)
            && victim.of_term == self.since
            && !self.evictions.has_failed(victim.of)
            && self.queue.nominated_to(&victim.node).any(is_more_important)
    }

    /// Less important pods look for another node than the one that is being made free for this one.
    fn renounce_lower(&mut self, now: Time, row: &Row, node: &str, fx: &mut Effects<Ask>) {
        let lower: Vec<Arc<PodInfo>> =
            self.queue.nominated_to(node).filter(|p| p.priority < row.pod.priority).cloned().collect();
        for pod in lower {
            self.renominate(now, &pod.uid, None);
            self.queue.hurry(&pod.uid, now);
            self.write_renounced(now, &pod.pod, fx);
        }
        self.touch_renominated();
    }

    /// Takes back what the status of a pod says of its nomination. That rests on the pod as it is known: one that comes after
    /// the next nomination was written must not take that back. Of a pod that somebody else wrote the next attempt says it.
    pub(super) fn write_renounced(&mut self, now: Time, pod: &Pod, fx: &mut Effects<Ask>) {
        let patch = json!({"metadata": {"uid": pod.uid(), "resourceVersion": revision(pod)},
            "status": {"nominatedNodeName": null}});
        self.queue.wrote_nomination(pod.uid(), None);
        let call = self.send(status_patch(pod, &patch), fx);
        self.awaits(now, call, Call::Renounce { pod: path_of(pod) });
    }

    /// Nobody makes a victim go any more, but for somebody who has decided so since. Whether it was to go till now.
    fn spared(&mut self, victim: &Victim) -> bool {
        let was_to_go = self.doomed.get(&victim.pod.uid) == Some(&victim.of);
        if was_to_go {
            self.doomed.remove(&victim.pod.uid);
        }
        was_to_go
    }

    /// A victim that was to go may stay. Who has counted on its room looks again.
    fn stays(&mut self, now: Time, victim: &Victim) {
        if self.spared(victim) && self.leads(now) {
            self.hurry_nominees(now, &victim.node);
        }
    }

    /// Those who wait for a node look again.
    fn hurry_nominees(&mut self, now: Time, node: &str) {
        let nominees: Vec<Arc<str>> = self.queue.nominated_to(node).map(|pod| pod.uid.clone()).collect();
        for uid in &nominees {
            self.queue.hurry(uid, now);
        }
        self.touch_renominated();
    }

    /// Nothing more is to be asked of the API about a victim.
    fn seen_off(&mut self, now: Time, victim: &Victim, success: bool, fx: &mut Effects<Ask>) {
        match self.evictions.over(now, victim.of, success) {
            Some(Next::Last(last)) if self.is_to_go(now, &last) => self.mark(now, *last, fx),
            Some(Next::Last(last)) => {
                self.stays(now, &last);
                self.seen_off(now, &last, false, fx);
            }
            Some(Next::Over(took, success, left)) => {
                if let Some(left) = left {
                    self.stays(now, &left);
                }
                self.metrics.evicted(success, took);
            }
            Some(Next::Others) | None => {}
        }
    }

    pub(super) fn marked(
        &mut self,
        now: Time,
        victim: Victim,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        match result {
            Err(error) if error.is_not_found() => {
                self.spared(&victim);
                self.seen_off(now, &victim, true, fx);
            }
            _ if !self.is_to_go(now, &victim) => {
                self.stays(now, &victim);
                self.seen_off(now, &victim, false, fx);
            }
            // The mark is for people; without it the pod goes all the same.
            _ => {
                let pod = &victim.pod;
                let options = DeleteOptions { uid: Some(pod.uid.to_string()), ..DeleteOptions::default() };
                let request = ApiRequest::delete(&Pod::resource(), pod.namespace(), pod.name(), &options);
                self.awaits(now, self.send(request, fx), Call::Evict(Box::new(victim)));
            }
        }
    }

    pub(super) fn evicted(
        &mut self,
        now: Time,
        victim: Victim,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Ask>,
    ) {
        let Err(error) = result else { return self.seen_off(now, &victim, true, fx) };
        self.spared(&victim);
        let over = |elector: &LeaderElector| matches!(&error, ApiError::Status(s) if elector.is_over_by(s));
        let is_late = self.elector.as_ref().is_some_and(over);
        // Another conflict says that the victim has gone, and somebody else has its name.
        let has_gone = error.is_not_found() || error.is_conflict() && !is_late;
        self.seen_off(now, &victim, has_gone, fx);
        if has_gone || !self.leads(now) {
            return;
        }
        tracing::warn!(pod = path_of(&victim.pod.pod), %error, "a victim could not be deleted");
        // The node may never become free: who is to come there looks again. Whoever has found another one since keeps that.
        let comes = self.queue.nominated_to(&victim.node).any(|pod| pod.uid == victim.for_pod);
        self.hurry_nominees(now, &victim.node);
        if comes {
            self.renominate(now, &victim.for_pod, None);
            self.touch_renominated();
        }
        if let Some(pod) = self.queue.get(&victim.for_pod).filter(|_| comes).map(|row| row.pod.pod.clone()) {
            self.write_renounced(now, &pod, fx);
        }
    }
}
