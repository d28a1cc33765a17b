//! Upstream's `system:controller:*` roles, each bound to a service account of its own in
//! `kube-system`.
//!
//! The controllers role runs them in one process under one user. So that this user holds what they
//! need and no more, those that the role runs carry a label, and `carrack.io:controllers` is made up
//! of them.

use super::{AGGREGATE_TO_CONTROLLERS, APPS, BATCH, BOOTSTRAP_LABEL, Builder, CORE, READ, To, events, named, rule};
use crate::caller::USER_CONTROLLER_MANAGER;
use crate::rbac::Rule;

const STORAGE: &[&str] = &["storage.k8s.io"];
const DISCOVERY: &[&str] = &["discovery.k8s.io"];
const AUTOSCALING: &[&str] = &["autoscaling"];
const POLICIES: &[&str] = &["admissionregistration.k8s.io"];
const ALL: &[&str] = &["*"];

pub(super) fn add(b: &mut Builder) {
    let mut add = |ours: bool, name: &str, rules: Vec<Rule>| {
        let role = format!("system:controller:{name}");
        let labels = [BOOTSTRAP_LABEL, (AGGREGATE_TO_CONTROLLERS, "true")];
        b.labelled(&role, if ours { &labels } else { &labels[..1] }, rules);
        b.bind(&role, &role, &[To::ServiceAccount("kube-system", name)]);
    };
    for (name, rules) in cluster_controllers().into_iter().chain(workloads()).chain(volumes()) {
        add(true, name, rules);
    }
    for (name, rules) in others() {
        add(false, name, rules);
    }
    b.aggregated("carrack.io:controllers", &[BOOTSTRAP_LABEL], AGGREGATE_TO_CONTROLLERS);
    b.bind("carrack.io:controllers", "carrack.io:controllers", &[To::User(USER_CONTROLLER_MANAGER)]);
}

type Table = Vec<(&'static str, Vec<Rule>)>;

fn cluster_controllers() -> Table {
    vec![
        ("generic-garbage-collector", vec![rule("get list watch patch update delete", ALL, "*"), events()]),
        (
            "namespace-controller",
            vec![
                rule("get list watch delete", CORE, "namespaces"),
                rule("update patch", CORE, "namespaces/finalize namespaces/status"),
                rule("get list watch delete deletecollection", ALL, "*"),
            ],
        ),
        ("service-account-controller", vec![rule("create", CORE, "serviceaccounts"), events()]),
        (
            "podcertificaterequestcleaner",
            vec![rule("get list watch delete", &["certificates.k8s.io"], "podcertificaterequests")],
        ),
        ("root-ca-cert-publisher", vec![rule("create update", CORE, "configmaps"), events()]),
        (
            "node-controller",
            vec![
                rule("get list watch update delete patch", CORE, "nodes"),
                rule("patch update", CORE, "nodes/status"),
                rule("patch update", CORE, "pods/status"),
                rule("list watch get delete", CORE, "pods"),
                // Upstream reads the Leases of nodes under its own, wider role.
                rule("get list watch", &["coordination.k8s.io"], "leases"),
                events(),
            ],
        ),
        (
            "pod-garbage-collector",
            vec![
                rule("list watch delete", CORE, "pods"),
                rule(READ, CORE, "nodes"),
                rule("patch", CORE, "pods/status"),
            ],
        ),
        (
            "resourcequota-controller",
            vec![rule("list watch", ALL, "*"), rule("update patch", CORE, "resourcequotas/status"), events()],
        ),
        (
            "validatingadmissionpolicy-status-controller",
            vec![
                rule("get list watch", POLICIES, "validatingadmissionpolicies"),
                rule("get patch update", POLICIES, "validatingadmissionpolicies/status"),
                events(),
            ],
        ),
        (
            "disruption-controller",
            vec![
                rule(READ, &["apps", "extensions"], "deployments replicasets"),
                rule(READ, CORE, "replicationcontrollers"),
                rule(READ, &["policy"], "poddisruptionbudgets"),
                rule(READ, APPS, "statefulsets"),
                rule("update patch", &["policy"], "poddisruptionbudgets/status"),
                rule("list watch", CORE, "pods"),
                rule("patch update", CORE, "pods/status"),
                rule("get", ALL, "*/scale"),
                events(),
            ],
        ),
        (
            "horizontal-pod-autoscaler",
            vec![
                rule(READ, AUTOSCALING, "horizontalpodautoscalers"),
                rule("update patch", AUTOSCALING, "horizontalpodautoscalers/status"),
                rule("get update patch", ALL, "*/scale"),
                rule("list watch", CORE, "pods"),
                rule("list watch", &["metrics.k8s.io"], "pods"),
                rule(READ, &["custom.metrics.k8s.io"], "*"),
                rule(READ, &["external.metrics.k8s.io"], "*"),
                events(),
            ],
        ),
        (
            "endpoint-controller",
            vec![
                rule(READ, CORE, "services pods"),
                rule("get list watch create update patch delete", CORE, "endpoints"),
                rule("create", CORE, "endpoints/restricted"),
                events(),
            ],
        ),
        (
            "endpointslice-controller",
            vec![
                rule(READ, CORE, "services pods nodes"),
                rule("update", CORE, "services/finalizers"),
                rule("get list watch create update patch delete", DISCOVERY, "endpointslices"),
                rule("create", DISCOVERY, "endpointslices/restricted"),
                events(),
            ],
        ),
        (
            "endpointslicemirroring-controller",
            vec![
                rule(READ, CORE, "services endpoints"),
                rule("update", CORE, "services/finalizers endpoints/finalizers"),
                rule("get list watch create update patch delete", DISCOVERY, "endpointslices"),
                rule("create", DISCOVERY, "endpointslices/restricted"),
                events(),
            ],
        ),
    ]
}

fn workloads() -> Table {
    let old_apps = &["apps", "extensions"];
    vec![
        (
            "replicaset-controller",
            vec![
                rule("get list watch update", old_apps, "replicasets"),
                rule("update", old_apps, "replicasets/status replicasets/finalizers"),
                rule("list watch patch create delete", CORE, "pods"),
                events(),
            ],
        ),
        (
            "replication-controller",
            vec![
                rule("get list watch update", CORE, "replicationcontrollers"),
                rule("update", CORE, "replicationcontrollers/status replicationcontrollers/finalizers"),
                rule("list watch patch create delete", CORE, "pods"),
                events(),
            ],
        ),
        (
            "deployment-controller",
            vec![
                rule("get list watch update", old_apps, "deployments"),
                rule("update", old_apps, "deployments/status deployments/finalizers"),
                rule("get list watch create update patch delete", old_apps, "replicasets"),
                rule("get list watch update", CORE, "pods"),
                events(),
            ],
        ),
        (
            "statefulset-controller",
            vec![
                rule("list watch", CORE, "pods"),
                rule(READ, APPS, "statefulsets"),
                rule("update", APPS, "statefulsets/status statefulsets/finalizers"),
                rule("get create delete update patch", CORE, "pods"),
                rule("get create delete update patch list watch", APPS, "controllerrevisions"),
                rule("get create list watch", CORE, "persistentvolumeclaims"),
                rule("update delete", CORE, "persistentvolumeclaims"),
                rule("update", CORE, "pods/finalizers"),
                events(),
            ],
        ),
        (
            "daemon-set-controller",
            vec![
                rule(READ, old_apps, "daemonsets"),
                rule("update", old_apps, "daemonsets/status daemonsets/finalizers"),
                rule("list watch", CORE, "nodes"),
                rule("list watch create delete patch", CORE, "pods"),
                rule("create", CORE, "pods/binding"),
                rule("get list watch create delete update patch", APPS, "controllerrevisions"),
                events(),
            ],
        ),
        (
            "job-controller",
            vec![
                rule("get list watch update patch", BATCH, "jobs"),
                rule("update", BATCH, "jobs/status jobs/finalizers"),
                rule("list watch create delete patch", CORE, "pods"),
                events(),
            ],
        ),
        (
            "cronjob-controller",
            vec![
                rule("get list watch update", BATCH, "cronjobs"),
                rule("get list watch create update delete patch", BATCH, "jobs"),
                rule("update", BATCH, "cronjobs/status cronjobs/finalizers"),
                rule("list watch delete", CORE, "pods"),
                events(),
            ],
        ),
        ("ttl-after-finished-controller", vec![rule("get list watch delete", BATCH, "jobs"), events()]),
    ]
}

fn volumes() -> Table {
    vec![
        (
            "persistent-volume-binder",
            vec![
                rule("get list watch update patch create delete", CORE, "persistentvolumes"),
                rule("update patch", CORE, "persistentvolumes/status"),
                rule("get list watch update patch", CORE, "persistentvolumeclaims"),
                rule("update patch", CORE, "persistentvolumeclaims/status"),
                rule("list watch get create delete", CORE, "pods"),
                rule(READ, STORAGE, "storageclasses"),
                // Data of a volume that is attached somewhere is not given up.
                rule("list watch", STORAGE, "volumeattachments"),
                rule("list watch", CORE, "nodes"),
                events(),
                rule("watch", CORE, "events"),
                rule("get", CORE, "services"),
            ],
        ),
        (
            "attachdetach-controller",
            vec![
                // Which node a volume was given to last is written on the volume.
                rule("get list watch patch", CORE, "persistentvolumes"),
                rule("list watch", CORE, "persistentvolumeclaims"),
                rule(READ, CORE, "nodes"),
                rule("patch update", CORE, "nodes/status"),
                rule(READ, CORE, "pods"),
                events(),
                rule("get create delete list watch", STORAGE, "volumeattachments"),
                rule(READ, STORAGE, "csidrivers csinodes"),
            ],
        ),
        (
            // Upstream's attachdetach-controller calls these drivers itself, and keeps no attachments of them.
            "flexvolume-attacher",
            vec![
                rule("list watch patch", CORE, "persistentvolumes"),
                // What drivers can is written on the pods that bring volumes of theirs.
                rule("list watch patch", CORE, "pods"),
                rule("list watch", CORE, "persistentvolumeclaims"),
                rule("patch", CORE, "persistentvolumeclaims/status"),
                rule("list watch patch", STORAGE, "volumeattachments"),
                rule("patch", STORAGE, "volumeattachments/status"),
                events(),
            ],
        ),
        (
            "expand-controller",
            vec![
                rule("get list watch update patch", CORE, "persistentvolumes"),
                rule("update patch", CORE, "persistentvolumeclaims/status"),
                rule("get list watch patch", CORE, "persistentvolumeclaims"),
                rule(READ, STORAGE, "storageclasses"),
                events(),
            ],
        ),
        (
            "ephemeral-volume-controller",
            vec![
                rule("update", CORE, "pods/finalizers"),
                rule(READ, CORE, "pods"),
                rule("get list watch create", CORE, "persistentvolumeclaims"),
                events(),
            ],
        ),
        (
            "pvc-protection-controller",
            vec![
                rule("get list watch update patch", CORE, "persistentvolumeclaims"),
                rule(READ, CORE, "pods"),
                events(),
            ],
        ),
        (
            "pv-protection-controller",
            vec![
                rule("get list watch update patch", CORE, "persistentvolumes"),
                rule(READ, CORE, "persistentvolumeclaims"),
                events(),
            ],
        ),
        (
            "volumeattributesclass-protection-controller",
            vec![
                rule(READ, CORE, "persistentvolumes persistentvolumeclaims"),
                rule("get list watch update patch", STORAGE, "volumeattributesclasses"),
                events(),
            ],
        ),
    ]
}

/// Controllers that we do not run: the roles are there for upstream's, should somebody run those.
fn others() -> Table {
    let certificates = &["certificates.k8s.io"];
    vec![
        (
            "clusterrole-aggregation-controller",
            vec![rule("escalate get list watch update patch", &["rbac.authorization.k8s.io"], "clusterroles")],
        ),
        (
            "certificate-controller",
            vec![
                rule("get list watch delete", certificates, "certificatesigningrequests"),
                rule("update", certificates, "certificatesigningrequests/status certificatesigningrequests/approval"),
                named("approve", certificates, "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
                named(
                    "sign",
                    certificates,
                    "signers",
                    "kubernetes.io/legacy-unknown kubernetes.io/kube-apiserver-client \
                     kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving",
                ),
                rule("create", &["authorization.k8s.io"], "subjectaccessreviews"),
                events(),
            ],
        ),
    ]
}
