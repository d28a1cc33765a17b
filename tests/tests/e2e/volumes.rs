//! Volumes of drivers, on real disks: a FlexVolume driver over loop devices.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use carrack_e2e::{Disks, Kubectl, Sandbox, assert_contains, eventually, eventually_true};

/// A claim with its volume, bound.
fn claim(kubectl: &Kubectl<'_>, name: &str, mode: &str) {
    let spec = format!("accessModes: [ReadWriteOnce]\n  volumeMode: {mode}\n  storageClassName: \"\"");
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: pv-{name}\nspec:\n  {spec}\n  capacity: {{storage: 32Mi}}\n  \
         persistentVolumeReclaimPolicy: Retain\n  claimRef: {{namespace: default, name: {name}}}\n  \
         flexVolume: {{driver: carrack/loopdisk, fsType: ext4}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\nspec:\n  {spec}\n  volumeName: pv-{name}\n  \
         resources: {{requests: {{storage: 32Mi}}}}\n"
    ));
    // Where no controller binds, a person does.
    let uid = kubectl.field("pvc", name, "/metadata/uid");
    let reference = format!("{{\"spec\": {{\"claimRef\": {{\"uid\": {uid}}}}}}}");
    kubectl.ok(&["patch", "pv", &format!("pv-{name}"), "--type=merge", "-p", &reference]);
    let bound = "{\"status\": {\"phase\": \"Bound\"}}";
    kubectl.ok(&["patch", "pv", &format!("pv-{name}"), "--subresource=status", "--type=merge", "-p", bound]);
    kubectl.ok(&["patch", "pvc", name, "--subresource=status", "--type=merge", "-p", bound]);
}

fn pod(name: &str, claim: &str, part: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {{fsGroup: 4711}}\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"exec 3>>/data/log; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.1; done\"]\n    \
         {part}\n  volumes:\n  - name: v\n    persistentVolumeClaim: {{claimName: {claim}}}\n"
    )
}

const AS_DEVICE: &str = "volume v has volumeMode Filesystem, but is specified in volumeDevices";
const MOUNTED: &str = "volumeMounts: [{name: v, mountPath: /data}]";

/// Mount id, device and place of a pod's volume, from the node's mount table.
fn mount_of(uid: &str) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("read");
    let of_pod = |line: &&str| line.contains(&format!("/pods/{uid}/volumes/carrack~loopdisk/"));
    table.lines().filter(of_pod).collect()
}

#[test]
fn a_disk_is_never_pulled_out_from_under_a_writer() {
    let sandbox = Sandbox::up(&["busybox"]);
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    claim(&kubectl, "data", "Filesystem");
    disks.mode("fail attach");
    kubectl.apply(&pod("writer", "data", MOUNTED));
    eventually("the driver's failure shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "writer"]);
        if said.contains("told to fail") { Ok(()) } else { Err(said) }
    });
    disks.mode("");
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=90s"]);
    let uid = kubectl.field("pod", "writer", "/metadata/uid").as_str().unwrap_or_default().to_owned();
    let before = mount_of(&uid);
    assert_contains(&before, &["ext4", "pv-data"]);
    assert_contains(&kubectl.ok(&["exec", "writer", "--", "stat", "-c", "%g %A", "/data"]), &["4711 drwxrws"]);
    let in_use = || kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.volumesInUse}"]);
    assert_contains(&in_use(), &["flexvolume-carrack/loopdisk/pv-data"]);

    // The agents die, and what they come back to is an API that knows neither the claim nor its volume.
    for (kind, name) in [("pvc", "data"), ("pv", "pv-data")] {
        kubectl.ok(&["delete", kind, name, "--wait=false"]);
        if kubectl.get(kind, name).is_some() {
            let free = "{\"metadata\": {\"finalizers\": null}}";
            kubectl.ok(&["patch", kind, name, "--type=merge", "-p", free]);
        }
        eventually_true("the object is gone", 30, || kubectl.get(kind, name).is_none());
    }
    for _ in 0..2 {
        sandbox.kill_9();
        sandbox.start(&[]);
        eventually_true("the kubelet has told the node's volumes again", 30, || in_use().contains("pv-data"));
        let lines = || -> u64 {
            kubectl
                .ok(&["exec", "writer", "--", "wc", "-l", "/data/log"])
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        };
        let first = lines();
        eventually_true("the writer goes on", 30, || lines() > first + 5);
        assert_eq!(mount_of(&uid), before, "the mount is another one");
        assert_eq!(disks.undone(), Vec::<String>::new(), "the disk was pulled out");
        assert_eq!(kubectl.field("pod", "writer", "/status/containerStatuses/0/restartCount"), 0);
    }
    let attaches = disks.calls().iter().filter(|call| *call == "waitforattach").count();
    assert_eq!(attaches, 1, "a restart attaches nothing: {:?}", disks.calls());

    // It goes when its pod does, with nothing of it in the API.
    kubectl.ok(&["delete", "pod", "writer", "--timeout=60s"]);
    eventually_true("the disk is detached", 60, || !disks.attached());
    assert_eq!(mount_of(&uid), "");
    eventually_true("the node tells that it has none", 30, || !in_use().contains("pv-data"));
    assert_contains(&disks.undone().join(" "), &["unmountdevice", "detach"]);
}

#[test]
fn a_disk_without_a_file_system_is_a_device_in_the_container() {
    let sandbox = Sandbox::up(&["busybox"]);
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    claim(&kubectl, "raw", "Block");
    kubectl.apply(&pod("mistaken", "raw", MOUNTED));
    eventually("a device is not mounted as files", 60, || {
        let said = kubectl.ok(&["describe", "pod", "mistaken"]);
        let wanted = "volume v has volumeMode Block, but is specified in volumeMounts";
        let of_claim = kubectl.ok(&["describe", "pvc", "raw"]);
        if said.contains(wanted) && of_claim.contains(wanted) { Ok(()) } else { Err(said + &of_claim) }
    });
    kubectl.ok(&["delete", "pod", "mistaken", "--timeout=60s"]);

    let raw = pod("raw", "raw", "volumeDevices: [{name: v, devicePath: /dev/disk}]");
    kubectl.apply(&raw.replace("exec 3>>/data/log", "exec 3>/dev/null"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/raw", "--timeout=90s"]);
    let write = "echo carrack was here | dd of=/dev/disk conv=fsync 2>/dev/null; head -c 16 /dev/disk";
    assert_contains(&kubectl.ok(&["exec", "raw", "--", "sh", "-c", write]), &["carrack was here"]);
    kubectl.ok(&["delete", "pod", "raw", "--timeout=60s"]);
    eventually_true("the disk is detached", 60, || !disks.attached());
    let image = fs::read(disks.image("pv-raw")).expect("the disk");
    assert!(image.starts_with(b"carrack was here"), "the data is on the disk");

    // A claim that names nothing, one that names a volume of another namespace's claim, one of files that are asked for as a
    // device, and one of a disk whose file system needs repair by hand: root and lost+found are gone.
    let spec = "accessModes: [ReadWriteOnce], storageClassName: \"\", volumeName: nowhere, resources: {requests: {storage: 32Mi}}";
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: nothing}}\nspec: {{{spec}}}\n"
    ));
    let of_others = disks.image("pv-others");
    fs::write(&of_others, "what others wrote\n").expect("written");
    let spec = "accessModes: [ReadWriteOnce], storageClassName: \"\"";
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-others}}\nspec: {{{spec}, capacity: {{storage: 32Mi}}, \
         claimRef: {{namespace: elsewhere, name: others}}, flexVolume: {{driver: carrack/loopdisk, fsType: ext4}}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: others}}\nspec: {{{spec}, volumeName: pv-others, \
         resources: {{requests: {{storage: 32Mi}}}}}}\n"
    ));
    claim(&kubectl, "files", "Filesystem");
    let as_device = pod("files", "files", "volumeDevices: [{name: v, devicePath: /dev/disk}]");
    kubectl.apply(&as_device.replace("exec 3>>/data/log", "exec 3>/dev/null"));
    // Drivers that are to be found outside of the drivers' directory.
    let escaping = |name: &str, driver: &str| {
        kubectl.apply(&holder(name, "", false, &format!("flexVolume: {{driver: \"{driver}\"}}")));
    };
    escaping("above", "../sh");
    escaping("deep", "a/../../sh");
    let (broken, files) = (disks.image("pv-broken"), sandbox.home().join("files"));
    fs::create_dir(&files).and_then(|()| fs::write(files.join("kept"), "what was written\n")).expect("written");
    let (broken, files) = (broken.to_string_lossy(), files.to_string_lossy());
    for (program, arguments) in [
        ("truncate", &["-s", "32M", &broken] as &[&str]),
        ("mkfs.ext4", &["-q", "-F", "-d", &files, &broken]),
        ("debugfs", &["-w", "-R", "clri <2>", &broken]),
        ("debugfs", &["-w", "-R", "clri <11>", &broken]),
        ("debugfs", &["-w", "-R", "ssv state 2", &broken]),
    ] {
        sandbox.program(program, arguments).ok();
    }
    claim(&kubectl, "broken", "Filesystem");
    kubectl.apply(&pod("nothing", "nothing", MOUNTED));
    kubectl.apply(&pod("others", "others", MOUNTED));
    kubectl.apply(&pod("broken", "broken", MOUNTED));
    for (name, of_claim, of_pod) in [
        ("nothing", "volume \"nowhere\" not found", "unbound immediate PersistentVolumeClaims"),
        (
            "others",
            "volume \"pv-others\" already bound to a different claim",
            "unbound immediate PersistentVolumeClaims",
        ),
        ("files", AS_DEVICE, AS_DEVICE),
        ("broken", "needs repair by hand", "needs repair by hand"),
    ] {
        eventually("the reason shows in the events of claim and pod", 60, || {
            let said = [kubectl.ok(&["describe", "pvc", name]), kubectl.ok(&["describe", "pod", name])];
            if said[0].contains(of_claim) && said[1].contains(of_pod) { Ok(()) } else { Err(said.concat()) }
        });
    }
    for (name, of_pod) in [("above", "FlexVolume driver \"..\" is not a name"), ("deep", "is not vendor/driver")] {
        eventually("the reason shows in the events of the pod", 60, || {
            let said = kubectl.ok(&["describe", "pod", name]);
            if said.contains("FailedMount") && said.contains(of_pod) { Ok(()) } else { Err(said) }
        });
    }
    kubectl.ok(&["delete", "pod", "nothing", "others", "files", "above", "deep", "broken", "--timeout=60s"]);
    eventually_true("the disk is detached", 60, || !disks.attached());
    assert_eq!(fs::read_to_string(of_others).expect("it is there"), "what others wrote\n");
    assert_eq!(
        sandbox.program("debugfs", &["-R", "cat <12>", &broken]).ok(),
        "what was written\n",
        "the data is untouched"
    );
}

/// A file system that is shared with mount namespaces made later, until this is dropped.
struct Shared(PathBuf);

impl Shared {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).expect("a directory");
        mount(&["-t", "tmpfs", "shared", &dir.to_string_lossy()]);
        let shared = Self(dir);
        mount(&["--make-shared", &shared.0.to_string_lossy()]);
        shared
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let output = Command::new("umount").arg("-R").arg(&self.0).output().expect("umount");
        assert!(output.status.success() || std::thread::panicking(), "{output:?}");
    }
}

fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().expect("mount");
    assert!(output.status.success(), "{output:?}");
}

/// A pod with one volume at `/data` that does nothing.
fn holder(name: &str, mount: &str, privileged: bool, volume: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"while :; do sleep 0.2; done\"]\n    securityContext: {{privileged: {privileged}}}\n    \
         volumeMounts: [{{name: v, mountPath: /data{mount}}}]\n  volumes:\n  - name: v\n    {volume}\n"
    )
}

#[test]
fn what_is_mounted_goes_where_it_is_to_and_a_directory_of_the_node_is_a_volume() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let shared = Shared::new(sandbox.home().join("shared"));
    let on_host = format!("hostPath: {{path: {}, type: Directory}}", shared.0.display());
    for (name, propagation, privileged) in
        [("giver", "Bidirectional", true), ("taker", "HostToContainer", false), ("private", "None", false)]
    {
        kubectl.apply(&holder(name, &format!(", mountPropagation: {propagation}"), privileged, &on_host));
    }
    let wait = |pod: &str| {
        kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=90s"]);
    };
    for pod in ["giver", "taker", "private"] {
        wait(pod);
    }
    let shell = |pod: &str, line: &str| kubectl.ok(&["exec", pod, "--", "sh", "-c", line]);
    shell("giver", "mkdir /data/inner && mount -t tmpfs inner /data/inner && echo given >/data/inner/file");
    assert_eq!(fs::read_to_string(shared.0.join("inner/file")).expect("the node has it"), "given\n");
    assert_eq!(shell("taker", "cat /data/inner/file"), "given\n");
    assert_eq!(shell("private", "ls /data/inner"), "");
    // What a pod has mounted on the node stays there when it goes, as its volumes' directory does.
    kubectl.ok(&["delete", "pod", "giver", "taker", "private", "--timeout=60s"]);
    assert_eq!(fs::read_to_string(shared.0.join("inner/file")).expect("the node has it"), "given\n");

    // A directory of the node, which a claim gets when its first pod is placed.
    let directory = sandbox.home().join("local");
    fs::create_dir(&directory).expect("a directory");
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    kubectl.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: local\nprovisioner: kubernetes.io/no-provisioner\n\
         volumeBindingMode: WaitForFirstConsumer\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: local\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         storageClassName: local\n  capacity: {{storage: 32Mi}}\n  local: {{path: {}}}\n  nodeAffinity:\n    required:\n      \
         nodeSelectorTerms:\n      - matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: local\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         storageClassName: local\n  resources: {{requests: {{storage: 32Mi}}}}\n",
        directory.display()
    ));
    let claimed = "persistentVolumeClaim: {claimName: local}";
    for (pod, expected) in [("first", "first\n"), ("second", "first\nsecond\n")] {
        kubectl.apply(&holder(pod, "", false, claimed));
        wait(pod);
        shell(pod, &format!("echo {pod} >>/data/file"));
        assert_eq!(fs::read_to_string(directory.join("file")).expect("the file is on the node"), expected);
        kubectl.ok(&["delete", "pod", pod, "--timeout=60s"]);
    }

    // Memory is a volume of its own size, and goes with its pod.
    kubectl.apply(&holder("memory", "", false, "emptyDir: {medium: Memory, sizeLimit: 8Mi}"));
    wait("memory");
    assert_contains(&shell("memory", "df -k /data | tail -n 1; stat -f -c %T /data"), &[" 8192 ", "tmpfs"]);
    let full = shell("memory", "dd if=/dev/zero of=/data/much bs=1M count=9 2>&1 || stat -c %s /data/much");
    assert_contains(&full, &["No space left on device", "8388608"]);
    let uid = kubectl.field("pod", "memory", "/metadata/uid").as_str().unwrap_or_default().to_owned();
    let of_pod = || fs::read_to_string("/proc/self/mountinfo").expect("read").contains(&format!("/pods/{uid}/"));
    assert!(of_pod());
    kubectl.ok(&["delete", "pod", "memory", "--timeout=60s"]);
    assert!(!of_pod(), "it is still mounted");
    // Huge pages that nobody asks for, and such that the node does not have, are refused by name.
    let huge = "emptyDir: {medium: HugePages}";
    kubectl.apply(&holder("unasked", "", false, huge));
    let asking =
        "image: localhost/carrack/busybox:0.1.0\n    resources: {limits: {hugepages-1Gi: 1Gi, memory: 64Mi, cpu: 10m}}";
    let asks = holder("asking", "", false, huge).replace("image: localhost/carrack/busybox:0.1.0", asking);
    kubectl.apply(&asks);
    for (pod, reason, why) in [
        ("unasked", "FailedMount", "has the medium HugePages, and no container asks for huge pages"),
        ("asking", "FailedScheduling", "Insufficient hugepages-1Gi"),
    ] {
        eventually("why there are no huge pages shows in the pod's events", 60, || {
            let said = kubectl.ok(&["describe", "pod", pod]);
            if said.contains(reason) && said.contains(why) { Ok(()) } else { Err(said) }
        });
    }
    kubectl.ok(&["delete", "pod", "unasked", "asking", "--timeout=60s"]);

    // A file server needs a kernel that can mount it. Where it is not so, that is what the user is told.
    if !fs::read_to_string("/proc/filesystems").expect("read").contains("nfs") {
        kubectl.apply(&holder("remote", "", false, "nfs: {server: 192.0.2.1, path: /exported}"));
        eventually("the missing file system shows in the pod's events", 60, || {
            let said = kubectl.ok(&["describe", "pod", "remote"]);
            let told = said.contains("FailedMount")
                && said.contains("this node's kernel cannot mount NFS (192.0.2.1:/exported)");
            if told { Ok(()) } else { Err(said) }
        });
        kubectl.ok(&["delete", "pod", "remote", "--timeout=60s"]);
    }
}
