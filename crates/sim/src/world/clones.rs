//! Clones: what goes wrong exactly once, and what is lacking.

use super::World;
use crate::plants::Bug;
use crate::role::Role;
use crate::server::ConnId;

impl World {
    /// Whether a process dies here because a test says so.
    pub(super) fn is_fated(&mut self, role: Role) -> bool {
        role == self.cloner() && self.fate.dies()
    }

    /// Where the controller of clones runs.
    pub(super) fn cloner(&self) -> Role {
        if self.swarm.cloner_apart { Role::Cloner } else { Role::VirtController }
    }

    /// A watch is open.
    pub(super) fn opened_for_fate(&mut self, role: Role, conn: ConnId, label: &str) {
        let misses = self.bug() == Some(Bug::CacheMissIsTerminal) && role == self.cloner();
        if misses && label.contains("virtualmachinesnapshotcontents") {
            self.fate.slow = Some(conn);
        }
    }

    /// The first clone is there: from now on things are counted.
    pub(super) fn begin_fate(&mut self, changes: &[crate::observer::Change]) {
        self.fate.begun |= changes.iter().any(|change| change.resource == "clone");
    }

    /// What is left over of clones.
    pub(super) fn clones_lack(&self) -> Option<String> {
        if !self.options.clones {
            return None;
        }
        crate::clones::debris(&self.observer).or_else(|| self.clones.stray(&self.observer))
    }
}
