//! Empties namespaces that are being deleted, and then lets them go.
//!
//! The API server takes no new objects in such a namespace. When no cache shows an object of it any
//! more, a live list of every kind confirms that it is empty, and only then its finalizer goes.
//! Behaviour follows kube-controller-manager (pkg/controller/namespace/deletion).

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Setup, Source, Time, View, Write, to_value};
use carrack_types::resource::{Kind as _, Object as _, PartialObject, Resource};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;

use crate::custom::CustomKinds;

const FINALIZER: &str = "kubernetes";

/// The namespace controller, over the same metadata as the garbage collector.
pub struct NamespaceController {
    builtin: Vec<Resource>,
    custom: CustomKinds,
}

impl NamespaceController {
    /// A controller that empties namespaces of these resources and of custom ones.
    #[must_use]
    pub fn new(builtin: Vec<Resource>) -> Self {
        Self { builtin: builtin.into_iter().filter(|r| r.namespaced).collect(), custom: CustomKinds::default() }
    }
    /// Every kind of which a namespace can hold objects.
    fn kinds(&self) -> impl Iterator<Item = &Resource> {
        self.builtin.iter().chain(self.custom.iter().filter(|r| r.namespaced))
    }
    fn watch(setup: &mut Setup<'_>, resource: &Resource) {
        setup.watch_source::<PartialObject>(Source::metadata(resource.clone()), |object, view| {
            // Only namespaces that are going away care.
            let deleting = view.get::<Namespace>("", object.namespace()).is_some_and(|ns| ns.is_deleting());
            if deleting { vec![Key::new("", object.namespace())] } else { Vec::new() }
        });
    }
}

impl Controller for NamespaceController {
    fn name(&self) -> &'static str {
        "namespace"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Namespace>();
        for resource in &self.builtin {
            Self::watch(setup, resource);
        }
        setup.read::<CustomResourceDefinition>();
    }
    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.custom.refresh(view, setup, |setup, resource| {
            if resource.namespaced {
                Self::watch(setup, resource);
            }
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(ns) = view.get::<Namespace>("", &key.name) else { return Plan::none() };
        let finalizers: Vec<String> = ns.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).cloned().collect();
        if !ns.is_deleting() || !finalizers.iter().any(|f| f == FINALIZER) {
            return Plan::none();
        }
        let mut plan = Plan::none();
        let mut left = 0_usize;
        for resource in self.kinds() {
            let source = Source::metadata(resource.clone());
            if !view.synced(&source) {
                return Plan::failed(format!("{resource} could not be listed yet"));
            }
            for object in view.cache_of::<PartialObject>(&source).into_iter().flat_map(|c| c.in_namespace(&key.name)) {
                left += 1;
                if !object.is_deleting() {
                    let options = DeleteOptions { propagation: Some("Background"), ..DeleteOptions::default() };
                    plan = plan.delete_with(resource, object.as_ref(), options);
                }
            }
        }
        if left > 0 {
            // What is deleting comes back through its cache when it is gone.
            return plan;
        }
        for resource in self.kinds() {
            plan = plan.confirm_none_in(resource, key.name.clone());
        }
        let mut body = to_value(ns.as_ref());
        body["spec"]["finalizers"] = json!(finalizers.iter().filter(|f| *f != FINALIZER).collect::<Vec<_>>());
        plan.write(Write::Update { resource: Namespace::resource(), object: body, sub: "finalize" })
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Absent;
    use carrack_engine::testing::Caches;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use serde_json::Value;

    use super::*;

    /// What is planned for namespace `ns` with these pods in it.
    fn check(ns: Value, pods: Vec<Value>, expected: &[&str]) {
        let read = |v: Value| serde_json::from_value(v).expect("metadata");
        let caches = Caches::new()
            .with::<Namespace>([serde_json::from_value(ns.clone()).expect("a namespace")])
            .with_metadata(Pod::resource(), pods.clone().into_iter().map(read))
            .with_metadata(ConfigMap::resource(), [])
            .with::<CustomResourceDefinition>([]);
        let mut controller = NamespaceController::new(vec![Pod::resource(), ConfigMap::resource()]);
        let plan = controller.reconcile(&Key::new("", "ns"), &caches.view(), Time::default());
        let words: Vec<String> = plan
            .writes
            .iter()
            .map(|w| match w {
                Write::Delete { key, .. } => format!("delete {key}"),
                Write::Confirm { resource, absent: Absent::AnyIn(ns) } => format!("no {resource} in {ns}"),
                Write::Update { object, sub, .. } => format!("{sub} {}", object["spec"]["finalizers"]),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(words, expected, "{ns} with {pods:?}");
    }

    #[test]
    fn a_namespace_goes_when_it_is_proved_empty() {
        let ns = |deleting: bool| {
            let mut ns =
                json!({"metadata": {"name": "ns", "uid": "1"}, "spec": {"finalizers": ["kubernetes", "mine"]}});
            if deleting {
                ns["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            ns
        };
        let pod = |deleting: bool| {
            let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "2"}});
            if deleting {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            pod
        };
        let elsewhere = json!({"metadata": {"namespace": "ns2", "name": "p", "uid": "3"}});
        check(ns(false), vec![pod(false)], &[]);
        check(ns(true), vec![pod(false), elsewhere.clone()], &["delete ns/p"]);
        check(ns(true), vec![pod(true)], &[]);
        check(ns(true), vec![elsewhere], &["no pods in ns", "no configmaps in ns", "finalize [\"mine\"]"]);
    }
}
