//! Caches filled by hand, to ask a controller's reconcile what it would do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::resource::{Kind, Object, PartialObject, Resource};

use crate::controller::Answers;
use crate::{AnyInformer, ApiError, ApiResponse, Controller, IndexFn, Informer, Key, Parts, Rng, Setup, Source, View};

/// Caches of a test.
#[derive(Default)]
pub struct Caches {
    informers: BTreeMap<Source, Box<dyn AnyInformer>>,
    answers: Answers,
}

impl Caches {
    /// No caches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds objects of a kind; with none, an empty cache of it.
    #[must_use]
    pub fn with<K: Kind>(self, objects: impl IntoIterator<Item = K>) -> Self {
        self.with_source(Source::of::<K>(), objects)
    }
    /// Adds metadata of objects of a resource.
    #[must_use]
    pub fn with_metadata(self, resource: Resource, objects: impl IntoIterator<Item = PartialObject>) -> Self {
        self.with_source(Source::metadata(resource), objects)
    }
    /// Adds an index to the cache of a kind, as the controller's setup would.
    #[must_use]
    pub fn with_index<K: Kind>(mut self, name: &'static str, of: IndexFn<K>) -> Self {
        self = self.with_source::<K>(Source::of::<K>(), []);
        if let Some(informer) = self.informers.get_mut(&Source::of::<K>()).and_then(|i| downcast::<K>(i.as_mut())) {
            informer.add_index(name, of);
        }
        self
    }
    /// Adds objects of a source.
    #[must_use]
    pub fn with_source<K: Object>(mut self, source: Source, objects: impl IntoIterator<Item = K>) -> Self {
        let informer = self.informers.entry(source).or_insert_with_key(|source| {
            let informer = Informer::<K>::new(source.resource.clone(), source.selector.clone(), Rng::new(0));
            Box::new(match source.every {
                Some(every) => informer.listed_every(every),
                None => informer,
            })
        });
        if let Some(informer) = downcast::<K>(informer.as_mut()) {
            informer.fill(objects.into_iter().map(Arc::new));
        }
        self
    }
    /// Adds what a read is answered, by the path of its request ([`crate::Plan::ask`]).
    #[must_use]
    pub fn answering(mut self, path: impl Into<String>, answer: Result<ApiResponse, ApiError>) -> Self {
        self.answers.insert(path.into(), answer);
        self
    }
    /// Lets a controller look for kinds to watch, as a manager would after a change. What it asks for is not read.
    pub fn refresh(&self, controller: &mut dyn Controller) {
        let mut setup = Setup { existing: &self.informers, parts: Parts::default() };
        controller.more_watches(&self.view(), &mut setup);
    }
    /// The keys that a controller looks at when the objects of a kind come. Indexes are only those that were added here.
    #[must_use]
    pub fn keys_for<K: Kind>(&self, controller: &dyn Controller) -> BTreeSet<Key> {
        let mut setup = Setup { existing: &self.informers, parts: Parts::default() };
        controller.setup(&mut setup);
        let source = Source::of::<K>();
        let deltas = self.informers.get(&source).map(|informer| informer.all_as_added()).unwrap_or_default();
        let maps = setup.parts.maps.iter().filter(|(of, _)| *of == source);
        maps.flat_map(|(_, map)| deltas.iter().flat_map(|delta| map(delta.as_ref(), &self.view()))).collect()
    }
    /// What a reconcile sees.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { informers: &self.informers, answers: &self.answers }
    }
}

fn downcast<K: Object>(informer: &mut dyn AnyInformer) -> Option<&mut Informer<K>> {
    informer.as_any_mut().downcast_mut()
}
