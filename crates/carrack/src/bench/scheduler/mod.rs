//! `carrack bench scheduler`: how many pods a second get a node.
//!
//! The core alone; then through the real API server on the embedded store, every write durable, with nodes that are objects
//! only, as upstream's own harness has them, or with hollow kubelets; then the core's cost of one decision over the number
//! of nodes, which should not follow it.

mod api;
mod core;
mod each;
mod patience;
mod plot;
mod workloads;

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::cli::bench::{SchedulerArgs, Workload};
use crate::output::{self, Format};
use crate::progress::Progress;

/// How many pods are decided about, at the most, for the cost over the number of nodes.
const OVER_PODS: usize = 10_000;

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    workload: Cow<'static, str>,
    nodes: usize,
    pods: usize,
    core_per_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_per_s: Option<f64>,
    /// Of the whole process: API server, store, what drives them, and the scheduler unless it is apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resident_mb: Option<f64>,
    /// Of the scheduler's own process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheduler_mb: Option<f64>,
    bound_per_s: f64,
}

/// The cost of a decision with so many nodes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cost {
    workload: Cow<'static, str>,
    nodes: usize,
    us_per_pod: f64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    lines: Vec<Line>,
    costs: Vec<Cost>,
}

/// Measures and prints. Of several workloads each has a process of its own: what one leaves with the allocator would count as
/// the next one's memory.
///
/// # Errors
/// A pod found no node, the API server failed, or a signal ended it.
pub async fn run(
    args: &SchedulerArgs,
    plot: Option<&Path>,
    format: Option<Format>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let chosen = if args.workload.is_empty() { &Workload::ALL[..] } else { &args.workload };
    let report = match chosen {
        [workload] => measure(args, *workload, stop).await?,
        _ => {
            let mut report = Report::default();
            for workload in chosen {
                let Report { lines, costs } = each::measure(args, *workload, stop).await?;
                report.lines.extend(lines);
                report.costs.extend(costs);
            }
            report
        }
    };
    if let Some(path) = plot {
        std::fs::write(path, plot::svg(&report.costs)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::print(format, &report, || text(&report))
}

/// Measures one workload in this process.
async fn measure(args: &SchedulerArgs, workload: Workload, stop: &CancellationToken) -> anyhow::Result<Report> {
    let mut progress = Progress::new();
    let mut report = Report::default();
    // A pod for each node that has somebody to go.
    let pods = match workload {
        Workload::Preemption => workload.pods().min(args.nodes),
        _ => workload.pods() * args.nodes / 5000,
    };
    let pods = pods.max(1);
    // Through the API server first: what the core leaves with the allocator is no memory of the control plane's.
    let mut bound = None;
    if !args.core_only {
        progress.step(format!("{}: binding through an API server", workload.name()));
        let (nodes, port) = (args.nodes, args.scheduler_port);
        let setting = api::Setting { nodes, pods, port, apart: args.apart, kubelets: args.kubelets };
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let limit = Duration::from_secs(args.give_up_after);
        let patience = patience::Patience { limit, tell, stop: stop.clone() };
        // On all cores, as `carrack up` runs.
        let work = move || tokio::runtime::Runtime::new()?.block_on(api::bind(workload, setting, patience));
        let work = tokio::task::spawn_blocking(work);
        // It ends when the work does.
        while let Some(line) = told.recv().await {
            progress.note(&line);
        }
        let outcome = work.await.context("the benchmark panicked")?;
        bound = Some(outcome.with_context(|| format!("{} through an API server", workload.name()))?);
    }
    progress.step(format!("{}: deciding", workload.name()));
    let decided = core::decide(workload, args.nodes, pods)?;
    report.lines.push(Line {
        workload: workload.name().into(),
        nodes: args.nodes,
        pods,
        core_per_s: decided.pods as f64 / decided.took.as_secs_f64().max(1e-9),
        api_per_s: bound.as_ref().map(|bound| bound.per_s),
        resident_mb: bound.as_ref().map(|bound| bound.resident_mb),
        scheduler_mb: bound.and_then(|bound| bound.scheduler_mb),
        bound_per_s: workload.bound_per_s(),
    });
    for nodes in args.over.iter().copied() {
        // The core decides in this thread: signals are looked at in between.
        tokio::task::yield_now().await;
        ensure!(!stop.is_cancelled(), crate::roles::ENDED);
        progress.step(format!("{}: deciding with {nodes} nodes", workload.name()));
        // So many that each node has room for its share, or somebody to go.
        let most = if workload == Workload::Preemption { nodes } else { nodes * 4 };
        let decided = core::decide(workload, nodes, OVER_PODS.min(most))?;
        let us_per_pod = decided.took.as_secs_f64() * 1e6 / decided.pods.max(1) as f64;
        report.costs.push(Cost { workload: workload.name().into(), nodes, us_per_pod });
    }
    progress.finish();
    Ok(report)
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{:<12} {:>7} {:>7} {:>12} {:>12} {:>12} {:>10} {:>10}\n",
        "WORKLOAD", "NODES", "PODS", "CORE", "BOUND PODS", "GOAL", "MEMORY", "SCHEDULER"
    );
    for line in &report.lines {
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |r| format!("{r:.0}/s"));
        let memory = |mb: Option<f64>| mb.map_or("-".to_owned(), |mb| format!("{mb:.0} MB"));
        text.push_str(&format!(
            "{:<12} {:>7} {:>7} {:>12} {:>12} {:>12} {:>10} {:>10}\n",
            line.workload,
            line.nodes,
            line.pods,
            rate(Some(line.core_per_s)),
            rate(line.api_per_s),
            rate(Some(line.bound_per_s)),
            memory(line.resident_mb),
            memory(line.scheduler_mb)
        ));
    }
    if !report.costs.is_empty() {
        let most = report.costs.iter().map(|c| c.us_per_pod).fold(0.0, f64::max).max(1e-9);
        text.push_str(&format!("\n{:<12} {:>8} {:>13}\n", "WORKLOAD", "NODES", "COST OF A POD"));
        for cost in &report.costs {
            let bar = "#".repeat((cost.us_per_pod / most * 40.0).round() as usize);
            text.push_str(&format!("{:<12} {:>8} {:>10.1} us {bar}\n", cost.workload, cost.nodes, cost.us_per_pod));
        }
    }
    text
}
