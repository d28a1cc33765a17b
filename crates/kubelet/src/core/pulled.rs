//! Which images were pulled and with what, as it is on disk, and what follows of it for pods ([`crate::pulled`]).
//!
//! ```text
//!  lane ─▶ intent on disk ─▶ pull ─┬▶ pulled: record on disk ─▶ intent dropped, and a container is made
//!                                  └▶ failed: intent dropped
//!  intent of an earlier life, or of a pull that did not show its image
//!     ─▶ the image is listed: record without credentials on disk ─▶ intent dropped
//! ```
//!
//! However a life of the kubelet ends, an image that it pulled has an intent or a record, and nobody uses it unasked. A document
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
    /// A listing of images that is newer than this shows the image, if it is still there.
    as_of: OpId,
}

/// An intent to pull an image.
#[derive(Debug)]
struct Meant {
    image: String,
    /// It is of an earlier life, or the image did not show when it had been pulled: a listing tells whether it is there.
    is_left: bool,
    /// The record that takes its place. It is dropped when that is on disk.
    record: Option<String>,
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
                self.records.insert(name.clone(), Known { record, as_of: OpId(0) });
            } else if name.starts_with(PULLING_PREFIX) {
                // Which image it is of says its name alone, where it cannot be read.
                let image = Intent::read(name, bytes).map(|intent| intent.image).unwrap_or_default();
                self.intents.insert(name.clone(), Meant { image, is_left: true, record: None });
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

    /// An image is to be pulled as soon as that [is on disk](Self::is_meant).
    pub fn mean(&mut self, image: &str) {
        self.wanted = true;
        let name = pulling_name(image);
        if let Some(meant) = self.intents.get_mut(&name) {
            image.clone_into(&mut meant.image);
            return;
        }
        self.write(&name, Some(Intent::new(image).document()));
        self.intents.insert(name, Meant { image: image.to_owned(), is_left: false, record: None });
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

    /// How an image came that is there.
    fn origin(&self, image: &str, image_ref: &str) -> Origin<'_> {
        match self.records.get(&pulled_name(image_ref)) {
            Some(Known { record: Some(record), .. }) => Origin::Recorded(record),
            Some(Known { record: None, .. }) => Origin::Unknown,
            None if self.intents.contains_key(&pulling_name(image)) => Origin::Unknown,
            None => Origin::Preloaded,
        }
    }

    /// Notes with what an image was pulled. Returns the name of its record.
    fn note(&mut self, now: Time, as_of: OpId, image: &str, image_ref: &str, with: &Credentials) -> String {
        let name = pulled_name(image_ref);
        let known = self.records.entry(name.clone()).or_insert(Known { record: None, as_of });
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
                    meant.is_left = true;
                }
                return;
            }
            // Whose pull fails must not make an image that was there before one that needs credentials.
            _ => return,
        };
        self.take_place(now, as_of, &pull.image, &found.id, &with);
    }

    /// Images were listed: those that an earlier life may have pulled are verified from now on, whatever pods call them.
    pub fn listed(&mut self, now: Time, as_of: OpId, images: &[ImageRecord]) {
        self.listing = Some(as_of);
        let left: Vec<String> = self.intents.values().filter(|m| m.is_left).map(|m| m.image.clone()).collect();
        for image in left {
            let in_full = ImageName::parse(&image).ok().map(|n| n.listed());
            let is_it = |name: &String| *name == image || Some(name) == in_full.as_ref();
            let Some(found) = images.iter().find(|i| i.names.iter().any(is_it)) else { continue };
            self.take_place(now, as_of, &image, &found.id, &Credentials::default());
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
        let origin = self.pulls.origin(image, &found.id);
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

    /// What was pulled and could not be looked at then is not open to everybody when it shows.
    #[test]
    fn an_image_that_did_not_show_is_verified() {
        let unseen = Ok(Reply::Pulled { image: None, with: Some(0) });
        for (outcome, is_verified) in [(unseen, true), (Err(OpError::Failed("denied".into())), false)] {
            let now = Time::from_unix_s(1);
            let mut pulls = Pulls::default();
            pulls.mean(IMAGE);
            pulls.ended(now, OpId(2), &Pull { image: IMAGE.into(), secrets: Vec::new() }, &outcome);
            pulls.tidy(|_| false);
            assert_eq!(matches!(pulls.origin(IMAGE, ID), Origin::Unknown), is_verified, "{outcome:?}");
            let shown = ImageRecord { id: ID.into(), names: vec![IMAGE.into()], ..ImageRecord::default() };
            pulls.listed(now, OpId(3), &[shown]);
            let is_recorded = matches!(pulls.origin("r.io/a:2", ID), Origin::Recorded(_));
            assert_eq!(is_recorded, is_verified, "{outcome:?}");
        }
    }
}
