//! The controllers that pods and virtual machines lean on, each a pure reconcile on the engine.
//!
//! - [`GarbageCollector`]: objects whose owners are gone, and the two kinds of deletion that wait.
//! - [`NamespaceController`]: empties namespaces that are being deleted.
//! - [`ServiceAccountController`]: every namespace has its `default` service account.
//! - [`RootCaController`]: every namespace has the cluster's CA, for pods to verify the API server.

mod custom;
mod garbage;
mod namespace;
mod root_ca;
mod service_account;

use carrack_engine::Controller;
use carrack_types::resource::Resource;

pub use garbage::GarbageCollector;
pub use namespace::NamespaceController;
pub use root_ca::RootCaController;
pub use service_account::ServiceAccountController;

/// What the controllers need to be told.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The built-in kinds whose objects can have owners and go with their namespace; those of custom resource
    /// definitions are found.
    pub collected: Vec<Resource>,
    /// The cluster's CA certificate, in PEM.
    pub ca_pem: String,
}

/// All controllers: what the role runs, and what the simulator and the tests over all of them run.
#[must_use]
pub fn all(config: &Config) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(GarbageCollector::new(config.collected.clone())),
        Box::new(NamespaceController::new(config.collected.clone())),
        Box::new(ServiceAccountController),
        Box::new(RootCaController::new(config.ca_pem.clone())),
    ]
}
