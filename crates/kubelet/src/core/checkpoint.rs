//! How far a checkpoint on disk is behind.

use std::time::Duration;

use carrack_engine::Time;

use crate::effects::OpId;

/// How long a change may wait that nobody waits for: others that follow go with it.
const MAY_WAIT: Duration = Duration::from_secs(1);

/// How far a checkpoint on disk is behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checkpoint {
    /// Counts changes.
    pub version: u64,
    /// The last change that is surely on disk.
    pub saved: u64,
    /// The write under way, and the change it holds.
    saving: Option<(OpId, u64)>,
    retry_at: Time,
}

impl Checkpoint {
    /// Something changed; returns the version that holds it.
    pub fn touch(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Whether something is not on disk yet.
    pub fn is_behind(&self) -> bool {
        self.saved < self.version
    }

    /// Whether to write it now.
    pub fn may_save(&self, now: Time) -> bool {
        self.is_behind() && self.saving.is_none() && now >= self.retry_at
    }

    /// It is being written.
    pub fn saving(&mut self, id: OpId) {
        self.saving = Some((id, self.version));
    }

    /// It was written, or not: then the time to try again is returned.
    pub fn saved(&mut self, now: Time, written: bool) -> Option<Time> {
        let (_, version) = self.saving.take()?;
        if written {
            self.saved = version;
            return None;
        }
        self.retry_at = now + Duration::from_secs(1);
        Some(self.retry_at)
    }
}

/// One whose changes may wait for a moment, unless somebody waits for them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patient {
    checkpoint: Checkpoint,
    /// The last change that is waited for.
    urgent: u64,
    /// By when the others are to be written.
    due_at: Option<Time>,
}

impl Patient {
    /// Something changed that nobody waits for.
    pub fn touch(&mut self) {
        self.checkpoint.touch();
    }

    /// Something changed that is waited for; returns the version that holds it.
    pub fn touch_urgently(&mut self) -> u64 {
        self.urgent = self.checkpoint.touch();
        self.urgent
    }

    /// Whether a version is on disk.
    pub fn has(&self, version: u64) -> bool {
        self.checkpoint.saved >= version
    }

    /// It is being written.
    pub fn saving(&mut self, id: OpId) {
        self.checkpoint.saving(id);
    }

    /// It was written: who waits for a change after the version that is returned may wait no more. Or it was not: then the time
    /// to try again is returned.
    pub fn saved(&mut self, now: Time, written: bool) -> Result<u64, Time> {
        let before = self.checkpoint.saved;
        self.checkpoint.saved(now, written).map_or(Ok(before), Err)
    }

    /// Whether to write it now; else when to look again, if anything is to be written.
    pub fn may_save(&mut self, now: Time) -> Result<(), Option<Time>> {
        if !self.checkpoint.is_behind() {
            self.due_at = None;
            return Err(None);
        }
        let due = *self.due_at.get_or_insert(now + MAY_WAIT);
        let waited_for = !self.has(self.urgent);
        match self.checkpoint.may_save(now) {
            true if waited_for || due <= now => {
                self.due_at = None;
                Ok(())
            }
            true => Err(Some(due)),
            // Its end, or the time to try again, is a reason to look.
            false => Err(None),
        }
    }
}
