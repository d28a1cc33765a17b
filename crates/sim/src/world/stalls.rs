//! Processes that are stopped for longer than any lease lasts, and links that are cut by half.
//!
//! ```text
//!   between two steps:   stopped ──────▶ its timers, that are long due ─▶ what it was sent meanwhile
//!   in the midst of one: it decides ─▶ stopped ──────▶ it does what it has decided ─▶ the same
//! ```
//!
//! Either way it goes on with what it thinks it knows: that it leads, that its node is heard. Pauses are short, and who
//! goes on after one hears first.

use std::time::Duration;

use carrack_engine::{Effect, Method, Time};

use super::{Fault, Happening, World};
use crate::chance::{between, pick};
use crate::hosted::OwnOut;
use crate::net::Half;
use crate::plants::Bug;
use crate::role::Role;

/// For how long a process is stopped. The longest lease is a node's, of ten seconds.
const STOPPED: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(90));
/// How many times as long as other faults, where these are short.
const LONGER: u32 = 3;
/// Once nothing fails any more, nobody is stopped for longer.
const STILL: Duration = Duration::from_secs(10);

/// Something that changes the cluster, and is no heartbeat: those are late often enough.
fn writes(effects: &[Effect<OwnOut>]) -> bool {
    let requests = || {
        effects.iter().filter_map(|effect| match effect {
            Effect::Api(_, request) => Some(request),
            _ => None,
        })
    };
    requests().any(|request| request.method != Method::Get)
        && !requests().any(|request| request.path.contains("/leases") || request.path.contains("/events"))
}

impl World {
    /// Stops one of these processes: at once, or when it next writes something.
    pub(super) fn stall(&mut self, roles: &[Role]) {
        let now = self.queue.now();
        let left = (self.begun + self.options.trouble()).since(now);
        let planted = self.options.hint() == Some(Bug::ActsUnlooked);
        let Some(rng) = self.faults.get_mut(&Fault::Stall) else { return };
        let length = between(rng, STOPPED.0, STOPPED.1);
        let length = length.min(self.swarm.longest.saturating_mul(LONGER)).min(left + STILL);
        let in_step = rng.one_in(2) || planted;
        // With the planted bug, for as long as others take to lead.
        let length = if planted { length / 10 } else { length };
        let Some(role) = pick(rng, roles) else { return };
        let Some(process) = self.processes.get_mut(&role).filter(|process| process.hosted.is_some()) else { return };
        if in_step {
            process.stops_until = Some(now + length);
        } else {
            process.hang.stall(now + length);
            self.mark(format_args!("{role} is stopped for {} ms", length.as_millis()));
        }
    }

    /// Stops a process before it does this, if it was to be; otherwise returns what it does.
    pub(super) fn stops_before(&mut self, role: Role, effects: Vec<Effect<OwnOut>>) -> Option<Vec<Effect<OwnOut>>> {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return Some(effects) };
        let stops = |until: &mut Time| now < *until && writes(&effects);
        let Some(until) = process.stops_until.take_if(stops) else { return Some(effects) };
        process.hang.stall(until);
        let (life, ms) = (process.life, until.since(now).as_millis());
        self.mark(format_args!("{role} is stopped for {ms} ms, with what it was about to do"));
        self.queue.at(until, Happening::DoesAfterAll(role, life, effects));
        None
    }

    /// Cuts the link of one of these processes by half.
    pub(super) fn half_cut(&mut self, roles: &[Role]) {
        let (now, servers) = (self.queue.now(), self.server.count() as u64);
        let Some(rng) = self.faults.get_mut(&Fault::HalfCut) else { return };
        let length = between(rng, Duration::from_millis(100), Duration::from_secs(40).min(self.swarm.longest));
        // Of one server alone there is no half.
        let half = match rng.below(if servers > 1 { 3 } else { 2 }) {
            0 => Half::Replies,
            1 => Half::Requests,
            _ => Half::Server(usize::try_from(rng.below(servers)).unwrap_or(0)),
        };
        let Some(role) = pick(rng, roles) else { return };
        let ms = length.as_millis();
        match half {
            Half::Replies => self.mark(format_args!("{role} is heard by the API server and hears nothing for {ms} ms")),
            Half::Requests => self.mark(format_args!("{role} hears the API server and is not heard for {ms} ms")),
            Half::Server(server) => {
                self.mark(format_args!("{role} is cut off from apiserver {server} alone for {ms} ms"));
            }
        }
        self.net.halve(role, half, now + length);
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::{ApiRequest, CallId, Input, TimerId, WatchId, WatchItem, fnv1a};

    use super::*;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::Born;

    /// A cluster at rest, in which nothing fails by itself.
    fn world() -> World {
        let options = Options { small: true, faults: false, ..Options::default() };
        let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        world.faults.clear();
        world
    }

    fn call(method: Method, path: &str) -> Effect<OwnOut> {
        Effect::Api(CallId(u64::MAX), ApiRequest::new(method, path))
    }

    #[test]
    fn who_is_to_be_stopped_is_when_it_writes() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
        let pod = "/api/v1/namespaces/default/pods/a";
        let (mut world, role) = (world(), Role::Controllers);
        for (effects, stops) in [
            (vec![], false),
            (vec![call(Method::Get, pod)], false),
            (vec![call(Method::Put, lease)], false),
            (vec![call(Method::Patch, pod), call(Method::Put, lease)], false),
            (vec![Effect::Timer(TimerId(1), Time::default()), call(Method::Delete, pod)], true),
        ] {
            let now = world.queue.now();
            let until = now + Duration::from_secs(90);
            world.processes.get_mut(&role).expect("controllers").stops_until = Some(until);
            let count = effects.len();
            let done = world.stops_before(role, effects);
            assert_eq!(done.map(|effects| effects.len()), (!stops).then_some(count));
            let process = world.processes.get_mut(&role).expect("controllers");
            assert_eq!((process.stops_until.is_none(), process.hang.hangs(now)), (stops, stops));
        }
    }

    #[test]
    fn what_was_decided_is_done_when_the_process_goes_on_unless_it_is_gone() {
        for dies in [false, true] {
            let (mut world, role) = (world(), Role::Controllers);
            let until = world.queue.now() + Duration::from_secs(20);
            world.processes.get_mut(&role).expect("controllers").stops_until = Some(until);
            let path = "/api/v1/namespaces/default/configmaps/nobodys";
            assert!(world.stops_before(role, vec![call(Method::Delete, path)]).is_none());
            let news = Input::Watch { id: WatchId(u64::MAX), item: WatchItem::Closed(None) };
            world.step(role, news);
            if dies {
                world.crash(role, "killed");
            }
            let sent = |world: &World| {
                let process = world.processes.get(&role).expect("controllers");
                let label = format!("DELETE {path}");
                process.sent.1.contains_key(&fnv1a(label.as_bytes()))
            };
            while world.queue.now() < until {
                assert!(!sent(&world));
                let happening = world.queue.pop().expect("something happens");
                world.happen(happening);
            }
            assert_eq!(sent(&world), !dies);
        }
    }
}
