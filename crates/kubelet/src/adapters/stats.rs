//! What the node and its pods use: from the runtime (CRI stats), /proc, control groups and the file systems.

mod disk;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_disks::filesystem;
use carrack_engine::Time;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;

use super::cri::Cri;
use super::host::{KERNEL, pids_max};
use super::{blocking, cgroups, convert};
use crate::effects::OpError;
use crate::eviction::Usage;
use crate::runtime::{ContainerRecord, Uid, labels};
use crate::server::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats, PodReference, PodStats,
    ProcessStats, RlimitStats, RuntimeStats, Summary, SwapStats, VolumeStats,
};
use crate::spec::resources::of_pod;
use crate::status::pod::statuses;
use disk::Kept;
use files::Files;

/// Ticks a second of the kernel's CPU times: fixed for user space.
const TICK_NS: u64 = 10_000_000;
/// How long what a pod keeps on the disk counts as measured, for who only wants to see it (upstream's `volumeStatsAggPeriod`).
const KEPT_AGE: Duration = Duration::from_secs(60);

/// When, nanoseconds of a core until then, and the rate found then.
type Sample = (Time, u64, Option<u64>);

/// When, and what a pod kept then.
type Measured = (Time, Arc<Kept>);

/// Where things are, and the samples that rates are made of.
pub struct Stats {
    cri: Arc<Cri>,
    root: PathBuf,
    log_dir: PathBuf,
    /// The control group that pods are in.
    pods_group: String,
    last: Mutex<BTreeMap<String, Sample>>,
    kept: Arc<Mutex<BTreeMap<Uid, Measured>>>,
}

impl Stats {
    /// For the kubelet's directory, the pods' logs and their control group.
    #[must_use]
    pub fn new(cri: Arc<Cri>, root: PathBuf, log_dir: PathBuf, pods_group: String) -> Self {
        Self { cri, root, log_dir, pods_group, last: Mutex::default(), kept: Arc::default() }
    }

    /// Everything at once.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn summary(&self, node_name: &str, pods: &[Arc<Pod>]) -> Result<Summary, OpError> {
        let (containers, running) = self.used().await?;
        // Older runtimes lack it; then the network is read where the kernel tells.
        let sandboxes = self.cri.sandbox_stats().await.unwrap_or_default();
        let images = self.images().await;
        let layers = containers.iter().filter_map(|c| c.writable_layer.as_ref());
        let layers = (
            layers.clone().filter_map(|l| l.used_bytes.as_ref()).map(|v| v.value).reduce(|a, b| a + b),
            layers.filter_map(|l| l.inodes_used.as_ref()).map(|v| v.value).reduce(|a, b| a + b),
        );
        let mut networks: BTreeMap<String, NetworkStats> =
            sandboxes.iter().filter_map(|s| Some((uid_of(s).to_owned(), network(s)?))).collect();
        let mut by_pod = by_pod(containers, &running);
        let (mut out, mut of_pods) = (Vec::new(), Vec::new());
        for p in pods {
            let uid = p.metadata.uid.clone().unwrap_or_default();
            let Some(containers) = by_pod.remove(&uid) else { continue };
            let mut pod = self.pod(p, &uid, containers, images.as_ref());
            pod.network = networks.remove(&uid);
            let of_pod = sandboxes.iter().find(|s| uid_of(s) == uid);
            pod.processes =
                of_pod.map(processes).filter(|n| *n > 0).map(|process_count| ProcessStats { process_count });
            out.push(pod);
            of_pods.push(p.clone());
        }
        let (root, log_dir, kept) = (self.root.clone(), self.log_dir.clone(), self.kept.clone());
        let pods_group = self.pods_group.clone();
        let out = blocking(move || {
            for (pod, of) in out.iter_mut().zip(&of_pods).filter(|(pod, _)| pod.network.is_none()) {
                pod.network = network_of(of, &pods_group);
            }
            add_kept(&mut out, &kept_by(&kept, &of_pods, &root, &log_dir), &root, &log_dir);
            Ok(out)
        })
        .await?;
        let mut node = self.node(node_name).await?;
        // Writable layers lie where images do.
        node.runtime = images.map(|images| {
            let container_fs = FsStats { used_bytes: layers.0, inodes_used: layers.1, ..images.clone() };
            RuntimeStats { image_fs: images, container_fs }
        });
        Ok(self.finished(node, out))
    }

    /// CPUs and memory alone: no disk is looked at for it.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn cpu_and_memory(&self, node_name: &str, pods: &[Arc<Pod>]) -> Result<Summary, OpError> {
        let (containers, running) = self.used().await?;
        let mut by_pod = by_pod(containers, &running);
        let of_pod = |p: &Arc<Pod>| {
            let uid = p.metadata.uid.clone().unwrap_or_default();
            Some(self.pod(p, &uid, by_pod.remove(&uid)?, None))
        };
        let pods = pods.iter().filter_map(of_pod).collect();
        Ok(self.finished(self.node(node_name).await?, pods))
    }

    /// What all containers use, and the ids of those of them that run.
    async fn used(&self) -> Result<(Vec<v1::ContainerStats>, BTreeSet<String>), OpError> {
        tokio::try_join!(self.cri.container_stats(), self.cri.running())
    }

    /// What the node uses, and the parts of it that run in control groups of their own.
    async fn node(&self, name: &str) -> Result<NodeStats, OpError> {
        let (root, name, pods_group) = (self.root.clone(), name.to_owned(), self.pods_group.clone());
        let (mut node, groups) = blocking(move || {
            let own = cgroups::own().and_then(|path| cgroups::usage(&path));
            let groups = [("kubelet", own), ("pods", cgroups::usage(&pods_group))];
            Ok((node(&root, &name), groups))
        })
        .await?;
        let now = super::now();
        if let Some(cpu) = &mut node.cpu {
            cpu.usage_nano_cores = self.rate("node", now, cpu.usage_core_nano_seconds);
        }
        let used = groups.into_iter().filter_map(|(name, used)| Some((name, used?)));
        node.system_containers = used.map(|(name, used)| self.system_container(name, now, used)).collect();
        Ok(node)
    }

    fn system_container(&self, name: &str, now: Time, used: cgroups::Use) -> ContainerStats {
        let cpu = CpuStats {
            time: now.meta(),
            usage_nano_cores: self.rate(name, now, used.cpu_ns),
            usage_core_nano_seconds: used.cpu_ns,
        };
        let memory = MemoryStats {
            time: now.meta(),
            available_bytes: used.most_bytes.zip(used.working_set_bytes).map(|(most, used)| most.saturating_sub(used)),
            usage_bytes: used.memory_bytes,
            working_set_bytes: used.working_set_bytes,
            rss_bytes: None,
            page_faults: None,
            major_page_faults: None,
        };
        ContainerStats { name: name.to_owned(), cpu: Some(cpu), memory: Some(memory), ..ContainerStats::default() }
    }

    /// All of it; samples of what is gone are forgotten.
    fn finished(&self, node: NodeStats, pods: Vec<PodStats>) -> Summary {
        let seen: Vec<String> =
            pods.iter().flat_map(|p| p.containers.iter().map(|c| key(&p.pod_ref.uid, &c.name))).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of pods have their UIDs in front.
        last.retain(|k, _| !k.contains('/') || seen.contains(k));
        drop(last);
        Summary { node, pods }
    }

    /// The file system where the runtime keeps images, with what it uses of that.
    async fn images(&self) -> Option<FsStats> {
        let used =
            self.cri.image_use().await.inspect_err(|error| tracing::debug!(%error, "no use of images")).ok()??;
        let dir = used.fs_id.map(|id| PathBuf::from(id.mountpoint)).filter(|dir| dir.is_absolute())?;
        let disk = blocking(move || Ok(file_system(&dir, super::now().meta()))).await.ok()??;
        let own = |v: Option<v1::UInt64Value>| v.map(|v| v.value);
        Some(FsStats { used_bytes: own(used.used_bytes), inodes_used: own(used.inodes_used), ..disk })
    }

    /// What one pod uses of CPUs and memory, and in its containers' layers.
    fn pod(&self, p: &Pod, uid: &str, stats: Vec<v1::ContainerStats>, images: Option<&FsStats>) -> PodStats {
        let status = p.status.as_ref();
        let mut containers = Vec::new();
        for c in stats {
            let Some(name) = c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned() else {
                continue;
            };
            let started = status
                .into_iter()
                .flat_map(statuses)
                .find(|s| s.name == name)
                .and_then(|s| s.state.as_ref()?.running.as_ref()?.started_at.clone());
            // One that is over is no use any more.
            if started.is_none() {
                continue;
            }
            let cpu = c.cpu.as_ref().map(|cpu| {
                let total = cpu.usage_core_nano_seconds.as_ref().map(|v| v.value);
                let time = Time(cpu.timestamp);
                let told = cpu.usage_nano_cores.as_ref().map(|v| v.value).filter(|n| *n > 0);
                CpuStats {
                    time: time.meta(),
                    usage_nano_cores: told.or_else(|| self.rate(&key(uid, &name), time, total)),
                    usage_core_nano_seconds: total,
                }
            });
            let memory = c.memory.as_ref().map(|m| {
                let value = |v: &Option<v1::UInt64Value>| v.as_ref().map(|v| v.value);
                MemoryStats {
                    time: Time(m.timestamp).meta(),
                    available_bytes: value(&m.available_bytes).filter(|n| *n > 0),
                    usage_bytes: value(&m.usage_bytes).filter(|n| *n > 0),
                    working_set_bytes: value(&m.working_set_bytes),
                    rss_bytes: value(&m.rss_bytes).filter(|n| *n > 0),
                    page_faults: value(&m.page_faults).filter(|n| *n > 0),
                    major_page_faults: value(&m.major_page_faults),
                }
            });
            let rootfs = c.writable_layer.as_ref().map(|l| FsStats {
                time: Time(l.timestamp).meta(),
                available_bytes: images.and_then(|f| f.available_bytes),
                capacity_bytes: images.and_then(|f| f.capacity_bytes),
                used_bytes: l.used_bytes.as_ref().map(|v| v.value),
                inodes_free: images.and_then(|f| f.inodes_free),
                inodes: images.and_then(|f| f.inodes),
                inodes_used: l.inodes_used.as_ref().map(|v| v.value),
            });
            let swap = c.swap.as_ref().map(|s| SwapStats {
                time: Time(s.timestamp).meta(),
                swap_available_bytes: s.swap_available_bytes.as_ref().map(|v| v.value),
                swap_usage_bytes: s.swap_usage_bytes.as_ref().map(|v| v.value),
            });
            containers.push(ContainerStats { name, start_time: started, cpu, memory, rootfs, logs: None, swap });
        }
        let sum = |f: &dyn Fn(&ContainerStats) -> Option<u64>| containers.iter().filter_map(f).reduce(|a, b| a + b);
        let cpu = containers.iter().find_map(|c| c.cpu.clone()).map(|c| CpuStats {
            usage_nano_cores: sum(&|c| c.cpu.as_ref()?.usage_nano_cores),
            usage_core_nano_seconds: sum(&|c| c.cpu.as_ref()?.usage_core_nano_seconds),
            time: c.time,
        });
        let memory = containers.iter().find_map(|c| c.memory.clone()).map(|m| MemoryStats {
            time: m.time,
            available_bytes: None,
            usage_bytes: sum(&|c| c.memory.as_ref()?.usage_bytes),
            working_set_bytes: sum(&|c| c.memory.as_ref()?.working_set_bytes),
            rss_bytes: sum(&|c| c.memory.as_ref()?.rss_bytes),
            page_faults: sum(&|c| c.memory.as_ref()?.page_faults),
            major_page_faults: sum(&|c| c.memory.as_ref()?.major_page_faults),
        });
        PodStats {
            pod_ref: PodReference {
                name: p.metadata.name.clone().unwrap_or_default(),
                namespace: p.metadata.namespace.clone().unwrap_or_default(),
                uid: uid.to_owned(),
            },
            start_time: status.and_then(|s| s.start_time.clone()),
            cpu,
            memory,
            swap: swap_of(&containers),
            containers,
            ..PodStats::default()
        }
    }

    /// Billionths of a core at present: from this sample and the last one that is not too near.
    fn rate(&self, key: &str, time: Time, total: Option<u64>) -> Option<u64> {
        let total = total?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((before, used, rate)) = last.get(key).copied() else {
            last.insert(key.to_owned(), (time, total, None));
            return None;
        };
        let span = time.since(before).as_nanos();
        if span < 1_000_000_000 || total < used {
            if total < used {
                last.insert(key.to_owned(), (time, total, None));
            }
            return rate;
        }
        let rate = u64::try_from(u128::from(total - used) * 1_000_000_000 / span).ok();
        last.insert(key.to_owned(), (time, total, rate));
        rate
    }

    /// How the containers of pods that run are held back, by their ids: those of whom that is known.
    ///
    /// # Errors
    /// Where reading it breaks off.
    pub async fn throttling(
        &self,
        pods: Arc<Vec<Arc<Pod>>>,
        containers: &[ContainerRecord],
    ) -> Result<BTreeMap<String, cgroups::Throttling>, OpError> {
        let runs = containers.iter().filter(|c| c.may_run());
        let running: Vec<(Uid, String)> = runs.map(|c| (c.pod.uid.clone(), c.id.clone())).collect();
        let pods_group = self.pods_group.clone();
        blocking(move || {
            let groups: BTreeMap<Uid, String> =
                pods.iter().map(|p| (crate::spec::pod::uid(p), of_pod(p, &pods_group).path)).collect();
            // The runtime makes a group for each container in its pod's.
            let of = |(uid, id): (Uid, String)| {
                let found = cgroups::throttling(&format!("{}/{id}", groups.get(&uid)?))?;
                Some((id, found))
            };
            Ok(running.into_iter().filter_map(of).collect())
        })
        .await
    }

    /// What pods use, for eviction.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn usage(&self, pods: Vec<Arc<Pod>>) -> Result<BTreeMap<Uid, Usage>, OpError> {
        let mut out: BTreeMap<Uid, Usage> = pods.iter().map(|p| (crate::spec::pod::uid(p), Usage::default())).collect();
        let (containers, running) = self.used().await?;
        add_used(&mut out, &containers, &running);
        // Older runtimes lack it; then processes are not known.
        for s in self.cri.sandbox_stats().await.unwrap_or_default() {
            if let Some(u) = out.get_mut(uid_of(&s)) {
                u.processes += processes(&s);
            }
        }
        let (root, log_dir) = (self.root.clone(), self.log_dir.clone());
        blocking(move || {
            for p in pods {
                Kept::of(&p, &root, &log_dir).add_to(out.entry(crate::spec::pod::uid(&p)).or_default());
            }
            Ok(out)
        })
        .await
    }
}

/// Whether what is told of is a container that runs. A runtime tells of those that are over as well, for as long as it keeps them:
/// of what they have left in their layers. Nobody is charged with that: as with upstream (`removeTerminatedContainers`,
/// `pkg/kubelet/stats`), a container that starts again has all of what it may keep.
fn runs(c: &v1::ContainerStats, running: &BTreeSet<String>) -> bool {
    c.attributes.as_ref().is_some_and(|a| running.contains(&a.id))
}

/// The numbers of containers that run, by the UIDs of all pods that have any.
fn by_pod(all: Vec<v1::ContainerStats>, running: &BTreeSet<String>) -> BTreeMap<String, Vec<v1::ContainerStats>> {
    let mut out: BTreeMap<String, Vec<v1::ContainerStats>> = BTreeMap::new();
    for c in all {
        let uid = c.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned();
        let of_pod = out.entry(uid.unwrap_or_default()).or_default();
        if runs(&c, running) {
            of_pod.push(c);
        }
    }
    out
}

/// Adds what containers that run use of memory, and of disks in their layers, to what these pods use.
fn add_used(out: &mut BTreeMap<Uid, Usage>, all: &[v1::ContainerStats], running: &BTreeSet<String>) {
    for c in all.iter().filter(|c| runs(c, running)) {
        let Some(pod) = c.attributes.as_ref().and_then(|a| convert::pod_ref(&a.labels)) else { continue };
        let value = |v: &Option<v1::UInt64Value>| v.as_ref().map_or(0, |v| v.value);
        let Some(u) = out.get_mut(&pod.uid) else { continue };
        let name = c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned();
        let name = name.unwrap_or_default();
        let memory = c.memory.as_ref().map_or(0, |m| value(&m.working_set_bytes));
        u.memory_bytes += memory;
        *u.memory.entry(name.clone()).or_default() += memory;
        if let Some(layer) = &c.writable_layer {
            u.disk_bytes += value(&layer.used_bytes);
            u.layer_bytes += value(&layer.used_bytes);
            u.inodes += value(&layer.inodes_used);
            u.layer_inodes += value(&layer.inodes_used);
            *u.containers.entry(name).or_default() += value(&layer.used_bytes);
        }
    }
}

/// What containers use of swap together; none where nobody tells.
fn swap_of(containers: &[ContainerStats]) -> Option<SwapStats> {
    let sum = |f: fn(&SwapStats) -> Option<u64>| {
        containers.iter().filter_map(|c| f(c.swap.as_ref()?)).reduce(|a, b| a.saturating_add(b))
    };
    let first = containers.iter().find_map(|c| c.swap.as_ref())?;
    Some(SwapStats {
        time: first.time.clone(),
        swap_available_bytes: sum(|s| s.swap_available_bytes),
        swap_usage_bytes: sum(|s| s.swap_usage_bytes),
    })
}

/// What each of these pods keeps on the disk: as it was measured last, where that is not long ago.
fn kept_by(known: &Mutex<BTreeMap<Uid, Measured>>, pods: &[Arc<Pod>], root: &Path, log_dir: &Path) -> Vec<Arc<Kept>> {
    let now = super::now();
    let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = pods.iter().map(|p| {
        let uid = crate::spec::pod::uid(p);
        let young = lock().get(&uid).filter(|(at, _)| now.since(*at) < KEPT_AGE).map(|(_, kept)| kept.clone());
        young.unwrap_or_else(|| {
            let kept = Arc::new(Kept::of(p, root, log_dir));
            lock().insert(uid, (now, kept.clone()));
            kept
        })
    });
    let kept = kept.collect();
    lock().retain(|uid, _| pods.iter().any(|p| p.metadata.uid.as_deref() == Some(&**uid)));
    kept
}

/// Adds what pods keep on the disk: logs, emptyDirs, and all of it with their containers' layers.
fn add_kept(pods: &mut [PodStats], kept: &[Arc<Kept>], root: &Path, log_dir: &Path) {
    let time = super::now().meta();
    let (Some(disk), Some(of_logs)) = (file_system(root, time.clone()), file_system(log_dir, time.clone())) else {
        return;
    };
    let used = |f: Files, of: &FsStats| FsStats { used_bytes: Some(f.bytes), inodes_used: Some(f.count), ..of.clone() };
    for (pod, kept) in pods.iter_mut().zip(kept) {
        for container in &mut pod.containers {
            let files = kept.logs.get(&container.name).copied().unwrap_or_default();
            container.logs = Some(used(files, &of_logs));
        }
        pod.volumes.extend(kept.empty_dirs.iter().filter_map(|v| {
            let of_memory = || file_system(&v.dir, time.clone());
            let fs = if v.is_on_disk { disk.clone() } else { of_memory()? };
            Some(VolumeStats { fs: used(v.files, &fs), name: v.name.clone(), pvc_ref: None, volume_health_stats: None })
        }));
        let layers = |f: fn(&FsStats) -> Option<u64>| -> u64 {
            pod.containers.iter().filter_map(|c| f(c.rootfs.as_ref()?)).sum()
        };
        let on_disk = kept.on_disk();
        let all = on_disk.and(Files { bytes: layers(|f| f.used_bytes), count: layers(|f| f.inodes_used) });
        pod.ephemeral_storage = Some(used(all, &disk));
    }
}

fn key(uid: &str, container: &str) -> String {
    format!("{uid}/{container}")
}

/// The pod that a sandbox is of.
fn uid_of(s: &v1::PodSandboxStats) -> &str {
    s.attributes.as_ref().and_then(|a| a.metadata.as_ref()).map_or("", |m| m.uid.as_str())
}

/// The file system that a directory is on; none where that cannot be asked.
fn file_system(dir: &Path, time: MetaTime) -> Option<FsStats> {
    Some(told(&filesystem::usage(dir).ok()?, time))
}

/// What is used of a file system, as it is told.
pub(super) fn told(u: &filesystem::Usage, time: MetaTime) -> FsStats {
    FsStats {
        time,
        available_bytes: Some(u.available_bytes),
        capacity_bytes: Some(u.total_bytes),
        used_bytes: Some(u.used_bytes),
        inodes_free: Some(u.inodes_free),
        inodes: Some(u.inodes),
        inodes_used: Some(u.inodes.saturating_sub(u.inodes_free)),
    }
}

/// Processes of a pod.
fn processes(s: &v1::PodSandboxStats) -> u64 {
    let of = s.linux.as_ref().and_then(|l| l.process.as_ref()?.process_count.as_ref());
    of.map_or(0, |count| count.value)
}

fn network(s: &v1::PodSandboxStats) -> Option<NetworkStats> {
    let n = s.linux.as_ref()?.network.as_ref()?;
    let value = |v: &Option<v1::UInt64Value>| v.as_ref().map(|v| v.value);
    let interface = |i: &v1::NetworkInterfaceUsage| InterfaceStats {
        name: i.name.clone(),
        rx_bytes: value(&i.rx_bytes),
        rx_errors: value(&i.rx_errors),
        tx_bytes: value(&i.tx_bytes),
        tx_errors: value(&i.tx_errors),
    };
    let default = interface(n.default_interface.as_ref()?);
    let interfaces = std::iter::once(default.clone()).chain(n.interfaces.iter().map(interface)).collect();
    Some(NetworkStats { time: Time(n.timestamp).meta(), default, interfaces })
}

/// What went over the interfaces of a pod, as its first process sees them; the numbers of one with the node's network are the
/// node's.
fn network_of(pod: &Pod, pods_group: &str) -> Option<NetworkStats> {
    if crate::spec::pod::spec(pod).host_network == Some(true) {
        return None;
    }
    let process = cgroups::first_process(&of_pod(pod, pods_group).path)?;
    pod_network(&fs::read_to_string(format!("/proc/{process}/net/dev")).ok()?, super::now().meta())
}

/// The interfaces of a pod, from the text of its /proc/net/dev. The first one, `eth0`, is the cluster's.
fn pod_network(dev: &str, time: MetaTime) -> Option<NetworkStats> {
    let interfaces: Vec<InterfaceStats> = interfaces(dev).filter(|i| i.name != "lo").collect();
    let default = interfaces.iter().find(|i| i.name == "eth0").or(interfaces.first())?.clone();
    Some(NetworkStats { time, default, interfaces })
}

/// All interfaces, from the text of /proc/net/dev.
fn interfaces(dev: &str) -> impl Iterator<Item = InterfaceStats> {
    dev.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let at = |n: usize| counts.get(n).copied();
        let name = name.trim().to_owned();
        Some(InterfaceStats { name, rx_bytes: at(0), rx_errors: at(2), tx_bytes: at(8), tx_errors: at(10) })
    })
}

/// The interfaces of the node, from the texts of /proc/net/dev and /proc/net/route; those of pods' links are left out, as upstream
/// does it.
fn node_network(dev: &str, routes: &str, time: MetaTime) -> Option<NetworkStats> {
    let default = routes.lines().find_map(|l| {
        let fields: Vec<&str> = l.split_whitespace().collect();
        (fields.get(1) == Some(&"00000000")).then(|| fields[0].to_owned())
    });
    let is_nodes = |i: &InterfaceStats| i.name != "lo" && !i.name.starts_with("veth");
    let interfaces: Vec<InterfaceStats> = interfaces(dev).filter(is_nodes).collect();
    let default = interfaces.iter().find(|i| Some(&i.name) == default.as_ref())?.clone();
    Some(NetworkStats { time, default, interfaces })
}

fn node(root: &Path, name: &str) -> NodeStats {
    let time = super::now().meta();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (stat, memory, vmstat) = (text("/proc/stat"), text("/proc/meminfo"), text("/proc/vmstat"));
    let events = |name: &str| vmstat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let now = text("/proc/loadavg").split_whitespace().nth(3).and_then(|f| f.split_once('/')?.1.parse::<u64>().ok());
    let processes = now.zip(Some(pids_max(Path::new(KERNEL))).filter(|most| *most > 0));
    let bytes = |key: &str| super::host::meminfo(&memory, key);
    let (total, available) = (bytes("MemTotal"), bytes("MemAvailable"));
    let booted = stat.lines().find_map(|l| l.strip_prefix("btime ")?.parse::<i64>().ok());
    NodeStats {
        node_name: name.to_owned(),
        start_time: booted.map(|s| Time::from_unix_s(s).meta()),
        cpu: busy_ns(&stat).map(|ns| CpuStats {
            time: time.clone(),
            usage_nano_cores: None,
            usage_core_nano_seconds: Some(ns),
        }),
        memory: Some(MemoryStats {
            time: time.clone(),
            available_bytes: Some(available),
            usage_bytes: Some(total.saturating_sub(bytes("MemFree"))),
            working_set_bytes: Some(total.saturating_sub(available)),
            rss_bytes: Some(bytes("AnonPages")),
            page_faults: events("pgfault"),
            major_page_faults: events("pgmajfault"),
        }),
        system_containers: Vec::new(),
        network: node_network(&text("/proc/net/dev"), &text("/proc/net/route"), time.clone()),
        fs: file_system(root, time.clone()),
        runtime: None,
        rlimit: processes.map(|(now, most)| RlimitStats { time: time.clone(), most, now }),
        swap: Some(SwapStats {
            time,
            swap_available_bytes: Some(bytes("SwapFree")),
            swap_usage_bytes: Some(bytes("SwapTotal").saturating_sub(bytes("SwapFree"))),
        }),
    }
}

/// Time that all CPUs together were at work, from the text of /proc/stat: all but idle and waiting.
fn busy_ns(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|t| t.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user.
    let busy: u64 = ticks.iter().take(8).enumerate().filter(|(n, _)| *n != 3 && *n != 4).map(|(_, t)| t).sum();
    Some(busy * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted() {
        assert_eq!(busy_ns("cpu  1 2 3 100 50 4 5 6 7 8\ncpu0 1\n"), Some(21 * TICK_NS));
        assert_eq!(busy_ns(""), None);
    }

    /// A runtime keeps the last run of a container for a while, and init containers as long as their pod.
    #[test]
    fn what_is_over_uses_nothing() {
        let told = |id: &str, name: &str| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: id.into(),
                labels: [
                    (labels::POD_NAMESPACE, "n"),
                    (labels::POD_NAME, "p"),
                    (labels::POD_UID, "u"),
                    (labels::CONTAINER_NAME, name),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
                ..v1::ContainerAttributes::default()
            }),
            writable_layer: Some(v1::FilesystemUsage {
                used_bytes: Some(v1::UInt64Value { value: 600 }),
                inodes_used: Some(v1::UInt64Value { value: 6 }),
                ..v1::FilesystemUsage::default()
            }),
            ..v1::ContainerStats::default()
        };
        let all = vec![told("0", "init"), told("1", "c"), told("2", "c")];
        for (running, count) in [(&["2"][..], 1), (&["1", "2"], 2), (&[], 0)] {
            let running: BTreeSet<String> = running.iter().map(|id| (*id).to_owned()).collect();
            let mut out = BTreeMap::from([(Uid::from("u"), Usage::default())]);
            add_used(&mut out, &all, &running);
            let used = &out["u"];
            assert_eq!((used.disk_bytes, used.layer_bytes), (600 * count, 600 * count), "{running:?}");
            assert_eq!((used.inodes, used.layer_inodes), (6 * count, 6 * count), "{running:?}");
            assert_eq!(used.containers.get("c").copied().unwrap_or_default(), 600 * count, "{running:?}");
            assert!(!used.containers.contains_key("init"), "{running:?}");
            let shown: Vec<(String, u64)> =
                by_pod(all.clone(), &running).into_iter().map(|(uid, of)| (uid, of.len() as u64)).collect();
            assert_eq!(shown, [("u".to_owned(), count)], "a pod is told of that has none that runs");
        }
    }

    #[test]
    fn what_pods_keep_is_told_and_measured_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let pod: Arc<Pod> = serde_json::from_value(serde_json::json!(
            {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}))
        .map(Arc::new)
        .unwrap();
        let volume = dir.path().join("pods/u/volumes/kubernetes.io~empty-dir/v");
        let log = dir.path().join("n_p_u/c");
        for dir in [&volume, &log] {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("f"), vec![1; 100_000]).unwrap();
        }
        let layer = FsStats { used_bytes: Some(1000), ..file_system(dir.path(), Time::from_unix_s(1).meta()).unwrap() };
        let container = ContainerStats { name: "c".into(), rootfs: Some(layer), ..ContainerStats::default() };
        let known = Mutex::default();
        let told = || {
            let mut pods = [PodStats { containers: vec![container.clone()], ..PodStats::default() }];
            add_kept(
                &mut pods,
                &kept_by(&known, std::slice::from_ref(&pod), dir.path(), dir.path()),
                dir.path(),
                dir.path(),
            );
            serde_json::to_value(&pods[0]).unwrap()
        };
        let first = told();
        for (path, least) in [
            ("/ephemeral-storage/usedBytes", 201_000),
            ("/containers/0/logs/usedBytes", 100_000),
            ("/volume/0/usedBytes", 100_000),
        ] {
            assert!(first.pointer(path).and_then(serde_json::Value::as_u64) >= Some(least), "{path} of {first}");
        }
        assert_eq!(first["volume"][0]["name"], "v");
        fs::write(volume.join("g"), vec![1; 100_000]).unwrap();
        assert_eq!(told()["volume"][0]["usedBytes"], first["volume"][0]["usedBytes"]);
        assert!(kept_by(&known, &[], dir.path(), dir.path()).is_empty());
        assert!(told()["volume"][0]["usedBytes"].as_u64() > first["volume"][0]["usedBytes"].as_u64());
    }

    #[test]
    fn networks_of_the_node_are_read() {
        let dev = "Inter-|   Receive        |  Transmit\n face |bytes packets errs |bytes packets errs\n\
            \x20   lo: 1 2 3 0 0 0 0 0 4 5 6 0 0 0 0 0\n  eth0: 10 2 3 0 0 0 0 0 40 5 6 0 0 0 0 0\n\
            veth7: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\n  br0: 7 2 0 0 0 0 0 0 8 5 0 0 0 0 0 0\n";
        let routes = "Iface\tDestination\tGateway\neth0\t0000A8C0\t00000000\neth0\t00000000\t0100A8C0\n";
        let time = Time::from_unix_s(1).meta();
        let network = node_network(dev, routes, time.clone()).unwrap();
        let of = |i: &InterfaceStats| (i.name.clone(), i.rx_bytes, i.rx_errors, i.tx_bytes, i.tx_errors);
        assert_eq!(of(&network.default), ("eth0".into(), Some(10), Some(3), Some(40), Some(6)));
        let names: Vec<&str> = network.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["eth0", "br0"]);
        assert_eq!(node_network(dev, "Iface\tDestination\n", time), None);
        let shown = serde_json::to_value(&network).unwrap();
        assert_eq!((&shown["name"], &shown["txBytes"]), (&"eth0".into(), &40.into()), "{shown}");
        assert_eq!(shown["interfaces"][1]["name"], "br0");
    }

    #[test]
    fn networks_of_pods_are_read() {
        let head = "Inter-|   Receive        |  Transmit\n face |bytes packets errs |bytes packets errs\n";
        let line = |name: &str, rx: u64| format!("  {name}: {rx} 2 3 0 0 0 0 0 40 5 6 0 0 0 0 0\n");
        let (lo, eth, other) = (line("lo", 1), line("eth0", 10), line("net1", 7));
        let time = Time::from_unix_s(1).meta();
        for (lines, expected) in [
            (vec![&lo, &other, &eth], Some(("eth0", Some(10), 2))),
            (vec![&lo, &other], Some(("net1", Some(7), 1))),
            (vec![&lo], None),
        ] {
            let dev = lines.into_iter().fold(head.to_owned(), |dev, line| dev + line);
            let found = pod_network(&dev, time.clone());
            let found = found.as_ref().map(|n| (n.default.name.as_str(), n.default.rx_bytes, n.interfaces.len()));
            assert_eq!(found, expected, "{dev}");
        }
    }

    #[test]
    fn this_machine_has_numbers() {
        let shown = serde_json::to_value(node(Path::new("/"), "n")).unwrap();
        for path in [
            "/cpu/usageCoreNanoSeconds",
            "/memory/pageFaults",
            "/memory/majorPageFaults",
            "/fs/inodesUsed",
            "/rlimit/maxpid",
            "/rlimit/curproc",
            "/swap/swapUsageBytes",
            "/swap/swapAvailableBytes",
        ] {
            assert!(shown.pointer(path).is_some_and(serde_json::Value::is_number), "{path} of {shown}");
        }
    }

    #[tokio::test]
    async fn rates_come_of_two_samples() {
        let cri = Arc::new(Cri::new("/nowhere".into()).unwrap());
        let stats = Stats::new(cri, "/".into(), "/".into(), "kubepods".into());
        let at = Time::from_unix_s;
        assert_eq!(stats.rate("a", at(10), Some(1_000)), None);
        assert_eq!(stats.rate("a", at(12), Some(1_000 + 3_000_000_000)), Some(1_500_000_000));
        assert_eq!(stats.rate("a", Time(12_100_000_000), Some(9_000_000_000)), Some(1_500_000_000), "too near");
        assert_eq!(stats.rate("a", at(20), Some(5)), Some(1_500_000_000), "the counter began anew");
        assert_eq!(stats.rate("a", at(22), Some(5)), Some(0));
    }
}
