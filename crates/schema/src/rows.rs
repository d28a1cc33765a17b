//! The rows of every built-in kind of Kubernetes v1.36.
//!
//! Kinds that are generally available have those versions only; kinds that never became so have their
//! newest one, which the API server serves only where it is told to. Facts (short names,
//! categories, verbs, subresources, selectable fields) are upstream's, as its discovery prints them.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use crate::jsonpath::JsonPath;
use crate::table::{ResourceInfo, SchemaSource, SelectableField, Subresource, Text, Version};

static ROWS: LazyLock<Vec<Arc<ResourceInfo>>> =
    LazyLock::new(|| ROW_LITERALS.iter().map(|row| Arc::new(row.build())).collect());

/// All rows; see [`crate::table::builtin`].
pub(crate) fn all() -> &'static [Arc<ResourceInfo>] {
    &ROWS
}

const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];
const PROXY_VERBS: &[&str] = &["create", "delete", "get", "patch", "update"];
const ONE_VERSION: &[&str] = &["v1"];

/// One row, as short as it can be written. The first version is the preferred and stored one.
#[derive(Clone, Copy)]
struct Row {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    versions: &'static [&'static str],
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    verbs: &'static [&'static str],
    subresources: &'static [Sub],
    fields: &'static [Field],
    is_virtual: bool,
    generation: bool,
    graceful: bool,
    stored_as: Option<(&'static str, &'static str)>,
}

/// A subresource: segment, group, version and kind of its body (an empty kind is the parent's), verbs.
type Sub = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);
/// A selectable field: its name, the paths that give its value, the value when absent.
type Field = (&'static str, &'static [&'static str], &'static str);

const STATUS: Sub = ("status", "", "", "", STATUS_VERBS);
const SCALE: Sub = ("scale", "autoscaling", "v1", "Scale", STATUS_VERBS);

impl Row {
    const fn new(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Row {
            group,
            kind,
            plural,
            versions: ONE_VERSION,
            short_names: &[],
            categories: &[],
            namespaced: false,
            verbs: ALL_VERBS,
            subresources: &[],
            fields: &[],
            is_virtual: false,
            generation: false,
            graceful: false,
            stored_as: None,
        }
    }
    const fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }
    const fn versions(mut self, versions: &'static [&'static str]) -> Self {
        self.versions = versions;
        self
    }
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }
    const fn categories(mut self, names: &'static [&'static str]) -> Self {
        self.categories = names;
        self
    }
    const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }
    const fn subs(mut self, subresources: &'static [Sub]) -> Self {
        self.subresources = subresources;
        self
    }
    const fn fields(mut self, fields: &'static [Field]) -> Self {
        self.fields = fields;
        self
    }
    const fn generation(mut self) -> Self {
        self.generation = true;
        self
    }
    /// A kind that is answered on the spot: it can only be created.
    const fn review(mut self) -> Self {
        self.is_virtual = true;
        self.verbs = &["create"];
        self
    }

    fn build(&self) -> ResourceInfo {
        let version = |(index, name): (usize, &&'static str)| Version {
            name: Cow::Borrowed(name),
            served: true,
            storage: index == 0 && !self.is_virtual && self.stored_as.is_none(),
            deprecation_warning: deprecation(self.group, name, self.kind),
            schema: SchemaSource::Builtin(Cow::Owned(type_name(self.group, name, self.kind))),
            subresources: self.subresources.iter().map(|sub| self.build_subresource(name, sub)).collect(),
            selectable_fields: self.fields.iter().map(build_field).collect(),
            columns: Vec::new(),
        };
        let (storage_group, storage_plural) = self.stored_as.unwrap_or((self.group, self.plural));
        ResourceInfo {
            group: self.group.into(),
            kind: self.kind.into(),
            list_kind: Cow::Owned(format!("{}List", self.kind)),
            plural: self.plural.into(),
            singular: Cow::Owned(self.kind.to_ascii_lowercase()),
            short_names: texts(self.short_names),
            categories: texts(self.categories),
            namespaced: self.namespaced,
            verbs: texts(self.verbs),
            versions: self.versions.iter().enumerate().map(version).collect(),
            is_virtual: self.is_virtual,
            has_generation: self.generation,
            graceful_deletion: self.graceful,
            is_custom: false,
            storage: (storage_group.into(), storage_plural.into()),
            conversion: None,
            defined_at: 0,
        }
    }

    fn build_subresource(&self, own_version: &'static str, sub: &Sub) -> Subresource {
        let &(name, group, version, kind, verbs) = sub;
        let (group, version, kind) =
            if kind.is_empty() { (self.group, own_version, self.kind) } else { (group, version, kind) };
        Subresource {
            name: name.into(),
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            verbs: texts(verbs),
            scale: None,
        }
    }
}

fn build_field(&(name, paths, absent): &Field) -> SelectableField {
    let paths = paths.iter().filter_map(|path| JsonPath::parse(path).ok()).collect();
    SelectableField { name: name.into(), paths, absent: absent.into() }
}

fn texts(list: &'static [&'static str]) -> Vec<Text> {
    list.iter().copied().map(Cow::Borrowed).collect()
}

/// Deprecations that upstream announces with a `Warning` header.
fn deprecation(group: &str, version: &str, kind: &str) -> Option<Text> {
    let text = match (group, version, kind) {
        ("", "v1", "ComponentStatus") => "v1 ComponentStatus is deprecated in v1.19+",
        ("", "v1", "Endpoints") => "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        _ => return None,
    };
    Some(Cow::Borrowed(text))
}

/// The OpenAPI name of a built-in kind's type, such as `io.k8s.api.apps.v1.Deployment`.
#[must_use]
pub fn type_name(group: &str, version: &str, kind: &str) -> String {
    let package = match group {
        "" => "io.k8s.api.core",
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration",
        "internal.apiserver.k8s.io" => "io.k8s.api.apiserverinternal",
        _ => return format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next().unwrap_or(group)),
    };
    format!("{package}.{version}.{kind}")
}

const POD_SUBRESOURCES: &[Sub] = &[
    ("attach", "", "v1", "PodAttachOptions", &["create", "get"]),
    ("binding", "", "v1", "Binding", &["create"]),
    ("ephemeralcontainers", "", "v1", "Pod", STATUS_VERBS),
    ("eviction", "policy", "v1", "Eviction", &["create"]),
    ("exec", "", "v1", "PodExecOptions", &["create", "get"]),
    ("log", "", "v1", "Pod", &["get"]),
    ("portforward", "", "v1", "PodPortForwardOptions", &["create", "get"]),
    ("proxy", "", "v1", "PodProxyOptions", PROXY_VERBS),
    ("resize", "", "v1", "Pod", STATUS_VERBS),
    STATUS,
];

const POD_FIELDS: &[Field] = &[
    ("spec.nodeName", &[".spec.nodeName"], ""),
    // What it was called once.
    ("spec.host", &[".spec.nodeName"], ""),
    ("spec.restartPolicy", &[".spec.restartPolicy"], ""),
    ("spec.schedulerName", &[".spec.schedulerName"], ""),
    ("spec.serviceAccountName", &[".spec.serviceAccountName"], ""),
    ("spec.hostNetwork", &[".spec.hostNetwork"], "false"),
    ("status.phase", &[".status.phase"], ""),
    ("status.podIP", &[".status.podIP"], ""),
    // Upstream lets it be asked for, and no pod has it.
    ("status.podIPs", &[], ""),
    ("status.nominatedNodeName", &[".status.nominatedNodeName"], ""),
];

const EVENT_FIELDS: &[Field] = &[
    ("involvedObject.kind", &[".involvedObject.kind"], ""),
    ("involvedObject.namespace", &[".involvedObject.namespace"], ""),
    ("involvedObject.name", &[".involvedObject.name"], ""),
    ("involvedObject.uid", &[".involvedObject.uid"], ""),
    ("involvedObject.apiVersion", &[".involvedObject.apiVersion"], ""),
    ("involvedObject.resourceVersion", &[".involvedObject.resourceVersion"], ""),
    ("involvedObject.fieldPath", &[".involvedObject.fieldPath"], ""),
    ("reason", &[".reason"], ""),
    ("reportingComponent", &[".reportingComponent"], ""),
    ("source", &[".source.component", ".reportingComponent"], ""),
    ("type", &[".type"], ""),
];

const NEW_EVENT_FIELDS: &[Field] = &[
    ("regarding.kind", &[".regarding.kind"], ""),
    ("regarding.namespace", &[".regarding.namespace"], ""),
    ("regarding.name", &[".regarding.name"], ""),
    ("regarding.uid", &[".regarding.uid"], ""),
    ("regarding.apiVersion", &[".regarding.apiVersion"], ""),
    ("regarding.resourceVersion", &[".regarding.resourceVersion"], ""),
    ("regarding.fieldPath", &[".regarding.fieldPath"], ""),
    ("reason", &[".reason"], ""),
    ("reportingController", &[".reportingController"], ""),
    ("type", &[".type"], ""),
];

const CSR_FIELDS: &[Field] = &[("spec.signerName", &[".spec.signerName"], "")];

const EXT: &[&str] = &["api-extensions"];
const ALL: &[&str] = &["all"];

const ADMISSION: &str = "admissionregistration.k8s.io";
const AUTHN: &str = "authentication.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";
const CERTS: &str = "certificates.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NET: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const DRA: &str = "resource.k8s.io";
const SCHED: &str = "scheduling.k8s.io";
const STORAGE: &str = "storage.k8s.io";

#[rustfmt::skip]
const ROW_LITERALS: &[Row] = &[
    Row::new("", "Binding", "bindings").namespaced().review(),
    Row::new("", "ComponentStatus", "componentstatuses").short(&["cs"]).verbs(&["get", "list"]),
    Row::new("", "ConfigMap", "configmaps").namespaced().short(&["cm"]),
    Row::new("", "Endpoints", "endpoints").namespaced().short(&["ep"]),
    Row::new("", "Event", "events").namespaced().short(&["ev"]).fields(EVENT_FIELDS),
    Row::new("", "LimitRange", "limitranges").namespaced().short(&["limits"]),
    Row::new("", "Namespace", "namespaces").short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .subs(&[("finalize", "", "v1", "Namespace", &["update"]), STATUS])
        .fields(&[("status.phase", &[".status.phase"], "")]),
    Row::new("", "Node", "nodes").short(&["no"])
        .subs(&[("proxy", "", "v1", "NodeProxyOptions", PROXY_VERBS), STATUS])
        .fields(&[("spec.unschedulable", &[".spec.unschedulable"], "false")]),
    Row::new("", "PersistentVolumeClaim", "persistentvolumeclaims").namespaced().short(&["pvc"]).subs(&[STATUS]),
    Row::new("", "PersistentVolume", "persistentvolumes").short(&["pv"]).subs(&[STATUS]),
    Row { graceful: true, ..Row::new("", "Pod", "pods").namespaced().short(&["po"]).categories(ALL).generation()
        .subs(POD_SUBRESOURCES).fields(POD_FIELDS) },
    Row::new("", "PodTemplate", "podtemplates").namespaced(),
    Row::new("", "ReplicationController", "replicationcontrollers").namespaced().short(&["rc"]).categories(ALL).generation()
        .subs(&[SCALE, STATUS]).fields(&[("status.replicas", &[".status.replicas"], "0")]),
    Row::new("", "ResourceQuota", "resourcequotas").namespaced().short(&["quota"]).subs(&[STATUS]),
    Row::new("", "Secret", "secrets").namespaced().fields(&[("type", &[".type"], "")]),
    Row::new("", "ServiceAccount", "serviceaccounts").namespaced().short(&["sa"])
        .subs(&[("token", AUTHN, "v1", "TokenRequest", &["create"])]),
    Row::new("", "Service", "services").namespaced().short(&["svc"]).categories(ALL)
        .subs(&[("proxy", "", "v1", "ServiceProxyOptions", PROXY_VERBS), STATUS])
        .fields(&[("spec.clusterIP", &[".spec.clusterIP"], ""), ("spec.type", &[".spec.type"], "")]),

    Row::new("apiregistration.k8s.io", "APIService", "apiservices").categories(EXT).subs(&[STATUS]),

    Row::new("apps", "ControllerRevision", "controllerrevisions").namespaced(),
    Row::new("apps", "DaemonSet", "daemonsets").namespaced().short(&["ds"]).categories(ALL).generation().subs(&[STATUS]),
    Row::new("apps", "Deployment", "deployments").namespaced().short(&["deploy"]).categories(ALL).generation().subs(&[SCALE, STATUS]),
    Row::new("apps", "ReplicaSet", "replicasets").namespaced().short(&["rs"]).categories(ALL).generation()
        .subs(&[SCALE, STATUS]),
    Row::new("apps", "StatefulSet", "statefulsets").namespaced().short(&["sts"]).categories(ALL).generation().subs(&[SCALE, STATUS]),

    Row { stored_as: Some(("", "events")), ..Row::new("events.k8s.io", "Event", "events").namespaced().short(&["ev"]).fields(NEW_EVENT_FIELDS) },

    Row::new(AUTHN, "SelfSubjectReview", "selfsubjectreviews").review(),
    Row::new(AUTHN, "TokenReview", "tokenreviews").review(),
    Row::new(AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews").namespaced().review(),
    Row::new(AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews").review(),
    Row::new(AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews").review(),
    Row::new(AUTHZ, "SubjectAccessReview", "subjectaccessreviews").review(),

    Row::new("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers").namespaced().versions(&["v2", "v1"])
        .short(&["hpa"]).categories(ALL).subs(&[STATUS]),
    Row::new("batch", "CronJob", "cronjobs").namespaced().short(&["cj"]).categories(ALL).generation().subs(&[STATUS]),
    Row::new("batch", "Job", "jobs").namespaced().categories(ALL).generation().subs(&[STATUS])
        .fields(&[("status.successful", &[".status.succeeded"], "0")]),

    Row::new(CERTS, "CertificateSigningRequest", "certificatesigningrequests").short(&["csr"])
        .subs(&[("approval", CERTS, "v1", "CertificateSigningRequest", STATUS_VERBS), STATUS]).fields(CSR_FIELDS),
    Row::new(CERTS, "ClusterTrustBundle", "clustertrustbundles").versions(&["v1beta1"]).fields(CSR_FIELDS),
    Row::new(CERTS, "PodCertificateRequest", "podcertificaterequests").namespaced().versions(&["v1beta1"]).subs(&[STATUS])
        .fields(&[("spec.signerName", &[".spec.signerName"], ""), ("spec.podName", &[".spec.podName"], ""), ("spec.nodeName", &[".spec.nodeName"], "")]),

    Row::new(NET, "IngressClass", "ingressclasses").generation(),
    Row::new(NET, "Ingress", "ingresses").namespaced().short(&["ing"]).generation().subs(&[STATUS]),
    Row::new(NET, "IPAddress", "ipaddresses").short(&["ip"]).fields(&[("spec.parentRef.name", &[".spec.parentRef.name"], "")]),
    Row::new(NET, "NetworkPolicy", "networkpolicies").namespaced().short(&["netpol"]).generation(),
    Row::new(NET, "ServiceCIDR", "servicecidrs").subs(&[STATUS]),

    Row::new("policy", "PodDisruptionBudget", "poddisruptionbudgets").namespaced().short(&["pdb"]).generation().subs(&[STATUS]),

    Row::new(RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    Row::new(RBAC, "ClusterRole", "clusterroles"),
    Row::new(RBAC, "RoleBinding", "rolebindings").namespaced(),
    Row::new(RBAC, "Role", "roles").namespaced(),

    Row::new(STORAGE, "CSIDriver", "csidrivers"),
    Row::new(STORAGE, "CSINode", "csinodes"),
    Row::new(STORAGE, "CSIStorageCapacity", "csistoragecapacities").namespaced(),
    Row::new(STORAGE, "StorageClass", "storageclasses").short(&["sc"]),
    Row::new(STORAGE, "VolumeAttachment", "volumeattachments").subs(&[STATUS]),
    Row::new(STORAGE, "VolumeAttributesClass", "volumeattributesclasses").short(&["vac"]),
    Row::new("storagemigration.k8s.io", "StorageVersionMigration", "storageversionmigrations").versions(&["v1beta1"]).generation().subs(&[STATUS]),

    Row::new(ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies").categories(EXT).generation(),
    Row::new(ADMISSION, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings").categories(EXT).generation(),
    Row::new(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations").categories(EXT).generation(),
    Row::new(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies").categories(EXT).generation().subs(&[STATUS]),
    Row::new(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings").categories(EXT).generation(),
    Row::new(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations").categories(EXT).generation(),

    Row::new("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions").short(&["crd", "crds"]).categories(EXT)
        .generation().subs(&[STATUS]),

    Row::new(SCHED, "PriorityClass", "priorityclasses").short(&["pc"]).generation(),
    Row::new(SCHED, "PodGroup", "podgroups").namespaced().versions(&["v1alpha2"]).generation().subs(&[STATUS]),
    Row::new(SCHED, "Workload", "workloads").namespaced().versions(&["v1alpha2"]).generation(),

    Row::new("coordination.k8s.io", "Lease", "leases").namespaced(),
    Row::new("coordination.k8s.io", "LeaseCandidate", "leasecandidates").namespaced().versions(&["v1beta1"])
        .fields(&[("spec.leaseName", &[".spec.leaseName"], "")]),

    Row::new("node.k8s.io", "RuntimeClass", "runtimeclasses"),
    Row::new("discovery.k8s.io", "EndpointSlice", "endpointslices").namespaced().generation(),

    Row::new(FLOW, "FlowSchema", "flowschemas").generation().subs(&[STATUS]),
    Row::new(FLOW, "PriorityLevelConfiguration", "prioritylevelconfigurations").generation().subs(&[STATUS]),

    Row::new("internal.apiserver.k8s.io", "StorageVersion", "storageversions").versions(&["v1alpha1"]).subs(&[STATUS]),

    Row::new(DRA, "DeviceClass", "deviceclasses").generation(),
    Row::new(DRA, "ResourceClaim", "resourceclaims").namespaced().subs(&[STATUS]),
    Row::new(DRA, "ResourceClaimTemplate", "resourceclaimtemplates").namespaced(),
    Row::new(DRA, "ResourceSlice", "resourceslices").generation()
        .fields(&[("spec.nodeName", &[".spec.nodeName"], ""), ("spec.driver", &[".spec.driver"], "")]),
    Row::new(DRA, "DeviceTaintRule", "devicetaintrules").versions(&["v1beta2"]).generation().subs(&[STATUS]),
    Row::new(DRA, "ResourcePoolStatusRequest", "resourcepoolstatusrequests").versions(&["v1alpha3"]).subs(&[STATUS]),
];
