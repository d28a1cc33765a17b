//! Keeps claims that pods use, and volumes that claims have, from going away: their finalizers go when nobody needs
//! them any more (pkg/controller/volume/pvcprotection and pvprotection).

use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

use super::is_bound_to;
use crate::pods::{self, BY_CLAIM};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// How soon to look again whether the pods are known as far as the claim.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether everything up to the object's own revision is known of another kind.
fn known_as_far<K: Kind, O: Kind>(object: &O, view: &View<'_>) -> bool {
    view.revision::<K>() >= object.revision()
}

/// Lets claims go that no pod uses.
pub struct ClaimProtection;

impl Controller for ClaimProtection {
    fn name(&self) -> &'static str {
        "persistentvolumeclaim-protection-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.index::<Pod>(BY_CLAIM, pods::by_claim);
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch::<Pod>(|pod, _| {
            pods::claims_of(pod).into_iter().map(|name| Key::new(pod.namespace(), name)).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(claim) = view
            .get::<PersistentVolumeClaim>(&key.namespace, &key.name)
            .filter(|c| c.is_deleting() && c.has_finalizer(CLAIM_FINALIZER))
        else {
            return Plan::none();
        };
        // From its deletion on, no pod with the claim is bound to a node any more; those from before must be known.
        if !known_as_far::<Pod, _>(claim.as_ref(), view) {
            return Plan::none().requeue_after(LOOK_AGAIN);
        }
        let named = format!("{}/{}", key.namespace, key.name);
        let mut plan = Plan::none();
        for pod in view.cache::<Pod>().by_index(BY_CLAIM, &named) {
            if !pods::node_of(pod).is_empty() {
                return Plan::none();
            }
            // One that has no node does not keep the claim, if it surely has none.
            plan = plan.confirm_unchanged(pod.as_ref());
        }
        plan.without_finalizer(claim.as_ref(), CLAIM_FINALIZER)
    }
}

/// Lets volumes go that no claim has.
pub struct VolumeProtection;

impl Controller for VolumeProtection {
    fn name(&self) -> &'static str {
        "persistentvolume-protection-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolume>();
        setup.watch::<PersistentVolumeClaim>(|claim, _| {
            let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|n| !n.is_empty());
            name.map(|n| Key::new("", n)).into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(volume) = view
            .get::<PersistentVolume>("", &key.name)
            .filter(|v| v.is_deleting() && v.has_finalizer(VOLUME_FINALIZER))
        else {
            return Plan::none();
        };
        let bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let claimed = reference.is_some_and(|r| {
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            let claim = view.get::<PersistentVolumeClaim>(&text(&r.namespace), &text(&r.name));
            claim.is_some_and(|c| is_bound_to(volume, c))
        });
        if claimed || (bound && reference.is_none()) {
            return Plan::none();
        }
        if !known_as_far::<PersistentVolumeClaim, _>(volume.as_ref(), view) {
            return Plan::none().requeue_after(LOOK_AGAIN);
        }
        // A bound volume whose claim is not in the cache: only when the claim is surely gone.
        let gone = match reference.filter(|_| bound) {
            Some(r) => Plan::none().confirm_absent(
                &PersistentVolumeClaim::resource(),
                Key::new(r.namespace.clone().unwrap_or_default(), r.name.clone().unwrap_or_default()),
                r.uid.clone().unwrap_or_default(),
            ),
            None => Plan::none(),
        };
        gone.without_finalizer(volume.as_ref(), VOLUME_FINALIZER)
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    #[test]
    fn claims_stay_while_pods_have_them() {
        let pod = |node: &str, claim: &str, revision: &str| {
            json!({"metadata": {"namespace": "ns", "name": "p", "resourceVersion": revision},
                "spec": {"nodeName": node, "containers": [],
                    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
        };
        let wait = Some(LOOK_AGAIN);
        let gone = "patch ns/c finalizers=[]";
        for (deleting, pods, expected, again) in [
            (false, vec![], vec![], None),
            (true, vec![pod("n", "c", "9")], vec![], None),
            (true, vec![pod("n", "other", "9")], vec![gone], None),
            (true, vec![pod("", "c", "9")], vec!["confirm unchanged ns/p", gone], None),
            // The pods are not known as far as the claim's deletion.
            (true, vec![pod("n", "other", "3")], vec![], wait),
        ] {
            let mut claim = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c", "resourceVersion": "5",
                "finalizers": [CLAIM_FINALIZER]}});
            if deleting {
                claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            let caches = Caches::new()
                .with_index::<Pod>(BY_CLAIM, pods::by_claim)
                .with::<Pod>(pods.iter().cloned().map(of))
                .with::<PersistentVolumeClaim>([of(claim)]);
            let plan = ClaimProtection.reconcile(&Key::new("ns", "c"), &caches.view(), Time::default());
            assert_eq!(words(&plan), expected, "{deleting} {pods:?}");
            assert_eq!(plan.requeue_after, again, "{deleting} {pods:?}");
        }
    }

    #[test]
    fn volumes_stay_while_claims_have_them() {
        let claim =
            |uid: &str| json!({"metadata": {"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": "9"}});
        let reference = json!({"namespace": "ns", "name": "c", "uid": "u"});
        let gone = "patch v finalizers=[]";
        for (phase, reference, claims, expected) in [
            ("Available", Value::Null, vec![claim("u")], vec![gone]),
            ("Bound", reference.clone(), vec![claim("u")], vec![]),
            ("Bound", reference.clone(), vec![claim("new")], vec!["confirm absent ns/c", gone]),
            ("Released", reference.clone(), vec![claim("new")], vec![gone]),
            ("Released", reference, vec![claim("u")], vec![]),
        ] {
            let volume = json!({"metadata": {"name": "v", "uid": "v", "resourceVersion": "5",
                    "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [VOLUME_FINALIZER]},
                "spec": {"claimRef": reference}, "status": {"phase": phase}});
            let caches = Caches::new()
                .with::<PersistentVolume>([of(volume.clone())])
                .with::<PersistentVolumeClaim>(claims.iter().cloned().map(of));
            let plan = VolumeProtection.reconcile(&Key::new("", "v"), &caches.view(), Time::default());
            assert_eq!(words(&plan), expected, "{volume} {claims:?}");
        }
    }
}
