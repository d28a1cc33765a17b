//! What every kubelet may do; the node authorizer narrows it to the node's own objects. And what the plugin for further networks of
//! its pods may, which comes under the node's own name.

use super::{BOOTSTRAP_LABEL, Builder, CORE, READ, To, rule};
use crate::caller::GROUP_NODES;
use crate::rbac::Rule;

/// The rules of `system:node`.
#[must_use]
pub fn node_rules() -> Vec<Rule> {
    let storage = &["storage.k8s.io"];
    vec![
        rule("create", &["authentication.k8s.io"], "tokenreviews"),
        rule("create", &["authorization.k8s.io"], "localsubjectaccessreviews subjectaccessreviews"),
        rule(READ, CORE, "services"),
        rule("create get list watch", CORE, "nodes"),
        rule("patch update", CORE, "nodes/status"),
        rule("patch update", CORE, "nodes"),
        rule("create patch update", &["", "events.k8s.io"], "events"),
        rule(READ, CORE, "pods"),
        rule("create delete", CORE, "pods"),
        rule("patch update", CORE, "pods/status"),
        rule("create", CORE, "pods/eviction"),
        rule(READ, CORE, "configmaps secrets"),
        rule("get", CORE, "persistentvolumeclaims persistentvolumes"),
        rule("get", CORE, "endpoints"),
        rule("create get list watch", &["certificates.k8s.io"], "certificatesigningrequests"),
        rule("create delete get patch update", &["coordination.k8s.io"], "leases"),
        rule("get", storage, "volumeattachments"),
        rule("create", CORE, "serviceaccounts/token"),
        rule("get patch update", CORE, "persistentvolumeclaims/status"),
        rule(READ, storage, "csidrivers"),
        rule("create delete get patch update", storage, "csinodes"),
        rule(READ, &["node.k8s.io"], "runtimeclasses"),
        rule("get", &["resource.k8s.io"], "resourceclaims"),
        rule("create delete deletecollection get list patch update watch", &["resource.k8s.io"], "resourceslices"),
        rule(READ, &["certificates.k8s.io"], "clustertrustbundles"),
        rule("create get list watch", &["certificates.k8s.io"], "podcertificaterequests"),
    ]
}

pub(super) fn add(b: &mut Builder) {
    let name = "carrack.io:node-networks";
    b.labelled(name, &[BOOTSTRAP_LABEL], vec![rule("get", &["k8s.cni.cncf.io"], "network-attachment-definitions")]);
    b.bind(name, name, &[To::Group(GROUP_NODES)]);
}
