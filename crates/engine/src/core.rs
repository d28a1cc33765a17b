//! The contract of a decision core: what it observes, and what it may ask for.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{ApiError, ApiRequest, ApiResponse, Time};

/// Names an API request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);
/// Names a running watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);
/// Names a timer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

/// A decision core. Between steps it does nothing; in a step it never waits.
pub trait Core {
    /// What it observes beyond the API: replies of a runtime, connections of a plugin.
    type In;
    /// What it does beyond the API: runtime calls, driver calls.
    type Out;
    /// Observes one thing and says what to do about it.
    fn step(&mut self, now: Time, input: Input<Self::In>, fx: &mut Effects<Self::Out>);
    /// The role is to end. A core that has something to give back says so in `fx`; from then on it is told of replies
    /// alone, until it has [`Self::ended`], or for as long as a shell waits.
    fn stop(&mut self, _now: Time, _fx: &mut Effects<Self::Out>) {}
    /// Whether a core that was stopped waits for nothing more.
    fn ended(&self) -> bool {
        true
    }
    /// What it has counted, in the text form that Prometheus reads. Nothing is decided by that.
    fn measures(&self, _now: Time) -> String {
        String::new()
    }
}

/// Something observed.
#[derive(Debug)]
pub enum Input<E> {
    /// The first input of a core, once.
    Start,
    /// An API request came back, or its outcome is unknown ([`ApiError::Transport`]).
    Api {
        /// Which one.
        id: CallId,
        /// How.
        result: Result<ApiResponse, ApiError>,
    },
    /// A watch yielded something. After [`WatchItem::Closed`] it yields nothing more.
    Watch {
        /// Which one.
        id: WatchId,
        /// What.
        item: WatchItem,
    },
    /// A timer fired.
    Timer(TimerId),
    /// Something of the core's own world.
    Own(E),
}

/// What a watch yields.
#[derive(Debug)]
pub enum WatchItem {
    /// One watch event as JSON: `{"type": …, "object": …}`.
    Event(Bytes),
    /// It ended: regularly, or with an error.
    Closed(Option<ApiError>),
}

/// One thing to do.
#[derive(Debug)]
pub enum Effect<F> {
    /// Send a request; its result comes back under the same id.
    Api(CallId, ApiRequest),
    /// Open a watch.
    Watch(WatchId, ApiRequest),
    /// Drop a watch; nothing more of it is wanted.
    Unwatch(WatchId),
    /// Call back at this time.
    Timer(TimerId, Time),
    /// Something of the core's own world.
    Own(F),
    /// The core cannot go on (it lost its leadership, say): end the role with this reason.
    Exit(String),
}

/// For how many things to do there stays room when all are done: one step may ask for thousands of them, and most ask for a few.
const KEPT_EFFECTS: usize = 64;

/// Collects what a core wants done, and names it. Lives as long as its core, so that an id is never
/// used twice.
#[derive(Debug)]
pub struct Effects<F> {
    queue: VecDeque<Effect<F>>,
    next_id: u64,
}

impl<F> Default for Effects<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), next_id: 1 }
    }
}

impl<F> Effects<F> {
    /// An empty collection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
    /// Sends an API request.
    pub fn api(&mut self, request: ApiRequest) -> CallId {
        let id = CallId(self.id());
        self.queue.push_back(Effect::Api(id, request));
        id
    }
    /// Opens a watch.
    pub fn watch(&mut self, request: ApiRequest) -> WatchId {
        let id = WatchId(self.id());
        self.queue.push_back(Effect::Watch(id, request));
        id
    }
    /// Drops a watch.
    pub fn unwatch(&mut self, id: WatchId) {
        self.queue.push_back(Effect::Unwatch(id));
    }
    /// Sets a timer. A timer that is no longer wanted is ignored by its id when it fires.
    pub fn timer(&mut self, at: Time) -> TimerId {
        let id = TimerId(self.id());
        self.queue.push_back(Effect::Timer(id, at));
        id
    }
    /// Asks for something of the core's own world.
    pub fn own(&mut self, effect: F) {
        self.queue.push_back(Effect::Own(effect));
    }
    /// Hands on what a core within this core wants done. The inner core's ids are this collection's then: nothing may be
    /// named here otherwise.
    pub fn pass(&mut self, effect: Effect<Never>) {
        self.queue.push_back(match effect {
            Effect::Api(id, request) => Effect::Api(id, request),
            Effect::Watch(id, request) => Effect::Watch(id, request),
            Effect::Unwatch(id) => Effect::Unwatch(id),
            Effect::Timer(id, at) => Effect::Timer(id, at),
            Effect::Own(never) => match never {},
            Effect::Exit(reason) => Effect::Exit(reason),
        });
    }
    /// A fresh number for naming a call of the core's own.
    pub fn fresh(&mut self) -> u64 {
        self.id()
    }
    /// Ends the role.
    pub fn exit(&mut self, reason: impl Into<String>) {
        self.queue.push_back(Effect::Exit(reason.into()));
    }
    /// The next thing to do, in the order asked for.
    pub fn pop(&mut self) -> Option<Effect<F>> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.queue.shrink_to(KEPT_EFFECTS);
        }
        next
    }
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A world with nothing in it, for cores that talk to the API alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_come_in_order_and_leave_little_room_behind() {
        let mut fx = Effects::<Never>::new();
        for count in [1, 5000, 3] {
            let set: Vec<TimerId> = (0..count).map(|at| fx.timer(Time(at))).collect();
            let done: Vec<TimerId> = std::iter::from_fn(|| fx.pop())
                .filter_map(|effect| if let Effect::Timer(id, _) = effect { Some(id) } else { None })
                .collect();
            assert_eq!(done, set);
            assert!(fx.is_empty() && fx.queue.capacity() <= KEPT_EFFECTS, "{count}");
        }
    }
}
