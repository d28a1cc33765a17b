//! Disks that are attached to nodes from outside, and the attacher that does it: what a cloud and its CSI driver's
//! sidecar are to a cluster.
//!
//! ```text
//!   VolumeAttachment ─▶ attacher ─▶ rack: disk at node, as a device ─▶ attached, with the device's name
//!                                     ▲ staged by the node's driver: only what is attached, as that device
//! ```
//!
//! Each attachment gives the disk another device name, so that a node which goes by an older attachment is found out. Now and then
//! the storage system says that a disk is there which is not yet: it comes when it is looked for. Nobody who attaches can know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrack_engine::{Controller, Key, Plan, Rng, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use crate::role::node_name;

/// Name of the driver.
pub(crate) const DRIVER: &str = "disks.sim";
/// In the attachment's metadata: the device.
pub(crate) const DEVICE: &str = "device";
/// The attacher has to do with an attachment until it lets go of this.
const FINALIZER: &str = "external-attacher/disks-sim";

#[derive(Debug, Default)]
struct Disks {
    /// The device of each disk at each node.
    attached: BTreeMap<(String, String), u64>,
    /// Disks that a node has mounted.
    staged: BTreeSet<(String, String)>,
    /// Those that are gone when their node is switched off.
    until_off: BTreeSet<(String, String)>,
    /// Those that are not there yet, though that was said.
    late: BTreeSet<(String, String)>,
    /// How often that happens.
    lies: Option<(Rng, u64)>,
    last: u64,
    /// Disks that were detached from nodes that had them mounted.
    taken: Vec<(String, String)>,
}

/// Where the disks are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rack(Arc<Mutex<Disks>>);

impl Rack {
    fn lock(&self) -> MutexGuard<'_, Disks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk is at a node; under which name.
    fn attach(&self, disk: &str, node: &str) -> String {
        let mut disks = self.lock();
        let next = disks.last + 1;
        let device = *disks.attached.entry((disk.to_owned(), node.to_owned())).or_insert(next);
        disks.last = disks.last.max(device);
        format!("/dev/disk{device}")
    }

    /// From now on one in so many disks is said to be there when it is not.
    pub(crate) fn may_lie(&self, rng: Rng, one_in: u64) {
        self.lock().lies = Some((rng, one_in));
    }

    /// What is said from now on is so.
    pub(crate) fn is_honest(&self) {
        self.lock().lies = None;
    }

    /// The disk is said to be at a node; under which name.
    fn says_attached(&self, disk: &str, node: &str) -> String {
        let is_new = !self.is_attached(disk, node);
        let device = self.attach(disk, node);
        let mut disks = self.lock();
        if is_new && disks.lies.as_mut().is_some_and(|(rng, one_in)| rng.one_in(*one_in)) {
            disks.late.insert((disk.to_owned(), node.to_owned()));
        }
        device
    }

    /// The disk is at a node, until that is switched off.
    pub(crate) fn attach_until_off(&self, disk: &str, node: &str) -> String {
        self.lock().until_off.insert((disk.to_owned(), node.to_owned()));
        self.attach(disk, node)
    }

    pub(crate) fn is_attached(&self, disk: &str, node: &str) -> bool {
        self.lock().attached.contains_key(&(disk.to_owned(), node.to_owned()))
    }

    pub(crate) fn detach(&self, disk: &str, node: &str) {
        let mut disks = self.lock();
        let place = (disk.to_owned(), node.to_owned());
        if disks.staged.contains(&place) {
            disks.taken.push(place.clone());
        }
        disks.attached.remove(&place);
        disks.until_off.remove(&place);
        disks.late.remove(&place);
    }

    /// A node mounts a disk that it believes to be a device.
    pub(crate) fn stage(&self, disk: &str, node: u8, device: Option<&String>) -> Result<(), String> {
        let mut disks = self.lock();
        let place = (disk.to_owned(), node_name(node));
        if disks.late.remove(&place) {
            return Err(format!("{disk} is not there"));
        }
        match disks.attached.get(&place).map(|n| format!("/dev/disk{n}")) {
            Some(is) if device == Some(&is) => {
                disks.staged.insert(place);
                Ok(())
            }
            Some(is) => Err(format!("{disk} is {is}, and not {device:?}")),
            None => Err(format!("{disk} is not attached")),
        }
    }

    pub(crate) fn unstage(&self, disk: &str, node: u8) {
        self.lock().staged.remove(&(disk.to_owned(), node_name(node)));
    }

    /// A node's mounts are gone with its power.
    pub(crate) fn power_off(&self, node: u8) {
        let name = node_name(node);
        let mut disks = self.lock();
        disks.staged.retain(|(_, at)| *at != name);
        let lost: Vec<_> = disks.until_off.iter().filter(|(_, at)| *at == name).cloned().collect();
        for place in lost {
            disks.attached.remove(&place);
        }
    }

    /// What was detached since the last look from nodes that had it mounted, with the node.
    pub(crate) fn taken(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.lock().taken)
    }
}

/// One in so many attempts of an attacher that may fail does.
const FAILS_ONE_IN: u64 = 4;

/// The attacher.
pub(crate) struct Attacher {
    pub rack: Rack,
    pub rng: Rng,
    /// It may fail, before or after it has done something.
    pub fails: bool,
}

impl Attacher {
    /// Does something, and says so; or it fails, and says that.
    fn attempt(
        &mut self,
        attachment: &VolumeAttachment,
        error: &'static str,
        now: Time,
        act: impl FnOnce(&Rack) -> Plan,
    ) -> Plan {
        if !self.fails || !self.rng.one_in(FAILS_ONE_IN) {
            return act(&self.rack);
        }
        if self.rng.one_in(2) {
            drop(act(&self.rack));
        }
        let why = "the storage system hiccups";
        let status = json!({"status": {error: {"time": now.rfc3339(), "message": why}}});
        Plan::failed(why).patch_status(attachment, status)
    }
}

impl Controller for Attacher {
    fn name(&self) -> &'static str {
        "attacher"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeAttachment>();
        // An attachment may be seen before its volume.
        setup.watch::<PersistentVolume>(|volume, view| {
            let name = Some(volume.name());
            let of = |a: &&Arc<VolumeAttachment>| a.spec.source.persistent_volume_name.as_deref() == name;
            view.cache::<VolumeAttachment>().iter().filter(of).map(|a| Key::of(a.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(attachment) = view.get::<VolumeAttachment>("", &key.name) else { return Plan::none() };
        if attachment.spec.attacher != DRIVER {
            return Plan::none();
        }
        let node = &attachment.spec.node_name;
        let volume = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
        let Some(volume) = view.get::<PersistentVolume>("", volume) else { return Plan::none() };
        let Some(csi) = volume.spec.as_ref().and_then(|s| s.csi.as_ref()) else { return Plan::none() };
        let held = attachment.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
        if attachment.is_deleting() {
            if !held {
                return Plan::none();
            }
            return self.attempt(attachment, "detachError", now, |rack| {
                rack.detach(&csi.volume_handle, node);
                Plan::none().patch(attachment.as_ref(), json!({"metadata": {"finalizers": []}}))
            });
        }
        if !held {
            return Plan::none().patch(attachment.as_ref(), json!({"metadata": {"finalizers": [FINALIZER]}}));
        }
        if attachment.status.as_ref().is_some_and(|s| s.attached) {
            return Plan::none();
        }
        self.attempt(attachment, "attachError", now, |rack| {
            let device = rack.says_attached(&csi.volume_handle, node);
            let status = json!({"attached": true, "attachError": null, "attachmentMetadata": {DEVICE: device}});
            Plan::none().patch_status(attachment.as_ref(), json!({ "status": status }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_said_to_be_there_comes_when_it_is_looked_for() {
        let rack = Rack::default();
        rack.may_lie(Rng::new(1), 1);
        let device = rack.says_attached("d", "node1");
        assert!(rack.stage("d", 1, Some(&device)).is_err());
        assert_eq!(rack.stage("d", 1, Some(&device)), Ok(()));
        // One that is there is not lied about.
        assert_eq!(rack.says_attached("d", "node1"), device);
        assert_eq!(rack.stage("d", 1, Some(&device)), Ok(()));
        rack.is_honest();
        let device = rack.says_attached("e", "node1");
        assert_eq!(rack.stage("e", 1, Some(&device)), Ok(()));
    }
}
