//! Lists in pages: a manager asks for so many objects at a time, and knows all of them in the end.

use bytes::Bytes;
use carrack_engine::{
    ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, Manager, Never, Plan, Rng, Setup, Time, View,
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

/// How many objects there are.
const OBJECTS: usize = 5;

/// Reads, and does nothing.
struct Reader;

impl Controller for Reader {
    fn name(&self) -> &'static str {
        "reader"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, _: &Key, _: &View<'_>, _: Time) -> Plan {
        Plan::none()
    }
}

/// A number in a query.
fn number(path: &str, name: &str) -> usize {
    let value = path.split_once(name).and_then(|(_, rest)| rest.split('&').next()?.parse().ok());
    value.unwrap_or(0)
}

/// How often something is listed, and how many objects are known then.
fn listed(core: Manager) -> (usize, usize) {
    let (mut core, mut fx, now) = (core.with(Reader), Effects::<Never>::new(), Time::from_unix_s(1));
    let mut lists = 0;
    core.step(now, Input::Start, &mut fx);
    while let Some(effect) = fx.pop() {
        let Effect::Api(id, request) = effect else { continue };
        lists += 1;
        let from = number(&request.path, "continue=");
        let to = (from + number(&request.path, "limit=")).min(OBJECTS);
        let object = |n: usize| {
            json!({"metadata": {"namespace": "ns", "name": format!("o{n}"), "uid": format!("u{n}"),
                "resourceVersion": "5"}})
        };
        let items: Vec<Value> = (from..to).map(object).collect();
        let more = if to < OBJECTS { to.to_string() } else { String::new() };
        let list = json!({"metadata": {"resourceVersion": "5", "continue": more}, "items": items}).to_string();
        let result = Ok(ApiResponse { status: 200, body: Bytes::from(list) });
        core.step(now, Input::Api { id, result }, &mut fx);
    }
    (lists, core.view().cache::<ConfigMap>().len())
}

#[test]
fn all_pages_are_read() {
    let manager = || Manager::new("test", Rng::new(1));
    assert_eq!(listed(manager()), (1, 5), "they fit on one page");
    assert_eq!(listed(manager().listing_by(2)), (3, 5));
    assert_eq!(listed(manager().listing_by(2).with_planted_first_pages()), (1, 2), "with the planted bug");
}
