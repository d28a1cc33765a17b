//! Snapshots of volumes that are made on the nodes, deleted when their driver has hardly begun to take them.
//!
//! ```text
//!   made ─▶ content ─▶ the driver takes it: slow
//!   deleted ─▶ content goes ─▶ and deletes it ──┴─▶ in this order, or there is one in the end of which nobody knows
//! ```
//!
//! In some runs whoever makes a content dies of it, and the content comes when the next life has read which there are:
//!
//! ```text
//!   made ─▶ content: late, and who has sent it dies ──────────────────▶ content
//!                       └─▶ next life: no content ... no content yet ──────┴─▶ deleted ─▶ the snapshots are read ─▶ and now?
//! ```

use std::time::Duration;

use carrack_engine::{ApiRequest, Method, Rng};
use carrack_types::resource::Kind as _;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::chance::between;
use crate::observer::Observer;
use crate::options::Options;
use crate::plants::Bug;
use crate::role::Role;
use crate::workload::{Act, What, claim_of, delete, local_driver};

/// The name of this part of the work.
pub(crate) const PART: &str = "snapshots";

/// The name of their claim, and of their class.
const OF: &str = "snapped";
/// The same where whoever makes their contents dies of it, and the key of the claim.
const OF_DYING: &str = "snapped-late";
const CLAIM_OF_DYING: &str = "default/snapped-late";
/// How long it takes a claim at the least to have its volume.
const BOUND: Duration = Duration::from_secs(5);
/// How long snapshots are there before they are deleted.
const LIVE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The same where contents are late.
const LIVE_LONGER: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(5));
/// How late contents are then, and how soon the next life of who has made one begins; how late it reads which snapshots there are,
/// and how late it is told what has become of contents since it has read them.
const MADE: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(2500));
const BACK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const READ: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(6));
const TOLD: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(9));

/// Whether this is part of the work, given the chance of all of it and what is planted.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    planted.is_none() && options.faults && !options.small && rng.fork("whether snapshots come and go").one_in(4)
}

/// Whether those die in a run who make contents, where there are snapshots.
pub(crate) fn kill(rng: &Rng) -> bool {
    rng.fork("whether contents kill").one_in(3)
}

fn snapshot(name: &str, of: &str) -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"volumeSnapshotClassName": of, "source": {"persistentVolumeClaimName": of}}})
}

/// A claim, and snapshots of it that come and go one after the other; `dies` says whether whoever makes their contents does.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, dies: bool, acts: &mut Vec<Act>) {
    let (of, live) = if dies { (OF_DYING, LIVE_LONGER) } else { (OF, LIVE) };
    let create = |at, resource, object| Act { at, what: What::Create { resource, object, want: None } };
    local_driver(acts);
    let class = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": of}, "driver": carrack_storage::DRIVER, "deletionPolicy": "Delete"});
    let soon = Duration::from_millis(500);
    acts.push(create(soon, VolumeSnapshotClass::resource(), class));
    acts.push(create(soon, PersistentVolumeClaim::resource(), claim_of(of, "soon")));
    for n in 0..8 + rng.below(8) {
        let name = format!("{of}{n}");
        let at = between(rng, BOUND.min(safety / 2), safety * 3 / 4);
        acts.push(create(at, VolumeSnapshot::resource(), snapshot(&name, of)));
        let gone = at + between(rng, live.0, live.1);
        acts.push(delete(gone, VolumeSnapshot::resource(), "default", &name, "volumesnapshot"));
    }
}

/// How late a request of a provisioner's life is in such a run; and, where that dies of it, how soon the next one begins.
pub(crate) fn late(
    of: (Role, u32),
    request: &ApiRequest,
    observer: &Observer,
    root: &Rng,
) -> Option<(Duration, Option<Duration>)> {
    let (Role::LocalStorage(node), life) = of else { return None };
    let path = request.path.strip_prefix("/apis/snapshot.storage.k8s.io/v1/")?;
    let (kind, query) = path.split_once('?').unwrap_or((path, ""));
    let (least, most) = match (request.method, kind, query.contains("watch=true")) {
        (Method::Post, "volumesnapshotcontents", _) => MADE,
        (Method::Get, "volumesnapshots", false) => READ,
        (Method::Get, "volumesnapshotcontents", true) => TOLD,
        _ => return None,
    };
    observer.get("claim", CLAIM_OF_DYING)?;
    let mut rng = root.fork(&format!("{kind} of node{node}'s provisioner in life {life}"));
    let delay = between(&mut rng, least, most);
    let back = (request.method == Method::Post).then(|| between(&mut rng, BACK.0, BACK.1));
    Some((delay, back))
}

#[cfg(test)]
mod tests {
    use carrack_engine::Selector;
    use carrack_types::snapshots::VolumeSnapshotContent;

    use super::*;

    #[test]
    fn contents_are_late_where_they_kill() {
        let claim = |name: &str| json!({"metadata": {"namespace": "default", "name": name}});
        let (snapshots, contents) = (VolumeSnapshot::resource(), VolumeSnapshotContent::resource());
        let list = |of| ApiRequest::list(of, &Selector::all(), 500, "");
        let watch = |of| ApiRequest::watch(of, &Selector::all(), "7", 300);
        let create = ApiRequest::create_value(&contents, "", &json!({"metadata": {"name": "c"}}));
        let (storage, other) = (Role::LocalStorage(1), Role::Controllers);
        for (role, request, of, expected, dies) in [
            (storage, create.clone(), OF_DYING, Some(MADE), true),
            (storage, create.clone(), OF, None, false),
            (other, create, OF_DYING, None, false),
            (storage, list(&snapshots), OF_DYING, Some(READ), false),
            (storage, watch(&snapshots), OF_DYING, None, false),
            (storage, list(&contents), OF_DYING, None, false),
            (storage, watch(&contents), OF_DYING, Some(TOLD), false),
            (storage, ApiRequest::get(&contents, "", "c"), OF_DYING, None, false),
        ] {
            let observer = Observer::of([("claim", claim(of))]);
            let found = late((role, 1), &request, &observer, &Rng::new(1));
            let is_so = match (found, expected) {
                (Some((delay, back)), Some((least, most))) => (least..=most).contains(&delay) && back.is_some() == dies,
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_so, "{role} {}: {found:?}", request.path);
        }
    }
}
