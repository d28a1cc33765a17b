//! What README.md tells to type, done as it stands there, in a sandbox and on the program under test.
//!
//! Not run, since these tests are a part of it: `make test`, and with it `make lint`, `make unit` and `make e2e`. Of `make bench` and
//! `make soak`, which take minutes and a night, the shortest measure and some seconds are.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]

use std::fs;

use carrack_e2e::{BOOT_S, Run, Sandbox, assert_contains, blocks, eventually_true, root};

const PAGE: &str = "README.md";

/// A command that stands between the words of the page, with these settings in the environment.
fn between_words(sandbox: &Sandbox, settings: &str, command: &str) -> Run {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page");
    assert_contains(&page, &[&format!("`{command}`")]);
    sandbox.typed(&root(), &format!("{settings} {command}"))
}

#[test]
fn a_machine_boots_is_reached_and_shuts_down() {
    let sandbox = Sandbox::prepared();
    let kubectl = sandbox.kubectl();
    let blocks = blocks(PAGE, "Try it");
    let [up, then] = &blocks[..] else { panic!("two blocks: {blocks:?}") };
    let said = sandbox.typed(&root(), up).limit_s(BOOT_S + 240).ok();
    assert_contains(&said, &["demo login:", "The guest runs"]);

    kubectl.ok(&["wait", "--for=condition=Ready", "vm/demo", "--timeout=60s"]);
    for kubectl in sandbox.kubectls() {
        assert_contains(&kubectl.ok(&["get", "vm"]), &["NAME", "AGE", "STATUS", "READY", "demo", "Running", "True"]);
        assert_contains(&kubectl.ok(&["get", "vmi"]), &["PHASE", "IP", "NODENAME", "Running", "10.42.0."]);
        assert_contains(&kubectl.ok(&["describe", "vmi", "demo"]), &["Phase:", "Running", "Created"]);
        assert_contains(&kubectl.ok(&["explain", "vm.spec.runStrategy"]), &["runStrategy"]);
    }
    // The node reaches the guest through the pod's address.
    let address = kubectl.field("vmi", "demo", "/status/interfaces/0/ipAddress");
    let address = address.as_str().expect("an address").to_owned();
    eventually_true("the guest's SSH server answers", 60, || {
        sandbox
            .program("timeout", &["3", "bash", "-c", &format!("exec 3<>/dev/tcp/{address}/22; head -c 4 <&3")])
            .output()
            .stdout
            == "SSH-"
    });

    // Deleting presses the power button: the guest says so on its console before it goes. Then there is another one.
    let pod = kubectl.ok(&["get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "name"]).trim().to_owned();
    assert_contains(&pod, &["pod/virt-launcher-demo-"]);
    let uid = kubectl.field("vmi", "demo", "/metadata/uid");
    let said = sandbox.typed(&root(), then).ok();
    assert_contains(&said, &["virt-launcher-demo-", "Phase:", "\"demo\" deleted", "demo created"]);
    eventually_true("its pod is gone", 60, || kubectl.get("pod", pod.trim_start_matches("pod/")).is_none());
    kubectl.wait_status_within("demo", "Running", 60);
    assert_ne!(kubectl.field("vmi", "demo", "/metadata/uid"), uid);
    assert_eq!(sandbox.guests().len(), 1);

    between_words(&sandbox, "", "make down").done();
    assert_eq!(sandbox.guests().len(), 0);
    assert_eq!(sandbox.leftovers(), "");
    assert!(sandbox.data_dir().exists());
    between_words(&sandbox, "", "make down DOWN_FLAGS=--purge").done();
    assert_eq!(sandbox.leftovers(), "");
    assert!(!sandbox.data_dir().exists());
}

#[test]
fn a_soak_ends_when_its_time_is_over() {
    let sandbox = Sandbox::new();
    // Of the same seeds, so that this tells of the soak and not of what a night may find.
    let said = between_words(&sandbox, "SOAK_SECONDS=2 SOAK_SEED=1", "make soak").limit_s(120).ok();
    let sum = said.lines().find(|line| line.contains(" clean runs; ")).unwrap_or_default();
    assert_contains(sum, &[" clean runs; 0 broken ones, in "]);
    assert!(!sum.starts_with("0 clean"), "{said}");
}

#[test]
fn the_machine_is_measured() {
    let sandbox = Sandbox::new();
    let said = between_words(&sandbox, "BENCH=store", "make bench").ok();
    assert_contains(&said, &["store: durable writes by 64 writers"]);
}
