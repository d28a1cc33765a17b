//! Who has which GPU, read from the API alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_gpu_extender::demand::{self, Demand};
use carrack_gpu_extender::place::{self, Uses};
use carrack_gpu_extender::{CORES, GpuExtender, Ledger, Names, Shape, Stage, annotations, node};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::Value;

use super::outsiders::{is_copy, is_outsider};
use super::{GPUS, MEMORY};
use crate::invariants::Breach;
use crate::observer::{Change, Observer, is_true, terminal, text, uid};

/// The invariant of what an extender counts.
pub(crate) const LEDGER: &str = "ledger-within-bounds";

/// How far the extender's clock may be behind.
const SKEW: Duration = Duration::from_secs(5);

fn typed(pod: &Value) -> Option<(Pod, Demand)> {
    let pod: Pod = carrack_types::json::from_value(pod.clone()).ok()?;
    let demand = demand::of(&pod, &Names::default()).ok().filter(|demand| !demand.is_empty())?;
    Some((pod, demand))
}

fn shape(observer: &Observer, name: &str) -> Option<Shape> {
    let node: Node = carrack_types::json::from_value(observer.get("node", name)?.clone()).ok()?;
    Some(node::of(&node, &Names::default()))
}

/// Whether a pod asks for GPUs.
pub(crate) fn shares(pod: &Value) -> bool {
    typed(pod).is_some()
}

fn priority(pod: &Value) -> i64 {
    pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0)
}

/// What the pods bound to a node hold there, by UID.
fn held(observer: &Observer, node: &str, shape: &Shape) -> BTreeMap<String, Uses> {
    held_by(observer, node, shape, |_| true)
}

/// What these of the pods bound to a node hold there.
fn held_by(observer: &Observer, node: &str, shape: &Shape, counts: impl Fn(&Value) -> bool) -> BTreeMap<String, Uses> {
    let here = observer.all("pod").filter(|p| text(p, "/spec/nodeName") == node && !terminal(p) && counts(p));
    here.filter_map(|pod| {
        let (pod, demand) = typed(pod)?;
        let places = annotations::read(&Names::default(), &pod, node, &demand)?;
        Some((pod.uid().to_owned(), place::holds(&demand, &places, &shape.gpus)))
    })
    .collect()
}

fn sum<'a>(all: impl Iterator<Item = &'a Uses>) -> Uses {
    let mut sum = Uses::new();
    for (gpu, used) in all.flatten() {
        let entry = sum.entry(*gpu).or_default();
        *entry = entry.and(*used);
    }
    sum
}

/// Checks a pod that was just bound, and the GPUs of its node.
pub(crate) fn bounds(changes: &[Change], observer: &Observer, breaches: &mut Vec<Breach>) {
    let name = |pod: &Option<Value>| pod.as_ref().map_or("", |p| text(p, "/spec/nodeName")).to_owned();
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (before, after) = (name(&change.before), name(&change.after));
        if after.is_empty() || before == after {
            continue;
        }
        let mut broken = |what: String| breaches.push(Breach::new("gpus-within-bounds", what));
        let (Some(shape), Some((pod, demand))) = (shape(observer, &after), typed(change.object())) else { continue };
        // What a tenant says is dropped: his pods have no GPU, and take none from anybody.
        let is_chosen = annotations::read(&Names::default(), &pod, &after, &demand).is_some();
        if !is_chosen && !is_outsider(change.object()) {
            broken(format!("{} is bound to {after} without a choice of its GPUs", pod.name()));
        }
        // An administrator may say what he likes; his pods count for what the extender finds left for them.
        let given = held_by(observer, &after, &shape, |pod| !is_copy(pod));
        for (gpu, used) in sum(given.values()) {
            let memory = shape.gpus.get(gpu).map_or(0, |g| g.memory);
            if used.cores > CORES || used.memory > memory {
                broken(format!(
                    "GPU {gpu} of {after} is given out with {} cores and {} of memory",
                    used.cores, used.memory
                ));
            }
        }
    }
}

/// Checks that an extender that has seen all pods counts what those that are bound have.
pub(crate) fn counted(extender: &GpuExtender, observer: &Observer, breaches: &mut Vec<Breach>) {
    if !extender.is_ready() {
        return;
    }
    // Of who comes past the scheduler it hears later.
    for pod in observer.all("pod").filter(|p| !terminal(p) && !is_outsider(p)) {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() || extender.ledger().get(uid(pod)).is_some_and(|entry| entry.node == node) {
            continue;
        }
        let Some((typed, demand)) = typed(pod) else { continue };
        // Where its annotations say nothing of this node, it has nothing; it should not be there at all.
        if annotations::read(&Names::default(), &typed, node, &demand).is_some() {
            let what = format!("{} has GPUs of {node}, and the extender counts none", typed.name());
            breaches.push(Breach::new("gpus-are-held", what));
        }
    }
}

/// Checks that an extender counts no GPU beyond what it has, whatever annotations say.
pub(crate) fn ledger_bounds(ledger: &Ledger, breaches: &mut Vec<Breach>) {
    let nodes: BTreeSet<&str> = ledger.iter().map(|(_, entry)| entry.node.as_str()).collect();
    for node in nodes {
        for (gpu, used) in ledger.settled(node, "") {
            let is_there = u32::try_from(gpu).is_ok_and(|gpu| gpu < GPUS);
            if !is_there || used.cores > CORES || used.memory > u64::from(MEMORY) {
                let what = format!(
                    "of GPU {gpu} of {node} {} cores and {} of memory count as in use",
                    used.cores, used.memory
                );
                breaches.push(Breach::new(LEDGER, what));
            }
        }
    }
}

/// How long a pod may wait though a node has room: longer than all that makes up for faults takes.
const PATIENCE: Duration = Duration::from_secs(150);

/// Pods with a choice of GPUs in their annotations that wait for a node though one has room, since when.
#[derive(Default)]
pub(crate) struct Waiting(BTreeMap<String, Time>);

impl Waiting {
    /// Looks at all pods, when nothing fails any more.
    pub(crate) fn look(&mut self, now: Time, observer: &Observer, breaches: &mut Vec<Breach>) {
        let mut waiting = BTreeMap::new();
        for pod in observer.all("pod").filter(|p| text(p, "/spec/nodeName").is_empty()) {
            let Some((typed, _)) = typed(pod).filter(|(pod, _)| !annotations::keys(&Names::default(), pod).is_empty())
            else {
                continue;
            };
            let Some(why) = lacks(pod, observer).filter(|_| !typed.is_deleting()) else { continue };
            let since = self.0.get(typed.uid()).copied().unwrap_or(now);
            if now.since(since) > PATIENCE {
                breaches.push(Breach::new("annotations-hold-nobody-back", format!("{} {why}", typed.name())));
            }
            waiting.insert(typed.uid().to_owned(), since);
        }
        self.0 = waiting;
    }
}

/// Why a pod with GPUs is not as it should be: it runs, has ended, or waits because there is no room.
pub(crate) fn lacks(pod: &Value, observer: &Observer) -> Option<String> {
    match text(pod, "/status/phase") {
        "Running" | "Succeeded" => return None,
        "Pending" => {}
        // Its node went, and took it along.
        "Failed" if is_true(pod, "DisruptionTarget") => return None,
        other => return Some(format!("is {other:?}")),
    }
    if !text(pod, "/spec/nodeName").is_empty() {
        return Some("is bound and does not run".to_owned());
    }
    // One that no node could ever take waits for good.
    let (_, demand) = typed(pod)?;
    observer.all("node").find_map(|node| {
        let node = text(node, "/metadata/name");
        let shape = shape(observer, node)?;
        let all = sum(held(observer, node, &shape).values());
        if place::place(&shape, &all, &demand).is_ok() {
            return Some(format!("waits though {node} has room"));
        }
        let alike = sum(held_by(observer, node, &shape, |other| priority(other) >= priority(pod)).values());
        let others_would_go = lacks_by_sums(&shape, &all, &demand) && place::place(&shape, &alike, &demand).is_ok();
        others_would_go.then(|| format!("waits though less important pods have what it needs on {node}"))
    })
}

/// Whether a node's GPUs together have too little left for a pod: that is what the scheduler counts, and where it has others
/// go. Where halves of two GPUs are left it sees room, and only an extender none; there upstream evicts nobody either.
fn lacks_by_sums(shape: &Shape, held: &Uses, demand: &Demand) -> bool {
    let (mut cores, mut memory) = (0_u64, 0_u64);
    for asking in demand.iter().filter(|asking| !asking.before) {
        match asking.want {
            demand::Want::Share { cores: c, memory: m } => (cores, memory) = (cores + u64::from(c), memory + m),
            demand::Want::Whole(gpus) => cores += u64::from(CORES) * u64::try_from(gpus).unwrap_or(u64::MAX),
        }
    }
    let used = |of: fn(&place::Use) -> u64| held.values().map(of).sum::<u64>();
    let all = u64::from(CORES) * u64::try_from(shape.gpus.len()).unwrap_or(0);
    let whole: u64 = shape.gpus.iter().map(|gpu| gpu.memory).sum();
    used(|u| u64::from(u.cores)) + cores > all || used(|u| u.memory) + memory > whole
}

/// What the extender's ledger says otherwise than the API: with nothing under way, pods claim there what they say that they
/// hold.
pub(crate) fn ledger_lacks(now: Time, ledger: &Ledger, observer: &Observer) -> Option<String> {
    for (id, entry) in ledger.iter() {
        match entry.stage {
            // What has ended is dropped when the extender next does something.
            Stage::Offered { until, .. } if until + SKEW < now => {}
            Stage::Offered { .. } => {
                let Some(pod) = observer.all("pod").find(|p| uid(p) == id) else {
                    return Some(format!("{id} is gone, and has an offer"));
                };
                return Some(format!("{} has an offer that nobody takes", text(pod, "/metadata/name")));
            }
            Stage::Binding | Stage::Undoing => {
                return Some(format!("{} is {} still", entry.name, entry.stage.name()));
            }
            Stage::Held => {}
        }
    }
    for node in observer.all("node") {
        let node = text(node, "/metadata/name");
        let there = held(observer, node, &shape(observer, node)?);
        let known: BTreeMap<String, Uses> = ledger
            .iter()
            .filter(|(_, e)| e.node == node && e.stage == Stage::Held)
            .map(|(id, e)| (id.to_owned(), e.claims.clone()))
            .collect();
        if there != known {
            return Some(format!("on {node} the extender counts {known:?}, and pods hold {there:?}"));
        }
    }
    None
}
