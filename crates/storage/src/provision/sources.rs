//! Claims of which snapshots are still to be taken.
//!
//! ```text
//!   VolumeSnapshot that a node has taken on ─▶ finalizer of its claim ─▶ taken, or given up ─▶ no finalizer
//! ```
//!
//! Who asks for a snapshot may delete the claim in the next moment, and means to have what was in it. So the claim, and with
//! it the volume, stays until no snapshot waits for it (`ensurePVCFinalizer` in snapshot-controller). The finalizer is this
//! driver's own: upstream's is that controller's to give and to take.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use carrack_types::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::is_here;
use super::snapshots::{is_marked, is_taken, volume_of};

const NAME: &str = "carrack-local-snapshot-sources";
/// Finalizer of a claim: a snapshot of its volume is still to be taken.
pub(super) const SOURCE: &str = "local.carrack.io/snapshot-source";

/// The controller.
pub(super) struct Sources {
    node: String,
}

impl Sources {
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned() }
    }
}

/// Whether a snapshot of a claim is still to be taken.
fn waits_for(snapshot: &VolumeSnapshot, claim: &PersistentVolumeClaim) -> bool {
    snapshot.spec.source.persistent_volume_claim_name.as_deref() == Some(claim.name())
        && is_marked(snapshot)
        && !is_taken(snapshot)
        && !snapshot.is_deleting()
}

impl Controller for Sources {
    fn name(&self) -> &'static str {
        NAME
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch::<VolumeSnapshot>(|snapshot, _| {
            let of = snapshot.spec.source.persistent_volume_claim_name.clone();
            of.map(|name| Key::new(snapshot.namespace(), name)).into_iter().collect()
        });
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else { return Plan::none() };
        let held = claim.has_finalizer(SOURCE);
        // Where there is no volume any more, none of the nodes is the one.
        let here = volume_of(claim, view).map_or(held, |volume| is_here(volume, &self.node));
        if !here {
            return Plan::none();
        }
        let waits = view.cache::<VolumeSnapshot>().in_namespace(&key.namespace).any(|s| waits_for(s, claim));
        match (waits, held) {
            (true, false) if !claim.is_deleting() => Plan::none().with_finalizer(claim.as_ref(), SOURCE),
            (false, true) => Plan::none().without_finalizer(claim.as_ref(), SOURCE),
            _ => Plan::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Write;
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;

    /// What becomes of the claim's finalizers, if anything does.
    fn finalizers(snapshot: &Value, claim: &Value, volumes: &[Value]) -> Option<Value> {
        let caches = Caches::new()
            .with([carrack_types::json::from_value::<VolumeSnapshot>(snapshot.clone()).unwrap()])
            .with([carrack_types::json::from_value::<PersistentVolumeClaim>(claim.clone()).unwrap()])
            .with(
                volumes
                    .iter()
                    .map(|volume| carrack_types::json::from_value::<PersistentVolume>(volume.clone()).unwrap()),
            );
        let plan = Sources::new("n1").reconcile(&Key::new("ns", "c"), &caches.view(), Time::default());
        match &plan.writes[..] {
            [] => None,
            [Write::Patch { patch, .. }] => Some(patch["metadata"]["finalizers"].clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_claim_stays_until_its_snapshots_are_taken() {
        let going = || json!("2026-01-01T00:00:00Z");
        let snapshot = |change: fn(&mut Value)| {
            let mut value = json!({"metadata": {"namespace": "ns", "name": "s", "uid": "u", "resourceVersion": "1",
                    "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"],
                    "annotations": {"local.carrack.io/node": "n1"}},
                "spec": {"source": {"persistentVolumeClaimName": "c"}}});
            change(&mut value);
            value
        };
        let claim = |held: bool| {
            let finalizers = if held { json!(["other", SOURCE]) } else { json!(["other"]) };
            json!({"metadata": {"namespace": "ns", "name": "c", "uid": "cu", "finalizers": finalizers},
                "spec": {"volumeName": "pv"}})
        };
        let volume = |node: &str| {
            json!({"metadata": {"name": "pv", "uid": "pu"}, "spec": {"csi": {"driver": "local.carrack.io",
                "volumeHandle": "h"}, "claimRef": {"uid": "cu"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "local.carrack.io/node", "operator": "In", "values": [node]}]}]}}}})
        };
        let (waits, here, elsewhere, nowhere) = (snapshot(|_| ()), vec![volume("n1")], vec![volume("n2")], Vec::new());
        let (given, freed) = (Some(json!(["other", SOURCE])), Some(json!(["other"])));
        let done = snapshot(|s| s["status"] = json!({"creationTime": "2026-01-01T00:00:00Z", "readyToUse": true}));
        let given_up = snapshot(|s| s["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        let no_nodes = snapshot(|s| s["metadata"]["annotations"] = json!({}));
        let another = snapshot(|s| s["spec"]["source"]["persistentVolumeClaimName"] = json!("d"));
        let mut claim_going = claim(false);
        claim_going["metadata"]["deletionTimestamp"] = going();
        let mut claim_held_and_going = claim(true);
        claim_held_and_going["metadata"]["deletionTimestamp"] = going();
        for (what, snapshot, claim, volumes, expected) in [
            ("to be taken", &waits, claim(false), &here, given),
            ("held already", &waits, claim(true), &here, None),
            ("held, and going", &waits, claim_held_and_going.clone(), &here, None),
            ("too late", &waits, claim_going, &here, None),
            ("taken", &done, claim(true), &here, freed.clone()),
            ("taken, and the claim goes", &done, claim_held_and_going, &here, freed.clone()),
            ("given up", &given_up, claim(true), &here, freed.clone()),
            ("nobody's yet", &no_nodes, claim(false), &here, None),
            ("of another claim", &another, claim(true), &here, freed.clone()),
            ("never held", &done, claim(false), &here, None),
            ("another node's", &done, claim(true), &elsewhere, None),
            ("without a volume", &done, claim(true), &nowhere, freed),
            ("not bound", &waits, claim(false), &nowhere, None),
        ] {
            assert_eq!(finalizers(snapshot, &claim, volumes), expected, "{what}");
        }
    }
}
