//! Incident 3: machines are cloned while the controller's watches lag behind what it has written itself, and it is killed in the
//! midst of it. Each clone has one snapshot and one restore, ever, and nothing is left of them in the end.
//!
//! virt-controller's requests pass a relay that holds back each piece of its watches of snapshots, restores and clones. Lists
//! and writes pass at once: what the controller sees is old, and what it writes counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use carrack_plot::Tone;
use serde_json::{Value, json};

use super::super::api::{self, Api};
use super::super::cluster::Cluster;
use super::super::journal::Journal;
use super::super::relay::Fault;
use super::super::roles::Role;
use super::super::stage::{Stage, Watch};
use super::super::{objects, rules};
use super::{Plant, Story, so};

/// How late everything is that the controller hears.
const LAG: Duration = Duration::from_millis(1500);
/// How many machines are cloned at once.
const CLONES: usize = 4;
const SOURCE: &str = "source";

const CLONES_PATH: &str = "/apis/clone.kubevirt.io/v1beta1/namespaces/{namespace}/virtualmachineclones";
const SNAPSHOTS: &str = "/apis/snapshot.kubevirt.io/v1beta1/namespaces/{namespace}/virtualmachinesnapshots";
const CONTENTS: &str = "/apis/snapshot.kubevirt.io/v1beta1/namespaces/{namespace}/virtualmachinesnapshotcontents";
const RESTORES: &str = "/apis/snapshot.kubevirt.io/v1beta1/namespaces/{namespace}/virtualmachinerestores";

pub const STORY: Story = Story {
    name: "clone-under-lag",
    title: "machines are cloned while the controller's watches lag behind its own writes (incident 3)",
    rules: &[&rules::CHILD_ONCE, &rules::CHILD_KNOWN, &rules::NOTHING_LEFT, &rules::CLONES_SUCCEED],
    plants: &[Plant {
        name: "second-snapshot",
        what: "a second snapshot is made for a clone, as the controller of the incident did",
    }],
    replaceable: &[],
    others: "no pod is scheduled or runs there, and a relay stands between the API server and virt-controller",
    outage: None,
    play,
};

/// Watches of snapshots, restores and clones come late.
fn lagging(path: &str) -> Option<Fault> {
    let of_kinds = path.contains("snapshot.kubevirt.io") || path.contains("clone.kubevirt.io");
    (of_kinds && path.contains("watch=")).then_some(Fault::Late(LAG))
}

fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.step("starting API server, controllers and virt-controller; what virt-controller hears comes late");
    let cluster = Cluster::new(stage, &json!([]))?;
    cluster.install_kubevirt()?;
    cluster.start(Role::Controllers)?;
    let relay = cluster.relay(Role::VirtController)?;
    relay.choose(lagging);
    cluster.start_against(Role::VirtController, Some(&relay.url()))?;
    let mut source = objects::machine(SOURCE);
    source["spec"]["runStrategy"] = "Halted".into();
    cluster.create(api::MACHINES, &source)?;
    let _watch = watch(stage, &cluster.api)?;

    stage.step(format!("{CLONES} clones of a machine are asked for at once"));
    for number in 1..=CLONES {
        cluster.create(CLONES_PATH, &clone(number))?;
    }
    let children = |what: &str| cluster.api.list(what).map(|all| all.len()).map_err(|error| error.to_string());
    stage.wait("the first snapshots are made", 60, || so(children(SNAPSHOTS)? > 0, || "there is none".to_owned()))?;
    if stage.planted("second-snapshot") {
        stage.step("PLANTED: another snapshot is made for a clone");
        second_snapshot(&cluster)?;
    }
    stage.step("kill -9 virt-controller, in the midst of it");
    cluster.kill_9(Role::VirtController)?;
    cluster.start_against(Role::VirtController, Some(&relay.url()))?;
    for number in 1..=CLONES {
        stage.must(&rules::CLONES_SUCCEED, &format!("clone {number} succeeds"), 120, || {
            let clone = cluster.api.get(&format!("{CLONES_PATH}/clone-{number}")).map_err(|error| error.to_string())?;
            let phase = clone.as_ref().map_or("gone", |clone| api::text(clone, "/status/phase")).to_owned();
            so(phase == "Succeeded", || format!("it is {phase:?}"))?;
            let target = cluster.api.get(&format!("{}/target-{number}", api::MACHINES)).map_err(|e| e.to_string())?;
            so(target.is_some(), || "there is no target".to_owned())
        })?;
    }
    stage.must(&rules::NOTHING_LEFT, "what was made for the clones is gone", 60, || {
        for what in [SNAPSHOTS, CONTENTS, RESTORES] {
            let left = children(what)?;
            so(left == 0, || format!("there are {left} of {what}"))?;
        }
        Ok(())
    })?;
    stage.journal.note(&format!("{} pieces of watches came {:.1} s late", relay.held_back(), LAG.as_secs_f64()));
    so(relay.held_back() > 0, || "nothing was held back: the drill has proved nothing".to_owned())
        .map_err(anyhow::Error::msg)
}

fn clone(number: usize) -> Value {
    let machine = |name: &str| json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name});
    json!({
        "apiVersion": "clone.kubevirt.io/v1beta1", "kind": "VirtualMachineClone",
        "metadata": {"name": format!("clone-{number}")},
        "spec": {"source": machine(SOURCE), "target": machine(&format!("target-{number}"))},
    })
}

fn second_snapshot(cluster: &Cluster<'_>) -> anyhow::Result<()> {
    let all = cluster.api.list(SNAPSHOTS)?;
    let first = all.iter().find(|one| owner(one).is_some()).context("there is no snapshot of a clone")?;
    let mut second = json!({
        "apiVersion": first["apiVersion"], "kind": first["kind"], "metadata": {"name": "drawn-by-chance"},
        "spec": first["spec"],
    });
    second["metadata"]["ownerReferences"] = first["metadata"]["ownerReferences"].clone();
    cluster.create(SNAPSHOTS, &second)
}

/// The clone that controls an object.
fn owner(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let clone = owners.iter().find(|owner| owner["kind"] == "VirtualMachineClone")?;
    clone["uid"].as_str()
}

/// What was ever made for each clone.
#[derive(Default)]
struct Made {
    /// UIDs of children by stage and clone.
    children: BTreeMap<(&'static str, String), BTreeSet<String>>,
    /// Names of children by clone.
    names: BTreeSet<(String, String)>,
}

impl Made {
    fn see(&mut self, stage: &'static str, objects: &[Value]) {
        for (object, clone) in objects.iter().filter_map(|object| Some((object, owner(object)?))) {
            self.children.entry((stage, clone.to_owned())).or_default().insert(api::uid(object).to_owned());
            self.names.insert((clone.to_owned(), api::name(object).to_owned()));
        }
    }

    /// Each clone has one child of each stage at most, over all time.
    fn once(&self) -> Result<(), String> {
        let twice = self.children.iter().find(|(_, children)| children.len() > 1);
        twice.map_or(Ok(()), |((stage, clone), children)| {
            Err(format!("the clone {clone} has had {} of its {stage}", children.len()))
        })
    }

    /// A child that a clone names is one that was made for it.
    fn known(&self, clones: &[Value]) -> Result<(), String> {
        for clone in clones {
            for field in ["/status/snapshotName", "/status/restoreName"] {
                let (uid, child) = (api::uid(clone).to_owned(), api::text(clone, field).to_owned());
                if !child.is_empty() && !self.names.contains(&(uid, child.clone())) {
                    return Err(format!("{} names {child}, which was not made for it", api::name(clone)));
                }
            }
        }
        Ok(())
    }
}

fn watch(stage: &Stage, api: &Api) -> anyhow::Result<Watch> {
    let (api, mut made) = (api.clone(), Made::default());
    stage.watch(Duration::from_millis(50), move |journal| {
        // Clones first: a child that one of them names was made before.
        let (Ok(clones), Ok(snapshots), Ok(restores)) =
            (api.list(CLONES_PATH), api.list(SNAPSHOTS), api.list(RESTORES))
        else {
            return;
        };
        made.see("snapshots", &snapshots);
        made.see("restores", &restores);
        journal.check(&rules::CHILD_ONCE, made.once());
        journal.check(&rules::CHILD_KNOWN, made.known(&clones));
        lanes(journal, &clones, &snapshots, &restores);
    })
}

fn lanes(journal: &Journal, clones: &[Value], snapshots: &[Value], restores: &[Value]) {
    for clone in clones {
        let phase = api::text(clone, "/status/phase");
        let tone = match phase {
            "Succeeded" => Tone::Good,
            "Failed" => Tone::Bad,
            _ => Tone::Busy,
        };
        journal.state(api::name(clone), if phase.is_empty() { "new" } else { phase }, tone);
    }
    for (lane, objects) in [("snapshots", snapshots), ("restores", restores)] {
        journal.state(lane, &format!("{} there", objects.len()), Tone::Plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(name: &str, uid: &str, clone: &str) -> Value {
        let owner = json!([{"kind": "VirtualMachineClone", "uid": clone}]);
        json!({"metadata": {"name": name, "uid": uid, "ownerReferences": owner}})
    }

    #[test]
    fn a_second_child_is_found_even_when_the_first_is_gone() {
        let mut made = Made::default();
        made.see("snapshots", &[child("a", "u-1", "c-1"), child("b", "u-2", "c-2")]);
        made.see("restores", &[child("a", "u-3", "c-1")]);
        made.see("snapshots", &[child("a", "u-1", "c-1")]);
        assert_eq!(made.once(), Ok(()));
        made.see("snapshots", &[child("z", "u-4", "c-2")]);
        assert!(made.once().is_err_and(|why| why.contains("c-2") && why.contains("snapshots")));
    }

    #[test]
    fn a_clone_may_name_its_own_children_only() {
        let mut made = Made::default();
        made.see("snapshots", &[child("a", "u-1", "c-1")]);
        let clone =
            |snapshot: &str| json!({"metadata": {"name": "c", "uid": "c-1"}, "status": {"snapshotName": snapshot}});
        assert!(made.known(&[clone("a")]).is_ok() && made.known(&[clone("")]).is_ok());
        assert!(made.known(&[clone("b")]).is_err());
    }

    #[test]
    fn what_lags() {
        let check = |path: &str, late: bool| assert_eq!(lagging(path).is_some(), late, "{path}");
        check("/apis/snapshot.kubevirt.io/v1beta1/virtualmachinesnapshots?watch=true", true);
        check("/apis/snapshot.kubevirt.io/v1beta1/virtualmachinesnapshots?limit=500", false);
        check("/apis/kubevirt.io/v1/virtualmachines?watch=true", false);
    }
}
