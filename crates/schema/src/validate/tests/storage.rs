//! Volumes, claims, classes, drivers, attachments; and kinds whose rules are rows alone.

use serde_json::{Value, json};

use super::causes::{changed, created, global, named};
use super::with;

const STORAGE: &str = "storage.k8s.io";

#[test]
fn volumes() {
    let base = global(
        json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.io", "volumeHandle": "h"}}}),
    );
    created(
        "",
        "PersistentVolume",
        &base,
        &[
            ("/spec/accessModes", json!([]), &["Required spec.accessModes"]),
            ("/spec/accessModes", json!(["Odd"]), &["NotSupported spec.accessModes"]),
            ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce"]), &["Forbidden spec.accessModes"]),
            ("/spec/capacity", json!({}), &["Required spec.capacity", "NotSupported spec.capacity"]),
            ("/spec/capacity", json!({"storage": "0"}), &["Invalid spec.capacity[storage]"]),
            ("/spec/capacity", json!({"storage": "1", "cpu": "1"}), &["NotSupported spec.capacity"]),
            ("/spec/csi", json!(null), &["Required spec"]),
            ("/spec/csi", json!({"driver": "d.io"}), &["Required spec.csi.volumeHandle"]),
            ("/spec/nfs", json!({"server": "s", "path": "/"}), &["Forbidden spec.csi"]),
            (
                "/spec",
                json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                    "flexVolume": {"driver": "v/d", "options": {"kubernetes.io/secret/key": "k"}}}),
                &["Invalid spec.flexVolume.options[kubernetes.io/secret/key]"],
            ),
            ("/spec/persistentVolumeReclaimPolicy", json!("Odd"), &["NotSupported spec.persistentVolumeReclaimPolicy"]),
            ("/spec/volumeMode", json!("Odd"), &["NotSupported spec.volumeMode"]),
            ("/spec/nodeAffinity", json!({}), &["Required spec.nodeAffinity.required"]),
            (
                "/spec/nodeAffinity",
                json!({"required": {"nodeSelectorTerms": []}}),
                &["Required spec.nodeAffinity.required.nodeSelectorTerms"],
            ),
            ("/spec/storageClassName", json!("A"), &["Invalid spec.storageClassName"]),
        ],
    );
    let local = with(
        base.clone(),
        &[
            ("/spec/csi", Value::Null),
            ("/spec/local", json!({"path": "/x"})),
            (
                "/spec/nodeAffinity",
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}),
            ),
        ],
    );
    created("", "PersistentVolume", &local, &[("/spec/nodeAffinity", json!(null), &["Required spec.nodeAffinity"])]);
    changed(
        "",
        "PersistentVolume",
        "",
        &base,
        &[
            ("/spec/persistentVolumeReclaimPolicy", json!("Delete"), &[]),
            ("/spec/csi/volumeHandle", json!("i"), &["Forbidden spec.persistentvolumesource"]),
            ("/spec/csi/controllerExpandSecretRef", json!({"name": "s", "namespace": "d"}), &[]),
            ("/spec/volumeMode", json!("Block"), &["Invalid volumeMode"]),
        ],
    );
    changed(
        "",
        "PersistentVolume",
        "",
        &local,
        &[(
            "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/key",
            json!("b"),
            &["Invalid nodeAffinity"],
        )],
    );
}

#[test]
fn claims() {
    let base = named(
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "c"}}),
    );
    created(
        "",
        "PersistentVolumeClaim",
        &base,
        &[
            ("/spec/accessModes", json!([]), &["Required spec.accessModes"]),
            ("/spec/resources", json!({}), &["Required spec.resources[storage]"]),
            ("/spec/resources", json!({"requests": {"storage": "-1"}}), &["Invalid spec.resources[storage]"]),
            ("/spec/selector", json!({"matchLabels": {"a b": ""}}), &["Invalid spec.selector.matchLabels"]),
            ("/spec/dataSource", json!({"kind": "Odd", "name": "n"}), &["Invalid spec.dataSource"]),
            ("/spec/dataSourceRef", json!({"kind": "PersistentVolumeClaim"}), &["Required spec.dataSourceRef.name"]),
        ],
    );
    let bound = with(
        base.clone(),
        &[("/spec/volumeName", json!("v")), ("/status", json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}))],
    );
    changed(
        "",
        "PersistentVolumeClaim",
        "",
        &bound,
        &[
            ("/spec/resources/requests/storage", json!("3Gi"), &[]),
            ("/spec/resources/requests/storage", json!("1500Mi"), &[]),
            ("/spec/resources/requests/storage", json!("1Gi"), &["Forbidden spec.resources.requests.storage"]),
            ("/spec/storageClassName", json!("d"), &["Forbidden spec"]),
            ("/spec/volumeName", json!("w"), &["Forbidden spec"]),
        ],
    );
    changed(
        "",
        "PersistentVolumeClaim",
        "",
        &base,
        &[
            ("/spec/volumeName", json!("v"), &[]),
            ("/spec/resources/limits", json!({}), &[]),
            ("/spec/storageClassName", json!(""), &["Forbidden spec"]),
            ("/spec/resources/requests/storage", json!("3Gi"), &["Forbidden spec"]),
        ],
    );
}

#[test]
fn classes_and_drivers() {
    let class = global(json!({"provisioner": "d.io", "parameters": {"a": "b"}}));
    created(
        STORAGE,
        "StorageClass",
        &class,
        &[
            ("/provisioner", json!("a b"), &["Invalid provisioner"]),
            ("/reclaimPolicy", json!("Odd"), &["NotSupported reclaimPolicy"]),
            ("/volumeBindingMode", json!("Odd"), &["NotSupported volumeBindingMode"]),
            ("/parameters", json!({"a": "x".repeat(300_000)}), &["TooLong parameters"]),
            (
                "/allowedTopologies",
                json!([{"matchLabelExpressions": [{"key": "a", "values": []}]}]),
                &["Required allowedTopologies[0].matchLabelExpressions[0].values"],
            ),
        ],
    );
    changed(
        STORAGE,
        "StorageClass",
        "",
        &class,
        &[
            ("/allowVolumeExpansion", json!(true), &[]),
            ("/provisioner", json!("e.io"), &["Forbidden provisioner"]),
            ("/parameters", json!({"a": "c"}), &["Forbidden parameters"]),
            ("/reclaimPolicy", json!("Retain"), &["Forbidden reclaimPolicy"]),
            ("/volumeBindingMode", json!("WaitForFirstConsumer"), &["Invalid volumeBindingMode"]),
        ],
    );
    let driver = global(json!({"spec": {}}));
    created(
        STORAGE,
        "CSIDriver",
        &driver,
        &[
            ("/spec/fsGroupPolicy", json!("Odd"), &["NotSupported spec.fsGroupPolicy"]),
            ("/spec/volumeLifecycleModes", json!(["Odd"]), &["NotSupported spec.volumeLifecycleModes[0]"]),
            (
                "/spec/tokenRequests",
                json!([{"audience": "a", "expirationSeconds": 1}, {"audience": "a"}]),
                &["Invalid spec.tokenRequests[0].expirationSeconds", "Duplicate spec.tokenRequests[1].audience"],
            ),
        ],
    );
    changed(
        STORAGE,
        "CSIDriver",
        "",
        &driver,
        &[("/spec/attachRequired", json!(false), &["Invalid spec.attachRequired"])],
    );
    let node = global(json!({"spec": {"drivers": [{"name": "d.io", "nodeID": "n", "topologyKeys": ["a"]}]}}));
    created(
        STORAGE,
        "CSINode",
        &node,
        &[
            (
                "/spec/drivers",
                json!([{"name": "d.io", "nodeID": "n"}, {"name": "d.io", "nodeID": "n"}]),
                &["Duplicate spec.drivers[1].name"],
            ),
            ("/spec/drivers", json!([{"name": "d.io"}]), &["Required spec.drivers[0].nodeID"]),
            ("/spec/drivers/0/allocatable", json!({"count": -1}), &["Invalid spec.drivers[0].allocatable.count"]),
        ],
    );
    changed(
        STORAGE,
        "CSINode",
        "",
        &node,
        &[("/spec/drivers", json!([]), &[]), ("/spec/drivers/0/nodeID", json!("m"), &["Invalid spec.drivers"])],
    );
    let attachment =
        global(json!({"spec": {"attacher": "d.io", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}));
    created(
        STORAGE,
        "VolumeAttachment",
        &attachment,
        &[
            ("/spec/source", json!({}), &["Required spec.source"]),
            ("/spec/nodeName", json!(""), &["Required spec.nodeName"]),
        ],
    );
    changed(STORAGE, "VolumeAttachment", "", &attachment, &[("/spec/nodeName", json!("m"), &["Invalid spec"])]);
}

#[test]
fn rows_alone() {
    let node = global(json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "p"}}));
    created(
        "",
        "Node",
        &node,
        &[
            ("/spec/podCIDRs", json!(["10.0.0.0/33"]), &["Invalid spec.podCIDRs[0]"]),
            ("/spec/podCIDRs", json!(["10.0.0.0/24", "10.0.1.0/24"]), &["Invalid spec.podCIDRs"]),
            (
                "/spec/taints",
                json!([{"effect": "Odd"}]),
                &["Required spec.taints[0].key", "NotSupported spec.taints[0].effect"],
            ),
            (
                "/spec/taints",
                json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]),
                &["Duplicate spec.taints[1]"],
            ),
        ],
    );
    changed(
        "",
        "Node",
        "",
        &node,
        &[
            ("/spec/unschedulable", json!(true), &[]),
            ("/spec/providerID", json!("q"), &["Forbidden spec.providerID"]),
            ("/spec/podCIDRs", json!(["10.1.0.0/24"]), &["Forbidden spec.podCIDRs"]),
        ],
    );
    let lease = named(json!({"spec": {"leaseDurationSeconds": 1}}));
    created(
        "coordination.k8s.io",
        "Lease",
        &lease,
        &[
            ("/spec/leaseDurationSeconds", json!(0), &["Invalid spec.leaseDurationSeconds"]),
            ("/spec/leaseTransitions", json!(-1), &["Invalid spec.leaseTransitions"]),
        ],
    );
    let class = global(json!({"handler": "h"}));
    created(
        "node.k8s.io",
        "RuntimeClass",
        &class,
        &[
            ("/handler", json!("H"), &["Invalid handler"]),
            ("/handler", json!(""), &["Required handler"]),
            ("/overhead", json!({"podFixed": {"cpu": "-1"}}), &["Invalid overhead.limits[cpu]"]),
            (
                "/scheduling",
                json!({"tolerations": [{"key": "a", "operator": "Odd"}]}),
                &["NotSupported scheduling.tolerations[0].operator"],
            ),
        ],
    );
    changed("node.k8s.io", "RuntimeClass", "", &class, &[("/handler", json!("i"), &["Invalid handler"])]);
    let revision = named(json!({"data": {"a": 1}, "revision": 1}));
    created("apps", "ControllerRevision", &revision, &[("/revision", json!(-1), &["Invalid revision"])]);
    changed(
        "apps",
        "ControllerRevision",
        "",
        &revision,
        &[("/data", json!({"a": 2}), &["Invalid data"]), ("/revision", json!(2), &[])],
    );
    let class = global(json!({"value": 1}));
    changed(
        "scheduling.k8s.io",
        "PriorityClass",
        "",
        &class,
        &[("/value", json!(2), &["Forbidden value"]), ("/description", json!("d"), &[])],
    );
    let map = with(named(json!({"immutable": true, "data": {"a": "b"}})), &[]);
    created(
        "",
        "ConfigMap",
        &map,
        &[
            ("/data", json!({"a b": "c"}), &["Invalid data[a b]"]),
            ("/binaryData", json!({"a": ""}), &["Invalid binaryData[a]"]),
        ],
    );
    changed(
        "",
        "ConfigMap",
        "",
        &map,
        &[
            ("/data", json!({"a": "c"}), &["Forbidden data"]),
            ("/data", json!({"a": ""}), &["Forbidden data"]),
            ("/binaryData", json!({}), &[]),
            ("/immutable", json!(false), &["Forbidden immutable"]),
        ],
    );
    let secret = named(json!({"type": "Opaque", "data": {"a": "Yg=="}}));
    changed(
        "",
        "Secret",
        "",
        &secret,
        &[("/type", json!("x"), &["Invalid type"]), ("/data", json!({"a": "Yw=="}), &[])],
    );
    let credentials = named(json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}));
    created(
        "",
        "Secret",
        &credentials,
        &[
            ("/data", json!({}), &["Required data[.dockerconfigjson]"]),
            ("/data", json!({".dockerconfigjson": "Ww=="}), &["Invalid data[.dockerconfigjson]"]),
            ("/data", json!({".dockerconfigjson": "W10="}), &["Invalid data[.dockerconfigjson]"]),
            ("/type", json!("kubernetes.io/dockercfg"), &["Required data[.dockercfg]"]),
        ],
    );
    let namespace = global(json!({"spec": {"finalizers": ["kubernetes", "mine"]}}));
    created(
        "",
        "Namespace",
        &with(namespace.clone(), &[("/spec/finalizers", json!(["kubernetes"]))]),
        &[
            ("/spec/finalizers", json!(["kubernetes", "mine"]), &["Invalid spec.finalizers[1]"]),
            ("/spec/finalizers", json!(["example.com/mine"]), &[]),
        ],
    );
    changed(
        "",
        "Namespace",
        "finalize",
        &namespace,
        &[
            ("/spec/finalizers", json!(["mine"]), &[]),
            ("/spec/finalizers", json!(["yours"]), &["Invalid spec.finalizers[0]"]),
        ],
    );
    let role = global(json!({"rules": [], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}));
    created(
        "rbac.authorization.k8s.io",
        "ClusterRole",
        &role,
        &[(
            "/aggregationRule",
            json!({"clusterRoleSelectors": []}),
            &["Required aggregationRule.clusterRoleSelectors"],
        )],
    );
}
