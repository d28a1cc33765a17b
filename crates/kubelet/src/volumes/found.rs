//! What a restarted kubelet finds of its volumes: its records beside one look at the disk.
//!
//! The mount table and the directories of pods are read once, when the records are. A volume that a record names and
//! that is there is known to be there from then on, however many there are, and whatever the API says. Before a
//! container starts with it, it is made ready once more all the same: a kubelet may have died between the mount and its
//! contents. What is not found stays uncertain, and so does everything where the disk could not be read. Upstream's
//! kubelet looks in the same places (`pkg/kubelet/volumemanager/reconciler/reconstruct.go`), and mounts each volume
//! again before it counts.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use super::{Actual, Driver, JournalEntry, Published, Staging, State, Volumes};
use crate::runtime::Uid;
use crate::spec::pod::spec;

/// What lies below the kubelet's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Mount points, with the device of what is mounted there (`major:minor`).
    pub mounts: BTreeMap<String, String>,
    /// Directories of pods' volumes, mounted or not.
    pub directories: BTreeSet<String>,
    /// What stands for the block devices of pods' volumes.
    pub devices: BTreeSet<String>,
}

impl Found {
    /// Whether a volume of a pod is there, as its record has it.
    fn has(&self, pod: &Pod, entry: &JournalEntry) -> bool {
        let mounted = self.mounts.contains_key(&entry.path);
        match entry.published.as_deref() {
            Some(published) => mounted && is_mount(published),
            None => entry.owned && (mounted || !in_memory(pod, entry) && self.directories.contains(&entry.path)),
        }
    }

    /// What is known about a volume of a pod that its record names.
    pub(super) fn actual(&self, pod: &Pod, entry: &JournalEntry) -> Actual {
        if self.has(pod, entry) { Actual::Mounted } else { Actual::Uncertain }
    }

    /// Whether a volume is below a directory, or anything is mounted there.
    #[must_use]
    pub fn has_any_below(&self, dir: &str) -> bool {
        self.has_mount_below(dir) || self.directories.iter().chain(&self.devices).any(|path| is_below(path, dir))
    }

    /// Whether anything is mounted below a directory.
    #[must_use]
    pub fn has_mount_below(&self, dir: &str) -> bool {
        self.mounts.keys().any(|path| is_below(path, dir))
    }

    /// Whether a volume of the node is mounted as its record has it: the same device, in the same boot.
    #[must_use]
    pub fn is_staged(&self, staging: &Staging, boot_id: &str) -> bool {
        let device = self.mounts.get(&staging.path);
        device.is_some_and(|device| staging.identity.as_deref() == Some(&format!("{boot_id} {device}")))
    }
}

impl Volumes {
    /// Volumes that are known to be there and that nothing is being done about, by pod and path.
    pub fn mounted(&self) -> impl Iterator<Item = (&Uid, &str)> {
        let there = |v: &&State| v.actual == Actual::Mounted && v.op.is_none();
        self.pods.iter().flat_map(move |(uid, of)| of.values().filter(there).map(move |v| (uid, v.path.as_str())))
    }

    /// Takes for mounted what a pod's record names, as a planted bug has it.
    pub fn believe(&mut self, uid: &str) {
        for v in self.pods.get_mut(uid).into_iter().flat_map(BTreeMap::values_mut) {
            v.actual = Actual::Mounted;
        }
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether what a pod gets is a mount: a device is a link, and a path of the node is nobody's.
fn is_mount(published: &Published) -> bool {
    !published.origin.block && !matches!(published.origin.driver, Driver::HostPath { .. })
}

/// Whether the kubelet makes a volume in memory, so that a directory without a mount is none.
fn in_memory(pod: &Pod, entry: &JournalEntry) -> bool {
    let Some(volume) = spec(pod).volumes.iter().flatten().find(|v| v.name == entry.name) else { return true };
    match &volume.empty_dir {
        Some(e) => e.medium.as_deref().is_some_and(|m| !m.is_empty()),
        None => volume.config_map.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        carrack_types::json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}], "volumes": [
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "disk", "emptyDir": {}},
                {"name": "settings", "configMap": {"name": "m"}},
                {"name": "secret", "secret": {"secretName": "s"}},
                {"name": "host", "hostPath": {"path": "/host"}},
                {"name": "claimed", "persistentVolumeClaim": {"claimName": "c"}},
            ]},
        }))
        .unwrap()
    }

    fn origin(block: bool) -> Origin {
        serde_json::from_value(json!({
            "driver": {"kind": "nfs", "server": "s", "path": "/p"}, "specName": "pv", "block": block, "readOnly": false,
            "fsType": "", "mountOptions": [], "accessModes": [],
        }))
        .unwrap()
    }

    fn entry(name: &str, published: Option<Origin>) -> JournalEntry {
        let published = published.map(|origin| Box::new(Published { origin, id: None, stage_path: String::new() }));
        JournalEntry { name: name.into(), path: format!("/{name}"), owned: name != "host", published }
    }

    #[test]
    fn records_are_believed_as_far_as_the_disk_shows() {
        let there = |paths: &[&str]| -> BTreeSet<String> { paths.iter().map(|p| (*p).to_owned()).collect() };
        for (name, published, mounted, directory, expected) in [
            ("memory", None, true, true, true),
            ("memory", None, false, true, false),
            ("disk", None, false, true, true),
            ("disk", None, false, false, false),
            ("settings", None, false, true, true),
            ("secret", None, false, true, false),
            ("secret", None, true, false, true),
            ("host", None, true, true, false),
            ("unnamed", None, false, true, false),
            ("claimed", Some(false), true, true, true),
            ("claimed", Some(false), false, true, false),
            ("claimed", Some(true), true, true, false),
        ] {
            let entry = entry(name, published.map(origin));
            let mut found = Found::default();
            if mounted {
                found.mounts.insert(entry.path.clone(), "0:7".into());
            }
            if directory {
                found.directories = there(&[&entry.path]);
            }
            let what = format!("{name} {published:?} mounted {mounted} directory {directory}");
            assert_eq!(found.has(&pod(), &entry), expected, "{what}");
        }
    }

    #[test]
    fn what_is_found_counts_and_is_looked_at_before_a_start() {
        let (uid, pod) = ("u".into(), pod());
        let journal = [entry("memory", None), entry("disk", None)];
        let found = Found { mounts: BTreeMap::from([("/memory".into(), "0:7".into())]), ..Found::default() };
        let mut volumes = Volumes::default();
        volumes.restore(&uid, &pod, &journal, Some(&found));
        assert_eq!(volumes.census().values().map(|c| c.actual).sum::<usize>(), 1);
        assert!(volumes.ready(&pod).is_err());
        let mut blind = Volumes::default();
        blind.restore(&uid, &pod, &journal, None);
        assert_eq!(blind.census().values().map(|c| c.actual).sum::<usize>(), 0);
    }

    #[test]
    fn what_is_below_a_pods_directory_is_its_own() {
        let set = |path: &str| BTreeSet::from([path.to_owned()]);
        for (path, expected) in
            [("/k/pods/u/volumes/p/v", true), ("/k/pods/u2/volumes/p/v", false), ("/k/pods/u", false)]
        {
            let mounts = Found { mounts: BTreeMap::from([(path.to_owned(), "7:1".to_owned())]), ..Found::default() };
            let directories = Found { directories: set(path), ..Found::default() };
            let devices = Found { devices: set(path), ..Found::default() };
            assert_eq!(mounts.has_mount_below("/k/pods/u"), expected, "{mounts:?}");
            assert!(!directories.has_mount_below("/k/pods/u"), "{directories:?}");
            for found in [mounts, directories, devices] {
                assert_eq!(found.has_any_below("/k/pods/u"), expected, "{found:?}");
            }
        }
    }

    #[test]
    fn a_device_is_known_by_boot_and_number() {
        let staging = |identity: Option<&str>| Staging {
            by_control_plane: false,
            id: "v".into(),
            origin: origin(false),
            path: "/staged".into(),
            device: None,
            identity: identity.map(Into::into),
        };
        let found = Found { mounts: BTreeMap::from([("/staged".into(), "7:1".into())]), ..Found::default() };
        for (identity, expected) in
            [(Some("boot 7:1"), true), (Some("boot 7:2"), false), (Some("before 7:1"), false), (None, false)]
        {
            assert_eq!(found.is_staged(&staging(identity), "boot"), expected, "{identity:?}");
        }
        assert!(!Found::default().is_staged(&staging(Some("boot 7:1")), "boot"));
    }
}
