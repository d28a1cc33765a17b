//! What events say of a resize (`pkg/kubelet/events/event.go`): the sizes of all containers, as JSON.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;

use crate::spec::pod::spec;

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<One<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<One<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

/// An event's text: how far a resize is, and to what sizes.
#[must_use]
pub fn summary(pod: &Pod, generation: i64, error: &str, how_far: &str) -> String {
    fn one(c: &Container) -> One<'_> {
        One { name: &c.name, resources: c.resources.clone().unwrap_or_default() }
    }
    let summary = Summary {
        init_containers: spec(pod).init_containers.iter().flatten().map(one).collect(),
        containers: spec(pod).containers.iter().map(one).collect(),
        generation,
        error,
    };
    // Strings and numbers alone: this cannot fail.
    format!("{how_far}: {}", serde_json::to_string(&summary).unwrap_or_default())
}
