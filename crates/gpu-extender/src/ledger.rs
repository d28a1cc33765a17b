//! Who holds which GPUs: one entry for a pod's UID, from the filter's answer until the pod is gone.
//!
//! ```text
//!   filter ─▶ Offered ──bind──▶ Binding ──bound──▶ Held ──ended, gone──▶ nothing
//!                │                 │  └─ failed ─▶ Undoing ──no late request can bind it any more──▶ nothing
//!                └─ expired, another filter, the attempt failed ─▶ nothing
//! ```
//!
//! The ledger is what was decided, not what a cache shows: an offer counts from the answer on, and a binding whose outcome
//! is unknown counts until it is known. The API is asked only for what others did, and at the start.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;

use crate::place::{Places, Use, Uses};

/// How far an entry has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A filter has named the node. Void after this time.
    Offered {
        /// When it ends.
        until: Time,
        /// The pod's revision when it was asked about.
        revision: u64,
    },
    /// It is being bound.
    Binding,
    /// Its binding failed, or nobody waits for it any more; it may still arrive.
    Undoing,
    /// It is bound.
    Held,
}

impl Stage {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Offered { .. } => "offered",
            Self::Binding => "binding",
            Self::Undoing => "undoing",
            Self::Held => "held",
        }
    }
}

/// What a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node.
    pub node: String,
    /// GPUs by container.
    pub places: Places,
    /// What it uses of them, as far as it counts.
    pub holds: Uses,
    /// What it uses of them by what its annotations say; more than it holds where others have held that before (`claims`).
    pub claims: Uses,
    /// How far it has come.
    pub stage: Stage,
}

impl Entry {
    /// Whether it claims more than it holds.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.claims != self.holds
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<String, Entry>,
    /// Sums of all entries, by node.
    nodes: BTreeMap<String, Uses>,
    /// Offers, in the order of their end.
    offers: BTreeSet<(Time, String)>,
    /// Whose claims are contested.
    contested: BTreeSet<String>,
}

impl Ledger {
    /// A pod's entry.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Entry> {
        self.entries.get(uid)
    }
    /// All entries, by UID.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(uid, entry)| (uid.as_str(), entry))
    }
    /// What is in use on a node, by all but some pods, whoever is named twice.
    #[must_use]
    pub fn in_use(&self, node: &str, except: &[&str]) -> Uses {
        let mut uses = self.nodes.get(node).cloned().unwrap_or_default();
        let except: BTreeSet<&str> = except.iter().copied().collect();
        for entry in except.iter().filter_map(|uid| self.entries.get(*uid)).filter(|e| e.node == node) {
            subtract(&mut uses, &entry.holds);
        }
        uses
    }
    /// The same of all that are more than offered, and without one pod.
    #[must_use]
    pub fn settled(&self, node: &str, except: &str) -> Uses {
        let offered = self.offers.iter().map(|(_, uid)| uid.as_str());
        let except: Vec<&str> = offered.chain([except]).collect();
        self.in_use(node, &except)
    }
    /// Pods that claim more than they hold.
    pub fn contested(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.contested.iter().filter_map(move |uid| Some((uid.as_str(), self.get(uid)?)))
    }
    /// Puts an entry in the place of the pod's former one.
    pub fn set(&mut self, uid: &str, entry: Entry) {
        self.remove(uid);
        let sums = self.nodes.entry(entry.node.clone()).or_default();
        for (gpu, used) in entry.holds.iter().filter(|(_, used)| !used.is_none()) {
            let sum = sums.entry(*gpu).or_default();
            *sum = sum.and(*used);
        }
        if let Stage::Offered { until, .. } = entry.stage {
            self.offers.insert((until, uid.to_owned()));
        }
        if entry.is_contested() {
            self.contested.insert(uid.to_owned());
        }
        self.entries.insert(uid.to_owned(), entry);
    }
    /// Moves an entry on.
    pub fn advance(&mut self, uid: &str, stage: Stage) {
        if let Some(entry) = self.entries.get_mut(uid) {
            if let Stage::Offered { until, .. } = entry.stage {
                self.offers.remove(&(until, uid.to_owned()));
            }
            if let Stage::Offered { until, .. } = stage {
                self.offers.insert((until, uid.to_owned()));
            }
            entry.stage = stage;
        }
    }
    /// Takes a pod's entry out.
    pub fn remove(&mut self, uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(uid)?;
        self.contested.remove(uid);
        if let Some(sums) = self.nodes.get_mut(&entry.node) {
            subtract(sums, &entry.holds);
            if sums.is_empty() {
                self.nodes.remove(&entry.node);
            }
        }
        if let Stage::Offered { until, .. } = entry.stage {
            self.offers.remove(&(until, uid.to_owned()));
        }
        Some(entry)
    }
    /// Drops offers that have ended.
    pub fn expire(&mut self, now: Time) {
        while let Some((until, uid)) = self.offers.first().cloned() {
            if until > now {
                return;
            }
            tracing::debug!(uid, "an offer was not taken up");
            self.remove(&uid);
        }
    }
}

fn subtract(uses: &mut Uses, less: &Uses) {
    for (gpu, used) in less {
        if let Some(sum) = uses.get_mut(gpu) {
            *sum = sum.without(*used);
            if *sum == Use::default() {
                uses.remove(gpu);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(node: u8, gpu: usize, cores: u32, until: i64) -> Entry {
        let holds = Uses::from([(gpu, Use { cores, memory: u64::from(cores) })]);
        // Every other one claims what it does not hold.
        let claims = if cores.is_multiple_of(2) { holds.clone() } else { Uses::new() };
        Entry {
            namespace: "d".into(),
            name: "p".into(),
            node: node.to_string(),
            places: Places::new(),
            holds,
            claims,
            stage: Stage::Offered { until: Time(until), revision: 0 },
        }
    }

    proptest! {
        /// Sums are what the entries make, whatever comes and goes.
        #[test]
        fn sums_follow_entries(acts in prop::collection::vec((0_u8..6, 0_u8..3, 0_usize..3, 0_u32..100, 0_i64..50), 0..60)) {
            let (mut ledger, mut model) = (Ledger::default(), BTreeMap::<String, Entry>::new());
            for (act, (uid, node, gpu, cores, time)) in acts.into_iter().enumerate() {
                let uid = uid.to_string();
                match act % 5 {
                    0..=2 => {
                        ledger.set(&uid, entry(node, gpu, cores, time));
                        model.insert(uid.clone(), entry(node, gpu, cores, time));
                    }
                    3 => {
                        ledger.advance(&uid, Stage::Binding);
                        model.entry(uid.clone()).and_modify(|e| e.stage = Stage::Binding);
                    }
                    _ if time % 2 == 0 => {
                        ledger.expire(Time(time));
                        model.retain(|_, e| !matches!(e.stage, Stage::Offered { until, .. } if until <= Time(time)));
                    }
                    _ => prop_assert_eq!(ledger.remove(&uid), model.remove(&uid)),
                }
                let shown: BTreeMap<String, Entry> = ledger.iter().map(|(u, e)| (u.to_owned(), e.clone())).collect();
                prop_assert_eq!(&shown, &model);
                let contested: Vec<&str> = ledger.contested().map(|(uid, _)| uid).collect();
                let odd: Vec<&str> = model.iter().filter(|(_, e)| e.is_contested()).map(|(u, _)| u.as_str()).collect();
                prop_assert_eq!(contested, odd);
                for node in 0..3_u8 {
                    let node = node.to_string();
                    let mut sum = Uses::new();
                    for e in model.iter().filter(|(u, e)| e.node == node && **u != uid).map(|(_, e)| e) {
                        for (gpu, used) in &e.holds {
                            let s = sum.entry(*gpu).or_default();
                            *s = s.and(*used);
                        }
                    }
                    sum.retain(|_, used| !used.is_none());
                    prop_assert_eq!(ledger.in_use(&node, &[&uid, &uid]), sum);
                }
            }
        }
    }
}
