//! The attacher: what VolumeAttachments say is done, and what was done is looked at now and then.
//!
//! ```text
//!   new ─▶ finalizer ─▶ attach ─▶ attached, with the device ─▶ isattached ─▶ no more: attach
//!                                        └─▶ going ─▶ detach ─▶ no finalizer
//! ```
//!
//! The finalizer comes before the first call and goes after the last. What an attachment is for is written on it when it is
//! made, so that it can be ended without its volume. A disk that has been lost (its machine was switched off, say) is
//! attached again and may be another device then (upstream's `VolumesAreAttached`).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use carrack_types::volume::{DEVICE_PATH, FLEX_ATTACHER, UNIQUE_NAME, flex_of_unique_name};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};
use serde_json::json;

use super::calls::{Answer, Call, Calls, Disk, told, told_inline};
use crate::asking::ANOTHER_ANSWER;

const NAME: &str = "flexvolume-attacher";
pub(super) const FINALIZER: &str = "external-attacher/flexvolume-carrack-io";
/// How often it is looked whether disks are where they are to be (upstream's `attach-detach-reconcile-sync-period`).
const CHECK: Duration = Duration::from_secs(60);

/// The controller.
pub(super) struct Attacher {
    calls: Calls,
    /// When attachments were looked at.
    checked: BTreeMap<Key, Time>,
    /// Disks that were not where they are to be, until they are attached again; and whether they are detached before.
    lost: BTreeMap<Key, bool>,
    /// A planted bug: what is not known is taken for lost.
    guesses: bool,
}

impl Attacher {
    pub fn new(calls: Calls) -> Self {
        Self { calls, checked: BTreeMap::new(), lost: BTreeMap::new(), guesses: false }
    }

    /// Plants the bug that what is not known is taken for lost.
    pub fn guessing(self) -> Self {
        Self { guesses: true, ..self }
    }
}

/// A call failed: the attachment says so, unless it does already.
fn failed(attachment: &VolumeAttachment, field: &str, before: Option<&VolumeError>, error: String, now: Time) -> Plan {
    let known = before.and_then(|e| e.message.as_ref()) == Some(&error);
    let plan = Plan::failed(error.clone());
    if known {
        return plan;
    }
    plan.patch_status(attachment, json!({"status": {field: {"time": now.rfc3339(), "message": error}}}))
}

impl Attacher {
    fn detach(&mut self, key: &Key, attachment: &VolumeAttachment, disk: Disk, now: Time) -> Plan {
        let node = attachment.spec.node_name.clone();
        match self.calls.ask(NAME, key, Call::Detach { disk, node }) {
            None => Plan::none(),
            Some(Ok(_)) => Plan::none().without_finalizer(attachment, FINALIZER),
            Some(Err(error)) => {
                let before = attachment.status.as_ref().and_then(|s| s.detach_error.as_ref());
                failed(attachment, "detachError", before, error, now)
            }
        }
    }

    fn attach(&mut self, key: &Key, attachment: &VolumeAttachment, disk: Disk, options: String, now: Time) -> Plan {
        let node = attachment.spec.node_name.clone();
        match self.calls.ask(NAME, key, Call::Attach { disk, options, node }) {
            None => Plan::none(),
            Some(Ok(Answer::Attached(device))) => {
                self.checked.insert(key.clone(), now);
                self.lost.remove(key);
                let metadata = json!({DEVICE_PATH: device});
                let status = json!({"attached": true, "attachError": null, "attachmentMetadata": metadata});
                Plan::none().patch_status(attachment, json!({ "status": status }))
            }
            Some(Ok(_)) => Plan::failed(ANOTHER_ANSWER),
            Some(Err(error)) => {
                let before = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
                failed(attachment, "attachError", before, error, now)
            }
        }
    }

    /// Attaches a lost disk again. Its node is not told that it has none meanwhile: it may use it, and nothing is taken.
    fn again(&mut self, key: &Key, attachment: &VolumeAttachment, disk: Disk, options: String, now: Time) -> Plan {
        if self.lost.get(key) == Some(&true) {
            let node = attachment.spec.node_name.clone();
            if self.calls.ask(NAME, key, Call::Detach { disk: disk.clone(), node }).is_none() {
                return Plan::none();
            }
            self.lost.insert(key.clone(), false);
        }
        self.attach(key, attachment, disk, options, now)
    }

    fn check(&mut self, key: &Key, attachment: &VolumeAttachment, disk: Disk, options: String, now: Time) -> Plan {
        let every = if self.guesses { Duration::from_secs(2) } else { CHECK };
        let since = self.checked.get(key).map_or(every, |at| now.since(*at));
        if since < every {
            return Plan::none().requeue_after(every.saturating_sub(since));
        }
        let node = attachment.spec.node_name.clone();
        match self.calls.ask(NAME, key, Call::IsAttached { disk: disk.clone(), options: options.clone(), node }) {
            None => Plan::none(),
            Some(Err(_)) if self.guesses => {
                self.lost.insert(key.clone(), true);
                self.again(key, attachment, disk, options, now)
            }
            Some(Ok(Answer::IsAttached(Some(false)))) => {
                tracing::warn!(volume = disk.volume, "it is attached no more, says its driver");
                self.lost.insert(key.clone(), false);
                self.again(key, attachment, disk, options, now)
            }
            // What is not known changes nothing.
            Some(_) => {
                self.checked.insert(key.clone(), now);
                Plan::none().requeue_after(every)
            }
        }
    }
}

impl Controller for Attacher {
    fn name(&self) -> &'static str {
        NAME
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VolumeAttachment>();
        setup.read::<PersistentVolume>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(attachment) = view.get::<VolumeAttachment>("", &key.name) else {
            self.checked.remove(key);
            self.lost.remove(key);
            return Plan::none();
        };
        if attachment.spec.attacher != FLEX_ATTACHER {
            return Plan::none();
        }
        let held = attachment.has_finalizer(FINALIZER);
        if attachment.is_deleting() {
            let name = attachment.annotation(UNIQUE_NAME).and_then(flex_of_unique_name);
            let Some((driver, volume)) = name.filter(|_| held) else { return Plan::none() };
            let disk = Disk { driver: driver.to_owned(), volume: volume.to_owned() };
            return self.detach(key, attachment, disk, now);
        }
        let told = match attachment.spec.source.persistent_volume_name.as_deref() {
            Some(volume) => view.get::<PersistentVolume>("", volume).and_then(|v| told(v)),
            None => told_inline(attachment),
        };
        let Some((disk, options)) = told else { return Plan::none() };
        if !held {
            return Plan::none().with_finalizer(attachment.as_ref(), FINALIZER);
        }
        match attachment.status.as_ref().is_some_and(|s| s.attached) {
            true if self.lost.contains_key(key) => self.again(key, attachment, disk, options, now),
            true => self.check(key, attachment, disk, options, now),
            false => self.attach(key, attachment, disk, options, now),
        }
    }
}
