//! What of a node's services is away for a while: its container runtime as a whole, and CSI drivers.
//!
//! ```text
//!   runtime is there ─▶ away: each call is refused, or waits until its caller gives it up ─▶ there again
//!   driver is there ─▶ away: unregistered, each call fails ─▶ there again, and registers
//! ```
//!
//! What runs runs on, and what is mounted stays: containers belong to their shims, and mounts to the kernel. A call that waits
//! is carried out when the runtime goes on, unless its caller has given it up; that of a kubelet that has died may be, as any.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::volumes::{CsiNodeInfo, Driver};
use carrack_kubelet::{In, Op, OpError};

use super::{Disk, Follow, Node, NodeEvent};
use crate::chance::pick;
use crate::role::node_name;

/// How long a kubelet waits for what takes the runtime no time, and for all else that has no limit of its own.
const QUICK: Duration = Duration::from_secs(20);
const SLOW: Duration = Duration::from_secs(240);
/// How soon a kubelet hears of a driver that has come, or gone.
const HEARD: Duration = Duration::from_millis(300);

/// CSI drivers that register with kubelets.
const REGISTERED: [&str; 2] = [crate::attacher::DRIVER, carrack_storage::DRIVER];
/// Those that may be away.
const DRIVERS: [&str; 3] = [REGISTERED[0], REGISTERED[1], crate::tokens::DRIVER];

/// What a call meets.
pub(super) enum Met {
    /// Whoever it is for.
    Somebody,
    /// Nobody, and that is answered.
    Refused(OpError),
    /// Nobody, and nothing is answered for so long.
    Waits(Duration),
}

/// Who is away, and until when.
#[derive(Debug, Default)]
pub(super) struct Absences {
    runtime: Option<Time>,
    /// The runtime does not refuse calls, it leaves them.
    hangs: bool,
    /// Calls that wait for it, by number, with when their callers give them up.
    waiting: BTreeMap<u64, Time>,
    drivers: BTreeMap<&'static str, Time>,
}

impl Absences {
    /// A call of the runtime, whose caller waits for so long.
    fn call(&mut self, now: Time, number: u64, limit: Duration) -> Met {
        let Some(until) = self.runtime.filter(|until| now < *until) else {
            self.waiting.remove(&number);
            return Met::Somebody;
        };
        if !self.hangs {
            return Met::Refused(OpError::Failed("connecting to the runtime: connection refused".into()));
        }
        let given_up = *self.waiting.entry(number).or_insert(now + limit);
        if given_up <= now {
            self.waiting.remove(&number);
            return Met::Refused(OpError::TimedOut(limit.as_secs()));
        }
        Met::Waits(given_up.min(until).since(now))
    }

    fn is_away(&self, now: Time, driver: &str) -> bool {
        self.drivers.get(driver).is_some_and(|until| now < *until)
    }
}

/// How long a kubelet waits for an operation, if that is one of the runtime (`carrack_kubelet`'s client of it).
fn limit_of_runtime(op: &Op) -> Option<Duration> {
    match op {
        Op::RuntimeInfo
        | Op::Relist
        | Op::ListImages
        | Op::FindImage(_)
        | Op::UpdateContainer { .. }
        | Op::GiveCpus { .. }
        | Op::RotateLogs { .. } => Some(QUICK),
        Op::Exec { timeout_s, .. } => {
            let own = u64::try_from(*timeout_s).ok().filter(|s| *s > 0);
            Some(own.map_or(SLOW, |s| Duration::from_secs(s) + QUICK))
        }
        Op::StopContainer { timeout_s, .. } => {
            Some(SLOW + Duration::from_secs(u64::try_from(*timeout_s).unwrap_or_default()))
        }
        Op::RemoveImage(_)
        | Op::PullImage { .. }
        | Op::RunSandbox(_)
        | Op::StopSandbox(_)
        | Op::RemoveSandbox(_)
        | Op::CreateContainer(..)
        | Op::StartContainer(_)
        | Op::RemoveContainer(_) => Some(SLOW),
        _ => None,
    }
}

/// The CSI driver that is called for an operation. What is mounted for a pod is left alone, unless the driver wants to be called
/// again; and what is only to be found again is looked for without anybody.
fn called<'a>(op: &'a Op, disk: &Disk) -> Option<&'a str> {
    let driver = match op {
        Op::StageVolume(staging, inputs) if !inputs.confirm_only => &staging.origin.driver,
        Op::UnstageVolume(staging) => &staging.origin.driver,
        Op::SetUpVolume(setup) => {
            let p = setup.publishing().filter(|p| !p.confirm_only)?;
            if disk.has(&setup.uid, &setup.path) && !p.republish {
                return None;
            }
            &p.published.origin.driver
        }
        Op::TearDownVolume { published, .. } => &published.as_ref()?.origin.driver,
        Op::ExpandVolume(expanding) => &expanding.published.origin.driver,
        _ => return None,
    };
    match driver {
        Driver::Csi { driver, .. } => Some(driver),
        _ => None,
    }
}

impl Node {
    /// What an operation meets that is about to take effect.
    pub(super) fn meets(&mut self, now: Time, number: u64) -> Met {
        let Some(op) = self.pending.get(&number).map(|pending| &pending.op) else { return Met::Somebody };
        if let Some(limit) = limit_of_runtime(op) {
            return self.absences.call(now, number, limit);
        }
        match called(op, &self.disk).filter(|driver| self.absences.is_away(now, driver)) {
            Some(driver) => {
                let why = format!("driver name {driver} not found in the list of registered CSI drivers");
                Met::Refused(OpError::Failed(why))
            }
            None => Met::Somebody,
        }
    }

    /// Whether the node's own driver is away, for whoever makes volumes.
    pub(super) fn lacks_storage(&self, now: Time) -> bool {
        self.absences.is_away(now, carrack_storage::DRIVER)
    }

    /// Whether the runtime is away, or hangs.
    pub(crate) fn lacks_runtime(&self, now: Time) -> bool {
        self.absences.runtime.is_some_and(|until| now < until)
    }

    /// The runtime is away for so long, if there is one, or hangs. Returns what it does, for the trace.
    pub(crate) fn runtime_leaves(&mut self, now: Time, lasts: Duration, hangs: bool) -> (&'static str, Vec<Follow>) {
        let until = now + lasts;
        self.absences.runtime = self.absences.runtime.max(Some(until));
        self.absences.hangs = hangs;
        let what = if hangs { "hangs" } else { "is away" };
        (what, vec![Follow::Later(lasts, NodeEvent::Returns)])
    }

    /// A CSI driver is away for so long; which one, and what follows. `life`: that of the kubelet, zero where none is.
    pub(crate) fn driver_leaves(
        &mut self,
        now: Time,
        life: u32,
        lasts: Duration,
        rng: &mut Rng,
    ) -> (&'static str, Vec<Follow>) {
        let driver = pick(rng, &DRIVERS).unwrap_or(crate::attacher::DRIVER);
        let until = self.absences.drivers.entry(driver).or_default();
        *until = (*until).max(now + lasts);
        let mut follow = vec![Follow::Later(lasts, NodeEvent::Returns)];
        if REGISTERED.contains(&driver) {
            let down = In::CsiDown { driver: driver.to_owned() };
            // As late as it hears that one is there: what it hears last is what was last.
            follow.push(Follow::Kubelet(life, HEARD, Box::new(down)));
        }
        (driver, follow)
    }

    /// Who was away until now is there again, unless it has gone once more since.
    pub(super) fn may_return(&mut self, now: Time, life: u32) -> Vec<Follow> {
        let mut follow = Vec::new();
        if self.absences.runtime.take_if(|until| *until <= now).is_some() {
            follow.push(Follow::Say(format!("the runtime of node{} is there again", self.number)));
            if !self.absences.hangs {
                self.loses_sight(now);
            }
            let waiting = std::mem::take(&mut self.absences.waiting).into_keys();
            follow.extend(waiting.map(|number| Follow::Later(Duration::ZERO, NodeEvent::Effect(number))));
        }
        let back: Vec<&'static str> =
            self.absences.drivers.extract_if(.., |_, until| *until <= now).map(|(driver, _)| driver).collect();
        for driver in back {
            follow.push(Follow::Say(format!("the driver {driver} of node{} is there again", self.number)));
            if REGISTERED.contains(&driver) && !self.registers_once {
                follow.push(self.registers(life, driver));
            }
        }
        follow
    }

    /// Nothing fails any more: everybody is there again.
    pub(crate) fn all_return(&mut self, now: Time, life: u32) -> Vec<Follow> {
        self.absences.runtime = self.absences.runtime.map(|until| until.min(now));
        self.absences.drivers.values_mut().for_each(|until| *until = (*until).min(now));
        self.may_return(now, life)
    }

    /// The CSI drivers that are registered here, or would be with a kubelet.
    pub(crate) fn registered(&self) -> impl Iterator<Item = &'static str> {
        REGISTERED.into_iter().filter(|driver| !self.absences.drivers.contains_key(driver))
    }

    /// A kubelet of this life finds the drivers that are there.
    pub(super) fn register(&self, life: u32) -> Vec<Follow> {
        self.registered().map(|driver| self.registers(life, driver)).collect()
    }

    /// A kubelet of this life hears of a driver.
    fn registers(&self, life: u32, driver: &str) -> Follow {
        let name = node_name(self.number);
        let own = driver == carrack_storage::DRIVER;
        let topology = own.then(|| (carrack_storage::TOPOLOGY.to_owned(), name.clone())).into_iter().collect();
        let info = CsiNodeInfo { node_id: name, max_volumes: 0, topology };
        Follow::Kubelet(life, HEARD, Box::new(In::CsiUp { driver: driver.to_owned(), info }))
    }
}

#[cfg(test)]
mod tests {
    use carrack_kubelet::{OpId, Outcome, Reply};

    use super::*;
    use crate::attacher::{DRIVER, Rack};
    use crate::observer::Observer;
    use crate::options::NodeFaults;

    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    fn node() -> Node {
        Node::new(1, at(1), Rng::new(1), NodeFaults::none(), Rack::default())
    }

    /// What becomes of an operation at a time: what is answered, or how long it waits.
    fn ends(node: &mut Node, now: Time, number: u64) -> Result<Outcome, Duration> {
        let mut breaches = Vec::new();
        for next in node.happen(now, 1, NodeEvent::Effect(number), &Observer::of([]), &mut breaches) {
            match next {
                Follow::Later(wait, NodeEvent::Effect(_)) => return Err(wait),
                Follow::Kubelet(_, _, news) => {
                    if let In::Done(_, outcome) = *news {
                        return Ok(outcome);
                    }
                }
                _ => {}
            }
        }
        panic!("nothing comes of it")
    }

    fn asks(node: &mut Node, now: Time, op: Op) -> u64 {
        node.ask(now, 1, OpId(1), op, &mut Vec::new());
        node.next
    }

    #[test]
    fn a_runtime_that_is_away_refuses_and_one_that_hangs_says_nothing() {
        let mut node = node();
        let relist = asks(&mut node, at(1), Op::Relist);
        node.runtime_leaves(at(1), Duration::from_secs(30), false);
        let refused = ends(&mut node, at(1), relist);
        assert!(matches!(&refused, Ok(Err(OpError::Failed(why))) if why.contains("refused")), "{refused:?}");
        // What is none of its business goes on.
        let host = asks(&mut node, at(1), Op::Host);
        assert!(matches!(ends(&mut node, at(1), host), Ok(Ok(Reply::Host(_)))));
        node.runtime_leaves(at(2), Duration::from_secs(30), true);
        let (relist, image) = (asks(&mut node, at(2), Op::Relist), asks(&mut node, at(2), Op::RemoveImage("i".into())));
        assert!(matches!(ends(&mut node, at(2), relist), Err(wait) if wait == QUICK));
        assert!(matches!(ends(&mut node, at(2), image), Err(wait) if wait == Duration::from_secs(30)));
        assert!(matches!(ends(&mut node, at(22), relist), Ok(Err(OpError::TimedOut(20)))));
        // It was to be back by then, if it had not gone once more.
        assert!(node.may_return(at(31), 1).is_empty());
        let follow = node.may_return(at(32), 1);
        let goes_on = |next: &Follow| matches!(next, Follow::Later(_, NodeEvent::Effect(n)) if *n == image);
        assert!(follow.iter().any(goes_on), "{follow:?}");
        assert!(matches!(ends(&mut node, at(32), image), Ok(Ok(Reply::Done))));
    }

    #[test]
    fn a_driver_that_is_there_again_registers() {
        let mut node = node();
        let heard = |follow: &[Follow]| -> Vec<String> {
            let word = |next: &Follow| match next {
                Follow::Kubelet(_, _, news) => match &**news {
                    In::CsiUp { driver, .. } => Some(format!("{driver} up")),
                    In::CsiDown { driver } => Some(format!("{driver} down")),
                    _ => None,
                },
                _ => None,
            };
            follow.iter().filter_map(word).collect()
        };
        // A kubelet that has just started would else hear of a driver when that has gone again.
        let in_order = |follow: &[Follow]| {
            follow.iter().all(|next| !matches!(next, Follow::Kubelet(_, after, _) if *after != HEARD))
        };
        let mut rng = Rng::new(1);
        assert_eq!(node.registered().collect::<Vec<_>>(), REGISTERED);
        assert!(in_order(&node.register(1)));
        let gone = loop {
            let (driver, follow) = node.driver_leaves(at(1), 1, Duration::from_secs(9), &mut rng);
            assert!(in_order(&follow), "{follow:?}");
            if driver == DRIVER {
                break heard(&follow);
            }
        };
        assert_eq!(gone, [format!("{DRIVER} down")]);
        assert!(!node.registered().any(|driver| driver == DRIVER));
        assert!(!heard(&node.register(2)).contains(&format!("{DRIVER} up")), "a kubelet that starts does not find it");
        assert!(heard(&node.may_return(at(9), 1)).is_empty(), "too early");
        assert!(heard(&node.may_return(at(10), 1)).contains(&format!("{DRIVER} up")));
        assert_eq!(node.registered().collect::<Vec<_>>(), REGISTERED);
    }
}
