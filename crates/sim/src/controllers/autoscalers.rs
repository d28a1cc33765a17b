//! Autoscalers of a Deployment, and the metrics that they go by: a server behind the API server that is slow, and lies.
//!
//! ```text
//!   the scale is read ─▶ the metrics are ─┬ told ─────▶ a number within the bounds is written
//!                                         └ not told ─▶ none is, but a bound where there are too few, or too many
//! ```
//!
//! How much there is to do stands in an annotation of the autoscaler: enough for so many pods. All that are ready share it, so
//! what is told of them asks for that number however many there are. A number is judged by the bounds that its writer knows,
//! which its cache shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, Effect, Manager, Method, Rng, Time};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use super::bounds::is_ready;
use super::wants::number;
use crate::chance::{below, between};
use crate::hosted::OwnOut;
use crate::invariants::Breach;
use crate::observer::{Observer, deleting, label, text};
use crate::role::Role;
use crate::wants::Want;
use crate::workload::{Act, What, create, delete, up_to};

/// The name of this part of the work.
pub(crate) const PART: &str = "autoscalers";
/// The invariants.
pub(crate) const BOUNDS: &str = "autoscaled-within-bounds";
pub(crate) const SILENCE: &str = "silence-scales-nothing";

/// The Deployment, and the label of its pods.
const NAME: &str = "autoscaled";
const SCALE: &str = "/apis/apps/v1/namespaces/default/deployments/autoscaled/scale";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
/// Annotation of an autoscaler: for how many pods there is enough to do.
const LOAD: &str = "sim.carrack.io/load";
/// What a pod is to use, in thousandths of a CPU: half of what it requests.
const EACH_MILLIS: i64 = 50;
const PERCENT: i64 = 50;
/// More than any autoscaler has may be asked for by hand.
const MOST_BY_HAND: u64 = 8;
/// In which somebody has taken an autoscaler away and makes another one.
const MOMENT: Duration = Duration::from_secs(2);
/// One answer in so many is late, and how late at the most.
const LATE_ONE_IN: u64 = 4;
const LATEST: Duration = Duration::from_secs(20);
/// Of so many answers, one each is of every kind of lie.
const LIES_IN: u64 = 10;
/// How the names begin of pods that nobody has.
const STRANGER: &str = "stranger-";

fn name(number: u64) -> String {
    format!("{NAME}{number}")
}

/// How much there is to do, and what an autoscaler may make of that.
fn drawn(rng: &mut Rng) -> Value {
    let rules = json!({"stabilizationWindowSeconds": 10 * rng.below(2),
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]});
    json!({"metadata": {"annotations": {LOAD: (1 + rng.below(9)).to_string()}},
        "spec": {"minReplicas": 1 + rng.below(2), "maxReplicas": 4 + rng.below(3),
            "behavior": {"scaleUp": rules, "scaleDown": rules}}})
}

fn make(rng: &mut Rng, at: Duration, number: u64) -> Act {
    let mut object = drawn(rng);
    object["metadata"]["namespace"] = "default".into();
    object["metadata"]["name"] = name(number).into();
    object["spec"]["scaleTargetRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME});
    let target = json!({"type": "Utilization", "averageUtilization": PERCENT});
    object["spec"]["metrics"] = json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
    create(at, HorizontalPodAutoscaler::resource(), object, Some(("autoscaler", Want::Workload)))
}

/// A Deployment that is scaled by hand, too, and an autoscaler that is edited, and taken away and made again. Each one that is
/// made has a name of its own: who repeats that the one before is to go means that one.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name: NAME, at, safety };
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let spec = json!({"replicas": 1 + rng.below(MOST_BY_HAND), "strategy": strategy,
        "selector": {"matchLabels": {"app": NAME}}, "template": template(NAME, 1)});
    work.create(spec, acts);
    let mut number = 0;
    acts.push(make(rng, work.at, number));
    for _ in 0..3 + rng.below(up_to(8, safety)) {
        work.at += between(rng, Duration::from_millis(200), safety / 6);
        if work.at >= safety {
            break;
        }
        match rng.below(4) {
            0 => work.patch(json!({"replicas": 1 + rng.below(MOST_BY_HAND)}), acts),
            1 => {
                let resource = HorizontalPodAutoscaler::resource();
                acts.push(delete(work.at, resource, "default", &name(number), "autoscaler"));
                number += 1;
                work.at += below(rng, MOMENT);
                acts.push(make(rng, work.at, number));
            }
            _ => {
                let what = What::Patch {
                    resource: HorizontalPodAutoscaler::resource(),
                    namespace: "default".into(),
                    name: name(number),
                    patch: drawn(rng),
                    kind: "autoscaler",
                    want: None,
                };
                acts.push(Act { at: work.at, what });
            }
        }
    }
}

fn load(autoscaler: &Value) -> i64 {
    label(autoscaler, "annotations", LOAD).parse().unwrap_or(0)
}

/// Why an autoscaler has not done yet what its metrics ask for.
pub(super) fn lacks(autoscaler: &Value, observer: &Observer) -> Option<String> {
    let (least, most) = (number(autoscaler, "/spec/minReplicas"), number(autoscaler, "/spec/maxReplicas"));
    let wanted = load(autoscaler).min(most).max(least);
    let deployment = observer.get("deployment", &format!("default/{NAME}"));
    let asked = deployment.map_or(0, |deployment| number(deployment, "/spec/replicas"));
    (asked != wanted).then(|| format!("has its target at {asked} replicas, and its metrics ask for {wanted}"))
}

/// What a controller has read for what it is about to decide.
#[derive(Debug, Default)]
struct Read {
    /// How many replicas its target is asked for.
    current: Option<i64>,
    /// It was told of a pod of its target.
    is_told: bool,
}

/// The server of metrics, and what processes have heard of it.
pub(crate) struct Autoscaled {
    rng: Rng,
    /// Reads that were not answered yet.
    asked: BTreeSet<(Role, CallId)>,
    read: BTreeMap<Role, Read>,
}

/// Whether a request is for the server of metrics.
pub(crate) fn is_asked(request: &ApiRequest) -> bool {
    path_of(request) == METRICS
}

fn path_of(request: &ApiRequest) -> &str {
    request.path.split('?').next().unwrap_or_default()
}

/// The bounds of all autoscalers that a process knows.
fn ranges(core: &Manager) -> Vec<(i64, i64)> {
    let view = core.view();
    let mut all = Vec::new();
    for (_, cache) in view.caches::<HorizontalPodAutoscaler>() {
        let of_target = cache.iter().filter(|hpa| hpa.spec.scale_target_ref.name == NAME);
        let bounds = of_target.map(|hpa| (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas));
        all.extend(bounds.map(|(least, most)| (i64::from(least), i64::from(most))));
    }
    all
}

impl Autoscaled {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, asked: BTreeSet::new(), read: BTreeMap::new() }
    }

    /// Answers what pods use, and how long that takes.
    pub(crate) fn serve(&mut self, now: Time, lies: bool, observer: &Observer) -> (ApiResponse, Duration) {
        let rng = &mut self.rng;
        let is_there = |pod: &&Value| label(pod, "labels", "app") == NAME && is_ready(pod) && !deleting(pod);
        let pods = observer.all("pod").filter(is_there).map(|pod| text(pod, "/metadata/name").to_owned());
        let mut pods: Vec<String> = pods.collect();
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX).max(1);
        let all = observer.all("autoscaler").map(load).max().unwrap_or(0).saturating_mul(EACH_MILLIS);
        let mut used = format!("{}m", all / count);
        let lie = if lies { rng.below(LIES_IN) } else { LIES_IN };
        match lie {
            0 => used = "0".into(),
            1 => used = i64::MAX.to_string(),
            2 => pods.retain(|_| rng.one_in(2)),
            3 => pods.iter_mut().for_each(|pod| pod.insert_str(0, STRANGER)),
            4 => pods.clear(),
            _ => {}
        }
        let takes = if lies && rng.one_in(LATE_ONE_IN) { below(rng, LATEST) } else { Duration::ZERO };
        let item = |pod: &String| {
            json!({"metadata": {"namespace": "default", "name": pod}, "timestamp": now.rfc3339(), "window": "1s",
                "containers": [{"name": "main", "usage": {"cpu": used, "memory": "1Mi"}}]})
        };
        let items: Vec<Value> = pods.iter().map(item).collect();
        let list = json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {},
            "items": items});
        (ApiResponse { status: 200, body: list.to_string().into() }, takes)
    }

    /// A role hears what it was answered.
    pub(crate) fn heard(&mut self, role: Role, id: CallId, result: &Result<ApiResponse, ApiError>) {
        if !self.asked.remove(&(role, id)) {
            return;
        }
        let Some(body) = result.as_ref().ok().and_then(|reply| reply.json::<Value>().ok()) else { return };
        let read = self.read.entry(role).or_default();
        if body["kind"] == "Scale" {
            read.current = Some(number(&body, "/spec/replicas"));
        } else {
            let mut items = body["items"].as_array().into_iter().flatten();
            read.is_told = items.any(|item| !text(item, "/metadata/name").starts_with(STRANGER));
        }
    }

    /// A manager has done a step, and sends this.
    pub(crate) fn sends(&mut self, role: Role, core: &Manager, effects: &[Effect<OwnOut>], breaches: &mut Vec<Breach>) {
        for effect in effects {
            if let Effect::Api(id, request) = effect {
                breaches.extend(self.sent(role, *id, request, || ranges(core)));
            }
        }
    }

    fn sent(
        &mut self,
        role: Role,
        id: CallId,
        request: &ApiRequest,
        ranges: impl FnOnce() -> Vec<(i64, i64)>,
    ) -> Option<Breach> {
        // Who has started anew counts its calls anew.
        self.asked.remove(&(role, id));
        match (request.method, path_of(request)) {
            // A decision begins.
            (Method::Get, SCALE) => {
                self.read.remove(&role);
                self.asked.insert((role, id));
                None
            }
            (Method::Get, METRICS) => {
                self.asked.insert((role, id));
                None
            }
            (Method::Patch, SCALE) => {
                let patch: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                judge(number(&patch, "/spec/replicas"), self.read.get(&role)?, &ranges())
            }
            _ => None,
        }
    }
}

/// What is wrong about a number of replicas, by the bounds of one autoscaler, or of any where a cache shows several.
fn judge(to: i64, read: &Read, ranges: &[(i64, i64)]) -> Option<Breach> {
    if ranges.is_empty() {
        return None;
    }
    if !ranges.iter().any(|(least, most)| (*least..=*most).contains(&to)) {
        let what = format!("{NAME} is to have {to} replicas, of least and most {ranges:?}");
        return Some(Breach::new(BOUNDS, what));
    }
    let current = read.current.filter(|_| !read.is_told)?;
    let is_brought_back =
        |(least, most): &(i64, i64)| current < *least && to == *least || current > *most && to == *most;
    (!ranges.iter().any(is_brought_back)).then(|| {
        let what = format!("{NAME} goes from {current} to {to} replicas, and no metrics are told of its pods");
        Breach::new(SILENCE, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: Role = Role::Controllers;

    fn answered(body: &Value) -> Result<ApiResponse, ApiError> {
        Ok(ApiResponse { status: 200, body: body.to_string().into() })
    }

    fn failed() -> Result<ApiResponse, ApiError> {
        Err(ApiError::Transport("no reply".into()))
    }

    /// A controller reads that there are so many, and is told of these pods, or of nothing; then it writes that there are to be
    /// so many, of two to five.
    fn check(current: i64, told: Option<&[&str]>, to: i64, expected: Option<&str>) {
        let mut autoscaled = Autoscaled::new(Rng::new(1));
        let send = |autoscaled: &mut Autoscaled, id: u64, method: Method, path: &str, body: &Value| {
            let request = ApiRequest { body: body.to_string().into(), ..ApiRequest::new(method, path) };
            autoscaled.sent(ROLE, CallId(id), &request, || vec![(2, 5)])
        };
        // What was told for the decision before is not told for this one.
        for (round, told) in [(0, Some(&["web-1"][..])), (1, told)] {
            let (scale, metrics) = (CallId(10 * round), CallId(10 * round + 1));
            assert_eq!(send(&mut autoscaled, scale.0, Method::Get, SCALE, &Value::Null), None);
            let body = json!({"kind": "Scale", "spec": {"replicas": current}});
            autoscaled.heard(ROLE, scale, &answered(&body));
            let path = format!("{METRICS}?labelSelector=app%3D{NAME}");
            assert_eq!(send(&mut autoscaled, metrics.0, Method::Get, &path, &Value::Null), None);
            let items =
                |names: &[&str]| names.iter().map(|name| json!({"metadata": {"name": name}})).collect::<Value>();
            let reply = told.map_or_else(failed, |names| answered(&json!({"items": items(names)})));
            autoscaled.heard(ROLE, metrics, &reply);
        }
        let found = send(&mut autoscaled, 99, Method::Patch, SCALE, &json!({"spec": {"replicas": to}}));
        let found = found.map(|breach| breach.invariant);
        assert_eq!(found, expected, "from {current} to {to}, told of {told:?}");
    }

    #[test]
    fn numbers_are_held_against_bounds_and_against_what_was_told() {
        let stranger = format!("{STRANGER}web-1");
        let pods: &[&str] = &["web-1"];
        let strangers: &[&str] = &[&stranger];
        check(3, Some(pods), 5, None);
        check(3, Some(pods), 2, None);
        check(3, Some(pods), 6, Some(BOUNDS));
        check(3, Some(pods), 1, Some(BOUNDS));
        for silent in [None, Some(&pods[..0]), Some(strangers)] {
            check(3, silent, 2, Some(SILENCE));
            check(3, silent, 4, Some(SILENCE));
            check(3, silent, 6, Some(BOUNDS));
            // Where there are too many or too few no metrics are needed.
            check(8, silent, 5, None);
            check(1, silent, 2, None);
            check(8, silent, 4, Some(SILENCE));
        }
    }

    #[test]
    fn whoever_does_not_lie_tells_of_all_pods_and_what_there_is_to_do() {
        let pod = |n: i64, ready: &str| {
            json!({"metadata": {"namespace": "default", "name": format!("web-{n}"), "labels": {"app": NAME}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}})
        };
        let autoscaler = json!({"metadata": {"namespace": "default", "name": name(0), "annotations": {LOAD: "6"}},
            "spec": {"minReplicas": 1, "maxReplicas": 5}});
        let deployment = |replicas: i64| {
            ("deployment", json!({"metadata": {"namespace": "default", "name": NAME}, "spec": {"replicas": replicas}}))
        };
        let mut autoscaled = Autoscaled::new(Rng::new(1));
        for (count, used) in [(1, "300m"), (4, "75m"), (6, "50m")] {
            let pods = (0..count).map(|n| ("pod", pod(n, "True"))).chain([("pod", pod(9, "False"))]);
            let observer = Observer::of(pods.chain([("autoscaler", autoscaler.clone()), deployment(count)]));
            let (reply, takes) = autoscaled.serve(Time::from_unix_s(100), false, &observer);
            let list: Value = reply.json().expect("JSON");
            assert_eq!(list["items"].as_array().map(Vec::len), usize::try_from(count).ok());
            assert_eq!((&list["items"][0]["containers"][0]["usage"]["cpu"], takes), (&json!(used), Duration::ZERO));
            assert!(lacks(&autoscaler, &observer).is_some(), "five are to be there, and {count} are");
        }
        assert_eq!(lacks(&autoscaler, &Observer::of([deployment(5)])), None);
    }

    #[test]
    fn in_the_end_there_is_one_autoscaler() {
        for (seed, safety_s) in (0..40).zip([4, 12, 90, 120].into_iter().cycle()) {
            let mut acts = Vec::new();
            super::acts(&mut Rng::new(seed), Duration::from_secs(safety_s), &mut acts);
            let mut there = BTreeSet::new();
            for act in &acts {
                match &act.what {
                    What::Create { object, .. } if object["kind"] == "HorizontalPodAutoscaler" => {
                        assert!(there.insert(text(object, "/metadata/name").to_owned()), "seed {seed}");
                    }
                    What::Delete { name, .. } => assert!(there.remove(name), "seed {seed}"),
                    What::Patch { name, kind: "autoscaler", .. } => assert!(there.contains(name), "seed {seed}"),
                    _ => {}
                }
            }
            assert!(acts.is_sorted_by_key(|act| act.at) && there.len() == 1, "seed {seed}: {there:?}");
        }
    }
}
