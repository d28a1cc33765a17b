//! Names of API resources: which group, version and plural a kind lives under, and how to reach its
//! metadata whatever its type.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::json::Json;
use crate::url::segment;

/// An API resource: what its URLs and its type metadata are made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// API version, such as `v1`.
    pub version: Cow<'static, str>,
    /// Plural name in URLs, such as `pods`.
    pub plural: Cow<'static, str>,
    /// Kind, such as `Pod`.
    pub kind: Cow<'static, str>,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

impl Resource {
    /// The resource of a typed kind.
    #[must_use]
    pub fn of<K: Kind>() -> Self {
        K::resource()
    }

    /// `group/version`, or the bare version for the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone().into_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The URL path of the collection: of one namespace, or of all of them when `namespace` is empty. Whatever characters the
    /// namespace has, it is one segment of the path ([`segment`]).
    #[must_use]
    pub fn collection_path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{}/{}", segment(namespace), self.plural)
        } else {
            format!("{root}/{}", self.plural)
        }
    }

    /// The URL path of one object. Whatever characters its name has, it leads to no other object, and to nothing of one
    /// ([`segment`]).
    #[must_use]
    pub fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection_path(namespace), segment(name))
    }

    /// `plural.group`, as in RBAC and error messages; the bare plural for the core group.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone().into_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.qualified())
    }
}

/// Anything with object metadata that can be read from an API reply, and from what was written of it.
pub trait Object: Clone + Json + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;
    /// Its metadata, to be changed.
    fn meta_mut(&mut self) -> &mut ObjectMeta;

    /// Its namespace; empty for cluster-scoped objects.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }
    /// Its name.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }
    /// Its UID; empty before it was created.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }
    /// Its resourceVersion as a number; 0 when it has none.
    fn revision(&self) -> u64 {
        self.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
    }
    /// Whether its deletion was asked for.
    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
    /// A label's value.
    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }
    /// An annotation's value.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }
    /// UID of its controlling owner, if it has one.
    fn controller_uid(&self) -> Option<&str> {
        self.meta().owner_references.as_ref()?.iter().find(|o| o.controller == Some(true)).map(|o| o.uid.as_str())
    }
    /// Whether it carries this finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.meta().finalizers.as_ref().is_some_and(|f| f.iter().any(|x| x == finalizer))
    }
    /// Gives it this finalizer, if it has not got it; tells whether it had not.
    fn add_finalizer(&mut self, finalizer: &str) -> bool {
        let is_new = !self.has_finalizer(finalizer);
        if is_new {
            self.meta_mut().finalizers.get_or_insert_default().push(finalizer.to_owned());
        }
        is_new
    }
    /// Takes a finalizer away.
    fn remove_finalizer(&mut self, finalizer: &str) {
        self.meta_mut().finalizers.iter_mut().for_each(|all| all.retain(|name| name != finalizer));
    }
}

/// A kind whose resource is known from its type.
pub trait Kind: Object {
    /// Its resource.
    fn resource() -> Resource;
}

/// Whether a scope is namespaced, known from its type.
pub trait ScopeName {
    /// True for namespaced kinds.
    const NAMESPACED: bool;
}
impl ScopeName for k8s_openapi::NamespaceResourceScope {
    const NAMESPACED: bool = true;
}
impl ScopeName for k8s_openapi::ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl<T> Object for T
where
    T: k8s_openapi::Metadata<Ty = ObjectMeta> + Clone + Json + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.metadata_mut()
    }
}

impl<T> Kind for T
where
    T: Object + k8s_openapi::Resource<Scope: ScopeName>,
{
    fn resource() -> Resource {
        Resource {
            group: Cow::Borrowed(T::GROUP),
            version: Cow::Borrowed(T::VERSION),
            plural: Cow::Borrowed(T::URL_PATH_SEGMENT),
            kind: Cow::Borrowed(T::KIND),
            namespaced: T::Scope::NAMESPACED,
        }
    }
}

/// The metadata of an object of any kind, for those who need nothing else of it.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartialObject {
    /// `group/version`.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
}

impl Object for PartialObject {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};

    use super::*;

    /// A name stays one segment of the path, and what is behind it stays behind it.
    #[test]
    fn no_name_leads_to_another_object() {
        for (name, expected) in [
            ("plain-1.x", "plain-1.x"),
            ("system:nodes", "system:nodes"),
            ("a b", "a%20b"),
            ("?dryRun=All", "%3FdryRun=All"),
            ("victim#", "victim%23"),
            ("x/status", "x%2Fstatus"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("../../secrets/s", "%2E%2E%2F%2E%2E%2Fsecrets%2Fs"),
            ("50%", "50%25"),
            ("ü\n", "%C3%BC%0A"),
        ] {
            let group = "/apis/rbac.authorization.k8s.io/v1";
            let namespaced = RoleBinding::resource();
            let collection = format!("{group}/namespaces/{expected}/rolebindings");
            assert_eq!(namespaced.collection_path(name), collection);
            assert_eq!(namespaced.object_path(name, name), format!("{collection}/{expected}"));
            assert_eq!(ClusterRole::resource().object_path("", name), format!("{group}/clusterroles/{expected}"));
        }
    }
}
