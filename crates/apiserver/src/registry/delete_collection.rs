//! deletecollection: each selected object is deleted as if it had been asked for alone.
//!
//! Upstream goes by the names that it has listed (`generic/registry.Store.DeleteCollection`), and so deletes what was made anew
//! under one of them meanwhile. That was not selected, and stays here.

use crate::body::Response;
use crate::context::Cx;
use crate::list_options::ListOptions;
use crate::registry::delete::{Deleted, remove_found, warn};
use crate::registry::delete_options::DeleteOptions;
use crate::registry::read::select;
use crate::status::Status;

/// Deletes the objects that the query selects, and returns them as they were.
pub(crate) async fn delete_collection(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let options = DeleteOptions::read(cx, body)?;
    warn(cx, &options);
    let presenter = cx.presenter()?;
    let list = ListOptions::parse(cx.query, &cx.row, cx.version(), false)?;
    let (entries, meta) = select(cx, &list).await?;
    for entry in &entries {
        match remove_found(cx, entry, &options).await {
            Ok(Deleted::Gone(..) | Deleted::Waiting(_) | Deleted::Dry(..)) => {}
            // Somebody else deleted it meanwhile, which is what was asked for, whatever has its name now.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(presenter.list(&entries, &meta))
}
