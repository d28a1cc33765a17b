#![expect(clippy::disallowed_methods, reason = "shell: measures how long a machine is away")]
//! Incident 2: nodes that are heard no more. One loses its power, another its network. The machine runs again elsewhere,
//! and only when its guest has ended: on the node that is cut off, the guest ends by that node's own promise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::{self, ProcessId};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::super::api::{self, Api};
use super::super::machine::{self, Contained};
use super::super::stage::{Stage, Watch};
use super::super::{looks, objects, rules, sandbox};
use super::{MACHINE, Plant, Story, so};
use crate::roles::https;

/// How long a machine may be away: the promise's thirteen seconds, and what starting takes on a slow machine.
const BACK_WITHIN_S: u64 = 120;

pub const STORY: Story = Story {
    name: "node-death",
    title: "a node loses its power, another its network; the machine runs again elsewhere, and only once (incident 2)",
    rules: &[&rules::ONE_GUEST, &rules::FAILED_ON_PROOF, &rules::LAUNCHER_ALONE, &rules::MACHINES_RUN],
    plants: &[Plant {
        name: "broken-promise",
        what: "on the node that is cut off, everybody is stopped who could keep its promise to end the guest",
    }],
    replaceable: &[],
    others: "its cluster is one of `carrack up`, in which one process has all roles of the control plane and one more has all of \
             each node, so that there is no role that another program could take; and what is played is the promise that \
             Carrack's own nodes make, and upstream's do not",
    outage: None,
    play,
};

struct Nodes<'a> {
    stage: &'a Stage,
    dir: PathBuf,
    api: Api,
}

fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.step("starting a cluster of three nodes, each with a network, a containerd and an agent of its own");
    let dir = sandbox::up_dir(&stage.dir);
    let images = stage.options.images_dir.display().to_string();
    carrack(stage, &dir, &["up", "--detach", "--nodes", "3", "--timeout", "240", "--images-dir", &images])?;
    stage.step("preparing images");
    carrack(stage, &dir, &["image", "build", "demo", "--images-dir", &images])?;
    let transport = {
        let _inside = stage.runtime.enter();
        https(&dir.join("kubeconfig.yaml"))?
    };
    let api = Api::new(transport, stage.runtime.handle().clone(), api::DEFAULT_NAMESPACE);
    let nodes = Nodes { stage, dir: dir.clone(), api };

    stage.step("a machine boots");
    let _guests = looks::guests(stage, &dir, guest_lane)?;
    let _instances = looks::instances(stage, &nodes.api)?;
    let _launchers = launchers(stage, &nodes.api)?;
    nodes.api.create(api::MACHINES, &objects::machine(MACHINE))?;
    let first = stage.wait("the guest runs", 120, || nodes.running())?;

    stage.step(format!("{} loses its power", first.node));
    let second = nodes.comes_back(&first, || carrack(stage, &dir, &["node", "off", &first.node]))?;
    stage.step(format!("{} is cut off; its guest must end before another begins", second.node));
    let stopped = if stage.planted("broken-promise") { Some(nodes.stop_everybody(&second)?) } else { None };
    let link = |state: &'static str| {
        carrack(stage, &dir, &["node", "exec", &second.node, "--", "ip", "link", "set", "eth0", state])
    };
    let third = nodes.comes_back(&second, || link("down"))?;
    drop(stopped);
    stage.step("power and network are back");
    link("up")?;
    carrack(stage, &dir, &["node", "on", &first.node])?;
    for node in [&first.node, &second.node] {
        stage.must(&rules::MACHINES_RUN, &format!("{node} takes guests again"), 120, || {
            let object = nodes.api.get(&format!("{}/{node}", api::NODES)).map_err(|error| error.to_string())?;
            let object = object.ok_or("there is no Node")?;
            let label = api::text(&object, "/metadata/labels/kubevirt.io~1schedulable");
            so(label == "true", || format!("its label is {label:?}"))
        })?;
    }
    let now = nodes.running().map_err(anyhow::Error::msg)?;
    let stayed = so(now.guest == third.guest, || format!("the guest moved from {} to {}", third.node, now.node));
    stage.journal.check(&rules::FAILED_ON_PROOF, stayed);
    stage.going()
}

/// Where the machine runs, and as which instance.
struct Running {
    node: String,
    uid: String,
    guest: Contained,
}

impl Nodes<'_> {
    fn instance(&self) -> Result<Value, String> {
        let path = format!("{}/{MACHINE}", api::INSTANCES);
        self.api.get(&path).map_err(|error| error.to_string())?.ok_or_else(|| "there is no instance".to_owned())
    }

    /// The machine, once the API and the kernel agree that it runs, and where.
    fn running(&self) -> Result<Running, String> {
        let instance = self.instance()?;
        let (phase, node) = (api::text(&instance, "/status/phase"), api::text(&instance, "/status/nodeName"));
        if phase != "Running" {
            return Err(format!("its instance is {phase:?}"));
        }
        let guests = machine::guests(&self.dir);
        let here = guests.into_values().find(|guest| node_of(&guest.pod_dir) == node);
        let guest = here.ok_or_else(|| format!("there is no process of QEMU on {node}"))?;
        Ok(Running { node: node.to_owned(), uid: api::uid(&instance).to_owned(), guest })
    }

    /// Does something to a node, and waits until the machine runs on another one. Meanwhile it looks whether the old guest
    /// has ended whenever the old instance counts as failed or gone.
    fn comes_back(&self, from: &Running, act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Running> {
        let stage = self.stage;
        let (api, uid, guest) = (self.api.clone(), from.uid.clone(), from.guest.process.clone());
        let proof = stage.watch(Duration::from_millis(100), move |journal| {
            // What cannot be read proves nothing, one way or the other.
            if let Ok(found) = api.get(&format!("{}/{MACHINE}", api::INSTANCES)) {
                journal.check(&rules::FAILED_ON_PROOF, proven(found.as_ref(), &uid, guest.is_alive()));
            }
        })?;
        let began = Instant::now();
        act()?;
        let now = stage.must(&rules::MACHINES_RUN, "the machine runs on another node", BACK_WITHIN_S, || {
            let now = self.running()?;
            so(now.node != from.node && now.uid != from.uid, || format!("it runs on {}", now.node))?;
            Ok(now)
        })?;
        drop(proof);
        let ended = so(!from.guest.process.is_alive(), || format!("the guest on {} runs on", from.node));
        stage.journal.check(&rules::ONE_GUEST, ended);
        stage.journal.note(&format!("it runs on {} after {:.1} s", now.node, began.elapsed().as_secs_f64()));
        stage.going()?;
        Ok(now)
    }

    /// Stops, as by SIGSTOP, the agent of a machine's node and what watches over the guest in its pod.
    fn stop_everybody(&self, running: &Running) -> anyhow::Result<Stopped> {
        self.stage.step("PLANTED: the node's agent and the guest's monitor are stopped");
        let agent_dir = self.dir.join("nodes").join(&running.node).display().to_string();
        let is_agent = |words: &[String]| words.iter().any(|w| w == "agent") && words.contains(&agent_dir);
        let agents = process::all().into_iter().filter(|(_, words)| is_agent(words)).map(|(process, _)| process);
        let beside = machine::contained(&self.dir).into_iter();
        let beside = beside.filter(|c| c.uid() == running.guest.uid() && !c.is_guest()).map(|c| c.process);
        let stopped = Stopped(agents.chain(beside).collect());
        if stopped.0.len() < 2 {
            bail!("there is nobody to stop: {:?}", stopped.0);
        }
        stopped.send(Signal::STOP);
        Ok(stopped)
    }
}

/// An instance that counts as failed, or is gone, has no guest that runs.
fn proven(found: Option<&Value>, uid: &str, guest_runs: bool) -> Result<(), String> {
    let counts_as_ended = found.is_none_or(|now| api::uid(now) != uid || api::text(now, "/status/phase") == "Failed");
    so(!counts_as_ended || !guest_runs, || format!("the instance {uid} counts as ended, and its guest runs"))
}

/// Watches that launcher pods of two instances are never there together.
fn launchers(stage: &Stage, api: &Api) -> anyhow::Result<Watch> {
    let api = api.clone();
    stage.watch(Duration::from_millis(200), move |journal| {
        let Ok(pods) = api.list(&format!("{}?labelSelector=kubevirt.io%3Dvirt-launcher", api::PODS)) else { return };
        let mut instances: Vec<&str> =
            pods.iter().map(|pod| api::text(pod, "/metadata/labels/kubevirt.io~1created-by")).collect();
        for pod in &pods {
            let (text, tone) = looks::pod_state(pod);
            let node = api::text(pod, "/spec/nodeName");
            journal.state(&format!("pod {}", api::name(pod)), &format!("{text} on {node}"), tone);
        }
        instances.sort_unstable();
        instances.dedup();
        let outcome = so(instances.len() <= 1, || format!("there are pods of {} instances", instances.len()));
        journal.check(&rules::LAUNCHER_ALONE, outcome);
    })
}

/// Processes that go on when this is dropped.
struct Stopped(Vec<ProcessId>);

impl Stopped {
    fn send(&self, signal: Signal) {
        for process in &self.0 {
            let Some(pid) = Pid::from_raw(process.pid).filter(|_| process.is_alive()) else { continue };
            if let Err(error) = kill_process(pid, signal) {
                tracing::warn!(%error, pid = process.pid, "a signal is lost");
            }
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.send(Signal::CONT);
    }
}

/// The node in `…/nodes/NODE/kubelet/pods/UID`.
fn node_of(pod_dir: &Path) -> String {
    let node = pod_dir.ancestors().find(|dir| dir.parent().is_some_and(|parent| parent.ends_with("nodes")));
    node.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
}

fn guest_lane(pod_dir: &Path) -> String {
    format!("guest on {}", node_of(pod_dir))
}

/// Runs this program on the cluster.
fn carrack(stage: &Stage, dir: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let said = stage.dir.join("logs").join(format!("carrack-{}.log", arguments[0]));
    let said_to =
        || std::fs::OpenOptions::new().create(true).append(true).open(&said).context("a log cannot be written");
    let mut child = Command::new(program)
        .args(arguments)
        .env("CARRACK_DATA_DIR", dir)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(said_to()?)
        .stderr(said_to()?)
        .spawn()
        .context("carrack cannot be run")?;
    let waited = stage.wait(&arguments.join(" "), 300, || {
        child.try_wait().map_err(|error| error.to_string())?.ok_or_else(|| "it still runs".to_owned())
    });
    match waited {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            bail!("carrack {}: {status}: {}", arguments.join(" "), text.trim().lines().last().unwrap_or_default())
        }
        Err(error) => {
            child.kill().and_then(|()| child.wait()).context("a command does not end")?;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_of_pods() {
        let check = |path: &str, node: &str| assert_eq!(node_of(Path::new(path)), node, "{path}");
        check("/tmp/carrack-drill-7/d/nodes/node-2/kubelet/pods/u", "node-2");
        check("/tmp/elsewhere/pods/u", "");
    }

    #[test]
    fn an_instance_that_counts_as_ended_while_its_guest_runs_is_found() {
        let instance = |uid: &str, phase: &str| json!({"metadata": {"uid": uid}, "status": {"phase": phase}});
        let check = |found: Option<Value>, runs: bool, good: bool| {
            assert_eq!(proven(found.as_ref(), "u-1", runs).is_ok(), good, "{found:?} {runs}");
        };
        check(Some(instance("u-1", "Running")), true, true);
        check(Some(instance("u-1", "Failed")), false, true);
        check(Some(instance("u-1", "Failed")), true, false);
        check(Some(instance("u-2", "Scheduling")), true, false);
        check(None, true, false);
        check(None, false, true);
    }
}
