//! OCI images made on the spot from local files: the pause image, the launcher image, a busybox, the demo guest.
//!
//! No registry is involved. An image is described as a list of files ([`layer`]), written as an OCI image
//! layout in a tar file ([`oci`]), remembered with the inputs it was made from ([`stamp`]) so that a second
//! run does nothing, and handed to containerd ([`containerd`]).
//!
//! ```text
//!   host files ─► layer ─► oci tar ─► containerd
//!        │                    ▲
//!        └── stamp: unchanged ┘
//! ```
//!
//! The same inputs give the same bytes: times are fixed, entries sorted, owners explicit.

mod busybox;
pub mod containerd;
pub mod elf;
pub mod error;
pub mod guest;
pub mod initramfs;
mod launcher;
pub mod layer;
pub mod oci;
mod pause;
mod program;
pub mod stamp;

pub use busybox::build_busybox;
pub use error::ImageError;
pub use guest::build_demo_guest;
pub use launcher::build_virt_launcher;
pub use pause::{build_pause, pause_program};

use std::path::PathBuf;

/// The version in the images' references.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The reference of the image named `name`, such as `localhost/carrack/pause:0.1.0`.
///
/// `localhost` keeps a client from ever looking for it in a public registry.
pub fn reference(name: &str) -> String {
    format!("localhost/carrack/{name}:{VERSION}")
}

/// An image that lies ready as a tar file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The reference under which containerd will know the image.
    pub reference: String,
    /// The OCI image layout, as a tar file.
    pub tar: PathBuf,
    /// The digest of the image manifest, `sha256:…`.
    pub digest: String,
    /// Whether this call wrote the file; false when the inputs were unchanged.
    pub fresh: bool,
}
