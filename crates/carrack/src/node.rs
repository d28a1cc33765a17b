//! `carrack node`: one of several nodes on this machine, its agent, and its power.
//!
//! ```text
//!   up ──setsid nsenter --net──► node agent: containerd ─► kubelet, virt-handler ──HTTPS──► API server of up
//!   node off ──nsenter --net──► node cut: all of the node's processes, mounts, links
//! ```

pub mod agent;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use carrack_noderuntime::{Layout, members, power};
use carrack_virt::handler::shell::watchdog;

use crate::cli::node::{NodeArgs, NodeCommand, OneNode, WatchdogTrial};
use crate::process::require_root;
use crate::{kubeconfig, logging, output, roles};

/// Does what was asked. Returns this program's exit status.
pub fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    let done = match args.command {
        NodeCommand::Off(node) => off(&node),
        NodeCommand::On(node) => {
            power::switch_on(&find(&node)?).with_context(|| format!("cannot switch {} on", node.name))
        }
        NodeCommand::Exec(args) => {
            let (program, arguments) = args.command.split_first().context("which command?")?;
            let node = find(&args.node)?;
            let status = inside(&node)?.arg(program).args(arguments).status().context("nsenter cannot be run")?;
            return Ok(ExitCode::from(passed_on(status)));
        }
        NodeCommand::Watchdog(trial) => try_watchdog(trial),
        NodeCommand::Agent(process) => agent::run(&process.dir),
        NodeCommand::Cut(process) => {
            logging::start("warn")?;
            power::cut(&Layout::new(process.dir)).context("something survives the power cut")
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The exit status of a program that ends as its command has; one that a signal has ended counts as shells count it.
fn passed_on(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Holds the machine's watchdog until a signal.
fn try_watchdog(trial: WatchdogTrial) -> anyhow::Result<()> {
    logging::start("error")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let (stop, timeout) = (roles::until_signal()?, Duration::from_secs(trial.timeout_s.into()));
        let say = |text: &str| output::say(format_args!("{text}"));
        watchdog::trial::run(trial.device, timeout, say, stop).await.map_err(anyhow::Error::msg)
    })
}

/// The node's directory, if the cluster has such a node. What is done with one only root can do.
fn find(node: &OneNode) -> anyhow::Result<Layout> {
    require_root()?;
    let cluster = node.data_dir.layout()?;
    let dir = cluster.data_dir().display();
    ensure!(kubeconfig::is_there(cluster.data_dir())?, "no cluster was started in {dir} yet (carrack up --nodes)");
    let all = members::found(&cluster).context("cannot look for nodes")?;
    let name_of = |layout: &Layout| layout.data_dir().file_name().map(|name| name.to_string_lossy().into_owned());
    let names: Vec<String> = all.iter().filter_map(name_of).collect();
    let found = all.into_iter().find(|layout| name_of(layout).as_ref() == Some(&node.name));
    found.with_context(|| {
        if names.is_empty() {
            format!("the cluster in {dir} has one node only (see carrack up --nodes)")
        } else {
            format!("there is no node {:?}; there are {}", node.name, names.join(", "))
        }
    })
}

/// A command that runs in the node's network namespace.
pub fn inside(node: &Layout) -> anyhow::Result<Command> {
    let netns = members::netns_of(node);
    if !members::has_namespace(node)? {
        bail!("the network namespace {} is not there: the cluster does not run", netns.display());
    }
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display())).arg("--");
    Ok(command)
}

fn off(node: &OneNode) -> anyhow::Result<()> {
    let layout = find(node)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let output = inside(&layout)?
        .arg(program)
        .args(["node", "cut", "--dir"])
        .arg(layout.data_dir())
        .stdin(Stdio::null())
        .output()
        .context("nsenter cannot be run")?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{}", String::from_utf8_lossy(&output.stderr).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_exit_status_is_passed_on() {
        // As `wait` tells it: the code in the second byte, a signal in the first.
        for (raw, expected) in [(0, 0), (1 << 8, 1), (3 << 8, 3), (255 << 8, 255), (9, 137), (15, 143)] {
            assert_eq!(passed_on(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
    }
}
