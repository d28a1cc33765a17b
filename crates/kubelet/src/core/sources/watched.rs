//! Config maps and secrets, each watched by itself for as long as a pod that refers to it goes on: upstream's
//! `WatchBasedManager` (`pkg/kubelet/util/manager/watch_based_manager.go`).
//!
//! ```text
//!  first pod refers to it ─▶ listed and watched, by its name ─▶ what is seen ─▶ its pods are looked at
//!                                        │ immutable, or no pod refers to it any more
//!                                        └─▶ not watched
//! ```
//!
//! What it costs follows from the pods of the node, not from the namespaces that they are in, and the node authorizer
//! lets a kubelet watch exactly these. A watch that breaks is resumed or listed anew by its informer; meanwhile what
//! was seen last counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::{Awaited, Informer, Input, Rng, Selector, Time};
use carrack_types::resource::{Kind, Object};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::{SourceKey, Value};
use crate::core::Fx;
use crate::effects::In;

/// What is new about an object.
pub(super) enum News {
    /// Nothing.
    None,
    /// It is like this, or surely absent. `stays` says that it can never be otherwise.
    Seen { value: Value, stays: bool },
    /// It could not be read.
    Failed(String),
}

/// The informer of one object, whatever its kind is.
trait Follow: Send {
    fn start(&mut self, fx: &mut Fx);
    fn stop(&mut self, fx: &mut Fx);
    fn step(&mut self, now: Time, input: &Input<In>, fx: &mut Fx) -> News;
    fn awaits(&self) -> Option<Awaited>;
}

struct Followed<K> {
    informer: Informer<K>,
    value: fn(Option<Arc<K>>) -> Value,
    /// Whether it can never change.
    stays: fn(&K) -> bool,
}

impl<K: Object> Follow for Followed<K> {
    fn start(&mut self, fx: &mut Fx) {
        self.informer.start(fx);
    }

    fn stop(&mut self, fx: &mut Fx) {
        self.informer.stop(fx);
    }

    fn step(&mut self, now: Time, input: &Input<In>, fx: &mut Fx) -> News {
        let before = (self.informer.synced(), self.informer.failure().map(str::to_owned));
        let changed = self.informer.step(now, input, fx).is_some_and(|deltas| !deltas.is_empty());
        if let Some(failure) = self.informer.failure().filter(|_| !changed) {
            return if before.1.as_deref() == Some(failure) { News::None } else { News::Failed(failure.to_owned()) };
        }
        // Before the first complete list nothing says that it is absent.
        if !self.informer.synced() || (!changed && before == (true, None)) {
            return News::None;
        }
        let object = self.informer.cache().iter().next().cloned();
        let stays = object.as_deref().is_some_and(self.stays);
        News::Seen { value: (self.value)(object), stays }
    }

    fn awaits(&self) -> Option<Awaited> {
        self.informer.awaits()
    }
}

fn of_one<K: Kind + Object>(
    namespace: &str,
    name: &str,
    rng: Rng,
    value: fn(Option<Arc<K>>) -> Value,
    stays: fn(&K) -> bool,
) -> Box<dyn Follow> {
    let only = Selector { namespace: namespace.to_owned(), ..Selector::fields(format!("metadata.name={name}")) };
    Box::new(Followed { informer: Informer::new(K::resource(), only, rng), value, stays })
}

/// The watches of all objects that are watched.
pub(super) struct Watches {
    rng: Rng,
    of: BTreeMap<SourceKey, Box<dyn Follow>>,
    /// Whose each input is.
    awaited: BTreeMap<Awaited, SourceKey>,
}

impl Watches {
    pub fn new(rng: Rng) -> Self {
        Self { rng, of: BTreeMap::new(), awaited: BTreeMap::new() }
    }

    /// Whether objects of this kind are watched.
    pub fn covers(key: &SourceKey) -> bool {
        matches!(key, SourceKey::ConfigMap { .. } | SourceKey::Secret { .. })
    }

    /// Watches an object from now on.
    pub fn begin(&mut self, key: &SourceKey, fx: &mut Fx) {
        if self.of.contains_key(key) {
            return;
        }
        let mut one = match key {
            SourceKey::ConfigMap { namespace, name } => {
                let rng = self.rng.fork(&format!("configmap {namespace}/{name}"));
                of_one::<ConfigMap>(namespace, name, rng, Value::ConfigMap, |c| c.immutable == Some(true))
            }
            SourceKey::Secret { namespace, name } => {
                let rng = self.rng.fork(&format!("secret {namespace}/{name}"));
                of_one::<Secret>(namespace, name, rng, Value::Secret, |s| s.immutable == Some(true))
            }
            _ => return,
        };
        one.start(fx);
        self.awaited.extend(one.awaits().map(|awaited| (awaited, key.clone())));
        self.of.insert(key.clone(), one);
    }

    /// Watches an object no more.
    pub fn end(&mut self, key: &SourceKey, fx: &mut Fx) {
        if let Some(mut one) = self.of.remove(key) {
            if let Some(awaited) = one.awaits() {
                self.awaited.remove(&awaited);
            }
            one.stop(fx);
        }
    }

    /// Takes an input if it is about one of the objects.
    pub fn step(&mut self, now: Time, input: &Input<In>, fx: &mut Fx) -> Option<(SourceKey, News)> {
        let awaited = Awaited::of(input)?;
        let key = self.awaited.remove(&awaited)?;
        let one = self.of.get_mut(&key)?;
        let news = one.step(now, input, fx);
        self.awaited.extend(one.awaits().map(|awaited| (awaited, key.clone())));
        Some((key, news))
    }
}
