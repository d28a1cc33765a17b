//! Manifests of static pods on a node's disk.
//!
//! ```text
//!   written ─▶ there, until it is changed or removed ─▶ a reading does not find it ─▶ its pod may end, for good
//! ```
//!
//! They outlive agents and power, and go with the machine. The kubelet of a node on which somebody has put one reads them.

use std::collections::{BTreeMap, BTreeSet};

use carrack_kubelet::spec::manifest::{self, Manifest};
use k8s_openapi::api::core::v1::Pod;

use super::Node;
use crate::role::node_name;

/// Where they are.
pub(crate) const DIRECTORY: &str = "/etc/kubernetes/manifests";

/// Those of a node.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// By their paths.
    files: BTreeMap<String, Manifest>,
    /// The kubelet is to read them.
    are_read: bool,
    /// UIDs of the pods that the last reading has found.
    found: BTreeSet<String>,
    /// UIDs of pods that a reading has not found any more: whoever heard of that ends them, also where they are there again.
    missed: BTreeSet<String>,
}

impl Manifests {
    /// The pods whose manifests are there.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.files.values().filter_map(|file| file.pod.as_deref().ok())
    }

    /// Whether the kubelet is to read them.
    pub(crate) fn are_read(&self) -> bool {
        self.are_read
    }

    /// Whether a pod is of one that is there.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.pods().any(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    /// UIDs of those that are there.
    fn uids(&self) -> BTreeSet<String> {
        self.pods().filter_map(|pod| pod.metadata.uid.clone()).collect()
    }

    /// UIDs of those whose pods nobody may end.
    fn kept(&self) -> BTreeSet<String> {
        self.uids().difference(&self.missed).cloned().collect()
    }
}

impl Node {
    /// Somebody writes a manifest.
    pub(crate) fn write_manifest(&mut self, name: &str, text: &str) {
        let path = format!("{DIRECTORY}/{name}.json");
        let pod = manifest::read(text.as_bytes(), &path, &node_name(self.number)).map(Box::new);
        self.manifests.are_read = true;
        self.manifests.files.insert(path.clone(), Manifest { path, pod });
        self.runtime.of_manifests = self.manifests.kept();
    }

    /// Somebody removes one.
    pub(crate) fn remove_manifest(&mut self, name: &str) {
        self.manifests.files.remove(&format!("{DIRECTORY}/{name}.json"));
        self.runtime.of_manifests = self.manifests.kept();
    }

    /// The kubelet reads all of them.
    pub(super) fn read_manifests(&mut self) -> Vec<Manifest> {
        let found = self.manifests.uids();
        let before = std::mem::replace(&mut self.manifests.found, found);
        let missing: Vec<String> = before.difference(&self.manifests.found).cloned().collect();
        self.manifests.missed.extend(missing);
        self.runtime.of_manifests = self.manifests.kept();
        self.manifests.files.values().cloned().collect()
    }

    /// They go with the machine.
    pub(super) fn forget_manifests(&mut self) {
        self.manifests = Manifests::default();
        self.runtime.of_manifests.clear();
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::{Rng, Time};

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    const TEXT: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"},
        "spec": {"containers": [{"name": "main", "image": "sim/run"}]}}"#;

    #[test]
    fn a_pod_may_end_that_a_reading_has_not_found() {
        let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        assert!(!node.manifests.are_read() && node.read_manifests().is_empty());
        node.write_manifest("one", TEXT);
        let uid = node.manifests.pods().next().and_then(|pod| pod.metadata.uid.clone()).expect("a pod");
        assert!(node.manifests.are_read() && node.manifests.has(&uid));
        // Who puts it back before anybody looks has changed nothing.
        for (is_read_meanwhile, kept) in [(false, true), (true, false)] {
            assert_eq!(node.read_manifests().len(), 1);
            node.remove_manifest("one");
            assert!(!node.manifests.has(&uid) && node.runtime.of_manifests.is_empty());
            if is_read_meanwhile {
                assert!(node.read_manifests().is_empty());
            }
            node.write_manifest("one", TEXT);
            assert_eq!((node.manifests.has(&uid), node.runtime.of_manifests.contains(&uid)), (true, kept));
        }
        node.forget_manifests();
        assert!(!node.manifests.are_read() && !node.manifests.has(&uid));
    }
}
