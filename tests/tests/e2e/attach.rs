//! A CSI driver whose disks the control plane attaches: VolumeAttachments, the attach and detach controller, the kubelet
//! that waits for them, and the scheduler that counts them.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::collections::BTreeMap;

use carrack_e2e::{CsiCall, CsiDriver, Kubectl, Sandbox, assert_contains, eventually, eventually_true};
use serde_json::{Value, json};

const DRIVER: &str = "disks.test";

/// A disk with its claim.
fn disk(kubectl: &Kubectl<'_>, name: &str) {
    let spec = "accessModes: [ReadWriteOnce]\n  storageClassName: \"\"";
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: pv-{name}\nspec:\n  {spec}\n  capacity: {{storage: 32Mi}}\n  \
         persistentVolumeReclaimPolicy: Retain\n  claimRef: {{namespace: default, name: {name}}}\n  \
         csi: {{driver: {DRIVER}, volumeHandle: handle-{name}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\nspec:\n  {spec}\n  volumeName: pv-{name}\n  \
         resources: {{requests: {{storage: 32Mi}}}}\n"
    ));
    kubectl.ok(&["wait", "--for=jsonpath={.status.phase}=Bound", &format!("pvc/{name}"), "--timeout=30s"]);
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {{fsGroup: 4711}}\n  containers:\n  \
         - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"while :; do date >>/data/log; sleep 0.1; done\"]\n    \
         volumeMounts: [{{name: v, mountPath: /data}}]\n  volumes:\n  - name: v\n    \
         persistentVolumeClaim: {{claimName: {name}}}\n"
    )
}

/// The attachment of a disk.
fn attachment(kubectl: &Kubectl<'_>, disk: &str) -> Option<Value> {
    let list: Value = serde_json::from_str(&kubectl.ok(&["get", "volumeattachments", "-o", "json"])).expect("JSON");
    let volume = format!("pv-{disk}");
    let of = |a: &&Value| a["spec"]["source"]["persistentVolumeName"] == volume.as_str();
    list["items"].as_array().into_iter().flatten().find(of).cloned()
}

/// Plays the attacher: says this in the status of a disk's attachment, once there is one.
fn attacher_says(kubectl: &Kubectl<'_>, disk: &str, status: &Value) {
    eventually_true("the disk is to be attached", 30, || attachment(kubectl, disk).is_some());
    let found = attachment(kubectl, disk).expect("it was there");
    let name = found["metadata"]["name"].as_str().expect("a name");
    let patch = json!({ "status": status }).to_string();
    kubectl.ok(&["patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", &patch]);
}

fn attached(device: &str) -> Value {
    json!({"attached": true, "attachError": null, "attachmentMetadata": {"device": device}})
}

fn methods(driver: &CsiDriver) -> Vec<&'static str> {
    driver.calls().iter().map(|call| call.method).collect()
}

fn told(driver: &CsiDriver, method: &str) -> CsiCall {
    driver.calls().into_iter().find(|call| call.method == method).expect("it was called")
}

#[test]
fn disks_are_attached_before_they_are_used_and_detached_after() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let driver = CsiDriver::start(&sandbox.data_dir().join("kubelet"), &sandbox.home().join("disks"), DRIVER, 1);
    kubectl.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata:\n  name: {DRIVER}\nspec:\n  attachRequired: true\n  podInfoOnMount: true\n  fsGroupPolicy: File\n  \
         tokenRequests: [{{audience: vault, expirationSeconds: 600}}]\n"
    ));
    let limits = || kubectl.ok(&["get", "csinodes", "-o", "jsonpath={.items[0].spec.drivers}"]);
    eventually_true("the node tells of the driver", 30, || limits().contains(DRIVER));
    disk(&kubectl, "one");
    disk(&kubectl, "two");
    let status = |field: &str| kubectl.ok(&["get", "nodes", "-o", &format!("jsonpath={{.items[0].status.{field}}}")]);

    // Nothing is done about a disk that is not attached; why it is not is told.
    kubectl.apply(&pod("one"));
    attacher_says(&kubectl, "one", &json!({"attached": false, "attachError": {"message": "no slot is free"}}));
    eventually("the attacher's failure shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "one"]);
        if said.contains("no slot is free") { Ok(()) } else { Err(said) }
    });
    assert_eq!(methods(&driver), Vec::<&str>::new());

    driver.finds_wrong("two of its sectors cannot be read");
    attacher_says(&kubectl, "one", &attached("/dev/first"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/one", "--timeout=90s"]);
    eventually("what the driver finds wrong shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "one"]);
        let told = said.contains("VolumeConditionAbnormal") && said.contains("two of its sectors cannot be read");
        if told { Ok(()) } else { Err(said) }
    });
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        assert_eq!(told(&driver, method).publish_context["device"], "/dev/first", "{method}");
    }
    for field in ["volumesAttached", "volumesInUse"] {
        assert_contains(&status(field), &["kubernetes.io/csi/disks.test^handle-one"]);
    }
    // Its files go to the pod's group, as it says. It is told of the pod, and has a token for the audience that it asked for, of
    // the pod's own account.
    assert_eq!(kubectl.ok(&["exec", "one", "--", "stat", "-c", "%g", "/data"]).trim(), "4711");
    let context = told(&driver, "NodePublishVolume").volume_context;
    for (key, expected) in [("pod.name", "one"), ("pod.namespace", "default"), ("serviceAccount.name", "default")] {
        assert_eq!(context[&format!("csi.storage.k8s.io/{key}")], expected, "{key}");
    }
    let tokens: BTreeMap<String, Value> =
        serde_json::from_str(&context["csi.storage.k8s.io/serviceAccount.tokens"]).expect("tokens");
    let token = tokens["vault"]["token"].as_str().expect("a token");
    assert!(!tokens["vault"]["expirationTimestamp"].as_str().unwrap_or_default().is_empty());
    let review = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec:\n  token: {token}\n  audiences: [vault]\n"
    );
    let review = kubectl.run(&["create", "-f", "-", "-o", "json"]).input(review).ok();
    assert_contains(&review, &["system:serviceaccount:default:default", "\"authenticated\": true"]);

    // Agents come and go; the disk stays.
    sandbox.kill_9();
    sandbox.start(&[]);
    eventually_true("the kubelet tells the node's volumes", 30, || status("volumesInUse").contains("handle-one"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/one", "--timeout=60s"]);
    assert_eq!(methods(&driver), ["NodeStageVolume", "NodePublishVolume"], "a restart calls for nothing");
    assert_eq!(kubectl.field("pod", "one", "/status/containerStatuses/0/restartCount"), 0);

    // The node takes one disk. What was deleted by force has its place until it is detached.
    kubectl.apply(&pod("two"));
    eventually("the scheduler says why", 30, || {
        let said = kubectl.ok(&["describe", "pod", "two"]);
        if said.contains("exceed max volume count") { Ok(()) } else { Err(said) }
    });
    assert_eq!(attachment(&kubectl, "two"), None);
    kubectl.ok(&["delete", "pod", "one", "--wait=false"]);
    eventually_true("the attachment ends", 60, || attachment(&kubectl, "one").is_none());
    let undone = ["NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(methods(&driver)[2..], undone, "it is detached when nothing of it is left on the node");
    attacher_says(&kubectl, "two", &attached("/dev/second"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/two", "--timeout=90s"]);
    assert_eq!(driver.calls().last().expect("a call").publish_context["device"], "/dev/second");
    kubectl.ok(&["delete", "pod", "two", "--timeout=60s"]);
    eventually_true("the other attachment ends too", 60, || attachment(&kubectl, "two").is_none());
}
