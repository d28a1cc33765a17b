//! A controller: which kinds it watches, and a pure reconcile.

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use carrack_types::resource::{Kind, Object, Resource};

use crate::{
    AnyInformer, ApiError, ApiRequest, ApiResponse, Cache, Delta, IndexFn, Informer, Key, Plan, Selector, StatusError,
    Time, Write,
};

/// A level-triggered controller. It keeps no state that matters between reconciles: whatever it
/// decides follows from the view.
pub trait Controller: Send {
    /// Its name, in logs and metrics.
    fn name(&self) -> &'static str;
    /// The component that its events are from, as `kubectl describe` shows it.
    fn event_source(&self) -> &'static str {
        self.name()
    }
    /// Says what it watches.
    fn setup(&self, setup: &mut Setup<'_>);
    /// Decides what to do about one key.
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan;
    /// Says that a write was refused, for good or until something changes: in events, and in the status of the key's
    /// object. The rest of the plan was dropped; what is returned here is written instead, and the key comes back with
    /// backoff. Conflicts and lost replies do not come here: looking again is the answer to those. Of a write that stands apart
    /// ([`Plan::each_apart`]) the rest goes on, and only events count of what is returned.
    fn refused(&mut self, _key: &Key, _view: &View<'_>, _refusal: &Refusal<'_>, _now: Time) -> Plan {
        Plan::none()
    }
    /// Not all was done that it planned for a key, or nobody knows whether it was; the key comes back. For a controller that
    /// remembers what it asked for because it cannot see whether that was done.
    fn undone(&mut self, _key: &Key) {}
    /// How long after the first failure a key comes back; after each further one in a row it is twice as long.
    fn first_retry(&self) -> Duration {
        crate::queue::FIRST_DELAY
    }
    /// It begins to lead: others may have acted before, and it was not asked to look meanwhile. Since when it has seen something is
    /// worth nothing any more, as after a restart.
    fn begin(&mut self) {}
    /// Kinds to watch that follow from what was seen (custom resources, for the garbage collector).
    /// Called after each change of a cache; the controller adds what is missing.
    fn more_watches(&mut self, _view: &View<'_>, _setup: &mut Setup<'_>) {}
}

/// A write that the API server refused, and its words.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// What was to be written: of what, and what that is called. What it was to become is known no more.
    pub write: &'a Write,
    /// Why it was not.
    pub error: &'a StatusError,
}

pub(crate) type MapFn = Box<dyn Fn(&dyn Any, &View<'_>) -> Vec<Key> + Send>;
pub(crate) type MakeInformer = Box<dyn FnOnce(crate::Rng) -> Box<dyn AnyInformer> + Send>;

/// Names an informer within a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The kind.
    pub resource: Resource,
    /// Which objects of it.
    pub selector: Selector,
    /// Whether only metadata is read, as [`carrack_types::resource::PartialObject`]s without labels and annotations.
    pub metadata_only: bool,
    /// How often it is listed, when it cannot be watched. None: it is watched.
    pub every: Option<Duration>,
}

impl Source {
    /// All objects of a typed kind.
    #[must_use]
    pub fn of<K: Kind>() -> Self {
        Self { resource: K::resource(), selector: Selector::all(), metadata_only: false, every: None }
    }
    /// All objects of a typed kind in one namespace.
    #[must_use]
    pub fn within<K: Kind>(namespace: &str) -> Self {
        let selector = Selector { namespace: namespace.to_owned(), ..Selector::all() };
        Self { selector, ..Self::of::<K>() }
    }
    /// The metadata of all objects of a resource.
    #[must_use]
    pub fn metadata(resource: Resource) -> Self {
        Self { resource, selector: Selector::all(), metadata_only: true, every: None }
    }
}

/// In the order of its fields, as it would be derived. Each change of an object has its source looked up several
/// times among dozens, so what tells two of them apart is looked for where it costs least.
impl Ord for Source {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.resource, &other.resource);
        in_order(&a.group, &b.group)
            .then_with(|| in_order(&a.version, &b.version))
            .then_with(|| in_order(&a.plural, &b.plural))
            .then_with(|| in_order(&a.kind, &b.kind))
            .then_with(|| a.namespaced.cmp(&b.namespaced))
            .then_with(|| in_order(&self.selector.namespace, &other.selector.namespace))
            .then_with(|| in_order(&self.selector.labels, &other.selector.labels))
            .then_with(|| in_order(&self.selector.fields, &other.selector.fields))
            .then_with(|| self.metadata_only.cmp(&other.metadata_only))
            .then_with(|| self.every.cmp(&other.every))
    }
}

impl PartialOrd for Source {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order of two texts, of which most are one constant, or so short that to call for a comparison costs more than
/// to look, or differ in how they begin.
fn in_order(a: &str, b: &str) -> Ordering {
    const SHORT: usize = 3;
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() == b.len() && std::ptr::eq(a.as_ptr(), b.as_ptr()) {
        return Ordering::Equal;
    }
    if a.len().min(b.len()) <= SHORT {
        return a.iter().cmp(b);
    }
    a.first().cmp(&b.first()).then_with(|| a.cmp(b))
}

/// What a controller asked to watch.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) informers: BTreeMap<Source, MakeInformer>,
    pub(crate) maps: Vec<(Source, MapFn)>,
    /// What informers become, of kinds that are watched whole: with another index, or trimmed.
    pub(crate) adjustments: Vec<(Source, Adjust)>,
    pub(crate) dropped: Vec<Source>,
    pub(crate) hurried: Vec<Source>,
}
pub(crate) type Adjust = Box<dyn FnOnce(&mut dyn AnyInformer) + Send>;

/// Collects what a controller watches.
pub struct Setup<'a> {
    pub(crate) existing: &'a BTreeMap<Source, Box<dyn AnyInformer>>,
    pub(crate) parts: Parts,
}

impl Setup<'_> {
    /// Watches all objects of a kind. `keys` says what to reconcile when one changes; it is called
    /// with the object as it was and as it is.
    pub fn watch<K: Kind>(&mut self, keys: impl Fn(&K, &View<'_>) -> Vec<Key> + Send + 'static) {
        self.watch_source(Source::of::<K>(), keys);
    }
    /// Watches a kind and reconciles each object under its own key.
    pub fn watch_own<K: Kind>(&mut self) {
        self.watch::<K>(|o, _| vec![Key::of(o)]);
    }
    /// Watches a kind and reconciles the owner of each object whose controlling owner is an `O`.
    pub fn watch_owned<K: Kind, O: Kind>(&mut self) {
        let owner = O::resource();
        self.watch::<K>(move |o, _| {
            o.meta()
                .owner_references
                .iter()
                .flatten()
                .filter(|r| r.controller == Some(true) && r.kind == owner.kind)
                .filter(|r| r.api_version.rsplit_once('/').map_or("", |(g, _)| g) == owner.group)
                .map(|r| Key::new(if owner.namespaced { o.namespace() } else { "" }, r.name.clone()))
                .collect()
        });
    }
    /// Reads a kind into the view without reconciling anything when it changes.
    pub fn read<K: Kind>(&mut self) {
        self.watch::<K>(|_, _| Vec::new());
    }
    /// Watches a source. All who watch the same source must read it as the same type.
    pub fn watch_source<K: Object>(
        &mut self,
        source: Source,
        keys: impl Fn(&K, &View<'_>) -> Vec<Key> + Send + 'static,
    ) {
        self.watch_changes::<K>(source, |_, _| true, keys);
    }
    /// Like [`Self::watch_source`], for a controller to which few changes matter: nobody looks at an object because of one
    /// that does not, by the object as it was and as it is.
    pub fn watch_changes<K: Object>(
        &mut self,
        source: Source,
        matters: impl Fn(&K, &K) -> bool + Send + 'static,
        keys: impl Fn(&K, &View<'_>) -> Vec<Key> + Send + 'static,
    ) {
        if !self.existing.contains_key(&source) && !self.parts.informers.contains_key(&source) {
            let s = source.clone();
            self.parts.informers.insert(
                source.clone(),
                Box::new(move |rng| {
                    let mut informer = Informer::<K>::new(s.resource, s.selector, rng);
                    if s.metadata_only {
                        informer = informer.metadata_only();
                    }
                    if let Some(every) = s.every {
                        informer = informer.listed_every(every);
                    }
                    Box::new(informer)
                }),
            );
        }
        self.parts.maps.push((
            source,
            Box::new(move |any, view| {
                let Some(delta) = any.downcast_ref::<Delta<K>>() else { return Vec::new() };
                match delta {
                    Delta::Added(o) | Delta::Removed(o) => keys(o, view),
                    Delta::Updated(old, new) if !matters(old, new) => Vec::new(),
                    Delta::Updated(old, new) => {
                        let mut k = keys(new, view);
                        for key in keys(old, view) {
                            if !k.contains(&key) {
                                k.push(key);
                            }
                        }
                        k
                    }
                }
            }),
        ));
    }
    /// Stops reading a source whose kind is gone. Other controllers that read it lose it, too.
    pub fn drop_source(&mut self, source: Source) {
        self.parts.dropped.push(source);
    }
    /// Lists a source again now that is not watched: something else tells that it has changed.
    pub fn hurry(&mut self, source: Source) {
        self.parts.hurried.push(source);
    }
    /// Leaves out of each object of a kind that is watched whole what this takes out of it. All who read the kind see it so, and
    /// none of them may write it back whole.
    pub fn trim<K: Kind>(&mut self, trim: fn(&mut K)) {
        self.adjust::<K>(move |informer| informer.trim_by(trim));
    }
    /// Files the objects of a kind that is watched whole by their labels ([`Cache::labelled`]).
    pub fn index_labels<K: Kind>(&mut self) {
        self.adjust::<K>(Informer::index_labels);
    }
    /// Adds an index to the cache of a kind that this controller watches whole.
    pub fn index<K: Kind>(&mut self, name: &'static str, of: IndexFn<K>) {
        self.adjust::<K>(move |informer| informer.add_index(name, of));
    }
    /// Keeps all objects of a kind that is watched whole as values: this controller goes through all of them again and again, and would
    /// open each anew every time.
    pub fn keep_open<K: Kind>(&mut self) {
        self.adjust::<K>(Informer::keep_open);
    }
    fn adjust<K: Kind>(&mut self, with: impl FnOnce(&mut Informer<K>) + Send + 'static) {
        self.parts.adjustments.push((
            Source::of::<K>(),
            Box::new(|informer| {
                if let Some(informer) = informer.as_any_mut().downcast_mut::<Informer<K>>() {
                    with(informer);
                }
            }),
        ));
    }
}

/// What reads were answered, by the paths of their requests.
pub(crate) type Answers = BTreeMap<String, Result<ApiResponse, ApiError>>;
/// Those of who has asked for nothing.
static NO_ANSWERS: Answers = BTreeMap::new();

/// What is known of the cluster: the caches, and what was read for this decision alone.
pub struct View<'a> {
    pub(crate) informers: &'a BTreeMap<Source, Box<dyn AnyInformer>>,
    pub(crate) answers: &'a Answers,
}

impl<'a> View<'a> {
    /// The caches alone.
    pub(crate) fn of(informers: &'a BTreeMap<Source, Box<dyn AnyInformer>>) -> Self {
        Self { informers, answers: &NO_ANSWERS }
    }
}

impl View<'_> {
    /// What a read was answered that this decision has asked for ([`Plan::ask`]); none while it has not.
    #[must_use]
    pub fn answer(&self, request: &ApiRequest) -> Option<&Result<ApiResponse, ApiError>> {
        self.answers.get(&request.path)
    }
    /// The cache of a kind that is watched whole.
    ///
    /// # Panics
    /// When the controller's setup does not watch this kind: its setup and its reconcile disagree.
    #[must_use]
    #[expect(clippy::panic, reason = "a broken invariant of the program itself; nothing outside can cause it")]
    pub fn cache<K: Kind>(&self) -> &Cache<K> {
        self.cache_of(&Source::of::<K>()).unwrap_or_else(|| panic!("{} is read but not watched", K::resource()))
    }
    /// The cache of a source, if it is read.
    #[must_use]
    pub fn cache_of<K: Object>(&self, source: &Source) -> Option<&Cache<K>> {
        self.informers.get(source)?.as_any().downcast_ref::<Informer<K>>().map(Informer::cache)
    }
    /// Whether a source is read and has been listed whole.
    #[must_use]
    pub fn synced(&self, source: &Source) -> bool {
        self.informers.get(source).is_some_and(|i| i.synced())
    }
    /// Since when a source has been read without a break: before that, things may have happened that nobody could have
    /// told, and silence means nothing. None while nothing is heard at all.
    #[must_use]
    pub fn steady_since(&self, source: &Source) -> Option<Time> {
        self.informers.get(source)?.steady_since()
    }
    /// How new the cache of a kind is: the revision that it shows everything up to. Revisions of all kinds count the writes
    /// of one store.
    #[must_use]
    pub fn revision<K: Kind>(&self) -> u64 {
        self.informers.get(&Source::of::<K>()).map_or(0, |i| i.revision())
    }
    /// The same of a source; 0 for one that is not read.
    #[must_use]
    pub fn revision_of(&self, source: &Source) -> u64 {
        self.informers.get(source).map_or(0, |i| i.revision())
    }
    /// One object.
    #[must_use]
    pub fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<&std::sync::Arc<K>> {
        self.cache::<K>().get(namespace, name)
    }
    /// The words in which a source that is not watched was last told, as a number: what rests on all of it can be confirmed by
    /// it ([`Plan::confirm_same`]). None while it has not been read whole.
    #[must_use]
    pub fn digest_of(&self, source: &Source) -> Option<u64> {
        self.informers.get(source)?.digest()
    }
    /// The caches of all sources that are read as this type.
    pub fn caches<K: Object>(&self) -> impl Iterator<Item = (&Source, &Cache<K>)> {
        self.informers
            .iter()
            .filter_map(|(source, i)| Some((source, i.as_any().downcast_ref::<Informer<K>>()?.cache())))
    }
    /// The sources that are read.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.informers.keys()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What its order would be if it were derived.
    fn fields(source: &Source) -> impl Ord + use<> {
        let Source { resource, selector, metadata_only, every } = source.clone();
        (resource, selector, metadata_only, every)
    }

    fn source() -> impl Strategy<Value = Source> {
        let text = || prop::sample::select(vec!["", "a", "ab", "abc", "abcd", "abce", "v1", "v1beta1"]);
        (text(), text(), text(), text(), any::<[bool; 2]>(), [text(), text(), text()], 0_u64..3).prop_map(
            |(group, version, plural, kind, [namespaced, metadata_only], [namespace, labels, fields], every)| Source {
                resource: Resource {
                    group: group.into(),
                    version: version.into(),
                    plural: plural.into(),
                    kind: kind.into(),
                    namespaced,
                },
                selector: Selector { namespace: namespace.into(), labels: labels.into(), fields: fields.into() },
                metadata_only,
                every: every.checked_sub(1).map(Duration::from_secs),
            },
        )
    }

    proptest! {
        /// However it is compared, it is the order of its fields: in it controllers' watches begin.
        #[test]
        fn sources_are_in_the_order_of_their_fields(a in source(), b in source()) {
            prop_assert_eq!(a.cmp(&b), fields(&a).cmp(&fields(&b)));
            prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
            prop_assert_eq!(a.cmp(&a), Ordering::Equal);
        }

        /// Texts of all lengths, with and without a beginning in common.
        #[test]
        fn texts_are_in_their_order(a in "[ab]{0,6}", b in "[ab]{0,6}") {
            prop_assert_eq!(in_order(&a, &b), a.cmp(&b));
        }
    }
}
