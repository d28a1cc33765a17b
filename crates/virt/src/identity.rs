//! Names and addresses that follow from a machine's identity, so that they are the same each time they are asked for.

use carrack_engine::{derived_suffix, fnv1a};
use carrack_types::data_volumes::DATA_VOLUME;
use carrack_types::kubevirt::{DomainSpec, VirtualMachineInstance};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::GROUP;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Longest name of a pod that its host name and labels still take whole.
const NAME_MAX: usize = 63;

/// Name of an instance's launcher pod: `virt-launcher-<instance>-<suffix of its UID>`.
#[must_use]
pub fn launcher_pod_name(instance: &str, uid: &str) -> String {
    pod_name("virt-launcher", instance, uid)
}

/// Name of the pod that uses an instance's claims before they are filled: `virt-provisioning-<instance>-<suffix of its UID>`.
#[must_use]
pub fn consumer_pod_name(instance: &str, uid: &str) -> String {
    pod_name(CONSUMER, instance, uid)
}

/// How the names of such pods begin.
pub const CONSUMER: &str = "virt-provisioning";

fn pod_name(role: &str, instance: &str, uid: &str) -> String {
    let suffix = derived_suffix(&[uid, role], 5);
    let room = NAME_MAX - role.len() - suffix.len() - 2;
    let stem: String = instance.chars().take(room).collect();
    format!("{role}-{}-{suffix}", stem.trim_end_matches(['-', '.']))
}

/// UID of the instance that a pod is the launcher of. Only KubeVirt's components may make a pod that says so (`admission`); one that
/// names an instance's UID as another kind's is anybody's.
#[must_use]
pub fn launcher_of(pod: &Pod) -> Option<&str> {
    instance_of(pod).filter(|owner| !is_consumer(pod.name(), owner)).map(|owner| owner.uid.as_str())
}

/// UID of the instance whose claims a pod uses before they are filled.
#[must_use]
pub fn consumer_of(pod: &Pod) -> Option<&str> {
    instance_of(pod).filter(|owner| is_consumer(pod.name(), owner)).map(|owner| owner.uid.as_str())
}

/// The instance that a pod was made for.
pub(crate) fn instance_of(pod: &Pod) -> Option<&OwnerReference> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    is_instance(owner).then_some(owner)
}

/// The instances that an object was made for, as it is stored.
pub(crate) fn instances_in(object: &Map<String, Value>) -> Vec<OwnerReference> {
    let owners = object.get("metadata").and_then(|metadata| metadata.get("ownerReferences"));
    let owners: Vec<OwnerReference> = owners.and_then(|all| Vec::deserialize(all).ok()).unwrap_or_default();
    owners.into_iter().filter(|owner| owner.controller == Some(true) && is_instance(owner)).collect()
}

/// The instance that a pod is the launcher of, as [`launcher_of`] has it, of a pod as it is stored.
pub(crate) fn launched_by(pod: &Map<String, Value>) -> Option<OwnerReference> {
    let name = pod.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    instances_in(pod).into_iter().next().filter(|owner| !is_consumer(name.unwrap_or_default(), owner))
}

/// What a pod of an instance is for, its name says: nobody can change that of a launcher, and so have it taken for none.
fn is_consumer(pod: &str, instance: &OwnerReference) -> bool {
    pod.starts_with(CONSUMER) && pod == consumer_pod_name(&instance.name, &instance.uid)
}

/// Whether a reference is to an instance.
pub(crate) fn is_instance(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    group == GROUP && owner.kind == VirtualMachineInstance::resource().kind
}

/// The DataVolume that a claim is there for, and by which it is filled.
pub(crate) fn filler_of(claim: &PersistentVolumeClaim) -> Option<&OwnerReference> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true) && owner.kind == DATA_VOLUME)
}

/// What the names of claims with machines' state begin with; upstream's.
pub const STATE_CLAIM_PREFIX: &str = "persistent-state-for-";

/// Whether a machine keeps state beside its disks: the variables of its firmware (`efi.persistent`).
#[must_use]
pub fn keeps_state(domain: &DomainSpec) -> bool {
    let loader = domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    loader.and_then(|loader| loader.efi.as_ref()).is_some_and(|efi| efi.persistent == Some(true))
}

/// Whether a machine has ACPI, and with it a power button.
#[must_use]
pub fn has_acpi(domain: &DomainSpec) -> bool {
    let acpi = domain.features.as_ref().and_then(|features| features.acpi.as_ref());
    acpi.is_none_or(|acpi| acpi.enabled != Some(false))
}

/// Whether a machine has a trusted platform module.
#[must_use]
pub fn has_tpm(domain: &DomainSpec) -> bool {
    domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false))
}

/// Name of the claim that keeps what a machine keeps beside its disks: `persistent-state-for-<machine>-<suffix of its UID>`.
#[must_use]
pub fn state_claim_name(machine: &str, uid: &str) -> String {
    const LONGEST: usize = 253;
    let suffix = derived_suffix(&[uid, "persistent-state"], 5);
    let stem: String = machine.chars().take(LONGEST - STATE_CLAIM_PREFIX.len() - suffix.len() - 1).collect();
    format!("{STATE_CLAIM_PREFIX}{}-{suffix}", stem.trim_end_matches(['-', '.']))
}

/// The volume that stands for that claim where a machine's volumes are enumerated; as KubeVirt calls it, but for names that are cut.
#[must_use]
pub fn state_volume_name(machine: &str) -> String {
    label_value(&format!("{STATE_CLAIM_PREFIX}{machine}"))
}

/// An instance's name as a label value: names of up to 63 characters as they are, longer ones cut and made unique.
#[must_use]
pub fn label_value(name: &str) -> String {
    if name.len() <= NAME_MAX {
        return name.to_owned();
    }
    let suffix = derived_suffix(&[name], 8);
    let stem: String = name.chars().take(NAME_MAX - suffix.len() - 1).collect();
    format!("{}-{suffix}", stem.trim_end_matches(['-', '.']))
}

/// The MAC address of an interface that has none in the spec. It is locally administered and belongs to the machine:
/// a guest keeps it over restarts.
#[must_use]
pub fn mac_address(uid: &str, interface: &str) -> String {
    let mut bytes = uid.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(interface.as_bytes());
    let [_, a, b, c, d, e, ..] = fnv1a(&bytes).to_be_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// What KubeVirt calls interfaces of a network by: eleven digits of its name's SHA-256.
#[must_use]
pub fn hashed_network(name: &str) -> String {
    Sha256::digest(name.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>()
        .chars()
        .take(11)
        .collect()
}

/// A digest of what a child is to be. Keys are in their order, whatever order the fields of its type are in.
pub(crate) fn digest<S: Serialize>(spec: &S) -> String {
    // Specs serialise: their keys are texts.
    let spec = serde_json::to_value(spec).unwrap_or_default();
    Sha256::digest(spec.to_string().as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Name of the ControllerRevision that keeps the spec which a machine was started from.
#[must_use]
pub fn start_revision_name(vm_uid: &str, generation: i64) -> String {
    format!("revision-start-vm-{vm_uid}-{generation}")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::{
        consumer_of, consumer_pod_name, label_value, launched_by, launcher_of, launcher_pod_name, mac_address,
        state_claim_name,
    };

    #[test]
    fn a_launcher_names_its_instance_as_one() {
        let check = |version: &str, kind: &str, controller: bool, wanted: Option<&str>| {
            let owner =
                json!({"apiVersion": version, "kind": kind, "name": "demo", "uid": "u", "controller": controller});
            let stored = json!({"metadata": {"ownerReferences": [owner]}});
            let launched = launched_by(stored.as_object().expect("an object")).map(|owner| owner.uid);
            assert_eq!(launched.as_deref(), wanted, "{version} {kind}");
            let pod: Pod = carrack_types::json::from_value(stored).expect("a pod");
            assert_eq!(launcher_of(&pod), wanted, "{version} {kind}");
        };
        check("kubevirt.io/v1", "VirtualMachineInstance", true, Some("u"));
        check("kubevirt.io/v1", "VirtualMachineInstance", false, None);
        check("kubevirt.io/v1", "VirtualMachine", true, None);
        check("example.com/v1", "VirtualMachineInstance", true, None);
        check("v1", "ConfigMap", true, None);
    }

    #[test]
    fn what_only_uses_claims_is_no_launcher() {
        let check = |name: &str, kind: &str, launcher: Option<&str>, consumer: Option<&str>| {
            let owner =
                json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "name": "demo", "uid": "u", "controller": true});
            let pod = json!({"metadata": {"name": name, "ownerReferences": [owner],
                "annotations": {"kubevirt.io/ephemeral-provisioning": "true"}}});
            let launched = launched_by(pod.as_object().expect("an object")).map(|owner| owner.uid);
            assert_eq!(launched.as_deref(), launcher, "{name} {kind}");
            let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
            assert_eq!((launcher_of(&pod), consumer_of(&pod)), (launcher, consumer), "{name} {kind}");
        };
        check(&launcher_pod_name("demo", "u"), "VirtualMachineInstance", Some("u"), None);
        check(&consumer_pod_name("demo", "u"), "VirtualMachineInstance", None, Some("u"));
        check(&consumer_pod_name("demo", "u"), "VirtualMachine", None, None);
        check(&consumer_pod_name("demo", "another"), "VirtualMachineInstance", Some("u"), None);
        assert!(consumer_pod_name(&"a".repeat(253), "u").len() <= 63);
    }

    #[test]
    fn names_are_derived_and_fit() {
        let uid = "11111111-2222-3333-4444-555555555555";
        let name = launcher_pod_name("demo", uid);
        assert_eq!(name, launcher_pod_name("demo", uid));
        assert!(name.starts_with("virt-launcher-demo-") && name.len() == "virt-launcher-demo-".len() + 5, "{name}");
        assert_ne!(name, launcher_pod_name("demo", "another"));
        let long = "a".repeat(253);
        assert!(launcher_pod_name(&long, uid).len() <= 63);
        let state = state_claim_name("demo", uid);
        assert!(state.starts_with("persistent-state-for-demo-") && state == state_claim_name("demo", uid), "{state}");
        assert_ne!(state, state_claim_name("demo", "another"));
        assert_eq!(state_claim_name(&long, uid).len(), 253);
        assert!(label_value(&long).len() <= 63);
        assert_ne!(label_value(&long), label_value(&"a".repeat(252)));
        assert_eq!(label_value("demo"), "demo");
    }

    #[test]
    fn mac_addresses_are_local_unicast_and_stable() {
        let mac = mac_address("uid", "default");
        assert_eq!(mac, mac_address("uid", "default"));
        assert_ne!(mac, mac_address("uid", "second"));
        assert!(mac.starts_with("02:") && mac.len() == 17, "{mac}");
    }
}
