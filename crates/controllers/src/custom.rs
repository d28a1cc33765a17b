//! Kinds that come and go, for controllers that read every kind, or one that is not always served: those of custom resource
//! definitions, and those that other servers behind the API server serve.
//!
//! The former are known by their definitions as soon as those are; the latter by discovery, which is asked again and again,
//! and at once when a definition or an APIService changes. A version whose server does not answer is unknown: what it served
//! is read as before, and [`CustomKinds::failing`] tells of it.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{GroupDiscovery, Setup, Source, View};
use carrack_types::definition::Definition;
use carrack_types::resource::{Object as _, Resource};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

/// Where a resource is: its group and its plural name.
type Place = (String, String);

/// The resources of all established definitions, and those of other servers.
#[derive(Default)]
pub(crate) struct CustomKinds {
    /// Those that are always there, and those that are not of concern.
    others: BTreeSet<Place>,
    /// The only one that is of concern, where it is one.
    only: Option<Place>,
    now: BTreeMap<Place, Kind>,
    /// Those that definitions made once, by group and kind: their objects are gone with them, but others may still name them.
    former: BTreeMap<(String, String), Resource>,
    /// Versions of groups whose servers do not answer.
    failing: BTreeSet<String>,
    /// A planted bug: nobody asks what other servers serve.
    deaf: bool,
    /// Which state of the caches of definitions, of APIServices and of discovery this is.
    changes: Option<[u64; 3]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    source: Source,
    /// Whether a definition makes it.
    defined: bool,
}

fn place(resource: &Resource) -> Place {
    (resource.group.to_string(), resource.plural.to_string())
}

impl CustomKinds {
    /// None yet. What is among `builtin` is none of them, whoever else tells of it.
    pub(crate) fn beside(builtin: &[Resource]) -> Self {
        // Nobody reads events: they are more than everything else together, and age out by themselves.
        let events = ["", "events.k8s.io"].map(|group| (group.to_owned(), "events".to_owned()));
        Self { others: builtin.iter().map(place).chain(events).collect(), ..Self::default() }
    }

    /// Does not tell of these either.
    pub(crate) fn ignore(&mut self, resources: &[Resource]) {
        self.others.extend(resources.iter().map(place));
    }

    /// None yet, and never another than this one: one that the API server serves only where it is told to.
    pub(crate) fn only(group: &str, plural: &str) -> Self {
        Self { only: Some((group.to_owned(), plural.to_owned())), ..Self::default() }
    }

    /// Plants the bug that what other servers serve is not read.
    pub(crate) fn forget_servers(&mut self) {
        self.deaf = true;
    }

    /// What they follow from.
    pub(crate) fn setup(setup: &mut Setup<'_>) {
        setup.read::<Definition>();
        setup.read::<APIService>();
        setup.watch_source::<GroupDiscovery>(GroupDiscovery::source(), |_, _| Vec::new());
    }

    /// Where they are read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.now.values().map(|kind| &kind.source)
    }

    /// Those of definitions, whose revisions are those of the built-in kinds.
    pub(crate) fn defined(&self) -> impl Iterator<Item = &Resource> {
        self.now.values().filter(|kind| kind.defined).map(|kind| &kind.source.resource)
    }

    /// The resource of a kind that was there once and is not any more.
    pub(crate) fn former(&self, group: &str, kind: &str) -> Option<&Resource> {
        self.former.get(&(group.to_owned(), kind.to_owned()))
    }

    /// Versions of groups (`group/version`) of which it is unknown what they serve.
    pub(crate) fn failing(&self) -> &BTreeSet<String> {
        &self.failing
    }

    /// Takes over the kinds as they are now; `watch` is called for each that is new. Sources of kinds that are gone are dropped.
    pub(crate) fn refresh(&mut self, view: &View<'_>, setup: &mut Setup<'_>, watch: impl Fn(&mut Setup<'_>, &Source)) {
        let definitions = view.cache::<Definition>();
        let discovery = view.cache_of::<GroupDiscovery>(&GroupDiscovery::source());
        let services = view.cache_of::<APIService>(&Source::of::<APIService>());
        let changes = [
            definitions.changes(),
            services.map_or(0, |cache| cache.changes()),
            discovery.map_or(0, |cache| cache.changes()),
        ];
        // This is asked at every change of anything.
        let before = self.changes.replace(changes);
        if before == Some(changes) {
            return;
        }
        if before.is_some_and(|before| before[..2] != changes[..2]) {
            setup.hurry(GroupDiscovery::source());
        }
        let mut now: BTreeMap<Place, Kind> = definitions
            .iter()
            .filter(|crd| crd.is_established())
            .filter_map(|crd| resource_of(crd))
            .map(|resource| (place(&resource), Kind { source: Source::metadata(resource), defined: true }))
            .collect();
        self.failing.clear();
        let led: BTreeSet<(&str, &str)> =
            services.into_iter().flat_map(|cache| cache.iter()).filter_map(|service| leads_to(service)).collect();
        for group in discovery.into_iter().flat_map(|cache| cache.iter()) {
            self.discovered(group, &led, &mut now);
        }
        if let Some(only) = &self.only {
            now.retain(|place, _| place == only);
        }
        for (place, kind) in &now {
            if self.now.get(place).is_none_or(|known| known.source != kind.source) {
                let resource = &kind.source.resource;
                self.former.remove(&(resource.group.to_string(), resource.kind.to_string()));
                watch(setup, &kind.source);
            }
        }
        for (place, kind) in &self.now {
            if now.get(place).is_none_or(|known| known.source != kind.source) {
                let resource = &kind.source.resource;
                let definition = format!("{}.{}", resource.plural, resource.group);
                let gone = !now.contains_key(place) && definitions.get("", &definition).is_none();
                // What another server keeps may be there still when nobody leads to it any more.
                if kind.defined && gone {
                    let kind = (resource.group.to_string(), resource.kind.to_string());
                    self.former.insert(kind, resource.clone());
                }
                setup.drop_source(kind.source.clone());
            }
        }
        self.now = now;
    }

    /// Caches of a test are new ones each time, and count their changes anew.
    #[cfg(test)]
    pub(crate) fn forget_changes(&mut self) {
        self.changes = None;
    }

    /// Adds what discovery tells of a group that is not known otherwise. `led` are the groups and versions of other servers.
    fn discovered(&mut self, group: &GroupDiscovery, led: &BTreeSet<(&str, &str)>, now: &mut BTreeMap<Place, Kind>) {
        for version in group.versions.iter().filter(|_| !self.deaf) {
            if version.is_stale() {
                self.failing.insert(format!("{}/{}", group.name(), version.version));
                let of = |kind: &Kind| {
                    let resource = &kind.source.resource;
                    resource.group == group.name() && resource.version == version.version && !kind.defined
                };
                let kept: Vec<_> = self.now.iter().filter(|(_, kind)| of(kind)).collect();
                for (place, kind) in kept {
                    now.entry(place.clone()).or_insert_with(|| kind.clone());
                }
                continue;
            }
            for found in &version.resources {
                let Some(resource) = found.resource_of(group.name(), &version.version) else { continue };
                let place = place(&resource);
                // What a definition has made goes with that; discovery may have told of it before, and may still.
                let defined = self.now.get(&place).is_some_and(|kind| kind.defined);
                let was_defined = self.former(&resource.group, &resource.kind).is_some();
                let is_theirs = led.contains(&(group.name(), version.version.as_str()));
                if self.others.contains(&place) || (defined || was_defined) && !is_theirs {
                    continue;
                }
                let every = (!found.can("watch")).then_some(GroupDiscovery::source().every).flatten();
                now.entry(place)
                    .or_insert_with(|| Kind { source: Source { every, ..Source::metadata(resource) }, defined: false });
            }
        }
    }
}

/// The group and version for which another server is asked, if it is one of those.
fn leads_to(service: &APIService) -> Option<(&str, &str)> {
    let spec = service.spec.as_ref().filter(|spec| spec.service.is_some())?;
    Some((spec.group.as_deref().unwrap_or_default(), spec.version.as_deref().unwrap_or_default()))
}

/// The resource of a definition, in the version that is stored.
pub(crate) fn resource_of(crd: &Definition) -> Option<Resource> {
    let served = || crd.spec.versions.iter().filter(|v| v.served);
    let version = served().find(|v| v.storage).or_else(|| served().next())?;
    Some(Resource {
        group: crd.spec.group.clone().into(),
        version: version.name.clone().into(),
        plural: crd.spec.names.plural.clone().into(),
        kind: crd.spec.names.kind.clone().into(),
        namespaced: crd.spec.scope == "Namespaced",
    })
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Controller, Key, Plan, Time};
    use carrack_types::resource::Kind as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    fn crd(established: &str) -> Definition {
        of(json!({
            "metadata": {"name": "things.example.com", "uid": "1"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v2", "served": true, "storage": false},
                    {"name": "v1", "served": true, "storage": true}]},
            "status": {"conditions": [{"type": "Established", "status": established}]}}))
    }

    /// What discovery tells of a group, `told` for the so-manieth time.
    fn group(name: &str, told: u64, versions: Vec<Value>) -> GroupDiscovery {
        of(json!({"metadata": {"name": name, "resourceVersion": told.to_string()}, "versions": versions}))
    }

    fn version(name: &str, kinds: &[(&str, &str)]) -> Value {
        let resources: Vec<Value> = kinds
            .iter()
            .map(|(kind, verbs)| {
                json!({"resource": format!("{}s", kind.to_lowercase()), "scope": "Namespaced",
                    "responseKind": {"group": "", "version": "", "kind": kind},
                    "verbs": verbs.split(' ').collect::<Vec<_>>()})
            })
            .collect();
        json!({"version": name, "freshness": "Current", "resources": resources})
    }

    /// Looks at kinds, and at nothing else.
    struct Looks(CustomKinds);
    impl Controller for Looks {
        fn name(&self) -> &'static str {
            "looks"
        }
        fn setup(&self, setup: &mut Setup<'_>) {
            CustomKinds::setup(setup);
        }
        fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
            self.0.refresh(view, setup, |_, _| {});
        }
        fn reconcile(&mut self, _: &Key, _: &View<'_>, _: Time) -> Plan {
            Plan::none()
        }
    }

    impl Looks {
        fn at(&mut self, definitions: Vec<Definition>, groups: Vec<GroupDiscovery>) -> Vec<String> {
            self.beside(vec![], definitions, groups)
        }
        fn beside(
            &mut self,
            services: Vec<APIService>,
            definitions: Vec<Definition>,
            groups: Vec<GroupDiscovery>,
        ) -> Vec<String> {
            let caches = Caches::new()
                .with::<Definition>(definitions)
                .with::<APIService>(services)
                .with_source(GroupDiscovery::source(), groups);
            self.0.forget_changes();
            caches.refresh(self);
            let told = |source: &Source| {
                let polled = if source.every.is_some() { " (listed)" } else { "" };
                format!("{}.{}/{}{polled}", source.resource.plural, source.resource.group, source.resource.version)
            };
            self.0.iter().map(told).collect()
        }
    }

    #[test]
    fn custom_resources_are_read_once_they_are_served() {
        assert!(!crd("False").is_established());
        assert!(crd("True").is_established());
        let resource = resource_of(&crd("True")).expect("a resource");
        assert_eq!(resource.collection_path("ns"), "/apis/example.com/v1/namespaces/ns/things");
    }

    #[test]
    fn what_other_servers_serve_is_read_as_far_as_it_is_known() {
        let all = "get list watch delete";
        let builtin = Definition::resource();
        let mut looks = Looks(CustomKinds::beside(std::slice::from_ref(&builtin)));
        let ours =
            group("apiextensions.k8s.io", 1, vec![version("v1", &[("CustomResourceDefinition", all), ("Other", all)])]);
        // The preferred version counts; what cannot be listed and deleted does not; what cannot be watched is listed.
        let theirs = |told| {
            let old = version("v1", &[("Meter", all), ("Clock", all)]);
            let new = version("v2", &[("Meter", all), ("Reading", "get list"), ("Dial", "list delete")]);
            group("meters.example.com", told, vec![new, old])
        };
        let found = [
            "others.apiextensions.k8s.io/v1",
            "clocks.meters.example.com/v1",
            "dials.meters.example.com/v2 (listed)",
            "meters.meters.example.com/v2",
        ];
        assert_eq!(looks.at(vec![], vec![ours.clone(), theirs(1)]), found);
        // A version whose server is silent keeps what it had; only that of which nothing is known fails.
        let silent = |versions: &[&str]| {
            let versions = versions.iter().map(|v| json!({"version": v, "freshness": "Stale"})).collect();
            group("meters.example.com", 2, versions)
        };
        assert_eq!(looks.at(vec![], vec![ours.clone(), silent(&["v2", "v1"])]), found);
        assert_eq!(looks.0.failing().iter().collect::<Vec<_>>(), ["meters.example.com/v1", "meters.example.com/v2"]);
        // Back, and gone: nothing follows about the objects, which another server keeps.
        assert_eq!(looks.at(vec![], vec![ours.clone(), theirs(3)]), found);
        assert!(looks.0.failing().is_empty());
        assert_eq!(looks.at(vec![], vec![ours]), found[..1]);
        assert_eq!(looks.0.former("meters.example.com", "Meter"), None);
    }

    #[test]
    fn a_definition_counts_before_discovery() {
        let all = "get list watch delete";
        let told = |n| group("example.com", n, vec![version("v2", &[("Thing", all)])]);
        let mut looks = Looks(CustomKinds::default());
        assert_eq!(looks.at(vec![crd("True")], vec![told(1)]), ["things.example.com/v1"]);
        for (plural, want) in [("things", &["things.example.com/v1"][..]), ("others", &[][..])] {
            let mut one = Looks(CustomKinds::only("example.com", plural));
            assert_eq!(one.at(vec![crd("True")], vec![told(1)]), want);
        }
        // It goes before discovery has heard of that, and its kind with it.
        assert_eq!(looks.at(vec![], vec![told(1)]), Vec::<String>::new());
        assert!(looks.0.former("example.com", "Thing").is_some());
        assert_eq!(looks.at(vec![], vec![told(1)]), Vec::<String>::new());
        // What else is new in its group makes it no other kind: another definition of the group went a moment before.
        assert_eq!(looks.at(vec![], vec![told(2)]), Vec::<String>::new());
        assert!(looks.0.former("example.com", "Thing").is_some());
        // Where an APIService leads to another server, it is that one's.
        let service = |spec: Value| vec![of(json!({"metadata": {"name": "v2.example.com", "uid": "s"}, "spec": spec}))];
        let ours = json!({"group": "example.com", "version": "v2", "groupPriorityMinimum": 1, "versionPriority": 1});
        assert_eq!(looks.beside(service(ours.clone()), vec![], vec![told(3)]), Vec::<String>::new());
        let mut theirs = ours;
        theirs["service"] = json!({"namespace": "ns", "name": "theirs"});
        assert_eq!(looks.beside(service(theirs), vec![], vec![told(4)]), ["things.example.com/v2"]);
        assert_eq!(looks.0.former("example.com", "Thing"), None);
    }
}
