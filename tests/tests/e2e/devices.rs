//! Devices of plugins: what virt-handler offers reaches any pod that asks for it, over the kubelet's real sockets.

use carrack_e2e::{Sandbox, assert_contains, eventually, eventually_true};

fn pod(name: &str, count: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"while :; do sleep 1; done\"]\n    resources:\n      limits:\n        \
         devices.kubevirt.io/tun: {count}\n"
    )
}

#[test]
fn a_pod_gets_its_device_and_keeps_it_over_a_restart() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let allocatable = || kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable}"]);
    eventually_true("the node offers the device", 30, || allocatable().contains("devices.kubevirt.io/tun"));

    kubectl.apply(&pod("with", 1));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/with", "--timeout=60s"]);
    assert_contains(&kubectl.ok(&["exec", "with", "--", "ls", "-l", "/dev/net/tun"]), &["crw", "10", "200"]);
    let checkpoint = sandbox.data_dir().join("kubelet/device-plugins/kubelet_internal_checkpoint");
    let read = || std::fs::read_to_string(&checkpoint).unwrap_or_default();
    let uid = kubectl.field("pod", "with", "/metadata/uid");
    let uid = uid.as_str().unwrap_or_default();
    assert_contains(&read(), &["devices.kubevirt.io/tun", uid]);

    sandbox.kill_9();
    assert_contains(&read(), &[uid]);
    sandbox.start(&[]);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/with", "--timeout=60s"]);
    assert_eq!(kubectl.field("pod", "with", "/metadata/uid"), uid);
    assert_eq!(kubectl.field("pod", "with", "/status/containerStatuses/0/restartCount"), 0);
    eventually_true("the node offers the device again", 30, || allocatable().contains("devices.kubevirt.io/tun"));

    // More than there are is the scheduler's to refuse, and a pod that asks for none gets none.
    kubectl.apply(&pod("greedy", 1_000_000));
    eventually("the scheduler says why", 30, || {
        let said = kubectl.ok(&["describe", "pod", "greedy"]);
        if said.contains("Insufficient devices.kubevirt.io/tun") { Ok(()) } else { Err(said) }
    });
    kubectl.apply(&pod("without", 1).replace("devices.kubevirt.io/tun: 1", "cpu: 10m"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/without", "--timeout=60s"]);
    assert_contains(&kubectl.fails(&["exec", "without", "--", "ls", "/dev/net/tun"]), &["No such file"]);

    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
    eventually_true("the checkpoint forgets the pod", 30, || !read().contains(uid));
}
