//! Whose devices are these? And what does that container get?
//!
//! 1. If the kubelet's checkpoint names a container with exactly these devices, it is that one. Carrack's kubelet writes its
//!    intention down before it asks, so there this is the rule; where an init container hands its devices on, the container
//!    that was granted nothing yet is meant.
//! 2. Otherwise (upstream's kubelet, which writes afterwards) it is one of the containers on this node that ask for so many
//!    cores, have GPUs chosen for them, and that the checkpoint does not have yet; of several the one chosen first, as with
//!    upstream's plugin. That is a guess when two such pods come at once.
//! 3. Before the container starts, the checkpoint names it for certain ([`verify`]). If rule 2 guessed wrong, it does not
//!    start: it has another one's GPUs, and the extender would count them for somebody else. What was found right stays so, so
//!    that a container can start again without the API server.
//!
//! A container has the cards that were chosen for it, by their UUIDs where these are written down. When one of them is there no
//! more, or does not work, it is told so, and gets no other one.

use std::collections::{BTreeMap, BTreeSet};

use carrack_gpu_extender::demand::{self, Asking, Want};
use carrack_gpu_extender::{Names, annotations};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use crate::checkpoint::Held;
use crate::inventory::{Device, Inventory, MEMORY_UNIT_MIB};

/// Variable with the UUIDs of a container's GPUs: what NVIDIA's container runtime goes by.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Variable with the cores that a container was granted, of all its GPUs together.
pub const CORES_GRANTED: &str = "CARRACK_GPU_CORES";

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its pod, for messages.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// Its GPUs, by number.
    pub gpus: Vec<usize>,
    /// UUIDs of those that are there no more.
    pub gone: Vec<String>,
    /// What it asks for.
    pub want: Want,
}

impl Grant {
    /// Its GPUs, if all of them are there and work.
    ///
    /// # Errors
    /// The one that is not, or does not.
    pub fn devices<'a>(&self, inventory: &'a Inventory) -> Result<Vec<&'a Device>, String> {
        let chosen = format!("which was chosen for container {} of {}", self.container, self.pod);
        if !self.gone.is_empty() {
            return Err(format!("GPU {}, {chosen}, is gone: delete the pod", self.gone.join(", ")));
        }
        let device = |number: &usize| match inventory.gpus.get(*number) {
            None => Err(format!("this node has no GPU {number}, {chosen}: delete the pod")),
            Some(gpu) if gpu.broken => Err(format!("GPU {number} ({}), {chosen}, is broken or gone", gpu.uuid)),
            Some(gpu) => Ok(gpu),
        };
        self.gpus.iter().map(device).collect()
    }

    /// The variables for its environment.
    ///
    /// Besides the GPUs themselves these are limits: `CUDA_MPS_*` is what NVIDIA's Multi-Process Service enforces where it
    /// runs on the node, `CARRACK_GPU_*` is for programs that keep to it by themselves.
    #[must_use]
    pub fn env(&self, inventory: &Inventory) -> BTreeMap<String, String> {
        let known: Vec<_> = self.gpus.iter().filter_map(|number| inventory.gpus.get(*number)).collect();
        let uuids: Vec<&str> = known.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let mut env = BTreeMap::from([
            (VISIBLE.to_owned(), uuids.join(",")),
            ("NVIDIA_DRIVER_CAPABILITIES".to_owned(), "compute,utility".to_owned()),
        ]);
        let (cores, memory_mib) = match self.want {
            Want::Share { cores, memory } => {
                let mib = memory.saturating_mul(MEMORY_UNIT_MIB);
                env.insert("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), cores.to_string());
                env.insert("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), format!("0={mib}M"));
                (u64::from(cores), mib)
            }
            Want::Whole(count) => (count as u64 * 100, known.iter().map(|gpu| gpu.memory_mib).sum()),
        };
        env.insert(CORES_GRANTED.to_owned(), cores.to_string());
        env.insert("CARRACK_GPU_MEMORY_MIB".to_owned(), memory_mib.to_string());
        env
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Something is not known yet, and may be soon.
    Unknown(String),
    /// No waiting helps.
    Final(String),
}

/// What is known when somebody asks.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Names of resources and annotations.
    pub names: &'a Names,
    /// This node.
    pub node: &'a str,
    /// The pods bound to it.
    pub pods: &'a [Pod],
    /// What the kubelet has noted of the core resource.
    pub held: &'a [Held],
    /// The node's GPUs.
    pub inventory: &'a Inventory,
}

impl Known<'_> {
    fn of(&self, pod: &Pod, container: impl Fn(&Asking) -> bool) -> Vec<Grant> {
        let demand = demand::of(pod, self.names).unwrap_or_default();
        let places = annotations::read(self.names, pod, self.node, &demand).unwrap_or_default();
        let grant = |asking: &Asking| {
            let numbers = places.get(&asking.slot)?;
            let (gpus, gone) = match annotations::uuids(self.names, pod, asking.slot, numbers.len()) {
                Some(uuids) => self.inventory.find(&uuids),
                None => (numbers.clone(), Vec::new()),
            };
            let pod = format!("{}/{}", pod.namespace(), pod.name());
            Some(Grant { pod, container: asking.name.clone(), gpus, gone, want: asking.want })
        };
        demand.iter().filter(|asking| container(asking)).filter_map(grant).collect()
    }

    fn named(&self, held: &Held) -> Result<Grant, String> {
        let pod = self.pods.iter().find(|pod| pod.uid() == held.uid);
        let pod = pod.ok_or_else(|| format!("the pod {} is not on this node", held.uid))?;
        let grant = self.of(pod, |asking| asking.name == held.container).pop();
        grant.ok_or_else(|| {
            let (namespace, name, container) = (pod.namespace(), pod.name(), &held.container);
            format!("no GPUs were chosen for container {container} of {namespace}/{name}: was it bound past the GPU extender?")
        })
    }
}

/// Finds out for which container devices of the core resource are, and which GPUs it gets.
///
/// # Errors
/// Nobody is found.
pub fn of(known: Known<'_>, ids: &BTreeSet<String>) -> Result<Grant, String> {
    let exact: Vec<&Held> = known.held.iter().filter(|held| held.ids == *ids).collect();
    let open = exact.iter().find(|held| held.env.is_none());
    if let Some(held) = open.or(exact.first()) {
        return known.named(held);
    }
    let mut waiting = Vec::new();
    for pod in known.pods {
        let noted = |asking: &Asking| known.held.iter().any(|h| h.uid == pod.uid() && h.container == asking.name);
        let wanted = |asking: &Asking| cores(asking.want) == ids.len() && !noted(asking);
        let since = annotations::chosen_at(known.names, pod).unwrap_or(i64::MAX);
        for (place, grant) in known.of(pod, wanted).into_iter().enumerate() {
            waiting.push(((since, pod.uid(), place), grant));
        }
    }
    waiting.sort_by_key(|(place, _)| *place);
    let several = waiting.iter().any(|(_, other)| {
        let (_, first) = &waiting[0];
        (&other.gpus, &other.gone) != (&first.gpus, &first.gone)
    });
    let (_, grant) =
        waiting.into_iter().next().ok_or_else(|| format!("no container here waits for {} cores", ids.len()))?;
    if several {
        tracing::warn!(
            pod = grant.pod,
            container = grant.container,
            "several containers wait for as many cores: the first is taken"
        );
    }
    Ok(grant)
}

fn cores(want: Want) -> usize {
    match want {
        Want::Share { cores, .. } => cores as usize,
        Want::Whole(count) => count * 100,
    }
}

/// Who was granted something for these devices.
pub fn granted<'a>(held: &'a [Held], ids: &'a BTreeSet<String>) -> impl Iterator<Item = &'a Held> {
    held.iter().filter(move |held| held.ids == *ids && held.env.is_some())
}

/// Whether all GPUs that a container was given are there and work.
#[must_use]
pub fn work(held: &Held, inventory: &Inventory) -> bool {
    let given = held.env.as_ref().and_then(|env| env.get(VISIBLE)).map_or("", String::as_str);
    given.split(',').all(|uuid| inventory.gpus.iter().any(|gpu| gpu.uuid == uuid && !gpu.broken))
}

/// Checks, before a container starts, that it was given its own GPUs, and that these work.
///
/// # Errors
/// It was given others, or one of them is gone or broken, for good; or the kubelet has not noted it yet.
pub fn verify(known: Known<'_>, ids: &BTreeSet<String>) -> Result<(), Trouble> {
    let granted: Vec<(&Held, &BTreeMap<String, String>)> =
        granted(known.held, ids).filter_map(|held| Some((held, held.env.as_ref()?))).collect();
    if granted.is_empty() {
        return Err(Trouble::Unknown("the kubelet has no note of these devices".to_owned()));
    }
    // An init container and the one that takes over its devices are in one pod; each is checked.
    for (held, env) in granted {
        let own = known.named(held).map_err(Trouble::Unknown)?;
        own.devices(known.inventory).map_err(Trouble::Final)?;
        let (should, is) = (own.env(known.inventory).remove(VISIBLE), env.get(VISIBLE).cloned());
        if should != is {
            return Err(Trouble::Final(format!(
                "container {} of {} was given {}, and {} was chosen for it: delete the pod",
                own.container,
                own.pod,
                is.unwrap_or_default(),
                should.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
