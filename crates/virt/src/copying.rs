//! `virtualmachineinstances/copyvolumes`, a call of Carrack's own: a running machine copies its disks to claims.
//!
//! The snapshot controller sends it; the handler of the machine's node carries it out. Upstream has nothing of the kind: where
//! storage takes no snapshots, it takes none.

use serde::{Deserialize, Serialize};

/// The subresource.
pub(crate) const COPY_VOLUMES: &str = "copyvolumes";
/// Where a copying pod finds the claims that it writes to.
pub(crate) const DIRECTORY: &str = "/disks";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CopyVolumes {
    /// UID of the pod that waits for the copies. A copy is begun once for it.
    pub pod: String,
    /// Id of its container, without the runtime's name.
    pub container: String,
    /// Names of the machine's volumes: the copy of the first is to be in `target-0` of [`DIRECTORY`], and so on.
    pub volumes: Vec<String>,
}

impl CopyVolumes {
    /// Where the pod has the volume for the copy of the disk with this number.
    pub(crate) fn directory(number: usize) -> String {
        format!("{DIRECTORY}/target-{number}")
    }
}
