//! Clones: what goes wrong exactly once, and what is lacking.

use carrack_engine::{ApiRequest, CallId, DeleteOptions};
use carrack_types::kubevirt::{VirtualMachineClone, VirtualMachineRestore};
use carrack_types::resource::Kind as _;

use super::{Asked, World};
use crate::invariants::Breach;
use crate::observer::{key_of, text, uid};
use crate::plants::Bug;
use crate::role::Role;
use crate::server::ConnId;

impl World {
    /// Whether a process dies here because a test says so.
    pub(super) fn is_fated(&mut self, role: Role) -> bool {
        if role != self.cloner() {
            return false;
        }
        let (dies, gives_up) = self.fate.strikes();
        if gives_up {
            self.give_up();
        }
        dies
    }

    /// Whoever asked for a clone, or a restore, deletes it.
    fn give_up(&mut self) {
        let of_clone = self.observer.all("clone").next().map(|clone| (VirtualMachineClone::resource(), clone));
        let restore = || self.observer.all("vmrestore").next().map(|found| (VirtualMachineRestore::resource(), found));
        let Some((resource, what)) = of_clone.or_else(restore) else { return };
        let (namespace, name) = (text(what, "/metadata/namespace"), text(what, "/metadata/name"));
        let request = ApiRequest::delete(&resource, namespace, name, &DeleteOptions::default());
        let line = format!("somebody deletes {} {}", resource.plural, key_of(what));
        self.mark(format_args!("{line}"));
        // Nobody waits for the reply.
        self.send(Role::User, 0, Asked::Call(CallId(0)), request);
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

    /// The first clone or restore is there: from now on things are counted.
    pub(super) fn begin_fate(&mut self, changes: &[crate::observer::Change]) {
        self.fate.begun |= changes.iter().any(|change| matches!(change.resource, "clone" | "vmrestore"));
    }

    /// What is left over of clones.
    pub(super) fn clones_lack(&self) -> Option<String> {
        if !self.options.clones {
            return None;
        }
        let debris = crate::clones::debris(&self.observer).or_else(|| self.clones.stray(&self.observer));
        debris.or_else(|| crate::clones::machines_lack(&self.observer, &self.room).filter(|_| self.options.copies))
    }

    /// Whoever deletes a pod by force has made sure that nothing of it runs: nothing of one that copies disks, either.
    pub(super) fn end_forced_copies(&mut self, changes: &[crate::observer::Change]) {
        let now = self.queue.now();
        for change in changes.iter().filter(|change| change.resource == "pod" && change.after.is_none()) {
            let id = uid(change.object());
            if !self.checker.forced.contains(id) {
                continue;
            }
            for number in self.nodes.keys().copied().collect::<Vec<_>>() {
                let follow = self.nodes.get_mut(&number).map(|node| node.ends_copies_of(now, id)).unwrap_or_default();
                self.follow(number, follow);
            }
        }
    }

    /// What happens on the node of machines that are copied.
    pub(super) fn check_room(&mut self, changes: &[crate::observer::Change]) {
        for line in self.room.said() {
            self.act(format_args!("{line}"));
        }
        self.breaches.extend(self.room.breaches());
        for change in changes.iter().filter(|change| change.resource == "pod" && change.after.is_none()) {
            let (name, id) = (key_of(change.object()), uid(change.object()));
            if self.checker.forced.contains(id) {
                // Whoever deletes it by force sees to that, also of what started meanwhile.
                self.room.kill(id);
            }
            if self.room.runs(id) {
                let what = format!("{name} ({id}) is gone from the API, and its process still runs");
                self.breaches.push(Breach::new("gone-means-stopped", what));
            }
        }
    }
}
