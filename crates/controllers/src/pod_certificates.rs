//! Requests of kubelets for pods' certificates that nobody waits for any more (kube-controller-manager's
//! podcertificaterequest-cleaner-controller, pkg/controller/certificates/cleaner).
//!
//! ```text
//!   made ── 15 min ──▶ gone, whatever has become of it: the kubelet has had its certificate for long, or asks anew
//! ```
//!
//! Upstream looks at all of them every five minutes; here each one has its time. The API is served only where the API server is
//! told to, so it is looked for by discovery: elsewhere it would be waited for without end. Their metadata is enough, which the
//! garbage collector reads as well.

use std::time::Duration;

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Setup, Time, View};
use carrack_types::resource::{Object as _, PartialObject};

use crate::custom::CustomKinds;

/// How long a request is kept.
const KEPT: Duration = Duration::from_secs(15 * 60);
const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "podcertificaterequests";

/// Removes old requests for pods' certificates.
pub struct PodCertificateCleaner {
    /// Where they are read, while they are served.
    kinds: CustomKinds,
}

impl Default for PodCertificateCleaner {
    fn default() -> Self {
        Self { kinds: CustomKinds::only(GROUP, PLURAL) }
    }
}

impl Controller for PodCertificateCleaner {
    fn name(&self) -> &'static str {
        "podcertificaterequest-cleaner-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        CustomKinds::setup(setup);
    }
    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.kinds.refresh(view, setup, |setup, source| {
            setup.watch_source::<PartialObject>(source.clone(), |request, _| vec![Key::of(request)]);
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(source) = self.kinds.iter().next() else { return Plan::none() };
        let cache = view.cache_of::<PartialObject>(source);
        let Some(request) = cache.and_then(|cache| cache.get(&key.namespace, &key.name)) else { return Plan::none() };
        let made = request.metadata.creation_timestamp.as_ref().filter(|_| !request.is_deleting());
        let Some(at) = made.map(|made| Time::from(made) + KEPT) else { return Plan::none() };
        if now < at {
            return Plan::none().requeue_after(at.since(now));
        }
        Plan::none().delete_with(&source.resource, request.as_ref(), DeleteOptions::default())
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::GroupDiscovery;
    use carrack_engine::testing::Caches;
    use carrack_types::definition::Definition;
    use carrack_types::resource::Resource;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    /// Discovery of a server that has these resources in these versions.
    fn groups(told: u64, versions: &[(&str, &[&str])]) -> Vec<GroupDiscovery> {
        let resource = |plural: &str| {
            json!({"resource": plural, "scope": "Namespaced", "responseKind": {"kind": "PodCertificateRequest"},
                "verbs": ["get", "list", "watch", "delete"]})
        };
        let versions: Vec<Value> = versions
            .iter()
            .map(|(name, plurals)| {
                let resources: Vec<Value> = plurals.iter().map(|plural| resource(plural)).collect();
                json!({"version": name, "freshness": "Current", "resources": resources})
            })
            .collect();
        vec![of(json!({"metadata": {"name": GROUP, "resourceVersion": told.to_string()}, "versions": versions}))]
    }

    /// Discovery of a server that does not know what there is in this version.
    fn stale(told: u64, version: &str) -> Vec<GroupDiscovery> {
        let version = json!({"version": version, "freshness": "Stale", "resources": []});
        vec![of(json!({"metadata": {"name": GROUP, "resourceVersion": told.to_string()}, "versions": [version]}))]
    }

    fn caches() -> Caches {
        Caches::new().with::<Definition>(Vec::new())
    }

    #[test]
    fn requests_are_read_where_they_are_served() {
        let mut cleaner = PodCertificateCleaner::default();
        let mut check = |groups: Option<Vec<GroupDiscovery>>, want: Option<&str>| {
            let caches = match groups {
                Some(groups) => caches().with_source(GroupDiscovery::source(), groups),
                None => caches(),
            };
            cleaner.kinds.forget_changes();
            caches.refresh(&mut cleaner);
            let version = cleaner.kinds.iter().next().map(|source| source.resource.version.to_string());
            assert_eq!(version.as_deref(), want);
        };
        check(None, None);
        check(Some(groups(1, &[("v1", &["certificatesigningrequests"])])), None);
        check(Some(groups(2, &[("v1", &["certificatesigningrequests"]), ("v1beta1", &[PLURAL])])), Some("v1beta1"));
        check(Some(stale(3, "v1beta1")), Some("v1beta1"));
        check(Some(groups(4, &[("v1", &[PLURAL]), ("v1beta1", &[PLURAL])])), Some("v1"));
        check(Some(stale(5, "v1beta1")), None);
        check(Some(groups(6, &[("v1", &[PLURAL])])), Some("v1"));
        check(Some(Vec::new()), None);
    }

    #[test]
    fn requests_go_after_a_quarter_of_an_hour() {
        let check = |metadata: Value, after_s: u64, want: &[&str], again_s: Option<u64>| {
            let found = groups(1, &[("v1beta1", &[PLURAL])]);
            let resource = Resource {
                group: GROUP.into(),
                version: "v1beta1".into(),
                plural: PLURAL.into(),
                kind: "PodCertificateRequest".into(),
                namespaced: true,
            };
            let request: PartialObject = of(json!({"metadata": metadata}));
            let caches = caches().with_source(GroupDiscovery::source(), found).with_metadata(resource, [request]);
            let mut cleaner = PodCertificateCleaner::default();
            caches.refresh(&mut cleaner);
            // Noon.
            let now = Time::from_unix_s(1_767_268_800) + Duration::from_secs(after_s);
            let plan = cleaner.reconcile(&Key::new("ns", "r"), &caches.view(), now);
            assert_eq!(words(&plan), want, "{metadata} after {after_s} s");
            assert_eq!(plan.requeue_after.map(|after| after.as_secs()), again_s, "{metadata} after {after_s} s");
        };
        let noon = "2026-01-01T12:00:00Z";
        let made = json!({"name": "r", "namespace": "ns", "uid": "u", "creationTimestamp": noon});
        let going = json!({"name": "r", "namespace": "ns", "creationTimestamp": noon, "deletionTimestamp": noon});
        check(made.clone(), 0, &[], Some(900));
        check(made.clone(), 899, &[], Some(1));
        check(made, 900, &["delete ns/r"], None);
        check(going, 9000, &[], None);
        check(json!({"name": "r", "namespace": "ns"}), 9000, &[], None);
        check(json!({"name": "other", "namespace": "ns", "creationTimestamp": noon}), 9000, &[], None);
    }
}
