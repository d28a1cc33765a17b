//! What is measured on one node with everything that `carrack up` starts.

use std::time::Duration;

use anyhow::Context as _;

use super::figure::Figure;
use super::{Bench, agent, clones, cluster, machine, pods, volumes};
use crate::cli::BuiltIn;
use crate::cli::bench::Measure;

/// How many pods are started at once.
const MANY: usize = 90;

/// A launcher gives back what only starting needed after ten to twenty quiet seconds.
const AT_REST: Duration = Duration::from_secs(25);

/// Starts a cluster, if one is needed, and measures what is wanted.
///
/// # Errors
/// Something could not be measured.
pub(super) async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    const WITH_NODE: [Measure; 5] = [Measure::Vm, Measure::Memory, Measure::Pods, Measure::Volumes, Measure::Clones];
    let with_node = WITH_NODE.into_iter().any(|measure| bench.wanted(measure));
    if !with_node && !bench.wanted(Measure::Up) {
        return Ok(());
    }
    let dir = cluster::Dir::new(&bench.args.images_dir)?;
    let mut cluster = start(bench, &dir).await?;
    if with_node {
        bench.progress.step("waiting for the node");
        cluster.wait_node().await?;
    }
    if bench.wanted(Measure::Memory) {
        bench.progress.step(format!("waiting {} s without work", bench.args.idle));
        let samples = cluster.idle_memory_mb(bench.args.idle).await?;
        bench.figures.push(Figure::of("resident memory, idle", "MB", Some(120.0), samples));
    }
    if bench.wanted(Measure::Pods) {
        cluster = measure_pods(bench, &dir, cluster).await?;
    }
    if bench.wanted(Measure::Volumes) {
        dir.build(BuiltIn::Busybox)?;
        let wishes = volumes::Wishes { idle_s: bench.args.idle, restarts: bench.args.repeat };
        let (figures, after) = volumes::run(&dir, cluster, &wishes, |text| bench.progress.step(text)).await?;
        cluster = after;
        bench.figures.extend(of_volumes(figures));
    }
    if bench.wanted(Measure::Vm) {
        measure_machines(bench, &dir, &cluster).await?;
    }
    if bench.wanted(Measure::Clones) {
        measure_clones(bench, &dir, &cluster).await?;
    }
    bench.progress.step("removing the cluster");
    cluster.stop().await?;
    dir.remove()
}

/// The last of several starts, if starts are measured.
async fn start(bench: &mut Bench<'_>, dir: &cluster::Dir) -> anyhow::Result<cluster::Cluster> {
    let repeat = if bench.wanted(Measure::Up) { bench.args.repeat } else { 1 };
    let mut samples = Vec::new();
    let mut running: Option<cluster::Cluster> = None;
    for round in 1..=repeat {
        if let Some(cluster) = running.take() {
            cluster.stop().await?;
        }
        bench.progress.step(format!("starting a cluster ({round} of {repeat})"));
        let cluster = dir.start(&[]).await?;
        samples.push(cluster.ready_ms);
        running = Some(cluster);
    }
    if bench.wanted(Measure::Up) {
        bench.figures.push(Figure::time("carrack up until /readyz", Some(1000.0), samples));
    }
    running.context("no cluster was started")
}

/// Returns another cluster in the same directory.
async fn measure_pods(
    bench: &mut Bench<'_>,
    dir: &cluster::Dir,
    cluster: cluster::Cluster,
) -> anyhow::Result<cluster::Cluster> {
    dir.build(BuiltIn::Busybox)?;
    bench.progress.step("starting pods one after another");
    let each = pods::one_after_another(&cluster, bench.args.repeat * 4).await?;
    bench.figures.push(Figure::time("pod created until Running", Some(120.0), each.running_ms).in_the_middle());
    let apart = each.without_runtime_ms;
    bench.figures.push(Figure::time("of that, outside the runtime", Some(10.0), apart).in_the_middle());
    let idle = cluster.memory_mb()?;
    bench.progress.step(format!("starting {MANY} pods at once"));
    let all = pods::at_once_ms(&cluster, MANY).await?;
    bench.figures.push(Figure::time("90 pods at once until all run", Some(8000.0), vec![all]));
    bench.progress.step(format!("waiting {} s without work", bench.args.idle));
    let cpu = cluster.idle_cpu_percent(bench.args.idle).await?;
    let with = cluster.memory_mb()?;
    bench.figures.push(Figure::of("memory for 90 pods, all roles", "MB", None, vec![with - idle]));
    bench.figures.push(Figure::of("CPU with 90 idle pods, all roles", "%", None, vec![cpu]));
    // With these pods, after all that is measured of the process with all roles: that one ends here.
    let wishes = agent::Wishes { starts: bench.args.repeat, idle_s: bench.args.idle, pods: MANY };
    let (figures, cluster) = agent::run(dir, cluster, &wishes, |text| bench.progress.step(text)).await?;
    bench.figures.extend(of_agent(figures));
    bench.progress.step("removing the pods");
    pods::remove_many(&cluster, MANY).await?;
    Ok(cluster)
}

async fn measure_machines(bench: &mut Bench<'_>, dir: &cluster::Dir, cluster: &cluster::Cluster) -> anyhow::Result<()> {
    let mut lives = Vec::new();
    dir.build(BuiltIn::Demo)?;
    let rounds = bench.args.repeat;
    for round in 1..=rounds {
        bench.progress.step(format!("starting a virtual machine ({round} of {rounds})"));
        // At rest one is like the other.
        let rest = if round == rounds { AT_REST } else { Duration::ZERO };
        let life = machine::life(cluster, round, rest).await?;
        if bench.args.writes {
            life.told.iter().for_each(|write| bench.progress.step(write.clone()));
        }
        lives.push(life);
    }
    let each = |of: fn(&machine::Life) -> f64| lives.iter().map(of).collect::<Vec<f64>>();
    // What KubeVirt counts is without its node's and its scheduler's part.
    let own = |life: &machine::Life| life.writes.iter().sum::<f64>() - life.by_its_node;
    let at_rest = lives.last().map(|life| life.beside_mb).into_iter().collect();
    bench.figures.extend([
        Figure::time("VM created until QEMU runs", Some(400.0), each(|life| life.running_ms)).in_the_middle(),
        Figure::of("VM: writes of a whole life", "writes", None, each(|life| life.writes.iter().sum())),
        Figure::of("  of the machine", "writes", None, each(|life| life.writes[0])),
        Figure::of("  of its instance", "writes", None, each(|life| life.writes[1])),
        Figure::of("  of its pod", "writes", None, each(|life| life.writes[2])),
        Figure::of("  of its revision", "writes", None, each(|life| life.writes[3])),
        // Those that KubeVirt's median of 23.7 counts. What the scheduler and the kubelet write of a pod is theirs.
        Figure::of("  by its user and KubeVirt's roles", "writes", Some(12.0), each(own)).in_the_middle(),
        Figure::of("VM: updates until Running", "writes", Some(3.0), each(|life| life.updates)),
        Figure::of("VM: PSS beside QEMU, at rest", "MB", Some(5.24), at_rest),
    ]);
    Ok(())
}

async fn measure_clones(bench: &mut Bench<'_>, dir: &cluster::Dir, cluster: &cluster::Cluster) -> anyhow::Result<()> {
    dir.build(BuiltIn::Busybox)?;
    bench.progress.step("writing the disk of a machine");
    clones::prepare(cluster).await?;
    let mut lives = Vec::new();
    let rounds = bench.args.repeat;
    for round in 1..=rounds {
        bench.progress.step(format!("cloning it ({round} of {rounds})"));
        lives.push(clones::life(cluster, round).await?);
    }
    let made = lives.iter().map(|life| life.made_ms).collect();
    bench.figures.push(Figure::time("clone of a stopped VM, 1 GB sparse", Some(2000.0), made));
    let writes = lives.iter().map(|life| life.writes).collect();
    bench.figures.push(Figure::of("clone: writes of its whole life", "writes", Some(clones::WRITES), writes));
    Ok(())
}

fn of_agent(figures: agent::Figures) -> [Figure; 7] {
    let agent::Figures { told_ms, alone, together } = figures;
    [
        Figure::time("agent started until its Node is right", Some(200.0), told_ms),
        // The bound is for the kubelet, as upstream's figure is, and for all that it has resident, shared or not.
        Figure::of("kubelet alone with 90 pods, RSS", "MB", Some(25.0), vec![alone.resident_mb]),
        Figure::of("  PSS", "MB", None, vec![alone.proportional_mb]),
        Figure::of("kubelet alone with 90 idle pods, CPU", "%", Some(1.0), vec![alone.cpu_percent]),
        Figure::of("  and virt-handler and storage, RSS", "MB", None, vec![together.resident_mb]),
        Figure::of("  and virt-handler and storage, PSS", "MB", None, vec![together.proportional_mb]),
        Figure::of("  and virt-handler and storage, CPU", "%", None, vec![together.cpu_percent]),
    ]
}

fn of_volumes(figures: volumes::Figures) -> [Figure; 7] {
    // The last one was promised; the others are ours, well above what was seen of a program that was optimized.
    let ours = |bound: f64| (!cfg!(debug_assertions)).then_some(bound);
    [
        Figure::of("CPU with 110 pods, all roles", "%", None, vec![figures.bare_percent]),
        Figure::of("  with four volumes each", "%", ours(1.2), vec![figures.full_percent]),
        Figure::time("config map changed until in its file", ours(1000.0), figures.changed_ms),
        Figure::time("100 pods with claims until all run", ours(30_000.0), vec![figures.running_ms]),
        Figure::time("  deleted until all is detached", ours(20_000.0), vec![figures.detached_ms]),
        Figure::time("restart among 440 mounts until /readyz", None, figures.ready_ms),
        Figure::time("  until the kubelet knows them all", Some(500.0), figures.restored_ms),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_alone_is_held_against_its_bounds() {
        let used = |mb: f64, cpu_percent: f64| agent::Use { resident_mb: mb, proportional_mb: mb, cpu_percent };
        let check = |told_ms: &[f64], mb: f64, percent: f64, expected: &[&str]| {
            // What the others use beside it has no bound.
            let figures =
                agent::Figures { told_ms: told_ms.to_vec(), alone: used(mb, percent), together: used(99.0, 99.0) };
            let figures = of_agent(figures);
            let missed: Vec<&str> = figures.iter().filter(|figure| figure.missed()).map(|figure| figure.name).collect();
            assert_eq!(missed, expected, "{told_ms:?} {mb} {percent}");
        };
        check(&[100.0, 200.0], 25.0, 1.0, &[]);
        check(&[100.0, 201.0], 24.0, 0.2, &["agent started until its Node is right"]);
        check(&[], 24.0, 0.2, &["agent started until its Node is right"]);
        check(&[100.0], 25.1, 0.2, &["kubelet alone with 90 pods, RSS"]);
        check(&[100.0], 24.0, 1.1, &["kubelet alone with 90 idle pods, CPU"]);
    }
}
