//! Somebody says of a node that is ready that it is out of service: by mistake, or since the taint was left there when the node
//! came back. Guests run there, and go on.
//!
//! Of a node that is not ready the taint is an operator's word, which counts whatever is true. So this is there where nothing
//! fails by itself, and no node that lives is ever taken for one that does not.

use std::time::Duration;

use carrack_engine::Rng;
use serde_json::{Value, json};

use crate::chance::between;
use crate::options::Options;
use crate::plants::Bug;
use crate::role::node_name;
use crate::workload::{Act, taint};

/// The part of the work.
pub(crate) const PART: &str = "misplaced taints";
/// How long such a taint stays, and how long none is there then, at the least and at the most.
const STAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// How often it is put there at the most.
const TIMES: usize = 4;

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    !options.faults && planted.is_none() && rng.fork("whether taints are misplaced").one_in(2)
}

/// The first node is tainted and left alone by turns, from when machines may run on it.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let mut at = between(rng, safety / 4, safety / 3);
    for _ in 0..TIMES {
        if at + STAYS.1 > safety {
            return;
        }
        // Nobody is evicted for it: what the guests of the node come to is the taint's doing alone.
        let out = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
        acts.push(taint(at, node_name(1), &out));
        at += between(rng, STAYS.0, STAYS.1);
        acts.push(taint(at, node_name(1), &Value::Null));
        at += between(rng, STAYS.0, STAYS.1);
    }
}
