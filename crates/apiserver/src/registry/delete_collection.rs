//! deletecollection: each selected object is deleted as if it had been asked for alone.

use crate::body::Response;
use crate::context::Cx;
use crate::list_options::ListOptions;
use crate::registry::delete::{Deleted, remove_at, warn};
use crate::registry::delete_options::DeleteOptions;
use crate::registry::read::select;
use crate::status::Status;
use crate::stored;

/// Deletes the objects that the query selects, and returns them as they were.
pub(crate) async fn delete_collection(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let options = DeleteOptions::read(cx, body)?;
    warn(cx, &options);
    let presenter = cx.presenter()?;
    let list = ListOptions::parse(cx.query, &cx.row, cx.version(), false)?;
    let (entries, meta) = select(cx, &list).await?;
    for entry in &entries {
        match remove_at(cx, &entry.key, &stored::memo(entry).name, &options).await {
            Ok(Deleted::Gone(..) | Deleted::Waiting(_) | Deleted::Dry(..)) => {}
            // Somebody else deleted it meanwhile, which is what was asked for.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(presenter.list(&entries, &meta))
}
