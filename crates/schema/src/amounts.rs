//! What a pod's containers take together, by a spec that was not decoded.

use carrack_types::pod::{ResourceList, together};
use carrack_types::quantity::Quantity;
use serde_json::{Map, Value};

/// What the `limits` or the `requests` of a pod's containers come to, at the worst moment. What none of them names is not there.
pub(crate) fn of_containers(spec: &Map<String, Value>, list: &str) -> ResourceList {
    let containers = |field: &str| spec.get(field).and_then(Value::as_array).into_iter().flatten();
    let own = |container: &Value| -> ResourceList {
        let amounts = container.get("resources").and_then(|own| own.get(list)).and_then(Value::as_object);
        let amounts = amounts.into_iter().flatten();
        amounts.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?))).collect()
    };
    let is_sidecar = |container: &Value| container.get("restartPolicy").and_then(Value::as_str) == Some("Always");
    let init = containers("initContainers").map(|container| (own(container), is_sidecar(container)));
    together(init, containers("containers").map(own))
}
