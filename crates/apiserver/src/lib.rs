//! The Kubernetes API: one pipeline for every kind, on the store.
//!
//! ```text
//!   serve (HTTPS, tokio) ─┐
//!   transport (in-process)┼─► ApiServer::handle ─► route ─► authorize ─► registry ─► Store
//!   simulator (by hand) ──┘
//! ```
//!
//! [`ApiServer`] is logic without a runtime: a future that only ever waits for the store, and watches
//! that are streams. [`serve`] and [`transport`] are the shells around it.
//!
//! A kind is a row of `carrack-schema`'s table and goes through `registry`; what a kind needs beyond
//! that is in `registry::strategy`, in a plugin of [`admission`], or in `sub` for its subresources.
//! Objects are stored in the form of `stored`, which lets them be served without being parsed.

mod accept;
pub mod admission;
mod aggregate;
pub mod audit;
pub mod body;
mod bootstrap;
mod bound;
mod call;
mod catalog;
mod certificates;
mod context;
mod conversion;
mod convert;
mod crd;
pub mod delegated;
mod discovery;
mod dispatch;
mod env;
mod etag;
mod expiry;
mod flow;
mod follow;
mod former;
pub mod health;
mod kept;
mod keys;
mod kinds;
mod legacy_tokens;
mod list_options;
mod local;
mod locate;
mod metrics;
mod nonresource;
pub mod object;
mod oidc;
mod openapi;
mod part;
mod present;
mod pretty;
mod printing;
mod privileges;
mod protobuf;
mod query;
mod registry;
mod rests_on;
mod reviews;
mod route;
mod runtime_config;
mod selector;
pub mod serve;
mod server;
mod services;
mod status;
mod stored;
mod sub;
mod texts;
mod transport;
mod yaml;

pub use body::{Body, NodeTarget, Response, Scheme};
pub use call::{Answer, Call, CallError, Calling, Dialing, Trust};
pub use catalog::Catalog;
pub use env::{Env, name_suffix, new_uid, rfc3339_s};
pub use flow::{Class, Classified, seats};
pub use keys::of as storage_prefix;
pub use local::{LocalApi, LocalGroupVersion, LocalRequest};
pub use metrics::ProcessStats;
pub use oidc::AuthenticationConfiguration;
pub use part::Part;
pub use query::Query;
pub use route::{RequestInfo, ResourceRequest};
pub use runtime_config::RuntimeConfig;
pub use selector::{FieldSelector, LabelSelector};
pub use server::{ApiServer, Config};
pub use services::{Cidr, Family, Network};
pub use status::{Cause, Details, Status};
pub use stored::stored_form;
pub use transport::InProcess;
