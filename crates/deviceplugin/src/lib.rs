//! The device plugin protocol, v1beta1: what kubelets and device plugins say to each other over Unix sockets.
//!
//! Generated from `proto/deviceplugin.proto`, which follows the published one
//! (<https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/>).
#![allow(
    missing_docs,
    clippy::all,
    clippy::disallowed_types,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

tonic::include_proto!("v1beta1");
