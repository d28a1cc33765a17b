//! What was written into pods' statuses last, until the watch shows it.
//!
//! A pod that waits is looked at again with each event that may help it. Until its own status is seen, each look would write
//! the same words once more.
//!
//! A write rests on the pod as it is known. Where that is out of date, what there is to say is kept until the watch shows what
//! the pod is now.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::fnv1a;
use carrack_types::resource::Object as _;

use crate::Pod;

/// What is said of a pod that waits.
#[derive(Debug)]
pub(super) struct Words {
    /// The pod's UID.
    pub uid: Arc<str>,
    /// Its namespace and name.
    pub path: String,
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// How often the pod had been popped by then.
    pub attempts: u32,
    /// The revision of the pod on which the write rests.
    pub rests_on: Option<String>,
}

/// What was said, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By the path of a pod, a digest of what was said of which form of it.
    said: BTreeMap<String, u64>,
    /// By UID, what is to be said once more: the pod was another one already when it was to be written.
    unsaid: BTreeMap<Arc<str>, Words>,
}

impl Told {
    /// Whether this was not said yet of the pod as it is; from now on it was.
    pub(super) fn is_news(&mut self, path: &str, pod: &Pod, words: [&str; 3]) -> bool {
        let revision = pod.meta().resource_version.as_deref().unwrap_or_default();
        let digest = fnv1a([&[pod.uid(), revision], &words[..]].concat().join("\n").as_bytes());
        self.said.insert(path.to_owned(), digest) != Some(digest)
    }
    /// A pod waits no more, so nothing is to be said of it.
    pub(super) fn placed(&mut self, pod: &Pod) {
        if !self.said.is_empty() {
            self.said.remove(&super::path_of(pod));
        }
    }
    /// Nobody knows whether it was written, or the pod is gone.
    pub(super) fn forget(&mut self, path: &str) {
        self.said.remove(path);
    }
    /// Something is to be said of a pod once it is known as it is.
    pub(super) fn keep_unsaid(&mut self, words: Words) {
        self.unsaid.insert(words.uid.clone(), words);
    }
    /// What was to be said of a pod is said now, or is not to be said any more.
    pub(super) fn take_unsaid(&mut self, uid: &str) -> Option<Words> {
        self.unsaid.remove(uid)
    }
    /// Others say what there is to say from now on.
    pub(super) fn forget_unsaid(&mut self) {
        self.unsaid.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_are_said_once() {
        let pod = |revision: &str| {
            let pod = serde_json::json!({"metadata": {"resourceVersion": revision}});
            carrack_types::json::from_value::<Pod>(pod).expect("a pod")
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
