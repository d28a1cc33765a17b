//! A workload in a process of its own: this program again, with the same arguments and one workload, whose report is read from its
//! standard output. What it tells on the way goes where this process tells it.

use std::process::Stdio;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::Report;
use crate::cli::bench::{SchedulerArgs, Workload};
use crate::roles::ENDED;

/// Measures one workload.
///
/// # Errors
/// The process cannot be started, has failed, or was ended as this one is.
pub async fn measure(args: &SchedulerArgs, workload: Workload, stop: &CancellationToken) -> anyhow::Result<Report> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let child = Command::new(program)
        .args(arguments(args, workload))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start a process for {}", workload.name()))?;
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let mut output = std::pin::pin!(child.wait_with_output());
    let output = tokio::select! {
        output = &mut output => output,
        () = stop.cancelled() => {
            // It removes what it has made, and ends.
            if let Some(pid) = pid {
                kill_process(pid, Signal::TERM).context("cannot end the process that measures")?;
            }
            output.await.context("cannot wait for the process that measures")?;
            bail!(ENDED)
        }
    };
    let output = output.context("cannot read what was measured")?;
    if !output.status.success() {
        // It has said why.
        bail!("{} could not be measured ({})", workload.name(), output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{}: no report came", workload.name()))
}

/// What the process is called with.
fn arguments(args: &SchedulerArgs, workload: Workload) -> Vec<String> {
    let SchedulerArgs { nodes, workload: _, core_only, apart, kubelets, over, scheduler_port, give_up_after } = args;
    let over: Vec<String> = over.iter().map(ToString::to_string).collect();
    let mut arguments: Vec<String> = ["bench", "scheduler", "--output", "json", "--workload", workload.name()]
        .into_iter()
        .map(str::to_owned)
        .collect();
    let values = [
        ("--nodes", nodes.to_string()),
        ("--over", over.join(",")),
        ("--scheduler-port", scheduler_port.to_string()),
        ("--give-up-after", give_up_after.to_string()),
    ];
    arguments.extend(values.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    let flags = [("--core-only", core_only), ("--apart", apart), ("--kubelets", kubelets)];
    arguments.extend(flags.into_iter().filter(|(_, given)| **given).map(|(name, _)| name.to_owned()));
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn the_process_is_asked_for_one_workload_and_else_for_the_same() {
        let check = |given: &[&str]| {
            let scheduler = |arguments: Vec<String>| {
                let all = std::iter::once("carrack".to_owned()).chain(arguments);
                match Cli::try_parse_from(all).expect("arguments").command {
                    Command::Bench(args) => args.scheduler,
                    other => panic!("{other:?}"),
                }
            };
            let given = ["bench", "scheduler"].iter().chain(given).map(|text| (*text).to_owned()).collect();
            let args = scheduler(given);
            let child = scheduler(arguments(&args, Workload::Spread));
            let expected = SchedulerArgs { workload: vec![Workload::Spread], ..args };
            assert_eq!(format!("{child:?}"), format!("{expected:?}"));
        };
        check(&[]);
        check(&["--core-only", "--nodes", "7", "--workload", "plain", "--workload", "spread"]);
        check(&["--apart", "--kubelets", "--over", "5,50", "--scheduler-port", "1", "--give-up-after", "2"]);
    }
}
