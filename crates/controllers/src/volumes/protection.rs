//! Keeps claims that pods use, volumes that claims have, and classes of attributes that either name from going away: their
//! finalizers go when nobody needs them any more (pkg/controller/volume/pvcprotection, pvprotection and vacprotection). They have
//! them from admission on, and get them back from here if somebody takes them.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::{Kind, Object as _};
use carrack_types::well_known::finalizer::{CLAIM_PROTECTION, CLASS_PROTECTION, VOLUME_PROTECTION};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use super::is_bound_to;
use crate::pods::{self, BY_CLAIM};

/// Name of the indexes of claims and of volumes by the classes of attributes that they name.
const BY_ATTRIBUTES: &str = "attributes";
/// How soon to look again whether the pods are known as far as the claim.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether everything up to the object's own revision is known of another kind.
fn known_as_far<K: Kind, O: Kind>(object: &O, view: &View<'_>) -> bool {
    view.revision::<K>() >= object.revision()
}

/// The object has its finalizer, as long as nobody has asked for its end.
fn protect<K: Kind>(object: &K, finalizer: &str) -> Plan {
    if object.is_deleting() || object.has_finalizer(finalizer) {
        return Plan::none();
    }
    Plan::none().with_finalizer(object, finalizer)
}

/// Whether a pod's own ephemeral claim is all that it has of this claim, and its node, or who forced its deletion, is done with it.
/// The pod may wait for the claim: as its dependent, if its deletion is a foreground one.
fn is_done_with(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = || pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let named = |v: &Volume| v.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == claim.name());
    let over = pod.is_deleting() && pod.metadata.deletion_grace_period_seconds == Some(0);
    // Of an ephemeral volume, a claim that is not the pod's own is not the pod's at all.
    !volumes().any(named) && (over || claim.controller_uid() != Some(pod.uid()))
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
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else { return Plan::none() };
        if !claim.is_deleting() || !claim.has_finalizer(CLAIM_PROTECTION) {
            return protect(claim.as_ref(), CLAIM_PROTECTION);
        }
        // From its deletion on, no pod with the claim is bound to a node any more; those from before must be known.
        if !known_as_far::<Pod, _>(claim.as_ref(), view) {
            return Plan::none().requeue_after(LOOK_AGAIN);
        }
        let named = format!("{}/{}", key.namespace, key.name);
        let mut plan = Plan::none();
        for pod in view.cache::<Pod>().by_index(BY_CLAIM, &named).filter(|pod| !is_done_with(pod, claim)) {
            if !pods::node_of(pod).is_empty() {
                return Plan::none();
            }
            // One that has no node does not keep the claim, if it surely has none.
            plan = plan.confirm_unchanged(pod.as_ref());
        }
        plan.without_finalizer(claim.as_ref(), CLAIM_PROTECTION)
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
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        if !volume.is_deleting() || !volume.has_finalizer(VOLUME_PROTECTION) {
            return protect(volume.as_ref(), VOLUME_PROTECTION);
        }
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
        gone.without_finalizer(volume.as_ref(), VOLUME_PROTECTION)
    }
}

/// The classes of attributes that a claim names: what it asks for, what it has, and what it is being given.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let named: BTreeSet<&String> = [
        claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_ref()),
        status.and_then(|s| s.current_volume_attributes_class_name.as_ref()),
        status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.as_ref()),
    ]
    .into_iter()
    .flatten()
    .collect();
    named.into_iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let named = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_ref());
    named.into_iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn keys(names: Vec<String>) -> Vec<Key> {
    names.into_iter().map(|name| Key::new("", name)).collect()
}

/// Lets classes of attributes go that neither a claim nor a volume names.
pub struct AttributesClassProtection;

impl Controller for AttributesClassProtection {
    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeAttributesClass>();
        setup.index::<PersistentVolumeClaim>(BY_ATTRIBUTES, classes_of_claim);
        setup.watch::<PersistentVolumeClaim>(|claim, _| keys(classes_of_claim(claim)));
        setup.index::<PersistentVolume>(BY_ATTRIBUTES, classes_of_volume);
        setup.watch::<PersistentVolume>(|volume, _| keys(classes_of_volume(volume)));
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(class) = view.get::<VolumeAttributesClass>("", &key.name) else { return Plan::none() };
        if !class.is_deleting() || !class.has_finalizer(CLASS_PROTECTION) {
            return protect(class.as_ref(), CLASS_PROTECTION);
        }
        let claims = view.cache::<PersistentVolumeClaim>().count(BY_ATTRIBUTES, &key.name);
        let volumes = view.cache::<PersistentVolume>().count(BY_ATTRIBUTES, &key.name);
        if claims + volumes > 0 {
            return Plan::none();
        }
        let class = class.as_ref();
        if !known_as_far::<PersistentVolumeClaim, _>(class, view) || !known_as_far::<PersistentVolume, _>(class, view) {
            return Plan::none().requeue_after(LOOK_AGAIN);
        }
        Plan::none().without_finalizer(class, CLASS_PROTECTION)
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
                "finalizers": [CLAIM_PROTECTION]}});
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
    fn a_pod_that_is_over_does_not_keep_its_own_claim() {
        let check = |owner: &str, grace: Option<i64>, named: bool, stays: bool| {
            let volumes = if named {
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "p-v"}}])
            } else {
                json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}])
            };
            let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "9"},
                "spec": {"nodeName": "n", "containers": [], "volumes": volumes}});
            if let Some(grace) = grace {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            }
            let claim = json!({"metadata": {"namespace": "ns", "name": "p-v", "uid": "c", "resourceVersion": "5",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLAIM_PROTECTION],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]}});
            let caches = Caches::new()
                .with_index::<Pod>(BY_CLAIM, pods::by_claim)
                .with::<Pod>([of(pod)])
                .with::<PersistentVolumeClaim>([of(claim)]);
            let plan = ClaimProtection.reconcile(&Key::new("ns", "p-v"), &caches.view(), Time::default());
            assert_eq!(plan.is_none(), stays, "{owner} {grace:?} {named}");
        };
        check("p", None, false, true);
        check("p", Some(30), false, true);
        check("p", Some(0), false, false);
        // By its name it is anybody's.
        check("p", Some(0), true, true);
        // What another one of that name had is not this pod's.
        check("before", None, false, false);
    }

    #[test]
    fn what_somebody_takes_is_given_back() {
        for (has, deleting, given) in [(false, false, true), (true, false, false), (false, true, false)] {
            let object = |name: &str, finalizer: &str| {
                let finalizers: Vec<&str> = ["other"].into_iter().chain(has.then_some(finalizer)).collect();
                let deleted = deleting.then_some("2026-01-01T00:00:00Z");
                json!({"metadata": {"name": name, "uid": name, "resourceVersion": "5", "finalizers": finalizers,
                    "deletionTimestamp": deleted}})
            };
            let mut claim = object("c", CLAIM_PROTECTION);
            claim["metadata"]["namespace"] = "ns".into();
            let caches = Caches::new()
                .with::<PersistentVolumeClaim>([of(claim)])
                .with::<PersistentVolume>([of(object("v", VOLUME_PROTECTION))]);
            let expected = |key: &str, finalizer: &str| {
                let patch = format!("patch {key} finalizers=[\"other\",\"{finalizer}\"]");
                Vec::from_iter(given.then_some(patch))
            };
            let plan = ClaimProtection.reconcile(&Key::new("ns", "c"), &caches.view(), Time::default());
            assert_eq!(words(&plan), expected("ns/c", CLAIM_PROTECTION), "{has} {deleting}");
            let plan = VolumeProtection.reconcile(&Key::new("", "v"), &caches.view(), Time::default());
            assert_eq!(words(&plan), expected("v", VOLUME_PROTECTION), "{has} {deleting}");
        }
    }

    #[test]
    fn classes_of_attributes_stay_while_claims_or_volumes_name_them() {
        let claim = |spec: Value, status: Value, revision: &str| {
            json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c", "resourceVersion": revision},
                "spec": spec, "status": status})
        };
        let volume = |class: Value| {
            json!({"metadata": {"name": "v", "uid": "v", "resourceVersion": "9"},
                "spec": {"volumeAttributesClassName": class}})
        };
        let (none, other) = (|| json!({}), || volume(json!("other")));
        let named = |key: &str| json!({ key: "gold" });
        let target = json!({"modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "gold"}});
        let (gone, wait) = ("patch gold finalizers=[]", Some(LOOK_AGAIN));
        for (claim, volume, expected, again) in [
            (claim(none(), none(), "9"), other(), vec![gone], None),
            (claim(named("volumeAttributesClassName"), none(), "9"), other(), vec![], None),
            (claim(none(), named("currentVolumeAttributesClassName"), "9"), other(), vec![], None),
            (claim(none(), target, "9"), other(), vec![], None),
            (claim(none(), none(), "9"), volume(json!("gold")), vec![], None),
            (claim(none(), none(), "9"), volume(json!("")), vec![gone], None),
            // The claims are not known as far as the class's deletion.
            (claim(none(), none(), "3"), other(), vec![], wait),
        ] {
            let class = json!({"metadata": {"name": "gold", "uid": "g", "resourceVersion": "5",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLASS_PROTECTION]}, "driverName": "d"});
            let caches = Caches::new()
                .with_index::<PersistentVolumeClaim>(BY_ATTRIBUTES, classes_of_claim)
                .with_index::<PersistentVolume>(BY_ATTRIBUTES, classes_of_volume)
                .with::<VolumeAttributesClass>([of(class)])
                .with::<PersistentVolumeClaim>([of(claim.clone())])
                .with::<PersistentVolume>([of(volume.clone())]);
            let key = Key::new("", "gold");
            let plan = AttributesClassProtection.reconcile(&key, &caches.view(), Time::default());
            assert_eq!(words(&plan), expected, "{claim} {volume}");
            assert_eq!(plan.requeue_after, again, "{claim} {volume}");
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
                    "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [VOLUME_PROTECTION]},
                "spec": {"claimRef": reference}, "status": {"phase": phase}});
            let caches = Caches::new()
                .with::<PersistentVolume>([of(volume.clone())])
                .with::<PersistentVolumeClaim>(claims.iter().cloned().map(of));
            let plan = VolumeProtection.reconcile(&Key::new("", "v"), &caches.view(), Time::default());
            assert_eq!(words(&plan), expected, "{volume} {claims:?}");
        }
    }
}
