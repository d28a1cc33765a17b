//! What is heard of the cluster, and whom it may help.

use std::sync::Arc;

use carrack_engine::{Delta, Effects, Time};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Node;

use super::watch::{News, follow};
use super::{Ask, Planted, Scheduler};
use crate::cluster::Objects;
use crate::{Event, NodeChange, Pod, PodInfo, Seat};

impl Scheduler {
    pub(super) fn heard(&mut self, now: Time, news: News, fx: &mut Effects<Ask>) {
        let objects = &mut self.decider.cluster.objects;
        let event = match news {
            News::Pod(deltas) => return deltas.iter().for_each(|delta| self.pod_changed(now, delta, fx)),
            News::Node(deltas) => return deltas.iter().for_each(|delta| self.node_changed(now, delta, fx)),
            News::PersistentVolumeClaim(deltas) => {
                let names: Vec<_> = deltas.iter().map(|delta| follow(&mut objects.claims, delta)).collect();
                for name in &names {
                    self.happened(now, Event::Claim(name.clone()));
                }
                return names.iter().for_each(|name| self.claim_changed(now, name, fx));
            }
            News::PersistentVolume(deltas) => {
                deltas.iter().for_each(|delta| drop(follow(&mut objects.volumes, delta)));
                self.happened(now, Event::Volume);
                return deltas.iter().for_each(|delta| self.volume_changed(now, delta, fx));
            }
            News::StorageClass(deltas) => {
                deltas.iter().for_each(|delta| drop(follow(&mut objects.classes, delta)));
                Event::Volume
            }
            News::CSINode(deltas) => {
                deltas.iter().for_each(|delta| drop(follow(&mut objects.csi_nodes, delta)));
                Event::Csi
            }
            News::VolumeAttachment(deltas) => {
                let mut gone = false;
                for delta in &deltas {
                    let (attachment, map) = (delta.object(), &mut objects.attachments);
                    let key = Objects::attachment_key(attachment);
                    match delta {
                        Delta::Removed(_) => gone |= map.remove(&key).is_some(),
                        Delta::Added(_) => drop(map.insert(key, attachment.clone())),
                        Delta::Updated(old, _) => {
                            // One of the name may be another one, at another node.
                            let before = Objects::attachment_key(old);
                            if before != key {
                                gone |= map.remove(&before).is_some();
                            }
                            map.insert(key, attachment.clone());
                        }
                    }
                }
                if !gone {
                    return;
                }
                Event::Detached
            }
            News::CSIDriver(deltas) => {
                deltas.iter().for_each(|delta| drop(follow(&mut objects.drivers, delta)));
                Event::Csi
            }
            News::CSIStorageCapacity(deltas) => {
                deltas.iter().for_each(|delta| drop(follow(&mut objects.capacities, delta)));
                Event::Csi
            }
            News::PodDisruptionBudget(deltas) => {
                for delta in &deltas {
                    follow(&mut objects.budgets, delta);
                    objects.budgets_version += 1;
                }
                return;
            }
            // They decide about the scores of pods to come only.
            News::Service(deltas) => return deltas.iter().for_each(|d| drop(follow(&mut objects.services, d))),
            News::ReplicationController(deltas) => {
                return deltas.iter().for_each(|d| drop(follow(&mut objects.replication_controllers, d)));
            }
            News::ReplicaSet(deltas) => return deltas.iter().for_each(|d| drop(follow(&mut objects.replica_sets, d))),
            News::StatefulSet(deltas) => {
                return deltas.iter().for_each(|d| drop(follow(&mut objects.stateful_sets, d)));
            }
            News::Namespace(deltas) => {
                for delta in &deltas {
                    let object = delta.object();
                    let labels = (!matches!(delta, Delta::Removed(_)))
                        .then(|| object.metadata.labels.clone().unwrap_or_default());
                    self.decider.cluster.set_namespace(object.name(), labels);
                }
                Event::Namespace
            }
        };
        self.happened(now, event);
    }

    pub(super) fn happened(&mut self, now: Time, event: Event) {
        if self.planted_bug == Some(Planted::DeafQueue) && event.room_of().is_some() {
            return;
        }
        let (name, stopwatch) = (event.name(), self.decider.laps.stopwatch);
        let begun = stopwatch();
        self.queue.happened(event, now, &self.decider.cluster);
        self.metrics.told_of(name, stopwatch().saturating_sub(begun));
    }

    fn pod_changed(&mut self, now: Time, delta: &Delta<Pod>, fx: &mut Effects<Ask>) {
        let pod = match delta {
            Delta::Added(pod) => pod,
            Delta::Updated(old, pod) => {
                if old.uid() != pod.uid() {
                    self.pod_gone(now, old.uid());
                }
                pod
            }
            Delta::Removed(pod) => {
                self.told.forget(&super::path_of(pod));
                return self.pod_gone(now, pod.uid());
            }
        };
        let uid = pod.uid();
        if self.vanished.contains(uid) {
            return;
        }
        if pod.ended {
            self.doomed.remove(uid);
        }
        if !pod.node.is_empty() {
            self.pod_bound(now, pod, fx);
        } else if let Some(flight) = self.flights.get_mut(uid) {
            // Its owner is the flight; what else changes about it is seen should it come back.
            flight.latest = Some(pod.clone());
            if pod.is_deleting() || pod.ended {
                self.drop_pod(now, uid);
            }
        } else if pod.is_deleting() || pod.ended {
            self.drop_pod(now, uid);
        } else if let Some(profile) = self.profile(pod).cloned() {
            if let Some(planted) = &mut self.planted
                && self.queue.get(uid).is_some_and(|row| matches!(row.place, crate::Place::InFlight { .. }))
            {
                planted.updated_in_flight(uid);
            }
            let info = self.decider.cluster.read(pod.clone());
            let kept = self.queue.get(uid).and_then(|row| Some((row.pod.clone(), row.nominated.clone()?)));
            self.queue.set(info.clone(), profile, now);
            // Perhaps less is kept for it than was, or nothing there any more.
            let now_kept = self.queue.get(uid).and_then(|row| row.nominated.clone());
            let differs = |(before, node): &(Arc<PodInfo>, Arc<str>)| {
                before.shape != info.shape || now_kept.as_ref() != Some(node)
            };
            if let Some((before, node)) = kept.filter(differs) {
                self.happened(now, Event::PodGone(before, node));
            }
            if let Some(words) = self.told.take_unsaid(uid) {
                self.say_again(now, words, fx);
            }
        } else {
            self.dequeue(now, uid);
        }
    }

    /// A pod waits no more. Room that was kept for it is free for others.
    fn dequeue(&mut self, now: Time, uid: &str) {
        self.told.take_unsaid(uid);
        if let Some(row) = self.queue.remove(uid)
            && let Some(node) = row.nominated
        {
            self.happened(now, Event::PodGone(row.pod, node));
        }
    }

    fn pod_bound(&mut self, now: Time, pod: &Arc<Pod>, fx: &mut Effects<Ask>) {
        self.dequeue(now, pod.uid());
        self.told.placed(pod);
        if let Some(flight) = self.flights.remove(pod.uid()) {
            self.confirmed(now, flight, pod, fx);
        }
        self.seat(now, pod);
    }

    /// A pod is counted where it is bound, and nowhere else.
    pub(super) fn seat(&mut self, now: Time, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let before = self.decider.cluster.pod(uid).cloned();
        let node: Arc<str> = self.decider.cluster.node_of(uid).unwrap_or_default().into();
        if !self.decider.cluster.set_pod(pod) {
            return;
        }
        match (before, self.decider.cluster.pod(uid).map(|seat| seat.info.clone())) {
            (Some(Seat { info, .. }), None) => self.happened(now, Event::PodGone(info, node)),
            (Some(Seat { info: before, .. }), Some(after)) if *node == *pod.node => {
                self.happened(now, Event::PodChanged(before, after, node));
            }
            (before, Some(info)) => {
                if let Some(Seat { info, .. }) = before {
                    self.happened(now, Event::PodGone(info, node));
                }
                self.happened(now, Event::PodPlaced(info));
            }
            (None, None) => {}
        }
    }

    fn pod_gone(&mut self, now: Time, uid: &str) {
        self.doomed.remove(uid);
        self.vanished.remove(uid);
        self.drop_pod(now, uid);
    }

    /// A pod is nobody's any more.
    pub(super) fn drop_pod(&mut self, now: Time, uid: &str) {
        if let Some(planted) = &mut self.planted {
            planted.forget(uid);
        }
        self.dequeue(now, uid);
        if let Some(flight) = self.flights.remove(uid) {
            self.release_volumes(now, &flight);
        }
        self.unseat(now, uid);
    }

    /// A pod takes nothing of its node any more.
    pub(super) fn unseat(&mut self, now: Time, uid: &str) {
        let node: Option<Arc<str>> = self.decider.cluster.node_of(uid).map(Arc::from);
        if let (Some(seat), Some(node)) = (self.decider.cluster.remove_pod(uid), node) {
            self.happened(now, Event::PodGone(seat.info, node));
        }
    }

    fn node_changed(&mut self, now: Time, delta: &Delta<Node>, fx: &mut Effects<Ask>) {
        let cluster = &mut self.decider.cluster;
        let (node, change): (_, NodeChange) = match delta {
            Delta::Added(node) | Delta::Updated(_, node) => (node, cluster.set_node(node.clone())),
            Delta::Removed(node) => {
                cluster.remove_node(node.name());
                self.happened(now, Event::NodeGone(node.name().into()));
                return self.node_gone(now, node.name(), fx);
            }
        };
        // A heartbeat helps nobody.
        if change.matters() {
            self.happened(now, Event::Node(node.name().into(), change));
        }
    }
}
