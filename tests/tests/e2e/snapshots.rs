//! Snapshots and restores of machines, with real guests and disks: what a guest wrote is there again, in the machine itself
//! and in another, and nothing is left when all is deleted.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]

use std::fs;
use std::path::PathBuf;

use carrack_e2e::{Kubectl, Qemu, Sandbox, assert_contains, eventually, eventually_true, root};
use serde_json::json;

fn example(name: &str) -> String {
    fs::read_to_string(root().join("examples").join(name)).expect("the example")
}

fn status(kubectl: &Kubectl<'_>, kind: &str, name: &str) -> serde_json::Value {
    kubectl.field(kind, name, "/status")
}

/// A line for the guest's shell that finds the disk of this serial number, or none.
fn find(serial: &str) -> String {
    format!("dev=; for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = {serial} ] && dev=/dev/${{d##*/}}; done")
}

/// Does the same in the guest with each of these disks, which it calls `$dev`, until one fails.
fn with_each(kubectl: &Kubectl<'_>, name: &str, serials: &[&str], line: impl Fn(&str) -> String) {
    let lines: Vec<String> =
        serials.iter().map(|serial| format!("{{ {}; {}; }}", find(serial), line(serial))).collect();
    kubectl.holds_in_guest(name, &lines.join(" && "));
}

fn writing(text: &str) -> String {
    format!("echo {text} | dd of=$dev conv=fsync")
}

fn reading(text: &str) -> String {
    format!("head -c {} $dev | grep -q '^{text}$'", text.len() + 1)
}

/// Writes on the disk with the diary's pages.
fn write(kubectl: &Kubectl<'_>, name: &str, text: &str) {
    with_each(kubectl, name, &["PAGES"], |_| writing(text));
}

fn reads(kubectl: &Kubectl<'_>, name: &str, text: &str) {
    with_each(kubectl, name, &["PAGES"], |_| reading(text));
}

fn ask(kubectl: &Kubectl<'_>, name: &str, what: &str) {
    kubectl.call(&format!("virtualmachines/{name}/{what}"), "{}");
}

fn start(kubectl: &Kubectl<'_>, name: &str) {
    ask(kubectl, name, "start");
    kubectl.wait_agent(name);
}

fn stop(kubectl: &Kubectl<'_>, name: &str) {
    ask(kubectl, name, "stop");
    eventually_true("it is off", 90, || kubectl.get("vmi", name).is_none());
}

fn restore(kubectl: &Kubectl<'_>, name: &str, manifest: &str) {
    kubectl.apply(manifest);
    eventually(&format!("{name} is complete"), 120, || {
        let now = status(kubectl, "vmrestore", name);
        if now["complete"] == true { Ok(()) } else { Err(now.to_string()) }
    });
}

fn names(kubectl: &Kubectl<'_>, kind: &str) -> Vec<String> {
    kubectl.ok(&["get", kind, "-o", "name"]).lines().map(str::to_owned).collect()
}

fn files(sandbox: &Sandbox, directory: &str) -> Vec<PathBuf> {
    let dir = fs::read_dir(sandbox.data_dir().join("storage").join(directory)).expect("listed");
    dir.flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_machine_becomes_what_it_was_and_another_does() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let text = example("vm-snapshot.yaml");
    let (machine, snapshot) = text.rsplit_once("---\n").expect("three objects");
    kubectl.apply(machine);
    kubectl.wait_agent("diary");
    write(&kubectl, "diary", "before");
    let instance = kubectl.field("vmi", "diary", "/metadata/uid");
    eventually("it is told what can be snapshotted", 30, || {
        let told = kubectl.field("vm", "diary", "/status/volumeSnapshotStatuses");
        let pages = told.as_array().and_then(|all| all.iter().find(|one| one["name"] == "pages"));
        if pages.is_some_and(|one| one["enabled"] == true) { Ok(()) } else { Err(told.to_string()) }
    });

    // Taken while it runs; it never stopped, and is let go.
    kubectl.apply(snapshot);
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/diary-first", "--timeout=120s"]);
    let taken = status(&kubectl, "vmsnapshot", "diary-first");
    assert_eq!((&taken["phase"], &taken["readyToUse"]), (&json!("Succeeded"), &json!(true)), "{taken}");
    assert_eq!(taken["indications"], json!(["GuestAgent", "Online"]), "{taken}");
    assert_eq!(taken["snapshotVolumes"], json!({"includedVolumes": ["pages"], "excludedVolumes": ["root"]}));
    assert_eq!(taken["error"], json!(null), "{taken}");
    assert_eq!(kubectl.field("vmi", "diary", "/metadata/uid"), instance);
    eventually_true("its source is let go", 30, || {
        let vm = kubectl.get("vm", "diary").expect("a machine");
        vm["status"]["snapshotInProgress"].is_null() && !vm.to_string().contains("snapshot-source-protection")
    });
    // Where the node writes down whom it is to thaw: it was frozen, and is not any more.
    let frozen = fs::read_dir(sandbox.data_dir().join("virt/frozen")).expect("a guest was frozen");
    assert_eq!(frozen.count(), 0);
    eventually_true("its guest is thawed", 30, || kubectl.field("vmi", "diary", "/status/fsFreezeStatus").is_null());
    write(&kubectl, "diary", "after");
    assert_contains(&kubectl.ok(&["get", "vmsnapshot"]), &["SOURCEKIND", "VirtualMachine", "Succeeded", "true"]);

    // What must not change does not, and what makes no sense is refused.
    let patch = r#"{"spec": {"failureDeadline": "1m"}}"#;
    let said = kubectl.fails(&["patch", "vmsnapshot", "diary-first", "--type=merge", "-p", patch]);
    assert_contains(&said, &["spec in immutable after creation"]);
    let other = example("vm-restore.yaml");
    let bad = other.replace("/spec/template/spec/hostname", "/metadata/name");
    assert_contains(
        &kubectl.run(&["apply", "-f", "-"]).input(bad.as_str()).fails(),
        &["patching is valid only for elements under /spec/ only"],
    );

    // The machine itself: stopped, and what it was.
    let uid = kubectl.field("vm", "diary", "/metadata/uid");
    let itself = other
        .replace("name: diary-again", "name: back")
        .replace("name: diary-copy", "name: diary")
        .replace("  patches:\n", "  targetReadinessPolicy: StopTarget\n  patches:\n");
    restore(&kubectl, "back", &itself);
    let vm = kubectl.get("vm", "diary").expect("a machine");
    assert_eq!((&vm["metadata"]["uid"], &vm["status"]["restoreInProgress"]), (&uid, &json!(null)), "{vm}");
    let claim = vm["spec"]["template"]["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"].clone();
    let back = kubectl.field("vmrestore", "back", "/metadata/uid");
    assert_eq!(claim, json!(format!("restore-{}-pages", back.as_str().expect("a UID"))));
    start(&kubectl, "diary");
    reads(&kubectl, "diary", "before");
    write(&kubectl, "diary", "later");

    // Another, beside it.
    restore(&kubectl, "diary-again", &other);
    assert_eq!(kubectl.field("vm", "diary-copy", "/spec/template/spec/hostname"), "diary-copy");
    assert_eq!(kubectl.field("vm", "diary-copy", "/status/printableStatus"), "Stopped");
    start(&kubectl, "diary-copy");
    reads(&kubectl, "diary-copy", "before");
    reads(&kubectl, "diary", "later");

    nothing_is_left(&sandbox);
}

/// Deletes everything, and what was made of it goes with it: in the API, and on the disk.
fn nothing_is_left(sandbox: &Sandbox) {
    let kubectl = sandbox.kubectl();
    for kind in ["vm", "vmrestore", "vmsnapshot"] {
        kubectl.ok(&["delete", kind, "--all", "--timeout=120s"]);
    }
    for kind in ["vmsnapshotcontents", "volumesnapshots", "volumesnapshotcontents"] {
        assert_eq!(names(&kubectl, kind), Vec::<String>::new(), "{kind}");
    }
    kubectl.ok(&["delete", "pvc", "--all", "--timeout=90s"]);
    eventually_true("nothing is left", 90, || {
        names(&kubectl, "pv").is_empty() && names(&kubectl, "pod").is_empty() && files(sandbox, "volumes").is_empty()
    });
    assert_eq!(files(sandbox, "snapshots"), Vec::<PathBuf>::new());
}

/// From here on the storage takes no snapshots.
fn without_snapshots(kubectl: &Kubectl<'_>) {
    eventually_true("its class is there", 30, || kubectl.get("volumesnapshotclass", "carrack-local").is_some());
    kubectl.ok(&["delete", "volumesnapshotclass", "carrack-local"]);
}

/// Storage that takes no snapshots: the disk is copied, whether the machine runs or is off, and machines are made of copies.
#[test]
fn what_storage_cannot_snapshot_is_copied() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let text = example("vm-snapshot.yaml");
    let (machine, snapshot) = text.rsplit_once("---\n").expect("three objects");
    without_snapshots(&kubectl);
    kubectl.apply(&static_volumes(&sandbox));
    kubectl.apply(&with_more_disks(machine));
    kubectl.wait_agent("diary");
    let all = ["PAGES", "BLOCK", "HOST", "LOCAL"];
    let write_all =
        |name: &str, text: &str| with_each(&kubectl, name, &all, |serial| writing(&format!("{text}-{serial}")));
    let reads_all =
        |name: &str, text: &str| with_each(&kubectl, name, &all, |serial| reading(&format!("{text}-{serial}")));
    write_all("diary", "before");
    let both = format!("{}; a=$dev; {}; b=$dev", find("PAGES"), find("BLOCK"));
    kubectl.holds_in_guest("diary", &format!("{both}; {COUNTING}"));
    kubectl.holds_in_guest("diary", &format!("{both}; {COUNTED} && [ $x -ge 100000010 ]"));
    // Copied while it runs, by its own QEMU; it never stopped, and is let go.
    let instance = kubectl.field("vmi", "diary", "/metadata/uid");
    kubectl.apply(snapshot);
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/diary-first", "--timeout=120s"]);
    let taken = status(&kubectl, "vmsnapshot", "diary-first");
    assert_eq!(taken["indications"], json!(["GuestAgent", "Online"]), "{taken}");
    assert_eq!(
        taken["snapshotVolumes"],
        json!({"includedVolumes": ["pages", "block", "host", "local"], "excludedVolumes": ["root"]})
    );
    // It counted all the while.
    kubectl.holds_in_guest("diary", &format!("{both}; {COUNTED} && n=$x && sleep 1 && {COUNTED} && [ $x -gt $n ]"));
    kubectl.holds_in_guest("diary", "touch /run/enough");
    assert_eq!((&taken["phase"], &taken["error"]), (&json!("Succeeded"), &json!(null)), "{taken}");
    assert_eq!(kubectl.field("vmi", "diary", "/metadata/uid"), instance);
    let copy = format!("{}-copy-pages", taken["virtualMachineSnapshotContentName"].as_str().expect("a name"));
    assert_eq!(kubectl.field("pvc", &copy, "/status/phase"), "Bound");
    assert_eq!(names(&kubectl, "volumesnapshots"), Vec::<String>::new());
    eventually_true("its guest is thawed, and what copied is gone", 60, || {
        kubectl.field("vmi", "diary", "/status/fsFreezeStatus").is_null()
            && kubectl.get("pod", &copying_pod(&kubectl)).is_none()
    });
    write_all("diary", "after");

    // And while it is off, by a pod.
    stop(&kubectl, "diary");
    kubectl.apply(&snapshot.replace("diary-first", "diary-second"));
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/diary-second", "--timeout=120s"]);
    assert_eq!(status(&kubectl, "vmsnapshot", "diary-second")["indications"], json!(null));
    start(&kubectl, "diary");
    assert_eq!(kubectl.get("pod", &copying_pod(&kubectl)), None, "what copied it is gone, else it had not started");
    reads_all("diary", "after");

    // The machine itself, and while it runs again, a clone of it.
    let other = example("vm-restore.yaml");
    let itself = other
        .replace("name: diary-again", "name: back")
        .replace("name: diary-copy", "name: diary")
        .replace("  patches:\n", "  targetReadinessPolicy: StopTarget\n  patches:\n");
    restore(&kubectl, "back", &itself);
    start(&kubectl, "diary");
    reads_all("diary", "before");
    // Its disks are as they were at one instant: on the second one is what is on the first one, or the number before.
    let one_instant = "[ $y -ge 100000010 ] && [ $x -ge $y ] && [ $((x - y)) -le 1 ]";
    kubectl.holds_in_guest("diary", &format!("{both}; {COUNTED} && {one_instant}"));
    write_all("diary", "later");
    let instance = kubectl.field("vmi", "diary", "/metadata/uid");
    kubectl.apply(
        "apiVersion: clone.kubevirt.io/v1beta1\nkind: VirtualMachineClone\nmetadata: {name: by-copies}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: diary}\n  \
         target: {apiGroup: kubevirt.io, kind: VirtualMachine, name: diary-copy}\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/by-copies", "--timeout=180s"]);
    assert_eq!(kubectl.field("vmi", "diary", "/metadata/uid"), instance);
    start(&kubectl, "diary-copy");
    reads_all("diary-copy", "later");
    kubectl.ok(&["delete", "vmclone", "by-copies", "--timeout=60s"]);
    // What was on the node's own directories is still there.
    for name in ["host", "local"] {
        assert!(sandbox.home().join(name).join("disk.img").exists(), "{name}");
    }
    kubectl.ok(&["delete", "pv", "host", "local", "--wait=false"]);

    nothing_is_left(&sandbox);
}

/// All of Carrack is killed in the middle of a copy that a running machine makes, its handler too: the guest goes on without a
/// pause, the copy becomes whole, and nothing is left of it.
#[test]
fn a_copy_goes_on_while_its_handler_is_killed() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let text = example("vm-snapshot.yaml");
    let (machine, snapshot) = text.rsplit_once("---\n").expect("three objects");
    without_snapshots(&kubectl);
    kubectl.apply(machine);
    kubectl.wait_agent("diary");
    // Enough for the job to be met while it works.
    kubectl.holds_in_guest("diary", &format!("{}; dd if=/dev/zero of=$dev bs=1M count=400 conv=fsync", find("PAGES")));
    write(&kubectl, "diary", "before");
    let instance = kubectl.field("vmi", "diary", "/metadata/uid");
    let mut qemu = Qemu::of(&sandbox, instance.as_str().expect("a UID"));

    let manifest = caught(&kubectl, &mut qemu, snapshot);
    write(&kubectl, "diary", "after");
    sandbox.kill_9();
    assert_eq!(qemu.jobs(), ["copy-0"], "it goes on");
    sandbox.start(&[]);
    let asked = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/diary/guestosinfo";
    eventually_true("its new handler answers", 60, || kubectl.run(&["get", "--raw", asked]).output().code == Some(0));
    reads(&kubectl, "diary", "after");
    assert_eq!(qemu.jobs(), ["copy-0"], "it goes on, and is not begun again");
    at_speed(&mut qemu, 0);
    kubectl.ok(&["wait", "--for=condition=Ready", &format!("vmsnapshot/{manifest}"), "--timeout=120s"]);
    let taken = status(&kubectl, "vmsnapshot", &manifest);
    assert_eq!((&taken["phase"], &taken["error"]), (&json!("Succeeded"), &json!(null)), "{taken}");

    // The guest never stopped, and is the same.
    let events = qemu.events();
    assert!(!events.iter().any(|event| event == "STOP" || event == "BLOCK_IO_ERROR"), "{events:?}");
    assert_eq!(qemu.ask("query-status", json!({})).expect("answered")["status"], "running");
    assert_eq!(kubectl.field("vmi", "diary", "/metadata/uid"), instance);
    write(&kubectl, "diary", "later");

    // What is lent is taken back, what copied is gone, and the guest is thawed.
    eventually_true("its guest is thawed, and what copied is gone", 60, || {
        kubectl.field("vmi", "diary", "/status/fsFreezeStatus").is_null()
            && kubectl.get("pod", &copying_pod(&kubectl)).is_none()
            && qemu.ask("query-jobs", json!({})).expect("answered") == json!([])
    });
    let nodes = qemu.ask("query-named-block-nodes", json!({ "flat": true })).expect("answered").to_string();
    let sets = qemu.ask("query-fdsets", json!({})).expect("answered");
    assert!(!nodes.contains("copy-") && sets == json!([]), "{nodes} {sets}");
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", qemu.pid)).expect("its mounts");
    assert!(!mounts.contains("/copy-"), "{mounts}");
    assert_eq!(fs::read_dir(sandbox.data_dir().join("virt/frozen")).map_or(0, Iterator::count), 0);

    // It holds what was there when it began.
    let other = example("vm-restore.yaml").replace("diary-first", &manifest);
    restore(&kubectl, "diary-again", &other);
    start(&kubectl, "diary-copy");
    reads(&kubectl, "diary-copy", "before");
    nothing_is_left(&sandbox);
}

/// Sets how many bytes a second QEMU copies at most; 0 is as many as it can.
fn at_speed(qemu: &mut Qemu, bytes: u64) {
    for job in qemu.jobs() {
        // One that has just ended refuses.
        if let Err(refusal) = qemu.ask("block-job-set-speed", json!({ "device": job, "speed": bytes })) {
            println!("{job}: {refusal}");
        }
    }
}

/// Has a snapshot taken whose copy is met while it works, and is as good as stopped there; its name. One that was too quick
/// is taken again.
fn caught(kubectl: &Kubectl<'_>, qemu: &mut Qemu, snapshot: &str) -> String {
    let met = (0..5).map(|round| format!("diary-caught-{round}")).find(|name| {
        kubectl.apply(&snapshot.replace("diary-first", name));
        let over = eventually("the copy begins", 120, || {
            let over = status(kubectl, "vmsnapshot", name)["readyToUse"] == true;
            for _ in 0..2000 {
                if !qemu.jobs().is_empty() {
                    at_speed(qemu, 1);
                    return Ok(false);
                }
            }
            if over { Ok(true) } else { Err("no job".to_owned()) }
        });
        !over && !qemu.jobs().is_empty()
    });
    met.expect("a copy is met while it works")
}

/// A line for the guest's shell that counts on two disks, each number on the first one and then on the second, until it is
/// enough.
const COUNTING: &str = "[ -e /run/counting ] || { touch /run/counting; ( n=100000000; while [ ! -e /run/enough ]; do \
                        n=$((n + 1)); for d in $a $b; do echo $n | dd of=$d bs=512 seek=8 conv=fsync; done; done ) \
                        </dev/null >/dev/null 2>&1 & }";
/// The same for how far it has counted on each of them.
const COUNTED: &str = "x=$(head -c 4105 $a | tail -c 9) && y=$(head -c 4105 $b | tail -c 9)";

/// Volumes that nothing makes, on directories of the node.
fn static_volumes(sandbox: &Sandbox) -> String {
    let node = sandbox.kubectl().ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let volume = |name: &str, class: &str, kind: &str, more: &str| {
        let directory = sandbox.home().join(name);
        fs::create_dir(&directory).expect("a directory");
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
             storageClassName: {class:?}\n  capacity: {{storage: 16Mi}}\n  {kind}: {{path: {}}}\n{more}---\n",
            directory.display()
        )
    };
    let here = format!(
        "  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}\n"
    );
    volume("host", "", "hostPath", "") + &volume("local", "local", "local", &here)
}

/// The diary with more disks: a block device on its node, and two that nothing makes volumes for.
fn with_more_disks(machine: &str) -> String {
    let disk = "              serial: PAGES\n              disk:\n                bus: virtio\n";
    let volume = "          persistentVolumeClaim:\n            claimName: diary\n";
    let (mut disks, mut volumes, mut claims) = (disk.to_owned(), volume.to_owned(), String::new());
    for (name, size, more) in [
        ("block", "64Mi", "volumeMode: Block"),
        ("host", "16Mi", "storageClassName: \"\""),
        ("local", "16Mi", "storageClassName: local"),
    ] {
        disks += &format!("            - name: {name}\n{}", disk.replace("PAGES", &name.to_uppercase()));
        volumes += &format!("        - name: {name}\n{}", volume.replace("diary", &format!("diary-{name}")));
        claims += &format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: diary-{name}}}\nspec:\n  {more}\n  \
             accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: {size}}}}}\n"
        );
    }
    let class = "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: local}\n\
                 provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n";
    format!("{}{claims}{class}", machine.replace(disk, &disks).replace(volume, &volumes))
}

/// The pod that would copy the diary's disks.
fn copying_pod(kubectl: &Kubectl<'_>) -> String {
    format!("virt-copying-{}", kubectl.field("vm", "diary", "/metadata/uid").as_str().expect("a UID"))
}

/// A machine that is off, its disk, and a snapshot of it.
fn still(name: &str) -> String {
    let text = example("vm-snapshot.yaml").replace("diary-first", &format!("{name}-snapshot"));
    text.replace("diary", name).replace("runStrategy: Always", "runStrategy: Halted")
}

fn to(target: &str, name: &str, snapshot: &str, more: &str) -> String {
    format!(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineRestore\nmetadata: {{name: {name}}}\nspec:\n  \
         target: {{apiGroup: kubevirt.io, kind: VirtualMachine, name: {target}}}\n  \
         virtualMachineSnapshotName: {snapshot}\n{more}"
    )
}

#[test]
fn machines_that_are_off_and_what_goes_wrong() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    // Its claim is bound when a pod uses it: until then the snapshot waits, and says for what.
    kubectl.apply(&still("still"));
    eventually("it waits", 30, || {
        let now = status(&kubectl, "vmsnapshot", "still-snapshot");
        if now.to_string().contains("volume not bound: still") { Ok(()) } else { Err(now.to_string()) }
    });
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: writer}\nspec:\n  restartPolicy: Never\n  containers:\n  - name: c\n    \
         image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"echo kept >/data/word; sync\"]\n    volumeMounts: [{name: v, mountPath: /data}]\n  \
         volumes: [{name: v, persistentVolumeClaim: {claimName: still}}]\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/still-snapshot", "--timeout=120s"]);
    let taken = status(&kubectl, "vmsnapshot", "still-snapshot");
    assert_eq!(taken["indications"], json!(null), "{taken}");
    kubectl.ok(&["delete", "pod", "writer", "--timeout=60s"]);

    // In place: the claim has its name again, and is another.
    let before = kubectl.field("pvc", "still", "/metadata/uid");
    restore(&kubectl, "inplace", &to("still", "inplace", "still-snapshot", "  volumeRestorePolicy: InPlace\n"));
    let after = kubectl.field("pvc", "still", "/metadata/uid");
    assert!(before != after && !after.is_null(), "{before} {after}");
    assert_eq!(kubectl.field("pvc", "still", "/metadata/ownerReferences/0/kind"), "VirtualMachine");
    assert_eq!(kubectl.field("vm", "still", "/spec/template/spec/volumes/1/persistentVolumeClaim/claimName"), "still");

    // A name that somebody else has ends it; what it made goes with it.
    kubectl.apply(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: taken-pages}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Mi}}\n",
    );
    let prefixed = "  volumeRestorePolicy: PrefixTargetName\n";
    kubectl.apply(&to("taken", "refused", "still-snapshot", prefixed));
    eventually("it fails", 30, || {
        let now = status(&kubectl, "vmrestore", "refused");
        let wanted = "PersistentVolumeClaim default/taken-pages exists and was not made by this restore";
        if now.to_string().contains(wanted) { Ok(()) } else { Err(now.to_string()) }
    });
    assert_eq!(kubectl.get("vm", "taken"), None);
    kubectl.ok(&["delete", "vmrestore", "refused", "--timeout=30s"]);
    assert!(kubectl.get("pvc", "taken-pages").is_some());

    // One of a snapshot that is not there waits for it; a second one of its target is refused.
    kubectl.apply(&to("new", "early", "none", prefixed));
    let second = to("new", "second", "still-snapshot", prefixed);
    assert_contains(
        &kubectl.run(&["apply", "-f", "-"]).input(second.as_str()).fails(),
        &["VirtualMachineRestore \"early\" in progress"],
    );
    eventually("it says what it waits for", 30, || {
        let now = status(&kubectl, "vmrestore", "early");
        if now.to_string().contains("VMSnapshot default/none does not exist") { Ok(()) } else { Err(now.to_string()) }
    });
    kubectl.ok(&["delete", "vmrestore", "early", "--timeout=30s"]);

    // A snapshot of a machine that is not there fails when its time is over, and holds nothing.
    kubectl.apply(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineSnapshot\nmetadata: {name: nothing}\nspec:\n  \
         failureDeadline: 3s\n  source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: nobody}\n",
    );
    eventually("it fails", 30, || {
        let now = status(&kubectl, "vmsnapshot", "nothing");
        if now["phase"] == "Failed" { Ok(()) } else { Err(now.to_string()) }
    });
    assert!(status(&kubectl, "vmsnapshot", "nothing").to_string().contains("snapshot deadline exceeded"));

    // What is to stay stays, and goes when it is deleted itself.
    let retained = "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineSnapshot\nmetadata: {name: retained}\n\
                    spec:\n  deletionPolicy: Retain\n  source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: still}\n";
    kubectl.apply(&prepared(&kubectl, retained));
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/retained", "--timeout=120s"]);
    kubectl.ok(&["delete", "vmsnapshot", "--all", "--timeout=60s"]);
    assert_eq!((names(&kubectl, "vmsnapshotcontents").len(), names(&kubectl, "volumesnapshots").len()), (1, 1));
    kubectl.ok(&["delete", "vmsnapshotcontents", "--all", "--timeout=60s"]);
    nothing_is_left(&sandbox);
}

/// The restored claim has its volume by then.
fn prepared(kubectl: &Kubectl<'_>, manifest: &str) -> String {
    eventually("the restored claim is bound", 60, || {
        let claim = status(kubectl, "pvc", "still");
        if claim["phase"] == "Bound" { Ok(()) } else { Err(claim.to_string()) }
    });
    manifest.to_owned()
}
