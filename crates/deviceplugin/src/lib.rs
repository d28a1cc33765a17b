//! The protocols between kubelets, device plugins and those who watch them, over Unix sockets.
//!
//! At the top: device plugins, v1beta1, generated from `proto/deviceplugin.proto`, which follows the published one
//! (<https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/>).
//! [`podresources`]: which pod holds what, v1; [`podresources_v1alpha1`]: the same as it was before.
//! [`testing`]: a plugin that misbehaves as it is told.

#[allow(
    missing_docs,
    clippy::all,
    clippy::disallowed_types,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
mod generated {
    tonic::include_proto!("v1beta1");
}

pub use generated::*;

/// The pod resources protocol, v1: what monitors ask a kubelet, generated from `proto/podresources.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::disallowed_types,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The pod resources protocol, v1alpha1: what monitors asked before v1, generated from `proto/podresources_v1alpha1.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::disallowed_types,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod podresources_v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

#[cfg(feature = "testing")]
pub mod testing;

/// Name of the socket at which a kubelet takes registrations, in the plugins' directory.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// The version of the protocol.
pub const VERSION: &str = "v1beta1";
