//! Incident 5: a kubelet is started again while the API server cannot read claims and volumes. The pod that writes keeps its
//! disk.
//!
//! The kubelet's requests pass a relay. It lets reads of PersistentVolumeClaims and PersistentVolumes time out, and all else
//! through, which is what upstream's kubelet takes for "not wanted": it unmounts the disk under the running container. Then
//! other combinations follow, a restart for each ([`OUTAGES`]).

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use carrack_plot::Tone;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::super::cluster::Cluster;
use super::super::journal::Journal;
use super::super::machine::{self, Contained, Mount};
use super::super::relay::Fault;
use super::super::roles::Role;
use super::super::stage::Stage;
use super::super::{api, looks, objects, rules};
use super::{Plant, Story, counted, so};
use crate::cli::BuiltIn;

/// For how long the reads go on failing after the kubelet is back: upstream's unmounts within the first second.
const OUTAGE: Duration = Duration::from_secs(5);
/// How often the mount tables are read.
const LOOK: Duration = Duration::from_millis(50);

pub const STORY: Story = Story {
    name: "api-outage",
    title: "reads of claims and volumes fail while a kubelet starts again under a pod that writes (incident 5)",
    rules: &[
        &rules::VOLUME_IN_USE,
        &rules::DISK_IN_USE,
        &rules::MOUNTS_STAY,
        &rules::CONTAINERS_STAY,
        &rules::UNWANTED_GO,
        &rules::DATA_STAYS,
    ],
    plants: &[Plant {
        name: "unmount",
        what: "the drill unmounts the pod's volume itself, as the kubelet of the incident did",
    }],
    replaceable: &["kubelet", "scheduler"],
    play,
};

/// What fails: reads of claims and of volumes.
fn claims_and_volumes(path: &str) -> Option<Fault> {
    let path = path.split('?').next().unwrap_or(path);
    let about = path.contains("/persistentvolumeclaims") || path.contains("/persistentvolumes");
    about.then_some(Fault::TimesOut)
}

fn claims(path: &str) -> Option<Fault> {
    path.contains("/persistentvolumeclaims").then_some(Fault::TimesOut)
}

fn volumes(path: &str) -> Option<Fault> {
    let path = path.split('?').next().unwrap_or(path);
    path.contains("/persistentvolumes").then_some(Fault::TimesOut)
}

fn pods(path: &str) -> Option<Fault> {
    path.contains("/pods").then_some(Fault::TimesOut)
}

fn all_but_the_node(path: &str) -> Option<Fault> {
    let about_the_node = path.contains("/nodes") || path.contains("/leases");
    (!about_the_node).then_some(Fault::TimesOut)
}

fn all_but_pods(path: &str) -> Option<Fault> {
    (!path.contains("/pods")).then_some(Fault::TimesOut)
}

fn everything(_: &str) -> Option<Fault> {
    Some(Fault::TimesOut)
}

fn everything_is_late(_: &str) -> Option<Fault> {
    Some(Fault::Late(Duration::from_secs(2)))
}

/// What becomes of a request.
type Choice = fn(&str) -> Option<Fault>;

/// What goes wrong in each round. Each is had at least once.
const OUTAGES: &[(&str, Choice)] = &[
    ("reads of claims and volumes time out", claims_and_volumes),
    ("reads of claims time out", claims),
    ("reads of volumes time out", volumes),
    ("reads and writes of pods time out", pods),
    ("all but the node's own requests times out", all_but_the_node),
    ("all but requests about pods times out", all_but_pods),
    ("everything times out", everything),
    ("every answer is late", everything_is_late),
];

fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.step("starting the cluster, each role a process of its own");
    let cluster = Cluster::new(stage, &json!([]))?;
    cluster.start_containerd()?;
    cluster.images(&[BuiltIn::Pause])?;
    for role in [Role::Controllers, Role::Scheduler, Role::LocalStorage] {
        cluster.start(role)?;
    }
    let relay = cluster.relay(Role::Kubelet)?;
    cluster.start_against(Role::Kubelet, Some(&relay.url()))?;
    cluster.wait_node(None)?;
    cluster.images(&[BuiltIn::Busybox])?;

    stage.step("a pod counts into a file on a disk of its own");
    let _pods = looks::pods(stage, &cluster.api)?;
    cluster.create(api::CLAIMS, &objects::claim("data"))?;
    let writer = objects::counting_pod("writer", &json!({"persistentVolumeClaim": {"claimName": "data"}}));
    cluster.create(api::PODS, &writer)?;
    let pod = cluster.wait_pod("writer")?;
    let below = cluster.places.node.kubelet_root();
    let shell = machine::in_pod(&below, api::uid(&pod), "sh").context("no process of the pod runs")?;
    let blob = stage.wait("the pod has written", 20, || {
        let blob = shell.file("/data/blob").map_err(|error| error.to_string())?;
        so(blob.len() == 262_144, || format!("{} bytes so far", blob.len()))?;
        so(counter(&shell)? > 0, || "it has not counted yet".to_owned())?;
        Ok(Sha256::digest(blob))
    })?;
    let disk = Disk::of(&below, &shell)?;
    stage.journal.note(&format!(
        "the volume is mount {} of device {} on the node, mount {} in the container",
        disk.on_node.id, disk.on_node.device, disk.in_container.id
    ));
    let watch = disk.watch(stage, &shell)?;
    let same = looks::same(stage, &rules::CONTAINERS_STAY, vec![("the pod".to_owned(), shell.clone())])?;

    let least = u32::try_from(OUTAGES.len()).unwrap_or(u32::MAX);
    // What is planted shows in the first.
    let rounds = if stage.planted("unmount") { stage.options.rounds } else { stage.options.rounds.max(least) };
    for (round, (what, outage)) in (1..=rounds).zip(OUTAGES.iter().cycle()) {
        stage.step(format!("round {round}: kill -9 kubelet; from now on {what}"));
        cluster.kill_9(Role::Kubelet)?;
        relay.choose(*outage);
        stage.journal.state("the API server", what, Tone::Bad);
        let before = counter(&shell).map_err(anyhow::Error::msg)?;
        cluster.start_against(Role::Kubelet, Some(&relay.url()))?;
        if stage.planted("unmount") {
            stage.step("PLANTED: the pod's volume is unmounted on the node");
            let place = disk.on_node.place.as_str();
            rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH).context("cannot unmount")?;
        }
        stage.lasts(OUTAGE)?;
        stage.must(&rules::DATA_STAYS, "the pod counts on, without a gap", 10, || {
            let now = counter(&shell)?;
            so(now > before, || format!("it stands at {now}"))
        })?;
    }
    stage.journal.note(&format!("the kubelet asked {} times, and was refused", relay.refused()));

    relay.choose(claims_and_volumes);
    stage.journal.state("the API server", OUTAGES[0].0, Tone::Bad);
    stage.step("the pod is deleted while reads of claims and volumes fail: its volume goes nevertheless");
    let counted_at_the_end = counter(&shell).map_err(anyhow::Error::msg)?;
    drop((watch, same));
    cluster.api.delete(&format!("{}/writer", api::PODS))?;
    stage.must(&rules::UNWANTED_GO, "the volume is unmounted", 30, || {
        let left = machine::mounts_below(&below).map_err(|error| error.to_string())?;
        let left = left.iter().find(|mount| mount.device == disk.on_node.device);
        so(left.is_none(), || format!("{left:?}"))
    })?;
    stage.journal.gone("volume of the pod");

    stage.step("claims can be read again; another pod finds on the disk what the first one wrote");
    relay.choose(|_| None);
    stage.journal.gone("the API server");
    let mut reader = objects::counting_pod("reader", &json!({"persistentVolumeClaim": {"claimName": "data"}}));
    reader["metadata"]["labels"] = json!({});
    cluster.create(api::PODS, &reader)?;
    let pod = cluster.wait_pod("reader")?;
    let shell = machine::in_pod(&below, api::uid(&pod), "sh").context("no process of the pod runs")?;
    let now = Sha256::digest(shell.file("/data/blob").context("the file is gone")?);
    stage.journal.check(&rules::DATA_STAYS, so(now == blob, || format!("the checksum was {blob:x} and is {now:x}")));
    let log = counter(&shell).and_then(|now| {
        so(now >= counted_at_the_end, || format!("the pod had counted to {counted_at_the_end}, and its file to {now}"))
    });
    stage.journal.check(&rules::DATA_STAYS, log);
    stage.going()
}

fn counter(shell: &Contained) -> Result<u64, String> {
    counted(&shell.file("/data/log").map_err(|error| format!("the pod's file cannot be read: {error}"))?)
}

/// The pod's volume as both mount tables show it.
#[derive(Clone)]
struct Disk {
    on_node: Mount,
    in_container: Mount,
}

impl Disk {
    fn of(below: &Path, shell: &Contained) -> anyhow::Result<Self> {
        let in_container = shell.mounts().into_iter().find(|mount| mount.place == "/data");
        let in_container = in_container.context("the container has no volume")?;
        let volumes = below.join("pods").join(shell.uid()).join("volumes");
        let mounts = machine::mounts_below(&volumes).context("the mount table cannot be read")?;
        let on_node = mounts.into_iter().find(|mount| mount.device == in_container.device);
        Ok(Self { on_node: on_node.context("the node shows no mount of the volume")?, in_container })
    }

    /// Looks all the time whether the volume is what it was.
    fn watch(&self, stage: &Stage, shell: &Contained) -> anyhow::Result<super::super::stage::Watch> {
        let (disk, shell) = (self.clone(), shell.clone());
        let file = std::path::PathBuf::from(format!("/sys/dev/block/{}/loop/backing_file", self.on_node.device));
        let behind = std::fs::read_to_string(&file).ok();
        stage.watch(LOOK, move |journal| disk.look(journal, &shell, behind == std::fs::read_to_string(&file).ok()))
    }

    fn look(&self, journal: &Journal, shell: &Contained, same_disk: bool) {
        let place = Path::new(&self.on_node.place);
        // A table that cannot be read says nothing.
        let Ok(mounts) = machine::mounts_below(place) else { return };
        let on_node = mounts.into_iter().find(|mount| mount.place == self.on_node.place);
        let in_container = shell.mounts().into_iter().find(|mount| mount.place == self.in_container.place);
        let alive = shell.process.is_alive();
        let mounted = so(on_node.is_some() || !alive, || format!("{} is not mounted any more", self.on_node.place));
        let same = so(on_node.as_ref() == Some(&self.on_node), || format!("{:?} is now {on_node:?}", self.on_node));
        let same = same.and_then(|()| {
            let same = in_container.as_ref() == Some(&self.in_container);
            so(same, || format!("in the container, {:?} is now {in_container:?}", self.in_container))
        });
        let (tone, text) = if same.is_ok() { (Tone::Good, "mounted") } else { (Tone::Bad, "not what it was") };
        journal.state("volume of the pod", text, tone);
        journal.check(&rules::VOLUME_IN_USE, mounted);
        journal.check(&rules::MOUNTS_STAY, same);
        let device = &self.on_node.device;
        journal.check(&rules::DISK_IN_USE, so(same_disk, || format!("device {device} has lost its disk")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails() {
        let check = |path: &str, fails: bool| assert_eq!(claims_and_volumes(path).is_some(), fails, "{path}");
        check("/api/v1/namespaces/default/persistentvolumeclaims/data", true);
        check("/api/v1/persistentvolumes/pv?resourceVersion=0", true);
        check("/api/v1/namespaces/default/pods/persistent", false);
        check("/api/v1/nodes/drill", false);
        check("/api/v1/pods?fieldSelector=persistentvolumes", false);
    }
}
