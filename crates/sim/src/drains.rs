//! Machines that come, are emptied and go, as a whole: what people do with nodes.
//!
//! ```text
//!   switched on for the first time ─▶ its kubelet registers it
//!
//!   cordoned ─▶ evictions, again and again ─┬─▶ empty ─┬─▶ off for a while ────────────────────────┬─▶ uncordoned
//!                                           │          └─▶ taken away, and its Node is deleted ─┬─▶ gone for good
//!                                           │                                                   └─▶ another one has its name
//!                                           └─▶ too long ─▶ uncordoned
//! ```
//!
//! A node is emptied as `kubectl drain --ignore-daemonsets --delete-emptydir-data --force` does it (`pkg/drain` of
//! k8s.io/kubectl): all pods but those of DaemonSets and mirrors are evicted, who is refused is asked again after five seconds, and
//! all that is waited for is that no pod is left. Who drains goes by what is stored, and so sees it when a request that was given
//! up long ago still cordons the node. What must hold of cordoned nodes is looked after in [`crate::cordons`], and of data that
//! goes with its node for good in [`crate::lost_data`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiRequest, ContentType, DeleteOptions, Rng, Time};
use carrack_types::resource::Kind as _;
use carrack_types::volume::SELECTED_NODE;
use carrack_types::well_known::MIRROR_ANNOTATION;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use serde_json::{Value, json};

use crate::chance::between;
use crate::lost_data;
use crate::node::Node;
use crate::observer::{Observer, deleting, key_of, label, owner_kind, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::role::node_name;
use crate::wants::Want;
use crate::workload::{Act, SOON, mounting};

/// The name of this part of the work.
pub(crate) const PART: &str = "drains";
/// How soon something is asked again that was refused, or that shows no effect.
const AGAIN: Duration = Duration::from_secs(5);
/// How long somebody tries to empty a node, at the least and at the most.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(40));
/// How long an empty node is off, and until another machine has the name of one that was taken away.
const OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(40));

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it. Small runs
/// have it where it is chosen with the rest of their work.
fn are_there(work: &Rng, options: &Options) -> bool {
    let fits = options.has_whole_nodes() && options.faults;
    let drawn = || options.only.is_some() || work.fork("whether nodes are drained").one_in(4);
    fits && options.hint().map_or_else(drawn, |bug| bug == Bug::CordonsUnheard) && options.parts(work).has(PART)
}

/// With the planted bug: pods that come one after the other, also while a node is cordoned.
pub(crate) fn comers(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..24 {
        let object = mounting(&format!("comer{n}"), 10, "scratch", "emptyDir", json!({}));
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(crate::workload::create(between(rng, safety / 60, safety * 3 / 4), Pod::resource(), object, want));
    }
}

/// Whether a node is cordoned.
pub(crate) fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// What keeps a node where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    /// Nothing.
    Free,
    /// It has data that may go with it: for good, since another one of its name would not have what is asked of it.
    Data,
    /// Something that cannot do without it.
    Tied,
}

/// What is kept for a node of this name alone, or was not taken back from it yet, or may yet come there.
pub(crate) fn tie(name: &str, observer: &Observer) -> Tie {
    let quoted = format!("\"{name}\"");
    let is_here = |volume: &&Value| volume["spec"]["nodeAffinity"].to_string().contains(&quoted);
    let is_chosen = |claim: &&Value| label(claim, "annotations", SELECTED_NODE) == name;
    let has_disks = |node: &Value| node["status"]["volumesAttached"].as_array().is_some_and(|disks| !disks.is_empty());
    let is_attached = observer.all("attachment").any(|attachment| text(attachment, "/spec/nodeName") == name);
    if is_attached || observer.get("node", name).is_some_and(has_disks) {
        return Tie::Tied;
    }
    let volumes: Vec<&Value> = observer.all("volume").filter(is_here).collect();
    let claims: Vec<&Value> = observer.all("claim").filter(is_chosen).collect();
    // Before its machine fell, its provisioner may have taken what nobody has yet, also where it has nothing else.
    if observer.all("claim").any(|claim| lost_data::is_free(claim, SOON)) {
        return Tie::Tied;
    }
    if volumes.is_empty() && claims.is_empty() {
        return Tie::Free;
    }
    let may_go = volumes.iter().all(|v| lost_data::may_go(v)) && claims.iter().all(|c| lost_data::is_settled(c));
    if may_go { Tie::Data } else { Tie::Tied }
}

/// What becomes of a node that is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It is uncordoned at once.
    Opens,
    /// It is off for so long: shut down in order, or by its switch.
    Off { away: Duration, in_order: bool },
    /// It is shut down and taken away, and another one has its name after so long, if one has.
    Leaves { another: Option<Duration> },
}

/// How far somebody has come with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not its time yet.
    Waits,
    /// It is cordoned, and its pods are evicted.
    Empties,
    /// It is to go down.
    Falls,
    /// It is off.
    Off,
    /// It was taken away; another one comes at a time, if one does.
    Leaves { another: Option<Time> },
    /// It is to be open, from here on.
    Opens,
}

/// What is done about nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Something is asked of the API server.
    Asks(ApiRequest),
    /// A machine is switched on that was never there: the first of its name, or another one.
    Comes(u8),
    /// A machine is shut down in order.
    ShutsDown(u8),
    /// A machine is switched off for so long.
    SwitchesOff(u8, Duration),
}

/// What comes after a machine has gone down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fall {
    /// It comes up again.
    Reboots,
    /// It is off for so long.
    Off(Duration),
    /// It is taken away.
    Leaves,
}

/// A machine that is switched on while people are at work already.
#[derive(Debug)]
struct Newcomer {
    number: u8,
    at: Time,
    is_there: bool,
}

/// A node that somebody empties.
#[derive(Debug)]
struct Drained {
    number: u8,
    /// When that begins, and when it is given up.
    at: Time,
    until: Time,
    then: Then,
    stage: Stage,
    /// When what was asked last: to cordon it, say, or to evict a pod.
    asked: BTreeMap<String, Time>,
}

/// What who empties a node goes by.
struct Seen<'a> {
    now: Time,
    is_calm: bool,
    /// What is stored of it, and its machine, where there are such.
    node: Option<&'a Value>,
    machine: Option<&'a Node>,
    observer: &'a Observer,
}

/// All that people do with nodes.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    newcomer: Option<Newcomer>,
    drained: Vec<Drained>,
    /// Pods that were to be evicted, by namespace and name.
    evicted: BTreeSet<String>,
    /// A node was taken away, with what came there too late.
    has_lost: bool,
}

impl Drains {
    /// What the seed chooses for a cluster that begins then, with so many nodes.
    pub(crate) fn new(begin: Time, root: &Rng, nodes: u8, options: &Options) -> Self {
        if nodes == 0 || !are_there(&root.fork("workload"), options) {
            return Self::default();
        }
        let (mut rng, safety) = (root.fork(PART), options.safety);
        if options.hint().is_some() {
            let (at, then) = (begin + safety / 10, Then::Off { away: OFF.1, in_order: true });
            return Self { drained: vec![Drained::new(nodes, at, at + safety, then)], ..Self::default() };
        }
        let comes = rng.one_in(2);
        let at = begin + between(&mut rng, safety / 8, safety / 2);
        let newcomer = comes.then_some(Newcomer { number: nodes + 1, at, is_there: false });
        let count = (1 + rng.below(2)).min(nodes.into());
        let first = rng.below(nodes.into());
        let numbers = (0..count).map(|n| 1 + u8::try_from((first + n) % u64::from(nodes)).unwrap_or(0));
        let drained = numbers.map(|number| Drained::drawn(&mut rng, number, begin, safety)).collect();
        Self { newcomer, drained, ..Self::default() }
    }

    /// The machine that is switched on later, if there is one.
    pub(crate) fn newcomer(&self) -> Option<u8> {
        self.newcomer.as_ref().map(|newcomer| newcomer.number)
    }

    /// What is to be done now. Once nothing fails any more, no machine is switched off.
    pub(crate) fn look(
        &mut self,
        now: Time,
        is_calm: bool,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
    ) -> Vec<Deed> {
        let mut deeds = Vec::new();
        if let Some(newcomer) = self.newcomer.as_mut().filter(|newcomer| !newcomer.is_there && newcomer.at <= now) {
            newcomer.is_there = true;
            deeds.push(Deed::Comes(newcomer.number));
        }
        for drained in &mut self.drained {
            let node = observer.get("node", &node_name(drained.number));
            let seen = Seen { now, is_calm, node, machine: nodes.get(&drained.number), observer };
            deeds.extend(drained.look(&seen, &mut self.evicted));
        }
        deeds
    }

    /// A machine has gone down. One that was to is taken away if nothing ties it, with its data if no other one comes.
    pub(crate) fn goes_down(&mut self, number: u8, now: Time, tie: Tie) -> Fall {
        let falls = |drained: &&mut Drained| drained.number == number && drained.stage == Stage::Falls;
        let Some(drained) = self.drained.iter_mut().find(falls) else { return Fall::Reboots };
        drained.stage = Stage::Off;
        match drained.then {
            Then::Opens => Fall::Reboots,
            Then::Off { away, .. } => Fall::Off(away),
            Then::Leaves { another } if tie == Tie::Tied || tie == Tie::Data && another.is_some() => Fall::Off(OFF.0),
            Then::Leaves { another } => {
                self.has_lost = true;
                drained.stage = Stage::Leaves { another: another.map(|after| now + after) };
                Fall::Leaves
            }
        }
    }

    /// Whether a single pod may be gone that nobody has deleted: it was evicted, or was on a node that was taken away.
    pub(crate) fn may_be_gone(&self, pod: &str) -> bool {
        self.has_lost || self.evicted.contains(pod)
    }

    /// What is not yet as it is to be in the end: who was cordoned is open or gone.
    pub(crate) fn lack(&self, observer: &Observer) -> Option<String> {
        if let Some(newcomer) = self.newcomer.as_ref().filter(|newcomer| !newcomer.is_there) {
            return Some(format!("{} was not switched on yet", node_name(newcomer.number)));
        }
        self.drained.iter().find_map(|drained| {
            let name = node_name(drained.number);
            let object = observer.get("node", &name);
            let why = match drained.stage {
                Stage::Opens => object.filter(|node| is_cordoned(node)).map(|_| "is still cordoned"),
                Stage::Leaves { another: None } => object.map(|_| "was taken away, and its Node is still there"),
                Stage::Leaves { another: Some(_) } => Some("was taken away, and another one is to come"),
                Stage::Waits | Stage::Empties | Stage::Falls | Stage::Off => Some("is still being drained"),
            };
            why.map(|why| format!("{name} {why}"))
        })
    }
}

impl Drained {
    fn new(number: u8, at: Time, until: Time, then: Then) -> Self {
        Self { number, at, until, then, stage: Stage::Waits, asked: BTreeMap::new() }
    }

    fn drawn(rng: &mut Rng, number: u8, begin: Time, safety: Duration) -> Self {
        let at = begin + between(rng, safety / 6, safety / 2);
        // In a small run all of that is shorter.
        let until = at + between(rng, PATIENCE.0.min(safety), PATIENCE.1.min(safety / 3));
        let (way, is_replaced, away) = (rng.below(4), rng.one_in(2), between(rng, OFF.0, OFF.1.min(safety)));
        let then = match way {
            0 => Then::Opens,
            1 => Then::Off { away, in_order: true },
            2 => Then::Off { away, in_order: false },
            _ => Then::Leaves { another: is_replaced.then_some(away) },
        };
        Self::new(number, at, until, then)
    }

    /// Whether something may be asked that was asked a while ago, or never; and it is.
    fn asks(&mut self, now: Time, what: &str) -> bool {
        let may = self.asked.get(what).is_none_or(|at| now.since(*at) >= AGAIN);
        if may {
            self.asked.insert(what.to_owned(), now);
        }
        may
    }

    fn cordons(&mut self, now: Time, cordon: bool) -> Option<Deed> {
        let value = if cordon { Value::Bool(true) } else { Value::Null };
        self.asks(now, if cordon { "cordon" } else { "uncordon" }).then(|| {
            let (name, patch) = (node_name(self.number), json!({"spec": {"unschedulable": value}}));
            Deed::Asks(ApiRequest::patch(&KubeNode::resource(), "", &name, "", ContentType::MergePatch, &patch))
        })
    }

    /// What is to be done with it now; who is to be evicted for that is added.
    fn look(&mut self, seen: &Seen<'_>, evicted: &mut BTreeSet<String>) -> Vec<Deed> {
        let Seen { now, is_calm, node, machine, observer } = *seen;
        let mut deeds = Vec::new();
        match (self.stage, node) {
            (Stage::Waits, _) if now < self.at => {}
            (Stage::Waits, Some(_)) if machine.is_some_and(|machine| machine.up) => self.stage = Stage::Empties,
            // It was not there in all the time, somebody else has taken its Node out, or some pod does not go.
            (Stage::Waits | Stage::Empties, _) if now >= self.until => self.stage = Stage::Opens,
            (Stage::Empties, None) => self.stage = Stage::Opens,
            (Stage::Waits, _) => {}
            (Stage::Empties, Some(node)) if !is_cordoned(node) => deeds.extend(self.cordons(now, true)),
            (Stage::Empties, Some(node)) => {
                let left: Vec<&Value> = to_evict(text(node, "/metadata/name"), observer).collect();
                if left.is_empty() {
                    self.stage = if self.then == Then::Opens { Stage::Opens } else { Stage::Falls };
                }
                for pod in left.into_iter().filter(|pod| !deleting(pod)) {
                    if self.asks(now, uid(pod)) {
                        evicted.insert(key_of(pod));
                        deeds.push(Deed::Asks(crate::evictions::request(pod)));
                    }
                }
            }
            (Stage::Falls, _) => {
                let Some(machine) = machine.filter(|machine| machine.up && !machine.is_held()) else { return deeds };
                match self.then {
                    _ if is_calm => self.stage = Stage::Opens,
                    Then::Off { away, in_order: false } => {
                        self.stage = Stage::Off;
                        deeds.push(Deed::SwitchesOff(machine.number, away));
                    }
                    _ => deeds.push(Deed::ShutsDown(machine.number)),
                }
            }
            (Stage::Off, _) => {
                if machine.is_some_and(|machine| machine.up) {
                    self.stage = Stage::Opens;
                }
            }
            (Stage::Leaves { .. }, Some(node)) => {
                // The Node of another one would not be the same.
                let options = DeleteOptions { uid: Some(uid(node).to_owned()), ..DeleteOptions::default() };
                if self.asks(now, "delete") {
                    let name = node_name(self.number);
                    deeds.push(Deed::Asks(ApiRequest::delete(&KubeNode::resource(), "", &name, &options)));
                }
            }
            (Stage::Leaves { another: Some(at) }, None) if at <= now => {
                self.stage = Stage::Opens;
                deeds.push(Deed::Comes(self.number));
            }
            (Stage::Leaves { .. }, None) => {}
            (Stage::Opens, Some(node)) if is_cordoned(node) => deeds.extend(self.cordons(now, false)),
            (Stage::Opens, _) => {}
        }
        deeds
    }
}

/// The pods of a node that have to go from it. Those of a DaemonSet would come back at once, and mirrors are the kubelet's own.
fn to_evict<'a>(node: &'a str, observer: &'a Observer) -> impl Iterator<Item = &'a Value> {
    let goes = move |pod: &&Value| {
        let is_mirror = !label(pod, "annotations", MIRROR_ANNOTATION).is_empty();
        text(pod, "/spec/nodeName") == node && owner_kind(pod) != "DaemonSet" && !is_mirror
    };
    observer.all("pod").filter(goes)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    fn kube_node(cordoned: bool) -> Value {
        json!({"metadata": {"name": "node2", "uid": "n"}, "spec": {"unschedulable": cordoned}})
    }

    fn pod(name: &str, kind: &str, mirror: bool) -> Value {
        let annotations = if mirror { json!({MIRROR_ANNOTATION: "m"}) } else { json!({}) };
        json!({"metadata": {"namespace": "default", "name": name, "uid": name, "annotations": annotations,
            "ownerReferences": [{"controller": true, "kind": kind, "uid": "owner"}]}, "spec": {"nodeName": "node2"}})
    }

    fn machines(up: bool) -> BTreeMap<u8, Node> {
        let mut node = Node::new(2, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        node.up = up;
        BTreeMap::from([(2, node)])
    }

    /// What is to be done, in words.
    fn words(deeds: &[Deed]) -> Vec<String> {
        let word = |deed: &Deed| match deed {
            Deed::Asks(request) => {
                let last = request.path.rsplit('/').next().unwrap_or_default();
                format!("{:?} {last} {}", request.method, String::from_utf8_lossy(&request.body).contains("true"))
            }
            Deed::Comes(number) => format!("comes {number}"),
            Deed::ShutsDown(number) => format!("shuts down {number}"),
            Deed::SwitchesOff(number, _) => format!("switches off {number}"),
        };
        deeds.iter().map(word).collect()
    }

    fn drains(then: Then) -> Drains {
        Drains { drained: vec![Drained::new(2, at(10), at(40), then)], ..Drains::default() }
    }

    /// When a node is looked at, what there is then, whether its machine is on, and what is to be done.
    type Step<'a> = (u64, &'a [(&'static str, Value)], bool, &'a [&'a str]);

    /// Looks at a node at some times.
    fn check(own: &mut Drains, steps: &[Step<'_>]) {
        for (seconds, objects, up, expected) in steps {
            let observer = Observer::of(objects.iter().cloned());
            let done = words(&own.look(at(*seconds), false, &observer, &machines(*up)));
            assert_eq!(done, *expected, "after {seconds} s");
        }
    }

    #[test]
    fn a_node_is_emptied_and_opened_again() {
        let (open, closed) = (("node", kube_node(false)), ("node", kube_node(true)));
        let own = || ("pod", pod("a", "", false));
        let kept = || [("pod", pod("b", "DaemonSet", false)), ("pod", pod("c", "", true))];
        let [of_daemon, mirror] = kept();
        let full = [closed.clone(), own(), of_daemon.clone(), mirror.clone()];
        let empty = [closed.clone(), of_daemon, mirror];
        let mut drains = drains(Then::Off { away: OFF.0, in_order: true });
        check(
            &mut drains,
            &[
                (9, from_ref(&open), true, &[]),
                (10, from_ref(&open), true, &[]),
                (11, from_ref(&open), true, &["Patch node2 true"]),
                // What shows no effect is asked again, and not at once.
                (12, from_ref(&open), true, &[]),
                (16, from_ref(&open), true, &["Patch node2 true"]),
                (17, &full, true, &["Post eviction false"]),
                (18, &full, true, &[]),
                (22, &full, true, &["Post eviction false"]),
                (23, &empty, true, &[]),
                (24, &empty, true, &["shuts down 2"]),
            ],
        );
        assert_eq!((drains.may_be_gone("default/a"), drains.may_be_gone("default/b")), (true, false));
        assert_eq!(drains.goes_down(1, at(25), Tie::Free), Fall::Reboots, "another one");
        assert_eq!(drains.goes_down(2, at(25), Tie::Free), Fall::Off(OFF.0));
        check(
            &mut drains,
            &[
                (26, from_ref(&closed), false, &[]),
                (30, from_ref(&closed), true, &[]),
                (31, from_ref(&closed), true, &["Patch node2 false"]),
            ],
        );
        assert!(drains.lack(&Observer::of([closed.clone()])).is_some());
        assert_eq!(drains.lack(&Observer::of([open.clone()])), None);
        // A late request cordons it once more.
        check(&mut drains, &[(50, &[open], true, &[]), (60, &[closed], true, &["Patch node2 false"])]);
    }

    #[test]
    fn who_does_not_get_it_empty_in_time_gives_up() {
        let full = [("node", kube_node(true)), ("pod", pod("a", "", false))];
        let mut drains = drains(Then::Leaves { another: None });
        check(
            &mut drains,
            &[
                (38, &full, true, &[]),
                (39, &full, true, &["Post eviction false"]),
                (40, &full, true, &[]),
                (41, &full, true, &["Patch node2 false"]),
            ],
        );
        assert_eq!(drains.goes_down(2, at(42), Tie::Free), Fall::Reboots);
    }

    #[test]
    fn a_machine_is_taken_away_with_its_node() {
        let closed = [("node", kube_node(true))];
        let successor = Some(Duration::from_secs(20));
        for (another, tie, expected) in [
            (None, Tie::Free, Fall::Leaves),
            (successor, Tie::Free, Fall::Leaves),
            (None, Tie::Tied, Fall::Off(OFF.0)),
            (None, Tie::Data, Fall::Leaves),
            (successor, Tie::Data, Fall::Off(OFF.0)),
        ] {
            let mut drains = drains(Then::Leaves { another });
            check(&mut drains, &[(10, &closed, true, &[]), (11, &closed, true, &[])]);
            check(&mut drains, &[(12, &closed, true, &["shuts down 2"])]);
            assert_eq!(drains.goes_down(2, at(15), tie), expected);
            assert_eq!(drains.may_be_gone("default/a"), expected == Fall::Leaves);
            if expected != Fall::Leaves {
                continue;
            }
            check(&mut drains, &[(16, &closed, false, &["Delete node2 false"]), (17, &[], false, &[])]);
            assert_eq!(drains.lack(&Observer::of([])).is_some(), another.is_some());
            let comes: &[&str] = if another.is_some() { &["comes 2"] } else { &[] };
            check(&mut drains, &[(35, &[], false, comes)]);
            assert_eq!(drains.lack(&Observer::of([])), None);
        }
    }

    #[test]
    fn nobody_switches_anything_off_once_nothing_fails() {
        let closed = Observer::of([("node", kube_node(true))]);
        for (is_calm, expected) in [(false, vec!["switches off 2".to_owned()]), (true, Vec::new())] {
            let mut drains = drains(Then::Off { away: OFF.0, in_order: false });
            for seconds in [10, 11] {
                assert!(drains.look(at(seconds), is_calm, &closed, &machines(true)).is_empty(), "{is_calm}");
            }
            assert_eq!(words(&drains.look(at(12), is_calm, &closed, &machines(true))), expected, "{is_calm}");
        }
    }

    #[test]
    fn what_is_kept_for_a_node_ties_it() {
        let volume = |name: &str| json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"values": [name]}}});
        let claim = json!({"metadata": {"namespace": "default", "name": "c",
            "annotations": {SELECTED_NODE: "node2"}}});
        let attachment = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "node2"}});
        let node = json!({"metadata": {"name": "node2"}, "status": {"volumesAttached": [{"name": "d"}]}});
        for (object, expected) in [
            (("volume", volume("node2")), Tie::Tied),
            (("volume", volume("node20")), Tie::Free),
            (("claim", claim), Tie::Tied),
            (("attachment", attachment), Tie::Tied),
            (("node", node), Tie::Tied),
            (("node", kube_node(true)), Tie::Free),
        ] {
            let words = format!("{object:?}");
            assert_eq!(tie("node2", &Observer::of([object])), expected, "{words}");
        }
    }

    #[test]
    fn data_of_which_nothing_is_asked_may_go_with_its_node() {
        let volume = |claim: &str| {
            let volume = json!({"metadata": {"name": "v"}, "spec": {"csi": {"driver": carrack_storage::DRIVER},
                "claimRef": {"name": claim}, "nodeAffinity": {"values": ["node2"]}}});
            ("volume", volume)
        };
        let claim = |name: &str, node: &str, volume: &str| {
            let claim = json!({"metadata": {"namespace": "default", "name": name, "annotations": {SELECTED_NODE: node}},
                "spec": {"storageClassName": SOON, "volumeName": volume}});
            ("claim", claim)
        };
        let attachment = || ("attachment", json!({"metadata": {"name": "a"}, "spec": {"nodeName": "node2"}}));
        for (objects, expected) in [
            (vec![volume("tenant0")], Tie::Data),
            (vec![volume("tenant0"), claim("tenant0", "node2", "v")], Tie::Data),
            (vec![volume("growing0")], Tie::Tied),
            (vec![volume("tenant0"), claim("tenant1", "node2", "")], Tie::Tied),
            (vec![volume("tenant0"), claim("tenant1", "node1", "")], Tie::Data),
            // Nobody has taken that yet, as far as is known.
            (vec![volume("tenant0"), claim("tenant1", "", "")], Tie::Tied),
            (vec![claim("tenant1", "", "")], Tie::Tied),
            (vec![claim("tenant1", "node1", "")], Tie::Free),
            (vec![volume("tenant0"), attachment()], Tie::Tied),
        ] {
            let words = format!("{objects:?}");
            assert_eq!(tie("node2", &Observer::of(objects)), expected, "{words}");
        }
    }

    /// Pods wait for what went with a node, and nothing else does.
    #[test]
    fn nodes_go_with_what_is_on_them() {
        let only = Some(vec![PART, "tenants"]);
        let options = Options { only, safety: Duration::from_secs(60), ..Options::default() };
        for seed in 1..=6 {
            if let Some(failure) = &crate::world::run(seed, &options).failure {
                panic!("seed {seed}: {failure}");
            }
        }
    }

    /// Pods and machines come, and are evicted; and all is as it is to be in the end.
    #[test]
    fn work_goes_on_while_nodes_come_and_go() {
        let only = Some(vec![PART, "pods", "machines"]);
        let options = Options { only, safety: Duration::from_secs(60), ..Options::default() };
        for seed in 1..=3 {
            if let Some(failure) = &crate::world::run(seed, &options).failure {
                panic!("seed {seed}: {failure}");
            }
        }
    }

    /// In a small run all begins while anything fails, and is over soon.
    #[test]
    fn small_runs_have_short_drains() {
        for seed in 0..100 {
            let (safety, only) = (Duration::from_secs(4 + seed % 9), Some(vec![PART, "pods"]));
            let options = Options { small: true, only, safety, ..Options::default() };
            let own = Drains::new(at(0), &Rng::new(seed), 3, &options);
            assert!(!own.drained.is_empty(), "seed {seed}");
            for drained in &own.drained {
                let away = match drained.then {
                    Then::Off { away, .. } | Then::Leaves { another: Some(away) } => away,
                    Then::Opens | Then::Leaves { another: None } => Duration::ZERO,
                };
                let is_short = drained.until <= drained.at + PATIENCE.0 && away <= safety.max(OFF.0);
                assert!(is_short && drained.at < at(0) + safety, "seed {seed}: {drained:?}");
            }
        }
    }

    /// Who is drained is one of the nodes, no two drains are of the same one, and all begin while anything may fail.
    #[test]
    fn drains_are_of_nodes_that_are_there() {
        let (mut there, mut newcomers) = (0, 0);
        for seed in 0..200 {
            let nodes = 1 + u8::try_from(seed % 3).expect("small");
            let own = Drains::new(at(0), &Rng::new(seed), nodes, &Options::default());
            let numbers: BTreeSet<u8> = own.drained.iter().map(|drained| drained.number).collect();
            assert!(numbers.iter().all(|number| (1..=nodes).contains(number)), "seed {seed}: {numbers:?}");
            assert_eq!(numbers.len(), own.drained.len(), "seed {seed}");
            assert!(own.drained.iter().all(|drained| drained.until <= at(120)), "seed {seed}: {own:?}");
            there += usize::from(!numbers.is_empty());
            newcomers += usize::from(own.newcomer() == Some(nodes + 1));
        }
        assert!((30..70).contains(&there) && (10..there).contains(&newcomers), "{there}, {newcomers}");
        for options in [
            Options { faults: false, ..Options::default() },
            Options { workloads: true, ..Options::default() },
            Options { only: Some(vec!["pods"]), ..Options::default() },
        ] {
            let none = (0..50).all(|seed| Drains::new(at(0), &Rng::new(seed), 3, &options).drained.is_empty());
            assert!(none, "{options:?}");
        }
    }
}
