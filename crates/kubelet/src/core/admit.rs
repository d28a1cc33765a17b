//! Whether a pod may start here: admission, and the wait for what it lacks.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{EventRecord, Time};
use carrack_types::fit::{self, HostPort};
use k8s_openapi::api::core::v1::Pod;

use super::worker::{Admission, Stopping, Worker};
use super::{Fx, KubeletCore, show};
use crate::admission::{self, Decision};
use crate::amount::Amounts;
use crate::effects::{Counted, Op, OpId, Tally};
use crate::runtime::Uid;
use crate::spec::pod;
use crate::status::declared::declared;
use crate::status::node::allocatable_amounts;

/// How long a wait for a plugin lasts before it is told again.
const WAIT_REPORT: Duration = Duration::from_secs(300);

/// What pods have of the node: all of it, what of it belongs to those that are leaving, and ports.
pub(super) fn taken<'a>(pods: impl Iterator<Item = &'a Worker>) -> (Amounts, Amounts, BTreeSet<HostPort>) {
    let (mut used, mut leaving, mut ports) = (Amounts::new(), Amounts::new(), BTreeSet::new());
    for other in pods {
        let requests = pod::takes(&other.pod);
        pod::add(&mut used, &requests);
        if other.stopping.is_some() {
            pod::add(&mut leaving, &requests);
        }
        ports.extend(fit::host_ports_of(&other.pod));
    }
    (used, leaving, ports)
}

/// The word under which a rejection is counted. Pods may name resources without end, and each word is counted for as long as the
/// kubelet lives: so there are upstream's alone (`recordAdmissionRejection`, `pkg/kubelet`), and one of ours.
fn counted_as(reason: &str) -> &str {
    const KNOWN: [&str; 14] = [
        "AppArmor",
        "Evicted",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "PodFeatureUnsupported",
        "PodOSNotSupported",
        "ResourceNotReady",
        "SupplementalGroupsPolicyNotSupported",
        "SysctlForbidden",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    ];
    match reason {
        known if KNOWN.contains(&known) => known,
        extended if extended.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

impl KubeletCore {
    pub(super) fn admit(&mut self, now: Time, uid: &Uid, w: &mut Worker, fx: &mut Fx) {
        if matches!(w.admission, Admission::Rejected(..)) {
            return;
        }
        // Whether it began here before is not known before the runtime was listed once.
        if self.listed.is_none() {
            return;
        }
        let admitted_before = self.was_admitted(uid, w);
        if self.shutdown.is_under_way() && !admitted_before {
            let (reason, message) = crate::shutdown::REJECTED;
            self.reject(now, w, reason.into(), message.into(), fx);
            return;
        }
        if !admitted_before && self.waits_for_namesake(uid, &w.pod) {
            // It comes when that has ended, however long that takes.
            let message = "the static pod of this name that was here before has not ended".to_owned();
            w.admission = Admission::Waiting { message, since: now, report_at: now };
            return;
        }
        // Who began here before is not judged by what others have.
        let (used, leaving, ports) = taken(self.takers().filter(|_| !admitted_before));
        let pod = w.pod.clone();
        let decision = self.judge(uid, &pod, admitted_before, (&used, &leaving, &ports));
        let decision = match decision {
            Decision::Admit if !admitted_before => self.laid_together(uid, &w.pod),
            other => other,
        };
        // Who has room made for it waits until those have ended who make it.
        let lacks_room = matches!(&decision, Decision::Reject { reason, .. } if reason.starts_with("OutOf"));
        let decision =
            if lacks_room && pod::is_critical(&pod) && self.make_room(now, uid, &pod, (&used, &leaving, &ports), fx) {
                Decision::Wait { resource: "room".into(), message: "pods that matter less make room for it".into() }
            } else {
                decision
            };
        match decision {
            Decision::Admit => {
                w.admission = Admission::Admitted;
                self.groups.due = true;
                self.allocate_admitted(uid, w, admitted_before);
                if admitted_before {
                    self.adopt_cpus(now, uid, w, fx);
                    self.adopt_memory(now, uid, w, fx);
                }
            }
            Decision::Reject { reason, message } => {
                if reason == "OutOfmemory" {
                    self.memory_refused(&w.pod);
                }
                self.reject(now, w, reason, message, fx);
            }
            // The Node is read within moments; that is no news, and has no end.
            Decision::Wait { resource, message } if resource == "node" => {
                w.admission = Admission::Waiting { message, since: now, report_at: now };
            }
            Decision::Wait { message, .. } => self.wait_admission(now, uid, w, &message, fx),
        }
    }

    /// It waits for a resource, until its deadline.
    fn wait_admission(&mut self, now: Time, uid: &Uid, w: &mut Worker, why: &str, fx: &mut Fx) {
        let (since, told) = match &w.admission {
            Admission::Waiting { since, report_at, .. } if *report_at > now => (*since, Some(*report_at)),
            Admission::Waiting { since, report_at, .. } if report_at > since => (*since, None),
            _ => (now, None),
        };
        // Those who make room for it may have longer than that to end.
        let deadline = since.max(self.has_room_by(&w.pod)) + self.config.resource_wait;
        if now >= deadline {
            let message = format!("{why}, and was not within {} s", self.config.resource_wait.as_secs());
            self.reject(now, w, "ResourceNotReady".into(), message, fx);
            return;
        }
        let message = format!("{why}; it is waited for until {}", deadline.rfc3339());
        let report_at = told.unwrap_or_else(|| {
            self.event(now, EventRecord::warning(w.pod.as_ref(), "WaitingForResource", message.clone()), fx);
            now + WAIT_REPORT
        });
        self.wake_pod(report_at.min(deadline), uid);
        w.admission = Admission::Waiting { message, since, report_at };
    }

    fn reject(&mut self, now: Time, w: &mut Worker, reason: String, message: String, fx: &mut Fx) {
        tracing::info!(pod = %pod::pod_ref(&w.pod), reason, message, "pod rejected");
        self.event(now, EventRecord::warning(w.pod.as_ref(), reason.clone(), message.clone()), fx);
        show(Op::Count(Counted::Tally(Tally::Rejected, counted_as(&reason).to_owned())), fx);
        w.admission = Admission::Rejected(reason, message);
        w.stopping = Some(Stopping { deadline: now, since: OpId(fx.fresh()), because: None });
        self.relist(fx);
    }

    /// What admission says of a pod, beside what others have: used, of that leaving, and ports.
    pub(super) fn judge(
        &self,
        uid: &Uid,
        pod: &Pod,
        admitted_before: bool,
        (used, leaving, host_ports): (&Amounts, &Amounts, &BTreeSet<HostPort>),
    ) -> Decision {
        let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let bound_at = conditions
            .filter(|c| c.type_ == "PodScheduled")
            .find_map(|c| c.last_transition_time.as_ref().map(Time::from))
            .unwrap_or_else(|| pod::created_at(pod));
        admission::decide(&admission::Inputs {
            pod,
            node: self.node.seen.as_deref(),
            admitted_before,
            bound_before_start: bound_at < self.started_at,
            allocatable: &allocatable_amounts(&self.host, &self.config),
            used,
            leaving,
            host_ports,
            devices: &self.devices,
            allowed_sysctls: &self.config.allowed_sysctls,
            strict_groups: self.runtime_info.as_ref().map(|info| info.strict_groups),
            apparmor: self.host.apparmor,
            declared: &declared(&self.config),
            pressure: self.pressure(),
            planted: self.planted,
            runs: self.is_alive(uid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::counted_as;

    #[test]
    fn rejections_are_counted_by_few_words() {
        for (reason, word) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfpods", "OutOfpods"),
            ("OutOfexample.com/x", "OutOfExtendedResources"),
            ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
            ("ResourceNotReady", "ResourceNotReady"),
            ("NodePorts", "Other"),
        ] {
            assert_eq!(counted_as(reason), word, "{reason}");
        }
    }
}
