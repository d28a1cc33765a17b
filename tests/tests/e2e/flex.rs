//! A FlexVolume driver over loop devices, called by the control plane: attach, enlarge, detach.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;
use std::path::Path;
use std::process::Command;

use carrack_e2e::{Disks, Kubectl, Sandbox, assert_contains, eventually, eventually_true, may_grow_mounted};
use serde_json::Value;

/// A claim of 32Mi that may grow, with its volume.
fn claim(kubectl: &Kubectl<'_>) {
    let spec = "accessModes: [ReadWriteOnce]\n  storageClassName: loop";
    kubectl.apply(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: loop\nprovisioner: kubernetes.io/no-provisioner\n\
         allowVolumeExpansion: true\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: pv-data\nspec:\n  {spec}\n  capacity: {{storage: 32Mi}}\n  \
         persistentVolumeReclaimPolicy: Retain\n  claimRef: {{namespace: default, name: data}}\n  \
         flexVolume: {{driver: carrack/loopdisk, fsType: ext4}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: data\nspec:\n  {spec}\n  volumeName: pv-data\n  \
         resources: {{requests: {{storage: 32Mi}}}}\n"
    ));
}

/// A pod that writes to it.
fn writer(kubectl: &Kubectl<'_>) {
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: writer\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"exec 3>>/data/log; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.1; done\"]\n    \
         volumeMounts: [{name: v, mountPath: /data}]\n  volumes:\n  - name: v\n    \
         persistentVolumeClaim: {claimName: data}\n",
    );
}

fn attachments(kubectl: &Kubectl<'_>) -> Vec<Value> {
    let list: Value = serde_json::from_str(&kubectl.ok(&["get", "volumeattachments", "-o", "json"])).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}

/// A field of the node's status.
fn status(kubectl: &Kubectl<'_>, field: &str) -> String {
    kubectl.ok(&["get", "nodes", "-o", &format!("jsonpath={{.items[0].status.{field}}}")])
}

fn count(disks: &Disks, call: &str) -> usize {
    disks.calls().iter().filter(|c| *c == call).count()
}

#[test]
fn a_disk_is_attached_by_the_control_plane_grows_in_use_and_is_detached() {
    let sandbox = Sandbox::up(&["busybox"]);
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    disks.mode("fail attach");
    claim(&kubectl);
    writer(&kubectl);
    eventually("the driver's failure shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "writer"]);
        if said.contains("FailedAttachVolume") && said.contains("told to fail") { Ok(()) } else { Err(said) }
    });
    assert_eq!(count(&disks, "waitforattach"), 0, "the node waits");

    // Everything dies in the middle of a call, and the driver, which would do it late, with it.
    disks.mode("hang attach");
    let before = count(&disks, "attach");
    eventually_true("it is tried again", 60, || count(&disks, "attach") > before && disks.running());
    sandbox.kill_9();
    eventually_true("the driver ends with its caller", 10, || !disks.running());

    // A call of the node's that waits in the kernel, and is not ended by being killed, holds up nobody: neither other pods nor,
    // when its caller was killed, the same volume.
    let silent = disks.silent().expect("mounted");
    disks.mode("stuck waitforattach");
    sandbox.start(&[]);
    eventually_true("the driver waits in the kernel", 60, || !silent.stuck().is_empty());
    let stuck = silent.stuck();
    beside(&kubectl, "beside");
    kubectl.ok(&["delete", "pod", "beside", "--timeout=60s"]);
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_contains(&kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]), &[&node]);
    sandbox.kill_9();
    disks.mode("");
    sandbox.start(&[]);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=90s"]);
    assert_eq!(silent.stuck(), stuck, "what was killed is still there");
    drop(silent);
    eventually_true("it ends when it is answered", 10, || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", stuck[0])).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    let waited = count(&disks, "waitforattach");
    assert_eq!(disks.devices().len(), 1, "{:?}", disks.devices());
    let device = disks.devices()[0].display().to_string();
    let told = status(&kubectl, "volumesAttached");
    assert_contains(&told, &["flexvolume-carrack/loopdisk/pv-data", &device]);
    assert_contains(&status(&kubectl, "volumesInUse"), &["flexvolume-carrack/loopdisk/pv-data"]);
    let found = attachments(&kubectl);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0]["status"]["attached"], &found[0]["spec"]["attacher"]),
        (&true.into(), &"flexvolume.carrack.io".into())
    );

    // It grows under the writer.
    let kilobytes = || -> u64 {
        let said = kubectl.ok(&["exec", "writer", "--", "df", "-k", "/data"]);
        said.lines().last().and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    let small = kilobytes();
    assert!((20_000..33_000).contains(&small), "{small}");
    let grow = "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"64Mi\"}}}}";
    disks.mode("fail expandvolume");
    kubectl.ok(&["patch", "pvc", "data", "--type=merge", "-p", grow]);
    eventually("the driver's failure shows in the claim's events", 60, || {
        let said = kubectl.ok(&["describe", "pvc", "data"]);
        if said.contains("VolumeResizeFailed") && said.contains("told to fail") { Ok(()) } else { Err(said) }
    });
    assert_eq!(kubectl.field("pv", "pv-data", "/spec/capacity/storage"), "32Mi");
    disks.mode("");
    kubectl.ok(&["wait", "--for=jsonpath={.spec.capacity.storage}=64Mi", "pv/pv-data", "--timeout=50s"]);
    // Agents come and go; the disk stays.
    let devices = disks.devices();
    sandbox.kill_9();
    sandbox.start(&[]);
    eventually_true("the attacher has looked at it", 60, || count(&disks, "isattached") > 0);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=60s"]);
    assert_eq!((disks.devices(), disks.undone()), (devices, Vec::new()));
    assert_eq!(count(&disks, "waitforattach"), waited, "a restart mounts nothing");
    if !may_grow_mounted() {
        // By the claim, and by an event, unless the kubelet was killed between the two.
        eventually("the reason is told", 60, || {
            let conditions = kubectl.field("pvc", "data", "/status/conditions").to_string();
            let said = kubectl.ok(&["describe", "pod", "writer"]) + &conditions;
            if said.contains("VolumeResizeFailed") || said.contains("NodeResizeError") { Ok(()) } else { Err(said) }
        });
        kubectl.ok(&["delete", "pod", "writer", "--timeout=60s"]);
        eventually_true("it is detached", 60, || attachments(&kubectl).is_empty() && !disks.attached());
        writer(&kubectl);
        kubectl.ok(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=90s"]);
    }
    eventually("the claim is as large as its volume", 60, || {
        let claim = kubectl.ok(&["describe", "pvc", "data"]);
        let done = kubectl.field("pvc", "data", "/status/capacity/storage") == "64Mi";
        if done { Ok(()) } else { Err(claim + &kubectl.ok(&["describe", "pod", "writer"])) }
    });
    assert!(kilobytes() > 50_000, "{}", kilobytes());
    let head = kubectl.ok(&["exec", "writer", "--", "head", "-n", "1", "/data/log"]);
    assert_eq!(head.trim(), "1", "what was written is there");
    assert_eq!(kubectl.field("pod", "writer", "/status/containerStatuses/0/restartCount"), 0);

    // It goes when its pod does, after the node has let go of it.
    disks.mode("fail detach");
    kubectl.ok(&["delete", "pod", "writer", "--timeout=60s"]);
    eventually_true("the attachment says why it stays", 60, || {
        attachments(&kubectl).iter().any(|a| a["status"]["detachError"]["message"].to_string().contains("told to fail"))
    });
    assert!(!status(&kubectl, "volumesInUse").contains("pv-data"));
    assert!(disks.attached());
    disks.mode("");
    eventually_true("the attachment ends", 60, || attachments(&kubectl).is_empty());
    assert!(!disks.attached());
    assert_contains(&disks.undone().join(" "), &["unmountdevice", "detach"]);
    assert!(!status(&kubectl, "volumesAttached").contains("pv-data"));
}

/// A pod that brings its disk itself, with an option.
fn bringer(kubectl: &Kubectl<'_>, name: &str, kind: &str) {
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"exec 3>>/data/log; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.1; done\"]\n    \
         volumeMounts: [{{name: own, mountPath: /data}}]\n  volumes:\n  - name: own\n    \
         flexVolume: {{driver: carrack/loopdisk, fsType: ext4, options: {{kind: {kind}}}}}\n"
    ));
}

#[test]
fn a_disk_that_a_pod_brings_is_attached_by_the_control_plane() {
    let sandbox = Sandbox::up(&["busybox"]);
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    disks.mode("fail attach");
    bringer(&kubectl, "bringer", "first");
    eventually("the driver's failure shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "bringer"]);
        if said.contains("FailedAttachVolume") && said.contains("told to fail") { Ok(()) } else { Err(said) }
    });
    assert_eq!(count(&disks, "waitforattach"), 0, "the node waits");
    for mode in ["garbage attach", "twice attach"] {
        disks.mode(mode);
        let before = count(&disks, "attach");
        eventually_true("it is tried again", 60, || count(&disks, "attach") > before + 1);
        assert!(!status(&kubectl, "volumesAttached").contains("own"), "{mode}: that is no answer");
    }
    eventually("what it prints shows in the pod's events", 60, || {
        let said = kubectl.ok(&["describe", "pod", "bringer"]);
        if said.contains("no answer in JSON") { Ok(()) } else { Err(said) }
    });
    disks.mode("");
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/bringer", "--timeout=90s"]);
    let unique = "flexvolume-carrack/loopdisk/own";
    let device = disks.devices()[0].display().to_string();
    assert_contains(&status(&kubectl, "volumesAttached"), &[unique, &device]);
    assert_contains(&status(&kubectl, "volumesInUse"), &[unique]);
    let found = attachments(&kubectl);
    assert_eq!(found.len(), 1, "{found:?}");
    let inline = &found[0]["spec"]["source"]["inlineVolumeSpec"]["csi"];
    assert_eq!((&inline["volumeHandle"], &inline["volumeAttributes"]["kind"]), (&unique.into(), &"first".into()));

    // What is called the same on this node, and is not the same, waits.
    bringer(&kubectl, "other", "second");
    eventually("the other is told why it waits", 60, || {
        let said = kubectl.ok(&["describe", "pod", "other"]);
        if said.contains("another volume is called") { Ok(()) } else { Err(said) }
    });

    // Agents come and go; the disk stays.
    let devices = disks.devices();
    sandbox.kill_9();
    sandbox.start(&[]);
    eventually_true("the attacher has looked at it", 60, || count(&disks, "isattached") > 0);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/bringer", "--timeout=60s"]);
    assert_eq!((disks.devices(), disks.undone()), (devices, Vec::new()));
    assert_eq!(count(&disks, "waitforattach"), 1, "a restart mounts nothing");
    assert_eq!(kubectl.field("pod", "bringer", "/status/containerStatuses/0/restartCount"), 0);

    // It goes with its pod, and then the other has one of its own.
    kubectl.ok(&["delete", "pod", "bringer", "--timeout=60s"]);
    eventually_true("it is detached", 60, || count(&disks, "detach") == 1);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/other", "--timeout=150s"]);
    assert_eq!(
        attachments(&kubectl)[0]["spec"]["source"]["inlineVolumeSpec"]["csi"]["volumeAttributes"]["kind"],
        "second"
    );
    kubectl.ok(&["delete", "pod", "other", "--timeout=60s"]);
    eventually_true("the attachment ends", 60, || attachments(&kubectl).is_empty() && !disks.attached());
    assert!(!status(&kubectl, "volumesAttached").contains(unique));
}

#[test]
fn a_disk_that_is_lost_comes_back_under_another_name() {
    let sandbox = Sandbox::up(&["busybox"]);
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    disks.mode("fail waitforattach");
    bringer(&kubectl, "bringer", "first");
    let told = || status(&kubectl, "volumesAttached");
    eventually_true("it is attached, and not mounted", 90, || {
        told().contains("/dev/loop") && count(&disks, "waitforattach") > 0
    });
    let before = disks.devices()[0].display().to_string();
    // It is taken away behind everybody's back, and another disk gets its name.
    let image = sandbox.home().join("squatter.img");
    fs::write(&image, vec![0; 1 << 20]).expect("written");
    let squatter = Squatter::in_place_of(&before, &image);
    eventually_true("the node is told of the new name", 150, || {
        let told = told();
        told.contains("/dev/loop") && !told.contains(&format!("{before}\""))
    });
    disks.mode("");
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/bringer", "--timeout=150s"]);
    drop(squatter);
    assert_eq!(fs::read(&image).expect("read"), vec![0; 1 << 20], "another's disk is untouched");
    kubectl.ok(&["delete", "pod", "bringer", "--timeout=60s"]);
    eventually_true("it is detached", 60, || attachments(&kubectl).is_empty() && !disks.attached());
}

/// Another disk under the name of one that was taken away, until this is dropped.
struct Squatter(Option<String>);

impl Squatter {
    fn in_place_of(device: &str, image: &Path) -> Self {
        let name = device.trim_start_matches("/dev/");
        let behind = || fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
        let lost = behind();
        assert!(losetup(&["-d", device]), "{device} is taken away");
        let ours = eventually("another disk has its name", 30, || {
            if losetup(&[device, &image.to_string_lossy()]) {
                return Ok(true);
            }
            // One that another test has just attached is as good. The one that was taken away is there for as long as it is open.
            let now = behind();
            if now.is_empty() || now == lost { Err(now) } else { Ok(false) }
        });
        Self(ours.then(|| device.to_owned()))
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        if let Some(device) = &self.0 {
            losetup(&["-d", device]);
        }
    }
}

/// Whether it succeeds.
fn losetup(args: &[&str]) -> bool {
    Command::new("losetup").args(args).status().expect("losetup runs").success()
}

#[test]
fn a_node_that_is_told_to_attaches_by_itself() {
    let sandbox = Sandbox::new();
    let config = sandbox.kubelet_config("enableControllerAttachDetach: false\n");
    sandbox.start(&["--kubelet-config", &config]);
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    let disks = Disks::install(&sandbox);
    let kubectl = sandbox.kubectl();
    claim(&kubectl);
    writer(&kubectl);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=90s"]);
    assert_eq!((disks.devices().len(), attachments(&kubectl)), (1, Vec::new()));
    assert_eq!(status(&kubectl, "volumesAttached"), "");
    kubectl.ok(&["delete", "pod", "writer", "--timeout=60s"]);
    eventually_true("the disk is detached", 60, || !disks.attached());
}

/// A pod that counts into a file of a volume that a process serves.
fn served(kubectl: &Kubectl<'_>) {
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: served\nspec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {fsGroup: 4711}\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"exec 3>>/data/log; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.1; done\"]\n    \
         volumeMounts: [{name: far, mountPath: /data}, {name: far, mountPath: /part, subPath: part}]\n  \
         volumes:\n  - name: far\n    flexVolume: {driver: carrack/filedisk}\n",
    );
}

/// A pod without a volume of a driver, which must run soon.
fn beside(kubectl: &Kubectl<'_>, name: &str) {
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sleep, \"1000\"]\n    volumeMounts: [{{name: own, mountPath: /own}}]\n  volumes:\n  - name: own\n    \
         emptyDir: {{}}\n"
    ));
    kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]);
}

#[test]
fn a_file_server_that_is_away_holds_up_nobody_else() {
    let sandbox = Sandbox::up(&["busybox"]);
    let files = Disks::install_files(&sandbox);
    let kubectl = sandbox.kubectl();
    served(&kubectl);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/served", "--timeout=60s"]);
    beside(&kubectl, "first");
    let uid = kubectl.field("pod", "served", "/metadata/uid").as_str().unwrap_or_default().to_owned();
    let mounts = || -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("read");
        let places = table.lines().filter(|line| line.contains(&uid) && line.contains(" fuse"));
        places.map(str::to_owned).collect()
    };
    let before = mounts();
    assert_eq!(before.len(), 2, "the volume, and its part: {before:?}");
    let group = kubectl.ok(&["exec", "served", "--", "stat", "-c", "%g", "/data"]);
    assert_eq!(group.trim(), "0", "its driver takes no groups");
    let count = || -> u64 {
        let said = kubectl.ok(&["exec", "served", "--", "tail", "-n", "1", "/data/log"]);
        said.trim().parse().unwrap_or_default()
    };
    let counted = count();

    // The node's agents die while it is away, and come back.
    let away = files.stand_still().expect("a process serves the volume");
    sandbox.kill_9();
    sandbox.start(&[]);
    beside(&kubectl, "second");
    kubectl.ok(&["delete", "pod", "first", "--timeout=60s"]);
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let summary = kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]);
    assert_contains(&summary, &["\"second\""]);
    assert_eq!((mounts(), files.undone()), (before, Vec::new()), "nothing is taken from the pod");
    assert_eq!(kubectl.field("pod", "served", "/status/containerStatuses/0/restartCount"), 0);
    assert_eq!(kubectl.field("pod", "served", "/status/phase"), "Running");

    // It is back: the pod goes on as if nothing had been.
    drop(away);
    eventually_true("the pod counts on", 60, || count() > counted);
    assert_eq!(kubectl.field("pod", "served", "/status/containerStatuses/0/restartCount"), 0);

    // Away once more, and for good as far as the pod is concerned: others come and go all the same.
    let away = files.stand_still().expect("a process serves the volume");
    kubectl.ok(&["delete", "pod", "served", "--wait=false"]);
    beside(&kubectl, "third");
    kubectl.ok(&["delete", "pod", "second", "third", "--timeout=60s"]);
    drop(away);
    eventually_true("the pod goes", 150, || kubectl.get("pod", "served").is_none());
    eventually_true("nothing of it is mounted", 60, || mounts().is_empty());
    eventually_true("nothing serves it any more", 60, || files.servers().is_empty());
}
