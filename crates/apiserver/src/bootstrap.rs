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
const NAMESPACES: [&str; 6] =
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
        let namespaces = NAMESPACES.iter().map(|name| async move {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.ensure("/api/v1/namespaces", name, &namespace).await
        });
        together(namespaces.collect()).await?;
        let classes = PRIORITY_CLASSES.iter().map(|(name, value, description)| async move {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                "value": value, "description": description,
            });
            self.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", name, &class).await
        });
        let flow = |wanted: &'static str| {
            let all = flow::bootstrap().into_iter().filter(move |(plural, _)| *plural == wanted);
            let made = all.map(|(plural, object)| async move {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.ensure(&format!("/apis/{}/v1/{plural}", flow::GROUP), &name, &object).await
            });
            together(made.collect())
        };
        let flow = async {
            flow(flow::LEVELS).await?;
            // They say whether their levels are there.
            flow(flow::SCHEMAS).await?;
            admission::flow_schema::settle(&self.inner).await
        };
        let objects = bootstrap::objects();
        let access = async {
            together(objects.iter().map(|object| self.reconcile(object)).collect()).await?;
            self.aggregate_roles().await
        };
        let services = async {
            self.repair_services().await?;
            self.ensure_kubernetes().await
        };
        let apis = async {
            // Deletions that were cut short, by the end of a process or of a request.
            crd::finish_all(&self.inner).await?;
            aggregate::sync(&self.inner).await
        };
        // None of these rests on another, so they share the store's flushes.
        try_join5(together(classes.collect()), access, flow, apis, async {
            self.ensure_authentication().await?;
            services.await
        })
        .await?;
        self.inner.phase.bootstrapped.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes an object that was read. Whoever was faster has brought it up to date, or had it go.
    async fn put_back(&self, group: &str, plural: &str, object: Object) -> Result<(), Status> {
        let path = format!("/apis/{group}/v1/{plural}/{}", crate::object::name(&object));
        match self.call(Method::PUT, &path, Some(&Value::Object(object))).await {
            Err(status) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Says, for the servers of other APIs, whose certificates and which headers to believe.
    async fn ensure_authentication(&self) -> Result<(), Status> {
        if self.inner.front_proxy_ca_pem.is_empty() {
            return Ok(());
        }
        let collection = "/api/v1/namespaces/kube-system/configmaps";
        let name = "extension-apiserver-authentication";
        let data = json!({
            "client-ca-file": self.inner.ca_pem,
            "requestheader-client-ca-file": self.inner.front_proxy_ca_pem,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        });
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}, "data": data});
        match self.call(Method::GET, &format!("{collection}/{name}"), None).await {
            Ok(stored) if stored["data"] == data => Ok(()),
            Ok(_) => self.call(Method::PUT, &format!("{collection}/{name}"), Some(&object)).await.map(drop),
            Err(status) if status.code == 404 => self.call(Method::POST, collection, Some(&object)).await.map(drop),
            Err(status) => Err(status),
        }
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
        match self.call(Method::GET, &format!("{collection}/{name}"), None).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 404 => self.call(Method::POST, collection, Some(object)).await.map(drop),
            Err(status) => Err(status),
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
        let path = format!("{collection}/{}", object.name);
        let stored = match self.call(Method::GET, &path, None).await {
            Ok(stored) => Some(stored),
            Err(status) if status.code == 404 => None,
            Err(status) => return Err(status),
        };
        match (bootstrap::reconcile(object, stored.as_ref()), stored) {
            (None, _) => Ok(()),
            (Some(wanted), None) => self.call(Method::POST, &collection, Some(&wanted)).await.map(drop),
            (Some(wanted), Some(_)) => self.call(Method::PUT, &path, Some(&wanted)).await.map(drop),
        }
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
