//! Calls carried out: a driver is a program, and its defaults are upstream's.

#![expect(clippy::disallowed_methods, reason = "a shell: what it runs is told how long it may")]

use std::path::PathBuf;

use carrack_engine::Time;
use carrack_engine::shell::{Clock, Doer, EventSink};
use carrack_flexvolume::{Drivers, Told};
use tokio::sync::watch;
use tokio::time::Instant;

use super::calls::{Answer, Call, Outcome};
use crate::asking::{In, Out};

/// Calls the drivers of a directory.
pub struct Caller {
    drivers: Drivers,
    events: Option<EventSink<In<Outcome>>>,
    clock: Clock,
    /// Until when calls may run, where that is limited; for this process, and for what it has begun, should it be stopped.
    until: watch::Sender<Option<Time>>,
    runs_until: watch::Sender<Option<Instant>>,
}

impl Caller {
    /// Those below a directory.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        let (until, runs_until) = (watch::Sender::new(None), watch::Sender::new(None));
        let drivers = Drivers::new(dir).bound_by(runs_until.subscribe());
        Self { drivers, events: None, clock: Clock::default(), until, runs_until }
    }
}

impl Doer<Out<Call>, In<Outcome>> for Caller {
    fn clock(&mut self, clock: Clock) {
        self.clock = clock;
    }
    fn start(&mut self, events: EventSink<In<Outcome>>) {
        self.events = Some(events);
    }
    fn run(&mut self, out: Out<Call>) {
        let (id, call) = match out {
            Out::MayCallUntil(until) => {
                self.runs_until.send_replace(Some(Instant::now() + until.since(self.clock.now())));
                self.until.send_replace(Some(until));
                return;
            }
            Out::Call { id, call } => (id, call),
        };
        let Some(events) = self.events.clone() else { return };
        let (drivers, clock, until) = (self.drivers.clone(), self.clock, self.until.subscribe());
        tokio::spawn(async move {
            let outcome = make_until(&drivers, call, until, clock).await;
            events.send(In { id, outcome });
        });
    }
}

/// Makes a call, which ends when calls must be over.
pub(super) async fn make_until(
    drivers: &Drivers,
    call: Call,
    until: watch::Receiver<Option<Time>>,
    clock: Clock,
) -> Outcome {
    tokio::select! {
        // Looked at first: what comes late does not begin.
        biased;
        () = over(until, clock) => Err("the call was ended, since this process leads no more".to_owned()),
        outcome = make(drivers, call) => outcome,
    }
}

/// Waits until calls must be over.
async fn over(mut until: watch::Receiver<Option<Time>>, clock: Clock) {
    loop {
        let at = *until.borrow_and_update();
        let rest = at.map(|at| at.since(clock.now()));
        if rest.is_some_and(|rest| rest.is_zero()) {
            return;
        }
        let ends = async {
            match rest {
                Some(rest) => tokio::time::sleep(rest).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ends => {}
            changed = until.changed() => if changed.is_err() {
                // Nobody is there any more who could call.
                return;
            },
        }
    }
}

/// Makes a call.
pub(super) async fn make(drivers: &Drivers, call: Call) -> Outcome {
    let said = |told: Result<Told, _>| told.map_err(|e: carrack_disks::DiskError| e.to_string());
    match call {
        Call::Init(driver) => drivers.capabilities(&driver).await.map(Answer::Can).map_err(|e| e.to_string()),
        Call::Attach { disk, options, node } => {
            Ok(match said(drivers.call(&disk.driver, "attach", &[options, node]).await)? {
                Told::Answer(answer) => Answer::Attached(answer.device),
                Told::NotSupported => Answer::Attached(String::new()),
            })
        }
        Call::IsAttached { disk, options, node } => {
            Ok(match said(drivers.call(&disk.driver, "isattached", &[options, node]).await)? {
                Told::Answer(answer) => Answer::IsAttached(Some(answer.attached)),
                Told::NotSupported => Answer::IsAttached(None),
            })
        }
        Call::Detach { disk, node } => {
            said(drivers.call(&disk.driver, "detach", &[disk.volume, node]).await)?;
            Ok(Answer::Detached)
        }
        Call::Expand { disk, options, to, from } => {
            // Upstream's controller has no directory of plugins, and this is what is left of the path of the mount.
            let path = format!("{}/mounts/{}", disk.driver, disk.volume);
            let args = [options, path, to.to_string(), from.to_string()];
            said(drivers.call(&disk.driver, "expandvolume", &args).await)?;
            Ok(Answer::Expanded(to))
        }
    }
}
