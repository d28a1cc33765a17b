//! Knows all objects of one kind: lists them, then watches, and starts over when it must.
//!
//! ```text
//!            list page                    watch ends, closes, errs
//!   Idle ──▶ Listing ──last page──▶ Watching ─────────▶ Watching (resumes at its revision)
//!    ▲          │ error                  │ 410 Gone, or of no use to this server
//!    └─backoff──┴────────────────────────┘
//! ```
//!
//! While it lists anew the cache keeps what was known: a failed read makes nothing absent. Objects
//! leave the cache by a `DELETED` event, or by not being in a complete list.
//!
//! What cannot be watched is listed again and again instead: it waits in `Backoff` between two lists.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_types::resource::{Object, Resource};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::discovery;
use crate::{
    ApiError, ApiRequest, ApiResponse, Cache, CallId, Effects, IndexFn, Input, Key, Rng, Selector, Time, TimerId,
    WatchId, WatchItem, fnv1a,
};

/// How many objects a list page holds.
pub(crate) const PAGE: usize = 500;
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// After so long what must show something lists anew: watches of a quiet kind may tell nothing for a minute.
pub const CATCH_UP: Duration = Duration::from_secs(1);

/// A change that an informer saw.
#[derive(Clone, Debug)]
pub enum Delta<K> {
    /// An object that was not known.
    Added(Arc<K>),
    /// A known object as it was and as it is.
    Updated(Arc<K>, Arc<K>),
    /// A known object that is gone, as last seen.
    Removed(Arc<K>),
}

impl<K: Object> Delta<K> {
    /// The newest known form of the object.
    #[must_use]
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(o) | Self::Updated(_, o) | Self::Removed(o) => o,
        }
    }
}

enum State {
    Idle,
    Listing {
        call: CallId,
        page: Page,
    },
    Watching {
        watch: WatchId,
    },
    /// Waiting to list again, or to watch again from the revision that is known.
    Backoff {
        timer: TimerId,
        relist: bool,
    },
}

/// What an informer waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaited {
    /// A reply.
    Call(CallId),
    /// An event.
    Watch(WatchId),
    /// A time.
    Timer(TimerId),
}

impl Awaited {
    /// What an input is an answer to, if it is one of these.
    #[must_use]
    pub fn of<E>(input: &Input<E>) -> Option<Self> {
        match input {
            Input::Api { id, .. } => Some(Self::Call(*id)),
            Input::Watch { id, .. } => Some(Self::Watch(*id)),
            Input::Timer(id) => Some(Self::Timer(*id)),
            Input::Start | Input::Own(_) => None,
        }
    }
}

#[derive(Default)]
struct Page {
    seen: BTreeSet<Key>,
    failed: usize,
    /// It goes on where another one ended.
    continues: bool,
    /// It is all that there is.
    whole: bool,
    /// It was asked for after everything that is owed.
    fresh: bool,
    /// The words so far.
    digest: u64,
}

/// Keeps a [`Cache`] of one kind current.
pub struct Informer<K> {
    resource: Resource,
    selector: Selector,
    cache: Cache<K>,
    state: State,
    revision: u64,
    revision_text: String,
    synced: bool,
    /// Why it could not be listed, since it could the last time.
    failure: Option<String>,
    backoff: Duration,
    /// When its watch was opened, and how many in a row were of no use as soon as that.
    opened: Time,
    useless: u32,
    /// Since when its watch has run without an error; a regular end is none.
    steady: Option<Time>,
    rng: Rng,
    metadata_only: bool,
    /// How often it is listed, when it is not watched.
    every: Option<Duration>,
    /// It is to be listed once more when the list that is under way has come.
    hurried: bool,
    /// It does not show everything up to this revision yet, nor what a list tells that was asked for later than that was demanded.
    owed: Option<u64>,
    /// When it is listed anew because of that.
    late: Option<TimerId>,
    /// The words of the last whole list of what is not watched.
    digest: Option<u64>,
    trim: Option<Trim<K>>,
    /// How many objects it asks for at a time, where it does not ask for all of them.
    page: usize,
    /// A planted bug: the first page of a list is taken for all of it.
    first_alone: bool,
}

/// Leaves out of an object what nobody reads.
type Trim<K> = Box<dyn FnMut(&mut K) + Send>;

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    /// An empty list of metadata alone comes as `null` from servers that are built on k8s.io/apiserver
    /// (`asPartialObjectMetadataList` in its `endpoints/handlers/response.go`).
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
}
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
}
#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}
/// An object of which nothing but its revision is wanted.
#[derive(Deserialize)]
pub(crate) struct OnlyRevision {
    #[serde(default)]
    pub(crate) metadata: ListMeta,
}
/// An object that cannot be read, as one may be that a newer server has written: of which object it tells, all the same.
#[derive(Deserialize)]
struct OnlyIdentity {
    metadata: Identity,
}
#[derive(Deserialize)]
struct Identity {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
}

impl<K: Object> Informer<K> {
    /// An informer that has not started.
    #[must_use]
    pub fn new(resource: Resource, selector: Selector, rng: Rng) -> Self {
        Self {
            resource,
            selector,
            cache: Cache::default(),
            state: State::Idle,
            revision: 0,
            revision_text: String::new(),
            synced: false,
            failure: None,
            backoff: FIRST_BACKOFF,
            opened: Time::default(),
            useless: 0,
            steady: None,
            rng,
            metadata_only: false,
            every: None,
            hurried: false,
            owed: None,
            late: None,
            digest: None,
            trim: None,
            page: PAGE,
            first_alone: false,
        }
    }
    /// Keeps only so many objects as values, those that were opened last, and packs all others.
    #[must_use]
    pub fn packed_beyond(mut self, most_open: usize) -> Self {
        self.cache.pack_beyond(most_open);
        self
    }
    /// Leaves out of each object what this takes out of it, before anybody sees it.
    #[must_use]
    pub fn trimmed_by(mut self, trim: impl FnMut(&mut K) + Send + 'static) -> Self {
        self.trim = Some(Box::new(trim));
        self
    }
    /// The same of one that has not started.
    pub(crate) fn trim_by(&mut self, trim: fn(&mut K)) {
        self.trim = Some(Box::new(trim));
    }
    /// Reads object metadata alone, without labels and annotations: annotations may be long, and whoever asks for metadata wants to know
    /// what there is and whose it is.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }
    /// Lists it so often, and watches nothing.
    #[must_use]
    pub fn listed_every(mut self, every: Duration) -> Self {
        self.every = Some(every);
        self
    }
    /// Lists it now, if it is not watched. A list that is under way may tell of what was before: it is followed by another one.
    pub fn hurry<F>(&mut self, fx: &mut Effects<F>) {
        match self.state {
            State::Backoff { relist: true, .. } => self.list(fx, "", Page::default()),
            State::Listing { .. } => self.hurried = self.every.is_some(),
            _ => {}
        }
    }
    /// From now on it has caught up ([`Self::caught_up`]) only when it shows everything up to a revision; or when a list has come
    /// that is asked for from now on, since an API server may keep each kind in a store of its own, with revisions that compare
    /// with no others. What has done neither in [`CATCH_UP`] is listed anew. Nothing is demanded of what is not watched.
    pub fn must_show<F>(&mut self, now: Time, revision: u64, fx: &mut Effects<F>) {
        (self.owed, self.late) = (None, None);
        if self.every.is_some() || self.synced && self.revision >= revision {
            return;
        }
        if let State::Listing { page, .. } = &mut self.state {
            page.fresh = false;
        }
        self.owed = Some(revision);
        self.late = Some(fx.timer(now + CATCH_UP));
    }
    /// Whether a complete list has been seen once, and it shows what it must.
    #[must_use]
    pub fn caught_up(&self) -> bool {
        self.synced && self.owed.is_none()
    }
    /// It has not caught up in time: its watch may be behind, and the server silent about it.
    fn is_late<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.late = None;
        match &mut self.state {
            State::Watching { watch } => {
                fx.unwatch(*watch);
                self.list(fx, "", Page::default());
            }
            State::Backoff { relist, .. } => *relist = true,
            State::Listing { page, .. } if !page.fresh => self.late = Some(fx.timer(now + CATCH_UP)),
            State::Listing { .. } | State::Idle => {}
        }
    }
    /// Adds an index to the cache.
    pub fn add_index(&mut self, name: &'static str, of: IndexFn<K>) {
        self.cache.add_index(name, of);
    }
    /// Files objects by their labels.
    pub fn index_labels(&mut self) {
        self.cache.index_labels();
    }
    /// Packs nothing from now on.
    pub(crate) fn keep_open(&mut self) {
        self.cache.keep_open();
    }
    /// What is known.
    #[must_use]
    pub fn cache(&self) -> &Cache<K> {
        &self.cache
    }
    /// Whether a complete list has been seen once.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }
    /// Why the last list failed; none once one has succeeded again.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
    /// What it waits for; none before it was started and after it was stopped. Who has many of them finds by it whose an
    /// input is.
    #[must_use]
    pub fn awaits(&self) -> Option<Awaited> {
        match &self.state {
            State::Idle => None,
            State::Listing { call, .. } => Some(Awaited::Call(*call)),
            State::Watching { watch } => Some(Awaited::Watch(*watch)),
            State::Backoff { timer, .. } => Some(Awaited::Timer(*timer)),
        }
    }
    /// What it waits for besides while it must show something.
    #[must_use]
    pub fn awaits_besides(&self) -> Option<Awaited> {
        self.late.map(Awaited::Timer)
    }
    /// The cache shows every change up to this revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
    /// Since when it has heard everything: its watch has been open without an error. None while it has no watch.
    #[must_use]
    pub fn steady_since(&self) -> Option<Time> {
        self.steady
    }
    /// The resource that it reads.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }
    /// Which objects it reads.
    #[must_use]
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Puts objects in as if they had been listed.
    pub(crate) fn fill(&mut self, objects: impl IntoIterator<Item = Arc<K>>) {
        for object in objects {
            self.revision = self.revision.max(object.revision());
            self.cache.insert(object);
        }
        self.synced = true;
        self.digest = self.every.map(|_| 0);
        self.steady = Some(Time::default());
    }

    /// Begins.
    pub fn start<F>(&mut self, fx: &mut Effects<F>) {
        self.list(fx, "", Page::default());
    }

    /// Ends; the cache stays as it is.
    pub fn stop<F>(&mut self, fx: &mut Effects<F>) {
        if let State::Watching { watch } = self.state {
            fx.unwatch(watch);
        }
        self.state = State::Idle;
        self.late = None;
    }

    /// Packs what has not been read for long, where it packs.
    pub fn rest(&mut self) {
        self.cache.rest();
    }

    /// Takes an input if it is this informer's. Returns the changes it brought, or none when the
    /// input is somebody else's.
    pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> Option<Vec<Delta<K>>> {
        let deltas = self.take(now, input, fx);
        if deltas.is_some() {
            self.rest();
        }
        deltas
    }

    fn take<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> Option<Vec<Delta<K>>> {
        match (input, &mut self.state) {
            (Input::Timer(id), _) if self.late == Some(*id) => {
                self.is_late(now, fx);
                Some(Vec::new())
            }
            (Input::Api { id, result }, State::Listing { call, page }) if id == call => {
                let page = std::mem::take(page);
                Some(self.listed(now, result, page, fx))
            }
            (Input::Watch { id, item }, State::Watching { watch }) if id == watch => Some(self.watched(now, item, fx)),
            (Input::Timer(id), State::Backoff { timer, relist }) if id == timer => {
                if *relist {
                    self.list(fx, "", Page::default());
                } else {
                    self.watch(now, fx);
                }
                Some(Vec::new())
            }
            _ => None,
        }
    }

    fn list<F>(&mut self, fx: &mut Effects<F>, continue_token: &str, page: Page) {
        let most = if page.whole { 0 } else { self.page };
        let mut request = ApiRequest::list(&self.resource, &self.selector, most, continue_token);
        request.metadata_only = self.metadata_only;
        // What comes in several pages is all as it was when the first was asked for.
        let continues = !continue_token.is_empty();
        let page = Page { fresh: page.fresh || !continues, continues, ..page };
        self.state = State::Listing { call: fx.api(request), page };
    }

    fn watch<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        let timeout_s = 300 + self.rng.below(300);
        let mut request = ApiRequest::watch(&self.resource, &self.selector, &self.revision_text, timeout_s);
        request.metadata_only = self.metadata_only;
        self.opened = now;
        self.steady.get_or_insert(now);
        self.state = State::Watching { watch: fx.watch(request) };
    }

    fn back_off<F>(&mut self, now: Time, relist: bool, fx: &mut Effects<F>) {
        let delay = self.rng.jitter(self.backoff, 50);
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        self.state = State::Backoff { timer: fx.timer(now + delay), relist };
    }

    /// Ends a watch that broke, and lists anew where it cannot go on. A list that is too old as soon as it has come is read too
    /// slowly for what is written meanwhile, and to read it again at once makes that worse: each one waits longer than the last.
    fn broke<F>(&mut self, now: Time, error: &ApiError, fx: &mut Effects<F>) {
        self.steady = None;
        let relist = must_list(error);
        if relist {
            let at_once = now.since(self.opened) < CATCH_UP;
            self.useless = if at_once { self.useless.saturating_add(1) } else { 0 };
            let least = FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(self.useless.saturating_sub(1).min(20)));
            self.backoff = self.backoff.max(least.min(MAX_BACKOFF));
        }
        self.back_off(now, relist, fx);
    }

    fn listed<F>(
        &mut self,
        now: Time,
        result: &Result<ApiResponse, ApiError>,
        mut page: Page,
        fx: &mut Effects<F>,
    ) -> Vec<Delta<K>> {
        let list = match result {
            Ok(reply) => match serde_json::from_slice::<RawList<'_>>(&reply.body) {
                Ok(list) => list,
                Err(error) => {
                    tracing::error!(resource = %self.resource, %error, "a list could not be read");
                    self.failed(now, error.to_string(), fx);
                    return Vec::new();
                }
            },
            // All pages are as it was with the first, which a server remembers only for so long. Who reads them more slowly would
            // begin anew for ever. Upstream reference: `FullListIfExpired` in client-go's tools/pager.
            Err(error) if error.is_gone() && page.continues => {
                tracing::debug!(resource = %self.resource, %error, "a list expired between its pages");
                self.list(fx, "", Page { whole: true, ..Page::default() });
                return Vec::new();
            }
            Err(error) => {
                tracing::warn!(resource = %self.resource, %error, "listing failed; will try again");
                self.failed(now, error.to_string(), fx);
                return Vec::new();
            }
        };
        let mut deltas = Vec::new();
        for item in list.items.into_iter().flatten() {
            if self.every.is_some() {
                page.digest = digest_with(page.digest, item.get());
            }
            match K::from_json(item.get().as_bytes()) {
                Ok(mut object) => {
                    // Discovery's groups are no objects with revisions: they are known by their words.
                    if self.resource.group == discovery::GROUP && object.meta().resource_version.is_none() {
                        object.meta_mut().resource_version = Some(fnv1a(item.get().as_bytes()).to_string());
                    }
                    page.seen.insert(Key::of(&object));
                    deltas.extend(self.put(object));
                }
                Err(error) => {
                    tracing::error!(resource = %self.resource, %error, "a listed object could not be read");
                    match identity(item.get()) {
                        // It is there, whatever it says. That others are not is known all the same.
                        Some((key, uid)) => {
                            deltas.extend(self.displace(&key, &uid));
                            page.seen.insert(key);
                        }
                        None => page.failed += 1,
                    }
                }
            }
        }
        if !list.metadata.continue_token.is_empty() && !self.first_alone {
            self.list(fx, &list.metadata.continue_token, page);
            return deltas;
        }
        let again = std::mem::take(&mut self.hurried);
        // Which object it is that could not be read is unknown: any may still be there, and nothing is taken out.
        if page.failed == 0 {
            let gone: Vec<Key> = self.cache.keys().filter(|k| !page.seen.contains(*k)).cloned().collect();
            deltas.extend(gone.iter().filter_map(|key| self.cache.remove(key)).map(Delta::Removed));
        }
        self.set_revision(&list.metadata.resource_version);
        if page.fresh {
            (self.owed, self.late) = (None, None);
        }
        self.synced = true;
        self.failure = None;
        self.backoff = FIRST_BACKOFF;
        match self.every {
            None => self.watch(now, fx),
            Some(every) => {
                self.digest = Some(page.digest);
                self.steady.get_or_insert(now);
                if again {
                    self.list(fx, "", Page::default());
                } else {
                    let delay = self.rng.jitter(every, 10);
                    self.state = State::Backoff { timer: fx.timer(now + delay), relist: true };
                }
            }
        }
        deltas
    }

    fn failed<F>(&mut self, now: Time, why: String, fx: &mut Effects<F>) {
        self.failure = Some(why);
        self.hurried = false;
        self.steady = None;
        self.back_off(now, true, fx);
    }

    fn watched<F>(&mut self, now: Time, item: &WatchItem, fx: &mut Effects<F>) -> Vec<Delta<K>> {
        match item {
            WatchItem::Event(bytes) => self.event(now, bytes, fx),
            WatchItem::Closed(None) => {
                // Regular end. One that comes at once is treated like an error, lest it spins.
                if now.since(self.opened) > Duration::from_secs(1) {
                    self.backoff = FIRST_BACKOFF;
                    self.watch(now, fx);
                } else {
                    self.back_off(now, false, fx);
                }
                Vec::new()
            }
            WatchItem::Closed(Some(error)) => {
                tracing::debug!(resource = %self.resource, %error, "a watch broke");
                self.broke(now, error, fx);
                Vec::new()
            }
        }
    }

    fn event<F>(&mut self, now: Time, bytes: &Bytes, fx: &mut Effects<F>) -> Vec<Delta<K>> {
        let event = match serde_json::from_slice::<RawEvent<'_>>(bytes) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(resource = %self.resource, %error, "a watch event could not be read");
                self.restart(now, fx);
                return Vec::new();
            }
        };
        let text = event.object.get();
        match event.kind.as_str() {
            "BOOKMARK" => {
                if let Ok(only) = serde_json::from_str::<OnlyRevision>(text) {
                    self.set_revision(&only.metadata.resource_version);
                }
                Vec::new()
            }
            "ERROR" => {
                let error = ApiError::from_reply(500, text.as_bytes());
                tracing::debug!(resource = %self.resource, %error, "the server ended a watch");
                if let State::Watching { watch } = self.state {
                    fx.unwatch(watch);
                }
                self.broke(now, &error, fx);
                Vec::new()
            }
            kind => match K::from_json(text.as_bytes()) {
                Ok(object) => {
                    let revision = object.meta().resource_version.clone().unwrap_or_default();
                    let delta = if kind == "DELETED" {
                        self.cache.remove(&Key::of(&object)).map(|_| Delta::Removed(Arc::new(object)))
                    } else {
                        self.put(object)
                    };
                    self.set_revision(&revision);
                    self.backoff = FIRST_BACKOFF;
                    delta.into_iter().collect()
                }
                Err(error) => {
                    tracing::error!(resource = %self.resource, %error, "a watched object could not be read");
                    if let Ok(only) = serde_json::from_str::<OnlyRevision>(text) {
                        self.set_revision(&only.metadata.resource_version);
                    }
                    let Some((key, uid)) = identity(text) else { return Vec::new() };
                    let gone = if kind == "DELETED" {
                        self.cache.remove(&key).map(Delta::Removed)
                    } else {
                        self.displace(&key, &uid)
                    };
                    gone.into_iter().collect()
                }
            },
        }
    }

    /// There is an object of this name and UID, of which no more could be read. What was known of it stays; another one, which had
    /// the name before, is gone.
    fn displace(&mut self, key: &Key, uid: &str) -> Option<Delta<K>> {
        let other = self.cache.get_key(key).is_some_and(|known| !uid.is_empty() && known.uid() != uid);
        if other { self.cache.remove(key).map(Delta::Removed) } else { None }
    }

    fn restart<F>(&mut self, now: Time, fx: &mut Effects<F>) {
        self.steady = None;
        if let State::Watching { watch } = self.state {
            fx.unwatch(watch);
        }
        self.back_off(now, true, fx);
    }

    fn put(&mut self, mut object: K) -> Option<Delta<K>> {
        // Who owns which field is of no use to a controller, and not small. A write without it leaves it as it is.
        object.meta_mut().managed_fields = None;
        if self.metadata_only {
            let meta = object.meta_mut();
            (meta.annotations, meta.labels, meta.generate_name) = (None, None, None);
        }
        if let Some(trim) = &mut self.trim {
            trim(&mut object);
        }
        let object = Arc::new(object);
        match self.cache.insert(object.clone()) {
            None => Some(Delta::Added(object)),
            Some(old) if old.uid() != object.uid() => Some(Delta::Updated(old, object)),
            Some(old) if old.revision() == object.revision() => None,
            Some(old) => Some(Delta::Updated(old, object)),
        }
    }

    fn set_revision(&mut self, text: &str) {
        if let Ok(revision) = text.parse() {
            self.revision = revision;
            self.revision_text = text.to_owned();
            if self.owed.is_some_and(|owed| owed <= revision) {
                (self.owed, self.late) = (None, None);
            }
        }
    }
}

/// Whether a watch cannot go on from the revision that is known: the server has forgotten what came after it, or has never had it.
/// Who waited for that revision would hear nothing until it comes, and never of what was changed before.
fn must_list(error: &ApiError) -> bool {
    error.is_gone() || error.is_ahead()
}

/// Which object these words are about, by name and UID, if they say as much.
fn identity(text: &str) -> Option<(Key, String)> {
    let OnlyIdentity { metadata } = serde_json::from_str(text).ok()?;
    Some((Key::new(metadata.namespace, metadata.name), metadata.uid))
}

/// The words of a list, one object after the other, as a number.
fn digest_with(before: u64, item: &str) -> u64 {
    fnv1a(before.to_le_bytes().iter().chain(item.as_bytes()))
}

/// The same of a list in one piece; none when it is no list.
pub(crate) fn digest_of_list(reply: &ApiResponse) -> Option<u64> {
    let list: RawList<'_> = serde_json::from_slice(&reply.body).ok()?;
    Some(list.items.iter().flatten().fold(0, |digest, item| digest_with(digest, item.get())))
}

/// An informer whose type is forgotten, for those who host informers of many kinds.
pub(crate) trait AnyInformer: Send {
    fn start(&mut self, fx: &mut Effects<crate::Never>);
    /// None: not this one's input. Otherwise the changes, each an `Arc<Delta<K>>` behind `Any`.
    fn step_any(
        &mut self,
        now: Time,
        input: &Input<crate::Never>,
        fx: &mut Effects<crate::Never>,
    ) -> Option<Vec<Box<dyn Any>>>;
    fn awaits(&self) -> [Option<Awaited>; 2];
    fn all_as_added(&self) -> Vec<Box<dyn Any>>;
    fn stop(&mut self, fx: &mut Effects<crate::Never>);
    fn synced(&self) -> bool;
    fn revision(&self) -> u64;
    fn steady_since(&self) -> Option<Time>;
    fn digest(&self) -> Option<u64>;
    fn hurry(&mut self, fx: &mut Effects<crate::Never>);
    fn must_show(&mut self, now: Time, revision: u64, fx: &mut Effects<crate::Never>);
    fn caught_up(&self) -> bool;
    fn uid_of(&self, key: &Key) -> Option<String>;
    /// Whose change this is, if it is one that this informer told.
    fn key_of(&self, delta: &dyn Any) -> Option<Key>;
    fn pack_beyond(&mut self, most_open: usize);
    /// Asks for so many objects at a time; whether it takes the first of them for all, as a planted bug has it.
    fn list_by(&mut self, page: usize, first_alone: bool);
    fn rest(&mut self);
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<K: Object> AnyInformer for Informer<K> {
    fn start(&mut self, fx: &mut Effects<crate::Never>) {
        Self::start(self, fx);
    }
    fn step_any(
        &mut self,
        now: Time,
        input: &Input<crate::Never>,
        fx: &mut Effects<crate::Never>,
    ) -> Option<Vec<Box<dyn Any>>> {
        let deltas = self.step(now, input, fx)?;
        Some(deltas.into_iter().map(|d| Box::new(d) as Box<dyn Any>).collect())
    }
    fn awaits(&self) -> [Option<Awaited>; 2] {
        [Self::awaits(self), self.awaits_besides()]
    }
    fn all_as_added(&self) -> Vec<Box<dyn Any>> {
        self.cache.iter().map(|o| Box::new(Delta::Added(o.clone())) as Box<dyn Any>).collect()
    }
    fn stop(&mut self, fx: &mut Effects<crate::Never>) {
        Self::stop(self, fx);
    }
    fn synced(&self) -> bool {
        Self::synced(self)
    }
    fn revision(&self) -> u64 {
        Self::revision(self)
    }
    fn steady_since(&self) -> Option<Time> {
        Self::steady_since(self)
    }
    fn digest(&self) -> Option<u64> {
        self.digest
    }
    fn hurry(&mut self, fx: &mut Effects<crate::Never>) {
        Self::hurry(self, fx);
    }
    fn must_show(&mut self, now: Time, revision: u64, fx: &mut Effects<crate::Never>) {
        Self::must_show(self, now, revision, fx);
    }
    fn caught_up(&self) -> bool {
        Self::caught_up(self)
    }
    fn uid_of(&self, key: &Key) -> Option<String> {
        self.cache.get_key(key).map(|o| o.uid().to_owned())
    }
    fn key_of(&self, delta: &dyn Any) -> Option<Key> {
        delta.downcast_ref::<Delta<K>>().map(|delta| Key::of(delta.object().as_ref()))
    }
    fn pack_beyond(&mut self, most_open: usize) {
        self.cache.pack_beyond(most_open);
    }
    fn list_by(&mut self, page: usize, first_alone: bool) {
        (self.page, self.first_alone) = (page, first_alone);
    }
    fn rest(&mut self) {
        Self::rest(self);
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
