//! Looking at a pod: is it to run, to stop, or to be left alone, and what lacks for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Time};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::hooks::{Hooks, hooks_start};
use super::sources::SourceView;
use super::worker::{Admission, Lane, PodRuntime, RecordMark, Stopping, Worker, in_order};
use super::{Fx, KubeletCore, Owner, PodOp, host_ips, is_absent};
use crate::effects::{Op, OpId, Outcome, Reply};
use crate::planted::Planted;
use crate::pods::plan::{self, Facts, Plan, Start, Verdict};
use crate::pods::rounds;
use crate::probes::Prober;
use crate::records::{POD_PREFIX, PodRecord};
use crate::runtime::{ContainerRecord, ContainerState, SandboxSpec, Uid};
use crate::spec::env::Place;
use crate::spec::image_name::ImageName;
use crate::spec::pod::{ContainerKind, RestartPolicy};
use crate::spec::{pod, sandbox};
use crate::status::node::{allocatable_amounts, pod_addresses};
use crate::status::pod::{Ended, statuses};
use crate::volumes::{NotReady, VolumeAction};

/// How long a pod's volumes have to be missing until that is told.
const MISSING_IS_TOLD: Duration = Duration::from_secs(2);

impl KubeletCore {
    /// Looks at every pod that something was observed about.
    pub(super) fn settle(&mut self, now: Time, fx: &mut Fx) {
        if !self.loaded {
            return;
        }
        // Looking at one may be news for another (a freed device): but never for itself in one step.
        for _ in 0..8 {
            if self.dirty.is_empty() {
                return;
            }
            let mut batch: Vec<(bool, Time, Uid)> = std::mem::take(&mut self.dirty)
                .into_iter()
                .filter_map(|uid| {
                    let w = self.workers.get(&uid)?;
                    // Who was here first goes first.
                    Some((!self.was_admitted(&uid, w), pod::created_at(&w.pod), uid))
                })
                .collect();
            batch.sort();
            self.resizes.due |= !batch.is_empty();
            for (_, _, uid) in batch {
                let Some(mut w) = self.workers.remove(&uid) else { continue };
                self.look(now, &uid, &mut w, fx);
                if w.gone {
                    self.groups.sweep_due = true;
                    self.resizes.forget(&uid);
                    self.statics.dirty |= pod::is_static(&w.pod);
                    self.sources.forget(&uid, fx);
                    self.volumes.forget(&uid);
                    self.staged_due = true;
                    self.publish = true;
                } else {
                    self.workers.insert(uid, w);
                }
            }
        }
    }

    /// It began here before: by the record, the runtime, the API's word, or the devices that it holds. Those are given to nobody
    /// who was not admitted, and are known also where the record was lost with the power.
    pub(super) fn was_admitted(&self, uid: &Uid, w: &Worker) -> bool {
        w.admission == Admission::Admitted
            || w.admitted_before
            || self.runtime.contains_key(uid)
            || self.devices.holds(uid)
            || !ran_before(&w.pod).is_empty()
    }

    fn look(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        // A pod known from the record alone: its wishes are unknown, so nothing is done to it. But that it is to go is never
        // taken back.
        if !w.confirmed && !w.pod.is_deleting() {
            return;
        }
        w.seen_at = w.seen_at.or(Some(now));
        let new_here = w.stopping.is_none() && w.admission == Admission::Undecided;
        if self.planted == Some(Planted::ForgottenDeletions) && new_here && w.pod.is_deleting() {
            return;
        }
        self.notice_stop(now, uid, w, fx);
        if w.stopping.is_none() {
            if w.admission != Admission::Admitted {
                self.admit(now, uid, w, fx);
            }
            if w.admission == Admission::Admitted {
                let recorded = self.recorded(now, uid, w, fx);
                self.run_pod(now, uid, w, recorded, fx);
                // It may just have ended.
                self.notice_stop(now, uid, w, fx);
            }
        }
        if w.stopping.is_some() {
            self.stop_pod(now, uid, w, fx);
        }
        // Nothing is said of a wish that has not been judged: that comes in a moment.
        let unjudged = self.note_wish(uid, w);
        if !w.gone && !unjudged {
            self.report(now, uid, w, fx);
        }
    }

    /// Whether the pod must stop, and by when.
    fn notice_stop(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        let deleting = w.pod.is_deleting();
        let mut because = None;
        if w.stopping.is_none() && w.admission == Admission::Admitted {
            because = overdue(now, w, uid, &mut |at, u| self.wake_pod(at, u));
        }
        let rejected = matches!(w.admission, Admission::Rejected(..));
        let must =
            w.deleted || deleting || pod::is_terminal(&w.pod) || w.end.is_some() || because.is_some() || rejected;
        if !must {
            return;
        }
        let grace = Duration::from_secs(u64::try_from(pod::grace_s(&w.pod)).unwrap_or(30));
        let deadline = now + grace;
        match &mut w.stopping {
            Some(s) => {
                // A deletion may be hurried, never slowed down.
                if deleting && deadline < s.deadline {
                    s.deadline = deadline;
                }
            }
            None => {
                tracing::debug!(pod = %pod::pod_ref(&w.pod), grace_s = grace.as_secs(), "the pod is to stop");
                if let Some(ended) = &because {
                    let (reason, message) = (ended.reason.clone(), ended.message.clone());
                    self.event(now, EventRecord::normal(w.pod.as_ref(), reason, message), fx);
                }
                w.stopping = Some(Stopping { deadline, since: OpId(fx.fresh()), because });
                self.relist(fx);
            }
        }
    }

    /// Whether the pod's record is on disk; writes it if it is not.
    pub(super) fn recorded(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) -> bool {
        let journal = self.volumes.journal_version(uid);
        let may_have_more = self.unread_pods.contains(uid);
        let mark = RecordMark { terminating: w.stopping.is_some(), deleted: w.deleted, journal, may_have_more };
        let saved = w.record_saved == Some(mark);
        // What a record rests on is on disk before it.
        if !saved && w.record_op.is_none() && self.is_allocated_on_disk(w) {
            if w.record_retry_at > now {
                self.wake_pod(w.record_retry_at, uid);
            } else {
                let record = PodRecord {
                    pod: (*w.pod).clone(),
                    admitted: true,
                    terminating: mark.terminating,
                    deleted: mark.deleted,
                    volumes: self.volumes.journal(&w.pod, &self.config).0,
                    may_have_more,
                    ended: w.stopping.as_ref().and_then(Stopping::record),
                };
                // Strings, numbers and lists: this cannot fail.
                let body = serde_json::to_vec(&record).unwrap_or_default();
                let op = Op::SaveRecord { name: format!("{POD_PREFIX}{uid}"), body };
                w.record_made = true;
                w.record_op = Some((self.op(Owner::Pod(uid.clone(), PodOp::Record), op, fx), mark));
            }
        }
        saved
    }

    /// The runtime's view of a pod, if it is new enough to act on.
    pub(super) fn fresh_runtime(&self, uid: &Uid, w: &Worker) -> Option<PodRuntime> {
        self.is_fresh(uid, w).then(|| self.runtime.get(uid).cloned().unwrap_or_default())
    }

    /// Whether what is known of the runtime shows every change that was made for this pod.
    pub(super) fn is_fresh(&self, uid: &Uid, w: &Worker) -> bool {
        self.listed_of(uid).is_some_and(|listed| listed >= w.fresh_after || w.shown == w.fresh_after)
    }

    pub(super) fn place(&self, pod_ips: Vec<String>) -> Place {
        let allocatable = allocatable_amounts(&self.host, &self.config);
        Place { node_name: self.config.node_name.clone(), host_ips: host_ips(self), pod_ips, allocatable }
    }

    /// `recorded` says that the pod's record is on disk. A sandbox does not wait for it, since the runtime remembers it;
    /// volumes and containers do.
    fn run_pod(&mut self, now: Time, uid: &Uid, w: &mut Worker, recorded: bool, fx: &mut Fx) {
        if recorded {
            self.want_volumes(now, uid, w, fx);
            self.advance_lanes(now, uid, w, fx);
        }
        let Some(mut runtime) = self.fresh_runtime(uid, w) else { return };
        if self.planted == Some(Planted::UnknownIsOver) && pod::restart_policy(&w.pod) == RestartPolicy::Always {
            runtime.ends_unknown(now);
        }
        self.end_sleeps(w, &runtime);
        self.tell_of_hooks(now, w, &runtime, fx);
        w.stuck.look(now, &w.killing, &runtime);
        self.probe(now, uid, w, &runtime, fx);
        // Nothing below changes what they have: that takes an operation, and its end.
        let pod = w.pod.clone();
        let running = self.running_sizes(uid, &pod, &runtime);
        self.find_restarts(uid, w, &runtime, &running);
        let verdicts = self.verdicts(w, &runtime);
        let ran = ran_before(&w.pod);
        let is_alone = self.planted == Some(Planted::RestartsAlone);
        let mut plan = with_facts(w, &runtime, &verdicts, &ran, |facts| {
            plan::run(&Facts { round: if is_alone { 0 } else { facts.round }, ..*facts })
        });
        if self.planted == Some(Planted::DebuggedAgain) {
            plan.start.extend(crate::planted::debug_again(&pod, &runtime.containers));
        }
        w.stuck.are_to_end(&plan.kill, &w.killing);
        w.end.clone_from(&plan.end);
        if w.end.is_some() {
            return;
        }
        let starts = self.carry_out(now, uid, w, &runtime, plan, fx);
        if recorded {
            self.start_containers(now, uid, w, &runtime, starts, fx);
            self.actuate(now, uid, w, &runtime, &running, fx);
        }
    }

    /// Does what is planned but for starts, which it returns once there is a sandbox for them.
    fn carry_out(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        runtime: &PodRuntime,
        plan: Plan,
        fx: &mut Fx,
    ) -> Vec<Start> {
        let grace = pod::own_grace(&w.pod);
        for kill in &plan.kill {
            let own = w.probers.get(&kill.id).and_then(crate::probes::Prober::grace_s);
            let grace = own.and_then(|s| u64::try_from(s).ok()).map_or(grace, Duration::from_secs);
            let grace = if kill.at_once { Duration::ZERO } else { grace };
            self.kill(now, uid, w, kill, now + grace, fx);
        }
        let stops = match self.planted {
            Some(Planted::HastySandboxes) => {
                let dead = runtime.sandboxes.iter().filter(|s| !s.ready && !w.stopped.contains(&s.id));
                dead.map(|s| s.id.clone()).collect()
            }
            _ => plan.stop_sandboxes,
        };
        for id in stops {
            if !w.busy.contains_key(&id) {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                self.event(now, EventRecord::normal(w.pod.as_ref(), "SandboxChanged", message), fx);
            }
            self.stop_sandbox(now, uid, w, id, fx);
        }
        for id in plan.remove {
            // A container that is being made is not a leftover.
            let name = runtime.containers.iter().find(|c| c.id == id).map(|c| c.name.as_str());
            if name.is_none_or(|n| !w.lanes.contains_key(n)) {
                self.remove(now, uid, w, id.clone(), Op::RemoveContainer(id), fx);
            }
        }
        for id in plan.remove_sandboxes {
            self.remove(now, uid, w, id.clone(), Op::RemoveSandbox(id), fx);
        }
        // Volumes are made ready meanwhile.
        if let Some(attempt) = plan.run_sandbox
            && self.is_allocated_on_disk(w)
            && w.sandbox_op.is_none()
            && w.busy.is_empty()
            && !self.is_swept(uid)
        {
            if w.sandbox_retry_at > now {
                self.wake_pod(w.sandbox_retry_at, uid);
            } else {
                let Some(handler) = self.runtime_handler(now, uid, w, fx) else { return Vec::new() };
                w.waiting.clear();
                self.tell_of_names(now, w, fx);
                let spec = self.sandbox_spec(uid, &w.pod, attempt);
                let spec = Arc::new(SandboxSpec { runtime_handler: handler, ..spec });
                w.resize.group_sent = Some((&spec.cgroup.resources).into());
                w.sandbox_op = Some(self.op(Owner::Pod(uid.clone(), PodOp::RunSandbox), Op::RunSandbox(spec), fx));
                self.find_images(uid, w, fx);
            }
        }
        if w.sandbox_op.is_some() {
            return Vec::new();
        }
        // The runtime has the sandbox: its description is made up again from that, in this life of the kubelet or a later one.
        if let Some(s) = plan::current_sandbox(&runtime.sandboxes.iter().collect::<Vec<_>>())
            && w.sandbox_spec.as_ref().is_none_or(|spec| spec.attempt != s.attempt)
        {
            let spec = self.sandbox_spec(uid, &w.pod, s.attempt);
            // The class may be another one by now, or gone: what runs has the handler that it was made with.
            let spec = SandboxSpec { runtime_handler: s.runtime_handler.clone(), ..spec };
            w.sandbox_spec = Some(Arc::new(spec));
        }
        plan.start
    }

    fn sandbox_spec(&self, uid: &Uid, pod: &Pod, attempt: u32) -> SandboxSpec {
        let spec = sandbox::sandbox(pod, attempt, &self.config, &self.host.resolver);
        SandboxSpec { cgroup: self.group_of(uid, pod), ..spec }
    }

    /// Begins to start containers, once their volumes are ready.
    fn start_containers(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        runtime: &PodRuntime,
        starts: Vec<Start>,
        fx: &mut Fx,
    ) {
        if let Err(missing) = self.volumes.ready(&w.pod) {
            self.tell_missing_volumes(now, uid, w, &missing, fx);
            if runtime.containers.is_empty() {
                self.end_without_room(now, uid, w, &missing, fx);
            }
            if let Some(at) = self.volumes.next_retry(uid) {
                self.wake_pod(at, uid);
            }
            return;
        }
        w.volumes_lack_since = None;
        // Who is still being started in an earlier round is killed first. Ephemeral containers take no part.
        let is_late = |lane: &Lane| {
            let takes_part = lane.start.kind != ContainerKind::Ephemeral;
            takes_part && starts.iter().any(|start| lane.start.round < start.round)
        };
        if w.sandbox_op.is_some() || w.lanes.values().any(is_late) {
            return;
        }
        let wanted: BTreeSet<String> = starts.iter().map(|s| s.name.clone()).collect();
        w.waiting.retain(|name, _| wanted.contains(name) || w.lanes.contains_key(name));
        let pod = w.pod.clone();
        let hooks = Hooks::of(&pod, runtime);
        let mut held = false;
        for start in starts {
            // Ephemeral containers are beside the others.
            let is_ordered = start.kind != ContainerKind::Ephemeral && self.planted != Some(Planted::HooksAside);
            if is_ordered && (held || hooks.hold(w, &start)) {
                continue;
            }
            let holds = hooks.has(&start.name);
            held |= !self.begin_lane(now, uid, w, runtime, start, fx) && holds;
        }
        // What was looked up is used at once or not at all: an image may go.
        w.found.clear();
    }

    /// Looks images up while the sandbox is made.
    fn find_images(&mut self, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        w.found.clear();
        let images: BTreeSet<String> = pod::all_containers(&w.pod)
            .into_iter()
            .filter(|(_, c)| c.image_pull_policy.as_deref() != Some("Always"))
            .filter_map(|(_, c)| c.image)
            .filter(|image| ImageName::parse(image).is_ok())
            .collect();
        for image in images {
            self.op(Owner::Pod(uid.clone(), PodOp::FoundImage(image.clone())), Op::FindImage(image), fx);
        }
    }

    /// The handler of the pod's RuntimeClass; none while it is being read, is not there, or cannot do what the pod demands, and
    /// where the pod cannot have the name that it demands.
    fn runtime_handler(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) -> Option<String> {
        let name = pod::spec(&w.pod).runtime_class_name.clone().filter(|n| !n.is_empty());
        let of_pod = pod::kernel_hostname(&w.pod, &self.config.cluster_domain).err();
        let unnamed = of_pod.filter(|_| pod::spec(&w.pod).host_network != Some(true));
        let problem = match name.map_or(Ok(Some(String::new())), |name| self.handler_of(now, uid, &name, fx)) {
            // Who asks to be apart from the node's users is not started among them: no runtime is told of others here.
            Ok(Some(_)) if pod::spec(&w.pod).host_users == Some(false) => {
                "this kubelet does not support user namespaces".to_owned()
            }
            Ok(Some(handler)) => match unnamed {
                Some(problem) => problem,
                None => return Some(handler),
            },
            Ok(None) => return None,
            Err(problem) => problem,
        };
        if now >= w.mount_said_at {
            w.mount_said_at = now + Duration::from_secs(30);
            let message = format!("Failed to create pod sandbox: {problem}");
            self.event(now, EventRecord::warning(w.pod.as_ref(), "FailedCreatePodSandBox", message), fx);
        }
        self.wake_pod(w.mount_said_at, uid);
        None
    }

    /// The handler of a RuntimeClass; none while it is being read.
    fn handler_of(&mut self, now: Time, uid: &Uid, name: &str, fx: &mut Fx) -> Result<Option<String>, String> {
        let view = SourceView::new(&self.sources, now, uid);
        let handler = view.runtime_handler(name);
        let (wanted, _) = view.finish();
        let again = self.sources.want(now, uid, wanted, fx);
        let problem = match handler {
            Ok(Some(handler)) => return Ok(Some(handler)),
            Err(NotReady::Pending) => return Ok(None),
            Ok(None) => format!("RuntimeClass \"{name}\" not found"),
            Err(NotReady::Failed(e)) => format!("RuntimeClass \"{name}\" cannot be read: {e}"),
        };
        if let Some(at) = again {
            self.wake_pod(at, uid);
        }
        Err(problem)
    }

    fn want_volumes(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        let pod_ips = self.pod_ips(uid, w);
        let place = self.place(pod_ips);
        let view = SourceView::new(&self.sources, now, uid);
        let mut actions = self.volumes.wanted(now, &w.pod, &self.config, &place, &view);
        let grown = self.volumes.grown(uid, &view);
        let (wanted, lacking) = view.finish();
        if self.planted == Some(Planted::UnreadIsUnwanted) && lacking {
            actions = self.volumes.unwanted(now, uid);
        }
        if let Some(at) = self.sources.want(now, uid, wanted, fx) {
            self.wake_pod(at, uid);
        }
        self.volume_actions(uid, actions, fx);
        if let Some(at) = self.volumes.next_republish(uid) {
            // What is due already waits for something that is being read. It is looked at once a second, however often its pod is
            // looked at for other reasons: each look would be followed by one of its own.
            let soonest = now + Duration::from_secs(1);
            if at < soonest && w.republish_look_at <= now {
                w.republish_look_at = soonest;
            }
            self.wake_pod(if at < soonest { w.republish_look_at } else { at }, uid);
        }
        self.start_growth(now, uid, grown, fx);
        // Volumes that were resolved just now are recorded before anything is done about them.
        self.recorded(now, uid, w, fx);
    }

    /// Begins what is to be done about a pod's volumes. What somebody else is busy with comes when that has ended
    /// ([`Self::volume_rests`]).
    pub(super) fn volume_actions(&mut self, uid: &Uid, actions: Vec<VolumeAction>, fx: &mut Fx) {
        for a in actions {
            if a.of_node().is_some_and(|id| self.volumes.is_busy(id)) {
                continue;
            }
            let (name, kind, op) = match a {
                VolumeAction::SetUp(s) => (s.name.clone(), Some(s.kind.clone()), Op::SetUpVolume(s)),
                VolumeAction::TearDown { name, path, published } => {
                    (name.clone(), None, Op::TearDownVolume { uid: uid.clone(), name, path, published })
                }
            };
            let owner = Owner::Pod(uid.clone(), PodOp::Volume(name.clone(), kind.clone()));
            let id = self.op(owner, op, fx);
            self.volumes.started(uid, &name, id, kind);
        }
    }

    /// Nothing is done any more about a pod's part of a volume of the node: others may have waited for that.
    pub(super) fn volume_rests(&mut self, id: &str) {
        self.staged_due = true;
        self.dirty.extend(self.volumes.users(id));
    }

    fn tell_missing_volumes(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        missing: &[(String, Option<String>)],
        fx: &mut Fx,
    ) {
        let errors: Vec<_> = missing.iter().filter_map(|(n, e)| Some((n, e.as_ref()?))).collect();
        if errors.is_empty() {
            return;
        }
        // A claim whose binding is told in two writes is complete in a moment.
        let at = *w.volumes_lack_since.get_or_insert(now) + MISSING_IS_TOLD;
        if now < at {
            self.wake_pod(at, uid);
            return;
        }
        if now < w.mount_said_at {
            return;
        }
        w.mount_said_at = now + Duration::from_secs(30);
        for (name, error) in errors {
            let message = format!("MountVolume.SetUp failed for volume \"{name}\" : {error}");
            // Whoever looks at the claim finds it too.
            if let Some(claim) = self.sources.claim_of(&w.pod, name) {
                let message = format!("pod {}/{}: {message}", w.pod.namespace(), w.pod.name());
                self.event(now, EventRecord::warning(claim.as_ref(), "FailedMount", message), fx);
            }
            self.event(now, EventRecord::warning(w.pod.as_ref(), "FailedMount", message), fx);
        }
    }

    /// The pod's addresses: of its sandbox, one of each family, or of the node that it shares.
    pub(super) fn pod_ips(&self, uid: &Uid, w: &Worker) -> Vec<String> {
        let sandboxes: Vec<_> = self.runtime.get(uid).iter().flat_map(|r| &r.sandboxes).collect();
        let Some(sandbox) = plan::current_sandbox(&sandboxes).filter(|s| s.ready) else { return Vec::new() };
        if pod::spec(&w.pod).host_network == Some(true) {
            return host_ips(self);
        }
        pod_addresses(&sandbox.ips, &self.host, &self.config)
    }

    #[expect(clippy::too_many_arguments, reason = "one place where outcomes meet their pods")]
    pub(super) fn pod_op_done(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        id: OpId,
        op: PodOp,
        outcome: Outcome,
        fx: &mut Fx,
    ) {
        match op {
            PodOp::Record => {
                if let Some((_, mark)) = w.record_op.take_if(|(op, _)| *op == id) {
                    match outcome {
                        Ok(_) => {
                            self.volumes.journal_saved(uid, mark.journal);
                            w.record_saved = Some(mark);
                            self.staged_due |= !self.unread_pods.is_empty();
                        }
                        Err(error) => {
                            tracing::error!(pod = %pod::pod_ref(&w.pod), %error, "the pod's record was not written");
                            w.record_retry_at = now + Duration::from_secs(1);
                        }
                    }
                }
            }
            PodOp::RunSandbox => self.sandbox_done(now, uid, w, outcome, fx),
            PodOp::FoundImage(image) => {
                if let Ok(Reply::Image(Some(found))) = outcome
                    && w.sandbox_op.is_some()
                {
                    w.found.insert(image, found);
                }
            }
            PodOp::StopSandbox(sandbox) => {
                w.busy.remove(&sandbox);
                match outcome {
                    Ok(_) => {
                        w.stopped.insert(sandbox);
                    }
                    Err(e) if is_absent(&e) => {
                        w.stopped.insert(sandbox);
                    }
                    Err(error) => {
                        let message = format!("error killing pod: failed to stop sandbox: {error}");
                        self.event(now, EventRecord::warning(w.pod.as_ref(), "FailedKillPod", message), fx);
                        let at = now + Duration::from_secs(2);
                        w.retry_at.insert(sandbox, at);
                        self.wake_pod(at, uid);
                    }
                }
                self.changed(w, fx);
            }
            PodOp::Remove(target) => {
                w.busy.remove(&target);
                match outcome {
                    Ok(_) => {}
                    Err(e) if is_absent(&e) => {}
                    Err(error) => {
                        tracing::warn!(pod = %pod::pod_ref(&w.pod), target, %error, "the runtime did not forget it");
                        let at = now + Duration::from_secs(2);
                        w.retry_at.insert(target, at);
                        self.wake_pod(at, uid);
                    }
                }
                self.changed(w, fx);
            }
            PodOp::Lane(name) => self.lane_done(now, uid, w, &name, id, outcome, fx),
            PodOp::Kill(container) => self.kill_done(now, uid, w, &container, id, outcome, fx),
            PodOp::Volume(name, kind) => {
                self.staged_due |= !self.unread_pods.is_empty();
                if let Some(of_node) = self.volumes.of_node(uid, &name).map(str::to_owned) {
                    self.volume_rests(&of_node);
                }
                if let Some(error) = self.volumes.done(now, uid, &name, id, &outcome) {
                    if kind.is_none() {
                        tracing::warn!(pod = %pod::pod_ref(&w.pod), volume = name, error, "unmounting failed");
                    }
                    if let Some(at) = self.volumes.next_retry(uid) {
                        self.wake_pod(at, uid);
                    }
                }
            }
            PodOp::Resize => self.resize_done(now, uid, w, id, outcome, fx),
            PodOp::Grow(expanding) => self.growth_done(now, uid, &w.pod.clone(), (id, &expanding), &outcome, fx),
            PodOp::Probe(container, kind) => self.probe_done(now, w, &container, kind, id, outcome, fx),
            PodOp::RemovePod => {
                w.remove_op = None;
                match outcome {
                    Ok(_) => {
                        w.removed = true;
                        // Nothing is mounted for it then, and the record that could not be read can go.
                        if self.unread_pods.remove(uid) {
                            w.record_made = true;
                            self.staged_due = true;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(pod = %pod::pod_ref(&w.pod), %error, "the pod's directories were not removed");
                        let at = now + Duration::from_secs(2);
                        w.retry_at.insert("remove-pod".into(), at);
                        self.wake_pod(at, uid);
                    }
                }
            }
            PodOp::DropRecord => {
                w.drop_op = None;
                match outcome {
                    Ok(_) => {
                        // Nothing is to be written again that was dropped.
                        w.record_saved = None;
                        w.record_made = false;
                        w.gone = true;
                    }
                    Err(error) => {
                        tracing::error!(pod = %pod::pod_ref(&w.pod), %error, "the pod's record was not dropped");
                        let at = now + Duration::from_secs(1);
                        w.retry_at.insert("drop-record".into(), at);
                        self.wake_pod(at, uid);
                    }
                }
            }
        }
    }

    /// The runtime was changed for this pod: nothing older than the next listing counts for it.
    pub(super) fn changed(&mut self, w: &mut Worker, fx: &mut Fx) {
        w.fresh_after = OpId(fx.fresh());
        self.relist(fx);
    }

    /// The runtime was changed for this pod, and came back with what it made: that is known as if it had been listed.
    pub(super) fn changed_to(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        fx: &mut Fx,
        take: impl FnOnce(&mut PodRuntime),
    ) {
        if !self.is_fresh(uid, w) {
            self.changed(w, fx);
            return;
        }
        w.fresh_after = OpId(fx.fresh());
        w.shown = w.fresh_after;
        w.counted = None;
        self.given.due = true;
        take(self.runtime.entry(uid.clone()).or_default());
        self.relist_soon(now);
    }

    fn sandbox_done(&mut self, now: Time, uid: &Uid, w: &mut Worker, outcome: Outcome, fx: &mut Fx) {
        w.sandbox_op = None;
        match outcome {
            Ok(Reply::Sandbox(made)) => {
                w.sandbox_failures = 0;
                self.group_made(uid, w);
                self.changed_to(now, uid, w, fx, |runtime| {
                    runtime.sandboxes.retain(|s| s.id != made.id);
                    runtime.sandboxes.push(*made);
                });
            }
            Ok(_) => {
                w.sandbox_failures = 0;
                self.group_made(uid, w);
                self.changed(w, fx);
            }
            Err(error) => {
                w.sandbox_failures += 1;
                let delay = Duration::from_secs(1 << w.sandbox_failures.min(6).saturating_sub(1));
                w.sandbox_retry_at = now + delay.min(Duration::from_secs(30));
                let message = format!("Failed to create pod sandbox: {error}");
                self.event(now, EventRecord::warning(w.pod.as_ref(), "FailedCreatePodSandBox", message), fx);
                self.changed(w, fx);
            }
        }
    }

    pub(super) fn stop_sandbox(&mut self, now: Time, uid: &Uid, w: &mut Worker, id: String, fx: &mut Fx) {
        self.busy_op(now, uid, w, &id, Op::StopSandbox(id.clone()), PodOp::StopSandbox(id.clone()), fx);
    }

    pub(super) fn remove(&mut self, now: Time, uid: &Uid, w: &mut Worker, id: String, op: Op, fx: &mut Fx) {
        self.busy_op(now, uid, w, &id, op, PodOp::Remove(id.clone()), fx);
    }

    #[expect(clippy::too_many_arguments, reason = "an operation and everything that it is for")]
    fn busy_op(&mut self, now: Time, uid: &Uid, w: &mut Worker, id: &str, op: Op, pod_op: PodOp, fx: &mut Fx) {
        if w.busy.contains_key(id) {
            return;
        }
        if let Some(at) = w.retry_at.get(id).filter(|at| **at > now) {
            self.wake_pod(*at, uid);
            return;
        }
        let op = self.op(Owner::Pod(uid.clone(), pod_op), op, fx);
        w.busy.insert(id.to_owned(), op);
    }

    /// Asks the probes that are due.
    pub(super) fn probe(&mut self, now: Time, uid: &Uid, w: &mut Worker, runtime: &PodRuntime, fx: &mut Fx) {
        let stops = w.stopping.is_some();
        let running: BTreeMap<&str, &str> = runtime
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Running)
            .map(|c| (c.id.as_str(), c.name.as_str()))
            .collect();
        w.probers.retain(|id, _| running.contains_key(id.as_str()));
        let pod_ip = self.pod_ips(uid, w).into_iter().next().unwrap_or_default();
        let pod = w.pod.clone();
        let probed = probed(&pod);
        let (mut next, mut errored): (Option<Time>, Vec<_>) = (None, Vec::new());
        for (id, name) in running {
            let Some(c) = probed.get(name).copied() else { continue };
            // Its postStart hook is not over.
            if w.lanes.contains_key(name) {
                continue;
            }
            let prober = w.probers.entry(id.to_owned()).or_insert_with(|| {
                let started = runtime.containers.iter().find(|r| r.id == id).and_then(|r| r.started_at);
                Prober::new(c, started.map_or(now, |at| at.min(now)), told_verdict(&pod, id))
            });
            if stops {
                prober.stop();
            }
            for (kind, op) in prober.due(now, c, id, &pod_ip) {
                match op {
                    Some(op) => {
                        let op = start_probe(&mut self.ops, uid, id, kind, op, fx);
                        prober.started(kind, op);
                    }
                    None => errored.push((name.to_owned(), kind)),
                }
            }
            if let Some(at) = prober.next() {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        for (name, kind) in errored {
            let message = kind.errored("its port is not among the container's");
            self.container_event(now, w, &name, false, "Unhealthy", message, fx);
        }
        if let Some(at) = next {
            self.wake_pod(at, uid);
        }
    }

    /// Verdicts by container id. Of a container that nobody has begun to probe yet it is what was told of it before, or that it has
    /// to pass first: what is told of it now is what a restart of the kubelet would go on with.
    pub(super) fn verdicts(&self, w: &Worker, runtime: &PodRuntime) -> BTreeMap<String, Verdict> {
        let mut out: BTreeMap<String, Verdict> = w.probers.iter().map(|(id, p)| (id.clone(), p.verdict())).collect();
        let is_unasked = |r: &&ContainerRecord| r.state == ContainerState::Running && !w.probers.contains_key(&r.id);
        let unasked = runtime.containers.iter().filter(is_unasked);
        let probed = probed(&w.pod);
        for r in unasked.filter(|_| self.planted != Some(Planted::ReadyUnasked)) {
            if let Some(c) = probed.get(r.name.as_str()) {
                let begun = Prober::new(c, r.started_at.unwrap_or_default(), told_verdict(&w.pod, &r.id));
                out.insert(r.id.clone(), begun.verdict());
            }
        }
        // Until its postStart hook is over a container has not started, also where its start is not answered yet.
        for (name, lane) in &w.lanes {
            use super::worker::Step;
            let id = match &lane.step {
                Step::PostStart { id } | Step::PostStartSleep { id, .. } => id,
                Step::Start { id } if pod::container(&w.pod, name).is_some_and(|(_, c)| hooks_start(&c)) => id,
                _ => continue,
            };
            out.insert(id.clone(), Verdict { started: false, ready: false, must_restart: false });
        }
        out
    }
}

/// Starts a probe; the core itself is borrowed meanwhile.
fn start_probe(
    ops: &mut BTreeMap<OpId, Owner>,
    uid: &Uid,
    container: &str,
    kind: crate::probes::ProbeKind,
    op: Op,
    fx: &mut Fx,
) -> OpId {
    let id = OpId(fx.fresh());
    ops.insert(id, Owner::Pod(uid.clone(), PodOp::Probe(container.to_owned(), kind)));
    fx.own(crate::effects::Out { id, op });
    id
}

/// What the API was last told about a container's probes, so that a restart of the kubelet does not
/// take a healthy pod out of service.
fn told_verdict(pod: &Pod, id: &str) -> Option<Verdict> {
    let s = pod.status.as_ref()?;
    s.container_statuses
        .iter()
        .chain(s.init_container_statuses.iter())
        .flatten()
        .find(|c| c.container_id.as_deref().is_some_and(|i| i.ends_with(id)))
        .map(|c| Verdict { started: c.started == Some(true), ready: c.ready, must_restart: false })
}

/// The containers that have probes, by name. Ephemeral ones have none.
fn probed(pod: &Pod) -> BTreeMap<&str, &Container> {
    let is_probed =
        |c: &&Container| c.startup_probe.is_some() || c.liveness_probe.is_some() || c.readiness_probe.is_some();
    in_order(pod).filter(is_probed).map(|c| (c.name.as_str(), c)).collect()
}

/// Reads a pod's facts through a function.
pub(super) fn with_facts<T>(
    w: &Worker,
    runtime: &PodRuntime,
    verdicts: &BTreeMap<String, Verdict>,
    ran_before: &BTreeMap<String, u32>,
    f: impl FnOnce(&Facts<'_>) -> T,
) -> T {
    let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
    let containers: Vec<_> = runtime.containers.iter().collect();
    f(&Facts {
        pod: &w.pod,
        sandboxes: &sandboxes,
        containers: &containers,
        stopped: &w.stopped,
        verdicts,
        ran_before,
        surplus: &w.surplus,
        outgrown: &w.resize.outgrown,
        renewed: &w.resize.renewed,
        restarting: &w.resize.restarting,
        lost: w.stuck.lost(),
        spent: w.stuck.spent(),
        round: round_of(w, runtime),
    })
}

/// The round that a pod is in. In one that is to stop none begins for how its containers end.
pub(super) fn round_of(w: &Worker, runtime: &PodRuntime) -> u32 {
    match &w.stopping {
        None => rounds::present(&w.pod, &runtime.containers, &w.resize.restarting),
        Some(_) => rounds::begun(&runtime.containers),
    }
}

/// Containers that the API knows to have been started, with their restart counts.
pub(super) fn ran_before(pod: &Pod) -> BTreeMap<String, u32> {
    let Some(s) = &pod.status else { return BTreeMap::new() };
    statuses(s)
        .filter(|c| {
            let started = |st: &Option<k8s_openapi::api::core::v1::ContainerState>| {
                st.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
            };
            c.container_id.as_ref().is_some_and(|id| !id.is_empty()) && (started(&c.state) || started(&c.last_state))
        })
        .map(|c| (c.name.clone(), u32::try_from(c.restart_count).unwrap_or(0)))
        .collect()
}

/// Why the pod has run for too long, if it has. Else wakes when it will have.
fn overdue(now: Time, w: &Worker, uid: &Uid, wake: &mut dyn FnMut(Time, &Uid)) -> Option<Ended> {
    let limit = u64::try_from(pod::spec(&w.pod).active_deadline_seconds?).ok()?;
    let start = Time::from(w.pod.status.as_ref()?.start_time.as_ref()?);
    let end = start + Duration::from_secs(limit);
    if now >= end {
        return Some(Ended {
            reason: "DeadlineExceeded".into(),
            message: "Pod was active on the node longer than the specified deadline".into(),
            disrupts: false,
        });
    }
    wake(end, uid);
    None
}
