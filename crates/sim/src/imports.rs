//! Machines with a disk that somebody else fills: with a template of a DataVolume, and somebody in CDI's place who takes his
//! time, fails for a while, and lies.
//!
//! ```text
//!   template ─▶ DataVolume ──late──▶ claim with a volume ─▶ (failed) ─▶ done ─▶ (not done after all ─▶ done)
//!                 │     └─▶ (done, it says, and there is no claim)
//!                 └─▶ somebody deletes it ─▶ made anew, while the machine still has the old claim
//! ```
//!
//! What is said of a DataVolume follows from its UID and its age. So it is done in the end, however often who says it dies. Some have a
//! claim of a class whose volumes are given to whoever uses the claim first, and say so until then.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Rng, Setup, Time, View, Write, controller_ref};
use carrack_types::data_volumes::{DATA_VOLUME, DataVolume, phase};
use carrack_types::kubevirt::{VirtualMachine, run_strategy};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::kubevirt::{APP_LABEL, LAUNCHER};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, beside, controller, deleting, key_of, label, owner_kind, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, ask, delete, disk, machine, up_to};

/// The invariant.
pub(crate) const NAME: &str = "launchers-wait-for-their-disks";
/// The name of this part of the work.
pub(crate) const PART: &str = "imports";

/// The class of claims that get a volume for their first consumer, of those that are there.
const CLASS: &str = "imported";

/// What is said of a DataVolume that is not done.
const SCHEDULED: &str = "ImportScheduled";
const IN_PROGRESS: &str = "ImportInProgress";
/// How late its claim is, and how long anything takes after that, at the least and at the most.
const LATE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(4));
const TAKES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Whether there are DataVolumes in a run, given the chance of all the work. Other bugs are looked for among what there was
/// without them.
pub(crate) fn are_there(rng: &Rng, options: &Options) -> bool {
    let is_drawn = match options.hint() {
        Some(bug) => bug == Bug::UnfilledDisksStart,
        // A small run begins with a cluster that knows the kind, and chooses then.
        None => options.small || options.faults && rng.fork("whether disks are imported").one_in(4),
    };
    is_drawn && options.has_machines() && options.has_whole_nodes()
}

/// The definition of the kind, and where it is posted.
pub(crate) fn definition() -> (String, Value) {
    let of = DataVolume::resource();
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let names = json!({"plural": of.plural, "singular": of.kind.to_lowercase(), "kind": of.kind});
    let version = json!({"name": of.version, "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema}});
    let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": of.qualified()},
        "spec": {"group": of.group, "scope": "Namespaced", "names": names, "versions": [version]}});
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), object)
}

/// Machines with such a disk, which start anew, lose their DataVolume, or are deleted.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    let what = What::Create { resource: StorageClass::resource(), object, want: None };
    acts.push(Act { at: Duration::from_millis(100), what });
    for n in 0..1 + rng.below(up_to(3, safety)) {
        let (name, of_disk) = (format!("imported{n}"), format!("imported{n}-disk"));
        let source = json!({"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}});
        let plain = machine(&name, run_strategy::ALWAYS, 5);
        let mut object = crate::roaming::with_volume(plain, "import", "dataVolume", json!({"name": of_disk}));
        object["spec"]["dataVolumeTemplates"] = json!([{"metadata": {"name": of_disk}, "spec": source}]);
        let mut at = between(rng, Duration::from_secs(1), safety / 4);
        let what = What::Create { resource: VirtualMachine::resource(), object, want: Some(("vm", Want::Up)) };
        acts.push(Act { at, what });
        for _ in 0..rng.below(3) {
            at += between(rng, Duration::from_millis(200), safety / 4);
            acts.push(match rng.one_in(2) {
                // It is made anew: under this kind nothing is there in the end, whatever is.
                true => delete(at, DataVolume::resource(), "default", &of_disk, "deleted import"),
                false => ask(at, &name, "restart", json!({})),
            });
        }
        at += between(rng, Duration::from_millis(200), safety / 4);
        if rng.one_in(3) {
            acts.push(delete(at, VirtualMachine::resource(), "default", &name, "vm"));
        }
    }
}

/// What becomes of a DataVolume.
#[derive(Debug)]
struct Script {
    /// From which age on it has a claim.
    claim: Duration,
    /// What is said of it from which age on. That it is done is a lie before it has a claim.
    steps: Vec<(Duration, &'static str)>,
}

impl Script {
    fn of(rng: &mut Rng) -> Self {
        let claim = between(rng, LATE.0, LATE.1);
        let mut steps = vec![(Duration::ZERO, SCHEDULED)];
        if rng.one_in(4) {
            steps.push((claim / 4, phase::SUCCEEDED));
        }
        steps.push((claim, IN_PROGRESS));
        let mut at = claim;
        let mut then = |said: &'static str, rng: &mut Rng| {
            at += between(rng, TAKES.0, TAKES.1);
            steps.push((at, said));
        };
        if rng.one_in(4) {
            then(phase::FAILED, rng);
        }
        then(phase::SUCCEEDED, rng);
        if rng.one_in(4) {
            then(IN_PROGRESS, rng);
            then(phase::SUCCEEDED, rng);
        }
        Self { claim, steps }
    }

    /// What is said at an age.
    fn said(&self, age: Duration) -> &'static str {
        self.steps.iter().rev().find(|(from, _)| *from <= age).map_or(SCHEDULED, |(_, said)| *said)
    }

    /// How soon something else is said.
    fn next(&self, age: Duration) -> Option<Duration> {
        self.steps.iter().find(|(from, _)| *from > age).map(|(from, _)| from.saturating_sub(age))
    }
}

/// CDI, as far as machines see it.
pub(crate) struct Importer(pub Rng);

impl Controller for Importer {
    fn name(&self) -> &'static str {
        "importer"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<DataVolume>();
        // A claim has the name of its DataVolume. One that is in the way may be that of the DataVolume before.
        setup.watch_own::<PersistentVolumeClaim>();
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(volume) = view.get::<DataVolume>(&key.namespace, &key.name) else { return Plan::none() };
        if volume.is_deleting() {
            return Plan::none();
        }
        let age = now.since(volume.metadata.creation_timestamp.as_ref().map_or(now, Time::from));
        let mut rng = self.0.fork(volume.uid());
        let waits = rng.fork("waits for a consumer").one_in(3);
        let script = Script::of(&mut rng);
        let claim = view.get::<PersistentVolumeClaim>(&key.namespace, &key.name);
        let plan = if claim.is_none() && age >= script.claim { make(volume, waits, view) } else { Plan::none() };
        let has_own = claim.is_some_and(|claim| claim.controller_uid() == Some(volume.uid()));
        let is_bound = claim.is_some_and(|claim| claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some()));
        let said = match script.said(age) {
            phase::SUCCEEDED if age >= script.claim && !has_own => SCHEDULED,
            _ if waits && has_own && !is_bound => phase::WAIT_FOR_FIRST_CONSUMER,
            said => said,
        };
        let plan = match volume.status.phase == said {
            true => plan,
            false => plan.patch_status(volume.as_ref(), json!({"status": {"phase": said}})),
        };
        match script.next(age) {
            Some(wait) => plan.requeue_after(wait),
            None => plan,
        }
    }
}

/// The claim of a DataVolume, and a volume that every node can have: for it, or for whichever claim is used first.
fn make(volume: &DataVolume, waits: bool, view: &View<'_>) -> Plan {
    let name = format!("import-{}", volume.uid());
    let (mut of_volume, mut of_claim) = disk(&name, &name, volume.name());
    if waits {
        of_volume["spec"]["storageClassName"] = json!(CLASS);
        of_claim["spec"] = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Gi"}}});
    } else {
        of_volume["spec"]["claimRef"] = json!({"namespace": volume.namespace(), "name": volume.name()});
    }
    of_claim["metadata"]["ownerReferences"] = json!([controller_ref(volume)]);
    let plan = match view.get::<PersistentVolume>("", &name) {
        Some(_) => Plan::none(),
        None => Plan::none().write(Write::Create { resource: PersistentVolume::resource(), object: of_volume }),
    };
    plan.write(Write::Create { resource: PersistentVolumeClaim::resource(), object: of_claim })
}

/// Whether a claim is a DataVolume's.
fn is_imported(claim: &Value) -> bool {
    owner_kind(claim) == DATA_VOLUME
}

/// DataVolumes, by namespace and name, that were said to be done at some time. What was decided may rest on what was said before.
#[derive(Debug, Default)]
pub(crate) struct Imports(BTreeSet<String>);

impl Imports {
    /// Something was just committed.
    pub(crate) fn changed(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        match (change.resource, &change.before, &change.after) {
            ("datavolume", _, Some(volume)) => {
                if matches!(text(volume, "/status/phase"), phase::SUCCEEDED | phase::PENDING_POPULATION) {
                    self.0.insert(key_of(volume));
                }
            }
            ("pod", None, Some(pod)) if label(pod, "labels", APP_LABEL) == LAUNCHER => {
                let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
                for name in volumes.map(|volume| text(volume, "/persistentVolumeClaim/claimName")) {
                    let claim = beside(pod, name);
                    if observer.get("claim", &claim).is_some_and(is_imported) && !self.0.contains(&claim) {
                        let what = format!("{} is made, and the DataVolume {claim} was never done", key_of(pod));
                        breaches.push(Breach::new(NAME, what));
                    }
                }
            }
            _ => {}
        }
    }
}

/// A DataVolume whose machine is gone, or a claim whose DataVolume is.
pub(crate) fn lack(observer: &Observer) -> Option<String> {
    let outlives = |object: &Value, owners: &'static str| {
        !deleting(object) && !observer.all(owners).any(|owner| uid(owner) == controller(object))
    };
    let volume = observer.all("datavolume").find(|volume| outlives(volume, "vm"));
    let claim = || observer.all("claim").find(|claim| is_imported(claim) && outlives(claim, "datavolume"));
    let left = volume.map(|volume| ("datavolume", volume)).or_else(|| Some(("claim", claim()?)));
    left.map(|(kind, object)| format!("{kind} {} has outlived its owner", key_of(object)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_goes_wrong_comes_right() {
        let (mut lies, mut failures, mut relapses) = (0, 0, 0);
        for seed in 0..200 {
            let script = Script::of(&mut Rng::new(seed));
            assert!(script.steps.is_sorted_by_key(|(from, _)| *from), "{script:?}");
            let last = script.steps.last().map_or(Duration::ZERO, |(from, _)| *from);
            assert_eq!((script.said(last), script.next(last)), (phase::SUCCEEDED, None), "{script:?}");
            assert!(last <= LATE.1 + TAKES.1 * 4, "{script:?}");
            assert_eq!(script.said(script.claim), IN_PROGRESS, "{script:?}");
            let done = |(_, said): &&(Duration, &str)| *said == phase::SUCCEEDED;
            let early = script.steps.iter().filter(done).filter(|(from, _)| *from < script.claim).count();
            lies += early;
            relapses += script.steps.iter().filter(done).count() - early - 1;
            failures += script.steps.iter().filter(|(_, said)| *said == phase::FAILED).count();
        }
        let counts = [lies, failures, relapses];
        assert!(counts.iter().all(|count| (20..80).contains(count)), "{counts:?}");
    }

    fn owned(name: &str, kind: &str, owner: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": name, "uid": name,
            "ownerReferences": [{"controller": true, "kind": kind, "uid": owner}]}})
    }

    #[test]
    fn a_launcher_is_made_when_its_disk_was_done() {
        let check = |said: &[&str], owner: &str, is_launcher: bool, expected: usize| {
            let change = |resource, after, imports: &mut Imports, observer: &Observer| {
                let mut breaches = Vec::new();
                imports.changed(&Change { resource, before: None, after: Some(after) }, observer, &mut breaches);
                breaches.len()
            };
            let observer = Observer::of([("claim", owned("disk", owner, "x"))]);
            let mut imports = Imports::default();
            for word in said {
                let mut volume = owned("disk", "VirtualMachine", "vm");
                volume["status"] = json!({ "phase": word });
                assert_eq!(change("datavolume", volume, &mut imports, &observer), 0, "{said:?}");
            }
            let mut pod = owned("launcher", "VirtualMachineInstance", "vmi");
            pod["metadata"]["labels"] = if is_launcher { json!({APP_LABEL: LAUNCHER}) } else { json!({}) };
            pod["spec"]["volumes"] = json!([{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "disk"}}]);
            let found = change("pod", pod, &mut imports, &observer);
            assert_eq!(found, expected, "{said:?} {owner} {is_launcher}");
        };
        check(&[SCHEDULED, IN_PROGRESS, phase::FAILED], DATA_VOLUME, true, 1);
        check(&[], DATA_VOLUME, true, 1);
        check(&[IN_PROGRESS, phase::SUCCEEDED], DATA_VOLUME, true, 0);
        check(&[phase::PENDING_POPULATION], DATA_VOLUME, true, 0);
        // Who decided it may have heard that it was done, and not yet that it is not.
        check(&[phase::SUCCEEDED, IN_PROGRESS], DATA_VOLUME, true, 0);
        check(&[], "VirtualMachine", true, 0);
        check(&[], DATA_VOLUME, false, 0);
    }

    #[test]
    fn what_is_made_for_a_machine_goes_with_it() {
        let (vm, volume) = (owned("vm", "", ""), owned("disk", "VirtualMachine", "vm"));
        let claim = |kind: &str| owned("claim", kind, "disk");
        let check = |objects: Vec<(&'static str, Value)>, expected: bool| {
            let words = format!("{objects:?}");
            assert_eq!(lack(&Observer::of(objects)).is_some(), expected, "{words}");
        };
        check(vec![("vm", vm), ("datavolume", volume.clone()), ("claim", claim(DATA_VOLUME))], false);
        check(vec![("datavolume", volume)], true);
        check(vec![("claim", claim(DATA_VOLUME))], true);
        check(vec![("claim", claim("StatefulSet"))], false);
    }
}
