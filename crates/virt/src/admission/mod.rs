//! Admission of virtual machines: what is completed, and what is refused with which fault.
//!
//! Everything here is a function of the object (and of chance, for a firmware UUID). Faults carry KubeVirt's field
//! paths, such as `spec.template.spec.domain.devices.disks[0].name`. What this version cannot do is refused by name
//! rather than left out in silence: a guest that asked for EFI must not find a BIOS.

mod access;
mod clone;
mod data_volumes;
mod defaults;
mod disks;
mod domain;
mod eviction;
mod firmware;
mod infer;
mod installation;
mod instancetype;
mod metadata;
mod migration;
mod networks;
mod placement;
mod plugin;
mod presets;
mod snapshot;
mod spec;
mod vm;
mod volumes;

pub use clone::{CloneAdmission, check_clone, complete_clone};
pub(crate) use clone::{operations, target_name};
pub(crate) use defaults::{DEFAULT_BUS, attach_to_pod_network, attach_volumes, fill};
pub use defaults::{complete_instance, complete_machine};
pub(crate) use domain::machine_type;
pub(crate) use instancetype::complete_matchers;
pub(crate) use metadata::{ANNOTATIONS as OWN_ANNOTATIONS, LABELS as OWN_LABELS};
pub use plugin::VirtAdmission;
pub use snapshot::{check_locked, check_restore, check_snapshot};
pub use spec::{check_instance, check_instance_spec};
pub use vm::{check_instance_update, check_machine, check_replica_set};

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Machine-readable reason, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// Path of the field.
    pub field: String,
    /// What is wrong with it, for people, without the path.
    pub message: String,
}

/// Faults found so far.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, reason: &'static str, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Fault { reason, field: field.into(), message: message.into() });
    }
    /// A value that may not be.
    pub(crate) fn invalid(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add("FieldValueInvalid", field, message);
    }
    /// A value that must be there.
    pub(crate) fn required(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add("FieldValueRequired", field, message);
    }
    /// A value that is there already.
    pub(crate) fn duplicate(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add("FieldValueDuplicate", field, message);
    }
    /// A value that names something which does not exist.
    pub(crate) fn not_found(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add("FieldValueNotFound", field, message);
    }
    /// A value that makes sense but is not served.
    pub(crate) fn unsupported(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add("FieldValueNotSupported", field, message);
    }
    /// How many were found.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
    /// All of them, in the order found.
    #[must_use]
    pub fn into_vec(self) -> Vec<Fault> {
        self.0
    }
}

/// Whether a text is a DNS label (RFC 1123).
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a DNS subdomain (RFC 1123).
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Longest serial number, characters.
const MAX_STRING: usize = 256;

/// Whether a text has only characters that serial numbers may have.
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+'))
}

/// A path in an image: absolute, to a file, with nothing relative in it.
pub(crate) fn check_path(field: &str, path: &str, faults: &mut Faults) {
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
    if path == "/" {
        faults.invalid(field, format!("{field} must not point to root"));
    } else if !path.starts_with('/') || parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
        let message = format!("{field} must be an absolute path to a file without relative components");
        faults.invalid(field, message);
    }
}

/// Whether a value is one of several; an absent one is.
pub(crate) fn is_one_of(value: Option<&str>, known: &[&str]) -> bool {
    value.is_none_or(|value| known.contains(&value))
}

#[cfg(test)]
mod tests;
