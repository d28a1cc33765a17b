//! Device manager: which plugins are registered, which devices they have, and which pod holds what.
//!
//! ```text
//!  plugin registers ─▶ listed ─▶ hung up ─▶ registers again (a new epoch)
//!  a container's devices:  none ─choose─▶ intended ─checkpoint─▶ Allocate ─▶ granted ─checkpoint─▶ usable
//! ```
//!
//! What a plugin granted holds for one boot of the machine: after a reboot the same devices are asked
//! for again before a container starts with them. A resource that was ever advertised here is
//! remembered, so that a pod which needs it waits for the plugin instead of being turned away or
//! started without it. A device is held by at most one pod until that pod's containers are over.

mod align;
mod checkpoint;
mod health;

use std::collections::{BTreeMap, BTreeSet};

pub use checkpoint::{CheckpointError, decode, encode};
pub(crate) use checkpoint::{from_proto as from_wire, hash_of_print, printed_map};

use crate::runtime::{DeviceNode, Uid};

/// Options of a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// It wants PreStartContainer before each container start.
    pub pre_start_required: bool,
    /// It answers GetPreferredAllocation.
    pub preferred_allocation: bool,
}

/// A device as its plugin lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Id, unique within the resource.
    pub id: String,
    /// Whether it may be given out.
    pub healthy: bool,
    /// NUMA nodes it is near to.
    pub numa_nodes: Vec<i64>,
}

/// A directory or file that a plugin wants in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginMount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

/// What a plugin granted for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocateReply {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<PluginMount>,
    /// Device nodes.
    pub devices: Vec<DeviceNode>,
    /// Annotations of the container.
    pub annotations: BTreeMap<String, String>,
    /// CDI device names.
    pub cdi_devices: Vec<String>,
}

/// Devices of one resource held by one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Devices.
    pub ids: BTreeSet<String>,
    /// What the plugin granted in this boot; none while it is only intended.
    pub reply: Option<AllocateReply>,
    /// Chosen at admission to lie on these NUMA nodes (any, when there are none), and the plugin was not asked yet what
    /// it prefers there. Not on disk: after a restart the choice stands.
    pub on: Option<crate::topology::Nodes>,
}

/// Holdings of a pod: container, resource.
pub type Held = BTreeMap<String, BTreeMap<String, Allocation>>;

/// Holdings: pod, container, resource.
pub type Allocations = BTreeMap<Uid, Held>;

/// What those who ask are shown: who holds what, and which devices there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceView {
    /// Holdings.
    pub held: Allocations,
    /// Devices by resource and id.
    pub listed: BTreeMap<String, BTreeMap<String, Device>>,
    /// CPUs.
    pub cpus: crate::cpus::CpuView,
    /// Memory of NUMA nodes.
    pub memory: crate::memory::MemoryView,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    plugin: Option<Plugin>,
    devices: BTreeMap<String, Device>,
}

#[derive(Clone, Copy, Debug)]
struct Plugin {
    epoch: u64,
    options: PluginOptions,
    listed: bool,
}

/// What stands between a container and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing: all are granted. The list names the plugins to tell before the start.
    Ready(Vec<PreStart>),
    /// The plugin would be asked which devices it prefers.
    Prefer {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
        /// To choose from.
        available: BTreeSet<String>,
        /// Those of them that it has in any case.
        required: BTreeSet<String>,
        /// How many.
        count: usize,
    },
    /// The intention was noted; checkpoint it, then ask the plugin.
    Allocate {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
        /// Devices.
        ids: BTreeSet<String>,
    },
    /// It must wait.
    Wait {
        /// Resource.
        resource: String,
        /// Why, for people.
        why: String,
    },
}

/// A plugin that wants to know before a container starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreStart {
    /// Resource.
    pub resource: String,
    /// Registration.
    pub epoch: u64,
    /// Devices.
    pub ids: BTreeSet<String>,
}

/// The device manager's state.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    resources: BTreeMap<String, Resource>,
    allocations: Allocations,
}

impl Devices {
    /// From the checkpoint. Grants of an earlier boot are void; the devices stay intended.
    #[must_use]
    pub fn restore(allocations: Allocations, advertised: BTreeSet<String>, same_boot: bool) -> Self {
        let mut devices = Self::default();
        devices.load(allocations, advertised, same_boot);
        devices
    }

    /// Takes the checkpoint's holdings over, beside plugins that may have registered already.
    pub fn load(&mut self, mut allocations: Allocations, advertised: BTreeSet<String>, same_boot: bool) {
        for resource in advertised {
            self.resources.entry(resource).or_default();
        }
        for by_container in allocations.values_mut() {
            for (resource, allocation) in by_container.values_mut().flatten() {
                self.resources.entry(resource.clone()).or_default();
                if !same_boot {
                    allocation.reply = None;
                }
            }
        }
        self.allocations = allocations;
    }

    /// A plugin registered.
    pub fn plugin_up(&mut self, resource: &str, epoch: u64, options: PluginOptions) {
        let r = self.resources.entry(resource.to_owned()).or_default();
        if r.plugin.is_some_and(|p| p.epoch > epoch) {
            return;
        }
        r.plugin = Some(Plugin { epoch, options, listed: false });
    }

    /// A plugin listed its devices. Returns whether anything changed.
    pub fn plugin_devices(&mut self, resource: &str, epoch: u64, devices: Vec<Device>) -> bool {
        let Some(r) = self.resources.get_mut(resource) else { return false };
        let Some(plugin) = r.plugin.as_mut().filter(|p| p.epoch == epoch) else { return false };
        let devices: BTreeMap<String, Device> = devices.into_iter().map(|d| (d.id.clone(), d)).collect();
        let changed = !plugin.listed || r.devices != devices;
        plugin.listed = true;
        r.devices = devices;
        changed
    }

    /// A plugin hung up: all of its devices are unhealthy from now on. Returns whether it was the
    /// registered one.
    pub fn plugin_down(&mut self, resource: &str, epoch: u64) -> bool {
        let Some(r) = self.resources.get_mut(resource) else { return false };
        if r.plugin.is_none_or(|p| p.epoch != epoch) {
            return false;
        }
        r.plugin = None;
        for d in r.devices.values_mut() {
            d.healthy = false;
        }
        true
    }

    /// A copy for those who ask.
    #[must_use]
    pub fn view(&self) -> DeviceView {
        DeviceView {
            held: self.allocations.clone(),
            listed: self.resources.iter().map(|(name, r)| (name.clone(), r.devices.clone())).collect(),
            cpus: crate::cpus::CpuView::default(),
            memory: crate::memory::MemoryView::default(),
        }
    }

    /// Whether this resource was ever advertised by a plugin on this node.
    #[must_use]
    pub fn ever_advertised(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
    }

    /// Takes a resource for one that a plugin advertised here in a time that nobody remembers.
    pub fn suppose(&mut self, resource: &str) {
        self.resources.entry(resource.to_owned()).or_default();
    }

    /// Takes that back, unless a plugin has come for it.
    pub fn unsuppose(&mut self, resource: &str) {
        if self.resources.get(resource).is_some_and(|r| r.plugin.is_none() && r.devices.is_empty()) {
            self.resources.remove(resource);
        }
    }

    /// Whether a plugin is registered for it and has listed its devices.
    #[must_use]
    pub fn registered(&self, resource: &str) -> bool {
        self.resources.get(resource).and_then(|r| r.plugin).is_some_and(|p| p.listed)
    }

    /// Whether this registration may be asked for these devices: it is the present one, and it says that all of them are well.
    #[must_use]
    pub fn may_be_asked_for(&self, resource: &str, epoch: u64, ids: &BTreeSet<String>) -> bool {
        self.resources.get(resource).is_some_and(|r| {
            let is_present = r.plugin.is_some_and(|p| p.listed && p.epoch == epoch);
            is_present && ids.iter().all(|id| r.devices.get(id).is_some_and(|d| d.healthy))
        })
    }

    /// Capacity and allocatable of all resources ever advertised: all devices, and the healthy ones.
    #[must_use]
    pub fn capacity(&self) -> BTreeMap<String, (usize, usize)> {
        self.resources
            .iter()
            .map(|(name, r)| (name.clone(), (r.devices.len(), r.devices.values().filter(|d| d.healthy).count())))
            .collect()
    }

    /// Holdings, for the checkpoint and for those who ask.
    #[must_use]
    pub fn allocations(&self) -> &Allocations {
        &self.allocations
    }

    /// Ids of healthy devices by resource, for the checkpoint.
    #[must_use]
    pub fn registered_devices(&self) -> BTreeMap<String, Vec<String>> {
        self.resources
            .iter()
            .map(|(name, r)| (name.clone(), r.devices.values().filter(|d| d.healthy).map(|d| d.id.clone()).collect()))
            .collect()
    }

    /// The NUMA node of a device; -1 when it has none or many.
    #[must_use]
    pub fn numa_of(&self, resource: &str, id: &str) -> i64 {
        match self.resources.get(resource).and_then(|r| r.devices.get(id)).map(|d| d.numa_nodes.as_slice()) {
            Some([node]) => *node,
            _ => -1,
        }
    }

    /// The checkpoint of the present state.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        encode(&self.allocations, &self.registered_devices(), |r, id| self.numa_of(r, id))
    }

    /// Whether this pod holds devices, intended or granted.
    #[must_use]
    pub fn holds(&self, uid: &str) -> bool {
        self.allocations.contains_key(uid)
    }

    /// What is granted to a container, over all resources.
    #[must_use]
    pub fn granted(&self, uid: &str, container: &str) -> Vec<&AllocateReply> {
        self.allocations
            .get(uid)
            .and_then(|c| c.get(container))
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter_map(|a| a.reply.as_ref())
            .collect()
    }

    /// The devices of a resource that other pods hold.
    fn held_by_others(&self, resource: &str, uid: &str) -> BTreeSet<&String> {
        self.allocations
            .iter()
            .filter(|(other, _)| ***other != *uid)
            .flat_map(|(_, containers)| containers.values())
            .filter_map(|by_resource| by_resource.get(resource))
            .flat_map(|a| &a.ids)
            .collect()
    }

    /// The next step towards a container's devices. `reusable` names the containers of the same pod
    /// that are over before this one starts (its init containers), whose devices it may take over.
    /// A choice of devices is noted as intended.
    pub fn next_step(
        &mut self,
        uid: &Uid,
        container: &str,
        needs: &BTreeMap<String, usize>,
        reusable: &[&str],
        preferred: Option<(&str, &[String])>,
    ) -> NextStep {
        let step = self.peek_step(uid, container, needs, reusable, preferred);
        if let NextStep::Allocate { resource, ids, .. } = &step {
            let mine = self.allocations.entry(uid.clone()).or_default().entry(container.to_owned()).or_default();
            if mine.get(resource).is_none_or(|a| a.ids != *ids || a.on.is_some()) {
                mine.insert(resource.clone(), Allocation { ids: ids.clone(), reply: None, on: None });
            }
        }
        step
    }

    /// What the next step would be, with nothing noted.
    #[must_use]
    pub fn peek_step(
        &self,
        uid: &Uid,
        container: &str,
        needs: &BTreeMap<String, usize>,
        reusable: &[&str],
        preferred: Option<(&str, &[String])>,
    ) -> NextStep {
        let mut pre_starts = Vec::new();
        for (resource, &count) in needs {
            let Some(r) = self.resources.get(resource) else {
                return NextStep::Wait { resource: resource.clone(), why: "no device plugin has registered it".into() };
            };
            let Some(plugin) = r.plugin.filter(|p| p.listed) else {
                return NextStep::Wait {
                    resource: resource.clone(),
                    why: "its device plugin is not registered".into(),
                };
            };
            let healthy: BTreeSet<&String> = r.devices.values().filter(|d| d.healthy).map(|d| &d.id).collect();
            let mine = self.allocations.get(uid).and_then(|c| c.get(container)).and_then(|m| m.get(resource));
            if let Some(mine) = mine.filter(|a| a.ids.len() == count) {
                if mine.ids.iter().all(|id| healthy.contains(id)) {
                    if mine.reply.is_none() {
                        let wish = preferred.filter(|(r, _)| r == resource).map(|(_, ids)| ids);
                        let others = self.alternatives(uid, container, resource);
                        if wish.is_none() && plugin.options.preferred_allocation && others.len() > count {
                            return NextStep::Prefer {
                                resource: resource.clone(),
                                epoch: plugin.epoch,
                                available: others,
                                required: BTreeSet::new(),
                                count,
                            };
                        }
                        let wished = wish.into_iter().flatten().filter(|id| others.contains(*id));
                        let mut ids = BTreeSet::new();
                        for id in wished.chain(&mine.ids) {
                            if ids.len() < count {
                                ids.insert(id.clone());
                            }
                        }
                        return NextStep::Allocate { resource: resource.clone(), epoch: plugin.epoch, ids };
                    }
                    if plugin.options.pre_start_required {
                        pre_starts.push(PreStart {
                            resource: resource.clone(),
                            epoch: plugin.epoch,
                            ids: mine.ids.clone(),
                        });
                    }
                    continue;
                }
                if mine.ids.iter().any(|id| r.devices.contains_key(id)) {
                    return NextStep::Wait {
                        resource: resource.clone(),
                        why: "the devices allocated to the container are not healthy".into(),
                    };
                }
                // None of them exists any more, and the container does not run: others will do.
            }
            let taken = self.held_by_others(resource, uid);
            let own: BTreeSet<&String> = self
                .allocations
                .get(uid)
                .into_iter()
                .flatten()
                .filter(|(name, _)| name.as_str() != container && !reusable.contains(&name.as_str()))
                .filter_map(|(_, m)| m.get(resource))
                .flat_map(|a| &a.ids)
                .collect();
            let available: BTreeSet<String> = healthy
                .iter()
                .filter(|id| !taken.contains(*id) && !own.contains(*id))
                .map(|id| (*id).clone())
                .collect();
            if available.len() < count {
                return NextStep::Wait {
                    resource: resource.clone(),
                    why: format!("{count} devices are needed and {} are free and healthy", available.len()),
                };
            }
            let from_init: BTreeSet<String> = self
                .allocations
                .get(uid)
                .into_iter()
                .flatten()
                .filter(|(name, _)| reusable.contains(&name.as_str()))
                .filter_map(|(_, m)| m.get(resource))
                .flat_map(|a| &a.ids)
                .filter(|id| available.contains(*id))
                .take(count)
                .cloned()
                .collect();
            let wish = preferred.filter(|(r, _)| r == resource).map(|(_, ids)| ids);
            if wish.is_none()
                && plugin.options.preferred_allocation
                && from_init.len() < count
                && available.len() > count
            {
                return NextStep::Prefer {
                    resource: resource.clone(),
                    epoch: plugin.epoch,
                    available,
                    required: from_init,
                    count,
                };
            }
            let mut ids = from_init;
            // The plugin's wish is advice: what is not free is left out, what lacks is filled up.
            let wished = wish.into_iter().flatten().filter(|id| available.contains(*id));
            for id in wished.chain(&available) {
                if ids.len() == count {
                    break;
                }
                ids.insert(id.clone());
            }
            return NextStep::Allocate { resource: resource.clone(), epoch: plugin.epoch, ids };
        }
        NextStep::Ready(pre_starts)
    }

    /// A plugin granted what was intended. False when the intention is not there any more or is
    /// another one; then the grant means nothing.
    pub fn allocated(
        &mut self,
        uid: &str,
        container: &str,
        resource: &str,
        ids: &BTreeSet<String>,
        reply: AllocateReply,
    ) -> bool {
        let allocation = self
            .allocations
            .get_mut(uid)
            .and_then(|c| c.get_mut(container))
            .and_then(|m| m.get_mut(resource))
            .filter(|a| a.ids == *ids);
        match allocation {
            Some(a) => {
                a.reply = Some(reply);
                true
            }
            None => false,
        }
    }

    /// The pod's containers are over: what it held is free. Returns whether it held anything.
    pub fn release(&mut self, uid: &str) -> bool {
        self.allocations.remove(uid).is_some()
    }
}

/// Whether a resource name is an extended one: it has a domain, and not Kubernetes' own.
#[must_use]
pub fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.split('/').next().is_some_and(|d| d == "kubernetes.io" || d.ends_with(".kubernetes.io"))
        && !resource.starts_with("requests.")
}

#[cfg(test)]
mod tests;
