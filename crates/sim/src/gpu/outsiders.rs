//! Pods with GPUs that come past the scheduler.
//!
//! ```text
//!   a pod gets its GPUs ─┬─▶ a tenant makes one on that node "with GPU 0", or says of the other that it has that
//!                        └─▶ an administrator makes a copy, node and choice and all ─▶ the extender starts anew
//! ```
//!
//! What a tenant says of GPUs is dropped or refused: it is not his to say. An administrator is believed; but what there is
//! the extender counts once, and whoever was bound first has it. All of them end by themselves soon.

use std::time::Duration;

use carrack_engine::{ApiRequest, ContentType, Rng};
use carrack_gpu_extender::Names;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use crate::chance::{below, between};
use crate::meddler::granted;
use crate::observer::{Change, text};
use crate::options::Options;
use crate::plants::Bug;
use crate::role::Role;

/// Who the tenant is to the API server.
pub(crate) const TENANT: &str = "sim:tenant";
/// The node whose first GPU he wants.
const WANTED: &str = "hollow-0";
/// How soon, at the latest, somebody does something about a pod that has come.
const SOON: Duration = Duration::from_secs(2);
/// How many pods the tenant makes at the most, and how many the administrator.
const MOST: u64 = 3;
/// How long such a pod runs, in seconds.
const RUNS_S: u64 = 15;
/// How the tenant's pods are called, and how the administrator's.
const THIEF: &str = "thief-";
const COPY: &str = "copy-";

/// Whether there are such pods. Beside other planted bugs there are none, nor where nodes may go: a node that comes back has
/// other GPUs to those who count.
pub(crate) fn are_outsiders_there(root: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    let drawn = || options.faults && root.fork("whether pods with GPUs come past the scheduler").one_in(4);
    let fits = options.gpus && !options.workloads && !options.small;
    fits && planted.map_or_else(drawn, Bug::is_of_gpu_outsiders)
}

/// What lets the tenant make pods: the collection, and the object to be made in it.
pub(crate) fn rights() -> (String, Value) {
    granted(TENANT, "edit")
}

/// Whether a pod comes past the scheduler.
pub(crate) fn is_outsider(pod: &Value) -> bool {
    is_copy(pod) || text(pod, "/metadata/name").starts_with(THIEF)
}

/// Whether an administrator has copied a pod, node and choice and all.
pub(super) fn is_copy(pod: &Value) -> bool {
    text(pod, "/metadata/name").starts_with(COPY)
}

/// Those who make them.
pub(crate) struct Outsiders {
    rng: Rng,
    are_there: bool,
    /// The administrator copies whatever comes.
    always: bool,
    thieves: u64,
    copies: u64,
}

impl Outsiders {
    pub(crate) fn new(rng: Rng, are_there: bool, always: bool) -> Self {
        Self { rng, are_there, always, thieves: 0, copies: 0 }
    }

    /// What they send when they see these changes: how soon, and who.
    pub(crate) fn see(&mut self, changes: &[Change]) -> Vec<(Duration, Role, ApiRequest)> {
        if !self.are_there {
            return Vec::new();
        }
        let mut sent = Vec::new();
        for pod in changes.iter().filter_map(placed) {
            if text(pod, "/spec/nodeName") != WANTED {
                sent.push((Role::Tenant, claimed(pod)));
            } else if self.thieves < MOST {
                sent.push((Role::Tenant, thief(self.thieves)));
                self.thieves += 1;
            }
            if self.copies < MOST && (self.always || self.rng.one_in(3)) {
                sent.push((Role::User, copy(self.copies, pod)));
                self.copies += 1;
            }
        }
        sent.into_iter().map(|(role, request)| (below(&mut self.rng, SOON), role, request)).collect()
    }

    /// How soon the extender has to start anew, if it has: a copy has come, and it is to find that.
    pub(crate) fn restart(&mut self, changes: &[Change]) -> Option<Duration> {
        let is_new = |change: &Change| change.resource == "pod" && change.before.is_none() && is_copy(change.object());
        let begins = self.are_there && changes.iter().any(is_new);
        begins.then(|| between(&mut self.rng, Duration::from_millis(100), Duration::from_secs(5)))
    }

    /// One of so many servers.
    pub(crate) fn server(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap_or(0)
    }
}

/// A pod with GPUs that has just come to its node, by way of the scheduler.
fn placed(change: &Change) -> Option<&Value> {
    let is_on_a_node = |pod: &Value| !text(pod, "/spec/nodeName").is_empty();
    let was = change.before.as_ref().is_some_and(is_on_a_node);
    let pod = change.after.as_ref().filter(|_| change.resource == "pod" && !was)?;
    (is_on_a_node(pod) && !is_outsider(pod) && super::shares(pod)).then_some(pod)
}

/// Annotations by which a pod has the GPU that the tenant wants.
fn claim() -> Value {
    let names = Names::default();
    let (gpu, node) = (names.container(0), names.node);
    json!({node: WANTED, gpu: "0"})
}

/// The tenant says of another one's pod that it has that GPU.
fn claimed(pod: &Value) -> ApiRequest {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let patch = json!({"metadata": {"annotations": claim()}});
    ApiRequest::patch(&Pod::resource(), namespace, name, "", ContentType::MergePatch, &patch)
}

/// A pod of the tenant's that says that it has that GPU, all of it.
fn thief(number: u64) -> ApiRequest {
    let core = Names::default().core;
    let limits = json!({"cpu": "100m", core: "100"});
    let containers = json!([{"name": "main", "image": "sim/run", "resources": {"limits": limits}}]);
    made(&format!("{THIEF}{number}"), WANTED, claim(), &json!([]), &containers)
}

/// The administrator's copy of a pod: what it asks for, its node, and what is said of its GPUs.
fn copy(number: u64, pod: &Value) -> ApiRequest {
    let names = Names::default();
    let all = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    let chosen = all.into_iter().flatten().filter(|(key, _)| names.is_choice(key));
    let chosen: Map<String, Value> = chosen.map(|(key, value)| (key.clone(), value.clone())).collect();
    let containers = |field: &str| Value::from(pod["spec"][field].as_array().cloned().unwrap_or_default());
    let (inits, mains) = (containers("initContainers"), containers("containers"));
    made(&format!("{COPY}{number}"), text(pod, "/spec/nodeName"), chosen.into(), &inits, &mains)
}

fn made(name: &str, node: &str, mut annotations: Value, inits: &Value, containers: &Value) -> ApiRequest {
    annotations[carrack_hollow::EXIT_CODE] = "0".into();
    annotations[carrack_hollow::EXIT_AFTER_S] = RUNS_S.to_string().into();
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
            "initContainers": inits, "containers": containers}});
    ApiRequest::create_value(&Pod::resource(), "default", &pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str) -> Value {
        let annotations = json!({"tencent.com/predicate-node": node, "tencent.com/predicate-gpu-idx-0": "1", "a": "b"});
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "uid": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "sim/run",
                "resources": {"limits": {"tencent.com/vcuda-core": "200"}}}]}})
    }

    #[test]
    fn they_follow_pods_that_get_gpus() {
        for (name, from, to, expected) in [
            ("gpu0-0", "", "hollow-0", vec!["thief-0", "copy-0"]),
            ("gpu0-0", "", "hollow-1", vec!["", "copy-0"]),
            ("gpu0-0", "", "", vec![]),
            ("gpu0-0", "hollow-0", "hollow-0", vec![]),
            ("copy-0", "", "hollow-0", vec![]),
            ("thief-0", "", "hollow-0", vec![]),
        ] {
            let changes = [Change { resource: "pod", before: Some(pod(name, from)), after: Some(pod(name, to)) }];
            let sent = Outsiders::new(Rng::new(1), true, true).see(&changes);
            let made = sent
                .iter()
                .map(|(_, _, request)| -> Value { serde_json::from_slice(&request.body).expect("an object") });
            let made: Vec<String> = made.map(|pod| text(&pod, "/metadata/name").to_owned()).collect();
            assert_eq!(made, expected, "{name} from {from:?} to {to:?}");
            assert!(Outsiders::new(Rng::new(1), false, true).see(&changes).is_empty());
        }
    }

    #[test]
    fn a_copy_says_what_its_model_says() {
        let request = copy(0, &pod("gpu0-0", "hollow-2"));
        let copied: Value = serde_json::from_slice(&request.body).expect("a pod");
        assert_eq!(text(&copied, "/spec/nodeName"), "hollow-2");
        let annotations = &copied["metadata"]["annotations"];
        assert_eq!(annotations["tencent.com/predicate-gpu-idx-0"], "1");
        assert_eq!(annotations["a"], Value::Null);
        assert!(is_outsider(&copied) && crate::gpu::shares(&copied));
        let changes = [Change { resource: "pod", before: None, after: Some(copied) }];
        assert!(Outsiders::new(Rng::new(1), true, false).restart(&changes).is_some());
    }
}
