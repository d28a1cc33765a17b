//! Of a pod, what the controllers here look at: nothing else of it is kept in their cache, which all of them share.
//!
//! A pod's containers say mostly what its node is to do, and its volumes of the node's own take more than 3 KB each. So no
//! controller may write a whole pod back as it was read; they patch.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::pod::forget_what_nodes_do;
use k8s_openapi::api::core::v1::Pod;

/// Leaves out of pods what no controller looks at, and does nothing else.
pub struct TrimmedPods;

impl Controller for TrimmedPods {
    fn name(&self) -> &'static str {
        "trimmed-pods"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.read::<Pod>();
        setup.trim::<Pod>(forget_what_nodes_do);
    }
    fn reconcile(&mut self, _: &Key, _: &View<'_>, _: Time) -> Plan {
        Plan::none()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::of;

    #[test]
    fn what_controllers_look_at_stays() {
        let whole = |container: serde_json::Value, volumes: serde_json::Value| -> Pod {
            of(json!({"metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {"nodeName": "n", "containers": [container], "volumes": volumes, "tolerations": [{"operator": "Exists"}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 3, "image": "i",
                    "imageID": "", "ready": true}]}}))
        };
        let kept = json!({"name": "c", "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}});
        let mut container = kept.clone();
        container["env"] = json!([{"name": "k", "value": "v"}]);
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        container["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
        let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let volumes = json!([{"name": "e", "emptyDir": {}}, claim, {"name": "t", "projected": {"sources": []}}]);
        let mut pod = whole(container.clone(), volumes);
        forget_what_nodes_do(&mut pod);
        assert_eq!(pod, whole(kept.clone(), json!([claim])));
        let mut pod = whole(container, json!([{"name": "e", "emptyDir": {}}]));
        forget_what_nodes_do(&mut pod);
        assert_eq!(pod, whole(kept, serde_json::Value::Null));
    }
}
