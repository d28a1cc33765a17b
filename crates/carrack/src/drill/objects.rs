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
        let mut claim = claim(volume, "32Mi");
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
pub fn claim(name: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
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

/// The disk on which a machine's guest counts its boots: its name and its serial number.
pub const BOOTS: &str = "boots";

/// What such a guest does when it boots: after what the boots before have written it writes its own number, and lets nothing
/// of that stay in its memory.
const COUNT_BOOTS: &str = r#"#!/bin/sh
for d in /sys/block/vd*; do [ "$(cat "$d/serial")" = boots ] && disk=/dev/${d##*/}; done
dd if="$disk" bs=512 count=8 2>/dev/null | tr -dc '0-9\n' >/run/boots
last=$(tail -n 1 /run/boots)
echo $((${last:-0} + 1)) >>/run/boots
dd if=/run/boots of="$disk" conv=fsync
"#;

/// A claim's volume, for a pod.
pub fn of_claim(claim: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim}})
}

/// A [`machine`] with one disk more, on a claim: there its guest counts its boots, from the disk's first byte on, a line each.
pub fn counting_machine(name: &str, claim: &str) -> Value {
    let mut machine = machine(name);
    let spec = &mut machine["spec"]["template"]["spec"];
    let disks = [
        json!({"name": BOOTS, "serial": BOOTS, "disk": {"bus": "virtio"}}),
        json!({"name": "cloud", "disk": {"bus": "virtio"}}),
    ];
    let mut kept = of_claim(claim);
    kept["name"] = BOOTS.into();
    let volumes = [kept, json!({"name": "cloud", "cloudInitNoCloud": {"userData": COUNT_BOOTS}})];
    for (place, more) in [("/domain/devices/disks", disks), ("/volumes", volumes)] {
        if let Some(list) = spec.pointer_mut(place).and_then(Value::as_array_mut) {
            list.extend(more);
        }
    }
    machine
}

/// A deployment of pods that need not run anything.
pub fn deployment(name: &str, replicas: u32, limits: &Value) -> Value {
    let pod = json!({
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
    });
    deployment_of(name, replicas, &pod)
}

/// A Deployment of one pod whose container does nothing but be there.
pub fn idle_deployment(name: &str) -> Value {
    deployment_of(name, 1, &idle_pod(name, &json!({}))["spec"])
}

/// A deployment of pods with this spec.
fn deployment_of(name: &str, replicas: u32, spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    })
}

/// A setting.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_counts_its_boots_has_a_disk_for_it_that_its_guest_can_find() {
        let machine = counting_machine("m", "kept");
        let names = |place: &str| -> Vec<String> {
            let list = machine["spec"]["template"]["spec"].pointer(place).and_then(Value::as_array).expect("a list");
            list.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
        };
        assert_eq!(names("/volumes"), ["root", BOOTS, "cloud"]);
        assert_eq!(names("/volumes"), names("/domain/devices/disks"));
        let disk = &machine["spec"]["template"]["spec"]["domain"]["devices"]["disks"][1];
        assert!(COUNT_BOOTS.contains(&format!("= {} ]", disk["serial"].as_str().expect("a serial number"))));
        assert!(COUNT_BOOTS.starts_with("#!/bin/sh\n") && COUNT_BOOTS.contains(r"'0-9\n'"), "{COUNT_BOOTS}");
    }
}
