//! A trial of the machine's watchdog: it is held as the handler holds it while a guest runs under its node's promise.
//!
//! An operator learns from it whether the device can be had, what its driver makes of the time, and, by stopping or killing
//! the process, whether the machine is really reset.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::shell::Clock;
use tokio_util::sync::CancellationToken;

use super::super::{anchor::Anchor, blocking};
use super::Watchdog;
use crate::fence::{GUEST_RUNS, RENEW_PERIOD};
use crate::handler::core::watchdog::{Need, Watchdog as Decisions};
use crate::handler::effects::WatchdogCall;

/// Holds a device until `stop`, and closes it then in good order. `timeout` is what it is set to. What happens is told to
/// `say`.
///
/// # Errors
/// The device cannot be had or be used, or its driver lets nobody stop it.
pub async fn run(
    device: PathBuf,
    timeout: Duration,
    say: impl Fn(&str),
    stop: CancellationToken,
) -> Result<(), String> {
    let clock = Clock::default();
    let (anchor, held) = (Arc::new(Anchor::new(clock)), Arc::new(Watchdog::new(Some(device), None)));
    let mut decisions = Decisions::new(true).with_timeout(timeout);
    let (mut renewed, mut opened, mut unfit, mut unclosed) = (clock.now(), false, None, None);
    loop {
        let now = clock.now();
        // The Lease of a node that hears of its API server.
        if now.since(renewed) >= RENEW_PERIOD {
            renewed = now;
        }
        let ended = stop.is_cancelled() || unfit.is_some();
        let need = Need { wanted: !ended, clean: ended || !opened, promised: Some(renewed + GUEST_RUNS) };
        let (call, at) = decisions.next(now, &need);
        if let Some(call) = call {
            let (held, anchor) = (held.clone(), anchor.clone());
            let outcome = blocking(move || held.call(call, &anchor)).await;
            if call == WatchdogCall::Close {
                unclosed = outcome.as_ref().err().map(|error| format!("it is not closed in good order: {error}"));
            }
            decisions.done(clock.now(), outcome);
            if !opened {
                opened = true;
                let said = decisions.said().unwrap_or_default();
                if said.starts_with("ready") {
                    say(said);
                } else {
                    unfit = Some(said.to_owned());
                }
            }
        } else if ended {
            break;
        } else {
            let next = at.map_or(RENEW_PERIOD, |at| at.since(now)).min(RENEW_PERIOD);
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = stop.cancelled() => {}
            }
        }
    }
    if decisions.is_open() {
        return Err("its driver does not let it be stopped: it will reset the machine".to_owned());
    }
    match unclosed.or(unfit) {
        Some(why) => Err(why),
        None => {
            say("closed in good order");
            Ok(())
        }
    }
}
