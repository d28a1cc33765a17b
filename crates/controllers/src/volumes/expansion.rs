//! Claims that ask for more than their volume holds: that their driver's resizer is waited for is told, once for each size
//! (pkg/controller/volume/expand). Who resizes writes the conditions `Resizing` and `FileSystemResizePending`; when the
//! claim's capacity has caught up, what is left of them goes.

use std::collections::BTreeMap;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use carrack_types::volume::requested;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::{capacity, is_bound_to};

const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// The expansion controller.
#[derive(Default)]
pub struct Expansion {
    /// What claims, by key and UID, ask for that was told.
    told: BTreeMap<Key, (String, Quantity)>,
}

impl Controller for Expansion {
    fn name(&self) -> &'static str {
        "persistentvolume-expander-controller"
    }
    fn event_source(&self) -> &'static str {
        "volume_expand"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch::<PersistentVolume>(|volume, _| {
            let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.clone());
            let key = reference.and_then(|r| Some(Key::new(r.namespace?, r.name?)));
            key.into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else {
            self.told.remove(key);
            return Plan::none();
        };
        let status = claim.status.clone().unwrap_or_default();
        if status.phase.as_deref() != Some("Bound") || claim.is_deleting() {
            return Plan::none();
        }
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        let Some(volume) = view.get::<PersistentVolume>("", name).filter(|v| is_bound_to(v, claim)) else {
            return Plan::none();
        };
        let have: Quantity = status
            .capacity
            .as_ref()
            .and_then(|c| c.get("storage"))
            .and_then(|q| Quantity::try_from(q).ok())
            .unwrap_or_default();
        let wanted = requested(claim);
        if have >= wanted {
            self.told.remove(key);
            let conditions = status.conditions.unwrap_or_default();
            let left: Vec<_> = conditions.iter().filter(|c| !CONDITIONS.contains(&c.type_.as_str())).collect();
            if left.len() == conditions.len() {
                return Plan::none();
            }
            return Plan::none().patch_status(claim.as_ref(), json!({"status": {"conditions": left}}));
        }
        if capacity(volume) >= wanted {
            // The volume is large enough; its node makes the file system follow.
            return Plan::none();
        }
        if volume.spec.as_ref().is_some_and(|s| s.flex_volume.is_some()) {
            // Its driver is called from beside this controller.
            return Plan::none();
        }
        let asked = (claim.uid().to_owned(), wanted);
        if self.told.insert(key.clone(), asked.clone()).is_some_and(|told| told == asked) {
            return Plan::none();
        }
        let why = "waiting for an external controller to expand this PVC";
        Plan::none().event(if volume.spec.as_ref().is_some_and(|s| s.csi.is_some()) {
            EventRecord::normal(claim.as_ref(), "ExternalExpanding", why)
        } else {
            EventRecord::warning(claim.as_ref(), "ExternalExpanding", why)
        })
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use serde_json::Value;

    use super::*;
    use crate::testing::{of, words};

    #[test]
    fn what_is_waited_for_is_told_once_and_leftovers_go() {
        let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        let mut controller = Expansion::default();
        let mut check = |request: &str, have: &str, volume_has: &str, conditions: Value, expected: &[&str]| {
            let claim = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c"},
                "spec": {"volumeName": "v", "resources": {"requests": {"storage": request}}},
                "status": {"phase": "Bound", "capacity": {"storage": have}, "conditions": conditions}});
            let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": volume_has},
                "csi": {"driver": "d", "volumeHandle": "h"}, "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}}});
            let caches =
                Caches::new().with::<PersistentVolumeClaim>([of(claim.clone())]).with::<PersistentVolume>([of(volume)]);
            let plan = controller.reconcile(&Key::new("ns", "c"), &caches.view(), Time::default());
            let told = plan.events.iter().map(|event| event.reason.clone());
            assert_eq!(words(&plan).into_iter().chain(told).collect::<Vec<_>>(), expected, "{claim}");
        };
        check("1Gi", "1Gi", "1Gi", json!([]), &[]);
        check("2Gi", "1Gi", "1Gi", json!([]), &["ExternalExpanding"]);
        check("2Gi", "1Gi", "1Gi", json!([]), &[]);
        check("3Gi", "1Gi", "1Gi", json!([]), &["ExternalExpanding"]);
        check("3Gi", "1Gi", "3Gi", pending.clone(), &[]);
        check("3Gi", "3Gi", "3Gi", pending, &["patch ns/c/status"]);
        check("3Gi", "3Gi", "3Gi", json!([{"type": "Other", "status": "True"}]), &[]);
    }
}
