//! What the server needs of the rest of the kubelet.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::stats::{Summary, VolumeStats};
use crate::adapters::cgroups::Throttling;
use crate::adapters::storage_times::{CsiCall, Histogram, StorageOperation};
use crate::allocation::ResizeCounts;
use crate::cpus::CpuView;
use crate::effects::{OpError, ProbeCount, Tally};
use crate::memory::MemoryView;
use crate::runtime::{ContainerRecord, HostFacts, RuntimeSnapshot};
use crate::volumes::Census;

/// An answer that comes later. Dropping it gives up on it.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, OpError>> + Send + 'a>>;

/// Which of a process's streams a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error. Runtimes refuse it together with a terminal, which has one output.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// How a command in a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub code: i32,
    /// What it wrote, both outputs.
    pub output: Vec<u8>,
}

/// The rest of the kubelet, as its server sees it.
///
/// [`OpError::NotFound`] is a fact (404), the other failures say nothing about what exists. Each
/// answer must come within a bounded time: the server waits for it.
pub trait Backend: Send + Sync + 'static {
    /// The pods bound to this node, as newly as the kubelet knows them
    /// ([`Op::Publish`](crate::Op::Publish) carries them).
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// Sandboxes and containers that the runtime holds of the pod with this UID, whatever their state.
    /// A listing as old as the relist period will do; a failed one is an error, never an empty one.
    fn runtime_of<'a>(&'a self, pod_uid: &'a str) -> Answer<'a, RuntimeSnapshot>;

    /// The same of all pods.
    fn runtime(&self) -> Answer<'_, RuntimeSnapshot>;

    /// The runtime's streaming URL (CRI `Exec`) for a command in a container.
    fn exec_url<'a>(&'a self, container_id: &'a str, command: Vec<String>, streams: Streams) -> Answer<'a, String>;

    /// The runtime's streaming URL (CRI `Attach`) for a container's own process.
    fn attach_url<'a>(&'a self, container_id: &'a str, streams: Streams) -> Answer<'a, String>;

    /// The runtime's streaming URL (CRI `PortForward`) for a sandbox. No ports when the client names
    /// them later.
    fn port_forward_url<'a>(&'a self, sandbox_id: &'a str, ports: Vec<i32>) -> Answer<'a, String>;

    /// Runs a command to its end (CRI `ExecSync`). Exit codes other than 0 are no errors.
    fn exec_sync<'a>(&'a self, container_id: &'a str, command: Vec<String>, timeout_s: i64) -> Answer<'a, ExecOutput>;

    /// What the node and its pods use.
    fn stats(&self) -> Answer<'_, Summary>;

    /// The same of CPUs and memory alone: nobody has to look at a disk for it.
    fn cpu_and_memory(&self) -> Answer<'_, Summary> {
        Box::pin(async move { Ok(self.stats().await?.only_cpu_and_memory()) })
    }

    /// What is known of the machine.
    fn machine(&self) -> Answer<'_, HostFacts> {
        Box::pin(async { Ok(HostFacts::default()) })
    }

    /// How containers that run are held back by quotas of the CPUs, by their ids; of those alone of whom that is known.
    fn throttling<'a>(&'a self, _containers: &'a [ContainerRecord]) -> Answer<'a, BTreeMap<String, Throttling>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    /// How full the volumes of drivers are.
    fn volumes(&self) -> Answer<'_, Vec<VolumeStats>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// How often which probe was answered how, since the kubelet started.
    fn probe_counts(&self) -> Vec<(ProbeCount, u64)> {
        Vec::new()
    }

    /// What was counted by a word each since the kubelet started.
    fn tallies(&self) -> Vec<((Tally, String), u64)> {
        Vec::new()
    }

    /// How long images took to be pulled, by upstream's words for their sizes.
    fn image_pulls(&self) -> Vec<(&'static str, Histogram)> {
        Vec::new()
    }

    /// How long pods took to run, from when they were seen first.
    fn pod_starts(&self) -> Histogram {
        Histogram::default()
    }

    /// How long operations of the runtime took, by upstream's names for them and whether they succeeded.
    fn runtime_operations(&self) -> Vec<((&'static str, bool), Histogram)> {
        Vec::new()
    }

    /// How many volumes there are, by plugin.
    fn volume_counts(&self) -> Census {
        Census::new()
    }

    /// What is counted of resizes.
    fn resize_counts(&self) -> ResizeCounts {
        ResizeCounts::default()
    }

    /// Which CPUs containers have for themselves.
    fn cpus(&self) -> CpuView {
        CpuView::default()
    }

    /// What memory of NUMA nodes is kept for containers.
    fn memory(&self) -> MemoryView {
        MemoryView::default()
    }

    /// How long operations on volumes took.
    fn storage_operations(&self) -> Vec<((StorageOperation, bool), Histogram)> {
        Vec::new()
    }

    /// How long calls to CSI drivers took.
    fn csi_operations(&self) -> Vec<(CsiCall, Histogram)> {
        Vec::new()
    }

    /// Whether the kubelet does its work.
    ///
    /// # Errors
    /// Why it does not.
    fn health(&self) -> Result<(), String>;
}
