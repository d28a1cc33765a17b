//! pods/eviction: a deletion that a pod's owner may have a say in.

use serde_json::Value;

use crate::admission;
use crate::body::{self, Response};
use crate::context::Cx;
use crate::object::{at, meta_str};
use crate::registry::delete::remove;
use crate::registry::delete_options::DeleteOptions;
use crate::registry::{decode, read};
use crate::status::Status;
use crate::stored;

/// Evicts the request's pod.
pub(crate) async fn create(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let eviction = decode::any(cx.headers, body, "io.k8s.api.policy.v1.Eviction")?;
    let name = cx.name().to_owned();
    let given = meta_str(&eviction, "name");
    if !given.is_empty() && given != name {
        return Err(Status::bad_request(format!(
            "name in URL does not match name in Eviction object: {name:?} is not {given:?}"
        )));
    }
    // Registered plugins may delay an eviction: a virtual machine moves away first.
    let entry = read::fetch(cx).await?;
    let pod = stored::parse(&entry);
    admission::consult(cx, "eviction", &eviction, Some(&pod)).await?;
    let mut options = DeleteOptions { dry_run: cx.dry_run()?, ..DeleteOptions::default() };
    options.grace_period_s = at(&eviction, &["deleteOptions", "gracePeriodSeconds"]).and_then(Value::as_i64);
    options.uid = at(&eviction, &["deleteOptions", "preconditions", "uid"]).and_then(Value::as_str).map(str::to_owned);
    options.resource_version = at(&eviction, &["deleteOptions", "preconditions", "resourceVersion"])
        .and_then(Value::as_str)
        .map(str::to_owned);
    remove(cx, &name, &options).await?;
    let mut status = Status::success("", "", "", "");
    status.code = 201;
    status.details = None;
    Ok(body::value(201, &status.to_json()))
}
