//! Device plugins: those of the simulator's own, and those that virt-handler serves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::devices::{AllocateReply, Device, PluginOptions};
use carrack_kubelet::runtime::{DeviceNode, PodRef};
use carrack_kubelet::{In, OpError, Outcome, Reply};
use carrack_types::well_known::kubevirt::{COMPUTE_CONTAINER, KVM_RESOURCE, TUN_RESOURCE, VHOST_NET_RESOURCE};
use carrack_virt::handler::effects::In as HandlerIn;

use super::moods::Heard;
use super::{Follow, NodeEvent};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Observer, is_launcher};

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
pub(super) struct Plugin {
    /// What it has.
    pub(super) devices: Vec<Device>,
    /// What it says at present that it has.
    pub(super) listed: Vec<Device>,
    pub(super) options: PluginOptions,
    /// The life of the virt-handler that serves it; none when the simulator itself does.
    pub(super) handler: Option<u32>,
    /// Whether whoever serves it lives.
    served: bool,
    /// The registration, with the life of the kubelet that it is with.
    pub(super) connected: Option<(u32, u64)>,
    generation: u64,
    /// When the kubelet hears what it said last.
    pub(super) said: Time,
    /// How many moods it has had.
    pub(super) mood: u64,
}

/// The plugins of a node.
#[derive(Debug)]
pub(crate) struct Plugins {
    pub(super) plugins: BTreeMap<&'static str, Plugin>,
    pub(super) epoch: u64,
    /// In which boot each device was granted last, as `resource/id`.
    granted: BTreeMap<String, u32>,
    /// What the kubelet has heard of each.
    pub(super) heard: BTreeMap<String, Heard>,
    /// One has listed fewer devices than it has.
    pub(super) fell_short: bool,
    /// The chance of answers that are not as they should be.
    pub(super) whims: Rng,
    /// What has followed of calls.
    pub(super) due: Vec<Follow>,
    /// The chance of answers to who tells of starts; none where the simulator's own plugins need not be told.
    pub(super) starts: Option<Rng>,
    /// Of how many starts with a device its plugin was told, and has answered well, that have not come yet; by `resource/id`.
    pub(super) told: BTreeMap<String, u32>,
}

/// Devices on these NUMA nodes in turn.
fn devices(prefix: &str, count: usize, nodes: &[i64]) -> Vec<Device> {
    let node = |n: usize| nodes.iter().cycle().nth(n).copied().into_iter().collect();
    (0..count).map(|n| Device { id: format!("{prefix}{n}"), healthy: true, numa_nodes: node(n) }).collect()
}

impl Plugin {
    /// One with these devices, which virt-handler serves or the simulator itself.
    fn new(devices: Vec<Device>, handled: bool) -> Self {
        Self {
            listed: devices.clone(),
            devices,
            options: PluginOptions::default(),
            handler: handled.then_some(0),
            served: !handled,
            connected: None,
            generation: 0,
            said: Time::default(),
            mood: 0,
        }
    }

    /// It looks for the kubelet, at its own pace; one in so many times it takes minutes.
    pub(super) fn look(&mut self, resource: &'static str, late_one_in: u64, rng: &mut Rng, follow: &mut Vec<Follow>) {
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
    pub(super) fn hang_up(&mut self, resource: &str, follow: &mut Vec<Follow>) {
        self.generation += 1;
        if let Some((life, epoch)) = self.connected.take() {
            let down = In::PluginDown { resource: resource.to_owned(), epoch };
            follow.push(Follow::Say(format!("device plugin {resource} hangs up")));
            follow.push(Follow::Kubelet(life, Duration::from_millis(1), Box::new(down)));
        }
    }
}

impl Plugins {
    pub(super) fn new(whims: Rng) -> Self {
        let mut plugins = BTreeMap::from([(WIDGET, Plugin::new(devices("w", WIDGETS, &[0, 1]), false))]);
        plugins.extend(HANDLED.map(|resource| (resource, Plugin::new(devices("d", SHARED, &[]), true))));
        Self {
            plugins,
            epoch: 0,
            granted: BTreeMap::new(),
            heard: BTreeMap::new(),
            fell_short: false,
            whims,
            due: Vec::new(),
            starts: None,
            told: BTreeMap::new(),
        }
    }

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
        self.heard.clear();
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

    /// A plugin registers and lists its devices. Those of the simulator's own may have preferences.
    pub(super) fn connect(
        &mut self,
        now: Time,
        life: u32,
        resource: &'static str,
        generation: u64,
        prefers: bool,
        rng: &mut Rng,
    ) -> Vec<Follow> {
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
        plugin.options.preferred_allocation = prefers && plugin.handler.is_none();
        plugin.options.pre_start_required = self.starts.is_some() && plugin.handler.is_none();
        let up = In::PluginUp { resource: resource.to_owned(), epoch, options: plugin.options };
        let devices = In::PluginDevices { resource: resource.to_owned(), epoch, devices: plugin.listed.clone() };
        let first = between(rng, Duration::from_millis(1), Duration::from_millis(50));
        let second = first + between(rng, Duration::from_millis(1), Duration::from_millis(500));
        plugin.said = now + second;
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
        whims_one_in: u64,
    ) -> Outcome {
        let connected = self.plugins.get(resource).and_then(|p| p.connected);
        if connected != Some((life, epoch)) {
            return Err(OpError::Failed(format!("the device plugin of {resource} is not there")));
        }
        let refused = self.refuses(resource, ids, whims_one_in);
        if let Some((false, error)) = refused {
            return Err(error);
        }
        self.granted.extend(ids.iter().map(|id| (format!("{resource}/{id}"), boot)));
        let devices = ids
            .iter()
            .map(|id| {
                let path = format!("{DEVICE_DIR}{resource}/{id}");
                DeviceNode { container_path: path.clone(), host_path: path, permissions: "rw".into() }
            })
            .collect();
        let granted = AllocateReply { devices, ..AllocateReply::default() };
        refused.map_or(Ok(Reply::Allocated(granted)), |(_, error)| Err(error))
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
                None if asked == 0
                    && HANDLED.contains(resource)
                    && is_launcher(shown)
                    && container == COMPUTE_CONTAINER =>
                {
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
