//! What writes rest on: premises stay with them when plans are put together, and travel as a header; what is read live is waited
//! for.

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_engine::{
    ApiRequest, ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method, Never, Plan, Premise,
    RESTS_ON, Rng, Setup, Time, TimerId, View, WatchId, WatchItem, to_http,
};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

#[test]
fn premises_stay_with_their_writes() {
    let pod = Pod::default();
    let (first, second) = (Premise::unchanged(&pod), Premise::same_spec(&pod));
    let one = |premise: &Premise| Plan::none().delete(&pod).resting_on(premise);
    let plan = one(&first).delete(&pod).then(one(&second)).delete(&pod);
    assert_eq!(plan.premises, [(0, first), (2, second)]);
}

#[test]
fn premises_travel_as_a_header() {
    let header = |rests_on: Vec<Premise>| {
        let request = ApiRequest { rests_on, ..ApiRequest::new(Method::Post, "/api/v1/pods") };
        let http = to_http(request, "").unwrap_or_default();
        http.headers().get(RESTS_ON).map(|value| value.as_bytes().to_vec())
    };
    assert_eq!(header(Vec::new()), None);
    let premise = Premise::unchanged(&Pod::default());
    let sent = header(vec![premise.clone()]).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<Vec<Premise>>(&sent).unwrap_or_default(), [premise]);
}

/// Deletes a config map whose pod is not there.
struct Sweeper;

impl Controller for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
        s.watch::<Pod>(|pod, _| vec![Key::of(pod)]);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(map) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        match view.get::<Pod>(&key.namespace, &key.name) {
            Some(_) => Plan::none(),
            None => Plan::none().confirm_absent(&Pod::resource(), key.clone(), "u").delete(map.as_ref()),
        }
    }
}

/// A cache that does not show what a live read has shown makes nobody read again and again.
#[test]
fn what_a_live_read_shows_is_waited_for() {
    let object =
        |revision: &str| json!({"metadata": {"namespace": "ns", "name": "x", "uid": "u", "resourceVersion": revision}});
    let mut core = Manager::new("test", Rng::new(1)).with(Sweeper);
    let (mut fx, mut now) = (Effects::<Never>::new(), Time::from_unix_s(1));
    let (mut reads, mut timers, mut watches) = (0, Vec::<(Time, TimerId)>::new(), BTreeMap::<String, WatchId>::new());
    let mut carry_out = |core: &mut Manager,
                         fx: &mut Effects<Never>,
                         now: Time,
                         input: Input<Never>|
     -> (usize, Vec<(Time, TimerId)>, BTreeMap<String, WatchId>) {
        core.step(now, input, fx);
        while let Some(effect) = fx.pop() {
            match effect {
                Effect::Api(id, request) => {
                    let path = request.path.split('?').next().unwrap_or_default();
                    let body: Value = match (request.method, path) {
                        (Method::Get, "/api/v1/configmaps") => {
                            json!({"metadata": {"resourceVersion": "5"}, "items": [object("5")]})
                        }
                        // The cache of pods is behind.
                        (Method::Get, "/api/v1/pods") => json!({"metadata": {"resourceVersion": "5"}, "items": []}),
                        (Method::Get, "/api/v1/namespaces/ns/pods/x") => {
                            reads += 1;
                            object("9")
                        }
                        (method, path) => panic!("{method:?} {path}"),
                    };
                    let result = Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) });
                    core.step(now, Input::Api { id, result }, fx);
                }
                Effect::Timer(id, at) => timers.push((at, id)),
                Effect::Watch(id, request) => {
                    let path = request.path.split('?').next().unwrap_or_default().to_owned();
                    watches.insert(path, id);
                }
                _ => {}
            }
        }
        (reads, std::mem::take(&mut timers), watches.clone())
    };
    let (reads, mut due, watches) = carry_out(&mut core, &mut fx, now, Input::Start);
    assert_eq!(reads, 1);
    for _ in 0..100 {
        let Some((at, id)) = due.pop() else { break };
        now = now.max(at);
        let (reads, more, _) = carry_out(&mut core, &mut fx, now, Input::Timer(id));
        due.extend(more);
        assert_eq!(reads, 1, "nothing has changed that could be known");
    }
    let event = json!({"type": "ADDED", "object": object("9")});
    let watch = watches.get("/api/v1/pods").copied().expect("it watches pods");
    let item = WatchItem::Event(Bytes::from(event.to_string()));
    let (_, mut due, _) = carry_out(&mut core, &mut fx, now, Input::Watch { id: watch, item });
    while let Some((at, id)) = due.pop() {
        now = now.max(at);
        let (reads, more, _) = carry_out(&mut core, &mut fx, now, Input::Timer(id));
        due.extend(more);
        assert_eq!(reads, 1, "there is nothing to ask any more");
    }
    assert!(core.is_idle());
}
