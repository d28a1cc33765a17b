//! The node agent on real parts: static pods, rotation of logs, what it measures and says, its configuration file.

use carrack_e2e::{LIMITS, Sandbox, assert_contains, eventually, eventually_true, several_cpus};

const CONFIGURATION: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: MANIFESTS
fileCheckFrequency: 1s
containerLogMaxSize: 64Ki
containerLogMaxFiles: 3
containerLogMonitorInterval: 1s
systemReserved: {memory: 64Mi}
logging: {format: json}
";

fn pod(name: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: c\n    image: localhost/carrack/busybox:0.1.0\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"{command}\"]\n"
    )
}

#[test]
fn the_agent_follows_its_configuration() {
    let sandbox = Sandbox::new();
    let manifests = sandbox.home().join("manifests");
    std::fs::create_dir(&manifests)
        .and_then(|()| {
            let file = sandbox.home().join("kubelet.yaml");
            std::fs::write(&file, CONFIGURATION.replace("MANIFESTS", &manifests.display().to_string()) + LIMITS)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let write = |name: &str, text: &str| {
        std::fs::write(manifests.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    write("bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containerz: []}\n");
    write("web.yaml", &pod("web", "echo static; while :; do sleep 1; done"));

    // A file with an unknown field is refused with its name.
    let broken = sandbox.home().join("broken.yaml");
    std::fs::write(&broken, format!("{CONFIGURATION}maxPodz: 3\n")).unwrap_or_else(|error| panic!("{error}"));
    let said =
        sandbox.carrack(&["up", "--detach", "--kubelet-config", &broken.display().to_string()]).limit_s(60).output();
    assert!(said.code != Some(0), "{said}");

    let file = sandbox.home().join("kubelet.yaml").display().to_string();
    sandbox.start(&["--kubelet-config", &file]);
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    let kubectl = sandbox.kubectl();
    let node = kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let web = format!("web-{}", node.to_lowercase());

    // The static pod runs, shows in the API, and comes back when its picture is deleted.
    eventually_true("the static pod is ready", 60, || {
        kubectl.run(&["wait", "--for=condition=Ready", &format!("pod/{web}"), "--timeout=5s"]).output().code == Some(0)
    });
    assert_contains(&kubectl.ok(&["logs", &web]), &["static"]);
    eventually("the bad manifest is told", 30, || {
        let events = kubectl.ok(&["get", "events", "-A", "-o", "jsonpath={.items[*].message}"]);
        if events.contains("containerz") { Ok(()) } else { Err(events) }
    });
    let id = kubectl.field("pod", &web, "/status/containerStatuses/0/containerID");
    let uid = kubectl.field("pod", &web, "/metadata/uid");
    kubectl.ok(&["delete", "pod", &web, "--wait=false"]);
    eventually_true("its picture is made anew", 30, || {
        let now = kubectl.field("pod", &web, "/metadata/uid");
        !now.is_null() && now != uid
    });
    eventually_true("it is the same container", 30, || {
        kubectl.field("pod", &web, "/status/containerStatuses/0/containerID") == id
    });

    // Logs stay small, and are read on over their rotation.
    kubectl.apply(&pod("chatty", "n=0; while [ $n -lt 20000 ]; do echo line-$n-of-many-words; n=$((n+1)); done; while :; do echo the-end; sleep 1; done"));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/chatty", "--timeout=60s"]);
    eventually_true("the last line is read", 60, || kubectl.ok(&["logs", "chatty", "--tail=1"]).contains("the-end"));
    let chatty = kubectl.field("pod", "chatty", "/metadata/uid");
    let logs = sandbox.data_dir().join(format!("logs/pods/default_chatty_{}/c", chatty.as_str().unwrap_or_default()));
    eventually("the log was rotated", 30, || {
        let names: Vec<String> = std::fs::read_dir(&logs)
            .map(|d| d.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        if (2..=3).contains(&names.len()) { Ok(()) } else { Err(format!("{names:?}")) }
    });

    // Who keeps more on the disk than it may is ended, and in memory there is no room for more.
    let with_limit = |name: &str, medium: &str, command: &str| {
        let volume = format!("{{name: v, emptyDir: {{medium: '{medium}', sizeLimit: 1Mi}}}}");
        let mounted = format!("    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes: [{volume}]\n");
        kubectl.apply(&(pod(name, &format!("{command}; while :; do sleep 1; done")) + &mounted));
    };
    with_limit("small", "Memory", "df -k /v | tail -n 1; head -c 4194304 /dev/zero >/v/f || echo full");
    with_limit("modest", "", "head -c 524288 /dev/zero >/v/f");
    with_limit("greedy", "", "head -c 4194304 /dev/zero >/v/f");
    eventually("the greedy pod is evicted", 60, || {
        let status = kubectl.field("pod", "greedy", "/status");
        let told = status["message"].as_str().unwrap_or_default();
        let expected = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\"";
        if status["reason"] == "Evicted" && told.contains(expected) { Ok(()) } else { Err(status.to_string()) }
    });
    assert_contains(&kubectl.ok(&["logs", "small"]), &[" 1024 ", "full"]);
    for name in ["small", "modest"] {
        assert_eq!(kubectl.field("pod", name, "/status/phase"), "Running", "{name}");
    }

    // What it measures.
    let raw = |path: &str| kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/{path}")]);
    eventually("the containers' use is measured", 30, || {
        let page = raw("metrics/resource");
        let used = |line: &str| {
            line.starts_with("container_memory_working_set_bytes{container=\"c\"") && !line.contains("} 0 ")
        };
        let wanted =
            ["node_cpu_usage_seconds_total", "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"chatty\"}"];
        if page.lines().any(used) && wanted.iter().all(|w| page.contains(w)) { Ok(()) } else { Err(page) }
    });
    assert_contains(&raw("stats/summary"), &["usageCoreNanoSeconds", "workingSetBytes", "capacityBytes", "chatty"]);
    assert_contains(&raw("metrics"), &["kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}"]);

    // What it says of the node.
    let events = kubectl.ok(&["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"]);
    assert_contains(&events, &["Starting", "NodeReady", "NodeHasSufficientMemory", "NodeHasNoDiskPressure"]);

    std::fs::remove_file(manifests.join("web.yaml")).unwrap_or_else(|error| panic!("{error}"));
    eventually_true("the static pod is gone", 60, || kubectl.get("pod", &web).is_none());
    kubectl.ok(&["delete", "pod", "--all", "--timeout=60s"]);
}

/// A container has a CPU of its own and others share the rest; agents die, the policy changes, and nothing that runs ends.
#[test]
fn a_container_has_a_cpu_of_its_own() {
    let Some(online) = several_cpus() else { return };
    let sandbox = Sandbox::new();
    let configure =
        |policy: &str| sandbox.kubelet_config(&format!("reservedSystemCPUs: '0'\ncpuManagerPolicy: {policy}\n"));
    let config = configure("static");
    let start = || sandbox.start(&["--kubelet-config", &config]);
    start();
    sandbox.carrack(&["image", "build", "busybox"]).limit_s(300).done();
    let kubectl = sandbox.kubectl();
    let idle = "while :; do sleep 1; done";
    let own = pod("own", idle) + "    resources: {limits: {cpu: 1, memory: 32Mi}}\n";
    kubectl.apply(&pod("shares", idle));
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/shares", "--timeout=60s"]);
    let cpus = |name: &str| {
        let status = kubectl.ok(&["exec", name, "--", "grep", "Cpus_allowed_list", "/proc/self/status"]);
        status.split_whitespace().last().unwrap_or_default().to_owned()
    };
    assert_eq!(cpus("shares"), online);
    kubectl.apply(&own);
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/own", "--timeout=60s"]);
    assert_eq!(cpus("own"), "1");
    let shared = cpus("shares");
    assert!(shared != online && !shared.starts_with('1'), "{shared}");
    let ids = || ["shares", "own"].map(|name| kubectl.field("pod", name, "/status/containerStatuses/0/containerID"));
    let before = ids();
    // All agents are killed; then the policy is another one, and the first again.
    for (policy, expected) in [("static", ["1", &shared]), ("none", [online.as_str(); 2]), ("static", ["1", &shared])] {
        sandbox.kill_9();
        // In the same place.
        assert_eq!(configure(policy), config);
        start();
        let has = || [cpus("own"), cpus("shares")];
        eventually_true(&format!("CPUs are as with {policy}"), 60, || has() == expected);
        assert_eq!(ids(), before, "{policy}");
    }
    // What it had is everybody's when it is gone.
    kubectl.ok(&["delete", "pod", "own", "--timeout=60s"]);
    eventually_true("the other runs everywhere", 30, || cpus("shares") == online);
}
