//! Calls to FlexVolume drivers, and their answers.

use std::collections::BTreeMap;

use carrack_flexvolume::{Capabilities, Volume};
use carrack_types::resource::Object as _;
use carrack_types::volume::flex_of_unique_name;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::source;
use crate::asking;

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// `vendor/driver`.
    pub driver: String,
    /// Name of the PersistentVolume, or of the pod's volume where there is none. The driver's own (`getvolumename`) is not used, nor does upstream use it.
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
    fn pauses(&self, outcome: &Outcome) -> bool {
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
    let disk = Disk { driver: source.driver.clone(), volume: volume.name().to_owned() };
    let told = options(&disk, source.fs_type.as_deref(), source.read_only, source.options.as_ref());
    Some((disk, told))
}

/// The same of a volume that a pod brings itself, by what its attachment says of it.
pub(super) fn told_inline(attachment: &VolumeAttachment) -> Option<(Disk, String)> {
    let csi = attachment.spec.source.inline_volume_spec.as_ref()?.csi.as_ref()?;
    let (driver, volume) = flex_of_unique_name(&csi.volume_handle)?;
    let disk = Disk { driver: driver.to_owned(), volume: volume.to_owned() };
    let told = options(&disk, csi.fs_type.as_deref(), csi.read_only, csi.volume_attributes.as_ref());
    Some((disk, told))
}

fn options(
    disk: &Disk,
    fs_type: Option<&str>,
    read_only: Option<bool>,
    users: Option<&BTreeMap<String, String>>,
) -> String {
    let none = BTreeMap::new();
    let read_only = read_only == Some(true);
    let volume =
        Volume { name: &disk.volume, fs_type: fs_type.unwrap_or_default(), read_only, options: users.unwrap_or(&none) };
    volume.options([])
}
