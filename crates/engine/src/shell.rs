//! The shell that runs any core on tokio: it carries out effects and brings their results back.
//!
//! One task owns the core and steps it; each request, watch and call of the core's own runs in a task
//! beside it and answers through one channel. A core waits for each answer: it is told of a request that
//! has panicked, too. Dropping the shell stops them all.
#![expect(clippy::disallowed_methods, reason = "shell: it hands the core its clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::{ApiError, CallId, Core, Effect, Effects, Input, Never, Time, TimerId, Transport, WatchId, WatchItem};

/// How many watch events may wait for the core before their connections are read more slowly.
const WATCH_BUFFER: usize = 1024;

/// How long a core that is to end may wait for the answers to its last requests.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How far a core's clock may be from the machine's.
pub const ASTRAY: Duration = Duration::from_secs(30);
/// How often that is looked at.
pub const LOOK_AT_CLOCK: Duration = Duration::from_secs(10);

/// A clock for one process: the wall clock at start, moved on by the monotonic clock. It is never set, and stands still while the
/// machine is suspended.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
    wall: Time,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: std::time::Instant::now(), wall: wall() }
    }
}

/// The machine's clock.
fn wall() -> Time {
    let since_epoch =
        std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default() + since_epoch
}

impl Clock {
    /// The time now.
    #[must_use]
    pub fn now(&self) -> Time {
        self.wall + self.start.elapsed()
    }
    fn instant(&self, at: Time) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.start + at.since(self.wall))
    }
    /// How far it is from the machine's.
    fn astray(&self) -> Duration {
        let (own, machines) = (self.now(), wall());
        own.since(machines).max(machines.since(own))
    }
}

/// A seed for a process's random stream, from the operating system.
#[must_use]
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // RandomState is seeded by the operating system; that is all that is wanted of it.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Where a core's own world reports what it sees.
pub struct EventSink<E>(mpsc::UnboundedSender<Input<E>>);

impl<E> Clone for EventSink<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> EventSink<E> {
    /// Reports something. After the core has ended this does nothing.
    pub fn send(&self, event: E) {
        // The core ends first only when the whole role is ending.
        drop(self.0.send(Input::Own(event)));
    }
}

/// Carries out a core's own effects.
pub trait Doer<F, E>: Send {
    /// Called before [`Self::start`]: the clock that the core is told the time of.
    fn clock(&mut self, _: Clock) {}
    /// Called once before the first step, with the place to report events to.
    fn start(&mut self, events: EventSink<E>);
    /// Called before each step of the core, with the time that the core is told.
    fn stepping(&mut self, _: Time) {}
    /// Starts an effect; it must not block. Its result goes to the sink.
    fn run(&mut self, effect: F);
}

/// Does nothing, for cores that talk to the API alone.
pub struct NoDoer;
impl Doer<Never, Never> for NoDoer {
    fn start(&mut self, _: EventSink<Never>) {}
    fn run(&mut self, effect: Never) {
        match effect {}
    }
}

/// How long a step of a core may take before it counts as gone for who asks for its measures.
const SCRAPE: Duration = Duration::from_secs(5);
/// How many may ask at a time.
const SCRAPES: usize = 16;

/// Asks a core that runs for its measures.
#[derive(Clone, Debug)]
pub struct Scrapes(mpsc::Sender<oneshot::Sender<String>>);

/// Where a shell hears that its core's measures are asked for.
#[derive(Debug)]
pub struct Scraped(mpsc::Receiver<oneshot::Sender<String>>);

/// For who asks, and for the shell of the core that is asked.
#[must_use]
pub fn scrapes() -> (Scrapes, Scraped) {
    let (asks, asked) = mpsc::channel(SCRAPES);
    (Scrapes(asks), Scraped(asked))
}

impl Scrapes {
    /// The measures as the core tells them between two of its steps; none when it has ended or hangs.
    pub async fn text(&self) -> Option<String> {
        let (tell, told) = oneshot::channel();
        let answer = async {
            self.0.send(tell).await.ok()?;
            told.await.ok()
        };
        tokio::time::timeout(SCRAPE, answer).await.ok()?
    }
}

impl Scraped {
    /// The next who asks; nobody does for ever where nobody can.
    async fn next(asked: &mut Option<Self>) -> oneshot::Sender<String> {
        match asked {
            Some(Self(asks)) => match asks.recv().await {
                Some(tell) => tell,
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

struct Shell<C: Core> {
    core: C,
    fx: Effects<C::Out>,
    clock: Clock,
    transport: Arc<dyn Transport>,
    events: mpsc::UnboundedSender<Input<C::In>>,
    watch_events: mpsc::Sender<(WatchId, WatchItem)>,
    tasks: JoinSet<()>,
    watches: BTreeMap<WatchId, AbortHandle>,
    timers: BTreeSet<(Time, TimerId)>,
}

/// Runs a core until `shutdown` resolves, or the core ends itself, or its clock is found to be wrong: the machine's was set, or
/// went on while the machine was suspended. Unless it ends itself, it may still give back what it holds, for a second at most.
///
/// # Errors
/// The reason that the core gave for ending itself; or that its clock is wrong: whoever runs it begins anew, and with another.
pub async fn run_core<C>(
    core: C,
    transport: Arc<dyn Transport>,
    doer: impl Doer<C::Out, C::In>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String>
where
    C: Core,
    C::In: Send + 'static,
{
    run_by(Clock::default(), core, transport, doer, None, shutdown).await
}

/// Like [`run_core`], of a core whose measures may be asked for meanwhile ([`scrapes`]).
///
/// # Errors
/// As [`run_core`].
pub async fn run_core_asked<C>(
    core: C,
    transport: Arc<dyn Transport>,
    doer: impl Doer<C::Out, C::In>,
    asked: Scraped,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String>
where
    C: Core,
    C::In: Send + 'static,
{
    run_by(Clock::default(), core, transport, doer, Some(asked), shutdown).await
}

async fn run_by<C>(
    clock: Clock,
    core: C,
    transport: Arc<dyn Transport>,
    mut doer: impl Doer<C::Out, C::In>,
    mut asked: Option<Scraped>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String>
where
    C: Core,
    C::In: Send + 'static,
{
    let (events, mut inbox) = mpsc::unbounded_channel();
    let (watch_events, mut watch_inbox) = mpsc::channel(WATCH_BUFFER);
    doer.clock(clock);
    doer.start(EventSink(events.clone()));
    let mut shell = Shell {
        core,
        fx: Effects::new(),
        clock,
        transport,
        events,
        watch_events,
        tasks: JoinSet::new(),
        watches: BTreeMap::new(),
        timers: BTreeSet::new(),
    };
    tokio::pin!(shutdown);
    let mut looks = tokio::time::interval(LOOK_AT_CLOCK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ended = Ok(());
    shell.step(Input::Start, &mut doer)?;
    loop {
        let next = shell.timers.first().map(|(at, _)| shell.clock.instant(*at));
        let input = tokio::select! {
            () = &mut shutdown => break,
            _ = looks.tick() => {
                let astray = shell.clock.astray();
                if astray <= ASTRAY {
                    continue;
                }
                let why = "the machine's clock was set, or it was suspended";
                ended = Err(format!("{why}: this role's is {} s off", astray.as_secs()));
                break;
            }
            tell = Scraped::next(&mut asked) => {
                // Who asked may have gone.
                drop(tell.send(shell.core.measures(shell.clock.now())));
                continue;
            }
            Some(input) = inbox.recv() => input,
            Some((id, item)) = watch_inbox.recv() => {
                // What a dropped watch had still to say is not wanted.
                if !shell.watches.contains_key(&id) {
                    continue;
                }
                if matches!(item, WatchItem::Closed(_)) {
                    shell.watches.remove(&id);
                }
                Input::Watch { id, item }
            }
            () = sleep_until(next) => {
                let now = shell.clock.now();
                match shell.timers.first().copied() {
                    Some((at, id)) if at <= now => {
                        shell.timers.remove(&(at, id));
                        Input::Timer(id)
                    }
                    _ => continue,
                }
            }
        };
        shell.step(input, &mut doer)?;
        while shell.tasks.try_join_next().is_some() {}
    }
    let now = shell.clock.now();
    shell.core.stop(now, &mut shell.fx);
    shell.carry_out(now, &mut doer)?;
    let last_words = async {
        while !shell.core.ended() {
            match inbox.recv().await {
                Some(input @ Input::Api { .. }) => shell.step(input, &mut doer)?,
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    };
    // Nobody answers: what was held runs out by itself.
    let said: Result<(), String> = tokio::time::timeout(LAST_WORDS, last_words).await.unwrap_or(Ok(()));
    said.and(ended)
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl<C> Shell<C>
where
    C: Core,
    C::In: Send + 'static,
{
    fn step(&mut self, input: Input<C::In>, doer: &mut impl Doer<C::Out, C::In>) -> Result<(), String> {
        let now = self.clock.now();
        doer.stepping(now);
        self.core.step(now, input, &mut self.fx);
        self.carry_out(now, doer)
    }

    fn carry_out(&mut self, now: Time, doer: &mut impl Doer<C::Out, C::In>) -> Result<(), String> {
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => self.call(id, request),
                Effect::Watch(id, request) => self.watch(id, request),
                Effect::Unwatch(id) => {
                    if let Some(task) = self.watches.remove(&id) {
                        task.abort();
                    }
                }
                // What was due before it was asked for stands behind what is due already, which it would keep off for ever.
                Effect::Timer(id, at) => {
                    self.timers.insert((at.max(now), id));
                }
                Effect::Own(effect) => doer.run(effect),
                Effect::Exit(reason) => return Err(reason),
            }
        }
        Ok(())
    }

    fn call(&mut self, id: CallId, request: crate::ApiRequest) {
        let events = self.events.clone();
        let transport = self.transport.clone();
        self.tasks.spawn(async move {
            let asked = AssertUnwindSafe(crate::discovery::whole(transport.as_ref(), request)).catch_unwind();
            let result = asked.await.unwrap_or_else(|_| Err(panicked()));
            drop(events.send(Input::Api { id, result }));
        });
    }

    fn watch(&mut self, id: WatchId, request: crate::ApiRequest) {
        let events = self.watch_events.clone();
        let transport = self.transport.clone();
        let task = self.tasks.spawn(async move {
            let read = AssertUnwindSafe(read_watch(transport.as_ref(), request, id, &events)).catch_unwind();
            let last = read.await.unwrap_or_else(|_| Some(panicked()));
            drop(events.send((id, WatchItem::Closed(last))).await);
        });
        self.watches.insert(id, task);
    }
}

/// Reads a watch to its end, and returns why it ended, if not regularly.
async fn read_watch(
    transport: &dyn Transport,
    request: crate::ApiRequest,
    id: WatchId,
    events: &mpsc::Sender<(WatchId, WatchItem)>,
) -> Option<ApiError> {
    let mut stream = match transport.watch(request).await {
        Ok(stream) => stream,
        Err(error) => return Some(error),
    };
    loop {
        match stream.next().await? {
            // Nobody reads it any more.
            Ok(bytes) => events.send((id, WatchItem::Event(bytes))).await.ok()?,
            Err(error) => return Some(error),
        }
    }
}

fn panicked() -> ApiError {
    ApiError::Transport("what carried out the request has panicked".into())
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;
    use crate::{ApiRequest, ApiResponse, EventStream};

    struct Nobody;

    impl Transport for Nobody {
        fn send(&self, _: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
            Box::pin(std::future::pending())
        }
        fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
            Box::pin(std::future::pending())
        }
    }

    struct Idle;

    impl Core for Idle {
        type In = Never;
        type Out = Never;

        fn step(&mut self, _: Time, _: Input<Never>, _: &mut Effects<Never>) {}

        fn measures(&self, _: Time) -> String {
            "idle 1\n".to_owned()
        }
    }

    #[tokio::test]
    async fn a_core_is_asked_for_its_measures_while_it_runs() {
        let (asks, asked) = scrapes();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { drop(stopped.await) };
        let run = run_core_asked(Idle, Arc::new(Nobody), NoDoer, asked, shutdown);
        let ask = async {
            let told = asks.text().await;
            drop(stop);
            told
        };
        let (ended, told) = tokio::join!(run, ask);
        assert_eq!((ended, told.as_deref()), (Ok(()), Some("idle 1\n")));
        assert_eq!(asks.text().await, None, "it has ended");
    }

    /// Hears of the steps of a core.
    struct Hears(Arc<std::sync::atomic::AtomicU32>);

    impl Doer<Never, Never> for Hears {
        fn start(&mut self, events: EventSink<Never>) {
            drop(events);
        }
        fn stepping(&mut self, _: Time) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        fn run(&mut self, effect: Never) {
            match effect {}
        }
    }

    #[tokio::test]
    async fn each_step_is_heard_of() {
        let steps = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let doer = Hears(Arc::clone(&steps));
        assert_eq!(run_core(Idle, Arc::new(Nobody), doer, std::future::ready(())).await, Ok(()));
        assert_eq!(steps.load(std::sync::atomic::Ordering::Relaxed), 1, "it starts");
    }

    #[tokio::test]
    async fn who_goes_by_a_wrong_clock_begins_anew() {
        let right = Clock::default();
        for (ahead_s, ends) in [(0, false), (20, false), (-20, false), (3600, true), (-3600, true)] {
            let clock = Clock { wall: Time(right.wall.0 + ahead_s * 1_000_000_000), ..right };
            let shutdown = tokio::time::sleep(Duration::from_millis(50));
            let ended = run_by(clock, Idle, Arc::new(Nobody), NoDoer, None, shutdown).await;
            assert_eq!(ended.is_err(), ends, "{ahead_s}: {ended:?}");
        }
    }
}
