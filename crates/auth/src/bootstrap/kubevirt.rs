//! KubeVirt's roles: for people (`kubevirt.io:{admin,edit,view,default}`, which aggregate into
//! `admin`, `edit` and `view`, and `instancetype.kubevirt.io:view`), and for virt-controller and virt-handler.
//!
//! The agents' roles have KubeVirt's names and are bound both to KubeVirt's service accounts and to
//! the users of our own certificates. They hold what our agents need; virt-handler's writes are kept
//! to its own node by [`crate::node::restriction`].

use serde_json::json;

use super::user_facing::{TO_ADMIN, TO_EDIT, TO_VIEW};
use super::{APPS, BOOTSTRAP_LABEL, Builder, CORE, READ, To, events, rule};
use crate::caller::{GROUP_AUTHENTICATED, GROUP_VIRT_HANDLERS, USER_GPU_EXTENDER, USER_VIRT_CONTROLLER};
use crate::rbac::Rule;

/// KubeVirt's objects carry this label.
pub(super) const LABEL: &str = "kubevirt.io";
const KUBEVIRT: &[&str] = &["kubevirt.io"];
const SUBRESOURCES: &[&str] = &["subresources.kubevirt.io"];
const NAMESPACE: &str = "kubevirt";
/// Where the Leases of the nodes' guests are.
pub(crate) const NODE_LEASE_NAMESPACE: &str = "kubevirt-node-lease";

const MACHINES: &str = "virtualmachines virtualmachineinstances virtualmachineinstancepresets \
                        virtualmachineinstancereplicasets";
const MIGRATIONS: &str = "virtualmachineinstancemigrations";
const SNAPSHOT_GROUP: (&str, &str) =
    ("snapshot.kubevirt.io", "virtualmachinesnapshots virtualmachinesnapshotcontents virtualmachinerestores");
/// The other kinds of KubeVirt's that people own: group, then resources.
const OWNED: [(&str, &str); 6] = [
    SNAPSHOT_GROUP,
    ("export.kubevirt.io", "virtualmachineexports"),
    ("clone.kubevirt.io", "virtualmachineclones"),
    (
        "instancetype.kubevirt.io",
        "virtualmachineinstancetypes virtualmachineclusterinstancetypes \
         virtualmachinepreferences virtualmachineclusterpreferences",
    ),
    ("pool.kubevirt.io", "virtualmachinepools"),
    ("backup.kubevirt.io", "virtualmachinebackups virtualmachinebackuptrackers"),
];
const INFO: &str = "virtualmachineinstances/guestosinfo virtualmachineinstances/filesystemlist \
                    virtualmachineinstances/userlist virtualmachines/expand-spec \
                    virtualmachines/objectgraph virtualmachineinstances/objectgraph \
                    virtualmachineinstances/sev/fetchcertchain \
                    virtualmachineinstances/sev/querylaunchmeasurement";
const CONSOLES: &str = "virtualmachineinstances/console virtualmachineinstances/vnc \
                        virtualmachineinstances/vnc/screenshot virtualmachineinstances/portforward \
                        virtualmachineinstances/usbredir virtualmachines/portforward";
const ACTIONS: &str = "virtualmachineinstances/pause virtualmachineinstances/unpause \
                       virtualmachineinstances/addvolume virtualmachineinstances/removevolume \
                       virtualmachineinstances/freeze virtualmachineinstances/unfreeze \
                       virtualmachineinstances/softreboot virtualmachineinstances/reset \
                       virtualmachineinstances/sev/setupsession \
                       virtualmachineinstances/sev/injectlaunchsecret \
                       virtualmachineinstances/evacuate/cancel virtualmachineinstances/backup \
                       virtualmachines/start virtualmachines/stop virtualmachines/restart \
                       virtualmachines/addvolume virtualmachines/removevolume \
                       virtualmachines/memorydump virtualmachines/removememorydump \
                       virtualmachines/evacuate/cancel";

pub(super) fn add(b: &mut Builder) {
    let mut own = Builder::default();
    people(&mut own);
    agents(&mut own);
    for object in own.roles.iter_mut().chain(&mut own.bindings) {
        object.json["metadata"]["labels"][LABEL] = json!("");
    }
    b.roles.append(&mut own.roles);
    b.bindings.append(&mut own.bindings);
    gpu_extender(b);
}

/// What people may do with what is theirs. Migrations move load between nodes, and how is the cluster's affair: as upstream, its
/// tenants see both, and `kubevirt.io:migrate` is for who moves machines.
fn owned(verbs: &str) -> Vec<Rule> {
    let mut rules = vec![
        rule(verbs, KUBEVIRT, MACHINES),
        rule(READ, KUBEVIRT, MIGRATIONS),
        rule(READ, &["migrations.kubevirt.io"], "migrationpolicies"),
    ];
    rules.extend(OWNED.iter().map(|(group, resources)| rule(verbs, &[group], resources)));
    rules
}

fn people(b: &mut Builder) {
    b.labelled(
        "kubevirt.io:default",
        &[BOOTSTRAP_LABEL],
        vec![rule("get list", SUBRESOURCES, "version guestfs"), rule("get list", KUBEVIRT, "kubevirts")],
    );
    b.bind("kubevirt.io:default", "kubevirt.io:default", &[To::Group(GROUP_AUTHENTICATED)]);
    // What all namespaces share is for everybody who is somebody: a role in a namespace does not reach it, and whoever makes machines
    // there chooses among it.
    b.labelled(
        "instancetype.kubevirt.io:view",
        &[],
        vec![rule(
            READ,
            &["instancetype.kubevirt.io"],
            "virtualmachineclusterinstancetypes virtualmachineclusterpreferences",
        )],
    );
    b.bind("instancetype.kubevirt.io:view", "instancetype.kubevirt.io:view", &[To::Group(GROUP_AUTHENTICATED)]);
    let use_machines = || {
        vec![
            rule("get", SUBRESOURCES, CONSOLES),
            rule("get", SUBRESOURCES, INFO),
            rule("update", SUBRESOURCES, ACTIONS),
            rule("update", SUBRESOURCES, "expand-vm-spec"),
        ]
    };
    let mut admin = use_machines();
    admin.extend(owned("get delete create update patch list watch deletecollection"));
    b.labelled("kubevirt.io:admin", &[(TO_ADMIN, "true")], admin);

    let mut edit = use_machines();
    edit.extend(owned("get delete create update patch list watch"));
    edit.push(rule("get list", KUBEVIRT, "kubevirts"));
    b.labelled("kubevirt.io:edit", &[(TO_EDIT, "true")], edit);

    let mut view = vec![
        rule("get", SUBRESOURCES, INFO),
        rule("update", SUBRESOURCES, "expand-vm-spec"),
        rule("get list", KUBEVIRT, "kubevirts"),
    ];
    view.extend(owned(READ));
    b.labelled("kubevirt.io:view", &[(TO_VIEW, "true")], view);

    b.labelled(
        "kubevirt.io:migrate",
        &[],
        vec![
            rule("update", SUBRESOURCES, "virtualmachines/migrate"),
            rule("get delete create update patch list watch deletecollection", KUBEVIRT, MIGRATIONS),
        ],
    );
}

fn agents(b: &mut Builder) {
    b.labelled(
        "kubevirt-controller",
        &[],
        vec![
            rule("get list watch create update patch delete", KUBEVIRT, MACHINES),
            rule("get list watch create update patch delete", KUBEVIRT, MIGRATIONS),
            rule(
                "get update patch",
                KUBEVIRT,
                "virtualmachines/status virtualmachineinstances/status \
                 virtualmachineinstancereplicasets/status virtualmachineinstancemigrations/status",
            ),
            rule(
                "update",
                KUBEVIRT,
                "virtualmachines/finalizers virtualmachineinstances/finalizers \
                 virtualmachineinstancereplicasets/finalizers virtualmachineinstancemigrations/finalizers",
            ),
            rule(READ, KUBEVIRT, "kubevirts"),
            rule("get update patch", KUBEVIRT, "kubevirts/status"),
            rule(
                READ,
                &["instancetype.kubevirt.io"],
                "virtualmachineinstancetypes virtualmachineclusterinstancetypes \
                 virtualmachinepreferences virtualmachineclusterpreferences",
            ),
            rule("get list watch patch delete", &["clone.kubevirt.io"], "virtualmachineclones"),
            rule("get patch", &["clone.kubevirt.io"], "virtualmachineclones/status"),
            rule("update", &["clone.kubevirt.io"], "virtualmachineclones/finalizers"),
            rule("get list watch create update patch delete", CORE, "pods"),
            rule("update", CORE, "pods/finalizers"),
            // The readiness gate of launcher pods.
            rule("get patch", CORE, "pods/status"),
            rule("create", CORE, "pods/eviction"),
            // The node controller marks nodes whose virt-handler is silent.
            rule("get list watch update patch", CORE, "nodes"),
            rule(READ, CORE, "namespaces persistentvolumes configmaps"),
            rule(READ, &["storage.k8s.io"], "storageclasses"),
            // Who of those that had a disk on a dead node is dead for certain, so that it may go elsewhere.
            rule("get list watch patch", &["storage.k8s.io"], "volumeattachments"),
            // Snapshots: freezes guests, has volumes snapshotted, and makes claims of that.
            rule("get list watch create update patch delete", &[SNAPSHOT_GROUP.0], SNAPSHOT_GROUP.1),
            rule(
                "get update patch",
                &[SNAPSHOT_GROUP.0],
                "virtualmachinesnapshots/status virtualmachinesnapshotcontents/status virtualmachinerestores/status",
            ),
            rule(
                "update",
                &[SNAPSHOT_GROUP.0],
                "virtualmachinesnapshots/finalizers virtualmachinesnapshotcontents/finalizers \
                 virtualmachinerestores/finalizers",
            ),
            rule(
                "update",
                SUBRESOURCES,
                "virtualmachineinstances/freeze virtualmachineinstances/unfreeze virtualmachineinstances/copyvolumes",
            ),
            rule("get list watch create update patch delete", CORE, "persistentvolumeclaims"),
            rule("get list watch create update patch delete", &["snapshot.storage.k8s.io"], "volumesnapshots"),
            rule(READ, &["snapshot.storage.k8s.io"], "volumesnapshotclasses"),
            // The DataVolumes of machines' templates, and what they are copied from, where CDI is installed.
            rule("get list watch create patch", &["cdi.kubevirt.io"], "datavolumes"),
            rule(READ, &["cdi.kubevirt.io"], "datasources"),
            // Whether there are kinds of volume snapshots, and of DataVolumes.
            rule(READ, &["apiextensions.k8s.io"], "customresourcedefinitions"),
            rule("get list watch create delete", APPS, "controllerrevisions"),
            rule(READ, &["coordination.k8s.io"], "leases"),
            // Who asks for its metrics; and whether a machine's service account may copy what its DataVolumes are copied from.
            rule("create", &["authentication.k8s.io"], "tokenreviews"),
            rule("create", &["authorization.k8s.io"], "subjectaccessreviews"),
            events(),
        ],
    );
    let controller = [To::User(USER_VIRT_CONTROLLER), To::ServiceAccount(NAMESPACE, "kubevirt-controller")];
    b.bind("kubevirt-controller", "kubevirt-controller", &controller);
    // Its own Lease, and those of the nodes, which it marks when they have run out, or were never taken.
    for namespace in [NAMESPACE, NODE_LEASE_NAMESPACE] {
        let verbs = "create update patch";
        b.role(namespace, "kubevirt-controller", vec![rule(verbs, &["coordination.k8s.io"], "leases")]);
        b.bind_role(namespace, "kubevirt-controller", "kubevirt-controller", &controller);
    }
    b.labelled(
        "kubevirt-handler",
        &[],
        vec![
            rule("get list watch update patch", KUBEVIRT, "virtualmachineinstances"),
            rule("get update patch", KUBEVIRT, "virtualmachineinstances/status"),
            rule("get list watch patch", KUBEVIRT, MIGRATIONS),
            rule(READ, KUBEVIRT, "kubevirts"),
            rule(READ, CORE, "pods"),
            rule("get list watch patch update", CORE, "nodes"),
            // Its node's promise; which one is checked with the write.
            rule("get create update", &["coordination.k8s.io"], "leases"),
            // Who asks for its metrics.
            rule("create", &["authentication.k8s.io"], "tokenreviews"),
            rule("create", &["authorization.k8s.io"], "subjectaccessreviews"),
            events(),
        ],
    );
    b.bind(
        "kubevirt-handler",
        "kubevirt-handler",
        &[To::Group(GROUP_VIRT_HANDLERS), To::ServiceAccount(NAMESPACE, "kubevirt-handler")],
    );
}

/// Ours, and not KubeVirt's.
fn gpu_extender(b: &mut Builder) {
    b.labelled(
        "carrack.io:gpu-extender",
        &[BOOTSTRAP_LABEL],
        vec![rule(READ, CORE, "nodes pods"), rule("patch", CORE, "pods"), rule("create", CORE, "pods/binding")],
    );
    b.bind("carrack.io:gpu-extender", "carrack.io:gpu-extender", &[To::User(USER_GPU_EXTENDER)]);
}
