//! Calls to FlexVolume drivers, and their answers.

use carrack_flexvolume::{Capabilities, Volume};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::source;
use crate::asking;

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// `vendor/driver`.
    pub driver: String,
    /// Name of the PersistentVolume. The driver's own (`getvolumename`) is not used, nor does upstream use it.
    pub volume: String,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `init`.
    Init(String),
    /// `attach`.
    Attach {
        /// Which.
        disk: Disk,
        /// The options, as JSON.
        options: String,
        /// To which node.
        node: String,
    },
    /// `isattached`.
    IsAttached {
        /// Which.
        disk: Disk,
        /// The options, as JSON.
        options: String,
        /// To which node.
        node: String,
    },
    /// `detach`.
    Detach {
        /// Which.
        disk: Disk,
        /// From which node.
        node: String,
    },
    /// `expandvolume`.
    Expand {
        /// Which.
        disk: Disk,
        /// The options, as JSON.
        options: String,
        /// To how many bytes.
        to: u64,
        /// From how many bytes.
        from: u64,
    },
}

/// What a driver answered. What it does not support has its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What it can.
    Can(Capabilities),
    /// It is attached, as this device; empty for none.
    Attached(String),
    /// Whether it is attached; none where the driver can't tell.
    IsAttached(Option<bool>),
    /// It is detached.
    Detached,
    /// It has this many bytes now.
    Expanded(u64),
}

/// How a call ended.
pub type Outcome = Result<Answer, String>;

impl asking::Call for Call {
    type Outcome = Outcome;

    /// A driver is a program, and is not run again and again.
    fn pauses(outcome: &Outcome) -> bool {
        outcome.is_err()
    }

    /// One thing at a time happens to a volume.
    fn subject(&self) -> Option<&str> {
        match self {
            Self::Init(_) => None,
            Self::Attach { disk, .. }
            | Self::IsAttached { disk, .. }
            | Self::Detach { disk, .. }
            | Self::Expand { disk, .. } => Some(&disk.volume),
        }
    }
}

/// The questions of the controllers.
pub type Calls = asking::Calls<Call>;

/// How a volume's driver is told about it; none where its driver is another one. Secrets are for mounting alone.
pub(super) fn told(volume: &PersistentVolume) -> Option<(Disk, String)> {
    let source = source(volume)?;
    let users = source.options.clone().unwrap_or_default();
    let fs_type = source.fs_type.as_deref().unwrap_or_default();
    let read_only = source.read_only == Some(true);
    let options = Volume { name: volume.name(), fs_type, read_only, options: &users }.options([]);
    Some((Disk { driver: source.driver.clone(), volume: volume.name().to_owned() }, options))
}
