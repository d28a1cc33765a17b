//! Which images were pulled and with what, as it is on disk, and what follows of it for pods ([`crate::pulled`]).
//!
//! ```text
//!  lane ─▶ intent on disk ─▶ pull ─┬▶ pulled: record on disk ─▶ intent dropped, and a container is made
//!                                  └▶ failed: images are listed ─▶ nothing has come: intent dropped
//!  intent of an earlier life, or of a pull that failed or did not show its image
//!     ─▶ the image is listed: record without credentials on disk ─▶ intent dropped
//! ```
//!
//! However a life of the kubelet ends, an image that it pulled has an intent or a record, and nobody uses it unasked. A pull that
//! is said to have failed may have brought its image all the same: the runtime was restarted before it could say so, say. A document
//! is written by one operation at a time: two might come to the disk in another order.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;

use super::checkpoint::Checkpoint;
use super::worker::{Lane, Step};
use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Op, OpError, OpId, Outcome, Reply};
use crate::planted::Planted;
use crate::pulled::{
    self, Access, Credentials, Intent, Origin, PULLED_PREFIX, PULLING_PREFIX, PullSecret, PulledRecord, pulled_name,
    pulling_name,
};
use crate::runtime::{ImageRecord, Uid};
use crate::spec::image_name::ImageName;
use crate::spec::pull::Credential;

/// A document on its way to the disk.
#[derive(Debug, Default)]
struct Writing {
    /// What it is to be; none where it is to go.
    wanted: Option<Vec<u8>>,
    /// How far the disk is behind.
    disk: Checkpoint,
}

/// A record of a pulled image.
#[derive(Debug)]
struct Known {
    /// None where it cannot be read.
    record: Option<PulledRecord>,
    /// The image was there when it was last looked for, in this life. Of one that is gone a record may be left, or have come back
    /// with a loss of power.
    is_there: bool,
    /// A listing of images that is newer than this shows the image, if it is still there.
    as_of: OpId,
}

/// An intent to pull an image.
#[derive(Debug)]
struct Meant {
    image: String,
    /// Id of the image that was there under this name before; none where none was, or nobody knows.
    before: Option<String>,
    /// It is of an earlier life, or it failed, or the image did not show when it had been pulled: a listing tells whether it is there.
    is_left: bool,
    /// It failed: a listing that is newer than this shows what has come of it, if anything has.
    failed: Option<OpId>,
    /// The record that takes its place. It is dropped when that is on disk.
    record: Option<String>,
}

impl Meant {
    fn new(image: &str, before: Option<&str>, is_left: bool) -> Self {
        let before = before.map(str::to_owned);
        Self { image: image.to_owned(), before, is_left, failed: None, record: None }
    }

    /// Whether an image is one that goes by this name.
    fn names(&self, found: &ImageRecord) -> bool {
        let in_full = ImageName::parse(&self.image).ok().map(|n| n.listed());
        found.names.iter().any(|name| *name == self.image || Some(name) == in_full.as_ref())
    }

    fn was_there(&self, found: &ImageRecord) -> bool {
        self.before.as_ref() == Some(&found.id)
    }

    /// It has failed, as of now. Of one that is left for another reason it is not known that nothing comes of it.
    fn fail(&mut self, as_of: OpId) {
        if !self.is_left || self.failed.is_some() {
            (self.is_left, self.failed) = (true, Some(as_of));
        }
    }
}

/// A pull under way.
#[derive(Debug)]
struct Pull {
    image: String,
    /// Whose the credentials are that it was given.
    secrets: Vec<PullSecret>,
}

/// What is known of pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// By the names of their documents.
    records: BTreeMap<String, Known>,
    /// By the names of their documents.
    intents: BTreeMap<String, Meant>,
    under_way: BTreeMap<OpId, Pull>,
    /// What is not on disk as it is to be, by name.
    writing: BTreeMap<String, Writing>,
    /// The last listing of images; none before the first.
    listing: Option<OpId>,
    /// Something is to be written, or may be dropped.
    pub due: bool,
    /// Some container may wait for a pull to begin.
    pub wanted: bool,
}

impl Pulls {
    /// Takes over what is on disk. Images may have been listed before that was read.
    pub fn load(&mut self, now: Time, records: &BTreeMap<String, Vec<u8>>, images: &[ImageRecord]) {
        for (name, bytes) in records {
            if name.starts_with(PULLED_PREFIX) {
                let record = PulledRecord::read(name, bytes);
                if record.is_none() {
                    tracing::error!(record = name, "a pulled image's record cannot be read; its pods are verified");
                }
                self.records.insert(name.clone(), Known { record, is_there: false, as_of: OpId(0) });
            } else if name.starts_with(PULLING_PREFIX) {
                // Which image it is of says its name alone, where it cannot be read.
                let image = Intent::read(name, bytes).map(|intent| intent.image).unwrap_or_default();
                self.intents.insert(name.clone(), Meant::new(&image, None, true));
            }
        }
        if let Some(listing) = self.listing {
            self.listed(now, listing, images);
        }
    }

    fn write(&mut self, name: &str, wanted: Option<Vec<u8>>) {
        let writing = self.writing.entry(name.to_owned()).or_default();
        writing.wanted = wanted;
        writing.disk.touch();
        self.due = true;
    }

    /// An image is to be pulled as soon as that [is on disk](Self::is_meant). `before` is the id of what is there under its name. What
    /// another pull may have brought meanwhile was not there before.
    pub fn mean(&mut self, image: &str, before: Option<&str>) {
        self.wanted = true;
        let name = pulling_name(image);
        if let Some(meant) = self.intents.get_mut(&name) {
            image.clone_into(&mut meant.image);
            return;
        }
        self.write(&name, Some(Intent::new(image).document()));
        self.intents.insert(name, Meant::new(image, before, false));
    }

    /// Whether the intent to pull an image is on disk.
    pub fn is_meant(&self, image: &str) -> bool {
        let name = pulling_name(image);
        self.intents.contains_key(&name) && !self.writing.contains_key(&name)
    }

    /// Whether it is on disk with what an image was pulled.
    pub fn is_noted(&self, image_ref: &str) -> bool {
        !self.writing.contains_key(&pulled_name(image_ref))
    }

    /// How many images are being pulled.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// An image is being pulled with these.
    pub fn started(&mut self, id: OpId, image: &str, secrets: Vec<PullSecret>) {
        self.under_way.insert(id, Pull { image: image.to_owned(), secrets });
    }

    /// How an image came that is there. What is being pulled may be asked for by another of its names.
    fn origin(&self, image: &str, found: &ImageRecord) -> Origin<'_> {
        let name = pulling_name(image);
        let may_bring = |(of, meant): (&String, &Meant)| (*of == name || meant.names(found)) && !meant.was_there(found);
        match self.records.get(&pulled_name(&found.id)) {
            Some(Known { record: Some(record), .. }) => Origin::Recorded(record),
            Some(Known { record: None, .. }) => Origin::Unknown,
            None if self.intents.iter().any(may_bring) => Origin::Unknown,
            None => Origin::Preloaded,
        }
    }

    /// Notes with what an image was pulled. Returns the name of its record.
    fn note(&mut self, now: Time, as_of: OpId, image: &str, image_ref: &str, with: &Credentials) -> String {
        let name = pulled_name(image_ref);
        let known = self.records.entry(name.clone()).or_insert(Known { record: None, is_there: true, as_of });
        known.is_there = true;
        known.as_of = known.as_of.max(as_of);
        let is_first = known.record.is_none();
        let record = known.record.get_or_insert_with(|| PulledRecord::new(image_ref, now));
        // What has no name in full is verified each time.
        let is_new = ImageName::parse(image).is_ok_and(|n| record.note(now, &n.repository, with));
        let document = (is_first || is_new).then(|| record.document());
        if document.is_some() {
            self.write(&name, document);
        }
        name
    }

    /// Notes with what an image was pulled. That takes the place of the intent to pull it.
    fn take_place(&mut self, now: Time, as_of: OpId, image: &str, image_ref: &str, with: &Credentials) {
        let record = self.note(now, as_of, image, image_ref, with);
        if let Some(meant) = self.intents.get_mut(&pulling_name(image)) {
            (meant.is_left, meant.record) = (false, Some(record));
        }
        self.due = true;
    }

    /// An image was pulled, or was not.
    fn ended(&mut self, now: Time, as_of: OpId, pull: &Pull, outcome: &Outcome) {
        self.due = true;
        let (found, with) = match outcome {
            Ok(Reply::Pulled { image: Some(found), with: None }) => (found, Credentials::none_needed()),
            Ok(Reply::Pulled { image: Some(found), with: Some(number) }) => {
                (found, pull.secrets.get(*number).cloned().map(Credentials::of).unwrap_or_default())
            }
            Ok(Reply::Image(Some(found))) => (found, Credentials::default()),
            // It is there all the same.
            Ok(Reply::Pulled { image: None, .. }) => {
                if let Some(meant) = self.intents.get_mut(&pulling_name(&pull.image)) {
                    (meant.is_left, meant.failed) = (true, None);
                }
                return;
            }
            // It may have come before that went wrong. What was there before is not made one that needs credentials.
            _ => {
                if let Some(meant) = self.intents.get_mut(&pulling_name(&pull.image)) {
                    meant.fail(as_of);
                }
                return;
            }
        };
        let was_there = self.intents.get(&pulling_name(&pull.image)).is_some_and(|meant| meant.was_there(found));
        // It came anew: whoever could use it when it was here before could so then.
        if let Some(known) = self.records.get_mut(&pulled_name(&found.id)).filter(|k| !k.is_there && !was_there) {
            known.record = None;
        }
        self.take_place(now, as_of, &pull.image, &found.id, &with);
    }

    /// Images were listed: those that an earlier life may have pulled, or a pull that failed, are verified from now on, whatever pods
    /// call them.
    pub fn listed(&mut self, now: Time, as_of: OpId, images: &[ImageRecord]) {
        self.listing = Some(as_of);
        let mut came = Vec::new();
        for meant in self.intents.values_mut().filter(|m| m.is_left) {
            let found = images.iter().find(|i| meant.names(i));
            match (found, meant.failed) {
                (Some(found), failed) if failed.is_none() || !meant.was_there(found) => {
                    came.push((meant.image.clone(), &found.id));
                }
                // Nothing has come of it.
                (_, Some(failed)) if failed < as_of => (meant.is_left, self.due) = (false, true),
                _ => {}
            }
        }
        for (image, id) in came {
            self.take_place(now, as_of, &image, id, &Credentials::default());
        }
        if self.records.values().any(|known| known.as_of < as_of) {
            let there: BTreeSet<String> = images.iter().map(|i| pulled_name(&i.id)).collect();
            for (name, known) in self.records.iter_mut().filter(|(_, known)| known.as_of < as_of) {
                known.is_there = there.contains(name);
            }
        }
    }

    /// Forgets images that the last listing does not show any more.
    pub fn prune(&mut self, images: &[ImageRecord]) {
        let Some(listing) = self.listing.filter(|_| !self.records.is_empty()) else { return };
        let there: BTreeSet<String> = images.iter().map(|i| pulled_name(&i.id)).collect();
        let is_gone = |name: &String, known: &Known| known.as_of < listing && !there.contains(name);
        let gone: Vec<String> = self.records.iter().filter(|(n, k)| is_gone(n, k)).map(|(n, _)| n.clone()).collect();
        for name in gone {
            self.records.remove(&name);
            self.write(&name, None);
        }
    }

    /// Drops intents that nothing comes of any more. `waits` says that a container waits for one.
    fn tidy(&mut self, waits: impl Fn(&str) -> bool) {
        let pulled: BTreeSet<&str> = self.under_way.values().map(|p| p.image.as_str()).collect();
        let is_over = |m: &Meant| {
            let is_recorded = m.record.as_ref().is_none_or(|record| !self.writing.contains_key(record));
            !m.is_left && is_recorded && !pulled.contains(m.image.as_str()) && !waits(&m.image)
        };
        let over: Vec<String> = self.intents.iter().filter(|(_, m)| is_over(m)).map(|(n, _)| n.clone()).collect();
        for name in over {
            self.intents.remove(&name);
            self.write(&name, None);
        }
    }
}

impl KubeletCore {
    /// Whether a pod that gives these credentials for an image may use it as it is.
    pub(super) fn may_use(&mut self, now: Time, image: &str, found: &ImageRecord, credentials: &[Credential]) -> bool {
        let secrets: Vec<PullSecret> = credentials.iter().map(|c| c.secret.clone()).collect();
        let origin = self.pulls.origin(image, found);
        match pulled::access(&self.config.image_verification, image, origin, &secrets) {
            Access::Granted => true,
            Access::GrantedBy(secret) => {
                self.pulls.note(now, OpId(0), image, &found.id, &Credentials::of(secret));
                true
            }
            Access::Verify => false,
        }
    }

    /// Whether a container of the pod was made of an image. What it had once it has again, without the registry and its secret,
    /// which upstream asks for again: nobody but this pod sees anything by it, and it is not to end because others pulled the
    /// image since, or because no secret can be read just now.
    pub(super) fn has_used(&self, uid: &Uid, found: &ImageRecord) -> bool {
        // A container's image is told by its id or by a digest. Where a tag leads may have changed since.
        let is_it = |name: &String| *name == found.id || name.contains('@') && found.names.contains(name);
        self.runtime.get(uid).is_some_and(|r| r.containers.iter().any(|c| is_it(&c.image_ref) || is_it(&c.image)))
    }

    /// An operation ended, which may have been a pull.
    pub(super) fn pull_ended(&mut self, now: Time, id: OpId, outcome: &Outcome, fx: &mut Fx) {
        if outcome.is_err() && self.planted == Some(Planted::FailedPullsHold) {
            return;
        }
        if let Some(pull) = self.pulls.under_way.remove(&id) {
            let as_of = OpId(fx.fresh());
            self.pulls.ended(now, as_of, &pull, outcome);
            if outcome.is_err() {
                // What has come of it all the same shows at once, or whoever brings the image here by hand now would be taken for it.
                self.op(Owner::ListImages, Op::ListImages, fx);
            }
        }
    }

    /// Writes what is not on disk as it is to be.
    pub(super) fn write_pulls(&mut self, now: Time, fx: &mut Fx) {
        if !self.loaded || !std::mem::take(&mut self.pulls.due) {
            return;
        }
        let waiting: BTreeSet<&str> = self
            .workers
            .values()
            .flat_map(|w| w.lanes.values())
            .filter_map(|l| if let Step::MeanPull { image } = &l.step { Some(image.as_str()) } else { None })
            .collect();
        self.pulls.tidy(|image| waiting.contains(image));
        let due = self.pulls.writing.iter().filter(|(_, w)| w.disk.may_save(now));
        let due: Vec<(String, Op)> = due
            .map(|(name, w)| {
                let op = match &w.wanted {
                    Some(body) => Op::SaveRecord { name: name.clone(), body: body.clone() },
                    None => Op::DropRecord(name.clone()),
                };
                (name.clone(), op)
            })
            .collect();
        for (name, op) in due {
            let id = self.op(Owner::Pulls(name.clone()), op, fx);
            if let Some(writing) = self.pulls.writing.get_mut(&name) {
                writing.disk.saving(id);
            }
        }
    }

    /// Tells why they do not go on to those containers that wait for a document.
    fn tell_unwritten(&mut self, name: &str, error: &OpError) {
        let waits = |lane: &Lane| match &lane.step {
            Step::MeanPull { image } => pulling_name(image) == name,
            Step::NotePull => lane.image.as_ref().is_some_and(|image| pulled_name(&image.id) == name),
            _ => false,
        };
        for w in self.workers.values_mut() {
            let waiting = w.lanes.iter().filter(|(_, lane)| waits(lane));
            for container in waiting.map(|(container, _)| container.clone()).collect::<Vec<_>>() {
                w.wait(&container, "ErrImagePull", format!("failed to write down what is pulled: {error}"));
            }
        }
    }

    /// A document was written, or was not.
    pub(super) fn pull_written(&mut self, now: Time, name: &str, outcome: &Outcome) {
        let Some(writing) = self.pulls.writing.get_mut(name) else { return };
        let again = writing.disk.saved(now, outcome.is_ok());
        if !writing.disk.is_behind() {
            self.pulls.writing.remove(name);
        }
        if let Some(at) = again {
            self.wake(at, Wake::Pulls);
        }
        if let Err(error) = outcome {
            tracing::error!(record = name, %error, "a document about a pull was not written");
            self.tell_unwritten(name, error);
        }
        self.pulls.due = true;
        self.dirty.extend(self.workers.iter().filter(|(_, w)| !w.lanes.is_empty()).map(|(uid, _)| uid.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "r.io/a:1";
    const ID: &str = "sha256:1";

    fn shown() -> ImageRecord {
        ImageRecord { id: ID.into(), names: vec![IMAGE.into()], ..ImageRecord::default() }
    }

    fn pull(secrets: Vec<PullSecret>) -> Pull {
        Pull { image: IMAGE.into(), secrets }
    }

    /// What a pull has brought is not open to everybody when it shows, whatever was said of the pull, and under whatever name. What was
    /// there before is.
    #[test]
    fn what_a_pull_may_have_brought_is_verified() {
        let now = Time::from_unix_s(1);
        let unseen: Outcome = Ok(Reply::Pulled { image: None, with: Some(0) });
        let failed: Outcome = Err(OpError::Failed("the runtime went away".into()));
        for (outcome, before, is_verified) in [
            (&unseen, None, true),
            (&failed, None, true),
            (&failed, Some("sha256:0"), true),
            (&failed, Some(ID), false),
        ] {
            let what = format!("{outcome:?}, before: {before:?}");
            let mut pulls = Pulls::default();
            pulls.mean(IMAGE, before);
            pulls.ended(now, OpId(2), &pull(Vec::new()), outcome);
            // What was listed before it ended tells nothing.
            pulls.listed(now, OpId(1), &[]);
            pulls.tidy(|_| false);
            for name in [IMAGE, "r.io/a:2"] {
                assert_eq!(matches!(pulls.origin(name, &shown()), Origin::Unknown), is_verified, "{what}, {name}");
            }
            pulls.listed(now, OpId(3), &[shown()]);
            let is_recorded = matches!(pulls.origin("r.io/a:2", &shown()), Origin::Recorded(_));
            assert_eq!(is_recorded, is_verified, "{what}");
            pulls.tidy(|_| false);
            assert_eq!(pulls.intents.is_empty(), !is_verified, "{what}: it goes when the record is on disk");
        }
    }

    /// Of a pull that has brought nothing nothing stays. One that has brought what did not show is waited for.
    #[test]
    fn what_brings_nothing_leaves_nothing() {
        let now = Time::from_unix_s(1);
        let unseen: Outcome = Ok(Reply::Pulled { image: None, with: Some(0) });
        let failed: Outcome = Err(OpError::Failed("denied".into()));
        for (outcomes, stays) in
            [(&[&failed][..], false), (&[&failed, &failed], false), (&[&failed, &unseen, &failed], true)]
        {
            let mut pulls = Pulls::default();
            for outcome in outcomes {
                pulls.mean(IMAGE, None);
                pulls.ended(now, OpId(2), &pull(Vec::new()), outcome);
            }
            pulls.listed(now, OpId(3), &[]);
            pulls.tidy(|_| false);
            assert_eq!(!pulls.intents.is_empty(), stays, "{outcomes:?}");
        }
    }

    /// Of an image that was removed a record may be left, or have come back when power was lost. Who pulls the image anew does so with
    /// what it takes now.
    #[test]
    fn a_record_that_came_back_opens_no_image_that_is_pulled_anew() {
        let now = Time::from_unix_s(1);
        let mut old = PulledRecord::new(ID, now);
        assert!(old.note(now, "r.io/a", &Credentials::none_needed()));
        let records = BTreeMap::from([(pulled_name(ID), old.document())]);
        let secret =
            PullSecret { namespace: "n".into(), name: "s".into(), uid: "1".into(), credential_hash: "h".into() };
        let outcome: Outcome = Ok(Reply::Pulled { image: Some(shown()), with: Some(0) });
        for (before, listed, is_open) in [
            (None, None, false),
            (None, Some(Vec::new()), false),
            // It was there all the time: under this name, or under another one.
            (Some(ID), None, true),
            (None, Some(vec![shown()]), true),
        ] {
            let mut pulls = Pulls::default();
            pulls.load(now, &records, &[]);
            if let Some(images) = &listed {
                pulls.listed(now, OpId(1), images);
            }
            pulls.mean(IMAGE, before);
            pulls.ended(now, OpId(2), &pull(vec![secret.clone()]), &outcome);
            let policy = pulled::Verification::default();
            let access = pulled::access(&policy, IMAGE, pulls.origin(IMAGE, &shown()), &[]);
            assert_eq!(access == Access::Granted, is_open, "{before:?} {listed:?}");
        }
    }
}
