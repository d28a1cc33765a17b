//! CSI drivers that say that they have done what they have not.
//!
//! | what is asked | the lie | who finds it out |
//! | --- | --- | --- |
//! | a part for a pod (`NodePublishVolume`) | nothing is there | the kubelet, who looks after each call |
//! | a volume for the node (`NodeStageVolume`) | nothing is mounted | the driver itself, when it is to give a part of that |
//! | a disk at a node (`ControllerPublishVolume`) | it comes when it is looked for ([`crate::attacher`]) | the node's driver |
//! | a volume (`CreateVolume`) | it is half as large | the provisioner, who reads what is answered |
//!
//! Nobody but the driver knows what is to be at the path that a volume is staged at: with some it is a mount, with some a file or
//! nothing. So that lie is none that a kubelet could see at once: it has the volume staged anew before it asks for a part again.
//! That of a disk at a node no one sees who attaches.

use carrack_engine::Time;
use carrack_kubelet::volumes::{Driver, Staging, VolumeSetup};
use carrack_kubelet::{OpError, Outcome, Reply};

use super::Node;
use super::storage::Mood;

impl Node {
    /// A driver is asked for a pod's part of a volume that is not mounted yet, and lies. The kubelet looks at what it was told of
    /// (`adapters/drivers/csi.rs`), unless a bug is planted.
    pub(super) fn lies_of_part(&mut self, setup: &VolumeSetup) -> Option<Outcome> {
        let p = setup.publishing().filter(|p| !p.confirm_only)?;
        let Driver::Csi { driver, .. } = &p.published.origin.driver else { return None };
        if self.disk.has(&setup.uid, &setup.path) || !self.lying.one_in(self.faults.lies_one_in) {
            return None;
        }
        if self.believes {
            return Some(Ok(Reply::Done));
        }
        let why = format!("CSI driver {driver} says that it published {}, and nothing is there", setup.path);
        Some(Err(OpError::Failed(why)))
    }

    /// A driver is asked for a volume that is not mounted for the node yet, and lies.
    pub(super) fn lies_of_volume(&mut self, staging: &Staging) -> Option<Reply> {
        let is_csi = matches!(staging.origin.driver, Driver::Csi { .. });
        let lies = is_csi && !self.disk.is_staged(&staging.id) && self.lying.one_in(self.faults.lies_one_in);
        lies.then_some(Reply::Staged { device: None, identity: None })
    }

    /// How the node's own driver takes the next call of whoever makes volumes.
    pub(super) fn mood(&mut self, now: Time) -> Mood {
        if self.lacks_storage(now) {
            Mood::Away
        } else if self.lying.one_in(self.faults.lies_one_in) {
            Mood::Lies
        } else {
            Mood::Honest
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use carrack_engine::Rng;
    use carrack_kubelet::volumes::{GroupPolicy, Origin, PodInfo, Published, Publishing, Secrets, VolumeKind};

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    fn setup(driver: Driver, confirm_only: bool) -> VolumeSetup {
        let origin = Origin {
            driver,
            spec_name: "v".into(),
            claim: None,
            block: false,
            read_only: false,
            reads_by_choice: false,
            fs_type: String::new(),
            mount_options: Vec::new(),
            access_modes: Vec::new(),
        };
        let kind = VolumeKind::Published(Box::new(Publishing {
            published: Published { origin, id: None, stage_path: String::new() },
            staging: None,
            publish_context: BTreeMap::new(),
            secrets: Secrets::default(),
            pod: PodInfo::default(),
            pod_info: false,
            tokens: Secrets::default(),
            republish: false,
            group_policy: GroupPolicy::None,
            confirm_only,
        }));
        VolumeSetup { uid: "p".into(), name: "v".into(), path: "/v".into(), kind, fs_group: None }
    }

    fn csi() -> Driver {
        Driver::Csi {
            driver: "d".into(),
            handle: "v".into(),
            attributes: BTreeMap::new(),
            stage_secret: None,
            publish_secret: None,
            expand_secret: None,
            ephemeral: false,
        }
    }

    #[test]
    fn a_lie_is_told_of_what_is_not_there_and_seen_unless_nobody_looks() {
        let nfs = || Driver::Nfs { server: "s".into(), path: "/".into() };
        // Whose volume it is, whether it is only looked for, whether it is there, and whether drivers are believed; and what is
        // answered instead of the truth: whether that it was done.
        for (driver, confirm_only, there, believes, expected) in [
            (csi(), false, false, false, Some(false)),
            (csi(), false, false, true, Some(true)),
            (csi(), false, true, false, None),
            (csi(), true, false, false, None),
            (nfs(), false, false, false, None),
        ] {
            let faults = NodeFaults { lies_one_in: 1, ..NodeFaults::none() };
            let mut node = Node::new(1, Time::default(), Rng::new(1), faults, Rack::default());
            node.believes = believes;
            let setup = setup(driver, confirm_only);
            if there {
                assert!(node.disk.mount(&setup, 1, &mut Vec::new()).is_ok());
            }
            let told = node.lies_of_part(&setup).map(|outcome| outcome.is_ok());
            assert_eq!(told, expected, "{setup:?}, there: {there}, believed: {believes}");
            assert_eq!(node.disk.has("p", "/v"), there);
        }
    }
}
