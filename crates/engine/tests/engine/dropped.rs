//! Who reads a kind no more looks once more at all that its objects concerned: what its watch had still to tell is told by nobody.

use bytes::Bytes;
use carrack_engine::{
    ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method, Never, Plan, Rng, Setup, Source,
    Time, View, WatchId, WatchItem,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};

/// Reads secrets until a config map says that it is over, and deletes config map `m` when it reads none.
struct Leaves;

fn reads(view: &View<'_>) -> bool {
    view.cache_of::<Secret>(&Source::of::<Secret>()).is_some()
}

impl Controller for Leaves {
    fn name(&self) -> &'static str {
        "leaves"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
        setup.watch_own::<Secret>();
    }
    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        let switch = view.get::<ConfigMap>("ns", "switch");
        if reads(view) && switch.is_some_and(|map| map.label("over").is_some()) {
            setup.drop_source(Source::of::<Secret>());
        }
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let found = view.get::<ConfigMap>(&key.namespace, &key.name).filter(|map| map.name() == "m" && !reads(view));
        found.map_or_else(Plan::none, |map| Plan::none().delete(map.as_ref()))
    }
}

fn object(name: &str, revision: u32, labels: &Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": revision.to_string(),
        "labels": labels}})
}

struct Run {
    core: Manager,
    fx: Effects<Never>,
    watch: Option<WatchId>,
    deleted: Vec<String>,
}

impl Run {
    /// A step, and answers to all lists that follow from it.
    fn step(&mut self, input: Input<Never>) {
        let now = Time::from_unix_s(1);
        self.core.step(now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) if request.method == Method::Get => {
                    let names: &[&str] = if request.path.contains("secrets") { &["m"] } else { &["m", "switch"] };
                    let items: Vec<Value> = names.iter().map(|name| object(name, 5, &json!({}))).collect();
                    let list = json!({"metadata": {"resourceVersion": "5"}, "items": items}).to_string();
                    let result = Ok(ApiResponse { status: 200, body: Bytes::from(list) });
                    self.core.step(now, Input::Api { id, result }, &mut self.fx);
                }
                Effect::Api(_, request) => self.deleted.push(request.path.clone()),
                Effect::Watch(id, request) if request.path.contains("configmaps") => self.watch = Some(id),
                _ => {}
            }
        }
    }
}

#[test]
fn who_reads_a_kind_no_more_looks_once_more() {
    let core = Manager::new("test", Rng::new(1)).with(Leaves);
    let mut run = Run { core, fx: Effects::new(), watch: None, deleted: Vec::new() };
    run.step(Input::Start);
    assert!(run.deleted.is_empty(), "{:?}", run.deleted);
    let event = json!({"type": "MODIFIED", "object": object("switch", 6, &json!({"over": "yes"}))}).to_string();
    if let Some(id) = run.watch {
        run.step(Input::Watch { id, item: WatchItem::Event(Bytes::from(event)) });
    }
    assert!(matches!(&run.deleted[..], [one] if one.ends_with("configmaps/m")), "{:?}", run.deleted);
}
