//! The arguments of `carrack bench`.

use clap::{Args, ValueEnum};

use super::ImagesDir;
use crate::output::Format;

/// `carrack bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Starts clusters of its own in a temporary directory, on ports 26443, 26250 and 26186 and the
address range 10.98.0.0/24, and removes them. Each start and each machine is measured several
times; the table shows the middle and the worst.

Examples:
  # Everything
  carrack bench all

  # How long a start takes, as data
  carrack bench up -o json")]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum, value_name = "MEASURE", required = true)]
    pub measures: Vec<Measure>,
    /// How often to measure a start and a machine
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub repeat: u32,
    /// Seconds without work before memory is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub idle: u64,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Where images are built
    #[command(flatten)]
    pub images_dir: ImagesDir,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// All of these
    All,
    /// From the start of carrack up until /readyz says yes
    Up,
    /// From the creation of a virtual machine until its QEMU process runs
    Vm,
    /// Resident memory of the idle control plane and node agent
    Memory,
    /// Durable writes of the embedded store
    Store,
}
