//! Static pods: their manifests, and their mirrors in the API.
//!
//! ```text
//!  manifest ─▶ worker (its UID is the manifest's hash) ─▶ mirror made ─▶ status told to the mirror
//!  manifest gone or changed ─▶ the pod stops ─▶ its mirror is deleted
//! ```
//!
//! Manifests are in files, at a URL, or both. Until they were read once wherever they are, no static pod counts as gone. Then what
//! they do not name is, with or without the API; and what a manifest has become starts when what it was has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, DeleteOptions, EventRecord, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use super::worker::{Admission, Worker};
use super::{Call, Fx, KubeletCore, Owner, Wake};
use crate::config::NodeConfig;
use crate::effects::{Op, Outcome, Reply};
use crate::planted::Planted;
use crate::runtime::Uid;
use crate::spec::manifest::Source;
use crate::spec::pod::ContainerKind;
use crate::spec::{manifest, pod};
use crate::status::pod::statuses;

/// How soon a mirror that was not made or not deleted is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What is known of the manifests of one place.
#[derive(Debug, Default)]
struct Place {
    /// They were read at least once.
    read: bool,
    /// UIDs of their pods.
    present: BTreeSet<Uid>,
    /// What is wrong, by manifest, as it was told; under the source's own name that they cannot be read at all.
    problems: BTreeMap<String, String>,
}

/// What is known of all manifests.
#[derive(Debug, Default)]
pub(super) struct Statics {
    /// Where there may be some.
    places: BTreeMap<Source, Place>,
    /// Mirrors that are being made or deleted, by namespace and name.
    calls: BTreeSet<(String, String)>,
    retry_at: Time,
    /// How often in a row a mirror was not made, or not deleted, as the API has another object than the cache shows. Where another
    /// pod has its name that stays so.
    refused: u32,
    /// Something changed that mirrors must follow.
    pub dirty: bool,
}

impl Statics {
    /// Nothing is known but where manifests are.
    pub fn new(config: &NodeConfig) -> Self {
        let places =
            [(Source::File, config.static_pod_path.is_some()), (Source::Http, config.static_pod_url.is_some())];
        let places = places.into_iter().filter(|(_, there)| *there).map(|(source, _)| (source, Place::default()));
        Self { places: places.collect(), ..Self::default() }
    }

    /// Whether they were read at least once wherever there may be some (upstream's `AllReady`, `pkg/kubelet/config/sources.go`).
    pub fn read(&self) -> bool {
        self.places.values().all(|place| place.read)
    }

    /// UIDs of their pods.
    pub fn present(&self) -> impl Iterator<Item = &Uid> {
        self.places.values().flat_map(|place| &place.present)
    }
}

/// The phase of a pod that is told to be over and has come to that by itself, for good: all of its containers have ended, or one that
/// it begins with has failed, and none of these is started again. One that its kubelet has ended with the machine has none, and neither
/// has one that was turned away.
fn own_end(pod: &Pod, told: &PodStatus) -> Option<&'static str> {
    let code = |c: &Container| {
        let state = statuses(told).find(|s| s.name == c.name)?.state.as_ref()?;
        state.terminated.as_ref().map(|end| end.exit_code)
    };
    let stays_over = |kind: ContainerKind, c: &Container, code: i32| !pod::restarts(pod, kind, c, code);
    let failed = |c: &Container| code(c).is_some_and(|code| code != 0 && stays_over(ContainerKind::Init, c, code));
    let ended = |c: &Container| code(c).is_some_and(|code| stays_over(ContainerKind::Regular, c, code));
    let spec = pod::spec(pod);
    if spec.init_containers.iter().flatten().any(failed) {
        return Some("Failed");
    }
    let has_ended = !spec.containers.is_empty() && spec.containers.iter().all(ended);
    let well = spec.containers.iter().all(|c| code(c) == Some(0));
    has_ended.then_some(if well { "Succeeded" } else { "Failed" })
}

/// A pod as an earlier life of the kubelet has recorded it. That a static one is over counts only if it has ended by itself: it comes
/// back with the machine that was shut down, as upstream's does, whose kubelet records no end of it.
pub(super) fn recorded(mut pod: Pod) -> Pod {
    let lasts = pod.status.as_ref().is_none_or(|told| own_end(&pod, told).is_some());
    let is_over = pod::is_static(&pod) && pod::is_terminal(&pod);
    if let Some(status) = pod.status.as_mut().filter(|_| is_over && !lasts) {
        take_end_back(status);
    }
    pod
}

/// Takes it back that a pod is over, and why: of one that goes on, nothing is said of an end (upstream's kubelet makes up the status
/// of a static pod anew).
fn take_end_back(status: &mut PodStatus) {
    (status.phase, status.reason, status.message) = (None, None, None);
}

impl KubeletCore {
    pub(super) fn read_all_manifests(&mut self, fx: &mut Fx) {
        let sources: Vec<Source> = self.statics.places.keys().copied().collect();
        for source in sources {
            self.read_manifests(source, fx);
        }
    }

    pub(super) fn read_manifests(&mut self, source: Source, fx: &mut Fx) {
        self.op(Owner::Manifests(source), Op::ReadManifests(source), fx);
    }

    pub(super) fn manifests_read(&mut self, now: Time, source: Source, outcome: Outcome, fx: &mut Fx) {
        let period = match source {
            Source::File => self.config.file_check_period,
            Source::Http => self.config.http_check_period,
        };
        self.wake(now + period, Wake::Manifests(source));
        let list = match outcome {
            Ok(Reply::Manifests(list)) => list,
            Ok(_) => return,
            Err(error) => {
                // What runs, runs on; and what is wrong with single manifests was told.
                let told = self.statics.places.get(&source).map(|place| place.problems.clone());
                let mut problems = told.unwrap_or_default();
                problems.insert(source.name().to_owned(), format!("manifests cannot be read: {error}"));
                self.tell_problems(now, source, problems, fx);
                return;
            }
        };
        let mut problems = BTreeMap::new();
        let mut present = BTreeSet::new();
        for m in list {
            match m.pod {
                Ok(p) => {
                    let uid = pod::uid(&p);
                    present.insert(uid.clone());
                    let w = self.workers.entry(uid.clone()).or_insert_with(|| {
                        let seen = manifest::seen(*p, now);
                        Worker::new(Arc::new(seen))
                    });
                    if !w.confirmed {
                        w.confirmed = true;
                        self.publish = true;
                        self.dirty.insert(uid);
                    }
                }
                Err(problem) => {
                    problems.insert(m.path, problem);
                }
            }
        }
        self.tell_problems(now, source, problems, fx);
        let Some(place) = self.statics.places.get_mut(&source) else { return };
        let before = std::mem::replace(&mut place.present, present);
        let first = !std::mem::replace(&mut place.read, true);
        for uid in before.difference(&place.present) {
            if let Some(w) = self.workers.get_mut(uid) {
                w.deleted = true;
                self.dirty.insert(uid.clone());
            }
        }
        self.statics.dirty = true;
        if first && self.statics.read() {
            self.find_gone();
        }
    }

    /// Tells what is wrong with a place's manifests, and was not told before: they are read again every few seconds.
    fn tell_problems(&mut self, now: Time, source: Source, problems: BTreeMap<String, String>, fx: &mut Fx) {
        let Some(place) = self.statics.places.get(&source) else { return };
        let is_new = |(path, problem): &(&String, &String)| place.problems.get(*path) != Some(*problem);
        let news: Vec<String> =
            problems.iter().filter(is_new).map(|(path, problem)| format!("{path}: {problem}")).collect();
        let failed = |problems: &BTreeMap<String, String>| problems.contains_key(source.name());
        if failed(&place.problems) && !failed(&problems) {
            tracing::info!(source = source.name(), "the manifests of static pods can be read again");
        }
        let node = self.node.seen.clone();
        for text in news {
            tracing::error!(manifest = text, "a static pod's manifest cannot be used");
            if let Some(node) = &node {
                let record = EventRecord::warning(node.as_ref(), "FailedStaticPod", format!("Static pod {text}"));
                self.event(now, record, fx);
            }
        }
        // Without a Node there is nothing yet that an event could be about: it is told at the next reading.
        if let Some(place) = self.statics.places.get_mut(&source).filter(|_| node.is_some()) {
            place.problems = problems;
        }
    }

    /// What is of a manifest that is there no more is gone, whatever the API says: that may be a pod here itself, and wait for this
    /// one to end. No pod of the API has a manifest's hash for its UID.
    pub(super) fn find_gone_statics(&mut self) {
        if !self.statics.read() || !self.loaded {
            return;
        }
        let present: BTreeSet<&Uid> = self.statics.present().collect();
        let believes = self.planted == Some(Planted::BelievedAnnotations);
        for (uid, w) in &mut self.workers {
            let says_so = believes && w.pod.annotation(manifest::SOURCE).is_some_and(|source| source != "api");
            let is_static = pod::is_static(&w.pod) || says_so;
            if is_static && !w.confirmed && !present.contains(uid) {
                (w.confirmed, w.deleted) = (true, true);
                self.dirty.insert(uid.clone());
            }
        }
    }

    /// Whether a static pod has to wait for another one of its name, such as that of its manifest before it was changed: until that
    /// has ended both would have the same ports, and the same directories of the node (upstream's `allowStaticPodStart`,
    /// `pkg/kubelet/pod_workers.go`). Whether it has, the runtime says: what its mirror tells may be somebody else's word.
    pub(super) fn waits_for_namesake(&self, uid: &Uid, pod: &Pod) -> bool {
        if self.planted == Some(Planted::NamesakesTogether) {
            return false;
        }
        let is_namesake =
            |w: &Worker| pod::is_static(&w.pod) && (w.pod.namespace(), w.pod.name()) == (pod.namespace(), pod.name());
        let mut others = self.workers.iter().filter(|(other, w)| *other != uid && w.confirmed && is_namesake(w));
        pod::is_static(pod) && others.any(|(other, w)| self.takes_room(other, w) || self.is_alive(other))
    }

    /// Whether a pod is the picture of one that is here: whoever may make pods may call his one the picture of any.
    fn is_mirror_of(mirror: &Pod, w: &Worker) -> bool {
        let is_its_name = (w.pod.namespace(), w.pod.name()) == (mirror.namespace(), mirror.name());
        is_its_name && pod::is_static(&w.pod)
    }

    /// What counts of the phase that a mirror tells. Somebody else may say that a static pod is over, such as who collects the pods of
    /// a node whose Node is gone; but the API has a picture of it alone, and that it ends its manifest alone can say (upstream's
    /// kubelet reads no mirror's status). How it has ended is said once. What was told in an earlier life, of which there is no record,
    /// is believed of a pod that has come to its end by itself: how, its containers say.
    fn phase_of_mirror(w: &Worker, told: &PodStatus) -> Option<String> {
        let over = |phase: &&str| matches!(*phase, "Succeeded" | "Failed");
        let said = w.pod.status.as_ref().and_then(|status| status.phase.as_deref()).filter(over);
        let by_itself = || own_end(&w.pod, told);
        let own = match (&w.admission, &w.stopping) {
            _ if told.phase.as_deref().filter(over).is_none() => told.phase.as_deref(),
            (_, Some(stopping)) if stopping.because.is_some() => said.or(told.phase.as_deref()),
            (_, Some(_)) => said.or_else(by_itself).or(told.phase.as_deref()),
            (Admission::Undecided, None) => said.or_else(by_itself),
            (_, None) => None,
        };
        own.map(str::to_owned)
    }

    /// A mirror was seen or is gone. Its status is the static pod's, but for an end that is not told from here.
    pub(super) fn mirror_changed(&mut self, mirror: &Arc<Pod>, gone: bool) {
        self.statics.dirty = true;
        let Some(uid) = manifest::mirrored(mirror).map(Uid::from) else { return };
        let Some(w) = self.workers.get_mut(&uid).filter(|w| Self::is_mirror_of(mirror, w)) else { return };
        if gone {
            w.mirror.take_if(|m| m.uid() == mirror.uid());
            w.deleted |= self.planted == Some(Planted::MirrorsEndPods);
        } else if w.mirror.as_ref().is_none_or(|m| m.uid() != mirror.uid() || mirror.revision() >= m.revision()) {
            w.mirror = Some(mirror.clone());
            let mut status = mirror.status.clone();
            if let Some(told) = status.as_mut() {
                let phase = Self::phase_of_mirror(w, told);
                if phase.is_none() {
                    take_end_back(told);
                } else {
                    told.phase = phase;
                }
            }
            let told = Pod { status, ..Pod::clone(&w.desired) };
            w.take(Arc::new(told), self.resizes.allocated.get(&uid));
        }
        self.dirty.insert(uid);
    }

    /// A mirror may have been seen before its pod was known: a kubelet that starts reads records and manifests while the API answers.
    fn notice_mirror(&mut self, now: Time, mirror: &Arc<Pod>) {
        let Some(uid) = manifest::mirrored(mirror).map(Uid::from) else { return };
        let is_news = |w: &Worker| {
            let is_known = w.mirror.as_ref().is_some_and(|known| known.uid() == mirror.uid());
            Self::is_mirror_of(mirror, w) && !is_known
        };
        if self.workers.get(&uid).is_some_and(is_news) {
            self.mirror_changed(mirror, false);
            self.wake_pod(now, &uid);
        }
    }

    /// Makes the mirrors that lack, and deletes those that are of no static pod.
    pub(super) fn follow_mirrors(&mut self, now: Time, fx: &mut Fx) {
        if !self.statics.dirty || !self.loaded || !self.pods.synced() {
            return;
        }
        if now < self.statics.retry_at {
            self.wake(self.statics.retry_at, Wake::Mirrors);
            return;
        }
        let key = |p: &Pod| (p.namespace().to_owned(), p.name().to_owned());
        let mirrors: BTreeMap<(String, String), Arc<Pod>> =
            self.pods.cache().iter().filter(|p| manifest::mirrored(p).is_some()).map(|p| (key(p), p.clone())).collect();
        for m in mirrors.values() {
            self.notice_mirror(now, m);
        }
        self.statics.dirty = false;
        for (key, m) in &mirrors {
            let hash = manifest::mirrored(m).unwrap_or_default();
            // While the pod is being stopped its end is still to be told.
            let is_here = self.workers.get(hash).is_some_and(|w| Self::is_mirror_of(m, w));
            let kept = is_here && !m.is_deleting();
            // Of a place that was not read yet may be what it is the picture of.
            let known = self.statics.read() || (is_here && m.is_deleting());
            if self.planted == Some(Planted::MirrorsLeft) && !is_here {
                continue;
            }
            if !kept && known && self.statics.calls.insert(key.clone()) {
                let options = DeleteOptions {
                    uid: Some(m.uid().to_owned()),
                    grace_period_s: Some(0),
                    ..DeleteOptions::default()
                };
                let call = fx.api(ApiRequest::delete(&Pod::resource(), m.namespace(), m.name(), &options));
                self.calls.insert(call, Call::Mirror(key.clone()));
            }
        }
        let Some(node_uid) = self.node.seen.as_ref().map(|n| n.uid().to_owned()) else { return };
        let present: Vec<Uid> = self.statics.present().cloned().collect();
        for uid in &present {
            let Some(w) = self.workers.get(uid).filter(|w| !w.deleted) else { continue };
            let key = key(&w.pod);
            if !mirrors.contains_key(&key) && self.statics.calls.insert(key.clone()) {
                let body = manifest::mirror(&w.pod, &node_uid);
                let call = fx.api(ApiRequest::create_value(&Pod::resource(), w.pod.namespace(), &body));
                self.calls.insert(call, Call::Mirror(key));
            }
        }
    }

    pub(super) fn mirror_answered(&mut self, now: Time, key: &(String, String), result: Result<ApiResponse, ApiError>) {
        self.statics.calls.remove(key);
        match result {
            // The watch shows it.
            Ok(_) => self.statics.refused = 0,
            Err(e) if e.is_not_found() || e.is_already_exists() || e.is_conflict() => {
                self.statics.retry_at = now + Duration::from_millis(200 << self.statics.refused.min(6));
                self.statics.refused += 1;
            }
            Err(error) => {
                tracing::warn!(namespace = key.0, name = key.1, %error, "a mirror pod was not made or deleted");
                self.statics.retry_at = now + RETRY;
            }
        }
        if now < self.statics.retry_at {
            self.statics.dirty = true;
            self.wake(self.statics.retry_at, Wake::Mirrors);
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::{Rng, StatusError};
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::manifest::{HASH, HASH_LENGTH, SOURCE};

    #[test]
    fn only_an_end_that_nothing_follows_is_a_pods_own() {
        let over = |name: &str, code: i32| json!({"name": name, "state": {"terminated": {"exitCode": code}}});
        let runs = || json!({"name": "c", "state": {"running": {}}});
        let waits = || json!({"name": "c", "state": {"waiting": {}}});
        // How the pod's containers are started again, what is told of them, and of those that it begins with.
        for (policy, regular, init, expected) in [
            ("Always", json!([over("c", 0)]), json!([]), None),
            ("Always", json!([over("c", 137)]), json!([]), None),
            ("OnFailure", json!([over("c", 0)]), json!([]), Some("Succeeded")),
            ("OnFailure", json!([over("c", 137)]), json!([]), None),
            ("Never", json!([over("c", 137)]), json!([]), Some("Failed")),
            ("Never", json!([runs()]), json!([]), None),
            ("Never", json!([waits()]), json!([over("i", 0)]), None),
            ("Never", json!([waits()]), json!([over("i", 1)]), Some("Failed")),
            ("Always", json!([waits()]), json!([over("i", 1)]), None),
            // It was turned away.
            ("Never", Value::Null, Value::Null, None),
        ] {
            let uid = "0".repeat(HASH_LENGTH);
            let annotations = json!({HASH: uid, SOURCE: "file"});
            let told = json!({"phase": "Failed", "reason": "r", "message": "m", "containerStatuses": regular,
                "initContainerStatuses": init});
            let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": uid, "annotations": annotations},
                "spec": {"restartPolicy": policy, "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
                "status": told});
            let pod: Pod = serde_json::from_value(object).unwrap();
            assert!(pod::is_static(&pod));
            let status = pod.status.clone().unwrap();
            assert_eq!(own_end(&pod, &status), expected, "{told}");
            let status = recorded(pod).status.unwrap();
            for said in [status.phase, status.reason, status.message] {
                assert_eq!(said.is_some(), expected.is_some(), "{told}");
            }
        }
    }

    #[test]
    fn a_mirror_whose_name_is_taken_is_tried_less_and_less_often() {
        let mut core = KubeletCore::new(NodeConfig::default(), &Rng::new(1));
        let (now, key) = (Time::from_unix_s(1000), ("n".to_owned(), "p".to_owned()));
        let taken = StatusError { code: 409, reason: "AlreadyExists".into(), ..StatusError::default() };
        for expected_ms in [200, 400, 800, 1600, 3200, 6400, 12_800, 12_800] {
            core.mirror_answered(now, &key, Err(ApiError::Status(Box::new(taken.clone()))));
            assert_eq!(core.statics.retry_at, now + Duration::from_millis(expected_ms));
        }
        core.mirror_answered(now, &key, Ok(ApiResponse { status: 201, body: Vec::<u8>::new().into() }));
        core.mirror_answered(now, &key, Err(ApiError::Status(Box::new(taken))));
        assert_eq!(core.statics.retry_at, now + Duration::from_millis(200));
    }
}
