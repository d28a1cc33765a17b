//! What is looked at in every decision, read once and given numbers: resources, sets of labels, affinity terms, topology
//! values, images.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::selector::selects;
use k8s_openapi::api::core::v1::PodAffinityTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::amounts::ResourceNames;
use crate::intern::Interner;
use crate::pod_info::Common;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// What selectors see of a pod: its namespace and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKind {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Labels.
    pub labels: Arc<Labels>,
}

/// Which pods a term means, wherever they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodMatcher {
    namespaces: BTreeSet<String>,
    namespace_selector: Option<LabelSelector>,
    selector: Option<LabelSelector>,
}

impl PodMatcher {
    /// Pods of one namespace.
    #[must_use]
    pub fn in_namespace(namespace: &str, selector: Option<LabelSelector>) -> Self {
        Self { namespaces: [namespace.to_owned()].into(), namespace_selector: None, selector }
    }
    /// As an affinity term of a pod says it (framework/types.go, `newAffinityTerm`): no namespaces and no selector of
    /// namespaces mean the pod's own.
    #[must_use]
    pub fn of_term(term: &PodAffinityTerm, owner: &PodKind) -> Self {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(owner.namespace.to_string());
        }
        let mut selector = term.label_selector.clone();
        if let Some(selector) = &mut selector {
            merge_keys(selector, term.match_label_keys.as_deref(), "In", &owner.labels);
            merge_keys(selector, term.mismatch_label_keys.as_deref(), "NotIn", &owner.labels);
        }
        Self { namespaces, namespace_selector: term.namespace_selector.clone(), selector }
    }
    /// Whether it means such a pod.
    #[must_use]
    pub fn matches(&self, kind: &PodKind, namespaces: &BTreeMap<String, Labels>) -> bool {
        let Some(selector) = &self.selector else { return false };
        let here = self.namespaces.contains(&*kind.namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| selects(s, namespaces.get(&*kind.namespace)));
        here && selects(selector, Some(&kind.labels))
    }
    /// Whether labels of namespaces decide which pods it means.
    #[must_use]
    pub fn looks_at_namespaces(&self) -> bool {
        self.namespace_selector.is_some()
    }
    /// The label keys of pods that it looks at.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let selector = self.selector.as_ref();
        let labels = selector.into_iter().flat_map(|s| s.match_labels.iter().flatten()).map(|(key, _)| key.as_str());
        let others = selector.into_iter().flat_map(|s| s.match_expressions.iter().flatten()).map(|r| r.key.as_str());
        labels.chain(others)
    }
}

/// Adds requirements for the values that the owner's labels have. Where the API server has added them, this changes
/// nothing.
pub fn merge_keys(selector: &mut LabelSelector, keys: Option<&[String]>, operator: &str, labels: &Labels) {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
    for key in keys.unwrap_or_default() {
        let Some(value) = labels.get(key) else { continue };
        selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: Some(vec![value.clone()]),
        });
    }
}

/// What a term of a placed pod asks of the pods to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermKind {
    /// Its required affinity: pods that match are drawn to it a little.
    Required,
    /// Its required anti-affinity: pods that match may not be in its domain.
    RequiredAnti,
    /// Its preferences, with their weights; below zero for anti-affinity.
    Preferred(i64),
}

/// An affinity term that placed pods have.
#[derive(Clone, Debug)]
pub struct Term {
    /// What it asks.
    pub kind: TermKind,
    /// Its topology key.
    pub topology: TopologyId,
    /// Which pods it means.
    pub matcher: PodMatcher,
    /// How many placed pods have it, by the value of its key on their nodes.
    pub counts: BTreeMap<ValueId, u32>,
}

/// Number of a topology key.
pub type TopologyId = u32;
/// Number of a value of a node label.
pub type ValueId = u32;
/// The node has no such label.
pub const NO_VALUE: ValueId = u32::MAX;

/// A label of nodes by which they are grouped.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The label.
    pub key: Arc<str>,
    /// How many nodes have each value.
    pub nodes: BTreeMap<ValueId, u32>,
    /// How many values more than one node has.
    pub shared: usize,
}

impl Topology {
    /// Whether each node is a domain of its own.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        self.shared == 0
    }
    /// A node with this value came (`true`) or went. Returns whether the key became unique or ceased to be.
    pub fn count(&mut self, value: ValueId, came: bool) -> bool {
        if value == NO_VALUE {
            return false;
        }
        let was = self.is_unique();
        let nodes = self.nodes.entry(value).or_default();
        if came {
            *nodes += 1;
            if *nodes == 2 {
                self.shared += 1;
            }
        } else {
            *nodes = nodes.saturating_sub(1);
            match *nodes {
                1 => self.shared = self.shared.saturating_sub(1),
                0 => {
                    self.nodes.remove(&value);
                }
                _ => {}
            }
        }
        was != self.is_unique()
    }
}

/// So many are kept at least before those that no pod has any more are looked for.
const LEAST_ALIKE: usize = 256;

/// What pods of one spec, namespace and labels have in common, as long as there are such pods.
#[derive(Debug, Default)]
pub struct Alike {
    known: BTreeMap<(u32, Arc<[u8]>), Arc<Common>>,
    /// When there are so many, those that nobody has any more go.
    swept_at: usize,
}

impl Alike {
    /// By the number of namespace and labels, and the spec.
    #[must_use]
    pub fn get(&self, kind: u32, spec: &Arc<[u8]>) -> Option<Arc<Common>> {
        self.known.get(&(kind, spec.clone())).cloned()
    }
    /// Keeps it.
    pub fn put(&mut self, kind: u32, spec: Arc<[u8]>, common: Arc<Common>) {
        if self.known.len() >= self.swept_at.max(LEAST_ALIKE) {
            self.known.retain(|_, common| Arc::strong_count(common) > 1);
            self.swept_at = 2 * self.known.len();
        }
        self.known.insert((kind, spec), common);
    }
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

/// All tables.
#[derive(Debug, Default)]
pub struct Tables {
    /// Resource names.
    pub resources: ResourceNames,
    /// Namespaces and labels of pods.
    pub kinds: Interner<Arc<PodKind>>,
    /// What is read of pods that are alike.
    pub alike: Alike,
    /// Images by name.
    pub images: Interner<Arc<str>>,
    /// Values of node labels.
    pub values: Interner<Arc<str>>,
    /// Affinity terms of placed pods.
    pub terms: Vec<Term>,
    term_ids: BTreeMap<String, u32>,
    /// Topology keys that somebody has named.
    pub topologies: Vec<Topology>,
    /// Label keys of pods that some term looks at.
    pub relevant: BTreeSet<String>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<String, Labels>,
}

impl Tables {
    /// The number of a topology key, and whether it is new.
    pub fn topology(&mut self, key: &str) -> (TopologyId, bool) {
        if let Some(at) = self.topologies.iter().position(|t| &*t.key == key) {
            return (u32::try_from(at).unwrap_or(0), false);
        }
        self.topologies.push(Topology { key: key.into(), nodes: BTreeMap::new(), shared: 0 });
        (u32::try_from(self.topologies.len() - 1).unwrap_or(0), true)
    }
    /// The number of a term.
    pub fn term(&mut self, kind: TermKind, topology: TopologyId, matcher: PodMatcher) -> u32 {
        // Its fields in the order of their declaration, so that equal terms have equal texts.
        let text = format!("{kind:?} {topology} {matcher:?}");
        if let Some(id) = self.term_ids.get(&text) {
            return *id;
        }
        let id = u32::try_from(self.terms.len()).unwrap_or(u32::MAX - 1);
        for key in matcher.keys() {
            if !self.relevant.contains(key) {
                self.relevant.insert(key.to_owned());
            }
        }
        self.terms.push(Term { kind, topology, matcher, counts: BTreeMap::new() });
        self.term_ids.insert(text, id);
        id
    }
    /// What a number of a kind stands for.
    #[must_use]
    pub fn kind(&self, id: u32) -> Option<&Arc<PodKind>> {
        self.kinds.get(id)
    }
}
