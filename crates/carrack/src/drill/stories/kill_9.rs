//! `kill -9` of each role, one after the other and again, while a machine and a pod run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::super::cluster::Cluster;
use super::super::machine::{self, Contained};
use super::super::roles::{NODE, Role};
use super::super::stage::Stage;
use super::super::{api, looks, objects, rules};
use super::{MACHINE, Plant, Story, so, start_machine, whole_cluster};

/// Who is killed, in this order.
const KILLED: [Role; 6] =
    [Role::Apiserver, Role::Kubelet, Role::VirtHandler, Role::Scheduler, Role::Controllers, Role::VirtController];
/// For how long a role stays away: shorter than a node's promise to its guests lasts.
const AWAY: Duration = Duration::from_millis(500);

pub const STORY: Story = Story {
    name: "kill-9",
    title: "each role is killed with kill -9, one after the other, while a machine and a pod run",
    rules: &[
        &rules::CONTAINERS_STAY,
        &rules::ONE_GUEST,
        &rules::ACKNOWLEDGED_STAYS,
        &rules::DATA_STAYS,
        &rules::WORK_GOES_ON,
        &rules::PLUGIN_ABSENCE,
    ],
    plants: &[
        Plant { name: "kill-the-guest", what: "the guest is killed, too" },
        Plant { name: "lose-a-write", what: "an object that was acknowledged is deleted behind the drill's back" },
    ],
    replaceable: &["kubelet", "scheduler"],
    outage: None,
    play,
};

fn play(stage: &Stage) -> anyhow::Result<()> {
    let cluster = whole_cluster(stage)?;
    stage.step("a machine boots, and a pod counts into a file");
    let below = cluster.places.node.kubelet_root();
    let _pods = looks::pods(stage, &cluster.api)?;
    let _instances = looks::instances(stage, &cluster.api)?;
    let _guests = looks::guests(stage, &below, |_| "guest".to_owned())?;
    cluster.create(api::PODS, &objects::counting_pod("counter", &[("data", json!({"emptyDir": {}}))]))?;
    let pod = cluster.wait_pod("counter")?;
    let guest = start_machine(&cluster)?;
    let counter = machine::shell_of(stage, &below, &pod)?;
    let _same = looks::same(
        stage,
        &rules::CONTAINERS_STAY,
        vec![("the guest".to_owned(), guest.clone()), ("the pod".to_owned(), counter.clone())],
    )?;

    let mut acknowledged = BTreeMap::new();
    for round in 1..=stage.options.rounds {
        for role in KILLED {
            one_kill(&cluster, round, role, &counter, &mut acknowledged)?;
            if stage.planted("kill-the-guest") {
                stage.step("PLANTED: the guest is killed");
                guest.process.kill().context("cannot kill the guest")?;
            }
        }
    }
    stage.step("is everybody back at work? a new pod, and the end of the machine");
    cluster.create(api::PODS, &objects::idle_pod("late", &json!({})))?;
    stage.must(&rules::WORK_GOES_ON, "a new pod runs", 60, || cluster.ready_pod("late"))?;
    stage.must(&rules::WORK_GOES_ON, "the pod and the machine are as they were", 10, || {
        let now = cluster.ready_pod("counter")?;
        let restarts = now.pointer("/status/containerStatuses/0/restartCount").cloned();
        so(restarts == Some(json!(0)), || format!("the pod was restarted: {restarts:?}"))?;
        so(api::uid(&now) == api::uid(&pod), || "it is another pod".to_owned())?;
        super::guest(&cluster, &below).map(drop)
    })?;
    drop(_same);
    cluster.api.delete(&format!("{}/{MACHINE}", api::MACHINES))?;
    cluster.api.delete(&format!("{}/counter", api::PODS))?;
    stage.must(&rules::WORK_GOES_ON, "what is deleted goes", 60, || {
        so(!guest.process.is_alive(), || "the guest runs".to_owned())?;
        so(!counter.process.is_alive(), || "the pod runs".to_owned())?;
        let gone = cluster.api.get(&format!("{}/counter", api::PODS)).map_err(|error| error.to_string())?.is_none();
        so(gone, || "the pod is there".to_owned())
    })?;
    stage.going()
}

/// Kills a role right after a write was acknowledged, starts it again, and looks whether all is as it was.
fn one_kill(
    cluster: &Cluster<'_>,
    round: u32,
    role: Role,
    counter: &Contained,
    acknowledged: &mut BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let stage = cluster.stage;
    stage.step(format!("round {round}: kill -9 {}", role.name()));
    let (name, value) = (format!("kept-{round}-{}", role.name()), format!("written before {} died", role.name()));
    let before = counted(counter)?;
    let renewed = lease(cluster)?;
    cluster.create(api::CONFIG_MAPS, &objects::config_map(&name, &value))?;
    cluster.kill_9(role)?;
    acknowledged.insert(name.clone(), value);
    stage.lasts(AWAY)?;
    cluster.start(role)?;
    cluster.wait_api()?;
    if stage.planted("lose-a-write") {
        stage.step("PLANTED: an acknowledged object is deleted");
        cluster.api.delete(&format!("{}/{name}", api::CONFIG_MAPS))?;
    }
    for (name, value) in acknowledged.iter() {
        let there = cluster.api.get(&format!("{}/{name}", api::CONFIG_MAPS))?;
        let held = there.as_ref().is_some_and(|object| object["data"]["value"] == value.as_str());
        let outcome = so(held, || format!("{name} was acknowledged, and is now {there:?}"));
        stage.journal.check(&rules::ACKNOWLEDGED_STAYS, outcome);
    }
    if role == Role::Kubelet {
        stage.must(&rules::WORK_GOES_ON, "the kubelet renews its Lease", 30, || {
            let now = lease(cluster).map_err(|error| format!("{error:#}"))?;
            so(now != renewed, || format!("it was renewed at {now}"))
        })?;
    }
    stage.must(&rules::DATA_STAYS, "the pod counts on, without a gap", 10, || {
        let now = counted(counter).map_err(|error| format!("{error:#}"))?;
        so(now > before, || format!("it stands at {now}"))
    })
}

/// When the node was heard last.
fn lease(cluster: &Cluster<'_>) -> anyhow::Result<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
    let lease = cluster.api.get(&path)?.context("the node has no Lease")?;
    Ok(api::text(&lease, "/spec/renewTime").to_owned())
}

/// How far the pod has counted. It has left nothing out, or this is an error.
fn counted(counter: &Contained) -> anyhow::Result<u64> {
    super::counted(&counter.file("/data/log").context("the pod's file cannot be read")?).map_err(anyhow::Error::msg)
}
