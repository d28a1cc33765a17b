//! What was written into pods' statuses last, until the watch shows it.
//!
//! A pod that waits is looked at again with each event that may help it. Until its own status is seen, each look would write
//! the same words once more.

use std::collections::BTreeMap;

use carrack_engine::fnv1a;
use carrack_types::resource::Object as _;

use crate::Pod;

/// By the path of a pod, a digest of what was said of which form of it.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<String, u64>);

impl Told {
    /// Whether this was not said yet of the pod as it is; from now on it was.
    pub(super) fn is_news(&mut self, path: &str, pod: &Pod, words: [&str; 3]) -> bool {
        let revision = pod.meta().resource_version.as_deref().unwrap_or_default();
        let digest = fnv1a([&[pod.uid(), revision], &words[..]].concat().join("\n").as_bytes());
        self.0.insert(path.to_owned(), digest) != Some(digest)
    }
    /// A pod waits no more, so nothing is to be said of it.
    pub(super) fn placed(&mut self, pod: &Pod) {
        if !self.0.is_empty() {
            self.0.remove(&super::path_of(pod));
        }
    }
    /// Nobody knows whether it was written, or the pod is gone.
    pub(super) fn forget(&mut self, path: &str) {
        self.0.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_are_said_once() {
        let pod = |revision: &str| {
            let pod = serde_json::json!({"metadata": {"resourceVersion": revision}});
            serde_json::from_value::<Pod>(pod).expect("a pod")
        };
        let mut told = Told::default();
        assert!(told.is_news("ns/p", &pod("1"), ["Unschedulable", "no room", ""]));
        assert!(!told.is_news("ns/p", &pod("1"), ["Unschedulable", "no room", ""]));
        assert!(told.is_news("ns/q", &pod("1"), ["Unschedulable", "no room", ""]));
        assert!(told.is_news("ns/p", &pod("1"), ["Unschedulable", "no room", "node"]));
        // The pod is another one now, and may have lost what was written.
        assert!(told.is_news("ns/p", &pod("2"), ["Unschedulable", "no room", "node"]));
        told.forget("ns/p");
        assert!(told.is_news("ns/p", &pod("2"), ["Unschedulable", "no room", "node"]));
    }
}
