//! The cluster as a whole: it comes up, says what is wrong, outlives its processes, and leaves nothing.

use carrack_e2e::{Sandbox, assert_contains, carrack, eventually_true};
use rustix::process::{Pid, Signal};

const KEPT: &str = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}}"#;

#[test]
fn up_is_idempotent_and_down_leaves_nothing() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    assert_contains(&kubectl.ok(&["get", "namespaces", "-o", "name"]), &["namespace/default", "namespace/kube-system"]);
    let pid = sandbox.pid();
    let said = sandbox.carrack(&["up", "--detach"]).output();
    assert_eq!(said.code, Some(0), "{said}");
    assert_contains(&said.to_string(), &["runs already", &pid.to_string()]);
    assert_eq!(sandbox.pid(), pid, "the second `up --detach` started another process");
    let said = sandbox.carrack(&["up"]).fails();
    assert_contains(&said, &["runs already", &pid.to_string()]);

    kubectl.apply(KEPT);
    sandbox.carrack(&["down", "--grace", "0"]).done();
    assert_eq!(sandbox.leftovers(), "");
    sandbox.carrack(&["down", "--grace", "0"]).done();

    // And, where it listens at one address alone, its node is reached there.
    sandbox.start(&["--bind-address", "127.0.0.1"]);
    assert_eq!(kubectl.field("configmap", "kept", "/data/a"), "b", "an object is gone after down and up");
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_eq!(kubectl.field("node", &node, "/status/addresses/0/address"), "127.0.0.1");
    kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/healthz")]);
}

/// Kills the process that a pidfile names.
fn kill_9(pidfile: &str) {
    let pid = pidfile.split(' ').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let killed = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    assert_eq!(killed, Some(Ok(())), "{pidfile}");
}

#[test]
fn down_works_after_everything_was_killed() {
    let sandbox = Sandbox::up(&[]);
    sandbox.kill_9();
    let pidfile = sandbox.data_dir().join("containerd/containerd.pid");
    let line = std::fs::read_to_string(pidfile).expect("containerd's pidfile");
    kill_9(&line);
    sandbox.carrack(&["down", "--purge"]).done();
    assert_eq!(sandbox.leftovers(), "");
    assert!(!sandbox.data_dir().exists());
}

/// Which process is the sandbox's containerd.
fn containerd(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.data_dir().join("containerd/containerd.pid")).unwrap_or_default()
}

#[test]
fn a_killed_cluster_comes_back_with_the_same_containerd() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(KEPT);
    let before = containerd(&sandbox);
    sandbox.kill_9();
    sandbox.start(&[]);
    assert_eq!(containerd(&sandbox), before, "containerd was not adopted");
    assert_eq!(kubectl.field("configmap", "kept", "/data/a"), "b");
}

/// One that ends is waited for: nobody is told that it runs, and left with nothing.
#[test]
fn a_cluster_that_ends_is_started_again() {
    let sandbox = Sandbox::up(&[]);
    let pid = sandbox.pid();
    let process = Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(process, Signal::TERM).expect("it is there");
    let pidfile = sandbox.data_dir().join("carrack.pid");
    // Gone with its end, if it has come to that by now.
    eventually_true("it says that it ends", 30, || {
        std::fs::read_to_string(&pidfile).map_or(true, |line| line.trim_end().ends_with(" ending"))
    });
    sandbox.start(&[]);
    assert_ne!(sandbox.pid(), pid);
    sandbox.kubectl().ok(&["get", "--raw", "/readyz"]);
}

#[test]
fn a_process_takes_the_place_of_the_one_before_it() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(KEPT);
    let (pid, before) = (sandbox.pid(), containerd(&sandbox));
    // What cannot be is said while the other one still works.
    let refused = |flags: &[&str], expected: &[&str]| {
        let said = sandbox.carrack(&[&["up", "--detach", "--replace"][..], flags].concat()).fails();
        assert_contains(&said, expected);
        assert_eq!(sandbox.pid(), pid, "{flags:?}");
        kubectl.ok(&["get", "--raw", "/readyz"]);
    };
    refused(&["--node-label", "red"], &["red", "KEY=VALUE"]);
    refused(&["--nodes", "3"], &["carrack down --purge"]);
    // Another node's kubelet would stop all that runs here.
    refused(&["--node-name", "another"], &["another", "--node-name", "carrack down"]);

    sandbox.start(&["--replace"]);
    assert_ne!(sandbox.pid(), pid);
    assert_eq!(containerd(&sandbox), before, "containerd was not adopted");
    assert_eq!(kubectl.field("configmap", "kept", "/data/a"), "b");

    // Once nothing runs, the node may have any name.
    sandbox.carrack(&["down", "--grace", "0"]).done();
    sandbox.start(&["--node-name", "another"]);
    kubectl.ok(&["get", "node", "another"]);
}

#[test]
fn containerd_is_started_again_when_it_dies() {
    let sandbox = Sandbox::up(&[]);
    let before = containerd(&sandbox);
    kill_9(&before);
    eventually_true("another containerd runs", 30, || {
        let now = containerd(&sandbox);
        now != before && sandbox.carrack(&["image", "build", "pause"]).output().code == Some(0)
    });
}

#[test]
fn what_is_wrong_is_said_in_one_clear_line() {
    let sandbox = Sandbox::new();
    let check = |arguments: &[&str], expected: &[&str]| assert_contains(&sandbox.carrack(arguments).fails(), expected);
    check(&["up", "--pod-cidr", "nonsense"], &["nonsense", "10.42.0.0/24"]);
    check(&["up", "--pod-cidr", "10.43.1.0/24"], &["10.43.1.0/24", "overlap"]);
    check(&["up", "--node-name", "Not_A_Name"], &["Not_A_Name", "--node-name"]);
    check(&["up", "--https-port", "99999"], &["99999", "--https-port"]);
    check(
        &["up", "--bind-address", "127.0.0.1", "--node-ip", "192.0.2.7"],
        &["192.0.2.7", "--node-ip", "127.0.0.1", "--bind-address"],
    );
    check(&["up", "--bind-address", "127.0.0.1", "--nodes", "2"], &["--bind-address", "one node"]);
    check(&["up", "--no-such-flag"], &["--no-such-flag"]);
    check(&["console", "x"], &["no kubeconfig", "carrack up"]);
    check(&["kubeconfig"], &["does not exist", "carrack up"]);
    check(&["image", "import", "/nonexistent"], &["cannot read /nonexistent"]);
    check(&["image", "import", "/etc/passwd"], &["no cluster runs here"]);
    check(&["scheduler", "--kubeconfig", "/nonexistent"], &["/nonexistent"]);
    check(&["bogus"], &["bogus"]);

    let long = format!("/tmp/{}", "x".repeat(100));
    let mut command = sandbox.inside(&carrack());
    command.args(["up", "--data-dir", &long]);
    assert_contains(&carrack_e2e::Run::new(command).fails(), &["longer than", "shorter"]);
    std::fs::remove_dir_all(&long)
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        .expect("removed");
}

#[test]
fn a_taken_port_is_named() {
    let sandbox = Sandbox::new();
    let elsewhere = sandbox.home().join("other").display().to_string();
    let mut other = sandbox.carrack(&["apiserver", "--data-dir", &elsewhere]).spawn();
    let listens = || sandbox.program("ss", &["-ltn"]).ok().contains(":6443");
    eventually_true("another program listens", 20, listens);
    let said = sandbox.carrack(&["up", "--bind-address", "127.0.0.1", "--detach"]).fails();
    other.kill().and_then(|()| other.wait()).expect("it was ours");
    assert_contains(&said, &["6443", "--https-port"]);
}

#[test]
fn nobody_gets_in_without_credentials() {
    let sandbox = Sandbox::up(&[]);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(sandbox.data_dir().join("kubeconfig.yaml")).expect("a kubeconfig").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let curl = |path: &str| {
        sandbox
            .program(
                "curl",
                &["-sk", "-o", "/dev/null", "-w", "%{http_code}", &format!("https://127.0.0.1:6443{path}")],
            )
            .ok()
    };
    assert_eq!(curl("/readyz"), "200");
    assert_eq!(curl("/api/v1/secrets"), "403");
    let wrong = [
        "-sk",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        "Authorization: Bearer wrong",
        "https://127.0.0.1:6443/api",
    ];
    assert_eq!(sandbox.program("curl", &wrong).ok(), "401");
}

#[test]
fn a_shell_completes_words() {
    let sandbox = Sandbox::new();
    let script = sandbox.home().join("completion.bash");
    std::fs::write(&script, sandbox.carrack(&["completion", "bash"]).ok()).expect("written");
    // What Tab does: the function that the script has registered gets the command and the word that is being typed.
    let line = format!(
        ". {}; COMP_WORDS=({} kubeconfig --user virt); COMP_CWORD=3; \
         asks=$(complete -p carrack | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); $asks carrack virt; echo \"${{COMPREPLY[*]}}\"",
        script.display(),
        carrack().display()
    );
    assert_eq!(sandbox.program("bash", &["-c", &line]).ok(), "virt-controller virt-handler\n");
}

#[test]
fn the_version_is_data() {
    let sandbox = Sandbox::new();
    let json: serde_json::Value =
        serde_json::from_str(&sandbox.carrack(&["version", "-o", "json"]).ok()).expect("JSON");
    assert!(json["carrack"].as_str().is_some_and(|version| version.starts_with('v')), "{json}");
    assert_contains(&sandbox.carrack(&["version", "-o", "yaml"]).ok(), &["carrack: v", "kubernetesApi: v1.36"]);
    assert_contains(&sandbox.carrack(&["version"]).ok(), &["Kubernetes API v1.36"]);
    for role in ["up", "apiserver", "scheduler", "controllers"] {
        assert_contains(&sandbox.carrack(&[role, "--help"]).ok(), &["Examples:", "Usage: carrack"]);
    }
}
