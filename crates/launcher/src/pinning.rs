//! Virtual processors on CPUs of their own.
//!
//! A container whose pod is to have whole CPUs for itself finds them in its cpuset. Each of QEMU's threads for virtual
//! processors is kept to one of them, and, where the machine is to have it so, everything else that runs for the machine
//! to one more. Threads that QEMU makes later are on the CPUs of the one that makes them, which is never a processor's.
//!
//! What is there to be shared out is what all of QEMU's threads together may run on: that is the cpuset before anything
//! is pinned, and the same afterwards, so that a monitor that takes over finds it again. Upstream reference: KubeVirt's
//! `pkg/virt-launcher/virtwrap/converter/vcpu`.

use crate::qmp::Qmp;
use crate::spec::{CpuSpec, Dedicated};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A CPU of the host's, and the core that it is a thread of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cpu {
    package: u32,
    core: u32,
    id: u32,
}

/// What runs where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// One for each virtual processor, in their order.
    processors: Vec<u32>,
    /// For everything else; absent, that runs on all of them.
    emulator: Option<u32>,
}

/// Shares CPUs out. Processors that the guest takes for threads of one core get threads of one core, as far as there are.
fn plan(cpus: &[Cpu], spec: &CpuSpec, dedicated: Dedicated) -> Result<Plan, String> {
    let count = usize::try_from(spec.count().unwrap_or(u32::MAX)).unwrap_or(usize::MAX);
    let needed = count.saturating_add(usize::from(dedicated.isolate_emulator));
    if cpus.len() < needed {
        return Err(format!("the machine is to have {needed} CPUs for itself, and its container has {}", cpus.len()));
    }
    let mut cores: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for cpu in cpus {
        cores.entry((cpu.package, cpu.core)).or_default().push(cpu.id);
    }
    let mut cores: Vec<Vec<u32>> = cores.into_values().collect();
    if spec.threads > 1 {
        // Whole cores first; the order among equals stays.
        cores.sort_by_key(|threads| Reverse(threads.len()));
    }
    let mut free = cores.into_iter().flat_map(|mut threads| {
        threads.sort_unstable();
        threads
    });
    let processors = free.by_ref().take(count).collect();
    Ok(Plan { processors, emulator: if dedicated.isolate_emulator { free.next() } else { None } })
}

/// Whether this process's container has as many CPUs as the machine is to have.
///
/// # Errors
/// It has not; for people.
pub(crate) fn check(spec: &CpuSpec) -> Result<(), String> {
    let Some(dedicated) = spec.dedicated else { return Ok(()) };
    plan(&cpus(affinity(None)?), spec, dedicated).map(drop)
}

/// Keeps this thread, and what it starts from now on, to the CPU for everything that is not a processor, where the
/// machine has one. That is where helpers of QEMU's belong (upstream: libvirt's `qemuExtDevicesSetupCgroup`).
///
/// # Errors
/// What went wrong, for people.
pub(crate) fn step_aside(spec: &CpuSpec) -> Result<(), String> {
    let Some(dedicated) = spec.dedicated else { return Ok(()) };
    match plan(&cpus(affinity(None)?), spec, dedicated)?.emulator {
        Some(emulator) => pin(None, emulator),
        None => Ok(()),
    }
}

/// Keeps a machine's threads to their CPUs. Doing it again changes nothing.
///
/// # Errors
/// What went wrong, for people.
pub(crate) async fn apply(qmp: &mut Qmp, spec: &CpuSpec) -> Result<(), String> {
    let Some(dedicated) = spec.dedicated else { return Ok(()) };
    let said = qmp.execute("query-cpus-fast", json!({})).await.map_err(|error| error.to_string())?;
    let mut processors = BTreeMap::new();
    for cpu in said.as_array().into_iter().flatten() {
        let (index, thread) = (cpu["cpu-index"].as_u64(), cpu["thread-id"].as_i64());
        let thread = thread.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        processors.insert(index, thread.ok_or("QEMU does not tell its processors' threads")?);
    }
    let first = *processors.values().next().ok_or("QEMU tells of no processor")?;
    let threads = threads_beside(first)?;
    let allowed = threads.iter().flat_map(|thread| affinity(Some(*thread)).unwrap_or_default()).collect();
    let plan = plan(&cpus(allowed), spec, dedicated)?;
    tracing::info!(?plan, "the machine has CPUs of its own");
    for (thread, cpu) in processors.values().zip(&plan.processors) {
        pin(Some(*thread), *cpu)?;
    }
    let Some(emulator) = plan.emulator else { return Ok(()) };
    pin(None, emulator)?;
    for thread in threads.iter().filter(|thread| !processors.values().any(|processor| processor == *thread)) {
        if let Err(why) = pin(Some(*thread), emulator) {
            // One that has ended meanwhile needs no place.
            tracing::debug!(why, "a thread stays where it is");
        }
    }
    Ok(())
}

/// All threads of the process that a thread is of: any thread's directory names them all.
fn threads_beside(thread: Pid) -> Result<Vec<Pid>, String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", thread.as_raw_nonzero()));
    let tasks = tasks.map_err(|error| format!("QEMU's threads cannot be looked at: {error}"))?;
    let names = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    Ok(names.filter_map(Pid::from_raw).collect())
}

/// The CPUs that a thread may run on; the calling one if none is named.
fn affinity(thread: Option<Pid>) -> Result<BTreeSet<u32>, String> {
    let set = sched_getaffinity(thread).map_err(|errno| format!("what CPUs there are cannot be told: {errno}"))?;
    let known = u32::try_from(CpuSet::MAX_CPU).unwrap_or(u32::MAX);
    Ok((0..known).filter(|cpu| usize::try_from(*cpu).is_ok_and(|cpu| set.is_set(cpu))).collect())
}

fn pin(thread: Option<Pid>, cpu: u32) -> Result<(), String> {
    let failed = |why: String| format!("a thread cannot be kept to CPU {cpu}: {why}");
    let mut set = CpuSet::new();
    set.set(usize::try_from(cpu).map_err(|error| failed(error.to_string()))?);
    sched_setaffinity(thread, &set).map_err(|errno| failed(errno.to_string()))
}

/// Where CPUs are, as sysfs has it; where it does not, each is a core of its own.
fn cpus(ids: BTreeSet<u32>) -> Vec<Cpu> {
    let read = |id: u32, name: &str| -> Option<u32> {
        let path = format!("/sys/devices/system/cpu/cpu{id}/topology/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    ids.into_iter()
        .map(|id| Cpu {
            package: read(id, "physical_package_id").unwrap_or(0),
            core: read(id, "core_id").unwrap_or(id),
            id,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Cpu, Plan, affinity, check as can_be, plan, step_aside};
    use crate::spec::{CpuSpec, Dedicated};

    /// CPUs as `(core, id)`, and what each virtual processor and the rest get.
    #[track_caller]
    fn check(cpus: &[(u32, u32)], [cores, threads]: [u32; 2], isolate: bool, wanted: Option<(&[u32], Option<u32>)>) {
        let cpus: Vec<Cpu> = cpus.iter().map(|&(core, id)| Cpu { package: 0, core, id }).collect();
        let spec = CpuSpec { cores, threads, ..CpuSpec::default() };
        let found = plan(&cpus, &spec, Dedicated { isolate_emulator: isolate });
        let wanted = wanted.map(|(processors, emulator)| Plan { processors: processors.to_vec(), emulator });
        assert_eq!(found.ok(), wanted, "{cpus:?}");
    }

    #[test]
    fn cpus_are_shared_out() {
        check(&[(0, 0)], [1, 1], false, Some((&[0], None)));
        check(&[(0, 0), (1, 1)], [1, 1], true, Some((&[0], Some(1))));
        check(&[(0, 0), (1, 1)], [1, 1], false, Some((&[0], None)));
        // Siblings stay together, whatever their numbers.
        check(&[(0, 0), (1, 1), (0, 4), (1, 5)], [2, 2], false, Some((&[0, 4, 1, 5], None)));
        check(&[(0, 0), (1, 1), (1, 5)], [1, 2], true, Some((&[1, 5], Some(0))));
        check(&[(0, 0), (1, 1), (1, 5)], [2, 1], true, Some((&[0, 1], Some(5))));
        check(&[(0, 0)], [1, 1], true, None);
        check(&[(0, 0)], [2, 1], false, None);
        check(&[], [1, 1], false, None);
    }

    #[test]
    fn what_is_started_for_a_machine_leaves_its_processors_alone() {
        let spec = CpuSpec { dedicated: Some(Dedicated { isolate_emulator: true }), ..CpuSpec::default() };
        if can_be(&spec).is_err() {
            // This machine has one CPU.
            return;
        }
        step_aside(&spec).expect("kept");
        let here = affinity(None).expect("told");
        assert_eq!(here.len(), 1);
        let child = std::process::Command::new("cat").arg("/proc/self/status").output().expect("cat runs");
        let status = String::from_utf8(child.stdout).expect("text");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("told");
        assert_eq!(Some(allowed.trim()), here.first().map(u32::to_string).as_deref());
    }
}
