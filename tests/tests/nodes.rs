//! Three nodes on one machine: pods that reach each other, a node that loses power, one that is cut off, and machines that
//! come back elsewhere, and only once.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]
#![expect(clippy::disallowed_methods, reason = "measures how long it takes until a machine runs again")]

use std::time::Instant;

use carrack_e2e::{Kubectl, Sandbox, eventually, eventually_true, root};

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
