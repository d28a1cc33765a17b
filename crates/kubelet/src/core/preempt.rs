//! Room for a pod that the node cannot do without: pods that it can do without go (upstream: `pkg/kubelet/preemption`).
//!
//! ```text
//!  a critical pod lacks room ─▶ some end, each within its grace period ─▶ it waits for them ─▶ it is admitted
//! ```
//!
//! Nobody goes where all of them would not be enough, nobody for a device, and nobody for a pod that lacks something else, too.

use std::collections::BTreeSet;

use carrack_engine::Time;
use carrack_types::fit::HostPort;
use k8s_openapi::api::core::v1::Pod;

use super::worker::Worker;
use super::{Fx, KubeletCore, show};
use crate::admission::Decision;
use crate::amount::Amounts;
use crate::devices::is_extended;
use crate::effects::{Counted, Op, Tally};
use crate::runtime::Uid;
use crate::spec::pod;
use crate::status::node::allocatable_amounts;
use crate::status::pod::Ended;

/// Reason of a pod that makes room.
const PREEMPTING: &str = "Preempting";

/// A pod that might go.
#[derive(Clone, Debug)]
struct Candidate {
    uid: Uid,
    /// What goes first is less: whether it is critical itself, its class, then its priority.
    matters: (bool, u8, i32),
    requests: Amounts,
}

/// Whether a pod may have to go for a critical one: it goes on here, and is not critical itself, or matters less (upstream's
/// `Preemptable`). A static pod stays: nobody would bring it back.
fn gives_way(w: &Worker, critical: &Pod) -> bool {
    let priority = |pod: &Pod| pod::spec(pod).priority;
    let matters_less = priority(&w.pod).zip(priority(critical)).is_some_and(|(its, other)| its < other);
    let may_go = !pod::is_critical(&w.pod) || (matters_less && !pod::is_static(&w.pod));
    w.counts() && w.stopping.is_none() && may_go
}

fn of(list: &Amounts, name: &str) -> i128 {
    list.get(name).copied().unwrap_or(0)
}

/// As few as will do, those first that matter least; none where all together are not enough.
fn choose(mut candidates: Vec<Candidate>, lacking: &Amounts) -> Option<Vec<Uid>> {
    candidates.retain(|c| lacking.keys().any(|name| of(&c.requests, name) > 0));
    candidates.sort_by_key(|c| (c.matters, c.uid.clone()));
    let is_enough = |chosen: &[&Candidate]| {
        lacking.iter().all(|(name, need)| chosen.iter().map(|c| of(&c.requests, name)).sum::<i128>() >= *need)
    };
    let mut chosen: Vec<&Candidate> = Vec::new();
    for candidate in &candidates {
        if is_enough(&chosen) {
            break;
        }
        chosen.push(candidate);
    }
    if !is_enough(&chosen) {
        return None;
    }
    // Who turns out not to be needed stays, those first that matter most.
    for at in (0..chosen.len()).rev() {
        let mut others = chosen.clone();
        others.remove(at);
        if is_enough(&others) {
            chosen = others;
        }
    }
    Some(chosen.into_iter().map(|c| c.uid.clone()).collect())
}

impl KubeletCore {
    /// Ends pods so that there is room for a critical one when they have ended. `used` is what all have of the node, `leaving`
    /// the part of it that is about to be free, and `ports` those in use. False where that cannot be; then nobody goes.
    pub(super) fn make_room(
        &mut self,
        now: Time,
        uid: &Uid,
        pod: &Pod,
        (used, leaving, ports): (&Amounts, &Amounts, &BTreeSet<HostPort>),
        fx: &mut Fx,
    ) -> bool {
        let allocatable = allocatable_amounts(&self.host, &self.config);
        let lacks = |name: &str, need: i128| need + of(used, name) - of(leaving, name) - of(&allocatable, name);
        let lacking: Amounts = pod::takes(pod)
            .into_iter()
            .filter(|(name, need)| *need > 0 && !is_extended(name))
            .map(|(name, need)| (name.clone(), lacks(&name, need)))
            .filter(|(_, lacks)| *lacks > 0)
            .collect();
        let class = |pod: &Pod| match pod::qos_class(pod) {
            "BestEffort" => 0,
            "Burstable" => 1,
            _ => 2,
        };
        let candidates = self.workers.iter().filter(|(_, w)| gives_way(w, pod)).map(|(uid, w)| Candidate {
            uid: uid.clone(),
            matters: (pod::is_critical(&w.pod), class(&w.pod), pod::spec(&w.pod).priority.unwrap_or(0)),
            requests: pod::takes(&w.pod),
        });
        let chosen = choose(candidates.collect(), &lacking).unwrap_or_default();
        if chosen.is_empty() {
            return false;
        }
        let mut free = leaving.clone();
        for w in chosen.iter().filter_map(|uid| self.workers.get(uid)) {
            pod::add(&mut free, &pod::takes(&w.pod));
        }
        if matches!(self.judge(uid, pod, false, (used, &free, ports)), Decision::Reject { .. }) {
            return false;
        }
        let of_what = lacking.keys().next().cloned().unwrap_or_default();
        for uid in chosen {
            let Some(mut w) = self.workers.remove(&uid) else { continue };
            show(Op::Count(Counted::Tally(Tally::Preempted, of_what.clone())), fx);
            let message = "Preempted in order to admit critical pod".to_owned();
            let ended = Ended { reason: PREEMPTING.into(), message, disrupts: true };
            let grace_s = pod::grace_s(&w.pod);
            self.end_pod(now, &mut w, ended, grace_s, fx);
            self.dirty.insert(uid.clone());
            self.workers.insert(uid, w);
        }
        true
    }

    /// When those have ended at the latest who make room for a critical pod; long ago where nobody does.
    pub(super) fn has_room_by(&self, pod: &Pod) -> Time {
        if !pod::is_critical(pod) {
            return Time::default();
        }
        let makes_room = |w: &Worker| {
            let stopping = w.stopping.as_ref()?;
            (stopping.because.as_ref()?.reason == PREEMPTING).then_some(stopping.deadline)
        };
        self.takers().filter_map(makes_room).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_go_as_will_do_and_those_that_matter_least() {
        let candidate = |name: &str, class: u8, priority: i32, cpu: i128, memory: i128| Candidate {
            uid: name.into(),
            matters: (name == "critical", class, priority),
            requests: [("cpu".to_owned(), cpu), ("memory".to_owned(), memory), ("pods".to_owned(), 1000)].into(),
        };
        let all = vec![
            candidate("free", 0, 0, 0, 0),
            candidate("small", 1, 0, 100, 10),
            candidate("large", 1, 5, 900, 90),
            candidate("sure", 2, 0, 500, 50),
            candidate("critical", 0, 9, 1000, 100),
        ];
        for (lacking, expected) in [
            (&[("cpu", 100)][..], Some("small")),
            // The small one would not have helped.
            (&[("cpu", 500)][..], Some("large")),
            (&[("cpu", 1000)][..], Some("small large")),
            (&[("cpu", 1400)][..], Some("large sure")),
            (&[("cpu", 50), ("memory", 95)][..], Some("small large")),
            (&[("pods", 1000)][..], Some("free")),
            // One that is critical itself goes last of all.
            (&[("cpu", 1600)][..], Some("large critical")),
            (&[("cpu", 2501)][..], None),
        ] {
            let lacking: Amounts = lacking.iter().map(|(name, need)| ((*name).to_owned(), *need)).collect();
            let chosen = choose(all.clone(), &lacking).map(|uids| uids.join(" "));
            assert_eq!(chosen.as_deref(), expected, "{lacking:?}");
        }
    }
}
