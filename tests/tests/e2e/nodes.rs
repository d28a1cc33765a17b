//! Three nodes on one machine: pods that reach each other, a node that loses power, one that is cut off, and machines that
//! come back elsewhere, and only once.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]
#![expect(clippy::disallowed_methods, reason = "measures how long it takes until a machine runs again")]

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use carrack_e2e::{Disks, Kubectl, Sandbox, eventually, eventually_true, root};

/// A sandbox with three nodes and these images on all of them.
fn three(images: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.start(&["--nodes", "3", "--timeout", "300"]);
    let arguments: Vec<&str> = ["image", "build"].into_iter().chain(images.iter().copied()).collect();
    sandbox.carrack(&arguments).limit_s(300).done();
    sandbox
}

fn pod(name: &str, node: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: c\n    image: localhost/carrack/busybox:0.1.0\n    \
         imagePullPolicy: IfNotPresent\n    command: [sh, -c, {script:?}]\n"
    )
}

fn text(kubectl: &Kubectl<'_>, kind: &str, name: &str, pointer: &str) -> String {
    kubectl.field(kind, name, pointer).as_str().unwrap_or_default().to_owned()
}

/// The nodes on which a QEMU of this cluster runs.
fn guests(sandbox: &Sandbox) -> Vec<String> {
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let program = read("cmdline").split('\0').next().unwrap_or_default().to_owned();
        if !program.contains("qemu-system") {
            continue;
        }
        let mounts = read("mountinfo");
        for number in 1..=3 {
            let snapshots = sandbox.data_dir().join(format!("nodes/node-{number}/containerd/root"));
            let snapshots = snapshots.display().to_string();
            if mounts.lines().any(|line| line.split(' ').nth(4) == Some("/") && line.contains(&snapshots)) {
                nodes.push(format!("node-{number}"));
            }
        }
    }
    nodes
}

fn place(kubectl: &Kubectl<'_>) -> String {
    if text(kubectl, "vmi", "demo", "/status/phase") == "Running" {
        text(kubectl, "vmi", "demo", "/status/nodeName")
    } else {
        String::new()
    }
}

/// Waits until the machine runs on another node than this one, and watches meanwhile that there are never two guests.
fn comes_back(sandbox: &Sandbox, kubectl: &Kubectl<'_>, from: &str) -> String {
    eventually("the machine runs on another node", 120, || {
        let running = guests(sandbox);
        assert!(running.len() <= 1, "two guests: {running:?}");
        let now = place(kubectl);
        if !now.is_empty() && now != from && running == [now.clone()] {
            Ok(now)
        } else {
            Err(format!("{now:?} {running:?}"))
        }
    })
}

#[test]
fn pods_of_different_nodes_reach_each_other_and_restarts_keep_the_nodes() {
    let sandbox = three(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let names = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert_eq!(names, "node-1 node-2 node-3");
    kubectl.apply(&pod("server", "node-1", "echo from node-1 > /tmp/index.html; exec httpd -f -p 80 -h /tmp"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/server", "--timeout=60s"]);
    let address = text(&kubectl, "pod", "server", "/status/podIP");
    assert!(address.starts_with("10.42.0."), "{address}");
    kubectl.apply(&pod("client", "node-3", "while :; do sleep 1; done"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/client", "--timeout=60s"]);
    let url = format!("http://{address}/index.html");
    let fetch = || kubectl.ok(&["exec", "client", "--", "wget", "-q", "-O", "-", &url]);
    assert_eq!(fetch().trim(), "from node-1");
    // The machine itself, by way of the node's masquerading.
    kubectl.ok(&["exec", "client", "--", "ping", "-c", "1", "-w", "5", "10.44.0.1"]);

    let started = || text(&kubectl, "pod", "client", "/status/containerStatuses/0/state/running/startedAt");
    let before = started();
    sandbox.kill_9();
    sandbox.start(&[]);
    // `up` returned when the nodes' agents answered, not when the stored nodes said Ready.
    kubectl.ok(&["exec", "client", "--", "true"]);
    assert_eq!((started(), fetch().trim()), (before, "from node-1"));
}

#[test]
fn a_machine_whose_node_loses_power_runs_again_elsewhere() {
    let sandbox = three(&["demo"]);
    let kubectl = sandbox.kubectl();
    kubectl.ok(&["apply", "-f", &root().join("examples/vm.yaml").display().to_string()]);
    eventually_true("the machine runs", 120, || !place(&kubectl).is_empty());
    let first = place(&kubectl);
    assert_eq!(text(&kubectl, "vmi", "demo", "/metadata/annotations/kubevirt.io~1failover"), "true");

    let cut = Instant::now();
    sandbox.carrack(&["node", "off", &first]).limit_s(60).done();
    let second = comes_back(&sandbox, &kubectl, &first);
    println!("power lost to running again: {:.1} s", cut.elapsed().as_secs_f64());

    // A node that is cut off stops its own guest; the other one starts it.
    let cut = Instant::now();
    sandbox.carrack(&["node", "exec", &second, "--", "ip", "link", "set", "eth0", "down"]).done();
    let third = comes_back(&sandbox, &kubectl, &second);
    println!("cut off to running again: {:.1} s", cut.elapsed().as_secs_f64());
    assert_ne!(third, first);

    // Both are taken back when they are heard again.
    sandbox.carrack(&["node", "on", &first]).done();
    sandbox.carrack(&["node", "exec", &second, "--", "ip", "link", "set", "eth0", "up"]).done();
    for node in [&first, &second] {
        eventually("the node takes guests again", 120, || {
            let label = text(&kubectl, "node", node, "/metadata/labels/kubevirt.io~1schedulable");
            if label == "true" { Ok(()) } else { Err(label) }
        });
    }
    assert_eq!(guests(&sandbox), [third]);
}

/// A machine that writes lines onto a disk that all nodes have, each into a sector of its own: which boot of which guest
/// wrote it, and its number. The disk is shareable, so that no lock of QEMU's keeps a second writer from it.
fn writer(disk: &Path) -> String {
    shared(disk, "shareable: true, ")
}

/// The same, with a disk that has one writer at a time.
fn lone_writer(disk: &Path) -> String {
    shared(disk, "")
}

fn shared(disk: &Path, sharing: &str) -> String {
    let source = format!(
        "hostPath: {{path: {}, type: Directory}}\n  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [\n    \
         {{key: kubernetes.io/hostname, operator: In, values: [node-1, node-2, node-3]}}]}}]}}}}",
        disk.display()
    );
    machine(&source, "ReadWriteMany", sharing)
}

/// The same, with a disk that is attached to one node at a time, by its driver.
fn attached_writer() -> String {
    machine("flexVolume: {driver: carrack/loopdisk, fsType: ext4}", "ReadWriteOnce", "")
}

fn machine(source: &str, mode: &str, sharing: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: PersistentVolume
metadata: {{name: shared}}
spec:
  accessModes: [{mode}]
  capacity: {{storage: 16Mi}}
  storageClassName: ""
  claimRef: {{namespace: default, name: shared}}
  {source}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: shared}}
spec:
  accessModes: [{mode}]
  storageClassName: ""
  volumeName: shared
  resources: {{requests: {{storage: 16Mi}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: demo}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 5
      domain:
        memory: {{guest: 192Mi}}
        devices:
          disks:
          - {{name: root, disk: {{bus: virtio}}}}
          - {{name: cloudinit, disk: {{bus: virtio}}}}
          - {{name: shared, serial: SHARED, {sharing}cache: none, disk: {{bus: virtio}}}}
      volumes:
      - name: root
        containerDisk: {{image: "localhost/carrack/demo-guest:0.1.0", imagePullPolicy: IfNotPresent}}
      - name: cloudinit
        cloudInitNoCloud:
          userData: |
            #!/bin/sh
            for d in /sys/block/vd*; do [ "$(cat $d/serial)" = SHARED ] && dev=/dev/${{d##*/}}; done
            boot=$(cat /proc/sys/kernel/random/boot_id)
            n=$(dd if=$dev bs=64k count=128 2>/dev/null | tr -d '\000' | wc -l)
            while :; do
              printf '%-511s\n' "$boot $n" | dd of=$dev bs=512 seek=$n conv=notrunc,fsync 2>/dev/null
              n=$((n+1))
            done &
      - name: shared
        persistentVolumeClaim: {{claimName: shared}}
"#
    )
}

/// The lines on the disk, up to the first empty sector.
fn lines(image: &Path) -> Vec<String> {
    // The image is there once the machine has been started.
    let Ok(file) = std::fs::File::open(image) else { return Vec::new() };
    let mut reader = std::io::BufReader::new(file);
    let mut sector = [0; 512];
    let mut lines = Vec::new();
    while reader.read_exact(&mut sector).is_ok() && sector[0] != 0 {
        lines.push(String::from_utf8_lossy(&sector).trim().to_owned());
    }
    lines
}

/// The boots that have written, in their order; or what shows that two wrote at the same time. What was there before
/// must be there still.
fn writers(before: &[String], lines: &[String]) -> Result<Vec<String>, String> {
    if let Some((was, is)) = before.iter().zip(lines).find(|(was, is)| was != is) {
        return Err(format!("{was:?} was overwritten by {is:?}"));
    }
    if lines.len() < before.len() {
        return Err(format!("of {} lines {} are left", before.len(), lines.len()));
    }
    let mut boots: Vec<String> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let (boot, written) = line.split_once(' ').ok_or_else(|| format!("{line:?}"))?;
        if written.parse() != Ok(number) {
            return Err(format!("in sector {number} stands {line:?}"));
        }
        if boots.last().is_none_or(|last| last != boot) {
            if boots.iter().any(|other| other == boot) {
                return Err(format!("{boot} writes line {number}, after another one has begun"));
            }
            boots.push(boot.to_owned());
        }
    }
    Ok(boots)
}

#[test]
fn what_two_writers_leave_is_told_from_what_one_leaves() {
    let check = |before: &str, now: &str, expected: Option<usize>| {
        let lines =
            |text: &str| -> Vec<String> { text.split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect() };
        assert_eq!(writers(&lines(before), &lines(now)).ok().map(|boots| boots.len()), expected, "{before:?} {now:?}");
    };
    check("", "", Some(0));
    check("a 0", "a 0,a 1,b 2", Some(2));
    check("", "a 0,b 1,a 2", None);
    check("", "a 0,a 2", None);
    check("a 0,a 1", "a 0,b 1", None);
    check("a 0,a 1", "a 0", None);
}

#[test]
fn a_machine_that_moves_never_writes_twice_at_once() {
    let sandbox = three(&["demo"]);
    let kubectl = sandbox.kubectl();
    let disk = sandbox.home().join("shared");
    std::fs::create_dir(&disk).expect("a directory");
    let image = disk.join("disk.img");
    kubectl.apply(&writer(&disk));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Looks at the disk all the time: what was written over afterwards was there for a moment.
        let watch = scope.spawn(|| {
            let mut before = Vec::new();
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                let now = lines(&image);
                writers(&before, &now)?;
                (before, looks) = (now, looks + 1);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok::<_, String>(looks)
        });
        let writes = |boots: usize, what: &str| {
            eventually(what, 240, || {
                let seen = writers(&[], &lines(&image))?;
                let more = lines(&image).iter().filter(|line| seen.last().is_some_and(|b| line.starts_with(b))).count();
                if seen.len() == boots && more > 5 {
                    Ok(())
                } else {
                    Err(format!("{} boots, {more} lines", seen.len()))
                }
            });
        };
        let moves = || {
            writes(1, "the machine writes");
            let first = place(&kubectl);
            assert_eq!(text(&kubectl, "vmi", "demo", "/metadata/annotations/kubevirt.io~1failover"), "true");
            sandbox.carrack(&["node", "off", &first]).limit_s(60).done();
            let second = comes_back(&sandbox, &kubectl, &first);
            writes(2, "the machine writes elsewhere");
            // Cut off, it writes on for as long as its node has promised it, and not longer.
            sandbox.carrack(&["node", "exec", &second, "--", "ip", "link", "set", "eth0", "down"]).done();
            comes_back(&sandbox, &kubectl, &second);
            writes(3, "the machine writes elsewhere again");
            sandbox.carrack(&["node", "exec", &second, "--", "ip", "link", "set", "eth0", "up"]).done();
        };
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(moves));
        over.store(true, Ordering::Relaxed);
        let looks = watch.join().expect("it does not panic").expect("one writer at a time");
        if let Err(panic) = moved {
            std::panic::resume_unwind(panic);
        }
        assert!(looks > 100, "the disk was looked at {looks} times");
    });
    println!("{} lines", lines(&image).len());

    // Nothing but the machine's own being there once kept a second writer away, and one would have shown.
    let manifest = writer(&disk);
    let (_, machine) = manifest.rsplit_once("---\n").expect("three objects");
    kubectl.apply(&machine.replace("{name: demo}", "{name: second}"));
    let mut before = lines(&image);
    eventually_true("a second machine's writing shows", 240, || {
        let now = lines(&image);
        let shows = writers(&before, &now).is_err();
        before = now;
        shows
    });
}

/// The node of each attachment of a disk.
fn attached_to(kubectl: &Kubectl<'_>) -> String {
    kubectl.ok(&["get", "volumeattachments", "-o", "jsonpath={.items[*].spec.nodeName}"])
}

/// A dead node never says that it has done with a disk. The machine takes it along all the same: nobody else has it there, and
/// that the machine does not run there any more is proved by its node's Lease.
#[test]
fn a_disk_that_is_attached_goes_with_its_machine() {
    let sandbox = three(&["demo"]);
    let disks = Disks::install(&sandbox);
    for node in 1..=3 {
        let plugins = sandbox.data_dir().join(format!("nodes/node-{node}/volume-plugins"));
        std::os::unix::fs::symlink(sandbox.data_dir().join("volume-plugins"), plugins).expect("a link");
    }
    let kubectl = sandbox.kubectl();
    kubectl.apply(&attached_writer());
    // The guest's disk, as the node that has it sees it.
    let seen = sandbox.home().join("copy");
    let lines_at = |node: &str| {
        let mounts = sandbox.data_dir().join(format!("nodes/{node}/kubelet/plugins/kubernetes.io/flexvolume"));
        let (mounts, copy) = (mounts.display(), seen.display());
        let script = format!("cp $(find {mounts} -name disk.img) {copy} || : > {copy}");
        sandbox.carrack(&["node", "exec", node, "--", "sh", "-c", &script]).done();
        lines(&seen)
    };
    let writes = |node: &str, boots: usize, before: &[String]| {
        eventually("the machine writes", 120, || {
            let now = lines_at(node);
            let seen = writers(before, &now)?;
            let more = now.iter().filter(|line| seen.last().is_some_and(|boot| line.starts_with(boot))).count();
            if seen.len() == boots && more > 5 { Ok(now) } else { Err(format!("{} boots, {more} lines", seen.len())) }
        })
    };
    eventually_true("the machine runs", 120, || !place(&kubectl).is_empty());
    let first = place(&kubectl);
    assert_eq!(text(&kubectl, "vmi", "demo", "/metadata/annotations/kubevirt.io~1failover"), "true");
    let before = writes(&first, 1, &[]);
    assert_eq!(attached_to(&kubectl), first);
    let uid = text(&kubectl, "vmi", "demo", "/metadata/uid");
    let users = text(&kubectl, "node", &first, "/metadata/annotations/carrack.io~1volume-users");
    assert_eq!(users, format!("{{\"flexvolume-carrack/loopdisk/shared\":[\"{uid}\"]}}"));

    sandbox.carrack(&["node", "off", &first]).limit_s(60).done();
    let second = comes_back(&sandbox, &kubectl, &first);
    assert_eq!(attached_to(&kubectl), second);
    // What had reached the disk when the power went is there, and the machine goes on behind it.
    let before: Vec<String> = before.into_iter().take(1).collect();
    writes(&second, 2, &before);

    // Whoever shares a disk with the machine is not known to be dead with it.
    let lodger = pod("lodger", &second, "while :; do sleep 1; done").replace(
        "  containers:\n  - name: c\n",
        "  volumes:\n  - name: v\n    persistentVolumeClaim: {claimName: shared}\n  containers:\n  - name: c\n    \
         volumeMounts: [{name: v, mountPath: /data}]\n",
    );
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    kubectl.apply(&lodger);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/lodger", "--timeout=60s"]);
    sandbox.carrack(&["node", "off", &second]).limit_s(60).done();
    sandbox.carrack(&["node", "on", &first]).limit_s(60).done();
    eventually("it waits for the disk", 120, || {
        let said = kubectl.ok(&["get", "events", "--field-selector", "reason=FailedAttachVolume"]);
        if said.contains("Multi-Attach error") { Ok(()) } else { Err(said) }
    });
    assert_eq!((attached_to(&kubectl), guests(&sandbox)), (second.clone(), vec![]));
    // Until its node is back, or somebody says that it does not come back.
    kubectl.ok(&["taint", "node", &second, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"]);
    let third = comes_back(&sandbox, &kubectl, &second);
    assert_eq!(attached_to(&kubectl), third);
    kubectl.ok(&["delete", "vm", "demo", "--timeout=90s"]);
    eventually("the disk is detached", 60, || {
        let at = attached_to(&kubectl);
        if at.is_empty() && !disks.attached() { Ok(()) } else { Err(at) }
    });
}

/// What the record beside an image says.
fn record(image: &Path) -> serde_json::Value {
    let text = std::fs::read(image.with_file_name("disk.img.writer")).unwrap_or_default();
    serde_json::from_slice(text.trim_ascii()).unwrap_or_default()
}

#[test]
fn a_disk_that_a_newer_run_has_taken_is_not_written() {
    let sandbox = Sandbox::new();
    sandbox.start(&["--nodes", "2", "--timeout", "300"]);
    sandbox.carrack(&["image", "build", "demo"]).limit_s(300).done();
    let kubectl = sandbox.kubectl();
    let disk = sandbox.home().join("shared");
    std::fs::create_dir(&disk).expect("a directory");
    let image = disk.join("disk.img");
    kubectl.apply(&lone_writer(&disk));
    eventually_true("the machine writes", 240, || lines(&image).len() > 5);
    let first = record(&image);
    assert_eq!(first["machine"], "default/demo");
    assert_eq!(first["uid"], text(&kubectl, "vmi", "demo", "/metadata/uid"));
    assert_eq!(first["node"], place(&kubectl));

    // Another machine's guest does not start while this one's runs; this one's goes on.
    let manifest = lone_writer(&disk);
    let (_, machine) = manifest.rsplit_once("---\n").expect("three objects");
    kubectl.apply(&machine.replace("{name: demo}", "{name: second}"));
    eventually("the second machine is told why it does not start", 120, || {
        let events = kubectl.ok(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
        if events.contains("it is in use by default/demo") { Ok(()) } else { Err(events) }
    });
    kubectl.ok(&["delete", "vm", "second", "--timeout=60s"]);
    assert_eq!(record(&image), first);

    // As a run elsewhere would write that this node knows nothing of: the guest stops at once, and none starts again.
    let mut taken = first.clone();
    taken["epoch"] = serde_json::json!(1_u64 << 40);
    taken["uid"] = "another".into();
    taken["node"] = "elsewhere".into();
    let rewrite = |to: &serde_json::Value| {
        let text = format!("{:<1023}\n", to.to_string());
        std::fs::write(image.with_file_name("disk.img.writer"), text).expect("written");
    };
    let at = Instant::now();
    rewrite(&taken);
    eventually_true("the guest has stopped", 20, || guests(&sandbox).is_empty());
    println!("taken to stopped: {:.1} s", at.elapsed().as_secs_f64());
    let left = lines(&image).len();
    eventually("the next start is refused", 120, || {
        let events = kubectl.ok(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
        if events.contains("a newer run of default/demo has it, on node elsewhere") { Ok(()) } else { Err(events) }
    });
    assert_eq!(lines(&image).len(), left, "nothing was written");

    // Somebody who knows better takes the record away.
    std::fs::remove_file(image.with_file_name("disk.img.writer")).expect("removed");
    eventually_true("the machine writes again", 240, || lines(&image).len() > left + 5);
}
