//! For whom a node may have a token of its pod's account: for those that the pod names in a volume, for those that one
//! of its CSI drivers asks for, and for those that RBAC lets the node ask for. So who has taken over a node cannot
//! speak for its pods to others who trust the cluster's tokens.
//!
//! Upstream: `ServiceAccountNodeAudienceRestriction` of `plugin/pkg/admission/noderestriction`.

use carrack_auth::Attributes;
use serde_json::Value;

use super::token::fetch;
use crate::context::Cx;
use crate::object::{Object, at, meta_str, str_at};
use crate::status::Status;

/// The verb, on a resource called as the audience, by which RBAC lets a node ask for an account's tokens for others.
const VERB: &str = "request-serviceaccounts-token-audience";

/// Checks a request for a token that is bound to this object, as it was admitted. Callers that are no nodes may ask for
/// any.
///
/// # Errors
/// 403 for an audience that is not the pod's; a store that cannot be read.
pub(super) async fn check(cx: &Cx<'_>, request: &Object, bound: Option<&Object>) -> Result<(), Status> {
    if cx.caller.node_name().is_none() {
        return Ok(());
    }
    let audiences = at(request, &["spec", "audiences"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let audience = match audiences {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err(cx.forbidden(cx.name(), "node may only request 0 or 1 audiences")),
    };
    let volumes = bound.and_then(|pod| at(pod, &["spec", "volumes"])).and_then(Value::as_array);
    let volumes = volumes.map_or(&[][..], Vec::as_slice);
    if volumes.iter().any(|volume| projects(volume, audience)) {
        return Ok(());
    }
    let pod_name = bound.map(|pod| meta_str(pod, "name")).unwrap_or_default();
    for volume in volumes {
        if let Some(driver) = driver(cx, pod_name, volume).await?
            && asks(cx, &driver, audience).await?
        {
            return Ok(());
        }
    }
    let attributes = Attributes::resource(VERB, "", audience).in_namespace(cx.namespace().unwrap_or_default());
    let attributes = attributes.named(cx.name());
    let may = |authorizer: &carrack_auth::Authorizer| authorizer.authorize(cx.caller, &attributes).allowed();
    if cx.server.with_authorizer(may).await? {
        return Ok(());
    }
    Err(cx.forbidden(cx.name(), &format!("audience {audience:?} not found in pod spec volume")))
}

/// Whether a volume has a token for this audience in it.
fn projects(volume: &Value, audience: &str) -> bool {
    let tokens = volume["projected"]["sources"].as_array().into_iter().flatten().map(|s| &s["serviceAccountToken"]);
    tokens.filter(|token| token.is_object()).any(|token| token["audience"].as_str().unwrap_or_default() == audience)
}

/// The CSI driver that a pod's volume is of, by way of its claim if it has one.
async fn driver(cx: &Cx<'_>, pod_name: &str, volume: &Value) -> Result<Option<String>, Status> {
    if let Some(driver) = volume["csi"]["driver"].as_str() {
        return Ok(Some(driver.to_owned()));
    }
    let claim = match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(claim) => claim.to_owned(),
        None if volume["ephemeral"].is_object() => {
            format!("{pod_name}-{}", volume["name"].as_str().unwrap_or_default())
        }
        None => return Ok(None),
    };
    let Some(claim) = fetch(cx, ("", "persistentvolumeclaims"), cx.namespace(), &claim).await? else { return Ok(None) };
    let name = str_at(&claim, &["spec", "volumeName"]);
    if name.is_empty() {
        return Ok(None);
    }
    let volume = fetch(cx, ("", "persistentvolumes"), None, name).await?;
    let driver = volume.as_ref().map(|volume| str_at(volume, &["spec", "csi", "driver"])).unwrap_or_default();
    Ok((!driver.is_empty()).then(|| driver.to_owned()))
}

/// Whether a driver asks for tokens for this audience.
async fn asks(cx: &Cx<'_>, driver: &str, audience: &str) -> Result<bool, Status> {
    let driver = fetch(cx, ("storage.k8s.io", "csidrivers"), None, driver).await?;
    let asked = driver.as_ref().and_then(|driver| at(driver, &["spec", "tokenRequests"])).and_then(Value::as_array);
    Ok(asked.into_iter().flatten().any(|asked| asked["audience"].as_str().unwrap_or_default() == audience))
}
