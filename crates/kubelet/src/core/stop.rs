//! The end of a pod: containers, sandbox and its network, devices, volumes, directories, and only
//! then its object in the API.
//!
//! ```text
//!  kill containers ─▶ stop sandboxes (CNI DEL acknowledged) ─▶ free devices ─▶ unmount
//!     ─▶ terminal status ─▶ (if deleted:) forget containers ─▶ remove directories ─▶ delete from the API ─▶ drop record
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, DeleteOptions, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::Pod;

use super::sync::{ran_before, with_facts};
use super::worker::{PodRuntime, Worker};
use super::{Call, Fx, KubeletCore, Owner, PodOp};
use crate::effects::Op;
use crate::planted::Planted;
use crate::pods::plan;
use crate::records::POD_PREFIX;
use crate::runtime::Uid;
use crate::spec::{pod, resources};
use crate::volumes::{TeardownFacts, may_tear_down};

impl KubeletCore {
    pub(super) fn stop_pod(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        let Some(stopping) = w.stopping.clone() else { return };
        // A restart with the API away must still know that this pod is to stop.
        if w.record_saved.is_some() && w.drop_op.is_none() {
            self.recorded(now, uid, w, fx);
        }
        let Some(runtime) = self.fresh_runtime(uid, w) else { return };
        self.end_sleeps(w, &runtime);
        self.tell_of_hooks(now, w, &runtime, fx);
        w.stuck.look(now, &w.killing, &runtime);
        if self.planted == Some(Planted::ForgottenNetworks) {
            w.stopped.extend(runtime.sandboxes.iter().filter(|s| !s.ready).map(|s| s.id.clone()));
        }
        let none = BTreeMap::new();
        if !w.stopped_all {
            self.probe(now, uid, w, &runtime, fx);
            // A sandbox or container that is being made is waited for, then stopped.
            if w.sandbox_op.is_some() || !w.lanes.is_empty() {
                self.cancel_lanes(w);
                if w.sandbox_op.is_some() || !w.lanes.is_empty() {
                    return;
                }
            }
            let hurry = now >= stopping.deadline;
            let shown = self.verdicts(w, &runtime);
            let ran = ran_before(&w.pod);
            let plan = with_facts(w, &runtime, &shown, &ran, |f| plan::stop(f, hurry, ""));
            for kill in &plan.kill {
                self.kill(now, uid, w, kill, stopping.deadline, fx);
            }
            if self.planted != Some(Planted::LateHooks) {
                for kill in &plan.later {
                    self.kill_later(now, uid, w, kill, stopping.deadline, fx);
                }
            }
            if !plan.kill.is_empty() && !hurry {
                self.wake_pod(stopping.deadline, uid);
            }
            for id in plan.stop_sandboxes {
                self.stop_sandbox(now, uid, w, id, fx);
            }
            let proven = self.listed_of(uid).is_some_and(|l| l >= stopping.since);
            if !(plan.stopped && proven && w.killing.is_empty() && w.busy.is_empty()) {
                return;
            }
            w.stopped_all = true;
            self.has_stopped(&stopping);
            self.staged_due = true;
            if self.unread_pods.contains(uid) {
                // As its record would have said: what its spec has the kubelet itself make may be there.
                let (entries, _) = self.volumes.journal(&w.pod, &self.config);
                self.volumes.restore(uid, &w.pod, &entries, None);
            }
            w.waiting.clear();
            w.probers.clear();
            // What it was made of concerns it no more.
            self.sources.forget(uid, fx);
            tracing::debug!(pod = %pod::pod_ref(&w.pod), "everything of the pod is stopped");
            self.let_go(uid);
            self.groups.due = true;
            // What it held may be what another waits for.
            self.devices_changed();
        }
        let may_go = may_tear_down(TeardownFacts {
            unwanted: Some(true),
            listing_is_newer: self.listed_of(uid).is_some_and(|l| l >= stopping.since),
            container_alive: runtime.containers.iter().any(|c| c.may_run()),
            sandbox_alive: runtime.sandboxes.iter().any(|s| !w.stopped.contains(&s.id)),
        });
        if !may_go {
            // Something came to life that nobody here started: stop it again.
            w.stopped_all = false;
            self.dirty.insert(uid.clone());
            return;
        }
        if self.planted == Some(Planted::UnmountsWhenTold) && !w.deleted && !self.told(w) {
            return;
        }
        let actions = self.volumes.unwanted(now, uid);
        self.volume_actions(uid, actions, fx);
        if !self.volumes.all_gone(uid) {
            if let Some(at) = self.volumes.next_retry(uid) {
                self.wake_pod(at, uid);
            }
            return;
        }
        if w.deleted || w.pod.is_deleting() {
            self.clean_up(now, uid, w, &runtime, &none, fx);
        }
    }

    /// Starts that have not reached the runtime are given up.
    fn cancel_lanes(&mut self, w: &mut Worker) {
        use super::worker::Step;
        w.lanes.retain(|_, l| matches!(l.step, Step::Create | Step::Start { .. } | Step::Allocate { .. }));
    }

    fn clean_up(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        runtime: &PodRuntime,
        none: &BTreeMap<String, u32>,
        fx: &mut Fx,
    ) {
        // The API hears how the pod ended before it forgets the pod.
        if !w.deleted && !self.told(w) {
            return;
        }
        let shown = BTreeMap::new();
        let plan = with_facts(w, runtime, &shown, none, plan::forget);
        if !plan.stopped {
            for id in plan.remove {
                self.remove(now, uid, w, id.clone(), Op::RemoveContainer(id), fx);
            }
            for id in plan.remove_sandboxes {
                self.remove(now, uid, w, id.clone(), Op::RemoveSandbox(id), fx);
            }
            return;
        }
        if !w.removed {
            if w.remove_op.is_some() || self.not_yet(now, uid, w, "remove-pod") {
                return;
            }
            let op = Op::RemovePod {
                uid: uid.clone(),
                cgroup: resources::of_pod(&w.pod, &self.config.cgroup_root).path,
                log_directory: self.config.pod_log_dir(&pod::pod_ref(&w.pod)),
            };
            w.remove_op = Some(self.op(Owner::Pod(uid.clone(), PodOp::RemovePod), op, fx));
            return;
        }
        if !w.deleted {
            if w.delete_call.is_some() {
                return;
            }
            if w.delete_retry_at > now {
                self.wake_pod(w.delete_retry_at, uid);
                return;
            }
            let options =
                DeleteOptions { uid: Some(uid.to_string()), grace_period_s: Some(0), ..DeleteOptions::default() };
            let call = fx.api(ApiRequest::delete(&Pod::resource(), w.pod.namespace(), w.pod.name(), &options));
            self.calls.insert(call, Call::Delete(uid.clone()));
            w.delete_call = Some(call);
            return;
        }
        if !w.record_made {
            w.gone = true;
        } else if w.record_op.is_none() && w.drop_op.is_none() && !self.not_yet(now, uid, w, "drop-record") {
            let op = Op::DropRecord(format!("{POD_PREFIX}{uid}"));
            w.drop_op = Some(self.op(Owner::Pod(uid.clone(), PodOp::DropRecord), op, fx));
        }
    }

    fn not_yet(&mut self, now: Time, uid: &Uid, w: &Worker, what: &str) -> bool {
        match w.retry_at.get(what).filter(|at| **at > now) {
            Some(at) => {
                self.wake_pod(*at, uid);
                true
            }
            None => false,
        }
    }

    pub(super) fn delete_answered(&mut self, now: Time, uid: &Uid, result: Result<ApiResponse, ApiError>) {
        let Some(w) = self.workers.get_mut(uid) else { return };
        w.delete_call = None;
        match result {
            // Finalizers may hold it for long: it is asked again, and the watch tells when it is gone.
            Ok(_) => w.delete_retry_at = now + Duration::from_secs(10),
            // Gone, or another pod has its name: the object that this was about exists no more.
            Err(e) if e.is_not_found() || e.is_conflict() => w.deleted = true,
            Err(error) => {
                tracing::warn!(pod = %pod::pod_ref(&w.pod), %error, "the pod could not be deleted from the API");
                w.delete_retry_at = now + Duration::from_secs(2);
            }
        }
        self.dirty.insert(uid.clone());
    }
}
