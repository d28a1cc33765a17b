//! The VirtualMachineInstanceReplicaSet controller: keeps a number of equal instances.
//!
//! What is made and deleted rests on the set as it was read: a create that arrives late, when its name is free again, would be
//! one too many. An instance is named after the set's UID and the smallest number whose name nobody has, so that one that is made twice
//! is made once. What the selector chooses and nobody owns is taken over. Finished instances are deleted and replaced,
//! and so are those whose pod goes, such as from a node that is lost; what is going away does not count any more, and
//! has its name until it is gone. Only one that failed before it had a pod keeps its place for a while: the next one would fail as
//! soon as it is made.

use std::time::Duration;

use carrack_engine::{
    Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write, controller_ref, derived_suffix,
};
use carrack_types::kubevirt::others::ReplicaSetStatus;
use carrack_types::kubevirt::vmi::PhaseTransition;
use carrack_types::kubevirt::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, find_condition, phase, set_condition,
};
use carrack_types::resource::Object;
use carrack_types::selector::selects;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use serde_json::json;

use crate::controllers::vmi::POD_TERMINATING;
use crate::diff::merge_patch;

/// Most instances that are made or deleted at once, as upstream.
const BURST: usize = 10;

/// How long an instance that failed before it had a pod keeps its place. (Upstream makes another one at once, and so without end.)
const RETRY: Duration = Duration::from_secs(10);

/// Most characters of what instances' names begin with, so that a name with its suffix may be a label's value.
const STEM_MAX: usize = 57;

const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";
/// Reasons of a failure, and of its events.
const FAILED_CREATE: &str = "FailedCreate";
const FAILED_DELETE: &str = "FailedDelete";

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
        // One that nobody owns is news to the sets that choose it.
        setup.index::<VirtualMachineInstance>(BY_ORPHANED, by_orphaned);
        setup.watch::<VirtualMachineInstance>(|vmi, view| {
            if vmi.controller_uid().is_some() {
                return Vec::new();
            }
            let sets = view.cache::<VirtualMachineInstanceReplicaSet>().in_namespace(vmi.namespace());
            let chosen = sets.filter(|set| is_sound(set) && chooses(set, vmi));
            chosen.map(|set| Key::of(set.as_ref())).collect()
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<VirtualMachineInstanceReplicaSet>(&key.namespace, &key.name) else {
            return Plan::none();
        };
        if !is_sound(set) {
            return Plan::none();
        }
        let owned = owned(set, view);
        let claims = claim(set, &owned, view);
        if !claims.is_none() {
            return claims;
        }
        let report = report(set, &owned, None, now);
        if set.is_deleting() || set.spec.paused {
            return report;
        }
        // The status comes last: what is made and deleted rests on the set as it was read.
        let plan = scale(set, &owned, view, now).resting_on(&Premise::unchanged(set.as_ref())).then(report);
        owned.iter().filter_map(|vmi| held(vmi, now)).fold(plan, Plan::requeue_after)
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<VirtualMachineInstanceReplicaSet>(&key.namespace, &key.name) else {
            return Plan::none();
        };
        let error = &refusal.error.message;
        let (reason, message) = match refusal.write {
            Write::Create { .. } => (FAILED_CREATE, format!("Error creating virtual machine instance: {error}")),
            Write::Delete { key, .. } => {
                (FAILED_DELETE, format!("Error deleting virtual machine instance {}: {error}", key.name))
            }
            _ => return Plan::none(),
        };
        let event = EventRecord::warning(set.as_ref(), reason, message);
        report(set, &owned(set, view), Some((reason, error)), now).event(event)
    }
}

/// Index of instances that nobody owns, by namespace.
const BY_ORPHANED: &str = "orphaned";

fn by_orphaned(vmi: &VirtualMachineInstance) -> Vec<String> {
    vmi.controller_uid().is_none().then(|| vmi.namespace().to_owned()).into_iter().collect()
}

/// The instances of a set.
fn owned<'a>(set: &VirtualMachineInstanceReplicaSet, view: &'a View<'_>) -> Vec<&'a VirtualMachineInstance> {
    let owned = view.cache::<VirtualMachineInstance>().by_owner(set.uid());
    owned.filter(|vmi| vmi.controller_uid() == Some(set.uid())).map(AsRef::as_ref).collect()
}

fn chooses(set: &VirtualMachineInstanceReplicaSet, vmi: &VirtualMachineInstance) -> bool {
    selects(&set.spec.selector, vmi.metadata.labels.as_ref())
}

/// Whether the set chooses what it makes, and not everything. Admission refuses others, and upstream leaves them alone, too.
fn is_sound(set: &VirtualMachineInstanceReplicaSet) -> bool {
    let made = set.spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = made.and_then(|meta| meta.labels.as_ref()).filter(|labels| !labels.is_empty());
    labels.is_some() && set.spec.selector != LabelSelector::default() && selects(&set.spec.selector, labels)
}

/// Instances that the set chooses and nobody owns become its own, such as those that a set of its name has left behind; what it does not
/// choose any more is let go. A change of an instance rests on the instance as it was read, and on the set.
fn claim(set: &VirtualMachineInstanceReplicaSet, owned: &[&VirtualMachineInstance], view: &View<'_>) -> Plan {
    if set.is_deleting() {
        return Plan::none();
    }
    let lost = owned.iter().copied().filter(|vmi| !vmi.is_deleting() && !chooses(set, vmi));
    let found = view.cache::<VirtualMachineInstance>().by_index(BY_ORPHANED, set.namespace()).map(AsRef::as_ref);
    let found = found.filter(|vmi| !vmi.is_deleting() && chooses(set, vmi));
    let plan = lost.chain(found).fold(Plan::none(), |plan, vmi| {
        let others = vmi.metadata.owner_references.iter().flatten().filter(|owner| owner.uid != set.uid());
        let mine = chooses(set, vmi).then(|| controller_ref(set));
        let owners: Vec<OwnerReference> = others.cloned().chain(mine).collect();
        plan.patch(vmi, json!({"metadata": {"ownerReferences": owners}}))
    });
    plan.resting_on(&Premise::unchanged(set))
}

/// Whether an instance counts.
fn counts(vmi: &VirtualMachineInstance, now: Time) -> bool {
    !vmi.is_deleting() && !is_over(vmi, now)
}

/// Whether another one takes its place: it has finished, or its pod goes, which nobody takes back. Where the node is
/// lost, nobody may say for long what became of its guest; a set of equals need not wait for that. (Upstream:
/// `filterUnkownVMIs` in the replica set's controller.)
fn is_over(vmi: &VirtualMachineInstance, now: Time) -> bool {
    let loses_pod = |ready: &Condition| ready.status == "False" && ready.reason == POD_TERMINATING;
    let is_final = vmi.is_final() && held(vmi, now).is_none();
    is_final || vmi.condition("Ready").is_some_and(loses_pod)
}

/// How long an instance still keeps its place that failed before it had a pod: what it failed by, such as a DataVolume that is not
/// filled any more, is there for the next one, too. By a clock that was set back since then, it does not.
fn held(vmi: &VirtualMachineInstance, now: Time) -> Option<Duration> {
    if vmi.phase() != phase::FAILED || vmi.is_deleting() {
        return None;
    }
    let had_pod =
        |entry: &PhaseTransition| [phase::SCHEDULING, phase::SCHEDULED, phase::RUNNING].contains(&entry.phase.as_str());
    let entered = vmi.status.as_ref().map_or(&[][..], |status| &status.phase_transition_timestamps);
    let at = Time::from(entered.last()?.phase_transition_timestamp.as_ref()?);
    let left = (at + RETRY).since(now);
    let is_held = !entered.iter().any(had_pod) && !left.is_zero() && left <= RETRY;
    is_held.then_some(left)
}

fn wanted(set: &VirtualMachineInstanceReplicaSet) -> usize {
    usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0)
}

/// Makes instances that are missing, and deletes those that are too many or have finished.
fn scale(
    set: &VirtualMachineInstanceReplicaSet,
    owned: &[&VirtualMachineInstance],
    view: &View<'_>,
    now: Time,
) -> Plan {
    let mut plan = Plan::none();
    for over in owned.iter().filter(|vmi| is_over(vmi, now) && !vmi.is_deleting()).take(BURST) {
        plan = delete(set, over, plan, "Deleted finished virtual machine:");
    }
    let mut live: Vec<&VirtualMachineInstance> = owned.iter().copied().filter(|vmi| counts(vmi, now)).collect();
    let wanted = wanted(set);
    if live.len() > wanted {
        // Those that serve go last, and of the others the youngest first.
        live.sort_by(|a, b| {
            let rank = |vmi: &VirtualMachineInstance| (vmi.is_true("Ready"), vmi.phase() == phase::RUNNING);
            rank(a).cmp(&rank(b)).then_with(|| b.metadata.creation_timestamp.cmp(&a.metadata.creation_timestamp))
        });
        let many = live.len() - wanted;
        let said = "Stopped the virtual machine by deleting the virtual machine instance";
        return live.into_iter().take(many.min(BURST)).fold(plan, |plan, vmi| delete(set, vmi, plan, said));
    }
    let free = (0_u64..)
        .map(|n| format!("{}-{}", stem(set), derived_suffix(&[set.uid(), "vmi", &n.to_string()], 5)))
        .filter(|name| view.get::<VirtualMachineInstance>(set.namespace(), name).is_none());
    for name in free.take((wanted - live.len()).min(BURST)) {
        let message = format!("Started the virtual machine by creating the new virtual machine instance {name}");
        plan = plan.create(&instance(set, name)).told(EventRecord::normal(set, "SuccessfulCreate", message));
    }
    plan
}

/// What the names of a set's instances begin with: what their template is called, or else the set. (Upstream:
/// `getVirtualMachineBaseName`; the API server cuts what it completes to a name, too.)
fn stem(set: &VirtualMachineInstanceReplicaSet) -> &str {
    let made = set.spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let given = made.into_iter().flat_map(|meta| [&meta.name, &meta.generate_name]).flatten().map(String::as_str);
    let name = given.chain([set.name()]).find(|name| !name.is_empty()).unwrap_or_default();
    let end = name.char_indices().nth(STEM_MAX).map_or(name.len(), |(at, _)| at);
    name[..end].trim_end_matches(['-', '.'])
}

fn delete(set: &VirtualMachineInstanceReplicaSet, vmi: &VirtualMachineInstance, plan: Plan, said: &str) -> Plan {
    plan.delete(vmi).told(EventRecord::normal(set, "SuccessfulDelete", format!("{said} {}", vmi.uid())))
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

/// Brings the status up to date, if it is not. A failure that was told stands as long as the number is not what it should be.
fn report(
    set: &VirtualMachineInstanceReplicaSet,
    owned: &[&VirtualMachineInstance],
    failure: Option<(&str, &str)>,
    now: Time,
) -> Plan {
    let old = set.status.clone().unwrap_or_default();
    let mut new: ReplicaSetStatus = old.clone();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let live = owned.iter().filter(|vmi| counts(vmi, now)).count();
    new.replicas = count(live);
    new.ready_replicas = count(owned.iter().filter(|vmi| counts(vmi, now) && vmi.is_true("Ready")).count());
    new.label_selector = selector_text(&set.spec.selector);
    let was_paused = find_condition(&old.conditions, PAUSED).is_some();
    if set.spec.paused {
        let paused = Condition::new(PAUSED, "True", "Paused", "Controller got paused");
        set_condition(&mut new.conditions, paused, &now.meta());
    } else {
        new.conditions.retain(|condition| condition.r#type != PAUSED);
    }
    let finished = owned.iter().any(|vmi| is_over(vmi, now) && !vmi.is_deleting());
    match failure {
        Some((reason, why)) => {
            set_condition(&mut new.conditions, Condition::new(FAILURE, "True", reason, why), &now.meta());
        }
        None => new.conditions.retain(|condition| {
            let stands = match condition.reason.as_str() {
                FAILED_CREATE => live < wanted(set),
                _ => live > wanted(set) || finished,
            };
            condition.r#type != FAILURE || stands && !set.spec.paused && !set.is_deleting()
        }),
    }
    let Some(patch) = merge_patch(&old, &new) else { return Plan::none() };
    let plan = Plan::none().patch_status(set, json!({"status": patch}));
    match (was_paused, set.spec.paused) {
        (false, true) => plan.told(EventRecord::normal(set, "SuccessfulPaused", "Paused")),
        (true, false) => plan.told(EventRecord::normal(set, "SuccessfulResumed", "Resumed")),
        _ => plan,
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
    use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
    use carrack_types::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
    use serde_json::{Value, json};

    use super::{BY_ORPHANED, Duration, ReplicaSetController, by_orphaned};

    fn caches(spec: Value, instances: &[Value]) -> Caches {
        let mut object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}}}});
        for (key, value) in spec.as_object().expect("an object") {
            let whole = if key == "status" { &mut object } else { &mut object["spec"] };
            whole[key] = value.clone();
        }
        let set: VirtualMachineInstanceReplicaSet = carrack_types::json::from_value(object).expect("a set");
        let instances = instances.iter().enumerate().map(|(n, status)| {
            let mut object = json!({"metadata": {"name": format!("web-{n}"), "namespace": "ns", "uid": format!("i{n}"),
                "resourceVersion": "2", "labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
                    "kind": "VirtualMachineInstanceReplicaSet", "name": "web", "uid": "u", "controller": true}]},
                "status": status});
            for (key, value) in status["metadata"].as_object().into_iter().flatten() {
                object["metadata"][key] = value.clone();
            }
            carrack_types::json::from_value::<VirtualMachineInstance>(object).expect("an instance")
        });
        Caches::new().with_index(BY_ORPHANED, by_orphaned).with([set]).with(instances)
    }

    const NOW: Time = Time::from_unix_s(9);

    fn plan(spec: Value, instances: &[Value]) -> Plan {
        ReplicaSetController.reconcile(&Key::new("ns", "web"), &caches(spec, instances).view(), NOW)
    }

    /// The owners that instances are given.
    fn owners(plan: &Plan) -> Vec<(String, Value)> {
        let given = |write: &Write| match write {
            Write::Patch { key, patch, sub: "", .. } => {
                Some((key.name.clone(), patch["metadata"]["ownerReferences"].clone()))
            }
            _ => None,
        };
        plan.writes.iter().filter_map(given).collect()
    }

    #[test]
    fn what_the_selector_chooses_is_taken_over() {
        let running = || json!({"phase": "Running"});
        let orphan = json!({"phase": "Running", "metadata": {"ownerReferences": []}});
        let taken = plan(json!({"replicas": 2}), &[running(), orphan.clone()]);
        let [(name, given)] = &owners(&taken)[..] else { panic!("{taken:?}") };
        assert_eq!((name.as_str(), &given[0]["uid"], &given[0]["controller"]), ("web-1", &json!("u"), &json!(true)));
        assert_eq!((acts(&taken).len(), taken.premises.len()), (0, 1), "it is looked at again with what it has then");
        let other = json!({"phase": "Running", "metadata": {"labels": {"app": "other"}}});
        let released = plan(json!({"replicas": 2}), &[running(), other]);
        assert_eq!(owners(&released), [("web-1".to_owned(), json!([]))]);
        // What belongs to somebody else, or is going, is left alone.
        let stranger = json!({"phase": "Running", "metadata": {"ownerReferences": [{"apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine", "name": "vm", "uid": "vm", "controller": true}]}});
        let going = json!({"metadata": {"ownerReferences": [], "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(owners(&plan(json!({"replicas": 1}), &[running(), stranger, going])).is_empty());
        // A set that chooses everything, or not what it makes, does nothing.
        for selector in [json!({}), json!({"matchLabels": {"app": "other"}})] {
            assert!(plan(json!({"replicas": 3, "selector": selector}), std::slice::from_ref(&orphan)).is_none());
        }
    }

    #[test]
    fn refusals_are_told() {
        let error: StatusError = serde_json::from_value(json!({"message": "exceeded quota"})).expect("a status");
        let refuse = |spec: Value, write: &Write| {
            let refusal = Refusal { write, error: &error };
            ReplicaSetController.refused(&Key::new("ns", "web"), &caches(spec, &[]).view(), &refusal, NOW)
        };
        let made = plan(json!({"replicas": 1}), &[]).writes.swap_remove(0);
        let told = refuse(json!({"replicas": 1}), &made);
        assert_eq!(told.events[0].message, "Error creating virtual machine instance: exceeded quota");
        let conditions = |plan: &Plan| match plan.writes.last() {
            Some(Write::Patch { sub: "status", patch, .. }) => patch["status"]["conditions"].clone(),
            _ => Value::Null,
        };
        let failure = conditions(&told)[0].clone();
        let of = |field: &str| failure[field].as_str().unwrap_or_default().to_owned();
        let all = ["type", "status", "reason", "message"].map(of);
        assert_eq!(all, ["ReplicaFailure", "True", "FailedCreate", "exceeded quota"]);
        // It stands until there are enough.
        let failed = |replicas: u8| json!({"replicas": replicas, "status": {"conditions": [failure]}});
        assert_eq!(conditions(&plan(failed(2), &[json!({"phase": "Running"})])), Value::Null);
        let enough = plan(failed(1), &[json!({"phase": "Running"})]);
        let Some(Write::Patch { sub: "status", patch, .. }) = enough.writes.last() else { panic!("{enough:?}") };
        let left = patch["status"].get("conditions").expect("they change");
        assert!(left.as_array().is_none_or(Vec::is_empty), "{left}");
    }

    #[test]
    fn a_pause_is_told() {
        let paused = plan(json!({"replicas": 1, "paused": true}), &[]);
        let told = |plan: &Plan| plan.told.iter().map(|(_, event)| event.reason.clone()).collect::<Vec<_>>();
        assert_eq!(told(&paused), ["SuccessfulPaused"]);
        let was = json!({"conditions": [{"type": "ReplicaPaused", "status": "True"}]});
        assert_eq!(told(&plan(json!({"replicas": 0, "status": was}), &[])), ["SuccessfulResumed"]);
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
        let not_ready = |reason: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False", "reason": reason}]});
        // Its pod was evicted, and its node may never say what became of it.
        check(json!({"replicas": 1}), &[not_ready("PodTerminating")], &["delete web-0", "create"]);
        check(json!({"replicas": 1}), &[ready(), not_ready("PodTerminating")], &["delete web-1"]);
        check(json!({"replicas": 1}), &[not_ready("GuestNotRunning")], &[]);
        // A node that is lost may have had many.
        let many = [(); 12].map(|()| not_ready("PodTerminating"));
        assert_eq!(acts(&plan(json!({"replicas": 0}), &many)).len(), 10);
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

    /// One that failed by what the next one has before it, too, is not followed by another at once, and so on.
    #[test]
    fn what_fails_before_it_has_a_pod_is_replaced_after_a_while() {
        let failed = |entered: &[&str], at: &str| {
            let entry = |phase: &&str| json!({"phase": phase, "phaseTransitionTimestamp": at});
            let entered: Vec<Value> = entered.iter().map(entry).collect();
            json!({"phase": "Failed", "phaseTransitionTimestamps": entered})
        };
        let check = |replicas: u8, instance: Value, wanted: &[&str], again_s: Option<u64>| {
            let plan = plan(json!({"replicas": replicas}), std::slice::from_ref(&instance));
            assert_eq!(acts(&plan), wanted, "{instance}");
            assert_eq!(plan.requeue_after, again_s.map(Duration::from_secs), "{instance}");
        };
        let without = ["Pending", "Failed"];
        let just_now = "1970-01-01T00:00:05Z";
        check(1, failed(&without, just_now), &[], Some(6));
        check(2, failed(&without, just_now), &["create"], Some(6));
        check(0, failed(&without, just_now), &["delete web-0"], Some(6));
        check(1, failed(&without, "1969-12-31T23:59:59Z"), &["delete web-0", "create"], None);
        // The clock was set back.
        check(1, failed(&without, "1970-01-01T01:00:00Z"), &["delete web-0", "create"], None);
        for with_pod in [&["Pending", "Scheduling", "Failed"][..], &["Scheduled", "Failed"], &["Running", "Failed"]] {
            check(1, failed(with_pod, just_now), &["delete web-0", "create"], None);
        }
    }

    #[test]
    fn instances_are_called_after_their_template_or_their_set() {
        let check = |template: Value, set: &str, stem: &str| {
            let mut meta = json!({"labels": {"app": "web"}});
            for (key, value) in template.as_object().expect("an object") {
                meta[key] = value.clone();
            }
            let object = json!({"metadata": {"name": set, "uid": "u"},
                "spec": {"selector": {}, "template": {"metadata": meta, "spec": {"domain": {"devices": {}}}}}});
            let set: VirtualMachineInstanceReplicaSet = carrack_types::json::from_value(object).expect("a set");
            assert_eq!(super::stem(&set), stem, "{template}");
        };
        check(json!({}), "web", "web");
        check(json!({"name": "guest", "generateName": "other-"}), "web", "guest");
        check(json!({"name": "", "generateName": "guest-"}), "web", "guest");
        // 63 characters with the suffix.
        check(json!({}), &"a".repeat(253), &"a".repeat(57));
        check(json!({}), &format!("{}-{}", "a".repeat(56), "b".repeat(9)), &"a".repeat(56));
    }

    #[test]
    fn the_status_counts() {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let loses_pod = json!({"phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "reason": "PodTerminating"}]});
        let instances = [ready, json!({"phase": "Scheduling"}), json!({"phase": "Failed"}), loses_pod];
        let plan = plan(json!({"replicas": 3}), &instances);
        let [.., Write::Patch { sub: "status", patch, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
        assert_eq!(patch["status"], json!({"replicas": 2, "readyReplicas": 1, "labelSelector": "app=web"}));
    }
}
