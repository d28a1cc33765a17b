//! Upstream's roles for people: `admin`, `edit` and `view`, each made up of labelled parts, so that
//! other APIs (KubeVirt's among them) add theirs.

use super::{APPS, BATCH, BOOTSTRAP_LABEL, Builder, CORE, READ, WRITE, rule};

pub(super) const TO_ADMIN: &str = "rbac.authorization.k8s.io/aggregate-to-admin";
pub(super) const TO_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
pub(super) const TO_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";

const AUTOSCALING: &[&str] = &["autoscaling"];
const POLICY: &[&str] = &["policy"];
const NETWORKING: &[&str] = &["networking.k8s.io"];
const RBAC: &[&str] = &["rbac.authorization.k8s.io"];
const RESOURCE: &[&str] = &["resource.k8s.io"];

pub(super) fn add(b: &mut Builder) {
    b.aggregated("admin", &[BOOTSTRAP_LABEL], TO_ADMIN);
    b.aggregated("edit", &[BOOTSTRAP_LABEL, (TO_ADMIN, "true")], TO_EDIT);
    b.aggregated("view", &[BOOTSTRAP_LABEL, (TO_EDIT, "true")], TO_VIEW);
    b.labelled(
        "system:aggregate-to-admin",
        &[BOOTSTRAP_LABEL, (TO_ADMIN, "true")],
        vec![
            rule("create", &["authorization.k8s.io"], "localsubjectaccessreviews"),
            rule(&format!("{READ} {WRITE}"), RBAC, "rolebindings roles"),
        ],
    );
    b.labelled(
        "system:aggregate-to-edit",
        &[BOOTSTRAP_LABEL, (TO_EDIT, "true")],
        vec![
            rule(READ, CORE, "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
            rule("impersonate", CORE, "serviceaccounts"),
            rule(WRITE, CORE, "pods pods/attach pods/exec pods/portforward pods/proxy"),
            rule("create", CORE, "pods/eviction"),
            rule(
                WRITE,
                CORE,
                "configmaps events persistentvolumeclaims replicationcontrollers \
                 replicationcontrollers/scale secrets serviceaccounts services services/proxy",
            ),
            rule("create", CORE, "serviceaccounts/token"),
            rule(
                WRITE,
                APPS,
                "daemonsets deployments deployments/rollback deployments/scale replicasets \
                 replicasets/scale statefulsets statefulsets/scale",
            ),
            rule(WRITE, AUTOSCALING, "horizontalpodautoscalers"),
            rule(WRITE, BATCH, "cronjobs jobs"),
            rule(WRITE, POLICY, "poddisruptionbudgets"),
            rule(WRITE, NETWORKING, "ingresses networkpolicies"),
            rule(&format!("{READ} {WRITE}"), &["coordination.k8s.io"], "leases"),
            rule(WRITE, RESOURCE, "resourceclaims resourceclaimtemplates"),
        ],
    );
    b.labelled(
        "system:aggregate-to-view",
        &[BOOTSTRAP_LABEL, (TO_VIEW, "true")],
        vec![
            rule(
                READ,
                CORE,
                "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods \
                 replicationcontrollers replicationcontrollers/scale serviceaccounts services \
                 services/status",
            ),
            rule(
                READ,
                CORE,
                "bindings events limitranges namespaces/status pods/log pods/status \
                 replicationcontrollers/status resourcequotas resourcequotas/status",
            ),
            rule(READ, CORE, "namespaces"),
            rule(READ, &["discovery.k8s.io"], "endpointslices"),
            rule(
                READ,
                APPS,
                "controllerrevisions daemonsets daemonsets/status deployments deployments/scale \
                 deployments/status replicasets replicasets/scale replicasets/status statefulsets \
                 statefulsets/scale statefulsets/status",
            ),
            rule(READ, AUTOSCALING, "horizontalpodautoscalers horizontalpodautoscalers/status"),
            rule(READ, BATCH, "cronjobs cronjobs/status jobs jobs/status"),
            rule(READ, POLICY, "poddisruptionbudgets poddisruptionbudgets/status"),
            rule(READ, NETWORKING, "ingresses ingresses/status networkpolicies"),
            rule(READ, RESOURCE, "resourceclaims resourceclaims/status resourceclaimtemplates"),
        ],
    );
}
