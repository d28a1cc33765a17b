//! Private images: which of them are on a node, who may pull one, and for whom containers are made of them.
//!
//! ```text
//!   image of a pod ─▶ is it there, and may this pod use it? ─ no ─▶ pulled with the pod's secrets: slow, refused
//!                                    └ yes ─▶ a container                 ├▶ there, whoever asks next
//!                                                                         └▶ there, and said to have failed
//! ```
//!
//! That it was pulled is on the node's disk before a container is made of it. A pod that had a container of an image may
//! have another one, whatever has become of its secrets.
//!
//! All other images are on every node from the beginning, and are anybody's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::pulled::{pulled_name, pulling_name};
use carrack_kubelet::runtime::{ImageRecord, PodRef};
use carrack_kubelet::{Op, OpError, Outcome, RegistryAuth, Reply};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Observer, key_of, label, text};
use crate::pressure::OLD_IMAGE_BYTES;
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting, up_to};

/// The invariants that are looked after here.
pub(crate) const NAME: &str = "image-is-nobody-elses";
pub(crate) const NOTED: &str = "pulls-are-on-disk";
/// The name of this part of the work.
pub(crate) const PART: &str = "images";

/// The registry of private images.
const REGISTRY: &str = "private.sim";
/// The password of everybody there.
const PASSWORD: &str = "p";
/// The image that pods ask for. The first part of its path is the only user who may pull it.
const IMAGE: &str = "private.sim/alice/app:1";
/// Secrets, and whose credentials are in them.
const SECRETS: [(&str, &str); 3] = [("alice", "alice"), ("alices", "alice"), ("bob", "bob")];
/// The label of a secret that says that.
const USER: &str = "user";
/// In some runs, a secret that goes when its pod has had time to start.
const PASSING: &str = "passing";
/// For how long kubelets may go by a secret that is gone: they read it again after a minute, if they can.
const KNOWN: Duration = Duration::from_secs(180);
/// One pull in so many is slow, and takes up to so much longer; and one in so many fails where anything does.
pub(crate) const SLOW: (u64, Duration) = (3, Duration::from_secs(5));
pub(crate) const FAILS_ONE_IN: u64 = 4;
/// One image in so many does not show when it was pulled, where anything fails.
pub(crate) const UNSEEN_ONE_IN: u64 = 8;

/// Who may pull an image; none where it is anybody's.
fn owner(image: &str) -> Option<&str> {
    image.strip_prefix(REGISTRY)?.strip_prefix('/')?.split('/').next()
}

/// The name of a private image of this user.
pub(crate) fn private(user: &str, name: &str) -> String {
    format!("{REGISTRY}/{user}/{name}")
}

/// Whether an operation pulls a private image.
pub(crate) fn is_pull(op: &Op) -> bool {
    matches!(op, Op::PullImage { image, .. } if owner(image).is_some())
}

fn record(name: &str) -> ImageRecord {
    ImageRecord {
        id: format!("sha256:{name}"),
        names: vec![name.to_owned()],
        digest: String::new(),
        size_bytes: 1 << 20,
        pinned: false,
        uid: None,
        username: String::new(),
    }
}

/// The private images on a node. The runtime keeps them, whatever becomes of agents and of power.
#[derive(Debug, Default)]
pub(crate) struct Images {
    there: BTreeSet<String>,
    /// Large images that nobody uses, where a node may run low.
    old: BTreeSet<String>,
    /// Pods that rightly had a container of an image, by UID, with the image.
    used: BTreeSet<(String, String)>,
    /// Of whom secrets were that are gone, and since when they are.
    gone: BTreeMap<String, (String, Time)>,
}

impl Images {
    /// An image, if it is there.
    pub(crate) fn find(&self, image: &str) -> Option<ImageRecord> {
        (owner(image).is_none() || self.there.contains(image)).then(|| record(image))
    }

    /// All that are told of: of those that are always there nobody is.
    pub(crate) fn list(&self) -> Vec<ImageRecord> {
        let old = self.old.iter().map(|image| ImageRecord { size_bytes: OLD_IMAGE_BYTES, ..record(image) });
        self.there.iter().map(|image| record(image)).chain(old).collect()
    }

    /// Nobody uses these, and they are there.
    pub(crate) fn has_old(&mut self, images: impl Iterator<Item = String>) {
        self.old.extend(images);
    }

    /// How much of the disk those have that nobody uses.
    pub(crate) fn old_bytes(&self) -> u64 {
        self.old.iter().map(|_| OLD_IMAGE_BYTES).sum()
    }

    /// Pulls an image with each of these credentials in turn. It may not show at once when it is there.
    pub(crate) fn pull(&mut self, image: &str, auths: &[RegistryAuth], shows: bool) -> Outcome {
        let Some(owner) = owner(image) else { return Ok(Reply::Image(Some(record(image)))) };
        let with = auths.iter().position(|auth| auth.username == owner && auth.password == PASSWORD);
        if with.is_none() {
            return Err(OpError::Failed(format!("pull access denied for {image}")));
        }
        self.there.insert(image.to_owned());
        Ok(Reply::Pulled { image: shows.then(|| record(image)), with })
    }

    /// Removes the image of an id.
    pub(crate) fn remove(&mut self, id: &str) {
        self.there.retain(|image| record(image).id != id);
        self.old.retain(|image| record(image).id != id);
    }

    /// A secret is gone.
    pub(crate) fn secret_gone(&mut self, now: Time, secret: &Value) {
        let user = label(secret, "labels", USER);
        if !user.is_empty() {
            self.gone.insert(key_of(secret), (user.to_owned(), now));
        }
    }

    /// A container was made of an image: one that its pod can pull, or has had.
    pub(crate) fn used(
        &mut self,
        now: Time,
        image: &str,
        pod: &PodRef,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let (Some(owner), Some(object)) = (owner(image), observer.pod(pod)) else { return };
        let use_of = (pod.uid.to_string(), image.to_owned());
        if self.used.contains(&use_of) {
            return;
        }
        let opens = |secret: &Value| {
            let key = format!("{}/{}", pod.namespace, text(secret, "/name"));
            let is_known = |(user, since): &(String, Time)| user == owner && now.since(*since) < KNOWN;
            let secret = observer.get("secret", &key);
            secret.is_some_and(|secret| label(secret, "labels", USER) == owner)
                || self.gone.get(&key).is_some_and(is_known)
        };
        let secrets = object.pointer("/spec/imagePullSecrets").and_then(Value::as_array);
        if secrets.into_iter().flatten().any(opens) {
            self.used.insert(use_of);
        } else {
            let what = format!("a container of {pod} is made of {image}, which the pod cannot pull");
            breaches.push(Breach::new(NAME, what));
        }
    }
}

/// A container was made of an image: with what a private one was pulled is among the kubelet's records by then, or at least
/// that it is being pulled. A pod that may use it does not wait for the record of another one's pull.
pub(crate) fn noted(image: &str, pod: &PodRef, records: &BTreeMap<String, Vec<u8>>, breaches: &mut Vec<Breach>) {
    let names = [pulled_name(&record(image).id), pulling_name(image)];
    if owner(image).is_some() && !names.iter().any(|name| records.contains_key(name)) {
        let what = format!("a container of {pod} is made of {image}, and no record says that it was pulled");
        breaches.push(Breach::new(NOTED, what));
    }
}

/// Somebody's secret is made.
pub(crate) fn secret(name: &str, user: &str, acts: &mut Vec<Act>) {
    let config = json!({"auths": {REGISTRY: {"username": user, "password": PASSWORD}}}).to_string();
    let object = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"namespace": "default", "name": name, "labels": {USER: user}},
        "stringData": {".dockerconfigjson": config}});
    let what = What::Create { resource: Secret::resource(), object, want: None };
    acts.push(Act { at: Duration::from_millis(100), what });
}

/// A pod that has pulled the image, and whose secret goes then. It is made early.
fn passing(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    secret(PASSING, "alice", acts);
    let at = between(rng, Duration::from_secs(1), safety / 4);
    let mut object = mounting(PASSING, 1 + rng.below(3), "scratch", "emptyDir", json!({}));
    object["spec"]["containers"][0]["image"] = IMAGE.into();
    object["spec"]["imagePullSecrets"] = json!([{"name": PASSING}]);
    // It may not have got so far, and what it had may be gone with its node's sandbox.
    let want = Some(("pod", Want::Any));
    acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
    let gone = between(rng, safety * 3 / 4, safety);
    acts.push(delete(gone, Secret::resource(), "default", PASSING, "secret"));
}

/// Pods with a private image, of whom some can pull it. The first one can.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for (name, user) in SECRETS {
        secret(name, user, acts);
    }
    let mut own = rng.fork("secrets that go");
    if own.one_in(2) {
        passing(&mut own, safety, acts);
    }
    let mut own = rng.fork("crowds");
    if own.one_in(2) {
        crate::pulling::crowd(&mut own, safety, "crowd", acts);
    }
    for n in 0..3 + rng.below(up_to(6, safety)) {
        let name = format!("puller{n}");
        let latest = if n == 0 { safety / 4 } else { safety * 3 / 4 };
        let at = between(rng, Duration::from_secs(1), latest);
        let drawn = usize::try_from(rng.below(SECRETS.len() as u64 + 1)).unwrap_or(0);
        let secret = SECRETS.get(if n == 0 { 0 } else { drawn }).copied();
        let policy = match rng.below(6) {
            0 if n > 0 => "Never",
            1 => "Always",
            _ => "IfNotPresent",
        };
        let mut object = mounting(&name, 1 + rng.below(3), "scratch", "emptyDir", json!({}));
        object["spec"]["containers"][0]["image"] = IMAGE.into();
        object["spec"]["containers"][0]["imagePullPolicy"] = policy.into();
        if let Some((secret, _)) = secret {
            object["spec"]["imagePullSecrets"] = json!([{"name": secret}]);
        }
        // With the policy Never it depends on others whether the image is there.
        let can_pull = policy != "Never" && secret.is_some_and(|(_, user)| owner(IMAGE) == Some(user));
        let want = if can_pull { Want::Pod { restarts: true, important: false } } else { Want::Any };
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want: Some(("pod", want)) } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(3) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(username: &str) -> RegistryAuth {
        RegistryAuth { server: REGISTRY.into(), username: username.into(), password: PASSWORD.into() }
    }

    #[test]
    fn a_private_image_is_there_when_somebody_who_may_has_pulled_it() {
        let mut images = Images::default();
        assert!(images.find("sim/run").is_some() && images.find(IMAGE).is_none() && images.list().is_empty());
        assert!(matches!(images.pull("sim/run", &[], true), Ok(Reply::Image(Some(_)))));
        for (auths, with) in [(vec![], None), (vec![auth("bob")], None), (vec![auth("bob"), auth("alice")], Some(1))] {
            let pulled = match images.pull(IMAGE, &auths, true) {
                Ok(Reply::Pulled { with, .. }) => with,
                _ => None,
            };
            assert_eq!((pulled, images.find(IMAGE).is_some()), (with, with.is_some()), "{auths:?}");
        }
        assert_eq!(images.list(), [record(IMAGE)]);
        images.remove("sha256:another");
        assert!(images.find(IMAGE).is_some());
        images.remove(&record(IMAGE).id);
        assert!(images.find(IMAGE).is_none());
        let unseen = images.pull(IMAGE, &[auth("alice")], false);
        assert!(matches!(unseen, Ok(Reply::Pulled { image: None, with: Some(0) })) && images.find(IMAGE).is_some());
    }

    #[test]
    fn old_images_take_room_until_they_are_removed() {
        let mut images = Images::default();
        images.has_old(["old.sim/a:1", "old.sim/b:1"].map(str::to_owned).into_iter());
        for (removed, left) in [("sha256:old.sim/c:1", 2), ("sha256:old.sim/a:1", 1), ("sha256:old.sim/b:1", 0)] {
            images.remove(removed);
            let listed: u64 = images.list().iter().map(|image| image.size_bytes).sum();
            assert_eq!((listed, images.old_bytes()), (left * OLD_IMAGE_BYTES, left * OLD_IMAGE_BYTES), "{removed}");
        }
    }

    #[test]
    fn a_private_image_has_a_record_when_a_container_is_made_of_it() {
        let pod = PodRef { namespace: "default".into(), name: "p".into(), uid: "1".into() };
        let record_of = |image: &str| BTreeMap::from([(pulled_name(&record(image).id), Vec::new())]);
        let intent_of = |image: &str| BTreeMap::from([(pulling_name(image), Vec::new())]);
        for (image, records, breaks) in [
            (IMAGE, record_of(IMAGE), false),
            (IMAGE, intent_of(IMAGE), false),
            (IMAGE, record_of("private.sim/alice/app:2"), true),
            (IMAGE, BTreeMap::new(), true),
            ("sim/run", BTreeMap::new(), false),
        ] {
            let mut breaches = Vec::new();
            noted(image, &pod, &records, &mut breaches);
            assert_eq!(!breaches.is_empty(), breaks, "{image} {records:?}");
        }
    }

    #[test]
    fn what_a_pod_had_it_may_have_again_without_its_secret() {
        let secret = json!({"metadata": {"namespace": "default", "name": "alice", "labels": {USER: "alice"}}});
        let pod = |uid: &str| {
            json!({"metadata": {"namespace": "default", "name": uid, "uid": uid},
                "spec": {"imagePullSecrets": [{"name": "alice"}]}})
        };
        let of = |uid: &str| PodRef { namespace: "default".into(), name: uid.into(), uid: uid.into() };
        let pods = || ["1", "2"].map(|uid| ("pod", pod(uid)));
        let (before, after) =
            (Observer::of(pods().into_iter().chain([("secret", secret.clone())])), Observer::of(pods()));
        let (begun, mut images, mut breaches) = (Time::default(), Images::default(), Vec::new());
        images.used(begun, IMAGE, &of("1"), &before, &mut breaches);
        images.secret_gone(begun, &secret);
        for (uid, later, breaks) in [("1", KNOWN * 2, false), ("2", KNOWN * 2, true), ("2", KNOWN / 2, false)] {
            breaches.clear();
            images.used(begun + later, IMAGE, &of(uid), &after, &mut breaches);
            assert_eq!(!breaches.is_empty(), breaks, "{uid} after {later:?}: {breaches:?}");
        }
    }

    #[test]
    fn a_container_is_of_an_image_that_its_pod_can_pull() {
        for (image, secret, breaks) in [
            (IMAGE, "alice", false),
            (IMAGE, "bob", true),
            (IMAGE, "nobody", true),
            (IMAGE, "", true),
            ("sim/run", "", false),
        ] {
            let secrets = if secret.is_empty() { json!([]) } else { json!([{"name": secret}]) };
            let pod = json!({"metadata": {"namespace": "default", "name": "p", "uid": "1"},
                "spec": {"imagePullSecrets": secrets}});
            let metadata =
                |name: &str, user: &str| json!({"namespace": "default", "name": name, "labels": {USER: user}});
            let secrets = SECRETS.map(|(name, user)| ("secret", json!({"metadata": metadata(name, user)})));
            let objects = secrets.into_iter().chain([("pod", pod)]);
            let observer = Observer::of(objects);
            let pod = PodRef { namespace: "default".into(), name: "p".into(), uid: "1".into() };
            let mut breaches = Vec::new();
            Images::default().used(Time::default(), image, &pod, &observer, &mut breaches);
            assert_eq!(!breaches.is_empty(), breaks, "{image} {secret}: {breaches:?}");
        }
    }
}
