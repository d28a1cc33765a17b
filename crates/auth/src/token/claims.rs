//! What a service account token says.

use serde::{Deserialize, Serialize};

/// The claims of a token. Times are seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// For whom the token is meant.
    #[serde(with = "one_or_many")]
    pub aud: Vec<String>,
    /// When it stops being valid.
    pub exp: i64,
    /// When it was issued.
    pub iat: i64,
    /// Who issued it.
    pub iss: String,
    /// A unique id of the token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// Kubernetes' own claims.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// When it starts being valid.
    #[serde(default)]
    pub nbf: i64,
    /// The user name.
    pub sub: String,
}

/// The private claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// The service account's namespace.
    pub namespace: String,
    /// The node, of a token bound to a node or to a pod on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// The pod, of a token bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    /// The secret, of a token bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    /// The service account.
    pub serviceaccount: Reference,
    /// When its holder was to have another, of a token that is valid for longer than its holder is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// An object by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The name.
    pub name: String,
    /// The uid.
    #[serde(default)]
    pub uid: String,
}

/// Names under which a caller's `extra` tells what its token is bound to.
#[derive(Clone, Copy, Debug)]
pub struct BoundNames;

impl BoundNames {
    /// The pod's name.
    pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
    /// The pod's uid.
    pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
    /// The node's name.
    pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
    /// The node's uid.
    pub const NODE_UID: &str = "authentication.kubernetes.io/node-uid";
    /// The token's id, as `JTI=…`, or a certificate's hash, as `X509SHA256=…`.
    pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
}

/// `aud` is a string or a list of strings (RFC 7519, 4.1.3).
mod one_or_many {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        list.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        })
    }
}
