//! Changes as the lines of a watch.
//!
//! ```text
//!   Events ─► first watcher of a view: its lines, kept with the events ─┐
//!          └► every other watcher of that view ─────────────────────────┴► the same bytes
//! ```
//!
//! Filtered watches see an object come (ADDED) when it starts to match and go (DELETED) when it
//! stops. Bytes of objects are those of the store, shared by all watchers.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use carrack_store::{Entry, Event, Events, Revision};

use crate::accept::Form;
use crate::list_options::Filter;
use crate::present::Presenter;
use crate::stored;

/// Lines up to this size are put together in one piece; of longer ones, the object's bytes are not copied.
const COPY_BELOW_BYTES: usize = 16 * 1024;
/// For so many views the lines of the same events are kept; watchers of further ones make their own.
const SHARED_VIEWS: usize = 8;
/// No more events than these are put together at once for all: a watcher that reads on from far behind goes by itself.
const SHARED_EVENTS: usize = 1024;

/// Lines that are ready to go out.
#[derive(Debug, Default)]
pub(crate) struct Text {
    parts: Vec<Bytes>,
    /// What no piece was made of yet. Its room goes with the piece: a watch that has begun with its objects may tell nothing for long.
    open: Vec<u8>,
    bytes: usize,
}

/// A change as a watcher sees it: its kind, the object, and the revision if it is not the object's own.
pub(crate) type Seen = (&'static str, Arc<Entry>, Option<Revision>);

/// How a watcher wants to see changes.
pub(crate) struct View {
    pub presenter: Presenter,
    pub filter: Filter,
}

/// The lines of some events, and the size of each in bytes.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub parts: Vec<Bytes>,
    pub sizes: Vec<usize>,
    /// What stands in the place of an object behind them, and cannot be told. What is behind that is not told either.
    pub unreadable: Option<Arc<Entry>>,
}

/// What a change leaves, if that is no object.
pub(crate) fn unreadable(event: &Event) -> Option<&Arc<Entry>> {
    event.current.as_ref().filter(|entry| !stored::is_readable(entry))
}

/// What decides, for events under a given prefix, how they look.
#[derive(PartialEq)]
struct Key {
    api_version: String,
    form: Form,
    filter: Filter,
    /// By which definition what is older was completed.
    defined_at: u64,
}

/// The lines of events by view.
#[derive(Default)]
struct Memo(Mutex<Vec<(Key, Arc<Rendered>)>>);

impl Text {
    /// Adds a line; returns its size in bytes.
    pub(crate) fn push(&mut self, kind: &'static str, object: &[Bytes]) -> usize {
        let front = match kind {
            "ADDED" => &b"{\"type\":\"ADDED\",\"object\":"[..],
            "MODIFIED" => b"{\"type\":\"MODIFIED\",\"object\":",
            "DELETED" => b"{\"type\":\"DELETED\",\"object\":",
            "BOOKMARK" => b"{\"type\":\"BOOKMARK\",\"object\":",
            _ => b"{\"type\":\"ERROR\",\"object\":",
        };
        const BACK: &[u8] = b"}\n";
        let bytes: usize = object.iter().map(Bytes::len).sum();
        if bytes > COPY_BELOW_BYTES {
            self.close();
            self.parts.push(Bytes::from_static(front));
            self.parts.extend(object.iter().cloned());
            self.parts.push(Bytes::from_static(BACK));
        } else {
            self.open.reserve(front.len() + bytes + BACK.len());
            self.open.extend_from_slice(front);
            object.iter().for_each(|part| self.open.extend_from_slice(part));
            self.open.extend_from_slice(BACK);
        }
        let line_bytes = front.len() + bytes + BACK.len();
        self.bytes += line_bytes;
        line_bytes
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.parts.push(std::mem::take(&mut self.open).into());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything, in pieces.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
        self.close();
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }
}

impl View {
    /// What a change is to this view; none when it does not concern it. Of custom resources that are older than their definition,
    /// as that has them.
    pub(crate) fn seen(&self, event: &Event) -> Option<Seen> {
        let (row, version) = (&self.presenter.row, self.presenter.version());
        // What cannot be read was seen by nobody: it ended the watches that came to it.
        let passes = |entry: &&Arc<Entry>| stored::is_readable(entry) && self.filter.matches(entry, row, version);
        let now = |entry: &Arc<Entry>| stored::caught_up(Arc::clone(entry), row);
        match (event.previous.as_ref().filter(passes), event.current.as_ref().filter(passes)) {
            (None, Some(entry)) => Some(("ADDED", now(entry), None)),
            (Some(_), Some(entry)) => Some(("MODIFIED", now(entry), None)),
            // The last state that the client could see, at the revision at which it was gone.
            (Some(entry), None) => Some(("DELETED", now(entry), Some(event.revision))),
            (None, None) => None,
        }
    }

    /// The lines of events, shared with all who see them in the same way; none where nothing can be shared.
    pub(crate) fn shared(&self, events: &Events) -> Option<Arc<Rendered>> {
        let (form, defined_at) = (self.presenter.form, self.presenter.row.defined_at);
        if matches!(form, Form::Table(_)) || events.len() > SHARED_EVENTS {
            // A table tells ages, and its first event the headings.
            return None;
        }
        let memo = events.memo.get_or_init(|| Arc::new(Memo::default())).downcast_ref::<Memo>()?;
        let mut known = memo.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |key: &Key| {
            (key.form, key.defined_at) == (form, defined_at)
                && key.filter == self.filter
                && key.api_version == self.presenter.api_version()
        };
        if let Some((_, rendered)) = known.iter().find(|(key, _)| is_same(key)) {
            return Some(Arc::clone(rendered));
        }
        let rendered = Arc::new(self.rendered(events));
        if known.len() < SHARED_VIEWS {
            let (api_version, filter) = (self.presenter.api_version().to_owned(), self.filter.clone());
            let key = Key { api_version, form, filter, defined_at };
            known.push((key, Arc::clone(&rendered)));
        }
        Some(rendered)
    }

    fn rendered(&self, events: &[Event]) -> Rendered {
        let (mut text, mut sizes) = (Text::default(), Vec::new());
        let (told, left) = match events.iter().position(|event| unreadable(event).is_some()) {
            Some(at) => events.split_at(at),
            None => (events, &[][..]),
        };
        let seen: Vec<Seen> = told.iter().filter_map(|event| self.seen(event)).collect();
        let small = seen.iter().map(|(_, entry, _)| entry.value_len()).filter(|bytes| *bytes <= COPY_BELOW_BYTES);
        // Each line has a little around the object.
        text.open.reserve(small.map(|bytes| bytes + 48).sum());
        for (kind, entry, at) in seen {
            sizes.push(text.push(kind, &self.presenter.event_parts(&entry, at, false)));
        }
        Rendered { parts: text.take(), sizes, unreadable: left.first().and_then(unreadable).cloned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of lines with objects of these lengths, and in how many pieces.
    fn check(lengths: &[usize], pieces: usize) {
        let mut text = Text::default();
        let mut bytes = 0;
        for length in lengths {
            bytes += text.push("MODIFIED", &[Bytes::from(vec![b'x'; *length])]);
        }
        assert_eq!(text.bytes(), bytes, "{lengths:?}");
        let parts = text.take();
        let joined: Vec<u8> = parts.concat();
        let wanted: String = lengths
            .iter()
            .map(|length| format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", "x".repeat(*length)))
            .collect();
        assert!(joined == wanted.as_bytes(), "{lengths:?}");
        assert_eq!(parts.len(), pieces, "{lengths:?}");
        assert!(text.is_empty() && text.take().is_empty(), "{lengths:?}");
        assert_eq!((text.open.capacity(), text.parts.capacity()), (0, 0), "nothing is kept: {lengths:?}");
    }

    #[test]
    fn lines_go_out_and_leave_no_room_behind() {
        check(&[], 0);
        check(&[10], 1);
        check(&[10, 2000, 30], 1);
        check(&[COPY_BELOW_BYTES + 1], 3);
        check(&[10, COPY_BELOW_BYTES + 1, 20, 30], 5);
    }
}
