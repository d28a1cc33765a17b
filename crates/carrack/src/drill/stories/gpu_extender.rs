//! Incident 4: pods with GPUs are scaled up through an extender that writes its choice into their annotations. No room is
//! lost to pods that are nowhere, no GPU is given out twice, and who has room runs. The nodes are hollow: what goes wrong in
//! this incident goes wrong between the scheduler, its extender and the API server, and those are real.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::api::{self, Api};
use super::super::cluster::Cluster;
use super::super::roles::{NODES_PREFIX, Role};
use super::super::stage::{Stage, Watch};
use super::super::{objects, rules};
use super::{Plant, Story, so};

/// Where the extender listens.
const EXTENDER: &str = "127.0.0.1:3456";
pub(super) const CORES: &str = "tencent.com/vcuda-core";
pub(super) const MEMORY: &str = "tencent.com/vcuda-memory";
/// Nodes, and GPUs on each.
const NODES: u32 = 5;
const GPUS: u32 = 2;
/// CPUs of a hollow node, as it offers them by itself.
const CPUS: u32 = 64;
/// Pods that share a GPU with another one.
const SHARES: u32 = NODES * GPUS * 2;
/// CPUs that a pod without a GPU asks for.
const PLAIN_CPUS: u32 = 12;

pub const STORY: Story = Story {
    name: "gpu-extender",
    title: "pods with GPUs are scaled up through an extender that annotates them, and dies once (incident 4)",
    rules: &[&rules::GPU_BOUNDS, &rules::NOMINATIONS, &rules::ROOM_IS_USED],
    plants: &[Plant { name: "past-the-extender", what: "a pod is bound to a GPU that the extender gave to others" }],
    replaceable: &["scheduler", "apiserver"],
    others: "its nodes are hollow, and have no kubelet",
    outage: None,
    play,
};

fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.step("starting API server, controllers, scheduler, extender, and five hollow nodes with two GPUs each");
    let (cores, memory) = (format!("{CORES}={}", GPUS * 100), format!("{MEMORY}={}", GPUS * 16));
    let nodes = NODES.to_string();
    let amounts = ["--allocatable", cores.as_str(), "--allocatable", memory.as_str()];
    let hollow = [["--nodes", nodes.as_str(), "--prefix", NODES_PREFIX], amounts].concat();
    let cluster = Cluster::new(stage, &extenders())?.with_flags(Role::Hollow, &hollow);
    for role in [Role::Controllers, Role::Scheduler, Role::GpuExtender, Role::Hollow] {
        cluster.start(role)?;
    }
    let _watch = watch(stage, &cluster.api)?;
    let share = json!({"cpu": "1", CORES: "50", MEMORY: "8"});
    stage.step("one pod with half a GPU, then twelve");
    cluster.create(api::DEPLOYMENTS, &objects::deployment("shares", 1, &share))?;
    all_run(&cluster, "shares", 1)?;
    scale(&cluster, "shares", 12)?;
    stage.wait("some of them are bound", 60, || {
        let bound = of(&cluster.api, "shares")?.iter().filter(|pod| !node(pod).is_empty()).count();
        so(bound > 3, || format!("{bound} are"))
    })?;
    if stage.planted("past-the-extender") {
        stage.step("PLANTED: a pod is bound to a GPU that others have");
        past_the_extender(&cluster)?;
    }
    stage.step("kill -9 gpu-extender; meanwhile it is to be as many as there is room for");
    cluster.kill_9(Role::GpuExtender)?;
    scale(&cluster, "shares", SHARES)?;
    cluster.start(Role::GpuExtender)?;
    all_run(&cluster, "shares", SHARES)?;

    stage.step("what is left of the nodes can be had, all of it: nothing counts that is not there");
    let plain = NODES * ((CPUS - GPUS * 2) / PLAIN_CPUS);
    let cpus = json!({"cpu": PLAIN_CPUS.to_string()});
    cluster.create(api::DEPLOYMENTS, &objects::deployment("plain", plain, &cpus))?;
    all_run(&cluster, "plain", plain)?;
    stage.step("one pod more finds no GPU; when another goes, it runs");
    scale(&cluster, "shares", SHARES + 1)?;
    stage.must(&rules::GPU_BOUNDS, "it waits", 60, || {
        let waiting = of(&cluster.api, "shares")?.iter().any(|pod| node(pod).is_empty() && is_refused(pod));
        so(waiting, || "nobody says that there is no GPU".to_owned())
    })?;
    scale(&cluster, "shares", SHARES - 1)?;
    all_run(&cluster, "shares", SHARES - 1)?;
    stage.step("all go; every GPU can be had as a whole");
    scale(&cluster, "shares", 0)?;
    let whole = json!({CORES: (GPUS * 100).to_string()});
    cluster.create(api::DEPLOYMENTS, &objects::deployment("wholes", NODES, &whole))?;
    all_run(&cluster, "wholes", NODES)?;
    stage.must(&rules::NOMINATIONS, "nobody is nominated", 10, || {
        let pods = cluster.api.list(api::PODS).map_err(|error| error.to_string())?;
        let nominated = pods.iter().find(|pod| !nominated(pod).is_empty());
        so(nominated.is_none(), || format!("{} is", nominated.map_or("", api::name)))
    })
}

/// What the scheduler is told of the extender.
pub(super) fn extenders() -> Value {
    json!([{
        "urlPrefix": format!("http://{EXTENDER}/scheduler"), "filterVerb": "predicates",
        "prioritizeVerb": "priorities", "preemptVerb": "preemption", "bindVerb": "bind", "weight": 1,
        "httpTimeout": "10s", "nodeCacheCapable": true,
        "managedResources": [{"name": CORES}, {"name": MEMORY}],
    }])
}

/// The GPU that the extender has chosen for a pod's container.
pub(super) fn chosen(pod: &Value) -> &str {
    api::text(pod, "/metadata/annotations/tencent.com~1predicate-gpu-idx-0")
}

fn scale(cluster: &Cluster<'_>, name: &str, replicas: u32) -> anyhow::Result<()> {
    let path = format!("{}/{name}", api::DEPLOYMENTS);
    let replicas = json!({"spec": {"replicas": replicas}});
    cluster.api.merge(&path, &replicas).with_context(|| format!("cannot scale {name}"))
}

fn of(api: &Api, app: &str) -> Result<Vec<Value>, String> {
    api.list(&format!("{}?labelSelector=app%3D{app}", api::PODS)).map_err(|error| error.to_string())
}

fn all_run(cluster: &Cluster<'_>, app: &str, count: u32) -> anyhow::Result<()> {
    cluster.stage.must(&rules::ROOM_IS_USED, &format!("{count} pods of {app} run"), 120, || {
        let pods = of(&cluster.api, app)?;
        let running = pods.iter().filter(|pod| api::text(pod, "/status/phase") == "Running").count();
        let all = u32::try_from(running) == Ok(count) && pods.len() == running;
        so(all, || format!("{running} of {} do", pods.len()))
    })
}

fn node(pod: &Value) -> &str {
    api::text(pod, "/spec/nodeName")
}

fn nominated(pod: &Value) -> &str {
    api::text(pod, "/status/nominatedNodeName")
}

/// Whether a pod says that there is no GPU for it.
fn is_refused(pod: &Value) -> bool {
    pod["status"]["conditions"].to_string().contains(&format!("Insufficient {CORES}"))
}

/// Binds a pod with the annotations of one that is bound already.
fn past_the_extender(cluster: &Cluster<'_>) -> anyhow::Result<()> {
    let pods = of(&cluster.api, "shares").map_err(anyhow::Error::msg)?;
    let other = pods.iter().find(|pod| !node(pod).is_empty()).context("no pod is bound")?;
    let mut pod = objects::idle_pod("thief", &json!({CORES: "100"}));
    pod["metadata"]["annotations"] = other["metadata"]["annotations"].clone();
    pod["spec"]["nodeName"] = node(other).into();
    cluster.create(api::PODS, &pod)
}

/// Watches what is given out, and who is nominated.
fn watch(stage: &Stage, api: &Api) -> anyhow::Result<Watch> {
    let api = api.clone();
    stage.watch(Duration::from_millis(200), move |journal| {
        let Ok(pods) = api.list(api::PODS) else { return };
        journal.check(&rules::GPU_BOUNDS, within_bounds(&pods));
        journal.check(&rules::NOMINATIONS, nominations(&pods));
        for app in ["shares", "plain", "wholes"] {
            let own = || pods.iter().filter(|pod| api::text(pod, "/metadata/labels/app") == app);
            let running = own().filter(|pod| api::text(pod, "/status/phase") == "Running").count();
            let tone = if running == own().count() { carrack_plot::Tone::Good } else { carrack_plot::Tone::Busy };
            journal.state(&format!("pods of {app}"), &format!("{running} of {} run", own().count()), tone);
        }
    })
}

/// No GPU is given out beyond its cores, by what the annotations of bound pods say; and none without a choice.
pub(super) fn within_bounds(pods: &[Value]) -> Result<(), String> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !node(pod).is_empty()) {
        let cores = &pod["spec"]["containers"][0]["resources"]["limits"][CORES];
        let Some(cores) = cores.as_str().and_then(|text| text.parse::<u64>().ok()) else { continue };
        let chosen = chosen(pod);
        if chosen.is_empty() {
            return Err(format!("{} is bound without a choice of GPUs", api::name(pod)));
        }
        let each = cores / u64::try_from(chosen.split(',').count()).unwrap_or(1);
        for gpu in chosen.split(',') {
            *sums.entry(format!("{}/{gpu}", node(pod))).or_default() += each;
        }
    }
    let over = sums.into_iter().find(|(_, sum)| *sum > 100);
    over.map_or(Ok(()), |(gpu, sum)| Err(format!("{sum} hundredths of the GPU {gpu} are given out")))
}

/// A pod that is bound is nominated nowhere that counts, and with nobody pending nobody is nominated.
fn nominations(pods: &[Value]) -> Result<(), String> {
    let wrong =
        pods.iter().find(|pod| !nominated(pod).is_empty() && !node(pod).is_empty() && nominated(pod) != node(pod));
    wrong.map_or(Ok(()), |pod| {
        Err(format!("{} is bound to {} and nominated to {}", api::name(pod), node(pod), nominated(pod)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, cores: &str, gpus: &str, nominated: &str) -> Value {
        json!({
            "metadata": {"name": name, "annotations": {"tencent.com/predicate-gpu-idx-0": gpus}},
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": {CORES: cores}}}]},
            "status": {"nominatedNodeName": nominated},
        })
    }

    #[test]
    fn what_is_given_out_is_added_up() {
        let check = |pods: &[Value], good: bool| assert_eq!(within_bounds(pods).is_ok(), good, "{pods:?}");
        check(&[pod("a", "n", "50", "0", ""), pod("b", "n", "50", "0", "")], true);
        check(&[pod("a", "n", "60", "0", ""), pod("b", "n", "50", "0", "")], false);
        check(&[pod("a", "n", "60", "0", ""), pod("b", "m", "50", "0", "")], true);
        check(&[pod("a", "n", "200", "0,1", ""), pod("b", "n", "50", "1", "")], false);
        check(&[pod("a", "", "60", "0", ""), pod("b", "", "60", "0", "")], true);
        check(&[pod("a", "n", "50", "", "")], false);
    }

    #[test]
    fn a_bound_pod_that_is_nominated_elsewhere_is_found() {
        assert!(nominations(&[pod("a", "n", "1", "0", "n"), pod("b", "", "1", "0", "m")]).is_ok());
        assert!(nominations(&[pod("a", "n", "1", "0", "m")]).is_err());
    }
}
