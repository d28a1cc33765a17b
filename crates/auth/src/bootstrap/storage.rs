//! What the storage agents of nodes may do: what external-provisioner, external-resizer and external-snapshotter may, and
//! to put down the driver's own objects.

use super::{BOOTSTRAP_LABEL, Builder, CORE, READ, To, events, rule};
use crate::caller::GROUP_LOCAL_STORAGE;

const STORAGE: &[&str] = &["storage.k8s.io"];
const SNAPSHOTS: &[&str] = &["snapshot.storage.k8s.io"];

pub(super) fn add(b: &mut Builder) {
    let name = "carrack.io:local-storage";
    b.labelled(
        name,
        &[BOOTSTRAP_LABEL],
        vec![
            rule("get list watch create update patch delete", CORE, "persistentvolumes"),
            rule("get list watch update patch", CORE, "persistentvolumeclaims"),
            rule("update patch", CORE, "persistentvolumeclaims/status"),
            rule(READ, CORE, "nodes"),
            rule("get list watch create", STORAGE, "storageclasses csidrivers"),
            rule(READ, STORAGE, "csinodes volumeattachments"),
            rule("get list watch create update patch delete", STORAGE, "csistoragecapacities"),
            rule("get list watch create", SNAPSHOTS, "volumesnapshotclasses"),
            rule("get list watch update patch", SNAPSHOTS, "volumesnapshots"),
            rule("get list watch create update patch delete", SNAPSHOTS, "volumesnapshotcontents"),
            rule("update patch", SNAPSHOTS, "volumesnapshots/status volumesnapshotcontents/status"),
            rule("get create", &["apiextensions.k8s.io"], "customresourcedefinitions"),
            events(),
        ],
    );
    b.bind(name, name, &[To::Group(GROUP_LOCAL_STORAGE)]);
}
