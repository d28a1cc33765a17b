//! A machine's life as its user leads it: what is asked of its guest, the ways on which the guest is reached, and its ends.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and what it needs is there")]

use std::io::Read as _;

use carrack_e2e::{BOOT_S, CALLS, Kubectl, Sandbox, assert_contains, eventually, eventually_true, hasty_machine};
use serde_json::{Value, json};

/// A machine that finds nothing to boot.
fn bare(name: &str, strategy: &str, cpu: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}}}\nspec:\n  runStrategy: {strategy}\n  \
         template:\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain:\n        cpu: {cpu}\n        \
         memory: {{guest: 64Mi}}\n        devices: {{autoattachGraphicsDevice: false, interfaces: []}}\n"
    )
}

/// Why a call is refused.
fn refused(kubectl: &Kubectl<'_>, path: &str) -> String {
    kubectl.run(&["replace", "--raw", &format!("{CALLS}/{path}"), "-f", "-"]).input("{}").fails()
}

/// Another instance of a machine than this one runs; its UID.
fn another(kubectl: &Kubectl<'_>, name: &str, before: &Value) -> Value {
    eventually(&format!("another instance of {name} runs"), BOOT_S, || {
        let vmi = kubectl.get("vmi", name).unwrap_or_default();
        let uid = vmi["metadata"]["uid"].clone();
        if !uid.is_null() && uid != *before && vmi["status"]["phase"] == "Running" {
            return Ok(uid);
        }
        Err(vmi["status"].to_string())
    })
}

/// The processes of a machine's guest.
fn processes(sandbox: &Sandbox, name: &str) -> Vec<i32> {
    let title = format!("guest=default_{name},");
    let is_its = |arguments: &[String]| arguments.iter().any(|argument| argument.starts_with(&title));
    sandbox.guests().into_iter().filter(|(_, arguments)| is_its(arguments)).map(|(pid, _)| pid).collect()
}

/// QEMU dies, as it would by a fault of its own.
fn crash(sandbox: &Sandbox, name: &str) {
    let found = processes(sandbox, name);
    let [pid] = found[..] else { panic!("{name} has the processes {found:?}") };
    sandbox.program("kill", &["-9", &pid.to_string()]).done();
}

#[test]
fn a_guest_is_asked_reached_and_left_behind() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    for condition in ["Available", "Created"] {
        let condition = format!("--for=condition={condition}");
        kubectl.ok(&["wait", "kubevirt/kubevirt", "-n", "kubevirt", &condition, "--timeout=60s"]);
    }
    roles(&kubectl);
    kubectl.apply(&hasty_machine("life", "Always"));
    kubectl.wait_agent("life");
    let identity = || {
        let pods = kubectl.ok(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
        (kubectl.field("vmi", "life", "/metadata/uid"), pods)
    };
    let before = identity();
    let instance = |call: &str| format!("virtualmachineinstances/life/{call}");
    assert_contains(&refused(&kubectl, "virtualmachines/life/start"), &["VM is already running"]);

    // Paused, it takes no traffic, and goes on where it was.
    kubectl.holds_in_guest("life", "touch /run/mark");
    kubectl.call(&instance("pause"), "{}");
    kubectl.wait_status("life", "Paused");
    assert_contains(&refused(&kubectl, &instance("pause")), &["VMI is already paused"]);
    kubectl.ok(&["wait", "--for=condition=Ready=false", "vmi/life", "--timeout=60s"]);
    let forward = format!("{CALLS}/{}", instance("portforward/22"));
    assert_contains(&kubectl.fails(&["get", "--raw", &forward]), &["VMI is paused"]);
    kubectl.call(&instance("unpause"), "{}");
    kubectl.wait_status("life", "Running");
    kubectl.holds_in_guest("life", "test -e /run/mark");
    assert_contains(&refused(&kubectl, &instance("unpause")), &["VMI is not paused"]);

    // It has no file system that can be frozen, and its agent says so; its node has written down that it is to be thawed.
    let noted = |wanted: usize| {
        eventually(&format!("{wanted} guests are to be thawed"), 60, || {
            let noted = std::fs::read_dir(sandbox.data_dir().join("virt/frozen")).map_or(0, Iterator::count);
            if noted == wanted { Ok(()) } else { Err(noted.to_string()) }
        });
    };
    kubectl.call(&instance("freeze"), r#"{"unfreezeTimeout": "5m0s"}"#);
    noted(1);
    kubectl.call(&instance("unfreeze"), "{}");
    noted(0);

    // What is in its memory is gone, and it is the same instance in the same pod.
    for call in ["softreboot", "reset"] {
        kubectl.holds_in_booted_guest("life", "touch /run/mark");
        kubectl.call(&instance(call), "{}");
        kubectl.holds_in_booted_guest("life", "test ! -e /run/mark");
        assert_eq!(identity(), before, "{call}");
    }
    streams(&sandbox);

    // What cannot change while it runs waits for its next start.
    let larger = r#"{"spec": {"template": {"spec": {"domain": {"memory": {"guest": "208Mi"}}}}}}"#;
    kubectl.ok(&["patch", "vm", "life", "--type=merge", "-p", larger]);
    // `kubectl wait` would wait for the status to be of this generation, which it is with the next start (KubeVirt's, too).
    let asked_to_restart = |wanted: bool| {
        eventually(&format!("that it is to restart is said: {wanted}"), 60, || {
            let conditions = kubectl.field("vm", "life", "/status/conditions");
            let all = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
            let said = all.iter().any(|c| c["type"] == "RestartRequired" && c["status"] == "True");
            if said == wanted { Ok(()) } else { Err(conditions.to_string()) }
        });
    };
    asked_to_restart(true);
    assert_eq!(identity(), before);
    kubectl.call("virtualmachines/life/restart", r#"{"gracePeriodSeconds": 0}"#);
    let uid = another(&kubectl, "life", &before.0);
    assert_eq!(kubectl.field("vmi", "life", "/spec/domain/memory/guest"), "208Mi");
    asked_to_restart(false);

    // Its machine goes, and it does not.
    kubectl.ok(&["delete", "vm", "life", "--cascade=orphan", "--timeout=60s"]);
    assert_eq!(kubectl.field("vmi", "life", "/metadata/uid"), uid);
    let owners = kubectl.field("vmi", "life", "/metadata/ownerReferences").to_string();
    assert!(!owners.contains("VirtualMachine"), "{owners}");
    assert_eq!(processes(&sandbox, "life").len(), 1);
    kubectl.ok(&["delete", "vmi", "life", "--timeout=90s"]);
    assert_eq!(processes(&sandbox, "life"), [0; 0]);
}

/// The ways on which a guest is reached, as virtctl asks for them.
fn streams(sandbox: &Sandbox) {
    for (path, says) in [
        ("virtualmachineinstances/life/portforward/22/tcp", "ssh-2.0"),
        ("virtualmachines/life/portforward/22", "ssh-2.0"),
        ("virtualmachineinstances/life/vnc", "rfb 003.00"),
    ] {
        let parts = ["101 switching protocols", "sec-websocket-protocol: plain.kubevirt.io", says];
        eventually(&format!("{path} says {says}"), 90, || said_by(sandbox, &format!("{CALLS}/{path}"), &parts));
    }
    // Who comes to a console takes it from whoever has it.
    let console = |limit_s| sandbox.stream(&format!("{CALLS}/virtualmachineinstances/life/console"), limit_s);
    let mut first = console(100).spawn();
    eventually("the console of the first one ends", 60, || {
        let second = console(2).output();
        match first.try_wait().expect("a child") {
            Some(status) if status.code() != Some(28) => Ok(()),
            other => Err(format!("{other:?}, and the second one has\n{second}")),
        }
    });
    let mut said = Vec::new();
    first.stdout.take().expect("its output").read_to_end(&mut said).expect("read");
    assert_contains(&String::from_utf8_lossy(&said), &["101 Switching Protocols"]);
}

/// Reads a stream, which does not end by itself, until it has said all of this, in whatever letters; or what it said instead.
fn said_by(sandbox: &Sandbox, path: &str, parts: &[&str]) -> Result<(), String> {
    let mut stream = sandbox.stream(path, 10).spawn();
    let mut output = stream.stdout.take().expect("its output");
    let (mut said, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let read = output.read(&mut buffer).expect("read");
        said.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&said).to_lowercase();
        if parts.iter().all(|part| text.contains(part)) {
            return Ok(());
        }
        if read == 0 {
            return Err(text);
        }
    }
}

/// What KubeVirt's roles let people do.
fn roles(kubectl: &Kubectl<'_>) {
    const CALLS_GROUP: &str = "subresources.kubevirt.io";
    for role in ["view", "edit", "admin"] {
        let role_of = format!("--clusterrole=kubevirt.io:{role}");
        kubectl.ok(&["create", "rolebinding", role, &role_of, &format!("--user={role}er")]);
    }
    for (user, verb, group, resource, sub, allowed) in [
        ("viewer", "list", "kubevirt.io", "virtualmachines", "", true),
        ("viewer", "delete", "kubevirt.io", "virtualmachines", "", false),
        ("viewer", "update", CALLS_GROUP, "virtualmachines", "start", false),
        ("viewer", "get", CALLS_GROUP, "virtualmachineinstances", "guestosinfo", true),
        ("viewer", "get", CALLS_GROUP, "virtualmachineinstances", "console", false),
        ("editer", "create", "kubevirt.io", "virtualmachines", "", true),
        ("editer", "update", CALLS_GROUP, "virtualmachines", "restart", true),
        ("editer", "get", CALLS_GROUP, "virtualmachineinstances", "vnc", true),
        ("editer", "update", CALLS_GROUP, "virtualmachines", "migrate", false),
        ("adminer", "deletecollection", "kubevirt.io", "virtualmachines", "", true),
        ("adminer", "update", CALLS_GROUP, "virtualmachineinstances", "pause", true),
        ("nobody", "list", "kubevirt.io", "virtualmachines", "", false),
    ] {
        let of =
            json!({"namespace": "default", "verb": verb, "group": group, "resource": resource, "subresource": sub});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": of}});
        let create = ["create", "-f", "-", "-o", "jsonpath={.status.allowed}"];
        let said = kubectl.run(&create).input(review.to_string()).ok();
        assert_eq!(said, allowed.to_string(), "{review}");
    }
    // And by a call itself.
    let path = format!("{CALLS}/virtualmachines/nothing/start");
    let start = kubectl.run(&["replace", "--raw", &path, "-f", "-", "--as", "viewer"]).input("{}").fails();
    assert_contains(&start, &["Forbidden"]);
}

#[test]
fn ends_are_followed_by_what_the_strategy_says() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    // Its firmware reads the disk by itself: the guest has no driver of SATA, and needs none.
    kubectl.apply(&hasty_machine("rerun", "RerunOnFailure").replacen("bus: virtio", "bus: sata", 1));
    kubectl.apply(&bare("once", "Once", "{cores: 1}"));
    kubectl.apply(&bare("broken", "Always", "{model: no-such-model}"));

    // One whose guest never begins is started again later and later.
    kubectl.wait_status("broken", "CrashLoopBackOff");
    let failure = kubectl.field("vm", "broken", "/status/startFailure");
    assert!(failure["consecutiveFailCount"].as_i64().is_some_and(|count| count > 0), "{failure}");
    assert!(failure["retryAfterTimestamp"].is_string(), "{failure}");
    kubectl.ok(&["delete", "vm", "broken", "--timeout=90s"]);

    kubectl.wait_status("once", "Running");
    let uid = kubectl.field("vmi", "once", "/metadata/uid");
    crash(&sandbox, "once");
    kubectl.wait_status("once", "Stopped");
    let vmi = kubectl.get("vmi", "once").expect("it stays, to be looked at");
    assert_eq!((&vmi["metadata"]["uid"], &vmi["status"]["phase"]), (&uid, &"Failed".into()), "{vmi}");

    kubectl.wait_agent("rerun");
    let first = kubectl.field("vmi", "rerun", "/metadata/uid");
    crash(&sandbox, "rerun");
    let second = another(&kubectl, "rerun", &first);
    assert!(processes(&sandbox, "rerun").len() <= 1, "two guests of one machine");
    kubectl.wait_agent("rerun");
    // It shuts down by itself: that is no failure.
    kubectl.holds_in_guest("rerun", "(sleep 1; poweroff) >/dev/null 2>&1 &");
    kubectl.wait_status("rerun", "Stopped");
    eventually_true("its instance has made room", 60, || kubectl.get("vmi", "rerun").is_none());
    kubectl.call("virtualmachines/rerun/start", "{}");
    another(&kubectl, "rerun", &second);
    kubectl.ok(&["delete", "vm", "rerun", "once", "--timeout=90s"]);
    assert_eq!(sandbox.guests().len(), 0);
}
