//! The arguments of `carrack explain`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ClientArgs;
use crate::output::Format;

/// `carrack explain`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # Why does a pod stay Pending?
  carrack explain pod web-0 -n prod")]
pub struct ExplainArgs {
    /// What to explain
    #[command(subcommand)]
    pub command: ExplainCommand,
}

/// What `carrack explain` explains.
#[derive(Debug, Subcommand)]
pub enum ExplainCommand {
    /// Why a pod has no node: what each node says, and what would have to change
    Pod(ExplainPodArgs),
}

/// `carrack explain pod`
#[derive(Debug, Args)]
#[command(after_help = "\
The scheduler's plugins are asked about the cluster as it is now. Extenders are not asked.

Examples:
  carrack explain pod web-0 -n prod
  carrack explain pod web-0 -o json")]
pub struct ExplainPodArgs {
    /// Name of the pod
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The scheduler's configuration, when it has one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// How to reach the cluster
    #[command(flatten)]
    pub client: ClientArgs,
}
