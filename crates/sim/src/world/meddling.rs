//! People without a process of their own, who watch what is committed and send what they should not: what becomes of that.

use std::time::Duration;

use carrack_engine::{ApiRequest, CallId, WatchId, to_http};

use super::{Happening, World};
use crate::net::Reply;
use crate::observer::Change;
use crate::role::Role;
use crate::server::Asked;

/// After how long an extender is there again that has to start anew.
const BACK: Duration = Duration::from_secs(1);

impl World {
    /// Lets them see what was committed.
    pub(super) fn shown_to_meddlers(&mut self, changes: &[Change]) {
        for (after, request) in self.meddler.sees(changes) {
            self.queue.after(after, Happening::Meddles(Role::Meddler, Box::new(request)));
        }
        for (after, request) in self.onlooker.sees(changes) {
            self.queue.after(after, Happening::Meddles(Role::Onlooker, Box::new(request)));
        }
        if self.healed.is_some() {
            return;
        }
        for (after, request) in self.reader.sees(changes) {
            self.queue.after(after, Happening::Meddles(Role::Reader, Box::new(request)));
        }
        for (after, role, request) in self.outsiders.see(changes) {
            self.queue.after(after, Happening::Meddles(role, Box::new(request)));
        }
        let life = self.life(Role::GpuExtender);
        if let (Some(after), Some(life)) = (self.outsiders.restart(changes), life) {
            self.queue.after(after, Happening::Dies(Role::GpuExtender, life, BACK));
        }
    }

    /// One of them sends something, and waits for no reply; but who watches is told.
    pub(super) fn meddles(&mut self, role: Role, request: ApiRequest) {
        let (now, label) = (self.queue.now(), super::requests::label(&request));
        let watches = role == Role::Reader && crate::reader::is_watch(&request);
        let Ok(request) = to_http(request, "") else { return };
        let count = self.server.count();
        let server = match role {
            Role::Onlooker => self.onlooker.server(count),
            Role::Reader => self.reader.server(count),
            Role::Tenant | Role::User => self.outsiders.server(count),
            _ => self.meddler.server(count),
        };
        let (asked, reply) = match watches {
            true => (Asked::Watch(WatchId(0)), Some(Reply::After(Duration::ZERO))),
            false => (Asked::Call(CallId(0)), None),
        };
        let id = self.server.depart(server, (role, 0), asked, now, reply, label, request);
        self.arrive(id);
    }
}
