//! get and list.

use std::sync::Arc;

use carrack_store::{Entry, Range, RangePage, Revision, Store, StoreError};

use crate::body::Response;
use crate::context::Cx;
use crate::keys;
use crate::list_options::{AtRevision, Continue, Filter, ListOptions};
use crate::metrics::Cost;
use crate::present::ListMeta;
use crate::status::Status;
use crate::stored;

/// How many entries are read at a time when a filter decides which of them count.
const FILTERED_BATCH: usize = 500;

/// Returns the object.
pub(crate) async fn get(cx: &mut Cx<'_>) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    let entry = fetch(cx).await?;
    if let Some(text) = cx.query.non_empty("resourceVersion") {
        let asked: u64 = text.parse().map_err(|_| Status::bad_request(format!("invalid resourceVersion {text:?}")))?;
        reached(&*cx.server.store, Revision(asked)).await?;
    }
    Ok(presenter.one(200, &cx.converted(entry).await?))
}

/// Makes sure that the store shows this revision. Where others write as well, it may be known to a client
/// before it is known here.
pub(crate) async fn reached(store: &dyn Store, wanted: Revision) -> Result<(), Status> {
    if wanted <= store.revision() {
        return Ok(());
    }
    let newest = store.sync().await?;
    if wanted > newest { Err(Status::too_large_resource_version(wanted.0, newest.0)) } else { Ok(()) }
}

/// The entry of the request's object.
pub(crate) async fn fetch(cx: &Cx<'_>) -> Result<Arc<Entry>, Status> {
    let (entry, _) = cx.server.store.get(&cx.key()).await?;
    let entry = entry.ok_or_else(|| cx.not_found(cx.name()))?;
    readable(cx, &entry)?;
    Ok(entry)
}

/// What others have put into the store and is no object is neither shown nor changed: only who has put it there can take it away.
///
/// # Errors
/// 500, which names its key.
pub(crate) fn readable(cx: &Cx<'_>, entry: &Entry) -> Result<(), Status> {
    let is_readable = stored::is_readable(entry);
    if is_readable { Ok(()) } else { Err(Status::unreadable(&cx.row.group, &cx.row.plural, &entry.key)) }
}

/// Returns the collection, or a page of it.
pub(crate) async fn list(cx: &mut Cx<'_>) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    let options = ListOptions::parse(cx.query, &cx.row, cx.version(), false)?;
    let (entries, meta) = select(cx, &options).await?;
    let entries = cx.server.converter(&cx.row).entries(entries, cx.version_index).await?;
    Ok(presenter.list(&entries, &meta))
}

/// Prefix of the collection's keys; narrowed to one object where the filter names it.
pub(crate) fn collection_prefix(cx: &Cx<'_>, filter: &Filter) -> String {
    let prefix = keys::prefix(&cx.row, cx.namespace());
    let one_place = cx.namespace().is_some() || !cx.row.namespaced;
    match filter.fields.exact("metadata.name") {
        Some(name) if one_place => prefix + name,
        _ => prefix,
    }
}

/// The entries that the options select, and what the list says about itself. They are as they are stored, unless the
/// selection is by their fields in the request's version.
pub(crate) async fn select(cx: &Cx<'_>, options: &ListOptions) -> Result<(Vec<Arc<Entry>>, ListMeta), Status> {
    let store = &*cx.server.store;
    let base = keys::prefix(&cx.row, cx.namespace());
    let prefix = collection_prefix(cx, &options.filter);
    let continued = options.continue_token.as_deref().map(Continue::decode).transpose()?;
    let at = match (&continued, options.at) {
        // A token without a revision goes on over whatever is newest.
        (Some(token), _) => (token.revision != Revision(0)).then_some(token.revision),
        (None, AtRevision::Exact(revision)) => Some(revision),
        (None, AtRevision::NotOlderThan(wanted)) => {
            reached(store, wanted).await?;
            // What is at hand is new enough, whether or not it is the newest.
            Some(store.revision())
        }
        (None, AtRevision::Any) => Some(store.revision()),
        (None, AtRevision::Newest) => None,
    };
    let after = continued.as_ref().map(|token| format!("{base}{}", token.after));
    let unfiltered = options.filter.is_empty();
    let batch = if unfiltered || options.limit == 0 { options.limit } else { FILTERED_BATCH };
    let expired = |error: StoreError| match error {
        StoreError::Compacted { .. } => match &continued {
            Some(token) => no_snapshot(token),
            None => error.into(),
        },
        other => other.into(),
    };
    let converter = cx.server.converter(&cx.row);
    // Fields are those of the version that is asked for, whatever is stored.
    let converts = converter.is_needed() && options.filter.is_of_version();
    let loose = continued.is_none() && matches!(options.at, AtRevision::Any | AtRevision::NotOlderThan(_));
    let mut page = match range(store, &prefix, after.clone(), batch, at).await {
        // Forgotten since it was looked up.
        Err(StoreError::Compacted { .. }) if loose => range(store, &prefix, after, batch, None).await,
        other => other,
    }
    .map_err(expired)?;
    let revision = page.revision;
    let mut selected: Vec<Arc<Entry>> = Vec::new();
    let (mut remaining, mut more);
    let mut cost = Cost::default();
    loop {
        let RangePage { entries, remaining: behind, .. } = page;
        entries.iter().try_for_each(|entry| readable(cx, entry))?;
        let last = entries.last().map(|entry| entry.key.to_string());
        let count = entries.len();
        cost.fetched += count;
        let entries = if converts { converter.entries(entries, cx.version_index).await? } else { entries };
        (remaining, more) = (behind, false);
        for (i, entry) in entries.into_iter().enumerate() {
            cost.evaluated += 1;
            if !unfiltered && !options.filter.matches(&entry, &cx.row, cx.version()) {
                continue;
            }
            if options.limit > 0 && selected.len() == options.limit {
                // There is at least this one more.
                remaining = behind + (count - i);
                more = true;
                break;
            }
            selected.push(entry);
        }
        if more || behind == 0 {
            break;
        }
        if unfiltered && selected.len() >= options.limit {
            more = true;
            break;
        }
        page = range(store, &prefix, last, batch, Some(revision)).await.map_err(expired)?;
    }
    cx.server.metrics.lists.listed(&cx.row, Cost { returned: selected.len(), ..cost });
    let continue_token = selected.last().filter(|_| more).map(|entry| {
        let after = entry.key.strip_prefix(&base).unwrap_or_default().to_owned();
        Continue { revision, after }.encode()
    });
    let remaining = (more && unfiltered).then_some(remaining);
    Ok((selected, ListMeta { revision, continue_token, remaining }))
}

/// The reply to a token whose snapshot is forgotten, with one that goes on all the same.
fn no_snapshot(token: &Continue) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let token = Continue { revision: Revision(0), after: token.after.clone() };
    status.details.get_or_insert_default().continue_token = Some(token.encode());
    status
}

async fn range(
    store: &dyn Store,
    prefix: &str,
    after: Option<String>,
    limit: usize,
    at: Option<Revision>,
) -> Result<RangePage, StoreError> {
    store.range(Range { prefix: prefix.to_owned(), after, limit, at }).await
}
