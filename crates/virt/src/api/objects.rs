//! Reads and patches objects through the server itself.

use bytes::Bytes;
use carrack_apiserver::{ApiServer, Status};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, USER_APISERVER};
use carrack_types::resource::Kind;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A call on one object.
pub(super) struct Call<'a> {
    pub server: &'a ApiServer,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Call<'_> {
    /// The object of this name.
    pub async fn get<K: Kind>(&self) -> Result<K, Status> {
        self.get_at(&K::resource().object_path(self.namespace, self.name)).await
    }

    /// The object of this name, if there is one.
    pub async fn find<K: Kind>(&self) -> Result<Option<K>, Status> {
        match self.get().await {
            Ok(object) => Ok(Some(object)),
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The object at a path.
    pub async fn get_at<T: DeserializeOwned>(&self, path: &str) -> Result<T, Status> {
        let body = self.send(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body).map_err(Status::internal)
    }

    /// A merge patch of the object of this name, or of a subresource of it. `dry_run` stores nothing.
    pub async fn patch<K: Kind>(&self, sub: &str, patch: &Value, dry_run: bool) -> Result<(), Status> {
        let mut path = K::resource().object_path(self.namespace, self.name);
        if !sub.is_empty() {
            path.push('/');
            path.push_str(sub);
        }
        if dry_run {
            path.push_str("?dryRun=All");
        }
        let body = serde_json::to_vec(patch).map_err(Status::internal)?;
        self.send(Method::PATCH, &path, body.into()).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Status> {
        let mut request = http::Request::builder().method(method).uri(path);
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/merge-patch+json");
        }
        let request = request.body(body).map_err(Status::internal)?;
        // The caller has been authorised for the subresource; what follows from it is done in the server's name.
        let caller = Caller::new(USER_APISERVER, [GROUP_MASTERS]);
        let response = self.server.handle(request, caller).await;
        let code = response.status().as_u16();
        let body = response.into_body().into_bytes();
        if (200..300).contains(&code) { Ok(body) } else { Err(refusal(code, &body)) }
    }
}

/// A refusal as it came, in our own terms.
fn refusal(code: u16, body: &[u8]) -> Status {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status["message"].as_str().unwrap_or("the request failed").to_owned();
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        403 => "Forbidden",
        400 => "BadRequest",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    Status { code, reason: reason.into(), message, details: None }
}
