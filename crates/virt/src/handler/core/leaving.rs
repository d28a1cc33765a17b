//! Pods that go: what holds their container disks is asked to end.
//!
//! A launcher that has ended leaves the containers of its disks behind, which hold what nobody uses any more. When they have
//! ended, too, the pod is over, and gives back what it has of its node; it stays to be looked at with the instance. (Upstream:
//! they end when virt-handler takes their disks away, `UnmountAll` in pkg/virt-handler/container-disk.)
//!
//! A container's first process ignores a signal for which it has no handler. So one that is stopped right after its
//! start, before its program listens, never hears of it: runtimes send their signal once, and it sits out the pod's
//! grace period, as the machine's deletion or restart does with it. Where a pod is still there a while after its
//! deletion, its node's handler sends the signal again, to programs that listen by now.
//!
//! ```text
//!   pod is deleted, or
//!   its launcher ends ─ 0.5 s ─▶ its guest goes on: look again in 0.5 s
//!                                otherwise: ask, and see what is left ─ nothing ─▶ the kubelet does the rest
//!                                                ▲────── 1 s, 2 s, 4 s … ───┘ something, or unknown
//! ```
//!
//! That a pod is deleted is never taken back, and its kubelet stops the same containers for the same reason; a launcher
//! that has ended is never started again. So nothing ends by this that was to stay. All of it follows from the pod, so that
//! a handler that comes later sees it as well.

use std::time::Duration;

use carrack_engine::{Delta, Effects, Time};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{Flight, Handler, Wake};
use crate::handler::effects::{Op, Out, Outcome, Reply, Sought};
use crate::handler::spec::launcher_has_ended;
use crate::identity::launcher_of;
use crate::paths::KEEP_ALIVE;

/// When a pod that goes is looked at first. Most are gone by then.
const LOOK: Duration = Duration::from_millis(500);
/// How often the wait between two looks doubles.
const DOUBLINGS: u32 = 3;

/// A pod that goes.
pub(super) struct Leaving {
    /// UID of the instance.
    instance: String,
    /// How often it was looked what is left of it.
    looks: u32,
}

impl Handler {
    /// A pod has changed. One that holds container disks, and goes or has lost its launcher, is looked at a little later.
    pub(super) fn sees_pod(&mut self, now: Time, delta: &Delta<Pod>, fx: &mut Effects<Out>) {
        let pod = delta.object();
        if matches!(delta, Delta::Removed(_)) {
            self.leaving.remove(pod.uid());
            return;
        }
        let goes = pod.is_deleting() || launcher_has_ended(pod) && !is_terminal(pod);
        if !goes || !holds_disks(pod) || self.leaving.contains_key(pod.uid()) {
            return;
        }
        let instance = launcher_of(pod).unwrap_or_default().to_owned();
        self.leaving.insert(pod.uid().to_owned(), Leaving { instance, looks: 0 });
        self.wake(fx, now + LOOK, Wake::Leaving(pod.uid().to_owned()));
    }

    /// It is time to look at a pod that goes.
    pub(super) fn see_off(&mut self, now: Time, pod: &str, fx: &mut Effects<Out>) {
        let Some(leaving) = self.leaving.get(pod) else { return };
        let guest = self.guests.get(&leaving.instance).filter(|guest| guest.record.place.pod_uid == pod);
        // Before the local record was read, a guest that nobody knows of may well go on.
        if !self.loaded || guest.is_some_and(|guest| !guest.has_ended()) {
            self.wake(fx, now + LOOK, Wake::Leaving(pod.to_owned()));
            return;
        }
        let sought = Sought { uid: leaving.instance.clone(), pod_uid: pod.to_owned(), ends_disks: true };
        self.op(fx, Op::LookForProcesses(sought), Flight::SeeOff(pod.to_owned()));
    }

    /// It was looked what is left of a pod that goes.
    pub(super) fn saw_off(&mut self, now: Time, pod: &str, outcome: &Outcome, fx: &mut Effects<Out>) {
        let Some(leaving) = self.leaving.get_mut(pod) else { return };
        if matches!(outcome, Ok(Reply::Processes(false))) {
            return;
        }
        if let Err(error) = outcome {
            tracing::warn!(pod, %error, "what is left of a pod that goes is not known");
        }
        leaving.looks = leaving.looks.saturating_add(1);
        let wait = LOOK.saturating_mul(1 << leaving.looks.min(DOUBLINGS));
        self.wake(fx, now + wait, Wake::Leaving(pod.to_owned()));
    }
}

/// Whether containers of a pod do nothing but hold the files of their images.
fn holds_disks(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut commands = containers.filter_map(|container| container.command.as_ref()?.first());
    commands.any(|program| program == KEEP_ALIVE)
}
