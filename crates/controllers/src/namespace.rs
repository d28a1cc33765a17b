//! Empties namespaces that are being deleted, and then lets them go.
//!
//! The API server takes no new objects in such a namespace. Its pods go first, so that what guards
//! them (network policies, secrets) outlives them; then the rest. When no cache shows an object of it
//! any more, a live list of every kind confirms that it is empty, and live discovery that there is no other kind; only then
//! its finalizer goes. While a server behind the API server is silent, nobody knows what there is, and the namespace stays.
//! Events go last, all at once: nobody reads them here, since they are more than everything else together, and none comes to such a namespace.
//! A namespace that takes longer than a moment says in its conditions what it waits for.
//! Behaviour follows kube-controller-manager (pkg/controller/namespace/deletion).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{
    Cache, Controller, DeleteOptions, GroupDiscovery, Key, Plan, Refusal, Setup, Source, StatusError, Time, View,
    Write, to_value,
};
use carrack_types::resource::{Kind as _, Object as _, PartialObject, Resource};
use k8s_openapi::api::core::v1::{Event, Namespace, NamespaceCondition, Pod};
use serde_json::{Value, json};

use crate::Planted;
use crate::custom::CustomKinds;

const FINALIZER: &str = "kubernetes";

/// The namespace controller, over the same metadata as the garbage collector.
pub struct NamespaceController {
    builtin: Vec<Source>,
    custom: CustomKinds,
    /// When each namespace was found to go, and when its conditions were last written.
    going: BTreeMap<String, (Time, Option<Time>)>,
    /// Why objects of these kinds were not deleted, in each namespace.
    refused: BTreeMap<String, BTreeMap<Resource, String>>,
    /// A planted bug: what caches show is taken for all that there is.
    unproved: bool,
}

impl NamespaceController {
    /// A controller that empties namespaces of these resources and of custom ones.
    #[must_use]
    pub fn new(builtin: Vec<Resource>) -> Self {
        Self {
            custom: CustomKinds::beside(&builtin),
            builtin: builtin.into_iter().filter(|r| r.namespaced).map(Source::metadata).collect(),
            going: BTreeMap::new(),
            refused: BTreeMap::new(),
            unproved: false,
        }
    }
    /// Does not look for these among what discovery and definitions tell of.
    #[must_use]
    pub fn ignoring(mut self, resources: &[Resource]) -> Self {
        self.custom.ignore(resources);
        self
    }
    pub(crate) fn with_planted(mut self, bug: Option<Planted>) -> Self {
        self.unproved = bug == Some(Planted::UnprovedEmptiness);
        if bug == Some(Planted::UnreadServers) {
            self.custom.forget_servers();
        }
        self
    }
    /// Every kind of which a namespace can hold objects.
    fn kinds(&self) -> impl Iterator<Item = &Source> {
        self.builtin.iter().chain(self.custom.iter().filter(|source| source.resource.namespaced))
    }
    fn watch(setup: &mut Setup<'_>, source: &Source) {
        let own = source.clone();
        setup.watch_changes::<PartialObject>(source.clone(), matters, move |object, view| {
            // Only namespaces that are going away care.
            let deleting = view.get::<Namespace>("", object.namespace()).is_some_and(|ns| ns.is_deleting());
            let looks = deleting && concerns(view.cache_of(&own), object);
            if looks { vec![Key::new("", object.namespace())] } else { Vec::new() }
        });
    }
}

/// Whether an object goes otherwise than before. While a namespace goes, most changes are of what counts the pods that go.
fn matters(old: &PartialObject, new: &PartialObject) -> bool {
    let finalizers = old.metadata.finalizers != new.metadata.finalizers;
    old.uid() != new.uid() || old.is_deleting() != new.is_deleting() || finalizers
}

/// Whether a namespace that is to go looks again because of an object: one that is still to be deleted, or the last one of its
/// kind, which is gone. Of all others several changes are told on their way, and each look goes through all that is left; how
/// much that is, the namespace tells from time to time.
fn concerns(kind: Option<&Cache<PartialObject>>, object: &PartialObject) -> bool {
    let Some(kind) = kind else { return true };
    match kind.get(object.namespace(), object.name()) {
        Some(there) => !there.is_deleting(),
        None => kind.in_namespace(object.namespace()).next().is_none(),
    }
}

impl Controller for NamespaceController {
    fn name(&self) -> &'static str {
        "namespace"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Namespace>();
        for source in &self.builtin {
            Self::watch(setup, source);
        }
        CustomKinds::setup(setup);
    }
    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.custom.refresh(view, setup, |setup, source| {
            if source.resource.namespaced {
                Self::watch(setup, source);
            }
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let finalizers = |ns: &Namespace| -> Vec<String> {
            ns.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).cloned().collect()
        };
        let Some(ns) = view
            .get::<Namespace>("", &key.name)
            .filter(|ns| ns.is_deleting() && finalizers(ns).iter().any(|f| f == FINALIZER))
        else {
            self.going.remove(&key.name);
            self.refused.remove(&key.name);
            return Plan::none();
        };
        let mut plan = Plan::none();
        let mut left = Left::default();
        for source in self.kinds() {
            if !view.synced(source) {
                left.unknown.push(source.resource.clone());
            }
            for object in view.cache_of::<PartialObject>(source).into_iter().flat_map(|c| c.in_namespace(&key.name)) {
                left.count(&source.resource, object);
            }
        }
        let pods_first = left.kinds.contains_key(&Pod::resource());
        for source in self.kinds().filter(|s| !pods_first || s.resource == Pod::resource()) {
            let cache = view.cache_of::<PartialObject>(source);
            let objects = cache.into_iter().flat_map(|c| c.in_namespace(&key.name));
            for object in objects.filter(|o| !o.is_deleting()) {
                let options = DeleteOptions { propagation: Some("Background"), ..DeleteOptions::default() };
                plan = plan.delete_with(&source.resource, object.as_ref(), options);
            }
        }
        // What refuses to go keeps nothing else.
        plan = plan.each_apart();
        if let Some(refused) = self.refused.get_mut(&key.name) {
            refused.retain(|resource, _| plan.writes.iter().any(|write| write.resource() == resource));
            left.refused.extend(refused.values().cloned());
        }
        left.failing.extend(self.custom.failing().iter().cloned());
        let discovery = GroupDiscovery::source();
        if let Some(digest) = view.digest_of(&discovery).filter(|_| left.is_nothing()) {
            for source in self.kinds().filter(|_| !self.unproved) {
                plan = plan.confirm_none_in(&source.resource, key.name.clone());
            }
            if !self.unproved {
                plan = plan.confirm_same(&discovery.resource, digest);
            }
            plan = plan.delete_all_in(&Event::resource(), key.name.clone());
            let mut body = to_value(ns.as_ref());
            let others = finalizers(ns);
            body["spec"]["finalizers"] = json!(others.iter().filter(|f| *f != FINALIZER).collect::<Vec<_>>());
            let resource = Namespace::resource();
            return plan.write(Write::Update { resource, object: body, was: Value::Null, sub: "finalize" });
        }
        // What is deleting comes back through its cache when it is gone.
        let (since, written) = self.going.entry(key.name.clone()).or_insert((now, None));
        let wait = MOMENT.saturating_sub(now.since(written.unwrap_or(*since)));
        if !wait.is_zero() {
            return plan.requeue_after(wait);
        }
        *written = Some(now);
        match left.conditions(ns, now) {
            Some(conditions) => {
                let told = Plan::none().patch_status(ns.as_ref(), json!({"status": {"conditions": conditions}}));
                told.each_apart().then(plan)
            }
            None => plan.requeue_after(MOMENT),
        }
    }
    fn refused(&mut self, key: &Key, _: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        if matches!(refusal.write, Write::Delete { .. }) && keeps(refusal.error) {
            let kinds = self.refused.entry(key.name.clone()).or_default();
            kinds.insert(refusal.write.resource().clone(), refusal.error.message.clone());
        }
        Plan::none()
    }
}

/// Whether an error says why an object stays, and not that it is gone or another one.
fn keeps(error: &StatusError) -> bool {
    !matches!(error.code, 404 | 409)
}

/// How long a namespace may take before it says what it waits for, and between two of its answers.
const MOMENT: Duration = Duration::from_secs(5);

/// What a namespace still holds.
#[derive(Default)]
struct Left {
    /// Versions of groups of which nobody knows what they serve.
    failing: Vec<String>,
    /// Kinds of which nothing is known.
    unknown: Vec<Resource>,
    /// Why objects were not deleted.
    refused: Vec<String>,
    kinds: BTreeMap<Resource, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Left {
    fn count(&mut self, resource: &Resource, object: &PartialObject) {
        *self.kinds.entry(resource.clone()).or_default() += 1;
        for finalizer in object.metadata.finalizers.iter().flatten() {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    fn is_nothing(&self) -> bool {
        self.failing.is_empty() && self.unknown.is_empty() && self.kinds.is_empty()
    }

    /// The namespace's conditions, in upstream's words; none when they are as they are to be.
    fn conditions(&self, ns: &Namespace, now: Time) -> Option<Vec<NamespaceCondition>> {
        let list = |words: Vec<String>| words.join(", ");
        let kinds = list(
            self.kinds.iter().map(|(kind, n)| format!("{}. has {n} resource instances", kind.qualified())).collect(),
        );
        let finalizers =
            list(self.finalizers.iter().map(|(name, n)| format!("{name} in {n} resource instances")).collect());
        let unknown = self.unknown.iter().map(|kind| format!("{} cannot be listed", kind.qualified()));
        let kept: Vec<String> = unknown.chain(self.refused.iter().cloned()).collect();
        let failing = list(self.failing.iter().map(|v| format!("{v}: stale GroupVersion discovery: {v}")).collect());
        let said = [
            (
                "NamespaceDeletionDiscoveryFailure",
                (!failing.is_empty()).then(|| {
                    let n = self.failing.len();
                    let which = format!("unable to retrieve the complete list of server APIs: {failing}");
                    ("DiscoveryFailed", format!("Discovery failed for some groups, {n} failing: {which}"))
                }),
                ("ResourcesDiscovered", "All resources successfully discovered"),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            (
                "NamespaceDeletionContentFailure",
                (!kept.is_empty()).then(|| {
                    let (n, why) = (kept.len(), kept.join(", "));
                    ("ContentDeletionFailed", format!("Failed to delete all resource types, {n} remaining: {why}"))
                }),
                ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            ),
            (
                "NamespaceContentRemaining",
                (!kinds.is_empty()).then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {kinds}"))),
                ("ContentRemoved", "All content successfully removed"),
            ),
            (
                "NamespaceFinalizersRemaining",
                (!finalizers.is_empty()).then(|| {
                    (
                        "SomeFinalizersRemain",
                        format!("Some content in the namespace has finalizers remaining: {finalizers}"),
                    )
                }),
                ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            ),
        ];
        let old = ns.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let mut all: Vec<_> =
            old.iter().filter(|c| !said.iter().any(|(type_, ..)| c.type_ == *type_)).cloned().collect();
        for (type_, holds, otherwise) in said {
            let status = if holds.is_some() { "True" } else { "False" };
            let (reason, message) = holds.unwrap_or((otherwise.0, otherwise.1.to_owned()));
            let before = old.iter().find(|c| c.type_ == type_ && c.status == status);
            all.push(NamespaceCondition {
                type_: type_.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_transition_time: before.map_or(Some(now.meta()), |c| c.last_transition_time.clone()),
            });
        }
        (all != old).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Absent;
    use carrack_engine::testing::Caches;
    use carrack_types::definition::Definition;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

    use super::*;

    #[test]
    fn pods_go_first_and_what_hinders_is_told() {
        let ns = json!({"metadata": {"name": "ns", "uid": "1", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"finalizers": ["kubernetes"]}});
        let object = |name: &str, deleting: bool| -> PartialObject {
            let mut o = json!({"metadata": {"namespace": "ns", "name": name, "uid": name}});
            if deleting {
                o["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                o["metadata"]["finalizers"] = json!(["example.com/hold"]);
            }
            serde_json::from_value(o).expect("metadata")
        };
        let mut controller = NamespaceController::new(vec![Pod::resource(), ConfigMap::resource()]);
        let mut look = |pods: Vec<PartialObject>, maps: Vec<PartialObject>, at_s: i64| {
            let caches = Caches::new()
                .with::<Namespace>([serde_json::from_value(ns.clone()).expect("a namespace")])
                .with_metadata(Pod::resource(), pods)
                .with_metadata(ConfigMap::resource(), maps)
                .with::<Definition>([])
                .with_source::<GroupDiscovery>(GroupDiscovery::source(), []);
            let plan = controller.reconcile(&Key::new("", "ns"), &caches.view(), Time::from_unix_s(at_s));
            crate::testing::words(&plan)
        };
        assert_eq!(look(vec![object("p", false)], vec![object("m", false)], 0), ["delete ns/p"]);
        assert_eq!(look(vec![], vec![object("m", false)], 1), ["delete ns/m"]);
        assert_eq!(look(vec![], vec![object("m", true)], 4), [""; 0]);
        let told = "patch ns/status NamespaceDeletionDiscoveryFailure=False \
                    NamespaceDeletionGroupVersionParsingFailure=False NamespaceDeletionContentFailure=False \
                    NamespaceContentRemaining=True NamespaceFinalizersRemaining=True";
        assert_eq!(look(vec![], vec![object("m", true)], 5), [told]);
        assert_eq!(look(vec![], vec![object("m", true)], 6), [""; 0]);
        assert_eq!(look(vec![], vec![], 7).last().map(String::as_str), Some("update ns/finalize"));
    }

    #[test]
    fn a_namespace_looks_again_when_there_is_something_to_do() {
        let pod = |name: &str, deleting: bool| -> PartialObject {
            let at = deleting.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"namespace": "ns", "name": name, "uid": name, "deletionTimestamp": at});
            crate::testing::of(json!({ "metadata": metadata }))
        };
        let elsewhere = || -> PartialObject {
            crate::testing::of(json!({"metadata": {"namespace": "other", "name": "q", "uid": "q"}}))
        };
        // What there is when something is told of pod `p`.
        for (there, expected) in [
            (vec![pod("p", false), pod("r", true)], true),
            (vec![pod("p", true), pod("r", true)], false),
            (vec![pod("r", true)], false),
            (vec![elsewhere()], true),
            (vec![], true),
        ] {
            let caches = Caches::new().with_metadata(Pod::resource(), there.clone());
            let view = caches.view();
            let kind = view.cache_of(&Source::metadata(Pod::resource()));
            assert_eq!(concerns(kind, &pod("p", true)), expected, "{there:?}");
        }
        assert!(concerns(None, &pod("p", true)), "of a kind that is not read any more nothing is known");
        assert!(matters(&pod("p", false), &pod("p", true)));
        assert!(!matters(&pod("p", true), &pod("p", true)));
    }

    #[test]
    fn why_objects_stay_is_told_while_they_do() {
        let mut ns = json!({"metadata": {"name": "ns", "uid": "1", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"finalizers": ["kubernetes"]}});
        let mut controller = NamespaceController::new(vec![ConfigMap::resource()]);
        // The delete that was asked for, and what the condition says.
        let mut look = |finalizers: &[&str], at_s: i64, answer: Option<(u16, &str)>| {
            let deleted = finalizers.first().map(|_| "2026-01-01T00:00:00Z");
            let map: PartialObject =
                crate::testing::of(json!({"metadata": {"namespace": "ns", "name": "m", "uid": "m",
                "finalizers": finalizers, "deletionTimestamp": deleted}}));
            let caches = Caches::new()
                .with::<Namespace>([crate::testing::of(ns.clone())])
                .with_metadata(ConfigMap::resource(), [map])
                .with::<Definition>([])
                .with_source::<GroupDiscovery>(GroupDiscovery::source(), []);
            let (key, now) = (Key::new("", "ns"), Time::from_unix_s(at_s));
            let plan = controller.reconcile(&key, &caches.view(), now);
            for write in &plan.writes {
                match (write, answer) {
                    (Write::Patch { patch, .. }, _) => ns["status"] = patch["status"].clone(),
                    (Write::Delete { .. }, Some((code, message))) => {
                        let error = StatusError { code, message: message.into(), ..StatusError::default() };
                        let refusal = Refusal { write, error: &error };
                        assert!(controller.refused(&key, &caches.view(), &refusal, now).is_none());
                    }
                    _ => {}
                }
            }
            let all = ns["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let failure = all.into_iter().find(|c| c["type"] == "NamespaceDeletionContentFailure");
            failure.filter(|c| c["status"] == "True").map(|c| c["message"].as_str().unwrap_or_default().to_owned())
        };
        let denied = Some((403, "admission webhook \"w\" denied the request: no"));
        assert_eq!(look(&[], 0, denied), None);
        let told = "Failed to delete all resource types, 1 remaining: admission webhook \"w\" denied the request: no";
        assert_eq!(look(&[], 5, None).as_deref(), Some(told));
        assert_eq!(look(&[], 10, None).as_deref(), Some(told));
        // It goes.
        assert_eq!(look(&["mine"], 15, None), None);
        assert_eq!(look(&[], 20, Some((409, "another one"))), None);
        assert_eq!(look(&[], 25, None), None);
    }

    /// What is planned for namespace `ns` with these pods in it.
    fn check(ns: Value, pods: Vec<Value>, expected: &[&str]) {
        let read = |v: Value| serde_json::from_value(v).expect("metadata");
        let caches = Caches::new()
            .with::<Namespace>([serde_json::from_value(ns.clone()).expect("a namespace")])
            .with_metadata(Pod::resource(), pods.clone().into_iter().map(read))
            .with_metadata(ConfigMap::resource(), [])
            .with::<Definition>([])
            .with_source::<GroupDiscovery>(GroupDiscovery::source(), []);
        let mut controller = NamespaceController::new(vec![Pod::resource(), ConfigMap::resource()]);
        let plan = controller.reconcile(&Key::new("", "ns"), &caches.view(), Time::default());
        let words: Vec<String> = plan
            .writes
            .iter()
            .map(|w| match w {
                Write::Delete { key, .. } => format!("delete {key}"),
                Write::Confirm { resource, absent: Absent::AnyIn(ns) } => format!("no {resource} in {ns}"),
                Write::Confirm { resource, absent: Absent::Change { .. } } => format!("same {}", resource.kind),
                Write::DeleteAll { resource, namespace } => format!("all {resource} of {namespace}"),
                Write::Update { object, sub, .. } => format!("{sub} {}", object["spec"]["finalizers"]),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(words, expected, "{ns} with {pods:?}");
    }

    #[test]
    fn a_namespace_goes_when_it_is_proved_empty() {
        let ns = |deleting: bool| {
            let mut ns =
                json!({"metadata": {"name": "ns", "uid": "1"}, "spec": {"finalizers": ["kubernetes", "mine"]}});
            if deleting {
                ns["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            ns
        };
        let pod = |deleting: bool| {
            let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "2"}});
            if deleting {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            pod
        };
        let elsewhere = json!({"metadata": {"namespace": "ns2", "name": "p", "uid": "3"}});
        check(ns(false), vec![pod(false)], &[]);
        check(ns(true), vec![pod(false), elsewhere.clone()], &["delete ns/p"]);
        check(ns(true), vec![pod(true)], &[]);
        check(
            ns(true),
            vec![elsewhere],
            &[
                "no pods in ns",
                "no configmaps in ns",
                "same APIGroupDiscovery",
                "all events of ns",
                "finalize [\"mine\"]",
            ],
        );
    }

    /// A namespace is not empty while nobody knows what a server behind the API server keeps in it.
    #[test]
    fn what_a_silent_server_keeps_holds_a_namespace() {
        let ns = json!({"metadata": {"name": "ns", "uid": "1", "resourceVersion": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"finalizers": ["kubernetes"]}});
        let mut controller = NamespaceController::new(vec![ConfigMap::resource()]);
        let meters = || Resource {
            group: "meters.example.com".into(),
            version: "v1".into(),
            plural: "meters".into(),
            kind: "Meter".into(),
            namespaced: true,
        };
        let mut look = |freshness: &str, there: Vec<Value>, at_s: i64| {
            let verbs = ["list", "watch", "delete"];
            let resource = json!({"resource": "meters", "responseKind": {"kind": "Meter"}, "scope": "Namespaced",
                "verbs": verbs});
            let told: GroupDiscovery = crate::testing::of(json!({
                "metadata": {"name": "meters.example.com", "resourceVersion": at_s.to_string()},
                "versions": [{"version": "v1", "freshness": freshness, "resources": [resource]}]}));
            let caches = Caches::new()
                .with::<Namespace>([crate::testing::of(ns.clone())])
                .with_metadata(ConfigMap::resource(), [])
                .with_metadata(meters(), there.into_iter().map(crate::testing::of))
                .with::<Definition>([])
                .with::<APIService>([])
                .with_source::<GroupDiscovery>(GroupDiscovery::source(), [told]);
            controller.custom.forget_changes();
            caches.refresh(&mut controller);
            let plan = controller.reconcile(&Key::new("", "ns"), &caches.view(), Time::from_unix_s(at_s));
            crate::testing::words(&plan)
        };
        let meter = json!({"metadata": {"namespace": "ns", "name": "m", "uid": "m"}});
        assert_eq!(look("Stale", vec![], 0), [""; 0]);
        let told = look("Stale", vec![], 5).join(" ");
        assert!(told.contains("NamespaceDeletionDiscoveryFailure=True"), "{told}");
        assert_eq!(look("Current", vec![meter], 6), ["delete ns/m"]);
        let last = look("Current", vec![], 7);
        assert!(last.contains(&"confirm none in ns".to_owned()), "{last:?}");
        assert_eq!(last.last().map(String::as_str), Some("update ns/finalize"));
    }
}
