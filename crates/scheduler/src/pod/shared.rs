//! What many pods have in common, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Pod, Spec, Unplaced};
use crate::tables::Labels;

/// So many specs and sets of labels are kept at least before those that nobody has any more are looked for.
pub(super) const LEAST: usize = 256;

/// Specs and labels of the pods that are there, and why they wait.
#[derive(Debug, Default)]
pub struct Shared {
    specs: BTreeMap<Arc<[u8]>, Arc<Spec>>,
    labels: BTreeSet<Arc<Labels>>,
    unplaced: BTreeSet<Arc<Unplaced>>,
    /// When there are so many, those that nobody has any more go.
    swept_at: usize,
    whole: bool,
}

impl Shared {
    /// With `whole`, pods are also kept as they were read, without who owns which of their fields.
    #[must_use]
    pub fn new(whole: bool) -> Self {
        Self { whole, ..Self::default() }
    }

    /// Gives a pod that was just read what others have already, and takes away what nobody looks at.
    pub fn share(&mut self, pod: &mut Pod) {
        match self.specs.get(&pod.spec.bytes) {
            Some(spec) => pod.spec = spec.clone(),
            None => drop(self.specs.insert(pod.spec.bytes.clone(), pod.spec.clone())),
        }
        match self.labels.get(&pod.labels) {
            Some(labels) => pod.labels = labels.clone(),
            None => drop(self.labels.insert(pod.labels.clone())),
        }
        if let Some(why) = pod.unplaced.take() {
            pod.unplaced = Some(match self.unplaced.get(&why) {
                Some(known) => known.clone(),
                None => {
                    self.unplaced.insert(why.clone());
                    why
                }
            });
        }
        if self.whole {
            pod.whole = pod.whole.take().map(without_managed_fields);
        } else {
            pod.whole = None;
            pod.metadata.annotations = None;
        }
        self.sweep();
    }

    /// How many specs, sets of labels and reasons to wait there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.specs.len() + self.labels.len() + self.unplaced.len()
    }

    fn sweep(&mut self) {
        if self.count() < self.swept_at.max(LEAST) {
            return;
        }
        self.specs.retain(|_, spec| Arc::strong_count(spec) > 1);
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        self.unplaced.retain(|why| Arc::strong_count(why) > 1);
        self.swept_at = 2 * self.count();
    }
}

fn without_managed_fields(whole: Box<RawValue>) -> Box<RawValue> {
    // It was read before, and is written as it was.
    let Ok(mut value) = serde_json::from_str::<Value>(whole.get()) else { return whole };
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    match metadata.and_then(|metadata| metadata.remove("managedFields")) {
        Some(_) => serde_json::value::to_raw_value(&value).unwrap_or(whole),
        None => whole,
    }
}
