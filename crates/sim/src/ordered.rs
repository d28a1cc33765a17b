//! Pods whose containers start and end one after another: a proxy whose postStart hook holds back the container behind it, and a
//! sidecar whose preStop hook runs while the others end.
//!
//! ```text
//!   sidecar ─▶ proxy ─▶ its hook sleeps ─▶ the container behind it
//!   the pod is to go ─┬─▶ proxy and the one behind are told to end ─┬─▶ the sidecar is told to, with some time left
//!                     └─▶ the sidecar's hook ───────────────────────┘
//! ```
//!
//! A kubelet that restarts does not go on with a hook that sleeps, and what fails to start holds nobody back: what is looked at is
//! what one life of a kubelet has begun and nothing has failed of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::Op;
use serde_json::{Value, json};

use crate::invariants::Breach;
use crate::node::{Node, Runtime};
use crate::observer::{Observer, deleting};
use crate::sleepers::hooked;
use crate::workload::{Act, mounting};

/// The invariants that are looked after here.
pub(crate) const HELD: &str = "hooks-hold-back";
pub(crate) const SIGNALS: &str = "hooks-before-signals";
/// The name of this part of the work.
pub(crate) const PART: &str = "ordered";

/// The names of their containers, which nobody else's have.
const PROXY: &str = "proxy";
const BEHIND: &str = "behind";
const BESIDE: &str = "beside";
/// How the images of proxies begin. Each has its own, so that it is known whose cannot be looked up.
const IMAGE: &str = "sim/proxy-";
/// What the hooks of sidecars run.
const BYE: &str = "says-goodbye";
/// Whoever is told to end has so long at the least, where the pod has any time.
const LEAST_S: i64 = 2;

/// Pods with such hooks.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let count = 3 + rng.below(3);
    hooked(rng, safety, ("ordered", count), ordered, acts);
}

fn ordered(rng: &mut Rng, name: &str) -> Value {
    // A hook may not sleep for longer than its pod may take to end.
    let hook_s = 2 + rng.below(6);
    let mut pod = mounting(name, hook_s + 1 + rng.below(4), "none", "emptyDir", json!({}));
    pod["spec"]["volumes"] = json!([]);
    let mut main = pod["spec"]["containers"][0].clone();
    main["volumeMounts"] = json!([]);
    let named = |name: &str| {
        let mut container = main.clone();
        container["name"] = name.into();
        container
    };
    let (mut proxy, mut beside) = (named(PROXY), named(BESIDE));
    proxy["image"] = format!("{IMAGE}{name}").into();
    proxy["lifecycle"] = json!({"postStart": {"sleep": {"seconds": hook_s}}});
    // Half of them mostly take all the time that there is.
    let stops_in_s = if rng.one_in(2) { "60" } else { "1" };
    proxy["env"] = json!([{"name": "STOPS_IN_S", "value": stops_in_s}]);
    beside["restartPolicy"] = "Always".into();
    beside["lifecycle"] = json!({"preStop": {"exec": {"command": [BYE]}}});
    pod["spec"]["initContainers"] = json!([beside]);
    pod["spec"]["containers"] = json!([proxy, named(BEHIND)]);
    pod
}

/// For how long a pod's proxy holds the other one back.
fn holds_back(pod: &Value) -> Option<Duration> {
    let seconds = pod.pointer("/spec/containers/0/lifecycle/postStart/sleep/seconds")?.as_u64()?;
    Some(Duration::from_secs(seconds))
}

/// Whether a pod is to go, and was given time for that.
fn has_time(pod: &Value) -> bool {
    deleting(pod) && pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64) > Some(0)
}

/// A proxy in one sandbox.
#[derive(Debug, Default)]
struct Proxy {
    /// How often it was asked for there.
    made: u32,
    /// The life of the kubelet that has started it and was told so, and its id.
    begun: Option<(u32, String)>,
}

/// A sidecar that runs.
#[derive(Debug)]
struct Sidecar {
    /// Its pod's UID.
    pod: String,
    /// The life of the kubelet that has started it and was told so.
    life: u32,
    /// That life has told others of the pod to end, while there was time.
    others_end: bool,
    /// Its hook was run.
    hooked: bool,
    /// It was told to end.
    is_told: bool,
}

impl Sidecar {
    /// What is wrong with how it is told to end, where its pod has time for that.
    fn wrong(&self, timeout_s: i64) -> Option<String> {
        if !self.hooked {
            return Some("before its hook was run".to_owned());
        }
        (timeout_s < LEAST_S).then(|| format!("with {timeout_s} s left"))
    }
}

/// What the kubelets of a node have done with such containers.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    /// By their sandboxes.
    proxies: BTreeMap<String, Proxy>,
    /// By their ids.
    sidecars: BTreeMap<String, Sidecar>,
    /// Images of proxies that could not be looked up once. Others may have begun meanwhile.
    unseen: BTreeSet<String>,
}

/// The image of a proxy that an operation looks up.
pub(crate) fn looked_up(op: &Op) -> Option<&str> {
    let (Op::FindImage(image) | Op::PullImage { image, .. }) = op else { return None };
    Some(image.as_str()).filter(|image| image.starts_with(IMAGE))
}

/// The kubelet of a life asks its node for something.
pub(crate) fn asked(node: &mut Node, life: u32, op: &Op, observer: &Observer, breaches: &mut Vec<Breach>) {
    if !node.up {
        return;
    }
    let Node { runtime, ordered, .. } = node;
    match op {
        Op::CreateContainer(_, spec) if spec.name == PROXY => {
            ordered.proxies.entry(spec.sandbox_id.clone()).or_default().made += 1;
        }
        Op::Exec { id, command, .. } if matches!(command.as_slice(), [word] if word == BYE) => {
            if let Some(sidecar) = ordered.sidecars.get_mut(id) {
                sidecar.hooked = true;
            }
        }
        Op::StopContainer { id, timeout_s } => {
            ordered.told(life, (id.as_str(), *timeout_s), runtime, observer, breaches);
        }
        _ => {}
    }
}

impl Hooks {
    /// The image of a proxy could not be looked up.
    pub(crate) fn unseen(&mut self, image: String) {
        self.unseen.insert(image);
    }

    /// A container is told to end, with so many seconds left.
    fn told(
        &mut self,
        life: u32,
        (id, timeout_s): (&str, i64),
        runtime: &Runtime,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let Some(record) = runtime.record(id) else { return };
        let pod = &*record.pod.uid;
        if matches!(record.name.as_str(), PROXY | BEHIND) && timeout_s >= LEAST_S {
            let beside = |(id, s): &(&String, &mut Sidecar)| s.pod == *pod && s.life == life && runtime.is_running(id);
            self.sidecars.iter_mut().filter(beside).for_each(|(_, sidecar)| sidecar.others_end = true);
        }
        let Some(sidecar) = self.sidecars.get_mut(id) else { return };
        // What is tried again has had its time.
        let again = std::mem::replace(&mut sidecar.is_told, true);
        // Where the machine goes down, it says how long.
        let counts = sidecar.others_end && sidecar.life == life && !again && !runtime.is_shut_down();
        let goes_in_time = || observer.pod(&record.pod).is_some_and(has_time);
        if let Some(wrong) = sidecar.wrong(timeout_s).filter(|_| counts && goes_in_time()) {
            let what = format!("{id} ({BESIDE}) of {} is told to end {wrong}", record.pod);
            breaches.push(Breach::new(SIGNALS, what));
        }
    }

    /// The start of a container has taken effect, or has not; and the kubelet of a life is told that it has, or is not.
    pub(crate) fn started(
        &mut self,
        now: Time,
        life: u32,
        (id, is_told): (&str, bool),
        runtime: &Runtime,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let begins = |id: &&str| runtime.is_running(id);
        let Some(record) = Some(id).filter(begins).and_then(|id| runtime.record(id)) else { return };
        match record.name.as_str() {
            PROXY if is_told => {
                let proxy = self.proxies.entry(record.sandbox_id.clone()).or_default();
                proxy.begun = Some((life, id.to_owned()));
            }
            BESIDE if is_told => {
                let pod = record.pod.uid.to_string();
                let sidecar = Sidecar { pod, life, others_end: false, hooked: false, is_told: false };
                self.sidecars.insert(id.to_owned(), sidecar);
            }
            BEHIND if record.started_at == Some(now) => {
                let proxy = self.proxies.get(&record.sandbox_id).filter(|proxy| proxy.made == 1);
                let begun = proxy.and_then(|proxy| proxy.begun.as_ref()).filter(|(of, _)| *of == life);
                let runs = begun.filter(|(_, id)| runtime.is_running(id)).and_then(|(_, id)| runtime.record(id));
                let Some(proxy) = runs.filter(|proxy| !self.unseen.contains(&proxy.image)) else { return };
                let ran = proxy.started_at.map(|at| now.since(at)).unwrap_or_default();
                let Some(holds) = observer.pod(&record.pod).and_then(holds_back).filter(|holds| ran < *holds) else {
                    return;
                };
                let (ran, holds) = (ran.as_millis(), holds.as_secs());
                let what = format!(
                    "{id} ({BEHIND}) of {} starts {ran} ms after {PROXY}, whose hook takes {holds} s",
                    record.pod
                );
                breaches.push(Breach::new(HELD, what));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_hold_back_for_some_seconds() {
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let pod = ordered(&mut rng, "a");
            let holds = holds_back(&pod).unwrap_or_default().as_secs();
            assert!((2..=7).contains(&holds), "{pod}");
            assert_eq!(pod["spec"]["initContainers"][0]["restartPolicy"], "Always");
            let names: Vec<&Value> = (0..2).map(|n| &pod["spec"]["containers"][n]["name"]).collect();
            assert_eq!(names, [PROXY, BEHIND]);
        }
    }

    #[test]
    fn signals_come_after_hooks_and_in_time() {
        for (hooked, timeout_s, expected) in [
            (true, LEAST_S, None),
            (true, 9, None),
            (true, 0, Some("with 0 s left")),
            (true, 1, Some("with 1 s left")),
            (false, 9, Some("before its hook was run")),
            (false, 0, Some("before its hook was run")),
        ] {
            let sidecar = Sidecar { pod: "u".into(), life: 1, others_end: true, hooked, is_told: false };
            assert_eq!(sidecar.wrong(timeout_s).as_deref(), expected, "{hooked} {timeout_s}");
        }
    }

    #[test]
    fn who_is_to_go_may_have_time() {
        for (grace_s, goes, expected) in [(0, true, false), (3, true, true), (3, false, false)] {
            let at = if goes { json!("2026-11-01T00:00:00Z") } else { Value::Null };
            let pod = json!({"metadata": {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace_s}});
            assert_eq!(has_time(&pod), expected, "{pod}");
        }
    }
}
