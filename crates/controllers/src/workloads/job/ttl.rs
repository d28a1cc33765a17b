//! Removes Jobs some time after they are over, where they ask for it (pkg/controller/ttlafterfinished).

use std::time::Duration;

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Setup, Time, View};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::batch::v1::Job;

use super::super::conditions::{self, Condition as _};
use super::is_finished;

/// The controller that removes Jobs that are over.
pub struct TtlController;

impl Controller for TtlController {
    fn name(&self) -> &'static str {
        "ttl-after-finished"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Job>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(job) = view.get::<Job>(&key.namespace, &key.name) else { return Plan::none() };
        let ttl_s = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        let (Some(ttl_s), false, true) = (ttl_s, job.is_deleting(), is_finished(job)) else { return Plan::none() };
        let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
        let end = ["Complete", "Failed"].iter().find_map(|kind| {
            conditions::find(conditions, kind).filter(|c| c.status() == "True")?.last_transition_time.as_ref()
        });
        let Some(end) = end.map(Time::from) else { return Plan::none() };
        let ttl = Duration::from_secs(u64::try_from(ttl_s).unwrap_or(0));
        let left = ttl.saturating_sub(now.since(end));
        if !left.is_zero() {
            return Plan::none().requeue_after(left);
        }
        // The time to live may have been prolonged meanwhile.
        let options = DeleteOptions { propagation: Some("Foreground"), ..DeleteOptions::unchanged(job.as_ref()) };
        Plan::none().delete_with(&Job::resource(), job.as_ref(), options)
    }
}
