//! What the kubelet's server asks of the rest: the published pods, and the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use k8s_cri::v1;
use k8s_openapi::api::core::v1::Pod;

use super::cgroups::Throttling;
use super::cri::Cri;
use super::drivers::Drivers;
use super::host;
use super::podresources::PublishedDevices;
use super::pulse::Pulse;
use super::stats::Stats;
use super::storage_times::{CsiCall, Histogram, Histograms, StorageOperation, StorageTimes};
use crate::allocation::ResizeCounts;
use crate::cpus::CpuView;
use crate::effects::{Counted, ProbeCount, Tally};
use crate::memory::MemoryView;
use crate::runtime::{ContainerRecord, HostFacts, RuntimeSnapshot};
use crate::server::{Answer, Backend, ExecOutput, Streams, Summary, VolumeStats};
use crate::volumes::Census;

/// The pods as the core last published them.
pub(crate) type Published = Arc<Mutex<Arc<Vec<Arc<Pod>>>>>;

/// How long operations of the runtime took, by their names and whether they succeeded.
pub(crate) type Operations = Histograms<(&'static str, bool)>;

/// How many volumes there are, as the core counted them last.
pub(crate) type VolumeCounts = Arc<Mutex<Census>>;

/// What is counted of resizes, as the core counted it last.
pub(crate) type Resizes = Arc<Mutex<ResizeCounts>>;

/// What is counted one by one.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// How often which probe was answered how.
    probes: BTreeMap<ProbeCount, u64>,
    /// From so many on it is looked again whose pods are gone.
    prune_at: usize,
    /// What is counted by a word.
    tallies: BTreeMap<(Tally, String), u64>,
    /// How long images took to be pulled, by upstream's words for their sizes.
    pulls: Histograms<&'static str>,
    /// How long pods took to run.
    pod_starts: Histograms<()>,
}

/// The same, of all who count and ask.
pub(crate) type SharedCounts = Arc<Mutex<Counts>>;

/// From so many probes on pods that are gone make room, and again when there are twice as many as were left.
const PRUNED_FROM: usize = 10_000;

/// Counts one thing.
pub(crate) fn count(counts: &SharedCounts, what: Counted, pods: &Published) {
    let mut counts = counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let probe = match what {
        Counted::Probe(probe) => probe,
        Counted::Tally(tally, word) => {
            *counts.tallies.entry((tally, word)).or_default() += 1;
            return;
        }
        Counted::ImagePull(bytes, took) => {
            counts.pulls.ended(size_class(bytes), took);
            return;
        }
        Counted::PodStart(took) => {
            counts.pod_starts.ended((), took);
            return;
        }
    };
    if counts.probes.len() >= counts.prune_at.max(PRUNED_FROM) {
        let pods = pods.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let here: BTreeSet<&str> = pods.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
        counts.probes.retain(|c, _| here.contains(&*c.pod.uid));
        counts.prune_at = counts.probes.len() * 2;
    }
    *counts.probes.entry(probe).or_default() += 1;
}

/// Upstream's word for an image of this size (`pkg/kubelet/metrics`, `GetImageSizeBucket`).
fn size_class(bytes: u64) -> &'static str {
    const BELOW_MIB: [(u64, &str); 11] = [
        (10, "0-10MB"),
        (100, "10MB-100MB"),
        (500, "100MB-500MB"),
        (1 << 10, "500MB-1GB"),
        (5 << 10, "1GB-5GB"),
        (10 << 10, "5GB-10GB"),
        (20 << 10, "10GB-20GB"),
        (30 << 10, "20GB-30GB"),
        (40 << 10, "30GB-40GB"),
        (60 << 10, "40GB-60GB"),
        (100 << 10, "60GB-100GB"),
    ];
    if bytes == 0 {
        return "N/A";
    }
    BELOW_MIB.into_iter().find(|(mib, _)| bytes < mib << 20).map_or("GT100GB", |(_, class)| class)
}

/// The server's view of the kubelet.
pub(crate) struct Node {
    pub cri: Arc<Cri>,
    pub pods: Published,
    pub counts: SharedCounts,
    pub stats: Arc<Stats>,
    pub operations: Operations,
    pub volumes: VolumeCounts,
    pub resizes: Resizes,
    pub devices: PublishedDevices,
    pub storage: StorageTimes,
    pub node_name: String,
    pub drivers: Drivers,
    pub host: host::Place,
    pub pulse: Pulse,
}

impl Node {
    fn published(&self) -> Arc<Vec<Arc<Pod>>> {
        // The value is replaced whole.
        self.pods.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl Backend for Node {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.published().to_vec()
    }

    fn runtime_of<'a>(&'a self, pod_uid: &'a str) -> Answer<'a, RuntimeSnapshot> {
        Box::pin(self.cri.snapshot_of(pod_uid))
    }

    fn runtime(&self) -> Answer<'_, RuntimeSnapshot> {
        Box::pin(self.cri.snapshot())
    }

    fn exec_url<'a>(&'a self, container_id: &'a str, command: Vec<String>, streams: Streams) -> Answer<'a, String> {
        Box::pin(self.cri.exec_url(v1::ExecRequest {
            container_id: container_id.to_owned(),
            cmd: command,
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        }))
    }

    fn attach_url<'a>(&'a self, container_id: &'a str, streams: Streams) -> Answer<'a, String> {
        Box::pin(self.cri.attach_url(v1::AttachRequest {
            container_id: container_id.to_owned(),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        }))
    }

    fn port_forward_url<'a>(&'a self, sandbox_id: &'a str, ports: Vec<i32>) -> Answer<'a, String> {
        Box::pin(
            self.cri.port_forward_url(v1::PortForwardRequest { pod_sandbox_id: sandbox_id.to_owned(), port: ports }),
        )
    }

    fn exec_sync<'a>(&'a self, container_id: &'a str, command: Vec<String>, timeout_s: i64) -> Answer<'a, ExecOutput> {
        Box::pin(async move {
            let (code, output) = self.cri.exec(container_id, command, timeout_s).await?;
            Ok(ExecOutput { code, output })
        })
    }

    fn stats(&self) -> Answer<'_, Summary> {
        Box::pin(async move {
            let mut summary = self.stats.summary(&self.node_name, &self.published()).await?;
            for (uid, volume) in self.drivers.usage().await {
                if let Some(pod) = summary.pods.iter_mut().find(|p| *p.pod_ref.uid == *uid) {
                    pod.volumes.push(volume);
                }
            }
            Ok(summary)
        })
    }

    fn cpu_and_memory(&self) -> Answer<'_, Summary> {
        Box::pin(async move {
            let summary = self.stats.cpu_and_memory(&self.node_name, &self.published()).await?;
            Ok(summary.only_cpu_and_memory())
        })
    }

    fn machine(&self) -> Answer<'_, HostFacts> {
        let place = self.host.clone();
        Box::pin(super::blocking(move || host::facts(&place)))
    }

    fn throttling<'a>(&'a self, containers: &'a [ContainerRecord]) -> Answer<'a, BTreeMap<String, Throttling>> {
        Box::pin(self.stats.throttling(self.published(), containers))
    }

    fn volumes(&self) -> Answer<'_, Vec<VolumeStats>> {
        Box::pin(async move { Ok(self.drivers.usage().await.into_iter().map(|(_, volume)| volume).collect()) })
    }

    fn probe_counts(&self) -> Vec<(ProbeCount, u64)> {
        let counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.probes.iter().map(|(probe, count)| (probe.clone(), *count)).collect()
    }

    fn tallies(&self) -> Vec<((Tally, String), u64)> {
        let counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.tallies.iter().map(|(of, count)| (of.clone(), *count)).collect()
    }

    fn image_pulls(&self) -> Vec<(&'static str, Histogram)> {
        self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pulls.all()
    }

    fn pod_starts(&self) -> Histogram {
        let counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.pod_starts.all().pop().map(|((), times)| times).unwrap_or_default()
    }

    fn runtime_operations(&self) -> Vec<((&'static str, bool), Histogram)> {
        self.operations.all()
    }

    fn volume_counts(&self) -> Census {
        self.volumes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn resize_counts(&self) -> ResizeCounts {
        self.resizes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn cpus(&self) -> CpuView {
        self.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner).cpus.clone()
    }

    fn memory(&self) -> MemoryView {
        self.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner).memory.clone()
    }

    fn storage_operations(&self) -> Vec<((StorageOperation, bool), Histogram)> {
        self.storage.all()
    }

    fn csi_operations(&self) -> Vec<(CsiCall, Histogram)> {
        self.drivers.csi.times.all()
    }

    fn health(&self) -> Result<(), String> {
        self.pulse.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::PodRef;

    #[test]
    fn images_have_upstreams_sizes() {
        for (bytes, expected) in [
            (0, "N/A"),
            (1, "0-10MB"),
            ((10 << 20) - 1, "0-10MB"),
            (10 << 20, "10MB-100MB"),
            (1 << 30, "1GB-5GB"),
            (99 << 30, "60GB-100GB"),
            (100 << 30, "GT100GB"),
        ] {
            assert_eq!(size_class(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn pods_that_are_gone_make_room() {
        let (counts, pods) = (SharedCounts::default(), Published::default());
        let here: Pod = carrack_types::json::from_value(serde_json::json!({"metadata": {"uid": "here"}})).unwrap();
        *pods.lock().unwrap() = Arc::new(vec![Arc::new(here)]);
        let answered = |uid: &str, container: usize| {
            let pod = PodRef { namespace: "n".into(), name: "p".into(), uid: uid.into() };
            let (kind, result) = ("Liveness", "successful");
            count(&counts, Counted::Probe(ProbeCount { pod, container: container.to_string(), kind, result }), &pods);
        };
        let len = || counts.lock().unwrap().probes.len();
        for container in 0..PRUNED_FROM - 1 {
            answered("gone", container);
        }
        answered("here", 0);
        assert_eq!(len(), PRUNED_FROM);
        answered("here", 1);
        assert_eq!(len(), 2);
        // Those that are all here are not looked through at each answer.
        for container in 0..=PRUNED_FROM {
            answered("here", container);
        }
        assert_eq!((len(), counts.lock().unwrap().prune_at), (PRUNED_FROM + 1, 2 * PRUNED_FROM));
    }
}
