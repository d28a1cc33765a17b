//! A clone's status: phase and conditions together.
//!
//! Reasons of conditions are KubeVirt's, which are sentences at times. The same words are in the message, where sentences
//! belong.

use carrack_engine::{Plan, Time};
use carrack_types::kubevirt::clone::phase;
use carrack_types::kubevirt::{Condition, VirtualMachineClone, VirtualMachineCloneStatus, set_condition};
use serde_json::json;

use crate::diff::merge_patch;

/// A status that is being brought up to date.
pub(super) struct Report<'a> {
    clone: &'a VirtualMachineClone,
    now: Time,
    pub(super) status: VirtualMachineCloneStatus,
}

impl<'a> Report<'a> {
    pub(super) fn new(clone: &'a VirtualMachineClone, now: Time) -> Self {
        Self { clone, now, status: clone.status.clone().unwrap_or_default() }
    }

    fn conditions(mut self, progressing: (&str, &str), ready: (&str, &str), message: &str) -> Self {
        let at = self.now.meta();
        for (kind, (status, reason)) in [("Progressing", progressing), ("Ready", ready)] {
            set_condition(&mut self.status.conditions, Condition::new(kind, status, reason, message), &at);
        }
        self
    }

    /// It is being worked on.
    pub(super) fn working(mut self, phase: &str) -> Self {
        self.status.phase = phase.to_owned();
        self.conditions(("True", "Still processing"), ("False", "Still processing"), "")
    }
    /// It waits for something that nobody here makes.
    pub(super) fn pending(self, message: &str) -> Self {
        self.conditions(("False", "Pending"), ("False", message), message)
    }
    /// It is over, and failed.
    pub(super) fn failed(mut self, message: &str) -> Self {
        self.status.phase = phase::FAILED.to_owned();
        self.conditions(("False", "Failed"), ("False", message), message)
    }
    /// It is over, and the target is there.
    pub(super) fn succeeded(mut self) -> Self {
        self.status.phase = phase::SUCCEEDED.to_owned();
        self.status.creation_time.get_or_insert(self.now.meta());
        self.conditions(("False", "Ready"), ("True", "Ready"), "")
    }
    /// With other values besides.
    pub(super) fn with(mut self, change: impl FnOnce(&mut VirtualMachineCloneStatus)) -> Self {
        change(&mut self.status);
        self
    }

    /// The write; none when nothing has changed.
    pub(super) fn plan(self) -> Plan {
        match merge_patch(&self.clone.status.clone().unwrap_or_default(), &self.status) {
            Some(patch) => Plan::none().patch_status(self.clone, json!({"status": patch})),
            None => Plan::none(),
        }
    }
}
