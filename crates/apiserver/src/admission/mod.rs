//! Admission: small plugins that complete an object and refuse what may not be.
//!
//! ```text
//!   decode ─► default ─► mutate (each plugin, in order) ─► default ─► validate (schema, then each plugin) ─► store
//! ```
//!
//! A plugin is a pure function of the request and of objects that it named beforehand
//! ([`AdmissionPlugin::needs`]), some of them by what it found in others ([`AdmissionPlugin::follows`]).
//! What it pins becomes a precondition of the write, so that nothing is admitted on the grounds of an
//! object that has changed meanwhile. One alone remembers what was asked before, `event_rate`.

pub(crate) mod accepted;
mod account_secret;
mod along;
mod cluster_role;
mod configuration;
mod consult;
mod declared;
mod definition;
mod device_admin;
mod event_rate;
pub(crate) mod extend;
pub(crate) mod flow_schema;
mod found;
mod hooks;
mod ingress;
mod limit_ranger;
mod mountable;
mod namespace;
mod node;
mod persistent;
mod pod;
mod pod_security;
mod policy;
mod priority;
mod quota;
mod runtime_class;
mod select;
mod service_account;
pub(crate) mod steps;
mod topology;
pub(crate) mod webhook;
mod world;

use std::sync::Arc;

use carrack_auth::Caller;
use carrack_auth::token::Issuer;
use carrack_schema::table::ResourceInfo;
use carrack_store::Entry;

use crate::env::Env;
use crate::metrics::PodSecurityMetrics;
use crate::object::Object;
use crate::registry::delete_options::DeleteOptions;
use crate::services::{Network, ServiceAddresses};
use crate::status::Status;

pub use along::{Along, Change};
pub(crate) use along::{Terms, marks, terms};
pub(crate) use cluster_role::aggregated;
pub use configuration::AdmissionConfiguration;
pub(crate) use consult::{bind, connect, consult};
pub(crate) use definition::{CLEANUP_FINALIZER, set_condition, settle};
pub(crate) use found::{Found, fetch};
pub(crate) use hooks::{Hooks, HooksFold};
pub(crate) use select::verb;
pub(crate) use steps::Asked;

/// What is being done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It is changed.
    Update,
    /// It is removed, or its removal is asked for.
    Delete,
    /// Somebody connects to it: exec, attach, port-forward, proxy. Only webhooks and policies see that.
    Connect,
}

/// A write as plugins see it.
pub struct Attributes<'a> {
    /// What is done.
    pub operation: Operation,
    /// Who does it.
    pub caller: &'a Caller,
    /// The resource.
    pub row: &'a ResourceInfo,
    /// The version that the request speaks.
    pub version: &'a str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// The name; empty while it is to be generated.
    pub name: String,
    /// The new object; empty for a deletion.
    pub object: Object,
    /// The object as it was; none for a creation.
    pub old: Option<&'a Object>,
    /// `metadata.managedFields` of the new object, which it goes without on its way, as JSON.
    pub managers: Option<&'a str>,
    /// The old object as it is stored, if it goes without its managers too.
    pub old_entry: Option<&'a Entry>,
    /// How the object is to be removed, if it is.
    pub(crate) deletion: Option<&'a DeleteOptions>,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// Clock and random numbers.
    pub env: &'a dyn Env,
}

impl Attributes<'_> {
    /// Whether this is about objects (not subresources) of a resource.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.row.group == group && self.row.plural == plural && self.subresource.is_empty()
    }

    /// A refusal: 403 with upstream's sentence.
    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(&self.row.group, &self.row.plural, &self.name, why)
    }
}

/// Names an object that a plugin wants to see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needed {
    /// API group.
    pub group: String,
    /// Plural name of the resource; empty name with this set means all objects of the resource.
    pub resource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name; empty for all objects (of the namespace, if one is given).
    pub name: String,
    /// The write depends on this object being unchanged (or absent).
    pub pinned: bool,
}

impl Needed {
    /// One object.
    pub fn one(group: &str, resource: &str, namespace: &str, name: &str) -> Needed {
        Needed {
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            pinned: false,
        }
    }

    /// All objects of a resource; of one namespace, unless that is empty.
    pub fn all(group: &str, resource: &str, namespace: &str) -> Needed {
        Needed::one(group, resource, namespace, "")
    }

    /// The same, as a precondition of the write. Of all objects of a resource, it is one that there are those alone, as they were
    /// read; the store looks at each of them again, so that is for resources of which there are few.
    #[must_use]
    pub fn pinned(mut self) -> Needed {
        self.pinned = true;
        self
    }
}

/// The objects that plugins named.
pub trait Lookup {
    /// An object that was named in [`AdmissionPlugin::needs`], if it exists.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<&Object>;
    /// The objects of a resource that was named as a whole.
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<&Object>;
    /// The same as they are stored, for one who reads but little of each.
    fn entries(&self, group: &str, resource: &str, namespace: &str) -> Vec<&Entry>;
    /// Their names alone, in order, which costs less.
    fn names(&self, group: &str, resource: &str, namespace: &str) -> Vec<&str>;
}

/// One concern of admission.
pub trait AdmissionPlugin: Send + Sync {
    /// Its name, for logs.
    fn name(&self) -> &'static str;
    /// The objects it wants to see for this write.
    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        // Most plugins look at the object alone.
        let _: &Attributes<'_> = attributes;
        Vec::new()
    }
    /// The objects it wants to see besides, by what is in those that it named. Asked again until there is none among them that has
    /// not been looked for.
    fn follows(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Needed> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Vec::new()
    }
    /// Completes the object.
    ///
    /// # Errors
    /// When the write is refused.
    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let _: (&mut Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Ok(())
    }
    /// Checks the completed object.
    ///
    /// # Errors
    /// When the write is refused.
    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Ok(())
    }
    /// What the client is told about a write that goes through.
    fn warnings(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<String> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Vec::new()
    }
    /// What the audit log says of a write, whether it goes through or not. Asked only where there is one.
    fn annotations(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<(String, String)> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Vec::new()
    }
    /// Which other objects change with the write, in one transaction. Asked last, about the object as
    /// it will be stored.
    ///
    /// # Errors
    /// When the write is refused.
    fn along(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<Vec<Along>, Status> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Ok(Vec::new())
    }
    /// Which other objects change although a request that is no plain write, such as an eviction, was refused: by them, whoever
    /// is to see to what was asked for learns of it. They rest on what is pinned, and are not asked for when nothing is to be
    /// stored.
    fn marks(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Along> {
        let _: (&Attributes<'_>, &dyn Lookup) = (attributes, lookup);
        Vec::new()
    }
}

/// The plugins of a server, in upstream's order, without those that are switched off.
pub(crate) fn built_in(
    network: &Network,
    issuer: Option<&Arc<Issuer>>,
    configuration: AdmissionConfiguration,
    pod_security: &PodSecurityMetrics,
) -> Vec<Box<dyn AdmissionPlugin>> {
    // Off unless it is named.
    let event_rate = configuration.event_limits().map(event_rate::EventRateLimit::new);
    let AdmissionConfiguration { pod_security: security, resource_quota: limits, tolerations, off, .. } = configuration;
    let mut plugins: Vec<Box<dyn AdmissionPlugin>> = vec![
        Box::new(namespace::NamespaceLifecycle),
        Box::new(definition::Definitions),
        Box::new(crate::aggregate::ApiServices),
        Box::new(limit_ranger::LimitRanger),
        Box::new(service_account::ServiceAccountTokens),
        Box::new(account_secret::AccountSecrets(issuer.cloned())),
        Box::new(node::NodeRestriction),
        Box::new(node::TaintNodesByCondition),
        Box::new(pod_security::PodSecurity { configuration: security, metrics: pod_security.clone() }),
        Box::new(priority::Priority),
        Box::new(pod::DefaultTolerations(tolerations)),
    ];
    if let Some(event_rate) = event_rate {
        plugins.push(Box::new(event_rate));
    }
    let others: [Box<dyn AdmissionPlugin>; 12] = [
        Box::new(persistent::DefaultStorageClass),
        Box::new(persistent::StorageObjectInUse),
        Box::new(persistent::ClaimResize),
        Box::new(runtime_class::RuntimeClass),
        Box::new(ingress::DefaultIngressClass),
        Box::new(topology::PodTopologyLabels),
        Box::new(declared::NodeDeclaredFeatures),
        Box::new(device_admin::DeviceAdminAccess),
        Box::new(cluster_role::Aggregation),
        Box::new(flow_schema::FlowSchemas),
        Box::new(ServiceAddresses::new(network.clone())),
        Box::new(quota::ResourceQuota { limits }),
    ];
    plugins.extend(others);
    plugins.retain(|plugin| !off.contains(plugin.name()));
    plugins
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each goes under upstream's name, webhooks and policies apart, which are no plugins of the list.
    #[test]
    fn what_is_switched_off_is_not_asked() {
        let names = |off: &[&str]| {
            let configuration = AdmissionConfiguration::default().disable(off.iter().copied()).expect("names");
            let plugins = built_in(&Network::default(), None, configuration, &PodSecurityMetrics::default());
            plugins.iter().map(|plugin| plugin.name()).collect::<Vec<_>>()
        };
        let all = names(&[]);
        for off in [
            "DefaultIngressClass",
            "DefaultStorageClass",
            "DefaultTolerationSeconds",
            "LimitRanger",
            "NamespaceLifecycle",
            "NodeDeclaredFeatureValidator",
            "NodeRestriction",
            "PersistentVolumeClaimResize",
            "PodSecurity",
            "PodTopologyLabels",
            "Priority",
            "ResourceQuota",
            "RuntimeClass",
            "ServiceAccount",
            "StorageObjectInUseProtection",
            "TaintNodesByCondition",
        ] {
            let left: Vec<_> = all.iter().copied().filter(|name| *name != off).collect();
            assert_eq!(left.len() + 1, all.len(), "{off}");
            assert_eq!(names(&[off]), left, "{off}");
        }
    }
}
