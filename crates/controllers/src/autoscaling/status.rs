//! What an autoscaler tells: its status, which is written only where it changes, and events.

use carrack_engine::{EventRecord, Plan, Time};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricStatus,
};

/// Condition: the target's scale can be read and changed.
pub(super) const ABLE: &str = "AbleToScale";
/// Condition: it is known how many replicas there are to be.
pub(super) const ACTIVE: &str = "ScalingActive";
/// Condition: there are to be more or fewer than there may.
pub(super) const LIMITED: &str = "ScalingLimited";

/// A status that is being made, and what is told besides.
pub(super) struct Draft<'a> {
    read: &'a HorizontalPodAutoscaler,
    pub(super) status: HorizontalPodAutoscalerStatus,
    events: Vec<EventRecord>,
    pub(super) now: Time,
}

impl<'a> Draft<'a> {
    /// What was told last.
    pub(super) fn of(read: &'a HorizontalPodAutoscaler, now: Time) -> Self {
        Self { read, status: read.status.clone().unwrap_or_default(), events: Vec::new(), now }
    }

    /// Sets a condition.
    pub(super) fn set(&mut self, type_: &str, holds: bool, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        let place = conditions.iter().position(|condition| condition.type_ == type_).unwrap_or_else(|| {
            let new = HorizontalPodAutoscalerCondition { type_: type_.to_owned(), ..Default::default() };
            conditions.push(new);
            conditions.len() - 1
        });
        let condition = &mut conditions[place];
        let status = if holds { "True" } else { "False" };
        if condition.status != status {
            condition.last_transition_time = Some(self.now.meta());
        }
        condition.status = status.to_owned();
        condition.reason = Some(reason.to_owned());
        condition.message = Some(message.to_owned());
    }

    /// Sets how many replicas there are, how many there are to be, if that is known, and what the metrics show.
    pub(super) fn count(&mut self, current: i32, desired: Option<i32>, shown: Option<Vec<MetricStatus>>) {
        self.status.current_replicas = Some(current);
        self.status.desired_replicas = desired.unwrap_or(self.status.desired_replicas);
        self.status.current_metrics = shown.filter(|shown| !shown.is_empty());
    }

    /// Tells of something that went wrong.
    pub(super) fn warn(&mut self, reason: &str, message: impl Into<String>) {
        self.events.push(EventRecord::warning(self.read, reason, message));
    }

    /// The plan with what is told added behind its writes.
    pub(super) fn write(self, plan: Plan) -> Plan {
        let plan = self.events.into_iter().fold(plan, Plan::event);
        let status =
            HorizontalPodAutoscalerStatus { observed_generation: self.read.metadata.generation, ..self.status };
        if self.read.status.as_ref() == Some(&status) {
            return plan;
        }
        plan.update_status(self.read, &HorizontalPodAutoscaler { status: Some(status), ..self.read.clone() })
    }
}
