//! A scheduler extender like the one of the fourth incident: it writes its choice into the pod's annotations in the middle
//! of the cycle, and answers a repeated question with an empty list. Now and then it fails, takes long, answers twice, names
//! nodes that nobody offered and victims that are not there, says that it bound what it did not, or says nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiRequest, CallId, ContentType, Core, Effects, Input, Rng, Time, TimerId, fnv1a};
use carrack_scheduler::extender::{Answer, Ask};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::below;
use crate::node::WIDGET;
use crate::role::node_name;

/// Its annotation: when it chose, in nanoseconds.
const CHOSEN: &str = "sim.carrack.io/predicate-time";
/// A choice that old is void: the cycle that it was for has ended.
const VOID_AFTER: Duration = Duration::from_secs(3);
/// Its verbs.
pub(crate) const FILTER: &str = "filter";
pub(crate) const PRIORITIZE: &str = "prioritize";
pub(crate) const PREEMPT: &str = "preempt";
pub(crate) const BIND: &str = "bind";

/// What it is asked for beside its filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verbs {
    pub prioritize: bool,
    pub preempt: bool,
    pub bind: bool,
    /// There is a node that it never takes some pods on.
    pub finicky: bool,
}

/// Whether a finicky extender never takes a pod on a node, whoever leaves it.
pub(crate) fn refuses(pod: &Value, node: &str) -> bool {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let asks = pod.pointer("/spec/containers/0/resources/limits").is_some_and(|limits| !limits[WIDGET].is_null());
    asks && node == node_name(1) && fnv1a(name.as_bytes()).is_multiple_of(3)
}

/// The extender.
pub(crate) struct Extender {
    rng: Rng,
    faults: bool,
    finicky: bool,
    /// Answers that wait for the annotation to be written.
    writing: BTreeMap<CallId, Answer>,
    /// Answers that wait for a binding: when it is done, and when it is not.
    binding: BTreeMap<CallId, (Answer, Answer)>,
    /// Answers that take long.
    waiting: BTreeMap<TimerId, Answer>,
}

impl Extender {
    pub(crate) fn new(rng: Rng, faults: bool, finicky: bool) -> Self {
        Self { rng, faults, finicky, writing: BTreeMap::new(), binding: BTreeMap::new(), waiting: BTreeMap::new() }
    }
    /// It behaves from now on.
    pub(crate) fn heal(&mut self) {
        self.faults = false;
    }
    fn fails(&mut self, one_in: u64) -> bool {
        self.faults && self.rng.one_in(one_in)
    }

    fn asked(&mut self, now: Time, ask: &Ask, fx: &mut Effects<Answer>) {
        let args: Value = serde_json::from_slice(&ask.body).unwrap_or_default();
        let body = match ask.verb.as_str() {
            PRIORITIZE => self.scores(&args),
            PREEMPT => self.victims(&args),
            BIND => return self.bind(now, ask, &args, fx),
            _ => return self.filter(now, ask, &args, fx),
        };
        self.answer(now, Answer { id: ask.id, result: Ok(body.to_string().into()) }, fx);
    }

    fn scores(&mut self, args: &Value) -> Value {
        if self.fails(16) {
            return json!({"Error": "no list"});
        }
        let names = args["NodeNames"].as_array().into_iter().flatten();
        let mut scores: Vec<Value> = names.map(|name| json!({"Host": name, "Score": self.rng.below(11)})).collect();
        if self.fails(8) {
            scores.push(json!({"Host": "nowhere", "Score": i64::MAX}));
        }
        Value::from(scores)
    }

    fn victims(&mut self, args: &Value) -> Value {
        if self.fails(16) {
            return json!({"NodeNameToMetaVictims": {"nowhere": {"Pods": [{"UID": "nobody"}]}}});
        }
        let mut nodes = args["NodeNameToMetaVictims"].clone();
        if self.fails(8) {
            for node in nodes.as_object_mut().into_iter().flat_map(|nodes| nodes.values_mut()) {
                node["Pods"] = json!([{"UID": "nobody"}]);
            }
        }
        json!({ "NodeNameToMetaVictims": nodes })
    }

    /// Binds the pod, or says so.
    fn bind(&mut self, now: Time, ask: &Ask, args: &Value, fx: &mut Effects<Answer>) {
        let done = Answer { id: ask.id, result: Ok("{}".into()) };
        if self.fails(16) {
            return self.answer(now, done, fx);
        }
        let lies = self.fails(16);
        let text = |field: &str| args[field].as_str().unwrap_or_default();
        let body = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": text("PodNamespace"), "name": text("PodName"), "uid": text("PodUID")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": text("Node")}});
        let request = ApiRequest::create_sub(&Pod::resource(), text("PodNamespace"), text("PodName"), "binding", &body);
        let failed = Answer { id: ask.id, result: Ok(r#"{"Error": "it could not be bound"}"#.into()) };
        let (good, bad) = if lies { (failed.clone(), failed) } else { (done, failed) };
        self.binding.insert(fx.api(request), (good, bad));
    }

    fn filter(&mut self, now: Time, ask: &Ask, args: &Value, fx: &mut Effects<Answer>) {
        let pod = &args["Pod"];
        let chosen = pod["metadata"]["annotations"][CHOSEN].as_str().and_then(|t| t.parse().ok()).map(Time);
        let offered = args["NodeNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let refused = |name: &&str| self.finicky && refuses(pod, name);
        let (no, names): (Vec<&str>, Vec<&str>) = offered.partition(refused);
        let no: BTreeMap<&str, &str> = no.into_iter().map(|name| (name, "not for this one")).collect();
        let repeated = chosen.is_some_and(|at| now.since(at) < VOID_AFTER);
        let body = if self.fails(16) {
            json!({"Error": "the extender has a bad day"})
        } else if self.fails(24) {
            json!({"NodeNames": ["nowhere"], "FailedNodes": {"elsewhere": "full"}})
        } else if self.fails(24) {
            json!({"NodeNames": null, "Nodes": null})
        } else if repeated {
            json!({"NodeNames": [], "FailedNodes": {}})
        } else {
            json!({"NodeNames": names, "FailedNodes": no})
        };
        let answer = Answer { id: ask.id, result: Ok(body.to_string().into()) };
        if repeated || self.fails(8) {
            return self.answer(now, answer, fx);
        }
        let patch = json!({"metadata": {"annotations": {CHOSEN: now.0.to_string()}}});
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
        let kind = ContentType::StrategicMergePatch;
        let request = ApiRequest::patch(&Pod::resource(), &text("namespace"), &text("name"), "", kind, &patch);
        self.writing.insert(fx.api(request), answer);
    }

    fn answer(&mut self, now: Time, answer: Answer, fx: &mut Effects<Answer>) {
        if self.fails(10) {
            fx.own(answer.clone());
        }
        if self.fails(10) {
            let late = below(&mut self.rng, Duration::from_secs(8));
            self.waiting.insert(fx.timer(now + late), answer);
        } else if !self.fails(20) {
            fx.own(answer);
        }
    }
}

impl Core for Extender {
    type In = Ask;
    type Out = Answer;

    fn step(&mut self, now: Time, input: Input<Ask>, fx: &mut Effects<Answer>) {
        match input {
            Input::Own(ask) => self.asked(now, &ask, fx),
            // Whether it was written or not: it has chosen.
            Input::Api { id, result } => {
                if let Some(answer) = self.writing.remove(&id) {
                    self.answer(now, answer, fx);
                } else if let Some((good, bad)) = self.binding.remove(&id) {
                    self.answer(now, if result.is_ok() { good } else { bad }, fx);
                }
            }
            Input::Timer(id) => {
                if let Some(answer) = self.waiting.remove(&id) {
                    fx.own(answer);
                }
            }
            Input::Start | Input::Watch { .. } => {}
        }
    }
}
