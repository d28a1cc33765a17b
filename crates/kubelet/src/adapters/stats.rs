//! What the node and its pods use: from the runtime (CRI stats), /proc and the file systems.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use carrack_engine::Time;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::Pod;

use super::cri::Cri;
use super::{blocking, convert};
use crate::effects::OpError;
use crate::eviction::Usage;
use crate::runtime::{Uid, labels};
use crate::server::{
    ContainerStats, CpuStats, FsStats, MemoryStats, NetworkStats, NodeStats, PodReference, PodStats, Summary,
};

/// Ticks a second of the kernel's CPU times: fixed for user space.
const TICK_NS: u64 = 10_000_000;
/// Most files of one pod that are looked at; a pod with more is counted up to here.
const MAX_FILES: u64 = 1_000_000;

/// When, nanoseconds of a core until then, and the rate found then.
type Sample = (Time, u64, Option<u64>);

/// Where things are, and the samples that rates are made of.
pub struct Stats {
    cri: Arc<Cri>,
    root: PathBuf,
    log_dir: PathBuf,
    last: Mutex<BTreeMap<String, Sample>>,
}

impl Stats {
    /// For the kubelet's directory and the pods' logs.
    #[must_use]
    pub fn new(cri: Arc<Cri>, root: PathBuf, log_dir: PathBuf) -> Self {
        Self { cri, root, log_dir, last: Mutex::default() }
    }

    /// Everything at once.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn summary(&self, node_name: &str, pods: &[Arc<Pod>]) -> Result<Summary, OpError> {
        let containers = self.cri.container_stats().await?;
        // Older runtimes lack it; then the network is left out.
        let sandboxes = self.cri.sandbox_stats().await.unwrap_or_default();
        let mut by_pod: BTreeMap<String, Vec<v1::ContainerStats>> = BTreeMap::new();
        for c in containers {
            let uid = c.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned();
            by_pod.entry(uid.unwrap_or_default()).or_default().push(c);
        }
        let mut networks: BTreeMap<String, NetworkStats> = sandboxes
            .iter()
            .filter_map(|s| Some((s.attributes.as_ref()?.metadata.as_ref()?.uid.clone(), network(s)?)))
            .collect();
        let mut out = Vec::new();
        for p in pods {
            let uid = p.metadata.uid.clone().unwrap_or_default();
            let Some(containers) = by_pod.remove(&uid) else { continue };
            out.push(self.pod(p, &uid, containers, networks.remove(&uid)));
        }
        let (root, node_name) = (self.root.clone(), node_name.to_owned());
        let mut node = blocking(move || Ok(node(&root, &node_name))).await?;
        if let Some(cpu) = &mut node.cpu {
            cpu.usage_nano_cores = self.rate("node", super::now(), cpu.usage_core_nano_seconds);
        }
        let seen: Vec<String> =
            out.iter().flat_map(|p| p.containers.iter().map(|c| key(&p.pod_ref.uid, &c.name))).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|k, _| k == "node" || seen.contains(k));
        Ok(Summary { node, pods: out })
    }

    fn pod(&self, p: &Pod, uid: &str, stats: Vec<v1::ContainerStats>, network: Option<NetworkStats>) -> PodStats {
        let status = p.status.as_ref();
        let mut containers = Vec::new();
        for c in stats {
            let Some(name) = c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned() else {
                continue;
            };
            let started = status
                .iter()
                .flat_map(|s| [&s.container_statuses, &s.init_container_statuses])
                .flat_map(|l| l.iter().flatten())
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
                }
            });
            let rootfs = c.writable_layer.as_ref().map(|l| FsStats {
                time: Time(l.timestamp).meta(),
                available_bytes: None,
                capacity_bytes: None,
                used_bytes: l.used_bytes.as_ref().map(|v| v.value),
                inodes_free: None,
                inodes: None,
            });
            containers.push(ContainerStats { name, start_time: started, cpu, memory, rootfs });
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
        });
        PodStats {
            pod_ref: PodReference {
                name: p.metadata.name.clone().unwrap_or_default(),
                namespace: p.metadata.namespace.clone().unwrap_or_default(),
                uid: uid.to_owned(),
            },
            start_time: status.and_then(|s| s.start_time.clone()),
            containers,
            cpu,
            memory,
            network,
            volumes: Vec::new(),
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

    /// What pods use, for eviction.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn usage(&self, pods: Vec<Arc<Pod>>) -> Result<BTreeMap<Uid, Usage>, OpError> {
        let mut out: BTreeMap<Uid, Usage> = pods.iter().map(|p| (crate::spec::pod::uid(p), Usage::default())).collect();
        for c in self.cri.container_stats().await? {
            let Some(pod) = c.attributes.as_ref().and_then(|a| convert::pod_ref(&a.labels)) else { continue };
            let value = |v: &Option<v1::UInt64Value>| v.as_ref().map_or(0, |v| v.value);
            let Some(u) = out.get_mut(&pod.uid) else { continue };
            u.memory_bytes += c.memory.as_ref().map_or(0, |m| value(&m.working_set_bytes));
            if let Some(layer) = &c.writable_layer {
                u.disk_bytes += value(&layer.used_bytes);
                u.inodes += value(&layer.inodes_used);
                let name = c.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME)).cloned();
                *u.containers.entry(name.unwrap_or_default()).or_default() += value(&layer.used_bytes);
            }
        }
        let (root, log_dir) = (self.root.clone(), self.log_dir.clone());
        blocking(move || {
            for p in pods {
                let reference = crate::spec::pod::pod_ref(&p);
                let uid = &reference.uid;
                let volumes = root.join("pods").join(uid.as_ref()).join("volumes/kubernetes.io~empty-dir");
                let logs = log_dir.join(format!("{}_{}_{uid}", reference.namespace, reference.name));
                local_use(out.entry(uid.clone()).or_default(), &volumes, &logs);
            }
            Ok(out)
        })
        .await
    }
}

/// Adds what a pod has on the node's disk, in its emptyDirs and its containers' logs.
fn local_use(u: &mut Usage, volumes: &Path, logs: &Path) {
    let device = |of: &Path| fs::symlink_metadata(of).ok().map(|m| m.dev());
    for dir in carrack_disks::directories(volumes).unwrap_or_default() {
        let (bytes, files) = disk_use(&dir);
        u.empty_dirs.insert(name_of(&dir), bytes);
        // What is in memory is not on the disk, and has a limit all the same.
        if device(&dir) == device(volumes) {
            u.disk_bytes += bytes;
            u.inodes += files + 1;
        }
    }
    for dir in carrack_disks::directories(logs).unwrap_or_default() {
        let (bytes, files) = disk_use(&dir);
        u.disk_bytes += bytes;
        u.inodes += files;
        *u.containers.entry(name_of(&dir)).or_default() += bytes;
    }
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn key(uid: &str, container: &str) -> String {
    format!("{uid}/{container}")
}

fn network(s: &v1::PodSandboxStats) -> Option<NetworkStats> {
    let n = s.linux.as_ref()?.network.as_ref()?;
    let i = n.default_interface.as_ref()?;
    let value = |v: &Option<v1::UInt64Value>| v.as_ref().map(|v| v.value);
    Some(NetworkStats {
        time: Time(n.timestamp).meta(),
        name: i.name.clone(),
        rx_bytes: value(&i.rx_bytes),
        rx_errors: value(&i.rx_errors),
        tx_bytes: value(&i.tx_bytes),
        tx_errors: value(&i.tx_errors),
    })
}

fn node(root: &Path, name: &str) -> NodeStats {
    let time = super::now().meta();
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
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
        }),
        fs: rustix::fs::statvfs(root).ok().map(|s| FsStats {
            time,
            available_bytes: Some(s.f_bavail * s.f_frsize),
            capacity_bytes: Some(s.f_blocks * s.f_frsize),
            used_bytes: Some(s.f_blocks.saturating_sub(s.f_bfree) * s.f_frsize),
            inodes_free: Some(s.f_ffree),
            inodes: Some(s.f_files),
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

/// Bytes and files below a directory, on its file system alone.
fn disk_use(dir: &Path) -> (u64, u64) {
    let Ok(top) = fs::symlink_metadata(dir) else { return (0, 0) };
    let (mut bytes, mut files) = (0, 0);
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(m) = entry.metadata() else { continue };
            if m.dev() != top.dev() {
                continue;
            }
            bytes += m.blocks() * 512;
            files += 1;
            if files >= MAX_FILES {
                return (bytes, files);
            }
            if m.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    (bytes, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_times_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), vec![1; 100_000]).unwrap();
        let (bytes, files) = disk_use(dir.path());
        assert!(bytes >= 100_000 && files == 2, "{bytes} {files}");
        assert_eq!(disk_use(&dir.path().join("none")), (0, 0));
        let mut usage = Usage { containers: BTreeMap::from([("d".into(), 1000)]), ..Usage::default() };
        local_use(&mut usage, dir.path(), dir.path());
        assert!(usage.empty_dirs["d"] >= 100_000 && usage.containers["d"] >= 101_000, "{usage:?}");
        assert!(usage.disk_bytes >= 200_000, "{usage:?}");
        assert_eq!(busy_ns("cpu  1 2 3 100 50 4 5 6 7 8\ncpu0 1\n"), Some(21 * TICK_NS));
        assert_eq!(busy_ns(""), None);
    }

    #[tokio::test]
    async fn rates_come_of_two_samples() {
        let cri = Arc::new(Cri::new("/nowhere".into()).unwrap());
        let stats = Stats::new(cri, "/".into(), "/".into());
        let at = Time::from_unix_s;
        assert_eq!(stats.rate("a", at(10), Some(1_000)), None);
        assert_eq!(stats.rate("a", at(12), Some(1_000 + 3_000_000_000)), Some(1_500_000_000));
        assert_eq!(stats.rate("a", Time(12_100_000_000), Some(9_000_000_000)), Some(1_500_000_000), "too near");
        assert_eq!(stats.rate("a", at(20), Some(5)), Some(1_500_000_000), "the counter began anew");
        assert_eq!(stats.rate("a", at(22), Some(5)), Some(0));
    }
}
