//! Writes of a manager's controllers that its caches do not show yet.
//!
//! ```text
//!   sent ──▶ in flight ──answered──▶ written at a revision ──▶ shown by the caches: forgotten
//!                └─ refused, or unknown ──▶ forgotten
//! ```
//!
//! A write that rests on an object as it was read is refused when somebody else has changed that object meanwhile. Where
//! that somebody is in the same process, this is known beforehand: the plan is not sent, and its key looks again once the
//! caches show what was written. Nothing is wrong about it otherwise; so this saves requests, and no decision rests on it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{CallId, Key, Premise, Write};

/// Who writes: a controller by its place, and its key.
pub(crate) type Writer = (usize, Key);

/// An object, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub group: String,
    pub plural: String,
    pub key: Key,
}

/// What a write rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub target: Target,
    /// No change of it at all, or none of its spec.
    pub whole: bool,
}

/// What stands in the way of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Free,
    /// Somebody's write of it is under way.
    Busy,
    /// It was written at this revision.
    Written(u64),
}

#[derive(Default)]
struct Made {
    /// Writes under way, and whether they may change the spec.
    flights: BTreeMap<CallId, (Writer, bool)>,
    /// The newest revision that was written, and the newest with which the spec may have changed.
    any: u64,
    spec: u64,
    /// Who waits for a write under way.
    waiting: BTreeSet<Writer>,
}

/// The writes.
#[derive(Default)]
pub(crate) struct Unseen {
    made: BTreeMap<Target, Made>,
    flights: BTreeMap<CallId, Target>,
    /// What was written, by group and plural.
    written: BTreeMap<(String, String), BTreeSet<(u64, Key)>>,
}

/// What a write changes, and whether it may change its spec. None for what nobody else's write can rest on.
fn changed(write: &Write) -> Option<(Target, bool)> {
    let spec = match write {
        Write::Update { sub, .. } => sub.is_empty(),
        // Metadata alone leaves the generation as it is. A scale is a part of the spec.
        Write::Patch { sub, patch, .. } => {
            let mut fields = patch.as_object().into_iter().flat_map(|fields| fields.keys());
            matches!(*sub, "" | "scale") && fields.any(|field| field != "metadata")
        }
        Write::Delete { .. } | Write::Post { .. } => true,
        Write::Create { .. } | Write::DeleteAll { .. } | Write::Confirm { .. } | Write::Call { .. } => return None,
    };
    Some((target(write), spec))
}

fn target(write: &Write) -> Target {
    let resource = write.resource();
    Target { group: resource.group.to_string(), plural: resource.plural.to_string(), key: write.key() }
}

/// What a write rests on, with its premises, as far as others' writes can break it.
pub(crate) fn needs<'a>(write: &Write, premises: impl Iterator<Item = &'a Premise>) -> Vec<Need> {
    let own = write.is_pinned() && !matches!(write, Write::Confirm { .. } | Write::Call { .. });
    let mut needs: Vec<Need> = own.then(|| Need { target: target(write), whole: true }).into_iter().collect();
    for premise in premises.filter(|p| p.uid.is_some() && (p.resource_version.is_some() || p.generation.is_some())) {
        let key = Key::new(premise.namespace.clone(), premise.name.clone());
        let target = Target { group: premise.group.clone(), plural: premise.resource.clone(), key };
        needs.push(Need { target, whole: premise.resource_version.is_some() });
    }
    needs
}

impl Unseen {
    /// A write is under way.
    pub(crate) fn sent(&mut self, id: CallId, by: Writer, write: &Write) {
        if let Some((target, spec)) = changed(write) {
            self.flights.insert(id, target.clone());
            self.made.entry(target).or_default().flights.insert(id, (by, spec));
        }
    }

    /// Whether this is a write that was noted, and has not come back.
    pub(crate) fn is_under_way(&self, id: CallId) -> bool {
        self.flights.contains_key(&id)
    }

    /// What became of a write: the revision that it made, if it is known to have made one. What no cache will show is not kept.
    /// Returns who waited for it, if nothing else is in their way now.
    pub(crate) fn answered(
        &mut self,
        id: CallId,
        revision: Option<u64>,
        is_read: impl FnOnce(&Target) -> bool,
    ) -> Option<(Target, BTreeSet<Writer>)> {
        let target = self.flights.remove(&id)?;
        let revision = revision.filter(|_| is_read(&target));
        let made = self.made.get_mut(&target)?;
        let (_, spec) = made.flights.remove(&id)?;
        if let Some(revision) = revision {
            made.any = made.any.max(revision);
            made.spec = if spec { made.spec.max(revision) } else { made.spec };
            let place = (target.group.clone(), target.plural.clone());
            self.written.entry(place).or_default().insert((revision, target.key.clone()));
        }
        let waited = std::mem::take(&mut made.waiting);
        self.forget(&target, 0);
        Some((target, waited))
    }

    /// What stands in the way of a writer.
    pub(crate) fn before(&self, by: &Writer, need: &Need) -> Way {
        let Some(made) = self.made.get(&need.target) else { return Way::Free };
        if made.flights.values().any(|(writer, spec)| writer != by && (need.whole || *spec)) {
            return Way::Busy;
        }
        match if need.whole { made.any } else { made.spec } {
            0 => Way::Free,
            revision => Way::Written(revision),
        }
    }

    /// Waits for what is under way.
    pub(crate) fn wait(&mut self, target: &Target, by: Writer) {
        if let Some(made) = self.made.get_mut(target) {
            made.waiting.insert(by);
        }
    }

    /// Whether something of a resource was written that is not known to be shown.
    pub(crate) fn has_written(&self, group: &str, plural: &str) -> bool {
        !self.written.is_empty() && self.written.contains_key(&(group.to_owned(), plural.to_owned()))
    }

    /// All caches of a resource show everything up to a revision.
    pub(crate) fn shown(&mut self, group: &str, plural: &str, revision: u64) {
        let place = (group.to_owned(), plural.to_owned());
        let Some(written) = self.written.get_mut(&place) else { return };
        let later = written.split_off(&(revision.saturating_add(1), Key::new("", "")));
        let shown = std::mem::replace(written, later);
        if written.is_empty() {
            self.written.remove(&place);
        }
        for (_, key) in shown {
            self.forget(&Target { group: place.0.clone(), plural: place.1.clone(), key }, revision);
        }
    }

    /// Forgets an object of which nothing later than a revision is written.
    fn forget(&mut self, target: &Target, revision: u64) {
        if self.made.get(target).is_some_and(|made| made.flights.is_empty() && made.any <= revision) {
            self.made.remove(target);
        }
    }

    /// Whether nothing is under way or unseen.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.made.is_empty() && self.flights.is_empty() && self.written.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use carrack_types::resource::Kind as _;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::Plan;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some("p".into());
        pod.metadata.uid = Some("u".into());
        pod.metadata.resource_version = Some("7".into());
        pod.metadata.generation = Some(1);
        pod
    }

    fn by(controller: usize) -> Writer {
        (controller, Key::new("ns", "k"))
    }

    /// What stands in the way of another controller's write, by what it rests on, after a write.
    fn check(plan: Plan, whole: Way, spec: Way) {
        let write = &plan.writes[0];
        let mut unseen = Unseen::default();
        unseen.sent(CallId(1), by(0), write);
        let pod = pod();
        let patch = Plan::none().patch_status(&pod, json!({}));
        let all = needs(&patch.writes[0], [Premise::same_spec(&pod), Premise::present(&pod)].iter());
        assert_eq!(all.iter().map(|need| need.whole).collect::<Vec<_>>(), [true, false], "{write:?}");
        let ways: Vec<Way> = all.iter().map(|need| unseen.before(&by(1), need)).collect();
        assert_eq!(ways, [whole, spec], "{write:?}");
        assert!(all.iter().all(|need| unseen.before(&by(0), need) == Way::Free), "one's own: {write:?}");
    }

    #[test]
    fn a_write_is_in_the_way_of_what_it_breaks() {
        let pod = pod();
        check(Plan::none().patch(&pod, json!({"spec": {}})), Way::Busy, Way::Busy);
        check(Plan::none().patch(&pod, json!({"metadata": {"labels": {}}})), Way::Busy, Way::Free);
        check(Plan::none().update_status(&pod, &pod), Way::Busy, Way::Free);
        let scale = json!({"spec": {"replicas": 1}});
        check(Plan::none().patch_resource(&Pod::resource(), &pod, "scale", scale), Way::Busy, Way::Busy);
        check(Plan::none().delete(&pod), Way::Busy, Way::Busy);
        check(Plan::none().create(&pod), Way::Free, Way::Free);
        check(Plan::none().confirm_unchanged(&pod), Way::Free, Way::Free);
        // One that rests on the UID alone is in nobody's way to wait.
        let delete = Plan::none().delete(&pod);
        assert_eq!(needs(&delete.writes[0], std::iter::empty()), []);
    }

    #[test]
    fn what_was_written_is_known_until_it_is_shown() {
        let pod = pod();
        let status = Plan::none().patch_status(&pod, json!({}));
        let need = |whole| Need { target: target(&status.writes[0]), whole };
        let mut unseen = Unseen::default();
        unseen.sent(CallId(1), by(0), &status.writes[0]);
        unseen.wait(&need(true).target, by(1));
        let (_, waited) = unseen.answered(CallId(1), Some(9), |_| true).unwrap_or_else(|| panic!("it was sent"));
        assert_eq!(waited.into_iter().collect::<Vec<_>>(), [by(1)]);
        assert_eq!(unseen.before(&by(1), &need(true)), Way::Written(9));
        assert_eq!(unseen.before(&by(1), &need(false)), Way::Free);
        // A later one is under way when the first is shown.
        unseen.sent(CallId(2), by(0), &status.writes[0]);
        unseen.shown("", &Pod::resource().plural, 9);
        assert_eq!(unseen.before(&by(1), &need(true)), Way::Busy);
        assert!(unseen.answered(CallId(2), Some(11), |_| true).is_some());
        unseen.shown("", "pods", 10);
        assert_eq!(unseen.before(&by(1), &need(true)), Way::Written(11));
        unseen.shown("", "pods", 11);
        assert!(unseen.is_empty());
        // One that was refused is over.
        unseen.sent(CallId(3), by(0), &status.writes[0]);
        assert!(unseen.answered(CallId(3), None, |_| true).is_some() && unseen.is_empty());
        assert!(unseen.answered(CallId(3), None, |_| true).is_none());
        // One of what no cache shows, or shows no more.
        unseen.sent(CallId(4), by(0), &status.writes[0]);
        assert!(unseen.answered(CallId(4), Some(12), |_| false).is_some() && unseen.is_empty());
        unseen.sent(CallId(5), by(0), &status.writes[0]);
        assert!(unseen.answered(CallId(5), Some(13), |_| true).is_some() && !unseen.is_empty());
        unseen.shown("", "pods", u64::MAX);
        assert!(unseen.is_empty());
    }
}
