//! A node's agent in a process of its own, on a node full of pods: how soon after its start the node is told as it is, and what the
//! agent uses while nothing happens.
//!
//! ```text
//!   carrack up, all roles ──ends──► carrack apiserver ◄─HTTPS─ carrack kubelet        started again and again; then at rest
//!                                                     ◄─HTTPS─ carrack virt-handler, carrack local-storage   then beside it
//! ```
//!
//! Containers and containerd go on from one to the other. Nothing else of a control plane runs meanwhile, so that nobody writes of
//! the node but its agents.

use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::pki::{Identity, Pki, Sans, Server, write_private};
use carrack_noderuntime::Layout;
use carrack_types::quantity::Quantity;
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use serde_json::{Value, json};

use super::apart::Apart;
use super::cluster::{Cluster, Dir, HTTPS_PORT, KUBELET_PORT, VIRT_HANDLER_PORT, is_ready};
use super::used;
use crate::roles::apiserver;

/// How long an agent may take to tell of its node, and to know its pods.
const LIMIT: Duration = Duration::from_secs(60);

/// What is to be measured.
pub struct Wishes {
    /// How often the agent is started.
    pub starts: u32,
    /// Seconds without work, before what is used is looked at and while it is.
    pub idle_s: u64,
    /// Pods that run on the node.
    pub pods: usize,
}

/// What was measured.
pub struct Figures {
    /// From each start of the kubelet's process until the Node was as the machine is, in milliseconds.
    pub told_ms: Vec<f64>,
    /// What the kubelet uses at rest.
    pub alone: Use,
    /// What it, virt-handler and local-storage use together, each a process.
    pub together: Use,
}

/// What processes use at rest.
pub struct Use {
    /// Resident memory in MB: of several, what they share counts for each.
    pub resident_mb: f64,
    /// The same, with what others have too in proportion.
    pub proportional_mb: f64,
    /// Of the processor, in percent of a core.
    pub cpu_percent: f64,
}

impl Use {
    /// Of processes that have been at rest for some seconds, over as many.
    async fn at_rest(processes: &[&Apart], seconds: u64) -> anyhow::Result<Self> {
        let pids: Vec<u32> = processes.iter().map(|process| process.pid()).collect();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let cpu_percent = used::cpu_percent(&pids, seconds).await?;
        let all = |of: fn(u32) -> anyhow::Result<f64>| pids.iter().map(|pid| of(*pid)).sum::<anyhow::Result<f64>>();
        Ok(Self { resident_mb: all(used::resident_mb)?, proportional_mb: all(used::proportional_mb)?, cpu_percent })
    }
}

/// What a node's status is held against.
struct Machine {
    cpus: i64,
    memory_bytes: i64,
}

impl Machine {
    /// This one, as the kernel tells it.
    fn found() -> anyhow::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        Self::read(&read("/proc/cpuinfo")?, &read("/proc/meminfo")?).context("the kernel tells no CPUs, or no memory")
    }

    fn read(cpuinfo: &str, meminfo: &str) -> Option<Self> {
        let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let kib = i64::try_from(used::kib(meminfo, "MemTotal:")?).ok()?;
        let cpus = i64::try_from(cpus).ok().filter(|cpus| *cpus > 0)?;
        Some(Self { cpus, memory_bytes: kib.checked_mul(1024)? })
    }

    /// Whether a Node says that it is ready, has what this machine has, and can give of that what there is.
    fn is_told(&self, node: &Value) -> bool {
        let status = &node["status"];
        let amount = |list: &str, of: &str| Quantity::parse(status[list][of].as_str()?).ok().map(Quantity::units);
        let gives = |of: &str, all: i64| amount("allocatable", of).is_some_and(|some| some > 0 && some <= all);
        let has = |of: &str, all: i64| amount("capacity", of) == Some(all) && gives(of, all);
        is_ready(node) && has("cpu", self.cpus) && has("memory", self.memory_bytes) && gives("pods", i64::MAX)
    }
}

/// Makes the Node what it is when nobody has heard of its agents for long, and forgets what it can give: what it says afterwards
/// was written since.
async fn forget(cluster: &Cluster, node: &str) -> anyhow::Result<()> {
    let unknown = json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]);
    let status = json!({"status": {"conditions": unknown, "capacity": null, "allocatable": null}});
    cluster.merge(&format!("{node}/status"), &status).await?;
    cluster.merge(node, &json!({"metadata": {"labels": {SCHEDULABLE_LABEL: "false"}}})).await
}

/// Milliseconds from an agent's start until the Node is as the machine is.
async fn told_ms(cluster: &Cluster, node: &str, machine: &Machine, agent: &mut Apart) -> anyhow::Result<f64> {
    while !machine.is_told(&cluster.get(node).await?) {
        agent.ensure_runs()?;
        anyhow::ensure!(agent.began.elapsed() < LIMIT, "{node} is not as it is after {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(agent.began.elapsed().as_secs_f64() * 1000.0)
}

/// How many pods run, by the kubelet's own count.
fn running(metrics: &str) -> Option<usize> {
    metrics.lines().find_map(|line| line.strip_prefix("kubelet_running_pods ")?.trim().parse().ok())
}

/// Waits until the kubelet knows that so many pods run.
async fn knows_pods(cluster: &Cluster, agent: &mut Apart, pods: usize) -> anyhow::Result<()> {
    loop {
        // Its server is not there at first.
        let known = cluster.kubelet_metrics().await.ok().and_then(|metrics| running(&metrics)).unwrap_or(0);
        if known >= pods {
            return Ok(());
        }
        agent.ensure_runs()?;
        let limit = LIMIT.as_secs();
        anyhow::ensure!(agent.began.elapsed() < LIMIT, "the kubelet knows {known} of {pods} pods after {limit} s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The agents of one node, as processes.
struct Agents {
    layout: Layout,
    pki: Pki,
    /// The node's name.
    node: String,
    /// What its agents are called by.
    sans: Sans,
}

impl Agents {
    fn new(layout: &Layout, node: &Value) -> anyhow::Result<Self> {
        let name = node["metadata"]["name"].as_str().context("there is no node")?.to_owned();
        let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        let called = addresses.filter_map(|address| address["address"].as_str());
        let sans = called.fold(Sans::loopback().with_name(&name), Sans::with_name);
        Ok(Self { layout: layout.clone(), pki: apiserver::open_pki(layout)?, node: name, sans })
    }

    fn kubelet(&self) -> anyhow::Result<Apart> {
        let (node, port) = (self.node.clone(), KUBELET_PORT.to_string());
        let serving = self.serving("kubelet", &Server::Kubelet { node: node.clone() })?;
        self.start("kubelet", &Identity::Node { node }, ["--port".to_owned(), port].into_iter().chain(serving))
    }

    fn virt_handler(&self) -> anyhow::Result<Apart> {
        let (node, port) = (self.node.clone(), VIRT_HANDLER_PORT.to_string());
        let serving = self.serving("virt-handler", &Server::VirtHandler { node: node.clone() })?;
        self.start(
            "virt-handler",
            &Identity::VirtHandler { node },
            ["--port".to_owned(), port].into_iter().chain(serving),
        )
    }

    fn local_storage(&self) -> anyhow::Result<Apart> {
        self.start("local-storage", &Identity::LocalStorage { node: self.node.clone() }, [])
    }

    /// What an agent is told of the certificate that it serves with, which is the one that it has in a cluster.
    fn serving(&self, role: &str, server: &Server) -> anyhow::Result<Vec<String>> {
        let pair = self.pki.server(server, &self.sans, apiserver::now_unix_s())?;
        let files = [
            ("--tls-cert-file", "crt", pair.certificate.as_str()),
            ("--tls-private-key-file", "key", pair.key.expose()),
            ("--client-ca-file", "ca", self.pki.ca_pem()),
        ];
        let mut words = Vec::new();
        for (flag, kind, text) in files {
            let path = self.layout.data_dir().join(format!("{role}.{kind}"));
            write_private(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            words.extend([flag.to_owned(), path.display().to_string()]);
        }
        Ok(words)
    }

    fn start(&self, role: &str, who: &Identity, more: impl IntoIterator<Item = String>) -> anyhow::Result<Apart> {
        let (dir, more) = (self.layout.data_dir().display().to_string(), Vec::from_iter(more));
        let mut words = vec![role, "--data-dir", &dir, "--node-name", &self.node];
        words.extend(more.iter().map(String::as_str));
        Apart::start(&words, who, &self.layout, &self.pki, HTTPS_PORT)
    }
}

/// Measures everything on the node of a cluster on which pods run, and starts the cluster again.
///
/// # Errors
/// An agent does not start, or does not tell of its node or its pods in time.
pub async fn run(
    dir: &Dir,
    cluster: Cluster,
    wishes: &Wishes,
    mut step: impl FnMut(String),
) -> anyhow::Result<(Figures, Cluster)> {
    let machine = Machine::found()?;
    let nodes = cluster.get("/api/v1/nodes").await?;
    let agents = Agents::new(&cluster.layout, &nodes["items"][0])?;
    let node = format!("/api/v1/nodes/{}", agents.node);
    cluster.stop().await?;
    let api = dir.serve().await?;

    let mut samples = Vec::new();
    let mut last: Option<Apart> = None;
    for round in 1..=wishes.starts {
        step(format!("starting the node's agent ({round} of {})", wishes.starts));
        // Not before it has ended, whatever of it was under way has come or never will.
        drop(last.take());
        forget(&api, &node).await?;
        let mut agent = agents.kubelet()?;
        samples.push(told_ms(&api, &node, &machine, &mut agent).await?);
        last = Some(agent);
    }
    let mut kubelet = last.context("no agent was started")?;
    knows_pods(&api, &mut kubelet, wishes.pods).await?;
    step(format!("waiting {} s without work, with the kubelet alone", 2 * wishes.idle_s));
    let alone = Use::at_rest(&[&kubelet], wishes.idle_s).await?;

    let (handler, storage) = (agents.virt_handler()?, agents.local_storage()?);
    let taking = |node: &Value| node["metadata"]["labels"][SCHEDULABLE_LABEL] == "true";
    api.wait("virt-handler has not told of the node", taking, &node).await?;
    step(format!("waiting {} s without work, with all agents", 2 * wishes.idle_s));
    let together = Use::at_rest(&[&kubelet, &handler, &storage], wishes.idle_s).await?;

    step("starting the cluster again".to_owned());
    drop((kubelet, handler, storage));
    // Whoever waits for the node is not to take what these said for what the next ones say.
    forget(&api, &node).await?;
    api.stop().await?;
    let cluster = dir.start(&[]).await?;
    cluster.wait_node().await?;
    Ok((Figures { told_ms: samples, alone, together }, cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_as_the_kernel_tells_it() {
        let check = |cpuinfo: &str, meminfo: &str, expected: Option<(i64, i64)>| {
            let found = Machine::read(cpuinfo, meminfo).map(|machine| (machine.cpus, machine.memory_bytes));
            assert_eq!(found, expected, "{cpuinfo:?} {meminfo:?}");
        };
        let two = "processor\t: 0\nmodel name\t: a processor\n\nprocessor\t: 1\n";
        check(two, "MemTotal:       8388608 kB\nMemFree: 1 kB\n", Some((2, 8 << 30)));
        check(two, "MemFree: 1 kB\n", None);
        check("", "MemTotal:       8388608 kB\n", None);
        Machine::found().expect("this one");
    }

    #[test]
    fn a_node_is_told_when_all_of_it_is_right() {
        let machine = Machine { cpus: 2, memory_bytes: 8 << 30 };
        let right = json!({
            "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
            "capacity": {"cpu": "2", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "1900m", "memory": "8286208Ki", "pods": "110"},
        });
        assert!(machine.is_told(&json!({"status": right})));
        for (path, wrong) in [
            ("/conditions/1/status", json!("Unknown")),
            ("/conditions", json!(null)),
            ("/capacity", json!(null)),
            ("/capacity/cpu", json!("3")),
            ("/capacity/memory", json!("8G")),
            ("/allocatable", json!(null)),
            ("/allocatable/cpu", json!("3")),
            ("/allocatable/memory", json!("9Gi")),
            ("/allocatable/memory", json!("0")),
            ("/allocatable/pods", json!("0")),
        ] {
            let mut status = right.clone();
            *status.pointer_mut(path).expect("it is there") = wrong.clone();
            assert!(!machine.is_told(&json!({"status": status})), "{path} {wrong}");
        }
        assert!(!machine.is_told(&json!({})));
    }

    #[test]
    fn pods_by_the_kubelets_own_count() {
        let check = |text: &str, expected: Option<usize>| assert_eq!(running(text), expected, "{text:?}");
        check("# TYPE kubelet_running_pods gauge\nkubelet_running_pods 90\n", Some(90));
        check("kubelet_running_pods_total 9\n", None);
        check("", None);
    }
}
