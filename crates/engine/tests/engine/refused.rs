//! What a manager says when the API server refuses a write, and when events come that wait for writes.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and its inputs are its own")]

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiResponse, Controller, Core as _, Effect, Effects, EventRecord, Input, Key, Manager, Method,
    NAMESPACE_TERMINATING, Never, Plan, Refusal, Rng, Setup, StatusError, Time, View, controller_ref,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

/// Makes two pods for a config map, and tells.
struct Two {
    /// Each whatever becomes of the other.
    apart: bool,
}

impl Controller for Two {
    fn name(&self) -> &'static str {
        "two"
    }
    fn event_source(&self) -> &'static str {
        "two-controller"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
        s.watch_owned::<Pod, ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        if view.cache::<Pod>().by_owner(parent.uid()).next().is_some() {
            return Plan::none();
        }
        let plan = ["a", "b"].into_iter().fold(Plan::none(), |plan, name| {
            let metadata = ObjectMeta {
                namespace: Some(key.namespace.clone()),
                name: Some(name.into()),
                owner_references: Some(vec![controller_ref(parent.as_ref())]),
                ..ObjectMeta::default()
            };
            let told = EventRecord::normal(parent.as_ref(), "Made", name);
            plan.create(&Pod { metadata, ..Pod::default() }).told(told)
        });
        if self.apart { plan.each_apart() } else { plan }
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        Plan::none()
            .event(EventRecord::warning(parent.as_ref(), "NotMade", refusal.error.message.clone()))
            .patch(parent.as_ref(), json!({"data": {"refused": refusal.write.key().name}}))
    }
}

/// What is written when these pods are refused, for this cause, in order. Returns whether the key comes back by itself.
fn check(apart: bool, refused: std::ops::Range<usize>, cause: &str, expected: &[&str]) -> bool {
    let mut core = Manager::new("test", Rng::new(1)).with(Two { apart });
    let (mut fx, now) = (Effects::<Never>::new(), Time::from_unix_s(1));
    let (mut pods, mut words) = (0, Vec::new());
    core.step(now, Input::Start, &mut fx);
    let mut timers = 0;
    while let Some(effect) = fx.pop() {
        timers += usize::from(matches!(effect, Effect::Timer(..)));
        let Effect::Api(id, request) = effect else { continue };
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let ok = |body: Value| Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) });
        let parent = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1"}});
        let result = if request.method == Method::Get {
            let items = if request.path.contains("configmaps") { json!([parent]) } else { json!([]) };
            ok(json!({"metadata": {"resourceVersion": "1"}, "items": items}))
        } else if request.path.contains("events") {
            assert_eq!(body["source"]["component"], "two-controller");
            words.push(format!(
                "{} {}",
                body["reason"].as_str().unwrap_or_default(),
                body["message"].as_str().unwrap_or_default()
            ));
            ok(body)
        } else if request.path.ends_with("pods") {
            pods += 1;
            if refused.contains(&pods) {
                let status = StatusError {
                    code: 403,
                    reason: "Forbidden".into(),
                    message: "no".into(),
                    details: json!({"causes": [{"reason": cause}]}),
                };
                Err(ApiError::Status(Box::new(status)))
            } else {
                words.push(format!("pod {}", body["metadata"]["name"].as_str().expect("a name")));
                ok(json!({"metadata": {"namespace": "ns", "name": "x", "uid": "y", "resourceVersion": "2"}}))
            }
        } else {
            words.push(format!("data {}", body["data"]));
            ok(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "3"}}))
        };
        core.step(now, Input::Api { id, result }, &mut fx);
    }
    assert_eq!(words, expected, "{refused:?} are refused: {cause}");
    timers > 0
}

#[test]
fn a_refusal_is_told_and_what_was_done_before_it() {
    check(false, 9..9, "", &["pod a", "Made a", "pod b", "Made b"]);
    check(false, 2..9, "", &["pod a", "Made a", "NotMade no", "data {\"refused\":\"b\"}"]);
    check(false, 1..9, "FieldValueInvalid", &["NotMade no", "data {\"refused\":\"a\"}"]);
}

#[test]
fn what_a_namespace_that_goes_refuses_is_neither_told_nor_tried_again() {
    check(false, 2..9, NAMESPACE_TERMINATING, &["pod a", "Made a"]);
    assert!(!check(false, 1..9, NAMESPACE_TERMINATING, &[]), "it comes back");
}

#[test]
fn what_stands_apart_is_written_whatever_else_is_refused() {
    // Events are all that is taken from what the controller says of it.
    check(true, 1..2, "", &["NotMade no", "pod b", "Made b"]);
    check(true, 2..9, "", &["pod a", "Made a", "NotMade no"]);
}
