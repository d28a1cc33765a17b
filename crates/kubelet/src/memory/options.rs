//! What the configuration says of memory (`memoryManagerPolicy`, `reservedMemory`).

use std::collections::BTreeMap;

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::{MAX_NODES, MEMORY, Machine, Sizes};

/// Whether containers have memory of NUMA nodes kept for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None has.
    #[default]
    None,
    /// Containers of Guaranteed pods have.
    Static,
}

impl Policy {
    /// By its name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "None" => Self::None,
            "Static" => Self::Static,
            _ => return None,
        })
    }
    /// Its name there, and in the checkpoint.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Static => "Static",
        }
    }
}

/// What the memory manager is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Policy.
    pub policy: Policy,
    /// What no pod has, by NUMA node.
    pub reserved: BTreeMap<u32, Sizes>,
}

/// Whether something is a kind of memory.
fn is_kind(name: &str) -> bool {
    name == MEMORY || name.strip_prefix("hugepages-").is_some_and(|size| size.parse::<Quantity>().is_ok())
}

/// Adds what is reserved of a NUMA node, in quantities, to what is reserved so far (upstream's
/// `validateReservedMemoryConfiguration`).
///
/// # Errors
/// What is no amount, of no kind of memory, nothing, or said twice.
pub fn reserve(reserved: &mut BTreeMap<u32, Sizes>, node: u32, limits: &BTreeMap<String, Value>) -> Result<(), String> {
    for (kind, amount) in limits {
        let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        let of = || format!("reservedMemory of NUMA node {node}");
        if !is_kind(kind) {
            return Err(format!("{}: {kind:?} is neither memory nor hugepages of a size", of()));
        }
        let amount = text.parse::<Quantity>().ok().filter(|amount| amount.is_whole());
        let bytes = amount.and_then(|amount| u64::try_from(amount.units()).ok());
        let bytes = bytes.ok_or_else(|| format!("{}: {text:?} is no number of bytes", of()))?;
        if bytes == 0 {
            return Err(format!("{}: {kind} must not be zero", of()));
        }
        if reserved.entry(node).or_default().insert(kind.clone(), bytes).is_some() {
            return Err(format!("{}: {kind} is there twice", of()));
        }
    }
    Ok(())
}

impl MemoryConfig {
    /// Whether it goes with a machine, of which the node keeps so much back in all (upstream's `validateReservedMemory`).
    pub(super) fn check(&self, machine: &Machine, kept_back: &Sizes) -> Result<(), String> {
        if machine.is_empty() {
            return Err("memoryManagerPolicy Static: the machine does not tell what memory its NUMA nodes have".into());
        }
        if machine.len() > MAX_NODES {
            return Err(format!(
                "memoryManagerPolicy Static is for machines with at most {MAX_NODES} NUMA nodes; there are {}",
                machine.len()
            ));
        }
        let mut sums: BTreeMap<&str, u128> = kept_back.keys().map(|kind| (kind.as_str(), 0)).collect();
        for (node, sizes) in &self.reserved {
            let Some(has) = machine.get(node) else {
                return Err(format!("reservedMemory names NUMA node {node}, which is not there"));
            };
            for (kind, bytes) in sizes {
                let most = has.get(kind).copied().unwrap_or(0);
                if *bytes > most {
                    return Err(format!(
                        "reservedMemory: {kind} of NUMA node {node}: it has {most} bytes, not {bytes}"
                    ));
                }
                *sums.entry(kind).or_default() += u128::from(*bytes);
            }
        }
        for (kind, sum) in &sums {
            let kept = kept_back.get(*kind).copied().unwrap_or(0);
            if *sum != u128::from(kept) {
                return Err(format!(
                    "reservedMemory of all NUMA nodes comes to {sum} bytes of {kind}; it must be {kept}, as kubeReserved, \
                     systemReserved and the hard eviction threshold come to"
                ));
            }
        }
        if sums.get(MEMORY).is_none_or(|sum| *sum == 0) {
            return Err("memoryManagerPolicy Static needs reservedMemory".into());
        }
        Ok(())
    }
}
