//! How often each index of a Job has failed, where each has a limit of its own (`backoffLimitPerIndex`).
//!
//! No status has these counts. A pod tells, in annotations, how often its index had failed before it: failures that count,
//! and those that the failure policy ignores, which only make its successor wait longer. So the last failed pod of an index
//! is held by its finalizer until the pod that replaces it is there to tell: deleted before that, it would take the count
//! with it. Follows upstream's indexed_job_utils.go (pkg/controller/job).

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::Pod;

use super::indexes::{self, Indexes};
use super::policy::Meaning;
use super::{Known, manage, tracked};

/// Annotation with how often a pod's index had failed before it.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with how often it had failed in a way that does not count.
pub(super) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// How often an index has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// Those that count.
    pub counted: u32,
    /// Those that the failure policy ignores.
    pub ignored: u32,
}

impl Failures {
    /// All of them.
    pub(super) fn all(self) -> u32 {
        self.counted.saturating_add(self.ignored)
    }
    /// Those that a pod has found before it. What is no number is none.
    fn before(pod: &Pod) -> Self {
        let told = |key| pod.annotation(key).and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { counted: told(FAILURES), ignored: told(IGNORED) }
    }
}

/// Those up to a pod, its own included. One that is removed while it runs fails only where that counts.
fn up_to(known: &Known<'_>, pod: &Pod) -> Failures {
    let mut told = Failures::before(pod);
    if known.end_of(pod) == Some(false) && (tracked(pod) || !pod.is_deleting()) {
        match known.meaning(pod) {
            Meaning::Ignored => told.ignored = told.ignored.saturating_add(1),
            _ => told.counted = told.counted.saturating_add(1),
        }
    }
    told
}

/// The pods of each index.
pub(super) fn by_index<'a>(known: &'a Known<'_>) -> BTreeMap<i32, Vec<&'a Pod>> {
    let mut all: BTreeMap<i32, Vec<&Pod>> = BTreeMap::new();
    for pod in &known.pods {
        if let Some(index) = indexes::of_pod(pod) {
            all.entry(index).or_default().push(pod);
        }
    }
    all
}

/// How often an index has failed, as its pods say: the one that has seen most knows best.
pub(super) fn failures(known: &Known<'_>, of_index: &[&Pod]) -> Failures {
    of_index.iter().map(|pod| up_to(known, pod)).max_by_key(|told| told.all()).unwrap_or_default()
}

/// Marks indexes that have failed for good. Returns the UIDs of pods that must not let go yet.
pub(super) fn judge(known: &Known<'_>, completed: &Indexes, status: &mut JobStatus) -> BTreeSet<String> {
    let Some(limit) = known.spec.backoff_limit_per_index else { return BTreeSet::new() };
    let completions = known.spec.completions.unwrap_or(0);
    let limit = u32::try_from(limit).unwrap_or(0);
    let mut failed = status.failed_indexes.as_deref().map(|text| Indexes::parse(text, completions));
    let mut ended: Vec<(i32, &Pod, Failures)> = Vec::new();
    for pod in known.pods.iter().filter(|p| tracked(p) && known.end_of(p) == Some(false)) {
        let Some(index) = indexes::of_pod(pod).filter(|i| *i < completions && !completed.contains(*i)) else {
            continue;
        };
        let told = up_to(known, pod);
        let failed = failed.get_or_insert_default();
        match known.meaning(pod) {
            Meaning::FailsIndex => failed.insert(index),
            Meaning::Counts | Meaning::FailsJob(_) if told.counted > limit => failed.insert(index),
            // It is the last of its Job.
            Meaning::FailsJob(_) => {}
            Meaning::Counts | Meaning::Ignored => ended.push((index, pod, told)),
        }
    }
    status.failed_indexes = failed.as_ref().map(Indexes::to_string);
    // A Job that comes to its end makes no more pods.
    if known.is_finishing() {
        return BTreeSet::new();
    }
    let active: BTreeSet<i32> = known.active().filter_map(|p| indexes::of_pod(p)).collect();
    let over = |index: &i32| active.contains(index) || failed.as_ref().is_some_and(|set| set.contains(*index));
    let mut last: BTreeMap<i32, (u32, Option<Time>, &str)> = BTreeMap::new();
    for (index, pod, told) in ended.into_iter().filter(|(index, ..)| !over(index)) {
        let this = (told.all(), manage::ended_at(pod), pod.uid());
        last.entry(index).and_modify(|known| *known = this.max(*known)).or_insert(this);
    }
    last.into_values().map(|(.., uid)| uid.to_owned()).collect()
}

/// How many failures that count are not in the status: those of pods that must not let go yet.
pub(super) fn not_written(known: &Known<'_>, status: &JobStatus) -> i32 {
    if known.spec.backoff_limit_per_index.is_none() {
        return 0;
    }
    let uncounted = status.uncounted_terminated_pods.as_ref().and_then(|u| u.failed.as_ref());
    let listed: BTreeSet<&str> = uncounted.into_iter().flatten().map(String::as_str).collect();
    let counts = |p: &Pod| known.end_of(p) == Some(false) && known.meaning(p) != Meaning::Ignored;
    let held = known.pods.iter().filter(|p| tracked(p) && !listed.contains(p.uid()) && counts(p)).count();
    i32::try_from(held).unwrap_or(i32::MAX)
}
