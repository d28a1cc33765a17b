//! `carrack sim`

use carrack_sim::{Options, PARTS, SWITCHES};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

/// `carrack sim`
#[derive(Debug, Args)]
#[command(after_help = "\
A run is a whole cluster in one thread: the real decision cores and the real API server on a
simulated network, runtime and clock. Its seed decides everything, so that a run can be played
again exactly. First anything may fail, then nothing does and the cluster must settle; the
invariants are checked after every step. The exit status is 1 when one broke.

A run that fails is played again with less, as long as the same invariant breaks, for a minute at
the most: without kinds of faults and those who take part, without parts of the work, and with
trouble that ends sooner. What is printed is the smallest run, and the command that plays it.

Examples:
  # A hundred clusters
  carrack sim --runs 100

  # Ten thousand slices of clusters, each in trouble for seconds
  carrack sim --small --runs 10000

  # One of them again, line by line
  carrack sim --seed 42 --trace

  # The same with less going wrong, and one part of the work alone
  carrack sim --seed 42 --without crashes,lost-replies --only pods --heal-after 12 --trace

  # Put a bug in, and see it found
  carrack sim --list-plants
  carrack sim --runs 50 --plant stale-reads

  # What happened before it broke, as a picture
  carrack sim --runs 50 --plant stale-reads --svg broken.svg")]
pub struct SimArgs {
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// How many seeds, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: u64,
    /// Begin no run after so many seconds, whatever is left of them
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub end_after: Option<u64>,
    /// A bug to plant
    #[arg(long, value_name = "NAME")]
    pub plant: Option<String>,
    /// Print the bugs that can be planted
    #[arg(long)]
    pub list_plants: bool,
    /// Print the invariants, each with the bugs that trip it
    #[arg(long)]
    pub list_invariants: bool,
    /// Draw the run that fails into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<std::path::PathBuf>,
    /// Print every line of the trace; a run that fails is not made smaller then
    #[arg(long)]
    pub trace: bool,
    /// Do not make a run that fails smaller
    #[arg(long)]
    pub no_shrink: bool,
    /// Leave these out of what the seed chooses: kinds of faults, and who takes part
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = switches())]
    pub without: Vec<String>,
    /// Do these parts of the work alone, of those that the seed chooses
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = parts())]
    pub only: Vec<String>,
    /// End trouble after so much simulated time; people do the same as without it
    #[arg(long, value_name = "SECONDS")]
    pub heal_after: Option<u64>,
    /// For how long anything may fail, in simulated time
    #[arg(long, value_name = "SECONDS")]
    pub safety: Option<u64>,
    /// How long the cluster then has to settle, in simulated time
    #[arg(long, value_name = "SECONDS")]
    pub liveness: Option<u64>,
    /// Deployments and the other workloads on hollow nodes, instead of machines and pods on whole ones
    #[arg(long)]
    pub workloads: bool,
    /// Pods that share GPUs on hollow nodes, through the GPU extender
    #[arg(long)]
    pub gpus: bool,
    /// Machines and pods on whole nodes, and Deployments and the other workloads beside them on hollow
    /// ones, in one cluster
    #[arg(long)]
    pub whole: bool,
    /// Snapshots and clones of machines, with storage that only pretends
    #[arg(long, conflicts_with_all = ["workloads", "gpus", "whole"])]
    pub clones: bool,
    /// The same with machines that run while their disks are copied, on a node that only pretends
    #[arg(long, conflicts_with_all = ["workloads", "gpus", "whole", "no_machines"])]
    pub copies: bool,
    /// Whatever the seed chooses of all these, and about half of each
    #[arg(long, conflicts_with_all = ["workloads", "gpus", "whole", "clones", "copies", "no_machines"])]
    pub swarm: bool,
    /// Small runs: a slice of all these that the seed chooses, in trouble for seconds, from a cluster that is there already
    #[arg(long, conflicts_with_all = ["workloads", "gpus", "whole", "clones", "copies", "swarm", "no_machines", "safety"])]
    pub small: bool,
    /// Leave virtual machines out
    #[arg(long)]
    pub no_machines: bool,
    /// Only delays: nothing fails
    #[arg(long)]
    pub no_faults: bool,
    /// Play each run once more without trouble, and hold what people have in the end against that
    #[arg(long)]
    pub compare: bool,
    /// Also print, on standard error, what the roles log: a level, or a list of module=level
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// What can be left out, by name.
fn switches() -> PossibleValuesParser {
    PossibleValuesParser::new(SWITCHES.iter().map(|switch| PossibleValue::new(switch.name).help(switch.sentence)))
}

/// The parts of the work, by name.
fn parts() -> PossibleValuesParser {
    let none = PossibleValue::new(Options::NO_PART).help("no part");
    let parts = PARTS.iter().map(|part| PossibleValue::new(part.name).help(part.sentence));
    PossibleValuesParser::new(parts.chain([none]))
}
