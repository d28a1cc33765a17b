//! Machines whose disks are filled by somebody else, with this test in the place of CDI.

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true};
use serde_json::json;

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datavolumes.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datavolumes, singular: datavolume, kind: DataVolume}
  versions:
    - name: v1beta1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

const MACHINE: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: filled}
spec:
  runStrategy: Always
  dataVolumeTemplates:
    - metadata: {name: disk}
      spec:
        source: {blank: {}}
        storage: {resources: {requests: {storage: 512Mi}}}
  template:
    spec:
      terminationGracePeriodSeconds: 0
      domain:
        memory: {guest: 64Mi}
        devices:
          autoattachGraphicsDevice: false
          interfaces: []
          disks: [{name: root, disk: {bus: virtio}}]
      volumes: [{name: root, dataVolume: {name: disk}}]
";

/// What CDI says of the DataVolume.
fn say(kubectl: &Kubectl<'_>, phase: &str) {
    let patch = json!({"status": {"phase": phase}}).to_string();
    kubectl.ok(&["patch", "datavolume", "disk", "--subresource=status", "--type=merge", "-p", &patch]);
}

fn pods(kubectl: &Kubectl<'_>) -> String {
    kubectl.ok(&["get", "pods", "-o", "name"])
}

/// Storage makes such a volume where a pod that uses it is to run, and it is filled only then.
#[test]
fn a_disk_that_waits_for_its_first_consumer_is_made_filled_and_used() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    eventually_true("there is a class of volumes", 30, || {
        !kubectl.ok(&["get", "storageclass", "-o", "name"]).is_empty()
    });
    kubectl.apply(DEFINITION);
    kubectl.ok(&["wait", "--for=condition=Established", "crd/datavolumes.cdi.kubevirt.io", "--timeout=30s"]);
    kubectl.apply(MACHINE);
    eventually_true("its DataVolume is made", 60, || kubectl.get("datavolume", "disk").is_some());
    let uid = kubectl.field("datavolume", "disk", "/metadata/uid");
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk", "ownerReferences": [{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "name": "disk", "uid": uid, "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "512Mi"}}}});
    kubectl.apply(&claim.to_string());
    assert_eq!(
        kubectl.field("vmi", "filled", "/metadata/uid"),
        serde_json::Value::Null,
        "nothing is known of its disk"
    );

    say(&kubectl, "WaitForFirstConsumer");
    eventually_true("the claim has its volume", 60, || kubectl.field("pvc", "disk", "/status/phase") == "Bound");
    eventually("what the volume was made for is gone", 60, || match pods(&kubectl) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    });
    let about = "involvedObject.name=filled";
    let events = ["get", "events", "--field-selector", about, "-o", "jsonpath={.items[*].message}"];
    eventually("it is told of", 30, || {
        let told = kubectl.ok(&events);
        let parts =
            ["Created virtual machine pod virt-provisioning-filled-", "Deleted WaitForFirstConsumer temporary pod"];
        if parts.iter().all(|part| told.contains(part)) { Ok(()) } else { Err(told) }
    });
    assert_eq!(kubectl.field("vmi", "filled", "/status/phase"), "Pending");
    assert_eq!(sandbox.guests().len(), 0, "nothing is on its disk yet");

    say(&kubectl, "ImportInProgress");
    kubectl.wait_status_within("filled", "Provisioning", 60);
    assert_eq!(pods(&kubectl), "");
    say(&kubectl, "Succeeded");
    eventually("it runs", 120, || {
        let vmi = kubectl.get("vmi", "filled").expect("its instance stays");
        if vmi["status"]["phase"] == "Running" { Ok(()) } else { Err(vmi["status"].to_string()) }
    });
    assert_contains(&pods(&kubectl), &["pod/virt-launcher-filled-"]);
    kubectl.ok(&["delete", "vm", "filled", "--timeout=90s"]);
    eventually_true("its disk goes with it", 60, || kubectl.get("pvc", "disk").is_none());
}
