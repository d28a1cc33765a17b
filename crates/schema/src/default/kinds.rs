//! Which defaults each built-in kind has.

use serde_json::{Value, json};

use super::fields::{
    Fields, at, each, pair, resource_list, resources, set, set_number, set_text, text, with, with_new,
};
use super::{pod, service};
use crate::convert;

const RBAC: &str = "rbac.authorization.k8s.io";

/// What is told of a status even where it is nothing: Go's types do not leave these out.
fn told_of_status(group: &str, version: &str, kind: &str) -> &'static [&'static str] {
    match (group, version, kind) {
        ("", _, "ReplicationController") | ("apps", _, "ReplicaSet" | "StatefulSet") => &["replicas"],
        ("apps", _, "DaemonSet") => {
            &["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"]
        }
        ("autoscaling", "v1", "HorizontalPodAutoscaler") => &["currentReplicas", "desiredReplicas"],
        ("autoscaling", _, "HorizontalPodAutoscaler") => &["desiredReplicas"],
        ("policy", _, "PodDisruptionBudget") => {
            &["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"]
        }
        _ => &[],
    }
}

/// Fills in the defaults of a built-in kind.
pub(super) fn apply(group: &str, version: &str, kind: &str, object: &mut Fields) {
    with(object, "status", |status| {
        told_of_status(group, version, kind).iter().for_each(|field| set(status, field, 0))
    });
    match (group, kind) {
        ("", "Pod") => pod::pod(object),
        ("", "PodTemplate") => with_new(object, "template", pod::template),
        ("", "Service") => service::service(object),
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object),
        ("", "Node") => {
            with(object, "spec", |spec| pair(spec, "podCIDR", "podCIDRs", None));
            with(object, "status", |status| {
                if let Some(capacity) = status.get("capacity").cloned() {
                    set(status, "allocatable", capacity);
                }
                resource_list(status, "capacity");
                resource_list(status, "allocatable");
            });
        }
        ("", "Endpoints") => {
            each(object, "subsets", |subset| each(subset, "ports", |port| set_text(port, "protocol", "TCP")))
        }
        ("", "PersistentVolume") => with_new(object, "spec", |spec| {
            set_text(spec, "persistentVolumeReclaimPolicy", "Retain");
            set_text(spec, "volumeMode", "Filesystem");
            with(spec, "hostPath", |source| set(source, "type", ""));
            resource_list(spec, "capacity");
        }),
        ("", "PersistentVolumeClaim") => claim(object),
        ("", "ResourceQuota") => {
            with(object, "spec", |spec| resource_list(spec, "hard"));
            with(object, "status", |status| {
                resource_list(status, "hard");
                resource_list(status, "used");
            });
        }
        ("", "LimitRange") => with(object, "spec", |spec| each(spec, "limits", limit)),
        ("", "ReplicationController") => replication_controller(object),
        ("apps", "Deployment") => with_new(object, "spec", deployment),
        ("apps", "ReplicaSet") => with_new(object, "spec", |spec| {
            set(spec, "replicas", 1);
            with_new(spec, "template", pod::template);
        }),
        ("apps", "StatefulSet") => with_new(object, "spec", stateful_set),
        ("apps", "DaemonSet") => with_new(object, "spec", daemon_set),
        ("batch", "Job") => job(object),
        ("batch", "CronJob") => with_new(object, "spec", |spec| {
            set_text(spec, "concurrencyPolicy", "Allow");
            set(spec, "suspend", false);
            set(spec, "successfulJobsHistoryLimit", 3);
            set(spec, "failedJobsHistoryLimit", 1);
            with_new(spec, "jobTemplate", |job| {
                with_new(job, "spec", |spec| {
                    failure_policy(spec);
                    with_new(spec, "template", pod::template);
                });
            });
        }),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let knows_cpu_alone = version == "v1" && !convert::has_other_metrics(object);
            with_new(object, "spec", |spec| autoscaler(spec, version, knows_cpu_alone));
        }
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => {
            with(object, "roleRef", |role| set_text(role, "apiGroup", RBAC));
            each(object, "subjects", |subject| match text(subject, "kind") {
                "User" | "Group" => set_text(subject, "apiGroup", RBAC),
                _ => {}
            });
        }
        ("storage.k8s.io", "StorageClass") => {
            set_text(object, "reclaimPolicy", "Delete");
            set_text(object, "volumeBindingMode", "Immediate");
        }
        ("storage.k8s.io", "CSIDriver") => with_new(object, "spec", csi_driver),
        ("storage.k8s.io", "VolumeAttachment") => with(object, "status", |status| set(status, "attached", false)),
        ("node.k8s.io", "RuntimeClass") => with(object, "overhead", |overhead| resource_list(overhead, "podFixed")),
        ("scheduling.k8s.io", "PriorityClass") => set_text(object, "preemptionPolicy", "PreemptLowerPriority"),
        ("networking.k8s.io", "NetworkPolicy") => with_new(object, "spec", network_policy),
        ("networking.k8s.io", "IngressClass") => {
            at(object, &["spec", "parameters"], |parameters| set_text(parameters, "scope", "Cluster"))
        }
        ("discovery.k8s.io", "EndpointSlice") => each(object, "ports", |port| {
            set(port, "name", "");
            set_text(port, "protocol", "TCP");
        }),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => each(object, "webhooks", webhook),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => each(object, "webhooks", |hook| {
            webhook(hook);
            set_text(hook, "reinvocationPolicy", "Never");
        }),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy") => {
            with(object, "spec", |spec| {
                set_text(spec, "failurePolicy", "Fail");
                with(spec, "matchConstraints", match_resources);
            })
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding") => {
            at(object, &["spec", "matchResources"], match_resources);
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => with(object, "spec", custom_resource_definition),
        ("apiregistration.k8s.io", "APIService") => {
            at(object, &["spec", "service"], |service| set(service, "port", 443))
        }
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => {
            with_new(object, "spec", |spec| set_number(spec, "matchingPrecedence", 1000))
        }
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => with(object, "spec", priority_level),
        ("authentication.k8s.io", "TokenRequest") => {
            with_new(object, "spec", |spec| set(spec, "expirationSeconds", 3600))
        }
        ("certificates.k8s.io", "PodCertificateRequest") => {
            with(object, "spec", |spec| set(spec, "maxExpirationSeconds", 86_400))
        }
        ("resource.k8s.io", "ResourceClaim") => with(object, "spec", resource_claim),
        ("resource.k8s.io", "ResourceClaimTemplate") => at(object, &["spec", "spec"], resource_claim),
        _ => {}
    }
}

/// `stringData` is write-only: it goes into `data`, and over it.
fn secret(object: &mut Fields) {
    set_text(object, "type", "Opaque");
    if let Some(Value::Object(texts)) = object.remove("stringData") {
        with_new(object, "data", |data| {
            for (key, text) in texts {
                data.insert(key, encode_base64(text.as_str().unwrap_or_default().as_bytes()).into());
            }
        });
    }
}

/// Standard base64 with padding.
fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0_u32, |word, (index, byte)| word | u32::from(*byte) << (16 - 8 * index));
        for place in 0..4 {
            let index = (word >> (18 - 6 * place) & 63) as usize;
            out.push(if place <= chunk.len() { ALPHABET.get(index).copied().map_or('=', char::from) } else { '=' });
        }
    }
    out
}

fn namespace(object: &mut Fields) {
    let name =
        object.get("metadata").and_then(|m| m.get("name")).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !name.is_empty() {
        with(object, "metadata", |metadata| {
            with_new(metadata, "labels", |labels| {
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
            });
        });
    }
}

fn claim(object: &mut Fields) {
    with_new(object, "spec", claim_spec);
    with(object, "status", |status| {
        resource_list(status, "capacity");
        resource_list(status, "allocatedResources");
    });
}

/// Defaults of a claim's spec, also of one that is made for a pod.
pub(super) fn claim_spec(spec: &mut Fields) {
    set_text(spec, "volumeMode", "Filesystem");
    with(spec, "resources", resources);
}

fn limit(limit: &mut Fields) {
    for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        resource_list(limit, list);
    }
    if text(limit, "type") != "Container" {
        return;
    }
    // The most there may be is the default limit, the default limit the default request, and the
    // least there may be goes before that.
    for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let Some(Value::Object(values)) = limit.get(from).cloned() else { continue };
        with_new(limit, to, |target| {
            for (name, value) in values {
                target.entry(name).or_insert(value);
            }
        });
    }
}

/// `knows_cpu_alone`: it can have no other target than that for the CPU.
fn autoscaler(spec: &mut Fields, version: &str, knows_cpu_alone: bool) {
    set(spec, "minReplicas", 1);
    if knows_cpu_alone {
        set(spec, "targetCPUUtilizationPercentage", convert::DEFAULT_CPU_PERCENT);
    }
    with(spec, "behavior", scaling);
    if version == "v2" && spec.get("metrics").is_none_or(|m| m.as_array().is_none_or(Vec::is_empty)) {
        spec.insert("metrics".to_owned(), json!([convert::cpu_metric(convert::DEFAULT_CPU_PERCENT)]));
    }
}

/// How fast an autoscaler goes, where something of it is said (`GenerateHPAScaleUpRules` and `GenerateHPAScaleDownRules`).
fn scaling(behavior: &mut Fields) {
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    with_new(behavior, "scaleUp", |rules| {
        set(rules, "stabilizationWindowSeconds", 0);
        set(rules, "selectPolicy", "Max");
        set(rules, "policies", json!([pods, percent]));
    });
    with_new(behavior, "scaleDown", |rules| {
        set(rules, "selectPolicy", "Max");
        set(rules, "policies", json!([percent]));
    });
}

fn replication_controller(object: &mut Fields) {
    let labels = object.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
    if let Some(labels) = labels {
        with(object, "spec", |spec| set(spec, "selector", labels.clone()));
        with_new(object, "metadata", |metadata| set(metadata, "labels", labels));
    }
    with_new(object, "spec", |spec| {
        set(spec, "replicas", 1);
        with(spec, "template", pod::template);
    });
}

fn deployment(spec: &mut Fields) {
    set(spec, "replicas", 1);
    set(spec, "revisionHistoryLimit", 10);
    set(spec, "progressDeadlineSeconds", 600);
    with_new(spec, "strategy", |strategy| {
        set_text(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            with_new(strategy, "rollingUpdate", |rolling| {
                set(rolling, "maxUnavailable", "25%");
                set(rolling, "maxSurge", "25%");
            });
        }
    });
    with_new(spec, "template", pod::template);
}

fn stateful_set(spec: &mut Fields) {
    set(spec, "replicas", 1);
    set(spec, "revisionHistoryLimit", 10);
    set_text(spec, "podManagementPolicy", "OrderedReady");
    with_new(spec, "updateStrategy", |strategy| {
        if text(strategy, "type").is_empty() {
            // Who says how to update is left to say all of it.
            set(strategy, "rollingUpdate", json!({}));
        }
        set_text(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            with(strategy, "rollingUpdate", |rolling| set(rolling, "partition", 0));
        }
    });
    with_new(spec, "persistentVolumeClaimRetentionPolicy", |policy| {
        set_text(policy, "whenDeleted", "Retain");
        set_text(policy, "whenScaled", "Retain");
    });
    each(spec, "volumeClaimTemplates", |claim| {
        set(claim, "apiVersion", "v1");
        set(claim, "kind", "PersistentVolumeClaim");
        self::claim(claim);
        with_new(claim, "status", |status| set_text(status, "phase", "Pending"));
    });
    with_new(spec, "template", pod::template);
}

fn daemon_set(spec: &mut Fields) {
    set(spec, "revisionHistoryLimit", 10);
    with_new(spec, "updateStrategy", |strategy| {
        set_text(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            with_new(strategy, "rollingUpdate", |rolling| {
                set(rolling, "maxUnavailable", 1);
                set(rolling, "maxSurge", 0);
            });
        }
    });
    with_new(spec, "template", pod::template);
}

fn job(object: &mut Fields) {
    let labels = object.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
    if let Some(labels) = labels {
        with_new(object, "metadata", |metadata| set(metadata, "labels", labels));
    }
    with_new(object, "spec", |spec| {
        if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
            set(spec, "completions", 1);
        }
        set(spec, "parallelism", 1);
        let limit = if spec.contains_key("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
        set(spec, "backoffLimit", limit);
        set_text(spec, "completionMode", "NonIndexed");
        set(spec, "suspend", false);
        let policy = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        set(spec, "podReplacementPolicy", policy);
        set(spec, "manualSelector", false);
        failure_policy(spec);
        with_new(spec, "template", pod::template);
    });
}

/// What a Job's policy says of conditions that have no status.
fn failure_policy(spec: &mut Fields) {
    with(spec, "podFailurePolicy", |policy| {
        each(policy, "rules", |rule| each(rule, "onPodConditions", |pattern| set_text(pattern, "status", "True")));
    });
}

fn csi_driver(spec: &mut Fields) {
    set(spec, "attachRequired", true);
    set(spec, "podInfoOnMount", false);
    set(spec, "storageCapacity", false);
    set(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    set(spec, "requiresRepublish", false);
    set(spec, "seLinuxMount", false);
    if spec.get("volumeLifecycleModes").is_none_or(|modes| modes.as_array().is_none_or(Vec::is_empty)) {
        spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
    }
}

fn network_policy(spec: &mut Fields) {
    let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
    if spec.get("policyTypes").is_none_or(|types| types.as_array().is_none_or(Vec::is_empty)) {
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".to_owned(), types);
    }
    for direction in ["ingress", "egress"] {
        each(spec, direction, |rule| each(rule, "ports", |port| set_text(port, "protocol", "TCP")));
    }
}

fn webhook(hook: &mut Fields) {
    set_text(hook, "failurePolicy", "Fail");
    set_text(hook, "matchPolicy", "Equivalent");
    set(hook, "namespaceSelector", json!({}));
    set(hook, "objectSelector", json!({}));
    set(hook, "timeoutSeconds", 10);
    at(hook, &["clientConfig", "service"], |service| set(service, "port", 443));
    each(hook, "rules", |rule| set_text(rule, "scope", "*"));
}

fn match_resources(resources: &mut Fields) {
    set_text(resources, "matchPolicy", "Equivalent");
    set(resources, "namespaceSelector", json!({}));
    set(resources, "objectSelector", json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        each(resources, rules, |rule| set_text(rule, "scope", "*"));
    }
}

fn custom_resource_definition(spec: &mut Fields) {
    with(spec, "names", |names| {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            set_text(names, "singular", &kind.to_lowercase());
            set_text(names, "listKind", &format!("{kind}List"));
        }
    });
    with_new(spec, "conversion", |conversion| {
        set_text(conversion, "strategy", "None");
        at(conversion, &["webhook", "clientConfig", "service"], |service| set(service, "port", 443));
    });
}

fn priority_level(spec: &mut Fields) {
    with(spec, "limited", |limited| {
        set(limited, "nominalConcurrencyShares", 30);
        set(limited, "lendablePercent", 0);
        at(limited, &["limitResponse", "queuing"], |queuing| {
            set_number(queuing, "queues", 64);
            set_number(queuing, "handSize", 8);
            set_number(queuing, "queueLengthLimit", 50);
        });
    });
    with(spec, "exempt", |exempt| {
        set(exempt, "nominalConcurrencyShares", 0);
        set(exempt, "lendablePercent", 0);
    });
}

fn resource_claim(spec: &mut Fields) {
    at(spec, &["devices"], |devices| {
        each(devices, "requests", |request| with(request, "exactly", device_request));
        each(devices, "requests", |request| each(request, "firstAvailable", device_request));
    });
}

fn device_request(request: &mut Fields) {
    set_text(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        set(request, "count", 1);
    }
    each(request, "tolerations", |toleration| set_text(toleration, "operator", "Equal"));
}
