#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! What volumes cost and how long they take: an idle node full of them, a config map's way into its files, claims of a
//! hundred pods, and a restart among mounts.
//!
//! What is there is read from the machine where it can be: files, loop devices, and the kubelet's own count of volumes
//! (`volume_manager_total_volumes`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::cluster::{Cluster, Dir};

/// Pods that the node may have.
const PODS: usize = 110;
/// Volumes of each, every one of them a mount.
const VOLUMES: usize = 4;
/// Pods with a claim.
const CLAIMED: usize = 100;
/// Config maps that are changed, each in a pod of its own.
const SETTINGS: usize = 5;
const LIMIT: Duration = Duration::from_secs(300);

const NAMESPACE: &str = "/api/v1/namespaces/default";

/// What was measured.
#[derive(Default)]
pub struct Figures {
    /// Use of the processor with pods that have no volumes, in percent of a core.
    pub bare_percent: f64,
    /// The same with four volumes each.
    pub full_percent: f64,
    /// From a config map's change until its file is the new one.
    pub changed_ms: Vec<f64>,
    /// From the creation of pods with claims until all run.
    pub running_ms: f64,
    /// From their deletion until nothing is attached.
    pub detached_ms: f64,
    /// From the start of a process until its API server is ready.
    pub ready_ms: Vec<f64>,
    /// From the start of a process until the kubelet knows of every mount.
    pub restored_ms: Vec<f64>,
}

/// What is to be measured.
pub struct Wishes {
    /// Seconds without work.
    pub idle_s: u64,
    /// Restarts.
    pub restarts: u32,
}

fn pod(name: &str, mounts: &[&str], volumes: Value) -> Value {
    let mounts: Vec<Value> = mounts.iter().map(|v| json!({"name": v, "mountPath": format!("/{v}")})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "volumes": volumes,
            "containers": [{
                "name": "c", "image": carrack_images::reference("busybox"), "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "1000000"], "volumeMounts": mounts,
            }],
        },
    })
}

/// A pod whose volumes are all mounted file systems.
fn full_pod(name: &str) -> Value {
    let label = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let volumes = json!([
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "bench"}},
        {"name": "about", "downwardAPI": {"items": label}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]);
    pod(name, &["memory", "secret", "about", "token"], volumes)
}

fn config_map(name: &str, word: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"word": word}})
}

async fn pods(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let mut list = cluster.get(&format!("{NAMESPACE}/pods")).await?;
    Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// Creates pods; returns how many milliseconds it took until the API said that all run.
async fn run_all(cluster: &Cluster, all: &[Value]) -> anyhow::Result<f64> {
    let began = Instant::now();
    for pod in all {
        cluster.create(&format!("{NAMESPACE}/pods"), pod).await?;
    }
    loop {
        let running = pods(cluster).await?.iter().filter(|p| p["status"]["phase"] == "Running").count();
        if running >= all.len() {
            return Ok(began.elapsed().as_secs_f64() * 1000.0);
        }
        anyhow::ensure!(began.elapsed() < LIMIT, "{running} of {} pods run after {} s", all.len(), LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn remove_all(cluster: &Cluster) -> anyhow::Result<()> {
    for pod in pods(cluster).await? {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        cluster.delete(&format!("{NAMESPACE}/pods/{name}")).await?;
    }
    let gone = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
    cluster.wait("pods are still there", gone, &format!("{NAMESPACE}/pods")).await
}

fn named(what: &str, count: usize, make: impl Fn(&str) -> Value) -> Vec<Value> {
    (0..count).map(|n| make(&format!("{what}-{n}"))).collect()
}

/// How many volumes the kubelet has mounted, by its own count.
async fn mounted(cluster: &Cluster) -> anyhow::Result<usize> {
    let text = cluster.kubelet_metrics().await?;
    let actual = text
        .lines()
        .filter(|line| line.starts_with("volume_manager_total_volumes{"))
        .filter(|line| line.contains("state=\"actual_state_of_world\""));
    Ok(actual.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok()).sum())
}

/// The files behind loop devices below a directory.
fn attached(below: &Path) -> usize {
    let backing = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok();
    let files = std::fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(backing);
    files.filter(|file| Path::new(file.trim()).starts_with(below)).count()
}

/// From each config map's change until the file in its pod is the new one.
async fn settings(cluster: &Cluster) -> anyhow::Result<Vec<f64>> {
    for n in 0..SETTINGS {
        cluster.create(&format!("{NAMESPACE}/configmaps"), &config_map(&format!("bench-{n}"), "before")).await?;
    }
    let with = |name: &str| pod(name, &["v"], json!([{"name": "v", "configMap": {"name": name}}]));
    run_all(cluster, &named("bench", SETTINGS, with)).await?;
    let root = cluster.layout.kubelet_root();
    let file = |pod: &Value| -> Option<PathBuf> {
        let uid = pod["metadata"]["uid"].as_str()?;
        Some(root.join(format!("pods/{uid}/volumes/kubernetes.io~configmap/v/word")))
    };
    let mut waiting: Vec<PathBuf> = pods(cluster).await?.iter().filter_map(file).collect();
    anyhow::ensure!(waiting.len() == SETTINGS, "{} of {SETTINGS} pods have a UID", waiting.len());
    let began = Instant::now();
    for n in 0..SETTINGS {
        let path = format!("{NAMESPACE}/configmaps/bench-{n}");
        cluster.merge(&path, &json!({"data": {"word": "after"}})).await?;
    }
    let mut samples = Vec::new();
    while !waiting.is_empty() {
        anyhow::ensure!(began.elapsed() < LIMIT, "{} files are old after {} s", waiting.len(), LIMIT.as_secs());
        let before = waiting.len();
        waiting.retain(|file| std::fs::read(file).is_ok_and(|bytes| bytes != b"after"));
        samples.extend((waiting.len()..before).map(|_| began.elapsed().as_secs_f64() * 1000.0));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    remove_all(cluster).await?;
    Ok(samples)
}

/// Pods with claims: until all run, and until nothing of them is attached.
async fn claims(cluster: &Cluster) -> anyhow::Result<(f64, f64)> {
    let collection = format!("{NAMESPACE}/persistentvolumeclaims");
    for n in 0..CLAIMED {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": format!("claimed-{n}")},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}},
        });
        cluster.create(&collection, &claim).await?;
    }
    let with = |name: &str| pod(name, &["v"], json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]));
    let running_ms = run_all(cluster, &named("claimed", CLAIMED, with)).await?;
    let began = Instant::now();
    remove_all(cluster).await?;
    let none_in_use = |list: &Value| {
        let in_use = list["items"][0]["status"]["volumesInUse"].as_array();
        in_use.is_none_or(Vec::is_empty)
    };
    cluster.wait("the node still says that it uses volumes", none_in_use, "/api/v1/nodes").await?;
    while attached(cluster.layout.data_dir()) > 0 {
        anyhow::ensure!(began.elapsed() < LIMIT, "disks are still attached after {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let detached_ms = began.elapsed().as_secs_f64() * 1000.0;
    for n in 0..CLAIMED {
        cluster.delete(&format!("{collection}/claimed-{n}")).await?;
    }
    let gone = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
    cluster.wait("volumes are still there", gone, "/api/v1/persistentvolumes").await?;
    Ok((running_ms, detached_ms))
}

/// Measures everything, on a cluster that may be replaced by another in the same directory.
///
/// # Errors
/// Something does not come about in time.
pub async fn run(
    dir: &Dir,
    mut cluster: Cluster,
    wishes: &Wishes,
    mut step: impl FnMut(String),
) -> anyhow::Result<(Figures, Cluster)> {
    let mut figures = Figures::default();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bench"}, "stringData": {"a": "b"}});
    cluster.create(&format!("{NAMESPACE}/secrets"), &secret).await?;

    step(format!("changing {SETTINGS} config maps"));
    figures.changed_ms = settings(&cluster).await?;

    step(format!("starting {CLAIMED} pods with claims"));
    (figures.running_ms, figures.detached_ms) = claims(&cluster).await?;

    step(format!("starting {PODS} pods without volumes"));
    run_all(&cluster, &named("bare", PODS, |name| pod(name, &[], json!([])))).await?;
    step(format!("waiting {} s without work", wishes.idle_s));
    figures.bare_percent = cluster.idle_cpu_percent(wishes.idle_s).await?;
    remove_all(&cluster).await?;

    step(format!("starting {PODS} pods with {VOLUMES} volumes each"));
    run_all(&cluster, &named("full", PODS, full_pod)).await?;
    let all = mounted(&cluster).await?;
    anyhow::ensure!(all == PODS * VOLUMES, "the kubelet counts {all} volumes of {}", PODS * VOLUMES);
    step(format!("waiting {} s without work", wishes.idle_s));
    figures.full_percent = cluster.idle_cpu_percent(wishes.idle_s).await?;

    for round in 1..=wishes.restarts {
        step(format!("restarting among {} mounts ({round} of {})", PODS * VOLUMES, wishes.restarts));
        cluster.stop().await?;
        let began = Instant::now();
        cluster = dir.start(&[]).await?;
        figures.ready_ms.push(cluster.ready_ms);
        // The node's server is not there at first.
        while mounted(&cluster).await.unwrap_or(0) < PODS * VOLUMES {
            anyhow::ensure!(began.elapsed() < LIMIT, "the kubelet knows of too few mounts");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        figures.restored_ms.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    step("removing the pods".to_owned());
    remove_all(&cluster).await.context("after the restarts")?;
    Ok((figures, cluster))
}
