//! The VirtualMachineInstanceReplicaSet controller: keeps a number of equal instances.
//!
//! What is made and deleted rests on the set as it was read: a create that arrives late, when its name is free again, would be
//! one too many. An instance is named after the set's UID and the smallest number whose name nobody has, so that one that is made twice
//! is made once. Finished instances are deleted and replaced; what is going away does not count any more, and has its
//! name until it is gone.

use std::collections::BTreeSet;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Setup, Time, View, controller_ref, derived_suffix};
use carrack_types::kubevirt::others::ReplicaSetStatus;
use carrack_types::kubevirt::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, phase, set_condition,
};
use carrack_types::resource::Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;

use crate::diff::merge_patch;

/// Most instances that are made or deleted at once, as upstream.
const BURST: usize = 10;

/// Keeps replica sets.
pub struct ReplicaSetController;

impl Controller for ReplicaSetController {
    fn name(&self) -> &'static str {
        "virtualmachineinstancereplicaset"
    }
    fn event_source(&self) -> &'static str {
        "virtualmachinereplicaset-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineInstanceReplicaSet>();
        setup.watch_owned::<VirtualMachineInstance, VirtualMachineInstanceReplicaSet>();
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<VirtualMachineInstanceReplicaSet>(&key.namespace, &key.name) else {
            return Plan::none();
        };
        let owned: Vec<&VirtualMachineInstance> = view
            .cache::<VirtualMachineInstance>()
            .by_owner(set.uid())
            .filter(|vmi| vmi.controller_uid() == Some(set.uid()))
            .map(AsRef::as_ref)
            .collect();
        let report = report(set, &owned, now);
        if set.is_deleting() || set.spec.paused {
            return report;
        }
        let taken: BTreeSet<&str> = view
            .cache::<VirtualMachineInstance>()
            .iter()
            .filter(|vmi| vmi.namespace() == key.namespace)
            .map(|vmi| vmi.name())
            .collect();
        // The status comes last: what is made and deleted rests on the set as it was read.
        scale(set, &owned, &taken).resting_on(&Premise::unchanged(set.as_ref())).then(report)
    }
}

/// Whether an instance counts.
fn counts(vmi: &VirtualMachineInstance) -> bool {
    !vmi.is_final() && !vmi.is_deleting()
}

fn wanted(set: &VirtualMachineInstanceReplicaSet) -> usize {
    usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0)
}

/// Makes instances that are missing, and deletes those that are too many or have finished.
fn scale(set: &VirtualMachineInstanceReplicaSet, owned: &[&VirtualMachineInstance], taken: &BTreeSet<&str>) -> Plan {
    let mut plan = Plan::none();
    for over in owned.iter().filter(|vmi| vmi.is_final() && !vmi.is_deleting()) {
        plan = delete(set, over, plan);
    }
    let mut live: Vec<&VirtualMachineInstance> = owned.iter().copied().filter(|vmi| counts(vmi)).collect();
    let wanted = wanted(set);
    if live.len() > wanted {
        // Those that serve go last, and of the others the youngest first.
        live.sort_by(|a, b| {
            let rank = |vmi: &VirtualMachineInstance| (vmi.is_true("Ready"), vmi.phase() == phase::RUNNING);
            rank(a).cmp(&rank(b)).then_with(|| b.metadata.creation_timestamp.cmp(&a.metadata.creation_timestamp))
        });
        let many = live.len() - wanted;
        return live.into_iter().take(many.min(BURST)).fold(plan, |plan, vmi| delete(set, vmi, plan));
    }
    let free = (0_u64..)
        .map(|n| format!("{}-{}", set.name(), derived_suffix(&[set.uid(), "vmi", &n.to_string()], 5)))
        .filter(|name| !taken.contains(name.as_str()));
    for name in free.take((wanted - live.len()).min(BURST)) {
        let message = format!("Created virtual machine instance: {name}");
        plan = plan.create(&instance(set, name)).event(EventRecord::normal(set, "SuccessfulCreate", message));
    }
    plan
}

fn delete(set: &VirtualMachineInstanceReplicaSet, vmi: &VirtualMachineInstance, plan: Plan) -> Plan {
    let message = format!("Stopped the virtual machine by deleting the virtual machine instance {}", vmi.uid());
    plan.delete(vmi).event(EventRecord::normal(set, "SuccessfulDelete", message))
}

fn instance(set: &VirtualMachineInstanceReplicaSet, name: String) -> VirtualMachineInstance {
    let template = set.spec.template.clone().unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    VirtualMachineInstance {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![controller_ref(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// Brings the status up to date, if it is not.
fn report(set: &VirtualMachineInstanceReplicaSet, owned: &[&VirtualMachineInstance], now: Time) -> Plan {
    let old = set.status.clone().unwrap_or_default();
    let mut new: ReplicaSetStatus = old.clone();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    new.replicas = count(owned.iter().filter(|vmi| counts(vmi)).count());
    new.ready_replicas = count(owned.iter().filter(|vmi| counts(vmi) && vmi.is_true("Ready")).count());
    new.label_selector = selector_text(&set.spec.selector);
    if set.spec.paused {
        let paused = Condition::new("ReplicaPaused", "True", "Paused", "Controller got paused");
        set_condition(&mut new.conditions, paused, &now.meta());
    } else {
        new.conditions.retain(|condition| condition.r#type != "ReplicaPaused");
    }
    match merge_patch(&old, &new) {
        Some(patch) => Plan::none().patch_status(set, json!({"status": patch})),
        None => Plan::none(),
    }
}

/// A selector as text, for `/scale`.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let others = selector.match_expressions.iter().flatten().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.clone().unwrap_or_default().join(","));
        match requirement.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    equal.chain(others).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Controller, Key, Plan, Time, Write};
    use carrack_types::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
    use serde_json::{Value, json};

    use super::ReplicaSetController;

    fn plan(spec: Value, instances: &[Value]) -> Plan {
        let mut object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}}}});
        for (key, value) in spec.as_object().expect("an object") {
            object["spec"][key] = value.clone();
        }
        let set: VirtualMachineInstanceReplicaSet = serde_json::from_value(object).expect("a set");
        let instances = instances.iter().enumerate().map(|(n, status)| {
            let object = json!({"metadata": {"name": format!("web-{n}"), "namespace": "ns", "uid": format!("i{n}"),
                "resourceVersion": "2", "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
                    "kind": "VirtualMachineInstanceReplicaSet", "name": "web", "uid": "u", "controller": true}]},
                "status": status});
            serde_json::from_value::<VirtualMachineInstance>(object).expect("an instance")
        });
        let caches = Caches::new().with([set]).with(instances);
        ReplicaSetController.reconcile(&Key::new("ns", "web"), &caches.view(), Time::from_unix_s(9))
    }

    fn acts(plan: &Plan) -> Vec<String> {
        let act = |write: &Write| match write {
            Write::Create { .. } => Some("create".to_owned()),
            Write::Delete { key, .. } => Some(format!("delete {}", key.name)),
            _ => None,
        };
        plan.writes.iter().filter_map(act).collect()
    }

    #[test]
    fn as_many_as_wanted() {
        let ready = || json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let check = |spec: Value, instances: &[Value], wanted: &[&str]| {
            assert_eq!(acts(&plan(spec.clone(), instances)), wanted, "{spec} {instances:?}");
        };
        check(json!({"replicas": 2}), &[], &["create", "create"]);
        check(json!({}), &[], &["create"]);
        check(json!({"replicas": 50}), &[], &["create"; 10]);
        check(json!({"replicas": 2}), &[ready()], &["create"]);
        check(json!({"replicas": 1}), &[ready(), json!({"phase": "Scheduling"})], &["delete web-1"]);
        check(json!({"replicas": 0}), &[ready()], &["delete web-0"]);
        check(json!({"replicas": 1}), &[json!({"phase": "Failed"})], &["delete web-0", "create"]);
        check(json!({"replicas": 1, "paused": true}), &[], &[]);
        let named = |plan: &Plan| -> Vec<String> {
            plan.writes
                .iter()
                .filter_map(|write| match write {
                    Write::Create { object, .. } => object["metadata"]["name"].as_str().map(str::to_owned),
                    _ => None,
                })
                .collect()
        };
        let names = named(&plan(json!({"replicas": 3}), &[]));
        assert_eq!(names, named(&plan(json!({"replicas": 3}), &[])));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn the_status_counts() {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let plan = plan(json!({"replicas": 3}), &[ready, json!({"phase": "Scheduling"}), json!({"phase": "Failed"})]);
        let [.., Write::Patch { sub: "status", patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
        assert_eq!(patch["status"], json!({"replicas": 2, "readyReplicas": 1, "labelSelector": "app=web"}));
    }
}
