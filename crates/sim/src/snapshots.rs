//! Snapshots of volumes that are made on the nodes, deleted when their driver has hardly begun to take them.
//!
//! ```text
//!   made ─▶ content ─▶ the driver takes it: slow
//!   deleted ─▶ content goes ─▶ and deletes it ──┴─▶ in this order, or there is one in the end of which nobody knows
//! ```

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::chance::between;
use crate::options::Options;
use crate::plants::Bug;
use crate::workload::{Act, What, claim_of, delete, local_driver};

/// The name of this part of the work.
pub(crate) const PART: &str = "snapshots";

/// The name of their claim, and of their class.
const OF: &str = "snapped";
/// How long it takes a claim at the least to have its volume.
const BOUND: Duration = Duration::from_secs(5);
/// How long snapshots are there before they are deleted.
const LIVE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Whether this is part of the work, given the chance of all of it and what is planted.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    planted.is_none() && options.faults && !options.small && rng.fork("whether snapshots come and go").one_in(4)
}

fn snapshot(name: &str) -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"volumeSnapshotClassName": OF, "source": {"persistentVolumeClaimName": OF}}})
}

/// A claim, and snapshots of it that come and go one after the other.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let create = |at, resource, object| Act { at, what: What::Create { resource, object, want: None } };
    local_driver(acts);
    let class = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": OF}, "driver": carrack_storage::DRIVER, "deletionPolicy": "Delete"});
    let soon = Duration::from_millis(500);
    acts.push(create(soon, VolumeSnapshotClass::resource(), class));
    acts.push(create(soon, PersistentVolumeClaim::resource(), claim_of(OF, "soon")));
    for n in 0..8 + rng.below(8) {
        let name = format!("{OF}{n}");
        let at = between(rng, BOUND.min(safety / 2), safety * 3 / 4);
        acts.push(create(at, VolumeSnapshot::resource(), snapshot(&name)));
        let gone = at + between(rng, LIVE.0, LIVE.1);
        acts.push(delete(gone, VolumeSnapshot::resource(), "default", &name, "volumesnapshot"));
    }
}
