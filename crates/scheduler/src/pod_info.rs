//! A pod with what plugins ask of it, computed once for all pods that are alike.

use std::sync::Arc;

use carrack_types::declared;
use carrack_types::fit::HostPort;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{NodeSelector, PodAffinityTerm, PodSpec};

use crate::amounts::Amounts;
use crate::pod::{Claim, Pod};
use crate::tables::{PodKind, PodMatcher, Tables, TermKind};

/// An affinity term of a pod.
#[derive(Clone, Debug)]
pub struct OwnTerm {
    /// Its number among the terms.
    pub term: u32,
    /// Its kind.
    pub kind: TermKind,
}

/// All that matters for where a pod runs but its labels and volumes: equal for pods that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    spec: Arc<[u8]>,
    node: Box<str>,
    deleting: bool,
}

/// What pods that are alike have in common, computed once for all of them.
#[derive(Debug)]
pub struct Common {
    /// Their priority; 0 where none is given.
    pub priority: i32,
    /// What each asks of a node.
    pub requests: Amounts,
    /// CPU and memory as scores count them.
    pub nonzero: [i64; 2],
    /// Host ports that each takes.
    pub host_ports: Vec<HostPort>,
    /// Number of their namespace and labels.
    pub kind: u32,
    /// Their affinity and anti-affinity towards pods.
    pub terms: Vec<OwnTerm>,
    /// Numbers of the images of their containers and volumes.
    pub images: Vec<u32>,
    /// The only nodes that they can go to, by their required affinity, when it names them.
    pub only_nodes: Option<Vec<String>>,
    /// Features that they need of their node.
    pub needs: Vec<&'static str>,
}

/// A pod, read.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its UID.
    pub uid: Arc<str>,
    /// Whether it has volumes that matter for where it runs.
    pub has_volumes: bool,
    /// What makes it alike to others.
    pub shape: Shape,
    common: Arc<Common>,
}

impl std::ops::Deref for PodInfo {
    type Target = Common;
    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Common {
    fn new(pod: &Pod, kind: &PodKind, number: u32, tables: &mut Tables) -> Self {
        let spec = &pod.spec.pod;
        let asks = pod.spec.asks();
        let (requests, _) = tables.resources.read(&asks.requests);
        let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let of_volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.as_deref());
        let images = containers().filter_map(|c| c.image.as_deref()).chain(of_volumes);
        let images = images.map(|image| tables.images.id(&*normalized(image))).collect();
        Self {
            priority: spec.priority.unwrap_or(0),
            requests,
            nonzero: asks.in_scores,
            host_ports: asks.host_ports.clone(),
            kind: number,
            terms: own_terms(spec, kind, tables),
            images,
            only_nodes: only_nodes(spec),
            needs: declared::needed(spec),
        }
    }
}

impl PodInfo {
    /// Whether no plugin can tell it from another form of it.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.shape, self.kind) == (&other.shape, other.kind)
    }

    /// Reads a pod.
    #[must_use]
    pub fn new(pod: Arc<Pod>, tables: &mut Tables) -> Self {
        let kind = Arc::new(PodKind { namespace: pod.namespace().into(), labels: pod.labels.clone() });
        let number = tables.kinds.intern(kind.clone());
        let common = match tables.alike.get(number, &pod.spec.bytes) {
            Some(common) => common,
            None => {
                let common = Arc::new(Common::new(&pod, &kind, number, tables));
                tables.alike.put(number, pod.spec.bytes.clone(), common.clone());
                common
            }
        };
        Self {
            uid: pod.uid().into(),
            has_volumes: !(pod.claims.is_empty() && pod.disks.is_empty()),
            shape: Shape { spec: pod.spec.bytes.clone(), node: pod.node.clone(), deleting: pod.is_deleting() },
            common,
            pod,
        }
    }
    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.pod.namespace()
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pod.name()
    }
    /// Its spec, without volumes and the node that it is bound to.
    #[must_use]
    pub fn spec(&self) -> &PodSpec {
        &self.pod.spec.pod
    }
    /// Claims that it mounts, also those that are made from a template in it.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.pod.claims
    }
    /// The node that it is bound to; empty for none.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.pod.node
    }
    /// Whether it holds less of anything than another form of it.
    #[must_use]
    pub fn asks_less_than(&self, other: &Self) -> bool {
        other.requests.iter().any(|(id, amount)| self.requests.get(id) < amount)
    }
    /// Whether it has ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.pod.ended
    }
    /// Whether its deletion was asked for.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.pod.is_deleting()
    }
}

/// An image name with the tag that a container runtime would add (plugins/imagelocality, `normalizedImageName`).
#[must_use]
pub fn normalized(image: &str) -> String {
    let tagged = image.rfind(':').is_some_and(|colon| image.rfind('/').is_none_or(|slash| colon > slash));
    if tagged { image.to_owned() } else { format!("{image}:latest") }
}

/// The nodes that every term of the required affinity names by `metadata.name` (plugins/nodeaffinity, `PreFilter`).
fn only_nodes(spec: &PodSpec) -> Option<Vec<String>> {
    let required = required_nodes(spec).filter(|required| !required.node_selector_terms.is_empty())?;
    let mut all: Vec<String> = Vec::new();
    for term in &required.node_selector_terms {
        let mut named: Option<Vec<String>> = None;
        for field in term.match_fields.iter().flatten().filter(|f| f.key == "metadata.name" && f.operator == "In") {
            let values = field.values.clone().unwrap_or_default();
            named = Some(match named {
                None => values,
                Some(before) => before.into_iter().filter(|name| values.contains(name)).collect(),
            });
        }
        all.extend(named?);
    }
    all.sort();
    all.dedup();
    Some(all)
}

/// The required node affinity.
#[must_use]
pub fn required_nodes(spec: &PodSpec) -> Option<&NodeSelector> {
    spec.affinity.as_ref()?.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
}

fn own_terms(spec: &PodSpec, kind: &PodKind, tables: &mut Tables) -> Vec<OwnTerm> {
    let mut terms = Vec::new();
    let Some(affinity) = &spec.affinity else { return terms };
    let mut add = |term: &PodAffinityTerm, of: TermKind| {
        let (topology, _) = tables.topology(&term.topology_key);
        let term = tables.term(of, topology, PodMatcher::of_term(term, kind));
        terms.push(OwnTerm { term, kind: of });
    };
    if let Some(pods) = &affinity.pod_affinity {
        for term in pods.required_during_scheduling_ignored_during_execution.iter().flatten() {
            add(term, TermKind::Required);
        }
        for term in pods.preferred_during_scheduling_ignored_during_execution.iter().flatten() {
            add(&term.pod_affinity_term, TermKind::Preferred(term.weight.into()));
        }
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        for term in pods.required_during_scheduling_ignored_during_execution.iter().flatten() {
            add(term, TermKind::RequiredAnti);
        }
        for term in pods.preferred_during_scheduling_ignored_during_execution.iter().flatten() {
            add(&term.pod_affinity_term, TermKind::Preferred(-i64::from(term.weight)));
        }
    }
    terms
}
