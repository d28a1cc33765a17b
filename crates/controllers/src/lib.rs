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

pub use garbage::GarbageCollector;
pub use namespace::NamespaceController;
pub use root_ca::RootCaController;
pub use service_account::ServiceAccountController;
