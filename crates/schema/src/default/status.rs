//! What an object starts with, and what a write may not change, whatever the client sends.
//!
//! The object itself and its status are written apart: a write of one leaves the other as it was.
//! Nodes are the exception, which register with their status.

use serde_json::{Map, Value, json};

use super::fields::{set_text, text};
use super::pod::qos_class;
use crate::table::{ResourceInfo, Version};

/// Prepares a new object: takes away a status that the client may not write and puts in the one that
/// the kind starts with. To be called after [`super::apply`].
pub fn prepare_create(info: &ResourceInfo, version: &Version, object: &mut Value) {
    let initial = initial_status(info, object);
    let Value::Object(map) = object else { return };
    if info.group.is_empty() && info.kind == "Node" {
        return;
    }
    if version.has_status() {
        map.remove("status");
    }
    if let Some(status) = initial {
        map.insert("status".to_owned(), status);
    }
    if info.group.is_empty() && info.kind == "Namespace" {
        let spec = map.entry("spec").or_insert_with(|| json!({}));
        if let Value::Object(spec) = spec {
            spec.insert("finalizers".to_owned(), json!(["kubernetes"]));
        }
    }
    if info.group == "apiextensions.k8s.io" && info.kind == "CustomResourceDefinition" {
        let versions = map.get("spec").and_then(|spec| spec.get("versions")).and_then(Value::as_array);
        let stored = versions.into_iter().flatten().find(|v| v.get("storage") == Some(&Value::Bool(true)));
        let names = stored.and_then(|v| v.get("name")).into_iter().collect::<Vec<_>>();
        map.insert("status".to_owned(), json!({"storedVersions": names}));
    }
}

fn initial_status(info: &ResourceInfo, object: &Value) -> Option<Value> {
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Pod") => {
            Some(json!({"phase": "Pending", "qosClass": qos_class(object.get("spec").unwrap_or(&Value::Null))}))
        }
        ("", "Namespace") => Some(json!({"phase": "Active"})),
        ("", "PersistentVolume" | "PersistentVolumeClaim") => Some(json!({"phase": "Pending"})),
        ("", "Service") => Some(json!({"loadBalancer": {}})),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => Some(workload_status(&info.kind)),
        ("batch", "Job" | "CronJob") | ("networking.k8s.io", "Ingress") => Some(json!({})),
        _ => None,
    }
}

fn workload_status(kind: &str) -> Value {
    match kind {
        "ReplicaSet" => json!({"replicas": 0}),
        "StatefulSet" => json!({"replicas": 0, "availableReplicas": 0}),
        "DaemonSet" => {
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0})
        }
        _ => json!({}),
    }
}

/// Prepares a changed object: keeps from the old one what this kind of write does not touch. To be
/// called after [`super::apply`].
///
/// A write of the object keeps the old status; a write of `status` keeps everything else, except
/// resourceVersion (which is a precondition) and managed fields. Other subresources are the
/// caller's.
pub fn prepare_update(info: &ResourceInfo, version: &Version, object: &mut Value, old: &Value, subresource: &str) {
    let (Value::Object(map), Value::Object(old)) = (object, old) else { return };
    match subresource {
        "" => {
            if version.has_status() {
                keep(map, old, "status");
            }
            if info.group.is_empty() && info.kind == "Namespace" {
                keep_in(map, old, "spec", "finalizers");
            }
        }
        "status" => {
            let status = map.remove("status");
            let resource_version = map.get("metadata").and_then(|m| m.get("resourceVersion")).cloned();
            // Kubernetes lets a write of a node's or pod's status through the whole pipeline; only
            // labels and annotations of metadata were ever writable there, and no client relies on it.
            *map = old.clone();
            match status {
                Some(status) => drop(map.insert("status".to_owned(), status)),
                None => drop(map.remove("status")),
            }
            if let (Some(Value::Object(metadata)), Some(version)) = (map.get_mut("metadata"), resource_version) {
                metadata.insert("resourceVersion".to_owned(), version);
            }
            if info.group.is_empty() && info.kind == "Pod" {
                keep_qos(map, old);
            }
        }
        _ => {}
    }
}

fn keep(map: &mut Map<String, Value>, old: &Map<String, Value>, key: &str) {
    match old.get(key) {
        Some(value) => drop(map.insert(key.to_owned(), value.clone())),
        None => drop(map.remove(key)),
    }
}

fn keep_in(map: &mut Map<String, Value>, old: &Map<String, Value>, outer: &str, key: &str) {
    let old = old.get(outer).and_then(|o| o.get(key));
    let Some(old) = old else { return };
    if let Value::Object(inner) = map.entry(outer).or_insert_with(|| json!({})) {
        inner.insert(key.to_owned(), old.clone());
    }
}

/// The quality of service of a pod never changes; who writes the status may leave it out.
fn keep_qos(map: &mut Map<String, Value>, old: &Map<String, Value>) {
    let class = old.get("status").and_then(Value::as_object).map(|status| text(status, "qosClass").to_owned());
    if let (Some(class), Some(Value::Object(status))) = (class, map.get_mut("status")) {
        set_text(status, "qosClass", &class);
    }
}
