#![expect(clippy::disallowed_methods, reason = "shell: runs a control plane and measures time")]
//! What a rollout costs the control plane: Deployments on hollow nodes, made, updated and deleted.
//!
//! In the end leaders are ended without a word, one after another, and what is measured is how long it takes until somebody
//! else acts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::bail;
use carrack_auth::{Caller, caller};
use carrack_engine::{ApiRequest, Method};
use carrack_noderuntime::Layout;
use serde_json::{Value, json};

use super::plane::{Counting, Counts, LIMIT, Nodes, Plane, body, client, cpu_s, peak_mb};
use super::scratch::Scratch;
use crate::roles;

/// Pods of each Deployment.
const PODS: usize = 10;
/// Pods for one hollow node.
const PODS_PER_NODE: usize = 100;
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// What upstream's kube-controller-manager writes for a pod's whole life here, events not counted: its code read for a
/// rollout, a rolling update with the default surge and deletion, pods ready one after another. For each of ten pods, when
///
/// - rolled out: the pod, and as it gets ready the statuses of its set and of the Deployment (3); for all, the set, the
///   Deployment's revision, and the statuses of both once the pods are there (4);
/// - updated: the pod and the deletion of another, the statuses of both sets and of the Deployment as one gets ready and the
///   other goes, both sets scaled (7); for all as above, and the old set's first step down (5);
/// - deleted: the deletion of the pod (1); for all, of both sets (2).
///
/// Two lives each: `(3 + 7 + 1) / 2 + (4 + 5 + 2) / 20`.
pub const UPSTREAM_WRITES: f64 = 6.05;
/// As many more are the scheduler's binding and the kubelet's two statuses, pending and running; without grace, the node
/// writes nothing at the end.
pub const UPSTREAM_ALL_WRITES: f64 = UPSTREAM_WRITES + 3.0;
/// CPU milliseconds for a pod's whole life, of the whole control plane, nodes and this measurement included.
pub const CPU_MS: f64 = 5.0;
/// The most memory for so many Deployments, in MB: two sets of pods at a time while they are updated.
pub const PEAK: (usize, f64) = (1000, 1000.0);

/// What one stage cost.
pub struct Stage {
    /// What was done.
    pub name: &'static str,
    /// Seconds until it was done.
    pub seconds: f64,
    /// Writes of the controllers for each pod, events not counted.
    pub controller_writes: f64,
    /// Events of the controllers for each pod.
    pub controller_events: f64,
    /// Writes of all roles for each pod, events not counted.
    pub all_writes: f64,
    /// CPU seconds of the whole process.
    pub cpu_s: f64,
    /// The same for each pod, in milliseconds.
    pub cpu_ms: f64,
    /// Writes of the controllers that changed nothing, for each pod.
    pub idle_writes: f64,
    /// Writes of the controllers that were refused because something had changed, for each pod.
    pub conflicts: f64,
}

/// What everything cost.
pub struct Outcome {
    /// Each stage.
    pub stages: Vec<Stage>,
    /// The most memory that the process had, in MB.
    pub peak_mb: f64,
    /// Seconds from each leader's end until another one acted.
    pub handed_over_s: Vec<f64>,
}

impl Outcome {
    /// What a pod's whole life cost: all pods were made twice, and are gone.
    pub fn of_a_life(&self, of: impl Fn(&Stage) -> f64) -> f64 {
        self.stages.iter().map(of).sum::<f64>() / 2.0
    }
}

/// How many leaders are ended.
const HAND_OVERS: usize = 5;

impl Plane {
    /// Ends the leader without a word, with another candidate at hand. Seconds until that one acted.
    async fn hand_over(&mut self, number: usize) -> anyhow::Result<f64> {
        let counts = Arc::new(Counts::default());
        const NONE: [&str; 0] = [];
        let to = client(&self.server, Caller::new(caller::USER_CONTROLLER_MANAGER, NONE));
        let (api, token) = (Arc::new(Counting { to, counts: counts.clone() }), self.stop.clone());
        let identity = format!("bench-{}", number + 1);
        let next = self
            .tasks
            .spawn(async move { roles::controllers::run("", Some(&identity), PathBuf::new(), None, api, token).await });
        // It reads everything before it can act.
        let mut watches = (0, Instant::now());
        while watches.0 == 0 || watches.1.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = counts.watches.load(Ordering::Relaxed);
            if now != watches.0 {
                watches = (now, Instant::now());
            }
        }
        std::mem::replace(&mut self.leader, next).abort();
        let began = Instant::now();
        let name = format!("handed-over-{number}");
        self.send(body(Method::Post, DEPLOYMENTS.into(), &deployment(&name))?).await?;
        while self.send(ApiRequest::new(Method::Get, format!("{DEPLOYMENTS}/{name}"))).await?["status"]
            ["observedGeneration"]
            .is_null()
        {
            if began.elapsed() > LIMIT {
                bail!("nobody took over");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Does something and waits for its end; what that cost for each pod.
    async fn stage(
        &mut self,
        name: &'static str,
        pods: f64,
        requests: Vec<ApiRequest>,
        path: &str,
        good: impl Fn(&[Value]) -> bool,
    ) -> anyhow::Result<Stage> {
        let before = (self.controllers.read(), self.others.read(), cpu_s()?);
        let began = Instant::now();
        for request in requests {
            self.ask(request).await?;
        }
        self.wait(path, good).await?;
        let (controllers, others) = (self.controllers.read(), self.others.read());
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
        let each = |now: u64, then: u64| (now - then) as f64 / pods;
        let [controller_writes, controller_events, idle_writes, conflicts] =
            [0, 1, 2, 3].map(|n| each(controllers[n], before.0[n]));
        let spent_s = cpu_s()? - before.2;
        Ok(Stage {
            name,
            seconds: began.elapsed().as_secs_f64(),
            controller_writes,
            controller_events,
            all_writes: controller_writes + each(others[0], before.1[0]),
            cpu_s: spent_s,
            cpu_ms: spent_s * 1000.0 / pods,
            idle_writes,
            conflicts,
        })
    }
}

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": PODS, "selector": {"matchLabels": {"app": name}}, "template": template(name, 1)}})
}

fn template(name: &str, version: u32) -> Value {
    json!({"metadata": {"labels": {"app": name}, "annotations": {"version": version.to_string()}},
        "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hollow", "resources": {"requests": {"cpu": "10m"}}}]}})
}

/// Rolls out, updates and deletes so many Deployments, and then ends leaders.
///
/// # Errors
/// A role ended, or it takes too long.
pub async fn run(deployments: usize) -> anyhow::Result<Outcome> {
    let dir = Scratch::new("controllers")?;
    stages(dir.path(), deployments).await
}

async fn stages(dir: &Path, deployments: usize) -> anyhow::Result<Outcome> {
    let count = (deployments * PODS).div_ceil(PODS_PER_NODE).max(1);
    let nodes = Nodes { count, machines: false, apart: None };
    let mut plane = Plane::start(&Layout::new(dir), nodes).await?;
    plane.wait("/api/v1/nodes", |list| list.len() == count).await?;
    plane.wait("/api/v1/serviceaccounts", |list| !list.is_empty()).await?;
    let names: Vec<String> = (0..deployments).map(|n| format!("bench-{n}")).collect();
    #[expect(clippy::cast_precision_loss, reason = "numbers of pods are far below 2^52")]
    let pods = (deployments * PODS) as f64;
    let rolled_out = move |list: &[Value]| {
        list.len() == deployments
            && list.iter().all(|d| {
                let is = |count: &str| d["status"][count] == PODS;
                d["status"]["observedGeneration"] == d["metadata"]["generation"]
                    && is("replicas")
                    && is("updatedReplicas")
                    && is("availableReplicas")
            })
    };
    let make: anyhow::Result<Vec<_>> =
        names.iter().map(|n| body(Method::Post, DEPLOYMENTS.into(), &deployment(n))).collect();
    let update: anyhow::Result<Vec<_>> = names
        .iter()
        .map(|n| body(Method::Patch, format!("{DEPLOYMENTS}/{n}"), &json!({"spec": {"template": template(n, 2)}})))
        .collect();
    let delete = names.iter().map(|n| ApiRequest::new(Method::Delete, format!("{DEPLOYMENTS}/{n}"))).collect();
    let stages = vec![
        plane.stage("rolled out", pods, make?, DEPLOYMENTS, rolled_out).await?,
        plane.stage("updated", pods, update?, DEPLOYMENTS, rolled_out).await?,
        plane.stage("deleted", pods, delete, "/api/v1/pods?limit=1", <[Value]>::is_empty).await?,
    ];
    let peak_mb = peak_mb()?;
    let mut handed_over_s = Vec::new();
    for number in 0..HAND_OVERS {
        handed_over_s.push(plane.hand_over(number).await?);
    }
    plane.end().await?;
    Ok(Outcome { stages, peak_mb, handed_over_s })
}
