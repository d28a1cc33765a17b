//! What a pod asks of GPUs, read from its containers.
//!
//! Fewer than 100 cores are a *share* of one GPU, with memory; 100, 200, … are whole GPUs, whose memory comes along.

use carrack_types::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::names::{CORES, Names};

/// A container of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// An init container, by its number in `spec.initContainers`.
    Init(usize),
    /// A container, by its number in `spec.containers`.
    Main(usize),
}

/// What a container asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A part of one GPU.
    Share {
        /// Hundredths of its cores, 1 to 99.
        cores: u32,
        /// Units of its memory.
        memory: u64,
    },
    /// This many whole GPUs.
    Whole(usize),
}

impl Want {
    /// How many GPUs it is on.
    #[must_use]
    pub fn gpus(self) -> usize {
        match self {
            Self::Share { .. } => 1,
            Self::Whole(count) => count,
        }
    }
}

/// A container with what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Which container.
    pub slot: Slot,
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub want: Want,
    /// It runs to its end before the containers start. (An init container that is restarted always runs beside them.)
    pub before: bool,
}

/// What a pod asks for: its containers that ask for something.
pub type Demand = Vec<Asking>;

/// More GPUs than this has no node.
pub const MAX_GPUS: usize = 1024;

/// Reads what a pod asks for; nothing when it has no need of GPUs.
///
/// # Errors
/// It asks for what no node can give.
pub fn of(pod: &Pod, names: &Names) -> Result<Demand, String> {
    let Some(spec) = &pod.spec else { return Ok(Demand::new()) };
    let inits = spec.init_containers.iter().flatten().enumerate().map(|(n, c)| {
        let before = c.restart_policy.as_deref() != Some("Always");
        (Slot::Init(n), c, before)
    });
    let mains = spec.containers.iter().enumerate().map(|(n, c)| (Slot::Main(n), c, false));
    let mut demand = Demand::new();
    for (slot, container, before) in inits.chain(mains) {
        let said = |what: &str| format!("container {} {what}", container.name);
        let cores = amount(container, &names.core).map_err(|why| said(&why))?;
        let memory = amount(container, &names.memory).map_err(|why| said(&why))?;
        let whole = u64::from(CORES);
        let want = match (cores, memory) {
            (0, 0) => continue,
            (0, _) => return Err(said(&format!("asks for {} without {}", names.memory, names.core))),
            (1.., 0) if cores < whole => {
                return Err(said(&format!("asks for a part of a GPU without {}", names.memory)));
            }
            _ if cores < whole => {
                let cores = u32::try_from(cores).map_err(|_| said("asks for too much"))?;
                Want::Share { cores, memory }
            }
            _ if cores % whole != 0 => {
                return Err(said(&format!("asks for {cores} of {}: more than 100 come in hundreds", names.core)));
            }
            _ => match usize::try_from(cores / whole) {
                Ok(count) if count <= MAX_GPUS => Want::Whole(count),
                _ => return Err(said(&format!("asks for more than {MAX_GPUS} GPUs"))),
            },
        };
        demand.push(Asking { slot, name: container.name.clone(), want, before });
    }
    Ok(demand)
}

/// What a container is limited to; requests and limits of such resources are the same.
fn amount(container: &Container, resource: &str) -> Result<u64, String> {
    let Some(resources) = &container.resources else { return Ok(0) };
    let named = [&resources.limits, &resources.requests].into_iter().flatten().find_map(|m| m.get(resource));
    let Some(text) = named else { return Ok(0) };
    let quantity = Quantity::parse(&text.0).map_err(|_| format!("asks for {:?} of {resource}", text.0))?;
    if quantity.is_negative() || !quantity.is_whole() {
        return Err(format!("asks for {} of {resource}: whole numbers only", text.0));
    }
    u64::try_from(quantity.units()).map_err(|_| format!("asks for {} of {resource}", text.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(spec: serde_json::Value, expected: Result<Vec<(Slot, Want, bool)>, &str>) {
        let pod: Pod = carrack_types::json::from_value(json!({"spec": spec})).expect("a pod");
        let found = of(&pod, &Names::default());
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                let found: Vec<_> = found.iter().map(|a| (a.slot, a.want, a.before)).collect();
                assert_eq!(found, *expected, "{spec}");
            }
            (Err(found), Err(part)) => assert!(found.contains(part), "{spec}: {found}"),
            _ => panic!("{spec}: {found:?}"),
        }
    }

    #[test]
    fn shares_wholes_and_nonsense() {
        let c = |cores: &str, memory: &str| {
            let mut limits = serde_json::Map::new();
            for (name, amount) in [("tencent.com/vcuda-core", cores), ("tencent.com/vcuda-memory", memory)] {
                if !amount.is_empty() {
                    limits.insert(name.into(), amount.into());
                }
            }
            json!({"name": "c", "resources": {"limits": limits}})
        };
        let share = |cores, memory| Want::Share { cores, memory };
        check(json!({"containers": [{"name": "c"}]}), Ok(vec![]));
        check(json!({"containers": [c("50", "4")]}), Ok(vec![(Slot::Main(0), share(50, 4), false)]));
        check(json!({"containers": [c("200", "")]}), Ok(vec![(Slot::Main(0), Want::Whole(2), false)]));
        check(json!({"containers": [c("100", "7")]}), Ok(vec![(Slot::Main(0), Want::Whole(1), false)]));
        check(
            json!({"containers": [c("", ""), c("1", "1")], "initContainers": [c("100", "")]}),
            Ok(vec![(Slot::Init(0), Want::Whole(1), true), (Slot::Main(1), share(1, 1), false)]),
        );
        let mut sidecar = c("5", "1");
        sidecar["restartPolicy"] = "Always".into();
        check(
            json!({"containers": [c("", "")], "initContainers": [sidecar]}),
            Ok(vec![(Slot::Init(0), share(5, 1), false)]),
        );
        check(json!({"containers": [c("150", "1")]}), Err("hundreds"));
        check(json!({"containers": [c("50", "")]}), Err("without tencent.com/vcuda-memory"));
        check(json!({"containers": [c("", "5")]}), Err("without tencent.com/vcuda-core"));
        check(json!({"containers": [c("-1", "5")]}), Err("whole numbers"));
        check(json!({"containers": [c("500m", "5")]}), Err("whole numbers"));
        check(json!({"containers": [c("1e18", "")]}), Err("more than 1024"));
        check(json!({"containers": [c("x", "5")]}), Err("\"x\""));
    }
}
