//! Which rules each built-in kind has.

use serde_json::Value;

use super::access::{Errors, Place};
use super::{
    admission, configuration, crd, limits, names, networking, pod, rbac, required, service, storage, workloads,
};
use crate::error::FieldError;
use crate::table::ResourceInfo;

/// Checks a new object of a built-in kind.
pub(super) fn create(info: &ResourceInfo, version: &str, object: &Value) -> Errors {
    let mut errors = Errors::new();
    both(info, version, &Place::root(object), &mut errors);
    if (info.group.as_ref(), info.kind.as_ref()) == ("certificates.k8s.io", "CertificateSigningRequest") {
        limits::new_certificate_request(&Place::root(object).field("spec"), &mut errors);
    }
    errors
}

/// Checks a changed object of a built-in kind.
pub(super) fn update(info: &ResourceInfo, version: &str, object: &Value, old: &Value, subresource: &str) -> Errors {
    let mut errors = Errors::new();
    let (new, old) = (Place::root(object), Place::root(old));
    if (info.group.as_ref(), info.kind.as_ref()) == ("", "Pod") {
        pod::update(&new, &old, subresource, &mut errors);
        return errors;
    }
    both(info, version, &new, &mut errors);
    changes(info, &new, &old, &mut errors);
    errors
}

/// What holds for new and changed objects.
fn both(info: &ResourceInfo, version: &str, object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Pod") => pod::create(object, errors),
        ("", "PodTemplate") => pod::spec(&object.at(&["template", "spec"]), errors),
        ("", "Service") => service::service(&spec, errors),
        ("", "ConfigMap") => configuration::config_map(object, errors),
        ("", "Secret") => configuration::secret(object, errors),
        ("", "Namespace") => {
            for finalizer in spec.texts("finalizers") {
                errors.extend(
                    names::qualified_name(finalizer).map(|p| FieldError::invalid("spec.finalizers", finalizer, p)),
                );
            }
        }
        ("", "Node") => node(&spec, errors),
        ("", "Event") => event(object, errors),
        ("", "PersistentVolume") => storage::volume(&spec, errors),
        ("", "PersistentVolumeClaim") => storage::claim(&spec, errors),
        ("storage.k8s.io", "StorageClass") => storage::class(object, errors),
        ("", "ReplicationController") => workloads::replication_controller(object, errors),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => {
            workloads::set_of_pods(&info.kind, object, errors)
        }
        ("batch", "Job") => workloads::job(&spec, errors),
        ("batch", "CronJob") => workloads::cron_job(&spec, errors),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(object, info.namespaced, errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(object, info.namespaced, errors)
        }
        ("coordination.k8s.io", "Lease") => {
            let field = "leaseDurationSeconds";
            if let Some(number) = spec.number(field).filter(|n| *n <= 0) {
                errors.push(FieldError::invalid(spec.path_of(field), number, "must be greater than 0"));
            }
            spec.not_negative("leaseTransitions", errors);
        }
        ("scheduling.k8s.io", "PriorityClass") => priority_class(object, errors),
        ("policy", "PodDisruptionBudget") => limits::disruption_budget(&spec, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => limits::autoscaler(&spec, errors),
        ("", "ResourceQuota") => limits::quota(&spec, errors),
        ("", "LimitRange") => limits::limit_range(&spec, errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => limits::certificate_request(&spec, errors),
        ("networking.k8s.io", "Ingress") => networking::ingress(object, errors),
        ("networking.k8s.io", "NetworkPolicy") => networking::policy(&spec, errors),
        ("networking.k8s.io", "IPAddress") => networking::address(object, errors),
        ("networking.k8s.io", "ServiceCIDR") => networking::service_range(&spec, errors),
        ("discovery.k8s.io", "EndpointSlice") => networking::endpoint_slice(object, errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd::definition(object, errors),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            admission::webhooks(object, errors);
        }
        ("admissionregistration.k8s.io", kind @ ("ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy")) => {
            admission::policy(object, kind == "MutatingAdmissionPolicy", errors);
        }
        (
            "admissionregistration.k8s.io",
            kind @ ("ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding"),
        ) => admission::binding(object, kind == "MutatingAdmissionPolicyBinding", errors),
        ("apiregistration.k8s.io", "APIService") => admission::api_service(object, errors),
        _ => {
            if let Some(version) = info.versions.iter().find(|v| v.name == version) {
                required::fields(object.value, version.schema(), "", errors);
            }
        }
    }
}

/// What may not change.
fn changes(info: &ResourceInfo, new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Service") => service::changes(new, old, errors),
        ("", "ResourceQuota") => limits::quota_changes(new, old, errors),
        ("discovery.k8s.io", "EndpointSlice") => networking::endpoint_slice_changes(new, old, errors),
        ("networking.k8s.io", "IPAddress") => {
            super::access::unchanged(&new.field("spec"), &old.field("spec"), errors);
        }
        ("", "ConfigMap") => configuration::changes(new, old, &["data", "binaryData"], errors),
        ("", "Secret") => {
            super::access::unchanged(&new.field("type"), &old.field("type"), errors);
            configuration::changes(new, old, &["data"], errors);
        }
        ("", "PersistentVolumeClaim") => storage::claim_changes(new, old, errors),
        ("", "PersistentVolume") => storage::volume_changes(new, old, errors),
        ("storage.k8s.io", "StorageClass") => storage::class_changes(new, old, errors),
        ("apps", kind) => workloads::changes(kind, new, old, errors),
        ("batch", "Job") => workloads::job_changes(new, old, errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if new.field("roleRef").value != old.field("roleRef").value =>
        {
            new.invalid("roleRef", "cannot change roleRef", errors);
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            for field in ["value", "preemptionPolicy"] {
                if new.field(field).value != old.field(field).value {
                    errors.push(FieldError::forbidden(field, "may not be changed in an update."));
                }
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd::changes(new, old, errors),
        _ => {}
    }
}

fn node(spec: &Place<'_>, errors: &mut Errors) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for taint in spec.items("taints") {
        if taint.needs_text("key", errors).is_some() {
            taint.has_form("key", names::qualified_name, errors);
        }
        taint.has_form("value", names::label_value, errors);
        if taint.needs_text("effect", errors).is_some() {
            taint.one_of("effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        }
        let identity = (taint.text("key"), taint.text("effect"));
        if seen.contains(&identity) {
            errors.push(FieldError::duplicate(taint.path.clone(), taint.value.clone()));
        }
        seen.push(identity);
    }
}

fn event(object: &Place<'_>, errors: &mut Errors) {
    let (own, about) = (object.field("metadata"), object.field("involvedObject"));
    let (own, about) = (own.text("namespace"), about.text("namespace"));
    // What has no namespace is reported in the default one (or in the system's).
    let matches = if about.is_empty() { matches!(own, "default" | "kube-system") } else { own == about };
    if !matches {
        errors.push(FieldError::invalid("involvedObject.namespace", about, "does not match event.namespace"));
    }
}

fn priority_class(object: &Place<'_>, errors: &mut Errors) {
    const HIGHEST_OF_USERS: i64 = 1_000_000_000;
    let metadata = object.field("metadata");
    let name = metadata.text("name");
    let value = object.number("value").unwrap_or(0);
    let system = matches!(name, "system-node-critical" | "system-cluster-critical");
    if name.starts_with("system-") && !system {
        errors.push(FieldError::forbidden("metadata.name", "priority class names with 'system-' prefix are reserved for system use only. error: the class is not one of them"));
    }
    if value > HIGHEST_OF_USERS && !system {
        let text = format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
        errors.push(FieldError::forbidden("value", text));
    }
    let policy = object.text("preemptionPolicy");
    if !policy.is_empty() {
        object.one_of("preemptionPolicy", &["PreemptLowerPriority", "Never"], errors);
    }
}
