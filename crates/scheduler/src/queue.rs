//! Pods that wait for a node.
//!
//! ```text
//!   add ─▶ active ──pop──▶ (in flight, not here)
//!            ▲  ▲               │ nobody fits        │ failed on the way
//!            │  └── backoff ◀───┼────────────────────┘
//!            └── unschedulable ◀┘   (leaves when the cluster changes, or after five minutes)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

/// First and longest delay of a pod that failed on its way (kube-scheduler's podInitialBackoffSeconds
/// and podMaxBackoffSeconds).
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// After so long an unschedulable pod is tried again whatever happened.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active,
    Backoff(Time),
    Unschedulable { since: Time },
}

#[derive(Debug)]
struct Item {
    pod: Arc<Pod>,
    place: Place,
    attempts: u32,
    /// When it first came, for fairness between equal priorities.
    added: Time,
    /// Something that could help it changed while it was in flight.
    last_failure: Time,
}

/// Order of the active queue: higher priority first, then who came first, then UID.
type ActiveKey = (std::cmp::Reverse<i32>, Time, String);

/// The queue. A pod UID is in it at most once.
#[derive(Debug, Default)]
pub struct SchedulingQueue {
    items: BTreeMap<String, Item>,
    active: BTreeSet<ActiveKey>,
    /// Attempts and first arrival of pods in flight, and whether the cluster changed meanwhile.
    in_flight: BTreeMap<String, (u32, Time, bool)>,
}

fn active_key(uid: &str, item: &Item) -> ActiveKey {
    let priority = item.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    (std::cmp::Reverse(priority), item.added, uid.to_owned())
}

impl SchedulingQueue {
    /// A pod came, or changed. One that is in flight is left alone: its owner is the cycle.
    pub fn set(&mut self, pod: Arc<Pod>, now: Time) {
        let uid = pod.uid().to_owned();
        if self.in_flight.contains_key(&uid) {
            return;
        }
        match self.items.remove(&uid) {
            None => self.put(uid, Item { pod, place: Place::Active, attempts: 0, added: now, last_failure: now }),
            Some(old) => {
                self.active.remove(&active_key(&uid, &old));
                // A changed spec may make it schedulable; a changed status does not.
                let changed = old.pod.spec != pod.spec || old.pod.metadata.labels != pod.metadata.labels;
                let place = match old.place {
                    Place::Unschedulable { .. } if changed => Place::Backoff(backoff_end(&old)),
                    place => place,
                };
                self.put(uid, Item { pod, place, ..old });
            }
        }
    }
    fn put(&mut self, uid: String, item: Item) {
        if item.place == Place::Active {
            self.active.insert(active_key(&uid, &item));
        }
        self.items.insert(uid, item);
    }
    /// A pod went, or was bound.
    pub fn remove(&mut self, uid: &str) {
        if let Some(item) = self.items.remove(uid) {
            self.active.remove(&active_key(uid, &item));
        }
        self.in_flight.remove(uid);
    }
    /// Takes the next pod; it is in flight until [`Self::done`] or one of the failure calls.
    pub fn pop(&mut self, now: Time) -> Option<Arc<Pod>> {
        self.flush(now);
        let (_, _, uid) = self.active.pop_first()?;
        let item = self.items.remove(&uid)?;
        self.in_flight.insert(uid, (item.attempts + 1, item.added, false));
        Some(item.pod)
    }
    /// The cycle of a pod ended well.
    pub fn done(&mut self, uid: &str) {
        self.in_flight.remove(uid);
    }
    /// No node takes the pod: it waits for a change of the cluster.
    pub fn unschedulable(&mut self, pod: Arc<Pod>, now: Time) {
        self.failed(pod, now, true);
    }
    /// Something went wrong on the way: it is tried again after a while.
    pub fn retry(&mut self, pod: Arc<Pod>, now: Time) {
        self.failed(pod, now, false);
    }
    fn failed(&mut self, pod: Arc<Pod>, now: Time, wait: bool) {
        let uid = pod.uid().to_owned();
        // A pod that was removed while in flight is not put back.
        let Some((attempts, added, changed)) = self.in_flight.remove(&uid) else { return };
        let mut item = Item { pod, place: Place::Active, attempts, added, last_failure: now };
        item.place =
            if wait && !changed { Place::Unschedulable { since: now } } else { Place::Backoff(backoff_end(&item)) };
        self.put(uid, item);
    }
    /// The cluster changed in a way that may help pods which nobody took.
    pub fn cluster_changed(&mut self, now: Time) {
        for (_, _, changed) in self.in_flight.values_mut() {
            *changed = true;
        }
        for item in self.items.values_mut() {
            if matches!(item.place, Place::Unschedulable { .. }) {
                item.place = Place::Backoff(backoff_end(item));
            }
        }
        self.flush(now);
    }
    fn flush(&mut self, now: Time) {
        for (uid, item) in &mut self.items {
            let due = match item.place {
                Place::Active => false,
                Place::Backoff(until) => until <= now,
                Place::Unschedulable { since } => now.since(since) >= MAX_UNSCHEDULABLE,
            };
            if due {
                item.place = Place::Active;
                self.active.insert(active_key(uid, item));
            }
        }
    }
    /// When a pod becomes active by time alone.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.items
            .values()
            .filter_map(|i| match i.place {
                Place::Active => None,
                Place::Backoff(until) => Some(until),
                Place::Unschedulable { since } => Some(since + MAX_UNSCHEDULABLE),
            })
            .min()
    }
    /// UIDs of pods that wait here.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        self.items.keys().map(String::as_str)
    }
    /// Whether a pod is in flight.
    #[must_use]
    pub fn is_in_flight(&self, uid: &str) -> bool {
        self.in_flight.contains_key(uid)
    }
}

fn backoff_end(item: &Item) -> Time {
    let doublings = item.attempts.saturating_sub(1).min(10);
    item.last_failure + FIRST_BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, priority: i32) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid},
                "spec": {"containers": [], "priority": priority}}))
            .expect("a pod"),
        )
    }
    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    #[test]
    fn higher_priority_first_then_who_came_first() {
        let mut q = SchedulingQueue::default();
        q.set(pod("late", 0), at(2));
        q.set(pod("early", 0), at(1));
        q.set(pod("high", 5), at(3));
        let order: Vec<_> = std::iter::from_fn(|| q.pop(at(4))).map(|p| p.uid().to_owned()).collect();
        assert_eq!(order, ["high", "early", "late"]);
    }

    #[test]
    fn a_pod_in_flight_has_one_owner() {
        let mut q = SchedulingQueue::default();
        q.set(pod("a", 0), at(1));
        let a = q.pop(at(1)).expect("a");
        q.set(pod("a", 1), at(1));
        assert!(q.pop(at(1)).is_none(), "an update does not put it back");
        q.remove("a");
        q.retry(a, at(1));
        assert_eq!(q.waiting().count(), 0, "a pod that went while in flight is not put back");
    }

    #[test]
    fn unschedulable_pods_wait_for_a_change_and_back_off() {
        let mut q = SchedulingQueue::default();
        q.set(pod("a", 0), at(0));
        let a = q.pop(at(0)).expect("a");
        q.unschedulable(a, at(0));
        assert!(q.pop(at(200)).is_none(), "nothing changed");
        q.cluster_changed(at(200));
        let a = q.pop(at(200)).expect("the backoff is long over");
        q.cluster_changed(at(200));
        q.unschedulable(a, at(200));
        assert_eq!(q.next_due(), Some(at(202)), "the change came while it was in flight");
        let a = q.pop(at(202)).expect("a");
        q.unschedulable(a, at(202));
        assert!(q.pop(at(501)).is_none());
        assert!(q.pop(at(502)).is_some(), "five minutes are over");
    }
}
