//! Volumes of claims out of the box, and the CSI protocol with a driver that misbehaves.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;
use std::path::{Path, PathBuf};

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true, may_grow_mounted, root, wait_gone};

fn example(name: &str) -> String {
    root().join("examples").join(name).display().to_string()
}

/// The pod of the example, without its claim.
fn notebook() -> String {
    let text = fs::read_to_string(example("pvc.yaml")).expect("the example");
    text.split_once("---\n").map(|(_, pod)| pod.to_owned()).expect("two objects")
}

fn claim(name: &str, size: &str, mode: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         volumeMode: {mode}\n  resources: {{requests: {{storage: {size}}}}}\n"
    )
}

fn pod(name: &str, part: &str, volume: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {{fsGroup: 4711}}\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"trap 'exit 0' TERM; while :; do sleep 0.1; done\"]\n    \
         {part}\n  volumes:\n  - name: v\n    {volume}\n"
    )
}

const MOUNTED: &str = "volumeMounts: [{name: v, mountPath: /data}]";

fn of_claim(name: &str) -> String {
    format!("persistentVolumeClaim: {{claimName: {name}}}")
}

fn ready(kubectl: &Kubectl<'_>, pod: &str) {
    kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=90s"]);
}

fn delete(kubectl: &Kubectl<'_>, kind: &str, name: &str) {
    kubectl.ok(&["delete", kind, name, "--timeout=90s"]);
}

/// The files behind loop devices below a directory.
fn attached(below: &Path) -> Vec<PathBuf> {
    let backing = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file")).ok();
    let files = fs::read_dir("/sys/block").expect("listed").flatten().filter_map(backing);
    files.map(|file| PathBuf::from(file.trim())).filter(|file| file.starts_with(below)).collect()
}

fn volumes(sandbox: &Sandbox) -> Vec<String> {
    let dir = fs::read_dir(sandbox.data_dir().join("storage/volumes")).expect("listed");
    dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

fn mount_of(uid: &str) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("read");
    table.lines().filter(|line| line.contains(&format!("/pods/{uid}/volumes/kubernetes.io~csi/"))).collect()
}

#[test]
fn a_fresh_cluster_has_volumes_for_claims() {
    let sandbox = Sandbox::new();
    // How often a kubelet looks whether a volume has grown.
    let config = sandbox.kubelet_config("syncFrequency: 5s\n");
    sandbox.start(&["--kubelet-config", &config]);
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    let kubectl = sandbox.kubectl();
    assert_contains(&kubectl.ok(&["get", "storageclass"]), &["carrack-local (default)", "local.carrack.io"]);
    kubectl.ok(&["apply", "-f", &example("pvc.yaml")]);
    ready(&kubectl, "notebook");
    assert_contains(&kubectl.ok(&["get", "pvc", "notes"]), &["Bound", "64Mi", "carrack-local"]);
    assert_contains(&kubectl.ok(&["exec", "notebook", "--", "stat", "-c", "%g %A", "/data"]), &["2000 drwxrws"]);
    let nodes = kubectl.ok(&["get", "csinodes", "-o", "jsonpath={.items[0].spec.drivers[0]}"]);
    assert_contains(&nodes, &["local.carrack.io", "topologyKeys", "local.carrack.io/node"]);
    kubectl.ok(&["exec", "notebook", "--", "sh", "-c", "echo kept >/data/kept; sync"]);

    // It grows: under the running pod where the kernel lets us, else when it is mounted next.
    let blocks = || -> u64 {
        let out = kubectl.ok(&["exec", "notebook", "--", "df", "-k", "/data"]);
        let last = out.lines().last().unwrap_or_default().split_whitespace().nth(1).map(str::to_owned);
        last.and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let before = blocks();
    let larger = "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"192Mi\"}}}}";
    kubectl.ok(&["patch", "pvc", "notes", "--type=merge", "-p", larger]);
    if !may_grow_mounted() {
        eventually("the reason is told", 120, || {
            let said = kubectl.ok(&["describe", "pod", "notebook"]);
            if said.contains("VolumeResizeFailed") { Ok(()) } else { Err(said) }
        });
        delete(&kubectl, "pod", "notebook");
        kubectl.apply(&notebook());
        ready(&kubectl, "notebook");
    }
    eventually("the claim has its new size", 120, || {
        let claim = kubectl.ok(&["get", "pvc", "notes", "-o", "jsonpath={.status}"]);
        if claim.contains("\"192Mi\"") && !claim.contains("Resiz") { Ok(()) } else { Err(claim) }
    });
    assert!(blocks() > before * 2, "{before} blocks have become {}", blocks());
    assert_eq!(kubectl.field("pod", "notebook", "/status/containerStatuses/0/restartCount"), 0);
    let smaller = "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"96Mi\"}}}}";
    let refused = kubectl.run(&["patch", "pvc", "notes", "--type=merge", "-p", smaller]).output();
    assert_eq!(refused.code, Some(1), "{refused}");
    assert_contains(&refused.stderr, &["spec.resources.requests.storage", "can not be less than status.capacity"]);
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let metrics = kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")]);
    let labels = "{namespace=\"default\",persistentvolumeclaim=\"notes\"}";
    let calls = |method: &str| {
        format!(
            "csi_operations_seconds_count{{driver_name=\"local.carrack.io\",grpc_status_code=\"OK\",\
             method_name=\"/csi.v1.Node/{method}\",migrated=\"false\"}}"
        )
    };
    let (published, grown) = (calls("NodePublishVolume"), calls("NodeExpandVolume"));
    let requests = "rest_client_requests_total{code=\"200\",host=\"";
    assert_contains(&metrics, &[&format!("kubelet_volume_stats_capacity_bytes{labels}"), &published, &grown, requests]);

    // The pods of a StatefulSet have a claim each, and find it again.
    kubectl.ok(&["apply", "-f", &example("statefulset.yaml")]);
    kubectl.ok(&["rollout", "status", "statefulset/ledger", "--timeout=120s"]);
    assert_contains(&kubectl.ok(&["get", "pvc", "-l", "app=ledger"]), &["data-ledger-0", "data-ledger-1"]);
    kubectl.ok(&["delete", "pod", "ledger-1", "--timeout=60s"]);
    eventually("the pod that takes its place has its disk", 60, || {
        let log = kubectl.run(&["exec", "ledger-1", "--", "cat", "/data/log"]).output();
        if log.stdout == "ledger-1 started\nledger-1 started\n" { Ok(()) } else { Err(log.to_string()) }
    });
    delete(&kubectl, "statefulset", "ledger");
    eventually_true("its pods are gone", 60, || {
        kubectl.ok(&["get", "pods", "-l", "app=ledger", "-o", "name"]).is_empty()
    });
    kubectl.ok(&["delete", "pvc", "-l", "app=ledger", "--timeout=60s"]);
    delete(&kubectl, "service", "ledger");

    // What is written outlives the pod; nothing outlives the claim. What the pod before took from the group goes back to it
    // where the pod does not ask to be spared that.
    kubectl.ok(&["exec", "notebook", "--", "sh", "-c", "chgrp 0 /data/kept; chmod 600 /data/kept"]);
    delete(&kubectl, "pod", "notebook");
    eventually_true("the volume is detached", 60, || attached(&sandbox.data_dir()).is_empty());
    let owner = || kubectl.ok(&["exec", "notebook", "--", "stat", "-c", "%g %a", "/data/kept"]);
    let group = "fsGroup: 2000\n";
    for (policy, expected) in [("OnRootMismatch", "0 600"), ("Always", "2000 660")] {
        kubectl.apply(&notebook().replace(group, &format!("{group}    fsGroupChangePolicy: {policy}\n")));
        ready(&kubectl, "notebook");
        assert_eq!(owner().trim(), expected, "{policy}");
        assert_contains(&kubectl.ok(&["exec", "notebook", "--", "cat", "/data/kept"]), &["kept"]);
        if policy == "OnRootMismatch" {
            delete(&kubectl, "pod", "notebook");
        }
    }
    delete(&kubectl, "pod", "notebook");
    delete(&kubectl, "pvc", "notes");
    eventually_true("the volume's data is gone", 60, || volumes(&sandbox).is_empty());
    eventually_true("the volume is gone", 30, || kubectl.ok(&["get", "pv", "-o", "name"]).is_empty());
}

#[test]
fn a_claim_can_be_a_device_and_a_pod_can_bring_its_own_volume() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&claim("raw", "32Mi", "Block"));
    kubectl.apply(&pod("raw", "volumeDevices: [{name: v, devicePath: /dev/disk}]", &of_claim("raw")));
    ready(&kubectl, "raw");
    let write = "echo carrack was here | dd of=/dev/disk conv=fsync 2>/dev/null; head -c 16 /dev/disk";
    assert_contains(&kubectl.ok(&["exec", "raw", "--", "sh", "-c", write]), &["carrack was here"]);
    delete(&kubectl, "pod", "raw");
    eventually_true("the device is detached", 60, || attached(&sandbox.data_dir()).is_empty());
    kubectl.apply(&pod("again", "volumeDevices: [{name: v, devicePath: /dev/disk}]", &of_claim("raw")));
    ready(&kubectl, "again");
    assert_contains(&kubectl.ok(&["exec", "again", "--", "head", "-c", "16", "/dev/disk"]), &["carrack was here"]);
    delete(&kubectl, "pod", "again");

    let inline = "csi: {driver: local.carrack.io, volumeAttributes: {size: 48Mi}}";
    kubectl.apply(&pod("inline", MOUNTED, inline));
    ready(&kubectl, "inline");
    assert_contains(&kubectl.ok(&["exec", "inline", "--", "stat", "-c", "%g", "/data"]), &["4711"]);
    assert_eq!(volumes(&sandbox).len(), 2);
    delete(&kubectl, "pod", "inline");
    eventually_true("it went with its pod", 60, || volumes(&sandbox).len() == 1);

    let template = "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}}}";
    kubectl.apply(&pod("generic", MOUNTED, template));
    ready(&kubectl, "generic");
    delete(&kubectl, "pod", "generic");
    eventually_true("its claim went with its pod", 60, || volumes(&sandbox).len() == 1);

    // What cannot be had is said on the claim, and nothing is left of the attempt.
    kubectl.apply(&claim("shared", "32Mi", "Filesystem").replace("ReadWriteOnce", "ReadWriteMany"));
    kubectl.apply(&pod("hopeful", MOUNTED, &of_claim("shared")));
    eventually("the reason is told", 60, || {
        let said = kubectl.ok(&["describe", "pvc", "shared"]);
        if said.contains("volumes of this driver are for one node") { Ok(()) } else { Err(said) }
    });
    delete(&kubectl, "pod", "hopeful");
    delete(&kubectl, "pvc", "shared");
    assert_eq!(volumes(&sandbox).len(), 1);
}

#[test]
fn volumes_are_copied_through_snapshots_and_clones() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&claim("first", "48Mi", "Filesystem"));
    kubectl.apply(&pod("writer", MOUNTED, &of_claim("first")));
    ready(&kubectl, "writer");
    kubectl.ok(&["exec", "writer", "--", "sh", "-c", "echo before >/data/word; sync"]);
    kubectl.apply(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: kept}\n\
         spec: {source: {persistentVolumeClaimName: first}}\n",
    );
    eventually("the snapshot is ready", 60, || {
        let said = kubectl.ok(&["get", "volumesnapshot", "kept", "-o", "jsonpath={.status}"]);
        if said.contains("\"readyToUse\":true") { Ok(()) } else { Err(said) }
    });
    kubectl.ok(&["exec", "writer", "--", "sh", "-c", "echo after >/data/word; sync"]);
    let made_from = |name: &str, source: &str| {
        claim(name, "96Mi", "Filesystem").replace("spec:\n", &format!("spec:\n  dataSource: {source}\n"))
    };
    kubectl.apply(&made_from("restored", "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: kept}"));
    kubectl.apply(&made_from("cloned", "{kind: PersistentVolumeClaim, name: first}"));
    for (name, word) in [("restored", "before"), ("cloned", "after")] {
        kubectl.apply(&pod(name, MOUNTED, &of_claim(name)));
        ready(&kubectl, name);
        assert_contains(&kubectl.ok(&["exec", name, "--", "cat", "/data/word"]), &[word]);
        let size = kubectl.ok(&["exec", name, "--", "df", "-k", "/data"]);
        let blocks: u64 = size.split_whitespace().nth(8).and_then(|n| n.parse().ok()).unwrap_or(0);
        assert!(blocks > 64 << 10, "the file system takes the larger volume: {size}");
    }
    kubectl.ok(&["delete", "pod", "writer", "restored", "cloned", "--timeout=60s"]);
    delete(&kubectl, "volumesnapshot", "kept");
    assert_eq!(kubectl.ok(&["get", "volumesnapshotcontents", "-o", "name"]), "");
    assert_eq!(fs::read_dir(sandbox.data_dir().join("storage/snapshots")).expect("listed").count(), 0);
}

/// A cluster whose driver does as a file tells it.
struct Faulty {
    sandbox: Sandbox,
    file: PathBuf,
}

impl Faulty {
    fn up() -> Self {
        let sandbox = Sandbox::new();
        let file = sandbox.home().join("faults");
        let faulty = Self { sandbox, file };
        faulty.start();
        faulty.sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
        faulty
    }

    fn start(&self) {
        self.sandbox.start(&["--storage-faults", &self.file.display().to_string()]);
    }

    /// All of it at once: a driver that looks meanwhile has the faults before or these.
    fn fault(&self, text: &str) {
        let part = self.file.with_extension("part");
        fs::write(&part, text).expect("written");
        fs::rename(&part, &self.file).expect("in its place");
    }

    fn calls(&self, method: &str) -> usize {
        let text = fs::read_to_string(self.file.with_file_name("faults.calls")).unwrap_or_default();
        text.lines().filter(|line| line.split(' ').next() == Some(method)).count()
    }
}

#[test]
fn a_driver_may_fail_lie_and_die_in_any_call() {
    let faulty = Faulty::up();
    let sandbox = &faulty.sandbox;
    let kubectl = sandbox.kubectl();
    for (n, fault) in [
        "CreateVolume fail-after",
        "NodeStageVolume fail",
        "NodeStageVolume fail-after",
        "NodePublishVolume lie",
        "NodePublishVolume fail-after",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("p{n}");
        let method = fault.split(' ').next().unwrap_or_default();
        let before = faulty.calls(method);
        faulty.fault(fault);
        kubectl.apply(&claim(&name, "32Mi", "Filesystem"));
        kubectl.apply(&pod(&name, MOUNTED, &of_claim(&name)));
        eventually_true("the fault came", 60, || faulty.calls(method) > before);
        faulty.fault("");
        ready(&kubectl, &name);
        let line = fs::read_to_string("/proc/self/mountinfo").expect("read");
        assert!(line.contains("kubernetes.io~csi"), "{fault}: nothing is mounted");
        delete(&kubectl, "pod", &name);
        delete(&kubectl, "pvc", &name);
        eventually_true(&format!("nothing is left of {fault}"), 90, || volumes(sandbox).is_empty());
    }
    assert!(attached(&sandbox.data_dir()).is_empty());
}

#[test]
fn agents_and_driver_may_die_while_a_pod_writes() {
    let faulty = Faulty::up();
    let sandbox = &faulty.sandbox;
    let kubectl = sandbox.kubectl();
    kubectl.apply(&claim("data", "32Mi", "Filesystem"));
    let writer = pod("writer", MOUNTED, &of_claim("data")).replace(
        "trap 'exit 0' TERM; while :; do sleep 0.1; done",
        "exec 3>>/data/log; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.1; done",
    );
    kubectl.apply(&writer);
    ready(&kubectl, "writer");
    let uid = kubectl.field("pod", "writer", "/metadata/uid").as_str().unwrap_or_default().to_owned();
    let before = mount_of(&uid);
    assert_contains(&before, &["ext4"]);
    let undone = || faulty.calls("NodeUnstageVolume") + faulty.calls("NodeUnpublishVolume");
    let lines = || -> u64 {
        let out = kubectl.ok(&["exec", "writer", "--", "wc", "-l", "/data/log"]);
        out.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    for fault in ["", "NodeGetInfo fail", "GetInfo hang", "NodeStageVolume lie"] {
        sandbox.kill_9();
        faulty.fault(fault);
        faulty.start();
        let first = lines();
        eventually_true("the writer goes on", 30, || lines() > first + 5);
        assert_eq!(mount_of(&uid), before, "{fault}: the mount is another one");
        assert_eq!(undone(), 0, "{fault}: the volume was taken away");
    }
    // The claim is gone from the API, and the driver with it: the pod keeps its volume, and it goes with the pod.
    faulty.fault("NodeUnpublishVolume fail");
    kubectl.ok(&["delete", "pvc", "data", "--wait=false"]);
    kubectl.ok(&["delete", "pod", "writer", "--wait=false"]);
    eventually_true("it is asked for", 60, || faulty.calls("NodeUnpublishVolume") > 0);
    assert_eq!(mount_of(&uid), before, "the driver refused");
    let cluster = sandbox.pid();
    faulty.fault("NodeUnstageVolume exit-after");
    // The driver's process is the cluster's: it dies after the unstage, before its answer. Its faults go a moment before it does.
    wait_gone(cluster, 60);
    assert!(!faulty.file.exists(), "it died of something else");
    faulty.start();
    eventually_true("the volume is detached", 90, || attached(&sandbox.data_dir()).is_empty());
    assert_eq!(mount_of(&uid), "");
    eventually_true("its data is gone", 90, || volumes(sandbox).is_empty());
}
