//! Claims that ask for more than their volume has.
//!
//! ```text
//!   asked for more ─▶ Resizing ─▶ ControllerExpandVolume ─▶ the volume's capacity ─▶ FileSystemResizePending ─▶ the kubelet
//! ```

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::calls::{Answer, Call, Calls};
use super::{bytes, is_here, quantity, requested};

const NAME: &str = "carrack-local-resizer";

/// The controller.
pub(super) struct Resize {
    node: String,
    calls: Calls,
}

impl Resize {
    pub fn new(node: &str, calls: Calls) -> Self {
        Self { node: node.to_owned(), calls }
    }
}

/// The claim's conditions, with one of the two that are about sizes.
fn conditions(claim: &PersistentVolumeClaim, kind: &str, message: &str, now: Time) -> Value {
    let others = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let others = others.filter(|c| !matches!(c.type_.as_str(), "Resizing" | "FileSystemResizePending"));
    let mut list: Vec<Value> = others.map(|c| json!(c)).collect();
    list.push(json!({"type": kind, "status": "True", "lastTransitionTime": now.rfc3339(), "message": message}));
    list.into()
}

fn has(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    claim.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == kind && c.status == "True")
}

impl Controller for Resize {
    fn name(&self) -> &'static str {
        NAME
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
            is_here(v, &self.node) && of == Some(claim.uid())
        };
        let Some(volume) = view.get::<PersistentVolume>("", name).filter(ours) else { return Plan::none() };
        let Some(spec) = &volume.spec else { return Plan::none() };
        let (wanted, has_now, told) =
            (requested(claim), bytes(spec.capacity.as_ref()), bytes(status.capacity.as_ref()));
        if has_now >= wanted {
            if told >= wanted || has(claim, "FileSystemResizePending") {
                return Plan::none();
            }
            let text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
            let patch = json!({"status": {"conditions": conditions(claim, "FileSystemResizePending", text, now)}});
            return Plan::none().patch_status(claim.as_ref(), patch).told(EventRecord::normal(
                claim.as_ref(),
                "FileSystemResizeRequired",
                "Require file system resize of volume on node",
            ));
        }
        if !has(claim, "Resizing") {
            let patch = json!({"status": {"conditions": conditions(claim, "Resizing", "", now)}});
            return Plan::none().patch_status(claim.as_ref(), patch).told(EventRecord::normal(
                claim.as_ref(),
                "Resizing",
                format!("External resizer is resizing volume {name}"),
            ));
        }
        let handle = spec.csi.as_ref().map(|c| c.volume_handle.clone()).unwrap_or_default();
        match self.calls.ask(NAME, key, Call::Expand(handle, wanted)) {
            None => Plan::none(),
            Some(Err(e)) => {
                let why = format!("resize volume {name:?} by resizer failed: {}", e.message);
                Plan::failed(e.message).event(EventRecord::warning(claim.as_ref(), "VolumeResizeFailed", why))
            }
            Some(Ok(Answer::Expanded { bytes, .. })) => {
                Plan::none().patch(volume.as_ref(), json!({"spec": {"capacity": {"storage": quantity(bytes)}}}))
            }
            Some(Ok(_)) => Plan::failed("the driver's answer was about something else"),
        }
    }
}
