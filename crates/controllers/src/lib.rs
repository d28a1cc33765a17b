//! The controllers that pods and virtual machines lean on, each a pure reconcile on the engine.
//!
//! - [`GarbageCollector`]: objects whose owners are gone, and the two kinds of deletion that wait.
//! - [`NamespaceController`]: empties namespaces that are being deleted.
//! - [`ServiceAccountController`]: every namespace has its `default` service account.
//! - [`AccountSecrets`]: Secrets that hold a service account's token.
//! - [`RootCaController`]: every namespace has the cluster's CA, for pods to verify the API server.
//! - [`NodeLifecycle`], [`TaintEviction`]: nodes that fall silent, and the pods that this evicts.
//! - [`PodGc`]: pods that nobody else would delete.
//! - [`EndpointSliceController`], [`EndpointsController`]: the pods that a service stands for.
//! - [`HorizontalAutoscaler`]: as many pods as their metrics ask for.
//! - [`DisruptionController`]: how many pods may be evicted now.
//! - [`StaleDisruption`]: pods that were to be evicted and were not.
//! - [`workloads`]: ReplicaSets, Deployments and the others that keep pods.
//! - [`QuotaController`]: quotas counted anew where no write does it.
//! - [`CertificateCleaner`]: certificate requests that nobody waits for any more.
//! - [`PodCertificateCleaner`]: the same of kubelets, for their pods.
//! - [`PolicyStatus`]: what is odd about the expressions of admission policies.
//! - [`PersistentVolumeBinder`], [`ClaimProtection`], [`VolumeProtection`], [`AttributesClassProtection`], [`EphemeralVolumes`],
//!   [`Expansion`], [`AttachDetach`], [`InlineAttachDetach`]: claims and volumes.

mod account_secrets;
mod autoscaling;
#[cfg(test)]
mod barrier;
mod certificates;
mod custom;
mod disruption;
mod endpoints;
mod garbage;
mod namespace;
mod node;
mod pod_certificates;
mod pod_gc;
mod pods;
mod policies;
mod quota;
mod root_ca;
mod service_account;
mod stale_disruption;
#[cfg(test)]
mod testing;
mod volumes;
pub mod workloads;

use carrack_engine::Controller;
use carrack_types::resource::Resource;

pub use account_secrets::AccountSecrets;
pub use autoscaling::HorizontalAutoscaler;
pub use certificates::CertificateCleaner;
pub use disruption::DisruptionController;
pub use endpoints::{EndpointSliceController, EndpointsController};
pub use garbage::GarbageCollector;
pub use namespace::NamespaceController;
pub use node::{NodeLifecycle, TaintEviction};
pub use pod_certificates::PodCertificateCleaner;
pub use pod_gc::PodGc;
pub use policies::PolicyStatus;
pub use quota::QuotaController;
pub use root_ca::RootCaController;
pub use service_account::ServiceAccountController;
pub use stale_disruption::StaleDisruption;
pub use volumes::{
    AttachDetach, AttributesClassProtection, ClaimProtection, EphemeralVolumes, Expansion, InlineAttachDetach,
    PersistentVolumeBinder, VolumeProtection,
};

/// What the controllers need to be told.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The built-in kinds whose objects can have owners and go with their namespace; those of custom resource
    /// definitions are found.
    pub collected: Vec<Resource>,
    /// Kinds of which nobody collects garbage and no namespace is emptied, whoever serves them, beside events. (For garbage,
    /// `gcIgnoredResources` of upstream's GarbageCollectorControllerConfiguration.)
    pub ignored: Vec<Resource>,
    /// The cluster's CA certificate, in PEM.
    pub ca_pem: String,
    /// A bug to put in, for the simulator, which must find it; never for a real process.
    pub planted: Option<Planted>,
}

/// Bugs that can be put in on purpose, for the simulator, which must find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A Deployment counts its sets by their specs alone, as upstream does.
    SetsBySpec,
    /// A Job takes pods that it has written down for counted, whether they have let go or not.
    EndsForgotten,
    /// A CronJob gives each Job a name of its own, and does not learn from its Jobs for which times there was one.
    TimesTwice,
    /// A StatefulSet deletes claims by scaling whatever its policy says.
    ClaimsGo,
    /// The node lifecycle controller takes its own deafness for the nodes' silence.
    Deafness,
    /// A disk is taken from its node without asking whether that uses it.
    CarelessDetach,
    /// The same of one that its pod brings itself.
    CarelessInlineDetach,
    /// Pods of a node that is gone are given up at once.
    HastyOrphans,
    /// A volume that names a claim is given to whoever has that name.
    ClaimsByName,
    /// A claim whose volume is to be made at a node takes one that is free, wherever that is.
    TakesFree,
    /// A volume whose claim is gone does not learn that its node has let go of it.
    ReleasesUnheard,
    /// Pods that are to go and never had a node are left to themselves.
    UnplacedStay,
    /// Pods of a Job do not tell of failures of their index that the failure policy ignores.
    IgnoredUntold,
    /// Pods that hold the finalizer of Jobs and belong to nobody are left to themselves.
    OrphansHeld,
    /// A Job does not hold pods that it takes over.
    AdoptedUnheld,
    /// A Job goes on only when all pods that have ended have let go.
    OneHoldsAll,
    /// The dependents that caches show are taken for all that an owner has.
    StaleDependents,
    /// An owner that is to go after its dependents goes when they were told to go.
    HastyOwners,
    /// A namespace is taken for empty when caches show nothing of it.
    UnprovedEmptiness,
    /// What other servers keep in a namespace is nobody's concern.
    UnreadServers,
    /// Pods that run are told as ready.
    HastySlices,
    /// Pods whose eviction was granted count as before.
    GrantsForgotten,
    /// A claim that a pod before it had is taken for the pod's own.
    TakenClaims,
    /// A node that came back and goes again is taken for one that was gone all the time.
    AbsenceRemembered,
    /// An autoscaler does not look at its bounds.
    BoundsForgotten,
    /// An autoscaler takes metrics that fail for such that ask for no pods.
    SilenceIsZero,
}

/// All controllers: what the role runs, and what the simulator and the tests over all of them run.
#[must_use]
pub fn all(config: &Config) -> Vec<Box<dyn Controller>> {
    let cluster: Vec<Box<dyn Controller>> = vec![
        Box::new(
            GarbageCollector::new(config.collected.clone()).ignoring(&config.ignored).with_planted(config.planted),
        ),
        Box::new(
            NamespaceController::new(config.collected.clone()).ignoring(&config.ignored).with_planted(config.planted),
        ),
        Box::new(ServiceAccountController),
        Box::new(AccountSecrets::new(config.ca_pem.clone())),
        Box::new(RootCaController::new(config.ca_pem.clone())),
        Box::new(match config.planted {
            Some(Planted::Deafness) => NodeLifecycle::with_planted_deafness(),
            _ => NodeLifecycle::default(),
        }),
        Box::new(TaintEviction::default()),
        Box::new(match config.planted {
            Some(Planted::HastyOrphans) => PodGc::with_planted_haste(),
            Some(Planted::UnplacedStay) => PodGc::with_planted_blindness(),
            _ => PodGc::default(),
        }),
        Box::new(EndpointSliceController::default().with_planted(config.planted)),
        Box::new(EndpointsController::default()),
        Box::new(HorizontalAutoscaler::default().with_planted(config.planted)),
        Box::new(DisruptionController::default().with_planted(config.planted)),
        Box::new(StaleDisruption),
        Box::new(QuotaController::default()),
        Box::new(PolicyStatus),
        Box::new(CertificateCleaner),
        Box::new(PodCertificateCleaner::default()),
        Box::new(PersistentVolumeBinder::default().with_planted(config.planted)),
        Box::new(ClaimProtection),
        Box::new(VolumeProtection),
        Box::new(AttributesClassProtection),
        Box::new(EphemeralVolumes { takes: config.planted == Some(Planted::TakenClaims) }),
        Box::new(Expansion::default()),
        Box::new(match config.planted {
            Some(Planted::CarelessDetach) => AttachDetach::with_planted_carelessness(),
            Some(Planted::AbsenceRemembered) => AttachDetach::with_planted_memory(),
            _ => AttachDetach::default(),
        }),
        Box::new(match config.planted {
            Some(Planted::CarelessInlineDetach) => InlineAttachDetach::with_planted_carelessness(),
            _ => InlineAttachDetach::default(),
        }),
    ];
    cluster.into_iter().chain(workloads::all(config.planted)).collect()
}
