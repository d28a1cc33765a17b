//! Decisions that ask for reads: they are made anew with the answers, whatever those are, and nothing is done before.

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Controller, Core as _, Effect, Effects, EventRecord, Input, Key, Manager,
    Method, Never, Plan, Rng, Setup, Time, View,
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

/// Writes into a config map what was answered; what it asks for last follows from that.
struct Asks;

fn read(view: &View<'_>, path: &str) -> Result<String, ApiRequest> {
    let request = ApiRequest::new(Method::Get, path);
    match view.answer(&request) {
        None => Err(request),
        Some(Ok(reply)) => Ok(String::from_utf8_lossy(&reply.body).into_owned()),
        Some(Err(error)) => Ok(error.to_string()),
    }
}

impl Controller for Asks {
    fn name(&self) -> &'static str {
        "asks"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        let event = EventRecord::normal(parent.as_ref(), "Asked", "it is told once");
        let (mut plan, mut first) = (Plan::none(), Vec::new());
        for path in ["/b", "/a", "/b"] {
            match read(view, path) {
                Ok(word) => first.push(word),
                Err(request) => plan = plan.ask(request),
            }
        }
        if !plan.is_none() {
            return plan.event(event);
        }
        match read(view, &format!("/{}", first[0])) {
            Err(request) => Plan::none().ask(request),
            Ok(last) => {
                let said = format!("{}; {last}", first[1]);
                // What was answered is not asked for again.
                let again = ApiRequest::new(Method::Get, "/a");
                Plan::none().event(event).patch(parent.as_ref(), json!({"data": {"said": said}})).ask(again)
            }
        }
    }
}

#[test]
fn what_a_decision_asks_for_is_read_before_it_is_made() {
    let mut core = Manager::new("test", Rng::new(1)).with(Asks);
    let (mut fx, now) = (Effects::<Never>::new(), Time::from_unix_s(1));
    let mut words = Vec::new();
    core.step(now, Input::Start, &mut fx);
    while let Some(effect) = fx.pop() {
        let Effect::Api(id, request) = effect else { continue };
        let ok = |body: String| Ok(ApiResponse { status: 200, body: Bytes::from(body) });
        let parent = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1"}});
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let result = match request.path.as_str() {
            "/a" => Err(ApiError::Transport("nobody is there".into())),
            "/b" => ok("c".into()),
            "/c" => ok("last".into()),
            path if path.contains("events") => ok(body.to_string()),
            path if request.method == Method::Get && path.contains("configmaps") => {
                ok(json!({"metadata": {"resourceVersion": "1"}, "items": [parent]}).to_string())
            }
            _ => ok(parent.to_string()),
        };
        match request.path.as_str() {
            path if path.contains("events") => words.push(format!("event {}", body["reason"])),
            path if request.method == Method::Get && !path.contains("configmaps") => words.push(format!("read {path}")),
            _ if request.method == Method::Patch => words.push(format!("write {}", body["data"]["said"])),
            _ => {}
        }
        core.step(now, Input::Api { id, result }, &mut fx);
    }
    let said = "write \"no reply from the API server: nobody is there; last\"";
    assert_eq!(words, ["read /a", "read /b", "read /c", "event \"Asked\"", said]);
}
