//! What drivers can: asked now and then, and written on their volumes, and on pods that bring volumes of theirs, for those who
//! decide what is attached.
//!
//! Somebody may put another program in a driver's place while all of this runs (upstream watches the directory for that,
//! `probe.go`), and nodes ask that one what it can. To be asked costs a driver nothing as long as its program is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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

/// How soon a driver is asked again.
const AGAIN: Duration = Duration::from_secs(60);

/// Asks drivers.
struct Asking {
    name: &'static str,
    calls: Calls,
    /// What drivers have said to this process, and when: the next one asks again.
    known: BTreeMap<String, (Capabilities, Time)>,
}

impl Asking {
    fn new(name: &'static str, calls: Calls) -> Self {
        Self { name, calls, known: BTreeMap::new() }
    }

    /// What a driver can, once it was asked.
    fn ask(&mut self, key: &Key, driver: &str, now: Time) -> Option<Result<Capabilities, String>> {
        if let Some((can, said)) = self.known.get(driver)
            && now.since(*said) < AGAIN
        {
            return Some(Ok(*can));
        }
        Some(match self.calls.ask(self.name, key, Call::Init(driver.to_owned()))? {
            Ok(Answer::Can(can)) => {
                self.known.insert(driver.to_owned(), (can, now));
                Ok(can)
            }
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
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        let Some(driver) = source(volume).map(|s| &s.driver) else { return Plan::none() };
        let can = match self.0.ask(key, driver, now) {
            None => return Plan::none(),
            Some(Ok(can)) => can,
            Some(Err(error)) => return Plan::failed(error),
        };
        let attaches = if can.attach { "true" } else { "false" };
        let plan = Plan::none().requeue_after(AGAIN);
        if volume.annotation(FLEX_ATTACHES) == Some(attaches) {
            return plan;
        }
        plan.patch(volume.as_ref(), json!({"metadata": {"annotations": {FLEX_ATTACHES: attaches}}}))
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
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
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
            let attaches = match self.0.ask(key, driver, now) {
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
        let mut plan = Plan::none().requeue_after(AGAIN);
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
