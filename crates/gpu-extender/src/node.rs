//! The GPUs of a node: from the annotation that the node's plugin writes, or, where there is none, from the node's capacity.
//!
//! The annotation `<prefix>/gpu-devices` is a list in the order of the GPUs' numbers:
//!
//! ```json
//! [{"uuid": "GPU-…", "memory": 64, "near": ["numa0", "switch1"]}, {"uuid": "GPU-…", "memory": 64, "broken": true}]
//! ```
//!
//! `memory` is in units of the resource `<prefix>/vcuda-memory`. `near` says where a GPU sits, from the outside in: two
//! GPUs are the nearer, the more of it they have in common from the left. What is further in than [`MAX_NEAR`] is not read.

use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

use crate::demand::MAX_GPUS;
use crate::names::{CORES, Names};

/// How deep it is believed where a GPU sits. Machines have a handful of levels; each question about the node goes through
/// all of them.
pub const MAX_NEAR: usize = 16;

/// A GPU, as a node's annotation has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Its UUID; empty where nobody said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// Units of memory.
    pub memory: u64,
    /// Where it sits, from the outside in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
    /// It is broken: nothing new comes onto it.
    #[serde(skip_serializing_if = "is_false")]
    pub broken: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What a node has of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Its GPUs by number.
    pub gpus: Vec<Gpu>,
    /// Cores that may be in use in all: fewer than the GPUs have when some of them are broken.
    pub cores: u64,
}

/// Reads it. Whatever a node claims, it has no more than [`MAX_GPUS`], and none sits deeper than [`MAX_NEAR`].
#[must_use]
pub fn of(node: &Node, names: &Names) -> Shape {
    let status = node.status.as_ref();
    let read = |allocatable: bool, name: &str| -> Option<u64> {
        let status = status?;
        let list = if allocatable { &status.allocatable } else { &status.capacity };
        let quantity = Quantity::parse(&list.as_ref()?.get(name)?.0).ok()?;
        u64::try_from(quantity.units()).ok()
    };
    let capacity = read(false, &names.core).or_else(|| read(true, &names.core)).unwrap_or(0);
    let cores = read(true, &names.core).unwrap_or(capacity);
    let memory = read(false, &names.memory).or_else(|| read(true, &names.memory)).unwrap_or(0);
    let count = capacity / u64::from(CORES);
    let count = usize::try_from(count).unwrap_or(MAX_GPUS).min(MAX_GPUS);
    let said = node.annotation(&names.devices).map(serde_json::from_str::<Vec<Gpu>>);
    let gpus = match said {
        // Who says more GPUs than there are cores for is not believed.
        Some(Ok(mut gpus)) if gpus.len() <= count => {
            for gpu in &mut gpus {
                gpu.near.truncate(MAX_NEAR);
            }
            gpus
        }
        Some(other) => {
            let why = other.err().map_or_else(|| "more GPUs than capacity".to_owned(), |e| e.to_string());
            tracing::warn!(node = node.name(), why, "its annotation of GPUs cannot be used");
            equal(count, memory)
        }
        None => equal(count, memory),
    };
    Shape { gpus, cores }
}

fn equal(count: usize, memory: u64) -> Vec<Gpu> {
    let each = u64::try_from(count).ok().and_then(|count| memory.checked_div(count)).unwrap_or(0);
    vec![Gpu { memory: each, ..Gpu::default() }; count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(annotation: Option<&str>, capacity: (&str, &str), allocatable: &str, memories: &[u64], cores: u64) {
        let annotations = annotation.map(|a| json!({"tencent.com/gpu-devices": a}));
        let node: Node =
            carrack_types::json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}, "status": {
            "capacity": {"tencent.com/vcuda-core": capacity.0, "tencent.com/vcuda-memory": capacity.1},
            "allocatable": {"tencent.com/vcuda-core": allocatable}}}))
            .expect("a node");
        let shape = of(&node, &Names::default());
        assert_eq!(shape.gpus.iter().map(|g| g.memory).collect::<Vec<_>>(), memories, "{annotation:?} {capacity:?}");
        assert_eq!(shape.cores, cores);
    }

    #[test]
    fn shapes_of_nodes() {
        check(None, ("200", "33"), "200", &[16, 16], 200);
        check(None, ("200", "32"), "100", &[16, 16], 100);
        check(None, ("99", "32"), "99", &[], 99);
        check(None, ("0", "32"), "0", &[], 0);
        check(None, ("-5", "x"), "0", &[], 0);
        check(Some(r#"[{"memory": 8}, {"memory": 24, "near": ["a"]}]"#), ("200", "32"), "200", &[8, 24], 200);
        check(Some(r#"[{"memory": 8}, {"memory": 8}, {"memory": 8}]"#), ("200", "32"), "200", &[16, 16], 200);
        check(Some("garbage"), ("100", "32"), "100", &[32], 100);
        let node: Node =
            carrack_types::json::from_value(json!({"status": {"capacity": {"tencent.com/vcuda-core": "9e18"}}}))
                .expect("a node");
        assert_eq!(of(&node, &Names::default()).gpus.len(), MAX_GPUS);
        assert_eq!(of(&Node::default(), &Names::default()), Shape::default());
        for (levels, expected) in [(0, 0), (MAX_NEAR, MAX_NEAR), (60_000, MAX_NEAR)] {
            let said = json!([{"memory": 8, "near": vec!["a"; levels]}]).to_string();
            let node = json!({"metadata": {"annotations": {"tencent.com/gpu-devices": said}},
                "status": {"capacity": {"tencent.com/vcuda-core": "100"}}});
            let shape = of(&serde_json::from_value(node).expect("a node"), &Names::default());
            assert_eq!(shape.gpus[0].near.len(), expected);
        }
    }
}
