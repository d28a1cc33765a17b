//! What drivers can: asked once, and written on their volumes, and on pods that bring volumes of theirs, for those who decide
//! what is attached.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_flexvolume::Capabilities;
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use carrack_types::volume::{FLEX_ATTACHES, lists_driver};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use serde_json::json;

use super::calls::{Answer, Call, Calls};
use super::source;
use crate::asking::ANOTHER_ANSWER;

/// Asks drivers.
struct Asking {
    name: &'static str,
    calls: Calls,
    /// What drivers have said to this process: the next one asks again.
    known: BTreeMap<String, Capabilities>,
}

impl Asking {
    fn new(name: &'static str, calls: Calls) -> Self {
        Self { name, calls, known: BTreeMap::new() }
    }

    /// What a driver can, once it was asked.
    fn ask(&mut self, key: &Key, driver: &str) -> Option<Result<Capabilities, String>> {
        if let Some(can) = self.known.get(driver) {
            return Some(Ok(*can));
        }
        Some(match self.calls.ask(self.name, key, Call::Init(driver.to_owned()))? {
            Ok(Answer::Can(can)) => Ok(*self.known.entry(driver.to_owned()).or_insert(can)),
            Ok(_) => Err(ANOTHER_ANSWER.to_owned()),
            Err(error) => Err(error),
        })
    }
}

/// Writes it on volumes.
pub(super) struct Drivers(Asking);

impl Drivers {
    pub fn new(calls: Calls) -> Self {
        Self(Asking::new("flexvolume-drivers", calls))
    }
}

impl Controller for Drivers {
    fn name(&self) -> &'static str {
        self.0.name
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        let Some(driver) = source(volume).map(|s| &s.driver) else { return Plan::none() };
        let can = match self.0.ask(key, driver) {
            None => return Plan::none(),
            Some(Ok(can)) => can,
            Some(Err(error)) => return Plan::failed(error),
        };
        let attaches = if can.attach { "true" } else { "false" };
        if volume.annotation(FLEX_ATTACHES) == Some(attaches) {
            return Plan::none();
        }
        Plan::none().patch(volume.as_ref(), json!({"metadata": {"annotations": {FLEX_ATTACHES: attaches}}}))
    }
}

/// Writes it on pods that bring volumes of theirs.
pub(super) struct DriversOfPods(Asking);

impl DriversOfPods {
    pub fn new(calls: Calls) -> Self {
        Self(Asking::new("flexvolume-drivers-of-pods", calls))
    }
}

impl Controller for DriversOfPods {
    fn name(&self) -> &'static str {
        self.0.name
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Pod>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name).filter(|pod| !is_terminal(pod)) else {
            return Plan::none();
        };
        let brought = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let drivers: BTreeSet<&str> = brought.filter_map(|v| Some(v.flex_volume.as_ref()?.driver.as_str())).collect();
        if drivers.is_empty() {
            return Plan::none();
        }
        let said = pod.annotation(FLEX_ATTACHES);
        let mut failures = Vec::new();
        let mut attach = Vec::new();
        for driver in drivers {
            let attaches = match self.0.ask(key, driver) {
                // The answer is a reason to look again.
                None => return Plan::none(),
                Some(Ok(can)) => can.attach,
                // Until it can be asked, what it said last holds.
                Some(Err(error)) => {
                    failures.push(error);
                    said.is_some_and(|list| lists_driver(list, driver))
                }
            };
            attach.extend(attaches.then_some(driver));
        }
        let attach = attach.join(",");
        let mut plan = Plan::none();
        if let Some(error) = failures.pop() {
            let why = format!("what the driver of a FlexVolume can is not known: {error}");
            plan = Plan::failed(error).event(EventRecord::warning(pod.as_ref(), "FailedAttachVolume", why));
        }
        if said == Some(attach.as_str()) || (said.is_none() && attach.is_empty()) {
            return plan;
        }
        plan.patch(pod.as_ref(), json!({"metadata": {"annotations": {FLEX_ATTACHES: attach}}}))
    }
}
