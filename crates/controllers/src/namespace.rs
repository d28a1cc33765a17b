//! Empties namespaces that are being deleted, and then lets them go.
//!
//! The API server takes no new objects in such a namespace. When no cache shows an object of it any
//! more, a live list of every kind confirms that it is empty, and only then its finalizer goes.
//! Behaviour follows kube-controller-manager (pkg/controller/namespace/deletion).

use std::collections::BTreeMap;

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Setup, Source, Time, View, Write, to_value};
use carrack_types::resource::{Kind as _, Object as _, PartialObject, Resource};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;

use crate::garbage::{custom_resource, is_established};

const FINALIZER: &str = "kubernetes";

/// The namespace controller, over the same metadata as the garbage collector.
pub struct NamespaceController {
    builtin: Vec<Resource>,
    custom: BTreeMap<String, Resource>,
}

impl NamespaceController {
    /// A controller that empties namespaces of these resources and of custom ones.
    #[must_use]
    pub fn new(builtin: Vec<Resource>) -> Self {
        Self { builtin: builtin.into_iter().filter(|r| r.namespaced).collect(), custom: BTreeMap::new() }
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
        let wanted: BTreeMap<String, Resource> = view
            .cache::<CustomResourceDefinition>()
            .iter()
            .filter(|crd| is_established(crd))
            .filter_map(|crd| Some((crd.name().to_owned(), custom_resource(crd)?)))
            .filter(|(_, r)| r.namespaced)
            .collect();
        for (name, resource) in &wanted {
            if self.custom.get(name) != Some(resource) {
                Self::watch(setup, resource);
            }
        }
        self.custom = wanted;
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(ns) = view.get::<Namespace>("", &key.name) else { return Plan::none() };
        let finalizers: Vec<String> = ns.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).cloned().collect();
        if !ns.is_deleting() || !finalizers.iter().any(|f| f == FINALIZER) {
            return Plan::none();
        }
        let mut plan = Plan::none();
        let mut left = 0_usize;
        for resource in self.builtin.iter().chain(self.custom.values()) {
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
        for resource in self.builtin.iter().chain(self.custom.values()) {
            plan = plan.confirm_none_in(resource, key.name.clone());
        }
        let mut body = to_value(ns.as_ref());
        body["spec"]["finalizers"] = json!(finalizers.iter().filter(|f| *f != FINALIZER).collect::<Vec<_>>());
        plan.write(Write::Update { resource: Namespace::resource(), object: body, sub: "finalize" })
    }
}
