//! The classes that are kept, each made when a pod of it first comes, the least used forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::resource::Object as _;

use super::Class;
use crate::plugins::spread;
use crate::pod_info::Shape;
use crate::{Cluster, PodInfo, Profile};

/// How many answers of nodes are kept over all classes; each is about 150 bytes.
const MOST_ENTRIES: usize = 400_000;
/// At least so many classes are kept.
const LEAST: usize = 8;

/// Which class a pod belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassKey {
    shape: Shape,
    namespace: String,
    /// Labels, as far as anybody looks at them.
    labels: Vec<(String, String)>,
    /// What default constraints count.
    default_selector: String,
}

/// The classes.
#[derive(Debug, Default)]
pub struct Shelf {
    classes: BTreeMap<ClassKey, (Box<Class>, u64)>,
    uses: u64,
}

impl Shelf {
    /// The class of a pod, taken off the shelf; [`Self::put`] puts it back.
    pub fn take(
        &mut self,
        info: &Arc<PodInfo>,
        profile: &Arc<Profile>,
        cluster: &mut Cluster,
    ) -> (ClassKey, Box<Class>) {
        let default = spread::default_selector(info, profile, cluster);
        let own: Vec<&str> = info
            .spec()
            .topology_spread_constraints
            .iter()
            .flatten()
            .filter_map(|c| c.label_selector.as_ref())
            .chain(&default)
            .flat_map(|s| {
                let labels = s.match_labels.iter().flatten().map(|(key, _)| key.as_str());
                labels.chain(s.match_expressions.iter().flatten().map(|r| r.key.as_str()))
            })
            .chain({
                let all = info.spec().topology_spread_constraints.iter().flatten();
                all.flat_map(|c| c.match_label_keys.iter().flatten().map(String::as_str))
            })
            .collect();
        let looked_at = |key: &str| cluster.tables.relevant.contains(key) || own.contains(&key);
        let labels = info.pod.labels.iter().filter(|(key, _)| looked_at(key));
        let key = ClassKey {
            shape: info.shape.clone(),
            namespace: info.pod.namespace().to_owned(),
            labels: labels.map(|(k, v)| (k.clone(), v.clone())).collect(),
            default_selector: default.as_ref().map(|s| format!("{s:?}")).unwrap_or_default(),
        };
        self.uses += 1;
        if let Some((mut class, _)) = self.classes.remove(&key)
            && !class.is_outdated(cluster)
        {
            return (key, class);
        }
        let class = Class::new(info.clone(), profile.clone(), default.as_ref(), cluster);
        (key, Box::new(class))
    }

    /// Puts a class back.
    pub fn put(&mut self, key: ClassKey, class: Box<Class>, cluster: &Cluster) {
        self.classes.insert(key, (class, self.uses));
        let most = (MOST_ENTRIES / cluster.capacity().max(1)).max(LEAST);
        // Where nodes came, fewer classes are as many answers.
        while self.classes.len() > most {
            let oldest = self.classes.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            let Some(key) = oldest else { break };
            self.classes.remove(&key);
        }
    }
    /// How many classes there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.classes.len()
    }
    /// Forgets all classes.
    pub fn clear(&mut self) {
        self.classes.clear();
    }
}
