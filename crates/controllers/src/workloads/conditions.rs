//! Conditions in statuses.
//!
//! Each kind has a type of condition of its own, all of one form; a macro gives them one face.

use carrack_engine::Time;

/// A condition of any kind.
pub(crate) trait Condition: Sized {
    /// One that came about now.
    fn new(kind: &str, status: &str, reason: &str, message: String, now: Time) -> Self;
    fn kind(&self) -> &str;
    fn status(&self) -> &str;
    fn reason(&self) -> &str;
    /// Takes over when another one of the same status came about.
    fn keep_transition(&mut self, from: &Self);
}

macro_rules! condition {
    ($path:path $(, $extra:ident)?) => {
        impl Condition for $path {
            fn new(kind: &str, status: &str, reason: &str, message: String, now: Time) -> Self {
                Self {
                    type_: kind.into(),
                    status: status.into(),
                    reason: Some(reason.into()),
                    message: Some(message),
                    last_transition_time: Some(now.meta()),
                    $($extra: Some(now.meta()),)?
                }
            }
            fn kind(&self) -> &str {
                &self.type_
            }
            fn status(&self) -> &str {
                &self.status
            }
            fn reason(&self) -> &str {
                self.reason.as_deref().unwrap_or_default()
            }
            fn keep_transition(&mut self, from: &Self) {
                self.last_transition_time = from.last_transition_time.clone();
            }
        }
    };
}
condition!(k8s_openapi::api::apps::v1::DeploymentCondition, last_update_time);
condition!(k8s_openapi::api::apps::v1::ReplicaSetCondition);
condition!(k8s_openapi::api::core::v1::ReplicationControllerCondition);
condition!(k8s_openapi::api::batch::v1::JobCondition, last_probe_time);

/// The condition of a kind.
pub(crate) fn find<'a, C: Condition>(conditions: Option<&'a Vec<C>>, kind: &str) -> Option<&'a C> {
    conditions?.iter().find(|c| c.kind() == kind)
}

/// Puts a condition in the place of the one of its kind. One of the same status and reason stays as it is; one of the same
/// status keeps its time of transition.
pub(crate) fn set<C: Condition>(conditions: &mut Option<Vec<C>>, mut condition: C) {
    let list = conditions.get_or_insert_default();
    if let Some(old) = list.iter_mut().find(|c| c.kind() == condition.kind()) {
        if old.status() == condition.status() {
            if old.reason() == condition.reason() {
                return;
            }
            condition.keep_transition(old);
        }
        *old = condition;
    } else {
        list.push(condition);
    }
}

/// Takes the condition of a kind away.
pub(crate) fn remove<C: Condition>(conditions: &mut Option<Vec<C>>, kind: &str) {
    if let Some(list) = conditions {
        list.retain(|c| c.kind() != kind);
        if list.is_empty() {
            *conditions = None;
        }
    }
}
