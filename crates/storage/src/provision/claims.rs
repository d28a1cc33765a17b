//! Volumes for claims.
//!
//! ```text
//!   provisioner: ours ─▶ selected for this node ─▶ finalizer ─▶ CreateVolume ─▶ PersistentVolume ─▶ no finalizer
//!                          ▲ by the scheduler; by                    │ no room
//!                          │ whoever is first, if Immediate          └─▶ not selected: scheduled again
//!   smaller than it was asked for ─▶ DeleteVolume ─▶ CreateVolume
//!   deleted meanwhile ─▶ DeleteVolume ─▶ no finalizer
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use carrack_types::volume::{SELECTED_NODE, class_of_claim};
use carrack_types::well_known::storage::{PROVISIONED_BY, PROVISIONERS};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, TopologySelectorLabelRequirement,
    VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::calls::{Access, Answer, Call, Calls, From, NewVolume};
use super::snapshots::{is_populators, source};
use super::{DATA, PROVISIONING, Planted, finalizers};
use crate::asking::ANOTHER_ANSWER;
use crate::resize::{quantity, requested};
use crate::{DRIVER, TOPOLOGY};

const NAME: &str = "carrack-local-provisioner";
/// Parameters of classes that are the provisioner's own begin with this.
const OWN_PARAMETERS: &str = "csi.storage.k8s.io/";
const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
/// File system where the class names none.
const DEFAULT_FS: &str = "ext4";
/// How soon to look again for what a volume is to be made from.
const SOURCE: Duration = Duration::from_secs(5);
/// How long a node that had no room for a claim leaves it to others.
const DECLINED: Duration = Duration::from_secs(30);

/// The controller.
pub(super) struct Claims {
    node: String,
    calls: Calls,
    /// Claims that this node takes by itself, for which there was no room here, and when.
    declined: BTreeMap<String, Time>,
    /// Claims for which less was made than they ask for, by UID: that goes before anything else is made.
    small: BTreeSet<String>,
    planted: Option<Planted>,
}

impl Claims {
    pub fn new(node: &str, calls: Calls, planted: Option<Planted>) -> Self {
        Self { node: node.to_owned(), calls, declined: BTreeMap::new(), small: BTreeSet::new(), planted }
    }

    fn is_traceless(&self) -> bool {
        self.planted == Some(Planted::Traceless)
    }

    /// The claim is this node's, and bears the finalizer, or not any more.
    fn mark(&self, claim: &PersistentVolumeClaim, selected: bool, trace: bool) -> Plan {
        let list = finalizers(claim.metadata.finalizers.as_ref(), PROVISIONING, trace && !self.is_traceless());
        let node = if selected { Value::from(self.node.as_str()) } else { Value::Null };
        let patch = json!({"metadata": {"finalizers": list, "annotations": {SELECTED_NODE: node}}});
        Plan::none().patch(claim, patch)
    }

    /// Nothing more is to be made for the claim. What was made and has no PersistentVolume goes.
    fn settle(&self, key: &Key, claim: &PersistentVolumeClaim, there: bool) -> Plan {
        if !there {
            // It was made for a claim of this UID alone, and nobody can have used it without a PersistentVolume.
            match self.calls.ask(NAME, key, Call::Delete(name_of(claim))) {
                None => return Plan::none(),
                Some(Err(e)) => return Plan::failed(e.message),
                Some(Ok(_)) => {}
            }
        }
        self.mark(claim, true, false)
    }

    fn provision(
        &mut self,
        key: &Key,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        from: Option<From>,
        now: Time,
    ) -> Plan {
        let wanted = match new_volume(claim, class, from) {
            Ok(wanted) => wanted,
            Err(why) => {
                let why = format!("failed to provision volume with StorageClass {:?}: {why}", class.name());
                return Plan::none().event(EventRecord::warning(claim, "ProvisioningFailed", why));
            }
        };
        if self.small.contains(claim.uid()) {
            match self.calls.ask(NAME, key, Call::Delete(name_of(claim))) {
                None => return Plan::none(),
                Some(Err(e)) => return Plan::failed(e.message),
                Some(Ok(_)) => _ = self.small.remove(claim.uid()),
            }
        }
        let asked = wanted.bytes;
        let volume = match self.calls.ask(NAME, key, Call::Create(Box::new(wanted))) {
            None => return Plan::none(),
            Some(Err(e)) => {
                let why = format!("failed to provision volume with StorageClass {:?}: {}", class.name(), e.message);
                let told = EventRecord::warning(claim, "ProvisioningFailed", why);
                if e.no_room {
                    self.declined.insert(claim.uid().to_owned(), now);
                    return self.mark(claim, false, false).event(told).requeue_after(DECLINED);
                }
                return Plan::failed(e.message).event(told);
            }
            // As upstream's external-provisioner (`Provision`, `pkg/controller/controller.go`); a size that is not told is none.
            Some(Ok(Answer::Created { bytes, .. }))
                if bytes > 0 && bytes < asked && self.planted != Some(Planted::Small) =>
            {
                self.small.insert(claim.uid().to_owned());
                let text = format!("the driver made a volume of {bytes} bytes, of {asked} that were asked for");
                let why = format!("failed to provision volume with StorageClass {:?}: {text}", class.name());
                return Plan::failed(text).event(EventRecord::warning(claim, "ProvisioningFailed", why));
            }
            Some(Ok(answer)) => persistent_volume(claim, class, asked, answer),
        };
        match volume {
            Some(volume) => {
                let text = format!("Successfully provisioned volume {}", volume.name());
                Plan::none().create(&volume).told(EventRecord::normal(claim, "ProvisioningSucceeded", text))
            }
            None => Plan::failed(ANOTHER_ANSWER),
        }
    }
}

/// Whether a class lets volumes be at a node. Nothing but its name is known of where a volume of the driver is.
fn allows(class: &StorageClass, node: &str) -> bool {
    let Some(terms) = class.allowed_topologies.as_ref().filter(|terms| !terms.is_empty()) else { return true };
    let is_here = |e: &TopologySelectorLabelRequirement| e.key == TOPOLOGY && e.values.iter().any(|v| v == node);
    // A term without any is no node's (component-helpers/scheduling/corev1, `MatchTopologySelectorTerms`).
    let mut terms = terms.iter().map(|term| term.match_label_expressions.as_deref().unwrap_or_default());
    terms.any(|expressions| !expressions.is_empty() && expressions.iter().all(is_here))
}

/// Name of the volume of a claim, with the driver and as a PersistentVolume.
fn name_of(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid())
}

fn new_volume(claim: &PersistentVolumeClaim, class: &StorageClass, from: Option<From>) -> Result<NewVolume, String> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.selector.is_some() {
        return Err("claim Selector is not supported".into());
    }
    let access = |mode: &String| match mode.as_str() {
        "ReadWriteMany" => Access::Many,
        "ReadOnlyMany" => Access::ManyRead,
        _ => Access::OneNode,
    };
    let parameters = class.parameters.clone().unwrap_or_default();
    Ok(NewVolume {
        name: name_of(claim),
        bytes: requested(claim),
        block: spec.volume_mode.as_deref() == Some("Block"),
        fs_type: parameters.get(FS_TYPE).cloned().unwrap_or_else(|| DEFAULT_FS.to_owned()),
        mount_options: class.mount_options.clone().unwrap_or_default(),
        access: spec.access_modes.iter().flatten().map(access).collect(),
        parameters: parameters.into_iter().filter(|(k, _)| !k.starts_with(OWN_PARAMETERS)).collect(),
        from,
    })
}

fn persistent_volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    asked: u64,
    answer: Answer,
) -> Option<PersistentVolume> {
    let Answer::Created { handle, bytes, context, topologies } = answer else { return None };
    let bytes = if bytes == 0 { asked } else { bytes };
    let spec = claim.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into());
    let expression = |(key, value): (&String, &String)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".into(),
        values: Some(vec![value.clone()]),
    };
    let term = |labels: &BTreeMap<String, String>| NodeSelectorTerm {
        match_expressions: Some(labels.iter().map(expression).collect()),
        match_fields: None,
    };
    let terms: Vec<NodeSelectorTerm> = topologies.iter().filter(|t| !t.is_empty()).map(term).collect();
    let fs_type = class.parameters.as_ref().and_then(|p| p.get(FS_TYPE)).map_or(DEFAULT_FS, String::as_str);
    let size = k8s_openapi::apimachinery::pkg::api::resource::Quantity(quantity(bytes));
    Some(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name_of(claim)),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), DRIVER.to_owned())])),
            // Data that is to go goes first; data that is to stay needs nobody's leave.
            finalizers: (policy == "Delete").then(|| vec![DATA.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: Some(BTreeMap::from([("storage".to_owned(), size)])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("PersistentVolumeClaim".into()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                ..ObjectReference::default()
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER.into(),
                volume_handle: handle,
                fs_type: (!block).then(|| fs_type.to_owned()),
                volume_attributes: Some(context).filter(|c| !c.is_empty()),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: (!terms.is_empty())
                .then_some(VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: terms }) }),
            persistent_volume_reclaim_policy: Some(policy),
            storage_class_name: Some(class.name().to_owned()),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

impl Controller for Claims {
    fn name(&self) -> &'static str {
        NAME
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<PersistentVolumeClaim>();
        setup.watch::<StorageClass>(|class, view| {
            let claims = view.cache::<PersistentVolumeClaim>().iter().filter(|c| class_of_claim(c) == class.name());
            claims.map(|c| Key::of(c.as_ref())).collect()
        });
        setup.read::<VolumeSnapshotContent>();
        setup.watch::<VolumeSnapshot>(|snapshot, view| {
            let of = |c: &&std::sync::Arc<PersistentVolumeClaim>| {
                let from = c.spec.as_ref().and_then(|s| s.data_source.as_ref());
                c.namespace() == snapshot.namespace() && from.is_some_and(|f| f.name == snapshot.name())
            };
            view.cache::<PersistentVolumeClaim>().iter().filter(of).map(|c| Key::of(c.as_ref())).collect()
        });
        setup.watch::<PersistentVolume>(|volume, _| {
            let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.clone());
            claim.and_then(|r| Some(Key::new(r.namespace?, r.name?))).into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(claim) = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name) else { return Plan::none() };
        // A claim of a class that waits for its consumer is called to nobody; if it is to be made from something, that
        // decides where it is made, and nothing has to be waited for.
        let spec = claim.spec.as_ref();
        let has_source = spec.is_some_and(|s| s.data_source.is_some() || s.data_source_ref.is_some());
        if !has_source && !PROVISIONERS.iter().any(|a| claim.annotation(a) == Some(DRIVER)) {
            return Plan::none();
        }
        let selected = claim.annotation(SELECTED_NODE);
        if selected.is_some_and(|node| node != self.node) {
            return Plan::none();
        }
        let traced = claim.metadata.finalizers.iter().flatten().any(|f| f == PROVISIONING);
        let there = view.get::<PersistentVolume>("", &name_of(claim)).is_some();
        let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        // The cache of claims may be ahead of that of volumes.
        let there = there || bound == name_of(claim);
        if there || !bound.is_empty() || claim.is_deleting() {
            self.declined.remove(claim.uid());
            self.small.remove(claim.uid());
            // Where there is no PersistentVolume of what was made, and none is to be, it is not needed.
            return if traced && selected.is_some() { self.settle(key, claim, there) } else { Plan::none() };
        }
        let Some(class) = view.get::<StorageClass>("", class_of_claim(claim)).filter(|c| c.provisioner == DRIVER)
        else {
            return Plan::none();
        };
        if is_populators(claim) {
            return Plan::none();
        }
        let (from, at) = match source(claim, view) {
            Ok(None) => (None, None),
            Ok(Some((from, at))) => (Some(from), Some(at)),
            Err(why) => {
                let told = EventRecord::warning(claim.as_ref(), "ProvisioningFailed", why);
                return Plan::none().event(told).requeue_after(SOURCE);
            }
        };
        let declined = self.declined.get(claim.uid()).map(|at| DECLINED.saturating_sub(now.since(*at)));
        let declined = declined.filter(|left| !left.is_zero());
        // What a volume is made from decides where it is made, whatever was chosen.
        match (at.map(|node| node == self.node), declined) {
            (Some(false), _) if selected.is_some() => return self.mark(claim, false, false),
            (Some(false), _) => return Plan::none(),
            // No other node can have it, so this one looks again for room.
            (Some(true), Some(left)) if selected.is_none() => return Plan::none().requeue_after(left),
            (Some(true), None) if selected.is_none() => return self.mark(claim, true, true),
            (Some(true) | None, _) => {}
        }
        if selected.is_none() {
            let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
            return match declined {
                _ if waits || !allows(class, &self.node) => Plan::none(),
                Some(left) => Plan::none().requeue_after(left),
                None => self.mark(claim, true, true),
            };
        }
        if !traced && !self.is_traceless() {
            return self.mark(claim, true, true);
        }
        self.provision(key, claim, class, from, now)
    }
}
