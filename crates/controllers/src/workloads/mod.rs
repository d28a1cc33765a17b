//! Controllers that keep pods: of a number, of an order, of each node, until an end, at times.
//!
//! Each is a pure reconcile. What they share is small: whose a pod is ([`claim`]), what a pod is like ([`pods`]), what
//! children are called ([`names`]), and how old forms of a template are kept ([`revisions`]). None counts what it expects to
//! see: the engine holds a key until the caches show what was written for it.
//!
//! A reconcile first settles whose the pods are, and plans nothing else while something is to be settled; then it makes or
//! removes children; and only when there is nothing to make or remove, or the server refuses that, it writes the status. So a
//! status is never written from a count that the same plan is about to change.

#[cfg(test)]
mod bad_input_tests;
mod claim;
mod conditions;
mod cron_job;
mod daemon_set;
mod deployment;
mod job;
mod names;
mod pods;
#[cfg(test)]
mod refused_tests;
mod replica_set;
mod revisions;
mod scale;
mod stateful_set;
#[cfg(test)]
mod surplus_tests;
mod templates;
#[cfg(test)]
mod tests;

pub use cron_job::CronJobController;
pub use daemon_set::DaemonSetController;
pub use deployment::DeploymentController;
pub use job::{JobController, TtlController};
pub use replica_set::{ReplicaController, ReplicaSets, ReplicationControllers};
pub use stateful_set::StatefulSetController;

use carrack_engine::Controller;

use crate::Planted;

/// The most children that one plan makes or removes. Writes of a plan go one after another and the first that fails ends it,
/// so that a quota that is full costs one request and not this many.
const BURST: usize = 500;

/// All controllers of workloads.
#[must_use]
pub fn all(planted: Option<Planted>) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(ReplicaSets::default()),
        Box::new(ReplicationControllers::default()),
        Box::new(DeploymentController { by_spec: planted == Some(Planted::SetsBySpec) }),
        Box::new(StatefulSetController { claims_go: planted == Some(Planted::ClaimsGo) }),
        Box::new(DaemonSetController::default()),
        Box::new(JobController::default().with_planted(planted)),
        Box::new(TtlController),
        Box::new(CronJobController::default().with_planted(planted)),
    ]
}
