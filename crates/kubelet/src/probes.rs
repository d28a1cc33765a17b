//! Probes: when to ask a container how it is, and what its answers amount to
//! (kubernetes pkg/kubelet/prober).
//!
//! A startup probe holds the others back until it passes once. Readiness begins as failed, liveness
//! as passed. A container that is to stop is asked no more but whether it still serves. An answer that never came is a
//! failure of that probe; one that could not be asked at all (the runtime is away, there is no such command or port) is no
//! answer, and changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::effects::{NetAction, Op, OpId};
use crate::pods::plan::Verdict;

/// Which of a container's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Holds the others back.
    Startup,
    /// Restarts the container.
    Liveness,
    /// Takes it out of service.
    Readiness,
}

#[derive(Clone, Debug)]
struct One {
    probe: Probe,
    next: Time,
    passing: Option<bool>,
    successes: i32,
    failures: i32,
    in_flight: Option<OpId>,
}

impl One {
    fn failed(&mut self) {
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.probe.failure_threshold.unwrap_or(3) {
            self.passing = Some(false);
        }
    }
}

/// Probes of one running container.
#[derive(Clone, Debug, Default)]
pub struct Prober {
    probes: BTreeMap<ProbeKind, One>,
    /// The container is to stop.
    stops: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Well.
    Success,
    /// Not well, and what it said.
    Failure(String),
    /// None, and why that is, where nobody else tells it.
    Unknown(Option<String>),
}

/// A named or numbered port of a container.
#[must_use]
pub fn port(c: &Container, p: &IntOrString) -> Option<u16> {
    match p {
        IntOrString::Int(n) => u16::try_from(*n).ok(),
        IntOrString::String(name) => match name.parse::<u16>() {
            Ok(n) => Some(n),
            Err(_) => c
                .ports
                .iter()
                .flatten()
                .find(|p| p.name.as_deref() == Some(name))
                .and_then(|p| u16::try_from(p.container_port).ok()),
        },
    }
    .filter(|p| *p > 0)
}

/// An HTTP action of a probe or of a hook as something to do.
#[must_use]
pub fn http_action(c: &Container, h: &HTTPGetAction, pod_ip: &str, is_hook: bool) -> Option<NetAction> {
    let host = h.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_owned());
    let path = h.path.clone().unwrap_or_default();
    Some(NetAction::Http {
        https: h.scheme.as_deref() == Some("HTTPS"),
        host,
        port: port(c, &h.port)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
        headers: h.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        is_hook,
    })
}

fn operation(c: &Container, id: &str, probe: &Probe, pod_ip: &str) -> Option<Op> {
    let timeout_s = i64::from(probe.timeout_seconds.unwrap_or(1).max(1));
    if let Some(e) = &probe.exec {
        return Some(Op::Exec { id: id.to_owned(), command: e.command.clone().unwrap_or_default(), timeout_s });
    }
    if let Some(h) = &probe.http_get {
        return Some(Op::Net { action: http_action(c, h, pod_ip, false)?, timeout_s });
    }
    let action = match (&probe.tcp_socket, &probe.grpc) {
        (Some(t), _) => NetAction::Tcp {
            host: t.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_owned()),
            port: port(c, &t.port)?,
        },
        (None, Some(g)) => NetAction::Grpc {
            host: pod_ip.to_owned(),
            port: u16::try_from(g.port).ok()?,
            service: g.service.clone().unwrap_or_default(),
        },
        (None, None) => return None,
    };
    Some(Op::Net { action, timeout_s })
}

/// Whether a probe is asked at present, by whether its container has started and is to stop. One that wants the container started
/// again has said its last: whatever it would say while that ends, such as that it has started after all, puts nobody into service
/// who is on his way out (upstream's `onHold`, `pkg/kubelet/prober/worker.go`).
fn applies(kind: ProbeKind, one: &One, started: bool, stops: bool) -> bool {
    let may_be_asked = kind == ProbeKind::Readiness || (!stops && one.passing != Some(false));
    (kind == ProbeKind::Startup) != started && may_be_asked
}

impl ProbeKind {
    /// Its name in events and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// What is told of one that could not be asked.
    #[must_use]
    pub fn errored(self, why: &str) -> String {
        format!("{} probe errored and resulted in unknown state: {why}", self.name())
    }
}

impl Prober {
    /// Probes of a container that started at a time. `told` is what was reported of it before a
    /// restart of the kubelet.
    #[must_use]
    pub fn new(c: &Container, started_at: Time, told: Option<Verdict>) -> Self {
        let mut probes = BTreeMap::new();
        for (kind, probe) in [
            (ProbeKind::Startup, &c.startup_probe),
            (ProbeKind::Liveness, &c.liveness_probe),
            (ProbeKind::Readiness, &c.readiness_probe),
        ] {
            if let Some(p) = probe {
                let delay = Duration::from_secs(u64::try_from(p.initial_delay_seconds.unwrap_or(0)).unwrap_or(0));
                probes.insert(
                    kind,
                    One {
                        probe: p.clone(),
                        next: started_at + delay,
                        passing: match kind {
                            ProbeKind::Startup => told.filter(|t| t.started).map(|_| true),
                            ProbeKind::Readiness => told.filter(|t| t.ready).map(|_| true),
                            ProbeKind::Liveness => None,
                        },
                        successes: 0,
                        failures: 0,
                        in_flight: None,
                    },
                );
            }
        }
        Self { probes, stops: false }
    }

    /// The container is to stop: whoever sends it requests until then still hears whether it serves, and nothing restarts it
    /// (upstream's `StopLivenessAndStartup`).
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// What the probes amount to.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let of = |kind| self.probes.get(&kind).map(|p: &One| p.passing);
        let started = of(ProbeKind::Startup).is_none_or(|p| p == Some(true));
        Verdict {
            started,
            ready: started && of(ProbeKind::Readiness).is_none_or(|p| p == Some(true)),
            must_restart: of(ProbeKind::Startup) == Some(Some(false)) || of(ProbeKind::Liveness) == Some(Some(false)),
        }
    }

    /// The grace period, in seconds, that the probe gives which wants the container restarted, where it has its own.
    #[must_use]
    pub fn grace_s(&self) -> Option<i64> {
        [ProbeKind::Startup, ProbeKind::Liveness]
            .into_iter()
            .filter_map(|kind| self.probes.get(&kind))
            .find(|one| one.passing == Some(false))
            .and_then(|one| one.probe.termination_grace_period_seconds)
    }

    /// Probes that are due: their kinds and what to do.
    ///
    /// One that has nowhere to go, since its port has a name that the container does not know, cannot be asked: what to do is
    /// none, then, and nothing follows from it (upstream's `doProbe` throws the result away).
    pub fn due(&mut self, now: Time, c: &Container, id: &str, pod_ip: &str) -> Vec<(ProbeKind, Option<Op>)> {
        let (started, stops) = (self.verdict().started, self.stops);
        let mut out = Vec::new();
        for (kind, one) in &mut self.probes {
            if !applies(*kind, one, started, stops) || one.in_flight.is_some() || one.next > now {
                continue;
            }
            out.push((*kind, operation(c, id, &one.probe, pod_ip)));
            let period = u64::try_from(one.probe.period_seconds.unwrap_or(10).max(1)).unwrap_or(10);
            one.next = now + Duration::from_secs(period);
        }
        out
    }

    /// A due probe was started under an id.
    pub fn started(&mut self, kind: ProbeKind, op: OpId) {
        if let Some(one) = self.probes.get_mut(&kind) {
            one.in_flight = Some(op);
        }
    }

    /// What is said of a probe that took too long.
    #[must_use]
    pub fn late(&self, kind: ProbeKind, seconds: u64) -> String {
        let exec = self.probes.get(&kind).and_then(|one| one.probe.exec.as_ref());
        match exec.and_then(|exec| exec.command.as_ref()) {
            Some(command) => format!("command timed out: {:?} timed out after {seconds}s", command.join(" ")),
            None => format!("no answer within {seconds} s"),
        }
    }

    /// A probe was answered. Returns what the pod's events are to say of that.
    pub fn answered(&mut self, kind: ProbeKind, op: OpId, answer: Answer) -> Option<String> {
        let one = self.probes.get_mut(&kind)?;
        one.in_flight.take_if(|id| *id == op)?;
        match answer {
            Answer::Unknown(why) => why.map(|why| kind.errored(&why)),
            Answer::Success => {
                one.failures = 0;
                one.successes = one.successes.saturating_add(1);
                if one.successes >= one.probe.success_threshold.unwrap_or(1) {
                    one.passing = Some(true);
                }
                None
            }
            Answer::Failure(said) => {
                one.failed();
                Some(format!("{} probe failed: {said}", kind.name()))
            }
        }
    }

    /// When the next probe is due.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let (started, stops) = (self.verdict().started, self.stops);
        self.probes
            .iter()
            .filter(|(kind, one)| applies(**kind, one, started, stops) && one.in_flight.is_none())
            .map(|(_, one)| one.next)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_that_stops_is_asked_whether_it_serves_and_nothing_else() {
        let c: Container = serde_json::from_value(json!({"name": "c", "image": "i",
            "livenessProbe": {"tcpSocket": {"port": 1}}, "readinessProbe": {"tcpSocket": {"port": 1}, "failureThreshold": 1},
            "startupProbe": {"tcpSocket": {"port": 1}}}))
        .unwrap();
        let told = Verdict { started: true, ready: true, must_restart: false };
        for (told, expected) in [(Some(told), &[ProbeKind::Readiness][..]), (None, &[][..])] {
            let mut p = Prober::new(&c, Time(0), told);
            p.stop();
            let due = p.due(Time(0), &c, "id", "10.0.0.1");
            let kinds: Vec<ProbeKind> = due.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, expected, "{told:?}");
            for kind in kinds {
                p.started(kind, OpId(1));
                p.answered(kind, OpId(1), Answer::Failure("no".into()));
            }
            let verdict = p.verdict();
            assert!(!verdict.ready && !verdict.must_restart, "{verdict:?}");
        }
    }

    #[test]
    fn a_probe_that_has_nowhere_to_go_says_nothing_of_its_container() {
        let c: Container = serde_json::from_value(json!({"name": "c", "image": "i",
            "livenessProbe": {"httpGet": {"port": "nowhere"}, "failureThreshold": 2}}))
        .unwrap();
        let mut p = Prober::new(&c, Time(0), None);
        let mut now = Time(0);
        for _ in 0..3 {
            let due = p.due(now, &c, "id", "10.0.0.1");
            assert!(matches!(due.as_slice(), [(ProbeKind::Liveness, None)]), "{due:?}");
            assert!(!p.verdict().must_restart);
            now = now + Duration::from_secs(10);
        }
    }

    /// In upstream's words.
    #[test]
    fn what_is_told_of_an_answer() {
        let c: Container = serde_json::from_value(json!({"name": "c", "image": "i",
            "livenessProbe": {"exec": {"command": ["sleep", "10"]}}, "readinessProbe": {"tcpSocket": {"port": 1}}}))
        .unwrap();
        let mut p = Prober::new(&c, Time(0), None);
        let (command, connection) = (p.late(ProbeKind::Liveness, 1), p.late(ProbeKind::Readiness, 2));
        for (kind, answer, expected) in [
            (ProbeKind::Liveness, Answer::Success, None),
            (
                ProbeKind::Liveness,
                Answer::Failure(command),
                Some("Liveness probe failed: command timed out: \"sleep 10\" timed out after 1s"),
            ),
            (ProbeKind::Readiness, Answer::Failure(connection), Some("Readiness probe failed: no answer within 2 s")),
            (
                ProbeKind::Liveness,
                Answer::Unknown(Some("no such file".into())),
                Some("Liveness probe errored and resulted in unknown state: no such file"),
            ),
            (ProbeKind::Liveness, Answer::Unknown(None), None),
        ] {
            p.started(kind, OpId(1));
            let what = format!("{answer:?}");
            assert_eq!(p.answered(kind, OpId(1), answer).as_deref(), expected, "{what}");
        }
        assert_eq!(
            p.answered(ProbeKind::Liveness, OpId(1), Answer::Failure("late".into())),
            None,
            "nobody asks any more"
        );
    }

    /// Plays answers, one a period, and shows the verdict after each: S(tarted), R(eady), X(restart).
    fn play(container: serde_json::Value, answers: &[&str]) -> Vec<String> {
        let c: Container = serde_json::from_value(container).unwrap();
        let mut p = Prober::new(&c, Time(0), None);
        let mut out = Vec::new();
        let mut now = Time(0);
        for (n, answer) in answers.iter().enumerate() {
            for (i, (kind, op)) in p.due(now, &c, "id", "10.0.0.1").into_iter().enumerate() {
                if op.is_none() {
                    continue;
                }
                let op = OpId((n * 10 + i) as u64 + 1);
                p.started(kind, op);
                let answer = match *answer {
                    "ok" => Answer::Success,
                    "bad" => Answer::Failure("no".into()),
                    _ => Answer::Unknown(None),
                };
                p.answered(kind, op, answer);
            }
            let v = p.verdict();
            let mut s = String::new();
            s.push_str(if v.started { "S" } else { "" });
            s.push_str(if v.ready { "R" } else { "" });
            s.push_str(if v.must_restart { "X" } else { "" });
            out.push(s);
            now = now + Duration::from_secs(10);
        }
        out
    }

    #[test]
    fn verdicts() {
        let exec = json!({"exec": {"command": ["true"]}, "failureThreshold": 2});
        for (container, answers, expected) in [
            (json!({"name": "c"}), vec!["ok"], vec!["SR"]),
            (
                json!({"name": "c", "readinessProbe": exec}),
                vec!["bad", "ok", "bad", "bad", "?", "ok"],
                vec!["S", "SR", "SR", "S", "S", "SR"],
            ),
            (
                json!({"name": "c", "livenessProbe": exec}),
                vec!["bad", "?", "ok", "bad", "bad"],
                vec!["SR", "SR", "SR", "SR", "SRX"],
            ),
            (
                json!({"name": "c", "startupProbe": exec, "readinessProbe": exec}),
                vec!["bad", "ok", "ok"],
                vec!["", "S", "SR"],
            ),
            // Who is to be started again is not heard any more.
            (json!({"name": "c", "startupProbe": exec}), vec!["bad", "bad", "ok"], vec!["", "X", "X"]),
            (json!({"name": "c", "livenessProbe": exec}), vec!["bad", "bad", "ok"], vec!["SR", "SRX", "SRX"]),
        ] {
            assert_eq!(play(container.clone(), &answers), expected, "{container}");
        }
    }

    #[test]
    fn ports_by_name() {
        let c: Container =
            serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]})).unwrap();
        for (p, expected) in [
            (IntOrString::Int(80), Some(80)),
            (IntOrString::String("web".into()), Some(8080)),
            (IntOrString::String("81".into()), Some(81)),
            (IntOrString::String("none".into()), None),
            (IntOrString::Int(0), None),
            (IntOrString::Int(70000), None),
        ] {
            assert_eq!(port(&c, &p), expected, "{p:?}");
        }
    }
}
