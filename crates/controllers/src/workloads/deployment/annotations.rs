//! Annotations between a Deployment and its ReplicaSets; `kubectl rollout` reads them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Wanted;

/// The revision of a ReplicaSet, and of the Deployment's newest one.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Revisions that a ReplicaSet had before it was rolled back to.
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Replicas of the Deployment when the set was scaled last.
pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with the surge.
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// The revision that an old client asks to go back to.
pub(crate) const ROLLBACK: &str = "deprecated.deployment.rollback.to";
/// Annotations that do not go from a Deployment to its sets.
const OWN: [&str; 6] = ["kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAX, ROLLBACK];
/// How long the history of revisions may grow, in bytes.
const HISTORY_MAX: usize = 2000;

/// An annotation that is a number.
pub(crate) fn number<T: std::str::FromStr>(meta: &ObjectMeta, key: &str) -> Option<T> {
    meta.annotations.as_ref()?.get(key)?.parse().ok()
}

/// The revision; 0 where there is none.
pub(crate) fn revision(meta: &ObjectMeta) -> i64 {
    number(meta, REVISION).unwrap_or(0)
}

fn insert(meta: &mut ObjectMeta, key: &str, value: String) {
    meta.annotations.get_or_insert_default().insert(key.to_owned(), value);
}

/// Says for which size of the Deployment a set was scaled.
pub(crate) fn set_sizes(meta: &mut ObjectMeta, wanted: Wanted<'_>) {
    insert(meta, DESIRED, wanted.replicas.to_string());
    insert(meta, MAX, wanted.replicas.saturating_add(wanted.max_surge()).to_string());
}

/// Takes over the Deployment's annotations, and gives the set its revision: never a smaller one than it has.
pub(crate) fn follow(meta: &mut ObjectMeta, deployment: &ObjectMeta, to: i64) {
    for (key, value) in deployment.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            insert(meta, key, value.clone());
        }
    }
    let from = revision(meta);
    if from >= to {
        return;
    }
    insert(meta, REVISION, to.to_string());
    if from > 0 {
        let old = meta.annotations.as_ref().and_then(|a| a.get(HISTORY)).cloned().unwrap_or_default();
        let mut history: Vec<&str> = old.split(',').filter(|r| !r.is_empty()).collect();
        let last = from.to_string();
        history.push(&last);
        // The newest ones that have room. The annotation may be as long as annotations may be: anybody who may edit the set can
        // write it.
        let mut room = HISTORY_MAX + 1;
        let fits = |revision: &&&str| {
            let left = room.checked_sub(revision.len() + 1);
            room = left.unwrap_or(room);
            left.is_some()
        };
        let kept = history.iter().rev().take_while(fits).count();
        let history = history.split_off(history.len() - kept).join(",");
        insert(meta, HISTORY, history);
    }
}

/// Gives a Deployment the annotations of the set that it goes back to, but for those of each.
pub(crate) fn go_back(deployment: &mut ObjectMeta, set: &ObjectMeta) {
    let own = |key: &String| OWN.contains(&key.as_str());
    let annotations = deployment.annotations.get_or_insert_default();
    annotations.retain(|key, _| own(key));
    let of_set = set.annotations.iter().flatten().filter(|(key, _)| !own(key));
    annotations.extend(of_set.map(|(key, value)| (key.clone(), value.clone())));
}

/// The annotations of the set of a template that is new.
pub(crate) fn of_new(wanted: Wanted<'_>, to: i64) -> BTreeMap<String, String> {
    let mut meta = ObjectMeta::default();
    follow(&mut meta, &wanted.deployment.metadata, to);
    set_sizes(&mut meta, wanted);
    meta.annotations.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_cut_to_the_newest_revisions() {
        let (long, wide) = (vec!["1"; 100_000].join(","), "9".repeat(5000));
        // The last 999 of these, and the one that was the set's.
        let cut = format!("{},7", vec!["1"; 999].join(","));
        let odd = [(long.as_str(), cut.as_str()), (wide.as_str(), "7")];
        for (old, expected) in [("", "7"), ("1,3", "1,3,7"), ("1,,3,", "1,3,7")].into_iter().chain(odd) {
            let annotations = [(REVISION, "7"), (HISTORY, old)].map(|(key, value)| (key.to_owned(), value.to_owned()));
            let mut meta = ObjectMeta { annotations: Some(annotations.into()), ..ObjectMeta::default() };
            follow(&mut meta, &ObjectMeta::default(), 8);
            let annotations = meta.annotations.expect("it has some");
            assert_eq!([REVISION, HISTORY].map(|key| annotations[key].as_str()), ["8", expected]);
        }
    }
}
