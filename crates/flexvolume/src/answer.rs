//! What a driver prints (upstream's `DriverStatus`, pkg/volume/flexvolume/driver-call.go).

use serde::Deserialize;
use serde_json::{Map, Value};

/// What a driver says that it can do; what it leaves out it can, but for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// It attaches and detaches.
    pub attach: bool,
    /// What is mounted can be measured.
    #[serde(rename = "supportsmetrics")]
    pub supports_metrics: bool,
    /// The kubelet may give its volumes to a group.
    #[serde(rename = "fsgroup")]
    pub fs_group: bool,
    /// A larger device needs its file system enlarged.
    #[serde(rename = "requiresfsresize")]
    pub requires_fs_resize: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { attach: true, supports_metrics: false, fs_group: true, requires_fs_resize: true }
    }
}

/// What a driver answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// `Success`, `Failure` or `Not supported`.
    pub status: String,
    /// Why, where it failed.
    pub message: String,
    /// The device that was attached.
    pub device: String,
    /// Whether the volume is attached.
    pub attached: bool,
    /// Of `init`.
    pub capabilities: Option<Capabilities>,
}

impl Answer {
    /// Reads what a driver printed. Upstream's decoder does not look at the case of names; nor does this.
    ///
    /// # Errors
    /// It is no answer.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        // Of a list, serde would take its parts in their order for the fields.
        let fields: Map<String, Value> = serde_json::from_str(text)?;
        serde_json::from_value(lower(Value::Object(fields)))
    }
}

fn lower(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name.to_lowercase(), lower(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_what_is_left_out_and_what_is_not() {
        let can = |attach, supports_metrics, fs_group, requires_fs_resize| {
            Some(Capabilities { attach, supports_metrics, fs_group, requires_fs_resize })
        };
        for (capabilities, expected) in [
            ("", None),
            (r#", "capabilities": null"#, None),
            (r#", "capabilities": {}"#, can(true, false, true, true)),
            (r#", "capabilities": {"attach": false, "selinuxRelabel": false}"#, can(false, false, true, true)),
            (r#", "Capabilities": {"FSGroup": false, "supportsMetrics": true}"#, can(true, true, false, true)),
            (r#", "capabilities": {"RequiresFSResize": false}"#, can(true, false, true, false)),
            (r#", "capabilities": {"requiresFSResize": false, "new": {"A": 1}}"#, can(true, false, true, false)),
        ] {
            let answer = Answer::read(&format!(r#"{{"status": "Success"{capabilities}}}"#)).expect(capabilities);
            assert_eq!(answer.capabilities, expected, "{capabilities}");
        }
        for garbage in [
            "",
            "Segmentation fault",
            "[]",
            "1",
            r#"{"status": 1}"#,
            r#"["Success"]"#,
            r#"{"capabilities": {"attach": "x"}}"#,
        ] {
            Answer::read(garbage).expect_err(garbage);
        }
    }
}
