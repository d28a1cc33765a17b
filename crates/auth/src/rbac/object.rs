//! The four RBAC kinds, as far as evaluation needs them: read from JSON, the rest ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rule::Rule;
use super::selector::Selector;
use crate::caller::{Caller, SERVICE_ACCOUNT_USER_PREFIX};

/// Which of the four kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `Role`
    Role,
    /// `ClusterRole`
    ClusterRole,
    /// `RoleBinding`
    RoleBinding,
    /// `ClusterRoleBinding`
    ClusterRoleBinding,
}

impl Kind {
    /// The kind behind a plural resource name.
    #[must_use]
    pub fn of_resource(resource: &str) -> Option<Self> {
        match resource {
            "roles" => Some(Self::Role),
            "clusterroles" => Some(Self::ClusterRole),
            "rolebindings" => Some(Self::RoleBinding),
            "clusterrolebindings" => Some(Self::ClusterRoleBinding),
            _ => None,
        }
    }

    /// The kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
            Self::RoleBinding => "RoleBinding",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
        }
    }

    /// The plural resource name.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }
}

/// Which object. The namespace is empty for the cluster-wide kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The kind.
    pub kind: Kind,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A key.
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// A `Role` or `ClusterRole`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Its labels; aggregation selects by them.
    pub labels: BTreeMap<String, String>,
    /// Its rules.
    pub rules: Vec<Rule>,
    /// The selectors of its `aggregationRule`. When there are any, they decide and not `rules`.
    pub aggregate: Option<Vec<Selector>>,
}

/// To whom a binding gives its role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A user, by name.
    User(String),
    /// A group, by name.
    Group(String),
    /// A service account, by namespace and name.
    ServiceAccount(String, String),
}

impl Subject {
    /// The user name or group that the subject stands for, for the index: service accounts are users.
    pub(super) fn principal(&self) -> Principal {
        match self {
            Self::User(name) => Principal::User(name.clone()),
            Self::Group(name) => Principal::Group(name.clone()),
            Self::ServiceAccount(namespace, name) => {
                Principal::User(format!("{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:{name}"))
            }
        }
    }

    /// Whether it is the caller, or a group of theirs.
    pub(super) fn is(&self, caller: &Caller) -> bool {
        match self {
            Self::User(name) => caller.user == *name,
            Self::Group(name) => caller.in_group(name),
            Self::ServiceAccount(namespace, name) => {
                let rest = caller.user.strip_prefix(SERVICE_ACCOUNT_USER_PREFIX);
                let rest = rest.and_then(|rest| rest.strip_prefix(namespace.as_str())?.strip_prefix(':'));
                rest == Some(name.as_str())
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::User(name) => format!("User {name:?}"),
            Self::Group(name) => format!("Group {name:?}"),
            Self::ServiceAccount(namespace, name) => {
                format!("ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        }
    }
}

/// A user or a group.
pub(super) enum Principal {
    User(String),
    Group(String),
}

/// The role that a binding gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRef {
    /// `Role` or `ClusterRole`.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// A `RoleBinding` or `ClusterRoleBinding`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// To whom.
    pub subjects: Vec<Subject>,
    /// What.
    pub role: RoleRef,
}

/// The content of one of the four kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A role of either scope.
    Role(Role),
    /// A binding of either scope.
    Binding(Binding),
}

/// Why an RBAC object could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The JSON does not fit.
    #[error("{kind} does not parse")]
    Json {
        /// The kind that was expected.
        kind: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A binding refers to a role of an unknown kind.
    #[error("{kind} refers to unknown kind {referred:?}")]
    RoleRef {
        /// The binding's kind.
        kind: &'static str,
        /// The kind it refers to.
        referred: String,
    },
}

#[derive(Deserialize, Default)]
struct RawMeta {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRole {
    #[serde(default)]
    metadata: RawMeta,
    #[serde(default)]
    rules: Option<Vec<Rule>>,
    #[serde(default)]
    aggregation_rule: Option<RawAggregation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAggregation {
    #[serde(default)]
    cluster_role_selectors: Option<Vec<Selector>>,
}

#[derive(Deserialize)]
struct RawNamed {
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBinding {
    #[serde(default)]
    subjects: Option<Vec<RawNamed>>,
    role_ref: RawNamed,
}

impl Object {
    /// Reads an object's JSON.
    ///
    /// # Errors
    /// When it is not an object of that kind. Subjects of unknown kinds are skipped, as upstream
    /// does: they match nobody.
    pub fn parse(kind: Kind, namespace: &str, json: &[u8]) -> Result<Self, ObjectError> {
        let failed = |source| ObjectError::Json { kind: kind.name(), source };
        match kind {
            Kind::Role | Kind::ClusterRole => {
                let raw: RawRole = serde_json::from_slice(json).map_err(failed)?;
                Ok(Self::Role(Role {
                    labels: raw.metadata.labels.unwrap_or_default(),
                    rules: raw.rules.unwrap_or_default(),
                    aggregate: match kind {
                        Kind::ClusterRole => {
                            raw.aggregation_rule.map(|rule| rule.cluster_role_selectors.unwrap_or_default())
                        }
                        _ => None,
                    },
                }))
            }
            Kind::RoleBinding | Kind::ClusterRoleBinding => {
                let raw: RawBinding = serde_json::from_slice(json).map_err(failed)?;
                let role_kind = match raw.role_ref.kind.as_str() {
                    // A ClusterRoleBinding cannot give a Role: there is no namespace to find it in.
                    "Role" if kind == Kind::RoleBinding => Kind::Role,
                    "ClusterRole" => Kind::ClusterRole,
                    _ => {
                        return Err(ObjectError::RoleRef { kind: kind.name(), referred: raw.role_ref.kind });
                    }
                };
                let subjects = raw.subjects.unwrap_or_default().into_iter();
                Ok(Self::Binding(Binding {
                    subjects: subjects.filter_map(|s| subject(s, namespace)).collect(),
                    role: RoleRef { kind: role_kind, name: raw.role_ref.name },
                }))
            }
        }
    }
}

/// A service account without a namespace is in that of its RoleBinding.
fn subject(raw: RawNamed, binding_namespace: &str) -> Option<Subject> {
    match raw.kind.as_str() {
        "User" => Some(Subject::User(raw.name)),
        "Group" => Some(Subject::Group(raw.name)),
        "ServiceAccount" => {
            let namespace = raw.namespace.filter(|n| !n.is_empty()).unwrap_or_else(|| binding_namespace.to_owned());
            (!namespace.is_empty()).then_some(Subject::ServiceAccount(namespace, raw.name))
        }
        _ => None,
    }
}
