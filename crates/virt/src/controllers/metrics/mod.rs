//! What virt-controller tells of machines, under KubeVirt's names.
//!
//! ```text
//!   caches ─▶ MetricsController: what there is, and which phases were entered ─▶ Measures ─▶ text, when somebody asks
//! ```
//!
//! The controller writes nothing. What it has seen lies in [`Measures`], which the shell reads: a few hundred bytes for a
//! machine (`kept`), of which a page is made when somebody asks. Names, labels and types are upstream's
//! (`docs/observability/metrics.md` and `pkg/monitoring/metrics/virt-controller` in kubevirt/kubevirt).

mod instances;
mod kept;
mod machines;
mod phases;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Object;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::exposition::{Family, Page};
use instances::Instance;
use kept::{Claim, Machine};
use phases::Phases;

/// What was seen.
#[derive(Clone, Default)]
pub struct Measures(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Shared with whoever makes a page of them: controllers do not wait for thousands of machines to be written out.
    machines: Arc<BTreeMap<Key, Machine>>,
    instances: Arc<BTreeMap<Key, Instance>>,
    claims: Arc<BTreeMap<Key, Claim>>,
    /// Machines that were made while somebody looked, by namespace.
    created: BTreeMap<String, u64>,
    phases: Phases,
    /// Since when somebody looks.
    since: Option<Time>,
}

impl Measures {
    /// All of it, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = Page::default();
        let (machines, instances, claims, created) = {
            let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.phases.tell(&mut page);
            (seen.machines.clone(), seen.instances.clone(), seen.claims.clone(), seen.created.clone())
        };
        for machine in machines.values().filter_map(Machine::open) {
            let claim = |name: &str| claims.get(&Key::new(machine.namespace(), name));
            machines::tell(&machine, claim, &mut page);
        }
        instances.values().for_each(|instance| instance.tell(&mut page));
        instances::count(instances.values(), &mut page);
        machines::count(machines.keys().map(|key| key.namespace.as_str()), &created, &mut page);
        let families = machines::FAMILIES.into_iter().chain(instances::FAMILIES).chain(phases::FAMILIES);
        let families: Vec<Family> = families.collect();
        page.text(&families)
    }
}

/// Looks at machines, their instances and their claims.
pub struct MetricsController {
    measures: Measures,
}

impl MetricsController {
    /// One that tells what it sees there.
    #[must_use]
    pub fn new(measures: Measures) -> Self {
        Self { measures }
    }
}

impl Controller for MetricsController {
    fn name(&self) -> &'static str {
        "metrics"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        // Keys of all kinds are looked at alike: whatever has the name.
        setup.watch_own::<VirtualMachine>();
        setup.watch_own::<VirtualMachineInstance>();
        setup.watch_own::<PersistentVolumeClaim>();
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let mut seen = self.measures.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *seen.since.get_or_insert(now);
        let machine = view.get::<VirtualMachine>(&key.namespace, &key.name);
        if let Some(machine) = machine {
            let before = Arc::make_mut(&mut seen.machines).insert(key.clone(), Machine::of(machine));
            let is_new = before.is_none_or(|before| before.uid != machine.uid());
            if is_new && made_since(machine.as_ref(), since) {
                *seen.created.entry(key.namespace.clone()).or_default() += 1;
            }
        } else if seen.machines.contains_key(key) {
            Arc::make_mut(&mut seen.machines).remove(key);
        }
        match view.get::<PersistentVolumeClaim>(&key.namespace, &key.name).and_then(|claim| Claim::of(claim)) {
            Some(claim) => drop(Arc::make_mut(&mut seen.claims).insert(key.clone(), claim)),
            None if seen.claims.contains_key(key) => drop(Arc::make_mut(&mut seen.claims).remove(key)),
            None => {}
        }
        let instance = view.get::<VirtualMachineInstance>(&key.namespace, &key.name);
        match instance {
            Some(vmi) => drop(Arc::make_mut(&mut seen.instances).insert(key.clone(), Instance::of(vmi))),
            None if seen.instances.contains_key(key) => drop(Arc::make_mut(&mut seen.instances).remove(key)),
            None => {}
        }
        seen.phases.see(key, instance.map(AsRef::as_ref), since, now);
        Plan::none()
    }
}

/// Whether an object was made since then; times of the API are whole seconds.
fn made_since(object: &impl Object, since: Time) -> bool {
    let made = object.meta().creation_timestamp.as_ref().map(Time::from);
    made.is_some_and(|made| made.0 >= since.0 - since.0.rem_euclid(1_000_000_000))
}

#[cfg(test)]
mod tests;
