//! Telling the API about a pod: its status on change, and events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, ContentType, EventRecord, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};

use super::lane::WAITING_FOR_DEVICE;
use super::sync::{ran_before, with_facts};
use super::worker::{Admission, PodRuntime, Worker};
use super::{Call, Fx, KubeletCore, host_ips, show};
use crate::devices::NextStep;
use crate::effects::{Counted, Op};
use crate::planted::Planted;
use crate::pods::plan::{current_sandbox, newest};
use crate::runtime::{ContainerRecord, Uid};
use crate::spec::pod::{self, ContainerKind};
use crate::status::pod::{ADMITTED, Admitted, Inputs, READY_TO_START, pod_status};
use crate::status::resize::Sizes;
use crate::status::same::says_the_same;
use crate::status::urgency::hold;

/// How soon an API server that took a status and kept another one is told the same again (upstream's status manager compares what
/// is kept with what it wants every `syncPeriod`, and not when it is answered: pkg/kubelet/status, `syncBatch`).
const TELL_AGAIN: Duration = Duration::from_secs(10);

impl KubeletCore {
    pub(super) fn event(&mut self, now: Time, record: EventRecord, fx: &mut Fx) {
        self.events.record(now, record, fx);
    }

    /// A driver finds a volume abnormal: its pod's user hears of it, and nothing is done about it (pkg/kubelet/server/stats,
    /// `volumeStatCalculator.calcAndStoreStats`).
    pub(super) fn volume_abnormal(&mut self, now: Time, uid: &Uid, volume: &str, message: &str, fx: &mut Fx) {
        let Some(w) = self.workers.get(uid) else { return };
        let record =
            EventRecord::warning(w.pod.as_ref(), "VolumeConditionAbnormal", format!("Volume {volume}: {message}"));
        self.event(now, record, fx);
    }

    /// Whether a pod's volumes count as mounted in its status. Its sandbox may be there before they are; what is told of it
    /// waits for them, since upstream mounts first. Nothing is taken back: a kubelet that starts knows of them only in a moment.
    fn counts_as_mounted(&self, w: &Worker, runtime: &PodRuntime) -> bool {
        let conditions = w.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let was_told =
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == READY_TO_START && c.status == "True"));
        was_told || !runtime.containers.is_empty() || self.volumes.ready(&w.pod).is_ok()
    }

    /// What a pod that was admitted lacks to start its containers, such as devices after a reboot whose plugins are late. It is
    /// told with what the containers say and goes with that, so that it is no write of its own.
    fn lacking(&self, uid: &Uid, w: &Worker, runtime: &PodRuntime) -> Admitted {
        let records: Vec<_> = runtime.containers.iter().collect();
        // One that a listing shows to run waits no more, though the outcome of its start is not here yet.
        let runs = |name: &str| newest(&records, name).is_some_and(ContainerRecord::may_run);
        let waiting = w.waiting.iter().filter(|(name, waiting)| waiting.reason == WAITING_FOR_DEVICE && !runs(name));
        let messages: BTreeSet<&str> = waiting.map(|(_, waiting)| waiting.message.as_str()).collect();
        if messages.is_empty() {
            return if self.waits_as_told(uid, w, runtime) { Admitted::Lacks(None) } else { Admitted::Yes };
        }
        let messages: Vec<&str> = messages.into_iter().collect();
        Admitted::Lacks(Some(messages.join("; ")))
    }

    /// Whether a pod that was told to wait may do so still, though none of its containers says so: one that is to start lacks its
    /// devices, and was not looked at yet, since the kubelet has just started or the sandbox is being made anew.
    fn waits_as_told(&self, uid: &Uid, w: &Worker, runtime: &PodRuntime) -> bool {
        let mut told = w.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        if w.stopped_all || !told.any(|c| c.type_ == ADMITTED && c.status == "False") {
            return false;
        }
        let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
        let sandbox = current_sandbox(&sandboxes).map(|s| s.id.as_str());
        let records: Vec<_> = runtime.containers.iter().collect();
        let is_to_start = |kind: ContainerKind, c: &Container| {
            let Some(last) = newest(&records, &c.name) else { return true };
            let Some(code) = last.exit_code() else { return !last.may_run() };
            // Init containers run once more in another sandbox.
            let is_elsewhere = sandbox != Some(last.sandbox_id.as_str());
            kind != ContainerKind::Regular && is_elsewhere || pod::restarts(&w.pod, kind, c, code)
        };
        let lacks = |c: &Container| {
            self.device_needs(&w.pod, &c.name).is_some_and(|(needs, reusable)| {
                let next = self.devices.peek_step(uid, &c.name, &needs, &reusable, None);
                matches!(next, NextStep::Wait { .. })
            })
        };
        let regular = pod::spec(&w.pod).containers.iter().map(|c| (ContainerKind::Regular, c));
        pod::init_containers(&w.pod).chain(regular).any(|(kind, c)| is_to_start(kind, c) && lacks(c))
    }

    fn status_of(&self, now: Time, uid: &Uid, w: &Worker) -> PodStatus {
        let runtime = self.runtime.get(uid).cloned().unwrap_or_default();
        let pod_ips = if self.counts_as_mounted(w, &runtime) { self.pod_ips(uid, w) } else { Vec::new() };
        let host_ips = host_ips(self);
        let shown = self.verdicts(w, &runtime);
        let ran: BTreeMap<String, u32> = ran_before(&w.pod);
        let actual = self.actual_sizes(uid, &w.pod, &runtime);
        let sizes = Sizes {
            allocated: self.resizes.allocated.get(uid),
            actual: Some(&actual),
            overhead: pod::spec(&w.pod).overhead.as_ref(),
            whole: self.resizes.actuated.get(uid).and_then(|a| a.pod.as_ref()),
            pending: w.resize.pending.as_ref(),
            progress: w.resize.progress.as_ref(),
        };
        let sandboxes: Vec<_> = runtime.sandboxes.iter().collect();
        let handler = match current_sandbox(&sandboxes) {
            Some(sandbox) => Some(sandbox.runtime_handler.as_str()),
            // Without a class it will be the default one.
            None => pod::spec(&w.pod).runtime_class_name.as_deref().is_none_or(str::is_empty).then_some(""),
        };
        let features = handler.zip(self.runtime_info.as_ref()).map(|(handler, info)| info.handlers.get(handler));
        let admitted = match &w.admission {
            Admission::Undecided => Admitted::NotYet(None),
            Admission::Waiting { message, .. } => Admitted::NotYet(Some(message.clone())),
            Admission::Admitted => self.lacking(uid, w, &runtime),
            Admission::Rejected(reason, message) => Admitted::No(reason.clone(), message.clone()),
        };
        let mut status = with_facts(w, &runtime, &shown, &ran, |facts| {
            pod_status(&Inputs {
                now,
                facts: *facts,
                waiting: &w.waiting,
                admitted: &admitted,
                stopped: w.stopped_all,
                ended_because: w.stopping.as_ref().and_then(|s| s.because.as_ref()),
                host_ips: &host_ips,
                pod_ips: &pod_ips,
                sizes,
                recursive_read_only: features.map(|of| of.is_some_and(|of| of.recursive_read_only)),
            })
        });
        self.devices.tell_health(uid, w.pod.status.as_ref(), &mut status);
        self.misreport(&mut status);
        status
    }

    /// What a planted bug has a status say.
    fn misreport(&self, status: &mut PodStatus) {
        match self.planted {
            Some(Planted::GatesUnread) => {
                let mut all = status.conditions.iter().flatten();
                let are_ready = all.any(|c| c.type_ == "ContainersReady" && c.status == "True");
                if let Some(c) = status.conditions.iter_mut().flatten().find(|c| c.type_ == "Ready" && are_ready) {
                    c.status = "True".into();
                }
            }
            Some(Planted::DebuggersForgotten) => {
                let runs = |s: &ContainerStatus| s.state.as_ref().is_some_and(|state| state.running.is_some());
                if let Some(all) = &mut status.ephemeral_container_statuses {
                    all.retain(runs);
                }
            }
            _ => {}
        }
    }

    /// Computes the pod's status and sends it when it differs from what the API has.
    pub(super) fn report(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        if w.deleted || w.status.call.is_some() {
            return;
        }
        // Not before it is known whether anything of it runs here.
        if self.listed.is_none() || w.admission == Admission::Undecided && w.stopping.is_none() {
            return;
        }
        if !self.is_fresh(uid, w) && !matches!(w.admission, Admission::Rejected(..)) {
            return;
        }
        // Nor of what it is allocated before that is on disk.
        if !self.is_allocated_on_disk(w) {
            return;
        }
        let is_static = pod::is_static(&w.pod);
        if is_static && w.mirror.is_none() {
            // Nobody to tell it to yet.
            return;
        }
        let status = self.status_of(now, uid, w);
        if let Some(took) = w.start_took(now, &status) {
            show(Op::Count(Counted::PodStart(took)), fx);
        }
        if w.pod.status.as_ref() == Some(&status) {
            w.status.held_until = None;
            w.status.unkept = None;
            w.last_status = Some(status);
            return;
        }
        w.last_status = Some(status.clone());
        if let Some((told, until)) = &w.status.unkept
            && *until > now
            && says_the_same(told, &status)
            && self.planted != Some(Planted::ToldAtOnce)
        {
            self.wake_pod(*until, uid);
            return;
        }
        if let Some(hold) = hold(w.pod.status.as_ref(), &status, w.pod.is_deleting()) {
            let until = *w.status.held_until.get_or_insert(now + hold);
            if until > now {
                self.wake_pod(until, uid);
                return;
            }
        }
        if w.status.retry_at > now {
            self.wake_pod(w.status.retry_at, uid);
            return;
        }
        let told = w.mirror.as_ref().filter(|_| is_static).unwrap_or(&w.pod);
        // On what it rests: others have their conditions in it, too.
        let on = told.metadata.resource_version.as_ref();
        let mut patch = json!({
            "metadata": {
                "uid": told.uid(),
                "resourceVersion": on.filter(|_| self.planted != Some(Planted::StatusesOverwrite)),
            },
            "status": status,
        });
        // One that is back from an end is not to be called ended still, and what a patch does not name stays.
        if let Some(said) = patch.get_mut("status").and_then(Value::as_object_mut).filter(|_| is_static) {
            for key in ["reason", "message"] {
                said.entry(key).or_insert(Value::Null);
            }
        }
        let call = fx.api(ApiRequest::patch(
            &Pod::resource(),
            w.pod.namespace(),
            w.pod.name(),
            "status",
            ContentType::MergePatch,
            &patch,
        ));
        self.calls.insert(call, Call::Status(uid.clone()));
        w.status.call = Some(call);
        w.status.held_until = None;
    }

    /// Whether the API has the pod's last word, or will not take it.
    pub(super) fn told(&self, w: &Worker) -> bool {
        let over = matches!(w.pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
        let refused = match self.planted {
            Some(Planted::WordsLost) => w.status.failures,
            _ => w.status.refused,
        };
        w.status.call.is_none() && (over || refused >= 5)
    }

    pub(super) fn status_answered(&mut self, now: Time, uid: &Uid, result: Result<ApiResponse, ApiError>) {
        let Some(w) = self.workers.get_mut(uid) else { return };
        w.status.call = None;
        match result.and_then(|r| r.object::<Pod>()) {
            Ok(pod) => {
                w.status.failures = 0;
                w.status.refused = 0;
                w.status.conflicts = 0;
                w.status.retry_at = Time::default();
                // An older server knows not all fields, and a webhook may change them. Nothing was computed since it was written.
                let unkept = w.last_status.as_ref().filter(|written| pod.status.as_ref() != Some(*written));
                w.status.unkept = unkept.map(|written| (written.clone(), now + TELL_AGAIN));
                if crate::spec::manifest::mirrored(&pod).is_some() {
                    self.mirror_changed(&std::sync::Arc::new(pod), false);
                    self.dirty.insert(uid.clone());
                    return;
                }
                // Read our own write: the watch will show it, but not later than this.
                if pod::uid(&pod) == *uid && pod.revision() >= w.pod.revision() {
                    w.take(std::sync::Arc::new(pod), self.resizes.allocated.get(uid));
                }
            }
            Err(e) if e.is_not_found() => {
                // The watch tells whether it is gone; nothing more to say until then.
                w.status.failures += 1;
                w.status.refused += 1;
                w.status.retry_at = now + Duration::from_secs(5);
            }
            Err(e) if e.is_conflict() => {
                // Somebody wrote at the same time. The watch brings that, and this is computed anew; a watch that is late is
                // not waited for by asking ten times a second.
                w.status.retry_at = now + Duration::from_millis(100 << w.status.conflicts.min(5));
                w.status.conflicts += 1;
            }
            Err(error) => {
                w.status.failures += 1;
                // Who is asked in vain for long has not heard how the pod ended: that is kept for him.
                let is_busy = matches!(&error, ApiError::Status(status) if matches!(status.code, 401 | 429));
                w.status.refused += u32::from(!error.is_unknown() && !is_busy);
                let delay = Duration::from_millis(500 << w.status.failures.min(6));
                w.status.retry_at = now + delay;
                tracing::warn!(pod = %pod::pod_ref(&w.pod), %error, "the pod's status was not taken");
            }
        }
        self.dirty.insert(uid.clone());
    }
}
