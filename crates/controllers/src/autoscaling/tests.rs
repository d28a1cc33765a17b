//! What an autoscaler does, by what its target is asked for and what its metrics tell.

use bytes::Bytes;
use carrack_engine::testing::Caches;
use carrack_engine::{ApiError, ApiResponse, Rng, StatusError, Write};
use serde_json::{Value, json};

use super::*;
use crate::testing::of;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ns/deployments/web/scale";
const CPU: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dweb";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns";
/// When stories begin.
const BEGIN_S: i64 = 100_000;

/// A target with its pods, autoscalers of it, and servers of metrics.
struct World {
    controller: HorizontalAutoscaler,
    /// Each with the status that was written last.
    autoscalers: BTreeMap<&'static str, Value>,
    replicas: i64,
    pods: i64,
    selector: &'static str,
    /// What is answered, by path. Nobody serves anything else.
    answers: BTreeMap<String, Result<Value, StatusError>>,
    definitions: Vec<Value>,
    asked: Vec<String>,
}

fn cpu_at_half() -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}})
}

impl World {
    /// So many replicas, each a pod that is ready, and an autoscaler by these metrics.
    fn of(replicas: i64, metrics: &[Value]) -> Self {
        let spec = json!({"minReplicas": 2, "maxReplicas": 10, "metrics": metrics,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
        let mut world = Self {
            controller: HorizontalAutoscaler::default(),
            autoscalers: BTreeMap::new(),
            replicas,
            pods: replicas,
            selector: "app=web",
            answers: BTreeMap::new(),
            definitions: Vec::new(),
            asked: Vec::new(),
        };
        world.add("h", spec);
        world
    }

    fn add(&mut self, name: &'static str, spec: Value) {
        let metadata = json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "generation": 3});
        self.autoscalers.insert(name, json!({"metadata": metadata, "spec": spec}));
    }

    fn answer(&mut self, path: impl Into<String>, items: Value) {
        self.answers.insert(path.into(), Ok(json!({"items": items})));
    }

    /// Each pod uses so many thousandths of a CPU.
    fn uses(&mut self, millis: i64) {
        let used = |index| {
            json!({"metadata": {"name": format!("p{index}")}, "timestamp": Time::from_unix_s(BEGIN_S).rfc3339(),
                "window": "15.5s", "containers": [{"name": "c", "usage": {"cpu": format!("{millis}m")}}]})
        };
        self.answer(CPU, (0..self.pods).map(used).collect());
    }

    fn reply(&self, path: &str) -> Result<ApiResponse, ApiError> {
        let scale = json!({"metadata": {"uid": "t", "resourceVersion": "7"}, "spec": {"replicas": self.replicas},
            "status": {"replicas": self.replicas, "selector": self.selector}});
        let body = match self.answers.get(path) {
            Some(Ok(body)) => body.clone(),
            Some(Err(error)) => return Err(ApiError::Status(Box::new(error.clone()))),
            None if path.ends_with("/scale") => scale,
            None => return Err(ApiError::from_reply(404, b"404 page not found")),
        };
        Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) })
    }

    fn caches(&self) -> Caches {
        let pod = |index: i64| {
            of::<Pod>(json!({"metadata": {"namespace": "ns", "name": format!("p{index}"), "labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
                "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z", "conditions":
                    [{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:10Z"}]}}))
        };
        let custom = json!({"metadata": {"name": "custom.metrics.k8s.io"}, "versions": [{"version": "v1beta1"}]});
        Caches::new()
            .with::<HorizontalPodAutoscaler>(self.autoscalers.values().cloned().map(of))
            .with::<Pod>((0..self.pods).map(pod))
            .with::<Definition>(self.definitions.iter().cloned().map(of))
            .with_source::<GroupDiscovery>(GroupDiscovery::source(), [of(custom)])
    }

    fn plan(&mut self, name: &str, second: i64) -> Plan {
        let mut answers: Vec<(String, Result<ApiResponse, ApiError>)> = Vec::new();
        loop {
            let caches = answers
                .iter()
                .fold(self.caches(), |caches, (path, answer)| caches.answering(path.clone(), answer.clone()));
            let plan = self.controller.reconcile(&Key::new("ns", name), &caches.view(), Time::from_unix_s(second));
            if plan.asks.is_empty() {
                return plan;
            }
            for ask in plan.asks {
                answers.push((ask.path.clone(), self.reply(&ask.path)));
                self.asked.push(ask.path);
            }
        }
    }

    /// Looks so long after the beginning, and does what is planned. What the target was changed to, and what was told.
    fn look(&mut self, name: &'static str, after_s: i64) -> (Option<i64>, Vec<String>) {
        let plan = self.plan(name, BEGIN_S + after_s);
        assert_eq!((plan.error.as_deref(), plan.requeue_after), (None, Some(SYNC)));
        let mut changed = None;
        for write in &plan.writes {
            match write {
                Write::Patch { patch, sub: target::SCALE, .. } => {
                    assert_eq!(patch["metadata"], json!({"uid": "t", "resourceVersion": "7"}));
                    changed = patch["spec"]["replicas"].as_i64();
                }
                Write::Update { object, sub: "status", .. } => {
                    self.autoscalers.insert(name, object.clone());
                }
                other => panic!("{other:?}"),
            }
        }
        self.replicas = changed.unwrap_or(self.replicas);
        self.pods = self.replicas;
        let told = plan.events.iter().chain(plan.told.iter().map(|(_, event)| event));
        (changed, told.map(|event| format!("{}: {}", event.reason, event.message)).collect())
    }

    /// A condition of the autoscaler `h`: its status and reason.
    fn condition(&self, type_: &str) -> String {
        let all = self.autoscalers["h"]["status"]["conditions"].as_array();
        let found = all.into_iter().flatten().find(|condition| condition["type"] == type_);
        let word = |field: &str| found.map_or("", |condition| condition[field].as_str().unwrap_or_default());
        format!("{} {}", word("status"), word("reason"))
    }
}

#[test]
fn a_target_grows_at_once_and_shrinks_when_nothing_more_was_asked_for() {
    let mut world = World::of(3, &[cpu_at_half()]);
    world.uses(1000);
    let reason = "cpu resource utilization (percentage of request) above target";
    assert_eq!(world.look("h", 0), (Some(6), vec![format!("SuccessfulRescale: New size: 6; reason: {reason}")]));
    assert_eq!(world.asked, [DEPLOYMENT, CPU]);
    let status = world.autoscalers["h"]["status"].clone();
    assert_eq!(
        status["currentMetrics"][0]["resource"]["current"],
        json!({"averageUtilization": 100, "averageValue": "1"})
    );
    let counts = ["currentReplicas", "desiredReplicas", "observedGeneration"].map(|field| status[field].as_i64());
    assert_eq!(counts, [Some(3), Some(6), Some(3)]);
    assert_eq!(status["lastScaleTime"], Time::from_unix_s(BEGIN_S).rfc3339());
    let conditions = |world: &World| [ABLE, ACTIVE, LIMITED].map(|type_| world.condition(type_));
    assert_eq!(conditions(&world), ["True SucceededRescale", "True ValidMetricFound", "False DesiredWithinRange"]);
    world.uses(250);
    for after_s in [15, 299] {
        assert_eq!(world.look("h", after_s), (None, vec![]), "{after_s}");
        assert_eq!(world.condition(ABLE), "True ScaleDownStabilized");
    }
    assert_eq!(
        world.look("h", 300),
        (Some(3), vec!["SuccessfulRescale: New size: 3; reason: All metrics below target".to_owned()])
    );
    // What is as it was is not written again.
    world.uses(500);
    assert_eq!(world.look("h", 315), (None, vec![]));
    assert_eq!(conditions(&world), ["True ReadyForNewScale", "True ValidMetricFound", "False DesiredWithinRange"]);
    assert!(world.plan("h", BEGIN_S + 330).writes.is_empty());
    // Who begins anew does not know what was asked for before.
    world.controller.begin();
    world.uses(100);
    assert_eq!([world.look("h", 345).0, world.look("h", 644).0, world.look("h", 645).0], [None, None, Some(2)]);
    assert_eq!(world.condition(LIMITED), "True TooFewReplicas");
}

#[test]
fn a_number_out_of_its_range_needs_no_metrics() {
    for (replicas, changed, told) in [
        (12, Some(10), "SuccessfulRescale: New size: 10; reason: Current number of replicas above Spec.MaxReplicas"),
        (1, Some(2), "SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas"),
        (0, None, ""),
    ] {
        let mut world = World::of(replicas, &[cpu_at_half()]);
        let told: Vec<String> = Some(told.to_owned()).filter(|told| !told.is_empty()).into_iter().collect();
        assert_eq!(world.look("h", 0), (changed, told), "{replicas}");
        assert_eq!(world.asked, [DEPLOYMENT], "{replicas}");
        let active = if replicas == 0 { "False ScalingDisabled" } else { " " };
        assert_eq!(world.condition(ACTIVE), active, "{replicas}");
    }
}

#[test]
fn what_cannot_be_read_is_told_and_changes_nothing() {
    let check = |change: &dyn Fn(&mut World), condition: (&str, &str), expected: &[&str]| {
        let mut world = World::of(3, &[cpu_at_half()]);
        change(&mut world);
        let (changed, told) = world.look("h", 0);
        assert_eq!((changed, world.condition(condition.0)), (None, format!("False {}", condition.1)), "{told:?}");
        assert_eq!(told, expected);
    };
    let target = |kind: &'static str| {
        move |world: &mut World| {
            let mut spec = world.autoscalers["h"]["spec"].clone();
            spec["scaleTargetRef"] = json!({"apiVersion": "example.com/v1", "kind": kind, "name": "web"});
            world.add("h", spec);
        }
    };
    let about = "failed to get cpu utilization: unable to get metrics for resource cpu: ";
    let all = "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu \
               resource metric value: ";
    let absent = "unable to fetch metrics from resource metrics API: the server could not find the requested resource \
                  (get pods.metrics.k8s.io)";
    let none = "no metrics returned from resource metrics API";
    for (why, answer) in [(absent, None), (none, Some(json!([])))] {
        check(
            &|world| answer.iter().for_each(|items| world.answer(CPU, items.clone())),
            (ACTIVE, "FailedGetResourceMetric"),
            &[&format!("FailedGetResourceMetric: {about}{why}"), &format!("{all}{about}{why}")],
        );
    }
    let why = "selector is required";
    check(
        &|world| world.selector = "",
        (ACTIVE, "InvalidSelector"),
        &[&format!("SelectorRequired: {why}"), &format!("FailedComputeMetricsReplicas: {why}")],
    );
    let why = "no matches for kind \"Thing\" in group \"example.com\"";
    check(&target("Thing"), (ABLE, "FailedGetScale"), &[&format!("FailedGetScale: {why}")]);
    let gone = || {
        let message = "deployments.apps \"web\" not found".to_owned();
        StatusError { code: 404, reason: "NotFound".into(), message, ..StatusError::default() }
    };
    check(
        &|world| _ = world.answers.insert(DEPLOYMENT.to_owned(), Err(gone())),
        (ABLE, "FailedGetScale"),
        &["FailedGetScale: deployments.apps \"web\" not found"],
    );
    // Of a definition's kind it is read where that is.
    let mut world = World::of(12, &[cpu_at_half()]);
    target("Fleet")(&mut world);
    world.definitions.push(json!({"metadata": {"name": "fleets.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "fleets", "kind": "Fleet"}, "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}}));
    assert_eq!(world.look("h", 0).0, Some(10));
    assert_eq!(world.asked, ["/apis/example.com/v1/namespaces/ns/fleets/web/scale"]);
}

#[test]
fn the_metric_that_asks_for_most_counts_and_one_that_fails_only_keeps_what_there_is() {
    let value = |amount: &str| json!({"type": "Value", "value": amount});
    let share = |amount: &str| json!({"type": "AverageValue", "averageValue": amount});
    let pods = || json!({"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": share("10")}});
    let object = |target: Value| {
        json!({"type": "Object", "object": {"metric": {"name": "hits"}, "target": target,
            "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "main"}}})
    };
    let external = |target: Value| {
        json!({"type": "External", "external": {"metric": {"name": "queue", "selector": {"matchLabels": {"q": "1"}}},
            "target": target}})
    };
    let container = json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
        "target": share("250m")}});
    let check = |metrics: &[Value], expected: Option<i64>, by: &str| {
        let mut world = World::of(4, metrics);
        world.uses(250);
        let of_pod = |index: i64| json!({"describedObject": {"name": format!("p{index}")}, "value": "20"});
        world.answer(format!("{CUSTOM}/pods/*/requests?labelSelector=app%3Dweb"), (0..4).map(of_pod).collect());
        world.answer(format!("{CUSTOM}/services/main/hits"), json!([{"value": "60"}]));
        world.answer(format!("{EXTERNAL}/queue?labelSelector=q%3D1"), json!([{"value": "15"}, {"value": "30500m"}]));
        let (changed, told) = world.look("h", 300);
        assert_eq!(changed, expected, "{metrics:?}: {told:?}");
        let words = told.last().map_or("", |told| told.as_str());
        assert!(words.contains(by), "{words} instead of {by}");
        // Each status stands where its metric does.
        let statuses = world.autoscalers["h"]["status"]["currentMetrics"].as_array().map_or(0, Vec::len);
        assert_eq!(statuses, metrics.len(), "{metrics:?}");
    };
    check(&[pods()], Some(8), "pods metric requests above target");
    check(&[object(value("40"))], Some(6), "Service metric hits above target");
    check(&[object(share("12"))], Some(5), "external metric hits(nil) above target");
    let selector =
        "&LabelSelector{MatchLabels:map[string]string{q: 1,},MatchExpressions:[]LabelSelectorRequirement{},}";
    check(&[external(value("30"))], Some(7), &format!("external metric queue({selector}) above target"));
    check(&[external(share("5"))], Some(8), &format!("external metric queue({selector}) above target"));
    check(std::slice::from_ref(&container), None, "");
    let absent = json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "d",
        "target": share("250m")}});
    let mut world = World::of(4, &[absent]);
    world.uses(250);
    let (changed, told) = world.look("h", 300);
    let told = told.concat();
    assert!(changed.is_none() && told.contains("container d not present in metrics for pod ns/p"), "{told}");
    check(&[cpu_at_half(), pods(), object(value("40"))], Some(8), "pods metric requests above target");
    // Nobody serves this one.
    let unserved = || {
        let mut metric = object(value("40"));
        metric["object"]["metric"]["name"] = "misses".into();
        metric
    };
    check(&[unserved(), pods()], Some(8), "pods metric requests above target");
    let why = "invalid metrics (1 invalid out of 2), first error is: failed to get object metric value: unable to get metric \
               misses: Service on ns main/unable to fetch metrics from custom metrics API: the server could not find the \
               requested resource (get services.custom.metrics.k8s.io)";
    check(&[cpu_at_half(), unserved()], None, why);
}

/// Whatever metrics say, and however often they say nothing: a number stays in its range; for five minutes after more was asked
/// for it is no less than that; and nothing is done about it where nothing is known.
#[test]
fn no_lie_takes_a_number_out_of_its_bounds() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut world = World::of(4, &[cpu_at_half()]);
        let mut asked_for: Vec<(i64, i64)> = Vec::new();
        for look in 0..200 {
            let after_s = look * 15;
            let before = world.replicas;
            let is_silent = rng.one_in(4);
            if is_silent {
                world.answers.remove(CPU);
            } else {
                world.uses(i64::try_from(rng.below(3000)).unwrap_or(0));
            }
            if rng.one_in(5)
                && let Some(Ok(list)) = world.answers.get_mut(CPU)
                && let Some(items) = list["items"].as_array_mut()
            {
                items.pop();
            }
            let (changed, told) = world.look("h", after_s);
            let about = format!("seed {seed}, after {after_s} s: from {before} to {changed:?}");
            assert!((2..=10).contains(&world.replicas), "{about}");
            assert!(!is_silent || changed.is_none(), "{about}, by nothing");
            asked_for.retain(|(_, at_s)| after_s - at_s < 300);
            if told.iter().any(|told| told.ends_with("above target")) {
                asked_for.push((before + 1, after_s));
            }
            for (least, at_s) in &asked_for {
                assert!(world.replicas >= *least, "{about}, and {least} were asked for after {at_s} s");
            }
        }
    }
}

#[test]
fn pods_of_two_autoscalers_are_nobodys() {
    let mut world = World::of(3, &[cpu_at_half()]);
    world.uses(500);
    let spec = world.autoscalers["h"]["spec"].clone();
    world.add("g", spec);
    assert_eq!(world.look("h", 0).1, Vec::<String>::new());
    let why = "pods by selector app=web are controlled by multiple HPAs: [{g ns} {h ns}]";
    let told = [format!("AmbiguousSelector: {why}"), format!("FailedComputeMetricsReplicas: {why}")];
    assert_eq!([world.look("g", 1).1, world.look("h", 2).1], [told.clone(), told]);
    assert_eq!(world.condition(ACTIVE), "False AmbiguousSelector");
    // Until one of them is gone.
    world.autoscalers.remove("g");
    assert!(world.plan("g", BEGIN_S + 3).is_none());
    assert_eq!(world.look("h", 4).1, Vec::<String>::new());
}

#[test]
fn a_change_that_is_refused_is_told_and_not_counted() {
    let mut world = World::of(3, &[cpu_at_half()]);
    let mut spec = world.autoscalers["h"]["spec"].clone();
    spec["behavior"] = json!({"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}]}});
    world.add("h", spec);
    world.uses(1000);
    let plan = world.plan("h", BEGIN_S);
    let error = StatusError { code: 403, message: "no".into(), ..StatusError::default() };
    let refuse = |world: &mut World, write: &Write| {
        let caches = world.caches();
        let refusal = Refusal { write, error: &error };
        let plan = world.controller.refused(&Key::new("ns", "h"), &caches.view(), &refusal, Time::from_unix_s(BEGIN_S));
        let told: Vec<_> = plan.events.iter().map(|event| format!("{}: {}", event.reason, event.message)).collect();
        (plan.writes.len(), told)
    };
    let reason = "cpu resource utilization (percentage of request) above target";
    let told = vec![format!("FailedRescale: New size: 4; reason: {reason}; error: no")];
    assert_eq!(refuse(&mut world, &plan.writes[0]), (1, told));
    assert_eq!(refuse(&mut world, &plan.writes[1]), (0, vec!["FailedUpdateStatus: no".to_owned()]));
    // The one that its policy lets it have is still to come; the next one is not.
    assert_eq!(world.look("h", 15).0, Some(4));
    world.uses(1000);
    assert_eq!((world.look("h", 30).0, world.condition(LIMITED)), (None, "True ScaleUpLimit".to_owned()));
}

#[test]
fn planted_bugs_forget_bounds_and_take_silence_for_nothing() {
    for (planted, uses, looks, expected) in [
        (None, Some(1000), &[0][..], Some(10)),
        (Some(Planted::BoundsForgotten), Some(1000), &[0][..], Some(16)),
        (None, None, &[0, 300][..], None),
        (Some(Planted::SilenceIsZero), None, &[0, 300][..], Some(2)),
    ] {
        let mut world = World::of(8, &[cpu_at_half()]);
        world.controller = HorizontalAutoscaler::default().with_planted(planted);
        if let Some(millis) = uses {
            world.uses(millis);
        }
        let changes: Vec<Option<i64>> = looks.iter().map(|after_s| world.look("h", *after_s).0).collect();
        assert_eq!(changes.last(), Some(&expected), "{planted:?}: {changes:?}");
    }
}
