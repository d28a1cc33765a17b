//! What is kept of machines and claims to tell of them.
//!
//! A typed machine has room for every field that there is, and the cache has it so only while it is looked at: whoever held
//! that value here would hold it for good. So what is told of a machine is kept as words, and read when somebody asks.

use std::sync::Arc;

use carrack_types::kubevirt::domain::DomainSpec;
use carrack_types::kubevirt::vm::VirtualMachineInstanceTemplateSpec;
use carrack_types::kubevirt::{
    Quantity, VirtualMachine, VirtualMachineInstanceSpec, VirtualMachineSpec, VirtualMachineStatus,
};
use carrack_types::resource::Object;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::machines::{ANNOTATIONS, CONDITIONS, amount};

/// A machine. A copy of it has the same words.
#[derive(Clone)]
pub(super) struct Machine {
    /// Its UID.
    pub uid: String,
    words: Arc<[u8]>,
}

impl Machine {
    /// What is told of a machine.
    pub fn of(vm: &VirtualMachine) -> Self {
        let words = serde_json::to_vec(&told(vm)).unwrap_or_else(|error| {
            tracing::error!(name = vm.name(), %error, "nothing can be told of a machine");
            Vec::new()
        });
        Self { uid: vm.uid().to_owned(), words: words.into() }
    }

    /// The machine with what is told of it; none where nothing could be kept.
    pub fn open(&self) -> Option<VirtualMachine> {
        serde_json::from_slice(&self.words).ok()
    }
}

fn told(vm: &VirtualMachine) -> VirtualMachine {
    let meta = &vm.metadata;
    let template = vm.spec.template.as_ref().map(|template| {
        let annotations = template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
        let annotations = annotations.into_iter().flatten().filter(|(name, _)| name.starts_with(ANNOTATIONS));
        let domain = &template.spec.domain;
        VirtualMachineInstanceTemplateSpec {
            metadata: Some(ObjectMeta {
                annotations: Some(annotations.map(|(name, value)| (name.clone(), value.clone())).collect()),
                ..ObjectMeta::default()
            }),
            spec: VirtualMachineInstanceSpec {
                domain: DomainSpec {
                    resources: domain.resources.clone(),
                    cpu: domain.cpu.clone(),
                    memory: domain.memory.clone(),
                    machine: domain.machine.clone(),
                    ..DomainSpec::default()
                },
                // Others may have a whole user's data in them.
                volumes: template.spec.volumes.iter().filter(|volume| volume.claim_name().is_some()).cloned().collect(),
                ..VirtualMachineInstanceSpec::default()
            },
        }
    });
    let status = vm.status.as_ref().map(|status| {
        let conditions = status.conditions.iter().filter(|condition| CONDITIONS.contains(&&*condition.r#type));
        VirtualMachineStatus {
            printable_status: status.printable_status.clone(),
            conditions: conditions.cloned().collect(),
            ..VirtualMachineStatus::default()
        }
    });
    VirtualMachine {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            creation_timestamp: meta.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineSpec {
            instancetype: vm.spec.instancetype.clone(),
            preference: vm.spec.preference.clone(),
            template,
            ..VirtualMachineSpec::default()
        },
        status,
    }
}

/// A claim.
#[derive(Clone)]
pub(super) struct Claim {
    /// How much it asks for, bytes.
    pub bytes: f64,
    /// How its volume is seen: Filesystem or Block.
    pub mode: String,
}

impl Claim {
    /// What is told of a claim that asks for some bytes.
    pub fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        let spec = claim.spec.as_ref()?;
        let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
        let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
        Some(Self { bytes: amount(&Quantity(storage.0.clone()))?, mode: mode.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controllers::testing::of;

    /// What is told stays, and what is not takes no room.
    #[test]
    fn what_is_told_stays() {
        let check = |whole: &Value, kept: &Value| {
            let machine = Machine::of(&of::<VirtualMachine>(whole.clone()));
            assert_eq!(machine.open(), Some(of::<VirtualMachine>(kept.clone())), "{whole}");
        };
        let name = json!({"name": "m", "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"});
        check(&json!({"metadata": name, "spec": {}}), &json!({"metadata": name, "spec": {}}));

        let claims = json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "dataVolume": {"name": "d"}}]);
        let mut volumes = claims.clone();
        let seed = json!({"name": "seed", "cloudInitNoCloud": {"userData": "#cloud-config\n"}});
        volumes.as_array_mut().expect("a list").push(seed);
        let told = json!({"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "machine": {"type": "q35"},
            "resources": {"requests": {"memory": "2Gi"}, "limits": {"cpu": "4"}}, "devices": {}});
        let mut domain = told.clone();
        domain["devices"] = json!({"disks": [{"name": "a", "disk": {"bus": "virtio"}}]});
        domain["firmware"] = json!({"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"});
        let [ready, other] = ["Ready", "LiveMigratable"].map(|kind| json!({"type": kind, "status": "True"}));
        let mut meta = name.clone();
        meta["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
        meta["uid"] = json!("u");
        let matchers = [json!({"name": "small"}), json!({"name": "linux"})];
        check(
            &json!({"metadata": meta,
                "spec": {"runStrategy": "Always", "instancetype": matchers[0], "preference": matchers[1], "template": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"vm.kubevirt.io/os": "linux", "c": "d"}},
                    "spec": {"domain": domain, "volumes": volumes, "networks": [{"name": "default", "pod": {}}]}}},
                "status": {"printableStatus": "Running", "ready": true, "conditions": [ready, other]}}),
            &json!({"metadata": name,
                "spec": {"instancetype": matchers[0], "preference": matchers[1], "template": {
                    "metadata": {"annotations": {"vm.kubevirt.io/os": "linux"}},
                    "spec": {"domain": told, "volumes": claims}}},
                "status": {"printableStatus": "Running", "conditions": [ready]}}),
        );
    }

    #[test]
    fn claims_are_told_by_what_they_ask_for() {
        let check = |spec: Value, expected: Option<(f64, &str)>| {
            let claim = Claim::of(&of::<PersistentVolumeClaim>(json!({"spec": spec})));
            let found = claim.as_ref().map(|claim| (claim.bytes, claim.mode.as_str()));
            assert_eq!(found, expected, "{spec}");
        };
        let asks = |amount: &str| json!({"requests": {"storage": amount}});
        check(json!({}), None);
        check(json!({"resources": {}}), None);
        check(json!({"resources": asks("1Ki")}), Some((1024.0, "Filesystem")));
        check(json!({"resources": asks("2"), "volumeMode": "Block"}), Some((2.0, "Block")));
        check(json!({"resources": asks("much")}), None);
    }
}
