//! Objects whose owner has a name that nothing can have, as any tenant can make them. Whoever collects garbage
//! asks for that owner by its name: put into a path as it stands, it makes none, or that of something else, and
//! the object stays for ever.

use std::time::Duration;

use carrack_engine::{ApiRequest, Rng};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::acts::start;
use crate::observer::{Observer, deleting, key_of, text};
use crate::workload::{Act, What};

/// What the names of such config maps begin with.
const NAME: &str = "stranger";
/// The names of their owners. The first makes no path at all.
const OWNERS: [&str; 4] = ["a b", "?limit=1", "kube-root-ca.crt#", "x/status"];

/// A config map with each of these owners.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for (n, owner) in OWNERS.into_iter().enumerate() {
        let name = format!("{NAME}{n}");
        let uid = format!("owner-of-{name}");
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid});
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "default", "name": name, "ownerReferences": [reference]}});
        let at = start(rng, safety);
        acts.push(Act { at, what: What::Create { resource: ConfigMap::resource(), object, want: None } });
    }
}

/// One of them that is still there, though its owner is not.
pub(crate) fn left(observer: &Observer) -> Option<String> {
    let is_left = |map: &&Value| text(map, "/metadata/name").starts_with(NAME) && !deleting(map);
    let map = observer.all("configmap").find(is_left)?;
    Some(format!("configmap {} has an owner that cannot be, and stays", key_of(map)))
}

/// With the planted bug: the same request, with the names in its path as they stand.
pub(crate) fn with_raw_names(request: ApiRequest) -> ApiRequest {
    if request.path.contains('?') {
        return request;
    }
    ApiRequest { path: request.path.replace("%20", " "), ..request }
}

#[cfg(test)]
mod tests {
    use carrack_engine::to_http;

    use super::*;

    #[test]
    fn a_raw_name_makes_no_path() {
        let get = |name: &str| ApiRequest::get(&ConfigMap::resource(), "default", name);
        for owner in OWNERS {
            assert!(to_http(get(owner), "").is_ok(), "{owner}");
        }
        assert!(to_http(with_raw_names(get(OWNERS[0])), "").is_err());
        let map = json!({"metadata": {"namespace": "default", "name": "stranger0"}});
        assert!(left(&Observer::of([("configmap", map)])).is_some());
        assert_eq!(left(&Observer::of([("configmap", json!({"metadata": {"name": "other"}}))])), None);
    }
}
