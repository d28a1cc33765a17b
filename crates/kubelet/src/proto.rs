//! The device plugin protocol, generated from `proto/deviceplugin.proto`.
#![allow(clippy::all, clippy::disallowed_types, clippy::allow_attributes_without_reason, reason = "generated code")]

tonic::include_proto!("v1beta1");
