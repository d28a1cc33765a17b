//! pods/binding (and the older `bindings`): the scheduler's decision, taken once.
//!
//! A binding sets `spec.nodeName`, the annotations it carries, and the condition PodScheduled, all in
//! one write. A pod that has a node, or is going away, refuses it.

use serde_json::{Value, json};

use crate::admission;
use crate::body::{self, Response};
use crate::context::Cx;
use crate::env::rfc3339_s;
use crate::object::{Object, child_mut, is_deleting, meta, meta_str, metadata_mut, str_at};
use crate::registry::create::{busy, tries};
use crate::registry::{decode, meta as metadata};
use crate::status::Status;
use crate::{convert, keys, rests_on, stored};
use carrack_schema::error::FieldError;
use carrack_store::{Check, Op, Txn, TxnOutcome};

/// Binds a pod; its name is in the path or in the binding.
pub(crate) async fn create(cx: &mut Cx<'_>, body: &[u8], name: Option<String>) -> Result<Response, Status> {
    let dry_run = cx.dry_run()?;
    let mut binding = decode::any(cx, body, "io.k8s.api.core.v1.Binding")?;
    decode::check_type(&binding, "v1", "Binding")?;
    convert::set_type(&mut binding, "v1", "Binding");
    let given = meta_str(&binding, "name");
    let name = match name {
        Some(name) if !given.is_empty() && given != name => {
            return Err(Status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        Some(name) => name,
        None => given.to_owned(),
    };
    metadata::settle_namespace(cx, &mut binding)?;
    let namespace = cx.request.namespace.clone().unwrap_or_default();
    let binding = admission::bind(cx, binding).await?;
    let node = str_at(&binding, &["target", "name"]).to_owned();
    let mut faults = Vec::new();
    let kind = str_at(&binding, &["target", "kind"]);
    if !matches!(kind, "" | "Node") {
        faults.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        faults.push(FieldError::required("target.name", ""));
    }
    if !faults.is_empty() {
        return Err(Status::faulty("", "Binding", &name, &faults));
    }
    let catalog = cx.server.catalog().await?;
    let pods = catalog.find("", "pods").ok_or_else(Status::no_such_path)?;
    let key = keys::key(pods, Some(&namespace), &name);
    for _ in tries(&cx.server.env) {
        let (entry, _) = cx.server.store.get(&key).await?;
        let entry = entry.ok_or_else(|| Status::not_found("", "pods", &name))?;
        if !stored::is_readable(&entry) {
            return Err(Status::unreadable("", "pods", &entry.key));
        }
        let old = stored::parse(&entry);
        refuse(&binding, &old, &name, &entry.mod_revision.to_string())?;
        let new = bound(cx, &binding, old, &node);
        let mut checks = rests_on::checks(cx).await?;
        if !dry_run {
            let (api_version, kind) = convert::storage_type(pods);
            let value = stored::encode(&new, &api_version, &kind);
            checks.push(Check::Unchanged(entry.key.clone(), entry.mod_revision));
            let txn = Txn { checks, ops: vec![Op::Put(entry.key.clone(), value)] };
            if let TxnOutcome::Failed { .. } = cx.server.store.transact(txn).await? {
                continue;
            }
        }
        let mut status = Status::success("", "", "", "");
        status.code = 201;
        status.details = None;
        return Ok(body::value(201, &status.to_json()));
    }
    Err(busy())
}

/// Why this pod cannot be bound.
fn refuse(binding: &Object, pod: &Object, name: &str, revision: &str) -> Result<(), Status> {
    let uid = meta_str(binding, "uid");
    if !uid.is_empty() && uid != meta_str(pod, "uid") {
        return Err(Status::conflict(
            "",
            "pods",
            name,
            &format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", meta_str(pod, "uid")),
        ));
    }
    let wanted = meta_str(binding, "resourceVersion");
    if !wanted.is_empty() && wanted != revision {
        return Err(Status::modified("", "pods", name));
    }
    if is_deleting(pod) {
        return Err(Status::conflict(
            "",
            "pods/binding",
            name,
            &format!("pod {name} is being deleted, cannot be assigned to a host"),
        ));
    }
    let assigned = str_at(pod, &["spec", "nodeName"]);
    if !assigned.is_empty() {
        return Err(Status::conflict(
            "",
            "pods/binding",
            name,
            &format!("pod {name} is already assigned to node {assigned:?}"),
        ));
    }
    let gated = pod
        .get("spec")
        .and_then(|spec| spec.get("schedulingGates"))
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty());
    if gated {
        return Err(Status::conflict(
            "",
            "pods/binding",
            name,
            &format!("pod {name} has non-empty .spec.schedulingGates"),
        ));
    }
    Ok(())
}

/// The pod on its node.
fn bound(cx: &Cx<'_>, binding: &Object, mut pod: Object, node: &str) -> Object {
    child_mut(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
    for field in ["annotations", "labels"] {
        if let Some(Value::Object(more)) = meta(binding, field) {
            child_mut(metadata_mut(&mut pod), field).extend(more.clone());
        }
    }
    let now = rfc3339_s(cx.server.env.now());
    let status = child_mut(&mut pod, "status");
    // It has come where it was to come (ClearingNominatedNodeNameAfterBinding).
    status.remove("nominatedNodeName");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = conditions.as_array_mut() {
        list.retain(|condition| condition["type"] != "PodScheduled");
        list.push(json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
        }));
    }
    pod
}
