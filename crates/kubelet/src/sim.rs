//! A node without a machine: a runtime, a disk and plugins that obey [`Op`]s at once and forget nothing.
//!
//! The simulator puts delays, lost replies and crashes around [`SimRuntime::apply`]; what is applied
//! stays applied, as on a real node. Killing the kubelet is dropping its core: the node lives on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use carrack_engine::Time;
use k8s_openapi::api::core::v1::Pod;

use crate::allocation::{GroupLimits, Reading};
use crate::devices::{AllocateReply, Device, PluginOptions};
use crate::effects::{In, Loaded, NetAction, Op, OpError, Outcome, Reply};
use crate::runtime::{
    ContainerRecord, ContainerSize, ContainerSpec, ContainerState, DeviceNode, HandlerFeatures, HostFacts, ImageRecord,
    RuntimeInfo, RuntimeSnapshot, SandboxRecord, Sharing, Uid, labels,
};
use crate::spec::env_file::EnvText;
use crate::spec::manifest::Source;
use crate::volumes::{CsiNodeInfo, Found, VolumeKind};

/// A device plugin of the simulated node.
#[derive(Clone, Debug, Default)]
pub struct SimPlugin {
    /// Its present registration.
    pub epoch: u64,
    /// Its devices; the flag says healthy.
    pub devices: BTreeMap<String, bool>,
    /// Devices granted: every Allocate since the node was made, newest last.
    pub granted: Vec<BTreeSet<String>>,
}

/// A container with what it was made from.
#[derive(Clone, Debug)]
pub struct SimContainer {
    /// As listed.
    pub record: ContainerRecord,
    /// As asked for.
    pub spec: ContainerSpec,
}

/// A simulated node.
#[derive(Clone, Debug)]
pub struct SimRuntime {
    /// The machine.
    pub host: HostFacts,
    /// The local record.
    pub records: BTreeMap<String, Vec<u8>>,
    /// The device checkpoint.
    pub checkpoint: Option<Vec<u8>>,
    /// The CPU manager's state.
    pub cpus: Option<Vec<u8>>,
    /// The memory manager's state.
    pub memory: Option<Vec<u8>>,
    /// What is allocated to pods, as it was kept.
    pub allocated: Option<Vec<u8>>,
    /// What of it was brought about, as it was kept.
    pub actuated: Option<Vec<u8>>,
    /// Control groups of pods, by their paths.
    pub groups: BTreeMap<String, GroupLimits>,
    /// How often the kernel will not remove one of them.
    pub held_groups: u32,
    /// Memory that pods use, by the paths of their groups.
    pub group_memory_bytes: BTreeMap<String, u64>,
    /// Containers whose CPUs cannot be changed, by name.
    pub stubborn: BTreeSet<String>,
    /// Sandboxes.
    pub sandboxes: BTreeMap<String, SandboxRecord>,
    /// Sandboxes whose network is torn down.
    pub torn_down: BTreeSet<String>,
    /// Containers.
    pub containers: BTreeMap<String, SimContainer>,
    /// Images present.
    pub images: BTreeSet<String>,
    /// Those of them that cannot be removed.
    pub kept_images: BTreeSet<String>,
    /// What containers have written, by path.
    pub files: BTreeMap<String, String>,
    /// Records whose names begin so are not written.
    pub unwritten: Option<&'static str>,
    /// Directories that are mounted or filled, with what they are.
    pub volumes: BTreeMap<String, VolumeKind>,
    /// Volumes made ready for the node, by unique name.
    pub staged: BTreeSet<String>,
    /// Registered plugins by resource.
    pub plugins: BTreeMap<String, SimPlugin>,
    /// Exit codes of commands run in containers, by container name; 0 by default.
    pub exec_codes: BTreeMap<String, i32>,
    /// Containers in which commands never end.
    pub exec_hangs: BTreeSet<String>,
    /// What goes wrong with commands that are run in containers; nothing without it.
    pub exec_error: Option<String>,
    /// Containers that end just before a command would run in them, which the runtime notices when it has refused that.
    pub exec_ends: BTreeSet<String>,
    /// What is to be told of connections that do well.
    pub net_warning: Option<String>,
    /// The host and port of hooks that do not speak TLS.
    pub no_tls_at: Option<String>,
    /// Exit code of a container that is told to stop.
    pub stop_code: i32,
    /// Containers that cannot be stopped, by name.
    pub unstoppable: BTreeSet<String>,
    /// Containers whose status cannot be read, by name.
    pub unread: BTreeSet<String>,
    /// Sandboxes are listed as they were before any was made.
    pub lists_no_sandboxes: bool,
    /// While set, the runtime answers nothing.
    pub runtime_down: bool,
    /// When a container of each pod was last started.
    pub started: BTreeMap<Uid, Time>,
    /// Handlers that sandboxes were asked for with.
    pub sandbox_handlers: Vec<String>,
    /// Records are written, and nobody hears of it.
    pub mute_disk: bool,
    /// What the runtime's handlers can.
    pub handlers: BTreeMap<String, HandlerFeatures>,
    /// Manifests of static pods; none while they cannot be read.
    pub manifests: Option<Vec<crate::spec::manifest::Manifest>>,
    /// Pods that a URL answers; none while it cannot be asked.
    pub answers: Option<Vec<crate::spec::manifest::Manifest>>,
    /// How many volumes CSI drivers take, as they say when they are asked.
    pub csi_limits: BTreeMap<String, i64>,
    /// What pods use, for who asks.
    pub usage: BTreeMap<Uid, crate::eviction::Usage>,
    /// User names that each pull was given.
    pub pulled_as: Vec<Vec<String>>,
    /// The user of the node's own credentials for registries.
    pub own_user: Option<String>,
    /// Pulls bring their image, and are said to have failed.
    pub pulls_hiccup: bool,
    /// Images that registries have, each with the user that may pull it; anybody may without one.
    pub registry: BTreeMap<String, Option<String>>,
    /// Pods as last published.
    pub published: Vec<Arc<Pod>>,
    next: u32,
}

impl SimRuntime {
    /// A node with these images.
    #[must_use]
    pub fn new(boot_id: &str, images: &[&str]) -> Self {
        Self {
            host: HostFacts {
                boot_id: boot_id.into(),
                hostname: "sim".into(),
                architecture: "amd64".into(),
                cpus: 8,
                cpu_topology: crate::cpus::Topology::plain(8),
                memory_bytes: 16 << 30,
                memory_available_bytes: 12 << 30,
                disk_bytes: 100 << 30,
                disk_available_bytes: 80 << 30,
                image_disk_bytes: 100 << 30,
                image_disk_available_bytes: 80 << 30,
                addresses: vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10))],
                ..HostFacts::default()
            },
            records: BTreeMap::new(),
            checkpoint: None,
            cpus: None,
            memory: None,
            allocated: None,
            actuated: None,
            groups: BTreeMap::new(),
            held_groups: 0,
            group_memory_bytes: BTreeMap::new(),
            stubborn: BTreeSet::new(),
            sandboxes: BTreeMap::new(),
            torn_down: BTreeSet::new(),
            containers: BTreeMap::new(),
            images: images.iter().map(|s| (*s).to_owned()).collect(),
            kept_images: BTreeSet::new(),
            files: BTreeMap::new(),
            unwritten: None,
            volumes: BTreeMap::new(),
            staged: BTreeSet::new(),
            plugins: BTreeMap::new(),
            exec_codes: BTreeMap::new(),
            exec_hangs: BTreeSet::new(),
            exec_error: None,
            exec_ends: BTreeSet::new(),
            net_warning: None,
            no_tls_at: None,
            stop_code: 143,
            unstoppable: BTreeSet::new(),
            unread: BTreeSet::new(),
            lists_no_sandboxes: false,
            runtime_down: false,
            started: BTreeMap::new(),
            sandbox_handlers: Vec::new(),
            mute_disk: false,
            handlers: BTreeMap::new(),
            manifests: Some(Vec::new()),
            answers: Some(Vec::new()),
            csi_limits: BTreeMap::new(),
            usage: BTreeMap::new(),
            pulled_as: Vec::new(),
            own_user: None,
            pulls_hiccup: false,
            registry: BTreeMap::new(),
            published: Vec::new(),
            next: 1,
        }
    }

    fn id(&mut self, prefix: &str) -> String {
        let id = format!("{prefix}{:08x}", self.next);
        self.next += 1;
        id
    }

    /// Carries an operation out. None when it has no outcome.
    pub fn apply(&mut self, now: Time, op: &Op) -> Option<Outcome> {
        let needs_runtime = matches!(
            op,
            Op::RuntimeInfo
                | Op::Relist
                | Op::ListImages
                | Op::RemoveImage(_)
                | Op::Usage(_)
                | Op::FindImage(_)
                | Op::PullImage { .. }
                | Op::RunSandbox(_)
                | Op::StopSandbox(_)
                | Op::RemoveSandbox(_)
                | Op::CreateContainer(..)
                | Op::StartContainer(_)
                | Op::StopContainer { .. }
                | Op::GiveCpus { .. }
                | Op::UpdateContainer { .. }
                | Op::RemoveContainer(_)
                | Op::Exec { .. }
        );
        if needs_runtime && self.runtime_down {
            return Some(Err(OpError::Failed("connection refused".into())));
        }
        if let Op::Publish(pods) = op {
            self.published.clone_from(pods);
            return None;
        }
        if op.only_shows() {
            return None;
        }
        Some(self.done(now, op))
    }

    fn done(&mut self, now: Time, op: &Op) -> Outcome {
        Ok(match op {
            Op::Load => Reply::Loaded(Box::new(Loaded {
                records: self.records.clone(),
                checkpoint: self.checkpoint.clone(),
                cpus: self.cpus.clone(),
                memory: self.memory.clone(),
                allocated: self.allocated.clone(),
                actuated: self.actuated.clone(),
                host: self.host.clone(),
                found: Some(self.found()),
            })),
            Op::Host => Reply::Host(Box::new(self.host.clone())),
            Op::RuntimeInfo => Reply::RuntimeInfo(RuntimeInfo {
                name: "containerd".into(),
                version: "sim".into(),
                handlers: self.handlers.clone(),
                ..RuntimeInfo::default()
            }),
            Op::Relist => Reply::Snapshot(RuntimeSnapshot {
                sandboxes: self.sandboxes.values().filter(|_| !self.lists_no_sandboxes).cloned().collect(),
                containers: self.containers.values().filter(|c| !self.is_unread(c)).map(|c| c.record.clone()).collect(),
                unread: self.unread(),
            }),
            Op::ListImages => Reply::Images(self.images.iter().map(|i| image(i)).collect()),
            Op::FindImage(name) => Reply::Image(self.images.contains(name).then(|| image(name))),
            Op::PullImage { image: name, auths } => {
                self.pulled_as.push(auths.iter().map(|a| a.username.clone()).collect());
                let with = match self.registry.get(name) {
                    None => return Err(OpError::Failed(format!("no registry holds {name}"))),
                    Some(None) => (!auths.is_empty()).then_some(0),
                    Some(Some(user)) => match auths.iter().position(|a| a.username == *user) {
                        None if self.own_user.as_ref() == Some(user) => None,
                        None => return Err(OpError::Failed("pull access denied".into())),
                        found => found,
                    },
                };
                self.images.insert(name.clone());
                if self.pulls_hiccup {
                    return Err(OpError::Failed("the runtime went away".into()));
                }
                Reply::Pulled { image: Some(image(name)), with }
            }
            Op::RemoveImage(id) => {
                if self.kept_images.iter().any(|name| image(name).id == *id) {
                    return Err(OpError::Failed("the image is in use".into()));
                }
                let before = self.images.len();
                self.images.retain(|name| image(name).id != *id);
                let freed = (before - self.images.len()) as u64 * image("").size_bytes;
                self.host.disk_available_bytes += freed;
                self.host.image_disk_available_bytes += freed;
                Reply::Done
            }
            Op::ReadManifests(Source::File) => match &self.manifests {
                Some(list) => Reply::Manifests(list.clone()),
                None => return Err(OpError::Failed("the directory cannot be read".into())),
            },
            Op::ReadManifests(Source::Http) => match &self.answers {
                Some(list) => Reply::Manifests(list.clone()),
                None => return Err(OpError::Failed("nobody answers".into())),
            },
            Op::Usage(pods) => Reply::Usage(
                self.usage.iter().filter(|(uid, _)| pods.contains(*uid)).map(|(k, v)| (k.clone(), v.clone())).collect(),
            ),
            Op::RunSandbox(spec) => {
                if let Some(s) =
                    self.sandboxes.values().find(|s| s.pod == spec.pod && s.attempt == spec.attempt && s.ready)
                {
                    return Err(OpError::Failed(format!("name is reserved for {}", s.id)));
                }
                let id = self.id("s");
                let ip = IpAddr::V4(Ipv4Addr::from(0x0a58_0000 | self.next));
                let record = SandboxRecord {
                    id: id.clone(),
                    pod: spec.pod.clone(),
                    attempt: spec.attempt,
                    ready: true,
                    created_at: now,
                    ips: if spec.network == Sharing::Node { Vec::new() } else { vec![ip] },
                    runtime_handler: spec.runtime_handler.clone(),
                };
                self.groups.insert(spec.cgroup.path.clone(), (&spec.cgroup.resources).into());
                self.sandboxes.insert(id, record.clone());
                self.sandbox_handlers.push(spec.runtime_handler.clone());
                Reply::Sandbox(Box::new(record))
            }
            Op::StopSandbox(id) => {
                // What cannot be stopped in one that runs keeps that from being stopped, too.
                let holds = |c: &SimContainer| {
                    let runs_here = c.record.sandbox_id == *id && c.record.may_run();
                    runs_here && self.unstoppable.contains(&c.record.name)
                };
                let is_held = self.containers.values().any(holds);
                let Some(s) = self.sandboxes.get_mut(id) else { return Err(OpError::NotFound(id.clone())) };
                if s.ready && is_held {
                    return Err(OpError::Failed("a container was not stopped".into()));
                }
                s.ready = false;
                self.torn_down.insert(id.clone());
                let inside: Vec<String> = self
                    .containers
                    .iter()
                    .filter(|(_, c)| c.record.sandbox_id == *id && c.record.may_run())
                    .map(|(i, _)| i.clone())
                    .collect();
                for c in inside {
                    self.exit(now, &c, 137);
                }
                Reply::Done
            }
            Op::RemoveSandbox(id) => {
                self.containers.retain(|_, c| c.record.sandbox_id != *id);
                self.sandboxes.remove(id);
                Reply::Done
            }
            Op::ReadEnvFiles(files) => {
                let text = |path: String| self.files.get(&path).map(|text| EnvText(text.clone()));
                Reply::EnvFiles(
                    files.iter().map(|(file, dir)| (file.clone(), text(format!("{dir}/{}", file.1)))).collect(),
                )
            }
            Op::CreateContainer(_, spec) => {
                if !self.sandboxes.get(&spec.sandbox_id).is_some_and(|s| s.ready) {
                    return Err(OpError::Failed(format!("sandbox {} is not running", spec.sandbox_id)));
                }
                let id = self.id("c");
                let record = ContainerRecord {
                    id: id.clone(),
                    sandbox_id: spec.sandbox_id.clone(),
                    pod: spec.pod.clone(),
                    name: spec.name.clone(),
                    attempt: spec.attempt,
                    state: ContainerState::Created,
                    created_at: now,
                    started_at: None,
                    image: spec.image.clone(),
                    image_ref: spec.image_ref.clone(),
                    hash: spec.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
                    round: labels::round(spec.annotations.get(labels::ROUND)),
                    size: ContainerSize { made_with: spec.annotations.get(labels::SIZE).cloned(), actual: None },
                    user: None,
                };
                self.containers.insert(id.clone(), SimContainer { record, spec: (**spec).clone() });
                Reply::Made(id)
            }
            Op::StartContainer(id) => {
                let Some(c) = self.containers.get_mut(id) else { return Err(OpError::NotFound(id.clone())) };
                if c.record.state != ContainerState::Created {
                    return Err(OpError::Failed("the container is not in the created state".into()));
                }
                c.record.state = ContainerState::Running;
                c.record.started_at = Some(now);
                self.started.insert(c.record.pod.uid.clone(), now);
                Reply::Started(Box::new(c.record.clone()))
            }
            Op::StopContainer { id, .. } => {
                let Some(c) = self.containers.get(id) else { return Err(OpError::NotFound(id.clone())) };
                if self.unstoppable.contains(&c.record.name) {
                    return Err(OpError::Failed("an exit event was waited for in vain".into()));
                }
                let code = self.stop_code;
                self.exit(now, id, code);
                Reply::Done
            }
            Op::RemoveContainer(id) => {
                self.containers.remove(id);
                Reply::Done
            }
            Op::Exec { id, timeout_s, .. } => {
                let Some(c) = self.containers.get(id).filter(|c| c.record.may_run()) else {
                    return Err(OpError::NotFound(id.clone()));
                };
                if let Some(error) = &self.exec_error {
                    return Err(OpError::Failed(error.clone()));
                }
                if self.exec_ends.contains(&c.record.name) {
                    self.exit(now, id, 0);
                    return Err(OpError::Failed("cannot exec in a stopped container".into()));
                }
                if self.exec_hangs.contains(&c.record.name) {
                    return Err(OpError::TimedOut(u64::try_from(*timeout_s).unwrap_or(1)));
                }
                let code = self.exec_codes.get(&c.record.name).copied().unwrap_or(0);
                Reply::Exited { code, output: String::new() }
            }
            Op::SweepGroups { root, keep } => {
                let start = format!("/{root}/");
                let left = |path: &String| {
                    let uid = path.strip_prefix(&start).and_then(|path| path.rsplit('/').next()?.strip_prefix("pod"));
                    uid.is_some_and(|uid| !keep.contains(uid))
                };
                if self.held_groups > 0 && self.groups.keys().any(left) {
                    self.held_groups -= 1;
                    return Err(OpError::Failed("device or resource busy".into()));
                }
                self.groups.retain(|path, _| !left(path));
                Reply::Done
            }
            Op::WriteGroups(groups) => {
                for group in groups {
                    self.groups.insert(group.path.clone(), (&group.resources).into());
                }
                Reply::Done
            }
            Op::ReadGroup { path, containers } => Reply::Group(Box::new(Reading {
                limits: self.groups.get(path).copied(),
                memory_bytes: self.group_memory_bytes.get(path).copied(),
                containers: containers.iter().map(|id| (id.clone(), 0)).collect(),
            })),
            Op::UpdateContainer { id, limits } => {
                let Some(c) = self.containers.get_mut(id).filter(|c| c.record.may_run()) else {
                    return Err(OpError::NotFound(id.clone()));
                };
                if self.stubborn.contains(&c.record.name) {
                    return Err(OpError::Failed("the control group cannot be written".into()));
                }
                let r = &mut c.spec.resources;
                (r.cpu_period_us, r.cpu_quota_us) = (limits.cpu_period_us, limits.cpu_quota_us);
                (r.cpu_shares, r.memory_limit_bytes) = (limits.cpu_shares, limits.memory_limit_bytes);
                Reply::Done
            }
            Op::SaveAllocated(bytes) => {
                self.allocated = Some(bytes.clone());
                Reply::Done
            }
            Op::SaveActuated(bytes) => {
                self.actuated = Some(bytes.clone());
                Reply::Done
            }
            Op::Net { action, .. } => match (&self.no_tls_at, action) {
                (Some(at), NetAction::Http { https: true, is_hook: true, .. }) => Reply::Plain(at.clone()),
                _ => self.net_warning.clone().map_or(Reply::Done, Reply::Warned),
            },
            Op::RemovePod { cgroup, .. } => {
                if self.held_groups == 0 {
                    self.groups.remove(cgroup);
                }
                Reply::Done
            }
            Op::RotateLogs { .. } | Op::ExpandVolume(_) | Op::LetGoDown => Reply::Done,
            Op::AskCsiNode(driver) => match self.csi_limits.get(driver) {
                Some(max_volumes) => Reply::CsiNode(CsiNodeInfo {
                    node_id: "sim".into(),
                    max_volumes: *max_volumes,
                    topology: BTreeMap::new(),
                }),
                None => return Err(OpError::Failed(format!("driver name {driver} not found"))),
            },
            Op::AskDriver(_) => Reply::Attaches(false),
            Op::SetUpVolume(v) => {
                self.volumes.insert(v.path.clone(), v.kind.clone());
                Reply::Done
            }
            Op::TearDownVolume { path, .. } => {
                self.volumes.remove(path);
                Reply::Done
            }
            Op::StageVolume(staging, _) => {
                self.staged.insert(staging.id.clone());
                Reply::Staged { device: None, identity: Some(format!("{} 7:0", self.host.boot_id)) }
            }
            Op::UnstageVolume(staging) => {
                self.staged.remove(&staging.id);
                Reply::Done
            }
            Op::SaveRecord { name, .. } if self.unwritten.is_some_and(|prefix| name.starts_with(prefix)) => {
                return Err(OpError::Failed("no space left on device".into()));
            }
            Op::SaveRecord { name, body } => {
                self.records.insert(name.clone(), body.clone());
                if self.mute_disk {
                    return Err(OpError::Failed("no answer".into()));
                }
                Reply::Done
            }
            Op::DropRecord(name) => {
                self.records.remove(name);
                Reply::Done
            }
            Op::SaveCpus(bytes) => {
                self.cpus = Some(bytes.clone());
                Reply::Done
            }
            Op::SaveMemory(bytes) => {
                self.memory = Some(bytes.clone());
                Reply::Done
            }
            Op::GiveCpus { id, cpus } => {
                let Some(c) = self.containers.get_mut(id).filter(|c| c.record.may_run()) else {
                    return Err(OpError::NotFound(id.clone()));
                };
                if self.stubborn.contains(&c.record.name) {
                    return Err(OpError::Failed("the control group cannot be written".into()));
                }
                c.spec.resources.cpus = cpus.to_string();
                Reply::Done
            }
            Op::SaveCheckpoint(bytes) => {
                self.checkpoint = Some(bytes.clone());
                Reply::Done
            }
            Op::Allocate { resource, epoch, ids } => {
                let p = self.plugin(resource, *epoch)?;
                p.granted.push(ids.clone());
                let devices = ids
                    .iter()
                    .map(|id| DeviceNode {
                        container_path: format!("/dev/{id}"),
                        host_path: format!("/dev/{id}"),
                        permissions: "rw".into(),
                    })
                    .collect();
                Reply::Allocated(AllocateReply { devices, ..AllocateReply::default() })
            }
            Op::Prefer { resource, epoch, available, count, .. } => {
                self.plugin(resource, *epoch)?;
                Reply::Preferred(available.iter().take(*count).cloned().collect())
            }
            Op::PreStart { resource, epoch, .. } => {
                self.plugin(resource, *epoch)?;
                Reply::Done
            }
            Op::Publish(_) | Op::PublishDevices(_) | Op::PublishVolumes(_) | Op::PublishResizes(_) | Op::Count(_) => {
                Reply::Done
            }
        })
    }

    /// What a kubelet that starts finds of its volumes.
    fn found(&self) -> Found {
        let mut found = Found::default();
        for (path, kind) in &self.volumes {
            match kind {
                VolumeKind::EmptyDir { tmpfs: false, .. } | VolumeKind::Files { tmpfs: false, .. } => {
                    found.directories.insert(path.clone());
                }
                VolumeKind::HostPath { .. } => {}
                _ => {
                    found.mounts.insert(path.clone(), "7:0".into());
                }
            }
        }
        found
    }

    fn plugin(&mut self, resource: &str, epoch: u64) -> Result<&mut SimPlugin, OpError> {
        self.plugins
            .get_mut(resource)
            .filter(|p| p.epoch == epoch)
            .ok_or_else(|| OpError::Failed(format!("the plugin of {resource} has hung up")))
    }

    /// A container ends.
    pub fn exit(&mut self, now: Time, id: &str, code: i32) {
        if let Some(c) = self.containers.get_mut(id)
            && !matches!(c.record.state, ContainerState::Exited { .. })
        {
            c.record.state =
                ContainerState::Exited { code, reason: String::new(), message: String::new(), finished_at: now };
        }
    }

    fn is_unread(&self, c: &SimContainer) -> bool {
        self.unread.contains(&c.record.name)
    }

    /// Pods that have a container whose status cannot be read.
    fn unread(&self) -> BTreeMap<Uid, String> {
        let unread = self.containers.values().filter(|c| self.is_unread(c));
        unread.map(|c| (c.record.pod.uid.clone(), format!("the status of {} cannot be read", c.record.name))).collect()
    }

    /// Containers of a pod that run, by name.
    #[must_use]
    pub fn running(&self, uid: &str) -> BTreeMap<String, String> {
        self.containers
            .values()
            .filter(|c| c.record.pod.uid.as_ref() == uid && c.record.may_run())
            .map(|c| (c.record.name.clone(), c.record.id.clone()))
            .collect()
    }

    /// A plugin registers with healthy devices. Returns what the kubelet observes of it.
    pub fn plugin_up(&mut self, resource: &str, ids: &[&str]) -> Vec<In> {
        let p = self.plugins.entry(resource.to_owned()).or_default();
        p.epoch += 1;
        p.devices = ids.iter().map(|id| ((*id).to_owned(), true)).collect();
        vec![
            In::PluginUp { resource: resource.to_owned(), epoch: p.epoch, options: PluginOptions::default() },
            In::PluginDevices { resource: resource.to_owned(), epoch: p.epoch, devices: listed(p) },
        ]
    }

    /// What a newly started kubelet observes of the plugins that are there: they register again.
    pub fn plugins_again(&mut self) -> Vec<In> {
        let mut out = Vec::new();
        for (resource, p) in &mut self.plugins {
            p.epoch += 1;
            out.push(In::PluginUp { resource: resource.clone(), epoch: p.epoch, options: PluginOptions::default() });
            out.push(In::PluginDevices { resource: resource.clone(), epoch: p.epoch, devices: listed(p) });
        }
        out
    }

    /// A plugin dies. Returns what the kubelet observes of it.
    pub fn plugin_down(&mut self, resource: &str) -> Vec<In> {
        self.plugins
            .remove(resource)
            .map(|p| In::PluginDown { resource: resource.to_owned(), epoch: p.epoch })
            .into_iter()
            .collect()
    }

    /// The machine reboots: processes, networks, memory file systems and plugins are gone.
    pub fn reboot(&mut self, now: Time, boot_id: &str) {
        self.host.boot_id = boot_id.into();
        self.host.booted_at = now;
        self.plugins.clear();
        self.groups.clear();
        let all: Vec<String> = self.containers.keys().cloned().collect();
        for id in all {
            self.exit(now, &id, 255);
        }
        for s in self.sandboxes.values_mut() {
            s.ready = false;
        }
        self.volumes.retain(|_, kind| {
            !matches!(kind, VolumeKind::EmptyDir { tmpfs: true, .. } | VolumeKind::Files { tmpfs: true, .. })
        });
    }
}

fn listed(p: &SimPlugin) -> Vec<Device> {
    p.devices.iter().map(|(id, healthy)| Device { id: id.clone(), healthy: *healthy, numa_nodes: Vec::new() }).collect()
}

fn image(name: &str) -> ImageRecord {
    ImageRecord {
        id: format!("sha256:{name}"),
        names: vec![name.to_owned()],
        size_bytes: 1 << 20,
        ..ImageRecord::default()
    }
}
