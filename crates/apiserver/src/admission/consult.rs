//! Asks the plugins about a request that is not a plain write: an eviction, a token.

use super::{Attributes, Operation, extend, fetch};
use crate::context::Cx;
use crate::object::Object;
use crate::status::Status;

/// Whether the plugins let `object` be posted to a subresource of the request's object; `stored` is
/// what it is about.
pub(crate) async fn consult(
    cx: &Cx<'_>,
    subresource: &str,
    object: &Object,
    stored: Option<&Object>,
) -> Result<(), Status> {
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let attributes = Attributes {
        operation: Operation::Create,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource,
        namespace: &namespace,
        name: cx.name().to_owned(),
        object: object.clone(),
        old: stored,
        managers: None,
        old_entry: None,
        dry_run: cx.dry_run()?,
        env: &*cx.server.env,
    };
    let found = fetch(&*cx.server.store, &cx.server.plugins, &attributes).await?;
    for plugin in &cx.server.plugins {
        plugin.validate(&attributes, &found)?;
    }
    extend::validate(cx, &attributes).await?;
    Ok(())
}

/// Whether webhooks and policies let the caller connect to a subresource of the request's object; `options`
/// say how.
pub(crate) async fn connect(cx: &Cx<'_>, subresource: &str, options: Object) -> Result<(), Status> {
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let attributes = Attributes {
        operation: Operation::Connect,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource,
        namespace: &namespace,
        name: cx.name().to_owned(),
        object: options,
        old: None,
        managers: None,
        old_entry: None,
        dry_run: false,
        env: &*cx.server.env,
    };
    extend::validate(cx, &attributes).await
}
