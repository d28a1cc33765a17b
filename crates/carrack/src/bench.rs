//! `carrack bench`: the measures that the README promises, taken on this machine.
//!
//! They are taken from outside, on the program as a user runs it: a process is started, its socket asked, its memory
//! read from /proc. Only the store is measured in the process.

mod agent;
mod apart;
mod api;
mod clones;
mod cluster;
mod controllers;
mod figure;
mod instances;
mod machine;
mod on_a_node;
mod plane;
mod pods;
mod recovery;
mod scheduler;
mod scratch;
mod store;
mod used;
mod volumes;

use anyhow::bail;

use self::figure::Figure;
use crate::cli::bench::{BenchArgs, Measure};
use crate::process::require_root;
use crate::progress::Progress;
use crate::{output, roles};

/// What is measured, and what was.
struct Bench<'a> {
    args: &'a BenchArgs,
    progress: Progress,
    figures: Vec<Figure>,
}

/// Measures and prints. What a failure or a signal ends leaves nothing behind, and what was measured before is printed.
///
/// # Errors
/// Something could not be measured, or is beyond its bound.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    refuse_company(&args.measures)?;
    if args.measures.iter().any(|measure| needs_root(*measure)) {
        require_root()?;
    }
    if args.measures.contains(&Measure::Api) {
        return api::run(&args.api, args.output).await;
    }
    // Of several measures the control plane is in this process.
    let stop = roles::run_until_signal()?;
    if args.measures.contains(&Measure::Scheduler) {
        return scheduler::run(&args.scheduler, args.api.plot.as_deref(), args.output, &stop).await;
    }
    let mut bench = Bench { args: &args, progress: Progress::new(), figures: Vec::new() };
    let outcome = tokio::select! {
        outcome = bench.measure() => outcome,
        () = stop.cancelled() => Err(anyhow::anyhow!(roles::ENDED)),
    };
    let Bench { mut progress, figures, .. } = bench;
    progress.finish();
    if outcome.is_ok() || !figures.is_empty() {
        output::print(args.output, &figures, || figure::table(&figures))?;
    }
    outcome?;
    figure::verdict(&figures)
}

/// Refuses to leave out without a word what was asked for beside a measure whose report has another form.
fn refuse_company(measures: &[Measure]) -> anyhow::Result<()> {
    for (measure, name) in [(Measure::Api, "api"), (Measure::Scheduler, "scheduler")] {
        if measures.contains(&measure) && measures.iter().any(|other| *other != measure) {
            bail!("{name} has a report of its own: take it by itself, and the other measures in a run of theirs");
        }
    }
    Ok(())
}

/// Whether a measure starts whole nodes: known before the first of several takes its minutes.
fn needs_root(measure: Measure) -> bool {
    match measure {
        Measure::Scheduler | Measure::Api | Measure::Store | Measure::Controllers | Measure::Instances => false,
        Measure::All
        | Measure::Up
        | Measure::Vm
        | Measure::Pods
        | Measure::Volumes
        | Measure::Clones
        | Measure::Recovery
        | Measure::Memory => true,
    }
}

impl Bench<'_> {
    fn wanted(&self, measure: Measure) -> bool {
        self.args.measures.iter().any(|given| *given == measure || *given == Measure::All)
    }

    async fn measure(&mut self) -> anyhow::Result<()> {
        if self.wanted(Measure::Store) {
            self.progress.step("writing to a store");
            let writes = store::writes_per_s().await?;
            self.figures.push(Figure::rate("store: durable writes by 64 writers", "1/s", writes));
        }
        if self.wanted(Measure::Controllers) {
            self.progress.step(format!("rolling out {} Deployments", self.args.deployments));
            let outcome = controllers::run(self.args.deployments).await?;
            self.figures.extend(of_controllers(&outcome, self.args.deployments));
        }
        if self.wanted(Measure::Instances) {
            self.progress.step(format!("running {} instances", self.args.instances));
            let apart = Some(self.args.scheduler.scheduler_port);
            self.figures.extend(of_instances(&instances::run(self.args.instances, self.args.rate, apart).await?));
        }
        if self.args.measures.contains(&Measure::Recovery) {
            self.recovery().await?;
        }
        on_a_node::measure(self).await
    }

    async fn recovery(&mut self) -> anyhow::Result<()> {
        let dir = cluster::Dir::new(&self.args.images_dir)?;
        self.progress.step("starting a cluster of three nodes");
        let cluster = dir.start(&["--nodes", "3"]).await?;
        let outcome = recovery::run(&dir, &cluster, self.args.repeat, |text| self.progress.step(text)).await;
        cluster.stop().await?;
        self.progress.step("removing the cluster");
        dir.remove()?;
        let mut sorted = outcome?;
        self.figures.push(Figure::time("power cut until the VM runs elsewhere", Some(20_000.0), sorted.clone()));
        sorted.sort_by(f64::total_cmp);
        self.figures.push(Figure::time("  P95", None, vec![instances::percentile(&sorted, 95)]));
        Ok(())
    }
}

fn of_controllers(outcome: &controllers::Outcome, deployments: usize) -> Vec<Figure> {
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
            results.push(Figure::of(name, unit, None, vec![value]));
        }
    }
    let life = |of: fn(&controllers::Stage) -> f64| vec![outcome.of_a_life(of)];
    // A program that was not optimized says nothing about what one costs that was.
    let optimized = |bound: f64| (!cfg!(debug_assertions)).then_some(bound);
    let (most, peak_mb) = controllers::PEAK;
    results.extend([
        Figure::of(
            "a pod's whole life: by controllers",
            "writes",
            Some(controllers::UPSTREAM_WRITES),
            life(|stage| stage.controller_writes),
        ),
        Figure::of(
            "a pod's whole life: by all",
            "writes",
            Some(controllers::UPSTREAM_ALL_WRITES),
            life(|stage| stage.all_writes),
        ),
        Figure::of("  that change nothing", "writes", Some(0.0), life(|stage| stage.idle_writes)),
        Figure::of("  CPU", "ms", optimized(controllers::CPU_MS), life(|stage| stage.cpu_ms)),
        Figure::of(
            "peak of memory, whole control plane",
            "MB",
            (deployments <= most).then_some(peak_mb),
            vec![outcome.peak_mb],
        ),
        Figure::of("leader hand-over", "s", Some(3.0), outcome.handed_over_s.clone()),
    ]);
    results
}

fn of_instances(figures: &instances::Figures) -> Vec<Figure> {
    let percentile = |percent| vec![instances::percentile(&figures.running_ms, percent)];
    let mut results = vec![
        Figure::time("instance created until Running, P50", None, percentile(50)),
        Figure::time("  P95", Some(1000.0), percentile(95)),
        Figure::time("  P99", None, percentile(99)),
        Figure::of("  writes by controllers, each", "writes", None, vec![figures.writes[0]]),
        Figure::of("  writes by scheduler and node, each", "writes", None, vec![figures.writes[1]]),
        Figure::of("  CPU", "s", None, vec![figures.cpu_s]),
        Figure::of("all deleted until all are gone", "s", None, vec![figures.gone_s]),
        Figure::of("  writes by controllers, each gone", "writes", None, vec![figures.last_writes[0]]),
        Figure::of("  writes by node, each gone", "writes", None, vec![figures.last_writes[1]]),
        Figure::of("peak of memory, whole control plane", "MB", Some(200.0), vec![figures.peak_mb]),
    ];
    results.extend(figures.nodes_mb.map(|mb| Figure::of("  memory of the hollow nodes", "MB", None, vec![mb])));
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_measure_is_left_out_without_a_word() {
        use Measure::{All, Api, Recovery, Scheduler, Up, Vm};
        let check = |measures: &[Measure], good: bool| {
            assert_eq!(refuse_company(measures).is_ok(), good, "{measures:?}");
        };
        check(&[Api], true);
        check(&[Scheduler, Scheduler], true);
        check(&[All, Recovery], true);
        check(&[Up, Vm], true);
        check(&[Up, Api], false);
        check(&[Scheduler, All], false);
        check(&[Api, Scheduler], false);
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
