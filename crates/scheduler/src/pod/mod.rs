//! A pod as the scheduler knows it: what some plugin looks at, and nothing else.
//!
//! Most pods differ from others in their names alone. So what they ask for, their labels and the form in which both are compared
//! are shared by all pods that are alike ([`Shared`]), and little is left of a pod. One of `k8s-openapi` takes several kilobytes: a
//! container alone has room for everything that containers can have.
//!
//! Where extenders are shown whole pods, the pod is kept as it was read besides.

mod read;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use carrack_engine::Time;
use carrack_types::fit::{HostPort, host_ports};
use carrack_types::pod::{ResourceList, requests_of, requests_with};
use carrack_types::quantity::{Form, Quantity};
use carrack_types::resource::{Kind, Object, Resource};
use k8s_openapi::api::core::v1::{Pod as WholePod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::tables::Labels;

pub use shared::Shared;

/// What a pod asks of the node it is on. Pods that are alike share it.
#[derive(Debug)]
pub struct Spec {
    /// All that plugins look at but volumes other than images, and the node that the pod is bound to. Its requests are what the pod holds, where
    /// that is more than it asks for ([`carrack_types::held`]).
    pub pod: PodSpec,
    /// The same as bytes, by which pods are compared.
    pub bytes: Arc<[u8]>,
    asks: OnceLock<Asks>,
}

/// What a pod asks for, added up.
#[derive(Debug)]
pub struct Asks {
    /// Of each resource.
    pub requests: ResourceList,
    /// CPU and memory as scores count them: millicores and bytes.
    pub in_scores: [i64; 2],
    /// Ports of the node.
    pub host_ports: Vec<HostPort>,
}

/// What a container that says nothing of them is taken to use in scores, so that many of them don't heap up on one node
/// (scheduler/util/pod_resources.go): millicores and bytes.
const DEFAULT_CPU_M: i64 = 100;
const DEFAULT_MEMORY_B: i64 = 200 << 20;

impl Spec {
    /// What it asks for; added up once for all pods that share it.
    #[must_use]
    pub fn asks(&self) -> &Asks {
        self.asks.get_or_init(|| {
            let missing = ResourceList::from([
                ("cpu".to_owned(), Quantity::from_millis(DEFAULT_CPU_M)),
                ("memory".to_owned(), Quantity::from_units(DEFAULT_MEMORY_B, Form::BinarySi)),
            ]);
            let in_scores = requests_with(&self.pod, &missing);
            let amount = |name: &str| in_scores.get(name).copied().unwrap_or_default();
            Asks {
                requests: requests_of(&self.pod),
                in_scores: [amount("cpu").millis().max(0), amount("memory").units().max(0)],
                host_ports: host_ports(&self.pod),
            }
        })
    }
}

/// A claim that a pod mounts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Name.
    pub name: String,
    /// Made from a template in the pod.
    pub ephemeral: bool,
}

/// A disk that pods on one node don't share, except where all of them only read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// What names it.
    pub name: String,
    /// Whether the pod only reads it.
    pub read_only: bool,
}

/// Why a pod's status says that it has no node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unplaced {
    /// For programs.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Names, revision, owners. Its labels are beside it.
    metadata: ObjectMeta,
    /// Labels.
    pub labels: Arc<Labels>,
    /// What it asks for.
    pub spec: Arc<Spec>,
    /// The node that it is bound to; empty for none.
    pub node: Box<str>,
    /// Claims that it mounts, also those that are made from a template in it.
    pub claims: Box<[Claim]>,
    /// Disks that it mounts and that are nobody's claims.
    pub disks: Box<[Disk]>,
    /// It has ended for good.
    pub ended: bool,
    /// A scheduler has it go, so that another pod can come.
    pub preempted: bool,
    /// Node that its status says is being made free for it.
    pub nominated: Option<Box<str>>,
    /// The condition `PodScheduled`, where that is false. Thousands that wait are told the same.
    pub unplaced: Option<Arc<Unplaced>>,
    /// When its kubelet first saw it.
    pub started: Option<Time>,
    /// All of it, where that is kept.
    whole: Option<Box<RawValue>>,
}

impl Pod {
    /// Its annotations; they are kept where all of it is.
    #[must_use]
    pub fn annotations(&self) -> Option<&Labels> {
        self.metadata.annotations.as_ref()
    }
    /// The name of its scheduler.
    #[must_use]
    pub fn scheduler_name(&self) -> &str {
        self.spec.pod.scheduler_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(crate::DEFAULT_SCHEDULER_NAME)
    }
    /// As much of it as is known here, as the API has it.
    fn known(&self) -> WholePod {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let condition = self.unplaced.as_ref().map(|why| PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some(why.reason.clone()),
            message: Some(why.message.clone()),
            ..PodCondition::default()
        });
        WholePod {
            metadata: ObjectMeta {
                labels: (!self.labels.is_empty()).then(|| (*self.labels).clone()),
                ..self.metadata.clone()
            },
            spec: Some(PodSpec { node_name: text(&self.node), ..self.spec.pod.clone() }),
            status: Some(PodStatus {
                conditions: condition.map(|condition| vec![condition]),
                nominated_node_name: self.nominated.as_deref().map(str::to_owned),
                start_time: self.started.map(|time| time.meta()),
                ..PodStatus::default()
            }),
        }
    }
}

carrack_types::json_here!(Pod);

impl Object for Pod {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

impl Kind for Pod {
    fn resource() -> Resource {
        WholePod::resource()
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let whole = Box::<RawValue>::deserialize(from)?;
        read::pod(whole).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Pod {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.whole {
            Some(whole) => whole.serialize(to),
            None => self.known().serialize(to),
        }
    }
}
