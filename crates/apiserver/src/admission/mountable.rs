//! Which secrets pods of a service account may name, where it says that those are its own only.
//!
//! Upstream: `plugin/pkg/admission/serviceaccount`, `limitSecretReferences` and
//! `limitEphemeralContainerSecretReferences`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::object::{Object, at, meta, meta_str};

/// Says so of an account.
pub(super) const ANNOTATION: &str = "kubernetes.io/enforce-mountable-secrets";
/// What counts as yes.
const YES: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];

/// The containers of a new pod, and those that are added later, as refusals call them.
const CONTAINERS: &[(&str, &str)] = &[("initContainers", "init container"), ("containers", "container")];
const EPHEMERAL: &[(&str, &str)] = &[("ephemeralContainers", "ephemeral container")];

pub(super) fn annotation(account: &Object) -> Option<&str> {
    meta(account, "annotations")?.get(ANNOTATION)?.as_str()
}

/// Why a pod may not name what it names; `is_new` unless it is its ephemeral containers alone that are asked about.
pub(super) fn refusal(account: &Object, pod: &Object, is_new: bool) -> Option<String> {
    if annotation(account).is_none_or(|said| !YES.contains(&said)) {
        return None;
    }
    let tail = format!("is not allowed because service account {} does not reference that", meta_str(account, "name"));
    let known = named(account, &["secrets"]);
    let unknown = |secret: &Value| secret.as_str().filter(|secret| !known.contains(secret)).map(str::to_owned);
    if is_new {
        let volumes = list(at(pod, &["spec", "volumes"]));
        if let Some(secret) = volumes.iter().find_map(|volume| unknown(&volume["secret"]["secretName"])) {
            return Some(format!("volume with secret.secretName={secret:?} {tail} secret"));
        }
    }
    let kinds = if is_new { CONTAINERS } else { EPHEMERAL };
    for &(field, kind) in kinds {
        for container in list(at(pod, &["spec", field])) {
            let of = container["name"].as_str().unwrap_or_default();
            for variable in list(container.get("env")) {
                if let Some(secret) = unknown(&variable["valueFrom"]["secretKeyRef"]["name"]) {
                    let variable = variable["name"].as_str().unwrap_or_default();
                    let what = format!("{kind} {of} with envVar {variable} referencing secret.secretName={secret:?}");
                    return Some(format!("{what} {tail} secret"));
                }
            }
            let sources = list(container.get("envFrom"));
            if let Some(secret) = sources.iter().find_map(|source| unknown(&source["secretRef"]["name"])) {
                let what = format!("{kind} {of} with envFrom referencing secret.secretName={secret:?}");
                return Some(format!("{what} {tail} secret"));
            }
        }
    }
    if is_new {
        let known = named(account, &["imagePullSecrets"]);
        for (index, secret) in list(at(pod, &["spec", "imagePullSecrets"])).iter().enumerate() {
            let name = secret["name"].as_str().unwrap_or_default();
            if !known.contains(name) {
                return Some(format!("imagePullSecrets[{index}].name={name:?} {tail} imagePullSecret"));
            }
        }
    }
    None
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn named<'a>(account: &'a Object, path: &[&str]) -> BTreeSet<&'a str> {
    list(at(account, path)).iter().filter_map(|reference| reference["name"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Object {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn pods_name_the_secrets_of_their_account() {
        let account = |said: &str| {
            object(&json!({"metadata": {"name": "sa", "annotations": {ANNOTATION: said}},
                "secrets": [{"name": "own"}], "imagePullSecrets": [{"name": "pull"}]}))
        };
        let variable = |secret: &str| json!({"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}});
        let from = |secret: &str| json!({"secretRef": {"name": secret}});
        for (spec, is_new, refused) in [
            (json!({"volumes": [{"secret": {"secretName": "own"}}, {"emptyDir": {}}]}), true, ""),
            (json!({"volumes": [{"secret": {"secretName": "x"}}]}), true, "volume with secret.secretName=\"x\" is not"),
            (
                json!({"containers": [{"name": "c", "env": [variable("own"), {"name": "W"}], "envFrom": [from("own")]}]}),
                true,
                "",
            ),
            (
                json!({"containers": [{"name": "c", "env": [variable("x")]}]}),
                true,
                "container c with envVar V referencing secret.secretName=\"x\" is not",
            ),
            (
                json!({"initContainers": [{"name": "i", "envFrom": [from("x")]}]}),
                true,
                "init container i with envFrom referencing secret.secretName=\"x\" is not",
            ),
            (json!({"imagePullSecrets": [{"name": "pull"}]}), true, ""),
            (json!({"imagePullSecrets": [{"name": "own"}]}), true, "imagePullSecrets[0].name=\"own\" is not"),
            // What is added later is asked about by itself.
            (json!({"containers": [{"name": "c", "env": [variable("x")]}]}), false, ""),
            (
                json!({"ephemeralContainers": [{"name": "e", "env": [variable("x")]}]}),
                false,
                "ephemeral container e with envVar V referencing secret.secretName=\"x\" is not",
            ),
        ] {
            let pod = object(&json!({ "spec": spec }));
            let told = refusal(&account("true"), &pod, is_new).unwrap_or_default();
            assert!(told.starts_with(refused) && told.is_empty() == refused.is_empty(), "{pod:?}: {told}");
            assert_eq!(refusal(&account("no"), &pod, is_new), None);
        }
    }
}
