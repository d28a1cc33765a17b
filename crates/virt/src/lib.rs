//! Virtual machines: the VM and VMI controllers, the node agent virt-handler, and their API subresources.
//!
//! Decisions are in [`controllers`] (plans over caches), in [`admission`] (pure functions of objects), and in the core of
//! [`handler`]. What touches the node (namespaces, mounts, sockets) is in the handler's shell.

pub mod admission;
pub mod api;
pub mod controllers;
mod copying;
mod exposition;
pub mod fence;
pub mod handler;
pub mod identity;
pub mod instancetype;
pub mod patches;
pub mod paths;
pub mod requests;

use carrack_engine::diff;

/// The version of KubeVirt whose API this is; its clients are told so.
pub const KUBEVIRT_VERSION: &str = "v1.9.0";
