//! Incident 5: a kubelet is started again while the API server cannot read claims and volumes. The pod that writes keeps its
//! disk.
//!
//! The kubelet's requests pass a relay. It lets reads of PersistentVolumeClaims and PersistentVolumes time out, and all else
//! through, which is what upstream's kubelet takes for "not wanted": it unmounts the disk under the running container. Then
//! other combinations follow, a restart for each ([`OUTAGES`], and with more rounds every set of [`PARTS`]), also while storage
//! stalls: file systems are frozen, and a file server stands still. The pod is one of a StatefulSet, and has three volumes: a disk of a FlexVolume driver, attached by the
//! control plane, one of the default class, by CSI, and a directory that a process serves, as a file server would.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use carrack_flexvolume::testing::{DISKS, FILES, Installed, StandStill};
use carrack_plot::Tone;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::super::cluster::Cluster;
use super::super::journal::Journal;
use super::super::machine::{self, Contained, Mount};
use super::super::relay::Fault;
use super::super::roles::Role;
use super::super::stage::Stage;
use super::super::stage::Watch;
use super::super::{api, looks, objects, rules, sandbox};
use super::{Plant, Story, counted, so};
use crate::cli::BuiltIn;

/// For how long the reads go on failing after the kubelet is back, by default: upstream's unmounts within the first second.
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
        &rules::OTHERS_GO_ON,
    ],
    plants: &[Plant {
        name: "unmount",
        what: "the drill unmounts the pod's volume itself, as the kubelet of the incident did",
    }],
    replaceable: &["kubelet", "scheduler"],
    others: "a relay stands between the API server and the kubelet, and has to know the authority of both",
    outage: Some(OUTAGE),
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

fn is_about_the_node(path: &str) -> bool {
    path.contains("/nodes") || path.contains("/leases")
}

fn the_node(path: &str) -> Option<Fault> {
    is_about_the_node(path).then_some(Fault::TimesOut)
}

fn all_but_the_node(path: &str) -> Option<Fault> {
    (!is_about_the_node(path)).then_some(Fault::TimesOut)
}

fn all_but_pods(path: &str) -> Option<Fault> {
    (!path.contains("/pods")).then_some(Fault::TimesOut)
}

fn is_about_settings(path: &str) -> bool {
    path.contains("/secrets") || path.contains("/configmaps")
}

/// Classes, attachments, drivers, and what nodes have of them.
fn is_of_storage(path: &str) -> bool {
    path.starts_with("/apis/storage.k8s.io/")
}

fn settings(path: &str) -> Option<Fault> {
    is_about_settings(path).then_some(Fault::TimesOut)
}

fn of_storage(path: &str) -> Option<Fault> {
    is_of_storage(path).then_some(Fault::TimesOut)
}

fn everything(_: &str) -> Option<Fault> {
    Some(Fault::TimesOut)
}

fn everything_is_late(_: &str) -> Option<Fault> {
    Some(Fault::Late(Duration::from_secs(2)))
}

/// What becomes of a request.
type Choice = fn(&str) -> Option<Fault>;

/// Whether who uses the volumes waits meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Works,
    Stalls,
}

/// Whether a request's path and query are about a part.
type IsAbout = fn(&str) -> bool;

/// What a request may be about; what is about none of these is a part, too.
const PARTS: [(&str, IsAbout); 6] = [
    ("claims", |path| claims(path).is_some()),
    ("volumes", |path| volumes(path).is_some()),
    ("pods", |path| pods(path).is_some()),
    ("the node", is_about_the_node),
    ("settings", is_about_settings),
    ("storage's own kinds", is_of_storage),
];
/// How many sets of parts there are that are not empty.
const SETS_OF_PARTS: u32 = (1 << (PARTS.len() + 1)) - 1;

/// What fails in a round.
#[derive(Clone, Copy)]
enum Outage {
    Listed(Choice),
    /// All requests about these parts, by their bits.
    Parts(u32),
}

impl Outage {
    fn of(self, path: &str) -> Option<Fault> {
        match self {
            Self::Listed(choice) => choice(path),
            Self::Parts(set) => {
                let about = PARTS.iter().position(|(_, is_about)| is_about(path)).unwrap_or(PARTS.len());
                (set >> about & 1 == 1).then_some(Fault::TimesOut)
            }
        }
    }

    /// What a set of parts is called.
    fn named(set: u32) -> String {
        let names = PARTS.iter().map(|(name, _)| *name).chain(["all else"]).enumerate();
        let names: Vec<&str> = names.filter(|(n, _)| set >> n & 1 == 1).map(|(_, name)| name).collect();
        format!("requests about {} time out", names.join(", "))
    }
}

/// What goes wrong in each round: first these, each at least once, and then every set of parts.
fn outages() -> impl Iterator<Item = (String, Outage, Storage)> {
    let listed = OUTAGES.iter().map(|(what, choice, state)| ((*what).to_owned(), Outage::Listed(*choice), *state));
    listed.chain((1..=SETS_OF_PARTS).cycle().map(|set| (Outage::named(set), Outage::Parts(set), Storage::Works)))
}

/// What goes wrong in the first rounds.
const OUTAGES: &[(&str, Choice, Storage)] = &[
    ("reads of claims and volumes time out", claims_and_volumes, Storage::Works),
    ("reads of claims time out", claims, Storage::Works),
    ("reads of volumes time out", volumes, Storage::Works),
    ("reads and writes of pods time out", pods, Storage::Works),
    ("reads of config maps and secrets time out", settings, Storage::Works),
    ("requests about classes, attachments and drivers time out", of_storage, Storage::Works),
    ("the node's own requests time out", the_node, Storage::Works),
    ("all but the node's own requests times out", all_but_the_node, Storage::Works),
    ("all but requests about pods times out", all_but_pods, Storage::Works),
    ("everything times out", everything, Storage::Works),
    ("every answer is late", everything_is_late, Storage::Works),
    ("storage stalls, and reads of claims and volumes time out", claims_and_volumes, Storage::Stalls),
    ("storage stalls, and everything times out", everything, Storage::Stalls),
];

/// The pod's volumes, by name and place, and of which class their claims are.
const VOLUMES: [(&str, Option<&str>); 3] = [("flex", Some(DISK_CLASS)), ("csi", None), ("file", Some(FILE_CLASS))];
const DISK_CLASS: &str = "loopdisk";
const FILE_CLASS: &str = "filedisk";
const SET: &str = "writer";
/// Its pod.
const POD: &str = "writer-0";

/// File systems whose writers wait until this is dropped.
struct Frozen(Vec<String>);

impl Frozen {
    fn new(places: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut frozen = Self(Vec::new());
        for place in places {
            fsfreeze("--freeze", &place)?;
            frozen.0.push(place);
        }
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for place in &self.0 {
            if let Err(error) = fsfreeze("--unfreeze", place) {
                tracing::error!(%error, place, "a file system stays frozen");
            }
        }
    }
}

fn fsfreeze(what: &str, place: &str) -> anyhow::Result<()> {
    let output = Command::new("fsfreeze").args([what, place]).output().context("fsfreeze cannot be run")?;
    anyhow::ensure!(output.status.success(), "fsfreeze: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Storage of which nothing comes back until this is dropped.
struct Stall(#[expect(dead_code, reason = "kept")] Frozen, #[expect(dead_code, reason = "kept")] StandStill);

impl Stall {
    fn new(disks: &[Disk], files: &Installed) -> anyhow::Result<Self> {
        // A file system of a process cannot be frozen; its process can.
        let frozen = disks.iter().filter(|disk| disk.is_of_device()).map(|disk| disk.on_node.place.clone());
        Ok(Self(Frozen::new(frozen)?, files.stand_still().context("the file server goes on")?))
    }
}

fn play(stage: &Stage) -> anyhow::Result<()> {
    stage.step("starting the cluster, each role a process of its own");
    let cluster = Cluster::new(stage, &json!([]))?;
    let plugins = cluster.places.node.volume_plugin_dir();
    // Below the node's directory: what is left attached of it is detached with the rest of the node.
    let disks_dir = cluster.places.node.data_dir().join("disks");
    let flex = Installed::new(DISKS, &plugins, &disks_dir).context("cannot install the driver of disks")?;
    let files = Installed::new(FILES, &plugins, &sandbox::files_dir(&stage.dir))
        .context("cannot install the driver of files")?;
    let cluster = cluster.with_flags(Role::Controllers, &["--flex-volume-plugin-dir", &plugins.to_string_lossy()]);
    cluster.start_containerd()?;
    cluster.images(&[BuiltIn::Pause])?;
    for role in [Role::Controllers, Role::Scheduler, Role::LocalStorage] {
        cluster.start(role)?;
    }
    let relay = cluster.relay(Role::Kubelet)?;
    cluster.start_against(Role::Kubelet, Some(&relay.url()))?;
    cluster.wait_node(None)?;
    cluster.images(&[BuiltIn::Busybox])?;

    stage.step(
        "a StatefulSet's pod counts into a file on each of a FlexVolume disk, a CSI disk and a file server's volume",
    );
    let _pods = looks::pods(stage, &cluster.api)?;
    for (volume, driver, class) in [("flex", DISKS, DISK_CLASS), ("file", FILES, FILE_CLASS)] {
        let claim = format!("{volume}-{POD}");
        let disk = objects::flex_volume(volume, driver.name, class, (cluster.api.namespace(), &claim));
        cluster.create(api::VOLUMES, &disk)?;
    }
    cluster.create(api::SETS, &objects::counting_set(SET, &VOLUMES))?;
    let pod = cluster.wait_pod(POD)?;
    let below = cluster.places.node.kubelet_root();
    let shell = machine::shell_of(stage, &below, &pod)?;
    let blobs = stage.wait("the pod has written", 60, || {
        counters(&shell)?.into_iter().try_for_each(|n| so(n > 0, || "it has not counted yet".to_owned()))?;
        blobs(&shell)
    })?;
    let disks =
        VOLUMES.iter().map(|(volume, _)| Disk::of(&below, &shell, volume)).collect::<anyhow::Result<Vec<_>>>()?;
    for Disk { volume, on_node, in_container, .. } in &disks {
        stage.journal.note(&format!(
            "the volume {volume} is mount {} of device {} on the node, mount {} in the container",
            on_node.id, on_node.device, in_container.id
        ));
    }
    let mut watches = disks.iter().map(|disk| disk.watch(stage, &shell)).collect::<anyhow::Result<Vec<_>>>()?;
    let drivers = [flex.clone(), files.clone()];
    watches.push(stage.watch(LOOK, move |journal| {
        let undone = drivers.each_ref().map(Installed::undone).concat();
        let kept = so(undone.is_empty(), || format!("the driver was called for {}", undone.join(", ")));
        journal.check(&rules::DISK_IN_USE, kept);
    })?);
    let same = looks::same(stage, &rules::CONTAINERS_STAY, vec![("the pod".to_owned(), shell.clone())])?;

    let least = u32::try_from(OUTAGES.len()).unwrap_or(u32::MAX);
    // What is planted shows in the first.
    let rounds = if stage.planted("unmount") { stage.options.rounds } else { stage.options.rounds.max(least) };
    for (round, (what, outage, state)) in (1..=rounds).zip(outages()) {
        stage.step(format!("round {round}: kill -9 kubelet; from now on {what}"));
        cluster.kill_9(Role::Kubelet)?;
        relay.choose(move |path| outage.of(path));
        stage.journal.state("the API server", &what, Tone::Bad);
        let before = counters(&shell).map_err(anyhow::Error::msg)?;
        let stall = match state {
            Storage::Works => None,
            Storage::Stalls => Some(Stall::new(&disks, &files)?),
        };
        cluster.start_against(Role::Kubelet, Some(&relay.url()))?;
        if stage.planted("unmount") {
            stage.step("PLANTED: the pod's volumes are unmounted on the node");
            for disk in &disks {
                let place = disk.on_node.place.as_str();
                rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH).context("cannot unmount")?;
            }
        }
        stage.lasts(stage.options.outage)?;
        // Only where pods can be read and their states written is anything to be expected.
        if state == Storage::Stalls && outage.of(api::PODS).is_none() {
            another_runs(stage, &cluster)?;
        }
        drop(stall);
        stage.must(&rules::DATA_STAYS, "the pod counts on, without a gap", 30, || {
            let now = counters(&shell)?;
            so(now.iter().zip(&before).all(|(now, before)| now > before), || format!("it stands at {now:?}"))
        })?;
    }
    stage.journal.note(&format!("the kubelet asked {} times, and was refused", relay.refused()));

    relay.choose(claims_and_volumes);
    stage.journal.state("the API server", OUTAGES[0].0, Tone::Bad);
    stage
        .step("the set is scaled to nothing while reads of claims and volumes fail: its pod's volumes go nevertheless");
    let counted_at_the_end = counters(&shell).map_err(anyhow::Error::msg)?;
    drop((watches, same));
    let set = format!("{}/{SET}", api::SETS);
    cluster.api.merge(&set, &json!({"spec": {"replicas": 0}}))?;
    stage.must(&rules::UNWANTED_GO, "the volumes are unmounted", 60, || {
        let left = machine::mounts_below(&below).map_err(|error| error.to_string())?;
        let left = left.iter().find(|mount| disks.iter().any(|disk| disk.on_node.device == mount.device));
        so(left.is_none(), || format!("{left:?}"))
    })?;
    stage.must(&rules::UNWANTED_GO, "the disk is detached", 60, || {
        let undone = flex.undone();
        so(undone.iter().any(|call| call == "detach"), || format!("{undone:?}"))
    })?;
    for disk in &disks {
        stage.journal.gone(&disk.row());
    }

    stage.step("claims can be read again; the set's next pod finds on the disks what the first one wrote");
    relay.choose(|_| None);
    stage.journal.gone("the API server");
    cluster.api.merge(&set, &json!({"spec": {"replicas": 1}}))?;
    let pod = cluster.wait_pod(POD)?;
    let shell = machine::shell_of(stage, &below, &pod)?;
    let now = self::blobs(&shell).map_err(anyhow::Error::msg)?;
    let same = so(now == blobs, || format!("the checksums were {blobs:x?} and are {now:x?}"));
    stage.journal.check(&rules::DATA_STAYS, same);
    let log = counters(&shell).and_then(|now| {
        let on = now.iter().zip(&counted_at_the_end).all(|(now, then)| now >= then);
        so(on, || format!("the pod had counted to {counted_at_the_end:?}, and its files to {now:?}"))
    });
    stage.journal.check(&rules::DATA_STAYS, log);
    stage.going()
}

/// A pod that uses none of the volumes runs and goes.
fn another_runs(stage: &Stage, cluster: &Cluster) -> anyhow::Result<()> {
    let name = "beside";
    cluster.create(api::PODS, &objects::idle_pod(name, &json!({})))?;
    let path = format!("{}/{name}", api::PODS);
    stage.must(&rules::OTHERS_GO_ON, "a pod without these volumes runs", 60, || cluster.ready_pod(name).map(drop))?;
    cluster.api.delete(&path)?;
    stage.must(&rules::OTHERS_GO_ON, "and goes", 60, || {
        let pod = cluster.api.get(&path).map_err(|error| error.to_string())?;
        so(pod.is_none(), || "it is still there".to_owned())
    })
}

/// What a file holds on each volume.
fn files(shell: &Contained, name: &str) -> Result<Vec<Vec<u8>>, String> {
    let read = |(volume, _): &(&str, _)| {
        let path = format!("{}/{name}", objects::place(volume));
        shell.file(&path).map_err(|error| format!("the pod's {path} cannot be read: {error}"))
    };
    VOLUMES.iter().map(read).collect()
}

fn counters(shell: &Contained) -> Result<Vec<u64>, String> {
    files(shell, "log")?.iter().map(|log| counted(log)).collect()
}

/// Checksums of what was written at first.
fn blobs(shell: &Contained) -> Result<Vec<Vec<u8>>, String> {
    let blobs = files(shell, "blob")?;
    blobs.iter().try_for_each(|blob| so(blob.len() == 262_144, || format!("{} bytes so far", blob.len())))?;
    Ok(blobs.iter().map(|blob| Sha256::digest(blob).to_vec()).collect())
}

/// The pod's volume as both mount tables show it.
#[derive(Clone)]
struct Disk {
    volume: &'static str,
    on_node: Mount,
    in_container: Mount,
}

impl Disk {
    fn of(below: &Path, shell: &Contained, volume: &'static str) -> anyhow::Result<Self> {
        let in_container = shell.mounts().into_iter().find(|mount| mount.place == objects::place(volume));
        let in_container = in_container.with_context(|| format!("the container has no volume {volume}"))?;
        let volumes = below.join("pods").join(shell.uid()).join("volumes");
        let mounts = machine::mounts_below(&volumes).context("the mount table cannot be read")?;
        let on_node = mounts.into_iter().find(|mount| mount.device == in_container.device);
        Ok(Self { volume, on_node: on_node.context("the node shows no mount of the volume")?, in_container })
    }

    /// Whether a block device is below it.
    fn is_of_device(&self) -> bool {
        Path::new("/sys/dev/block").join(&self.on_node.device).exists()
    }

    /// Its row in the timeline.
    fn row(&self) -> String {
        format!("volume {}", self.volume)
    }

    /// Looks all the time whether the volume is what it was.
    fn watch(&self, stage: &Stage, shell: &Contained) -> anyhow::Result<Watch> {
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
        journal.state(&self.row(), text, tone);
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

    #[test]
    fn every_set_of_what_fails_has_its_round() {
        let paths = [
            "/api/v1/namespaces/default/persistentvolumeclaims/data",
            "/api/v1/persistentvolumes/pv",
            "/api/v1/namespaces/default/pods",
            "/api/v1/nodes/drill",
            "/api/v1/namespaces/default/secrets/s?watch=1",
            "/apis/storage.k8s.io/v1/csinodes/drill",
            "/api/v1/namespaces/default/events",
        ];
        let fail = |outage: Outage| paths.map(|path| outage.of(path).is_some());
        let all = outages().skip(OUTAGES.len()).take(SETS_OF_PARTS as usize);
        let sets: std::collections::BTreeSet<_> = all.map(|(_, outage, _)| fail(outage)).collect();
        assert_eq!(sets.len(), 127);
        let (what, outage, _) = outages().nth(OUTAGES.len() + 2).expect("without end");
        assert_eq!(what, "requests about claims, volumes time out");
        assert_eq!(fail(outage), [true, true, false, false, false, false, false]);
    }
}
