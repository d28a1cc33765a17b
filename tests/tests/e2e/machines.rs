//! Virtual machines: real guests in real QEMU, driven by kubectl and the console.

use carrack_e2e::{BOOT_S, Sandbox, demo_machine, eventually, eventually_true, hasty_machine};

fn wait_login(sandbox: &Sandbox, name: &str) -> String {
    let timeout = BOOT_S.to_string();
    sandbox
        .carrack(&["console", name, "--expect", &format!("{name} login:"), "--timeout", &timeout])
        .limit_s(BOOT_S + 10)
        .ok()
}

#[test]
fn run_strategies_do_what_they_say() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let strategy = |name: &str, strategy: &str| {
        kubectl.ok(&[
            "patch",
            "vm",
            name,
            "--type=merge",
            "-p",
            &format!(r#"{{"spec":{{"runStrategy":"{strategy}"}}}}"#),
        ])
    };
    kubectl.apply(&hasty_machine("one", "Halted"));
    kubectl.wait_status_within("one", "Stopped", 30);
    assert_eq!(kubectl.get("vmi", "one"), None);
    strategy("one", "Always");
    kubectl.wait_status_within("one", "Running", 60);
    assert_eq!(sandbox.guests().len(), 1);

    // Always: an instance that goes away comes again, and never beside the one before.
    let uid = kubectl.field("vmi", "one", "/metadata/uid");
    kubectl.ok(&["delete", "vmi", "one", "--timeout=90s"]);
    eventually_true("another instance runs", 90, || {
        assert!(sandbox.guests().len() <= 1, "two guests of one machine");
        let now = kubectl.field("vmi", "one", "/metadata/uid");
        !now.is_null() && now != uid && kubectl.machine_status("one") == "Running"
    });
    strategy("one", "Halted");
    kubectl.wait_status_within("one", "Stopped", 90);
    assert_eq!(sandbox.guests().len(), 0);

    kubectl.apply(&hasty_machine("two", "Manual"));
    kubectl.wait_status_within("two", "Stopped", 30);
    kubectl.call("virtualmachines/two/start", "{}");
    kubectl.wait_status_within("two", "Running", 60);
    kubectl.call("virtualmachines/two/stop", "{}");
    kubectl.wait_status_within("two", "Stopped", 90);
    kubectl.ok(&["delete", "vm", "one", "two", "--timeout=60s"]);
}

#[test]
fn a_guest_runs_on_while_everything_of_carrack_is_killed() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&demo_machine("kept", "Always"));
    wait_login(&sandbox, "kept");
    let identity = || {
        let vmi = kubectl.get("vmi", "kept").expect("the instance is there");
        let pods = kubectl.ok(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
        (vmi["metadata"]["uid"].clone(), pods)
    };
    kubectl.wait_agent("kept");
    let mark = "ln -sf /proc/sys/kernel/random/boot_id /run/now && cat /run/now >/run/before && chmod a+r /run/before";
    kubectl.holds_in_guest("kept", mark);
    let before = identity();
    for _ in 0..2 {
        sandbox.kill_9();
        assert_eq!(sandbox.guests().len(), 1, "the guest died with carrack");
        sandbox.start(&[]);
        kubectl.wait_status_within("kept", "Running", 60);
        assert_eq!(identity(), before, "it is another instance or pod");
    }
    let said = guest_says(&sandbox, "kept", "cmp -s /run/before /run/now && echo same");
    assert_eq!(said, "<same>", "the guest was booted again");
    assert_eq!(sandbox.guests().len(), 1);
    // What is asked for after the restart still works.
    kubectl.ok(&["delete", "vm", "kept", "--timeout=90s"]);
    assert_eq!(sandbox.guests().len(), 0);
}

/// Logs in on the console, runs a command, and returns what it printed.
fn guest_says(sandbox: &Sandbox, name: &str, command: &str) -> String {
    // Typed blind, as fast as a slow serial line takes it: the guest's terminal keeps what comes early.
    let typed = format!("\\rdemo\\r|demo\\r|echo; echo \"<$({command})>\"; exit\\r");
    let script = format!(
        "(sleep 2; IFS='|'; for part in $(printf '{}'); do printf '%s' \"$part\"; sleep 2; done; sleep 3; printf '\\035') | {} console {name} --timeout 60",
        typed.replace('\'', "'\\''"),
        carrack_e2e::carrack().display()
    );
    eventually("the guest answers on its console", 120, || {
        let said = sandbox.shell(&script).ok();
        let mut lines = said.lines().map(str::trim).filter(|line| line.starts_with('<') && line.ends_with('>'));
        lines.next_back().map(str::to_owned).ok_or(said)
    })
}

#[test]
fn a_machine_without_its_image_says_so_and_disturbs_nobody() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(&demo_machine("broken", "Always").replace("demo-guest:0.1.0", "no-such-guest:1"));
    eventually("the machine names its problem", 60, || match kubectl.machine_status("broken").as_str() {
        "ErrImagePull" | "ImagePullBackOff" => Ok(()),
        other => Err(other.to_owned()),
    });
    kubectl.apply(&hasty_machine("whole", "Always"));
    kubectl.wait_status_within("whole", "Running", 60);
    kubectl.ok(&["delete", "vm", "broken", "whole", "--timeout=90s"]);
    eventually_true("no pod is left", 60, || kubectl.ok(&["get", "pods", "-o", "name"]).trim().is_empty());
}
