//! A pod with what plugins ask of it, computed once.

use std::sync::Arc;

use carrack_types::fit::{HostPort, host_ports};
use carrack_types::pod::{self, is_terminal};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodAffinityTerm, PodSpec};

use crate::amounts::{Amounts, CPU, MEMORY};
use crate::tables::{PodKind, PodMatcher, Tables, TermKind};

/// What pods without requests are taken to use in scores, so that many of them don't heap up on one node
/// (scheduler/util/pod_resources.go): millicores and bytes.
const DEFAULT_CPU_M: i64 = 100;
const DEFAULT_MEMORY_B: i64 = 200 << 20;

/// An affinity term of a pod.
#[derive(Clone, Debug)]
pub struct OwnTerm {
    /// Its number among the terms.
    pub term: u32,
    /// Its kind.
    pub kind: TermKind,
}

/// A pod, read.
#[derive(Debug)]
pub struct PodInfo {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its UID.
    pub uid: Arc<str>,
    /// Its priority; 0 where none is given.
    pub priority: i32,
    /// What it asks of a node.
    pub requests: Amounts,
    /// CPU and memory as scores count them.
    pub nonzero: [i64; 2],
    /// Host ports it takes.
    pub host_ports: Vec<HostPort>,
    /// Number of its namespace and labels.
    pub kind: u32,
    /// Its affinity and anti-affinity towards pods.
    pub terms: Vec<OwnTerm>,
    /// Numbers of its containers' images.
    pub images: Vec<u32>,
    /// Names of the claims it mounts, also of those that are made from a template in it.
    pub claims: Vec<Claim>,
    /// Whether it has volumes that matter for where it runs.
    pub has_volumes: bool,
    /// The only nodes that it can go to, by its required affinity, when it names them.
    pub only_nodes: Option<Vec<String>>,
    /// All that matters for where it runs but its labels, as bytes: equal for pods that are alike.
    pub shape: Arc<[u8]>,
}

/// A claim that a pod mounts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Name.
    pub name: String,
    /// Made from a template in the pod.
    pub ephemeral: bool,
}

impl PodInfo {
    /// Reads a pod.
    #[must_use]
    pub fn new(pod: Arc<Pod>, tables: &mut Tables) -> Self {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let (requests, _) = tables.resources.read(&pod::requests(&pod));
        let or = |amount: i64, default: i64| if amount == 0 { default } else { amount };
        let nonzero = [or(requests.get(CPU), DEFAULT_CPU_M), or(requests.get(MEMORY), DEFAULT_MEMORY_B)];
        let kind =
            PodKind { namespace: pod.namespace().into(), labels: pod.metadata.labels.clone().unwrap_or_default() };
        let terms = own_terms(spec, &kind, tables);
        let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let images =
            containers().filter_map(|c| c.image.as_deref()).map(|i| tables.images.id(&*normalized(i))).collect();
        let volumes = spec.volumes.as_deref().unwrap_or_default();
        let claims: Vec<Claim> = volumes
            .iter()
            .filter_map(|v| {
                let named = v.persistent_volume_claim.as_ref().map(|c| (c.claim_name.clone(), false));
                let made = v.ephemeral.as_ref().map(|_| (format!("{}-{}", pod.name(), v.name), true));
                named.or(made).map(|(name, ephemeral)| Claim { name, ephemeral })
            })
            .collect();
        let has_volumes = !claims.is_empty() || volumes.iter().any(crate::plugins::volumes::is_exclusive_disk);
        Self {
            uid: pod.uid().into(),
            priority: spec.priority.unwrap_or(0),
            requests,
            nonzero,
            host_ports: host_ports(spec),
            kind: tables.kinds.intern(Arc::new(kind)),
            terms,
            images,
            claims,
            has_volumes,
            only_nodes: only_nodes(spec),
            shape: shape(spec, pod.is_deleting()),
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
    /// Its spec, if it has one.
    #[must_use]
    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }
    /// The node that it is bound to; empty for none.
    #[must_use]
    pub fn node(&self) -> &str {
        node_of(&self.pod)
    }
    /// Whether it has ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        is_terminal(&self.pod)
    }
    /// Whether its deletion was asked for.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.pod.is_deleting()
    }
}

/// The node that a pod is bound to; empty for none.
#[must_use]
pub fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
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

/// Everything of a spec that some plugin looks at. Volumes are looked at pod by pod.
fn shape(spec: &PodSpec, deleting: bool) -> Arc<[u8]> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let parts: Vec<_> = containers
        .map(|c| (&c.image, &c.resources, &c.restart_policy, c.ports.as_ref().filter(|p| has_host_port(p))))
        .collect();
    let whole = (
        (parts, spec.containers.len(), &spec.overhead, &spec.resources, spec.priority, &spec.preemption_policy),
        (&spec.node_selector, &spec.affinity, &spec.tolerations, &spec.topology_spread_constraints),
        (&spec.node_name, &spec.scheduler_name, deleting),
    );
    // Writing to memory cannot fail, and every key of these types is a string.
    serde_json::to_vec(&whole).unwrap_or_default().into()
}

fn has_host_port(ports: &[k8s_openapi::api::core::v1::ContainerPort]) -> bool {
    ports.iter().any(|p| p.host_port.is_some_and(|port| port > 0))
}
