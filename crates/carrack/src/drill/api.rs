//! The API as a drill asks it: one request after another, as the administrator.

use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ContentType, Method, Transport};
use serde_json::Value;
use tokio::runtime::Handle;

/// Pods of the drill.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// Volumes.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
/// Its StatefulSets.
pub const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
/// Its settings.
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Its deployments.
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// Its machines.
pub const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
/// Their instances.
pub const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
/// Nodes.
pub const NODES: &str = "/api/v1/nodes";

/// How long a request may take: one that hangs is as good as none.
const LIMIT: Duration = Duration::from_secs(10);

/// The API server, asked from threads that may wait.
#[derive(Clone)]
pub struct Api {
    transport: Arc<dyn Transport>,
    runtime: Handle,
}

impl Api {
    /// Over this transport.
    pub fn new(transport: Arc<dyn Transport>, runtime: Handle) -> Self {
        Self { transport, runtime }
    }

    /// The transport.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn send(&self, request: ApiRequest) -> Result<Value, ApiError> {
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

    /// Creates an object; one that is there already is left as it is.
    pub fn create(&self, collection: &str, object: &Value) -> Result<(), ApiError> {
        let request = ApiRequest { body: object.to_string().into(), ..ApiRequest::new(Method::Post, collection) };
        match self.send(request) {
            Err(error) if error.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
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
        match self.send(ApiRequest::new(Method::Delete, path)) {
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
