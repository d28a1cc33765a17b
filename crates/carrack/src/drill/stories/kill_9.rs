//! `kill -9` of each role, one after the other, of all in one instant, and again, while a machine and pods run. Each of the pods
//! has something that a role gave it: a volume of a claim, a part of a GPU. The machine has a disk on such a claim.
//!
//! Last of all virt-launcher is killed. It has become the guest, so this one ends, and the machine is to run again by its own
//! strategy and on its own disk. What stands beside the guest in its pod, virt-launcher's monitor, dies before as roles do:
//! the guest does not need it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use carrack_gpu_plugin::owner::VISIBLE;
use carrack_noderuntime::process::ProcessId;
use carrack_plot::Tone;
use carrack_virt::paths;
use serde_json::{Value, json};

use super::super::cluster::Cluster;
use super::super::machine::{self, Contained};
use super::super::roles::{NODE, Role};
use super::super::stage::{Stage, Watch};
use super::super::{api, looks, objects, rules};
use super::gpu_extender::{CORES, MEMORY, chosen, extenders, within_bounds};
use super::{MACHINE, Plant, Story, counted, guest, so, wait_guest, whole_cluster};
use crate::roles::apiserver::now_unix_s;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Role(Role),
    /// What speaks for the guest in its pod.
    Monitor,
    /// All roles and the monitor.
    All,
    /// virt-launcher itself, which is the guest by now.
    Launcher,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Self::Role(role) => role.name(),
            Self::Monitor => "virt-launcher-monitor",
            Self::All => "all",
            Self::Launcher => "virt-launcher",
        }
    }

    /// Whether this one is killed when that role is.
    fn is_or_has(self, role: Role) -> bool {
        self == Self::All || self == Self::Role(role)
    }
}

/// In this order: the guest boots meanwhile, and has to have written something when its own turn comes.
const KILLED: [Victim; 12] = [
    Victim::Role(Role::Apiserver),
    Victim::Role(Role::Kubelet),
    Victim::Role(Role::VirtHandler),
    Victim::Role(Role::Scheduler),
    Victim::Role(Role::Controllers),
    Victim::Role(Role::VirtController),
    Victim::Role(Role::LocalStorage),
    Victim::Role(Role::GpuExtender),
    Victim::Role(Role::GpuPlugin),
    Victim::Monitor,
    Victim::All,
    Victim::Launcher,
];
/// What can be planted in one of them: nobody else is killed then.
const ALONE: [(&str, Victim); 4] = [
    ("leave-local-storage", Victim::Role(Role::LocalStorage)),
    ("leave-gpu-extender", Victim::Role(Role::GpuExtender)),
    ("leave-gpu-plugin", Victim::Role(Role::GpuPlugin)),
    (SWITCH_OFF, Victim::Launcher),
];
const SWITCH_OFF: &str = "switch-off";
/// For how long a role stays away: shorter than a node's promise to its guests lasts, and longer than the second to which a Node's
/// status says when it was written.
const AWAY: Duration = Duration::from_millis(1100);
/// How long a guest may take to boot, where there is no KVM.
const BOOT_S: u64 = 240;

/// GPUs that the plugin makes up, and what they are as an amount of cores.
const GPUS: &str = "2x16Gi";
const ALL_CORES: &str = "200";
/// A pod's claim.
const NOTES: &str = "notes";
/// A machine's.
const KEPT: &str = "kept";
/// One that nobody makes a volume for but who was killed.
const LATE: &str = "late";
/// What each claim asks for: of less, a file system leaves too little for a machine's disk.
const CLAIMED: &str = "512Mi";
/// The counting pod's volumes, of which the second is a claim's.
const VOLUMES: [&str; 2] = ["data", NOTES];
/// How much of that disk the guest may have written.
const BOOTS_BYTES: u64 = 4096;

pub const STORY: Story = Story {
    name: "kill-9",
    title: "each role is killed with kill -9, one after the other and all at once, while a machine and pods run",
    rules: &[
        &rules::CONTAINERS_STAY,
        &rules::ONE_GUEST,
        &rules::MACHINES_RUN,
        &rules::ACKNOWLEDGED_STAYS,
        &rules::DATA_STAYS,
        &rules::WORK_GOES_ON,
        &rules::PLUGIN_ABSENCE,
        &rules::GPU_BOUNDS,
    ],
    plants: &[
        Plant { name: "kill-the-guest", what: "the guest is killed, too" },
        Plant { name: "lose-a-write", what: "an object that was acknowledged is deleted behind the drill's back" },
        Plant { name: "leave-local-storage", what: "local-storage alone is killed, and not started again" },
        Plant { name: "leave-gpu-extender", what: "the GPU extender alone is killed, and not started again" },
        Plant { name: "leave-gpu-plugin", what: "the GPU plugin alone is killed, and not started again" },
        Plant { name: SWITCH_OFF, what: "virt-launcher alone is killed, and its machine switched off" },
    ],
    replaceable: &["kubelet", "scheduler"],
    others: "the API server is one of those that are killed and started again",
    outage: None,
    play,
};

fn play(stage: &Stage) -> anyhow::Result<()> {
    let cluster = whole_cluster(stage, &extenders())?.with_flags(Role::GpuPlugin, &["--fake-gpus", GPUS]);
    for role in [Role::LocalStorage, Role::GpuExtender, Role::GpuPlugin] {
        cluster.start(role)?;
    }
    stage.wait("there is a class for claims", 60, || {
        let path = format!("{}/{}", api::CLASSES, carrack_storage::STORAGE_CLASS);
        let class = cluster.api.get(&path).map_err(|error| error.to_string())?;
        so(class.is_some(), || "it is not there".to_owned())
    })?;
    cluster.wait_offer(CORES, ALL_CORES)?;
    stage.step("a machine boots, a pod counts into a file on each of two volumes, and another one has half a GPU");
    let below = cluster.places.node.kubelet_root();
    let _pods = looks::pods(stage, &cluster.api)?;
    let _instances = looks::instances(stage, &cluster.api)?;
    let _guests = looks::guests(stage, &below, |_| "guest".to_owned())?;
    let mut work = Work::begin(&cluster, below)?;
    for round in 1..=stage.options.rounds {
        for victim in victims(stage.options.plant) {
            work.one_kill(&cluster, round, victim)?;
            if stage.planted("kill-the-guest") {
                stage.step("PLANTED: the guest is killed");
                work.guest.process.kill().context("cannot kill the guest")?;
            }
        }
    }
    everybody_works(&cluster, &work.below)?;
    work.is_as_it_was(&cluster)?;
    work.end(&cluster)
}

/// Who is killed in a round, given what is planted.
fn victims(planted: Option<&str>) -> Vec<Victim> {
    let alone = ALONE.iter().find(|(name, _)| planted == Some(*name));
    alone.map_or_else(|| KILLED.to_vec(), |(_, victim)| vec![*victim])
}

/// What plants that a role is not started again.
fn leaves(role: Role) -> String {
    format!("leave-{}", role.name())
}

/// What runs all the time.
struct Work {
    below: PathBuf,
    /// The pod that counts, and its process.
    pod: Value,
    counter: Contained,
    /// The process of the pod with a GPU.
    gpu: Contained,
    guest: Contained,
    /// How many guests the machine has had.
    lives: u64,
    /// Who sees to it that the processes stay the same ones.
    same: Option<Watch>,
    /// What the API server has acknowledged.
    acknowledged: BTreeMap<String, String>,
}

/// What was killed: roles, which do not come back by themselves, and the monitor, which is to have a successor.
struct Killed {
    roles: Vec<Role>,
    monitor: Option<ProcessId>,
}

impl Work {
    /// Asks for all of it, and waits until it runs.
    fn begin(cluster: &Cluster<'_>, below: PathBuf) -> anyhow::Result<Self> {
        for claim in [NOTES, KEPT] {
            cluster.create(api::CLAIMS, &objects::claim(claim, CLAIMED))?;
        }
        cluster.create(api::MACHINES, &objects::counting_machine(MACHINE, KEPT))?;
        let volumes = [(VOLUMES[0], json!({"emptyDir": {}})), (VOLUMES[1], objects::of_claim(NOTES))];
        cluster.create(api::PODS, &objects::counting_pod("counter", &volumes))?;
        cluster.create(api::PODS, &objects::idle_pod("half", &json!({CORES: "50", MEMORY: "8"})))?;
        let pod = cluster.wait_pod("counter")?;
        let counter = machine::shell_of(cluster.stage, &below, &pod)?;
        let gpu = machine::shell_of(cluster.stage, &below, &cluster.wait_pod("half")?)?;
        let guest = wait_guest(cluster)?;
        let mut work = Self { below, pod, counter, gpu, guest, lives: 1, same: None, acknowledged: BTreeMap::new() };
        cluster.stage.wait("the pod counts", 60, || work.counted().map_err(|error| format!("{error:#}")))?;
        work.watch(cluster.stage)?;
        Ok(work)
    }

    /// Watches that the processes stay what they are now.
    fn watch(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let all = [("the pod", &self.counter), ("the pod with a GPU", &self.gpu), ("the guest", &self.guest)];
        let all = all.map(|(name, process)| (name.to_owned(), process.clone()));
        self.same = Some(looks::same(stage, &rules::CONTAINERS_STAY, all.into())?);
        Ok(())
    }

    /// Kills somebody right after a write was acknowledged, starts it again, and looks whether all is as it was.
    fn one_kill(&mut self, cluster: &Cluster<'_>, round: u32, victim: Victim) -> anyhow::Result<()> {
        let stage = cluster.stage;
        stage.step(format!("round {round}: kill -9 {}", victim.name()));
        let name = format!("kept-{round}-{}", victim.name());
        let value = format!("written before {} died", victim.name());
        if victim == Victim::Launcher {
            // What a guest has not written yet is lost with it, as with any machine's power.
            self.has_booted(cluster)?;
        }
        let before = self.counted()?;
        let renewed = lease(cluster)?;
        cluster.create(api::CONFIG_MAPS, &objects::config_map(&name, &value))?;
        let killed = self.kill(cluster, victim)?;
        self.acknowledged.insert(name.clone(), value);
        if !killed.roles.is_empty() {
            stage.lasts(AWAY)?;
        }
        if victim == Victim::Role(Role::GpuPlugin) {
            // Else what the node offered before would count as what it offers again.
            stage.wait("the node offers no GPUs while their plugin is away", 30, || {
                let offered = cluster.node()?["status"]["allocatable"][CORES].clone();
                so(offered != json!(ALL_CORES), || format!("it offers {offered} still"))
            })?;
        }
        let back_unix_s = now_unix_s();
        for role in &killed.roles {
            if stage.planted(&leaves(*role)) {
                stage.step(format!("PLANTED: {} is not started again", role.name()));
                continue;
            }
            cluster.start(*role)?;
            cluster.wait_api()?;
        }
        if stage.planted("lose-a-write") {
            stage.step("PLANTED: an acknowledged object is deleted");
            cluster.api.delete(&format!("{}/{name}", api::CONFIG_MAPS))?;
        }
        self.is_acknowledged(cluster)?;
        if victim.is_or_has(Role::Kubelet) {
            stage.must(&rules::WORK_GOES_ON, "the kubelet renews its Lease", 60, || {
                let now = lease(cluster).map_err(|error| format!("{error:#}"))?;
                so(now != renewed, || format!("it was renewed at {now}"))
            })?;
        }
        if victim.is_or_has(Role::GpuPlugin) {
            stage.must(&rules::WORK_GOES_ON, "the node offers its GPUs", 30, || {
                cluster.offers(CORES, ALL_CORES)?;
                // What the kubelet wrote before it was killed itself says nothing.
                if victim == Victim::All { cluster.told_since(back_unix_s) } else { Ok(()) }
            })?;
        }
        if let Some(before) = killed.monitor {
            stage.must(&rules::WORK_GOES_ON, "the guest has another monitor", 60, || {
                let now = self.monitor()?;
                so(now != before, || "it is the one that was killed".to_owned())
            })?;
        }
        stage.must(&rules::DATA_STAYS, "the pod counts on, without a gap", 30, || {
            let now = self.counted().map_err(|error| format!("{error:#}"))?;
            so(now.iter().zip(&before).all(|(now, before)| now > before), || format!("it stands at {now:?}"))
        })
    }

    fn kill(&mut self, cluster: &Cluster<'_>, victim: Victim) -> anyhow::Result<Killed> {
        let stage = cluster.stage;
        let mut killed = Killed { roles: Vec::new(), monitor: None };
        if matches!(victim, Victim::Monitor | Victim::All) {
            let monitor = stage.wait("the guest has a monitor", 60, || self.monitor())?;
            monitor.kill().context("cannot kill the monitor")?;
            killed.monitor = Some(monitor);
        }
        match victim {
            Victim::Role(role) => {
                cluster.kill_9(role)?;
                killed.roles.push(role);
            }
            Victim::All => killed.roles = cluster.kill_9_all()?,
            Victim::Launcher => self.kill_guest(cluster)?,
            Victim::Monitor => {}
        }
        Ok(killed)
    }

    /// Kills the guest. Its machine is always to run, so another one begins, and never beside the first.
    fn kill_guest(&mut self, cluster: &Cluster<'_>) -> anyhow::Result<()> {
        let stage = cluster.stage;
        drop(self.same.take());
        self.guest.process.kill().context("cannot kill the guest")?;
        stage.journal.state("process of the guest", "killed", Tone::Down);
        if stage.planted(SWITCH_OFF) {
            stage.step("PLANTED: the machine is switched off");
            let off = json!({"spec": {"runStrategy": "Halted"}});
            cluster.api.merge(&format!("{}/{MACHINE}", api::MACHINES), &off).context("cannot switch it off")?;
        }
        let next = stage.must(&rules::MACHINES_RUN, "the machine runs again", 120, || {
            let now = guest(cluster, &self.below)?;
            so(now.uid() != self.guest.uid(), || "it is in the pod of the guest that was killed".to_owned())?;
            Ok(now)
        })?;
        self.guest = next;
        self.lives += 1;
        self.watch(stage)
    }

    /// The guest's monitor.
    fn monitor(&self) -> Result<ProcessId, String> {
        let is_it = |found: &Contained| found.uid() == self.guest.uid() && found.is_monitor();
        let found = machine::contained(&self.below).into_iter().find(is_it);
        found.map(|found| found.process).ok_or_else(|| "there is none".to_owned())
    }

    /// Waits until the guest that runs has written its boot on the machine's disk, behind those of the guests before.
    fn has_booted(&self, cluster: &Cluster<'_>) -> anyhow::Result<()> {
        let what = format!("the machine's disk has what {} of its guests wrote", self.lives);
        cluster.stage.must(&rules::DATA_STAYS, &what, BOOT_S, || {
            let boots = boots(&self.guest)?;
            so(boots == self.lives, || format!("it has that of {boots}"))
        })
    }

    /// How far the pod has counted on each volume. It has left nothing out, or this is an error.
    fn counted(&self) -> anyhow::Result<Vec<u64>> {
        let count = |volume: &&str| {
            let log = self.counter.file(&format!("{}/log", objects::place(volume)));
            counted(&log.with_context(|| format!("the pod's file on {volume} cannot be read"))?)
                .map_err(anyhow::Error::msg)
        };
        VOLUMES.iter().map(count).collect()
    }

    fn is_acknowledged(&self, cluster: &Cluster<'_>) -> anyhow::Result<()> {
        for (name, value) in &self.acknowledged {
            let there = cluster.api.get(&format!("{}/{name}", api::CONFIG_MAPS))?;
            let held = there.as_ref().is_some_and(|object| object["data"]["value"] == value.as_str());
            let outcome = so(held, || format!("{name} was acknowledged, and is now {there:?}"));
            cluster.stage.journal.check(&rules::ACKNOWLEDGED_STAYS, outcome);
        }
        Ok(())
    }

    fn is_as_it_was(&self, cluster: &Cluster<'_>) -> anyhow::Result<()> {
        self.has_booted(cluster)?;
        cluster.stage.must(&rules::WORK_GOES_ON, "the pod and the machine are as they were", 30, || {
            let now = cluster.ready_pod("counter")?;
            let restarts = now.pointer("/status/containerStatuses/0/restartCount").cloned();
            so(restarts == Some(json!(0)), || format!("the pod was restarted: {restarts:?}"))?;
            so(api::uid(&now) == api::uid(&self.pod), || "it is another pod".to_owned())?;
            guest(cluster, &self.below).map(drop)
        })
    }

    /// Deletes the machine and the pod that counts.
    fn end(mut self, cluster: &Cluster<'_>) -> anyhow::Result<()> {
        drop(self.same.take());
        cluster.api.delete(&format!("{}/{MACHINE}", api::MACHINES))?;
        cluster.api.delete(&format!("{}/counter", api::PODS))?;
        cluster.stage.must(&rules::WORK_GOES_ON, "what is deleted goes", 60, || {
            so(!self.guest.process.is_alive(), || "the guest runs".to_owned())?;
            so(!self.counter.process.is_alive(), || "the pod runs".to_owned())?;
            let gone = cluster.api.get(&format!("{}/counter", api::PODS)).map_err(|error| error.to_string())?.is_none();
            so(gone, || "the pod is there".to_owned())
        })?;
        cluster.stage.going()
    }
}

/// Whoever was killed is asked for something that nobody else does.
fn everybody_works(cluster: &Cluster<'_>, below: &Path) -> anyhow::Result<()> {
    let stage = cluster.stage;
    stage.step("is everybody back at work? a new volume, a whole GPU, a Deployment, and the end of the machine");
    cluster.create(api::CLAIMS, &objects::claim(LATE, CLAIMED))?;
    cluster.create(api::PODS, &objects::counting_pod(LATE, &[(LATE, objects::of_claim(LATE))]))?;
    cluster.create(api::PODS, &objects::idle_pod("whole", &json!({CORES: "100"})))?;
    // Nothing else in this drill needs the controllers.
    cluster.create(api::DEPLOYMENTS, &objects::idle_deployment("made"))?;
    stage.must(&rules::WORK_GOES_ON, "a new pod runs, with a volume of a new claim", 60, || {
        cluster.ready_pod(LATE).map(drop)
    })?;
    stage.must(&rules::WORK_GOES_ON, "another one runs, and has the GPU that was chosen for it", 60, || {
        has_its_gpu(below, &cluster.ready_pod("whole")?)
    })?;
    stage.must(&rules::GPU_BOUNDS, "no GPU is given out twice", 10, || {
        within_bounds(&cluster.api.list(api::PODS).map_err(|error| error.to_string())?)
    })?;
    stage.must(&rules::WORK_GOES_ON, "the pod of a new Deployment runs", 60, || {
        let path = format!("{}/made", api::DEPLOYMENTS);
        let made = cluster.api.get(&path).map_err(|error| error.to_string())?.ok_or("it is not there")?;
        let ready = made.pointer("/status/readyReplicas");
        so(ready == Some(&json!(1)), || format!("of its pods {ready:?} are ready"))
    })
}

/// Whether a pod's process was told of the GPU that the extender has chosen for it.
fn has_its_gpu(below: &Path, pod: &Value) -> Result<(), String> {
    let shell = machine::in_pod(below, api::uid(pod), "sh").ok_or("no process of the pod runs")?;
    let (chosen, given) = (chosen(pod), shell.variable(VISIBLE).unwrap_or_default());
    so(!chosen.is_empty() && given == format!("GPU-fake-{chosen}"), || format!("it has {given:?}, and not {chosen:?}"))
}

/// How many guests have booted on the machine's disk, one after the other.
fn boots(guest: &Contained) -> Result<u64, String> {
    // Where `/var/run` is a link, what is mounted there has the place that it leads to.
    let dir = paths::claim_dir(objects::BOOTS);
    let dir = dir.trim_start_matches("/var");
    let mount = guest.mounts().into_iter().find(|mount| mount.place.ends_with(dir)).ok_or("it is not to be seen")?;
    let image = guest.head(&format!("{}/disk.img", mount.place), BOOTS_BYTES);
    written(&image.map_err(|error| format!("it cannot be read: {error}"))?)
}

/// How far was counted at the beginning of a disk. What follows has never been written.
fn written(disk: &[u8]) -> Result<u64, String> {
    counted(disk.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// When the node was heard last.
fn lease(cluster: &Cluster<'_>) -> anyhow::Result<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
    let lease = cluster.api.get(&path)?.context("the node has no Lease")?;
    Ok(api::text(&lease, "/spec/renewTime").to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everybody_is_killed_alone_and_under_a_name_of_its_own() {
        let names: BTreeSet<&str> = KILLED.iter().map(|victim| victim.name()).collect();
        assert_eq!(names.len(), KILLED.len());
        // Nothing here is hollow.
        for role in Role::ALL.into_iter().filter(|role| *role != Role::Hollow) {
            assert!(KILLED.contains(&Victim::Role(role)), "{}", role.name());
        }
        assert!(Victim::All.is_or_has(Role::Kubelet) && !Victim::Launcher.is_or_has(Role::Kubelet));
    }

    #[test]
    fn what_is_planted_in_one_victim_spares_the_others() {
        for (name, victim) in ALONE {
            assert!(STORY.plants.iter().any(|plant| plant.name == name), "{name} cannot be planted");
            assert_eq!(victims(Some(name)), [victim]);
            if let Victim::Role(role) = victim {
                assert_eq!(name, leaves(role));
            }
        }
        assert_eq!(victims(Some("lose-a-write")), KILLED);
        assert_eq!(victims(None), KILLED);
    }

    #[test]
    fn what_guests_have_written_on_a_disk() {
        let check = |disk: &[u8], expected: Option<u64>| assert_eq!(written(disk).ok(), expected, "{disk:?}");
        check(b"", Some(0));
        check(b"\0\0\0", Some(0));
        check(b"1\n\0\0", Some(1));
        check(b"1\n2\n\0\0", Some(2));
        check(b"2\n\0", None);
    }
}
