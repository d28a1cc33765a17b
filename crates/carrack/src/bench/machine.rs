#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! How long a virtual machine takes from its creation until its QEMU process runs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_engine::{ApiRequest, Method};
use carrack_noderuntime::process;
use serde_json::json;

use super::cluster::Cluster;

const LIMIT: Duration = Duration::from_secs(60);

/// Creates a machine, waits for QEMU, and removes the machine.
///
/// # Errors
/// The machine is refused, or QEMU does not run in time.
pub async fn created_to_running_ms(cluster: &Cluster, round: u32) -> anyhow::Result<f64> {
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
    let path = format!("{collection}/{name}");
    cluster.api.send(ApiRequest::new(Method::Delete, &path)).await.map_err(|error| anyhow::anyhow!("{error}"))?;
    let gone = |list: &serde_json::Value| list["items"].as_array().is_some_and(Vec::is_empty);
    cluster.wait("the machine is still there", gone, collection).await?;
    cluster.wait("its pod is still there", gone, "/api/v1/namespaces/default/pods").await?;
    Ok(elapsed.as_secs_f64() * 1000.0)
}

fn qemu_runs(cluster: &Cluster) -> bool {
    let root = cluster.layout.containerd_root();
    process::all().iter().any(|(process, words)| {
        let program = words.first().map_or("", String::as_str);
        program.rsplit('/').next().is_some_and(|name| name.starts_with("qemu-system"))
            && process::is_in_container(process, &root)
    })
}
