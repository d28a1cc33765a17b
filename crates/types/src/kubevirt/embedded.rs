//! Schemas of the Kubernetes types that stand inside KubeVirt's specs.
//!
//! `k8s-openapi` can derive these (its `schemars` feature), at the price of compiling schemas for every type of
//! Kubernetes. These few are written down instead. They exist for the schema only: values are read into
//! `k8s-openapi`'s own types.
#![expect(dead_code, reason = "these types are never made; their shape is what counts")]

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Any object; its fields are kept as they are.
pub(crate) fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Metadata of a template. As upstream, it may be null and keeps what it does not know: client libraries write
/// `creationTimestamp: null` there.
pub(crate) fn template_metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

/// A point in time, RFC 3339.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// A point in time that upstream's clients may write as null.
pub(crate) fn nullable_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "nullable": true})
}

/// A number or a name (a port, a percentage).
pub(crate) struct IntOrString;

impl JsonSchema for IntOrString {
    fn schema_name() -> Cow<'static, str> {
        "IntOrString".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
        })
    }
}

macro_rules! shapes {
    ($($name:ident { $($(#[$m:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        #[derive(JsonSchema)]
        #[schemars(rename_all = "camelCase")]
        pub(crate) struct $name { $($(#[$m])* $field: $ty),* }
    )*};
}

shapes! {
    LocalObjectReference { name: Option<String> }
    Toleration {
        key: Option<String>, operator: Option<String>, value: Option<String>, effect: Option<String>,
        toleration_seconds: Option<i64>,
    }
    SelectorRequirement { key: String, operator: String, values: Option<Vec<String>> }
    LabelSelector {
        match_labels: Option<BTreeMap<String, String>>,
        match_expressions: Option<Vec<SelectorRequirement>>,
    }
    NodeSelectorTerm {
        match_expressions: Option<Vec<SelectorRequirement>>,
        match_fields: Option<Vec<SelectorRequirement>>,
    }
    NodeSelector { node_selector_terms: Vec<NodeSelectorTerm> }
    PreferredSchedulingTerm { weight: i32, preference: NodeSelectorTerm }
    NodeAffinity {
        required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
        preferred_during_scheduling_ignored_during_execution: Option<Vec<PreferredSchedulingTerm>>,
    }
    PodAffinityTerm {
        label_selector: Option<LabelSelector>,
        match_label_keys: Option<Vec<String>>,
        mismatch_label_keys: Option<Vec<String>>,
        namespace_selector: Option<LabelSelector>,
        namespaces: Option<Vec<String>>,
        topology_key: String,
    }
    WeightedPodAffinityTerm { weight: i32, pod_affinity_term: PodAffinityTerm }
    PodAffinity {
        required_during_scheduling_ignored_during_execution: Option<Vec<PodAffinityTerm>>,
        preferred_during_scheduling_ignored_during_execution: Option<Vec<WeightedPodAffinityTerm>>,
    }
    Affinity {
        node_affinity: Option<NodeAffinity>,
        pod_affinity: Option<PodAffinity>,
        pod_anti_affinity: Option<PodAffinity>,
    }
    TopologySpreadConstraint {
        label_selector: Option<LabelSelector>,
        match_label_keys: Option<Vec<String>>,
        max_skew: i32,
        min_domains: Option<i32>,
        node_affinity_policy: Option<String>,
        node_taints_policy: Option<String>,
        topology_key: String,
        when_unsatisfiable: String,
    }
    DnsOption { name: Option<String>, value: Option<String> }
    PodDnsConfig {
        nameservers: Option<Vec<String>>, searches: Option<Vec<String>>, options: Option<Vec<DnsOption>>,
    }
    ExecAction { command: Option<Vec<String>> }
    HttpHeader { name: String, value: String }
    HttpGetAction {
        path: Option<String>, port: IntOrString, host: Option<String>, scheme: Option<String>,
        http_headers: Option<Vec<HttpHeader>>,
    }
    TcpSocketAction { port: IntOrString, host: Option<String> }
    ObjectFieldSelector { api_version: Option<String>, field_path: String }
    ResourceFieldSelector {
        container_name: Option<String>, divisor: Option<IntOrString>, resource: String,
    }
    DownwardApiVolumeFile {
        path: String, mode: Option<i32>, field_ref: Option<ObjectFieldSelector>,
        resource_field_ref: Option<ResourceFieldSelector>,
    }
    VolumeResourceRequirements {
        limits: Option<BTreeMap<String, IntOrString>>, requests: Option<BTreeMap<String, IntOrString>>,
    }
    TypedLocalObjectReference {
        api_group: Option<String>,
        kind: String,
        name: String,
    }
    TypedObjectReference {
        api_group: Option<String>,
        kind: String,
        name: String,
        namespace: Option<String>,
    }
    PersistentVolumeClaimSpec {
        access_modes: Option<Vec<String>>, data_source: Option<TypedLocalObjectReference>,
        data_source_ref: Option<TypedObjectReference>, resources: Option<VolumeResourceRequirements>,
        selector: Option<LabelSelector>, storage_class_name: Option<String>,
        volume_attributes_class_name: Option<String>, volume_mode: Option<String>, volume_name: Option<String>,
    }
    PersistentVolumeClaimVolumeSource { claim_name: String, read_only: Option<bool> }
}
