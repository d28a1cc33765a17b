//! Clocks of machines that are set: forward or back, by a little or by minutes.
//!
//! A process goes by its machine's clock at its start, and from there on by one that is never set
//! (`carrack_engine::shell`). So whoever runs goes on as before, looks within ten seconds how far its clock is from its
//! machine's, and begins anew when that is too far; and whoever starts goes by the new one, so that times which it reads
//! are of another. Nothing that keeps a node's promises goes by its wall clock: monitors and watchdogs have the time since
//! its boot. What a runtime has stamped stays as it is.
//!
//! An API server asks for the time of day whenever it needs it, so that the next thing which it stamps (when an object was made,
//! when it is to be gone) is of the new time. Servers differ in that, and nothing that must hold may be measured by their stamps.

use std::time::Duration;

use carrack_engine::shell::{ASTRAY, LOOK_AT_CLOCK};

use super::{Fault, Happening, World};
use crate::chance::{below, between, pick};
use crate::role::Role;

/// The least of steps, the most of small ones, and the most of all; no machine's clock is further off than the last.
const STEP: (Duration, Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(20), Duration::from_secs(300));

/// How far an API server's clock is off at the most.
const OF_SERVERS: Duration = Duration::from_secs(120);

/// How far clocks are off at the most where there are clones, whose snapshots have five minutes by the time of day: those of
/// machines, of which one that is further off than [`ASTRAY`] makes a process begin anew, and those of API servers.
const WITH_CLONES: (Duration, Duration) = (Duration::from_secs(40), Duration::from_secs(15));

/// Whether a process is one of Carrack's that goes by the time of day. Those which stand for others' are on time.
fn has_clock(role: Role) -> bool {
    matches!(
        role,
        Role::Scheduler
            | Role::StandbyScheduler
            | Role::GpuExtender
            | Role::Controllers
            | Role::Standby
            | Role::VirtController
            | Role::StandbyVirt
            | Role::Cloner
            | Role::Attacher
            | Role::StandbyAttacher
            | Role::Kubelet(_)
            | Role::VirtHandler(_)
            | Role::LocalStorage(_)
    )
}

/// Whether two processes are on the same machine: those of a node are, and each of the others has one of its own.
fn are_beside(one: Role, other: Role) -> bool {
    let node = |role: Role| match role {
        Role::Kubelet(node) | Role::VirtHandler(node) | Role::LocalStorage(node) => Some(node),
        _ => None,
    };
    one == other || node(one).is_some() && node(one) == node(other)
}

/// How far a clock is ahead, in nanoseconds, after a step in this direction; or in the other, where it would be off by more than
/// `most`.
fn stepped(ahead_ns: i64, step: Duration, forward: bool, most: Duration) -> i64 {
    let ns = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
    let (step, most) = (ns(step), ns(most));
    let to = if forward { ahead_ns.saturating_add(step) } else { ahead_ns.saturating_sub(step) };
    if to.saturating_abs() <= most { to } else { ahead_ns.saturating_mul(2).saturating_sub(to) }
}

impl World {
    /// How far clocks of machines and of API servers are off at the most.
    fn clocks_are_within(&self) -> (Duration, Duration) {
        if self.options.clones { WITH_CLONES } else { (STEP.2, OF_SERVERS) }
    }

    /// The clock of some machine is set.
    pub(super) fn set_a_clock(&mut self) {
        let roles: Vec<Role> = self.processes.keys().copied().filter(|role| has_clock(*role)).collect();
        let (within, _) = self.clocks_are_within();
        let Some(rng) = self.faults.get_mut(&Fault::Clock) else { return };
        let most = if rng.one_in(2) { STEP.1 } else { within };
        let (step, forward) = (between(rng, STEP.0, most), rng.one_in(2));
        if let Some(role) = pick(rng, &roles) {
            self.set_clock(role, step, forward);
        }
    }

    /// The clock of some API server's machine is set.
    pub(super) fn set_a_servers_clock(&mut self) {
        let (count, (_, within)) = (self.server.count(), self.clocks_are_within());
        let Some(rng) = self.faults.get_mut(&Fault::ServerClock) else { return };
        let server = usize::try_from(rng.below(count as u64)).unwrap_or(0);
        let (step, forward) = (between(rng, STEP.0, within), rng.one_in(2));
        let ahead_ns = stepped(self.server.ahead_ns(server), step, forward, within);
        self.server.set_clock(server, ahead_ns);
        let (ms, which) = (ahead_ns.unsigned_abs() / 1_000_000, if ahead_ns < 0 { "behind" } else { "ahead" });
        self.mark(format_args!("the clock of apiserver {server} is set: it is {ms} ms {which}"));
    }

    /// The clock of a process' machine is set.
    fn set_clock(&mut self, role: Role, step: Duration, forward: bool) {
        let Some(old) = self.processes.get(&role).map(|process| process.machine_ns) else { return };
        let (within, _) = self.clocks_are_within();
        let by_ns = stepped(old, step, forward, within) - old;
        let (ms, where_to) = (by_ns.unsigned_abs() / 1_000_000, if by_ns < 0 { "back" } else { "ahead" });
        self.mark(format_args!("the clock of the machine of {role} is set {ms} ms {where_to}"));
        for (beside, process) in self.processes.iter_mut().filter(|(beside, _)| are_beside(role, **beside)) {
            process.machine_ns += by_ns;
            if let Some(rng) = self.faults.get_mut(&Fault::Clock) {
                self.queue.after(below(rng, LOOK_AT_CLOCK), Happening::LooksAtClock(*beside, process.life));
            }
        }
    }

    /// A process looks at its machine's clock, and begins anew if its own is too far from that.
    pub(super) fn looks_at_clock(&mut self, role: Role, life: u32) {
        let Some(process) = self.processes.get(&role).filter(|process| process.life == life) else { return };
        let astray = Duration::from_nanos(process.skew_ns.abs_diff(process.machine_ns));
        // Once nothing fails any more it lives with what there is.
        if self.healed.is_none() && process.hosted.is_some() && astray > ASTRAY {
            self.act(format_args!("{role} finds its clock {} s off", astray.as_secs()));
            self.tell_to_end(role);
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::{ApiRequest, Rng, Time};
    use carrack_types::resource::Kind as _;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::observer::text;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::Born;

    #[test]
    fn clocks_stay_within_minutes() {
        let s = Duration::from_secs;
        for (ahead_s, step, forward, expected_s) in [
            (0, s(300), true, 300),
            (0, s(300), false, -300),
            (100, s(300), true, -200),
            (-100, s(300), false, 200),
            (-300, s(20), false, -280),
            (250, s(300), false, -50),
        ] {
            let to = stepped(ahead_s * 1_000_000_000, step, forward, STEP.2);
            assert_eq!(to, expected_s * 1_000_000_000, "{ahead_s} s, {step:?}, {forward}");
        }
    }

    /// However often clocks are set they stay within their bounds, and come near them. With clones these are wide enough that
    /// processes begin anew, and narrow enough that nothing which is taken in two minutes of trouble and one more is too late.
    #[test]
    fn clocks_are_bounded_and_leave_time_to_clones() {
        let mut rng = Rng::new(1);
        for most in [STEP.2, OF_SERVERS, WITH_CLONES.0, WITH_CLONES.1] {
            let (mut ahead_ns, mut furthest) = (0, Duration::ZERO);
            for _ in 0..1000 {
                let (step, forward) = (between(&mut rng, STEP.0, most), rng.one_in(2));
                ahead_ns = stepped(ahead_ns, step, forward, most);
                furthest = furthest.max(Duration::from_nanos(ahead_ns.unsigned_abs()));
            }
            assert!((most / 2..=most).contains(&furthest), "{furthest:?} of {most:?}");
        }
        assert!(WITH_CLONES.0 > ASTRAY);
        assert!(Duration::from_secs(120 + 60) + WITH_CLONES.0 + WITH_CLONES.1 < Duration::from_secs(300));
    }

    /// What a server stamps is of its own clock, from the moment on at which that is set.
    #[test]
    fn servers_go_by_their_own_clocks() {
        let options = Options { small: true, faults: false, ..Options::default() };
        let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        world.faults.clear();
        for (ahead_s, name) in [(0, "a"), (100, "b"), (-100, "c")] {
            world.server.set_clock(0, ahead_s * 1_000_000_000);
            let object = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "default", "name": name}});
            let request = ApiRequest::create_value(&ConfigMap::resource(), "default", &object);
            let sent = world.queue.now();
            world.planted(Role::User, request);
            let made = |world: &World| {
                let made = world.observer.get("configmap", &format!("default/{name}"));
                made.and_then(|made| Time::parse(text(made, "/metadata/creationTimestamp")))
            };
            while made(&world).is_none() {
                let happening = world.queue.pop().expect("something happens");
                world.happen(happening);
                world.check();
            }
            let off_s = made(&world).expect("it is there").unix_s() - sent.unix_s() - ahead_s;
            assert!((0..10).contains(&off_s), "{name} is made {off_s} s late");
        }
    }

    #[test]
    fn agents_of_a_node_share_its_clock() {
        let kubelet = Role::Kubelet(1);
        for (other, expected) in [
            (Role::VirtHandler(1), true),
            (Role::LocalStorage(1), true),
            (Role::Kubelet(2), false),
            (Role::VirtHandler(2), false),
            (Role::Controllers, false),
        ] {
            assert_eq!((are_beside(kubelet, other), are_beside(other, kubelet)), (expected, expected), "{other}");
        }
        assert!(are_beside(Role::Controllers, Role::Controllers));
        assert!(!are_beside(Role::Controllers, Role::Standby));
    }

    /// Whoever runs goes by the clock that it has, and the next life, which begins soon if the two are far apart, by the
    /// new one.
    #[test]
    fn who_starts_goes_by_the_new_clock() {
        for (step_s, begins_anew) in [(20, false), (200, true)] {
            let options = Options { small: true, faults: false, ..Options::default() };
            let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
            let role = Role::Scheduler;
            let of = |world: &World| {
                let process = world.processes.get(&role).expect("a scheduler");
                (process.life, process.skew_ns)
            };
            let (life, skew_ns) = of(&world);
            world.set_clock(role, Duration::from_secs(step_s), false);
            assert_eq!(of(&world), (life, skew_ns));
            world.looks_at_clock(role, life);
            // Who is told to end does within a second.
            let until = world.queue.now() + Duration::from_millis(1100);
            while world.queue.now() < until {
                let happening = world.queue.pop().expect("something happens");
                world.happen(happening);
            }
            let lives = world.life(role).is_some_and(|now| now == life);
            assert_eq!(lives, !begins_anew, "{step_s} s");
            if lives {
                world.crash(role, "killed");
            }
            while world.life(role).is_none() {
                let happening = world.queue.pop().expect("something happens");
                world.happen(happening);
            }
            let by_ns = i64::try_from(step_s).expect("small") * 1_000_000_000;
            assert_eq!(of(&world), (life + 1, skew_ns - by_ns), "{step_s} s");
        }
    }
}
