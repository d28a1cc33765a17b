//! What becomes of pods is told before they are gone.
//!
//! ```text
//!   to go ─▶ its containers end ─▶ the API hears how ─▶ its object goes
//!                                    └─ nobody serves: it is told when somebody does, however long that takes
//! ```
//!
//! Who waits for a pod's end, such as a Job, has nothing to go by but its last words.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use carrack_types::well_known::MIRROR_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{key_of, label, terminal, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The invariant.
pub(crate) const NAME: &str = "ends-are-told";

/// With the planted bug: pods that take their time to end, one of which is mostly about to.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..12 {
        let name = format!("mortal{n}");
        let mut object = mounting(&name, 20, "scratch", "emptyDir", json!({}));
        object["spec"]["containers"][0]["env"] = json!([{"name": "STOPS_IN_S", "value": "12"}]);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        let at = between(rng, Duration::from_secs(1), safety / 8);
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        acts.push(delete(between(rng, safety / 6, safety), Pod::resource(), "default", &name, "pod"));
    }
}

/// A pod has just gone, and nobody has deleted it by force.
pub(crate) fn gone(pod: &Value, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    // Of one that had no node nothing can have run; and a node without power has told nothing to anybody.
    let is_of_node = named(nodes, text(pod, "/spec/nodeName")).is_some_and(|node| node.up);
    if is_of_node && !terminal(pod) && label(pod, "annotations", MIRROR_ANNOTATION).is_empty() {
        let (name, id, phase) = (key_of(pod), uid(pod), text(pod, "/status/phase"));
        let what = format!("{name} ({id}) is gone, and the last that was told of it is that it is {phase:?}");
        breaches.push(Breach::new(NAME, what));
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Time;

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    #[test]
    fn who_goes_has_told_how_it_ended() {
        let node = |up: bool| {
            let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
            node.up = up;
            node
        };
        for (at, phase, annotations, up, expected) in [
            ("node1", "Running", json!({}), true, true),
            ("node1", "Pending", json!({}), true, true),
            ("node1", "Failed", json!({}), true, false),
            ("node1", "Succeeded", json!({}), true, false),
            ("node1", "Running", json!({MIRROR_ANNOTATION: "of another"}), true, false),
            ("node1", "Running", json!({}), false, false),
            ("hollow-1", "Running", json!({}), true, false),
            ("", "Pending", json!({}), true, false),
        ] {
            let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": at},
                "status": {"phase": phase}});
            let mut breaches = Vec::new();
            gone(&pod, &BTreeMap::from([(1, node(up))]), &mut breaches);
            assert_eq!(!breaches.is_empty(), expected, "{pod}, power: {up}");
        }
    }
}
