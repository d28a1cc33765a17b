//! A controller of the simulator's own, which counts its children and gives them names that are new
//! each time: nothing but the read-your-writes barrier keeps it from making one too many.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View, controller_ref};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of a config map that wants children.
pub(crate) const LABEL: &str = "sim.carrack.io/parent";
/// How many children a parent has.
pub(crate) const WANTED: usize = 3;

/// Keeps [`WANTED`] secrets for each config map with the label.
#[derive(Default)]
pub(crate) struct Replicas {
    made: u64,
}

impl Controller for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
        setup.watch_owned::<Secret, ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        if parent.is_deleting() || parent.label(LABEL).is_none() {
            return Plan::none();
        }
        let have = view.cache::<Secret>().by_owner(parent.uid()).count();
        (have..WANTED).fold(Plan::none(), |plan, _| {
            self.made += 1;
            plan.create(&Secret {
                metadata: ObjectMeta {
                    namespace: Some(key.namespace.clone()),
                    name: Some(format!("{}-{}", key.name, self.made)),
                    owner_references: Some(vec![controller_ref(parent.as_ref())]),
                    ..ObjectMeta::default()
                },
                ..Secret::default()
            })
        })
    }
}
