//! The end of one container: its preStop hook, its stop signal, and SIGKILL when its time is over.

use std::time::Duration;

use carrack_engine::{EventRecord, Time};
use k8s_openapi::api::core::v1::Pod;

use super::lane::NOBODY_TO_ASK;
use super::worker::{Hook, Killing, PodRuntime, Worker};
use super::{Fx, KubeletCore, Owner, PodOp, is_absent, show};
use crate::effects::{Counted, Op, OpError, OpId, Outcome, ProbeCount, Reply};
use crate::planted::Planted;
use crate::pods::plan::Kill;
use crate::probes::{Answer, ProbeKind, http_action};
use crate::runtime::{ContainerRecord, ContainerState, Uid};
use crate::spec::pod;

/// A stop signal is always given this long, even when the grace period went to the hook or to the wait for others.
const LEAST_STOP: Duration = Duration::from_secs(2);

/// Exit code of a process that was killed.
const KILLED: i32 = 128 + 9;

impl KubeletCore {
    /// A preStop hook that sleeps ends with its container, and so does the wait for one's turn: nobody would stop that any more,
    /// and its pod would wait for it for ever (upstream's `runSleepHandler`, `pkg/kubelet/lifecycle`).
    pub(super) fn end_sleeps(&self, w: &mut Worker, runtime: &PodRuntime) {
        if self.planted == Some(Planted::EndlessSleeps) {
            return;
        }
        let runs = |id: &String| runtime.containers.iter().any(|c| c.id == *id && c.may_run());
        w.killing.retain(|id, killing| !matches!(killing.hook, Hook::Sleeping(_) | Hook::Waiting) || runs(id));
    }

    /// Tells of preStop hooks that failed, once it is known when their containers ended: one that was over before its hook was has
    /// not been harmed by that, and the runtime may notice an end only after it has refused to run something there.
    pub(super) fn tell_of_hooks(&mut self, now: Time, w: &mut Worker, runtime: &PodRuntime, fx: &mut Fx) {
        for (id, failed_at) in std::mem::take(&mut w.failed_hooks) {
            let container = runtime.containers.iter().find(|c| c.id == id);
            if container.is_some_and(ContainerRecord::may_run) {
                w.failed_hooks.insert(id, failed_at);
                continue;
            }
            let ended_before = container.is_some_and(
                |c| matches!(c.state, ContainerState::Exited { finished_at, .. } if finished_at < failed_at),
            );
            if !ended_before {
                self.told_of(now, w, &id, "FailedPreStopHook", "PreStopHook failed".into(), fx);
            }
        }
    }

    /// Stops a container by a deadline; a nearer deadline hurries a stop under way.
    pub(super) fn kill(&mut self, now: Time, uid: &Uid, w: &mut Worker, kill: &Kill, deadline: Time, fx: &mut Fx) {
        if let Some(at) = w.retry_at.get(&kill.id).filter(|at| **at > now) {
            self.wake_pod(*at, uid);
            return;
        }
        if let Some(k) = w.killing.get_mut(&kill.id) {
            k.in_turn = true;
            let (hook, before) = (k.hook, k.deadline);
            match hook {
                _ if deadline < before => self.stop_container(now, uid, w, &kill.id, deadline, fx),
                Hook::Sleeping(until) if until > now => self.wake_pod(until, uid),
                // What the hook took of the time is gone.
                Hook::Sleeping(_) | Hook::Waiting => self.stop_container(now, uid, w, &kill.id, before, fx),
                Hook::Running | Hook::Over => {}
            }
            return;
        }
        match self.begin_kill(now, uid, w, kill, deadline, fx) {
            Some(killing) => {
                w.killing.insert(kill.id.clone(), killing);
            }
            None => self.stop_container(now, uid, w, &kill.id, deadline, fx),
        }
    }

    /// Begins the end of a container that is stopped when others have ended: its preStop hook runs with theirs, so that theirs
    /// may take as long as they like (upstream's `killContainer`, which waits between hook and stop signal).
    pub(super) fn kill_later(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        kill: &Kill,
        deadline: Time,
        fx: &mut Fx,
    ) {
        if let Some(k) = w.killing.get_mut(&kill.id) {
            // A deletion may be hurried: what is left until then is its time. A hook that runs has been told its own.
            match &mut k.hook {
                Hook::Waiting => k.deadline = k.deadline.min(deadline),
                Hook::Sleeping(until) => {
                    k.deadline = k.deadline.min(deadline);
                    *until = (*until).min(deadline);
                }
                Hook::Running | Hook::Over => {}
            }
            return;
        }
        if w.retry_at.get(&kill.id).is_some_and(|at| *at > now) {
            return;
        }
        let waiting = Killing { op: None, deadline, hook: Hook::Waiting, in_turn: false };
        let begun = self.begin_kill(now, uid, w, kill, deadline, fx);
        w.killing.insert(kill.id.clone(), Killing { in_turn: false, ..begun.unwrap_or(waiting) });
    }

    /// Tells that a container is to end, and begins its preStop hook; none where it has none, or no time for it.
    fn begin_kill(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        kill: &Kill,
        deadline: Time,
        fx: &mut Fx,
    ) -> Option<Killing> {
        let message =
            if kill.message.is_empty() { format!("Stopping container {}", kill.name) } else { kill.message.clone() };
        self.container_event(now, w, &kill.name, true, "Killing", message, fx);
        // A start that is under way for the same name ends with its container.
        w.lanes.retain(|name, l| {
            use super::worker::Step;
            name != &kill.name
                || !matches!(&l.step, Step::PostStart { id } | Step::PostStartSleep { id, .. } if *id == kill.id)
        });
        let (hook, c) = pod::container(&w.pod, &kill.name)
            .and_then(|(_, c)| Some((c.lifecycle.clone()?.pre_stop?, c.into_owned())))
            .filter(|_| deadline > now)?;
        let timeout_s = i64::try_from(deadline.since(now).as_secs()).unwrap_or(i64::MAX).max(1);
        let pod_ip = self.pod_ips(uid, w).into_iter().next().unwrap_or_default();
        if let Some(s) = &hook.sleep {
            let until = now + Duration::from_secs(u64::try_from(s.seconds).unwrap_or(0));
            let until = until.min(deadline);
            self.wake_pod(until, uid);
            return Some(Killing { op: None, deadline, hook: Hook::Sleeping(until), in_turn: true });
        }
        let op = if let Some(e) = &hook.exec {
            let command = e.command.clone().unwrap_or_default();
            Op::Exec { id: kill.id.clone(), command, timeout_s }
        } else {
            let Some(action) = hook.http_get.as_ref().and_then(|h| http_action(&c, h, &pod_ip, true)) else {
                let error = NOBODY_TO_ASK;
                tracing::warn!(pod = %pod::pod_ref(&w.pod), container = kill.id, error, "a preStop hook failed");
                w.failed_hooks.insert(kill.id.clone(), now);
                return None;
            };
            Op::Net { action, timeout_s }
        };
        let op = self.op(Owner::Pod(uid.clone(), PodOp::Kill(kill.id.clone())), op, fx);
        Some(Killing { op: Some(op), deadline, hook: Hook::Running, in_turn: true })
    }

    fn stop_container(&mut self, now: Time, uid: &Uid, w: &mut Worker, id: &str, deadline: Time, fx: &mut Fx) {
        let left = deadline.since(now);
        // A grace period of zero is no grace at all; but one that went to the hook, or to the wait for its turn, was one.
        let had_time = w.killing.get(id).is_some_and(|k| k.deadline <= deadline);
        let left = if left.is_zero() && !had_time { left } else { left.max(LEAST_STOP) };
        let timeout_s = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let op = Op::StopContainer { id: id.to_owned(), timeout_s };
        let op = self.op(Owner::Pod(uid.clone(), PodOp::Kill(id.to_owned())), op, fx);
        w.killing.insert(id.to_owned(), Killing { op: Some(op), deadline, hook: Hook::Over, in_turn: true });
    }

    /// A hook or a stop ended.
    #[expect(clippy::too_many_arguments, reason = "an outcome and everything that it is for")]
    pub(super) fn kill_done(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        id: &str,
        op: OpId,
        outcome: Outcome,
        fx: &mut Fx,
    ) {
        let Some(k) = w.killing.get(id).filter(|k| k.op == Some(op)).cloned() else { return };
        if k.hook == Hook::Running {
            self.tell_plain_hook(now, w, &outcome, fx);
            let failure = match outcome {
                // SIGKILL reaches a hook with the end of its container: that came first, and the hook failed at nothing.
                Ok(Reply::Exited { code: KILLED, .. }) => None,
                Ok(Reply::Exited { code, output }) if code != 0 => Some(format!("exited with {code}: {output}")),
                Ok(_) => None,
                // The container ended by itself, or by what the hook did.
                Err(e) if is_absent(&e) => None,
                Err(e) => Some(e.to_string()),
            };
            if let Some(error) = failure {
                // What a hook says may be secret, and whoever sees a pod may see its events: upstream tells it the log alone, too.
                tracing::warn!(pod = %pod::pod_ref(&w.pod), container = id, error, "a preStop hook failed");
                w.failed_hooks.insert(id.to_owned(), now);
            }
            if k.in_turn {
                self.stop_container(now, uid, w, id, k.deadline, fx);
            } else {
                w.killing.insert(id.to_owned(), Killing { op: None, hook: Hook::Waiting, ..k });
            }
            return;
        }
        w.killing.remove(id);
        match outcome {
            // What the runtime has lost sight of may stay so: that is no end that anybody has seen.
            Ok(_) if w.stuck.is_unknown(id) => {
                w.stuck.was_not_stopped(id, k.deadline.max(now + LEAST_STOP));
                let at = now + Duration::from_secs(1);
                w.retry_at.insert(id.to_owned(), at);
                self.wake_pod(at, uid);
            }
            Ok(_) => {}
            Err(e) if is_absent(&e) => {}
            Err(error) => {
                // The signal of one that was hurried has its least time, too.
                w.stuck.was_not_stopped(id, k.deadline.max(now + LEAST_STOP));
                tracing::warn!(pod = %pod::pod_ref(&w.pod), container = id, %error, "stopping failed; trying again");
                let at = now + Duration::from_secs(1);
                w.retry_at.insert(id.to_owned(), at);
                self.wake_pod(at, uid);
            }
        }
        self.changed(w, fx);
    }

    /// Tells of a hook that was to be asked for over TLS, and was without.
    pub(super) fn tell_plain_hook(&mut self, now: Time, w: &Worker, outcome: &Outcome, fx: &mut Fx) {
        if let Ok(Reply::Plain(at)) = outcome {
            let message = format!("request to HTTPS lifecycle hook {at} got HTTP response, retry with HTTP succeeded");
            self.event(now, EventRecord::warning(w.pod.as_ref(), "LifecycleHTTPFallback", message), fx);
        }
    }

    fn container_name(&self, pod: &Pod, id: &str) -> Option<String> {
        let runtime = self.runtime.get(&pod::uid(pod))?;
        runtime.containers.iter().find(|c| c.id == id).map(|c| c.name.clone())
    }

    /// Tells a warning about a container by its id; about its pod alone where the runtime has forgotten it.
    pub(super) fn told_of(&mut self, now: Time, w: &Worker, id: &str, reason: &str, message: String, fx: &mut Fx) {
        match self.container_name(&w.pod, id) {
            Some(name) => self.container_event(now, w, &name, false, reason, message, fx),
            None => self.event(now, EventRecord::warning(w.pod.as_ref(), reason, message), fx),
        }
    }

    /// A probe was answered.
    #[expect(clippy::too_many_arguments, reason = "an outcome and everything that it is for")]
    pub(super) fn probe_done(
        &mut self,
        now: Time,
        w: &mut Worker,
        container: &str,
        kind: ProbeKind,
        op: OpId,
        outcome: Outcome,
        fx: &mut Fx,
    ) {
        if let Ok(Reply::Warned(warning)) = &outcome
            && let Some(name) = self.container_name(&w.pod, container)
        {
            // It counts as a success all the same (upstream: `pkg/kubelet/prober`).
            let message = format!("{} probe warning: {warning}", kind.name());
            self.container_event(now, w, &name, false, "ProbeWarning", message, fx);
        }
        let answer = match outcome {
            Ok(Reply::Exited { code: 0, .. } | Reply::Done | Reply::Warned(_)) => Answer::Success,
            Ok(Reply::Exited { code, output }) => {
                Answer::Failure(if output.is_empty() { format!("exit code {code}") } else { output })
            }
            Ok(_) => Answer::Unknown(Some("an answer of another kind".into())),
            Err(OpError::TimedOut(seconds)) => {
                let late = w.probers.get(container).map(|prober| prober.late(kind, seconds));
                Answer::Failure(late.unwrap_or_default())
            }
            // The container has ended meanwhile, which is told elsewhere.
            Err(e) if is_absent(&e) => Answer::Unknown(None),
            // The runtime could not carry it out: that says nothing about the container.
            Err(e) => Answer::Unknown(Some(e.to_string())),
        };
        if let Some(name) = self.container_name(&w.pod, container) {
            let result = match &answer {
                Answer::Success => "successful",
                Answer::Failure(_) => "failed",
                Answer::Unknown(_) => "unknown",
            };
            let count = ProbeCount { pod: pod::pod_ref(&w.pod), container: name, kind: kind.name(), result };
            show(Op::Count(Counted::Probe(count)), fx);
        }
        let Some(prober) = w.probers.get_mut(container) else { return };
        if let Some(message) = prober.answered(kind, op, answer) {
            self.told_of(now, w, container, "Unhealthy", message, fx);
        }
    }
}
