//! What drivers can: asked once, and written on their volumes for those who decide what is attached.

use std::collections::BTreeMap;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_flexvolume::Capabilities;
use carrack_types::resource::Object as _;
use carrack_types::volume::FLEX_ATTACHES;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use super::calls::{Answer, Call, Calls};
use super::source;
use crate::asking::ANOTHER_ANSWER;

const NAME: &str = "flexvolume-drivers";

/// The controller.
pub(super) struct Drivers {
    calls: Calls,
    /// What drivers have said to this process: the next one asks again.
    known: BTreeMap<String, Capabilities>,
}

impl Drivers {
    pub fn new(calls: Calls) -> Self {
        Self { calls, known: BTreeMap::new() }
    }
}

impl Controller for Drivers {
    fn name(&self) -> &'static str {
        NAME
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        let Some(driver) = source(volume).map(|s| &s.driver) else { return Plan::none() };
        let can = match self.known.get(driver) {
            Some(can) => *can,
            None => match self.calls.ask(NAME, key, Call::Init(driver.clone())) {
                None => return Plan::none(),
                Some(Ok(Answer::Can(can))) => *self.known.entry(driver.clone()).or_insert(can),
                Some(Ok(_)) => return Plan::failed(ANOTHER_ANSWER),
                Some(Err(error)) => return Plan::failed(error),
            },
        };
        let attaches = if can.attach { "true" } else { "false" };
        if volume.annotation(FLEX_ATTACHES) == Some(attaches) {
            return Plan::none();
        }
        Plan::none().patch(volume.as_ref(), json!({"metadata": {"annotations": {FLEX_ATTACHES: attaches}}}))
    }
}
