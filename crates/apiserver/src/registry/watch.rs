//! watch: from a store's changes to the lines that a client reads.
//!
//! ```text
//!   initial entries ─► ADDED…  ─► (initial-events-end bookmark) ─► changes ─► ERROR, end
//!                                                                  └ progress ─► BOOKMARK
//! ```
//!
//! What changes look like is [`super::render`]'s.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use carrack_store::{Entry, Event, Events, Range, Revision, StoreError, Watch, WatchItem};
use futures::Stream;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::accept;
use crate::body::{self, Body, Response};
use crate::context::Cx;
use crate::conversion::Converter;
use crate::list_options::{AtRevision, ListOptions};
use crate::metrics::Watching;
use crate::present::bytes_of;
use crate::registry::defined::Defined;
use crate::registry::read::collection_prefix;
use crate::registry::render::{Text, View, unreadable};
use crate::status::Status;

/// The server ends watches after this and up to twice this many seconds, so that clients spread.
const MIN_TIMEOUT_S: u64 = 1800;
/// Longest watch that a client can ask for.
const MAX_TIMEOUT_S: u64 = 24 * 3600;
/// Lines that are there together go out in pieces of about this size.
const PIECE_BYTES: usize = 64 * 1024;
/// Marks the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Starts a watch of the collection.
pub(crate) async fn watch(cx: &mut Cx<'_>) -> Result<Response, Status> {
    let defined = cx.server.definitions.follow(&*cx.server.store, &cx.row)?;
    if defined.is_some() {
        // What comes after this is told to it.
        cx.renew().await?;
    }
    if accept::wants_yaml(cx.headers) {
        // YAML has no frames that a stream could be made of.
        return Err(Status::not_acceptable("application/json"));
    }
    let mut options = ListOptions::parse(cx.query, &cx.row, cx.version(), true)?;
    let replaces_list = options.send_initial_events == Some(true) && options.bookmarks;
    let form = if replaces_list { accept::streamed_form(cx.headers) } else { accept::form(cx.headers) };
    let presenter = cx.presenter_of(form?)?;
    if let (true, Some(name)) = (cx.request.named_in_path, &cx.request.name) {
        options.filter.fields.require("metadata.name", name);
    }
    let prefix = collection_prefix(cx, &options.filter);
    let store = &*cx.server.store;
    let by_revision = matches!(options.at, AtRevision::Newest | AtRevision::Any);
    let from_start = options.send_initial_events.unwrap_or(by_revision);
    let converter = cx.server.converter(&cx.row);
    let mut initial = VecDeque::new();
    let after = if from_start {
        let page = store.range(Range { prefix: prefix.clone(), after: None, limit: 0, at: None }).await?;
        if let AtRevision::NotOlderThan(wanted) = options.at
            && wanted > page.revision
        {
            return Err(Status::too_large_resource_version(wanted.0, page.revision.0));
        }
        let entries = if converter.is_needed() && options.filter.is_of_version() {
            converter.entries(page.entries, cx.version_index).await?
        } else {
            page.entries
        };
        initial.extend(entries.into_iter().filter(|entry| options.filter.matches(entry, &cx.row, cx.version())));
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
    let initial = converter.entries(initial.into(), cx.version_index).await?.into();
    let spread = MIN_TIMEOUT_S + cx.server.env.random() % MIN_TIMEOUT_S;
    let timeout_s = options.timeout_s.map_or(spread, |s| s.min(MAX_TIMEOUT_S));
    let lines = Lines {
        initial,
        // The end of the initial events is a bookmark, and comes to those who take bookmarks.
        end_of_initial: replaces_list.then_some(after),
        bookmarks: options.bookmarks,
        known: after,
        first: true,
        ready: VecDeque::new(),
        text: Text::default(),
        events: None,
        changes: Some(store.watch(&prefix, after)),
        watching: cx.server.metrics.watch(&cx.row, &cx.version().name, cx.request),
        view: View { presenter, filter: options.filter },
        converter: converter.is_needed().then_some((converter, cx.version_index)),
        converting: None,
        defined,
        is_over: false,
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
    /// No object has been sent yet.
    first: bool,
    /// What goes out next.
    ready: VecDeque<Bytes>,
    /// What goes out after that.
    text: Text,
    /// Changes that are taken one by one, and how many were.
    events: Option<(Arc<Events>, usize)>,
    /// None after the end.
    changes: Option<Result<Watch, StoreError>>,
    view: View,
    /// Where a webhook converts objects: what asks it, and the version that is wanted.
    converter: Option<(Converter, usize)>,
    /// An event whose object is on its way through the webhook.
    converting: Option<Converting>,
    /// The definition of what is watched, if it has one.
    defined: Option<Defined>,
    /// It has changed.
    is_over: bool,
    watching: Watching,
}

/// What becomes of objects, and the objects.
type Converting = (Then, BoxFuture<'static, Result<Vec<Arc<Entry>>, Status>>);

/// What becomes of objects that have been converted.
#[derive(Clone, Copy)]
enum Then {
    /// They are told: of what kind the event is, and at which revision if not the object's own.
    Told(&'static str, Option<Revision>),
    /// It is seen what the change is to those who ask for some fields: whether there was an object before it, whether
    /// there is one after it, and its revision.
    Seen { had: bool, has: bool, revision: Revision },
}

/// How a step ended.
enum Step {
    More,
    Waits,
    End,
}

impl Lines {
    fn push_event(&mut self, kind: &'static str, entry: Arc<Entry>, at: Option<Revision>) {
        match &self.converter {
            Some((converter, version)) => {
                self.converting = Some((Then::Told(kind, at), converter.later(vec![entry], *version)));
            }
            None => self.push_entry(kind, &entry, at),
        }
    }

    /// One of the changes that are taken one by one.
    fn push_change(&mut self, event: &Event) {
        match &self.converter {
            Some((converter, version)) if self.view.filter.is_of_version() => {
                let (had, has) = (event.previous.is_some(), event.current.is_some());
                let entries = event.previous.iter().chain(&event.current).cloned().collect();
                let then = Then::Seen { had, has, revision: event.revision };
                self.converting = Some((then, converter.later(entries, *version)));
            }
            _ => {
                if let Some((kind, entry, at)) = self.view.seen(event) {
                    self.push_event(kind, entry, at);
                }
            }
        }
    }

    fn push_converted(&mut self, then: Then, entries: Vec<Arc<Entry>>) {
        match then {
            Then::Told(kind, at) => entries.iter().for_each(|entry| self.push_entry(kind, entry, at)),
            Then::Seen { had, has, revision } => {
                let mut entries = entries.into_iter();
                let previous = if had { entries.next() } else { None };
                let current = if has { entries.next() } else { None };
                if let Some((kind, entry, at)) = self.view.seen(&Event { revision, previous, current }) {
                    self.push_entry(kind, &entry, at);
                }
            }
        }
    }

    fn push_entry(&mut self, kind: &'static str, entry: &Entry, at: Option<Revision>) {
        // A bookmark before it has no headings.
        let parts = self.view.presenter.event_parts(entry, at, std::mem::take(&mut self.first));
        self.push_line(kind, &parts);
    }

    fn push_value(&mut self, kind: &'static str, value: &Value) {
        self.push_line(kind, &[bytes_of(value)]);
    }

    fn push_line(&mut self, kind: &'static str, object: &[Bytes]) {
        let bytes = self.text.push(kind, object);
        self.watching.event(bytes);
    }

    fn change(&mut self, events: Arc<Events>) {
        let shared = if self.converter.is_some() { None } else { self.view.shared(&events) };
        let Some(shared) = shared else {
            self.events = Some((events, 0));
            return;
        };
        if let Some(last) = events.last() {
            self.known = last.revision;
        }
        if !shared.sizes.is_empty() {
            self.first = false;
            self.settle();
            self.ready.extend(shared.parts.iter().cloned());
            shared.sizes.iter().for_each(|bytes| self.watching.event(*bytes));
        }
        if let Some(entry) = &shared.unreadable {
            self.cannot_tell(entry);
        }
    }

    /// What stands where an object is to be is neither told nor passed over, or a client would keep for good what was there
    /// before: the watch ends, and lists say which it is.
    fn cannot_tell(&mut self, entry: &Entry) {
        tracing::warn!(key = %entry.key, "a watch ends: what the store holds is no object");
        (self.changes, self.events) = (None, None);
        let row = &self.view.presenter.row;
        let status = Status::unreadable(&row.group, &row.plural, &entry.key);
        self.push_value("ERROR", &status.to_json());
    }

    /// What was put together goes out.
    fn settle(&mut self) {
        self.ready.extend(self.text.take());
    }

    /// Passes on how far the store is. The store paces these, and the last one of a burst always comes:
    /// a controller may be waiting for its cache to be that far.
    fn progress(&mut self, revision: Revision) {
        if self.bookmarks && revision > self.known {
            self.known = revision;
            let bookmark = self.view.presenter.bookmark(revision, Value::Null);
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

    fn step(&mut self, cx: &mut Context<'_>) -> Step {
        if let Some((then, converting)) = &mut self.converting {
            let then = *then;
            let Poll::Ready(result) = converting.as_mut().poll(cx) else { return Step::Waits };
            self.converting = None;
            match result {
                Ok(entries) => self.push_converted(then, entries),
                Err(status) => {
                    (self.changes, self.events) = (None, None);
                    self.push_value("ERROR", &status.to_json());
                }
            }
            return Step::More;
        }
        if let Some(entry) = self.initial.pop_front() {
            if self.initial.is_empty() {
                // The watch may last for hours, and needs the room no more.
                self.initial = VecDeque::new();
            }
            self.push_entry("ADDED", &entry, None);
            return Step::More;
        }
        if let Some(revision) = self.end_of_initial.take() {
            let bookmark = self.view.presenter.bookmark(revision, json!({INITIAL_EVENTS_END: "true"}));
            self.push_value("BOOKMARK", &bookmark);
            return Step::More;
        }
        if let Some((events, taken)) = self.events.take() {
            if let Some(event) = events.get(taken) {
                self.known = event.revision;
                if let Some(entry) = unreadable(event) {
                    self.cannot_tell(entry);
                } else {
                    self.push_change(event);
                    self.events = Some((events, taken + 1));
                }
            }
            return Step::More;
        }
        if self.defined.as_mut().is_some_and(|defined| defined.is_over(cx)) {
            (self.defined, self.is_over) = (None, true);
        }
        let watch = match &mut self.changes {
            None => return Step::End,
            Some(Err(error)) => {
                let error = error.clone();
                self.fail(error);
                return Step::More;
            }
            Some(Ok(watch)) => watch,
        };
        match watch.as_mut().poll_next(cx) {
            // All that came before the change of the definition has been told.
            Poll::Pending if self.is_over => self.changes = None,
            Poll::Pending => return Step::Waits,
            Poll::Ready(Some(Ok(WatchItem::Events(events)))) => self.change(events),
            Poll::Ready(Some(Ok(WatchItem::Progress(revision)))) => self.progress(revision),
            Poll::Ready(Some(Err(error))) => self.fail(error),
            Poll::Ready(None) => self.changes = None,
        }
        Step::More
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
            let step = this.step(cx);
            match step {
                Step::More if this.text.bytes() < PIECE_BYTES => {}
                Step::More => this.settle(),
                // Whoever waits has said so to those that will wake it, and comes back.
                Step::Waits | Step::End if !this.text.is_empty() => this.settle(),
                Step::Waits => return Poll::Pending,
                Step::End => return Poll::Ready(None),
            }
        }
    }
}
