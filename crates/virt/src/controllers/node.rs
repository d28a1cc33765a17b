//! Stops placement on nodes whose handler has fallen silent.
//!
//! A handler says every minute that it lives (annotation `kubevirt.io/heartbeat`). When it has not for five minutes, the
//! node's label `kubevirt.io/schedulable` becomes `false`. That is all: silence proves nothing about the guests there, so
//! no instance is touched. The handler sets the label back when it is heard again.
//!
//! Ages are measured on this controller's clock, from when it first saw a heartbeat, never by comparing the node's clock
//! with its own.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

/// Silence after which a node takes no more instances.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which a node that is heard of is looked at again.
const RECHECK: Duration = Duration::from_secs(60);

/// Watches heartbeats.
#[derive(Default)]
pub struct NodeController {
    /// Each node's heartbeat as last read, and when it was first seen so. It is lost with the process, which then
    /// waits the whole time again.
    heard: BTreeMap<String, (String, Time)>,
}

impl Controller for NodeController {
    fn name(&self) -> &'static str {
        "virt-node"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Node>();
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(node) = view.get::<Node>("", &key.name) else {
            self.heard.remove(&key.name);
            return Plan::none();
        };
        let Some(heartbeat) = node.annotation(HEARTBEAT_ANNOTATION) else { return Plan::none() };
        let heard = self.heard.entry(key.name.clone()).or_default();
        if heard.0 != heartbeat {
            *heard = (heartbeat.to_owned(), now);
        }
        let silence = now.since(heard.1);
        if silence < HEARTBEAT_TIMEOUT {
            return Plan::none().requeue_after(RECHECK.min(HEARTBEAT_TIMEOUT - silence));
        }
        if node.label(SCHEDULABLE_LABEL) != Some("true") {
            return Plan::none();
        }
        let message =
            format!("virt-handler is not responsive, marking node as unresponsive (last heartbeat {heartbeat})");
        Plan::none()
            .patch(node.as_ref(), json!({"metadata": {"labels": {SCHEDULABLE_LABEL: "false"}}}))
            .event(EventRecord::warning(node.as_ref(), "NodeUnresponsive", message))
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Controller, Key, Time, Write};
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;
    use std::time::Duration;

    use super::{HEARTBEAT_TIMEOUT, NodeController};

    #[test]
    fn silence_is_measured_from_what_was_heard_here() {
        let mut controller = NodeController::default();
        let mut at = |heartbeat: &str, label: &str, s: i64| {
            let node: Node =
                serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
                "labels": {"kubevirt.io/schedulable": label}, "annotations": {"kubevirt.io/heartbeat": heartbeat}}}))
                .expect("a node");
            let caches = Caches::new().with([node]);
            controller.reconcile(&Key::new("", "n"), &caches.view(), Time::from_unix_s(s))
        };
        let limit = i64::try_from(HEARTBEAT_TIMEOUT.as_secs()).expect("small");
        // The node's clock may say what it will.
        assert!(at("1970-01-01T00:00:00Z", "true", 1000).writes.is_empty());
        assert!(at("1970-01-01T00:00:00Z", "true", 1000 + limit - 1).writes.is_empty());
        assert!(at("1970-01-01T00:01:00Z", "true", 1000 + limit).writes.is_empty());
        let quiet = at("1970-01-01T00:01:00Z", "true", 1000 + 2 * limit);
        assert!(matches!(&quiet.writes[..], [Write::Patch { patch, .. }]
            if patch["metadata"]["labels"]["kubevirt.io/schedulable"] == "false"));
        assert!(at("1970-01-01T00:01:00Z", "false", 1000 + 2 * limit).writes.is_empty());
        let heard = at("1970-01-01T00:02:00Z", "true", 1000 + 2 * limit);
        assert_eq!(heard.requeue_after, Some(Duration::from_secs(60)));
    }
}
