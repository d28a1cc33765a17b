//! Pods on real containerd, driven by kubectl as a person drives it.

use carrack_e2e::{Kubectl, NODE_IP, OUTSIDE_IP, Sandbox, assert_contains, eventually, eventually_true, root};

fn example(name: &str) -> String {
    root().join("examples").join(name).display().to_string()
}

fn wait_ready(kubectl: &Kubectl<'_>, pod: &str) {
    kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"]);
}

#[test]
fn a_pod_lives_through_every_verb() {
    let sandbox = Sandbox::up(&["busybox"]);
    let outside = sandbox.listen_outside(7);
    outside.set_nonblocking(true).expect("a socket");
    for kubectl in sandbox.kubectls() {
        let nodes = kubectl.ok(&["get", "nodes"]);
        assert_contains(&nodes, &["STATUS", "Ready", "v1.36"]);
        kubectl.ok(&["apply", "-f", &example("pod.yaml")]);
        wait_ready(&kubectl, "shell");
        assert_contains(&kubectl.ok(&["get", "pods"]), &["READY", "1/1", "Running", "shell"]);
        assert_contains(&kubectl.ok(&["get", "pods", "-o", "wide"]), &["10.42.0."]);
        assert_contains(&kubectl.ok(&["logs", "shell"]), &["hello from shell"]);
        assert_contains(&kubectl.ok(&["exec", "shell", "--", "sh", "-c", "echo $((6*7)); hostname"]), &["42", "shell"]);
        let echoed = kubectl.run(&["exec", "-i", "shell", "--", "cat"]).input("through stdin").ok();
        assert_eq!(echoed, "through stdin");
        let said = kubectl.run(&["exec", "shell", "--", "sh", "-c", "exit 7"]).output();
        assert_eq!(said.code, Some(7), "{said}");
        // Who is no node knows nothing of pods: to them it is the node that calls.
        let call = format!("echo hello | timeout 2 nc -w 1 {OUTSIDE_IP} 7 || true");
        kubectl.ok(&["exec", "shell", "--", "sh", "-c", &call]);
        let caller = eventually("a pod calls another machine", 5, || outside.accept().map_err(|e| e.to_string())).1;
        assert_eq!(caller.ip().to_string(), NODE_IP);
        assert_contains(&kubectl.ok(&["describe", "pod", "shell"]), &["Container started", "Scheduled", "IP:"]);
        kubectl.ok(&["label", "pod", "shell", "tried=yes"]);
        assert_contains(&kubectl.ok(&["get", "pods", "-l", "tried=yes", "-o", "name"]), &["pod/shell"]);
        kubectl.ok(&["delete", "pod", "shell", "--timeout=30s"]);
        assert_eq!(kubectl.get("pod", "shell"), None);
    }
}

/// A pod of which an init container writes the variables of another one.
const TOLD_BY_A_FILE: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: told
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes:
  - name: words
    emptyDir: {}
  initContainers:
  - name: writer
    image: localhost/carrack/busybox:0.1.0
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "echo \"GREETING='hello there'\" > /words/env"]
    volumeMounts:
    - name: words
      mountPath: /words
  containers:
  - name: reader
    image: localhost/carrack/busybox:0.1.0
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'echo "it said: $GREETING"; sleep 60']
    env:
    - name: GREETING
      valueFrom:
        fileKeyRef:
          volumeName: words
          path: env
          key: GREETING
"#;

#[test]
fn volumes_hold_what_their_objects_say() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.ok(&["apply", "-f", &example("pod-volumes.yaml")]);
    wait_ready(&kubectl, "volumes");
    eventually_true("the reader reads both", 30, || {
        kubectl.ok(&["logs", "volumes", "-c", "reader"]).contains("good morning, abracadabra")
    });
    let token =
        kubectl.ok(&["exec", "volumes", "-c", "reader", "--", "ls", "/var/run/secrets/kubernetes.io/serviceaccount"]);
    assert_contains(&token, &["token", "ca.crt", "namespace"]);
    kubectl.apply(TOLD_BY_A_FILE);
    wait_ready(&kubectl, "told");
    eventually_true("a variable comes from a file", 30, || {
        kubectl.ok(&["logs", "told"]).contains("it said: hello there")
    });
    kubectl.ok(&["delete", "pod", "told", "--timeout=60s"]);
    kubectl.ok(&["delete", "-f", &example("pod-volumes.yaml"), "--timeout=60s"]);
    let pods = sandbox.data_dir().join("kubelet/pods");
    eventually_true("the pod's directory is gone", 30, || {
        std::fs::read_dir(&pods).is_ok_and(|mut entries| entries.next().is_none())
    });
}

#[test]
fn containers_restart_as_the_policy_says() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let pod = |name: &str, policy: &str, command: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  restartPolicy: {policy}\n  \
             terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    \
             image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
             command: [sh, -c, \"{command}\"]\n"
        )
    };
    kubectl.apply(&pod("done", "Never", "exit 0"));
    kubectl.apply(&pod("failed", "Never", "echo bad luck; exit 3"));
    kubectl.apply(&pod("again", "OnFailure", "exit 1"));
    let phase = |name: &str| kubectl.field("pod", name, "/status/phase");
    eventually_true("the first has succeeded", 60, || phase("done") == "Succeeded");
    eventually_true("the second has failed", 60, || phase("failed") == "Failed");
    assert_eq!(kubectl.field("pod", "failed", "/status/containerStatuses/0/state/terminated/exitCode"), 3);
    assert_contains(&kubectl.ok(&["logs", "failed"]), &["bad luck"]);
    eventually_true("the third was restarted", 60, || {
        kubectl
            .field("pod", "again", "/status/containerStatuses/0/restartCount")
            .as_i64()
            .is_some_and(|count| count >= 1)
    });
    kubectl.ok(&["delete", "pod", "done", "failed", "again", "--timeout=60s"]);
}

#[test]
fn containers_run_on_while_carrack_is_dead_and_are_taken_over() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    kubectl.ok(&["apply", "-f", &example("pod.yaml")]);
    wait_ready(&kubectl, "shell");
    let identity = || {
        let object = kubectl.get("pod", "shell").expect("the pod is there");
        let at = |pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
        [
            at("/metadata/uid"),
            at("/status/podIP"),
            at("/status/containerStatuses/0/containerID"),
            at("/status/containerStatuses/0/restartCount"),
        ]
    };
    let before = identity();
    let is_shell =
        |arguments: &[String]| arguments.iter().any(|word| word.starts_with("trap 'exit 0' TERM; echo hello"));
    for _ in 0..3 {
        sandbox.kill_9();
        assert!(!sandbox.contained(is_shell).is_empty(), "the container died with carrack");
        sandbox.start(&[]);
        wait_ready(&kubectl, "shell");
        assert_eq!(identity(), before, "the container is another one");
    }
    assert_eq!(kubectl.ok(&["exec", "shell", "--", "echo", "still here"]).trim(), "still here");
    // Deleted while nobody watches: it goes when the cluster is back.
    kubectl.ok(&["delete", "pod", "shell", "--wait=false"]);
    sandbox.kill_9();
    sandbox.start(&[]);
    eventually_true("the pod is gone", 60, || kubectl.get("pod", "shell").is_none());
}

/// A pod of which one container waits for ever, and one ended at once and would wait the next time.
fn half_ended(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 0\n  \
         volumes: [{{name: v, emptyDir: {{}}}}]\n  containers:\n  - name: stays\n    image: {IMAGE}\n    \
         command: [sleep, '100000']\n  - name: ends\n    image: {IMAGE}\n    \
         command: [sh, -c, 'mkdir /v/once || exec sleep 100000']\n    volumeMounts: [{{name: v, mountPath: /v}}]\n"
    )
}

const IMAGE: &str = "localhost/carrack/busybox:0.1.0";

/// A containerd that is interrupted in a start is left with a process that it does not know of, and refuses to remove its
/// container. Here that process is started behind its back.
#[test]
fn a_process_that_the_runtime_forgot_keeps_no_pod() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let socket = sandbox.data_dir().join("containerd/containerd.sock").display().to_string();
    let ctr = |arguments: &[&str]| {
        sandbox.program("ctr", &[["--address", &socket, "--namespace", "k8s.io"].as_slice(), arguments].concat())
    };
    let forgotten = |pod: &str| {
        kubectl.apply(&half_ended(pod));
        let mut id = String::new();
        eventually(&format!("a container of {pod} has ended"), 60, || {
            let statuses = kubectl.field("pod", pod, "/status/containerStatuses");
            let ended = statuses.as_array().into_iter().flatten().find(|c| !c["state"]["terminated"].is_null());
            let found = ended.and_then(|c| c["containerID"].as_str()).and_then(|id| id.strip_prefix("containerd://"));
            found.ok_or_else(|| statuses.to_string())?.clone_into(&mut id);
            Ok(())
        });
        ctr(&["tasks", "start", "--detach", &id]).done();
        eventually(&format!("a process of {pod} runs that nobody knows of"), 10, || {
            let tasks = ctr(&["tasks", "list"]).ok();
            let runs = tasks.lines().any(|line| line.starts_with(&id) && line.contains("RUNNING"));
            if runs { Ok(()) } else { Err(tasks) }
        });
        id
    };
    forgotten("deleted");
    kubectl.ok(&["delete", "pod", "deleted", "--timeout=60s"]);
    let id = forgotten("left");
    sandbox.carrack(&["down", "--grace", "0"]).limit_s(60).done();
    assert_eq!(sandbox.leftovers(), "", "of {id}");
}

#[test]
fn what_cannot_run_says_why() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let manifest = std::fs::read_to_string(root().join("examples/pod.yaml")).expect("the example");

    kubectl.apply(&manifest.replace("name: shell", "name: missing").replace("busybox:0.1.0", "nothing:1"));
    let reason = || kubectl.field("pod", "missing", "/status/containerStatuses/0/state/waiting/reason");
    eventually("the image is named as missing", 60, || match reason().as_str() {
        Some("ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_contains(&kubectl.ok(&["describe", "pod", "missing"]), &["localhost/carrack/nothing:1"]);

    kubectl.apply(&manifest.replace("name: shell", "name: huge").replace("cpu: 10m", "cpu: 10000"));
    eventually_true("the scheduler says why", 30, || {
        kubectl.ok(&["describe", "pod", "huge"]).contains("Insufficient cpu")
    });
    assert_eq!(kubectl.field("pod", "huge", "/status/phase"), "Pending");

    // Neither held up anybody else.
    kubectl.apply(&manifest);
    wait_ready(&kubectl, "shell");
    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
}
