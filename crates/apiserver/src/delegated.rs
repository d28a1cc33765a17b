//! Who may read what a component beside the API server tells of itself: the API server is asked who somebody is (by a
//! TokenReview, unless a certificate says it) and whether they may (by a SubjectAccessReview), as upstream's components ask it.

use carrack_auth::Caller;
use carrack_auth::caller::GROUP_MASTERS;
use carrack_engine::{ApiRequest, Method, Transport};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

/// Why somebody may not read a path, for them; nothing where they may. `caller` is whom a verified certificate names.
pub async fn refusal(
    api: &dyn Transport,
    caller: Option<Caller>,
    headers: &HeaderMap,
    path: &str,
) -> Option<(StatusCode, String)> {
    let caller = match identify(api, caller, headers).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return Some((StatusCode::UNAUTHORIZED, "Unauthorized".to_owned())),
        Err(why) => return Some((StatusCode::SERVICE_UNAVAILABLE, why)),
    };
    match may(api, &caller, path).await {
        Ok(true) => None,
        Ok(false) => {
            Some((StatusCode::FORBIDDEN, format!("forbidden: User {:?} cannot get path {path:?}", caller.user)))
        }
        Err(why) => Some((StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

async fn review(api: &dyn Transport, path: &str, review: &Value) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the API server was asked: {error}");
    let body = serde_json::to_vec(review).map_err(|error| failed(&error))?.into();
    let request = ApiRequest { body, ..ApiRequest::new(Method::Post, path) };
    api.send(request).await.and_then(|reply| reply.json()).map_err(|error| failed(&error))
}

/// Who somebody is: by certificate, or by token.
async fn identify(api: &dyn Transport, caller: Option<Caller>, headers: &HeaderMap) -> Result<Option<Caller>, String> {
    if caller.is_some() {
        return Ok(caller);
    }
    let token = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = token.and_then(|value| value.strip_prefix("Bearer ")) else { return Ok(None) };
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let told = review(api, "/apis/authentication.k8s.io/v1/tokenreviews", &asked).await?;
    if told["status"]["authenticated"] != true {
        return Ok(None);
    }
    let user = &told["status"]["user"];
    let groups: Vec<String> =
        user["groups"].as_array().into_iter().flatten().filter_map(|g| g.as_str().map(str::to_owned)).collect();
    Ok(user["username"].as_str().map(|name| Caller::new(name, groups)))
}

/// Whether somebody may read a path.
async fn may(api: &dyn Transport, caller: &Caller, path: &str) -> Result<bool, String> {
    if caller.in_group(GROUP_MASTERS) {
        return Ok(true);
    }
    let asked = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": caller.user, "groups": caller.groups, "nonResourceAttributes": {"path": path, "verb": "get"}}});
    let told = review(api, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &asked).await?;
    Ok(told["status"]["allowed"] == true)
}
