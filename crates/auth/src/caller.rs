//! Who makes a request: the result of authentication, and the names that Kubernetes gives to
//! well-known users and groups.

use std::collections::BTreeMap;

/// Every user that was authenticated is in this group.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Requests without credentials are in this group.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do everything; RBAC objects cannot take that away.
pub const GROUP_MASTERS: &str = "system:masters";
/// Kubelets are in this group.
pub const GROUP_NODES: &str = "system:nodes";
/// All service accounts are in this group.
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The virt-handlers of all nodes are in this group.
pub const GROUP_VIRT_HANDLERS: &str = "kubevirt.io:virt-handlers";
/// The storage agents of all nodes are in this group.
pub const GROUP_LOCAL_STORAGE: &str = "carrack.io:local-storage";
/// The user of requests without credentials.
pub const USER_ANONYMOUS: &str = "system:anonymous";
/// The user of the API server's own requests.
pub const USER_APISERVER: &str = "system:apiserver";
/// The scheduler's user.
pub const USER_SCHEDULER: &str = "system:kube-scheduler";
/// The controllers' user.
pub const USER_CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// virt-controller's user.
pub const USER_VIRT_CONTROLLER: &str = "kubevirt.io:virt-controller";
/// The GPU extender's user.
pub const USER_GPU_EXTENDER: &str = "carrack.io:gpu-extender";
/// A kubelet's user is this and the node's name.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// A virt-handler's user is this and the node's name.
pub const VIRT_HANDLER_USER_PREFIX: &str = "kubevirt.io:virt-handler:";
/// The user of a node's storage agent is this and the node's name.
pub const LOCAL_STORAGE_USER_PREFIX: &str = "carrack.io:local-storage:";
/// A service account's user is this, its namespace, a colon and its name.
pub const SERVICE_ACCOUNT_USER_PREFIX: &str = "system:serviceaccount:";

/// The authenticated sender of a request (`authentication.k8s.io/v1 UserInfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    /// The name.
    pub user: String,
    /// A unique id; empty for most users.
    pub uid: String,
    /// Groups, in the order in which they were found.
    pub groups: Vec<String>,
    /// What else the authenticator knows, such as the pod that a token belongs to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// A user with groups; `system:authenticated` is added.
    #[must_use]
    pub fn new<G: Into<String>>(user: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        let mut caller =
            Self { user: user.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() };
        caller.add_group(GROUP_AUTHENTICATED);
        caller
    }

    /// The sender of a request without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { user: USER_ANONYMOUS.into(), groups: vec![GROUP_UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// The API server itself (upstream's loopback client).
    #[must_use]
    pub fn apiserver() -> Self {
        Self::new(USER_APISERVER, [GROUP_MASTERS])
    }

    /// A service account.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let mut caller =
            Self::new(format!("{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:{name}"), service_account_groups(namespace));
        caller.uid = uid.into();
        caller
    }

    /// A kubelet.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::new(format!("{NODE_USER_PREFIX}{name}"), [GROUP_NODES])
    }

    /// A node's virt-handler.
    #[must_use]
    pub fn virt_handler(node: &str) -> Self {
        Self::new(format!("{VIRT_HANDLER_USER_PREFIX}{node}"), [GROUP_VIRT_HANDLERS])
    }

    /// A node's storage agent.
    #[must_use]
    pub fn local_storage(node: &str) -> Self {
        Self::new(format!("{LOCAL_STORAGE_USER_PREFIX}{node}"), [GROUP_LOCAL_STORAGE])
    }

    /// Whether the caller is in a group.
    #[must_use]
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Whether this is the sender of a request without credentials.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.user == USER_ANONYMOUS
    }

    /// The node's name, when the caller is a kubelet: user `system:node:<name>` in `system:nodes`.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.user.strip_prefix(NODE_USER_PREFIX)?;
        (self.in_group(GROUP_NODES) && !name.is_empty()).then_some(name)
    }

    /// The node's name, when the caller is a virt-handler with a certificate of its own.
    #[must_use]
    pub fn virt_handler_node(&self) -> Option<&str> {
        let name = self.user.strip_prefix(VIRT_HANDLER_USER_PREFIX)?;
        (self.in_group(GROUP_VIRT_HANDLERS) && !name.is_empty()).then_some(name)
    }

    /// Namespace and name, when the caller is a service account.
    #[must_use]
    pub fn service_account_name(&self) -> Option<(&str, &str)> {
        split_service_account(&self.user)
    }

    /// Adds a group that is not there yet.
    pub fn add_group(&mut self, group: &str) {
        if !self.in_group(group) {
            self.groups.push(group.into());
        }
    }
}

/// The groups of every service account of a namespace.
#[must_use]
pub fn service_account_groups(namespace: &str) -> [String; 2] {
    [GROUP_SERVICE_ACCOUNTS.into(), format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}")]
}

/// Namespace and name of a service account's user name.
#[must_use]
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_USER_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_account_names() {
        for (user, want) in [
            ("system:serviceaccount:ns:sa", Some(("ns", "sa"))),
            ("system:serviceaccount:ns:", None),
            ("system:serviceaccount::sa", None),
            ("system:serviceaccount:ns:sa:x", None),
            ("system:serviceaccount:ns", None),
            ("ns:sa", None),
        ] {
            assert_eq!(split_service_account(user), want, "{user}");
        }
    }

    #[test]
    fn a_node_needs_name_and_group() {
        assert_eq!(Caller::node("n1").node_name(), Some("n1"));
        assert_eq!(Caller::new("system:node:n1", ["system:masters"]).node_name(), None);
        assert_eq!(Caller::new("system:node:", [GROUP_NODES]).node_name(), None);
        assert_eq!(Caller::virt_handler("n1").virt_handler_node(), Some("n1"));
        assert_eq!(Caller::virt_handler("n1").node_name(), None);
    }
}
