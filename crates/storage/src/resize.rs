//! Claims that ask for more than their volume has (external-resizer, and pkg/controller/volume/expand for FlexVolume).
//!
//! ```text
//!   asked for more ─▶ Resizing ─▶ the driver ─▶ the volume's capacity ─▶ FileSystemResizePending ─▶ the kubelet
//!                                                     └─ nothing to do on the node ─▶ the claim's capacity
//! ```
//!
//! The claim's status keeps account of it, too: what is allocated, which quotas count, and whose turn it is, by which
//! kubelets go (`markControllerResizeInProgress` and `markForPendingNodeExpansion` in external-resizer).

use std::collections::BTreeMap;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::quantity::{Form, Quantity};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

type Amounts = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

/// The storage among resources, in bytes; 0 for none.
pub(crate) fn bytes(of: Option<&Amounts>) -> u64 {
    let q = of.and_then(|a| a.get("storage")).and_then(|q| Quantity::try_from(q).ok());
    q.and_then(|q| u64::try_from(q.units()).ok()).unwrap_or(0)
}

/// How much a claim asks for, in bytes.
pub(crate) fn requested(claim: &PersistentVolumeClaim) -> u64 {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    bytes(requests)
}

/// A size as a quantity of Kubernetes, in the binary form where it is whole.
pub(crate) fn quantity(bytes: u64) -> String {
    let units = i64::try_from(bytes).unwrap_or(i64::MAX);
    Quantity::from_units(units, Form::BinarySi).to_string()
}

/// A driver's part. What is not answered yet is none.
pub(crate) trait Enlarge: Send {
    /// Name of the controller.
    fn name(&self) -> &'static str;
    /// Whether a volume is one of its own.
    fn owns(&self, volume: &PersistentVolume) -> bool;
    /// Makes a volume so large, from so many bytes; how large it is then.
    fn enlarge(&self, key: &Key, volume: &PersistentVolume, to: u64, from: u64) -> Option<Result<u64, String>>;
    /// Whether the node has something left to do about a volume that has been enlarged.
    fn on_node(&self, key: &Key, volume: &PersistentVolume) -> Option<Result<bool, String>>;
}

/// The controller.
pub(crate) struct Resize<E>(pub E);

/// Conditions that are about sizes.
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// The claim's conditions without those that are about sizes, and with one of them.
fn conditions(claim: &PersistentVolumeClaim, with: Option<(&str, &str)>, now: Time) -> Value {
    let others = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let others = others.filter(|c| !CONDITIONS.contains(&c.type_.as_str()));
    let mut list: Vec<Value> = others.map(|c| json!(c)).collect();
    list.extend(with.map(|(kind, message)| {
        json!({"type": kind, "status": "True", "lastTransitionTime": now.rfc3339(), "message": message})
    }));
    list.into()
}

fn has(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    claim.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == kind && c.status == "True")
}

fn failed(claim: &PersistentVolumeClaim, volume: &PersistentVolume, error: String) -> Plan {
    let why = format!("resize volume {:?} by resizer failed: {error}", volume.name());
    Plan::failed(error).event(EventRecord::warning(claim, "VolumeResizeFailed", why))
}

impl<E: Enlarge> Resize<E> {
    /// The volume is large enough; the claim is not told yet.
    fn follow(
        &self,
        key: &Key,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        bytes: u64,
        now: Time,
    ) -> Plan {
        if has(claim, "FileSystemResizePending") {
            return Plan::none();
        }
        match self.0.on_node(key, volume) {
            None => Plan::none(),
            Some(Err(e)) => failed(claim, volume, e),
            Some(Ok(true)) => {
                let text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
                let with = Some(("FileSystemResizePending", text));
                let patch = json!({"status": {
                    "allocatedResources": {"storage": quantity(bytes)},
                    "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                    "conditions": conditions(claim, with, now),
                }});
                let text = "Require file system resize of volume on node";
                let told = EventRecord::normal(claim, "FileSystemResizeRequired", text);
                Plan::none().patch_status(claim, patch).told(told)
            }
            Some(Ok(false)) => {
                let capacity = json!({"storage": quantity(bytes)});
                let patch = json!({"status": {
                    "capacity": capacity,
                    "allocatedResources": capacity,
                    "allocatedResourceStatuses": {"storage": null},
                    "conditions": conditions(claim, None, now),
                }});
                let told = EventRecord::normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded");
                Plan::none().patch_status(claim, patch).told(told)
            }
        }
    }
}

impl<E: Enlarge> Controller for Resize<E> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch::<PersistentVolume>(|volume, _| {
            let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.clone());
            claim.and_then(|r| Some(Key::new(r.namespace?, r.name?))).into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else { return Plan::none() };
        let status = claim.status.clone().unwrap_or_default();
        if claim.is_deleting() || status.phase.as_deref() != Some("Bound") {
            return Plan::none();
        }
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        let ours = |v: &&std::sync::Arc<PersistentVolume>| {
            let of = v.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).and_then(|r| r.uid.as_deref());
            self.0.owns(v) && of == Some(claim.uid())
        };
        let Some(volume) = view.get::<PersistentVolume>("", name).filter(ours) else { return Plan::none() };
        let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
        let (wanted, has_now, told) = (requested(claim), bytes(capacity), bytes(status.capacity.as_ref()));
        if has_now >= wanted {
            return if told >= wanted { Plan::none() } else { self.follow(key, claim, volume, has_now, now) };
        }
        // Who asks for another size meanwhile is given that; so whoever could not be given as much may ask for less.
        if !has(claim, "Resizing") || bytes(status.allocated_resources.as_ref()) != wanted {
            let patch = json!({"status": {
                "allocatedResources": {"storage": quantity(wanted)},
                "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
                "conditions": conditions(claim, Some(("Resizing", "")), now),
            }});
            return Plan::none().patch_status(claim.as_ref(), patch).told(EventRecord::normal(
                claim.as_ref(),
                "Resizing",
                format!("External resizer is resizing volume {name}"),
            ));
        }
        match self.0.enlarge(key, volume, wanted, has_now) {
            None => Plan::none(),
            Some(Err(e)) => failed(claim, volume, e),
            Some(Ok(bytes)) => {
                Plan::none().patch(volume.as_ref(), json!({"spec": {"capacity": {"storage": quantity(bytes)}}}))
            }
        }
    }
}
