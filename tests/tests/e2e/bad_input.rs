//! Wrong manifests: the client gets the error that Kubernetes or KubeVirt would give, and nothing else is disturbed.

use carrack_e2e::{Sandbox, assert_contains, eventually, eventually_true, root};

/// Name, manifest, and what kubectl must say.
const MANIFESTS: &[(&str, &str, &[&str])] = &[
    (
        "an unknown field",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c, image: i, imagee: x}]\n",
        &["unknown field", "spec.containers[0].imagee"],
    ),
    (
        "a mistyped field",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: {name: c}\n",
        &["containers"],
    ),
    (
        "a missing field",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c}]\n",
        &["spec.containers[0].image", "Required value"],
    ),
    (
        "no containers",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
        &["spec.containers", "Required value"],
    ),
    (
        "a name that is none",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n",
        &["metadata.name", "RFC 1123"],
    ),
    ("an unknown kind", "apiVersion: v1\nkind: Pood\nmetadata: {name: a}\n", &["Pood"]),
    (
        "an unknown group",
        "apiVersion: none.example/v1\nkind: Thing\nmetadata: {name: a}\n",
        &["Thing", "none.example/v1"],
    ),
    (
        "a namespace that is not there",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: nowhere}\n",
        &["nowhere", "not found"],
    ),
    ("a broken YAML", "apiVersion: v1\nkind: [ConfigMap\n", &["error"]),
    (
        "a bad quantity",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c, image: i, resources: {requests: {memory: lots}}}]\n",
        &["quantities must match the regular expression"],
    ),
    (
        "fewer replicas than none",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replicas: -1\n  selector: {matchLabels: {app: a}}\n  template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}\n",
        &["spec.replicas", "must be greater than or equal to 0"],
    ),
    (
        "a selector that does not choose what is made",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  selector: {matchLabels: {app: a}}\n  template: {metadata: {labels: {app: b}}, spec: {containers: [{name: c, image: i}]}}\n",
        &["spec.template.metadata.labels", "`selector` does not match template `labels`"],
    ),
    (
        "an unknown field of a machine",
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\nspec:\n  runStrategy: Always\n  template: {spec: {domain: {devices: {}, memroy: {guest: 64Mi}}}}\n",
        &["memroy"],
    ),
    (
        "a strategy that is none",
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\nspec:\n  runStrategy: Sometimes\n  template: {spec: {domain: {devices: {}}}}\n",
        &["spec.runStrategy"],
    ),
    (
        "a disk without its volume",
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\nspec:\n  runStrategy: Always\n  template: {spec: {domain: {devices: {disks: [{name: gone, disk: {bus: virtio}}]}, memory: {guest: 64Mi}}}}\n",
        &["spec.template.spec.domain.devices.disks[0].name"],
    ),
    (
        "a machine without a template",
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\nspec: {runStrategy: Always}\n",
        &["template"],
    ),
];

#[test]
fn wrong_manifests_are_refused_with_their_reason() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    for (what, manifest, expected) in MANIFESTS {
        let output = kubectl.run(&["apply", "-f", "-"]).input(*manifest).output();
        assert_eq!(output.code, Some(1), "{what}: {output}");
        let said = format!("{}{}", output.stdout, output.stderr);
        for part in *expected {
            assert!(said.contains(part), "{what}: {part:?} is missing in: {said}");
        }
    }
    assert_eq!(kubectl.ok(&["get", "pods,deployments,vms,vmis", "-o", "name"]), "", "something was made all the same");
    assert_contains(&kubectl.ok(&["get", "--raw", "/readyz"]), &["ok"]);
}

/// What can be stored and cannot work: it is told of, and nobody tries it without end.
#[test]
fn what_cannot_work_is_told_in_events() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let events = |name: &str| {
        let about = format!("involvedObject.name={name}");
        kubectl.ok(&["get", "events", "--field-selector", &about, "-o", "jsonpath={range .items[*]}{.reason} {end}"])
    };
    // A day that never comes.
    kubectl.apply(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: never}\nspec:\n  schedule: 0 0 30 2 *\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n",
    );
    eventually_true("an event about the schedule", 30, || events("never").contains("InvalidSchedule"));
    let stored = kubectl.field("cronjob", "never", "/metadata/resourceVersion");
    // An owner in another namespace is none.
    kubectl.ok(&["create", "namespace", "other"]);
    kubectl.ok(&["create", "configmap", "owner", "-n", "other"]);
    let uid = kubectl.ok(&["get", "configmap", "owner", "-n", "other", "-o", "jsonpath={.metadata.uid}"]);
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: stray\n  ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]\n",
    ));
    eventually_true("an event about the owner", 30, || events("stray").contains("OwnerRefInvalidNamespace"));
    eventually_true("the stray object is gone", 30, || kubectl.get("configmap", "stray").is_none());
    assert_contains(&kubectl.ok(&["get", "configmaps", "-n", "other", "-o", "name"]), &["configmap/owner"]);
    // Meanwhile nothing was made of the schedule, nor was it written or told of over and over.
    assert_eq!(kubectl.ok(&["get", "jobs", "-o", "name"]), "");
    assert_eq!(kubectl.field("cronjob", "never", "/metadata/resourceVersion"), stored);
    assert!(events("never").split_whitespace().count() <= 2, "{}", events("never"));
}

/// A machine with these parts of its spec.
fn machine(name: &str, domain: &str, volumes: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}}}\nspec:\n  runStrategy: Always\n  template:\n    \
         spec:\n      terminationGracePeriodSeconds: 0\n      domain:\n        memory: {{guest: 64Mi}}\n{domain}\n      {volumes}\n"
    )
}

/// Machines that can be stored and cannot run: a condition and an event say why, and one that can is not disturbed.
#[test]
fn machines_that_cannot_run_say_why() {
    let sandbox = Sandbox::up(&["busybox"]);
    let kubectl = sandbox.kubectl();
    let devices =
        |disks: &str| format!("        devices: {{autoattachGraphicsDevice: false, interfaces: [], disks: [{disks}]}}");
    let root = devices("{name: root, disk: {bus: virtio}}");
    kubectl.apply(&machine("fine", &devices(""), "volumes: []"));
    eventually_true("the machine that can run does", 120, || {
        kubectl.field("vm", "fine", "/status/printableStatus") == "Running"
    });
    let fine =
        || (kubectl.field("vmi", "fine", "/metadata/uid"), kubectl.field("vm", "fine", "/status/printableStatus"));
    let before = fine();

    // An image without a disk in it, a secret without user data, and more processors than there are.
    let image = "volumes: [{name: root, containerDisk: {image: \"localhost/carrack/busybox:0.1.0\", imagePullPolicy: IfNotPresent}}]";
    kubectl.apply(&machine("diskless", &root, image));
    kubectl.ok(&["create", "secret", "generic", "words", "--from-literal=other=thing"]);
    let words = "volumes: [{name: root, cloudInitNoCloud: {secretRef: {name: words}}}]";
    kubectl.apply(&machine("wordless", &root, words));
    let vast =
        format!("        cpu: {{cores: 250}}\n        resources: {{requests: {{cpu: \"10000\"}}}}\n{}", devices(""));
    kubectl.apply(&machine("vast", &vast, "volumes: []"));
    for (name, condition, event, why) in [
        ("diskless", "Synchronized", "SyncFailed", "no directory /disk"),
        ("wordless", "Synchronized", "SyncFailed", "has no key userdata"),
        ("vast", "PodScheduled", "FailedScheduling", "Insufficient cpu"),
    ] {
        eventually(&format!("{name} says why it does not run"), 90, || {
            let said = kubectl.ok(&["get", "vmi", name, "-o", "jsonpath={.status.conditions}"]);
            let conditions: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
            let told = conditions.as_array().is_some_and(|all| {
                all.iter().any(|one| {
                    one["type"] == condition && one["status"] == "False" && one["message"].to_string().contains(why)
                })
            });
            let events = kubectl.ok(&[
                "get",
                "events",
                "-o",
                "jsonpath={range .items[*]}{.involvedObject.name} {.reason} {.message}{\"\\n\"}{end}",
            ]);
            let event = events.lines().any(|line| line.contains(name) && line.contains(event) && line.contains(why));
            if told && event { Ok(()) } else { Err(format!("{said}\n{events}")) }
        });
    }
    kubectl.wait_status_within("vast", "ErrorUnschedulable", 60);
    assert_eq!(fine(), before);
    kubectl.ok(&["delete", "vm", "--all", "--timeout=90s"]);
    eventually_true("no pod is left", 60, || kubectl.ok(&["get", "pods", "-o", "name"]).trim().is_empty());
}

#[test]
fn statuses_carry_code_reason_and_field() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let proxy = |path: &str, content_type: &str, body: &[u8]| {
        let kubeconfig = sandbox.data_dir().join("kubeconfig.yaml");
        // kubectl alone cannot send a body of any kind, so credentials are taken out of its file.
        let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let config: serde_json::Value = serde_json::from_str(&text).expect("the file is JSON");
        let file = |name: &str, pointer: &str| {
            let path = sandbox.home().join(name);
            let data = config.pointer(pointer).and_then(serde_json::Value::as_str).expect("a field");
            let decoded = sandbox.program("base64", &["-d"]).input(data).ok();
            std::fs::write(&path, decoded).expect("written");
            path.display().to_string()
        };
        let (certificate, key) =
            (file("c", "/users/0/user/client-certificate-data"), file("k", "/users/0/user/client-key-data"));
        let (url, header) = (format!("https://127.0.0.1:6443{path}"), format!("Content-Type: {content_type}"));
        let arguments = ["-sk", "--cert", &certificate, "--key", &key, "-H", &header, "--data-binary", "@-", &url];
        let said = sandbox.program("curl", &arguments).input(body).ok();
        serde_json::from_str::<serde_json::Value>(&said).unwrap_or_else(|_| serde_json::json!({ "text": said }))
    };
    let configmaps = "/api/v1/namespaces/default/configmaps";

    let status = proxy(configmaps, "application/json", b"{not json");
    assert_eq!((&status["code"], &status["reason"]), (&400.into(), &"BadRequest".into()), "{status}");
    let twice = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","name":"b"}}"#;
    let status = proxy(&format!("{configmaps}?fieldValidation=Strict"), "application/json", twice);
    assert_eq!((&status["code"], &status["reason"]), (&400.into(), &"BadRequest".into()), "{status}");
    assert_contains(&status["message"].to_string(), &["duplicate field", "metadata.name"]);
    let status = proxy(configmaps, "text/plain", b"hello");
    assert_eq!((&status["code"], &status["reason"]), (&415.into(), &"UnsupportedMediaType".into()), "{status}");
    let large =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  a: {}\n", "x".repeat(4 << 20));
    let said = kubectl.run(&["create", "-f", "-"]).input(large).fails();
    assert_contains(&said, &["RequestEntityTooLarge", "limit is"]);
    let status = proxy(
        "/api/v1/namespaces/default/pods",
        "application/json",
        br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[]}}"#,
    );
    assert_eq!((&status["code"], &status["reason"]), (&422.into(), &"Invalid".into()), "{status}");
    assert_eq!(status["details"]["causes"][0]["field"], "spec.containers", "{status}");
    let vm = br#"{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"a"},"spec":{"runStrategy":"Always","template":{"spec":{"domain":{"memory":{"guest":"64Mi"},"devices":{"disks":[{"name":"gone","disk":{"bus":"virtio"}}]}}}}}}"#;
    let status = proxy("/apis/kubevirt.io/v1/namespaces/default/virtualmachines", "application/json", vm);
    assert_eq!(status["code"], 422, "{status}");
    assert_contains(&status["details"]["causes"].to_string(), &["spec.template.spec.domain.devices.disks[0].name"]);
    assert_contains(&kubectl.ok(&["get", "--raw", "/readyz"]), &["ok"]);
}

#[test]
fn old_and_new_kubectl_understand_the_api() {
    let sandbox = Sandbox::up(&[]);
    let example = root().join("examples/vm-manual.yaml").display().to_string();
    for kubectl in sandbox.kubectls() {
        assert_contains(&kubectl.ok(&["api-resources"]), &["pods", "virtualmachines", "deployments", "vmi,vmis"]);
        assert_contains(&kubectl.ok(&["api-versions"]), &["kubevirt.io/v1", "apps/v1"]);
        assert_contains(&kubectl.ok(&["explain", "pod.spec.containers.image"]), &["image"]);
        assert_contains(&kubectl.ok(&["explain", "vm.spec.template"]), &["template"]);
        assert_contains(&kubectl.ok(&["version"]), &["v1.36"]);
        kubectl.ok(&["create", "configmap", "typed", "--from-literal=a=b"]);
        kubectl.ok(&["create", "namespace", "typed"]);
        kubectl.ok(&["annotate", "configmap", "typed", "x=y"]);
        kubectl.ok(&["apply", "-f", &example]);
        assert_contains(&kubectl.ok(&["apply", "-f", &example]), &["unchanged"]);
        assert_contains(&kubectl.ok(&["get", "vm", "-o", "yaml"]), &["runStrategy: Manual"]);
        kubectl.ok(&["delete", "-f", &example, "--timeout=30s"]);
        kubectl.ok(&["delete", "configmap/typed", "namespace/typed", "--timeout=60s"]);
        assert_contains(&kubectl.fails(&["get", "pod", "nope"]), &["pods \"nope\" not found"]);
    }
}
