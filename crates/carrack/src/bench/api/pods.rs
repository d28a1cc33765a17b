//! The objects of a load: pods as a deployment would make them, of about 2.4 KB as they are read.

use serde_json::{Value, json};

/// One in so many pods has the label that is listed by.
pub const LABELLED_ONE_IN: usize = 20;
/// That label.
pub const LABEL: &str = "bench=chosen";

/// A pod's name.
pub fn name(number: usize) -> String {
    format!("bench-{number:06}")
}

/// A pod to create. It is bound to no node, so nobody begins to run it.
pub fn pod(number: usize) -> Value {
    let chosen = if number.is_multiple_of(LABELLED_ONE_IN) { "chosen" } else { "other" };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(number),
            "labels": {"app": "bench", "bench": chosen},
        },
        "spec": {
            "automountServiceAccountToken": false,
            // Nobody's scheduler.
            "schedulerName": "bench",
            "containers": [{
                "name": "main",
                "image": "registry.example.com/bench/main:1.27.3",
                "command": ["/usr/bin/server", "--listen=:8080", "--config=/etc/server/config.yaml"],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "LOG_LEVEL", "value": "info"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/server"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "server", "defaultMode": 420}}],
        },
    })
}
