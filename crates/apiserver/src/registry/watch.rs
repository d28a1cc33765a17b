//! watch: from a store's changes to the lines that a client reads.
//!
//! ```text
//!   initial entries ─► ADDED…  ─► (initial-events-end bookmark) ─► changes ─► ERROR, end
//!                                                                  └ progress ─► BOOKMARK
//! ```
//!
//! Filtered watches see an object come (ADDED) when it starts to match and go (DELETED) when it
//! stops. Bytes of objects are those of the store, shared by all watchers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use carrack_store::{Entry, Event, Range, Revision, StoreError, Watch, WatchItem};
use futures::Stream;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::accept;
use crate::body::{self, Body, Response};
use crate::context::Cx;
use crate::conversion::Converter;
use crate::list_options::{AtRevision, Filter, ListOptions};
use crate::metrics::Watching;
use crate::present::{Presenter, bytes_of};
use crate::registry::read::collection_prefix;
use crate::status::Status;

/// The server ends watches after this and up to twice this many seconds, so that clients spread.
const MIN_TIMEOUT_S: u64 = 1800;
/// Longest watch that a client can ask for.
const MAX_TIMEOUT_S: u64 = 24 * 3600;
/// Lines up to this size go out in one piece; of longer ones, the object's bytes are not copied.
const COPY_BELOW_BYTES: usize = 16 * 1024;
/// Marks the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Starts a watch of the collection.
pub(crate) async fn watch(cx: &mut Cx<'_>) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    if accept::wants_yaml(cx.headers) {
        // YAML has no frames that a stream could be made of.
        return Err(Status::not_acceptable("application/json"));
    }
    let mut options = ListOptions::parse(cx.query, cx.version(), true)?;
    if let (true, Some(name)) = (cx.request.named_in_path, &cx.request.name) {
        options.filter.fields.require("metadata.name", name);
    }
    let prefix = collection_prefix(cx, &options.filter);
    let store = &*cx.server.store;
    let by_revision = matches!(options.at, AtRevision::Newest | AtRevision::Any);
    let from_start = options.send_initial_events.unwrap_or(by_revision);
    let mut initial = VecDeque::new();
    let after = if from_start {
        let page = store.range(Range { prefix: prefix.clone(), after: None, limit: 0, at: None }).await?;
        if let AtRevision::NotOlderThan(wanted) = options.at
            && wanted > page.revision
        {
            return Err(Status::too_large_resource_version(wanted.0, page.revision.0));
        }
        initial.extend(page.entries.into_iter().filter(|entry| options.filter.matches(entry, &cx.row, cx.version())));
        page.revision
    } else {
        match options.at {
            AtRevision::NotOlderThan(revision) | AtRevision::Exact(revision) => {
                if revision > store.revision() {
                    store.sync().await?;
                }
                revision
            }
            AtRevision::Newest | AtRevision::Any => store.revision(),
        }
    };
    let converter = cx.server.converter(&cx.row);
    let initial = converter.entries(initial.into(), cx.version_index).await?.into();
    let spread = MIN_TIMEOUT_S + cx.server.env.random() % MIN_TIMEOUT_S;
    let timeout_s = options.timeout_s.map_or(spread, |s| s.min(MAX_TIMEOUT_S));
    let lines = Lines {
        initial,
        // The end of the initial events is a bookmark, and comes to those who take bookmarks.
        end_of_initial: (options.send_initial_events == Some(true) && options.bookmarks).then_some(after),
        bookmarks: options.bookmarks,
        known: after,
        first: true,
        ready: VecDeque::new(),
        changes: Some(store.watch(&prefix, after)),
        watching: cx.server.metrics.watch(&cx.row, &cx.version().name, cx.request),
        filter: options.filter,
        presenter,
        converter: converter.is_needed().then_some((converter, cx.version_index)),
        converting: None,
    };
    Ok(body::json(200, Body::Watch { lines: Box::pin(lines), timeout_s }))
}

/// The stream of a watch's lines.
struct Lines {
    initial: VecDeque<Arc<Entry>>,
    /// The revision of the initial state, until its end has been said.
    end_of_initial: Option<Revision>,
    bookmarks: bool,
    /// The newest revision that the client knows of.
    known: Revision,
    /// Nothing has been sent yet.
    first: bool,
    /// What goes out next.
    ready: VecDeque<Bytes>,
    /// None after the end.
    changes: Option<Result<Watch, StoreError>>,
    filter: Filter,
    presenter: Presenter,
    /// Where a webhook converts objects: what asks it, and the version that is wanted.
    converter: Option<(Converter, usize)>,
    /// An event whose object is on its way through the webhook.
    converting: Option<Converting>,
    watching: Watching,
}

/// What kind of event it is, at which revision if not the object's own, and the object.
type Converting = (&'static str, Option<Revision>, BoxFuture<'static, Result<Vec<Arc<Entry>>, Status>>);

impl Lines {
    fn push_event(&mut self, kind: &'static str, entry: Arc<Entry>, at: Option<Revision>) {
        match &self.converter {
            Some((converter, version)) => self.converting = Some((kind, at, converter.later(vec![entry], *version))),
            None => self.push_entry(kind, &entry, at),
        }
    }

    fn push_entry(&mut self, kind: &'static str, entry: &Entry, at: Option<Revision>) {
        let parts = self.presenter.event_parts(entry, at, self.first);
        self.push_line(kind, &parts);
    }

    fn push_value(&mut self, kind: &'static str, value: &Value) {
        self.push_line(kind, &[bytes_of(value)]);
    }

    fn push_line(&mut self, kind: &'static str, object: &[Bytes]) {
        self.first = false;
        let front = match kind {
            "ADDED" => &b"{\"type\":\"ADDED\",\"object\":"[..],
            "MODIFIED" => b"{\"type\":\"MODIFIED\",\"object\":",
            "DELETED" => b"{\"type\":\"DELETED\",\"object\":",
            "BOOKMARK" => b"{\"type\":\"BOOKMARK\",\"object\":",
            _ => b"{\"type\":\"ERROR\",\"object\":",
        };
        const BACK: &[u8] = b"}\n";
        let size: usize = object.iter().map(Bytes::len).sum();
        self.watching.event(front.len() + size + BACK.len());
        if size > COPY_BELOW_BYTES {
            self.ready.push_back(Bytes::from_static(front));
            self.ready.extend(object.iter().cloned());
            self.ready.push_back(Bytes::from_static(BACK));
            return;
        }
        let mut line = BytesMut::with_capacity(front.len() + size + BACK.len());
        line.extend_from_slice(front);
        for part in object {
            line.extend_from_slice(part);
        }
        line.extend_from_slice(BACK);
        self.ready.push_back(line.freeze());
    }

    fn change(&mut self, event: &Event) {
        self.known = event.revision;
        let (row, version) = (&self.presenter.row, self.presenter.version());
        let passes = |entry: &&Arc<Entry>| self.filter.matches(entry, row, version);
        let before = event.previous.as_ref().filter(passes).cloned();
        let after = event.current.as_ref().filter(passes).cloned();
        match (before, after) {
            (None, Some(entry)) => self.push_event("ADDED", entry, None),
            (Some(_), Some(entry)) => self.push_event("MODIFIED", entry, None),
            // The last state that the client could see, at the revision at which it was gone.
            (Some(entry), None) => self.push_event("DELETED", entry, Some(event.revision)),
            (None, None) => {}
        }
    }

    /// Passes on how far the store is. The store paces these, and the last one of a burst always comes:
    /// a controller may be waiting for its cache to be that far.
    fn progress(&mut self, revision: Revision) {
        if self.bookmarks && revision > self.known {
            self.known = revision;
            let bookmark = self.presenter.bookmark(revision, Value::Null);
            self.push_value("BOOKMARK", &bookmark);
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.changes = None;
        let status = match error {
            StoreError::Compacted { oldest } => {
                Status::expired(format!("too old resource version: {} ({oldest})", self.known))
            }
            other => other.into(),
        };
        self.push_value("ERROR", &status.to_json());
    }
}

impl Stream for Lines {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                return Poll::Ready(Some(bytes));
            }
            if let Some((kind, at, converting)) = &mut this.converting {
                let (kind, at) = (*kind, *at);
                let Poll::Ready(result) = converting.as_mut().poll(cx) else { return Poll::Pending };
                this.converting = None;
                match result {
                    Ok(entries) => entries.iter().for_each(|entry| this.push_entry(kind, entry, at)),
                    Err(status) => {
                        this.changes = None;
                        this.push_value("ERROR", &status.to_json());
                    }
                }
                continue;
            }
            if let Some(entry) = this.initial.pop_front() {
                this.push_entry("ADDED", &entry, None);
                continue;
            }
            if let Some(revision) = this.end_of_initial.take() {
                let bookmark = this.presenter.bookmark(revision, json!({INITIAL_EVENTS_END: "true"}));
                this.push_value("BOOKMARK", &bookmark);
                continue;
            }
            let watch = match &mut this.changes {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    let error = error.clone();
                    this.fail(error);
                    continue;
                }
                Some(Ok(watch)) => watch,
            };
            match watch.as_mut().poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(WatchItem::Event(event)))) => this.change(&event),
                Poll::Ready(Some(Ok(WatchItem::Progress(revision)))) => this.progress(revision),
                Poll::Ready(Some(Err(error))) => this.fail(error),
                Poll::Ready(None) => this.changes = None,
            }
        }
    }
}
