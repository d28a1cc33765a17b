//! The arguments of `carrack node`: one of several nodes on this machine, and this machine as a node.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DataDir;

/// `carrack node`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # What happens to a virtual machine when its node dies?
  carrack up --detach --nodes 3
  carrack node off node-2
  kubectl get vm,vmi -w

  # Power is back
  carrack node on node-2")]
pub struct NodeArgs {
    /// What to do
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// What can be done with a node of a cluster with several on this machine.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Cut a node's power: everything that runs there ends at once, and nobody is told
    Off(OneNode),
    /// Give it power again
    On(OneNode),
    /// Run a command in a node's network namespace, and end with its exit status
    Exec(ExecArgs),
    /// Try this machine's watchdog: hold it as virt-handler --watchdog does while a guest runs, until it is ended; whoever
    /// stops the process (kill -STOP) sees whether the machine is reset
    Watchdog(WatchdogTrial),
    /// The node's agent, started by `carrack up`
    #[command(hide = true)]
    Agent(AgentProcess),
    /// The part of `off` that runs in the node's network namespace
    #[command(hide = true)]
    Cut(AgentProcess),
}

/// A trial of a watchdog.
#[derive(Debug, Args)]
pub struct WatchdogTrial {
    /// The device
    #[arg(value_name = "DEVICE", default_value = "/dev/watchdog")]
    pub device: PathBuf,
    /// After how many seconds without a petting it is to reset the machine
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    pub timeout_s: u32,
}

/// One node by its name.
#[derive(Debug, Args)]
pub struct OneNode {
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub name: String,
}

/// A command in a node's network namespace.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Which node
    #[command(flatten)]
    pub node: OneNode,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A process that works on one node's own directory.
#[derive(Debug, Args)]
pub struct AgentProcess {
    /// The node's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}
