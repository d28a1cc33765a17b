//! What the checks of a level are made of.

use serde_json::Value;

/// What a pod does that its level forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub reason: String,
    pub detail: String,
}

impl Violation {
    pub(super) fn new(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
        Some(Violation { reason: reason.into(), detail: detail.into() })
    }
}

/// A pod, or what will be one.
pub(super) struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
    /// Minor version of the policy; none is the newest.
    pub minor: Option<u32>,
}

impl<'a> Pod<'a> {
    /// Whether the policy is that of release 1.`minor` or newer.
    pub(super) fn since(&self, minor: u32) -> bool {
        self.minor.is_none_or(|own| own >= minor)
    }

    pub(super) fn context(&self) -> &'a Value {
        &self.spec["securityContext"]
    }

    /// All containers, in upstream's order of visiting.
    pub(super) fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .filter_map(move |list| spec[list].as_array())
            .flatten()
    }

    /// The names of containers of which this holds.
    pub(super) fn where_(&self, mut holds: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| holds(container)).map(name).collect()
    }

    pub(super) fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// In a user namespace of its own, root is nobody outside.
    pub(super) fn has_user_namespace(&self) -> bool {
        self.spec["hostUsers"] == Value::Bool(false)
    }
}

pub(super) fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

/// `"a", "b"`
pub(super) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// `one` or `many`, by the number.
pub(super) fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names.iter().copied()))
}

/// Sorted, each once.
pub(super) fn set<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<&str> = texts.into_iter().collect();
    all.sort_unstable();
    all.dedup();
    all
}
