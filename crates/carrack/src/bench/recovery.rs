#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! A machine whose node loses its power: how long until its guest runs on another node.
//!
//! Three nodes on this machine, each with a network, a containerd and an agent of its own. The node that the machine runs on
//! is switched off, and switched on again when the machine has come back elsewhere, as often as is asked for.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::cluster::{Cluster, Dir, takes_guests};

const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const INSTANCE: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/away";
/// How long a machine may be away.
const LIMIT: Duration = Duration::from_secs(180);

/// Where the machine runs.
async fn place(cluster: &Cluster) -> Option<String> {
    let instance = cluster.get(INSTANCE).await.ok()?;
    let node = instance["status"]["nodeName"].as_str()?;
    (instance["status"]["phase"] == "Running").then(|| node.to_owned())
}

/// Starts a machine, and cuts the power of its node so many times. Milliseconds until it ran elsewhere.
///
/// # Errors
/// The machine does not run, or does not come back in time.
pub async fn run(dir: &Dir, cluster: &Cluster, times: u32, mut step: impl FnMut(String)) -> anyhow::Result<Vec<f64>> {
    let all_ready =
        |list: &Value| list["items"].as_array().is_some_and(|nodes| nodes.len() == 3 && nodes.iter().all(takes_guests));
    cluster.wait("the nodes are not ready", all_ready, "/api/v1/nodes").await?;
    step("preparing images".to_owned());
    let images = dir.images().display().to_string();
    dir.carrack(&["image", "build", "demo", "--images-dir", &images])?;
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "away"},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "volumes": [{"name": "root", "containerDisk": {
                "image": carrack_images::reference("demo-guest"), "imagePullPolicy": "IfNotPresent",
            }}],
        }}},
    });
    cluster.create(MACHINES, &machine).await?;
    let running = |instance: &Value| instance["status"]["phase"] == "Running";
    cluster.wait("the machine does not run", running, INSTANCE).await?;
    let mut took_ms = Vec::new();
    for round in 1..=times {
        let first = place(cluster).await.context("the machine runs no more")?;
        step(format!("cutting the power of {first} ({round} of {times})"));
        let began = Instant::now();
        dir.carrack(&["node", "off", &first])?;
        while place(cluster).await.is_none_or(|now| now == first) {
            anyhow::ensure!(began.elapsed() < LIMIT, "the machine is away for {} s", LIMIT.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        took_ms.push(began.elapsed().as_secs_f64() * 1000.0);
        dir.carrack(&["node", "on", &first])?;
        cluster.wait("the node takes no guests", takes_guests, &format!("/api/v1/nodes/{first}")).await?;
    }
    Ok(took_ms)
}
