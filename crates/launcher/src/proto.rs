//! The protocol between virt-handler and the launcher: lines of JSON on the command socket.
//!
//! ```text
//!   → {"v":1,"call":{"method":"sync","spec":{…}}}
//!   ← {"domain":{"uid":"…","phase":"Starting",…}}
//!   → {"v":1,"call":{"method":"watch"}}
//!   ← {"domain":{…}}        at once, and again after every change, the end included
//! ```
//!
//! Every answer is the whole domain: what was missed while nobody listened cannot be missing. A connection
//! takes one request after the other; after `watch` it only sends.

use crate::board::is_false;
use crate::domain::Domain;
use crate::spec::MachineSpec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Raised when a request or an answer changes its meaning.
pub const VERSION: u32 = 1;

/// How the answer to a request begins that is not understood, such as one of another version's handler.
pub const NOT_A_REQUEST: &str = "not a request";

/// NoCloud data is most of a specification; KubeVirt's own bound on it is far below this.
pub const LINE_LIMIT_BYTES: usize = 4 << 20;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub v: u32,
    /// What to do.
    pub call: Call,
}

/// What virt-handler can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "camelCase")]
pub enum Call {
    /// Run this machine. For a machine that has been started it does nothing.
    Sync {
        /// The machine.
        spec: Box<MachineSpec>,
    },
    /// Press the power button; before a machine was started, end the launcher. Can be repeated.
    Shutdown,
    /// End the machine now.
    Kill,
    /// Stop the processors.
    Pause,
    /// Let the processors go on.
    Unpause,
    /// Press the reset button.
    Reset,
    /// Press the power button, and start again once the guest has shut down.
    SoftReboot,
    /// Write a picture of the screen, as PNG, to [`crate::Layout::screenshot`] of this name.
    Screenshot {
        /// Letters and digits.
        name: String,
        /// The pointer is moved before, so that a screen which is dark for want of use is not.
        #[serde(default, skip_serializing_if = "is_false")]
        move_cursor: bool,
    },
    /// Begin to copy disks to qcow2 files in these directories, as they are now; see [`crate::receive`]. A copy that was
    /// begun under this id is not begun again. The directories are needed until this is answered.
    Copy {
        /// Whose copy it is.
        id: String,
        /// What is copied, and where to. Somebody waits in the first directory.
        disks: Vec<CopiedDisk>,
    },
    /// Only answer.
    Status,
    /// Answer, and again after every change.
    Watch,
}

/// A disk that is copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopiedDisk {
    /// The disk's name, which is its volume's.
    pub volume: String,
    /// Where the copy is to be, as the launcher sees it.
    pub directory: PathBuf,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Response {
    /// The domain after what was asked for.
    Domain(Domain),
    /// It was not done; why.
    Error(String),
}
