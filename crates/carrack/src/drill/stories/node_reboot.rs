//! Incident 1: a node loses its power under pods with devices and a machine, and its device plugins come back late.
//!
//! The device plugins of KubeVirt are in virt-handler, so that one comes late, too. Meanwhile a pod is deleted. Upstream's
//! kubelet rejects what it finds (`UnexpectedAdmissionError`), for good.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use carrack_deviceplugin::testing;
use carrack_plot::Tone;
use serde_json::{Value, json};

use super::super::cluster::Cluster;
use super::super::machine::{self, Contained};
use super::super::roles::Role;
use super::super::stage::Stage;
use super::super::{api, looks, objects, rules};
use super::{MACHINE, Plant, Story, guest, so, start_machine, whole_cluster};

const RESOURCE: &str = "drill.carrack.io/widget";
const DEVICES: [&str; 3] = ["w0", "w1", "w2"];
/// The variable in which the plugin tells a container its devices.
const VARIABLE: &str = "TEST_DEVICES";
/// How long the plugins stay away.
const LATE: Duration = Duration::from_secs(4);

pub const STORY: Story = Story {
    name: "node-reboot",
    title: "a node reboots, and its device plugins come late (incident 1)",
    rules: &[
        &rules::PLUGIN_ABSENCE,
        &rules::DEVICES_OF_THIS_BOOT,
        &rules::DEVICE_HELD_ONCE,
        &rules::DELETED_PODS_GO,
        &rules::MACHINES_RUN,
        &rules::ONE_GUEST,
    ],
    plants: &[Plant {
        name: "final-rejection",
        what: "the pod that waits for its device is failed for good, as upstream's kubelet does it",
    }],
    replaceable: &["kubelet", "scheduler", "apiserver"],
    others: "",
    outage: None,
    play,
};

fn play(stage: &Stage) -> anyhow::Result<()> {
    let cluster = whole_cluster(stage, &json!([]))?;
    let plugin = Plugin::start(&cluster)?;
    cluster.wait_offer(RESOURCE, "3")?;
    let below = cluster.places.node.kubelet_root();
    let _pods = looks::pods(stage, &cluster.api)?;
    let _instances = looks::instances(stage, &cluster.api)?;
    let _guests = looks::guests(stage, &below, |_| "guest".to_owned())?;
    stage.step("two pods take a device each, and a machine boots");
    for name in ["stays", "deleted"] {
        cluster.create(api::PODS, &objects::idle_pod(name, &json!({RESOURCE: "1"})))?;
    }
    let stays = cluster.wait_pod("stays")?;
    let deleted = cluster.wait_pod("deleted")?;
    let before = start_machine(&cluster)?;
    let (first, second) = (device(&below, &stays)?, device(&below, &deleted)?);
    stage.journal.check(&rules::DEVICE_HELD_ONCE, so(first != second, || format!("both have {first}")));
    let boot = api::text(&cluster.node().map_err(anyhow::Error::msg)?, "/status/nodeInfo/bootID").to_owned();

    stage.step("the node loses its power");
    drop(plugin);
    cluster.cut_power()?;
    stage.wait("no guest runs", 30, || so(!before.process.is_alive(), || "QEMU runs".to_owned()))?;
    stage.step("meanwhile one of the pods is deleted");
    cluster.api.delete(&format!("{}/deleted", api::PODS))?;
    stage.step("the power is back; kubelet and containerd start, no device plugin does");
    cluster.start_containerd()?;
    cluster.start(Role::Kubelet)?;
    // Only Carrack's kubelet can be told of another boot; for another one a new life must do.
    let told = stage.options.programs.kubelet.is_none().then_some(boot.as_str());
    cluster.wait_node(told)?;
    if stage.planted("final-rejection") {
        stage.step("PLANTED: the pod that waits is rejected");
        let why = "Allocate failed due to can't allocate unregistered device";
        let status = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why});
        cluster.api.merge(&format!("{}/stays/status", api::PODS), &json!({"status": status}))?;
    }
    stage.must(&rules::DELETED_PODS_GO, "the deleted pod is gone", 60, || {
        let path = format!("{}/deleted", api::PODS);
        match cluster.api.get(&path).map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(pod) => Err(looks::pod_state(&pod).0),
        }
    })?;
    stage.must(&rules::PLUGIN_ABSENCE, "the other one says what it waits for", 30, || {
        let pod = one(&cluster, "stays")?;
        let (state, tone) = looks::pod_state(&pod);
        let without = so(tone != Tone::Good, || "the pod runs, and no plugin has given it a device".to_owned());
        stage.journal.check(&rules::DEVICES_OF_THIS_BOOT, without);
        let waits = tone == Tone::Busy && state.contains(RESOURCE);
        so(waits, || format!("it is {state:?}"))
    })?;
    stage.lasts(LATE)?;

    let instance = stage.wait("an instance waits for virt-handler", 60, || {
        let path = format!("{}/{MACHINE}", api::INSTANCES);
        let instance = cluster.api.get(&path).map_err(|error| error.to_string())?.ok_or("there is no instance")?;
        let phase = api::text(&instance, "/status/phase");
        so(matches!(phase, "Scheduling" | "Scheduled"), || format!("it is {phase:?}"))?;
        Ok(api::uid(&instance).to_owned())
    })?;
    stage.step("the device plugin and virt-handler come at last");
    let plugin = Plugin::start(&cluster)?;
    cluster.start(Role::VirtHandler)?;
    stage.must(&rules::DEVICES_OF_THIS_BOOT, "the pod runs with a device of this boot", 60, || {
        let pod = cluster.ready_pod("stays")?;
        so(api::uid(&pod) == api::uid(&stays), || "it is another pod".to_owned())?;
        let device = device(&below, &pod).map_err(|error| format!("{error:#}"))?;
        so(plugin.handed_out(&device), || format!("it has {device}, which was not handed out in this boot"))
    })?;
    stage.must(&rules::MACHINES_RUN, "the machine runs again", 180, || {
        let now = guest(&cluster, &below)?;
        so(now.process != before.process, || "it is the guest from before".to_owned())
    })?;
    // It has waited, and was not failed for what was away.
    let path = format!("{}/{MACHINE}", api::INSTANCES);
    let now = cluster.api.get(&path)?.map(|instance| api::uid(&instance).to_owned()).unwrap_or_default();
    let same = so(now == instance, || format!("instance {instance} was given up for {now}"));
    stage.journal.check(&rules::MACHINES_RUN, same);
    let again = objects::idle_pod("another", &json!({RESOURCE: "1"}));
    cluster.create(api::PODS, &again)?;
    let another = cluster.wait_pod("another")?;
    let told = |pod: &Value| {
        let ask = || device(&below, pod).map_err(|error| format!("{error:#}"));
        stage.wait("the container has a device", 60, ask)
    };
    let (first, second) = (told(&one(&cluster, "stays").map_err(anyhow::Error::msg)?)?, told(&another)?);
    stage.journal.check(&rules::DEVICE_HELD_ONCE, so(first != second, || format!("both have {first}")));
    stage.going()
}

fn one(cluster: &Cluster<'_>, name: &str) -> Result<Value, String> {
    let found = cluster.api.get(&format!("{}/{name}", api::PODS)).map_err(|error| error.to_string())?;
    found.ok_or_else(|| format!("the pod {name} is not there"))
}

/// The device that a pod's container was told of, read from the process itself.
fn device(below: &std::path::Path, pod: &Value) -> anyhow::Result<String> {
    let shell: Contained = machine::in_pod(below, api::uid(pod), "sh").context("no process of the pod runs")?;
    shell.variable(VARIABLE).with_context(|| format!("{} has no device", api::name(pod)))
}

/// A device plugin that the drill plays.
struct Plugin<'a> {
    stage: &'a Stage,
    plugin: testing::Plugin,
}

impl<'a> Plugin<'a> {
    /// Serves, and registers as soon as the kubelet listens.
    fn start(cluster: &Cluster<'a>) -> anyhow::Result<Self> {
        let stage = cluster.stage;
        let dir: PathBuf = cluster.places.node.kubelet_root().join("device-plugins");
        let devices = DEVICES.map(|id| (id, true));
        let mut plugin = testing::Plugin::new(&dir, RESOURCE, &devices);
        let runtime = stage.runtime.handle();
        stage.wait("the device plugin is registered", 60, || {
            let _inside = runtime.enter();
            plugin.serve().map_err(|error| error.to_string())?;
            runtime.block_on(plugin.register()).map_err(|status| status.to_string())
        })?;
        stage.journal.state("device plugin", "registered", Tone::Good);
        Ok(Self { stage, plugin })
    }

    /// Whether it handed out a device in this life.
    fn handed_out(&self, device: &str) -> bool {
        let calls = self.plugin.calls();
        calls.iter().any(|call| matches!(call, testing::Call::Allocate(ids) if ids.iter().any(|id| id == device)))
    }
}

impl Drop for Plugin<'_> {
    fn drop(&mut self) {
        self.stage.journal.state("device plugin", "gone", Tone::Down);
    }
}
