//! Pods all of whose containers start again together when one of them ends with a certain code
//! (`restartPolicyRules`, `RestartAllContainers`).
//!
//! ```text
//!   setup ends well ─▶ main and watcher run ─▶ watcher ends by its rule ─▶ main is killed ─▶ setup once more ─▶ both run
//!                                                  └── the kubelet may end between any two of these, or the node
//! ```
//!
//! What is looked at is the watcher's next start: whoever starts it knows that the one before has ended, and how.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::runtime::{ContainerRecord, ContainerState, PodRef};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::env_files::{VOLUME, WRITES};
use crate::invariants::Breach;
use crate::node::{Node, NodeEvent, Runtime, named};
use crate::observer::{Change, Observer, deleting, label, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "all-start-again-together";
/// The name of this part of the work.
pub(crate) const PART: &str = "rounds";

/// Marks these pods.
const LABEL: &str = "rounds";
/// The names of their containers.
const SETUP: &str = "setup";
const WATCHER: &str = "watcher";
/// The code with which a watcher has all start again.
const CODE: i32 = 88;
/// How often a watcher has run when it ends so no more: each time all wait longer before they start again.
const RUNS: u64 = 2;

/// Pods with watchers.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(3) {
        let name = format!("rounds{n}");
        let at = between(rng, Duration::from_secs(1), safety / 3);
        let object = watched(&name, 1 + rng.below(8));
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(3) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

fn watched(name: &str, grace_s: u64) -> Value {
    let mut pod = mounting(name, grace_s, VOLUME, "emptyDir", json!({}));
    pod["metadata"]["labels"] = json!({LABEL: "true"});
    let main = pod["spec"]["containers"][0].clone();
    let named = |name: &str| {
        let mut container = main.clone();
        container["name"] = name.into();
        container
    };
    let (mut setup, mut watcher) = (named(SETUP), named(WATCHER));
    // It ends when it has written this.
    setup["env"] = json!([{"name": WRITES, "value": "A='b'"}]);
    watcher["restartPolicy"] = "Always".into();
    watcher["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [CODE]}}]);
    pod["spec"]["initContainers"] = json!([setup]);
    pod["spec"]["containers"] = json!([main, watcher]);
    pod
}

fn is_watched(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

/// Whether a pod's containers may be killed in order to start again with another one.
pub(crate) fn may_start_again(pod: &PodRef, observer: &Observer) -> bool {
    observer.pod(pod).is_some_and(is_watched)
}

/// The id of a pod's watcher that is told to run, where it has not run too often.
fn runs(pod: &Value) -> Option<&str> {
    let all = pod.pointer("/status/containerStatuses")?.as_array()?;
    let watcher = all.iter().find(|status| status["name"] == WATCHER && !status["state"]["running"].is_null())?;
    let may_end = watcher["restartCount"].as_u64().is_some_and(|count| count < RUNS);
    watcher["containerID"].as_str().filter(|_| may_end).and_then(|id| id.strip_prefix("containerd://"))
}

/// Watchers that have just begun, and end by their rule: of which nodes, and after which time.
pub(crate) fn ends(changes: &[Change], nodes: &BTreeMap<u8, Node>, root: &Rng) -> Vec<(u8, Duration, NodeEvent)> {
    let ends = |change: &Change| {
        let is_looked_at = |pod: &&Value| change.resource == "pod" && is_watched(pod) && !deleting(pod);
        let pod = change.after.as_ref().filter(is_looked_at)?;
        let id = runs(pod).filter(|id| change.before.as_ref().and_then(runs) != Some(*id))?;
        let node = named(nodes, text(pod, "/spec/nodeName"))?;
        let mut rng = root.fork(&format!("the end of {id} of {}", uid(pod)));
        let after = between(&mut rng, Duration::from_millis(100), Duration::from_secs(5));
        Some((node.number, after, NodeEvent::Exit { container: id.to_owned(), code: CODE }))
    };
    changes.iter().filter_map(ends).collect()
}

/// When a watcher has ended by its rule.
fn ended(r: &ContainerRecord) -> Option<Time> {
    match r.state {
        ContainerState::Exited { code: CODE, finished_at, .. } => Some(finished_at),
        _ => None,
    }
}

/// What is wrong with the start of a watcher beside the others of its pod: one that began before the last watcher's end runs, or
/// nothing was set up since. A new sandbox is none of a pod that went on.
fn wrong(started: &ContainerRecord, others: &[&ContainerRecord]) -> Option<String> {
    let before = others.iter().filter(|r| r.name == WATCHER && r.attempt < started.attempt);
    let last = before.max_by_key(|r| (r.attempt, r.created_at))?;
    let ended = ended(last).filter(|_| last.sandbox_id == started.sandbox_id)?;
    let old = others.iter().find(|r| r.state == ContainerState::Running && r.created_at < ended);
    let is_set_up = others.iter().any(|r| r.name == SETUP && r.created_at >= ended && r.exit_code() == Some(0));
    match old {
        Some(old) => Some(format!("while {} ({}) of before still runs", old.id, old.name)),
        None => (!is_set_up).then(|| format!("without {SETUP}")),
    }
}

/// A container was started.
pub(crate) fn started(id: &str, runtime: &Runtime, observer: &Observer, breaches: &mut Vec<Breach>) {
    let is_one = |r: &&ContainerRecord| r.name == WATCHER && runtime.is_running(&r.id);
    let Some(record) = runtime.record(id).filter(is_one) else { return };
    if !may_start_again(&record.pod, observer) {
        return;
    }
    let others: Vec<_> = runtime.records_of(&record.pod.uid).filter(|r| r.id != record.id).collect();
    if let Some(wrong) = wrong(record, &others) {
        let what = format!("{id} of {} starts after one that has ended by its rule, {wrong}", record.pod);
        breaches.push(Breach::new(NAME, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name:attempt@made=state`, with the second in which it was made; a state is `run`, or a code and the second of the end.
    fn container(text: &str) -> ContainerRecord {
        let (name, rest) = text.split_once(':').unwrap();
        let (attempt, rest) = rest.split_once('@').unwrap();
        let (made, state) = rest.split_once('=').unwrap();
        let at = |seconds: &str| Time::from_unix_s(seconds.parse().unwrap());
        let over = |(code, end): (&str, &str)| ContainerState::Exited {
            code: code.parse().unwrap(),
            reason: String::new(),
            message: String::new(),
            finished_at: at(end),
        };
        ContainerRecord {
            id: format!("{name}{attempt}"),
            sandbox_id: "s".into(),
            pod: PodRef { namespace: "default".into(), name: "rounds0".into(), uid: "uid".into() },
            name: name.into(),
            attempt: attempt.parse().unwrap(),
            state: state.split_once('/').map_or(ContainerState::Running, over),
            created_at: at(made),
            started_at: None,
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            round: 0,
            size: Default::default(),
            user: None,
        }
    }

    #[test]
    fn all_start_again_or_none() {
        for (others, expected) in [
            (&["setup:0@1=0/2", "main:0@3=run"][..], None),
            (&["setup:0@1=0/2", "main:0@3=run", "watcher:0@3=1/9"], None),
            (&["setup:0@1=0/2", "main:0@3=run", "watcher:0@3=88/9"], Some("while main0 (main) of before still runs")),
            (&["setup:0@1=0/2", "main:0@3=137/9", "watcher:0@3=88/9"], Some("without setup")),
            (&["setup:1@10=0/11", "main:1@12=run", "watcher:0@3=88/9"], None),
            (&["setup:1@10=0/11", "main:1@12=run", "watcher:0@3=88/9", "watcher:1@12=1/20"], None),
        ] {
            let others: Vec<ContainerRecord> = others.iter().map(|text| container(text)).collect();
            let others: Vec<&ContainerRecord> = others.iter().collect();
            assert_eq!(wrong(&container("watcher:2@30=run"), &others).as_deref(), expected, "{others:?}");
        }
    }

    #[test]
    fn a_watcher_ends_twice_at_the_most() {
        let pod = |count: u64, state: &str| {
            json!({"status": {"containerStatuses": [{"name": "main", "containerID": "containerd://m", "state": {}},
                {"name": WATCHER, "containerID": "containerd://w", "restartCount": count, "state": {state: {}}}]}})
        };
        for (count, state, expected) in
            [(0, "running", Some("w")), (1, "running", Some("w")), (RUNS, "running", None), (0, "waiting", None)]
        {
            assert_eq!(runs(&pod(count, state)), expected, "{count} {state}");
        }
        assert_eq!(runs(&watched("a", 1)), None);
    }
}
