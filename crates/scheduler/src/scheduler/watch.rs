//! What the scheduler watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::{Delta, Effects, Informer, Input, Rng, Selector, Time};
use carrack_types::resource::{Kind, Object};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use crate::cluster::{ObjectName, name_of};
use crate::extender::Extender;
use crate::pod::{Pod, Shared};
use crate::trim;

macro_rules! informers {
    ($($field:ident: $kind:ident),* $(,)?) => {
        /// One informer a kind.
        pub struct Informers {
            $($field: Informer<$kind>),*
        }
        /// Changes of one kind.
        pub enum News {
            $(
                #[doc = concat!("Of ", stringify!($kind), ".")]
                $kind(Vec<Delta<$kind>>)
            ),*
        }
        impl Informers {
            fn of_all(rng: &Rng) -> Self {
                Self {
                    $($field: Informer::new($kind::resource(), Selector::all(), rng.fork(stringify!($field)))),*
                }
            }
            pub fn start<F>(&mut self, fx: &mut Effects<F>) {
                $(self.$field.start(fx);)*
            }
            /// Whether all of them have seen a complete list.
            pub fn synced(&self) -> bool {
                $(self.$field.synced())&&*
            }
            /// Takes an input if it is for one of them.
            pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> Option<News> {
                $(
                    if let Some(deltas) = self.$field.step(now, input, fx) {
                        return Some(News::$kind(deltas));
                    }
                )*
                None
            }
        }
    };
}

impl Informers {
    /// Informers that have not started. Whole pods and nodes are kept where extenders are shown them, else what plugins look at.
    pub fn new(rng: &Rng, extenders: &[Extender]) -> Self {
        let mut all = Self::of_all(rng);
        let mut shared = Shared::new(!extenders.is_empty());
        all.pods = all.pods.trimmed_by(move |pod| shared.share(pod));
        if extenders.iter().all(|extender| extender.node_cache_capable) {
            all.nodes = all.nodes.trimmed_by(trim::node);
        }
        all.replica_sets = all.replica_sets.trimmed_by(trim::replica_set);
        all.stateful_sets = all.stateful_sets.trimmed_by(trim::stateful_set);
        all.replication_controllers = all.replication_controllers.trimmed_by(trim::replication_controller);
        all
    }
    /// From now on they have caught up only when all is known that was written up to a revision of pods and nodes.
    pub fn must_show<F>(&mut self, now: Time, revision: u64, fx: &mut Effects<F>) {
        self.pods.must_show(now, revision, fx);
        self.nodes.must_show(now, revision, fx);
    }
    /// Whether all of pods and nodes is known that must be.
    pub fn caught_up(&self) -> bool {
        self.pods.caught_up() && self.nodes.caught_up()
    }
    /// Up to which revision pods and nodes are known.
    pub fn revisions(&self) -> (u64, u64) {
        (self.pods.revision(), self.nodes.revision())
    }
}

informers! {
    pods: Pod,
    nodes: Node,
    namespaces: Namespace,
    claims: PersistentVolumeClaim,
    volumes: PersistentVolume,
    classes: StorageClass,
    csi_nodes: CSINode,
    attachments: VolumeAttachment,
    drivers: CSIDriver,
    capacities: CSIStorageCapacity,
    budgets: PodDisruptionBudget,
    services: Service,
    replication_controllers: ReplicationController,
    replica_sets: ReplicaSet,
    stateful_sets: StatefulSet,
}

/// Follows a change in a map of objects.
pub fn follow<K: Object>(map: &mut BTreeMap<ObjectName, Arc<K>>, delta: &Delta<K>) -> ObjectName {
    let object = delta.object();
    let name = name_of(&**object);
    match delta {
        Delta::Removed(_) => map.remove(&name),
        Delta::Added(_) | Delta::Updated(..) => map.insert(name.clone(), object.clone()),
    };
    name
}
