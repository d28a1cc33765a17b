//! What the node's own driver does about claims that ask for more: ControllerExpandVolume, and the rest on its node.

use carrack_engine::Key;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::calls::{Answer, Call, Calls};
use super::is_here;
use crate::asking::ANOTHER_ANSWER;
use crate::resize::Enlarge;

const NAME: &str = "carrack-local-resizer";

/// The driver of a node.
pub(super) struct Local {
    pub node: String,
    pub calls: Calls,
}

impl Enlarge for Local {
    fn name(&self) -> &'static str {
        NAME
    }
    fn owns(&self, volume: &PersistentVolume) -> bool {
        is_here(volume, &self.node)
    }
    fn enlarge(&self, key: &Key, volume: &PersistentVolume, to: u64, _: u64) -> Option<Result<u64, String>> {
        let csi = volume.spec.as_ref().and_then(|s| s.csi.as_ref());
        let handle = csi.map(|c| c.volume_handle.clone()).unwrap_or_default();
        Some(match self.calls.ask(NAME, key, Call::Expand(handle, to))? {
            Ok(Answer::Expanded { bytes, .. }) => Ok(bytes),
            Ok(_) => Err(ANOTHER_ANSWER.to_owned()),
            Err(e) => Err(e.message),
        })
    }
    fn on_node(&self, _: &Key, _: &PersistentVolume) -> Option<Result<bool, String>> {
        Some(Ok(true))
    }
}
