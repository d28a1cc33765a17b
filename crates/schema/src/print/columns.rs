//! The headings of built-in kinds, as upstream's printers have them.

use super::Column;

/// Columns after the name, divided by commas. A `*` marks what only `-o wide` shows, a `#` a number,
/// a `@` a date.
fn headings(group: &str, kind: &str) -> &'static str {
    match (group, kind) {
        ("", "Pod") => "Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*",
        ("", "PodTemplate") => "Containers,Images,Pod Labels",
        ("", "ReplicationController") | ("apps", "ReplicaSet") => {
            "Desired#,Current#,Ready#,Age,Containers*,Images*,Selector*"
        }
        ("apps", "DaemonSet") => {
            "Desired#,Current#,Ready#,Up-to-date#,Available#,Node Selector,Age,Containers*,Images*,Selector*"
        }
        ("apps", "Deployment") => "Ready,Up-to-date,Available,Age,Containers*,Images*,Selector*",
        ("apps", "StatefulSet") => "Ready,Age,Containers*,Images*",
        ("apps", "ControllerRevision") => "Controller,Revision#,Age",
        ("batch", "Job") => "Status,Completions,Duration,Age,Containers*,Images*,Selector*",
        ("batch", "CronJob") => "Schedule,Timezone,Suspend,Active#,Last Schedule,Age,Containers*,Images*,Selector*",
        ("", "Service") => "Type,Cluster-IP,External-IP,Port(s),Age,Selector*",
        ("", "Endpoints") => "Endpoints,Age",
        ("discovery.k8s.io", "EndpointSlice") => "AddressType,Ports,Endpoints,Age",
        ("networking.k8s.io", "Ingress") => "Class,Hosts,Address,Ports,Age",
        ("networking.k8s.io", "IngressClass") => "Controller,Parameters,Age",
        ("networking.k8s.io", "NetworkPolicy") => "Pod-Selector,Age",
        ("networking.k8s.io", "ServiceCIDR") => "CIDRs,Age",
        ("networking.k8s.io", "IPAddress") => "ParentRef,Age",
        ("", "Node") => {
            "Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*"
        }
        ("" | "events.k8s.io", "Event") => {
            "Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count#*,Name*"
        }
        ("", "Namespace") => "Status,Age",
        ("", "ConfigMap") => "Data#,Age",
        ("", "Secret") => "Type,Data#,Age",
        ("", "ServiceAccount") => "Secrets#,Age",
        ("", "ResourceQuota") => "Request,Limit,Age",
        ("", "ComponentStatus") => "Status,Message,Error",
        ("", "PersistentVolume") => {
            "Capacity,Access Modes,Reclaim Policy,Status,Claim,StorageClass,VolumeAttributesClass,Reason,Age,VolumeMode*"
        }
        ("", "PersistentVolumeClaim") => {
            "Status,Volume,Capacity,Access Modes,StorageClass,VolumeAttributesClass,Age,VolumeMode*"
        }
        ("storage.k8s.io", "StorageClass") => "Provisioner,ReclaimPolicy,VolumeBindingMode,AllowVolumeExpansion,Age",
        ("storage.k8s.io", "VolumeAttributesClass") => "DriverName,Age",
        ("storage.k8s.io", "VolumeAttachment") => "Attacher,PV,Node,Attached,Age",
        ("storage.k8s.io", "CSINode") => "Drivers#,Age",
        ("storage.k8s.io", "CSIDriver") => {
            "AttachRequired,PodInfoOnMount,StorageCapacity,TokenRequests,RequiresRepublish,Modes,Age"
        }
        ("storage.k8s.io", "CSIStorageCapacity") => "StorageClassName,Capacity",
        ("autoscaling", "Scale") => "Desired#,Available#,Age",
        ("autoscaling", "HorizontalPodAutoscaler") => "Reference,Targets,MinPods,MaxPods,Replicas#,Age",
        ("policy", "PodDisruptionBudget") => "Min Available,Max Unavailable,Allowed Disruptions#,Age",
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            "Role,Age,Users*,Groups*,ServiceAccounts*"
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => "Age,SignerName,Requestor,RequestedDuration,Condition",
        ("certificates.k8s.io", "ClusterTrustBundle") => "SignerName",
        ("coordination.k8s.io", "Lease") => "Holder,Age",
        ("scheduling.k8s.io", "PriorityClass") => "Value#,Global-Default,Age,PreemptionPolicy",
        ("node.k8s.io", "RuntimeClass") => "Handler,Age",
        ("apiregistration.k8s.io", "APIService") => "Service,Available,Age",
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            "Webhooks#,Age"
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => "Validations#,ParamKind,Age",
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => "Mutations#,ParamKind,Age",
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding") => {
            "PolicyName,ParamRef,Age"
        }
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => {
            "PriorityLevel,MatchingPrecedence#,DistinguisherMethod,Age,MissingPL"
        }
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => {
            "Type,NominalConcurrencyShares,Queues,HandSize,QueueLengthLimit,Age"
        }
        ("resource.k8s.io", "ResourceClaim") => "State,Age",
        ("resource.k8s.io", "ResourceSlice") => "Node,Driver,Pool,Age",
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => "Age",
        _ => "Created At@",
    }
}

pub(super) fn builtin(group: &str, kind: &str) -> Vec<Column> {
    let rest = headings(group, kind).split(',').map(|heading| {
        let name = heading.trim_end_matches(['*', '#', '@']);
        let type_ = match heading.get(name.len()..).unwrap_or_default() {
            marks if marks.contains('#') => "integer",
            marks if marks.contains('@') => "date",
            _ => "string",
        };
        Column {
            name: name.to_owned(),
            type_: type_.to_owned(),
            format: String::new(),
            description: description(name).to_owned(),
            priority: i64::from(heading.ends_with('*')),
        }
    });
    // The name of an event comes last and is of no interest.
    if kind == "Event" { rest.collect() } else { std::iter::once(name_column()).chain(rest).collect() }
}

pub(super) fn name_column() -> Column {
    Column {
        name: "Name".to_owned(),
        type_: "string".to_owned(),
        format: "name".to_owned(),
        description: "Name of the object, unique among the objects of its kind in its namespace.".to_owned(),
        priority: 0,
    }
}

fn description(name: &str) -> &'static str {
    match name {
        "Age" => "Time since the object was created.",
        "Created At" => "When the object was created.",
        "Ready" => "How many of those wanted are ready.",
        "Status" => "The state the object is in.",
        "Restarts" => "How often containers were restarted, and when last.",
        "Containers" => "Names of the containers.",
        "Images" => "Images of the containers.",
        "Selector" => "Which pods belong to it.",
        _ => "",
    }
}
