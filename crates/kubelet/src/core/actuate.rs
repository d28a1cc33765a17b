//! Brings about what a pod that runs is allocated: in its control group and in its containers.
//!
//! ```text
//!  a container outgrown that is to start again ─▶ written down ─▶ stopped, and started as any other
//!  what changes written down ─▶ the group read ─▶ memory in use is not taken ─▶ steps: the group grows, containers, it shrinks
//!                                   ▲                  │ told as an error                │ each noted as it is done
//!                                   └── tried again ◀──┴────────────────────────────────┘
//! ```
//!
//! What a container has is known from what it was made with, which it carries itself, and from what it was given since, which
//! is noted under its id. A kubelet that died between two steps begins again where these differ from what is allocated, or are
//! not sure: what was about to be given may have been, also where the wish was taken back since. Each step may be done twice.
//! Of a container that carries nothing nothing is known: it is given what it should have, and is not stopped for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use carrack_engine::{EventRecord, Time};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::worker::{PodRuntime, Worker};
use super::{Fx, KubeletCore, Owner, PodOp, is_absent};
use crate::allocation::{self, Change, Given, GroupLimits, Size, Step, held_back, resizable, steps};
use crate::effects::{Op, OpId, Outcome, Reply};
use crate::planted::Planted;
use crate::pods::plan::{current_sandbox, displaced, is_redefined, is_stopped_on_record};
use crate::pods::records::Records;
use crate::runtime::{ContainerRecord, ContainerState, PodCgroup, Uid};
use crate::spec::container;
use crate::spec::pod::{self, ContainerKind};
use crate::status::resize::{IN_PROGRESS, Progress};

/// How soon it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// What is being done about a pod's size.
#[derive(Clone, Debug)]
pub(super) struct Acting {
    op: OpId,
    doing: Doing,
    rest: VecDeque<Step>,
    /// What the group is to be.
    group: PodCgroup,
    /// The version of what is allocated that this brings about.
    rests_on: u64,
    began: Time,
}

#[derive(Clone, Debug)]
enum Doing {
    Read(Vec<Change>),
    Step(Step),
}

/// A container that runs, with what it has.
pub(super) struct Running<'a> {
    container: &'a Container,
    record: &'a ContainerRecord,
    has: Option<ResourceRequirements>,
    /// It was about to be given something else.
    is_unsure: bool,
}

impl Running<'_> {
    fn wants(&self) -> Size {
        Size::of(self.container.resources.as_ref())
    }

    /// Whether it was surely of another size than it is allocated.
    fn differs(&self) -> bool {
        self.has.as_ref().is_some_and(|has| Size::of(Some(has)) != self.wants())
    }

    /// Whether it may be of another size.
    fn may_differ(&self) -> bool {
        self.differs() || self.is_unsure
    }

    /// Whether it has to be started again for that.
    fn is_outgrown(&self) -> bool {
        self.differs() && Size::of(self.has.as_ref()).needs_restart(self.wants(), self.container)
    }
}

impl KubeletCore {
    /// What a container has, as far as that is known.
    fn has(&self, uid: &Uid, record: &ContainerRecord) -> Option<ResourceRequirements> {
        let given = self.resizes.actuated.get(uid).and_then(|a| a.containers.get(&record.name));
        if let Some(given) = given.filter(|given| given.id == record.id) {
            return Some(given.resources.clone());
        }
        let carried = record.size.made_with.as_ref().and_then(|text| serde_json::from_str(text).ok());
        // Another kubelet may have noted what it gave, and not to whom.
        carried.or_else(|| given.filter(|given| given.id.is_empty()).map(|given| given.resources.clone()))
    }

    /// The containers that run in the pod's sandbox, with what they have.
    pub(super) fn running_sizes<'a>(&self, uid: &Uid, pod: &'a Pod, runtime: &'a PodRuntime) -> Vec<Running<'a>> {
        let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
        let Some(sandbox) = current_sandbox(&sandboxes).filter(|s| s.ready) else { return Vec::new() };
        let here: Records<'_> = runtime.containers.iter().filter(|c| c.sandbox_id == sandbox.id).collect();
        let running = |c: &'a Container| {
            let record = here.newest(&c.name).filter(|r| r.state == ContainerState::Running)?;
            let is_unsure = self.resizes.actuated.get(uid).is_some_and(|a| a.unsure.contains(&record.id));
            Some(Running { container: c, record, has: self.has(uid, record), is_unsure })
        };
        resizable(pod).filter_map(running).collect()
    }

    /// What the running containers of a pod have, for its status.
    pub(super) fn actual_sizes(
        &self,
        uid: &Uid,
        pod: &Pod,
        runtime: &PodRuntime,
    ) -> BTreeMap<String, ResourceRequirements> {
        let Some(allocated) = self.resizes.allocated.get(uid) else { return BTreeMap::new() };
        let none = ResourceRequirements::default();
        let running = self.running_sizes(uid, pod, runtime);
        let actual = running.into_iter().map(|r| {
            let allocated = allocated.containers.get(&r.record.name).unwrap_or(&none);
            let told = r.record.size.actual.as_ref();
            (r.record.name.clone(), crate::status::resize::actual(allocated, r.has.as_ref(), told))
        });
        actual.collect()
    }

    /// A pod's own control group as it is to be.
    pub(super) fn group_of(&self, uid: &Uid, pod: &Pod) -> PodCgroup {
        let mut group = crate::spec::sandbox::cgroup(pod, &self.config);
        // A limit of the whole pod would throttle who has CPUs for himself.
        if self.cpus.holds(uid) {
            group.resources = crate::spec::resources::without_quota(group.resources);
        }
        group
    }

    /// A pod's sandbox was made, and its group with it.
    pub(super) fn group_made(&mut self, uid: &Uid, w: &mut Worker) {
        let Some(group) = w.resize.group_sent.take() else { return };
        let whole = pod::spec(&w.pod).resources.clone();
        let actuated = self.resizes.actuated.entry(uid.clone()).or_default();
        if actuated.group != Some(group) || actuated.pod != whole {
            (actuated.group, actuated.pod) = (Some(group), whole);
            self.resizes.actuated_file.touch();
        }
    }

    /// A container was made with a size. It carries that itself; this is for another kubelet.
    pub(super) fn size_given(&mut self, uid: &Uid, pod: &Pod, name: &str, id: &str, size: &ResourceRequirements) {
        if !resizable(pod).any(|c| c.name == name) {
            return;
        }
        let given = Given { id: id.to_owned(), resources: size.clone() };
        self.resizes.actuated.entry(uid.clone()).or_default().containers.insert(name.to_owned(), given);
        self.resizes.actuated_file.touch();
    }

    /// Finds the containers that have to be started again to have the size that they are allocated, or the image that their pod
    /// names by now, or since a probe says so, or since their sandbox has died under them. That is written down before any is
    /// stopped: who ends by his own policy as well is not taken for having done so.
    pub(super) fn find_restarts(&mut self, uid: &Uid, w: &mut Worker, runtime: &PodRuntime, running: &[Running<'_>]) {
        let outgrown: BTreeSet<String> =
            running.iter().filter(|r| r.is_outgrown()).map(|r| r.record.id.clone()).collect();
        let fails = |r: &Running<'_>| {
            let probed = w.probers.get(&r.record.id).is_some_and(|p| p.verdict().must_restart);
            probed && pod::restarts_after_a_probe(&w.pod, r.container)
        };
        let ends_with_it = |r: &&Running<'_>| {
            let may_end = !pod::starts_again_alone(&w.pod, ContainerKind::Regular, r.container);
            may_end && (is_redefined(r.container, r.record) || fails(r) || w.resize.inherited.contains(&r.record.id))
        };
        let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
        let containers: Vec<_> = runtime.containers.iter().collect();
        let outside = displaced(&sandboxes, &containers).into_iter().filter(|c| is_stopped_on_record(&w.pod, c));
        let here = running.iter().filter(ends_with_it).map(|r| &r.record.id);
        let is_lost = |c: &&ContainerRecord| w.stuck.lost().contains(&c.id) && is_stopped_on_record(&w.pod, c);
        let lost = runtime.containers.iter().filter(is_lost);
        let renewed: BTreeSet<String> = here.chain(outside.chain(lost).map(|c| &c.id)).cloned().collect();
        // One that was made and not started yet may never be.
        let begun = || runtime.containers.iter().filter(|c| c.state != ContainerState::Created);
        let all: Records<'_> = begun().collect();
        let over: BTreeMap<&str, &str> =
            begun().filter(|c| c.exit_code().is_some()).map(|c| (c.id.as_str(), c.name.as_str())).collect();
        let waits_to_start = |id: &String| {
            let name = over.get(id.as_str());
            name.is_some_and(|name| all.newest(name).is_some_and(|newest| newest.id == *id))
        };
        let mut restarting = w.resize.restarting.clone();
        // Who is being stopped starts again, also when its image has been changed back meanwhile.
        let is_stopping = |id: &String| w.killing.contains_key(id);
        restarting.retain(|id| is_stopping(id) || waits_to_start(id));
        let noted = renewed.iter().filter(|_| self.planted != Some(Planted::ProbesUnnoted));
        restarting.extend(outgrown.iter().chain(noted).cloned());
        if restarting != w.resize.restarting {
            let is_more = !restarting.is_subset(&w.resize.restarting);
            w.resize.restarting.clone_from(&restarting);
            self.resizes.actuated.entry(uid.clone()).or_default().restarting = restarting;
            if is_more {
                w.resize.stops_on = self.resizes.actuated_file.touch_urgently();
            } else {
                self.resizes.actuated_file.touch();
            }
        }
        let written_down = self.resizes.actuated_file.has(w.resize.stops_on) && self.is_allocated_on_disk(w);
        w.resize.is_outgrown = !outgrown.is_empty();
        (w.resize.outgrown, w.resize.renewed) = if written_down { (outgrown, renewed) } else { Default::default() };
    }

    /// Whether a container has to wait for its pod's group, which may be too small for it yet.
    pub(super) fn waits_for_group(&self, now: Time, uid: &Uid, w: &Worker) -> bool {
        if !self.is_allocated_on_disk(w) {
            return true;
        }
        // Where the group cannot be what it should be, the container goes on without.
        if w.resize.is_outgrown || w.resize.retry_at > now {
            return false;
        }
        let target = GroupLimits::from(&self.group_of(uid, &w.pod).resources);
        self.resizes.actuated.get(uid).and_then(|a| a.group) != Some(target)
    }

    /// Begins to bring about what lacks.
    pub(super) fn actuate(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        runtime: &PodRuntime,
        running: &[Running<'_>],
        fx: &mut Fx,
    ) {
        let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
        if !current_sandbox(&sandboxes).is_some_and(|s| s.ready) {
            return;
        }
        let (pod, group) = (w.pod.clone(), self.group_of(uid, &w.pod));
        let target = GroupLimits::from(&group.resources);
        let none = allocation::Actuated::default();
        let actuated = self.resizes.actuated.get(uid).unwrap_or(&none);
        let whole = pod::spec(&pod).resources.as_ref();
        let is_other = |has: &ResourceRequirements| Size::of(Some(has)) != Size::of(whole);
        let whole_differs = actuated.pod.as_ref().is_some_and(is_other);
        let differs = running.iter().any(Running::may_differ) || whole_differs;
        let group_lacks = actuated.group != Some(target);
        let lacking = running.iter().filter(|r| r.has.is_none() || r.may_differ());
        let changes: Vec<Change> = lacking.map(|r| self.change(uid, &pod, r)).collect();
        self.note_progress(now, uid, w, (differs, group_lacks), fx);
        if w.resize.acting.is_some() || w.resize.is_outgrown || !self.is_allocated_on_disk(w) {
            return;
        }
        if changes.is_empty() && !group_lacks && !whole_differs {
            return;
        }
        if w.resize.retry_at > now {
            self.wake_pod(w.resize.retry_at, uid);
            return;
        }
        if !self.is_written_down(uid, w, &changes) {
            return;
        }
        let containers = changes.iter().filter(|c| c.takes_memory()).map(|c| c.id.clone()).collect();
        let op = Op::ReadGroup { path: group.path.clone(), containers };
        let op = self.op(Owner::Pod(uid.clone(), PodOp::Resize), op, fx);
        let (doing, rest, rests_on) = (Doing::Read(changes), VecDeque::new(), w.resize.rests_on);
        w.resize.acting = Some(Acting { op, doing, rest, group, rests_on, began: now });
    }

    /// Whether it is on disk that these containers and their group are about to change; writes it if it is not.
    fn is_written_down(&mut self, uid: &Uid, w: &mut Worker, changes: &[Change]) -> bool {
        let actuated = self.resizes.actuated.entry(uid.clone()).or_default();
        let unsure: BTreeSet<String> = changes.iter().map(|c| c.id.clone()).collect();
        if actuated.unsure != unsure || actuated.group.is_some() {
            (actuated.unsure, actuated.group) = (unsure, None);
            w.resize.stops_on = self.resizes.actuated_file.touch_urgently();
        }
        self.resizes.actuated_file.has(w.resize.stops_on)
    }

    fn change(&self, uid: &Uid, pod: &Pod, r: &Running<'_>) -> Change {
        let own_cpus = self.cpus.own(uid, &r.record.name).is_some();
        Change {
            name: r.record.name.clone(),
            id: r.record.id.clone(),
            from: r.has.as_ref().filter(|_| !r.is_unsure).map(|has| Size::of(Some(has))),
            to: r.wants(),
            limits: container::limits(pod, r.container, self.host.memory_bytes, &self.config, own_cpus),
        }
    }

    /// Notes whether what is allocated is being brought about, and tells when it has been. A group alone that is another
    /// than it was belongs to that, and does not begin it: the node may have been configured otherwise.
    fn note_progress(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        (differs, group_lacks): (bool, bool),
        fx: &mut Fx,
    ) {
        if !std::mem::replace(&mut w.resize.was_looked_at, true) && w.resize.progress.is_none() {
            // An earlier life had begun it.
            w.resize.progress = told_progress(&w.pod);
        }
        if differs || group_lacks && w.resize.progress.is_some() {
            let generation = w.pod.metadata.generation;
            w.resize.progress.get_or_insert(Progress { generation, error: None });
            self.resizes.touched |= self.resizes.busy.insert(uid.clone());
            return;
        }
        self.resizes.touched |= self.resizes.busy.remove(uid);
        if let Some(done) = w.resize.progress.take_if(|_| w.resize.acting.is_none()) {
            let text = allocation::summary(&w.pod, done.generation.unwrap_or(0), "", "Pod resize completed");
            self.event(now, EventRecord::normal(w.pod.as_ref(), "ResizeCompleted", text), fx);
            tracing::info!(pod = %pod::pod_ref(&w.pod), "the pod has the size that it is allocated");
        }
    }

    /// A step of it ended.
    pub(super) fn resize_done(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        id: OpId,
        outcome: Outcome,
        fx: &mut Fx,
    ) {
        let Some(mut acting) = w.resize.acting.take_if(|acting| acting.op == id) else { return };
        // What was to be brought about is another by now: it is looked at anew.
        if acting.rests_on != w.resize.rests_on || w.stopping.is_some() {
            return;
        }
        match (&acting.doing, outcome) {
            (Doing::Read(changes), Ok(Reply::Group(read))) => {
                let target = GroupLimits::from(&acting.group.resources);
                if let Some(why) = held_back(&read, &target, changes) {
                    self.resize_failed(now, uid, w, &acting, why, fx);
                    return;
                }
                acting.rest = steps(read.limits.as_ref(), &target, changes.clone()).into();
            }
            (Doing::Step(Step::Container(change)), Ok(_)) => {
                let resources = resizable(&w.pod).find(|c| c.name == change.name).and_then(|c| c.resources.clone());
                let given = Given { id: change.id.clone(), resources: allocation::carried(resources.as_ref()) };
                let actuated = self.resizes.actuated.entry(uid.clone()).or_default();
                actuated.containers.insert(change.name.clone(), given);
                actuated.unsure.remove(&change.id);
                self.resizes.actuated_file.touch();
                // The runtime may tell what it has now.
                self.relist_soon(now);
            }
            (Doing::Step(Step::Group(_)), Ok(_)) => {}
            // It has ended meanwhile.
            (Doing::Step(Step::Container(_)), Err(e)) if is_absent(&e) => {}
            (Doing::Read(_), Ok(_)) => return,
            (_, Err(error)) => {
                self.resize_failed(now, uid, w, &acting, error.to_string(), fx);
                return;
            }
        }
        self.next_step(now, uid, w, acting, fx);
    }

    fn next_step(&mut self, now: Time, uid: &Uid, w: &mut Worker, mut acting: Acting, fx: &mut Fx) {
        let Some(step) = acting.rest.pop_front() else {
            let whole = pod::spec(&w.pod).resources.clone();
            let actuated = self.resizes.actuated.entry(uid.clone()).or_default();
            (actuated.group, actuated.pod) = (Some(GroupLimits::from(&acting.group.resources)), whole);
            actuated.unsure.clear();
            self.resizes.actuated_file.touch();
            self.count_resize(now, &acting, true);
            return;
        };
        let op = match &step {
            Step::Group(limits) => {
                Op::WriteGroups(vec![PodCgroup { path: acting.group.path.clone(), resources: (*limits).into() }])
            }
            Step::Container(change) => {
                Op::UpdateContainer { id: change.id.clone(), limits: Box::new(change.limits.clone()) }
            }
        };
        acting.op = self.op(Owner::Pod(uid.clone(), PodOp::Resize), op, fx);
        acting.doing = Doing::Step(step);
        w.resize.acting = Some(acting);
    }

    fn resize_failed(&mut self, now: Time, uid: &Uid, w: &mut Worker, acting: &Acting, why: String, fx: &mut Fx) {
        self.count_resize(now, acting, false);
        w.resize.retry_at = now + RETRY;
        self.wake_pod(w.resize.retry_at, uid);
        tracing::warn!(pod = %pod::pod_ref(&w.pod), why, "what the pod is allocated was not brought about");
        let Some(progress) = w.resize.progress.as_mut().filter(|p| p.error.as_ref() != Some(&why)) else { return };
        progress.error = Some(why.clone());
        let text = allocation::summary(&w.pod, progress.generation.unwrap_or(0), &why, "Pod resize error");
        self.event(now, EventRecord::warning(w.pod.as_ref(), "ResizeError", text), fx);
    }

    fn count_resize(&mut self, now: Time, acting: &Acting, good: bool) {
        // What only was looked at is no resize.
        if matches!(&acting.doing, Doing::Read(changes) if changes.is_empty()) && good {
            return;
        }
        let (count, took) = self.resizes.counts.took.entry(good).or_default();
        (*count, *took) = (*count + 1, *took + now.since(acting.began));
        self.resizes.touched = true;
    }
}

/// What the API was last told of a resize that is being brought about.
fn told_progress(pod: &Pod) -> Option<Progress> {
    let c = pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == IN_PROGRESS)?;
    let error = c.message.clone().filter(|_| c.reason.as_deref() == Some("Error"));
    Some(Progress { generation: c.observed_generation, error })
}
