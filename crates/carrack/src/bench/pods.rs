#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! How long pods take from their creation until the API says that they run, one after another and many at once; what
//! of that the container runtime takes; and what the process costs while they run.

use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};

use super::cluster::Cluster;

const PODS: &str = "/api/v1/namespaces/default/pods";
const LIMIT: Duration = Duration::from_secs(180);

/// What pods one after another took, in milliseconds.
pub struct Each {
    /// From creation until the API says Running.
    pub running_ms: Vec<f64>,
    /// Of that, without the time of runtime operations.
    pub without_runtime_ms: Vec<f64>,
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": carrack_images::reference("busybox"), "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "1000000"],
            }],
        },
    })
}

/// Pods one after another.
///
/// # Errors
/// A pod is refused, or does not run in time.
pub async fn one_after_another(cluster: &Cluster, count: u32) -> anyhow::Result<Each> {
    let mut each = Each { running_ms: Vec::new(), without_runtime_ms: Vec::new() };
    // The first one is not like the others: caches are cold.
    for round in 0..=count {
        let name = format!("bench-{round}");
        let before = runtime_ms(cluster).await?;
        let began = Instant::now();
        cluster.create(PODS, &pod(&name)).await?;
        let path = format!("{PODS}/{name}");
        while cluster.get(&path).await?["status"]["phase"] != "Running" {
            anyhow::ensure!(began.elapsed() < LIMIT, "{name} does not run after {} s", LIMIT.as_secs());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let took = began.elapsed().as_secs_f64() * 1000.0;
        let runtime = runtime_ms(cluster).await? - before;
        if round > 0 {
            each.running_ms.push(took);
            each.without_runtime_ms.push((took - runtime).max(0.0));
        }
        remove(cluster, &[name]).await?;
    }
    Ok(each)
}

/// Many pods at once; milliseconds until the API says that all run. They are left running.
///
/// # Errors
/// One is refused, or they do not all run in time.
pub async fn at_once_ms(cluster: &Cluster, count: usize) -> anyhow::Result<f64> {
    let names: Vec<String> = (0..count).map(|n| format!("many-{n}")).collect();
    let began = Instant::now();
    for name in &names {
        cluster.create(PODS, &pod(name)).await?;
    }
    loop {
        let list = cluster.get(PODS).await?;
        let running = list["items"].as_array().into_iter().flatten().filter(|p| p["status"]["phase"] == "Running");
        let running = running.count();
        if running >= count {
            return Ok(began.elapsed().as_secs_f64() * 1000.0);
        }
        if began.elapsed() > LIMIT {
            bail!("{running} of {count} pods run after {} s", LIMIT.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Removes the pods of [`at_once_ms`].
///
/// # Errors
/// They do not go in time.
pub async fn remove_many(cluster: &Cluster, count: usize) -> anyhow::Result<()> {
    let names: Vec<String> = (0..count).map(|n| format!("many-{n}")).collect();
    remove(cluster, &names).await
}

async fn remove(cluster: &Cluster, names: &[String]) -> anyhow::Result<()> {
    for name in names {
        cluster.delete(&format!("{PODS}/{name}")).await?;
    }
    let gone = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
    cluster.wait("pods are still there", gone, PODS).await
}

/// Time that runtime operations which pods wait for have taken so far, as the kubelet counts it.
async fn runtime_ms(cluster: &Cluster) -> anyhow::Result<f64> {
    let text = cluster.kubelet_metrics().await?;
    let waited = ["run_podsandbox", "create_container", "start_container", "image_status"];
    let seconds: f64 = text
        .lines()
        .filter_map(|line| line.strip_prefix("kubelet_runtime_operations_duration_seconds_sum{operation_type=\""))
        .filter_map(|line| line.split_once("\"} "))
        .filter(|(operation, _)| waited.contains(operation))
        .filter_map(|(_, seconds)| seconds.parse::<f64>().ok())
        .sum();
    Ok(seconds * 1000.0)
}
