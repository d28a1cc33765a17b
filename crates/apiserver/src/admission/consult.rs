//! Asks about a request that is not a plain write: an eviction, a token, a binding, a connection.

use super::{Attributes, Operation, extend, fetch};
use crate::context::Cx;
use crate::object::Object;
use crate::status::Status;

/// Whether `object` may be posted to a subresource of the request's object (to its resource, if there is none), and as what;
/// `stored` is what it is about.
pub(crate) async fn consult(
    cx: &Cx<'_>,
    subresource: &str,
    object: Object,
    stored: Option<&Object>,
) -> Result<Object, Status> {
    ask(cx, subresource, Operation::Create, object, stored, cx.dry_run()?).await
}

/// Whether the caller may connect to a subresource of the request's object; `options` say how.
pub(crate) async fn connect(cx: &Cx<'_>, subresource: &str, options: Object) -> Result<(), Status> {
    ask(cx, subresource, Operation::Connect, options, None, false).await.map(drop)
}

async fn ask(
    cx: &Cx<'_>,
    subresource: &str,
    operation: Operation,
    object: Object,
    stored: Option<&Object>,
    dry_run: bool,
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
        dry_run,
        env: &*cx.server.env,
    };
    // Only those who were added by users see connections.
    let plugins = if operation == Operation::Connect { &[][..] } else { &*cx.server.plugins };
    let found = fetch(&*cx.server.store, plugins, &attributes).await?;
    extend::mutate(cx, &mut attributes, &found).await?;
    for plugin in plugins {
        plugin.validate(&attributes, &found)?;
    }
    extend::validate(cx, &attributes).await?;
    Ok(attributes.object)
}
