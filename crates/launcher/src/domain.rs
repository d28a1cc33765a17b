//! The life of one machine, as a state machine without input or output.
//!
//! ```text
//!            sync              QEMU answers          SHUTDOWN, panic, kill, QEMU gone
//!  Waiting ───────► Starting ──────────────► Running ──────────────────────────────► Ended
//!     │                │                     ▲    │                                    ▲
//!     │                │                     └────┴─ Paused (STOP, RESUME) ────────────┤
//!     └────────────────┴──────────────────────────────── kill, failure ────────────────┘
//! ```
//!
//! QEMU does not end by itself: it stops the processors and says why, the reason is written down, and only
//! then is it told to quit. So a reason is never lost, whichever process dies at whichever instant; a monitor
//! that finds QEMU stopped by a shutdown knows what happened.

use crate::accel::Accel;
use crate::argv::AGENT_PORT;
use crate::board::WatchdogAction;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The words for the end of a guest that has panicked and could say so.
pub const PANICKED: &str = "the guest panicked";

/// The words for an end that QEMU has not announced, before it first answered and after.
const GONE_AT_START: &str = "QEMU ended while it started";
const GONE: &str = "QEMU ended without a shutdown of the guest";

/// What is known of a machine. Written to [`crate::Layout::domain_file`] and sent to virt-handler as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// The VirtualMachineInstance's UID.
    pub uid: String,
    /// Where in its life the machine is.
    pub phase: Phase,
    /// Why it ended; present exactly in the phase Ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// The accelerator that QEMU was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    /// The machine type that QEMU has made of what it was asked for, with its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// The guest was asked to shut down and has not yet.
    #[serde(default)]
    pub shutdown_requested: bool,
    /// The guest was asked to shut down in order to be started again.
    #[serde(default)]
    pub restart_requested: bool,
    /// How often the guest was reset, by itself or on request. Linux presses the reset button several times
    /// for one restart, so that this says whether there was one rather than how many.
    #[serde(default)]
    pub resets: u32,
    /// The guest agent's channel is open inside the guest.
    #[serde(default)]
    pub agent_connected: bool,
    /// It stands because one of its disks did not do what it was asked to.
    #[serde(default)]
    pub io_error: bool,
    /// The last trouble that did not end the machine, such as a disk error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Where in its life a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// No specification has come yet.
    Waiting,
    /// QEMU is being started.
    Starting,
    /// The processors run.
    Running,
    /// The processors are stopped, and can go on.
    Paused,
    /// It is over.
    Ended,
}

/// How a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The kind of end.
    pub reason: EndReason,
    /// For people.
    pub detail: String,
}

impl End {
    /// Whether QEMU ended by itself: why, it alone can have said.
    #[must_use]
    pub fn is_qemus_own(&self) -> bool {
        matches!(self.detail.as_str(), GONE_AT_START | GONE)
    }
}

/// The kind of a machine's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// The guest powered itself off, by itself or because it was asked to.
    GuestShutdown,
    /// It was killed on request.
    Killed,
    /// The guest panicked or hung until its watchdog fired, or QEMU met an internal error or was ended by something
    /// else.
    Crashed,
    /// It never ran.
    FailedToStart,
    /// Its node could not renew its Lease, and had promised to stop it then; or a newer run of it has its disks.
    Fenced,
}

/// Something observed about the machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed {
    /// A specification was accepted; QEMU is about to start.
    Accepted {
        /// The accelerator.
        accel: Accel,
    },
    /// Preparing failed.
    FailedToStart(String),
    /// QEMU said which machine type it has.
    MachineType(String),
    /// QEMU's `query-status` answered with this run state.
    RunState(String),
    /// A QMP event.
    Event {
        /// Its name.
        name: String,
        /// Its data.
        data: Value,
    },
    /// The guest was asked to shut down.
    ShutdownRequested,
    /// The guest was asked to shut down and shall start again then.
    RestartRequested,
    /// The machine was reset after that, and its processors go on.
    Restarted,
    /// An end was asked for.
    KillRequested,
    /// The time until which the guest may run is over.
    PromiseOver,
    /// A newer run of the machine has taken one of its disks; for people.
    DiskTaken(String),
    /// QEMU is gone without having said why.
    QemuGone,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Todo {
    /// Write the state down and tell those who watch.
    pub publish: bool,
    /// Reset the machine and let its processors go on, and observe then [`Observed::Restarted`]. Until that is written
    /// down, a monitor that takes over finds that it is to be done.
    pub restart: bool,
    /// Tell QEMU to quit, after publishing.
    pub quit: bool,
}

impl Domain {
    /// A machine that nothing is known of.
    pub fn waiting(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            phase: Phase::Waiting,
            end: None,
            accel: None,
            machine_type: None,
            shutdown_requested: false,
            restart_requested: false,
            resets: 0,
            agent_connected: false,
            io_error: false,
            warning: None,
        }
    }

    /// Takes in what was observed. An end is final: nothing changes a domain after it.
    pub fn observe(&mut self, observed: Observed) -> Todo {
        if self.phase == Phase::Ended {
            // A repeated reason to quit is answered again: the first quit may not have arrived.
            return Todo { quit: !matches!(observed, Observed::QemuGone), ..Todo::default() };
        }
        let before = self.clone();
        if self.restart_requested && is_to_start_again(&observed) {
            return Todo { restart: true, ..Todo::default() };
        }
        match observed {
            Observed::Accepted { accel } => {
                self.phase = Phase::Starting;
                self.accel = Some(accel);
            }
            Observed::MachineType(name) => self.machine_type = Some(name),
            Observed::FailedToStart(detail) => self.finish(EndReason::FailedToStart, detail),
            Observed::RunState(state) => self.run_state(&state),
            Observed::Event { name, data } => self.event(&name, &data),
            Observed::ShutdownRequested => {
                self.shutdown_requested = true;
                // The last word counts: a guest that has not heeded the one before is not to come back.
                self.restart_requested = false;
            }
            Observed::RestartRequested => self.restart_requested = true,
            Observed::Restarted => self.restarted(),
            Observed::KillRequested => self.finish(EndReason::Killed, "ended on request".to_owned()),
            Observed::PromiseOver => {
                self.finish(EndReason::Fenced, "its node could not renew its lease".to_owned());
            }
            Observed::DiskTaken(detail) => self.finish(EndReason::Fenced, detail),
            Observed::QemuGone => {
                let (reason, detail) = match self.phase {
                    Phase::Waiting | Phase::Starting => (EndReason::FailedToStart, GONE_AT_START),
                    _ => (EndReason::Crashed, GONE),
                };
                self.finish(reason, detail.to_owned());
            }
        }
        Todo { publish: *self != before, restart: false, quit: self.phase == Phase::Ended }
    }

    /// Whether QEMU was ever started for it.
    pub fn has_begun(&self) -> bool {
        self.accel.is_some()
    }

    fn goes_on(&mut self) {
        self.phase = Phase::Running;
        self.io_error = false;
    }

    fn restarted(&mut self) {
        self.resets = self.resets.saturating_add(1);
        self.shutdown_requested = false;
        self.restart_requested = false;
    }

    fn finish(&mut self, reason: EndReason, detail: String) {
        self.phase = Phase::Ended;
        self.end = Some(End { reason, detail });
    }

    /// The guest hangs, and is to be ended for it. That is no shutdown of its own. (Upstream: KubeVirt's conformance
    /// tests want such an instance to have failed.)
    fn watchdog_fired(&mut self) {
        self.finish(EndReason::Crashed, "the guest did not feed its watchdog".to_owned());
    }

    /// Upstream reference: the enumeration RunState in QEMU's qapi/run-state.json.
    fn run_state(&mut self, state: &str) {
        match state {
            "running" => self.goes_on(),
            "shutdown" => self.finish(EndReason::GuestShutdown, "the guest shut down".to_owned()),
            "guest-panicked" => self.finish(EndReason::Crashed, PANICKED.to_owned()),
            "internal-error" => self.finish(EndReason::Crashed, "QEMU met an internal error".to_owned()),
            "watchdog" => self.watchdog_fired(),
            "io-error" => {
                self.phase = Phase::Paused;
                if !std::mem::replace(&mut self.io_error, true) {
                    self.warning = Some("stopped by a disk error".to_owned());
                }
            }
            _ => self.phase = Phase::Paused,
        }
    }

    /// Upstream reference: the events in QEMU's qapi/run-state.json, block-core.json and char.json.
    fn event(&mut self, name: &str, data: &Value) {
        let text = |key: &str| data[key].as_str().unwrap_or("unknown");
        match name {
            "SHUTDOWN" => match text("reason") {
                // Machines whose end it is when they are restarted, whoever does it.
                "guest-reset" | "host-qmp-system-reset" => {
                    self.finish(EndReason::GuestShutdown, "the guest was restarted, which ends it".to_owned());
                }
                "guest-shutdown" => self.finish(EndReason::GuestShutdown, "the guest shut down".to_owned()),
                "guest-panic" => self.finish(EndReason::Crashed, PANICKED.to_owned()),
                "host-qmp-quit" => self.finish(EndReason::Killed, "QEMU was told to quit".to_owned()),
                "host-signal" => self.finish(EndReason::Killed, "QEMU was ended by a signal".to_owned()),
                reason => self.finish(EndReason::Crashed, format!("QEMU shut down: {reason}")),
            },
            "GUEST_PANICKED" => self.warning = Some(PANICKED.to_owned()),
            "RESET" if data["guest"] == true => self.restarted(),
            "STOP" => self.phase = Phase::Paused,
            "RESUME" => self.goes_on(),
            "BLOCK_IO_ERROR" => {
                self.io_error |= data["action"] == "stop";
                self.warning =
                    Some(format!("{} on {} failed: {}", text("operation"), text("node-name"), text("reason")));
            }
            "WATCHDOG" if text("action") == WatchdogAction::Poweroff.qemu() => self.watchdog_fired(),
            "WATCHDOG" => self.warning = Some(format!("the watchdog fired: {}", text("action"))),
            "VSERPORT_CHANGE" if text("id") == AGENT_PORT => self.agent_connected = data["open"] == true,
            _ => {}
        }
    }
}

/// The guest powered itself off: said by an event, or found by a monitor that came later, also between the reset and
/// the processors' going on (`prelaunch`).
fn is_to_start_again(observed: &Observed) -> bool {
    match observed {
        Observed::Event { name, data } => name == "SHUTDOWN" && data["reason"] == "guest-shutdown",
        Observed::RunState(state) => matches!(state.as_str(), "shutdown" | "prelaunch"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn event(name: &str, data: Value) -> Observed {
        Observed::Event { name: name.to_owned(), data }
    }

    fn started() -> Vec<Observed> {
        vec![Observed::Accepted { accel: Accel::Tcg }, Observed::RunState("running".to_owned())]
    }

    #[track_caller]
    fn check(more: Vec<Observed>, phase: Phase, end: Option<EndReason>) {
        let mut domain = Domain::waiting("u");
        for observed in started().into_iter().chain(more.clone()) {
            domain.observe(observed);
        }
        assert_eq!((domain.phase, domain.end.map(|end| end.reason)), (phase, end), "{more:?}");
    }

    #[test]
    fn lives() {
        let shutdown = |reason: &str| event("SHUTDOWN", json!({ "guest": true, "reason": reason }));
        let ended = |reason| (Phase::Ended, Some(reason));
        let cases = [
            (vec![], (Phase::Running, None)),
            (vec![event("STOP", json!({}))], (Phase::Paused, None)),
            (vec![event("STOP", json!({})), event("RESUME", json!({}))], (Phase::Running, None)),
            (vec![shutdown("guest-shutdown")], ended(EndReason::GuestShutdown)),
            (vec![shutdown("guest-shutdown"), event("STOP", json!({}))], ended(EndReason::GuestShutdown)),
            (vec![shutdown("guest-panic")], ended(EndReason::Crashed)),
            (vec![shutdown("host-signal")], ended(EndReason::Killed)),
            (vec![shutdown("host-error")], ended(EndReason::Crashed)),
            (vec![Observed::KillRequested, shutdown("host-qmp-quit")], ended(EndReason::Killed)),
            (vec![Observed::PromiseOver, Observed::KillRequested], ended(EndReason::Fenced)),
            (vec![Observed::QemuGone], ended(EndReason::Crashed)),
            (vec![Observed::RunState("shutdown".to_owned())], ended(EndReason::GuestShutdown)),
            (vec![Observed::RunState("paused".to_owned())], (Phase::Paused, None)),
            (vec![event("RESET", json!({ "guest": true }))], (Phase::Running, None)),
            (vec![event("WATCHDOG", json!({ "action": "reset" }))], (Phase::Running, None)),
            (vec![event("WATCHDOG", json!({ "action": "pause" }))], ended(EndReason::Crashed)),
            (vec![Observed::RunState("watchdog".to_owned())], ended(EndReason::Crashed)),
            (vec![shutdown("guest-reset")], ended(EndReason::GuestShutdown)),
            (vec![shutdown("host-qmp-system-reset")], ended(EndReason::GuestShutdown)),
            (
                vec![Observed::RestartRequested, Observed::ShutdownRequested, shutdown("guest-shutdown")],
                ended(EndReason::GuestShutdown),
            ),
            (
                // It had shut down already, and is looked at once more before it is started again.
                vec![
                    Observed::RestartRequested,
                    shutdown("guest-shutdown"),
                    Observed::ShutdownRequested,
                    Observed::RunState("shutdown".to_owned()),
                ],
                ended(EndReason::GuestShutdown),
            ),
            (vec![event("UNKNOWN", json!(null)), event("SHUTDOWN", json!([]))], ended(EndReason::Crashed)),
        ];
        for (more, (phase, end)) in cases {
            check(more, phase, end);
        }
    }

    #[test]
    fn it_is_told_what_makes_it_stand() {
        let failed = |action: &str| event("BLOCK_IO_ERROR", json!({ "action": action, "operation": "write" }));
        let [stop, go] = ["STOP", "RESUME"].map(|name| event(name, json!({})));
        let cases = [
            (vec![stop.clone()], false),
            (vec![failed("stop"), stop.clone()], true),
            (vec![failed("report"), stop.clone()], false),
            (vec![Observed::RunState("io-error".to_owned())], true),
            (vec![failed("stop"), stop.clone(), go, stop], false),
        ];
        for (more, io_error) in cases {
            let mut domain = Domain::waiting("u");
            for observed in started().into_iter().chain(more.clone()) {
                domain.observe(observed);
            }
            assert_eq!((domain.phase, domain.io_error), (Phase::Paused, io_error), "{more:?}");
        }
    }

    #[test]
    fn before_qemu_answers_it_never_ran() {
        for observed in [Observed::QemuGone, Observed::FailedToStart("x".to_owned())] {
            let mut domain = Domain::waiting("u");
            domain.observe(Observed::Accepted { accel: Accel::Kvm });
            let own = observed == Observed::QemuGone;
            let todo = domain.observe(observed);
            let end = domain.end.expect("an end");
            assert_eq!((end.reason, end.is_qemus_own()), (EndReason::FailedToStart, own));
            assert!(todo.publish && todo.quit);
        }
    }

    #[test]
    fn a_requested_restart_is_no_end() {
        let powered_off = || event("SHUTDOWN", json!({ "guest": true, "reason": "guest-shutdown" }));
        for shutdown in
            [powered_off(), Observed::RunState("shutdown".to_owned()), Observed::RunState("prelaunch".to_owned())]
        {
            let mut domain = Domain::waiting("u");
            for observed in started().into_iter().chain([Observed::RestartRequested]) {
                domain.observe(observed);
            }
            // However often a monitor dies on the way.
            for _ in 0..2 {
                let todo = domain.observe(shutdown.clone());
                assert_eq!(todo, Todo { publish: false, restart: true, quit: false }, "{shutdown:?}");
            }
            assert!(domain.observe(Observed::Restarted).publish);
            assert_eq!((domain.resets, domain.restart_requested), (1, false));
            // Only the one that was asked for.
            assert!(domain.observe(powered_off()).quit);
        }
    }

    fn any_observed() -> impl Strategy<Value = Observed> {
        let names = ["SHUTDOWN", "STOP", "RESUME", "RESET", "GUEST_PANICKED", "VSERPORT_CHANGE", "X"];
        let reasons = ["guest-shutdown", "guest-panic", "host-signal", ""];
        prop_oneof![
            Just(Observed::Accepted { accel: Accel::Tcg }),
            Just(Observed::MachineType("pc-q35-7.2".to_owned())),
            Just(Observed::QemuGone),
            Just(Observed::KillRequested),
            Just(Observed::PromiseOver),
            Just(Observed::ShutdownRequested),
            Just(Observed::RestartRequested),
            Just(Observed::Restarted),
            prop::sample::select(vec!["running", "paused", "shutdown", "io-error", "?"])
                .prop_map(|state| Observed::RunState(state.to_owned())),
            (prop::sample::select(names.to_vec()), prop::sample::select(reasons.to_vec()), any::<bool>())
                .prop_map(|(name, reason, flag)| event(name, json!({ "reason": reason, "guest": flag, "open": flag }))),
        ]
    }

    proptest! {
        /// Whatever comes: an end has a reason, stays as it was, and asks for QEMU's end; only changes are published.
        #[test]
        fn an_end_is_final(history in prop::collection::vec(any_observed(), 0..30)) {
            let mut domain = Domain::waiting("u");
            for observed in history {
                let before = domain.clone();
                let todo = domain.observe(observed.clone());
                prop_assert_eq!(domain.phase == Phase::Ended, domain.end.is_some());
                prop_assert_eq!(todo.publish, domain != before);
                if before.phase == Phase::Ended {
                    prop_assert_eq!(&domain, &before);
                } else {
                    prop_assert_eq!(todo.quit, domain.phase == Phase::Ended);
                }
                let text = serde_json::to_string(&domain).expect("JSON");
                prop_assert_eq!(serde_json::from_str::<Domain>(&text).expect("JSON"), domain.clone());
            }
        }
    }
}
