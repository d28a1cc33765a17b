//! The stories: what is played, what must hold, and what can be broken on purpose.

mod api_outage;
mod clone_under_lag;
mod gpu_extender;
mod kill_9;
mod node_death;
mod node_reboot;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::cluster::Cluster;
use super::machine::{self, Contained};
use super::roles::Role;
use super::rules::Rule;
use super::stage::Stage;
use super::{api, objects};
use crate::cli::BuiltIn;

/// Something that can be broken on purpose, so that a drill has something to find.
#[derive(Debug)]
pub struct Plant {
    /// Its name.
    pub name: &'static str,
    /// What is broken.
    pub what: &'static str,
}

/// A drill.
pub struct Story {
    /// Its name.
    pub name: &'static str,
    /// What happens in it.
    pub title: &'static str,
    /// What must hold.
    pub rules: &'static [&'static Rule],
    /// What can be broken.
    pub plants: &'static [Plant],
    /// Roles that somebody else may play.
    pub replaceable: &'static [&'static str],
    /// Why nobody else may play the others, of those for which there is a flag.
    pub others: &'static str,
    /// How long what is out stays out, where that can be chosen.
    pub outage: Option<Duration>,
    /// Plays it.
    pub play: fn(&Stage) -> anyhow::Result<()>,
}

/// All drills.
pub const STORIES: &[Story] = &[
    node_reboot::STORY,
    node_death::STORY,
    clone_under_lag::STORY,
    gpu_extender::STORY,
    api_outage::STORY,
    kill_9::STORY,
];

/// A cluster with all that machines and pods need, whose node is ready and has all images. `extenders` are those that its
/// scheduler asks.
fn whole_cluster<'a>(stage: &'a Stage, extenders: &Value) -> anyhow::Result<Cluster<'a>> {
    stage.step("starting the cluster, each role a process of its own");
    let cluster = Cluster::new(stage, extenders)?;
    cluster.start_containerd()?;
    cluster.images(&[BuiltIn::Pause])?;
    cluster.start_control_plane()?;
    cluster.start(Role::Kubelet)?;
    cluster.start(Role::VirtHandler)?;
    cluster.wait_node(None)?;
    stage.step("preparing images");
    cluster.images(&[BuiltIn::VirtLauncher, BuiltIn::Busybox, BuiltIn::Demo])?;
    Ok(cluster)
}

/// The machine of the stories.
const MACHINE: &str = "demo";

/// Asks for the machine, and waits until its guest runs.
fn start_machine(cluster: &Cluster<'_>) -> anyhow::Result<Contained> {
    cluster.create(api::MACHINES, &objects::machine(MACHINE))?;
    wait_guest(cluster)
}

/// Waits until the machine's guest runs.
fn wait_guest(cluster: &Cluster<'_>) -> anyhow::Result<Contained> {
    let below = cluster.places.node.kubelet_root();
    cluster.stage.wait("the guest runs", 120, || guest(cluster, &below))
}

/// The machine's guest, once the API and the kernel agree that it runs.
fn guest(cluster: &Cluster<'_>, below: &Path) -> Result<Contained, String> {
    let path = format!("{}/{MACHINE}", api::INSTANCES);
    let instance = cluster.api.get(&path).map_err(|error| error.to_string())?.ok_or("there is no instance")?;
    let phase = api::text(&instance, "/status/phase");
    if phase != "Running" {
        return Err(format!("its instance is {phase:?}"));
    }
    machine::guests(below).into_values().next().ok_or_else(|| "there is no process of QEMU".to_owned())
}

/// Says that something is so.
fn so(holds: bool, why_not: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why_not()) }
}

/// How far a counter has come whose file this is: 1, 2, 3 and so on. A line that is being written does not count yet.
fn counted(log: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(log);
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut last = 0;
    for line in whole.lines() {
        if line.parse() != Ok(last + 1) {
            return Err(format!("after {last} comes {line:?}"));
        }
        last += 1;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters() {
        let check = |log: &str, expected: Option<u64>| assert_eq!(counted(log.as_bytes()).ok(), expected, "{log:?}");
        check("", Some(0));
        check("1\n2\n3\n", Some(3));
        check("1\n2\n3", Some(2));
        check("1\n3\n", None);
        check("1\n1\n", None);
        check("2\n", None);
    }
}
