//! `carrack up`: a whole cluster in one process, in the foreground or in the background.
//!
//! ```text
//!   up --detach ──starts──► setsid carrack up --report ──lines "step …", then "ready …" or "runs …"──► shown while waiting
//!                                     │
//!                                     ▼
//!   up ───────────────────► cluster: certificates, store, API server, containerd, roles, images
//!                              └──► nodes: with --nodes, an agent's process for each node instead of one here
//! ```

mod cluster;
mod detach;
mod hold;
pub mod name;
mod nodes;
mod report;
mod tasks;
mod wishes;

use anyhow::{Context as _, bail};
use carrack_noderuntime::limits;

use crate::cli::up::UpArgs;
use crate::logging;
use crate::roles;
use report::Report;

pub(crate) use cluster::provide;
pub(crate) use hold::{Taken, take};
pub(crate) use tasks::keep;

/// Threads for asynchronous work. Few, since each costs memory and none computes for long.
const WORKERS: usize = 2;

/// Starts the cluster.
pub fn run(args: &UpArgs) -> anyhow::Result<()> {
    if args.detach {
        return detach::run(args);
    }
    logging::start(&args.log_level)?;
    limits::take_all_files();
    limits::come_last();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let outcome = runtime.block_on(async {
        let stop = roles::run_until_signal()?;
        cluster::run(args, Report::new(args.report), stop).await
    });
    // What still runs now is a blocking call that nobody waits for.
    runtime.shutdown_background();
    outcome
}

/// All problems of this machine in one message.
pub(crate) fn refuse(problems: &[carrack_noderuntime::Problem]) -> anyhow::Result<()> {
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
    bail!("this machine cannot run a node:\n{}", lines.join("\n"))
}
