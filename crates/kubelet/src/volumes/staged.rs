//! Volumes made ready for the node as a whole, before any pod gets its part of them.
//!
//! ```text
//!          wanted          recorded, in use told       no user, surely
//!  absent ───────▶ record ─────────────────▶ stage ─▶ staged ─────────▶ unstage ─▶ drop record
//!                             and attached         ▲        │ failed        │
//!                                                  └backoff─┴───────────────┘
//! ```
//!
//! A volume that the control plane attaches is staged only when one and the same revision of the Node names it both in
//! use and attached, and no write of this kubelet can come after that revision without the volume: whoever detaches
//! begins with a write that rests on the Node not naming it in use. The attachment itself is read after that.
//!
//! Who has it the Node tells in the same write. A pod gets its part only when its user is named there, so that the control plane
//! knows everybody who may write to the disk of a node that has died; and only while that same revision has the volume attached.
//! A volume that was taken from a node while that was not heard is mounted there still, and may be another node's by now: no
//! pod gets a part of that mount until the Node has it attached again, and once no pod has a part of it, it is undone before
//! the volume is made ready anew.
//!
//! The record comes before the first call to the driver, and goes after the last. A volume has a user
//! as long as any pod's part of it is or may be there; what a restarted kubelet finds in its records
//! counts as a user until it is proved away. Whether the device is free is proved once more by whoever
//! carries [`Staging`] back: it looks at every mount namespace and at who has the device open.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::volume::DEVICE_PATH;
use serde::{Deserialize, Serialize};

use super::origin::Origin;
use super::{Use, backoff};
use crate::effects::{OpError, OpId, Reply};

/// Secrets for a driver. Never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// What is known on disk about a volume of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staging {
    /// Its unique name.
    pub id: String,
    /// Its origin.
    pub origin: Origin,
    /// Where it is mounted for the node.
    pub path: String,
    /// The device, once the driver named one.
    pub device: Option<String>,
    /// The device's own identity, `major:minor` with the boot it is of: a name alone may be
    /// another device's after a restart.
    pub identity: Option<String>,
    /// A FlexVolume that the control plane attached, and detaches.
    #[serde(default)]
    pub by_control_plane: bool,
}

/// Whether the control plane has attached it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Attached {
    /// Nothing has to be attached, or the driver does it when it stages.
    #[default]
    NotNeeded,
    /// Not yet; the text says what is waited for.
    Waiting(String),
    /// When the Node says so, and names the device.
    ByNode,
    /// It is.
    With {
        /// What the attacher says about it.
        context: BTreeMap<String, String>,
        /// When this was asked for. An answer to an older question may be about an attachment that has ended since.
        read_at: Time,
    },
}

/// What a driver needs besides the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageInputs {
    /// Attachment.
    pub attached: Attached,
    /// Secrets of the node stage.
    pub secrets: Secrets,
    /// Group for drivers that take it at mounting.
    pub fs_group: Option<i64>,
    /// The rest of this could not be read: it is only looked at whether the volume is there as the
    /// record says.
    pub confirm_only: bool,
}

impl StageInputs {
    /// With the device that the Node names, where that is who says it.
    fn with(&self, device: Option<String>, now: Time) -> Self {
        let mut inputs = self.clone();
        if let (Attached::ByNode, Some(device)) = (&self.attached, device) {
            let context = BTreeMap::from([(DEVICE_PATH.to_owned(), device)]);
            inputs.attached = Attached::With { context, read_at: now };
        }
        inputs
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Recording,
    Staging,
    Unstaging,
    Dropping,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Actual {
    Absent,
    #[default]
    Uncertain,
    Staged,
}

#[derive(Clone, Debug)]
struct State {
    staging: Staging,
    inputs: StageInputs,
    actual: Actual,
    /// What the record on disk says.
    recorded: Option<Staging>,
    op: Option<(OpId, Doing)>,
    error: Option<String>,
    retry_at: Time,
    failures: u32,
    /// Since when the control plane has been bound to leave it where it is.
    held_since: Option<Time>,
    /// What the Node says of it, as of the last look: that it is in use, that it is attached, and who may have it.
    in_use: bool,
    attached: bool,
    users: BTreeSet<String>,
    /// It was taken from the node while it was ready.
    lost: bool,
    /// Nothing of it is here any more, and the control plane has not detached it yet: another volume of its name would be
    /// taken for it.
    left: bool,
}

/// What the Node says about a volume, in one revision that no write of this kubelet can still come after unseen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// `volumesInUse` names it: whoever detaches finds that, since a detach begins with a write that rests on it.
    pub in_use: bool,
    /// `volumesAttached` names it, with this device: no detach has begun.
    pub attached: Option<String>,
    /// Who is named as one that may have it ([`VOLUME_USERS`](carrack_types::volume::VOLUME_USERS)).
    pub users: BTreeSet<String>,
}

/// Something to do about a volume of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageAction {
    /// Write its record.
    Record(Box<Staging>),
    /// Make it ready.
    Stage(Box<Staging>, StageInputs),
    /// Undo that, with proof that nobody has it.
    Unstage(Box<Staging>),
    /// Drop its record.
    Drop(String),
}

/// How far a volume of the node is, for a pod that wants its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Ready.
    Staged(Box<Staging>),
    /// Under way.
    Pending,
    /// Why not, when that is known.
    Failed(String),
}

/// All volumes of the node.
#[derive(Clone, Debug, Default)]
pub struct StagedVolumes {
    volumes: BTreeMap<String, State>,
}

impl State {
    /// One of which nothing has been heard, and nothing is recorded.
    fn new(staging: Staging, actual: Actual) -> Self {
        Self {
            staging,
            inputs: StageInputs::default(),
            actual,
            recorded: None,
            op: None,
            error: None,
            retry_at: Time::default(),
            failures: 0,
            held_since: None,
            in_use: false,
            attached: false,
            users: BTreeSet::new(),
            lost: false,
            left: false,
        }
    }

    /// Whether the control plane has to attach it.
    fn is_attached_by_others(&self) -> bool {
        self.staging.origin.attachable() && self.inputs.attached != Attached::NotNeeded
    }

    /// Whether nobody else takes it away.
    fn stays(&self) -> bool {
        !self.staging.origin.attachable() || self.in_use && (self.attached || !self.is_attached_by_others())
    }

    /// Takes note of what the Node says. Returns whether pods may get parts that could not before.
    fn hears(&mut self, told: &Told) -> bool {
        let stayed = self.stays();
        let is_new = !told.users.is_subset(&self.users);
        (self.in_use, self.attached) = (told.in_use, told.attached.is_some());
        self.users.clone_from(&told.users);
        let ready = self.actual == Actual::Staged;
        self.lost |= ready && self.in_use && !self.attached && self.is_attached_by_others();
        is_new || !stayed && self.stays()
    }

    /// Whether it may be made ready: nobody else takes it away meanwhile, and what is known of its attachment is of the
    /// one that cannot end now.
    fn held(&mut self, now: Time) -> bool {
        self.held_since = if self.stays() { self.held_since.or(Some(now)) } else { None };
        match (&self.inputs.attached, self.held_since) {
            (_, None) | (Attached::Waiting(_), _) => false,
            (Attached::With { read_at, .. }, Some(since)) => *read_at >= since,
            (Attached::NotNeeded | Attached::ByNode, Some(_)) => true,
        }
    }
}

impl StagedVolumes {
    /// Takes over a record. `is_there` says that the disk shows the same device mounted in the same boot.
    pub fn restore(&mut self, staging: Staging, is_there: bool) {
        let actual = if is_there { Actual::Staged } else { Actual::Uncertain };
        self.volumes
            .entry(staging.id.clone())
            .or_insert_with(|| State { recorded: Some(staging.clone()), ..State::new(staging, actual) });
    }

    /// A pod wants it; tells how far it is. `newcomer` names the user whose pod has no part in it yet: it gets one when the
    /// control plane knows of that user.
    pub fn want(
        &mut self,
        id: &str,
        origin: &Origin,
        path: String,
        inputs: StageInputs,
        newcomer: Option<&str>,
    ) -> Progress {
        let v = self.volumes.entry(id.to_owned()).or_insert_with(|| {
            let staging = Staging {
                id: id.to_owned(),
                origin: origin.of_node(),
                path,
                device: None,
                identity: None,
                by_control_plane: inputs.attached == Attached::ByNode,
            };
            State::new(staging, Actual::Absent)
        });
        v.inputs = inputs;
        v.left = false;
        let newcomer = newcomer.filter(|_| v.staging.origin.attachable());
        let untold = newcomer.is_some_and(|user| !v.users.contains(user) || !v.stays());
        match (&v.actual, &v.error, &v.inputs.attached) {
            (Actual::Staged, _, Attached::Waiting(what)) if newcomer.is_some() => Progress::Failed(what.clone()),
            (Actual::Staged, ..) if untold => Progress::Pending,
            (Actual::Staged, ..) if !matches!(v.op, Some((_, Doing::Unstaging | Doing::Dropping))) => {
                Progress::Staged(Box::new(v.staging.clone()))
            }
            (_, Some(error), _) => Progress::Failed(error.clone()),
            (_, None, Attached::Waiting(what)) => Progress::Failed(what.clone()),
            (_, None, Attached::ByNode) if v.held_since.is_none() => {
                Progress::Failed(format!("volume {:?} is not attached to the node yet", v.staging.origin.spec_name))
            }
            _ => Progress::Pending,
        }
    }

    /// Names that are to be told to the control plane as in use: whatever is or may be there.
    pub fn in_use(&self) -> impl Iterator<Item = &str> {
        self.volumes.values().filter(|v| v.staging.origin.attachable() && !v.left).map(|v| v.staging.id.as_str())
    }

    /// Whether its driver is being asked something about it as a whole.
    #[must_use]
    pub fn is_busy(&self, id: &str) -> bool {
        let op = self.volumes.get(id).and_then(|v| v.op.as_ref());
        matches!(op, Some((_, Doing::Staging | Doing::Unstaging)))
    }

    /// Its record, if it is known.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Staging> {
        self.volumes.get(id).map(|v| &v.staging)
    }

    /// What to do now, and the volumes of which pods may get parts that could not before: another user has just been told, or it is
    /// attached. `uses` says what pods have to do with a volume, `told` what the Node says of it; `users_known`, that every pod of
    /// this node has been heard of, so that no user is missing from `uses`.
    pub fn step(
        &mut self,
        now: Time,
        users_known: bool,
        uses: impl Fn(&str) -> Use,
        told: impl Fn(&str) -> Told,
    ) -> (Vec<StageAction>, Vec<String>) {
        let (mut actions, mut newly) = (Vec::new(), Vec::new());
        self.volumes.retain(|id, v| {
            let said = told(id);
            if v.hears(&said) {
                newly.push(id.clone());
            }
            let held = v.held(now);
            if v.op.is_some() || v.retry_at > now {
                return true;
            }
            let behind = v.recorded.as_ref() != Some(&v.staging);
            let of = uses(id);
            // Who wants it has no part of it yet, and is not to get one of this.
            let void = v.lost && v.actual != Actual::Absent && !of.there && users_known;
            if of.wanted && !void {
                v.left = false;
                let ready = v.actual == Actual::Staged;
                if behind {
                    actions.push(StageAction::Record(Box::new(v.staging.clone())));
                } else if !ready && held && !of.busy {
                    actions.push(StageAction::Stage(Box::new(v.staging.clone()), v.inputs.with(said.attached, now)));
                }
                return true;
            }
            if of.there || !users_known {
                return true;
            }
            match (v.actual, &v.recorded) {
                (Actual::Absent, None) => {
                    v.left = v.staging.by_control_plane && said.attached.is_some();
                    return v.left;
                }
                (Actual::Absent, Some(_)) => actions.push(StageAction::Drop(id.clone())),
                _ => actions.push(StageAction::Unstage(Box::new(v.staging.clone()))),
            }
            true
        });
        (actions, newly)
    }

    /// An action was started under an id.
    pub fn started(&mut self, action: &StageAction, op: OpId) {
        let (id, doing) = match action {
            StageAction::Record(s) => (&s.id, Doing::Recording),
            StageAction::Stage(s, _) => (&s.id, Doing::Staging),
            StageAction::Unstage(s) => (&s.id, Doing::Unstaging),
            StageAction::Drop(id) => (id, Doing::Dropping),
        };
        if let Some(v) = self.volumes.get_mut(id) {
            v.op = Some((op, doing));
            // From here until the outcome it is not known what is there.
            if matches!(doing, Doing::Staging | Doing::Unstaging) {
                v.actual = Actual::Uncertain;
            }
        }
    }

    /// A driver could give nobody a part of it: whatever that has said, it may not be there. It is made sure of before the next try,
    /// which may be done twice. Upstream's kubelet once staged a volume before each try, and takes the driver's word for good since
    /// (`GenerateMountVolumeFunc`, `pkg/volume/util/operationexecutor`): its pod waits until somebody deletes it.
    pub fn doubt(&mut self, id: &str) {
        if let Some(v) = self.volumes.get_mut(id).filter(|v| v.op.is_none() && v.actual == Actual::Staged) {
            v.actual = Actual::Uncertain;
        }
    }

    /// An action ended. Returns an error to tell of.
    pub fn done(&mut self, now: Time, id: &str, op: OpId, outcome: &Result<Reply, OpError>) -> Option<String> {
        let v = self.volumes.get_mut(id)?;
        let (_, doing) = v.op.take_if(|(o, _)| *o == op)?;
        match outcome {
            Ok(reply) => {
                v.error = None;
                v.failures = 0;
                v.retry_at = Time::default();
                match (doing, reply) {
                    // What was recorded is what was there to be recorded: it changes only when staged.
                    (Doing::Recording, _) => v.recorded = Some(v.staging.clone()),
                    (Doing::Staging, Reply::Staged { device, identity }) => {
                        v.actual = Actual::Staged;
                        v.staging.device.clone_from(device);
                        v.staging.identity.clone_from(identity);
                    }
                    (Doing::Staging, _) => v.actual = Actual::Staged,
                    (Doing::Unstaging, _) => {
                        v.actual = Actual::Absent;
                        v.lost = false;
                        // The next device may be another one. The record on disk still names this one, which
                        // only makes the next look at it more careful.
                        v.staging.device = None;
                        v.staging.identity = None;
                    }
                    (Doing::Dropping, _) => v.recorded = None,
                }
                None
            }
            Err(e) => {
                v.failures += 1;
                v.retry_at = now + backoff(v.failures).min(Duration::from_secs(122));
                v.error = Some(e.to_string());
                v.error.clone()
            }
        }
    }

    /// When something is to be tried again.
    #[must_use]
    pub fn next_retry(&self, now: Time) -> Option<Time> {
        self.volumes.values().filter(|v| v.op.is_none() && v.retry_at > now).map(|v| v.retry_at).min()
    }
}
