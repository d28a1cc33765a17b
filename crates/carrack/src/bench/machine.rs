#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! A virtual machine's life: how long it takes from its creation until its QEMU process runs, what it costs in writes,
//! and what runs beside QEMU.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_engine::{ApiRequest, Method};
use carrack_noderuntime::process;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::used;

const LIMIT: Duration = Duration::from_secs(60);

/// Kinds whose objects are written in a machine's life.
const WRITTEN: [&str; 4] = [
    "/apis/kubevirt.io/v1/namespaces/default/virtualmachines",
    INSTANCES,
    PODS,
    "/apis/apps/v1/namespaces/default/controllerrevisions",
];
const PODS: &str = "/api/v1/namespaces/default/pods";
const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";

/// What one machine's life cost.
#[derive(Debug, Clone)]
pub struct Life {
    /// From its creation until QEMU ran, milliseconds.
    pub running_ms: f64,
    /// Writes of the machine, its instance, its pods and its revisions, from the first to the last.
    pub writes: [f64; 4],
    /// Those of them that are its node's and its scheduler's: a launcher is bound, its status is told, it is removed at last.
    pub by_its_node: f64,
    /// Updates of its instance until that was Running.
    pub updates: f64,
    /// Each of these writes, for people: its kind, and which fields it changed.
    pub told: Vec<String>,
    /// Proportional set size of what runs beside QEMU, MB (10^6 bytes).
    pub beside_mb: f64,
}

/// Creates a machine, waits until it runs, leaves it alone for `rest`, and removes it.
///
/// # Errors
/// The machine is refused, or does not run or go in time.
pub async fn life(cluster: &Cluster, round: u32, rest: Duration) -> anyhow::Result<Life> {
    let name = format!("bench-{round}");
    let collection = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "128Mi"},
                "devices": {
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": {
                "image": carrack_images::reference("demo-guest"), "imagePullPolicy": "IfNotPresent",
            }}],
        }}},
    });
    let start = cluster.get(collection).await?["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let request = ApiRequest {
        body: serde_json::to_vec(&machine).context("a machine is no JSON")?.into(),
        ..ApiRequest::new(Method::Post, collection)
    };
    let began = Instant::now();
    cluster.api.send(request).await.map_err(|error| anyhow::anyhow!("the machine was refused: {error}"))?;
    let elapsed = loop {
        if qemu_runs(cluster) {
            break began.elapsed();
        }
        if began.elapsed() > LIMIT {
            bail!("QEMU does not run {} s after {name} was created", LIMIT.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let running = |list: &Value| list["items"][0]["status"]["phase"] == "Running";
    cluster.wait("the instance is not Running", running, INSTANCES).await?;
    tokio::time::sleep(rest).await;
    let beside_mb = beside_mb(cluster)?;
    let path = format!("{collection}/{name}");
    cluster.api.send(ApiRequest::new(Method::Delete, &path)).await.map_err(|error| anyhow::anyhow!("{error}"))?;
    let gone = |list: &serde_json::Value| list["items"].as_array().is_some_and(Vec::is_empty);
    cluster.wait("the machine is still there", gone, collection).await?;
    cluster.wait("its pod is still there", gone, PODS).await?;
    let Writes { all, by_its_node, updates, told } = writes(cluster, &start).await?;
    Ok(Life { running_ms: elapsed.as_secs_f64() * 1000.0, writes: all, by_its_node, updates, told, beside_mb })
}

/// What was written since a revision.
struct Writes {
    /// By kind.
    all: [f64; 4],
    /// Of the pods, by scheduler and node.
    by_its_node: f64,
    /// Of the instance, until it was Running.
    updates: f64,
    told: Vec<String>,
}

/// Counts the writes since a revision by kind, as a watch tells them; and those of the instance until it was Running.
async fn writes(cluster: &Cluster, since: &str) -> anyhow::Result<Writes> {
    let (mut all, mut by_its_node, mut updates, mut told) = ([0.0; 4], 0.0, 0.0, Vec::new());
    for (path, count) in WRITTEN.into_iter().zip(&mut all) {
        let (mut started, mut before) = (false, Value::Null);
        for event in cluster.writes_since(path, since).await? {
            let kind = event["type"].as_str().unwrap_or_default();
            *count += 1.0;
            let object = &event["object"];
            let mut changed = Vec::new();
            if kind != "ADDED" {
                changes(&before, object, "", &mut changed);
            }
            let plural = path.rsplit('/').next().unwrap_or_default();
            let revision = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            told.push(format!("{revision} {plural} {kind} {}", changed.join(" ")));
            if path == PODS && is_of_its_node(kind, &before, object) {
                by_its_node += 1.0;
            }
            before = object.clone();
            if path == INSTANCES && kind == "MODIFIED" && !started {
                updates += 1.0;
                started = object["status"]["phase"] == "Running";
            }
        }
    }
    told.sort_by_key(|line| line.split(' ').next().and_then(|revision| revision.parse::<u64>().ok()));
    Ok(Writes { all, by_its_node, updates, told })
}

/// Whether a write of a launcher is its scheduler's or its kubelet's: all but that it is made, and that it is asked to go. KubeVirt
/// counts the requests of its own components alone (`perfscale-audit`).
fn is_of_its_node(kind: &str, before: &Value, now: &Value) -> bool {
    let is_asked = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
    kind == "DELETED" || kind == "MODIFIED" && is_asked(before) == is_asked(now)
}

/// The fields that differ, with what they became.
fn changes(old: &Value, new: &Value, path: &str, found: &mut Vec<String>) {
    const KEPT_BY_THE_SERVER: [&str; 3] =
        ["/metadata/managedFields", "/metadata/resourceVersion", "/metadata/generation"];
    if old == new || KEPT_BY_THE_SERVER.contains(&path) {
        return;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        found.push(format!("{path}={new}"));
        return;
    };
    for key in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
        let value = |of: &serde_json::Map<String, Value>| of.get(key).cloned().unwrap_or_default();
        changes(&value(before), &value(after), &format!("{path}/{key}"), found);
    }
}

/// What runs in the machine's container beside QEMU.
fn beside_mb(cluster: &Cluster) -> anyhow::Result<f64> {
    let root = cluster.layout.containerd_root();
    let mut mb = 0.0;
    for (process, words) in process::all() {
        let is_launcher = words.iter().any(|word| word == "virt-launcher");
        if !is_launcher || !process::is_in_container(&process, &root) {
            continue;
        }
        // One that has ended meanwhile has nothing.
        mb += u32::try_from(process.pid).ok().and_then(|pid| used::proportional_mb(pid).ok()).unwrap_or(0.0);
    }
    anyhow::ensure!(mb > 0.0, "nothing of the launcher runs beside QEMU");
    Ok(mb)
}

fn qemu_runs(cluster: &Cluster) -> bool {
    let root = cluster.layout.containerd_root();
    process::all().iter().any(|(process, words)| {
        let program = words.first().map_or("", String::as_str);
        program.rsplit('/').next().is_some_and(|name| name.starts_with("qemu-system"))
            && process::is_in_container(process, &root)
    })
}
