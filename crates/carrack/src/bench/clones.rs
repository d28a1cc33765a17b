#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! A clone's life: how long it takes until a copy of a stopped machine is there, data included, and what it costs in
//! writes.
//!
//! The machine's disk is a sparse block volume, into which a pod writes some data first. Its class makes volumes at once,
//! and not when somebody first uses them, so that the copy is complete when the clone is.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::cluster::Cluster;

/// What may be written in a clone's whole life, that of all it makes included: 55 writes are seen, and on a slow machine a
/// step or two that otherwise wait for the next may be told by themselves.
pub const WRITES: f64 = 58.0;
/// Data in the disk, MiB.
const DATA_MIB: u32 = 64;
const CLASS: &str = "bench-at-once";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const CLONES: &str = "/apis/clone.kubevirt.io/v1beta1/namespaces/default/virtualmachineclones";
const VOLUME_SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";

/// Kinds whose objects are written in a clone's life.
const WRITTEN: [&str; 10] = [
    CLONES,
    MACHINES,
    CLAIMS,
    VOLUME_SNAPSHOTS,
    "/api/v1/persistentvolumes",
    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents",
    "/apis/snapshot.kubevirt.io/v1beta1/namespaces/default/virtualmachinesnapshots",
    "/apis/snapshot.kubevirt.io/v1beta1/namespaces/default/virtualmachinesnapshotcontents",
    "/apis/snapshot.kubevirt.io/v1beta1/namespaces/default/virtualmachinerestores",
    "/apis/apps/v1/namespaces/default/controllerrevisions",
];

/// What one clone cost.
pub struct Life {
    /// From its creation until the copy's machine and disk were there, milliseconds.
    pub made_ms: f64,
    /// Writes of every kind that it takes, from its creation until it was gone.
    pub writes: f64,
}

/// Makes the machine that is cloned.
///
/// # Errors
/// Something is refused, or its disk is not written in time.
pub async fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": carrack_storage::DRIVER, "volumeBindingMode": "Immediate",
    });
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", &class).await?;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "golden"},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    cluster.create(CLAIMS, &claim).await?;
    let write = format!("dd if=/dev/urandom of=/dev/disk bs=1M seek=300 count={DATA_MIB} && sync");
    let writer = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "golden"}}],
            "containers": [{"name": "c", "image": carrack_images::reference("busybox"), "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", write], "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}]},
    });
    cluster.create(PODS, &writer).await?;
    let ended = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    cluster.wait("the disk is not written", ended, &format!("{PODS}/writer")).await?;
    cluster.delete(&format!("{PODS}/writer")).await?;
    cluster.wait("its writer is still there", is_empty, PODS).await?;
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "golden"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {
            "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "golden"}}],
        }}},
    });
    cluster.create(MACHINES, &machine).await
}

/// Clones the machine, and removes the copy.
///
/// # Errors
/// Something is refused, or not done in time.
pub async fn life(cluster: &Cluster, round: u32) -> anyhow::Result<Life> {
    let (name, copy) = (format!("clone-{round}"), format!("copy-{round}"));
    let start = cluster.get(CLONES).await?["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let of = |name: &str| json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name});
    let clone = json!({
        "apiVersion": "clone.kubevirt.io/v1beta1", "kind": "VirtualMachineClone", "metadata": {"name": name},
        "spec": {"source": of("golden"), "target": of(&copy)},
    });
    let began = Instant::now();
    cluster.create(CLONES, &clone).await?;
    let path = format!("{CLONES}/{name}");
    let succeeded = |clone: &Value| clone["status"]["phase"] == "Succeeded";
    cluster.wait("the clone has not succeeded", succeeded, &path).await?;
    let all_bound = |list: &Value| items(list).iter().all(|claim| claim["status"]["phase"] == "Bound");
    cluster.wait("the copy's claim is not bound", all_bound, CLAIMS).await?;
    let made_ms = began.elapsed().as_secs_f64() * 1000.0;
    let cleared = |clone: &Value| clone["status"]["snapshotName"].is_null() && clone["status"]["restoreName"].is_null();
    cluster.wait("the clone is not cleared up", cleared, &path).await?;
    cluster.wait("its snapshot is still there", is_empty, VOLUME_SNAPSHOTS).await?;
    cluster.delete(&path).await?;
    cluster.wait("the clone is still there", is_empty, CLONES).await?;
    let writes = futures::future::try_join_all(WRITTEN.map(|path| cluster.writes_since(path, &start))).await?;
    let writes = u32::try_from(writes.iter().map(Vec::len).sum::<usize>()).context("too many writes")?;
    remove(cluster, &copy).await?;
    Ok(Life { made_ms, writes: f64::from(writes) })
}

/// Removes a machine with its claims.
async fn remove(cluster: &Cluster, machine: &str) -> anyhow::Result<()> {
    cluster.delete(&format!("{MACHINES}/{machine}")).await?;
    let one = |list: &Value| items(list).len() == 1;
    cluster.wait("the copy is still there", one, MACHINES).await?;
    for claim in items(&cluster.get(CLAIMS).await?) {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        if name != "golden" {
            cluster.delete(&format!("{CLAIMS}/{name}")).await?;
        }
    }
    cluster.wait("the copy's claim is still there", one, CLAIMS).await
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

fn is_empty(list: &Value) -> bool {
    items(list).is_empty()
}
