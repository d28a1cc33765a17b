//! Pods that call themselves static, or the pictures of others, as whoever makes pods may write.
//!
//! ```text
//!  a tenant's pod, "of a file" ──▶ runs like any other, however often its kubelet starts anew
//!        └── runs ──▶ another one, "the picture of this" ──▶ its kubelet deletes it: it has no such static pod
//! ```
//!
//! None of these is of a manifest; of those that are, [`crate::statics`] tells. What is looked after is that none of these is taken
//! for one: they run on, and are told about.

use std::time::Duration;

use carrack_engine::{ApiRequest, Rng};
use carrack_kubelet::spec::manifest::{HASH, SOURCE};
use carrack_types::resource::Kind as _;
use carrack_types::well_known::MIRROR_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::observer::{Change, label, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting, up_to};

/// Name of this part of the work.
pub(crate) const PART: &str = "impostors";

/// How such pods are called.
const NAME: &str = "impostor";

/// Whether there are such pods. Beside other planted bugs there are none.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    options.faults && planted.is_none() && rng.fork("whether pods pretend").one_in(4)
}

/// Pods that say that they are of files.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(4, safety)) {
        let name = format!("{NAME}{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let mut object = mounting(&name, 1 + rng.below(5), "scratch", "emptyDir", json!({}));
        object["metadata"]["annotations"] = json!({SOURCE: "file", HASH: format!("{:032x}", rng.u64())});
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(3) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// What somebody makes when such pods begin to run: pods that call themselves the pictures of these.
pub(crate) fn pictures(changes: &[Change]) -> Vec<ApiRequest> {
    let runs = |pod: &Option<Value>| pod.as_ref().is_some_and(|pod| text(pod, "/status/phase") == "Running");
    let is_one =
        |pod: &&Value| text(pod, "/metadata/name").starts_with(NAME) && !label(pod, "annotations", SOURCE).is_empty();
    let begins = |change: &&Change| change.resource == "pod" && !runs(&change.before) && runs(&change.after);
    let begun = changes.iter().filter(begins).filter_map(|change| change.after.as_ref());
    begun.filter(is_one).map(picture).collect()
}

fn picture(pod: &Value) -> ApiRequest {
    let name = format!("picture-of-{}", text(pod, "/metadata/name"));
    let mut object = mounting(&name, 1, "scratch", "emptyDir", json!({}));
    object["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: uid(pod)});
    object["spec"]["nodeName"] = text(pod, "/spec/nodeName").into();
    // It comes to its node unasked, and is to take nobody's room there.
    object["spec"]["containers"][0]["resources"] = json!({});
    ApiRequest::create_value(&Pod::resource(), text(pod, "/metadata/namespace"), &object)
}
