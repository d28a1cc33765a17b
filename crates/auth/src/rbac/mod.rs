//! Role-based access control (`rbac.authorization.k8s.io/v1`) as a pure evaluator.
//!
//! [`Index`] holds the four kinds as they were last seen, by [`Index::upsert`] and
//! [`Index::remove`], and answers [`Index::authorize`]. Aggregated ClusterRoles are resolved in the
//! index, so that authorization does not wait for a controller to copy rules.
//! [`escalation`] keeps writers of roles and bindings from granting more than they hold.

pub mod escalation;
mod index;
mod object;
mod rule;
mod selector;
#[cfg(test)]
mod tests;

pub use index::{EffectiveRules, Index};
pub use object::{Binding, Key, Kind, Object, ObjectError, Role, RoleRef, Subject};
pub use rule::{Rule, covers};
pub use selector::Selector;

/// The API group of the RBAC kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";
