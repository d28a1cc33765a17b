//! Upstream's roles of the cluster itself: administrators, discovery, and the control plane's parts.

use super::{APPS, Builder, CORE, READ, To, events, named, node_rules, paths, rule};
use crate::caller::{
    GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_SERVICE_ACCOUNTS, GROUP_UNAUTHENTICATED, USER_CONTROLLER_MANAGER,
    USER_SCHEDULER,
};

const AUTHENTICATION: &[&str] = &["authentication.k8s.io"];
const AUTHORIZATION: &[&str] = &["authorization.k8s.io"];
const COORDINATION: &[&str] = &["coordination.k8s.io"];
const STORAGE: &[&str] = &["storage.k8s.io"];
const CERTIFICATES: &[&str] = &["certificates.k8s.io"];

pub(super) fn add(b: &mut Builder) {
    people(b);
    control_plane(b);
    agents(b);
    certificates(b);
    bindings(b);
}

fn people(b: &mut Builder) {
    b.cluster_role("cluster-admin", vec![rule("*", &["*"], "*"), paths("*", "*")]);
    b.cluster_role(
        "system:discovery",
        vec![paths("get", "/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*")],
    );
    b.cluster_role("system:public-info-viewer", vec![paths("get", "/livez /readyz /healthz /version /version/")]);
    b.cluster_role(
        "system:basic-user",
        vec![
            rule("create", AUTHORIZATION, "selfsubjectaccessreviews selfsubjectrulesreviews"),
            rule("create", AUTHENTICATION, "selfsubjectreviews"),
        ],
    );
    b.cluster_role(
        "system:monitoring",
        vec![paths(
            "get",
            "/flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* /statusz",
        )],
    );
    b.cluster_role(
        "system:service-account-issuer-discovery",
        vec![paths(
            "get",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
        )],
    );
}

fn control_plane(b: &mut Builder) {
    b.cluster_role(
        "system:auth-delegator",
        vec![rule("create", AUTHENTICATION, "tokenreviews"), rule("create", AUTHORIZATION, "subjectaccessreviews")],
    );
    b.cluster_role("system:kube-aggregator", vec![rule(READ, CORE, "endpoints services")]);
    b.cluster_role(
        "system:kube-controller-manager",
        vec![
            events(),
            rule("create", COORDINATION, "leases"),
            // Upstream asks for `get` and `update` only; `patch` is for clients that patch leases. So
            // with the scheduler.
            named("get update patch", COORDINATION, "leases", "kube-controller-manager"),
            rule("create", CORE, "secrets serviceaccounts"),
            rule("delete", CORE, "secrets"),
            rule("get", CORE, "configmaps namespaces secrets serviceaccounts"),
            rule("update", CORE, "secrets serviceaccounts"),
            rule("create", AUTHENTICATION, "tokenreviews"),
            rule("create", AUTHORIZATION, "subjectaccessreviews"),
            rule("list watch", &["*"], "*"),
            rule("create", CORE, "serviceaccounts/token"),
        ],
    );
    b.cluster_role(
        "system:kube-scheduler",
        vec![
            events(),
            rule("create", COORDINATION, "leases"),
            named("get update patch", COORDINATION, "leases", "kube-scheduler"),
            rule(READ, CORE, "nodes"),
            rule("delete get list watch", CORE, "pods"),
            rule("create", CORE, "bindings pods/binding"),
            rule("patch update", CORE, "pods/status"),
            rule(READ, CORE, "replicationcontrollers services"),
            rule(READ, &["apps", "extensions"], "replicasets"),
            rule(READ, APPS, "statefulsets"),
            rule(READ, &["policy"], "poddisruptionbudgets"),
            rule(READ, CORE, "persistentvolumeclaims persistentvolumes"),
            rule("create", AUTHENTICATION, "tokenreviews"),
            rule("create", AUTHORIZATION, "subjectaccessreviews"),
            rule(READ, STORAGE, "csinodes"),
            rule(READ, CORE, "namespaces"),
            rule(READ, STORAGE, "csidrivers csistoragecapacities volumeattachments"),
            rule(READ, &["resource.k8s.io"], "deviceclasses resourceclaims resourceslices"),
            rule("patch update", &["resource.k8s.io"], "resourceclaims resourceclaims/binding resourceclaims/status"),
        ],
    );
    b.cluster_role(
        "system:volume-scheduler",
        vec![
            rule("get list patch update watch", CORE, "persistentvolumes"),
            rule(READ, STORAGE, "storageclasses"),
            rule("get list patch update watch", CORE, "persistentvolumeclaims"),
        ],
    );
    b.cluster_role("system:kube-dns", vec![rule("list watch", CORE, "endpoints services")]);
    b.cluster_role(
        "system:persistent-volume-provisioner",
        vec![
            rule("create delete get list watch", CORE, "persistentvolumes"),
            rule("get list update watch", CORE, "persistentvolumeclaims"),
            rule(READ, STORAGE, "storageclasses"),
            rule("watch", CORE, "events"),
            events(),
        ],
    );
    // Client libraries of API servers that take part in aggregation read this at start.
    b.role(
        "kube-system",
        "extension-apiserver-authentication-reader",
        vec![named(READ, CORE, "configmaps", "extension-apiserver-authentication")],
    );
}

fn agents(b: &mut Builder) {
    b.cluster_role("system:node", node_rules());
    b.cluster_role(
        "system:node-bootstrapper",
        vec![rule("create get list watch", CERTIFICATES, "certificatesigningrequests")],
    );
    b.cluster_role(
        "system:node-proxier",
        vec![
            rule("list watch", CORE, "endpoints services"),
            rule(READ, CORE, "nodes"),
            events(),
            rule("list watch", &["discovery.k8s.io"], "endpointslices"),
            rule("list watch", &["networking.k8s.io"], "servicecidrs"),
        ],
    );
    b.cluster_role(
        "system:node-problem-detector",
        vec![rule("get", CORE, "nodes"), rule("patch", CORE, "nodes/status"), events()],
    );
    b.cluster_role(
        "system:kubelet-api-admin",
        vec![
            rule(READ, CORE, "nodes"),
            rule("proxy", CORE, "nodes"),
            rule("*", CORE, "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/stats"),
        ],
    );
}

fn certificates(b: &mut Builder) {
    for (name, subresource) in [
        ("nodeclient", "certificatesigningrequests/nodeclient"),
        ("selfnodeclient", "certificatesigningrequests/selfnodeclient"),
    ] {
        b.cluster_role(
            &format!("system:certificates.k8s.io:certificatesigningrequests:{name}"),
            vec![rule("create", CERTIFICATES, subresource)],
        );
    }
    for signer in ["kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown"] {
        b.cluster_role(
            &format!("system:certificates.k8s.io:{signer}-approver"),
            vec![named("approve", CERTIFICATES, "signers", &format!("kubernetes.io/{signer}"))],
        );
    }
}

fn bindings(b: &mut Builder) {
    let authenticated = To::Group(GROUP_AUTHENTICATED);
    let scheduler = To::User(USER_SCHEDULER);
    let controllers = To::User(USER_CONTROLLER_MANAGER);
    b.bind("cluster-admin", "cluster-admin", &[To::Group(GROUP_MASTERS)]);
    b.bind("system:monitoring", "system:monitoring", &[To::Group("system:monitoring")]);
    b.bind("system:discovery", "system:discovery", &[authenticated]);
    b.bind("system:basic-user", "system:basic-user", &[authenticated]);
    b.bind(
        "system:public-info-viewer",
        "system:public-info-viewer",
        &[authenticated, To::Group(GROUP_UNAUTHENTICATED)],
    );
    b.bind("system:node-proxier", "system:node-proxier", &[To::User("system:kube-proxy")]);
    b.bind("system:kube-controller-manager", "system:kube-controller-manager", &[controllers]);
    b.bind("system:kube-dns", "system:kube-dns", &[To::ServiceAccount("kube-system", "kube-dns")]);
    b.bind("system:kube-scheduler", "system:kube-scheduler", &[scheduler]);
    b.bind("system:volume-scheduler", "system:volume-scheduler", &[scheduler]);
    // Nodes get what they need from the node authorizer, which knows which objects are theirs; the
    // binding is there because tools look for it, without subjects, as upstream's.
    b.bind("system:node", "system:node", &[]);
    b.bind(
        "system:service-account-issuer-discovery",
        "system:service-account-issuer-discovery",
        &[To::Group(GROUP_SERVICE_ACCOUNTS)],
    );
    // The API server reaches kubelets (logs, exec) under a user of its own.
    b.bind("carrack.io:kubelet-api-admin", "system:kubelet-api-admin", &[To::User("kube-apiserver-kubelet-client")]);
    b.bind_role(
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &[controllers, scheduler],
    );
}
