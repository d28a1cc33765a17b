//! Which pods wait for which claims to be bound. There may be many of them, for minutes; a claim wakes its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::ObjectName;
use crate::plugins::volumes::Plan;

/// Those who wait.
#[derive(Debug, Default)]
pub struct Waiting {
    pods: BTreeSet<Arc<str>>,
    by_claim: BTreeMap<ObjectName, BTreeSet<Arc<str>>>,
}

impl Waiting {
    /// A pod waits for what its plan says.
    pub fn add(&mut self, uid: &Arc<str>, plan: &Plan) {
        self.pods.insert(uid.clone());
        for claim in plan.claims() {
            self.by_claim.entry(claim.clone()).or_default().insert(uid.clone());
        }
    }
    /// A pod with this plan waits no more, if it did.
    pub fn remove(&mut self, uid: &str, plan: &Plan) {
        if !self.pods.remove(uid) {
            return;
        }
        for claim in plan.claims() {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
    }
    /// How many pods wait.
    pub fn count(&self) -> usize {
        self.pods.len()
    }
    /// Who waits for a claim.
    pub fn for_claim(&self, claim: &ObjectName) -> Vec<Arc<str>> {
        self.by_claim.get(claim).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(claim: &str) -> ObjectName {
        ("d".to_owned(), claim.to_owned())
    }

    #[test]
    fn a_claim_wakes_its_own_and_nothing_stays_behind() {
        let plan = |bound: &[&str], made: &[&str]| Plan {
            bindings: bound.iter().map(|claim| (name(claim), "volume".to_owned())).collect(),
            provisions: made.iter().map(|claim| name(claim)).collect(),
        };
        let (one, two) = (plan(&["a"], &["b"]), plan(&[], &["b"]));
        let mut waiting = Waiting::default();
        waiting.add(&"p".into(), &one);
        waiting.add(&"q".into(), &two);
        let who = |waiting: &Waiting, claim: &str| {
            waiting.for_claim(&name(claim)).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(who(&waiting, "a"), ["p"]);
        assert_eq!(who(&waiting, "b"), ["p", "q"]);
        waiting.remove("p", &one);
        waiting.remove("nobody", &one);
        assert_eq!((waiting.count(), who(&waiting, "a").len()), (1, 0));
        assert_eq!(who(&waiting, "b"), ["q"]);
        waiting.remove("q", &two);
        assert!(waiting.count() == 0 && waiting.by_claim.is_empty());
    }
}
