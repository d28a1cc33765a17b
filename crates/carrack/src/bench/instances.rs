#![expect(clippy::disallowed_methods, reason = "shell: measures time")]
//! Many virtual machine instances on hollow nodes: how long they take from their creation until they run, and what they
//! cost the control plane.
//!
//! Instances come at a steady rate, whatever became of those before, as users' do. Their guests start at once, so that what
//! is measured is the control plane alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use carrack_engine::{ApiRequest, EventStream, Method, Selector};
use carrack_noderuntime::Layout;
use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::resource::Kind as _;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::apart::Apart;
use super::plane::{LIMIT, Nodes, Plane, body, cpu_s, peak_mb};
use super::scratch::Scratch;

/// Instances for one hollow node.
const PER_NODE: usize = 100;
const INSTANCES: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
const WATCH_S: u64 = 3600;

/// What was measured.
pub struct Figures {
    /// From the creation of each instance until the API said that it runs, milliseconds, in order.
    pub running_ms: Vec<f64>,
    /// From the deletion of the first until all were gone, seconds.
    pub gone_s: f64,
    /// Writes for each instance until it ran: of the controllers, and of scheduler and nodes. Events not counted.
    pub writes: [f64; 2],
    /// The same for its end.
    pub last_writes: [f64; 2],
    /// CPU seconds of this process until all ran: the control plane and this measurement, and the nodes unless they are apart.
    pub cpu_s: f64,
    /// The most memory that this process had, in MB.
    pub peak_mb: f64,
    /// What the nodes' own process has in the end, in MB.
    pub nodes_mb: Option<f64>,
}

#[derive(Deserialize)]
struct Event {
    object: Seen,
}

#[derive(Deserialize)]
struct Seen {
    metadata: Named,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
}

fn instance(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
        },
    })
}

/// Makes so many instances, so many a second, and removes them. With a port for the API server, the nodes have a process of their
/// own.
///
/// # Errors
/// An instance is refused, or does not run or go in time.
pub async fn run(instances: usize, per_s: u32, apart: Option<u16>) -> anyhow::Result<Figures> {
    let dir = Scratch::new("instances")?;
    measure(&Layout::new(dir.path()), (instances, per_s.max(1)), apart).await
}

async fn measure(layout: &Layout, (instances, per_s): (usize, u32), apart: Option<u16>) -> anyhow::Result<Figures> {
    let nodes = instances.div_ceil(PER_NODE).max(1);
    let mut plane = Plane::start(layout, Nodes { count: nodes, machines: true, apart }).await?;
    let schedulable = |node: &Value| node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true";
    plane.wait("/api/v1/nodes", |list| list.iter().filter(|node| schedulable(node)).count() == nodes).await?;
    plane.wait("/api/v1/namespaces/default/serviceaccounts", |list| !list.is_empty()).await?;

    let created: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
    let running = tokio::spawn(all_run(watch(&plane).await?, instances, created.clone()));
    let (before, cpu_before) = (writes(&plane).await?, cpu_s()?);
    let began = Instant::now();
    let mut creations = tokio::task::JoinSet::new();
    for number in 0..instances {
        tokio::time::sleep_until((began + Duration::from_secs(1) / per_s * u32::try_from(number)?).into()).await;
        let name = format!("vmi-{number}");
        let request = body(Method::Post, INSTANCES.to_owned(), &instance(&name))?;
        created.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Instant::now());
        creations.spawn(plane.admin.send(request));
        while let Some(outcome) = creations.try_join_next() {
            outcome.context("a creation panicked")??;
        }
    }
    while let Some(outcome) = creations.join_next().await {
        outcome.context("a creation panicked")??;
    }
    let running_ms = tokio::time::timeout(LIMIT, running).await.context("not all instances run")?;
    let running_ms = running_ms.context("the watch panicked")??;
    let between = writes(&plane).await?;
    let cpu_s = cpu_s()? - cpu_before;

    let began = Instant::now();
    plane.ask(ApiRequest::new(Method::Delete, INSTANCES)).await?;
    plane.wait(&format!("{INSTANCES}?limit=1"), <[Value]>::is_empty).await?;
    plane.wait("/api/v1/namespaces/default/pods?limit=1", <[Value]>::is_empty).await?;
    let gone_s = began.elapsed().as_secs_f64();
    let after = writes(&plane).await?;
    let (peak_mb, nodes_mb) = (peak_mb()?, plane.apart.as_ref().map(Apart::resident_mb).transpose()?);
    plane.end().await?;
    #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
    let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / instances as f64;
    // The creations are this measurement's own; the deletion is one of a collection.
    let others = |now: [u64; 2], then: [u64; 2], own: u64| each(now[1] - now[0], then[1] - then[0] + own);
    Ok(Figures {
        running_ms,
        gone_s,
        writes: [each(between[0], before[0]), others(between, before, u64::try_from(instances)?)],
        last_writes: [each(after[0], between[0]), others(after, between, 0)],
        cpu_s,
        peak_mb,
        nodes_mb,
    })
}

/// The writes of the controllers, and of all.
async fn writes(plane: &Plane) -> anyhow::Result<[u64; 2]> {
    let controllers = plane.controllers.read()[0];
    Ok([controllers, plane.writes().await?.max(controllers)])
}

async fn watch(plane: &Plane) -> anyhow::Result<EventStream> {
    let list = plane.send(ApiRequest::new(Method::Get, INSTANCES)).await?;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let resource = VirtualMachineInstance::resource();
    Ok(plane.admin.watch(ApiRequest::watch(&resource, &Selector::all(), &revision, WATCH_S)).await?)
}

/// Sees so many instances run; how long each took, in milliseconds, in order.
async fn all_run(
    mut events: EventStream,
    instances: usize,
    created: Arc<Mutex<BTreeMap<String, Instant>>>,
) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::with_capacity(instances);
    while took.len() < instances {
        let event = events.next().await.context("the watch of the instances ended")??;
        let event: Event = serde_json::from_slice(&event).context("a watch event cannot be read")?;
        if event.object.status.phase != "Running" {
            continue;
        }
        let since = created.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.object.metadata.name);
        if let Some(since) = since {
            took.push(since.elapsed().as_secs_f64() * 1000.0);
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(took)
}

/// The value below which so many percent of the sorted ones lie.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        let check = |percent: usize, expected: f64| {
            assert!((percentile(&sorted, percent) - expected).abs() < f64::EPSILON, "{percent}");
        };
        check(50, 100.0);
        check(95, 190.0);
        check(100, 200.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_few_instances_run_and_go() {
        let figures = run(5, 100, None).await.expect("figures");
        assert_eq!(figures.running_ms.len(), 5);
        assert!(figures.writes.iter().chain(&figures.last_writes).all(|writes| *writes > 0.0));
    }
}
