//! What people do with GPUs, at times that the seed chose: pods come in bursts, hold their GPUs for a while, end or are deleted.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};

use super::MEMORY;
use crate::chance::{below, between};
use crate::wants::Want;
use crate::workload::{Act, What, delete, up_to};

/// No pod goes sooner than a request for it may be late.
const LIVES: Duration = Duration::from_secs(20);

/// The priority class of pods for which others have to go.
const IMPORTANT: &str = "important-gpus";

fn priority_class() -> Act {
    let object = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": IMPORTANT},
        "value": 1000});
    let what = What::Create { resource: PriorityClass::resource(), object, want: None };
    Act { at: Duration::from_millis(100), what }
}

/// All acts. Where nodes go for good, pods that nobody makes again go with them, and `lasting` is not so.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, lasting: bool) -> Vec<Act> {
    let mut acts = vec![priority_class()];
    let mut ranks = rng.fork("ranks");
    for burst in 0..up_to(2, safety) + rng.below(up_to(4, safety)) {
        let at = between(rng, Duration::from_secs(3), safety * 2 / 3);
        for n in 0..1 + rng.below(7) {
            let name = format!("gpu{burst}-{n}");
            let at = at + below(rng, Duration::from_millis(200));
            let important = ranks.one_in(4);
            let want = lasting.then_some(("pod", Want::Gpus { important }));
            let mut object = pod(rng, &name);
            if important {
                object["spec"]["priorityClassName"] = IMPORTANT.into();
            }
            let what = What::Create { resource: Pod::resource(), object, want };
            acts.push(Act { at, what });
            let lives = between(rng, LIVES, safety);
            if at + lives < safety {
                acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
            }
        }
    }
    acts
}

fn container(rng: &mut Rng, name: &str) -> Value {
    let (cores, memory) = match rng.below(6) {
        0 => (100, 0),
        1 => (200, 0),
        _ => (1 + rng.below(99), 1 + rng.below(u64::from(MEMORY))),
    };
    let mut limits = json!({"cpu": "100m", "tencent.com/vcuda-core": cores.to_string()});
    if memory > 0 {
        limits["tencent.com/vcuda-memory"] = memory.to_string().into();
    }
    json!({"name": name, "image": "sim/run", "resources": {"limits": limits}})
}

fn pod(rng: &mut Rng, name: &str) -> Value {
    let mut containers = vec![container(rng, "main")];
    if rng.one_in(4) {
        containers.push(container(rng, "second"));
    }
    let inits = if rng.one_in(5) { vec![container(rng, "first")] } else { Vec::new() };
    let mut annotations = json!({});
    if rng.one_in(3) {
        annotations[carrack_hollow::EXIT_CODE] = "0".into();
        annotations[carrack_hollow::EXIT_AFTER_S] = (1 + rng.below(30)).to_string().into();
    }
    if rng.one_in(8) {
        // Somebody copies a manifest from a running pod, annotations and all.
        annotations["tencent.com/predicate-node"] = "hollow-0".into();
        annotations["tencent.com/predicate-gpu-idx-0"] = "0".into();
    }
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}], "initContainers": inits, "containers": containers}})
}
