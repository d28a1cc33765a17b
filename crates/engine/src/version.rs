//! Which release of Kubernetes this is: what every part of it says where it is asked.

/// The major version, as `/version` says it.
pub const MAJOR: &str = "1";
/// The minor version, which clients compare with their own.
pub const MINOR: &str = "36";
/// The Kubernetes release whose API this is, and which server it is: servers and nodes give the same text, so that no client sees a
/// skew where there is none.
pub const GIT_VERSION: &str = concat!("v1.36.1+carrack.", env!("CARGO_PKG_VERSION"));
