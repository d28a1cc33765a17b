//! What a person may do, as a value.

use std::time::Duration;

use carrack_engine::DeleteOptions;
use carrack_types::resource::Resource;
use serde_json::{Value, json};

use crate::wants::Want;

/// One thing that a person does.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    pub at: Duration,
    pub what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Create {
        resource: Resource,
        object: Value,
        want: Option<(&'static str, Want)>,
    },
    Delete {
        resource: Resource,
        namespace: String,
        name: String,
        options: DeleteOptions,
        kind: &'static str,
    },
    /// Something that may be refused, which nobody minds: a patch of an object of the default namespace, or of a part of it.
    Try {
        resource: Resource,
        name: String,
        sub: &'static str,
        patch: Value,
    },
    /// A part of a pod of the default namespace is patched with lists that are merged, as `kubectl debug` and others do. It may be
    /// refused, which nobody minds.
    Merge {
        name: String,
        sub: &'static str,
        patch: Value,
    },
    Patch {
        resource: Resource,
        namespace: String,
        name: String,
        patch: Value,
        kind: &'static str,
        want: Option<Want>,
    },
    /// A pod of the default namespace is given another size, if it runs: one that waits for a node is asked for as it was made.
    Resize {
        name: String,
        containers: Value,
    },
    /// A pod of the default namespace is given another image, if it runs.
    Image {
        name: String,
        image: String,
    },
    /// It may be refused.
    Evict {
        namespace: String,
        name: String,
    },
    /// What `virtctl` asks of a machine of the default namespace: `restart`, say, and how. It may be refused.
    Ask {
        name: String,
        what: &'static str,
        options: Value,
    },
}

impl Act {
    /// Pods that this makes, or that what it makes does, run on nodes that only pretend, or on whole ones.
    pub(super) fn keep_to_nodes(&mut self, hollow: bool) {
        let What::Create { object, .. } = &mut self.what else { return };
        let object_is_pod = object["kind"] == "Pod";
        let pods = match object["kind"].as_str() {
            Some("Pod") => object.pointer_mut("/spec"),
            Some("CronJob") => object.pointer_mut("/spec/jobTemplate/spec/template/spec"),
            _ => object.pointer_mut("/spec/template/spec"),
        };
        let Some(spec) = pods else { return };
        let (label, value) = crate::controllers::HOLLOW;
        if hollow && spec["nodeSelector"].is_null() {
            spec["nodeSelector"] = json!({label: value});
        }
        if !hollow && object_is_pod && spec["affinity"].is_null() {
            let whole = json!([{"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}]);
            let required = json!({"nodeSelectorTerms": whole});
            spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        }
    }
}
