//! What the pods of each node refer to, kept from pods, persistent volumes and volume attachments
//! as they change.
//!
//! ```text
//!  node ◄─ pod ◄─ secret, configmap, serviceaccount, persistentvolumeclaim, resourceclaim
//!                                    persistentvolumeclaim ◄─ persistentvolume ◄─ secret
//!  node ◄─ volumeattachment, resourceslice, podcertificaterequest
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PersistentVolumeSpec, PodSpec};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A kind of object that a pod may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Referred {
    /// A secret.
    Secret,
    /// A config map.
    ConfigMap,
    /// A service account.
    ServiceAccount,
    /// A persistent volume claim.
    Claim,
    /// A DRA resource claim.
    ResourceClaim,
}

type Name = (String, String);
type Reference = (Referred, String, String);

/// There are as many as pods, so each is as small as can be: a list without room to grow, and names that are kept once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodEntry {
    node: Box<str>,
    /// In their order, each once.
    refers: Box<[Arc<Reference>]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VolumeEntry {
    claim: Name,
    secrets: BTreeSet<Name>,
}

/// The graph. All of it follows from the objects last fed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pods: BTreeMap<Arc<Name>, PodEntry>,
    referrers: BTreeMap<Arc<Reference>, BTreeSet<Arc<Name>>>,
    volumes: BTreeMap<String, VolumeEntry>,
    volumes_of_secret: BTreeMap<Name, BTreeSet<String>>,
    attachments: BTreeMap<String, String>,
    slices: BTreeMap<String, String>,
    certificate_requests: BTreeMap<Name, String>,
}

/// Why an object could not be taken into the graph.
#[derive(Debug, thiserror::Error)]
#[error("{resource} {namespace}/{name} does not parse")]
pub struct GraphError {
    resource: &'static str,
    namespace: String,
    name: String,
    #[source]
    source: serde_json::Error,
}

/// Whether a stored object may name a node. Cheaper than to read it.
fn names_node(json: &[u8]) -> bool {
    std::str::from_utf8(json).is_ok_and(|text| text.contains("\"nodeName\""))
}

#[derive(Deserialize)]
struct RawPod {
    #[serde(default)]
    metadata: RawPodMeta,
    spec: PodSpec,
    #[serde(default)]
    status: RawPodStatus,
}

#[derive(Deserialize, Default)]
struct RawPodMeta {
    #[serde(default)]
    annotations: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawPodStatus {
    #[serde(default)]
    resource_claim_statuses: Option<Vec<RawClaimStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClaimStatus {
    #[serde(default)]
    resource_claim_name: Option<String>,
}

#[derive(Deserialize)]
struct RawVolume {
    spec: PersistentVolumeSpec,
}

#[derive(Deserialize)]
struct RawNodeNamed {
    spec: RawNodeNamedSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNodeNamedSpec {
    #[serde(default)]
    node_name: Option<String>,
}

/// The annotation of a pod that mirrors a static one.
pub const MIRROR_POD_ANNOTATION: &str = "kubernetes.io/config.mirror";

impl Graph {
    /// Takes in an object's newest form, or its removal. Resources that the graph has no use for
    /// are ignored; the answer says whether this one was of use.
    ///
    /// # Errors
    /// When the JSON is not an object of that resource; the graph then forgets the object, so that
    /// nothing is allowed on grounds of an old form.
    pub fn observe(
        &mut self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
        json: Option<&[u8]>,
    ) -> Result<bool, GraphError> {
        let failed = |resource, source| GraphError { resource, namespace: namespace.into(), name: name.into(), source };
        match (group, resource) {
            ("", "pods") => {
                self.remove_pod(namespace, name);
                // Of pods that are bound to no node nothing follows, and they are written most.
                if let Some(json) = json.filter(|json| names_node(json)) {
                    let pod: RawPod = serde_json::from_slice(json).map_err(|e| failed("pods", e))?;
                    self.add_pod(namespace, name, &pod);
                }
            }
            ("", "persistentvolumes") => {
                self.remove_volume(name);
                if let Some(json) = json {
                    let volume: RawVolume = serde_json::from_slice(json).map_err(|e| failed("persistentvolumes", e))?;
                    self.add_volume(name, &volume.spec);
                }
            }
            ("storage.k8s.io", "volumeattachments") => {
                self.attachments.remove(name);
                if let Some(json) = json {
                    let raw: RawNodeNamed = serde_json::from_slice(json).map_err(|e| failed("volumeattachments", e))?;
                    if let Some(node) = raw.spec.node_name {
                        self.attachments.insert(name.into(), node);
                    }
                }
            }
            ("resource.k8s.io", "resourceslices") => {
                self.slices.remove(name);
                if let Some(json) = json {
                    let raw: RawNodeNamed = serde_json::from_slice(json).map_err(|e| failed("resourceslices", e))?;
                    if let Some(node) = raw.spec.node_name {
                        self.slices.insert(name.into(), node);
                    }
                }
            }
            ("certificates.k8s.io", "podcertificaterequests") => {
                let key = (namespace.to_owned(), name.to_owned());
                self.certificate_requests.remove(&key);
                if let Some(json) = json {
                    let raw: RawNodeNamed =
                        serde_json::from_slice(json).map_err(|e| failed("podcertificaterequests", e))?;
                    if let Some(node) = raw.spec.node_name {
                        self.certificate_requests.insert(key, node);
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn remove_pod(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(old) = self.pods.remove(&key) else {
            return;
        };
        for reference in &old.refers {
            if let Some(pods) = self.referrers.get_mut(reference) {
                pods.remove(&key);
                if pods.is_empty() {
                    self.referrers.remove(reference);
                }
            }
        }
    }

    fn add_pod(&mut self, namespace: &str, name: &str, pod: &RawPod) {
        let Some(node) = pod.spec.node_name.as_deref().filter(|n| !n.is_empty()) else {
            return;
        };
        // A node makes its mirror pods itself: what those refer to must not open anything to it.
        let mirror = pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(MIRROR_POD_ANNOTATION));
        let refers = if mirror { BTreeSet::new() } else { references(namespace, name, pod) };
        let key = Arc::new((namespace.to_owned(), name.to_owned()));
        let refers = refers.into_iter().map(|reference| self.refer(reference, &key)).collect();
        self.pods.insert(key, PodEntry { node: node.into(), refers });
    }

    /// Notes that a pod refers to something. Returns the reference as all who refer so have it.
    fn refer(&mut self, reference: Reference, pod: &Arc<Name>) -> Arc<Reference> {
        let known = self.referrers.get_key_value(&reference).map(|(known, _)| Arc::clone(known));
        let shared = known.unwrap_or_else(|| Arc::new(reference));
        self.referrers.entry(Arc::clone(&shared)).or_default().insert(Arc::clone(pod));
        shared
    }

    fn remove_volume(&mut self, name: &str) {
        let Some(old) = self.volumes.remove(name) else {
            return;
        };
        for secret in old.secrets {
            if let Some(volumes) = self.volumes_of_secret.get_mut(&secret) {
                volumes.remove(name);
                if volumes.is_empty() {
                    self.volumes_of_secret.remove(&secret);
                }
            }
        }
    }

    fn add_volume(&mut self, name: &str, spec: &PersistentVolumeSpec) {
        let Some(claim) = &spec.claim_ref else {
            return;
        };
        let (Some(claim_namespace), Some(claim_name)) = (&claim.namespace, &claim.name) else {
            return;
        };
        let secrets = volume_secrets(spec, claim_namespace);
        for secret in &secrets {
            self.volumes_of_secret.entry(secret.clone()).or_default().insert(name.into());
        }
        let claim = (claim_namespace.clone(), claim_name.clone());
        self.volumes.insert(name.into(), VolumeEntry { claim, secrets });
    }

    /// Whether the pod is bound to the node.
    #[must_use]
    pub fn pod_is_on(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.pods.get(&(namespace.to_owned(), name.to_owned())).is_some_and(|pod| *pod.node == *node)
    }

    /// Whether a pod on the node refers to the object, directly or through a volume.
    #[must_use]
    pub fn refers(&self, node: &str, what: Referred, namespace: &str, name: &str) -> bool {
        let reference = (what, namespace.to_owned(), name.to_owned());
        let by_pod = self
            .referrers
            .get(&reference)
            .is_some_and(|pods| pods.iter().any(|pod| self.pods.get(pod).is_some_and(|p| *p.node == *node)));
        by_pod
            || (what == Referred::Secret
                && self
                    .volumes_of_secret
                    .get(&(namespace.to_owned(), name.to_owned()))
                    .is_some_and(|volumes| volumes.iter().any(|v| self.uses_volume(node, v))))
    }

    /// Whether a pod on the node uses the persistent volume.
    #[must_use]
    pub fn uses_volume(&self, node: &str, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|v| self.refers(node, Referred::Claim, &v.claim.0, &v.claim.1))
    }

    /// Whether the volume attachment is the node's.
    #[must_use]
    pub fn attaches_to(&self, node: &str, attachment: &str) -> bool {
        self.attachments.get(attachment).is_some_and(|n| n == node)
    }

    /// Whether the request of a pod's certificate is the node's.
    #[must_use]
    pub fn certificate_request_is_of(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.certificate_requests.get(&(namespace.to_owned(), name.to_owned())).is_some_and(|n| n == node)
    }

    /// Whether the resource slice is the node's.
    #[must_use]
    pub fn slice_is_of(&self, node: &str, slice: &str) -> bool {
        self.slices.get(slice).is_some_and(|n| n == node)
    }
}

/// Everything a pod refers to, in its namespace.
fn references(namespace: &str, pod_name: &str, pod: &RawPod) -> BTreeSet<Reference> {
    let spec = &pod.spec;
    let mut found = BTreeSet::new();
    let mut add = |what: Referred, name: &str| {
        if !name.is_empty() {
            found.insert((what, namespace.to_owned(), name.to_owned()));
        }
    };
    let account = spec.service_account_name.as_deref().or(spec.service_account.as_deref());
    add(Referred::ServiceAccount, account.unwrap_or("default"));
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(Referred::Secret, &secret.name);
    }
    for volume in spec.volumes.iter().flatten() {
        volume_references(volume, pod_name, &mut add);
    }
    for claim in spec.resource_claims.iter().flatten() {
        add(Referred::ResourceClaim, claim.resource_claim_name.as_deref().unwrap_or_default());
    }
    for claim in pod.status.resource_claim_statuses.iter().flatten() {
        add(Referred::ResourceClaim, claim.resource_claim_name.as_deref().unwrap_or_default());
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let Container { env, env_from, .. } = container;
        env_references(env.as_deref(), env_from.as_deref(), &mut add);
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        let EphemeralContainer { env, env_from, .. } = container;
        env_references(env.as_deref(), env_from.as_deref(), &mut add);
    }
    found
}

fn env_references(
    env: Option<&[k8s_openapi::api::core::v1::EnvVar]>,
    env_from: Option<&[k8s_openapi::api::core::v1::EnvFromSource]>,
    add: &mut impl FnMut(Referred, &str),
) {
    for source in env.into_iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        if let Some(key) = &source.secret_key_ref {
            add(Referred::Secret, &key.name);
        }
        if let Some(key) = &source.config_map_key_ref {
            add(Referred::ConfigMap, &key.name);
        }
    }
    for source in env_from.into_iter().flatten() {
        if let Some(secret) = &source.secret_ref {
            add(Referred::Secret, &secret.name);
        }
        if let Some(map) = &source.config_map_ref {
            add(Referred::ConfigMap, &map.name);
        }
    }
}

fn volume_references(
    volume: &k8s_openapi::api::core::v1::Volume,
    pod_name: &str,
    add: &mut impl FnMut(Referred, &str),
) {
    if let Some(source) = &volume.secret {
        add(Referred::Secret, source.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(source) = &volume.config_map {
        add(Referred::ConfigMap, &source.name);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        add(Referred::Claim, &source.claim_name);
    }
    if volume.ephemeral.is_some() {
        // The ephemeral volume controller makes the claim under this name.
        add(Referred::Claim, &format!("{pod_name}-{}", volume.name));
    }
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if let Some(secret) = &source.secret {
            add(Referred::Secret, &secret.name);
        }
        if let Some(map) = &source.config_map {
            add(Referred::ConfigMap, &map.name);
        }
    }
    let secret_refs = [
        volume.cephfs.as_ref().and_then(|v| v.secret_ref.as_ref()),
        volume.cinder.as_ref().and_then(|v| v.secret_ref.as_ref()),
        volume.csi.as_ref().and_then(|v| v.node_publish_secret_ref.as_ref()),
        volume.flex_volume.as_ref().and_then(|v| v.secret_ref.as_ref()),
        volume.iscsi.as_ref().and_then(|v| v.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|v| v.secret_ref.as_ref()),
        volume.scale_io.as_ref().map(|v| &v.secret_ref),
        volume.storageos.as_ref().and_then(|v| v.secret_ref.as_ref()),
    ];
    for secret in secret_refs.into_iter().flatten() {
        add(Referred::Secret, &secret.name);
    }
    if let Some(source) = &volume.azure_file {
        add(Referred::Secret, &source.secret_name);
    }
}

/// The secrets that mounting a persistent volume takes. Those of CSI controllers are not for nodes.
fn volume_secrets(spec: &PersistentVolumeSpec, claim_namespace: &str) -> BTreeSet<Name> {
    let mut references = vec![
        spec.cephfs.as_ref().and_then(|v| v.secret_ref.as_ref()),
        spec.cinder.as_ref().and_then(|v| v.secret_ref.as_ref()),
        spec.flex_volume.as_ref().and_then(|v| v.secret_ref.as_ref()),
        spec.iscsi.as_ref().and_then(|v| v.secret_ref.as_ref()),
        spec.rbd.as_ref().and_then(|v| v.secret_ref.as_ref()),
        spec.scale_io.as_ref().map(|v| &v.secret_ref),
    ];
    if let Some(csi) = &spec.csi {
        references.extend([
            csi.node_expand_secret_ref.as_ref(),
            csi.node_publish_secret_ref.as_ref(),
            csi.node_stage_secret_ref.as_ref(),
        ]);
    }
    let mut secrets: BTreeSet<Name> = references
        .into_iter()
        .flatten()
        .filter_map(|reference| {
            let namespace = reference.namespace.as_deref().unwrap_or(claim_namespace);
            Some((namespace.to_owned(), reference.name.clone()?))
        })
        .collect();
    if let Some(azure) = &spec.azure_file {
        let namespace = azure.secret_namespace.as_deref().unwrap_or(claim_namespace);
        secrets.insert((namespace.to_owned(), azure.secret_name.clone()));
    }
    secrets
}
