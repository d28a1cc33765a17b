//! pods/eviction: a deletion that disruption budgets and plugins have a say in.
//!
//! ```text
//!   eviction ─► plugins (a virtual machine moves away first) ─► budget? ─► condition + deletion + charge, one transaction
//! ```
//!
//! The pod's condition `DisruptionTarget` tells those who count its end (a Job's failure policy) that it did not fail by itself.

use carrack_store::{Check, Op, Range};
use serde_json::Value;

use super::disruption::{self, Verdict};
use crate::admission::{self, Terms};
use crate::body::{self, Response};
use crate::context::Cx;
use crate::convert;
use crate::env::rfc3339_s;
use crate::keys;
use crate::object::{Object, meta_str, name, str_at};
use crate::registry::create::{busy, tries};
use crate::registry::decode;
use crate::registry::delete;
use crate::registry::delete_options::DeleteOptions;
use crate::registry::meta;
use crate::registry::read::readable;
use crate::status::Status;
use crate::stored;

const GROUP: &str = "policy";
/// The versions of evictions, which say the same.
const CURRENT: &str = "policy/v1";
const FORMER: &str = "policy/v1beta1";
const BUDGETS: &str = "poddisruptionbudgets";

/// Evicts the request's pod.
pub(crate) async fn create(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let mut eviction = decode::any(cx, body, "io.k8s.api.policy.v1.Eviction")?;
    let api_version = if str_at(&eviction, &["apiVersion"]) == FORMER { FORMER } else { CURRENT };
    decode::check_type(&eviction, api_version, "Eviction")?;
    convert::set_type(&mut eviction, CURRENT, "Eviction");
    meta::settle_namespace(cx, &mut eviction)?;
    let pod_name = cx.name().to_owned();
    let given = meta_str(&eviction, "name");
    if !given.is_empty() && given != pod_name {
        return Err(Status::bad_request(format!(
            "name in URL does not match name in Eviction object: {pod_name:?} is not {given:?}"
        )));
    }
    options(cx, &eviction)?;
    for _ in tries(&cx.server.env) {
        let entry = cx.server.store.get(&cx.key()).await?.0.ok_or_else(|| cx.not_found(&pod_name))?;
        readable(cx, &entry)?;
        let pod = stored::parse(&entry);
        let admitted = admission::consult(cx, "eviction", eviction.clone(), Some(&pod)).await?;
        let options = options(cx, &admitted)?;
        let prefix = keys::of(GROUP, BUDGETS, cx.namespace());
        let budgets = cx.server.store.range(Range { prefix, after: None, limit: 0, at: None }).await?.entries;
        let parsed: Vec<_> = budgets.iter().map(|budget| stored::parse(budget)).collect();
        let now = rfc3339_s(cx.server.env.now());
        let mut also = Terms::default();
        if let Verdict::Charged(charged) = disruption::decide(&pod, &parsed, &now)? {
            let budget = budgets.iter().find(|budget| *stored::memo(budget).name == *name(&charged));
            let row = carrack_schema::table::find(GROUP, BUDGETS);
            if let (Some(budget), Some(row)) = (budget, row) {
                let (api_version, kind) = convert::storage_type(row);
                also.checks.push(Check::Unchanged(budget.key.clone(), budget.mod_revision));
                also.ops.push(Op::Put(budget.key.clone(), stored::encode_bounded(&charged, &api_version, &kind)?));
            }
        }
        if delete::attempt(cx, &entry, &pod_name, &options, also).await?.is_some() {
            let mut status = Status::success("", "", "", "");
            status.code = 201;
            status.details = None;
            return Ok(body::value(201, &status.to_json()));
        }
        // The pod or its budget has changed: decide again.
    }
    Err(busy())
}

fn options(cx: &Cx<'_>, eviction: &Object) -> Result<DeleteOptions, Status> {
    let mut options = DeleteOptions { dry_run: cx.dry_run()?, evicts: true, ..DeleteOptions::default() };
    if let Some(Value::Object(given)) = eviction.get("deleteOptions") {
        options.take(given)?;
    }
    Ok(options)
}
