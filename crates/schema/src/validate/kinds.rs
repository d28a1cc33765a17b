//! Which rules each built-in kind has: rows where a table says it, functions where not.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place};
use super::alike::same;
use super::demand::{Change, Demand, Fixed, Row, changes as held_to, check, unique};
use super::{
    admission, autoscaling, configuration, crd, device_claims, device_slices, devices, events, flow_control,
    job_status, jobs, limits, metadata, names, networking, pod, pod_certificates, pod_update, rbac, required,
    resources, service, status, storage, workloads,
};
use crate::default;
use crate::error::FieldError;
use crate::table::ResourceInfo;

/// Group, kind, and their rows.
type OfKind<T> = (&'static str, &'static str, &'static [T]);

/// Kinds whose rules are rows alone, or rows besides a function.
const TABLE: &[OfKind<Row>] = &[
    ("", "Namespace", &[("spec.finalizers[]", Demand::Form(names::qualified_name))]),
    (
        "",
        "Node",
        &[
            ("spec.podCIDRs", Demand::Ranges),
            ("spec.taints[].key", Demand::Required),
            ("spec.taints[].key", Demand::Form(names::qualified_name)),
            ("spec.taints[].value", Demand::Form(names::label_value)),
            ("spec.taints[].effect", Demand::Required),
            ("spec.taints[].effect", Demand::OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"])),
        ],
    ),
    ("", "ServiceAccount", &[("secrets[].name", Demand::Form(names::dns1123_subdomain))]),
    ("apps", "ControllerRevision", &[("data", Demand::Needed("data is mandatory")), ("revision", Demand::NotNegative)]),
    (
        "authentication.k8s.io",
        "TokenRequest",
        &[("spec.expirationSeconds", Demand::AtLeast(600, "may not specify a duration less than 10 minutes"))],
    ),
    (
        "coordination.k8s.io",
        "Lease",
        &[
            ("spec.leaseDurationSeconds", Demand::AtLeast(1, "must be greater than 0")),
            ("spec.leaseTransitions", Demand::NotNegative),
            ("spec.strategy", Demand::OneOf(&["OldestEmulationVersion"])),
        ],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &[
            ("spec.matchingPrecedence", Demand::Between(1, 10_000)),
            ("spec.priorityLevelConfiguration.name", Demand::Required),
            ("spec.priorityLevelConfiguration.name", Demand::Form(names::dns1123_subdomain)),
            ("spec.distinguisherMethod.type", Demand::OneOf(&["ByNamespace", "ByUser"])),
            ("spec.rules[].subjects", Demand::Required),
            ("spec.rules[].subjects[].kind", Demand::OneOf(&["Group", "ServiceAccount", "User"])),
            ("spec.rules[].resourceRules[].verbs", Demand::Required),
            ("spec.rules[].resourceRules[].apiGroups", Demand::Required),
            ("spec.rules[].resourceRules[].resources", Demand::Required),
            ("spec.rules[].nonResourceRules[].verbs", Demand::Required),
            ("spec.rules[].nonResourceRules[].nonResourceURLs", Demand::Required),
        ],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &[
            ("spec.type", Demand::OneOf(&["Exempt", "Limited"])),
            ("spec.exempt.nominalConcurrencyShares", Demand::AtLeast(0, "must be a non-negative integer")),
            ("spec.exempt.lendablePercent", Demand::Between(0, 100)),
            ("spec.limited.nominalConcurrencyShares", Demand::AtLeast(0, "must be a non-negative integer")),
            ("spec.limited.lendablePercent", Demand::Between(0, 100)),
            ("spec.limited.borrowingLimitPercent", Demand::AtLeast(0, "if specified, must be a non-negative integer")),
            ("spec.limited.limitResponse.type", Demand::OneOf(&["Queue", "Reject"])),
            ("spec.limited.limitResponse.queuing.queues", Demand::AtLeast(1, "must be positive")),
            ("spec.limited.limitResponse.queuing.handSize", Demand::AtLeast(1, "must be positive")),
            ("spec.limited.limitResponse.queuing.queueLengthLimit", Demand::AtLeast(1, "must be positive")),
        ],
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        &[
            ("handler", Demand::Required),
            ("handler", Demand::Form(names::dns1123_label)),
            ("scheduling.nodeSelector", Demand::Labels),
        ],
    ),
    (
        "rbac.authorization.k8s.io",
        "ClusterRole",
        &[
            (
                "aggregationRule.clusterRoleSelectors",
                Demand::Needed("at least one clusterRoleSelector required if aggregationRule is non-nil"),
            ),
            ("aggregationRule.clusterRoleSelectors[]", Demand::Selector),
        ],
    ),
    ("scheduling.k8s.io", "PriorityClass", &[("preemptionPolicy", Demand::OneOf(&["PreemptLowerPriority", "Never"]))]),
    (
        "storage.k8s.io",
        "CSIStorageCapacity",
        &[
            ("storageClassName", Demand::Required),
            ("storageClassName", Demand::Form(names::dns1123_subdomain)),
            ("nodeTopology", Demand::Selector),
            ("capacity", Demand::Amount),
            ("maximumVolumeSize", Demand::Amount),
        ],
    ),
];

/// What of some kinds never changes.
const FIXED: &[OfKind<Fixed>] = &[
    (
        "",
        "Node",
        &[
            ("spec.podCIDRs", Change::ForbiddenOnce("node updates may not change podCIDR except from \"\" to valid")),
            (
                "spec.providerID",
                Change::ForbiddenOnce("node updates may not change providerID except from \"\" to valid"),
            ),
        ],
    ),
    ("", "ResourceQuota", &[("spec.scopes", Change::Never)]),
    ("", "Secret", &[("type", Change::Never)]),
    ("apps", "ControllerRevision", &[("data", Change::Never)]),
    ("discovery.k8s.io", "EndpointSlice", &[("addressType", Change::Never)]),
    ("certificates.k8s.io", "ClusterTrustBundle", &[("spec.signerName", Change::Never)]),
    ("networking.k8s.io", "IPAddress", &[("spec.parentRef", Change::Never)]),
    ("networking.k8s.io", "IngressClass", &[("spec.controller", Change::Never)]),
    ("node.k8s.io", "RuntimeClass", &[("handler", Change::Never)]),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        &[
            ("value", Change::Forbidden("may not be changed in an update.")),
            ("preemptionPolicy", Change::Forbidden("may not be changed in an update.")),
        ],
    ),
    (
        "resource.k8s.io",
        "ResourceSlice",
        &[("spec.driver", Change::Never), ("spec.pool.name", Change::Never), ("spec.nodeName", Change::Never)],
    ),
    ("storage.k8s.io", "CSIStorageCapacity", &[("nodeTopology", Change::Never), ("storageClassName", Change::Never)]),
];

/// Rows of statuses.
const STATUSES: &[OfKind<Row>] = &[
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[("status.currentReplicas", Demand::NotNegative), ("status.desiredReplicas", Demand::NotNegative)],
    ),
    (
        "policy",
        "PodDisruptionBudget",
        &[
            ("status.disruptionsAllowed", Demand::NotNegative),
            ("status.currentHealthy", Demand::NotNegative),
            ("status.desiredHealthy", Demand::NotNegative),
            ("status.expectedPods", Demand::NotNegative),
        ],
    ),
];

fn of<T>(table: &[OfKind<T>], info: &ResourceInfo) -> Option<&'static [T]> {
    table.iter().find(|(group, kind, _)| *group == info.group && *kind == info.kind).map(|(.., rows)| *rows)
}

/// Checks a new object of a built-in kind.
pub(super) fn create(info: &ResourceInfo, version: &str, object: &Value) -> Errors {
    let mut errors = Errors::new();
    both(info, version, &Place::root(object), &mut errors);
    let place = Place::root(object);
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Namespace") => metadata::qualified_finalizers(&place.field("spec"), &[], &mut errors),
        ("", "Pod") => pod::create(&place, &mut errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd::create(&place, &mut errors),
        ("events.k8s.io", "Event") => events::create(&place, &mut errors),
        ("node.k8s.io", "RuntimeClass") => new_runtime_class(&place, &mut errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            limits::new_certificate_request(&place.field("spec"), &mut errors);
        }
        ("certificates.k8s.io", "PodCertificateRequest") => {
            pod_certificates::request(&place.field("spec"), &mut errors);
        }
        ("networking.k8s.io", "Ingress") => networking::new_ingress(&place, &mut errors),
        ("resource.k8s.io", "DeviceClass") => devices::class(&place.field("spec"), None, &mut errors),
        ("resource.k8s.io", "ResourceClaim") => device_claims::claim(&place.field("spec"), &mut errors),
        ("resource.k8s.io", "ResourceClaimTemplate") => device_claims::template(&place.field("spec"), &mut errors),
        _ => {}
    }
    errors
}

/// Checks a changed status of a built-in kind. Those of certificate requests are looked at by who signs them; for those of
/// PersistentVolumes, CronJobs and ServiceCIDRs upstream has no rules either.
pub(super) fn status(info: &ResourceInfo, object: &Value, old: &Value) -> Errors {
    let mut errors = Errors::new();
    let (new, old) = (Place::root(object), Place::root(old));
    let of_new = new.field("status");
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Namespace") => status::namespace(&new, &old, &mut errors),
        ("", "PersistentVolumeClaim") => status::claim(&new, &mut errors),
        ("", "ResourceQuota") => {
            for list in ["hard", "used"] {
                limits::quota_amounts(&of_new.field(list), &mut errors);
            }
        }
        ("policy", "PodDisruptionBudget")
        | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
        | ("resource.k8s.io", "DeviceTaintRule") => status::conditions(&of_new, &mut errors),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration") => {
            status::named_conditions(&of_new, &mut errors);
        }
        ("apiregistration.k8s.io", "APIService") => status::true_conditions(&of_new, &mut errors),
        ("", "Pod") => pod_update::update(&new, &old, "status", &mut errors),
        ("", "Service") => service::status(&new, &mut errors),
        ("networking.k8s.io", "Ingress") => service::balanced(&new.at(&["status", "loadBalancer"]), &mut errors),
        ("", "Node") => status::node(&new, &mut errors),
        ("apps", kind) => workloads::status(kind, &new, &old, &mut errors),
        ("", "ReplicationController") => workloads::status("ReplicationController", &new, &old, &mut errors),
        ("batch", "Job") => job_status::status(&new, &old, &mut errors),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment(&new, &mut errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd::stored_versions(&new, &mut errors),
        ("certificates.k8s.io", "PodCertificateRequest") => pod_certificates::status(&new, &old, &mut errors),
        ("resource.k8s.io", "ResourceClaim") => device_claims::status(&new, &old, &mut errors),
        _ => {}
    }
    if let Some(rows) = of(STATUSES, info) {
        check(&new, rows, &mut errors);
    }
    errors
}

/// Checks a changed object of a built-in kind.
pub(super) fn update(info: &ResourceInfo, version: &str, object: &Value, old: &Value, subresource: &str) -> Errors {
    let mut errors = Errors::new();
    let (new, old) = (Place::root(object), Place::root(old));
    if (info.group.as_ref(), info.kind.as_ref()) == ("", "Pod") {
        // What a pod was given by default since it was stored, nobody has changed.
        let completed = (!same("spec", new.field("spec").value, old.field("spec").value)).then(|| {
            let mut whole = old.value.clone();
            default::apply(info, version, &mut whole);
            whole
        });
        let old = completed.as_ref().map_or(old, Place::root);
        pod_update::update(&new, &old, subresource, &mut errors);
        return errors;
    }
    both(info, version, &new, &mut errors);
    let unchanged = POD_SPECS.iter().filter(|spec| same("spec", new.at(spec).value, old.at(spec).value));
    let within: Vec<String> = unchanged.map(|spec| spec.join(".") + ".").collect();
    errors.retain(|error| !within.iter().any(|spec| error.path.starts_with(spec)));
    changes(info, &new, &old, &mut errors);
    errors
}

/// What pods are to be like, in what makes them. Who scales such an object, or ends it, is held to nothing there that an earlier
/// release let in and he leaves as it was.
const POD_SPECS: [&[&str]; 3] =
    [&["spec", "template", "spec"], &["spec", "jobTemplate", "spec", "template", "spec"], &["template", "spec"]];

/// What holds for new and changed objects.
fn both(info: &ResourceInfo, version: &str, object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let rows = of(TABLE, info);
    if let Some(rows) = rows {
        check(object, rows, errors);
    }
    match (info.group.as_ref(), info.kind.as_ref()) {
        // A new pod and a changed one have rules of their own.
        ("", "Pod") => {}
        // What these ask for never changes.
        ("certificates.k8s.io", "PodCertificateRequest")
        | ("resource.k8s.io", "ResourceClaim" | "ResourceClaimTemplate") => {}
        ("", "PodTemplate") => pod::template(&object.field("template"), &[], errors),
        ("", "Service") => service::service(object, errors),
        ("", "ConfigMap") => configuration::config_map(object, errors),
        ("", "Secret") => configuration::secret(object, errors),
        ("", "Node") => node(&spec, errors),
        ("", "Event") => events::event(object, false, errors),
        ("events.k8s.io", "Event") => events::event(object, true, errors),
        ("", "Endpoints") => networking::endpoints(object, errors),
        ("", "PersistentVolume") => storage::volume(&spec, errors),
        ("", "PersistentVolumeClaim") => storage::claim(&spec, errors),
        ("storage.k8s.io", "StorageClass") => storage::class(object, errors),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class(object, errors),
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver(object, errors),
        ("storage.k8s.io", "CSINode") => storage::csi_node(object, errors),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment(object, errors),
        ("", "ReplicationController") => workloads::replication_controller(object, errors),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => {
            workloads::set_of_pods(&info.kind, object, errors)
        }
        ("batch", "Job") => jobs::job(object, errors),
        ("batch", "CronJob") => jobs::cron_job(object, errors),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(object, info.namespaced, errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(object, info.namespaced, errors)
        }
        ("scheduling.k8s.io", "PriorityClass") => priority_class(object, errors),
        ("policy", "PodDisruptionBudget") => limits::disruption_budget(&spec, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler(object, errors),
        ("", "ResourceQuota") => limits::quota(&spec, errors),
        ("", "LimitRange") => limits::limit_range(&spec, errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => limits::certificate_request(&spec, errors),
        ("networking.k8s.io", "Ingress") => networking::ingress(object, errors),
        ("networking.k8s.io", "IngressClass") => networking::ingress_class(object, errors),
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
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_control::schema(object, errors),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flow_control::level(object, errors),
        ("certificates.k8s.io", "ClusterTrustBundle") => limits::trust_bundle(object, errors),
        // It is held to what it was.
        ("resource.k8s.io", "DeviceClass") => {}
        ("resource.k8s.io", "ResourceSlice") => device_slices::slice(&spec, errors),
        ("resource.k8s.io", "DeviceTaintRule") => devices::taint_rule(&spec, errors),
        ("apiregistration.k8s.io", "APIService") => admission::api_service(object, errors),
        _ if rows.is_some() => {}
        _ => {
            if let Some(version) = info.versions.iter().find(|v| v.name == version) {
                required::fields(object.value, version.schema(), "", errors);
            }
        }
    }
}

/// What may not change.
fn changes(info: &ResourceInfo, new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    if let Some(rows) = of(FIXED, info) {
        held_to(new, old, rows, errors);
    }
    match (info.group.as_ref(), info.kind.as_ref()) {
        ("", "Namespace") => {
            let (spec, old) = (new.field("spec"), old.field("spec"));
            metadata::qualified_finalizers(&spec, &old.texts("finalizers"), errors);
        }
        ("", "Service") => service::changes(new, old, errors),
        ("events.k8s.io", "Event") => events::changes(new, old, errors),
        ("", "ConfigMap") => configuration::changes(new, old, &["data", "binaryData"], errors),
        ("", "Secret") => configuration::changes(new, old, &["data"], errors),
        ("", "Node") => status::node(new, errors),
        ("", "PersistentVolumeClaim") => storage::claim_changes(new, old, errors),
        ("", "PersistentVolume") => storage::volume_changes(new, old, errors),
        ("storage.k8s.io", "StorageClass") => storage::class_changes(new, old, errors),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class_changes(new, old, errors),
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver_changes(new, old, errors),
        ("storage.k8s.io", "CSINode") => storage::csi_node_changes(new, old, errors),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment_changes(new, old, errors),
        ("apps", kind) => workloads::changes(kind, new, old, errors),
        ("batch", "Job") => jobs::changes(new, old, errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if new.field("roleRef").value != old.field("roleRef").value =>
        {
            new.invalid("roleRef", "cannot change roleRef", errors);
        }
        ("networking.k8s.io", "Ingress") => networking::ingress_changes(new, old, errors),
        ("networking.k8s.io", "ServiceCIDR") => networking::service_range_changes(new, old, errors),
        ("certificates.k8s.io", "PodCertificateRequest") => pod_certificates::changes(new, old, errors),
        ("resource.k8s.io", "DeviceClass") => devices::class(&new.field("spec"), Some(&old.field("spec")), errors),
        ("resource.k8s.io", "ResourceClaim" | "ResourceClaimTemplate") => device_claims::changes(new, old, errors),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => crd::changes(new, old, errors),
        _ => {}
    }
}

fn node(spec: &Place<'_>, errors: &mut Errors) {
    unique(
        spec.items("taints"),
        |taint| Some((taint.text("key"), taint.text("effect"))),
        |taint| FieldError::duplicate(taint.path.clone(), taint.value.clone()),
        errors,
    );
    let ranges = spec.texts("podCIDRs");
    let mut seen = BTreeSet::new();
    for (index, range) in ranges.iter().enumerate().filter(|(_, range)| !seen.insert(**range)) {
        errors.push(FieldError::duplicate(format!("{}[{index}]", spec.path_of("podCIDRs")), *range));
    }
    let families: Vec<bool> = ranges.iter().map(|range| range.contains(':')).collect();
    if families.len() > 2 || matches!(families.as_slice(), [one, other] if one == other) {
        spec.invalid("podCIDRs", "may specify no more than one CIDR for each IP family", errors);
    }
}

/// What a class adds to its pods is held to what theirs is, under the paths that upstream gives it.
fn new_runtime_class(object: &Place<'_>, errors: &mut Errors) {
    resources::amounts(&object.at(&["overhead", "podFixed"]), "overhead.limits", errors);
    for toleration in object.field("scheduling").items("tolerations") {
        pod::toleration(&toleration, errors);
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
}
