//! The authorizer that the API server asks: nodes first, then RBAC, as upstream's `Node,RBAC`.
//!
//! It is kept current by [`Authorizer::observe`], which the API server calls with each committed
//! change (and once with every object at start).

use std::sync::{Arc, PoisonError, RwLock};

use crate::attributes::{Attributes, Decision};
use crate::caller::Caller;
use crate::node::{self, Graph, graph::GraphError};
use crate::rbac::{self, Index, Key, Kind, Object, ObjectError};

/// Node authorizer and RBAC with what they know.
///
/// A clone is a view for one who asks, be it for long: it has the roles and bindings of its time, and nobody waits for
/// it. What is taken in later copies what changes, and that only while there is such a view. What pods refer to changes
/// with each of them, so that clones share it, and look into it for no longer than a question takes.
#[derive(Clone, Debug, Default)]
pub struct Authorizer {
    /// Roles and bindings.
    pub rbac: Arc<Index>,
    /// What the pods of each node refer to.
    nodes: Arc<RwLock<Graph>>,
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
            let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
            return Ok(nodes.observe(group, resource, namespace, name, json)?);
        }
        let Some(kind) = Kind::of_resource(resource) else {
            return Ok(false);
        };
        let key = Key::new(kind, namespace, name);
        let index = Arc::make_mut(&mut self.rbac);
        let Some(json) = json else {
            index.remove(&key);
            return Ok(true);
        };
        match Object::parse(kind, namespace, json) {
            Ok(object) => {
                index.upsert(key, object);
                Ok(true)
            }
            Err(source) => {
                index.remove(&key);
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
            let outcome = {
                let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
                node::authorize(&nodes, node, attributes)
            };
            match outcome {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_has_the_roles_of_its_time_and_the_pods_of_now() {
        let mut authorizer = Authorizer::new();
        let put = |authorizer: &mut Authorizer, group: &str, resource: &str, namespace: &str, json: Option<&str>| {
            let json = json.map(str::as_bytes);
            assert!(authorizer.observe(group, resource, namespace, "x", json).expect("valid"), "{resource}");
        };
        let role = r#"{"rules":[{"verbs":["list"],"apiGroups":[""],"resources":["pods"]}]}"#;
        let binding = r#"{"subjects":[{"kind":"User","name":"jane"}],"roleRef":{"kind":"ClusterRole","name":"x"}}"#;
        put(&mut authorizer, rbac::GROUP, "clusterroles", "", Some(role));
        put(&mut authorizer, rbac::GROUP, "clusterrolebindings", "", Some(binding));
        let view = authorizer.clone();
        put(&mut authorizer, rbac::GROUP, "clusterrolebindings", "", None);
        let pod = r#"{"spec":{"nodeName":"n","containers":[],"volumes":[{"name":"v","secret":{"secretName":"s"}}]}}"#;
        put(&mut authorizer, "", "pods", "a", Some(pod));
        let (jane, node) = (Caller::new("jane", [""; 0]), Caller::new("system:node:n", ["system:nodes"]));
        let list = Attributes::resource("list", "", "pods");
        let secret = Attributes::resource("get", "", "secrets").in_namespace("a").named("s");
        let told =
            |of: &Authorizer| [(&jane, &list), (&node, &secret)].map(|(who, what)| of.authorize(who, what).allowed());
        assert_eq!(told(&view), [true, true]);
        assert_eq!(told(&authorizer), [false, true]);
    }
}
