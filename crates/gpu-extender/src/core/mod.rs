//! The extender's core.
//!
//! [`ask`]: what is answered at once, from the ledger. [`bind`]: bindings, which take requests. [`news`]: what others did.
//! [`dispute`]: who holds what several claim.

mod ask;
mod bind;
mod dispute;
mod news;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{CallId, Core, Delta, Effects, Informer, Input, Rng, Selector, Time, TimerId};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::claims::bound_since;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::node::{self, Gpu, Shape};
use crate::place::{self, Uses};
use crate::{Ledger, annotations, demand, trim, wire};
use bind::Flight;

/// What the extender is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of resources and annotations.
    pub names: Names,
    /// How long a filter's answer counts when no binding follows. A pod may be bound later than that; then places are found
    /// anew.
    pub offer: Duration,
    /// How long a binding may take until the scheduler is told that it failed, and it is undone. Less than the scheduler
    /// waits (`httpTimeout`).
    pub bind: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { names: Names::default(), offer: Duration::from_secs(60), bind: Duration::from_secs(4) }
    }
}

/// What it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Which nodes would do.
    Filter,
    /// How good they are.
    Prioritize,
    /// Where victims would help.
    Preempt,
    /// Bind a pod.
    Bind,
    /// Whether it can answer.
    Ready,
    /// Its figures.
    Metrics,
}

impl Verb {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Preempt => "preempt",
            Self::Bind => "bind",
            Self::Ready => "ready",
            Self::Metrics => "metrics",
        }
    }
}

/// A question. It has exactly one answer, unless the core ends first.
#[derive(Clone, Debug)]
pub struct Call {
    /// Names it.
    pub id: u64,
    /// What is asked.
    pub verb: Verb,
    /// JSON, as the verb wants it.
    pub body: Bytes,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Which question.
    pub id: u64,
    /// HTTP status.
    pub status: u16,
    /// JSON; text for metrics.
    pub body: Bytes,
}

/// The extender.
pub struct GpuExtender {
    config: Config,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    /// The GPUs of each node, as the cache of nodes has them.
    shapes: BTreeMap<String, Shape>,
    ready: bool,
    ledger: Ledger,
    flights: BTreeMap<String, Flight>,
    calls: BTreeMap<CallId, String>,
    timers: BTreeMap<TimerId, String>,
    metrics: Metrics,
    planted: Option<Planted>,
}

/// Bugs that can be put in on purpose, for the simulator, which must find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// gpu-admission's: it believes its cache, and remembers nothing of what it has said.
    Cache,
    /// A binding without an answer counts as one that did not happen, and its GPUs as free.
    Haste,
    /// gpu-admission's again: a pod with a choice of GPUs in its annotations is refused, since it was chosen for before
    /// ("had been predicated").
    Predicated,
    /// What pods claim that others have bound is added up, whether or not somebody holds it already.
    ClaimsAddUp,
}

impl GpuExtender {
    /// One that has not started.
    #[must_use]
    pub fn new(config: Config, rng: &Rng) -> Self {
        let (of_pods, of_nodes) = (config.names.clone(), config.names.clone());
        let pods = Informer::new(Pod::resource(), Selector::all(), rng.fork("pods"));
        let nodes = Informer::new(Node::resource(), Selector::all(), rng.fork("nodes"));
        Self {
            config,
            pods: pods.trimmed_by(move |pod| trim::pod(pod, &of_pods)),
            nodes: nodes.trimmed_by(move |node| trim::node(node, &of_nodes)),
            shapes: BTreeMap::new(),
            ready: false,
            ledger: Ledger::default(),
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeMap::new(),
            metrics: Metrics::default(),
            planted: None,
        }
    }
    /// Puts in a bug that the simulator must find.
    #[must_use]
    pub fn with_planted(mut self, bug: Planted) -> Self {
        self.planted = Some(bug);
        self
    }
    /// Who holds what.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    /// Whether it has seen all pods and nodes.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    fn names(&self) -> &Names {
        &self.config.names
    }
    fn pod(&self, namespace: &str, name: &str, uid: &str) -> Option<&Arc<Pod>> {
        self.pods.cache().get(namespace, name).filter(|pod| pod.uid() == uid)
    }
    fn shape(&self, node: &str) -> Option<&Shape> {
        self.shapes.get(node)
    }
    /// A node's GPUs; none of one that is not known.
    fn gpus(&self, node: &str) -> &[Gpu] {
        self.shape(node).map_or(&[][..], |shape| &shape.gpus)
    }
    fn node_changed(&mut self, delta: &Delta<Node>) {
        let node = delta.object();
        let before = match delta {
            Delta::Removed(_) => {
                self.shapes.remove(node.name());
                return;
            }
            Delta::Added(_) | Delta::Updated(..) => {
                self.shapes.insert(node.name().to_owned(), node::of(node, &self.config.names))
            }
        };
        self.renumber(node.name(), before.as_ref());
        if before.is_none_or(|before| before.gpus.is_empty()) {
            self.look_for_gpus(node.name());
        }
    }

    /// What all pods but these hold of a node's GPUs.
    fn in_use(&self, node: &str, except: &[&str]) -> Uses {
        if self.planted != Some(Planted::Cache) {
            return self.ledger.in_use(node, except);
        }
        let mut uses = Uses::new();
        let Some(shape) = self.shape(node) else { return uses };
        for pod in self.pods.cache().iter().filter(|p| !except.contains(&p.uid()) && !is_over(p)) {
            let Ok(demand) = demand::of(pod, self.names()) else { continue };
            let places = annotations::read(self.names(), pod, node, &demand).unwrap_or_default();
            for (gpu, used) in place::holds(&demand, &places, &shape.gpus) {
                let sum = uses.entry(gpu).or_default();
                *sum = sum.and(used);
            }
        }
        uses
    }

    fn asked(&mut self, now: Time, call: &Call, fx: &mut Effects<Reply>) {
        let id = call.id;
        let reply = |status: u16, body: Bytes| Reply { id, status, body };
        self.metrics.asked(call.verb);
        match call.verb {
            Verb::Ready if self.ready => return fx.own(reply(200, Bytes::from_static(b"ok"))),
            Verb::Ready => return fx.own(reply(503, Bytes::from_static(b"pods and nodes are still being listed"))),
            Verb::Metrics => return fx.own(reply(200, self.metrics.text(&self.ledger, self.ready).into())),
            Verb::Filter | Verb::Prioritize | Verb::Preempt | Verb::Bind => {}
        }
        if !self.ready {
            return fx.own(reply(
                200,
                self.failed(call.verb, "the GPU extender is not ready: it is still listing pods and nodes"),
            ));
        }
        let answer = match call.verb {
            Verb::Filter => wire::Args::read(&call.body).map(|args| self.filter(now, &args)),
            Verb::Prioritize => wire::Args::read(&call.body).map(|args| self.prioritize(&args)),
            Verb::Preempt => wire::Preemption::read(&call.body).map(|asked| self.preempt(asked)),
            Verb::Bind => match wire::Bind::read(&call.body) {
                Ok(bind) => return self.bind(now, id, bind, fx),
                Err(error) => Err(error),
            },
            Verb::Ready | Verb::Metrics => return,
        };
        fx.own(match answer {
            Ok(Ok(body)) => reply(200, body),
            Ok(Err(text)) => reply(200, self.failed(call.verb, &text)),
            Err(text) => reply(400, self.failed(call.verb, &text)),
        });
    }

    fn failed(&mut self, verb: Verb, text: &str) -> Bytes {
        self.metrics.failed(verb);
        wire::failure(text)
    }

    fn begin(&mut self, fx: &mut Effects<Reply>) {
        if self.ready || !self.pods.synced() || !self.nodes.synced() {
            return;
        }
        self.ready = true;
        let pods = self.pods.cache().iter().cloned();
        let (mut bound, others): (Vec<Arc<Pod>>, Vec<Arc<Pod>>) = pods.partition(|pod| !node_of(pod).is_empty());
        // Who was bound first holds what several claim.
        bound.sort_by(|a, b| bound_since(a).cmp(&bound_since(b)));
        for pod in bound.iter().chain(&others) {
            self.found(pod, fx);
        }
        tracing::info!(pods = self.ledger.iter().count(), "the ledger of GPUs is rebuilt");
    }
}

/// Whether a pod's containers have ended for good.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The node that a pod is bound to; empty before.
fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

impl Core for GpuExtender {
    type In = Call;
    type Out = Reply;

    fn step(&mut self, now: Time, input: Input<Call>, fx: &mut Effects<Reply>) {
        self.ledger.expire(now);
        self.settle_claims();
        if let Some(deltas) = self.nodes.step(now, &input, fx) {
            for delta in &deltas {
                self.node_changed(delta);
            }
            return self.begin(fx);
        }
        if let Some(deltas) = self.pods.step(now, &input, fx) {
            if self.ready {
                for delta in deltas {
                    self.heard(delta, fx);
                }
            }
            return self.begin(fx);
        }
        match input {
            Input::Start => {
                self.nodes.start(fx);
                self.pods.start(fx);
            }
            Input::Own(call) => self.asked(now, &call, fx),
            Input::Api { id, result } => {
                if let Some(uid) = self.calls.remove(&id) {
                    self.answered(now, &uid, id, result, fx);
                }
            }
            Input::Timer(id) => {
                if let Some(uid) = self.timers.remove(&id) {
                    self.due(now, &uid, id, fx);
                }
            }
            Input::Watch { .. } => {}
        }
    }
}
