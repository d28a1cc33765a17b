//! The node runs low: what has ended goes and images that nobody needs, then one pod after another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{EventRecord, Time};
use carrack_types::quantity::{Form, Quantity};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::worker::{Stopping, Worker, in_order};
use super::{Fx, KubeletCore, Owner, Wake, show};
use crate::amount;
use crate::effects::{Counted, Op, OpId, Outcome, Reply, Tally};
use crate::eviction::{self, Candidate, Crossed, Pressure, Signal, Usage};
use crate::planted::Planted;
use crate::runtime::{HostFacts, ImageRecord, Uid};
use crate::spec::pod;
use crate::status::pod::{Ended, is_told_whole, tell_same_states};

/// How soon facts are read again while a threshold is crossed.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a pod that has to go is waited for beyond its time: one that cannot be stopped, since its disk does not answer say, is
/// not all that the node has (upstream's `podCleanupTimeout`).
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the images' file system is looked at (kubernetes pkg/kubelet: ImageGCPeriod).
const IMAGE_PERIOD: Duration = Duration::from_secs(300);

/// Which readings of the machine tell what it has now.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// The last one that was asked for.
    asked: Option<OpId>,
    /// The newest one that was answered.
    taken: Option<OpId>,
    /// This one, and those before it, were asked for before something was free again that had to go: they need not show it.
    outdated: Option<OpId>,
}

impl Readings {
    /// Whether what was read last shows what has gone.
    fn are_current(&self) -> bool {
        self.taken > self.outdated
    }
}

/// A pod that has to go.
pub(super) struct Eviction {
    /// For what: a signal's name, or the limit that it did not keep to.
    pub signal: &'static str,
    /// The same for people.
    pub message: String,
    /// How long it has to end, in seconds.
    pub grace_s: i64,
    /// It goes for the sake of others, and not of its own doing.
    pub disrupts: bool,
    /// What its event says to programs.
    pub annotations: BTreeMap<String, String>,
}

/// Whether a pod is here, goes on, and is none that the node cannot do without.
pub(super) fn may_be_evicted(w: &Worker) -> bool {
    goes_on(w) && !pod::is_critical(&w.pod)
}

fn goes_on(w: &Worker) -> bool {
    w.counts() && w.stopping.is_none()
}

impl KubeletCore {
    pub(super) fn pressure(&self) -> Pressure {
        self.watch.pressure(&self.config.eviction)
    }

    /// UIDs of the pods that are here and have to go, for those who check invariants.
    pub fn evicted(&self) -> impl Iterator<Item = &Uid> {
        let is_evicted = |w: &Worker| w.stopping.as_ref().is_some_and(is_eviction);
        self.workers.iter().filter(move |(_, w)| is_evicted(w)).map(|(uid, _)| uid)
    }

    /// Has the facts of the machine read.
    pub(super) fn read_machine(&mut self, fx: &mut Fx) {
        self.readings.asked = Some(self.op(Owner::Host, Op::Host, fx));
    }

    /// Something is free again that had to go: readings that were asked for before need not show it.
    pub(super) fn has_freed(&mut self) {
        self.readings.outdated = self.readings.asked;
    }

    /// A pod has stopped.
    pub(super) fn has_stopped(&mut self, stopping: &Stopping) {
        if is_eviction(stopping) && self.planted != Some(Planted::OutdatedIsCurrent) {
            self.has_freed();
        }
    }

    /// The facts of the machine were read, or could not be: then it is not known whether it is low on anything, and nobody goes
    /// before it is (upstream's `synchronize` ends there).
    pub(super) fn machine_read(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        match outcome {
            // It was overtaken: what came after it is newer.
            Ok(Reply::Host(_)) if Some(id) < self.readings.taken => return,
            Ok(Reply::Host(h)) => {
                self.readings.taken = Some(id);
                let size = |of: &HostFacts| (of.cpus, of.memory_bytes, of.pids_max);
                self.groups.due |= size(&h) != size(&self.host);
                self.resizes.due = true;
                self.host = *h;
                self.see_cpus();
                self.see_memory();
                self.check_pressure(now, fx);
            }
            _ if self.planted == Some(Planted::UnreadIsFull) => {
                self.host.memory_available_bytes = 0;
                self.check_pressure(now, fx);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the facts of the machine could not be read");
                self.crossed = None;
            }
        }
        self.check_local_storage(now, fx);
        self.node_tick(now, fx);
    }

    /// New facts of the machine: is it low on something?
    fn check_pressure(&mut self, now: Time, fx: &mut Fx) {
        let crossed = self.watch.observe(now, &self.host, &self.config.eviction);
        self.crossed = crossed.first().cloned();
        let Some(first) = self.crossed.clone() else {
            self.low_on = None;
            self.collect_images(now, false, fx);
            return;
        };
        // One look ahead at a time, however many lead here.
        if self.host_wake <= now {
            self.host_wake = now + AGAIN;
            self.wake(self.host_wake, Wake::Host);
        }
        if self.low_on.replace(first.signal) != Some(first.signal) {
            tracing::warn!(signal = first.signal.name(), left = first.left, least = first.least, "the node runs low");
            if let Some(node) = self.node.seen.clone() {
                let message = format!("Attempting to reclaim {}", first.signal.resource());
                self.event(now, EventRecord::warning(node.as_ref(), "EvictionThresholdMet", message), fx);
            }
        }
        let is_won_back = first.signal.is_won_back_without_pods(self.host.images_apart);
        if is_won_back && (self.forget_ended(now, fx) || self.collect_images(now, true, fx)) {
            // What that frees is seen first.
            return;
        }
        let under_way = self.planted != Some(Planted::EvictsAtOnce)
            && self.workers.values().any(|w| {
                let stopping = w.stopping.as_ref().filter(|_| !w.stopped_all);
                stopping.filter(|s| is_eviction(s)).is_some_and(|s| now < s.deadline + PATIENCE)
            });
        // What the last one has freed is seen before another one goes.
        if !under_way && self.readings.are_current() {
            let may_go = self.workers.iter().filter(|(_, w)| self.may_go(w)).map(|(uid, _)| uid.clone()).collect();
            self.measure(may_go, true, fx);
        }
    }

    /// Has pods measured, unless that is under way already: who wants more asks again when the facts are read the next time.
    pub(super) fn measure(&mut self, pods: BTreeSet<Uid>, all: bool, fx: &mut Fx) {
        if self.measuring.is_none() {
            self.measuring = Some((self.op(Owner::Usage, Op::Usage(pods), fx), all));
        }
    }

    /// What pods use is known. Those that keep more on the disk than they may go; if there are none and the node runs low, the first
    /// in rank does, provided that all were measured (upstream's `synchronize`).
    pub(super) fn usage_known(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        let Some((_, all)) = self.measuring.take_if(|(op, _)| *op == id) else { return };
        let usage = match outcome {
            Ok(Reply::Usage(usage)) => usage,
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "what pods use is not known; none is evicted");
                return;
            }
        };
        if self.evict_who_keeps_too_much(now, &usage, fx) {
            return;
        }
        if let Some(crossed) = self.crossed.clone().filter(|_| all && self.readings.are_current()) {
            self.evict_first(now, &crossed, &usage, fx);
        }
    }

    /// The first in rank goes.
    fn evict_first(&mut self, now: Time, crossed: &Crossed, usage: &BTreeMap<Uid, Usage>, fx: &mut Fx) {
        let mut candidates = self.candidates(crossed, usage);
        eviction::rank(&mut candidates);
        let Some(first) = candidates.into_iter().next() else {
            tracing::debug!(signal = crossed.signal.name(), "the node runs low, and has no pod to evict");
            return;
        };
        let Some(mut w) = self.workers.remove(&first.uid) else { return };
        let message = low_on(crossed, &first);
        // Upstream gives one second at a hard threshold.
        let grace_s = if crossed.hard { 1 } else { pod::grace_s(&w.pod).min(self.config.eviction.max_pod_grace_s) };
        let annotations = annotations(&w.pod, usage.get(&first.uid), crossed.signal);
        let eviction = Eviction { signal: crossed.signal.name(), message, grace_s, disrupts: true, annotations };
        self.evict(now, &mut w, eviction, fx);
        self.dirty.insert(first.uid.clone());
        self.workers.insert(first.uid, w);
    }

    /// Whether a pod may go for the sake of others.
    fn may_go(&self, w: &Worker) -> bool {
        let is_critical = || self.planted != Some(Planted::CriticalEvicted) && pod::is_critical(&w.pod);
        goes_on(w) && !is_critical()
    }

    fn candidates(&self, crossed: &Crossed, usage: &BTreeMap<Uid, Usage>) -> Vec<Candidate> {
        self.workers
            .iter()
            .filter(|(_, w)| self.may_go(w))
            .map(|(uid, w)| {
                let request = pod::requests(&w.pod).get(crossed.signal.resource()).copied().unwrap_or(0) / 1000;
                Candidate {
                    uid: uid.clone(),
                    priority: pod::spec(&w.pod).priority.unwrap_or(0),
                    request: u64::try_from(request).unwrap_or(0),
                    usage: usage.get(uid).map_or(0, |u| u.of(crossed.signal, self.host.images_apart)),
                }
            })
            .collect()
    }

    /// Has containers forgotten that are over, of pods that have ended and whose end the API knows: their layers and logs are
    /// all that they take (upstream's `DeleteAllUnusedContainers`). True while something is expected of that.
    fn forget_ended(&mut self, now: Time, fx: &mut Fx) -> bool {
        // Not before the API has the last word of each container: nobody could say it afterwards. Whether it keeps all else as it was
        // told does not matter: an older server does not, nor does one with a webhook.
        let is_told = |w: &Worker| {
            let both = w.last_status.as_ref().zip(w.pod.status.as_ref());
            both.is_some_and(|(said, kept)| is_told_whole(kept) && tell_same_states(said, kept))
        };
        let has_ended = |w: &Worker| w.stopped_all && !w.deleted && !w.pod.is_deleting() && is_told(w);
        let ended: Vec<Uid> = self.workers.iter().filter(|(_, w)| has_ended(w)).map(|(uid, _)| uid.clone()).collect();
        let mut is_expected = false;
        for uid in ended {
            let containers = self.runtime.get(&uid).into_iter().flat_map(|r| &r.containers);
            let over: Vec<String> = containers.filter(|c| c.exit_code().is_some()).map(|c| c.id.clone()).collect();
            if over.is_empty() {
                continue;
            }
            let Some(mut w) = self.workers.remove(&uid) else { continue };
            for id in over {
                // One that the runtime would not forget is tried again, and not waited for.
                is_expected |= !w.retry_at.contains_key(&id);
                self.remove(now, &uid, &mut w, id.clone(), Op::RemoveContainer(id), fx);
            }
            self.workers.insert(uid, w);
        }
        is_expected
    }

    /// Ends a pod, and says why. It is disrupted where that is not of its own doing.
    pub(super) fn evict(&mut self, now: Time, w: &mut Worker, eviction: Eviction, fx: &mut Fx) {
        let Eviction { signal, message, grace_s, disrupts, annotations } = eviction;
        show(Op::Count(Counted::Tally(Tally::Evicted, signal.to_owned())), fx);
        self.end_annotated(now, w, Ended { reason: EVICTED.into(), message, disrupts }, grace_s, annotations, fx);
    }

    /// Ends a pod that would go on, within a time in seconds, and says why.
    pub(super) fn end_pod(&mut self, now: Time, w: &mut Worker, ended: Ended, grace_s: i64, fx: &mut Fx) {
        self.end_annotated(now, w, ended, grace_s, BTreeMap::new(), fx);
    }

    /// The same, with annotations by which programs are told why.
    fn end_annotated(
        &mut self,
        now: Time,
        w: &mut Worker,
        ended: Ended,
        grace_s: i64,
        annotations: BTreeMap<String, String>,
        fx: &mut Fx,
    ) {
        let (reason, message) = (ended.reason.clone(), ended.message.clone());
        tracing::warn!(pod = %pod::pod_ref(&w.pod), reason, message, "a pod has to go");
        self.event(now, EventRecord::warning(w.pod.as_ref(), reason, message).annotated(annotations), fx);
        let deadline = now + Duration::from_secs(u64::try_from(grace_s).unwrap_or(0));
        w.stopping = Some(Stopping { deadline, since: OpId(fx.fresh()), because: Some(ended) });
        self.relist(fx);
    }

    /// References to images: of containers that are there, and of pods that are to run.
    fn used_images(&self) -> BTreeSet<&str> {
        let containers = self.runtime.values().flat_map(|r| &r.containers);
        let of_containers = containers.flat_map(|c| [c.image_ref.as_str(), c.image.as_str()]);
        let to_run = self.workers.values().filter(|w| !w.stopped_all);
        let of_pods = to_run.flat_map(|w| in_order(&w.pod)).filter_map(|c| c.image.as_deref());
        let lanes = self.workers.values().flat_map(|w| w.lanes.values()).filter_map(|l| l.image.as_ref());
        of_containers.chain(of_pods).chain(lanes.map(|i| i.id.as_str())).filter(|r| !r.is_empty()).collect()
    }

    /// A listing of images was read.
    pub(super) fn images_listed(&mut self, now: Time, id: OpId, images: Vec<ImageRecord>) {
        if self.images != images {
            self.images = images;
            self.node.dirty = true;
        }
        self.pulls.listed(now, id, &self.images);
        let mut known = std::mem::take(&mut self.known_images);
        known.listed(now, &self.images, &self.used_images());
        self.known_images = known;
    }

    /// Removes images; true when some are being removed.
    fn collect_images(&mut self, now: Time, all: bool, fx: &mut Fx) -> bool {
        // What the runtime holds must be known: an unread listing uses nothing.
        if self.listed.is_none() || !self.pods.synced() || !self.image_ops.is_empty() {
            return !self.image_ops.is_empty();
        }
        if !all && now < self.images_next {
            return false;
        }
        self.images_next = now + IMAGE_PERIOD;
        self.pulls.prune(&self.images);
        let disk = (self.host.image_disk_available_bytes, self.host.image_disk_bytes);
        let selection =
            self.known_images.select(now, &self.images, &self.used_images(), disk, &self.config.image_gc, all);
        if selection.lacking_bytes > 0
            && let Some(node) = self.node.seen.clone()
        {
            let message = format!(
                "Failed to garbage collect required amount of images. {} bytes more should be free, and no image that \
                 may go is left.",
                selection.lacking_bytes
            );
            self.event(now, EventRecord::warning(node.as_ref(), "FreeDiskSpaceFailed", message), fx);
        }
        for id in selection.remove {
            tracing::info!(image = id, "an image that nobody uses goes");
            let op = self.op(Owner::RemoveImage, Op::RemoveImage(id.clone()), fx);
            let why = if selection.aged.contains(&id) { "age" } else { "space" };
            self.image_ops.insert(op, (id, why));
        }
        !self.image_ops.is_empty()
    }

    pub(super) fn image_removed(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        let Some((image, why)) = self.image_ops.remove(&id) else { return };
        match outcome {
            Ok(_) => show(Op::Count(Counted::Tally(Tally::Collected, why.to_owned())), fx),
            Err(error) => {
                tracing::warn!(image, %error, "an image was not removed");
                self.known_images.not_removed(now, &image);
            }
        }
        if self.image_ops.is_empty() {
            self.op(Owner::ListImages, Op::ListImages, fx);
            self.has_freed();
            self.read_machine(fx);
        }
    }
}

/// Whether a pod is being ended because it has to go.
fn is_eviction(stopping: &Stopping) -> bool {
    stopping.because.as_ref().is_some_and(|ended| ended.reason == EVICTED)
}

/// What a pod is told that goes because the node is low on something.
fn low_on(crossed: &Crossed, c: &Candidate) -> String {
    format!(
        "The node was low on resource: {}. Threshold quantity: {}, available: {}. The pod was using {}, its request is {}.",
        crossed.signal.resource(),
        shown(crossed.signal, crossed.least),
        shown(crossed.signal, crossed.left),
        shown(crossed.signal, c.usage),
        shown(crossed.signal, c.request)
    )
}

/// What the event of an eviction says to programs: what the node was low on, and which containers used more of that than they had
/// asked for (upstream's `evictionMessage`, `pkg/kubelet/eviction/helpers.go`).
fn annotations(pod: &Pod, usage: Option<&Usage>, signal: Signal) -> BTreeMap<String, String> {
    let resource = signal.resource();
    let none = BTreeMap::new();
    let used = usage.map_or(&none, |usage| match resource {
        "memory" => &usage.memory,
        "ephemeral-storage" => &usage.containers,
        _ => &none,
    });
    let above = in_order(pod).filter_map(|c| {
        let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref());
        let asked = requests.and_then(|list| list.get(resource)).and_then(amount::milli).unwrap_or(0);
        let used = *used.get(&c.name)?;
        (i128::from(used) * 1000 > asked).then(|| (c.name.clone(), shown(signal, used).to_string()))
    });
    let (names, amounts): (Vec<String>, Vec<String>) = above.unzip();
    BTreeMap::from([
        ("starved_resource".to_owned(), resource.to_owned()),
        ("offending_containers".to_owned(), names.join(",")),
        ("offending_containers_usage".to_owned(), amounts.join(",")),
    ])
}

/// An amount as the API writes it: bytes in the largest unit that they are a whole number of.
fn shown(signal: Signal, amount: u64) -> Quantity {
    let is_bytes = matches!(signal.resource(), "memory" | "ephemeral-storage");
    let form = if is_bytes { Form::BinarySi } else { Form::DecimalSi };
    Quantity::from_units(i64::try_from(amount).unwrap_or(i64::MAX), form)
}

/// Reason of a pod that had to go.
pub(super) const EVICTED: &str = "Evicted";

#[cfg(test)]
mod tests {
    use carrack_engine::{Effects, Rng};
    use serde_json::json;

    use super::*;
    use crate::config::NodeConfig;

    /// Upstream's `test/e2e_node/eviction_test.go` looks for these.
    #[test]
    fn programs_are_told_who_used_more_than_it_had_asked_for() {
        let container = |name: &str, memory: &str| json!({"name": name, "resources": {"requests": {"memory": memory}}});
        let spec = json!({"containers": [container("a", "100"), container("b", "200"), {"name": "c"}],
            "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        let of = |used: &[(&str, u64)]| used.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let usage = Usage {
            memory: of(&[("a", 2048), ("b", 200), ("s", 7)]),
            containers: of(&[("c", 5), ("b", 0)]),
            ..Usage::default()
        };
        for (signal, usage, resource, names, amounts) in [
            (Signal::MemoryAvailable, Some(&usage), "memory", "s,a", "7,2Ki"),
            (Signal::NodefsAvailable, Some(&usage), "ephemeral-storage", "c", "5"),
            (Signal::PidAvailable, Some(&usage), "pids", "", ""),
            (Signal::MemoryAvailable, None, "memory", "", ""),
        ] {
            let told = annotations(&pod, usage, signal);
            let of = |key: &str| told.get(key).map(String::as_str);
            let found = (of("starved_resource"), of("offending_containers"), of("offending_containers_usage"));
            assert_eq!(found, (Some(resource), Some(names), Some(amounts)), "{signal:?}");
        }
    }

    /// A machine, low on memory or not.
    fn machine(memory_available_bytes: u64) -> Outcome {
        let host = HostFacts { memory_bytes: 8 << 30, memory_available_bytes, ..HostFacts::default() };
        Ok(Reply::Host(Box::new(host)))
    }

    /// What pods use is asked for where one of them is to go.
    #[test]
    fn nobody_goes_for_what_is_not_known_or_no_more_so() {
        let (low, enough) = (1 << 20, 4 << 30);
        let unread = || Err(crate::effects::OpError::TimedOut(20));
        let now = Time::from_unix_s(1000);
        for (what, readings, outdated, expected) in [
            ("low", vec![(7, machine(low))], None, true),
            ("enough", vec![(7, machine(enough))], None, false),
            ("not read", vec![(7, unread())], None, false),
            ("low, and then not read", vec![(6, machine(low)), (7, unread())], None, false),
            ("low, and enough by an older one", vec![(7, machine(low)), (6, machine(enough))], None, true),
            ("enough, and low by an older one", vec![(7, machine(enough)), (6, machine(low))], None, false),
            ("low before somebody has stopped", vec![(7, machine(low))], Some(7), false),
            ("low after somebody has stopped", vec![(8, machine(low))], Some(7), true),
        ] {
            let mut core = KubeletCore::new(NodeConfig::default(), &Rng::new(1));
            let mut fx = Effects::new();
            core.readings.outdated = outdated.map(OpId);
            for (id, outcome) in readings {
                core.machine_read(now, OpId(id), outcome, &mut fx);
            }
            let goes = core.crossed.is_some() && core.readings.are_current();
            assert_eq!((goes, core.measuring.is_some() && goes), (expected, expected), "{what}");
        }
    }

    #[test]
    fn amounts_are_shown_in_whole_units() {
        for (signal, amount, expected) in [
            (Signal::MemoryAvailable, 100 << 20, "100Mi"),
            (Signal::MemoryAvailable, (100 << 20) + 1024, "102401Ki"),
            (Signal::NodefsAvailable, 7, "7"),
            (Signal::ImagefsAvailable, 0, "0"),
            (Signal::NodefsAvailable, 2048 << 40, "2Pi"),
            (Signal::NodefsInodesFree, 2048, "2048"),
            (Signal::PidAvailable, 12_000, "12k"),
        ] {
            assert_eq!(shown(signal, amount).to_string(), expected, "{signal:?} {amount}");
        }
    }
}
