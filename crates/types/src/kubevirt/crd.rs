//! The CustomResourceDefinitions of KubeVirt's groups, as a table.
//!
//! Names, short names, versions and printer columns are KubeVirt's: people and scripts read them. Kinds of
//! `kubevirt.io` and its groups `instancetype`, `snapshot` and `clone` have schemas derived from the types of this crate.
//! The kinds of the other groups (export, pool, migrations, backup, plugin) have open specs and statuses until their
//! types are written.

use serde_json::{Value, json};

use super::clone;
use super::instancetype::{InstancetypeSpec, PreferenceSpec};
use super::others::{
    KubeVirtSpec, KubeVirtStatus, MigrationSpec, MigrationStatus, PresetSpec, ReplicaSetSpec, ReplicaSetStatus,
};
use super::schema::structural;
use super::snapshot;
use super::vm::{VirtualMachineSpec, VirtualMachineStatus};
use super::vmi::{VirtualMachineInstanceSpec, VirtualMachineInstanceStatus};

/// One version of a kind.
struct Version {
    name: &'static str,
    storage: bool,
    deprecated: bool,
}

/// A printer column: name, type, JSONPath, description, priority.
struct Column(&'static str, &'static str, &'static str, &'static str, i32);

/// One kind.
struct Row {
    group: &'static str,
    kind: &'static str,
    /// What an object of it is, for `kubectl explain`.
    about: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
    in_all: bool,
    namespaced: bool,
    versions: &'static [Version],
    status_subresource: bool,
    /// Whether `/scale` is served, over `spec.replicas`, `status.replicas` and `status.labelSelector`.
    scale: bool,
    columns: &'static [Column],
    /// Schemas of spec and status; a kind without status has none.
    schemas: fn() -> (Value, Option<Value>),
}

const fn stored(name: &'static str) -> Version {
    Version { name, storage: true, deprecated: false }
}
const fn served(name: &'static str) -> Version {
    Version { name, storage: false, deprecated: false }
}
const fn deprecated(name: &'static str) -> Version {
    Version { name, storage: false, deprecated: true }
}

const V1: &[Version] = &[stored("v1"), deprecated("v1alpha3")];
const V1BETA1: &[Version] = &[served("v1alpha1"), stored("v1beta1")];

const AGE: Column = Column("Age", "date", ".metadata.creationTimestamp", "", 0);
const PHASE: Column = Column("Phase", "string", ".status.phase", "", 0);

fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
fn open_with_status() -> (Value, Option<Value>) {
    (open(), Some(open()))
}
fn open_spec() -> (Value, Option<Value>) {
    (open(), None)
}

fn vm_schemas() -> (Value, Option<Value>) {
    let mut status = structural::<VirtualMachineStatus>();
    // As upstream: a machine that no controller has seen yet shows as stopped.
    if let Some(column) = status.pointer_mut("/properties/printableStatus").and_then(Value::as_object_mut) {
        column.insert("default".to_owned(), json!("Stopped"));
    }
    (structural::<VirtualMachineSpec>(), Some(status))
}

const TABLE: &[Row] = &[
    Row {
        group: "kubevirt.io",
        kind: "VirtualMachine",
        about: "A virtual machine, which is there whether or not it runs: what it is made of, and when it is to \
            run. Each time that it runs it does so as a VirtualMachineInstance of its name.",
        plural: "virtualmachines",
        singular: "virtualmachine",
        short_names: &["vm", "vms"],
        in_all: true,
        namespaced: true,
        versions: V1,
        status_subresource: true,
        scale: false,
        columns: &[
            AGE,
            Column("Status", "string", ".status.printableStatus", "Human Readable Status", 0),
            Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "", 0),
        ],
        schemas: vm_schemas,
    },
    Row {
        group: "kubevirt.io",
        kind: "VirtualMachineInstance",
        about: "A virtual machine that runs, or is about to, in a pod of its own. It is there for one run alone; \
            what is to last is a VirtualMachine.",
        plural: "virtualmachineinstances",
        singular: "virtualmachineinstance",
        short_names: &["vmi", "vmis"],
        in_all: true,
        namespaced: true,
        versions: V1,
        // Upstream serves no status subresource for this kind: controllers update the whole object.
        status_subresource: false,
        scale: false,
        columns: &[
            AGE,
            PHASE,
            Column("IP", "string", ".status.interfaces[0].ipAddress", "", 0),
            Column("NodeName", "string", ".status.nodeName", "", 0),
            Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "", 0),
            Column("Live-Migratable", "string", ".status.conditions[?(@.type=='LiveMigratable')].status", "", 1),
            Column("Paused", "string", ".status.conditions[?(@.type=='Paused')].status", "", 1),
        ],
        schemas: || (structural::<VirtualMachineInstanceSpec>(), Some(structural::<VirtualMachineInstanceStatus>())),
    },
    Row {
        group: "kubevirt.io",
        kind: "VirtualMachineInstanceReplicaSet",
        about: "Keeps a number of like instances running: one that ends is replaced by a new one.",
        plural: "virtualmachineinstancereplicasets",
        singular: "virtualmachineinstancereplicaset",
        short_names: &["vmirs", "vmirss"],
        in_all: true,
        namespaced: true,
        versions: V1,
        status_subresource: true,
        scale: true,
        columns: &[
            Column("Desired", "integer", ".spec.replicas", "Number of desired VirtualMachineInstances", 0),
            Column(
                "Current",
                "integer",
                ".status.replicas",
                "Number of managed and not final or deleted VirtualMachineInstances",
                0,
            ),
            Column(
                "Ready",
                "integer",
                ".status.readyReplicas",
                "Number of managed VirtualMachineInstances which are ready to receive traffic",
                0,
            ),
            AGE,
        ],
        schemas: || (structural::<ReplicaSetSpec>(), Some(structural::<ReplicaSetStatus>())),
    },
    Row {
        group: "kubevirt.io",
        kind: "VirtualMachineInstanceMigration",
        about: "The wish that a running instance be moved to another node, which is refused here.",
        plural: "virtualmachineinstancemigrations",
        singular: "virtualmachineinstancemigration",
        short_names: &["vmim", "vmims"],
        in_all: true,
        namespaced: true,
        versions: V1,
        status_subresource: true,
        scale: false,
        columns: &[
            Column("Phase", "string", ".status.phase", "The current phase of VM instance migration", 0),
            Column("VMI", "string", ".spec.vmiName", "The name of the VMI to perform the migration on", 0),
        ],
        schemas: || (structural::<MigrationSpec>(), Some(structural::<MigrationStatus>())),
    },
    Row {
        group: "kubevirt.io",
        kind: "VirtualMachineInstancePreset",
        about: "What instances are completed by whose labels it chooses. Deprecated: instance types and preferences \
            take its place.",
        plural: "virtualmachineinstancepresets",
        singular: "virtualmachineinstancepreset",
        short_names: &["vmipreset", "vmipresets"],
        in_all: true,
        namespaced: true,
        versions: &[deprecated("v1"), Version { name: "v1alpha3", storage: true, deprecated: true }],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: || (structural::<PresetSpec>(), None),
    },
    Row {
        group: "kubevirt.io",
        kind: "KubeVirt",
        about: "How virtual machines are run in this cluster. One object of it has the settings for all of them.",
        plural: "kubevirts",
        singular: "kubevirt",
        short_names: &["kv", "kvs"],
        in_all: true,
        namespaced: true,
        versions: V1,
        status_subresource: true,
        scale: false,
        columns: &[AGE, PHASE],
        schemas: || (structural::<KubeVirtSpec>(), Some(structural::<KubeVirtStatus>())),
    },
    Row {
        group: "snapshot.kubevirt.io",
        kind: "VirtualMachineSnapshot",
        about: "The wish to keep a machine as it is now, its disks included, so that it can be restored.",
        plural: "virtualmachinesnapshots",
        singular: "virtualmachinesnapshot",
        short_names: &["vmsnapshot", "vmsnapshots"],
        in_all: true,
        namespaced: true,
        versions: V1BETA1,
        status_subresource: true,
        scale: false,
        columns: &[
            Column("SourceKind", "string", ".spec.source.kind", "", 0),
            Column("SourceName", "string", ".spec.source.name", "", 0),
            PHASE,
            Column("ReadyToUse", "boolean", ".status.readyToUse", "", 0),
            Column("CreationTime", "date", ".status.creationTime", "", 0),
            Column("Error", "string", ".status.error.message", "", 0),
        ],
        schemas: snapshot::snapshot_schemas,
    },
    Row {
        group: "snapshot.kubevirt.io",
        kind: "VirtualMachineSnapshotContent",
        about: "What a snapshot of a machine has kept: the machine's spec, and the snapshots of its volumes.",
        plural: "virtualmachinesnapshotcontents",
        singular: "virtualmachinesnapshotcontent",
        short_names: &["vmsnapshotcontent", "vmsnapshotcontents"],
        in_all: true,
        namespaced: true,
        versions: V1BETA1,
        status_subresource: true,
        scale: false,
        columns: &[
            Column("ReadyToUse", "boolean", ".status.readyToUse", "", 0),
            Column("CreationTime", "date", ".status.creationTime", "", 0),
            Column("Error", "string", ".status.error.message", "", 0),
        ],
        schemas: snapshot::content_schemas,
    },
    Row {
        group: "snapshot.kubevirt.io",
        kind: "VirtualMachineRestore",
        about: "The wish that a machine become again what a snapshot of it has kept, or that a new one be made from \
            that.",
        plural: "virtualmachinerestores",
        singular: "virtualmachinerestore",
        short_names: &["vmrestore", "vmrestores"],
        in_all: true,
        namespaced: true,
        versions: V1BETA1,
        status_subresource: true,
        scale: false,
        columns: &[
            Column("TargetKind", "string", ".spec.target.kind", "", 0),
            Column("TargetName", "string", ".spec.target.name", "", 0),
            Column("Complete", "boolean", ".status.complete", "", 0),
            Column("RestoreTime", "date", ".status.restoreTime", "", 0),
            Column("Error", "string", ".status.error.message", "", 0),
        ],
        schemas: snapshot::restore_schemas,
    },
    Row {
        group: "clone.kubevirt.io",
        kind: "VirtualMachineClone",
        about: "The wish for a new machine that is like another one, or like a snapshot of one.",
        plural: "virtualmachineclones",
        singular: "virtualmachineclone",
        short_names: &["vmclone", "vmclones"],
        in_all: true,
        namespaced: true,
        versions: V1BETA1,
        status_subresource: true,
        scale: false,
        columns: &[
            PHASE,
            Column("SourceVirtualMachine", "string", ".spec.source.name", "", 0),
            Column("TargetVirtualMachine", "string", ".spec.target.name", "", 0),
        ],
        schemas: clone::schemas,
    },
    Row {
        group: "export.kubevirt.io",
        kind: "VirtualMachineExport",
        about: "The wish that disks of a machine, a snapshot or a claim can be downloaded. Kept as it is given: \
            nothing comes of it here.",
        plural: "virtualmachineexports",
        singular: "virtualmachineexport",
        short_names: &["vmexport", "vmexports"],
        in_all: true,
        namespaced: true,
        versions: &[deprecated("v1beta1"), stored("v1")],
        status_subresource: true,
        scale: false,
        columns: &[
            Column("SourceKind", "string", ".spec.source.kind", "", 0),
            Column("SourceName", "string", ".spec.source.name", "", 0),
            PHASE,
        ],
        schemas: open_with_status,
    },
    Row {
        group: "pool.kubevirt.io",
        kind: "VirtualMachinePool",
        about: "Keeps a number of like machines. Kept as it is given: nothing comes of it here.",
        plural: "virtualmachinepools",
        singular: "virtualmachinepool",
        short_names: &["vmpool", "vmpools"],
        in_all: true,
        namespaced: true,
        versions: V1BETA1,
        status_subresource: true,
        scale: true,
        columns: &[
            Column("Desired", "integer", ".spec.replicas", "Number of desired VirtualMachines", 0),
            Column(
                "Current",
                "integer",
                ".status.replicas",
                "Number of managed and not final or deleted VirtualMachines",
                0,
            ),
            Column("Ready", "integer", ".status.readyReplicas", "Number of managed VirtualMachines which are ready", 0),
            AGE,
        ],
        schemas: open_with_status,
    },
    Row {
        group: "instancetype.kubevirt.io",
        kind: "VirtualMachineInstancetype",
        about: "The size of machines in its namespace that name it: their CPUs, their memory, and what else an \
            owner of machines does not choose himself.",
        plural: "virtualmachineinstancetypes",
        singular: "virtualmachineinstancetype",
        short_names: &["vminstancetype", "vminstancetypes", "vmf", "vmfs"],
        in_all: true,
        namespaced: true,
        versions: &[stored("v1beta1")],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: || (structural::<InstancetypeSpec>(), None),
    },
    Row {
        group: "instancetype.kubevirt.io",
        kind: "VirtualMachineClusterInstancetype",
        about: "The size of machines in any namespace that name it: their CPUs, their memory, and what else an \
            owner of machines does not choose himself.",
        plural: "virtualmachineclusterinstancetypes",
        singular: "virtualmachineclusterinstancetype",
        short_names: &["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"],
        in_all: false,
        namespaced: false,
        versions: &[stored("v1beta1")],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: || (structural::<InstancetypeSpec>(), None),
    },
    Row {
        group: "instancetype.kubevirt.io",
        kind: "VirtualMachinePreference",
        about: "What machines in its namespace that name it are like where they do not say it themselves, such as \
            the buses of their disks.",
        plural: "virtualmachinepreferences",
        singular: "virtualmachinepreference",
        short_names: &["vmpref", "vmprefs", "vmp", "vmps"],
        in_all: true,
        namespaced: true,
        versions: &[stored("v1beta1")],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: || (structural::<PreferenceSpec>(), None),
    },
    Row {
        group: "instancetype.kubevirt.io",
        kind: "VirtualMachineClusterPreference",
        about: "What machines in any namespace that name it are like where they do not say it themselves, such as \
            the buses of their disks.",
        plural: "virtualmachineclusterpreferences",
        singular: "virtualmachineclusterpreference",
        short_names: &["vmcp", "vmcps"],
        in_all: false,
        namespaced: false,
        versions: &[stored("v1beta1")],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: || (structural::<PreferenceSpec>(), None),
    },
    Row {
        group: "migrations.kubevirt.io",
        kind: "MigrationPolicy",
        about: "How instances that it chooses are moved to other nodes. Kept as it is given: nothing comes of it \
            here.",
        plural: "migrationpolicies",
        singular: "migrationpolicy",
        short_names: &[],
        in_all: true,
        namespaced: false,
        versions: &[stored("v1alpha1")],
        status_subresource: true,
        scale: false,
        columns: &[],
        schemas: open_with_status,
    },
    Row {
        group: "backup.kubevirt.io",
        kind: "VirtualMachineBackup",
        about: "The wish for a backup of a machine's disks. Kept as it is given: nothing comes of it here.",
        plural: "virtualmachinebackups",
        singular: "virtualmachinebackup",
        short_names: &["vmbackup", "vmbackups"],
        in_all: true,
        namespaced: true,
        versions: &[stored("v1alpha1")],
        status_subresource: true,
        scale: false,
        columns: &[],
        schemas: open_with_status,
    },
    Row {
        group: "backup.kubevirt.io",
        kind: "VirtualMachineBackupTracker",
        about: "What of a machine's disks the last backup has. Kept as it is given: nothing comes of it here.",
        plural: "virtualmachinebackuptrackers",
        singular: "virtualmachinebackuptracker",
        short_names: &["vmbackuptracker", "vmbackuptrackers"],
        in_all: true,
        namespaced: true,
        versions: &[stored("v1alpha1")],
        status_subresource: true,
        scale: false,
        columns: &[],
        schemas: open_with_status,
    },
    Row {
        group: "plugin.kubevirt.io",
        kind: "Plugin",
        about: "An extension of how machines are run. Kept as it is given: nothing comes of it here.",
        plural: "plugins",
        singular: "plugin",
        short_names: &[],
        in_all: false,
        namespaced: false,
        versions: &[stored("v1alpha1")],
        status_subresource: false,
        scale: false,
        columns: &[],
        schemas: open_spec,
    },
];

/// All CustomResourceDefinitions (`apiextensions.k8s.io/v1`), as the JSON that an API server takes.
#[must_use]
pub fn crds() -> Vec<Value> {
    TABLE.iter().map(definition).collect()
}

fn definition(row: &Row) -> Value {
    let (spec, status) = (row.schemas)();
    let mut properties = json!({
        "apiVersion": {"type": "string", "description": "Version of the schema that this object follows."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        "spec": spec,
    });
    if let Some(status) = status {
        properties["status"] = status;
    }
    let schema = json!({
        "type": "object",
        "description": row.about,
        "required": ["spec"],
        "properties": properties,
    });
    let columns: Vec<Value> = row.columns.iter().map(column).collect();
    let versions: Vec<Value> = row
        .versions
        .iter()
        .map(|version| {
            let mut value = json!({
                "name": version.name,
                "served": true,
                "storage": version.storage,
                "schema": {"openAPIV3Schema": schema},
            });
            if version.deprecated {
                value["deprecated"] = json!(true);
                value["deprecationWarning"] = json!(warning(row, version.name));
            }
            if !columns.is_empty() {
                value["additionalPrinterColumns"] = json!(columns);
            }
            let mut subresources = json!({});
            if row.status_subresource {
                subresources["status"] = json!({});
            }
            if row.scale {
                subresources["scale"] = json!({
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.labelSelector",
                });
            }
            if subresources.as_object().is_some_and(|map| !map.is_empty()) {
                value["subresources"] = subresources;
            }
            value
        })
        .collect();
    let mut names = json!({
        "plural": row.plural,
        "singular": row.singular,
        "kind": row.kind,
        "listKind": format!("{}List", row.kind),
    });
    if !row.short_names.is_empty() {
        names["shortNames"] = json!(row.short_names);
    }
    if row.in_all {
        names["categories"] = json!(["all"]);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", row.plural, row.group),
            "labels": {"app.kubernetes.io/component": "kubevirt", "kubevirt.io": ""},
        },
        "spec": {
            "group": row.group,
            "names": names,
            "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
            "versions": versions,
            "conversion": {"strategy": "None"},
        },
    })
}

/// What is told whoever names a version that is to go: upstream's words, for the kinds of its own group.
fn warning(row: &Row, version: &str) -> String {
    let named = format!("{}/{version}", row.group);
    match (row.group, row.kind) {
        ("kubevirt.io", "VirtualMachineInstancePreset") => {
            format!("{named} VirtualMachineInstancePresets is now deprecated and will be removed in v2.")
        }
        ("kubevirt.io", _) => format!("{named} is now deprecated and will be removed in a future release."),
        (_, kind) => format!("{named} {kind} is deprecated."),
    }
}

fn column(column: &Column) -> Value {
    let Column(name, kind, path, description, priority) = column;
    let mut value = json!({"name": name, "type": kind, "jsonPath": path});
    if !description.is_empty() {
        value["description"] = json!(description);
    }
    if *priority != 0 {
        value["priority"] = json!(priority);
    }
    value
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use serde_json::Value;

    use super::crds;

    /// Every node of a structural schema is typed (or int-or-string, or open) and uses only known words.
    fn check_structural(path: &str, node: &Value) {
        let map = node.as_object().unwrap_or_else(|| panic!("{path}: {node} is no schema"));
        for key in map.keys() {
            let known = [
                "type",
                "description",
                "properties",
                "items",
                "additionalProperties",
                "required",
                "format",
                "minimum",
                "maximum",
                "maxItems",
                "minItems",
                "nullable",
                "anyOf",
                "pattern",
                "enum",
                "default",
                "x-kubernetes-preserve-unknown-fields",
                "x-kubernetes-int-or-string",
            ];
            assert!(known.contains(&key.as_str()), "{path}: {key} in {node}");
        }
        let int_or_string = map.contains_key("x-kubernetes-int-or-string");
        assert!(!map.contains_key("anyOf") || int_or_string, "{path}: {node}");
        assert!(int_or_string || map.get("type").is_some_and(Value::is_string), "{path}: untyped: {node}");
        if map.get("type").is_some_and(|name| name == "array") {
            assert!(map.contains_key("items"), "{path}");
        }
        for (name, below) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            check_structural(&format!("{path}.{name}"), below);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(below) = map.get(key) {
                check_structural(&format!("{path}[{key}]"), below);
            }
        }
    }

    #[test]
    fn each_is_a_definition_with_one_stored_version() {
        let mut names = BTreeSet::new();
        for value in crds() {
            let name = value["metadata"]["name"].as_str().unwrap().to_owned();
            let crd: CustomResourceDefinition = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(crd.spec.versions.iter().filter(|version| version.storage).count(), 1, "{name}");
            assert_eq!(name, format!("{}.{}", crd.spec.names.plural, crd.spec.group));
            for version in value["spec"]["versions"].as_array().unwrap() {
                let schema = &version["schema"]["openAPIV3Schema"];
                check_structural(&name, schema);
                assert!(schema["description"].as_str().is_some_and(|text| text.ends_with('.')), "{name}");
            }
            assert!(names.insert(name));
        }
        assert_eq!(names.len(), 20);
    }

    #[test]
    fn versions_that_are_to_go_say_so() {
        let told = |name: &str, number: usize| {
            let definitions = crds();
            let found = definitions.iter().find(|crd| crd["spec"]["names"]["plural"] == name).unwrap();
            found["spec"]["versions"][number]["deprecationWarning"].as_str().map(str::to_owned)
        };
        let wanted = "kubevirt.io/v1alpha3 is now deprecated and will be removed in a future release.";
        assert_eq!((told("virtualmachines", 0), told("virtualmachines", 1).as_deref()), (None, Some(wanted)));
        for (number, version) in ["v1", "v1alpha3"].into_iter().enumerate() {
            let wanted = format!(
                "kubevirt.io/{version} VirtualMachineInstancePresets is now deprecated and will be removed in v2."
            );
            assert_eq!(told("virtualmachineinstancepresets", number), Some(wanted));
        }
    }
}
