//! What a write rests on besides its own object, as it travels with the request.
//!
//! Kubernetes lets a write rest on the object that is written. A child rests on its owner, too: a ReplicaSet is made for a
//! Deployment as it was read, and must not come into being when the Deployment has moved on meanwhile, however late the
//! request arrives. So a request names such objects in a header, and the API server makes the write in a transaction
//! that holds only if they are as they were read. A server that does not know the header leaves it out of account, and
//! the write is what it would be upstream; so everything that matters is decided again from what is there.
//!
//! One kind of premise is about the writer: that it leads, in the term in which it decided ([`Term`]). What arrives late from a
//! term that is over is refused, whatever it is about.

use carrack_types::resource::{Kind, Resource};
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Deserialize, Serialize};

use crate::Key;

/// The header of a request with its premises, as a JSON list.
pub const RESTS_ON: &str = "carrack-rests-on";

/// One object that a write rests on, and what must be so of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Premise {
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// Plural name of its resource.
    pub resource: String,
    /// Its namespace; empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID. None: nothing of that name is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its resourceVersion; none for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Its generation; none for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Who holds it and since when, where it is a Lease; none for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
}

/// A leader's time, as the Lease tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Term {
    /// `holderIdentity`.
    pub holder: String,
    /// `leaseTransitions`: each time that somebody begins to lead, and each time that a leader begins anew, it is a higher one.
    pub transitions: i32,
}

impl Term {
    /// The term that a Lease tells of. None where nobody holds it.
    #[must_use]
    pub fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
        Some(Self { holder, transitions: spec.lease_transitions.unwrap_or(0) })
    }
}

impl Premise {
    fn of(resource: &Resource, key: Key) -> Self {
        Self {
            group: resource.group.to_string(),
            resource: resource.plural.to_string(),
            namespace: key.namespace,
            name: key.name,
            uid: None,
            resource_version: None,
            generation: None,
            term: None,
        }
    }
    /// A Lease is held as it was read, renewed or not.
    #[must_use]
    pub fn same_term(lease: &Lease) -> Self {
        Self { term: Term::of(lease), ..Self::present(lease) }
    }
    /// An object is as it was read.
    #[must_use]
    pub fn unchanged<K: Kind>(object: &K) -> Self {
        Self {
            uid: Some(object.uid().to_owned()),
            resource_version: object.meta().resource_version.clone(),
            ..Self::of(&K::resource(), Key::of(object))
        }
    }
    /// An object's spec is as it was read; its status may be another.
    #[must_use]
    pub fn same_spec<K: Kind>(object: &K) -> Self {
        Self {
            uid: Some(object.uid().to_owned()),
            generation: object.meta().generation,
            ..Self::of(&K::resource(), Key::of(object))
        }
    }
    /// An object is there, in whatever state.
    #[must_use]
    pub fn present<K: Kind>(object: &K) -> Self {
        Self { uid: Some(object.uid().to_owned()), ..Self::of(&K::resource(), Key::of(object)) }
    }
    /// Nothing of this name is there.
    #[must_use]
    pub fn absent(resource: &Resource, key: Key) -> Self {
        Self::of(resource, key)
    }
    /// Whether it holds of an object that is there, with this metadata, and held in this term if it is a Lease.
    #[must_use]
    pub fn holds(&self, uid: &str, resource_version: &str, generation: Option<i64>, term: Option<&Term>) -> bool {
        self.uid.as_deref() == Some(uid)
            && (self.term.is_none() || self.term.as_ref() == term)
            && self.resource_version.as_deref().is_none_or(|wanted| wanted == resource_version)
            && self.generation.is_none_or(|wanted| Some(wanted) == generation)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn premises_are_read_as_they_were_written() {
        let metadata = ObjectMeta {
            namespace: Some("ns".into()),
            name: Some("p".into()),
            uid: Some("u".into()),
            resource_version: Some("7".into()),
            generation: Some(2),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let all = [
            Premise::unchanged(&pod),
            Premise::same_spec(&pod),
            Premise::absent(&Pod::resource(), Key::new("ns", "other")),
            Premise::present(&pod),
            Premise::same_term(&held("me", 3)),
        ];
        let text = serde_json::to_string(&all).unwrap_or_default();
        assert!(text.is_ascii() && !text.contains('\n'), "{text}");
        assert_eq!(serde_json::from_str::<Vec<Premise>>(&text).unwrap_or_default(), all);
        for (premise, uid, revision, generation, expected) in [
            (&all[0], "u", "7", Some(9), true),
            (&all[0], "u", "8", Some(2), false),
            (&all[0], "x", "7", Some(2), false),
            (&all[1], "u", "8", Some(2), true),
            (&all[1], "u", "7", Some(3), false),
            (&all[1], "u", "7", None, false),
            (&all[2], "u", "7", None, false),
            (&all[3], "u", "9", None, true),
            (&all[3], "x", "7", Some(2), false),
        ] {
            assert_eq!(premise.holds(uid, revision, generation, None), expected, "{premise:?}");
        }
        for (holder, transitions, expected) in [("me", 3, true), ("me", 4, false), ("you", 3, false), ("", 3, false)] {
            let term = Term::of(&held(holder, transitions));
            assert_eq!(all[4].holds("u", "9", None, term.as_ref()), expected, "{holder} {transitions}");
        }
    }

    fn held(holder: &str, transitions: i32) -> Lease {
        let metadata = ObjectMeta { name: Some("l".into()), uid: Some("u".into()), ..ObjectMeta::default() };
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }
}
