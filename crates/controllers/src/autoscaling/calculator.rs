//! How many replicas a metric asks for.
//!
//! What is not known of a pod never decides which way it goes. One that has no reading counts as if it used all that it may
//! when the others speak for fewer, and as if it used nothing when they speak for more; so does one that is not ready yet when
//! they speak for more. Where that turns the direction, the number stays.
//!
//! Behaviour follows kube-controller-manager's replica calculator (pkg/controller/podautoscaler).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use super::metrics::{Reading, Readings};
use crate::pods::{condition, is_ready};

/// So long after its start a pod may use the CPU for beginning.
const CPU_INITIALIZATION: Duration = Duration::from_secs(300);
/// A pod that has been unready since no later than this after its start has never been ready.
const INITIAL_READINESS_DELAY: Duration = Duration::from_secs(30);
const CPU: &str = "cpu";

/// How far usage may be off its target before anything is done, as a share of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerance {
    pub(super) down: f64,
    pub(super) up: f64,
}

impl Tolerance {
    fn allows(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// What pods are to use each, on average.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// So many percent of what they request, by their names.
    Utilization(i32, BTreeMap<String, i64>),
    /// So much.
    Value(i64),
}

/// What they do use.
struct Used {
    /// Of the goal.
    ratio: f64,
    percent: Option<i32>,
    average: i64,
}

impl Goal {
    fn used(&self, readings: &Readings) -> Result<Used, String> {
        match self {
            Self::Utilization(wanted, requests) => {
                let known = readings.iter().filter_map(|(pod, reading)| Some((reading.value, *requests.get(pod)?)));
                let known: Vec<(i64, i64)> = known.collect();
                let used = known.iter().map(|(value, _)| *value).fold(0, i64::saturating_add);
                let requested = known.iter().map(|(_, request)| *request).fold(0, i64::saturating_add);
                if requested == 0 {
                    return Err("no metrics returned matched known pods".to_owned());
                }
                let percent = i32::try_from(used.saturating_mul(100) / requested).unwrap_or(i32::MAX);
                let count = i64::try_from(known.len()).unwrap_or(i64::MAX);
                let ratio = f64::from(percent) / f64::from(*wanted);
                Ok(Used { ratio, percent: Some(percent), average: used / count })
            }
            Self::Value(wanted) => {
                let used = readings.values().map(|reading| reading.value).fold(0, i64::saturating_add);
                let average = used / i64::try_from(readings.len()).unwrap_or(i64::MAX).max(1);
                Ok(Used { ratio: share(average, *wanted), percent: None, average })
            }
        }
    }

    /// What a pod counts for of which nothing is known, when the others speak for fewer.
    fn all_of(&self, pod: &str) -> i64 {
        match self {
            Self::Utilization(wanted, requests) => {
                requests.get(pod).map_or(0, |request| request.saturating_mul(i64::from(*wanted).max(100)) / 100)
            }
            Self::Value(wanted) => *wanted,
        }
    }
}

/// What a metric asks for, and what it has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Usage as a share of what was requested, where that is the target.
    pub(super) percent: Option<i32>,
    pub(super) average: i64,
}

fn share(part: i64, whole: i64) -> f64 {
    part as f64 / whole as f64
}

/// So many, rounded up; more than can be counted are as many as can.
fn up(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

/// Pods by what is known of them.
#[derive(Default)]
struct Groups<'a> {
    ready: usize,
    /// They use something else than what they will when they are ready.
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    /// Their readings count for nothing.
    left_out: BTreeSet<&'a str>,
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn group<'a>(pods: &[&'a Pod], readings: &Readings, resource: &str, now: Time) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in pods {
        let name = pod.name();
        if pod.is_deleting() || phase(pod) == "Failed" {
            groups.left_out.insert(name);
        } else if phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else {
            match readings.get(name) {
                None => _ = groups.missing.insert(name),
                Some(reading) if resource == CPU && begins(pod, reading, now) => _ = groups.unready.insert(name),
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups.left_out.extend(&groups.unready);
    groups
}

/// Whether a pod has not begun its work yet, so that its use of the CPU says nothing.
fn begins(pod: &Pod, reading: &Reading, now: Time) -> bool {
    let start = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(start)) = (condition(pod, "Ready"), start.map(Time::from)) else { return true };
    let changed = ready.last_transition_time.as_ref().map(Time::from).unwrap_or_default();
    let is_unready = ready.status == "False";
    if start + CPU_INITIALIZATION > now {
        is_unready || reading.at < changed + reading.window
    } else {
        is_unready && start + INITIAL_READINESS_DELAY > changed
    }
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NONE_READY: &str = "did not receive metrics for any ready pods";

/// How many replicas have pods use what they are to use, by what each of them uses. `resource` is what is measured, if it is
/// one.
pub(super) fn by_pods(
    current: i32,
    goal: &Goal,
    pods: &[&Pod],
    mut readings: Readings,
    resource: &str,
    tolerance: Tolerance,
    now: Time,
) -> Result<Proposal, String> {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = group(pods, &readings, resource, now);
    readings.retain(|pod, _| !groups.left_out.contains(pod.as_str()));
    if readings.is_empty() {
        return Err(NONE_READY.to_owned());
    }
    let used = goal.used(&readings)?;
    let proposal = |replicas| Ok(Proposal { replicas, percent: used.percent, average: used.average });
    let grows = used.ratio > 1.0;
    let with_unready = grows && !groups.unready.is_empty();
    if !with_unready && groups.missing.is_empty() {
        let within = tolerance.allows(used.ratio);
        return proposal(if within { current } else { up(used.ratio * groups.ready as f64) });
    }
    // Where the others speak for nothing, neither does what is unknown. Upstream takes it for nothing used where pods have a
    // value for a target, and removes pods for it.
    for pod in groups.missing.iter().filter(|_| used.ratio != 1.0) {
        let value = if grows { 0 } else { goal.all_of(pod) };
        readings.insert((*pod).to_owned(), Reading { value, ..Reading::default() });
    }
    for pod in groups.unready.iter().filter(|_| with_unready) {
        readings.insert((*pod).to_owned(), Reading::default());
    }
    let ratio = goal.used(&readings)?.ratio;
    if tolerance.allows(ratio) || (used.ratio < 1.0 && ratio > 1.0) || (grows && ratio < 1.0) {
        return proposal(current);
    }
    let replicas = up(ratio * readings.len() as f64);
    let turns = if ratio < 1.0 { replicas > current } else { replicas < current };
    proposal(if turns { current } else { replicas })
}

/// How many replicas bring what something uses to a value, if that goes down as there are more of them that are ready.
pub(super) fn by_value(
    current: i32,
    used: i64,
    wanted: i64,
    pods: &[&Pod],
    tolerance: Tolerance,
) -> Result<i32, String> {
    let ratio = share(used, wanted);
    if current == 0 {
        return Ok(up(ratio));
    }
    if tolerance.allows(ratio) {
        return Ok(current);
    }
    if pods.is_empty() {
        return Err(format!("unable to calculate ready pods: {NO_PODS}"));
    }
    let ready = pods.iter().filter(|pod| phase(pod) == "Running" && is_ready(pod)).count();
    Ok(up(ratio * ready as f64))
}

/// How many replicas share what is used so that each has its part, and what each has now.
pub(super) fn by_share(there_are: i32, used: i64, wanted: i64, tolerance: Tolerance) -> (i32, i64) {
    let among = f64::from(there_are);
    let within = tolerance.allows(used as f64 / (wanted as f64 * among));
    let replicas = if within { there_are } else { up(share(used, wanted)) };
    let each = if there_are > 0 { (used as f64 / among).ceil() as i64 } else { used };
    (replicas, each)
}

fn asked(resources: Option<&ResourceRequirements>, resource: &str) -> Option<i64> {
    let quantity = resources?.requests.as_ref()?.get(resource)?;
    Some(Quantity::try_from(quantity).map_or(0, Quantity::millis))
}

/// What pods request of a resource: as a whole, where they do that, and else what their containers request, or one of them. Init
/// containers count that go on.
pub(super) fn requests(
    pods: &[&Pod],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let whole = asked(spec.resources.as_ref(), resource).filter(|_| container.is_none());
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.iter().chain(sidecars).filter(|c| container.is_none_or(|name| c.name == name));
        let mut sum = 0_i64;
        for container in containers.filter(|_| whole.is_none()) {
            let request = asked(container.resources.as_ref(), resource).ok_or_else(|| {
                format!("missing request for {resource} in container {} of Pod {}", container.name, pod.name())
            })?;
            sum = sum.saturating_add(request);
        }
        all.insert(pod.name().to_owned(), whole.unwrap_or(sum));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    const TENTH: Tolerance = Tolerance { down: 0.1, up: 0.1 };
    const NOW_S: i64 = 10_000;

    /// A pod as a letter has it: ready (r), unready (u), pending (p), failed (f), going (d); started a moment ago and ready for
    /// long enough (s), not for so long (n), or not at all (b); ready once (o); without a start (x).
    fn pod(index: usize, letter: char) -> Pod {
        let at = |second: i64| Time::from_unix_s(second).rfc3339();
        let (ready, start_s, changed_s) = match letter {
            'u' => ("False", 0, 10),
            's' => ("True", NOW_S - 100, NOW_S - 90),
            'n' => ("True", NOW_S - 100, NOW_S - 20),
            'b' => ("False", NOW_S - 100, NOW_S - 90),
            'o' => ("False", 0, 1000),
            _ => ("True", 0, 10),
        };
        let phase = match letter {
            'p' => "Pending",
            'f' => "Failed",
            _ => "Running",
        };
        let mut value = json!({"metadata": {"namespace": "ns", "name": format!("p{index}")},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1"}}}]},
            "status": {"phase": phase, "startTime": at(start_s),
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at(changed_s)}]}});
        match letter {
            'd' => value["metadata"]["deletionTimestamp"] = at(NOW_S).into(),
            'x' => value["status"]["startTime"] = Value::Null,
            _ => {}
        }
        of(value)
    }

    /// What is proposed for these pods, which use so much each, of nothing is told of those that are `m`.
    fn propose(goal: &Goal, letters: &str, uses: i64, resource: &str) -> Result<Proposal, String> {
        let pods: Vec<Pod> = letters.chars().enumerate().map(|(index, letter)| pod(index, letter)).collect();
        let window = Duration::from_secs(60);
        let at = Time::from_unix_s(NOW_S - 10);
        let told = letters.chars().enumerate().filter(|(_, letter)| *letter != 'm');
        let readings = told.map(|(index, _)| (format!("p{index}"), Reading { value: uses, at, window })).collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let current = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        by_pods(current, goal, &pods, readings, resource, TENTH, Time::from_unix_s(NOW_S))
    }

    #[test]
    fn pods_are_as_many_as_their_use_asks_for() {
        // Of a CPU each, half of which is to be used; or of anything, of which 500 are.
        for (letters, uses, resource, by_percent, by_amount) in [
            ("rrr", 500, CPU, 3, 3),
            ("rrr", 549, CPU, 3, 3),
            ("rrr", 551, CPU, 3, 4),
            ("rrr", 1000, CPU, 6, 6),
            ("rrrr", 250, CPU, 2, 2),
            ("rrr", 460, CPU, 3, 3),
            ("rrr", 0, CPU, 0, 0),
            // Those that have failed or go are none.
            ("rrfd", 1000, CPU, 4, 4),
            // What is unready or pending does not make more, and fewer only as the others say.
            ("rru", 1000, CPU, 4, 4),
            ("rrp", 1000, CPU, 4, 4),
            ("rpp", 1000, CPU, 3, 3),
            ("rrrrup", 250, CPU, 2, 2),
            // It counts for other things than the CPU.
            ("rru", 1000, "memory", 6, 6),
            // What is missing holds back either way.
            ("rrm", 1000, CPU, 4, 4),
            ("rrrm", 250, CPU, 4, 3),
            ("rrrrrrmm", 100, CPU, 6, 4),
            ("rrmm", 500, CPU, 4, 4),
            ("rmm", 600, CPU, 3, 3),
            // Those that start count once a whole reading is of them as they are.
            ("rrs", 1000, CPU, 6, 6),
            ("rrn", 1000, CPU, 4, 4),
            ("rrb", 1000, CPU, 4, 4),
            ("rrx", 1000, CPU, 4, 4),
            // What was ready once does.
            ("rro", 1000, CPU, 6, 6),
        ] {
            let pods: Vec<Pod> = letters.chars().enumerate().map(|(index, letter)| pod(index, letter)).collect();
            let requested = requests(&pods.iter().collect::<Vec<_>>(), resource, None).expect("requests");
            let percent = propose(&Goal::Utilization(50, requested), letters, uses, resource).map(|p| p.replicas);
            let amount = propose(&Goal::Value(500), letters, uses, resource).map(|p| p.replicas);
            assert_eq!((percent, amount), (Ok(by_percent), Ok(by_amount)), "{letters} use {uses} of {resource}");
        }
        let shown = propose(&Goal::Value(500), "rrm", 1000, CPU).map(|p| (p.percent, p.average));
        assert_eq!(shown, Ok((None, 1000)), "what is told is what was seen");
    }

    #[test]
    fn why_nothing_can_be_said() {
        let goal = Goal::Value(500);
        for (letters, expected) in [("", NO_PODS), ("pp", NONE_READY), ("mm", NONE_READY)] {
            assert_eq!(propose(&goal, letters, 100, CPU), Err(expected.to_owned()), "{letters:?}");
        }
        let unknown = propose(&Goal::Utilization(50, BTreeMap::new()), "rr", 100, CPU);
        assert_eq!(unknown, Err("no metrics returned matched known pods".to_owned()));
    }

    #[test]
    fn more_than_all_that_is_requested_is_what_a_missing_pod_counts_for() {
        let requested: BTreeMap<String, i64> = (0..4).map(|index| (format!("p{index}"), 1000)).collect();
        let goal = Goal::Utilization(200, requested);
        // Three use half of their target; with the fourth at all of its own, 2.5 of 4 are enough.
        let replicas = propose(&goal, "rrrm", 1000, CPU).map(|p| (p.replicas, p.percent));
        assert_eq!(replicas, Ok((3, Some(100))));
    }

    #[test]
    fn what_is_requested_is_that_of_the_pod_or_of_its_containers() {
        let container = |name: &str, cpu: Value| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let check = |spec: Value, which: Option<&str>, expected: Result<i64, &str>| {
            let pod: Pod = of(json!({"metadata": {"name": "p"}, "spec": spec}));
            let all = requests(&[&pod], CPU, which).map(|all| all["p"]);
            assert_eq!(all, expected.map_err(str::to_owned), "{spec} {which:?}");
        };
        let two = json!({"containers": [container("a", "100m".into()), container("b", "1".into())]});
        check(two.clone(), None, Ok(1100));
        check(two.clone(), Some("a"), Ok(100));
        let mut whole = two.clone();
        whole["resources"] = json!({"requests": {"cpu": "3"}});
        check(whole.clone(), None, Ok(3000));
        check(whole, Some("b"), Ok(1000));
        let mut sidecar = two.clone();
        sidecar["initContainers"] = json!([container("i", "7".into()), container("s", "500m".into())]);
        sidecar["initContainers"][1]["restartPolicy"] = "Always".into();
        check(sidecar, None, Ok(1600));
        let mut without = two;
        without["containers"][1]["resources"] = json!({});
        check(without.clone(), None, Err("missing request for cpu in container b of Pod p"));
        check(without, Some("a"), Ok(100));
    }

    #[test]
    fn what_others_use_is_brought_to_a_value_or_shared() {
        let some = [pod(0, 'r'), pod(1, 'r'), pod(2, 'u')];
        let pods: Vec<&Pod> = some.iter().collect();
        for (current, used, expected) in
            [(3, 1000, 3), (3, 1090, 3), (3, 2000, 4), (3, 500, 1), (0, 2500, 3), (0, 0, 0)]
        {
            assert_eq!(by_value(current, used, 1000, &pods, TENTH), Ok(expected), "{current} {used}");
        }
        assert!(by_value(3, 2000, 1000, &[], TENTH).is_err());
        for (there_are, used, expected) in [
            (4, 4000, (4, 1000)),
            (4, 4300, (4, 1075)),
            (4, 8001, (9, 2001)),
            (4, 1000, (1, 250)),
            (0, 2500, (3, 2500)),
        ] {
            assert_eq!(by_share(there_are, used, 1000, TENTH), expected, "{there_are} {used}");
        }
    }
}
