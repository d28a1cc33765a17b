//! A node whose disk forgot which plugins it ever had.
//!
//! Without the device checkpoint nobody can tell a plugin's devices from an amount that somebody wrote into the Node's
//! status. A pod that was given such an amount would start without its device. So all that the Node still offers counts as
//! advertised by a plugin and not there at present, as upstream resets it to 0. Who wrote an amount there writes it again,
//! after it was shown as 0, and is believed.

use std::collections::BTreeMap;

use super::KubeletCore;
use crate::amount;
use crate::devices::is_extended;

/// What is supposed of the Node's amounts.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// There was no checkpoint that could be read, and the Node was not looked at yet.
    pub open: bool,
    /// Supposed to be plugins', and whether they were seen as 0 since.
    supposed: BTreeMap<String, bool>,
}

impl Forgotten {
    /// Whether there is something to look at.
    pub fn is_due(&self) -> bool {
        self.open || !self.supposed.is_empty()
    }
}

impl KubeletCore {
    /// Looks at the Node, once its list was read.
    pub(super) fn suppose_devices(&mut self) {
        if !self.nodes.synced() || !self.loaded {
            return;
        }
        let status = self.node.seen.as_ref().and_then(|n| n.status.as_ref());
        let offered: BTreeMap<String, bool> = status
            .and_then(|s| s.allocatable.as_ref())
            .into_iter()
            .flatten()
            .filter(|(name, _)| is_extended(name))
            .map(|(name, amount)| (name.clone(), amount::units(amount) > 0))
            .collect();
        if std::mem::take(&mut self.forgotten.open) {
            for name in offered.iter().filter(|(_, some)| **some).map(|(name, _)| name) {
                if !self.devices.ever_advertised(name) {
                    tracing::warn!(resource = name, "it is not known whose it is: its device plugin is waited for");
                    self.devices.suppose(name);
                    self.forgotten.supposed.insert(name.clone(), false);
                }
            }
            self.checkpoint.touch();
            self.node.dirty = true;
        }
        let mut told = Vec::new();
        for (name, was_zero) in &mut self.forgotten.supposed {
            let some = offered.get(name).copied().unwrap_or(false);
            *was_zero |= !some;
            if *was_zero && some {
                told.push(name.clone());
            }
        }
        for name in told {
            self.forgotten.supposed.remove(&name);
            self.devices.unsuppose(&name);
            self.checkpoint.touch();
            self.devices_changed();
        }
    }
}
