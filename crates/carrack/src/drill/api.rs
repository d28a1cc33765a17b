//! The API as a drill asks it: one request after another, as the administrator. In paths `{namespace}` stands for the
//! namespace that the drill works in, as in the descriptions of the API.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ContentType, Method, Time, Transport};
use serde_json::{Value, json};
use tokio::runtime::Handle;

/// Pods of the drill.
pub const PODS: &str = "/api/v1/namespaces/{namespace}/pods";
/// Volumes.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
/// Its StatefulSets.
pub const SETS: &str = "/apis/apps/v1/namespaces/{namespace}/statefulsets";
/// Its claims of volumes.
pub const CLAIMS: &str = "/api/v1/namespaces/{namespace}/persistentvolumeclaims";
/// Classes of volumes.
pub const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
/// Its settings.
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/{namespace}/configmaps";
/// Its deployments.
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/{namespace}/deployments";
/// Its machines.
pub const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines";
/// Their instances.
pub const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances";
/// Nodes.
pub const NODES: &str = "/api/v1/nodes";
/// Namespaces.
pub const NAMESPACES: &str = "/api/v1/namespaces";

/// Where a drill works that has its cluster for itself.
pub const DEFAULT_NAMESPACE: &str = "default";
/// What stands in paths for the drill's namespace.
const NAMESPACE: &str = "{namespace}";

/// How long a request may take: one that hangs is as good as none.
const LIMIT: Duration = Duration::from_secs(10);

/// The API server, asked from threads that may wait.
#[derive(Clone)]
pub struct Api {
    transport: Arc<dyn Transport>,
    runtime: Handle,
    namespace: String,
}

impl Api {
    /// Over this transport, for a drill that works in this namespace.
    pub fn new(transport: Arc<dyn Transport>, runtime: Handle, namespace: &str) -> Self {
        Self { transport, runtime, namespace: namespace.to_owned() }
    }

    /// The namespace that the drill works in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The transport.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn send(&self, mut request: ApiRequest) -> Result<Value, ApiError> {
        request.path = request.path.replace(NAMESPACE, &self.namespace);
        let sent = self.transport.send(request);
        let reply = self.runtime.block_on(async { tokio::time::timeout(LIMIT, sent).await });
        reply.unwrap_or_else(|_| Err(ApiError::Transport("no reply in time".to_owned())))?.json()
    }

    /// Whether the server is ready.
    pub fn is_ready(&self) -> bool {
        let request = ApiRequest::new(Method::Get, "/readyz");
        let sent = self.transport.send(request);
        matches!(self.runtime.block_on(async { tokio::time::timeout(LIMIT, sent).await }), Ok(Ok(_)))
    }

    /// An object; none where the server says that there is none.
    pub fn get(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.send(ApiRequest::new(Method::Get, path)) {
            Err(error) if error.is_not_found() => Ok(None),
            other => other.map(Some),
        }
    }

    /// The objects of a collection.
    pub fn list(&self, path: &str) -> Result<Vec<Value>, ApiError> {
        let mut list = self.send(ApiRequest::new(Method::Get, path))?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Creates an object. One that is there already is an error: it would be somebody else's, or of another drill.
    pub fn create(&self, collection: &str, object: &Value) -> Result<(), ApiError> {
        let request = ApiRequest { body: object.to_string().into(), ..ApiRequest::new(Method::Post, collection) };
        self.send(request).map(drop)
    }

    /// Merges something into an object.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<(), ApiError> {
        let request = ApiRequest {
            content_type: ContentType::MergePatch,
            body: patch.to_string().into(),
            ..ApiRequest::new(Method::Patch, path)
        };
        self.send(request).map(drop)
    }

    /// Deletes an object; one that is gone already is no failure.
    pub fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.end(ApiRequest::new(Method::Delete, path))
    }

    /// As [`Self::delete`], without waiting for whoever has still to end what the object stands for.
    pub fn delete_at_once(&self, path: &str) -> Result<(), ApiError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        self.end(ApiRequest { body: options.to_string().into(), ..ApiRequest::new(Method::Delete, path) })
    }

    fn end(&self, request: ApiRequest) -> Result<(), ApiError> {
        match self.send(request) {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

/// A field of an object as text; empty where there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The object's name.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// The object's UID.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Whether a condition of this type is true.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

/// When the kubelet has written a Node's status last, in seconds since the epoch.
pub fn told_at_unix_s(node: &Value) -> Option<i64> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|c| c["type"] == "Ready")?;
    Time::parse(ready["lastHeartbeatTime"].as_str()?).map(Time::unix_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_when_it_was_heard() {
        let of = |kind: &str, at: Value| json!({"status": {"conditions": [{"type": kind, "lastHeartbeatTime": at}]}});
        for (node, expected) in [
            (of("Ready", json!("1970-01-01T00:01:40Z")), Some(100)),
            (of("Ready", json!("1970-01-01T00:01:40.5Z")), Some(100)),
            (of("Ready", json!("yesterday")), None),
            (of("Ready", Value::Null), None),
            (of("DiskPressure", json!("1970-01-01T00:01:40Z")), None),
            (json!({}), None),
        ] {
            assert_eq!(told_at_unix_s(&node), expected, "{node}");
        }
    }
}
