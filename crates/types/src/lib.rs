//! API types of Carrack's own (KubeVirt's groups), resource names and well-known labels.
pub mod data_volumes;
pub mod definition;
pub mod duration;
pub mod fit;
pub mod held;
pub mod json;
pub mod kubevirt;
pub mod placement;
pub mod pod;
pub mod qos;
pub mod quantity;
pub mod resource;
pub mod selector;
pub mod snapshots;
pub mod url;
pub mod volume;
pub mod well_known;
