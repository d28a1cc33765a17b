//! The core by hand: what it asks of the API, and what it answers when the API answers, is silent, or has changed.

use carrack_engine::{ApiError, ApiRequest, ApiResponse, Effect, Method, WatchId, WatchItem};
use serde_json::{Value, json};

use super::*;

mod disputes;

struct Bench {
    core: GpuExtender,
    fx: Effects<Reply>,
    now: Time,
    calls: Vec<(CallId, ApiRequest)>,
    watches: Vec<(WatchId, String)>,
    timers: Vec<(Time, TimerId)>,
    replies: BTreeMap<u64, Value>,
    asked: u64,
}

fn node(name: &str, gpus: u32) -> Value {
    let room = json!({"tencent.com/vcuda-core": (100 * gpus).to_string(), "tencent.com/vcuda-memory": (16 * gpus).to_string()});
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "status": {"capacity": room, "allocatable": room}})
}

fn pod(name: &str, cores: u32) -> Value {
    json!({"metadata": {"namespace": "d", "name": name, "uid": format!("u-{name}"), "resourceVersion": "10"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {
            "tencent.com/vcuda-core": cores.to_string(), "tencent.com/vcuda-memory": "4"}}}]}})
}

fn bound(mut pod: Value, node: &str, gpus: &str, revision: u64) -> Value {
    pod["metadata"]["annotations"] = json!({"tencent.com/predicate-node": node, "tencent.com/predicate-gpu-idx-0": gpus,
        "tencent.com/predicate-time": "1", "tencent.com/gpu-assigned": "false"});
    pod["metadata"]["resourceVersion"] = revision.to_string().into();
    pod["spec"]["nodeName"] = node.into();
    pod
}

fn status(code: u16, reason: &str) -> Result<Value, ApiError> {
    Err(ApiError::from_reply(code, json!({"code": code, "reason": reason, "message": "no"}).to_string().as_bytes()))
}

const LOST: Result<Value, ApiError> = Ok(Value::Null);

impl Bench {
    fn started(pods: &[Value], nodes: &[Value]) -> Self {
        let mut bench = Self::fresh();
        bench.give(Input::Start);
        for (part, items) in [("/nodes", nodes), ("/pods", pods)] {
            bench.answer(part, Ok(json!({"metadata": {"resourceVersion": "5"}, "items": items})));
        }
        bench
    }
    fn fresh() -> Self {
        Self {
            core: GpuExtender::new(Config::default(), &Rng::new(1)),
            fx: Effects::new(),
            now: Time::from_unix_s(1_000),
            calls: Vec::new(),
            watches: Vec::new(),
            timers: Vec::new(),
            replies: BTreeMap::new(),
            asked: 0,
        }
    }
    fn give(&mut self, input: Input<Call>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => self.calls.push((id, request)),
                Effect::Watch(id, request) => self.watches.push((id, request.path)),
                Effect::Timer(id, at) => self.timers.push((at, id)),
                Effect::Own(reply) => {
                    let body = serde_json::from_slice(&reply.body).unwrap_or_default();
                    assert!(self.replies.insert(reply.id, body).is_none(), "answered twice");
                }
                Effect::Unwatch(_) => {}
                Effect::Exit(why) => panic!("{why}"),
            }
        }
    }
    /// Answers the oldest request whose method and path hold a text; returns its body. `LOST` is no reply.
    fn answer(&mut self, part: &str, result: Result<Value, ApiError>) -> Value {
        let at = self.calls.iter().position(|(_, r)| format!("{:?} {}", r.method, r.path).contains(part));
        let at = at.unwrap_or_else(|| panic!("nothing like {part} was sent: {:?}", self.calls));
        let (id, request) = self.calls.remove(at);
        let result = match result {
            Ok(Value::Null) => Err(ApiError::Transport("lost".into())),
            other => other.map(|body| ApiResponse { status: 200, body: body.to_string().into() }),
        };
        self.give(Input::Api { id, result });
        serde_json::from_slice(&request.body).unwrap_or_default()
    }
    fn ask(&mut self, verb: Verb, body: &Value) -> u64 {
        self.asked += 1;
        let call = Call { id: self.asked, verb, body: body.to_string().into() };
        self.give(Input::Own(call));
        self.asked
    }
    fn said(&mut self, verb: Verb, body: &Value) -> Value {
        let id = self.ask(verb, body);
        self.replies.get(&id).cloned().expect("an answer at once")
    }
    fn filter(&mut self, pod: &Value, nodes: &[&str]) -> Value {
        self.said(Verb::Filter, &json!({"Pod": pod, "NodeNames": nodes}))["NodeNames"].clone()
    }
    fn bind(&mut self, name: &str, node: &str) -> u64 {
        let body = json!({"PodName": name, "PodNamespace": "d", "PodUID": format!("u-{name}"), "Node": node});
        self.ask(Verb::Bind, &body)
    }
    fn error(&self, id: u64) -> Option<&str> {
        self.replies.get(&id).map(|reply| reply["Error"].as_str().expect("a text"))
    }
    fn watch(&mut self, kind: &str, object: &Value) {
        self.watch_of("/pods", kind, object);
    }
    fn watch_of(&mut self, resource: &str, kind: &str, object: &Value) {
        let (id, _) = *self.watches.iter().rev().find(|(_, path)| path.contains(resource)).expect("a watch");
        let event = json!({"type": kind, "object": object}).to_string();
        self.give(Input::Watch { id, item: WatchItem::Event(event.into()) });
    }
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.timers.iter().enumerate().filter(|(_, t)| t.0 <= until).min_by_key(|(_, t)| t.0) {
            let (at, id) = self.timers.remove(at.0);
            self.now = self.now.max(at);
            self.give(Input::Timer(id));
        }
        self.now = until;
    }
    fn stages(&self) -> Vec<(&str, &str)> {
        self.core.ledger().iter().map(|(uid, entry)| (uid, entry.stage.name())).collect()
    }
}

#[test]
fn two_filters_never_give_one_gpu_twice_and_one_filter_twice_says_the_same() {
    let mut b = Bench::started(&[], &[node("n1", 1), node("n2", 1)]);
    assert_eq!(b.filter(&pod("a", 100), &["n1", "n2"]), json!(["n1"]));
    assert_eq!(b.filter(&pod("b", 100), &["n1", "n2"]), json!(["n2"]));
    assert_eq!(b.filter(&pod("c", 100), &["n1", "n2"]), json!([]));
    assert_eq!(b.filter(&pod("a", 100), &["n2", "n1"]), json!(["n1"]));
    // Its node is not among those in question any more: another one, if there is one.
    assert_eq!(b.filter(&pod("a", 100), &["n2"]), json!([]));
    assert_eq!(b.filter(&pod("c", 100), &["n1", "n2"]), json!(["n1"]));
    // What nobody binds is free some day.
    b.wait(Duration::from_secs(61));
    assert_eq!(b.filter(&pod("d", 100), &["n2"]), json!(["n2"]));
    assert_eq!(b.stages(), [("u-d", "offered")]);
    assert!(b.calls.is_empty(), "a filter writes nothing: {:?}", b.calls);
}

#[test]
fn reasons_tell_the_full_from_the_hopeless() {
    let mut b = Bench::started(&[bound(pod("a", 50), "n1", "0", 3)], &[node("n1", 1), node("n2", 2), node("n3", 1)]);
    let said = b.said(Verb::Filter, &json!({"Pod": pod("b", 200), "NodeNames": ["n1", "n3", "n4"]}));
    assert_eq!(said["NodeNames"], json!([]));
    assert!(said["FailedAndUnresolvableNodes"]["n3"].is_string() && said["FailedNodes"]["n4"].is_string(), "{said}");
    let said = b.said(Verb::Filter, &json!({"Pod": pod("b", 60), "NodeNames": ["n1", "n2", "n3"]}));
    assert_eq!((&said["NodeNames"], &said["Error"]), (&json!(["n3"]), &json!("")));
    assert!(said["FailedNodes"]["n1"].as_str().is_some_and(|why| why.contains("60 cores")), "{said}");
    assert!(said["FailedAndUnresolvableNodes"]["n2"].as_str().is_some_and(|why| why.contains("n3")), "{said}");
    let said = b.said(Verb::Filter, &json!({"Pod": pod("odd", 150), "NodeNames": ["n2"]}));
    assert!(said["FailedAndUnresolvableNodes"]["n2"].as_str().is_some_and(|why| why.contains("hundreds")), "{said}");
    let mut plain = pod("plain", 0);
    plain["spec"]["containers"][0]["resources"] = Value::Null;
    assert_eq!(b.filter(&plain, &["n1", "n2"]), json!(["n1", "n2"]));
    let scores = b.said(Verb::Prioritize, &json!({"Pod": pod("b", 60), "NodeNames": ["n3", "n2", "n1"]}));
    assert_eq!(scores, json!([{"Host": "n3", "Score": 10}, {"Host": "n2", "Score": 0}, {"Host": "n1", "Score": 0}]));
}

#[test]
fn bad_questions_and_early_ones() {
    let mut b = Bench::fresh();
    b.give(Input::Start);
    let said = b.said(Verb::Filter, &json!({"Pod": pod("a", 50), "NodeNames": ["n1"]}));
    assert!(said["Error"].as_str().is_some_and(|why| why.contains("not ready")), "{said}");
    assert!(said["NodeNames"].is_null());
    b.answer("/nodes", Ok(json!({"metadata": {"resourceVersion": "5"}, "items": [node("n1", 1)]})));
    assert!(!b.core.is_ready());
    b.answer("/pods", LOST);
    b.wait(Duration::from_secs(1));
    b.answer("/pods", Ok(json!({"metadata": {"resourceVersion": "5"}, "items": []})));
    assert!(b.core.is_ready());
    for verb in [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind] {
        let said = b.said(verb, &json!({"Pod": 7}));
        assert!(said["Error"].as_str().is_some_and(|why| !why.is_empty()), "{said}");
    }
    let said = b.said(Verb::Filter, &json!({"Pod": {"spec": {"containers": []}}, "NodeNames": ["n1"]}));
    assert!(said["Error"].as_str().is_some_and(|why| why.contains("UID")), "{said}");
}

#[test]
fn a_binding_writes_the_choice_and_holds_it() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 2)]);
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    let id = b.bind("a", "n1");
    let patch = b.answer("Patch /api/v1/namespaces/d/pods/a", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    assert_eq!(patch["metadata"]["uid"], "u-a");
    assert_eq!(patch["metadata"]["resourceVersion"], "10");
    let written = &patch["metadata"]["annotations"];
    assert_eq!(written["tencent.com/predicate-gpu-idx-0"], "0");
    assert_eq!(written["tencent.com/predicate-node"], "n1");
    assert_eq!(written["tencent.com/gpu-assigned"], "false");
    assert_eq!(b.error(id), None);
    let binding = b.answer("Post /api/v1/namespaces/d/pods/a/binding", Ok(json!({})));
    assert_eq!((&binding["metadata"]["resourceVersion"], &binding["target"]["name"]), (&json!("11"), &json!("n1")));
    assert_eq!(b.error(id), Some(""));
    // Twice is as good as once, and elsewhere is an error.
    let again = b.bind("a", "n1");
    let elsewhere = b.bind("a", "n2");
    assert_eq!(b.error(again), Some(""));
    assert!(b.error(elsewhere).is_some_and(|why| why.contains("bound to n1")));
    // A watch that lags changes nothing, and neither does who edits annotations.
    b.watch("MODIFIED", &{
        let mut old = pod("a", 100);
        old["metadata"]["resourceVersion"] = "11".into();
        old
    });
    b.watch("MODIFIED", &bound(pod("a", 100), "n1", "1", 13));
    assert_eq!(b.core.ledger().get("u-a").expect("held").places.values().next(), Some(&vec![0]));
    assert_eq!(b.filter(&pod("b", 200), &["n1"]), json!([]));
    // It ends, and gives back what it had.
    let mut over = bound(pod("a", 100), "n1", "0", 14);
    over["status"] = json!({"phase": "Succeeded"});
    b.watch("MODIFIED", &over);
    assert_eq!(b.filter(&pod("b", 200), &["n1"]), json!(["n1"]));
    b.watch("DELETED", &over);
    assert_eq!(b.stages(), [("u-b", "offered")]);
}

#[test]
fn a_pod_is_placed_where_the_scheduler_says_or_not_at_all() {
    let mut b = Bench::started(&[pod("a", 100), pod("b", 100)], &[node("n1", 1), node("n2", 1)]);
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    // The scheduler took another node, or the offer has ended: places are found there, if there are any.
    let first = b.bind("a", "n2");
    b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    b.answer("binding", Ok(json!({})));
    assert_eq!(b.error(first), Some(""));
    let second = b.bind("b", "n2");
    assert!(b.error(second).is_some_and(|why| why.contains("0 of 1 whole GPUs")), "{:?}", b.error(second));
    assert_eq!(b.stages(), [("u-a", "held")]);
}

#[test]
fn what_became_of_a_lost_binding_is_read_live() {
    let begin = || {
        let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
        let id = b.bind("a", "n1");
        b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
        b.answer("binding", LOST);
        (b, id)
    };
    let at = |revision: &str| {
        let mut pod = bound(pod("a", 100), "n1", "0", revision.parse().expect("a number"));
        pod["spec"]["nodeName"] = Value::Null;
        pod
    };
    // It took effect.
    let (mut b, id) = begin();
    b.answer("Get /api/v1/namespaces/d/pods/a", Ok(bound(pod("a", 100), "n1", "0", 12)));
    assert_eq!((b.error(id), b.stages()), (Some(""), vec![("u-a", "held")]));
    // It did not, or not yet: once more.
    let (mut b, id) = begin();
    b.answer("Get", Ok(at("11")));
    b.wait(Duration::from_secs(1));
    b.answer("binding", status(409, "Conflict"));
    b.answer("Get", Ok(bound(pod("a", 100), "n1", "0", 12)));
    assert_eq!((b.error(id), b.stages()), (Some(""), vec![("u-a", "held")]));
    // Somebody has written the pod: from the beginning.
    let (mut b, id) = begin();
    b.answer("Get", Ok(at("12")));
    assert_eq!(
        b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "13"}})))["metadata"]["resourceVersion"],
        "12"
    );
    assert_eq!(b.answer("binding", Ok(json!({})))["metadata"]["resourceVersion"], "13");
    assert_eq!(b.error(id), Some(""));
    // It went to another node.
    let (mut b, id) = begin();
    b.answer("Get", Ok(bound(pod("a", 100), "n2", "0", 12)));
    assert!(b.error(id).is_some_and(|why| why.contains("bound to n2")));
    assert_eq!(b.core.ledger().get("u-a").map(|e| e.node.as_str()), Some("n2"));
    // It is gone, and another one has its name.
    for gone in [status(404, "NotFound"), Ok(json!({"metadata": {"name": "a", "uid": "other"}}))] {
        let (mut b, id) = begin();
        b.answer("Get", gone);
        assert!(b.error(id).is_some_and(|why| why.contains("gone")) && b.stages().is_empty());
    }
}

#[test]
fn a_binding_that_takes_too_long_is_undone_before_its_gpus_are_free() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
    let id = b.bind("a", "n1");
    b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    b.wait(Duration::from_secs(5));
    assert!(b.error(id).is_some_and(|why| why.contains("not known yet")), "{:?}", b.error(id));
    b.answer("binding", LOST);
    let mut unbound = bound(pod("a", 100), "n1", "0", 11);
    unbound["spec"]["nodeName"] = Value::Null;
    b.answer("Get", Ok(unbound.clone()));
    assert_eq!(b.filter(&pod("b", 100), &["n1"]), json!([]), "the Binding may still arrive");
    let said = b.said(Verb::Filter, &json!({"Pod": pod("a", 100), "NodeNames": ["n1"]}));
    assert!(said["Error"].as_str().is_some_and(|why| why.contains("being undone")), "{said}");
    b.wait(Duration::ZERO);
    b.answer("Get", Ok(unbound));
    let patch = b.answer("Patch", LOST);
    assert_eq!(patch["metadata"]["annotations"]["tencent.com/predicate-node"], Value::Null);
    assert_eq!(patch["metadata"]["resourceVersion"], "11");
    // Whether they were taken away is not known: the pod itself tells.
    b.wait(Duration::from_secs(1));
    let mut cleared = pod("a", 100);
    cleared["metadata"]["resourceVersion"] = "12".into();
    b.answer("Get", Ok(cleared));
    assert_eq!(b.stages(), []);
    assert_eq!(b.filter(&pod("b", 100), &["n1"]), json!(["n1"]));
}

#[test]
fn a_refused_binding_releases() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
    let id = b.bind("a", "n1");
    b.answer("Patch", status(403, "Forbidden"));
    assert!(b.error(id).is_some_and(|why| why.contains("Forbidden")));
    assert_eq!(b.stages(), []);
    // A pod that the cache does not know yet is read first.
    let id = b.bind("new", "n1");
    b.answer("Get", status(503, "ServiceUnavailable"));
    b.wait(Duration::from_secs(1));
    b.answer("Get /api/v1/namespaces/d/pods/new", Ok(pod("new", 100)));
    b.answer("Patch /api/v1/namespaces/d/pods/new", status(409, "Conflict"));
    let mut newer = pod("new", 100);
    newer["metadata"]["resourceVersion"] = "20".into();
    b.answer("Get /api/v1/namespaces/d/pods/new", Ok(newer));
    b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "21"}})));
    b.answer("binding", Ok(json!({})));
    assert_eq!((b.error(id), b.stages()), (Some(""), vec![("u-new", "held")]));
    // The cache never shows it: it was deleted at once, and a list came between. A live read tells.
    b.wait(Duration::from_secs(11));
    b.answer("Get /api/v1/namespaces/d/pods/new", status(404, "NotFound"));
    assert_eq!(b.stages(), []);
}

/// The scheduler tries again while the annotations of the failed attempt are being taken away.
#[test]
fn an_offer_outlives_the_end_of_the_attempt_before_it() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
    let id = b.bind("a", "n1");
    b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    b.answer("binding", status(403, "Forbidden"));
    assert!(b.error(id).is_some_and(|why| why.contains("Forbidden")));
    b.wait(Duration::ZERO);
    let mut written = bound(pod("a", 100), "n1", "0", 11);
    written["spec"]["nodeName"] = Value::Null;
    b.answer("Get", Ok(written.clone()));
    assert_eq!(b.filter(&written, &["n1"]), json!(["n1"]));
    b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "12"}})));
    assert_eq!(b.stages(), [("u-a", "offered")]);
    assert_eq!(b.filter(&pod("b", 100), &["n1"]), json!([]), "it is not given twice");
}

/// A GPU breaks after it was offered, and before the pod is bound.
#[test]
fn a_broken_gpu_is_written_into_no_pod() {
    let with = |broken: &str, revision: &str| {
        let mut node = node("n1", 2);
        node["metadata"]["resourceVersion"] = revision.into();
        let gpus = format!("[{{\"memory\": 16, \"broken\": {broken}}}, {{\"memory\": 16}}]");
        node["metadata"]["annotations"] = json!({"tencent.com/gpu-devices": gpus});
        node
    };
    let mut b = Bench::started(&[pod("a", 100)], &[with("false", "1")]);
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    let (id, _) = *b.watches.iter().rev().find(|(_, path)| path.contains("/nodes")).expect("a watch");
    let event = json!({"type": "MODIFIED", "object": with("true", "6")}).to_string();
    b.give(Input::Watch { id, item: WatchItem::Event(event.into()) });
    b.bind("a", "n1");
    let patch = b.answer("Patch", LOST);
    assert_eq!(patch["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"], "1");
    // Once it may be written it stays.
    let event = json!({"type": "MODIFIED", "object": with("false", "7")}).to_string();
    b.give(Input::Watch { id, item: WatchItem::Event(event.into()) });
    b.answer("Get", Ok(pod("a", 100)));
    let patch = b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    assert_eq!(patch["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"], "1");
}

#[test]
fn a_new_life_undoes_what_a_former_one_began() {
    let mut begun = bound(pod("a", 100), "n1", "0", 4);
    begun["spec"]["nodeName"] = Value::Null;
    let mut b = Bench::started(&[begun, bound(pod("h", 30), "n2", "0", 3)], &[node("n1", 1), node("n2", 1)]);
    assert_eq!(b.stages(), [("u-a", "undoing"), ("u-h", "held")]);
    assert_eq!(b.filter(&pod("b", 100), &["n1", "n2"]), json!([]));
    // The request of the former life arrives before it can be undone.
    b.answer("Patch", status(409, "Conflict"));
    b.wait(Duration::from_secs(1));
    b.answer("Get", Ok(bound(pod("a", 100), "n1", "0", 5)));
    assert_eq!(b.stages(), [("u-a", "held"), ("u-h", "held")]);
    b.watch("MODIFIED", &bound(pod("a", 100), "n1", "0", 5));
    assert_eq!(b.filter(&pod("b", 70), &["n1", "n2"]), json!(["n2"]));
}

#[test]
fn an_attempt_that_failed_takes_its_offer_with_it() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    let mut refused = pod("a", 100);
    refused["metadata"]["resourceVersion"] = "11".into();
    refused["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
    b.watch("MODIFIED", &refused);
    assert_eq!(b.stages(), []);
    assert_eq!(b.filter(&refused, &["n1"]), json!(["n1"]));
    // Only a newer word counts.
    b.watch("MODIFIED", &refused);
    assert_eq!(b.stages(), [("u-a", "offered")]);
    b.watch("DELETED", &refused);
    assert_eq!(b.stages(), []);
}

#[test]
fn victims_must_help() {
    let held = [bound(pod("a", 50), "n1", "0", 3), bound(pod("b", 50), "n1", "1", 3)];
    let mut b = Bench::started(&held, &[node("n1", 2), node("n2", 1)]);
    let ask = |cores: u32, victims: &[&str], b: &mut Bench| {
        let pods: Vec<Value> = victims.iter().map(|uid| json!({"UID": uid})).collect();
        let body = json!({"Pod": pod("p", cores), "NodeNameToMetaVictims": {
            "n1": {"Pods": pods, "NumPDBViolations": 1}, "n3": {"Pods": pods, "NumPDBViolations": 0}}});
        b.said(Verb::Preempt, &body)["NodeNameToMetaVictims"].clone()
    };
    assert_eq!(ask(100, &["u-a"], &mut b), json!({"n1": {"Pods": [{"UID": "u-a"}], "NumPDBViolations": 1}}));
    assert_eq!(ask(200, &["u-a"], &mut b), json!({}));
    assert_eq!(ask(200, &["u-a", "u-b"], &mut b)["n1"]["Pods"], json!([{"UID": "u-a"}, {"UID": "u-b"}]));
    assert_eq!(ask(60, &["u-z"], &mut b), json!({}));
    assert_eq!(ask(60, &["u-b"], &mut b)["n1"]["NumPDBViolations"], 1);
}

#[test]
fn the_planted_cache_gives_one_gpu_twice() {
    let mut b = Bench::fresh();
    b.core = GpuExtender::new(Config::default(), &Rng::new(1)).with_planted(Planted::Cache);
    b.give(Input::Start);
    b.answer("/nodes", Ok(json!({"metadata": {"resourceVersion": "5"}, "items": [node("n1", 1)]})));
    b.answer("/pods", Ok(json!({"metadata": {"resourceVersion": "5"}, "items": []})));
    assert_eq!(b.filter(&pod("a", 100), &["n1"]), json!(["n1"]));
    assert_eq!(b.filter(&pod("b", 100), &["n1"]), json!(["n1"]));
}

#[test]
fn requests_are_what_the_role_may_send() {
    let mut b = Bench::started(&[pod("a", 100)], &[node("n1", 1)]);
    b.bind("a", "n1");
    assert!(b.calls.iter().all(|(_, r)| r.method == Method::Patch && !r.path.contains("/status")), "{:?}", b.calls);
}

/// A GPU pod with a priority, on a node with two GPUs that four others share; whom the extender would have go.
fn check_victims(shown: &[&str], cores: u32, priority: i32, expected: Option<(&[&str], i64)>) {
    let there = [("a", "0", 1), ("b", "0", 5), ("c", "1", 2), ("d", "1", 9)];
    let pods: Vec<Value> = there
        .iter()
        .zip(20..)
        .map(|((name, gpu, priority), revision)| {
            let mut pod = bound(pod(name, 50), "n", gpu, revision);
            pod["spec"]["priority"] = (*priority).into();
            pod
        })
        .collect();
    let mut b = Bench::started(&pods, &[node("n", 2)]);
    let mut asking = pod("x", cores);
    asking["spec"]["priority"] = priority.into();
    let shown: Vec<Value> = shown.iter().map(|name| json!({"UID": format!("u-{name}")})).collect();
    let asked = json!({"Pod": asking, "NodeNameToMetaVictims": {"n": {"Pods": shown, "NumPDBViolations": 0}}});
    let answer = b.said(Verb::Preempt, &asked)["NodeNameToMetaVictims"]["n"].clone();
    let case = format!("{asked}: {answer}");
    let Some((victims, violations)) = expected else { return assert_eq!(answer, Value::Null, "{case}") };
    let uids: Vec<&str> = answer["Pods"].as_array().into_iter().flatten().filter_map(|p| p["UID"].as_str()).collect();
    let victims: Vec<String> = victims.iter().map(|name| format!("u-{name}")).collect();
    assert_eq!(uids, victims, "{case}");
    assert_eq!(answer["NumPDBViolations"], violations, "{case}");
}

#[test]
fn victims_are_as_many_as_free_a_place_and_no_more() {
    // Half a GPU is free once one of them goes.
    check_victims(&["a"], 50, 10, Some((&["a"], 0)));
    // Whoever is named twice gives back what it has once.
    check_victims(&["a", "a"], 100, 1, None);
    // The sum is enough, and no GPU is whole: the less important of the two that are in the way goes too.
    check_victims(&["a", "c"], 100, 10, Some((&["a", "c", "b"], 1)));
    check_victims(&["a", "b"], 100, 10, Some((&["a", "b"], 0)));
    // Nobody who is as important goes.
    check_victims(&["a", "c"], 100, 5, None);
    check_victims(&["a", "c"], 100, 6, Some((&["a", "c", "b"], 1)));
    check_victims(&["a", "c"], 200, 10, Some((&["a", "c", "b", "d"], 2)));
    check_victims(&["a", "c"], 300, 10, None);
    // The sums are enough for the scheduler as they are, so it has nobody go.
    check_victims(&[], 100, 10, Some((&["a", "b"], 2)));
    check_victims(&[], 100, 1, None);
}

/// A node of two GPUs that says which it has.
fn naming(uuids: &[&str], revision: u64) -> Value {
    let list: Vec<Value> = uuids.iter().map(|uuid| json!({"uuid": uuid, "memory": 16})).collect();
    let mut node = node("n", 2);
    node["metadata"]["annotations"] = json!({"tencent.com/gpu-devices": Value::from(list).to_string()});
    node["metadata"]["resourceVersion"] = revision.to_string().into();
    node
}

/// A pod keeps its card, whatever number that has by now, and holds nothing of another one when it is gone.
#[test]
fn cards_are_held_and_not_numbers() {
    let mut there = bound(pod("a", 100), "n", "0", 3);
    there["metadata"]["annotations"]["tencent.com/predicate-gpu-uuid-0"] = "x".into();
    let cases: [(&[&str], Vec<usize>); 4] =
        [(&["x", "y"], vec![0]), (&["y", "x"], vec![1]), (&["y"], vec![]), (&["y", "z"], vec![])];
    for (now, held) in cases {
        let holds = |b: &Bench| -> Vec<usize> {
            b.core.ledger().get("u-a").map(|entry| entry.holds.keys().copied().collect()).expect("an entry")
        };
        let fresh = Bench::started(std::slice::from_ref(&there), &[naming(now, 4)]);
        assert_eq!(holds(&fresh), held, "a new life, {now:?}");
        let mut b = Bench::started(std::slice::from_ref(&there), &[naming(&["x", "y"], 4)]);
        assert_eq!(holds(&b), [0]);
        b.watch_of("/nodes", "MODIFIED", &naming(now, 6));
        assert_eq!(holds(&b), held, "the same life, {now:?}");
        b.watch_of("/nodes", "MODIFIED", &naming(&["w", "x"], 7));
        assert_eq!(holds(&b), [1], "it is there again, {now:?}");
        // A node that is made anew.
        b.watch_of("/nodes", "DELETED", &naming(&["w", "x"], 8));
        b.watch_of("/nodes", "ADDED", &naming(&["x"], 9));
        assert_eq!(holds(&b), [0], "another node, {now:?}");
    }
}

/// What was chosen by number alone stays where the card goes, as long as it is known which one that was.
#[test]
fn numbers_without_cards_move_with_them() {
    let there = bound(pod("a", 100), "n", "0", 3);
    let mut nameless = node("n", 2);
    nameless["metadata"]["resourceVersion"] = "6".into();
    for (now, held) in [(naming(&["y", "x"], 6), 1), (nameless, 0)] {
        let mut b = Bench::started(std::slice::from_ref(&there), &[naming(&["x", "y"], 4)]);
        b.watch_of("/nodes", "MODIFIED", &now);
        let holds: Vec<usize> = b.core.ledger().get("u-a").expect("an entry").holds.keys().copied().collect();
        assert_eq!(holds, [held], "{now}");
        assert_eq!(b.filter(&pod("b", 100), &["n"]), json!(["n"]));
    }
}

/// After a reboot a node has no devices before its plugin has come.
#[test]
fn a_node_without_devices_for_a_while_keeps_its_pods_cards() {
    let numbered = bound(pod("a", 100), "n", "1", 3);
    let mut named = numbered.clone();
    named["metadata"]["annotations"]["tencent.com/predicate-gpu-uuid-0"] = "y".into();
    for there in [numbered, named] {
        let mut b = Bench::started(std::slice::from_ref(&there), &[naming(&["x", "y"], 4)]);
        let mut bare = naming(&["x", "y"], 6);
        bare["status"] = json!({});
        b.watch_of("/nodes", "MODIFIED", &bare);
        b.watch_of("/nodes", "MODIFIED", &naming(&["x", "y"], 7));
        let holds: Vec<usize> = b.core.ledger().get("u-a").expect("an entry").holds.keys().copied().collect();
        assert_eq!(holds, [1], "{there}");
    }
}

/// Where the node names no cards, the number is all that is chosen, whatever the pod's owner has written.
#[test]
fn nobody_chooses_a_card_for_himself() {
    let mut own = pod("a", 100);
    own["metadata"]["annotations"] = json!({"tencent.com/predicate-gpu-uuid-0": "y", "mine": "stays"});
    let mut b = Bench::started(&[], &[node("n", 2)]);
    b.watch("ADDED", &own);
    b.filter(&own, &["n"]);
    b.bind("a", "n");
    let written = b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    let annotations = written["metadata"]["annotations"].as_object().expect("annotations");
    assert_eq!(annotations["tencent.com/predicate-gpu-idx-0"], "0", "{written}");
    assert_eq!(annotations.get("tencent.com/predicate-gpu-uuid-0"), Some(&Value::Null), "{written}");
    assert_eq!(annotations.get("mine"), None, "{written}");
}

#[test]
fn the_card_is_written_beside_its_number() {
    let mut b = Bench::started(&[pod("a", 100)], &[naming(&["x", "y"], 4)]);
    b.filter(&pod("a", 100), &["n"]);
    b.bind("a", "n");
    let written = b.answer("Patch", Ok(json!({"metadata": {"resourceVersion": "11"}})));
    let annotations = &written["metadata"]["annotations"];
    assert_eq!(annotations["tencent.com/predicate-gpu-idx-0"], "0", "{written}");
    assert_eq!(annotations["tencent.com/predicate-gpu-uuid-0"], "x", "{written}");
}
