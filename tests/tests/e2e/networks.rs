//! Further networks of pods and machines, by NetworkAttachmentDefinitions: real CNI plugins, real guests.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::path::{Path, PathBuf};

use carrack_e2e::{Kubectl, Sandbox, assert_contains, eventually, eventually_true};

const GUEST: &str = "localhost/carrack/demo-guest:0.1.0";
const BUSYBOX: &str = "localhost/carrack/busybox:0.1.0";
const BRIDGE: &str = "br-lan";

/// A network on a bridge of its own. Addresses that are in use are files below `addresses`.
fn lan(addresses: &Path) -> String {
    let config = serde_json::json!({
        "cniVersion": "0.4.0", "name": "lan", "type": "bridge", "bridge": BRIDGE, "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": addresses},
    });
    definition("lan", &config.to_string())
}

fn definition(name: &str, config: &str) -> String {
    serde_json::json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name}, "spec": {"config": config},
    })
    .to_string()
}

fn machine(name: &str) -> String {
    format!(
        r##"
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 20
      domain:
        memory: {{guest: 160Mi}}
        devices:
          disks:
            - {{name: root, disk: {{bus: virtio}}}}
          interfaces:
            - {{name: default, masquerade: {{}}}}
            - {{name: second, bridge: {{}}}}
      networks:
        - {{name: default, pod: {{}}}}
        - {{name: second, multus: {{networkName: lan}}}}
      volumes:
        - {{name: root, containerDisk: {{image: "{GUEST}", imagePullPolicy: IfNotPresent}}}}
"##
    )
}

fn pod(name: &str, networks: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": BUSYBOX,
            "imagePullPolicy": "IfNotPresent", "command": ["sleep", "3600"]}]},
    })
    .to_string()
}

/// The second interface of a machine: hardware address and address.
fn second(kubectl: &Kubectl<'_>, name: &str) -> (String, String) {
    let text = |field: &str| {
        let value = kubectl.field("vmi", name, &format!("/status/interfaces/1/{field}"));
        value.as_str().unwrap_or_default().to_owned()
    };
    // The guest's agent is asked now and then: its first answer may be older than the guest's second interface, and its lease.
    eventually("its agent tells of its second interface", 90, || {
        let source = text("infoSource");
        if ["domain", "guest-agent", "multus-status"].iter().all(|part| source.contains(part)) {
            Ok(())
        } else {
            Err(source)
        }
    });
    assert!(text("podInterfaceName").starts_with("pod"), "{}", text("podInterfaceName"));
    let status =
        kubectl.field("pod", &launcher(kubectl, name), "/metadata/annotations/k8s.v1.cni.cncf.io~1network-status");
    let status: serde_json::Value = serde_json::from_str(status.as_str().expect("told")).expect("JSON");
    let address = status[1]["ips"][0].as_str().expect("an address").to_owned();
    (text("mac"), address)
}

fn launcher(kubectl: &Kubectl<'_>, name: &str) -> String {
    let uid = kubectl.field("vmi", name, "/metadata/uid");
    let label = format!("kubevirt.io/created-by={}", uid.as_str().expect("a UID"));
    let pods = kubectl.ok(&["get", "pods", "-l", &label, "-o", "name"]);
    pods.trim().trim_start_matches("pod/").to_owned()
}

/// The addresses that are in use.
fn addresses(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("lan")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("10.")).collect()
}

/// How many links are on the network's bridge.
fn ports(sandbox: &Sandbox) -> usize {
    sandbox.program("ip", &["-o", "link", "show", "master", BRIDGE]).output().stdout.lines().count()
}

fn in_use(sandbox: &Sandbox, dir: &Path, wanted: usize) {
    eventually(&format!("{wanted} are on the network"), 90, || {
        let there = (addresses(dir), ports(sandbox));
        if (there.0.len(), there.1) == (wanted, wanted) { Ok(()) } else { Err(format!("{there:?}")) }
    });
}

#[test]
fn machines_and_pods_meet_on_a_further_network() {
    let sandbox = Sandbox::up(&["demo", "busybox"]);
    let kubectl = sandbox.kubectl();
    let dir: PathBuf = sandbox.home().join("addresses");
    kubectl.apply(&lan(&dir));
    kubectl.apply(&machine("left"));
    kubectl.apply(&machine("right"));
    // Both forms of the annotation, the second with an address of its own.
    kubectl.apply(&pod("short", "default/lan@blue"));
    kubectl.apply(&pod(
        "long",
        r#"[{"name": "lan", "interface": "red", "mac": "02:00:00:00:00:42", "ips": ["10.77.0.200/24"]}]"#,
    ));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/short", "pod/long", "--timeout=60s"]);
    assert_contains(&kubectl.ok(&["exec", "short", "--", "ip", "address", "show", "dev", "blue"]), &["inet 10.77.0."]);
    assert_contains(
        &kubectl.ok(&["exec", "long", "--", "ip", "address", "show", "dev", "red"]),
        &["inet 10.77.0.200/24", "02:00:00:00:00:42"],
    );
    let status = kubectl.field("pod", "long", "/metadata/annotations/k8s.v1.cni.cncf.io~1network-status");
    assert_contains(status.as_str().expect("told"), &["default/lan", "10.77.0.200", "\"red\"", "eth0"]);

    for name in ["left", "right"] {
        kubectl.wait_agent(name);
    }
    let (left, right) = (second(&kubectl, "left"), second(&kubectl, "right"));
    kubectl.holds_in_guest("left", &format!("grep -q {} /sys/class/net/eth1/address", left.0));
    kubectl.holds_in_guest("left", &format!("ip address show dev eth1 | grep -q 'inet {}/24'", left.1));
    kubectl.holds_in_guest("left", &format!("ping -c 1 -W 5 -I eth1 {}", right.1));
    kubectl.holds_in_guest("right", &format!("ping -c 1 -W 5 -I eth1 {}", left.1));
    kubectl.ok(&["exec", "long", "--", "ping", "-c", "1", "-W", "5", "-I", "red", &right.1]);
    in_use(&sandbox, &dir, 4);

    // A machine that is started again has the same hardware address, and leaves nothing of its first life behind.
    let before = kubectl.field("vmi", "left", "/metadata/uid");
    kubectl.ok(&["delete", "vmi", "left", "--timeout=90s"]);
    eventually_true("another instance", 90, || {
        let uid = kubectl.field("vmi", "left", "/metadata/uid");
        !uid.is_null() && uid != before
    });
    eventually_true("its pod has a network", 90, || {
        let pod = launcher(&kubectl, "left");
        !pod.is_empty()
            && kubectl.field("pod", &pod, "/metadata/annotations/k8s.v1.cni.cncf.io~1network-status").is_string()
    });
    assert_eq!(kubectl.field("vmi", "left", "/spec/domain/devices/interfaces/1/macAddress"), left.0.as_str());
    in_use(&sandbox, &dir, 4);

    // Everything of ours is killed, and comes back. What was made is still known.
    sandbox.kill_9();
    sandbox.start(&[]);
    in_use(&sandbox, &dir, 4);
    kubectl.holds_in_guest("right", "ping -c 1 -W 5 -I eth1 10.77.0.200");
    kubectl.ok(&["delete", "vm", "left", "right", "--timeout=120s"]);
    in_use(&sandbox, &dir, 2);
    // The definition does not matter any more to what was made by it.
    kubectl.ok(&["delete", "network-attachment-definition", "lan"]);
    kubectl.ok(&["delete", "pod", "short", "long", "--timeout=60s"]);
    // The pods are gone from the API: so is all that was made for them.
    assert_eq!((addresses(&dir), ports(&sandbox)), (vec![], 0));
    let kept = sandbox.data_dir().join("cni/networks");
    let kept: Vec<_> = std::fs::read_dir(kept).expect("the records").flatten().map(|e| e.file_name()).collect();
    assert_eq!(kept, ["bridges"]);
    sandbox.carrack(&["down"]).limit_s(120).done();
    assert_ne!(sandbox.program("ip", &["link", "show", "dev", BRIDGE]).output().code, Some(0), "its bridge is gone");
}

#[test]
fn networks_that_cannot_be_are_told() {
    let sandbox = Sandbox::up(&["demo", "busybox"]);
    let kubectl = sandbox.kubectl();
    let dir: PathBuf = sandbox.home().join("addresses");
    kubectl.apply(&definition("broken", "{"));
    kubectl.apply(&definition("strange", r#"{"type": "no-such-plugin"}"#));
    kubectl.apply(&machine("left"));
    let wrongs = [
        ("missing", "lan", "there is no NetworkAttachmentDefinition default/lan"),
        ("broken", "broken", "its config is no JSON object"),
        ("strange", "strange", "the CNI plugin no-such-plugin is not in"),
        ("nonsense", "[{", "no list"),
    ];
    for (name, networks, _) in wrongs {
        kubectl.apply(&pod(name, networks));
    }
    kubectl.apply(&pod("good", ""));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/good", "--timeout=60s"]);
    for (name, _, why) in wrongs {
        let events = ["get", "events", "--field-selector", &format!("involvedObject.name={name}")];
        eventually(&format!("{name} says why"), 60, || {
            let said = kubectl.ok(&events);
            if said.contains("FailedCreatePodSandBox") && said.contains(why) { Ok(()) } else { Err(said) }
        });
        assert_eq!(kubectl.field("pod", name, "/status/phase"), "Pending");
    }
    let events = ["get", "events", "--field-selector", "involvedObject.kind=VirtualMachineInstance"];
    eventually("the machine says why", 60, || {
        let said = kubectl.ok(&events);
        if said.contains("FailedAttachNetworks") && said.contains(wrongs[0].2) { Ok(()) } else { Err(said) }
    });
    let conditions = kubectl.field("vmi", "left", "/status/conditions").to_string();
    assert_contains(&conditions, &["Synchronized", "FailedAttachNetworks"]);
    // Nothing was begun for them, and what is mended goes on.
    assert_eq!(addresses(&dir), Vec::<String>::new());
    kubectl.apply(&lan(&dir));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/missing", "--timeout=90s"]);
    eventually_true("the machine goes on", 90, || kubectl.field("vmi", "left", "/status/phase") == "Running");
    let conditions = kubectl.field("vmi", "left", "/status/conditions").to_string();
    assert!(!conditions.contains("FailedAttachNetworks"), "{conditions}");
}
