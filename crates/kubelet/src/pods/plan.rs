//! What to do next for one pod: a pure reading of its spec against what the runtime shows.
//!
//! ```text
//!  no sandbox ─▶ sandbox ─▶ init containers, one after another ─▶ containers ─▶ end (by restart policy)
//!      ▲            │ died                                            │ exited
//!      └─ stopped ◀─┘                                                 └─ restarted (backoff is the worker's)
//! ```
//!
//! A container whose state is unknown counts as one that may run: another is started in its place only once it is known to have
//! ended, and who stays unknown is stopped for that. The plan names everything that
//! could be done; the worker leaves out what is already under way.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::records::Records;
use super::rounds;
use crate::runtime::{ContainerRecord, ContainerState, SandboxRecord};
use crate::spec::pod::{self, ContainerKind, RestartPolicy};

/// What probes say of a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its startup probe passed, or it has none.
    pub started: bool,
    /// Its readiness probe passes, or it has none.
    pub ready: bool,
    /// Its liveness or startup probe says that it must be restarted.
    pub must_restart: bool,
}

impl Default for Verdict {
    fn default() -> Self {
        Self { started: true, ready: true, must_restart: false }
    }
}

/// What a plan rests on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its sandboxes.
    pub sandboxes: &'a [&'a SandboxRecord],
    /// Its containers.
    pub containers: &'a [&'a ContainerRecord],
    /// Sandboxes whose stop was acknowledged.
    pub stopped: &'a BTreeSet<String>,
    /// Verdicts by container id.
    pub verdicts: &'a BTreeMap<String, Verdict>,
    /// Containers that were started once, as the API remembers, with their restart counts. Where the
    /// runtime has no record of one, it was lost.
    pub ran_before: &'a BTreeMap<String, u32>,
    /// Containers that are over and to be forgotten ([`dead::surplus`](super::dead::surplus)).
    pub surplus: &'a BTreeSet<String>,
    /// Containers that are to be started again for another size.
    pub outgrown: &'a BTreeSet<String>,
    /// Containers that are to be started again for another definition, for a probe or in another sandbox, and might not be for how
    /// they end.
    pub renewed: &'a BTreeSet<String>,
    /// Containers that are or were stopped for any of that: how they end says nothing.
    pub restarting: &'a BTreeSet<String>,
    /// Containers whose state has been unknown for long.
    pub lost: &'a BTreeSet<String>,
    /// Containers that could not be stopped, and whose time is over.
    pub spent: &'a BTreeSet<String>,
    /// The round that it is in ([`rounds`]).
    pub round: u32,
}

/// Whether a running container is of another definition than its pod's now. One that an upstream kubelet made is taken over as
/// it is.
#[must_use]
pub fn is_redefined(c: &Container, r: &ContainerRecord) -> bool {
    r.hash.starts_with(pod::HASH_PREFIX) && r.hash != pod::container_hash(c)
}

impl Facts<'_> {
    /// Whether a container that ended with this code is started again.
    fn restarts(&self, kind: ContainerKind, c: &Container, r: &ContainerRecord, code: i32) -> bool {
        self.restarting.contains(&r.id) || pod::restarts(self.pod, kind, c, code)
    }
}

impl<'a> Facts<'a> {
    /// The records of its containers.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        self.containers.iter().copied().collect()
    }

    /// Those of its round.
    fn records_of_round(&self) -> Records<'a> {
        self.containers.iter().filter(|c| c.round >= self.round).copied().collect()
    }

    /// Those of them in one of its sandboxes.
    fn records_in(&self, sandbox: &SandboxRecord) -> Records<'a> {
        let is_here = |c: &&&ContainerRecord| c.sandbox_id == sandbox.id && c.round >= self.round;
        self.containers.iter().filter(is_here).copied().collect()
    }
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: ContainerKind,
    /// Restart count that it gets.
    pub attempt: u32,
    /// Sandbox.
    pub sandbox_id: String,
    /// The round that it is made in.
    pub round: u32,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Why, for the event.
    pub message: String,
    /// At once: with neither its preStop hook nor any time.
    pub at_once: bool,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All containers succeeded.
    Succeeded,
    /// One did not.
    Failed,
}

/// What could be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Run a sandbox with this attempt.
    pub run_sandbox: Option<u32>,
    /// Stop these sandboxes.
    pub stop_sandboxes: Vec<String>,
    /// Forget these sandboxes.
    pub remove_sandboxes: Vec<String>,
    /// Start these containers.
    pub start: Vec<Start>,
    /// Stop these containers.
    pub kill: Vec<Kill>,
    /// Stop these when their turn has come; what they do before that, they may do at once (of [`stop`] alone).
    pub later: Vec<Kill>,
    /// Forget these containers.
    pub remove: Vec<String>,
    /// Nothing of it will run again.
    pub end: Option<End>,
    /// All of it is stopped (of [`stop`] alone).
    pub stopped: bool,
}

/// The newest record of a container.
#[must_use]
pub fn newest<'a>(containers: &[&'a ContainerRecord], name: &str) -> Option<&'a ContainerRecord> {
    containers.iter().filter(|c| c.name == name).max_by_key(|c| (c.attempt, c.created_at)).copied()
}

/// The sandbox that the pod lives in: the newest.
#[must_use]
pub fn current_sandbox<'a>(sandboxes: &[&'a SandboxRecord]) -> Option<&'a SandboxRecord> {
    sandboxes.iter().max_by_key(|s| (s.attempt, s.created_at)).copied()
}

/// The containers that may run outside the pod's sandbox: theirs has died under them, or is an older one.
#[must_use]
pub fn displaced<'a>(sandboxes: &[&SandboxRecord], containers: &[&'a ContainerRecord]) -> Vec<&'a ContainerRecord> {
    let ready = current_sandbox(sandboxes).filter(|s| s.ready).map(|s| s.id.as_str());
    containers.iter().filter(|c| c.may_run() && Some(c.sandbox_id.as_str()) != ready).copied().collect()
}

/// Whether it has to be written down before such a container is stopped why it is: it is to run again in another sandbox, and
/// might not for how it ends (upstream decides what to start before it stops anything, in one `SyncPod`).
#[must_use]
pub fn is_stopped_on_record(pod: &Pod, r: &ContainerRecord) -> bool {
    let goes_on =
        |c: &Container| !pod::starts_again_alone(pod, ContainerKind::Regular, c) && pod::restarts_after_a_probe(pod, c);
    pod::spec(pod).containers.iter().any(|c| c.name == r.name && goes_on(c))
}

/// Whether the pod's init containers are done in its sandbox: the last one has let on what comes after it, or a regular container
/// has been made after them.
#[must_use]
pub fn initialized(f: &Facts<'_>) -> bool {
    let Some(sandbox) = current_sandbox(f.sandboxes) else { return pod::init_containers(f.pod).next().is_none() };
    let here = f.records_in(sandbox);
    if pod::spec(f.pod).containers.iter().any(|c| here.newest(&c.name).is_some()) {
        return true;
    }
    let furthest = furthest(f.pod, &here);
    pod::init_containers(f.pod)
        .enumerate()
        .all(|(place, (kind, c))| furthest > Some(place) || lets_on(f, kind, here.newest(&c.name)))
}

/// Whether what comes after an init container may begin: it has succeeded, or it runs on and has started.
fn lets_on(f: &Facts<'_>, kind: ContainerKind, record: Option<&ContainerRecord>) -> bool {
    record.is_some_and(|r| match kind {
        ContainerKind::Sidecar => r.may_run() && f.verdicts.get(&r.id).copied().unwrap_or_default().started,
        _ => r.exit_code() == Some(0),
    })
}

/// The place of the last init container that has been made in a sandbox. Those before it have let it on, whatever has become of
/// them: those that run once do not run again beside it, also where the runtime knows no more of them, and those that run on are
/// kept running and hold up nobody any more (upstream's `computeInitContainerActions`).
fn furthest(pod: &Pod, here: &Records<'_>) -> Option<usize> {
    let made = pod::init_containers(pod).enumerate().filter(|(_, (_, c))| here.newest(&c.name).is_some());
    made.map(|(place, _)| place).max()
}

fn next_attempt(f: &Facts<'_>, all: &Records<'_>, name: &str) -> u32 {
    let seen = all.named(name).iter().map(|c| c.attempt.saturating_add(1)).max();
    let told = f.ran_before.get(name).map(|n| n.saturating_add(1));
    seen.max(told).unwrap_or(0)
}

/// How the pod ended, if nothing of it may run again. What is of an earlier round has not ended: it is to run in this one.
fn end(f: &Facts<'_>, all: &Records<'_>, of_round: &Records<'_>, sandbox_ready: bool) -> Option<End> {
    let stays_failed = |kind, c: &Container| {
        let code = of_round.newest(&c.name).and_then(ContainerRecord::exit_code);
        code.is_some_and(|code| code != 0 && !pod::restarts(f.pod, kind, c, code))
    };
    if pod::init_containers(f.pod).any(|(kind, c)| kind == ContainerKind::Init && stays_failed(kind, c)) {
        return Some(End::Failed);
    }
    let regular = &pod::spec(f.pod).containers;
    // The exit code of each, 137 for one that ran and was lost; none for one that never started.
    let codes: Vec<Option<i32>> = regular
        .iter()
        .map(|c| match of_round.newest(&c.name) {
            Some(r) => r.exit_code(),
            None if all.newest(&c.name).is_some() => None,
            None => f.ran_before.contains_key(&c.name).then_some(137),
        })
        .collect();
    let ended = |(c, code): (&Container, &Option<i32>)| {
        let again = of_round.newest(&c.name).is_some_and(|r| f.restarting.contains(&r.id));
        code.map(|code| !again && !pod::restarts(f.pod, ContainerKind::Regular, c, code))
    };
    let ends: Vec<Option<bool>> = regular.iter().zip(&codes).map(ended).collect();
    if ends.contains(&Some(false)) {
        return None;
    }
    let may_run = |c: &Container| all.named(&c.name).iter().any(|r| r.may_run());
    // When its sandbox died under it, a pod that is never started again and has begun is over even if some of its
    // containers had not started yet.
    let dead = || {
        pod::restart_policy(f.pod) == RestartPolicy::Never
            && !sandbox_ready
            && !regular.iter().any(may_run)
            && !f.sandboxes.is_empty()
            && ends.iter().any(Option::is_some)
    };
    if (ends.iter().all(Option::is_some) && !ends.is_empty()) || dead() {
        let good = codes.iter().all(|c| *c == Some(0));
        return Some(if good { End::Succeeded } else { End::Failed });
    }
    None
}

/// Another definition is a reason to start a container again whatever the policy is, and a probe is one unless the policy is never
/// to (upstream's `computePodActions`). Who is started again for any end, and alone, is stopped at once, others when it is known
/// why ([`Facts::renewed`]): a container that heeds its stop signal may well end with 0.
fn check_running(f: &Facts<'_>, kind: ContainerKind, c: &Container, r: &ContainerRecord, plan: &mut Plan) {
    let starts_again = pod::starts_again_alone(f.pod, kind, c) || f.renewed.contains(&r.id);
    let may_stop = starts_again || !pod::restarts_after_a_probe(f.pod, c);
    let message = if is_redefined(c, r) && starts_again {
        format!("Container {} definition changed, will be restarted", c.name)
    } else if f.outgrown.contains(&r.id) {
        format!("Container {} resize requires restart", c.name)
    } else if let Some(v) = f.verdicts.get(&r.id).filter(|v| v.must_restart && may_stop) {
        let which = if v.started { "liveness" } else { "startup" };
        let then = if starts_again { ", will be restarted" } else { "" };
        format!("Container {} failed {which} probe{then}", c.name)
    } else {
        return;
    };
    plan.kill.push(Kill { id: r.id.clone(), name: c.name.clone(), message, at_once: false });
}

/// The records of a pod's containers.
struct Known<'a> {
    all: Records<'a>,
    /// Those of its round.
    of_round: Records<'a>,
    /// Those of them in its sandbox.
    here: Records<'a>,
}

/// Looks after one container that should be there. Returns whether it runs and has started.
fn keep(
    f: &Facts<'_>,
    Known { all, of_round, here }: &Known<'_>,
    sandbox_id: &str,
    kind: ContainerKind,
    c: &Container,
    plan: &mut Plan,
) -> bool {
    let start = |plan: &mut Plan| {
        plan.start.push(Start {
            name: c.name.clone(),
            kind,
            attempt: next_attempt(f, all, &c.name),
            sandbox_id: sandbox_id.to_owned(),
            round: f.round,
        });
    };
    match here.newest(&c.name) {
        None => {
            // Who is done is not done once more in another sandbox, such as after a reboot (upstream's `computePodActions`).
            let is_over = |r: &ContainerRecord| r.exit_code().is_some_and(|code| !f.restarts(kind, c, r, code));
            if kind != ContainerKind::Regular || !of_round.newest(&c.name).is_some_and(is_over) {
                start(plan);
            }
            false
        }
        Some(r) => match &r.state {
            // Made but never started: whoever made it died in between. It never ran.
            ContainerState::Created => {
                plan.remove.push(r.id.clone());
                false
            }
            ContainerState::Running => {
                check_running(f, kind, c, r, plan);
                f.verdicts.get(&r.id).copied().unwrap_or_default().started
            }
            ContainerState::Unknown => {
                let is_noted = !is_stopped_on_record(f.pod, r) || f.renewed.contains(&r.id);
                if f.lost.contains(&r.id) && is_noted {
                    // Upstream's words, which name it nowhere.
                    let is_init = matches!(kind, ContainerKind::Init | ContainerKind::Sidecar);
                    let what = if is_init { "Init container" } else { "Container" };
                    let message = format!("{what} is in \"unknown\" state, try killing it before restart");
                    plan.kill.push(Kill { id: r.id.clone(), name: c.name.clone(), message, at_once: false });
                }
                false
            }
            ContainerState::Exited { code, .. } => {
                if f.restarts(kind, c, r, *code) {
                    start(plan);
                }
                false
            }
        },
    }
}

/// Containers that are over and of which there are enough, and old sandboxes that hold nothing any more.
fn sweep(f: &Facts<'_>, plan: &mut Plan) {
    let over = f.containers.iter().filter(|c| c.exit_code().is_some() && f.surplus.contains(&c.id));
    plan.remove.extend(over.map(|c| c.id.clone()));
    let current = current_sandbox(f.sandboxes).map(|s| s.id.as_str());
    for s in f.sandboxes {
        if Some(s.id.as_str()) != current
            && f.stopped.contains(&s.id)
            && !f.containers.iter().any(|c| c.sandbox_id == s.id)
        {
            plan.remove_sandboxes.push(s.id.clone());
        }
    }
}

/// Ends what is left in the sandbox of the round before: those that may run are killed, and have no time for it, and those that
/// were never started are removed. True while any may run: until then none begins.
fn clear(f: &Facts<'_>, sandbox: &SandboxRecord, plan: &mut Plan) -> bool {
    let mut runs = false;
    for r in f.containers.iter().filter(|r| r.sandbox_id == sandbox.id && rounds::is_left(f.pod, r, f.round)) {
        if r.may_run() {
            runs = true;
            let message = format!("Container {} is killed, all containers of the pod will be restarted", r.name);
            plan.kill.push(Kill { id: r.id.clone(), name: r.name.clone(), message, at_once: true });
        } else if r.state == ContainerState::Created {
            plan.remove.push(r.id.clone());
        }
    }
    runs
}

/// What to do for a pod that should run.
#[must_use]
pub fn run(f: &Facts<'_>) -> Plan {
    let mut plan = Plan::default();
    let current = current_sandbox(f.sandboxes);
    let ready = current.filter(|s| s.ready);
    let (all, of_round) = (f.records(), f.records_of_round());
    plan.end = end(f, &all, &of_round, ready.is_some());
    if plan.end.is_some() {
        return plan;
    }
    sweep(f, &mut plan);
    let ready_id = ready.map(|s| s.id.as_str());
    let displaced = displaced(f.sandboxes, f.containers);
    // With its sandbox a container ends at once: it has its time before that, and where it cannot be stopped the sandbox is all the
    // same (upstream's `killPodWithSyncResult`).
    let is_empty = |id: &str| !displaced.iter().any(|c| c.sandbox_id == id && !f.spent.contains(&c.id));
    for s in f.sandboxes {
        if Some(s.id.as_str()) != ready_id && !f.stopped.contains(&s.id) && is_empty(&s.id) {
            plan.stop_sandboxes.push(s.id.clone());
        }
    }
    for c in &displaced {
        if !is_stopped_on_record(f.pod, c) || f.renewed.contains(&c.id) {
            plan.kill.push(Kill {
                id: c.id.clone(),
                name: c.name.clone(),
                message: "Pod sandbox changed, it will be killed and re-created.".into(),
                at_once: false,
            });
        }
    }
    let Some(sandbox) = ready else {
        if displaced.is_empty() && plan.stop_sandboxes.is_empty() {
            plan.run_sandbox = Some(f.sandboxes.iter().map(|s| s.attempt.saturating_add(1)).max().unwrap_or(0));
        }
        return plan;
    };
    let known = Known { all, of_round, here: f.records_in(sandbox) };
    for (c, _) in pod::ephemeral_containers(f.pod).iter().filter(|(c, _)| !f.ran_before.contains_key(&c.name)) {
        match known.all.newest(&c.name) {
            None => _ = keep(f, &known, &sandbox.id, ContainerKind::Ephemeral, c, &mut plan),
            // Made but never started, as any other may be. Upstream takes it for one that has had its turn, and it waits for good.
            Some(r) if r.state == ContainerState::Created => plan.remove.push(r.id.clone()),
            Some(_) => {}
        }
    }
    if clear(f, sandbox, &mut plan) {
        return plan;
    }
    if initialized(f) {
        for (_, c) in pod::init_containers(f.pod).filter(|(k, _)| *k == ContainerKind::Sidecar) {
            keep(f, &known, &sandbox.id, ContainerKind::Sidecar, c, &mut plan);
        }
        for c in &pod::spec(f.pod).containers {
            keep(f, &known, &sandbox.id, ContainerKind::Regular, c, &mut plan);
        }
        return plan;
    }
    let furthest = furthest(f.pod, &known.here);
    for (place, (kind, c)) in pod::init_containers(f.pod).enumerate() {
        let passed = furthest > Some(place);
        if kind == ContainerKind::Init && (passed || lets_on(f, kind, known.here.newest(&c.name))) {
            continue;
        }
        let started = keep(f, &known, &sandbox.id, kind, c, &mut plan);
        let goes_on = passed || (started && kind == ContainerKind::Sidecar);
        if !goes_on {
            break;
        }
    }
    plan
}

/// What to do for a pod that should stop. `hurry` gives up the order of sidecars.
#[must_use]
pub fn stop(f: &Facts<'_>, hurry: bool, message: &str) -> Plan {
    let mut plan = Plan::default();
    let sidecars: BTreeMap<&str, usize> = pod::init_containers(f.pod)
        .filter(|(k, _)| *k == ContainerKind::Sidecar)
        .enumerate()
        .map(|(rank, (_, c))| (c.name.as_str(), rank))
        .collect();
    let rank = |name: &str| sidecars.get(name).copied();
    let alive: Vec<&&ContainerRecord> = f.containers.iter().filter(|c| c.may_run()).collect();
    // They serve regular containers alone: a shell for debugging that heeds no signal would else leave them no time of their own
    // (upstream's `newTerminationOrdering`).
    let regular: BTreeSet<&str> = pod::spec(f.pod).containers.iter().map(|c| c.name.as_str()).collect();
    let others_alive = alive.iter().any(|c| regular.contains(c.name.as_str()));
    let last_sidecar = alive.iter().filter_map(|c| rank(&c.name)).max();
    for c in &alive {
        let its_turn = hurry
            || match rank(&c.name) {
                None => true,
                // Sidecars go after the others, the last one first.
                Some(r) => !others_alive && Some(r) == last_sidecar,
            };
        let kill = Kill { id: c.id.clone(), name: c.name.clone(), message: message.to_owned(), at_once: false };
        if its_turn {
            plan.kill.push(kill);
        } else {
            plan.later.push(kill);
        }
    }
    // As above: who could not be stopped and has had his time holds up no sandbox.
    if alive.iter().all(|c| f.spent.contains(&c.id)) {
        plan.stop_sandboxes = f.sandboxes.iter().filter(|s| !f.stopped.contains(&s.id)).map(|s| s.id.clone()).collect();
        plan.stopped = alive.is_empty() && plan.stop_sandboxes.is_empty();
    }
    plan
}

/// What to forget of a pod that is stopped and about to go.
#[must_use]
pub fn forget(f: &Facts<'_>) -> Plan {
    Plan {
        remove: f.containers.iter().map(|c| c.id.clone()).collect(),
        remove_sandboxes: if f.containers.is_empty() {
            f.sandboxes.iter().map(|s| s.id.clone()).collect()
        } else {
            Vec::new()
        },
        stopped: f.containers.is_empty() && f.sandboxes.is_empty(),
        ..Plan::default()
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
