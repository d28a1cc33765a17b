//! The driver's own objects: its CSIDriver, and in a fresh cluster the default storage class.

use std::time::Duration;

use carrack_types::snapshots;
use carrack_types::well_known::storage::{DEFAULT_CLASS, DEFAULT_SNAPSHOT_CLASS};

use carrack_engine::{ApiError, ApiRequest, Method, Transport};
use serde_json::{Value, json};

use crate::{DRIVER, STORAGE_CLASS};

const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const SNAPSHOT_CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
/// Between tries while the API server does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// The CSIDriver: volumes are at their node always, the kubelet gives them to groups, and a pod may bring its own.
fn driver() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File", "storageCapacity": false,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]}})
}

fn class() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true})
}

fn snapshot_class() -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {DEFAULT_SNAPSHOT_CLASS: "true"}},
        "driver": DRIVER, "deletionPolicy": "Delete"})
}

/// Waits until objects of a kind that was just defined can be had.
async fn served(api: &dyn Transport, collection: &str) {
    while let Err(error) = api.send(ApiRequest::new(Method::Get, collection)).await {
        tracing::debug!(collection, %error, "not served yet");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Creates an object. False when it is there already.
async fn create(api: &dyn Transport, collection: &str, object: &Value) -> Result<bool, String> {
    let request = ApiRequest { body: object.to_string().into(), ..ApiRequest::new(Method::Post, collection) };
    loop {
        let error: ApiError = match api.send(request.clone()).await {
            Ok(_) => return Ok(true),
            Err(e) if e.is_already_exists() => return Ok(false),
            Err(e) => e,
        };
        if !error.is_unknown() {
            return Err(format!("cannot create {} in {collection}: {error}", object["metadata"]["name"]));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Puts the driver's objects down where they are not there. The storage class comes with the driver and only then: who
/// deletes it, or makes another class the default one, is not contradicted.
///
/// # Errors
/// The first write that was refused.
pub async fn install(api: &dyn Transport) -> Result<(), String> {
    // The class first: a process that dies between the two does both again.
    let fresh = match api.send(ApiRequest::new(Method::Get, format!("{DRIVERS}/{DRIVER}"))).await {
        Err(e) if e.is_not_found() => true,
        Err(e) if !e.is_unknown() => return Err(format!("cannot read the CSIDriver {DRIVER}: {e}")),
        _ => false,
    };
    for definition in snapshots::crds() {
        create(api, DEFINITIONS, &definition).await?;
    }
    for kind in ["volumesnapshotclasses", "volumesnapshots", "volumesnapshotcontents"] {
        served(api, &format!("/apis/snapshot.storage.k8s.io/v1/{kind}")).await;
    }
    if fresh {
        create(api, CLASSES, &class()).await?;
        create(api, SNAPSHOT_CLASSES, &snapshot_class()).await?;
    }
    create(api, DRIVERS, &driver()).await.map(drop)
}
