//! A manager decides nothing before it has seen everything once that its controller looks at.

use bytes::Bytes;
use carrack_engine::{
    ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method, Never, Plan, Rng, Setup, Time,
    View,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::json;

/// Deletes a config map without a pod and a secret of its name.
struct Tidy;

impl Controller for Tidy {
    fn name(&self) -> &'static str {
        "tidy"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
        s.watch_own::<Pod>();
        s.read::<Secret>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(found) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        let pod = view.get::<Pod>(&key.namespace, &key.name).is_some();
        let secret = view.get::<Secret>(&key.namespace, &key.name).is_some();
        if pod && secret { Plan::none() } else { Plan::none().delete(found.as_ref()) }
    }
}

/// How much is deleted where this kind is listed last, or never.
fn deletions(last: &str, ever: bool) -> usize {
    let mut core = Manager::new("test", Rng::new(1)).with(Tidy);
    let (mut fx, now) = (Effects::<Never>::new(), Time::from_unix_s(1));
    let list = || {
        let found = json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "1"}});
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": [found]}).to_string();
        Ok(ApiResponse { status: 200, body: Bytes::from(list) })
    };
    core.step(now, Input::Start, &mut fx);
    let (mut late, mut deleted) = (None, 0);
    loop {
        while let Some(effect) = fx.pop() {
            let Effect::Api(id, request) = effect else { continue };
            match request.method {
                Method::Get if request.path.contains(last) => late = Some(id),
                Method::Get => core.step(now, Input::Api { id, result: list() }, &mut fx),
                Method::Delete => deleted += 1,
                _ => {}
            }
        }
        let Some(id) = late.take().filter(|_| ever) else { return deleted };
        core.step(now, Input::Api { id, result: list() }, &mut fx);
    }
}

#[test]
fn nothing_is_decided_before_all_is_known() {
    for kind in ["configmaps", "pods", "secrets"] {
        assert_eq!(deletions(kind, false), 0, "{kind} are not known");
        assert_eq!(deletions(kind, true), 0, "{kind} are known last");
    }
}
