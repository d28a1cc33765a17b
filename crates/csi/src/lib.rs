//! The Container Storage Interface, v1, as far as Carrack speaks it, and the protocol by which plugins register.
//!
//! Generated from `proto/`, which follows the published protocols
//! (<https://github.com/container-storage-interface/spec/blob/master/spec.md>,
//! <https://kubernetes-csi.github.io/docs/node-driver-registrar.html>): numbers and names are theirs.
#![allow(
    missing_docs,
    clippy::all,
    clippy::disallowed_types,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

pub mod v1 {
    //! The storage protocol.
    tonic::include_proto!("csi.v1");
}

pub mod registration {
    //! Registration of plugins with a kubelet.
    tonic::include_proto!("pluginregistration");
}
