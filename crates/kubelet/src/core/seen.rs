//! What the API shows of the node's pods, as it changes.

use std::sync::Arc;

use carrack_engine::Delta;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::KubeletCore;
use super::worker::Worker;
use crate::runtime::{Uid, is_uid};
use crate::spec::{manifest, pod};

impl KubeletCore {
    /// UIDs of the pods of which it is known that they are gone from the API or are to go, in this life or by the record.
    pub fn going(&self) -> impl Iterator<Item = &Uid> {
        self.workers.iter().filter(|(_, w)| w.deleted || w.pod.is_deleting()).map(|(uid, _)| uid)
    }

    /// What is new of a pod in the API.
    pub(super) fn pod_changed(&mut self, delta: &Delta<Pod>) {
        let object = delta.object();
        if let Delta::Updated(old, _) = delta
            && manifest::mirrored(old).is_some()
        {
            self.mirror_changed(old, pod::uid(old) != pod::uid(object));
        }
        if manifest::mirrored(object).is_some() {
            self.mirror_changed(object, matches!(delta, Delta::Removed(_)));
            return;
        }
        let uid = pod::uid(object);
        self.publish = true;
        self.dirty.insert(uid.clone());
        match delta {
            Delta::Removed(old) => {
                if let Some(w) = self.workers.get_mut(&uid) {
                    w.deleted = true;
                    w.confirmed = true;
                    if old.revision() > w.pod.revision() {
                        w.take(old.clone(), self.resizes.allocated.get(&uid));
                    }
                }
            }
            Delta::Added(new) => self.pod_seen(new),
            Delta::Updated(old, new) => {
                // The name was taken over by another pod between two looks.
                let old_uid = pod::uid(old);
                if old_uid != uid {
                    if let Some(w) = self.workers.get_mut(&old_uid) {
                        w.deleted = true;
                        w.confirmed = true;
                    }
                    self.dirty.insert(old_uid);
                }
                self.pod_seen(new);
            }
        }
    }

    fn pod_seen(&mut self, new: &Arc<Pod>) {
        let uid = pod::uid(new);
        if !is_uid(&uid) {
            tracing::error!(pod = %pod::pod_ref(new), "the pod is left alone: its UID is not to be a part of a path");
            return;
        }
        let w = self.workers.entry(uid.clone()).or_insert_with(|| Worker::new(new.clone()));
        w.confirmed = true;
        // Our own write may have shown us a newer one already.
        if new.revision() >= w.pod.revision() {
            self.resizes.asked(&w.desired, new);
            w.take(new.clone(), self.resizes.allocated.get(&uid));
        }
    }
}
