//! Clones of machines with real guests: what the guest had written is there, the source never stops, and nothing is left.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]

use std::fs;

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true, root};
use serde_json::Value;

/// The disk of the claim, mounted in the guest.
const MOUNT: &str = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = DATA ] && dev=/dev/${d##*/}; done; mkdir -p /m; \
                     grep -q ' /m ' /proc/mounts || mount -t vfat $dev /m";

/// The example's machines and its clone.
fn example() -> (String, String) {
    let text = fs::read_to_string(root().join("examples/vm-clone.yaml")).expect("the example");
    let (machine, clone) = text.rsplit_once("---\n").expect("several objects");
    (machine.to_owned(), clone.to_owned())
}

fn start(kubectl: &Kubectl<'_>, name: &str) {
    kubectl.ok(&["patch", "vm", name, "--type=merge", "-p", "{\"spec\": {\"runStrategy\": \"Always\"}}"]);
    kubectl.wait_agent(name);
}

/// Waits until a clone has succeeded and forgotten what it made.
fn cleared(kubectl: &Kubectl<'_>, name: &str) {
    eventually(&format!("{name} is cleared up"), 120, || {
        let status = kubectl.field("vmclone", name, "/status");
        let done =
            status["phase"] == "Succeeded" && status["snapshotName"].is_null() && status["restoreName"].is_null();
        if done { Ok(()) } else { Err(status.to_string()) }
    });
}

/// What is there of the kinds that a clone makes on its way.
fn left(kubectl: &Kubectl<'_>) -> String {
    let kinds = "vmsnapshot,vmsnapshotcontent,vmrestore,volumesnapshot,volumesnapshotcontent";
    kubectl.ok(&["get", kinds, "-A", "-o", "name"]).trim().to_owned()
}

/// Files of volumes and of snapshots on the disk.
fn files(sandbox: &Sandbox, part: &str) -> usize {
    fs::read_dir(sandbox.data_dir().join("storage").join(part)).map_or(0, Iterator::count)
}

#[test]
fn a_running_machine_is_cloned_and_its_clone_is_cloned() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let (machine, clone) = example();
    kubectl.apply(&machine);
    kubectl.wait_agent("golden");
    kubectl.holds_in_guest(
        "golden",
        &format!("{MOUNT} || {{ mkdosfs $dev && mount -t vfat $dev /m; }}; echo from-golden >/m/kept; sync"),
    );
    let boot = |name: &str, line: &str| kubectl.holds_in_guest(name, &format!("{MOUNT}; {line}"));
    boot("golden", "cat /proc/sys/kernel/random/boot_id >/run/boot; cp /run/boot /m/boot; sync");
    let instance = kubectl.field("vmi", "golden", "/metadata/uid");

    kubectl.apply(&clone);
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/golden-to-copy", "--timeout=120s"]);
    assert_contains(
        &kubectl.ok(&["get", "vmclone"]),
        &["PHASE", "SOURCEVIRTUALMACHINE", "TARGETVIRTUALMACHINE", "Succeeded"],
    );
    assert_eq!(kubectl.field("vm", "copy", "/metadata/labels/role"), Value::Null);
    assert_eq!(kubectl.field("vm", "copy", "/metadata/labels/team"), "demo");
    start(&kubectl, "copy");
    boot("copy", "grep -q from-golden /m/kept");
    kubectl.holds_in_guest(
        "copy",
        "grep -q copy-1 /sys/class/dmi/id/product_serial && ! grep -q golden-1 /sys/class/dmi/id/product_serial",
    );
    assert_eq!(kubectl.field("vmi", "copy", "/status/interfaces/0/mac"), "02:00:00:00:00:02");
    // The source is the same guest in the same boot, and what each writes is its own.
    assert_eq!(kubectl.field("vmi", "golden", "/metadata/uid"), instance);
    boot("golden", "cmp /run/boot /proc/sys/kernel/random/boot_id && cmp /run/boot /m/boot");
    boot("copy", "! cmp -s /m/boot /proc/sys/kernel/random/boot_id; echo from-copy >/m/kept; sync");
    boot("golden", "grep -q from-golden /m/kept");
    cleared(&kubectl, "golden-to-copy");
    eventually("nothing of the clone's is left", 60, || {
        if left(&kubectl).is_empty() { Ok(()) } else { Err(left(&kubectl)) }
    });
    assert_eq!(files(&sandbox, "snapshots"), 0, "snapshots on the disk");
    assert_eq!(files(&sandbox, "volumes"), 2, "volumes on the disk");

    // A clone of the clone, to a name that is chosen.
    let again = "apiVersion: clone.kubevirt.io/v1alpha1\nkind: VirtualMachineClone\nmetadata: {name: again}\nspec:\n  \
                 source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: copy}\n";
    kubectl.apply(again);
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/again", "--timeout=120s"]);
    let third = kubectl.field("vmclone", "again", "/status/targetName");
    let third = third.as_str().expect("a name").to_owned();
    assert_contains(&third, &["clone-copy-"]);
    kubectl.ok(&["patch", "vm", "golden", "--type=merge", "-p", "{\"spec\": {\"runStrategy\": \"Halted\"}}"]);
    start(&kubectl, &third);
    boot(&third, "grep -q from-copy /m/kept");
    let mac = kubectl.field("vmi", &third, "/status/interfaces/0/mac");
    assert!(mac.is_string() && mac != "02:00:00:00:00:02" && mac != "02:00:00:00:00:01", "{mac}");
    kubectl.holds_in_guest(&third, "! grep -q copy-1 /sys/class/dmi/id/product_serial");
    cleared(&kubectl, "again");

    // A clone goes after its target, and nothing is left when the machines and their claims are gone.
    kubectl.ok(&["delete", "vm", &third, "--timeout=120s"]);
    eventually_true("the clone has gone after its target", 60, || kubectl.get("vmclone", "again").is_none());
    kubectl.ok(&["delete", "vmclone", "golden-to-copy", "--timeout=60s"]);
    kubectl.ok(&["delete", "vm", "golden", "copy", "--timeout=120s"]);
    eventually("nothing is left", 60, || if left(&kubectl).is_empty() { Ok(()) } else { Err(left(&kubectl)) });
    kubectl.ok(&["delete", "pvc", "--all", "--timeout=60s"]);
    eventually_true("no volume is left on the disk", 60, || files(&sandbox, "volumes") == 0);
    assert_eq!(files(&sandbox, "snapshots"), 0);
}

/// A clone of a machine whose volume nothing can keep waits, and says for what; the machine is not touched.
fn waits_for_classes(kubectl: &Kubectl<'_>) {
    const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
    kubectl.ok(&["annotate", "storageclass", "carrack-local", "--overwrite", &format!("{DEFAULT}=false")]);
    kubectl.apply(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: fixed}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         capacity: {storage: 16Mi}\n  hostPath: {path: /tmp}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: fixed}\nspec:\n  storageClassName: \"\"\n  \
         accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 16Mi}}\n---\n\
         apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: fixed}\nspec:\n  runStrategy: Halted\n  \
         template:\n    spec:\n      domain: {devices: {disks: [{name: d, disk: {bus: virtio}}]}, memory: {guest: 64Mi}}\n      \
         volumes: [{name: d, persistentVolumeClaim: {claimName: fixed}}]\n---\n\
         apiVersion: clone.kubevirt.io/v1beta1\nkind: VirtualMachineClone\nmetadata: {name: of-fixed}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: fixed}\n",
    );
    let wanted = "Virtual Machine volume d does not support snapshots";
    eventually("the clone says what it waits for", 60, || {
        let conditions = kubectl.field("vmclone", "of-fixed", "/status/conditions").to_string();
        if conditions.contains(wanted) { Ok(()) } else { Err(conditions) }
    });
    eventually_true("so does an event", 30, || {
        let events = kubectl.ok(&["get", "events", "--field-selector", "involvedObject.name=of-fixed"]);
        events.contains("VMVolumeSnapshotsInvalid")
    });
    assert_eq!(left(kubectl), "");
    let held = kubectl.field("vm", "fixed", "/status/snapshotInProgress");
    assert!(held.is_null(), "{held}");
    kubectl.ok(&["delete", "vmclone", "of-fixed", "--timeout=30s"]);
    kubectl.ok(&["delete", "vm,pvc,pv", "fixed", "--timeout=60s"]);
}

#[test]
fn bad_clones() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let clone = |name: &str, more: &str| {
        format!(
            "apiVersion: clone.kubevirt.io/v1beta1\nkind: VirtualMachineClone\nmetadata: {{name: {name}}}\nspec:\n  \
             source: {{apiGroup: kubevirt.io, kind: VirtualMachine, name: nobody}}\n{more}"
        )
    };
    let refused = |more: &str, parts: &[&str]| {
        assert_contains(&kubectl.run(&["apply", "-f", "-"]).input(clone("wrong", more)).fails(), parts);
    };
    refused("  labelFilters: [\"a*b\"]\n", &["spec.labels", "WildcardChar can be only at the end of the filter"]);
    refused("  target: {kind: Pod, name: x}\n", &["spec.Target.Kind", "Target kind is not supported"]);
    refused("  target: {kind: VirtualMachine, name: nobody}\n", &["spec.target.name"]);
    refused("  newMacAddresses: {default: nonsense}\n", &["spec.newMacAddresses.default"]);
    refused("  patches: [\"{\"]\n", &["spec.patches"]);
    let of_pod = clone("wrong", "").replace("kind: VirtualMachine,", "kind: Pod,");
    assert_contains(
        &kubectl.run(&["apply", "-f", "-"]).input(of_pod).fails(),
        &["spec.Source.Kind", "Source kind is not supported"],
    );
    // As `virtctl create clone --name early --source-name nobody` writes it.
    kubectl.apply(
        "apiVersion: clone.kubevirt.io/v1beta1\nkind: VirtualMachineClone\nmetadata:\n  creationTimestamp: null\n  name: early\n\
         spec:\n  source:\n    apiGroup: kubevirt.io\n    kind: VirtualMachine\n    name: nobody\n  target:\n    \
         apiGroup: kubevirt.io\n    kind: VirtualMachine\n    name: \"\"\n  template: {}\nstatus: {}\n",
    );
    eventually("the clone says that its source is not there", 60, || {
        let conditions = kubectl.field("vmclone", "early", "/status/conditions").to_string();
        if conditions.contains("Source doesnt exist") { Ok(()) } else { Err(conditions) }
    });
    let changed =
        kubectl.fails(&["patch", "vmclone", "early", "--type=merge", "-p", "{\"spec\": {\"newSMBiosSerial\": \"x\"}}"]);
    assert_contains(&changed, &["spec is immutable after creation"]);
    let machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: nobody}\nspec:\n  runStrategy: Halted\n  \
                   template:\n    spec:\n      domain: {devices: {}, memory: {guest: 64Mi}}\n";
    kubectl.apply(machine);
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/early", "--timeout=60s"]);
    cleared(&kubectl, "early");
    // So may a snapshot that is the source; it stays.
    let of_later = clone("of-later", "  labelFilters: [\"*\", \"!role\"]\n").replace(
        "kubevirt.io, kind: VirtualMachine, name: nobody",
        "snapshot.kubevirt.io, kind: VirtualMachineSnapshot, name: later",
    );
    kubectl.apply(&of_later);
    eventually("it says that its source is not there", 60, || {
        let conditions = kubectl.field("vmclone", "of-later", "/status/conditions").to_string();
        if conditions.contains("Source doesnt exist: VirtualMachineSnapshot default/later") {
            Ok(())
        } else {
            Err(conditions)
        }
    });
    kubectl.apply(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineSnapshot\nmetadata: {name: later}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: nobody}\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/of-later", "--timeout=60s"]);
    cleared(&kubectl, "of-later");
    assert_eq!(kubectl.field("vmsnapshot", "later", "/status/readyToUse"), true);
    kubectl.ok(&["delete", "vmsnapshot", "later", "--timeout=60s"]);
    waits_for_classes(&kubectl);
    // A second clone with the same target fails, and leaves the target and the source as they are.
    let target = kubectl.field("vmclone", "early", "/status/targetName");
    let target = target.as_str().expect("a name").to_owned();
    let uid = kubectl.field("vm", &target, "/metadata/uid");
    kubectl
        .apply(&clone("late", &format!("  target: {{apiGroup: kubevirt.io, kind: VirtualMachine, name: {target}}}\n")));
    eventually_true("the second clone fails", 60, || kubectl.field("vmclone", "late", "/status/phase") == "Failed");
    assert_eq!(kubectl.field("vm", &target, "/metadata/uid"), uid);
    eventually_true("nothing is left of either", 60, || left(&kubectl).is_empty());
    eventually_true("the source is not locked", 30, || {
        kubectl.field("vm", "nobody", "/status/snapshotInProgress").is_null()
    });
}
