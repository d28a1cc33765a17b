//! Makes the claims of pods' ephemeral volumes: `pod-volume`, owned by the pod, so that it goes with it
//! (pkg/controller/volume/ephemeral). A claim of that name that belongs to somebody else is never taken.

use carrack_engine::{Controller, EventRecord, Key, Plan, Refusal, Setup, Time, View, Write, controller_ref};
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The ephemeral volume controller.
#[derive(Default)]
pub struct EphemeralVolumes {
    /// A planted bug: a claim that another pod had under the name is taken for the pod's own.
    pub(crate) takes: bool,
}

fn has_ephemeral(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|v| v.ephemeral.is_some())
}

impl Controller for EphemeralVolumes {
    fn name(&self) -> &'static str {
        "ephemeral-volume-controller"
    }
    fn event_source(&self) -> &'static str {
        "ephemeral_volume"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch::<Pod>(|pod, _| if has_ephemeral(pod) { vec![Key::of(pod)] } else { Vec::new() });
        setup.watch_owned::<PersistentVolumeClaim, Pod>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name).filter(|p| !p.is_deleting() && !is_terminal(p))
        else {
            return Plan::none();
        };
        let mut plan = Plan::none();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref());
            let Some(template) = template else { continue };
            let name = format!("{}-{}", pod.name(), volume.name);
            match view.get::<PersistentVolumeClaim>(&key.namespace, &name) {
                Some(claim) if claim.controller_uid() == Some(pod.uid()) => {}
                Some(claim) if self.takes => {
                    let owners = serde_json::json!({"metadata": {"ownerReferences": [controller_ref(pod.as_ref())]}});
                    plan = plan.patch(claim.as_ref(), owners);
                }
                Some(_) => {
                    let why = format!(
                        "ephemeral volume {}: PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
                        volume.name, key.namespace, key.namespace, key.name
                    );
                    plan = plan.event(EventRecord::warning(pod.as_ref(), "FailedBinding", why));
                }
                None => {
                    let metadata = template.metadata.clone().unwrap_or_default();
                    plan = plan.create(&PersistentVolumeClaim {
                        metadata: ObjectMeta {
                            namespace: Some(key.namespace.clone()),
                            name: Some(name),
                            labels: metadata.labels,
                            annotations: metadata.annotations,
                            owner_references: Some(vec![controller_ref(pod.as_ref())]),
                            ..ObjectMeta::default()
                        },
                        spec: Some(template.spec.clone()),
                        status: None,
                    });
                }
            }
        }
        plan
    }
    /// The pod waits for its claim: it says why there is none (a quota that is full, say).
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let created = matches!(refusal.write, Write::Create { .. });
        let Some(pod) = view.get::<Pod>(&key.namespace, &key.name).filter(|_| created) else { return Plan::none() };
        let name = refusal.write.key().name;
        let volume = name.strip_prefix(&format!("{}-", pod.name())).unwrap_or(&name);
        let why = format!("ephemeral volume {volume}: create PVC {name}: {}", refusal.error.message);
        Plan::none().event(EventRecord::warning(pod.as_ref(), "FailedBinding", why))
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::StatusError;
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    #[test]
    fn claims_are_made_once_and_never_taken_from_others() {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p1"},
            "spec": {"containers": [], "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate":
                {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}}}]}});
        let claim = |owner: &str| {
            json!({"metadata": {"namespace": "ns", "name": "p-data", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]}})
        };
        let look = |claims: Vec<Value>| {
            let caches =
                Caches::new().with::<Pod>([of(pod.clone())]).with::<PersistentVolumeClaim>(claims.into_iter().map(of));
            let plan = EphemeralVolumes::default().reconcile(&Key::new("ns", "p"), &caches.view(), Time::default());
            let told = plan.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect();
            (words(&plan), told)
        };
        let none = Vec::<String>::new;
        assert_eq!(look(vec![]), (vec!["create persistentvolumeclaims ns/p-data".to_owned()], none()));
        assert_eq!(look(vec![claim("p1")]), (none(), none()));
        let why = "FailedBinding: ephemeral volume data: PVC ns/p-data was not created for pod ns/p (pod is not owner)";
        assert_eq!(look(vec![claim("p0")]), (none(), vec![why.to_owned()]));
    }

    #[test]
    fn a_pod_whose_claim_is_refused_says_why() {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p1"}, "spec": {"containers": []}});
        let caches = Caches::new().with::<Pod>([of(pod)]);
        let claim: PersistentVolumeClaim = of(json!({"metadata": {"namespace": "ns", "name": "p-data"}}));
        let write = Plan::none().create(&claim).writes.remove(0);
        let error = StatusError { code: 403, message: "exceeded quota".into(), ..StatusError::default() };
        let (key, refusal) = (Key::new("ns", "p"), Refusal { write: &write, error: &error });
        let plan = EphemeralVolumes::default().refused(&key, &caches.view(), &refusal, Time::default());
        assert!(plan.writes.is_empty());
        let told: Vec<_> = plan.events.iter().map(|e| (e.reason.as_str(), e.message.as_str())).collect();
        assert_eq!(told, [("FailedBinding", "ephemeral volume data: create PVC p-data: exceeded quota")]);
    }
}
