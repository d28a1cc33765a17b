//! What drills ask a cluster for.

use serde_json::{Value, json};

/// The image that `carrack image build busybox` makes.
const SHELL_IMAGE: &str = "busybox";
/// The image that `carrack image build demo` makes.
const GUEST_IMAGE: &str = "demo-guest";

/// A pod that runs a line of shell.
pub fn pod(name: &str, line: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": carrack_images::reference(SHELL_IMAGE), "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", line], "resources": {"limits": limits},
            }],
        },
    })
}

/// A pod whose container does nothing but be there.
pub fn idle_pod(name: &str, limits: &Value) -> Value {
    pod(name, "trap 'exit 0' TERM; while :; do sleep 0.2; done", limits)
}

/// A pod that writes numbers in their order into a file below `/data`.
pub fn counting_pod(name: &str, volume: &Value) -> Value {
    let line = "trap 'exit 0' TERM; \
                [ -e /data/blob ] || { head -c 262144 /dev/urandom >/data/blob; sync; }; \
                exec 3>>/data/log; n=$(tail -n 1 /data/log 2>/dev/null); n=${n:-0}; \
                while :; do n=$((n+1)); echo $n >&3; sleep 0.05; done";
    let mut pod = pod(name, line, &json!({}));
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let mut volume = volume.clone();
    volume["name"] = "data".into();
    pod["spec"]["volumes"] = json!([volume]);
    pod
}

/// A claim of the default storage class.
pub fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}},
    })
}

/// A machine that is always to run the demo guest.
pub fn machine(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {
            "metadata": {"labels": {"kubevirt.io/domain": name}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "domain": {
                    "cpu": {"cores": 1}, "memory": {"guest": "128Mi"},
                    "devices": {
                        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                        "interfaces": [{"name": "default", "masquerade": {}}],
                    },
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [{"name": "root", "containerDisk": {
                    "image": carrack_images::reference(GUEST_IMAGE), "imagePullPolicy": "IfNotPresent",
                }}],
            },
        }},
    })
}

/// A deployment of pods that need not run anything.
pub fn deployment(name: &str, replicas: u32, limits: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
            }},
        },
    })
}

/// A setting.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})
}
