//! Has quotas counted anew where no write tells the API server to.
//!
//! What a namespace uses is charged by the API server in the very transaction that stores the object, and counted whole
//! whenever the quota itself is written. What is left is what changes with time alone: a pod that should have ended by
//! now counts no more. So this controller writes nothing of its own: when such a time has come, it writes the quota's status
//! as it is, and the API server counts; a count that changes nothing is no write. It does so when it sees a quota or what it
//! limits for the first time, too, for what was made while that was counted and is charged to nothing: it is there by now,
//! since all that is made later is charged. And it does so when somebody has written other limits into the status than the spec
//! has, and again from time to time, for what nobody saw go (kube-controller-manager's resource quota controller counts itself,
//! each five minutes).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::pod::{is_terminal, resource_list};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, ResourceQuotaSpec};
use serde_json::json;

/// After so long each quota is counted anew.
const RECOUNTED: Duration = Duration::from_secs(600);

/// The resource quota controller.
#[derive(Default)]
pub struct QuotaController {
    counts: BTreeMap<Key, Count>,
}

/// What is known of a quota's count.
#[derive(Clone)]
struct Count {
    /// UID and spec of the quota: another one may have its name by now, or it may have other limits.
    of: (String, Option<ResourceQuotaSpec>),
    /// When it was asked for last.
    at: Time,
    /// The first of the times after that at which a pod counts no more; that pod may have gone meanwhile.
    due: Option<Time>,
}

/// Whether the limits that hold, which are those of the status, are not those of the spec. Only who writes the status makes it so.
fn is_off(quota: &ResourceQuota) -> bool {
    let wanted = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let holds = quota.status.as_ref().and_then(|status| status.hard.as_ref());
    holds != wanted && resource_list(holds) != resource_list(wanted)
}

/// When a pod that is being deleted counts no more, whatever its node says.
fn deadline(pod: &Pod) -> Option<Time> {
    if is_terminal(pod) {
        return None;
    }
    let grace_s = u64::try_from(pod.metadata.deletion_grace_period_seconds?).unwrap_or(0);
    Some(Time::from(pod.metadata.deletion_timestamp.as_ref()?) + Duration::from_secs(grace_s))
}

/// Index of the pods that have a time by which they are to be gone: by namespace and that time. Its values have the order of the
/// times, so that the next one is found without a look at the pods, of which thousands may go at once.
const BY_DEADLINE: &str = "deadline";

fn at_deadline(namespace: &str, at: Time) -> String {
    format!("{namespace}/{:020}", at.0.max(0))
}

fn by_deadline(pod: &Pod) -> Vec<String> {
    deadline(pod).map(|at| at_deadline(pod.namespace(), at)).into_iter().collect()
}

/// The first of the times, from this one on, by which a pod of a namespace is to be gone.
fn next_deadline(view: &View<'_>, namespace: &str, from: Time) -> Option<Time> {
    let value = view.cache::<Pod>().first_value(BY_DEADLINE, &at_deadline(namespace, from))?;
    let at = value.strip_prefix(namespace)?.strip_prefix('/')?;
    at.parse().ok().map(Time)
}

impl Controller for QuotaController {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ResourceQuota>();
        setup.index::<Pod>(BY_DEADLINE, by_deadline);
        setup.watch::<Pod>(|pod, view| {
            if !pod.is_deleting() {
                return Vec::new();
            }
            let quotas = view.cache::<ResourceQuota>().in_namespace(pod.namespace());
            quotas.map(|q| Key::of(q.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(quota) = view.get::<ResourceQuota>(&key.namespace, &key.name).filter(|q| !q.is_deleting()) else {
            self.counts.remove(key);
            return Plan::none();
        };
        let first_since = |time: Time| next_deadline(view, &key.namespace, time);
        let of = (quota.uid().to_owned(), quota.spec.clone());
        let known = self.counts.get(key).filter(|count| count.of == of).map(|count| {
            let due = count.due.into_iter().chain(first_since(count.at)).min();
            Count { due, ..count.clone() }
        });
        let is_over = |count: &Count| count.due.is_some_and(|due| due < now) || now.since(count.at) >= RECOUNTED;
        let (count, plan) = match known.filter(|count| !is_over(count) && !is_off(quota)) {
            Some(count) => (count, Plan::none()),
            None => {
                (Count { of, at: now, due: first_since(now) }, Plan::none().patch_status(quota.as_ref(), json!({})))
            }
        };
        let next = count.due.map(|due| due.since(now) + Duration::from_secs(1));
        let again = (count.at + RECOUNTED).since(now);
        self.counts.insert(key.clone(), count);
        plan.requeue_after(next.map_or(again, |next| next.min(again)))
    }
    // A count that changes nothing leaves no trace, so nothing else tells that this one was not made.
    fn undone(&mut self, key: &Key) {
        self.counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::Value;

    use super::*;
    use crate::testing::{of, words};

    #[test]
    fn the_next_deadline_is_found_by_its_time() {
        let pod = |namespace: &str, name: &str, second: u32, phase: &str| {
            of::<Pod>(json!({"metadata": {"namespace": namespace, "name": name, "deletionGracePeriodSeconds": 10,
                    "deletionTimestamp": format!("1970-01-01T00:00:{second}Z")},
                "spec": {"containers": []}, "status": {"phase": phase}}))
        };
        let pods = [
            pod("ns", "a", 30, "Running"),
            pod("ns", "b", 20, "Running"),
            pod("ns", "over", 11, "Failed"),
            pod("ns-2", "c", 12, "Running"),
            pod("nsx", "d", 50, "Running"),
        ];
        let caches = Caches::new().with_index(BY_DEADLINE, by_deadline).with::<Pod>(pods);
        let check = |namespace: &str, from: Time, expected_s: Option<i64>| {
            let found = next_deadline(&caches.view(), namespace, from);
            assert_eq!(found, expected_s.map(Time::from_unix_s), "{namespace} from {from:?}");
        };
        check("ns", Time::default(), Some(30));
        check("ns", Time::from_unix_s(30), Some(30));
        check("ns", Time::from_unix_s(30) + Duration::from_millis(1), Some(40));
        check("ns", Time::from_unix_s(41), None);
        check("ns-2", Time::default(), Some(22));
        check("n", Time::default(), None);
    }

    /// What somebody says of the limits in the status holds only until they are seen.
    #[test]
    fn other_limits_than_the_spec_has_are_counted_away() {
        let pods = |number: &str| json!({"pods": number, "cpu": "1"});
        for (holds, counts) in [
            (json!({"hard": pods("2")}), 0),
            (json!({"hard": {"pods": "2", "cpu": "1000m"}}), 0),
            (json!({"hard": pods("3")}), 1),
            (json!({"hard": {"pods": "2"}}), 1),
            (json!({}), 1),
        ] {
            let mut c = QuotaController::default();
            let mut look = |status: &Value, at_s: i64| {
                let quota = json!({"metadata": {"namespace": "ns", "name": "q", "uid": "q", "resourceVersion": "1"},
                    "spec": {"hard": pods("2")}, "status": status});
                let caches = Caches::new()
                    .with_index(BY_DEADLINE, by_deadline)
                    .with::<ResourceQuota>([of(quota)])
                    .with::<Pod>([]);
                words(&c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(at_s))).len()
            };
            assert_eq!(look(&json!({"hard": pods("2")}), 1000), 1, "it is seen for the first time");
            assert_eq!(look(&holds, 1001), counts, "{holds}");
        }
    }

    /// What was made while the API server counted is charged to nothing.
    #[test]
    fn a_quota_that_is_new_or_limits_something_else_is_counted_once_more() {
        let mut c = QuotaController::default();
        let mut look = |uid: &str, hard: &Value| {
            let quota = json!({"metadata": {"namespace": "ns", "name": "q", "uid": uid, "resourceVersion": "1"},
                "spec": {"hard": hard}, "status": {"hard": hard}});
            let caches =
                Caches::new().with_index(BY_DEADLINE, by_deadline).with::<ResourceQuota>([of(quota)]).with::<Pod>([]);
            words(&c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(1000))).len()
        };
        for (uid, hard) in [
            ("a", json!({"pods": "2"})),
            ("a", json!({"pods": "2", "services": "1"})),
            ("b", json!({"pods": "2", "services": "1"})),
            ("b", json!({"pods": "3", "services": "1"})),
        ] {
            assert_eq!([look(uid, &hard), look(uid, &hard)], [1, 0], "{uid} {hard}");
        }
    }

    #[test]
    fn a_quota_is_counted_when_a_pod_is_overdue() {
        let quota = json!({"metadata": {"namespace": "ns", "name": "q", "uid": "q", "resourceVersion": "1"}});
        let mut c = QuotaController::default();
        let mut look = |pods: Vec<Value>, at_s: i64| {
            let caches = Caches::new()
                .with_index(BY_DEADLINE, by_deadline)
                .with::<ResourceQuota>([of(quota.clone())])
                .with::<Pod>(pods.into_iter().map(of));
            let plan = c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(at_s));
            (words(&plan).len(), plan.requeue_after.map_or(0, |d| d.as_secs()))
        };
        let overdue = || {
            vec![json!({"metadata": {"namespace": "ns", "name": "p", "deletionTimestamp": "1970-01-01T00:17:20Z",
                    "deletionGracePeriodSeconds": 10},
                "spec": {"containers": []}})]
        };
        // What was there before is counted once; then nothing changes with time alone.
        assert_eq!(look(vec![], 1000), (1, 600));
        assert_eq!(look(vec![], 1001), (0, 599));
        assert_eq!(look(overdue(), 1020), (0, 31));
        assert_eq!(look(overdue(), 1050), (0, 1));
        assert_eq!(look(overdue(), 1051), (1, 600));
        // Once is enough.
        assert_eq!(look(overdue(), 1052), (0, 599));
        // What nobody saw go is found in the end.
        assert_eq!(look(vec![], 1651), (1, 600));
        // A pod that was removed when it was overdue gave nothing back.
        let mut c = QuotaController::default();
        let mut look = |pods: Vec<Value>, at_s: i64| {
            let caches = Caches::new()
                .with_index(BY_DEADLINE, by_deadline)
                .with::<ResourceQuota>([of(quota.clone())])
                .with::<Pod>(pods.into_iter().map(of));
            words(&c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(at_s))).len()
        };
        assert_eq!([look(overdue(), 1020), look(vec![], 1051), look(vec![], 1052)], [1, 1, 0]);
        // What was asked for in vain is asked for again.
        c.undone(&Key::new("ns", "q"));
        let caches = Caches::new()
            .with_index(BY_DEADLINE, by_deadline)
            .with::<ResourceQuota>([of(quota.clone())])
            .with::<Pod>([]);
        let again = c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(1053));
        assert_eq!((words(&again).len(), again.requeue_after), (1, Some(RECOUNTED)));
        // Whoever was not there when it was due counts when he comes.
        let mut c = QuotaController::default();
        let caches = Caches::new()
            .with_index(BY_DEADLINE, by_deadline)
            .with::<ResourceQuota>([of(quota.clone())])
            .with::<Pod>(overdue().into_iter().map(of));
        let plan = c.reconcile(&Key::new("ns", "q"), &caches.view(), Time::from_unix_s(2000));
        assert_eq!(words(&plan).len(), 1);
    }
}
