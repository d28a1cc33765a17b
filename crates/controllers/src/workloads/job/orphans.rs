//! Pods that hold the finalizer and belong to nobody: their Job was deleted and left them behind, or somebody took them from it.
//!
//! They have keys of their own, which no Job can have. Follows upstream's `syncOrphanPod` (pkg/controller/job): a pod that
//! something else controls keeps the finalizer, which is then that one's concern.

use carrack_engine::{Key, Plan, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{let_go, tracked};

/// What the name in the key of such a pod begins with. No name of an object has a slash.
const PREFIX: &str = "orphan/";

fn is_orphan(pod: &Pod) -> bool {
    tracked(pod) && pod.controller_uid().is_none()
}

/// The key of such a pod; none for all others.
pub(super) fn key(pod: &Pod) -> Option<Key> {
    is_orphan(pod).then(|| Key::new(pod.namespace(), format!("{PREFIX}{}", pod.name())))
}

/// The name of the pod whose key this is.
pub(super) fn name(key: &Key) -> Option<&str> {
    key.name.strip_prefix(PREFIX)
}

/// It lets go, unless somebody took it meanwhile.
pub(super) fn plan(view: &View<'_>, namespace: &str, name: &str) -> Plan {
    match view.get::<Pod>(namespace, name) {
        Some(pod) if is_orphan(pod) => let_go(Plan::none(), pod),
        _ => Plan::none(),
    }
}
