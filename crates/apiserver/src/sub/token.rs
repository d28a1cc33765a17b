//! serviceaccounts/token: issues a token for a service account, bound to a pod, secret or node if asked.

use carrack_auth::token::{BoundTo, IssueError, Reference, TokenSpec};
use carrack_schema::error::FieldError;
use serde_json::{Value, json};

use super::audience;
use crate::accept;
use crate::admission;
use crate::context::Cx;
use crate::dispatch;
use crate::env::{new_uid, rfc3339_s};
use crate::keys;
use crate::object::{Object, at, child_mut, is_deleting, meta_str, str_at};
use crate::registry::{decode, meta, read};
use crate::status::Status;
use crate::{body::Response, stored};

/// Issues the token that the body asks for.
pub(crate) async fn create(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    accept::whole(cx.headers)?;
    let issuer = cx.server.issuer.as_ref().ok_or_else(|| Status::unavailable("this server issues no tokens"))?;
    let mut request = decode::any(cx, body, "io.k8s.api.authentication.v1.TokenRequest")?;
    decode::check_type(&request, "authentication.k8s.io/v1", "TokenRequest")?;
    crate::convert::set_type(&mut request, "authentication.k8s.io/v1", "TokenRequest");
    let account = stored::parse(&*read::fetch(cx).await?);
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let name = cx.name().to_owned();
    meta::settle_namespace(cx, &mut request)?;
    check_account(&request, &account)?;
    let asked = reference(&request).cloned();
    let (mut bound, mut object) = match &asked {
        Some(asked) => {
            bound_to(cx, &namespace, &name, asked).await.map(|(bound, object)| (Some(bound), Some(object)))?
        }
        None => (None, None),
    };
    request = admission::consult(cx, "token", request, object.as_ref()).await?;
    // What admission made of it counts.
    let admitted = reference(&request);
    if admitted != asked.as_ref() {
        (bound, object) = match admitted {
            Some(admitted) => {
                bound_to(cx, &namespace, &name, admitted).await.map(|(bound, object)| (Some(bound), Some(object)))?
            }
            None => (None, None),
        };
    }
    audience::check(cx, &request, object.as_ref()).await?;
    let spec = TokenSpec {
        namespace: namespace.clone(),
        account: Reference { name: name.clone(), uid: meta_str(&account, "uid").to_owned() },
        audiences: at(&request, &["spec", "audiences"])
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default(),
        expiration_s: at(&request, &["spec", "expirationSeconds"]).and_then(Value::as_i64),
        bound,
    };
    let env = &*cx.server.env;
    let issued = issuer.issue(&spec, env.now().as_second(), &new_uid(env)).map_err(|error| match error {
        IssueError::TooShort | IssueError::TooLong => Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            "",
            &[(
                "FieldValueInvalid".to_owned(),
                "spec.expirationSeconds".to_owned(),
                format!("Invalid value: {}: {error}", spec.expiration_s.unwrap_or_default()),
            )],
        ),
        other @ IssueError::Sign(_) => Status::internal(other),
    })?;
    let expires = jiff::Timestamp::from_second(issued.expiration_unix_s).map(rfc3339_s).unwrap_or_default();
    let metadata = child_mut(&mut request, "metadata");
    metadata.insert("name".to_owned(), name.into());
    metadata.insert("namespace".to_owned(), namespace.into());
    metadata.insert("uid".to_owned(), spec.account.uid.as_str().into());
    metadata.insert("creationTimestamp".to_owned(), rfc3339_s(env.now()).into());
    let asked = child_mut(&mut request, "spec");
    asked.insert("audiences".to_owned(), json!(issued.audiences));
    asked.insert("expirationSeconds".to_owned(), issued.expiration_s.into());
    request.insert("status".to_owned(), json!({"token": issued.token.expose(), "expirationTimestamp": expires}));
    Ok(dispatch::created(request))
}

/// A request that names its account names this one, and not one that had the name before
/// (`pkg/registry/core/serviceaccount/storage/token.go`).
fn check_account(request: &Object, account: &Object) -> Result<(), Status> {
    const GROUP: &str = "authentication.k8s.io";
    const KIND: &str = "TokenRequest";
    let name = meta_str(account, "name");
    let (given, given_uid, uid) = (meta_str(request, "name"), meta_str(request, "uid"), meta_str(account, "uid"));
    if !given.is_empty() && given != name {
        let text = "must match the service account name if specified";
        return Err(Status::faulty(GROUP, KIND, name, &[FieldError::invalid("metadata.name", given, text)]));
    }
    if !given_uid.is_empty() && given_uid != uid {
        let why =
            format!("the UID in the token request ({given_uid}) does not match the UID of the service account ({uid})");
        return Err(Status::conflict(GROUP, KIND, name, &why));
    }
    Ok(())
}

fn reference(request: &Object) -> Option<&Object> {
    at(request, &["spec", "boundObjectRef"]).and_then(Value::as_object)
}

/// What the token is to be bound to, checked against what exists.
async fn bound_to(
    cx: &Cx<'_>,
    namespace: &str,
    account: &str,
    reference: &Object,
) -> Result<(BoundTo, Object), Status> {
    let name = str_at(reference, &["name"]).to_owned();
    let wanted_uid = str_at(reference, &["uid"]);
    let (plural, place) = match (str_at(reference, &["apiVersion"]), str_at(reference, &["kind"])) {
        ("" | "v1", "Pod") => ("pods", Some(namespace)),
        ("" | "v1", "Secret") => ("secrets", Some(namespace)),
        ("" | "v1", "Node") => ("nodes", None),
        (version, kind) => {
            return Err(Status::bad_request(format!(
                "cannot bind token to {version}/{kind}: only Pod, Secret and Node can be bound"
            )));
        }
    };
    let object = fetch(cx, ("", plural), place, &name).await?.ok_or_else(|| Status::not_found("", plural, &name))?;
    let uid = meta_str(&object, "uid").to_owned();
    if !wanted_uid.is_empty() && wanted_uid != uid {
        return Err(Status::conflict(
            "",
            plural,
            &name,
            &format!(
                "the UID in the bound object reference ({wanted_uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    let own = Reference { name: name.clone(), uid };
    let bound = match plural {
        "pods" => {
            if str_at(&object, &["spec", "serviceAccountName"]) != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            if is_deleting(&object) && str_at(&object, &["spec", "nodeName"]).is_empty() {
                return Err(Status::conflict("", "pods", &name, "the pod is being deleted"));
            }
            let node = match str_at(&object, &["spec", "nodeName"]) {
                "" => None,
                node => fetch(cx, ("", "nodes"), None, node)
                    .await?
                    .map(|found| Reference { name: node.to_owned(), uid: meta_str(&found, "uid").to_owned() }),
            };
            BoundTo::Pod { pod: own, node }
        }
        "secrets" => BoundTo::Secret(own),
        _ => BoundTo::Node(own),
    };
    Ok((bound, object))
}

/// An object of this group and resource, if it is there.
pub(super) async fn fetch(
    cx: &Cx<'_>,
    (group, plural): (&str, &str),
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<Object>, Status> {
    let (entry, _) = cx.server.store.get(&(keys::of(group, plural, namespace) + name)).await?;
    Ok(entry.map(|entry| stored::parse(&entry)))
}
