//! What FlexVolume drivers do about claims that ask for more (pkg/volume/flexvolume/expander.go).

use carrack_engine::Key;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::calls::{Answer, Call, Calls, told};
use super::source;
use crate::asking::ANOTHER_ANSWER;
use crate::resize::Enlarge;

const NAME: &str = "flexvolume-expander";

/// All of them.
pub(super) struct Flex(pub Calls);

impl Enlarge for Flex {
    fn name(&self) -> &'static str {
        NAME
    }
    fn owns(&self, volume: &PersistentVolume) -> bool {
        source(volume).is_some()
    }
    fn enlarge(&self, key: &Key, volume: &PersistentVolume, to: u64, from: u64) -> Option<Result<u64, String>> {
        let (disk, options) = told(volume)?;
        Some(match self.0.ask(NAME, key, Call::Expand { disk, options, to, from })? {
            Ok(Answer::Expanded(bytes)) => Ok(bytes),
            Ok(_) => Err(ANOTHER_ANSWER.to_owned()),
            Err(error) => Err(error),
        })
    }
    fn on_node(&self, key: &Key, volume: &PersistentVolume) -> Option<Result<bool, String>> {
        let driver = source(volume)?.driver.clone();
        if volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) == Some("Block") {
            return Some(Ok(false));
        }
        Some(match self.0.ask(NAME, key, Call::Init(driver))? {
            Ok(Answer::Can(can)) => Ok(can.requires_fs_resize),
            Ok(_) => Err(ANOTHER_ANSWER.to_owned()),
            Err(error) => Err(error),
        })
    }
}
