//! Device plugins: those of the simulator's own, and those that virt-handler serves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Rng;
use carrack_kubelet::devices::{AllocateReply, Device, PluginOptions};
use carrack_kubelet::runtime::{DeviceNode, PodRef};
use carrack_kubelet::{In, OpError, Outcome, Reply};
use carrack_types::well_known::kubevirt::{
    APP_LABEL, COMPUTE_CONTAINER, KVM_RESOURCE, LAUNCHER, TUN_RESOURCE, VHOST_NET_RESOURCE,
};
use carrack_virt::handler::effects::In as HandlerIn;

use super::{Follow, NodeEvent};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::Observer;

/// A resource with few devices, so that pods compete for them.
pub(crate) const WIDGET: &str = "sim.carrack.io/widget";
/// How many there are on each node.
pub(crate) const WIDGETS: usize = 2;
/// How many of each device virt-handler offers. Upstream's 1000 would make checkpoints of 3000 names.
const SHARED: usize = 30;
/// The plugins that virt-handler serves.
const HANDLED: [&str; 3] = [KVM_RESOURCE, TUN_RESOURCE, VHOST_NET_RESOURCE];
/// How late a plugin may be, in the worst case: less than a pod waits for it.
const LATE: Duration = Duration::from_secs(240);
/// Where containers find their devices; the resource and the device's id follow.
pub(crate) const DEVICE_DIR: &str = "/dev/sim/";

#[derive(Debug)]
struct Plugin {
    devices: Vec<Device>,
    /// The life of the virt-handler that serves it; none when the simulator itself does.
    handler: Option<u32>,
    /// Whether whoever serves it lives.
    served: bool,
    /// The registration, with the life of the kubelet that it is with.
    connected: Option<(u32, u64)>,
    generation: u64,
}

/// The plugins of a node.
#[derive(Debug)]
pub(crate) struct Plugins {
    plugins: BTreeMap<&'static str, Plugin>,
    epoch: u64,
    /// In which boot each device was granted last, as `resource/id`.
    granted: BTreeMap<String, u32>,
}

/// Devices on these NUMA nodes in turn.
fn devices(prefix: &str, count: usize, nodes: &[i64]) -> Vec<Device> {
    let node = |n: usize| nodes.iter().cycle().nth(n).copied().into_iter().collect();
    (0..count).map(|n| Device { id: format!("{prefix}{n}"), healthy: true, numa_nodes: node(n) }).collect()
}

impl Default for Plugins {
    fn default() -> Self {
        let widget = Plugin {
            devices: devices("w", WIDGETS, &[0, 1]),
            handler: None,
            served: true,
            connected: None,
            generation: 0,
        };
        let mut plugins = BTreeMap::from([(WIDGET, widget)]);
        for resource in HANDLED {
            let plugin = Plugin {
                devices: devices("d", SHARED, &[]),
                handler: Some(0),
                served: false,
                connected: None,
                generation: 0,
            };
            plugins.insert(resource, plugin);
        }
        Self { plugins, epoch: 0, granted: BTreeMap::new() }
    }
}

impl Plugin {
    /// It looks for the kubelet, at its own pace; one in so many times it takes minutes.
    fn look(&mut self, resource: &'static str, late_one_in: u64, rng: &mut Rng, follow: &mut Vec<Follow>) {
        if self.served {
            self.generation += 1;
            let most = if self.handler.is_some() { Duration::from_secs(2) } else { Duration::from_secs(10) };
            let most = if rng.one_in(late_one_in) { LATE } else { most };
            let delay = between(rng, Duration::from_millis(50), most);
            follow.push(Follow::Later(delay, NodeEvent::PluginStart { resource, generation: self.generation }));
        }
    }

    /// It tells its handler how it stands.
    fn tell(&self, resource: &str, follow: &mut Vec<Follow>) {
        if let Some(life) = self.handler.filter(|_| self.served) {
            let registered = self.connected.is_some();
            let news = HandlerIn::Device { resource: resource.to_owned(), present: true, registered };
            follow.push(Follow::Handler(life, Duration::from_millis(1), Box::new(news)));
        }
    }

    /// It is gone, or its connection is; the kubelet notices.
    fn hang_up(&mut self, resource: &str, follow: &mut Vec<Follow>) {
        self.generation += 1;
        if let Some((life, epoch)) = self.connected.take() {
            let down = In::PluginDown { resource: resource.to_owned(), epoch };
            follow.push(Follow::Say(format!("device plugin {resource} hangs up")));
            follow.push(Follow::Kubelet(life, Duration::from_millis(1), Box::new(down)));
        }
    }
}

impl Plugins {
    /// A kubelet has started.
    pub(super) fn kubelet_started(&mut self, late_one_in: u64, rng: &mut Rng) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in &mut self.plugins {
            plugin.look(resource, late_one_in, rng, &mut follow);
        }
        follow
    }

    /// The kubelet is gone.
    pub(super) fn kubelet_died(&mut self) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in &mut self.plugins {
            plugin.connected = None;
            plugin.generation += 1;
            plugin.tell(resource, &mut follow);
        }
        follow
    }

    /// A virt-handler has started, and serves its plugins.
    pub(super) fn handler_started(&mut self, life: u32, late_one_in: u64, rng: &mut Rng) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in self.plugins.iter_mut().filter(|(_, p)| p.handler.is_some()) {
            (plugin.handler, plugin.served) = (Some(life), true);
            plugin.tell(resource, &mut follow);
            plugin.look(resource, late_one_in, rng, &mut follow);
        }
        follow
    }

    /// The virt-handler is gone, and its plugins with it.
    pub(super) fn handler_died(&mut self) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in self.plugins.iter_mut().filter(|(_, p)| p.handler.is_some()) {
            plugin.served = false;
            plugin.hang_up(resource, &mut follow);
        }
        follow
    }

    /// A plugin registers and lists its devices.
    pub(super) fn connect(&mut self, life: u32, resource: &'static str, generation: u64, rng: &mut Rng) -> Vec<Follow> {
        let Some(plugin) = self.plugins.get_mut(resource).filter(|p| p.served && p.generation == generation) else {
            return Vec::new();
        };
        if life == 0 {
            // No kubelet yet; it will be found when it starts.
            return Vec::new();
        }
        self.epoch += 1;
        let epoch = self.epoch;
        plugin.connected = Some((life, epoch));
        let up = In::PluginUp { resource: resource.to_owned(), epoch, options: PluginOptions::default() };
        let devices = In::PluginDevices { resource: resource.to_owned(), epoch, devices: plugin.devices.clone() };
        let first = between(rng, Duration::from_millis(1), Duration::from_millis(50));
        let second = first + between(rng, Duration::from_millis(1), Duration::from_millis(500));
        let mut follow = vec![
            Follow::Say(format!("device plugin {resource} registers, epoch {epoch}")),
            Follow::Kubelet(life, first, Box::new(up)),
            Follow::Kubelet(life, second, Box::new(devices)),
        ];
        plugin.tell(resource, &mut follow);
        follow
    }

    /// A plugin of the simulator's own dies and comes back.
    pub(crate) fn flap(&mut self, rng: &mut Rng) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in self.plugins.iter_mut().filter(|(_, p)| p.handler.is_none()) {
            if plugin.connected.is_some() {
                plugin.hang_up(resource, &mut follow);
                plugin.look(resource, 0, rng, &mut follow);
            }
        }
        follow
    }

    pub(super) fn allocate(
        &mut self,
        life: u32,
        boot: u32,
        resource: &str,
        epoch: u64,
        ids: &BTreeSet<String>,
    ) -> Outcome {
        let connected = self.plugins.get(resource).and_then(|p| p.connected);
        if connected != Some((life, epoch)) {
            return Err(OpError::Failed(format!("the device plugin of {resource} is not there")));
        }
        self.granted.extend(ids.iter().map(|id| (format!("{resource}/{id}"), boot)));
        let devices = ids
            .iter()
            .map(|id| {
                let path = format!("{DEVICE_DIR}{resource}/{id}");
                DeviceNode { container_path: path.clone(), host_path: path, permissions: "rw".into() }
            })
            .collect();
        Ok(Reply::Allocated(AllocateReply { devices, ..AllocateReply::default() }))
    }

    /// A container starts with these devices.
    pub(super) fn check(
        &self,
        boot: u32,
        pod: &PodRef,
        container: &str,
        devices: &[String],
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let Some(shown) = observer.pod(pod) else { return };
        let all =
            ["/spec/containers", "/spec/initContainers"].into_iter().filter_map(|list| shown.pointer(list)?.as_array());
        let limits =
            all.flatten().find(|c| c["name"] == container).and_then(|c| c.pointer("/resources/limits")?.as_object());
        let is_launcher = shown["metadata"]["labels"][APP_LABEL] == LAUNCHER;
        for resource in self.plugins.keys() {
            let asked = limits.and_then(|l| l.get(*resource)?.as_str()?.parse().ok()).unwrap_or(0);
            let prefix = format!("{resource}/");
            let has: Vec<&String> = devices.iter().filter(|device| device.starts_with(&prefix)).collect();
            let stale = has.iter().find(|device| self.granted.get(**device) != Some(&boot));
            let what = match stale {
                Some(device) => {
                    format!("{container} of {pod} starts with {device}, which was not granted in this boot")
                }
                None if has.len() != asked => {
                    format!("{container} of {pod} starts with {} of {asked} {resource}", has.len())
                }
                None if asked == 0 && HANDLED.contains(resource) && is_launcher && container == COMPUTE_CONTAINER => {
                    let what = format!("{container} of {pod} starts without {resource}");
                    breaches.push(Breach::new("devices-are-of-this-boot", what));
                    continue;
                }
                None => continue,
            };
            breaches.push(Breach::new("devices-are-of-this-boot", what));
        }
    }
}
