//! The API server's hook: reads objects into types, and carries changes and faults back.

use std::collections::BTreeSet;

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionPlugin, Along, Attributes, Lookup, Needed, Operation};
use carrack_apiserver::object::{Object, at};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, GROUP_VIRT_HANDLERS, USER_CONTROLLER_MANAGER, USER_VIRT_CONTROLLER};
use carrack_types::kubevirt::instancetype::{InstancetypeSpec, PreferenceSpec};
use carrack_types::kubevirt::others::{KubeVirtConfiguration, VirtualMachineInstanceReplicaSet};
use carrack_types::kubevirt::snapshot::GROUP as SNAPSHOT_GROUP;
use carrack_types::kubevirt::{
    KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePreset, VirtualMachineRestore,
    VirtualMachineSnapshot, VirtualMachineSpec,
};
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::{GROUP, UNPAUSED_CONDITION, VM_FINALIZER, VMI_FINALIZER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value, json};

use super::instancetype::{check_preference, check_size};
use super::vm::check_strategy;
use super::{
    Fault, Faults, check_instance, check_instance_update, check_locked, check_machine, check_replica_set,
    check_restore, check_snapshot, complete_instance, complete_machine, data_volumes, eviction, infer, installation,
    metadata, migration, presets, snapshot,
};
use crate::controllers::vmi::unpaused_condition;
use crate::diff::merge_patch;
use crate::identity::instances_in;
use crate::instancetype;

/// Resource of the revisions that keep instance types and preferences.
const REVISIONS: &str = "controllerrevisions";
/// Resource of sets of instances.
const SETS: &str = "virtualmachineinstancereplicasets";
/// Resource of instances.
pub(super) const INSTANCES: &str = "virtualmachineinstances";
/// Kind of the object with the cluster's settings.
pub(super) const SETTINGS: &str = "kubevirts";

/// Who lets go of what is to outlive its owner: the garbage collector, with the other controllers or as itself.
const COLLECTORS: [&str; 2] = [USER_CONTROLLER_MANAGER, "system:serviceaccount:kube-system:generic-garbage-collector"];

/// Admission of `kubevirt.io`'s machines, instances, presets and migrations, of instance types and preferences, of snapshots and restores,
/// of evictions of launchers, and of pods that say they are launchers.
pub struct VirtAdmission;

impl AdmissionPlugin for VirtAdmission {
    fn name(&self) -> &'static str {
        "VirtualMachines"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if attributes.row.group == SNAPSHOT_GROUP {
            return snapshot::needs(attributes);
        }
        if eviction::evicts(attributes) {
            return eviction::needs(attributes);
        }
        if migration::begins(attributes) {
            return migration::needs(attributes);
        }
        if attributes.is(GROUP, SETTINGS) {
            return installation::needs(attributes);
        }
        let kinds = ["virtualmachines", INSTANCES, SETS];
        if !kinds.iter().any(|plural| attributes.is(GROUP, plural)) || !writes_object(attributes) {
            return Vec::new();
        }
        let mut needed = vec![Needed::all(GROUP, SETTINGS, "")];
        if attributes.is(GROUP, INSTANCES) && attributes.operation == Operation::Create {
            needed.push(presets::needs(attributes.namespace));
        }
        if !attributes.is(GROUP, "virtualmachines") {
            return needed;
        }
        needed.extend(of_sizes(attributes, &attributes.object));
        needed.extend(data_volumes::needs(&attributes.object));
        needed
    }

    fn follows(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Needed> {
        let is_machine = attributes.is(GROUP, "virtualmachines") && writes_object(attributes);
        if !is_machine || is_deleting(&attributes.object) || !infer::wants(&attributes.object) {
            return Vec::new();
        }
        let (mut machine, mut asked) = (attributes.object.clone(), Vec::new());
        // On the way there, something is always missing. Whether it still is in the end is told when the machine is completed.
        if infer::complete(&mut machine, attributes.namespace, lookup, &mut asked).is_ok() {
            asked.extend(of_sizes(attributes, &machine));
        }
        asked
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !writes_object(attributes) {
            return Ok(());
        }
        if attributes.is(GROUP, "virtualmachines") && attributes.caller.user != USER_VIRT_CONTROLLER {
            metadata::keep_state_claim(&mut attributes.object, attributes.old);
        }
        if is_deleting(&attributes.object) {
            return Ok(());
        }
        if attributes.is(GROUP, "virtualmachines") || attributes.is(GROUP, SETS) {
            metadata::fill_blanks(&mut attributes.object);
        }
        if attributes.is("", "pods") {
            if attributes.operation == Operation::Create && attributes.caller.user == USER_VIRT_CONTROLLER {
                open_gate(&mut attributes.object);
            }
            Ok(())
        } else if attributes.is(GROUP, "virtualmachines") {
            infer::complete(&mut attributes.object, attributes.namespace, lookup, &mut Vec::new())
                .map_err(Status::bad_request)?;
            let settings = settings(lookup);
            let is_new = attributes.operation == Operation::Create;
            complete::<VirtualMachine>(attributes, |vm, _| {
                complete_machine(vm, &settings);
                // What the controller would begin with: whoever deletes a new object leaves it the time to clear up, and it
                // saves a write.
                if is_new {
                    vm.add_finalizer(VM_FINALIZER);
                }
            })
        } else if attributes.is(GROUP, INSTANCES) && attributes.operation == Operation::Create {
            if !is_component(attributes.caller) {
                attributes.object.remove("status");
            }
            let settings = settings(lookup);
            let presets = presets::list(attributes.namespace, lookup);
            let mut applied = Ok(());
            complete::<VirtualMachineInstance>(attributes, |vmi, uuid| {
                applied = presets::apply(&presets, vmi);
                complete_instance(&mut vmi.spec, &settings, uuid);
                vmi.add_finalizer(VMI_FINALIZER);
            })?;
            let mut faults = Faults::default();
            if let Err(conflicts) = applied {
                // No field of the instance's is wrong.
                faults.invalid("", conflicts);
            }
            refuse(attributes, faults.into_vec())
        } else {
            Ok(())
        }
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if attributes.row.group == SNAPSHOT_GROUP {
            return snapshots(attributes, lookup);
        }
        if eviction::evicts(attributes) {
            return eviction::check(attributes, lookup);
        }
        if migration::begins(attributes) {
            return migration::check(attributes, lookup);
        }
        if !writes_object(attributes) {
            return Ok(());
        }
        if attributes.is("", "pods") {
            return check_launcher(attributes);
        }
        if is_deleting(&attributes.object) {
            return check_going(attributes);
        }
        let mut faults = Faults::default();
        if attributes.is(GROUP, "virtualmachines") {
            let mut vm: VirtualMachine = read(attributes, &attributes.object)?;
            if let Some(old) = attributes.old
                && old.get("spec") == attributes.object.get("spec")
            {
                // A change of labels is no reason to look at everything again.
                return Ok(());
            }
            if let Some(old) = attributes.old
                && attributes.caller.user != USER_VIRT_CONTROLLER
            {
                check_locked(&read(attributes, old)?, &vm, &mut faults);
            }
            if keeps_template(attributes) {
                // What is wrong with that by now, since a rule is new or what it names has changed, keeps nobody from stopping it.
                check_strategy(&vm.spec, &mut faults);
            } else {
                size(attributes, lookup, &mut vm, &mut faults);
                data_volumes::check_served(attributes, lookup, &mut faults);
                check_machine(&vm, &settings(lookup), is_component(attributes.caller), &mut faults);
            }
        } else if attributes.is(GROUP, SETTINGS) {
            installation::check_alone(attributes, lookup)?;
            if attributes.old.is_none_or(|old| old.get("spec") != attributes.object.get("spec")) {
                let installation: KubeVirt = read(attributes, &attributes.object)?;
                let spec = attributes.object.get("spec").unwrap_or(&Value::Null);
                installation::check(spec, &installation.spec.configuration, &mut faults);
            }
        } else if attributes.is(GROUP, SETS) {
            if attributes.old.is_some_and(|old| old.get("spec") == attributes.object.get("spec")) {
                return Ok(());
            }
            let set: VirtualMachineInstanceReplicaSet = read(attributes, &attributes.object)?;
            check_replica_set(&set, &settings(lookup), is_component(attributes.caller), &mut faults);
        } else if attributes.row.group == instancetype::GROUP {
            let object = Value::Object(attributes.object.clone());
            if attributes.row.plural.ends_with("instancetypes") {
                let size = instancetype::spec_of::<InstancetypeSpec>(&object);
                size.iter().for_each(|size| check_size(size, &mut faults));
            } else {
                let preference = instancetype::spec_of::<PreferenceSpec>(&object);
                preference.iter().for_each(|preference| check_preference(preference, &mut faults));
            }
        } else if attributes.is(GROUP, presets::PRESETS) {
            if attributes.old.is_none_or(|old| old.get("spec") != attributes.object.get("spec")) {
                let preset: VirtualMachineInstancePreset = read(attributes, &attributes.object)?;
                presets::check(&preset, &mut faults);
            }
        } else if attributes.is(GROUP, INSTANCES) {
            let new: VirtualMachineInstance = read(attributes, &attributes.object)?;
            check_status(attributes)?;
            match attributes.old {
                Some(old) => {
                    check_instance_update(&read(attributes, old)?, &new, is_component(attributes.caller), &mut faults);
                }
                None => {
                    check_instance(&new.spec, &settings(lookup), &mut faults);
                    metadata::check("metadata", &new.metadata, is_component(attributes.caller), &mut faults);
                }
            }
        }
        refuse(attributes, faults.into_vec())
    }

    fn marks(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Along> {
        if eviction::evicts(attributes) { eviction::marks(attributes, lookup) } else { Vec::new() }
    }

    /// Whoever has misspelled a name is told at once; the machine waits for what it names. So is whoever names a field that is to go.
    fn warnings(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<String> {
        if attributes.is(GROUP, INSTANCES) && writes_object(attributes) && presets::has_some(&attributes.object) {
            return vec![presets::DEPRECATED.to_owned()];
        }
        let is_new = attributes.old.is_none_or(|old| old.get("spec") != attributes.object.get("spec"));
        let is_machine = attributes.is(GROUP, "virtualmachines") && writes_object(attributes);
        if !is_machine || !is_new || is_deleting(&attributes.object) {
            return Vec::new();
        }
        let all = ["instancetype", "preference"].into_iter().zip(named(attributes, &attributes.object));
        let named = all.filter_map(|(field, named)| Some((field, named?)));
        let missing = named.filter(|(_, named)| named.find(attributes, lookup).is_none());
        let missing = missing.map(|(field, named)| format!("Failure to find {field}: {}", named.missing()));
        let is_deprecated = at(&attributes.object, &["spec", "running"]).is_some();
        let deprecated = "spec.running is deprecated, please use spec.runStrategy instead.";
        missing.chain(is_deprecated.then(|| deprecated.to_owned())).collect()
    }
}

/// Says of a new launcher that its guest is not paused, which the controller would say next. The gate is there from the start,
/// since no guest is paused before it runs.
fn open_gate(pod: &mut Map<String, Value>) {
    let gates = pod.get("spec").and_then(|spec| spec.get("readinessGates")).and_then(Value::as_array);
    if !gates.is_some_and(|gates| gates.iter().any(|gate| gate["conditionType"] == UNPAUSED_CONDITION)) {
        return;
    }
    let at = pod.get("metadata").and_then(|meta| meta.get("creationTimestamp")).cloned();
    let condition = unpaused_condition(false, at.unwrap_or_default());
    let status = pod.entry("status").or_insert_with(|| json!({}));
    if let Some(status) = status.as_object_mut() {
        status.insert("conditions".to_owned(), json!([condition]));
    }
}

/// Refuses that somebody else than KubeVirt's components makes a pod the launcher of an instance, or one that is such a launcher
/// none any more. What a node has for the launcher would go to the former, and with it the instance would end; the guest in the latter
/// would be nobody's, and another copy of it might begin. An instance's launcher that is to outlive it is let go of by the garbage
/// collector (`Orphan`). (Upstream goes by a label, which it lets anybody take off.)
fn check_launcher(attributes: &Attributes<'_>) -> Result<(), Status> {
    // With the name: by it a pod that only uses claims is told from a launcher.
    let launched = |object: &Map<String, Value>| -> BTreeSet<(String, String)> {
        instances_in(object).into_iter().map(|owner| (owner.uid, owner.name)).collect()
    };
    let new = launched(&attributes.object);
    let old = attributes.old.map(launched).unwrap_or_default();
    if new == old || is_component(attributes.caller) {
        return Ok(());
    }
    if !new.is_subset(&old) {
        return Err(attributes.forbidden("only KubeVirt's components may make a pod the launcher of an instance"));
    }
    if COLLECTORS.contains(&attributes.caller.user.as_str()) {
        return Ok(());
    }
    Err(attributes.forbidden("only KubeVirt's components may take the launcher of an instance from it"))
}

/// Whether somebody may change the status of an instance as he does.
fn check_status(attributes: &Attributes<'_>) -> Result<(), Status> {
    let changes = attributes.old.is_some_and(|old| old.get("status") != attributes.object.get("status"));
    if changes && !is_component(attributes.caller) {
        return Err(attributes.forbidden("only KubeVirt's components may change the status of an instance"));
    }
    Ok(())
}

/// Whether an object that is going away may change as it does. The guest of an instance that is may still run, and what its
/// components say of it decides when another copy may start.
fn check_going(attributes: &Attributes<'_>) -> Result<(), Status> {
    let Some(old) = attributes.old else { return Ok(()) };
    if !attributes.is(GROUP, INSTANCES) || is_component(attributes.caller) {
        return Ok(());
    }
    check_status(attributes)?;
    let mut faults = Faults::default();
    if old.get("spec") == attributes.object.get("spec") {
        // The rest may be such as nobody could create any more.
        let meta =
            |object: &Map<String, Value>| object.get("metadata").and_then(|meta| ObjectMeta::deserialize(meta).ok());
        let [before, after] = [old, &attributes.object].map(|object| meta(object).unwrap_or_default());
        metadata::check_update(&before, &after, &mut faults);
    } else {
        check_instance_update(&read(attributes, old)?, &read(attributes, &attributes.object)?, false, &mut faults);
    }
    refuse(attributes, faults.into_vec())
}

/// Whether a snapshot, its content or a restore may be written.
fn snapshots(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
    if attributes.operation == Operation::Delete {
        return Ok(());
    }
    let mut faults = Faults::default();
    if let (true, Some(old)) = (attributes.is(SNAPSHOT_GROUP, snapshot::CONTENTS), attributes.old) {
        // As long as it is there, it says what belongs to it.
        snapshot::check_immutable(&old.get("spec"), &attributes.object.get("spec"), &mut faults);
    }
    if is_deleting(&attributes.object) {
        return refuse(attributes, faults.into_vec());
    }
    if attributes.is(SNAPSHOT_GROUP, snapshot::SNAPSHOTS) {
        let new: VirtualMachineSnapshot = read(attributes, &attributes.object)?;
        match attributes.old {
            Some(old) => {
                let old: VirtualMachineSnapshot = read(attributes, old)?;
                snapshot::check_immutable(&old.spec, &new.spec, &mut faults);
            }
            None => check_snapshot(&new, &mut faults),
        }
    } else if attributes.is(SNAPSHOT_GROUP, snapshot::RESTORES) {
        let new: VirtualMachineRestore = read(attributes, &attributes.object)?;
        match attributes.old {
            Some(old) => {
                let old: VirtualMachineRestore = read(attributes, old)?;
                snapshot::check_immutable(&old.spec, &new.spec, &mut faults);
            }
            None => check_restore(&new, &snapshot::restores(lookup, attributes.namespace), &mut faults),
        }
    }
    refuse(attributes, faults.into_vec())
}

/// An instance type or preference that a machine names.
struct Named {
    kind: &'static str,
    plural: &'static str,
    /// Empty for one that is for all namespaces.
    namespace: String,
    name: String,
    /// Revisions that may keep it: the one that the spec names, and the one that the machine has.
    revisions: Vec<String>,
    /// Whether the spec names a revision.
    is_kept: bool,
}

impl Named {
    /// What counts of it: what a revision of it keeps, or else the object as it is, unless the spec says which revision.
    fn find(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Option<Value> {
        let kept = |revision: &String| {
            let kept = lookup.get("apps", REVISIONS, attributes.namespace, revision)?.get("data")?;
            (kept["kind"] == self.kind && kept["metadata"]["name"] == self.name.as_str()).then(|| kept.clone())
        };
        let live = || {
            let found = lookup.get(instancetype::GROUP, self.plural, &self.namespace, &self.name);
            found.map(|object| Value::Object(object.clone()))
        };
        self.revisions.iter().find_map(kept).or_else(|| if self.is_kept { None } else { live() })
    }

    /// That it is not there.
    fn missing(&self) -> String {
        match self.revisions.first().filter(|_| self.is_kept) {
            Some(revision) => format!("{REVISIONS}.apps \"{revision}\" not found"),
            None => format!("{}.{} \"{}\" not found", self.plural, instancetype::GROUP, self.name),
        }
    }
}

/// What there may be of the instance type and the preference of a machine.
fn of_sizes(attributes: &Attributes<'_>, machine: &Object) -> Vec<Needed> {
    let mut needed = Vec::new();
    for named in named(attributes, machine).iter().flatten() {
        needed.push(Needed::one(instancetype::GROUP, named.plural, &named.namespace, &named.name));
        let revisions = named.revisions.iter();
        needed.extend(revisions.map(|name| Needed::one("apps", REVISIONS, attributes.namespace, name)));
    }
    needed
}

/// The instance type and the preference of the machine, as it is written or completed.
fn named(attributes: &Attributes<'_>, machine: &Object) -> [Option<Named>; 2] {
    let spec = machine.get("spec").cloned().unwrap_or_default();
    // Only the matchers are read: the rest may be anything yet.
    let matcher = |name: &str| serde_json::from_value(spec.get(name).cloned().unwrap_or_default()).ok();
    let mut named = VirtualMachineSpec {
        instancetype: matcher("instancetype"),
        preference: matcher("preference"),
        ..Default::default()
    };
    super::instancetype::complete_matchers(&mut named);
    let namespace = attributes.namespace;
    let status = attributes.old.and_then(|old| old.get("status"));
    let owned = |place: instancetype::Place<'_>, field: &str| {
        let own = instancetype::referenced(status.and_then(|status| status.get(field)), &place);
        Named {
            kind: place.kind,
            plural: place.plural,
            namespace: place.namespace.to_owned(),
            name: place.name.to_owned(),
            revisions: place
                .revision
                .into_iter()
                .chain(own)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            is_kept: place.revision.is_some(),
        }
    };
    [
        instancetype::instancetype_place(&named, namespace).map(|place| owned(place, "instancetypeRef")),
        instancetype::preference_place(&named, namespace).map(|place| owned(place, "preferenceRef")),
    ]
}

/// Applies what the machine names to its template, so that what is checked is what will be made of it. What is not there may come
/// yet: the machine waits for it, and its status says so. (Upstream: `ApplyToVM` in pkg/instancetype/webhooks/vm.)
fn size(attributes: &Attributes<'_>, lookup: &dyn Lookup, vm: &mut VirtualMachine, faults: &mut Faults) {
    let mut chosen = instancetype::Chosen::default();
    let [of_instancetype, of_preference] = named(attributes, &attributes.object);
    if let Some(named) = &of_instancetype {
        chosen.instancetype = named.find(attributes, lookup).as_ref().and_then(instancetype::spec_of);
    }
    if let Some(named) = &of_preference {
        chosen.preference = named.find(attributes, lookup).as_ref().and_then(instancetype::spec_of);
    }
    if let Some(template) = &mut vm.spec.template
        && let Err(conflicts) = chosen.apply("spec.template.spec", &mut template.spec)
    {
        for conflict in conflicts {
            faults.invalid(conflict.field, conflict.message);
        }
    }
}

/// Whether a change of a machine leaves alone what its instances are made from.
fn keeps_template(attributes: &Attributes<'_>) -> bool {
    fn part<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
        object.get("spec")?.get(field)
    }
    let is_kept = |old: &Map<String, Value>, field: &str| part(old, field) == part(&attributes.object, field);
    let fields = ["template", "instancetype", "preference", "dataVolumeTemplates"];
    attributes.old.is_some_and(|old| fields.into_iter().all(|field| is_kept(old, field)))
}

/// The cluster's settings: those of the one KubeVirt object. One that cannot be read counts as none.
pub(super) fn settings(lookup: &dyn Lookup) -> KubeVirtConfiguration {
    let settings = lookup.list(GROUP, SETTINGS, "");
    let read =
        |object: &Map<String, Value>| carrack_types::json::from_value::<KubeVirt>(Value::Object(object.clone())).ok();
    settings.first().and_then(|object| read(object)).map(|object| object.spec.configuration).unwrap_or_default()
}

/// Whether an object is written, and not only a part of it.
pub(super) fn writes_object(attributes: &Attributes<'_>) -> bool {
    attributes.operation != Operation::Delete && attributes.subresource.is_empty()
}

/// Who may say what an instance is. Instances have no status subresource (upstream's have none), so it is not RBAC that
/// keeps their status from users.
fn is_component(caller: &Caller) -> bool {
    let is_in = |group: &str| caller.groups.iter().any(|name| name == group);
    caller.user == USER_VIRT_CONTROLLER || is_in(GROUP_VIRT_HANDLERS) || is_in(GROUP_MASTERS)
}

/// An object that is going away only loses finalizers; faults it may have from before are nobody's concern any more.
pub(super) fn is_deleting(object: &Map<String, Value>) -> bool {
    object.get("metadata").and_then(|meta| meta.get("deletionTimestamp")).is_some_and(|at| !at.is_null())
}

pub(super) fn read<T: DeserializeOwned>(attributes: &Attributes<'_>, object: &Map<String, Value>) -> Result<T, Status> {
    // The schema has been checked before; what it lets through and the type does not is told as it is.
    serde_json::from_value(Value::Object(object.clone())).map_err(|error| {
        let at = metadata::wrong_word(object).map(|at| format!("{at}: ")).unwrap_or_default();
        Status::bad_request(format!("{} {:?} cannot be understood: {at}{error}", attributes.row.kind, attributes.name))
    })
}

pub(super) fn complete<T: DeserializeOwned + Serialize + Clone>(
    attributes: &mut Attributes<'_>,
    change: impl FnOnce(&mut T, &mut dyn FnMut() -> String),
) -> Result<(), Status> {
    // What cannot be read is left for the schema to complain about: it names the field.
    let Ok(old) = serde_json::from_value::<T>(Value::Object(attributes.object.clone())) else { return Ok(()) };
    let mut new = old.clone();
    let env = attributes.env;
    change(&mut new, &mut || carrack_apiserver::new_uid(env));
    if let Some(Value::Object(patch)) = merge_patch(&old, &new) {
        apply(&mut attributes.object, patch);
    }
    Ok(())
}

/// Applies a merge patch that only adds and replaces.
fn apply(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (object.get_mut(&key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => apply(into, from),
            (_, value) => {
                object.insert(key, value);
            }
        }
    }
}

pub(super) fn refuse(attributes: &Attributes<'_>, faults: Vec<Fault>) -> Result<(), Status> {
    if faults.is_empty() {
        return Ok(());
    }
    let faults: Vec<(String, String, String)> =
        faults.into_iter().map(|fault| (fault.reason.to_owned(), fault.field, fault.message)).collect();
    Err(Status::invalid(&attributes.row.group, &attributes.row.kind, &attributes.name, &faults))
}
