//! The arguments of `carrack bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ImagesDir;
use crate::output::Format;

/// `carrack bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Starts clusters of its own in a temporary directory, on ports 26443, 26250 and 26186 and the
address range 10.98.0.0/24, and removes them. Each start and each machine is measured several
times; the table shows the middle and the worst. What has a bound and misses it is named in the
end, and the exit status is 1. Only store, controllers, instances, api and scheduler do without
root and what `carrack up` needs. The last two have reports of their own: each is taken by itself.

Examples:
  # Everything that takes minutes only
  carrack bench all

  # How long a start takes, as data
  carrack bench up -o json

  # What volumes cost and how long they take
  carrack bench volumes --idle 60

  # A hundred times: how long a machine is away when its node loses its power
  carrack bench recovery --repeat 100

  # An API server of its own; then another one, with a plot
  carrack bench api
  carrack bench api --kubeconfig admin.conf --pid $(pidof etcd) --plot latency.svg -o json

  # How many pods a second get a node, and what a pod costs over the number of nodes
  carrack bench scheduler --plot cost.svg
  carrack bench scheduler --apart --kubelets --workload plain")]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum, value_name = "MEASURE", required = true)]
    pub measures: Vec<Measure>,
    /// How often to measure a start and a machine
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Seconds without work before memory is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub idle: u64,
    /// List each write of a machine's life, with the fields that it changed
    #[arg(long)]
    pub writes: bool,
    /// What is done to an API server
    #[command(flatten)]
    pub api: ApiArgs,
    /// How many Deployments the controllers roll out
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = count)]
    pub deployments: usize,
    /// How many virtual machine instances come to hollow nodes
    #[arg(long, value_name = "COUNT", default_value_t = 8000, value_parser = count)]
    pub instances: usize,
    /// How many of them come in a second
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// What a scheduler is given to do
    #[command(flatten)]
    pub scheduler: SchedulerArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Where images are built
    #[command(flatten)]
    pub images_dir: ImagesDir,
}

/// Of what is measured there is one at least.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("there must be one at least".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}

/// `carrack bench api`
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of api")]
pub struct ApiArgs {
    /// Kubeconfig of the API server to measure; without it, one is started
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Process whose memory belongs to that server (repeatable)
    #[arg(long, value_name = "PID", requires = "kubeconfig")]
    pub pid: Vec<u32>,
    /// Store of the server that is started (see carrack apiserver --help)
    #[arg(long, value_name = "STORE", default_value = "embedded", conflicts_with = "kubeconfig")]
    pub store: String,
    /// Port of the server that is started
    #[arg(long, value_name = "PORT", default_value_t = 26444)]
    pub port: u16,
    /// How many clients make requests at a time
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = count)]
    pub clients: usize,
    /// How many pods there are
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = count)]
    pub pods: usize,
    /// How many updates and patches are made, and four times as many gets
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = count)]
    pub requests: usize,
    /// How many times all pods are listed, and five times as many by label
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = count)]
    pub lists: usize,
    /// How many watchers hear of each change; with 0 none is measured
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub watchers: usize,
    /// Also draw the latencies, or with scheduler the cost of a decision over the number of nodes, to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// `carrack bench scheduler`
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of scheduler")]
pub struct SchedulerArgs {
    /// How many nodes there are
    #[arg(long, value_name = "COUNT", default_value_t = 5000, value_parser = count)]
    pub nodes: usize,
    /// Which pods come (repeatable); all kinds without it
    #[arg(long, value_enum, value_name = "WORKLOAD")]
    pub workload: Vec<Workload>,
    /// Measure the decisions alone, without an API server
    #[arg(long)]
    pub core_only: bool,
    /// Run the scheduler in a process of its own, over HTTPS, and tell its memory
    #[arg(long, conflicts_with = "core_only")]
    pub apart: bool,
    /// Have the nodes renew their Leases and run their pods; without it they are objects only
    #[arg(long, conflicts_with = "core_only")]
    pub kubelets: bool,
    /// Numbers of nodes for the cost of a decision
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = count, default_value = "500,1000,2000,5000,10000,20000")]
    pub over: Vec<usize>,
    /// Port of the API server that is started, for instances too
    #[arg(long, value_name = "PORT", default_value_t = 26445)]
    pub scheduler_port: u16,
    /// Give up when nothing has gone on for so many seconds: no node made, no pod bound
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub give_up_after: u64,
}

/// Which pods come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// CPU and memory
    Plain,
    /// An extended resource
    Extended,
    /// Required affinity between pods
    Affinity,
    /// Topology spreading over zones
    Spread,
    /// Every pod takes another one's place
    Preemption,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Extended, Self::Affinity, Self::Spread, Self::Preemption];
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Extended => "extended",
            Self::Affinity => "affinity",
            Self::Spread => "spread",
            Self::Preemption => "preemption",
        }
    }
    /// How many pods come to 5,000 nodes.
    #[must_use]
    pub fn pods(self) -> usize {
        if self == Self::Plain { 10_000 } else { 5_000 }
    }
    /// How many a second are to be bound on 5,000 nodes.
    #[must_use]
    pub fn bound_per_s(self) -> f64 {
        match self {
            Self::Plain | Self::Extended => 5_000.0,
            Self::Affinity | Self::Spread => 1_000.0,
            Self::Preemption => 2_500.0,
        }
    }
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// All of these but api, scheduler and recovery
    All,
    /// Pods that get a node
    Scheduler,
    /// Requests to an API server, and watches
    Api,
    /// From the start of carrack up until /readyz says yes
    Up,
    /// From the creation of a virtual machine until its QEMU process runs
    Vm,
    /// Pods from creation until they run, one after another and 90 at once, what they cost the process, and what a node's
    /// agent in a process of its own makes of them: how soon its node is right, its memory, its idle cost
    Pods,
    /// Volumes: idle cost of 440, a config map's way to its file, a hundred claims, a restart among mounts
    Volumes,
    /// Clones of a stopped virtual machine with a sparse disk of 1 GB
    Clones,
    /// Three nodes: from the power cut of one until its virtual machine runs on another
    Recovery,
    /// Resident memory of the idle control plane and node agent
    Memory,
    /// Durable writes of the embedded store
    Store,
    /// Deployments of 10 pods on hollow nodes: writes, CPU and memory of the control plane
    Controllers,
    /// Virtual machine instances on hollow nodes: from creation until they run, and what they cost the control plane
    Instances,
}
