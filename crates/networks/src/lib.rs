//! Pods' networks: the pod network ([`pod_network`]), and further ones by the interface that the Network Plumbing Working Group
//! has written down and Multus made known: a pod's annotation names NetworkAttachmentDefinitions, and each gives the pod another
//! interface.
//!
//! ```text
//!   containerd ─ADD─▶ carrack-networks                           (the conflist of the pod network)
//!                        ├─▶ pod network: address on disk, links, host ports
//!                        │ annotation of the pod ──▶ selections
//!                        │ API: NetworkAttachmentDefinitions ──▶ configurations
//!                        │ record on disk, before anything is made
//!                        ├─ADD─▶ the plugins of each further network: bridge, macvlan, ptp, …
//!                        └─▶ annotation with the networks' status
//!   containerd ─DEL─▶ carrack-networks: record and address alone say what to undo; no API server is needed
//! ```
//!
//! It is a CNI plugin and not a part of the kubelet, so that the runtime's own promises hold for it: a sandbox whose ADD fails
//! is undone by a DEL, and is not gone before its DEL has succeeded. Real Multus does the same as a plugin in the pod network's
//! place; where that is what the runtime calls ([`plugin`]), this one does nothing.
//!
//! [`selection`], [`config`] and [`status`] are pure. [`record`] keeps what was made, [`invoke`] runs plugins, [`plugin`] is the
//! program, and [`loopback`] the one that containerd calls for a sandbox's own link.

pub mod config;
pub mod definition;
pub mod invoke;
pub mod loopback;
pub mod plugin;
pub mod pod_network;
pub mod record;
pub mod selection;
pub mod status;

/// What the program is called in the conflist, and beside the other plugins.
pub const PLUGIN: &str = "carrack-networks";

/// A pod's annotation with the networks that it wants.
pub const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// A pod's annotation with what became of them.
pub const STATUS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";

/// A pod's annotation with why it has not got them; gone once it has.
pub const FAILURE_ANNOTATION: &str = "networks.carrack.io/failure";
