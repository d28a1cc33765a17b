//! An API server that does not keep all of a status as it was written: an older one, which does not know a field, or one with
//! a webhook.
//!
//! In one run of four, the addresses of hosts do not arrive in what kubelets tell of pods. What a kubelet computes is never what
//! the server has then: it may tell it the same again now and then, and not as soon as it is answered.

use std::borrow::Cow;

use carrack_engine::{ApiRequest, Rng};
use serde_json::Value;

use crate::plants::Bug;

/// Its name.
pub(crate) const NAME: &str = "unkept-words-wait";

/// How often the same may be told in ten seconds once nothing fails any more. A write that is refused because the pod was
/// written at the same time is tried again a few times; who does not mind what a server keeps tells it twice a second.
pub(crate) const MOST: u32 = 12;

/// Whether servers are like that. Beside other planted bugs they are not.
pub(crate) fn is_there(root: &Rng, faults: bool, planted: Option<Bug>) -> bool {
    match planted {
        None => faults && root.fork("forgetful").one_in(4),
        Some(bug) => bug == Bug::ToldAtOnce,
    }
}

/// Whether something is written to a pod's status, by the path of the request or by its words in the trace.
pub(crate) fn is_status_of_pod(path: &str) -> bool {
    path.contains("/pods/") && path.ends_with("/status")
}

/// What arrives of a request of a kubelet's.
pub(crate) fn kept(request: ApiRequest) -> ApiRequest {
    if !is_status_of_pod(&request.path) {
        return request;
    }
    let mut written: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    match written.get_mut("status").and_then(Value::as_object_mut).and_then(|status| status.remove("hostIPs")) {
        Some(_) => ApiRequest { body: written.to_string().into(), ..request },
        None => request,
    }
}

/// What a request says: a pod's status that rests on another version of the pod is the same one. (What others write over and over
/// may be the work of many: a machine of which a hundred snapshots are taken.)
pub(crate) fn words<'a>(label: &str, body: &'a [u8]) -> Cow<'a, [u8]> {
    if !label.starts_with("PATCH ") || !is_status_of_pod(label) {
        return Cow::Borrowed(body);
    }
    let mut written: Value = serde_json::from_slice(body).unwrap_or_default();
    match written.get_mut("metadata").and_then(Value::as_object_mut).and_then(|meta| meta.remove("resourceVersion")) {
        Some(_) => Cow::Owned(written.to_string().into_bytes()),
        None => Cow::Borrowed(body),
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Method;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_status_all_is_kept_but_the_addresses() {
        let status = json!({"status": {"phase": "Running", "hostIPs": [{"ip": "192.168.0.1"}]}});
        let table = [
            ("/api/v1/namespaces/a/pods/p/status", json!({"status": {"phase": "Running"}})),
            ("/api/v1/namespaces/a/pods/p", status.clone()),
            ("/api/v1/nodes/n/status", status.clone()),
        ];
        for (path, expected) in table {
            let request = ApiRequest { body: status.to_string().into(), ..ApiRequest::new(Method::Patch, path) };
            let arrived: Value = serde_json::from_slice(&kept(request).body).expect("JSON");
            assert_eq!(arrived, expected, "{path}");
        }
    }

    #[test]
    fn versions_are_no_words() {
        let of = |version: &str, phase: &str| {
            json!({"metadata": {"uid": "u", "resourceVersion": version}, "status": {"phase": phase}}).to_string()
        };
        let path = "/api/v1/namespaces/a/pods/p/status";
        let patch = format!("PATCH {path}");
        let table = [
            (patch.clone(), of("1", "Running"), of("2", "Running"), true),
            (patch, of("1", "Pending"), of("1", "Running"), false),
            (format!("PUT {path}"), of("1", "Running"), of("2", "Running"), false),
            (
                "PATCH /apis/kubevirt.io/v1/namespaces/a/virtualmachines/m/status".to_owned(),
                of("1", "x"),
                of("2", "x"),
                false,
            ),
        ];
        for (label, one, other, same) in table {
            assert_eq!(words(&label, one.as_bytes()) == words(&label, other.as_bytes()), same, "{label} {one} {other}");
        }
    }
}
