//! What a node keeps when its agents die, and what of it when the power goes.

use std::collections::{BTreeMap, BTreeSet};

use carrack_kubelet::{OpError, Outcome, Reply};

/// The disk, and the mounts on it.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// The kubelet's local record.
    pub records: BTreeMap<String, Vec<u8>>,
    /// The device manager's checkpoint.
    pub checkpoint: Option<Vec<u8>>,
    /// Volumes by pod UID and path.
    mounts: BTreeSet<(String, String)>,
}

impl Disk {
    pub(super) fn mount(&mut self, uid: &str, path: &str) -> Outcome {
        self.mounts.insert((uid.to_owned(), path.to_owned()));
        Ok(Reply::Done)
    }
    pub(super) fn unmount(&mut self, uid: &str, path: &str) -> Outcome {
        self.mounts.remove(&(uid.to_owned(), path.to_owned()));
        Ok(Reply::Done)
    }
    pub(super) fn remove_pod(&mut self, uid: &str) -> Outcome {
        match self.mounts.iter().find(|(pod, path)| pod == uid && path.contains("/volumes/")) {
            Some((_, path)) => Err(OpError::Failed(format!("{path} is still mounted"))),
            None => Ok(Reply::Done),
        }
    }
    pub(super) fn save(&mut self, name: String, body: Vec<u8>) -> Outcome {
        self.records.insert(name, body);
        Ok(Reply::Done)
    }
    pub(super) fn drop_record(&mut self, name: &str) -> Outcome {
        self.records.remove(name);
        Ok(Reply::Done)
    }
    pub(super) fn power_off(&mut self) {
        self.mounts.clear();
    }
}
