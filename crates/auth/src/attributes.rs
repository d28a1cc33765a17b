//! What a request asks for, as far as authorization is concerned, and the answer.

use crate::caller::Caller;

/// What is asked for. Either `resource` is set (an API object) or `path` is (anything else).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, a special
    /// verb, or the lower-case HTTP method for a non-resource path.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// API version. RBAC ignores it.
    pub version: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Object name, or empty.
    pub name: &'a str,
    /// Namespace, or empty for cluster scope and for all namespaces.
    pub namespace: &'a str,
    /// The URL's path of a non-resource request, else empty.
    pub path: &'a str,
    /// The request's `fieldSelector` as sent, or empty. The node authorizer reads it.
    pub field_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// A request for an API resource.
    #[must_use]
    pub fn resource(verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self { verb, group, resource, ..Self::default() }
    }

    /// A request for a path that is no resource.
    #[must_use]
    pub fn path(verb: &'a str, path: &'a str) -> Self {
        Self { verb, path, ..Self::default() }
    }

    /// The same in a namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &'a str) -> Self {
        self.namespace = namespace;
        self
    }

    /// The same for one object.
    #[must_use]
    pub fn named(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// The same for a subresource.
    #[must_use]
    pub fn with_subresource(mut self, subresource: &'a str) -> Self {
        self.subresource = subresource;
        self
    }

    /// Whether an API resource is asked for.
    #[must_use]
    pub fn is_resource(&self) -> bool {
        self.path.is_empty()
    }

    /// The sentence that Kubernetes gives for a refusal (the part after `is forbidden: `).
    #[must_use]
    pub fn refusal(&self, caller: &Caller) -> String {
        let Attributes { verb, group, resource, .. } = self;
        let user = &caller.user;
        if !self.is_resource() {
            return format!("User {user:?} cannot {verb} path {:?}", self.path);
        }
        let resource = if self.subresource.is_empty() {
            (*resource).to_owned()
        } else {
            format!("{resource}/{}", self.subresource)
        };
        let place = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", self.namespace)
        };
        format!("User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}")
    }

    /// The whole message of the 403 `Status`, as kubectl shows it. `reason` is
    /// [`Decision`]'s, and may be empty.
    #[must_use]
    pub fn forbidden_message(&self, caller: &Caller, reason: &str) -> String {
        let what = if !self.is_resource() {
            String::new()
        } else if self.name.is_empty() {
            self.qualified_resource()
        } else {
            format!("{} {:?}", self.qualified_resource(), self.name)
        };
        let refusal = self.refusal(caller);
        let separator = if what.is_empty() { "" } else { " is " };
        let tail = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("{what}{separator}forbidden: {refusal}{tail}")
    }

    /// `resource` or `resource.group`, as Kubernetes' messages have it.
    #[must_use]
    pub fn qualified_resource(&self) -> String {
        if self.group.is_empty() { self.resource.to_owned() } else { format!("{}.{}", self.resource, self.group) }
    }
}

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be done. The reason is for the audit log.
    Allow {
        /// Which rule allows it.
        reason: String,
    },
    /// It may not be done. The reason adds to [`Attributes::refusal`]; often empty.
    Deny {
        /// What went wrong while rules were looked for, or why the node authorizer refused.
        reason: String,
    },
}

impl Decision {
    /// Whether it may be done.
    #[must_use]
    pub fn allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// The reason, of either answer.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow { reason } | Self::Deny { reason } => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_upstream() {
        let caller = Caller::new("jane", ["dev"]);
        let check = |attributes: Attributes<'_>, reason: &str, want: &str| {
            assert_eq!(attributes.forbidden_message(&caller, reason), want);
        };
        check(
            Attributes::resource("list", "", "pods").in_namespace("default"),
            "",
            r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
        );
        check(
            Attributes::resource("get", "apps", "deployments")
                .named("web")
                .in_namespace("ns")
                .with_subresource("scale"),
            "",
            r#"deployments.apps "web" is forbidden: User "jane" cannot get resource "deployments/scale" in API group "apps" in the namespace "ns""#,
        );
        check(
            Attributes::resource("list", "", "nodes"),
            "no luck",
            r#"nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope: no luck"#,
        );
        check(Attributes::path("get", "/metrics"), "", r#"forbidden: User "jane" cannot get path "/metrics""#);
    }
}
