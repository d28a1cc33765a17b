//! The authorizer that the API server asks: nodes first, then RBAC, as upstream's `Node,RBAC`.
//!
//! It is kept current by [`Authorizer::observe`], which the API server calls with each committed
//! change (and once with every object at start).

use crate::attributes::{Attributes, Decision};
use crate::caller::Caller;
use crate::node::{self, Graph, graph::GraphError};
use crate::rbac::{self, Index, Key, Kind, Object, ObjectError};

/// Node authorizer and RBAC with what they know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorizer {
    /// Roles and bindings.
    pub rbac: Index,
    /// What the pods of each node refer to.
    pub nodes: Graph,
}

/// Why an object could not be taken in. It counts as absent: nothing is allowed on its grounds.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A role or binding.
    #[error("{resource} {namespace}/{name} is left out of authorization")]
    Rbac {
        /// Plural resource name.
        resource: &'static str,
        /// Namespace, or empty.
        namespace: String,
        /// Name.
        name: String,
        /// Why.
        #[source]
        source: ObjectError,
    },
    /// An object that relates secrets and the like to nodes.
    #[error("an object is left out of the node graph")]
    Node(#[from] GraphError),
}

impl Authorizer {
    /// Knows nothing, allows `system:masters` only.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`Self::observe`] has a use for objects of this resource.
    #[must_use]
    pub fn observes(group: &str, resource: &str) -> bool {
        match group {
            rbac::GROUP => Kind::of_resource(resource).is_some(),
            "" => matches!(resource, "pods" | "persistentvolumes"),
            "storage.k8s.io" => resource == "volumeattachments",
            "resource.k8s.io" => resource == "resourceslices",
            _ => false,
        }
    }

    /// Takes in the newest form of an object (as stored JSON), or its removal (`None`). Resources
    /// that authorization does not depend on are ignored. The answer says whether it was of use.
    ///
    /// # Errors
    /// When the JSON is not an object of that resource. The object then counts as absent.
    pub fn observe(
        &mut self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
        json: Option<&[u8]>,
    ) -> Result<bool, ObserveError> {
        if group != rbac::GROUP {
            return Ok(self.nodes.observe(group, resource, namespace, name, json)?);
        }
        let Some(kind) = Kind::of_resource(resource) else {
            return Ok(false);
        };
        let key = Key::new(kind, namespace, name);
        let Some(json) = json else {
            self.rbac.remove(&key);
            return Ok(true);
        };
        match Object::parse(kind, namespace, json) {
            Ok(object) => {
                self.rbac.upsert(key, object);
                Ok(true)
            }
            Err(source) => {
                self.rbac.remove(&key);
                Err(ObserveError::Rbac {
                    resource: kind.resource(),
                    namespace: namespace.into(),
                    name: name.into(),
                    source,
                })
            }
        }
    }

    /// May the caller do this?
    #[must_use]
    pub fn authorize(&self, caller: &Caller, attributes: &Attributes<'_>) -> Decision {
        let mut reasons = Vec::new();
        if let Some(node) = caller.node_name() {
            match node::authorize(&self.nodes, node, attributes) {
                Ok(()) => {
                    return Decision::Allow { reason: String::new() };
                }
                Err(reason) => reasons.push(reason),
            }
        }
        match self.rbac.authorize(caller, attributes) {
            Decision::Deny { reason } => {
                reasons.push(reason);
                reasons.retain(|r| !r.is_empty());
                Decision::Deny { reason: reasons.join(", ") }
            }
            allow => allow,
        }
    }
}
