//! Schemas as clients meet them: applied, of KubeVirt, and made at random.

mod apply;
mod common;
mod kubevirt;
mod robust;
