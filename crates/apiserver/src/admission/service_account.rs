//! ServiceAccount: a pod runs as a service account that exists, and finds its token, the cluster's
//! certificate authority and its namespace mounted where clients look for them.

use carrack_auth::node::graph::MIRROR_POD_ANNOTATION;
use carrack_auth::token::MOUNTED_EXPIRATION_S;
use serde_json::{Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation, mountable};
use crate::env::name_suffix;
use crate::object::{Object, child_mut, meta, str_at};
use crate::status::Status;

/// Where clients in a container look for their credentials.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Names of volumes that hold them begin so.
const VOLUME_PREFIX: &str = "kube-api-access-";

pub(super) struct ServiceAccountTokens;

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.is("", "pods")
        && attributes.operation == Operation::Create
        && meta(&attributes.object, "annotations").and_then(|a| a.get(MIRROR_POD_ANNOTATION)).is_none()
}

/// Whether a pod says in this write which secrets it takes; if so, whether it is new.
fn names_secrets(attributes: &Attributes<'_>) -> Option<bool> {
    let is_pod = attributes.row.group.is_empty() && attributes.row.plural == "pods";
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") if concerns(attributes) => Some(true),
        (Operation::Update, "ephemeralcontainers") if is_pod => Some(false),
        _ => None,
    }
}

fn account_name(pod: &Object) -> &str {
    match str_at(pod, &["spec", "serviceAccountName"]) {
        "" => match str_at(pod, &["spec", "serviceAccount"]) {
            "" => "default",
            name => name,
        },
        name => name,
    }
}

impl AdmissionPlugin for ServiceAccountTokens {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if names_secrets(attributes).is_none() {
            return Vec::new();
        }
        vec![Needed::one("", "serviceaccounts", attributes.namespace, account_name(&attributes.object))]
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !concerns(attributes) {
            return Ok(());
        }
        let name = account_name(&attributes.object).to_owned();
        let Some(account) = lookup.get("", "serviceaccounts", attributes.namespace, &name) else {
            // Upstream asks its cache, which calls what is missing by its kind.
            let missing = format!("serviceaccount {name:?} not found");
            return Err(attributes
                .forbidden(&format!("error looking up service account {}/{name}: {missing}", attributes.namespace)));
        };
        let mount_wanted = attributes
            .object
            .get("spec")
            .and_then(|spec| spec.get("automountServiceAccountToken"))
            .and_then(Value::as_bool)
            .or_else(|| account.get("automountServiceAccountToken").and_then(Value::as_bool))
            .unwrap_or(true);
        let pull_secrets = account.get("imagePullSecrets").filter(|s| s.as_array().is_some_and(|s| !s.is_empty()));
        let pull_secrets = pull_secrets.cloned();
        let suffix = name_suffix(attributes.env);
        let spec = child_mut(&mut attributes.object, "spec");
        spec.insert("serviceAccountName".to_owned(), name.clone().into());
        spec.insert("serviceAccount".to_owned(), name.into());
        let own_secrets = spec.get("imagePullSecrets").and_then(Value::as_array).is_some_and(|s| !s.is_empty());
        if let (false, Some(secrets)) = (own_secrets, pull_secrets) {
            spec.insert("imagePullSecrets".to_owned(), secrets);
        }
        if mount_wanted {
            mount(spec, &suffix);
        }
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let Some(is_new) = names_secrets(attributes) else { return Ok(()) };
        let name = account_name(&attributes.object);
        // A new pod has one, which may be gone when containers are added to it.
        let account = lookup.get("", "serviceaccounts", attributes.namespace, name);
        match account.and_then(|account| mountable::refusal(account, &attributes.object, is_new)) {
            Some(why) => Err(attributes.forbidden(&why)),
            None => Ok(()),
        }
    }

    fn warnings(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Vec<String> {
        let is_said = |account: &Object| mountable::annotation(account).is_some();
        let is_new =
            attributes.is("", "serviceaccounts") && is_said(&attributes.object) && !attributes.old.is_some_and(is_said);
        let text = || {
            let annotation = mountable::ANNOTATION;
            let advice = "prefer separate namespaces to isolate access to mounted secrets";
            format!("metadata.annotations[{annotation}]: deprecated in v1.32+; {advice}")
        };
        is_new.then(text).into_iter().collect()
    }
}

/// Mounts the credentials into each container that has nothing at their place.
fn mount(spec: &mut Object, suffix: &str) {
    let existing = spec
        .get("volumes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.get("name").and_then(Value::as_str))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().any(|m| m.get("mountPath").and_then(Value::as_str) == Some(MOUNT_PATH)) {
                continue;
            }
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            used = true;
        }
    }
    if !used || existing.is_some() {
        return;
    }
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if volumes.is_null() {
        *volumes = json!([]);
    }
    if let Some(volumes) = volumes.as_array_mut() {
        volumes.push(json!({
            "name": volume,
            "projected": {
                "defaultMode": 0o644,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": MOUNTED_EXPIRATION_S, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }]}},
                ],
            },
        }));
    }
}
