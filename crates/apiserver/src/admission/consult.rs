//! Asks about a request that is not a plain write: an eviction, a token, a binding, a connection.

use carrack_store::{Txn, TxnOutcome};

use super::{AdmissionPlugin, Asked, Attributes, Operation, Terms, fetch, marks, steps, topology};
use crate::context::Cx;
use crate::object::Object;
use crate::registry::create::{busy, tries};
use crate::status::Status;

/// Whether `object` may be posted to a subresource of the request's object, and as what; `stored` is what it is about.
pub(crate) async fn consult(
    cx: &Cx<'_>,
    subresource: &str,
    object: Object,
    stored: Option<&Object>,
) -> Result<Object, Status> {
    ask(cx, Asked::CHECKED, (Operation::Create, subresource), object, stored).await
}

/// Whether those who were added by users let a pod be bound so, with the labels that the node gives it. It is posted to
/// the pod's subresource, or to the resource of all bindings.
pub(crate) async fn bind(cx: &Cx<'_>, mut binding: Object) -> Result<Object, Status> {
    topology::bind(cx, &mut binding).await?;
    let subresource = cx.request.subresource.as_deref().unwrap_or_default();
    ask(cx, Asked::ADDED, (Operation::Create, subresource), binding, None).await
}

/// Whether those who were added by users let the caller connect to a subresource of the request's object; `options` say
/// how, and come back as they are left.
pub(crate) async fn connect(cx: &Cx<'_>, subresource: &str, options: Object) -> Result<Object, Status> {
    if cx.query.get("dryRun").is_some() {
        return Err(Status::bad_request("dryRun is not supported"));
    }
    ask(cx, Asked::ADDED, (Operation::Connect, subresource), options, None).await
}

async fn ask(
    cx: &Cx<'_>,
    asked: Asked,
    (operation, subresource): (Operation, &str),
    object: Object,
    stored: Option<&Object>,
) -> Result<Object, Status> {
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let mut attributes = Attributes {
        operation,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource,
        namespace: &namespace,
        name: cx.name().to_owned(),
        object,
        old: stored,
        managers: None,
        old_entry: None,
        deletion: None,
        dry_run: cx.dry_run()?,
        env: &*cx.server.env,
    };
    let mut found = fetch(&*cx.server.untimed, asked.plugins(cx), &attributes).await?;
    steps::admit(cx, asked, &mut attributes, &mut found).await?;
    let checked = steps::validate(cx, asked, &attributes, &found).await;
    if checked.is_err() && !attributes.dry_run {
        mark(cx, asked.plugins(cx), &attributes).await?;
    }
    checked?;
    Ok(attributes.object)
}

/// Stores what changes although the request is refused. Who hears that it is may rest on that.
async fn mark(cx: &Cx<'_>, plugins: &[Box<dyn AdmissionPlugin>], attributes: &Attributes<'_>) -> Result<(), Status> {
    for _ in tries(&cx.server.env) {
        let found = fetch(&*cx.server.untimed, plugins, attributes).await?;
        let Terms { checks, ops, .. } = marks(plugins, attributes, found)?;
        if ops.is_empty() {
            return Ok(());
        }
        if let TxnOutcome::Committed { .. } = cx.server.store.transact(Txn { checks, ops }).await? {
            return Ok(());
        }
        // What they rest on has changed: decide again.
    }
    Err(busy())
}
