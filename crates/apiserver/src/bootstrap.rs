//! What a cluster begins with: namespaces, roles and bindings, priority classes.
//!
//! Written through the same pipeline as everybody's requests, as the API server itself, and again at
//! each start: what is there already is left alone, or gets back what it lacks.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use carrack_auth::{Caller, bootstrap};
use futures::future::{join_all, try_join5};
use http::Method;
use serde_json::{Value, json};

use crate::body::Response;
use crate::object::Object;
use crate::server::ApiServer;
use crate::status::Status;
use crate::{admission, aggregate, crd, flow, former, keys, stored};
use carrack_store::Range;

/// Namespaces of every cluster.
pub(crate) const NAMESPACES: [&str; 6] =
    ["default", "kube-system", "kube-public", "kube-node-lease", "kubevirt", "kubevirt-node-lease"];
/// Priority classes of every cluster, with their values.
const PRIORITY_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// Namespace and name of the config map that tells servers of other APIs whom to believe.
pub(crate) const AUTHENTICATION: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

/// What it says of headers.
const BELIEVED_HEADERS: [(&str, &str); 5] = [
    ("requestheader-allowed-names", "[\"front-proxy-client\"]"),
    ("requestheader-username-headers", "[\"X-Remote-User\"]"),
    ("requestheader-uid-headers", "[\"X-Remote-Uid\"]"),
    ("requestheader-group-headers", "[\"X-Remote-Group\"]"),
    ("requestheader-extra-headers-prefix", "[\"X-Remote-Extra-\"]"),
];

/// How often the first objects are looked at, while other servers that start on the same store write them as well.
const ATTEMPTS: usize = 8;

/// How many writes are under way at a time: they share the store's flushes.
const TOGETHER: usize = 512;

/// Runs writes side by side, so many at a time. They come as a list, since an iterator over closures that lived across an
/// await would keep the whole future from being sent between threads.
async fn together<F: Future<Output = Result<(), Status>>>(mut writes: Vec<F>) -> Result<(), Status> {
    while !writes.is_empty() {
        let rest = writes.split_off(writes.len().min(TOGETHER));
        join_all(std::mem::replace(&mut writes, rest)).await.into_iter().collect::<Result<(), Status>>()?;
    }
    Ok(())
}

impl ApiServer {
    /// Sees to it that the bootstrap objects are there; `/readyz` says yes from then on.
    ///
    /// # Errors
    /// The first write that failed.
    pub async fn bootstrap(&self) -> Result<(), Status> {
        for _ in 1..ATTEMPTS {
            match self.first_objects().await {
                // Another server on the same store is faster with some of them: those are there now.
                Err(status) if status.code == 409 => tracing::debug!(%status, "the first objects are looked at again"),
                outcome => return outcome,
            }
        }
        self.first_objects().await
    }

    async fn first_objects(&self) -> Result<(), Status> {
        let moved = former::move_all(&*self.inner.store).await?;
        if moved > 0 {
            tracing::info!(moved, "objects of an earlier version are where upstream has them now");
        }
        self.ensure_namespaces().await?;
        let classes = PRIORITY_CLASSES.iter().map(|(name, value, description)| async move {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                "value": value, "description": description,
            });
            self.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", name, &class).await
        });
        let objects = bootstrap::objects();
        let access = async {
            together(objects.iter().map(|object| self.reconcile(object)).collect()).await?;
            self.aggregate_roles().await
        };
        let services = async {
            self.ensure_authentication().await?;
            self.ensure_token_tracking().await?;
            self.repair_services().await?;
            self.ensure_kubernetes().await?;
            self.announce().await
        };
        let apis = async {
            // Deletions that were cut short, by the end of a process or of a request.
            crd::finish_all(&self.inner).await?;
            aggregate::sync(&self.inner, true).await
        };
        // None of these rests on another, so they share the store's flushes.
        try_join5(together(classes.collect()), access, self.ensure_flow(), apis, services).await?;
        self.inner.phase.bootstrapped.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) async fn ensure_namespaces(&self) -> Result<(), Status> {
        let namespaces = NAMESPACES.iter().map(|name| async move {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.ensure("/api/v1/namespaces", name, &namespace).await
        });
        together(namespaces.collect()).await
    }

    /// Sees to it that priority levels and flow schemas are there, and as they are to be where nobody has made something else of
    /// them.
    pub(crate) async fn ensure_flow(&self) -> Result<(), Status> {
        let all = |wanted: &'static str| {
            let of_kind = flow::bootstrap().into_iter().filter(move |(plural, _)| *plural == wanted);
            together(of_kind.map(|(plural, object)| self.ensure_flow_object(plural, object)).collect())
        };
        all(flow::LEVELS).await?;
        // They say whether their levels are there.
        all(flow::SCHEMAS).await?;
        admission::flow_schema::settle(&self.inner).await
    }

    async fn ensure_flow_object(&self, plural: &'static str, wanted: Value) -> Result<(), Status> {
        let collection = format!("/apis/{}/v1/{plural}", flow::GROUP);
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        self.keep(&collection, name, |stored| match stored {
            Some(stored) => flow::mended(plural, &wanted, &stored),
            None => Some(wanted.clone()),
        })
        .await
    }

    /// Writes an object that was read. Whoever was faster has brought it up to date, or had it go.
    async fn put_back(&self, group: &str, plural: &str, object: Object) -> Result<(), Status> {
        let path = format!("/apis/{group}/v1/{plural}/{}", crate::object::name(&object));
        match self.call(Method::PUT, &path, Some(&Value::Object(object))).await {
            Err(status) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Says, for the servers of other APIs, whose certificates and which headers to believe. Other servers on the store may have
    /// other authorities: each adds its own (upstream's `clusterauthenticationtrust`).
    pub(crate) async fn ensure_authentication(&self) -> Result<(), Status> {
        if self.inner.front_proxy_ca_pem.is_empty() {
            return Ok(());
        }
        let (namespace, name) = AUTHENTICATION;
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let metadata = json!({"name": name, "namespace": namespace});
        let empty = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        self.keep(&collection, name, |stored| match stored {
            Some(stored) => Some(self.believed(&stored)).filter(|more| *more != stored),
            None => Some(self.believed(&empty)),
        })
        .await
    }

    /// The config map with this server's authorities among those that it names, and with what it does not say of headers.
    fn believed(&self, config_map: &Value) -> Value {
        let mut config_map = config_map.clone();
        let mut data = config_map["data"].as_object().cloned().unwrap_or_default();
        for (key, own) in
            [("client-ca-file", &self.inner.ca_pem), ("requestheader-client-ca-file", &self.inner.front_proxy_ca_pem)]
        {
            let known = data.get(key).and_then(Value::as_str).unwrap_or_default();
            if known.contains(own.trim()) {
                continue;
            }
            let line_end = if known.is_empty() || known.ends_with('\n') { "" } else { "\n" };
            let all = format!("{known}{line_end}{own}");
            data.insert(key.to_owned(), all.into());
        }
        for (key, said) in BELIEVED_HEADERS {
            data.entry(key).or_insert_with(|| said.into());
        }
        config_map["data"] = Value::Object(data);
        config_map
    }

    /// Writes the rules of aggregated ClusterRoles into them.
    async fn aggregate_roles(&self) -> Result<(), Status> {
        let prefix = keys::of("rbac.authorization.k8s.io", "clusterroles", None);
        let page = self.inner.store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
        let roles: Vec<_> = page.entries.iter().map(|entry| stored::parse(entry)).collect();
        let mut writes = Vec::new();
        for (name, rules) in admission::aggregated(&roles.iter().collect::<Vec<_>>()) {
            let Some(role) = roles.iter().find(|role| crate::object::name(role) == name) else { continue };
            if role.get("rules") == Some(&rules) {
                continue;
            }
            let mut role = role.clone();
            role.insert("rules".to_owned(), rules);
            writes.push(self.put_back("rbac.authorization.k8s.io", "clusterroles", role));
        }
        together(writes).await
    }

    pub(crate) async fn ensure(&self, collection: &str, name: &str, object: &Value) -> Result<(), Status> {
        self.keep(collection, name, |stored| stored.is_none().then(|| object.clone())).await
    }

    /// Sees to it that an object is as it is to be: `wanted` says of what is stored, if anything is, what is to be in its place;
    /// none where that may stay.
    pub(crate) async fn keep(
        &self,
        collection: &str,
        name: &str,
        wanted: impl FnOnce(Option<Value>) -> Option<Value>,
    ) -> Result<(), Status> {
        let path = format!("{collection}/{name}");
        let (method, place, stored) = match self.call(Method::GET, &path, None).await {
            Ok(stored) => (Method::PUT, path.as_str(), Some(stored)),
            Err(status) if status.code == 404 => (Method::POST, collection, None),
            Err(status) => return Err(status),
        };
        match wanted(stored) {
            Some(object) => self.call(method, place, Some(&object)).await.map(drop),
            None => Ok(()),
        }
    }

    async fn reconcile(&self, object: &bootstrap::BootstrapObject) -> Result<(), Status> {
        let plural = object.kind.resource();
        let group = "/apis/rbac.authorization.k8s.io/v1";
        let collection = if object.namespace.is_empty() {
            format!("{group}/{plural}")
        } else {
            format!("{group}/namespaces/{}/{plural}", object.namespace)
        };
        self.keep(&collection, &object.name, |stored| bootstrap::reconcile(object, stored.as_ref())).await
    }

    /// A request of the API server's own, with a JSON reply.
    pub(crate) async fn call(&self, method: Method, path: &str, object: Option<&Value>) -> Result<Value, Status> {
        let body = object.map(crate::present::bytes_of).unwrap_or_default();
        let request = http::Request::builder().method(method).uri(path).body(body).map_err(Status::internal)?;
        let response: Response = self.handle(request, Caller::apiserver()).await;
        let code = response.status().as_u16();
        let bytes: Bytes = response.into_body().into_bytes();
        let value: Value = serde_json::from_slice(&bytes).map_err(Status::internal)?;
        if code < 400 {
            return Ok(value);
        }
        let message = value["message"].as_str().unwrap_or_default().to_owned();
        let mut status = Status::internal("");
        (status.code, status.message, status.details) = (code, message, None);
        Err(status)
    }
}
