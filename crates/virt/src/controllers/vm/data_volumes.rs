//! The DataVolumes of a machine's templates: made, taken over, and waited for.
//!
//! ```text
//!   template ─▶ DataVolume ──CDI──▶ claim ─▶ filled ─▶ the machine may start
//!                   └─▶ failed: the status says so
//! ```
//!
//! A DataVolume bears the name in its template, and belongs to the machine. It is made whether or not the machine is to run. What
//! one is copied from in another namespace, the service account that the guest is to run with must be allowed to copy: the
//! controller itself may read everything. (Upstream: `handleDataVolumes` in pkg/virt-controller/watch/vm, and
//! pkg/storage/types. There, who may start pods where the source is counts as allowed, too.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{EventRecord, Plan, Premise, View, Write, controller_ref};
use carrack_types::data_volumes::{
    ALLOW_CLAIM_ADOPTION_ANNOTATION, DataSource, DataVolume, DataVolumeCondition, GROUP, phase,
};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::CREATED_BY_LABEL;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::size::Trouble;
use super::status::FAILED_CREATE;
use super::strategy::{Act, decide};
use crate::controllers::defined::{Found, find};
use crate::controllers::snapshot::KINDS_AGAIN;

/// How soon to look again whether there can be DataVolumes: that their kind is defined wakes no machine, and it may never be.
pub(super) const UNSERVED_AGAIN: Duration = Duration::from_secs(30);

/// Annotation of a machine: `false` when its DataVolumes are made no sooner than it is to start.
const IMMEDIATE_ANNOTATION: &str = "kubevirt.io/immediate-data-volume-creation";

/// What there is of a machine's DataVolumes.
#[derive(Debug, Default)]
pub(super) struct Data<'a> {
    /// Those to be made.
    missing: Vec<Child>,
    /// Those that belong to nobody.
    orphans: Vec<&'a DataVolume>,
    /// A start need not wait for any of them.
    pub is_ready: bool,
    /// How soon to look again, since something is not known that nobody tells of.
    pub again: Option<Duration>,
    /// One that will never be filled.
    pub failed: Option<String>,
    /// One is not filled yet, and that is under way.
    pub is_provisioning: bool,
    /// Why one cannot be made.
    pub trouble: Option<Trouble>,
}

/// A DataVolume to be made.
#[derive(Debug)]
struct Child {
    object: Value,
    /// What somebody must be allowed to first.
    review: Option<Value>,
}

/// What keeps a DataVolume from being made.
enum Obstacle {
    /// What it is copied from is not known yet.
    Unknown,
    /// It cannot be.
    Because(String),
}

impl Data<'_> {
    /// Whether one is to be made.
    pub fn is_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |sooner| sooner.min(after)));
    }

    fn fail(&mut self, why: &str) {
        let message = format!("Error encountered while creating DataVolumes: {why}");
        self.trouble.get_or_insert(Trouble { reason: FAILED_CREATE, message });
    }
}

/// The name in a template.
fn name_of(template: &Value) -> &str {
    template["metadata"]["name"].as_str().unwrap_or_default()
}

/// The DataSource that a template names: its namespace and its name.
fn reference<'a>(template: &'a Value, own: &'a str) -> Option<(&'a str, &'a str)> {
    let reference = &template["spec"]["sourceRef"];
    let namespace = reference["namespace"].as_str().filter(|name| !name.is_empty()).unwrap_or(own);
    (reference["kind"] == "DataSource").then(|| (namespace, reference["name"].as_str().unwrap_or_default()))
}

/// The DataSources that a machine's templates name.
pub(super) fn sources(vm: &VirtualMachine) -> impl Iterator<Item = (&str, &str)> {
    vm.spec.data_volume_templates.iter().filter_map(move |template| reference(template, vm.namespace()))
}

/// Finds what there is.
pub(super) fn look<'a>(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>, view: &'a View<'_>) -> Data<'a> {
    let mut data = Data { is_ready: true, ..Data::default() };
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    let of_volumes = volumes.filter_map(|volume| volume.data_volume.as_ref()).map(|source| source.name.as_str());
    let names: BTreeSet<&str> = vm.spec.data_volume_templates.iter().map(name_of).chain(of_volumes).collect();
    for name in names {
        if let Found::There(volume) = find::<DataVolume>(view, vm.namespace(), name) {
            if has_failed(volume) {
                data.failed.get_or_insert_with(|| name.to_owned());
            }
            data.is_provisioning |= is_provisioning(volume);
        }
    }
    let is_restored = vm.status.as_ref().is_some_and(|status| status.restore_in_progress.is_some());
    let is_early = vm.annotation(IMMEDIATE_ANNOTATION) == Some("false")
        && !matches!(decide(vm, instance), Act::Start { .. } | Act::SwitchOn);
    for template in &vm.spec.data_volume_templates {
        match find::<DataVolume>(view, vm.namespace(), name_of(template)) {
            Found::There(volume) => {
                data.is_ready &= volume.is_usable() || volume.waits_for_consumer();
                if volume.controller_uid().is_none() && !volume.is_deleting() {
                    data.orphans.push(volume);
                }
                if let Some(why) = beyond_quota(volume) {
                    data.fail(&why);
                }
                continue;
            }
            Found::Undefined => {
                data.look_again(UNSERVED_AGAIN);
                data.fail("DataVolume api is not present in cluster. CDI must be installed for DataVolume support.");
            }
            Found::Unknown => data.look_again(KINDS_AGAIN),
            // A restore replaces claims, and CDI would make one that is gone for a moment.
            Found::Absent if is_restored || is_early => {}
            Found::Absent => match child(vm, template, view) {
                Ok(child) => {
                    data.missing.push(child);
                    data.is_provisioning = true;
                }
                Err(Obstacle::Unknown) => data.look_again(KINDS_AGAIN),
                Err(Obstacle::Because(why)) => data.fail(&why),
            },
        }
        data.is_ready = false;
    }
    data
}

/// Whether a DataVolume is not filled, and nobody works on it any more. (Upstream: `HasDataVolumeErrors`.)
fn has_failed(volume: &DataVolume) -> bool {
    let has_stopped = |running: &DataVolumeCondition| {
        running.status == "False" && ["Error", "ImagePullFailed"].contains(&running.reason.as_str())
    };
    volume.has_failed() || volume.condition("Running").is_some_and(has_stopped)
}

/// Whether a DataVolume is being filled. One whose claim waits for a pod that uses it is not. (Upstream:
/// `HasDataVolumeProvisioning`.)
fn is_provisioning(volume: &DataVolume) -> bool {
    let waits = volume.status.phase == phase::WAIT_FOR_FIRST_CONSUMER;
    let is_bound = volume.condition("Bound").is_some_and(|bound| bound.status == "True");
    !volume.is_usable() && (is_bound || !waits)
}

/// That a DataVolume's claim is more than its namespace may have, if it is.
fn beyond_quota(volume: &DataVolume) -> Option<String> {
    let bound = volume.condition("Bound").filter(|_| volume.status.phase == phase::PENDING)?;
    let is_beyond = bound.status != "True" && bound.reason == "ErrExceededQuota";
    let name = volume.name();
    is_beyond.then(|| format!("DataVolume {name} importer is not running due to an error: {}", bound.message))
}

/// The DataVolume of a template. What it is copied from stands in it by name: what a DataSource names may be another later.
fn child(vm: &VirtualMachine, template: &Value, view: &View<'_>) -> Result<Child, Obstacle> {
    let own = vm.namespace();
    let mut spec = if template["spec"].is_object() { template["spec"].clone() } else { json!({}) };
    if spec["sourceRef"].is_object() {
        let unsupported = || Obstacle::Because("DataVolume sourceRef not supported".to_owned());
        let (namespace, name) = reference(template, own).ok_or_else(unsupported)?;
        let source = match find::<DataSource>(view, namespace, name) {
            Found::There(source) => &source.spec.source,
            Found::Unknown => return Err(Obstacle::Unknown),
            Found::Absent | Found::Undefined => {
                let kind = DataSource::resource().qualified();
                return Err(Obstacle::Because(format!("{kind} \"{name}\" not found")));
            }
        };
        // Of two, one would be copied without anybody having asked whether it may be.
        if source.pvc.is_some() == source.snapshot.is_some() {
            return Err(unsupported());
        }
        let mut source = json!(source);
        place(&mut source, namespace);
        spec["source"] = source;
        spec.as_object_mut().into_iter().for_each(|spec| drop(spec.remove("sourceRef")));
    }
    let review = place(&mut spec["source"], own).filter(|(namespace, _)| namespace != own);
    let review = review.map(|(namespace, name)| asked(vm, &namespace, &name));
    if spec["source"].is_null() {
        spec.as_object_mut().into_iter().for_each(|spec| drop(spec.remove("source")));
    }
    let class = vm.spec.template.as_ref().and_then(|template| template.spec.priority_class_name.clone());
    if let Some(class) = class.filter(|class| !class.is_empty())
        && spec["priorityClassName"].as_str().unwrap_or_default().is_empty()
    {
        spec["priorityClassName"] = json!(class);
    }
    let texts = |field: &str| -> BTreeMap<String, Value> {
        let all = template["metadata"][field].as_object();
        all.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut labels = BTreeMap::from([(CREATED_BY_LABEL.to_owned(), json!(vm.uid()))]);
    labels.extend(texts("labels"));
    let mut annotations = texts("annotations");
    annotations.insert(ALLOW_CLAIM_ADOPTION_ANNOTATION.to_owned(), json!("true"));
    let resource = DataVolume::resource();
    let object = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": name_of(template), "namespace": own, "labels": labels, "annotations": annotations,
            "ownerReferences": [controller_ref(vm)]},
        "spec": spec,
    });
    Ok(Child { object, review })
}

/// Writes where a claim or a snapshot is that a source names, which is in the namespace of who names it unless it says otherwise;
/// tells its namespace and its name.
fn place(source: &mut Value, namespace: &str) -> Option<(String, String)> {
    let copied = ["pvc", "snapshot"].into_iter().find(|kind| source.get(kind).is_some_and(Value::is_object))?;
    let of = &mut source[copied];
    if of["namespace"].as_str().unwrap_or_default().is_empty() {
        of["namespace"] = json!(namespace);
    }
    let text = |field: &str| of[field].as_str().unwrap_or_default().to_owned();
    Some((text("namespace"), text("name")))
}

/// What the machine's service account must be allowed to, to copy what is in another namespace. (Upstream: `AuthorizeSA` in
/// CDI's API.)
fn asked(vm: &VirtualMachine, namespace: &str, name: &str) -> Value {
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    let mut accounts = volumes.filter_map(|volume| volume.service_account.as_ref()?.service_account_name.as_deref());
    let (own, account) = (vm.namespace(), accounts.next_back().unwrap_or("default"));
    json!({
        "user": format!("system:serviceaccount:{own}:{account}"),
        "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{own}"), "system:authenticated"],
        "resourceAttributes": {"verb": "create", "group": GROUP, "resource": "datavolumes", "subresource": "source",
            "namespace": namespace, "name": name},
    })
}

/// Makes what is missing, and takes over what belongs to nobody, such as what a restore has made.
pub(super) fn make(vm: &VirtualMachine, data: &Data<'_>) -> Plan {
    let plan = data.orphans.iter().fold(Plan::none(), |plan, orphan| {
        let others = orphan.metadata.owner_references.iter().flatten().filter(|owner| owner.uid != vm.uid());
        let owners: Vec<OwnerReference> = others.cloned().chain([controller_ref(vm)]).collect();
        let patch = Plan::none().patch(*orphan, json!({"metadata": {"ownerReferences": owners}}));
        plan.confirm_alive(vm).then(patch.resting_on(&Premise::present(vm)))
    });
    data.missing.iter().fold(plan, |plan, child| {
        let plan = child.review.iter().fold(plan, |plan, review| plan.confirm_allowed(review));
        let create = Write::Create { resource: DataVolume::resource(), object: child.object.clone() };
        let message = format!("Created DataVolume {}", name_of(&child.object));
        let told = EventRecord::normal(vm, "SuccessfulDataVolumeCreate", message);
        plan.then(Plan::none().write(create).resting_on(&Premise::same_spec(vm)).told(told))
    })
}
