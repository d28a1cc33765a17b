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

/// Where a pod that counts has a volume.
pub fn place(volume: &str) -> String {
    format!("/{volume}")
}

/// A pod that writes numbers in their order into a file on each of its volumes, which are at their [`place`]. It brings the
/// volumes itself, but for those that are null.
pub fn counting_pod(name: &str, volumes: &[(&str, Value)]) -> Value {
    let each = |line: fn(usize, &str) -> String| -> String {
        volumes.iter().enumerate().map(|(i, (volume, _))| line(i + 3, volume)).collect()
    };
    let first = volumes.first().map_or("", |(volume, _)| volume);
    let line = format!(
        "trap 'exit 0' TERM; {} {} n=$(tail -n 1 /{first}/log 2>/dev/null); n=${{n:-0}}; while :; do n=$((n+1)); {} sleep 0.05; done",
        each(|_, volume| format!(
            "[ -e /{volume}/blob ] || {{ head -c 262144 /dev/urandom >/{volume}/blob; sync; }}; "
        )),
        each(|fd, volume| format!("exec {fd}>>/{volume}/log; ")),
        each(|fd, _| format!("echo $n >&{fd}; ")),
    );
    let mut pod = pod(name, &line, &json!({}));
    let mount = |(name, _): &(&str, Value)| json!({"name": name, "mountPath": place(name)});
    pod["spec"]["containers"][0]["volumeMounts"] = volumes.iter().map(mount).collect();
    let named = |(name, volume): &(&str, Value)| {
        let mut volume = volume.clone();
        volume["name"] = (*name).into();
        volume
    };
    pod["spec"]["volumes"] = volumes.iter().filter(|(_, volume)| !volume.is_null()).map(named).collect();
    pod
}

/// A StatefulSet of one such pod, with a claim for each of its volumes: of this storage class, or the default one.
pub fn counting_set(name: &str, volumes: &[(&str, Option<&str>)]) -> Value {
    let claims = volumes.iter().map(|(volume, class)| {
        let mut claim = claim(volume);
        if let Some(class) = class {
            claim["spec"]["storageClassName"] = (*class).into();
        }
        claim
    });
    let claimed: Vec<(&str, Value)> = volumes.iter().map(|(volume, _)| (*volume, Value::Null)).collect();
    let pod = counting_pod(name, &claimed);
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
            "volumeClaimTemplates": claims.collect::<Vec<_>>(),
        },
    })
}

/// A disk of a FlexVolume driver, for one claim alone: its namespace and name.
pub fn flex_volume(name: &str, driver: &str, class: &str, claim: (&str, &str)) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "32Mi"}, "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": claim.0, "name": claim.1},
            "flexVolume": {"driver": driver, "fsType": "ext4"},
        },
    })
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
