//! Certificates that a node asks for in the name of its pods: of those that run there, as they are, and for signers that they
//! name in a volume. So who has taken over a node gets none for pods of others, nor for its own ones from whom they do not ask.
//!
//! Upstream: `admitPodCertificateRequest` of `plugin/pkg/admission/noderestriction`. What differs from what is stored is told
//! there as an error of the server, whose caches may lag behind; here nothing lags, and it is a conflict.

use carrack_auth::node::graph::MIRROR_POD_ANNOTATION;
use serde_json::Value;

use super::{GROUP, OF_PODS};
use crate::admission::{Attributes, Operation};
use crate::keys;
use crate::object::{Object, at, meta, meta_str, str_at};
use crate::server::Inner;
use crate::status::Status;
use crate::stored;

/// Checks what a node writes of certificates of pods. Callers that are no nodes may ask for what they are allowed to.
///
/// # Errors
/// 403 for what is not the node's, 409 for what is not there (any more), a store that cannot be read.
pub(super) async fn check(server: &Inner, attributes: &Attributes<'_>) -> Result<(), Status> {
    let Some(node) = attributes.caller.node_name() else { return Ok(()) };
    if attributes.operation != Operation::Create || !attributes.subresource.is_empty() {
        return Err(attributes.forbidden("a node can only create requests for certificates of pods"));
    }
    let said = |field: &str| str_at(&attributes.object, &["spec", field]);
    let (node_name, pod_name, account) = (said("nodeName"), said("podName"), said("serviceAccountName"));
    if node_name != node {
        let why =
            format!("PodCertificateRequest.Spec.NodeName={node_name:?}, which is not the requesting node {node:?}");
        return Err(attributes.forbidden(&why));
    }
    let namespace = attributes.namespace;
    find(server, attributes, ("nodes", "", node), said("nodeUID")).await?;
    let pod = find(server, attributes, ("pods", namespace, pod_name), said("podUID")).await?;
    let place = format!("{namespace}/{pod_name}");
    if str_at(&pod, &["spec", "nodeName"]) != node {
        let why = format!("pod {place:?} is not running on node {node:?} named in the PodCertificateRequest");
        return Err(attributes.forbidden(&why));
    }
    if meta(&pod, "annotations").is_some_and(|annotations| annotations.get(MIRROR_POD_ANNOTATION).is_some()) {
        return Err(attributes.forbidden(&format!("pod {place:?} is a mirror pod")));
    }
    let its_account = str_at(&pod, &["spec", "serviceAccountName"]);
    if its_account != account {
        let why = format!(
            "PodCertificateRequest for pod {place:?} contains serviceAccountName ({account:?}) that differs from running pod ({its_account:?})"
        );
        return Err(attributes.forbidden(&why));
    }
    find(server, attributes, ("serviceaccounts", namespace, account), said("serviceAccountUID")).await?;
    let signer = said("signerName");
    if names_signer(&pod, signer) {
        return Ok(());
    }
    Err(attributes.forbidden(&format!("signer {signer:?} not found in pod spec volume")))
}

/// An object that the request names by name and UID.
async fn find(
    server: &Inner,
    attributes: &Attributes<'_>,
    (plural, namespace, name): (&str, &str, &str),
    uid: &str,
) -> Result<Object, Status> {
    let prefix = keys::of("", plural, Some(namespace).filter(|namespace| !namespace.is_empty()));
    let (entry, _) = server.store.get(&(prefix + name)).await?;
    let object = entry.map(|entry| stored::parse(&entry)).unwrap_or_default();
    let its_uid = meta_str(&object, "uid");
    if !its_uid.is_empty() && its_uid == uid {
        return Ok(object);
    }
    let why = format!("it names {plural} {name:?} with the UID {uid:?}, where there is the UID {its_uid:?}");
    Err(Status::conflict(GROUP, OF_PODS, &attributes.name, &why))
}

/// Whether a pod has a certificate of this signer in a volume.
fn names_signer(pod: &Object, signer: &str) -> bool {
    let volumes = at(pod, &["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let mut sources = volumes.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
    !signer.is_empty() && sources.any(|source| source["podCertificate"]["signerName"] == signer)
}
