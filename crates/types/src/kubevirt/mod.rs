//! The API of `kubevirt.io`: typed kinds, and CustomResourceDefinitions made from them.
//!
//! Names, defaults and shapes are KubeVirt's (<https://kubevirt.io/api-reference/>). The types serve the
//! controllers; the API server stores JSON as it came, checked and pruned against the schemas that [`crds`] derives
//! from the same types. The groups whose kinds have no types here yet are listed in [`crd`] with open specs.

pub(crate) mod api;
pub mod clone;
pub mod crd;
pub mod devices;
pub mod domain;
mod embedded;
pub mod instancetype;
pub mod others;
pub mod quantity;
#[cfg(test)]
mod required;
mod schema;
pub mod snapshot;
pub mod vm;
pub mod vmi;
pub mod volumes;

pub use clone::{VirtualMachineClone, VirtualMachineCloneStatus};
pub use crd::crds;
pub use devices::{Devices, Disk, Interface, Network};
pub use domain::DomainSpec;
pub use others::{
    KubeVirt, VirtualMachineInstanceMigration, VirtualMachineInstancePreset, VirtualMachineInstanceReplicaSet,
};
pub use quantity::Quantity;
pub use snapshot::{VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineSnapshotContent};
pub use vm::{VirtualMachine, VirtualMachineSpec, VirtualMachineStatus, printable_status, run_strategy};
pub use vmi::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus, find_condition, phase,
    set_condition,
};
pub use volumes::Volume;
