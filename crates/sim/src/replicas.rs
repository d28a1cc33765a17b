//! A controller of the simulator's own, which counts its children and gives them names that are new
//! each time: nothing but the read-your-writes barrier keeps it from making one too many.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View, controller_ref};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of a config map that wants children.
pub(crate) const LABEL: &str = "sim.carrack.io/parent";
/// How many children a parent has.
pub(crate) const WANTED: usize = 3;
/// From so many on, children of one parent are made no faster than one lot in [`PACE`]: while the parent's own end is
/// not seen yet, the garbage collector takes each child away at once.
const SOON: u64 = 12;
const PACE: Duration = Duration::from_secs(1);

/// Keeps [`WANTED`] secrets for each config map with the label.
#[derive(Default)]
pub(crate) struct Replicas {
    made: u64,
    /// How many were made for each parent, by its UID, and when the last ones.
    lots: BTreeMap<String, (u64, Time)>,
}

impl Controller for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
        setup.watch_owned::<Secret, ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        if parent.is_deleting() || parent.label(LABEL).is_none() {
            return Plan::none();
        }
        let have = view.cache::<Secret>().by_owner(parent.uid()).count();
        if have >= WANTED {
            return Plan::none();
        }
        let (made, last) = self.lots.entry(parent.uid().to_owned()).or_default();
        if *made >= SOON && now.since(*last) < PACE {
            return Plan::none().requeue_after(PACE);
        }
        *made += u64::try_from(WANTED - have).unwrap_or(0);
        *last = now;
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
