//! `carrack bench`: the measures that the README promises, taken on this machine.
//!
//! They are taken from outside, on the program as a user runs it: a process is started, its socket asked, its memory
//! read from /proc. Only the store is measured in the process.

mod api;
mod clones;
mod cluster;
mod controllers;
mod instances;
mod machine;
mod plane;
mod pods;
mod recovery;
mod scheduler;
mod store;
mod volumes;

use anyhow::Context as _;
use serde::Serialize;

use crate::cli::BuiltIn;
use crate::cli::bench::{BenchArgs, Measure};
use crate::output;
use crate::progress::Progress;

/// How many pods are started at once.
const MANY: usize = 90;

/// One measured quantity.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Result {
    name: &'static str,
    unit: &'static str,
    /// The middle of all samples.
    median: f64,
    /// The largest, or for rates the smallest.
    worst: f64,
    /// What it must not be beyond; none where nothing was promised.
    bound: Option<f64>,
    samples: Vec<f64>,
}

/// Measures and prints.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    if args.measures.contains(&Measure::Api) {
        return api::run(&args.api, args.output).await;
    }
    if args.measures.contains(&Measure::Scheduler) {
        return scheduler::run(&args.scheduler, args.api.plot.as_deref(), args.output).await;
    }
    let wanted = |measure: Measure| args.measures.iter().any(|given| *given == measure || *given == Measure::All);
    let mut progress = Progress::new();
    let mut results = Vec::new();
    if wanted(Measure::Store) {
        progress.step("writing to a store");
        results.push(Result::rate("store: durable writes by 64 writers", "1/s", store::writes_per_s().await?));
    }
    if wanted(Measure::Controllers) {
        progress.step(format!("rolling out {} Deployments", args.deployments));
        let outcome = controllers::run(args.deployments).await?;
        results.extend(of_controllers(&outcome, args.deployments));
    }
    if wanted(Measure::Instances) {
        progress.step(format!("running {} instances", args.instances));
        results.extend(of_instances(&instances::run(args.instances, args.rate).await?));
    }
    if args.measures.contains(&Measure::Recovery) {
        let dir = cluster::Dir::new(&args.images_dir)?;
        let took = recover(&dir, args.repeat.max(1), &mut progress).await;
        progress.step("removing the cluster");
        dir.remove()?;
        let mut sorted = took?;
        results.push(Result::time("power cut until the VM runs elsewhere", Some(20_000.0), sorted.clone()));
        sorted.sort_by(f64::total_cmp);
        results.push(Result::time("  P95", None, vec![instances::percentile(&sorted, 95)]));
    }
    const ON_A_NODE: [Measure; 5] = [Measure::Vm, Measure::Memory, Measure::Pods, Measure::Volumes, Measure::Clones];
    let on_a_node = ON_A_NODE.into_iter().any(wanted);
    if on_a_node || wanted(Measure::Up) {
        let dir = cluster::Dir::new(&args.images_dir)?;
        let mut samples = Vec::new();
        let repeat = if wanted(Measure::Up) { args.repeat.max(1) } else { 1 };
        let mut running: Option<cluster::Cluster> = None;
        for round in 1..=repeat {
            if let Some(cluster) = running.take() {
                cluster.stop().await?;
            }
            progress.step(format!("starting a cluster ({round} of {repeat})"));
            let cluster = dir.start(&[]).await?;
            samples.push(cluster.ready_ms);
            running = Some(cluster);
        }
        if wanted(Measure::Up) {
            results.push(Result::time("carrack up until /readyz", Some(1000.0), samples));
        }
        let mut cluster = running.context("no cluster was started")?;
        if on_a_node {
            progress.step("waiting for the node");
            cluster.wait_node().await?;
        }
        if wanted(Measure::Memory) {
            progress.step(format!("waiting {} s without work", args.idle));
            let samples = cluster.idle_memory_mb(args.idle).await?;
            results.push(Result::of("resident memory, idle", "MB", Some(120.0), samples));
        }
        if wanted(Measure::Pods) {
            dir.build(BuiltIn::Busybox)?;
            progress.step("starting pods one after another");
            let each = pods::one_after_another(&cluster, args.repeat.max(1) * 4).await?;
            let idle = cluster.memory_mb()?;
            progress.step(format!("starting {MANY} pods at once"));
            let all = pods::at_once_ms(&cluster, MANY).await?;
            progress.step(format!("waiting {} s without work", args.idle));
            let cpu = cluster.idle_cpu_percent(args.idle).await?;
            let with = cluster.memory_mb()?;
            results.push(Result::time("pod created until Running", Some(120.0), each.running_ms));
            results.push(Result::time("of that, outside the runtime", None, each.without_runtime_ms));
            results.push(Result::time("90 pods at once until all run", Some(8000.0), vec![all]));
            results.push(Result::of("memory for 90 pods, all roles", "MB", None, vec![with - idle]));
            results.push(Result::of("CPU with 90 idle pods, all roles", "%", None, vec![cpu]));
            progress.step("removing the pods");
            pods::remove_many(&cluster, MANY).await?;
        }
        if wanted(Measure::Volumes) {
            dir.build(BuiltIn::Busybox)?;
            let wishes = volumes::Wishes { idle_s: args.idle, restarts: args.repeat.max(1) };
            let (figures, after) = volumes::run(&dir, cluster, &wishes, |text| progress.step(text)).await?;
            cluster = after;
            results.extend(of_volumes(figures));
        }
        if wanted(Measure::Vm) {
            let mut lives = Vec::new();
            dir.build(BuiltIn::Demo)?;
            for round in 1..=args.repeat.max(1) {
                progress.step(format!("starting a virtual machine ({round} of {})", args.repeat.max(1)));
                let life = machine::life(&cluster, round).await?;
                if args.writes {
                    life.told.iter().for_each(|write| progress.step(write.clone()));
                }
                lives.push(life);
            }
            let each = |of: fn(&machine::Life) -> f64| lives.iter().map(of).collect::<Vec<f64>>();
            results.push(Result::time("VM created until QEMU runs", Some(1000.0), each(|life| life.running_ms)));
            let all = each(|life| life.writes.iter().sum());
            results.push(Result::of("VM: writes of a whole life", "writes", Some(12.0), all));
            results.push(Result::of("  of the machine", "writes", None, each(|life| life.writes[0])));
            results.push(Result::of("  of its instance", "writes", None, each(|life| life.writes[1])));
            results.push(Result::of("  of its pod", "writes", None, each(|life| life.writes[2])));
            results.push(Result::of("  of its revision", "writes", None, each(|life| life.writes[3])));
            results.push(Result::of("VM: updates until Running", "writes", Some(3.0), each(|life| life.updates)));
            results.push(Result::of("VM: PSS beside QEMU", "MB", Some(5.24), each(|life| life.beside_mb)));
        }
        if wanted(Measure::Clones) {
            dir.build(BuiltIn::Busybox)?;
            progress.step("writing the disk of a machine");
            clones::prepare(&cluster).await?;
            let mut lives = Vec::new();
            for round in 1..=args.repeat.max(1) {
                progress.step(format!("cloning it ({round} of {})", args.repeat.max(1)));
                lives.push(clones::life(&cluster, round).await?);
            }
            let made = lives.iter().map(|life| life.made_ms).collect();
            results.push(Result::time("clone of a stopped VM, 1 GB sparse", Some(2000.0), made));
            let writes = lives.iter().map(|life| life.writes).collect();
            results.push(Result::of("clone: writes of its whole life", "writes", Some(clones::WRITES), writes));
        }
        progress.step("removing the cluster");
        cluster.stop().await?;
        dir.remove()?;
    }
    progress.finish();
    output::print(args.output, &results, || table(&results))?;
    verdict(&results)
}

/// Whether everything kept its bound.
///
/// # Errors
/// What did not.
fn verdict(results: &[Result]) -> anyhow::Result<()> {
    let missed: Vec<String> = results
        .iter()
        .filter(|result| result.missed())
        .map(|result| {
            let bound = result.bound.unwrap_or_default();
            format!("{} ({}, at most {bound})", result.name.trim(), amount(result.worst, result.unit))
        })
        .collect();
    anyhow::ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

async fn recover(dir: &cluster::Dir, times: u32, progress: &mut Progress) -> anyhow::Result<Vec<f64>> {
    progress.step("starting a cluster of three nodes");
    let cluster = dir.start(&["--nodes", "3"]).await?;
    let outcome = recovery::run(dir, &cluster, times, |text| progress.step(text)).await;
    cluster.stop().await?;
    outcome
}

fn of_controllers(outcome: &controllers::Outcome, deployments: usize) -> Vec<Result> {
    let mut results = Vec::new();
    for stage in &outcome.stages {
        let names = match stage.name {
            "rolled out" => [
                "rolled out",
                "  by controllers, each pod",
                "  events, each pod",
                "  all writes, each pod",
                "  CPU",
                "  writes that change nothing, each pod",
                "  conflicts, each pod",
            ],
            "updated" => [
                "updated",
                "  by controllers, each new pod",
                "  events, each new pod",
                "  all writes, each new pod",
                "  CPU, update",
                "  writes that change nothing, each new pod",
                "  conflicts, each new pod",
            ],
            _ => [
                "deleted",
                "  by controllers, each pod gone",
                "  events, each pod gone",
                "  all writes, each pod gone",
                "  CPU, deletion",
                "  writes that change nothing, each pod gone",
                "  conflicts, each pod gone",
            ],
        };
        let values = [
            stage.seconds,
            stage.controller_writes,
            stage.controller_events,
            stage.all_writes,
            stage.cpu_s,
            stage.idle_writes,
            stage.conflicts,
        ];
        let units = ["s", "writes", "events", "writes", "s", "writes", "writes"];
        for ((name, unit), value) in names.into_iter().zip(units).zip(values) {
            results.push(Result::of(name, unit, None, vec![value]));
        }
    }
    let life = |of: fn(&controllers::Stage) -> f64| vec![outcome.of_a_life(of)];
    // A program that was not optimized says nothing about what one costs that was.
    let optimized = |bound: f64| (!cfg!(debug_assertions)).then_some(bound);
    let (most, peak_mb) = controllers::PEAK;
    results.extend([
        Result::of(
            "a pod's whole life: by controllers",
            "writes",
            Some(controllers::UPSTREAM_WRITES),
            life(|stage| stage.controller_writes),
        ),
        Result::of(
            "a pod's whole life: by all",
            "writes",
            Some(controllers::UPSTREAM_ALL_WRITES),
            life(|stage| stage.all_writes),
        ),
        Result::of("  that change nothing", "writes", Some(0.0), life(|stage| stage.idle_writes)),
        Result::of("  CPU", "ms", optimized(controllers::CPU_MS), life(|stage| stage.cpu_ms)),
        Result::of(
            "peak of memory, whole control plane",
            "MB",
            (deployments <= most).then_some(peak_mb),
            vec![outcome.peak_mb],
        ),
        Result::of("leader hand-over", "s", Some(3.0), outcome.handed_over_s.clone()),
    ]);
    results
}

fn of_instances(figures: &instances::Figures) -> [Result; 10] {
    let percentile = |percent| vec![instances::percentile(&figures.running_ms, percent)];
    [
        Result::time("instance created until Running, P50", None, percentile(50)),
        Result::time("  P95", Some(1000.0), percentile(95)),
        Result::time("  P99", None, percentile(99)),
        Result::of("  writes by controllers, each", "writes", None, vec![figures.writes[0]]),
        Result::of("  writes by scheduler and node, each", "writes", None, vec![figures.writes[1]]),
        Result::of("  CPU", "s", None, vec![figures.cpu_s]),
        Result::of("all deleted until all are gone", "s", None, vec![figures.gone_s]),
        Result::of("  writes by controllers, each gone", "writes", None, vec![figures.last_writes[0]]),
        Result::of("  writes by node, each gone", "writes", None, vec![figures.last_writes[1]]),
        Result::of("peak of memory, nodes included", "MB", Some(200.0), vec![figures.peak_mb]),
    ]
}

fn of_volumes(figures: volumes::Figures) -> [Result; 7] {
    [
        Result::of("CPU with 110 pods, all roles", "%", None, vec![figures.bare_percent]),
        Result::of("  with four volumes each", "%", None, vec![figures.full_percent]),
        Result::time("config map changed until in its file", None, figures.changed_ms),
        Result::time("100 pods with claims until all run", None, vec![figures.running_ms]),
        Result::time("  deleted until all is detached", None, vec![figures.detached_ms]),
        Result::time("restart among 440 mounts until /readyz", None, figures.ready_ms),
        Result::time("  until the kubelet knows them all", Some(500.0), figures.restored_ms),
    ]
}

impl Result {
    fn time(name: &'static str, bound: Option<f64>, samples: Vec<f64>) -> Self {
        Self::of(name, "ms", bound, samples)
    }

    fn of(name: &'static str, unit: &'static str, bound: Option<f64>, samples: Vec<f64>) -> Self {
        let worst = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { name, unit, median: median(&samples), worst, bound, samples }
    }

    /// Whether it is beyond its bound. What was not measured is no proof.
    fn missed(&self) -> bool {
        let known = !self.samples.is_empty() && !self.samples.iter().any(|sample| sample.is_nan());
        self.bound.is_some_and(|bound| !known || self.worst > bound)
    }

    fn rate(name: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        let worst = samples.iter().copied().fold(f64::INFINITY, f64::min);
        Self { name, unit, median: median(&samples), worst, bound: None, samples }
    }
}

/// Resident memory of a process in MB (10^6 bytes).
///
/// # Errors
/// It is gone.
fn resident_mb(pid: u32) -> anyhow::Result<f64> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
        .context("the kernel tells no resident memory")?;
    Ok(kib * 1024.0 / 1e6)
}

/// A number with its unit; small ones with their parts.
fn amount(value: f64, unit: &str) -> String {
    if value < 100.0 { format!("{value:.2} {unit}") } else { format!("{value:.0} {unit}") }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn table(results: &[Result]) -> String {
    let mut text = format!("{:<38} {:>12} {:>12} {:>12}\n", "MEASURE", "MIDDLE", "WORST", "BOUND");
    for result in results {
        let bound = match result.bound {
            None => "-".to_owned(),
            Some(bound) => format!("{bound} {}", if result.missed() { "MISSED" } else { "ok" }),
        };
        text.push_str(&format!(
            "{:<38} {:>12} {:>12} {:>12}\n",
            result.name,
            amount(result.median, result.unit),
            amount(result.worst, result.unit),
            bound
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bound_shows() {
        let results = [Result::time("a", Some(10.0), vec![1.0, 11.0, 2.0]), Result::rate("b", "1/s", vec![5.0, 3.0])];
        assert!((results[0].median - 2.0).abs() < f64::EPSILON);
        assert!((results[1].worst - 3.0).abs() < f64::EPSILON);
        let text = table(&results);
        assert!(text.contains("MISSED"), "{text}");
        assert!(text.lines().nth(2).is_some_and(|line| line.contains('-')), "{text}");
    }

    #[test]
    fn what_is_missed_is_named_and_ends_in_failure() {
        let of = |bound, samples| Result::of("  writes", "writes", Some(bound), samples);
        verdict(&[of(2.5, vec![2.5]), Result::of("free", "s", None, vec![9.0])]).expect("all is within its bounds");
        let missed = verdict(&[of(2.5, vec![2.5]), of(0.0, vec![0.0, 0.01])]).expect_err("one is beyond");
        assert_eq!(missed.to_string(), "missed: writes (0.01 writes, at most 0)");
        verdict(&[of(2.5, Vec::new())]).expect_err("nothing was measured");
        verdict(&[of(2.5, vec![f64::NAN])]).expect_err("nothing was measured");
    }

    #[test]
    fn a_life_in_this_measure_is_held_against_upstreams() {
        let stage = |name, writes: f64, idle| controllers::Stage {
            name,
            seconds: 1.0,
            controller_writes: writes,
            controller_events: 0.0,
            all_writes: writes + 1.0,
            cpu_s: 1.0,
            cpu_ms: 1.0,
            idle_writes: idle,
            conflicts: 0.0,
        };
        let check = |updated: f64, idle: f64, expected: &[&str]| {
            let stages =
                vec![stage("rolled out", 2.0, 0.0), stage("updated", updated, idle), stage("deleted", 1.0, 0.0)];
            let outcome = controllers::Outcome { stages, peak_mb: 1.0, handed_over_s: vec![2.0] };
            let results = of_controllers(&outcome, 1000);
            let missed: Vec<_> = results.iter().filter(|result| result.missed()).map(|result| result.name).collect();
            assert_eq!(missed, expected, "{updated} writes, {idle} idle");
        };
        check(9.0, 0.0, &[]);
        check(9.2, 0.0, &["a pod's whole life: by controllers"]);
        check(9.0, 0.002, &["  that change nothing"]);
    }
}
