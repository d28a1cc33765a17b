//! What holds at every operation, whatever the test.

use super::*;

impl World {
    /// V1: nothing is unmounted under a live container.
    pub(super) fn check_op(&self, op: &Op) {
        if let Op::TearDownVolume { uid, path, .. } = op {
            assert!(self.node.running(uid).is_empty(), "{path} torn down under a running container");
        }
        // A driver is asked one thing at a time about a volume: while it lets one follow, nobody takes it away.
        if let Op::TearDownVolume { path, .. } = op {
            assert!(!self.grows.values().any(|p| p == path), "{path} is taken away while it grows");
        }
        if let Op::RemovePod { uid, .. } = op {
            let dir = format!("/pods/{uid}/");
            assert!(!self.node.volumes.keys().any(|p| p.contains(&dir)), "directories removed under a mount");
        }
    }

    /// D5: the object goes only after the network was torn down and nothing runs.
    pub(super) fn check_delete(&self, r: &ApiRequest) {
        if r.method != Method::Delete {
            return;
        }
        let Some(object) = self.api.objects.get(&r.path) else { return };
        let uid = object["metadata"]["uid"].as_str().unwrap();
        assert!(self.node.running(uid).is_empty(), "deleted while it runs");
        for s in self.node.sandboxes.values().filter(|s| s.pod.uid.as_ref() == uid) {
            assert!(self.node.torn_down.contains(&s.id), "deleted with its network up");
        }
    }

    /// D3: no device in two live pods.
    pub(super) fn check_devices(&self) {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        for c in self.node.containers.values().filter(|c| c.record.may_run()) {
            for d in &c.spec.devices {
                let uid = c.record.pod.uid.as_ref();
                let other = holders.insert(&d.host_path, uid);
                assert!(other.is_none_or(|o| o == uid), "{} is held twice", d.host_path);
            }
        }
    }
}
