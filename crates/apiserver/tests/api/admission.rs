//! Admission: what pods get from their namespace's service account, priority and tolerations.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionConfiguration, AdmissionPlugin, Attributes, Lookup};
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[test]
fn pods_find_their_credentials() {
    let cluster = Cluster::new();
    let made = cluster.post(PODS, &pod("p")).expect(201);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    let volume = &made["spec"]["volumes"][0];
    let name = volume["name"].as_str().expect("name");
    assert!(name.starts_with("kube-api-access-"), "{name}");
    let sources: Vec<String> = volume["projected"]["sources"]
        .as_array()
        .expect("sources")
        .iter()
        .flat_map(|s| s.as_object().expect("source").keys().cloned())
        .collect();
    assert_eq!(sources, ["serviceAccountToken", "configMap", "downwardAPI"]);
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(
        (mount["name"].as_str(), mount["mountPath"].as_str()),
        (Some(name), Some("/var/run/secrets/kubernetes.io/serviceaccount"))
    );
    let mut without = pod("q");
    without["spec"]["automountServiceAccountToken"] = false.into();
    assert!(cluster.post(PODS, &without).expect(201)["spec"]["volumes"].is_null());
    let mut other = pod("r");
    other["spec"]["serviceAccountName"] = "nobody".into();
    cluster.post(PODS, &other).refused(
        403,
        "Forbidden",
        "pods \"r\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found",
    );
}

#[test]
fn accounts_may_keep_pods_to_their_secrets() {
    const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
    let cluster = Cluster::new();
    let account = json!({"secrets": [{"name": "own"}],
        "metadata": {"name": "strict", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
    let reply = cluster.post(ACCOUNTS, &account);
    let told = reply.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(told.contains("metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated"), "{told}");
    reply.expect(201);
    let named = |name: &str, account: &str, secret: &str| {
        let mut pod = pod(name);
        pod["spec"]["serviceAccountName"] = account.into();
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": secret}}]);
        pod
    };
    let why = "volume with secret.secretName=\"other\" is not allowed because service account strict does not reference that secret";
    cluster.post(PODS, &named("p", "strict", "other")).refused(403, "Forbidden", why);
    cluster.post(PODS, &named("p", "strict", "own")).expect(201);
    cluster.post(PODS, &named("q", "default", "other")).expect(201);
}

#[test]
fn claims_name_what_they_are_filled_from_twice() {
    let cluster = Cluster::new();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let other = json!({"apiGroup": "example.com", "kind": "Picture", "name": "p"});
    for (name, given, source, reference) in [
        ("a", json!({"dataSource": snapshot}), &snapshot, &snapshot),
        ("b", json!({"dataSourceRef": snapshot}), &snapshot, &snapshot),
        // Nobody filled a claim from anything else by the older name.
        ("c", json!({"dataSource": other}), &Value::Null, &Value::Null),
        ("d", json!({"dataSourceRef": other}), &other, &other),
        ("e", json!({"dataSource": other, "dataSourceRef": snapshot}), &snapshot, &snapshot),
    ] {
        let mut claim = json!({"metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        claim["spec"].as_object_mut().expect("a spec").extend(given.as_object().cloned().expect("fields"));
        let made = cluster.post(claims, &claim).expect(201);
        assert_eq!((&made["spec"]["dataSource"], &made["spec"]["dataSourceRef"]), (source, reference), "{given}");
        // Who knows one of the names alone writes the claim back as it was.
        for unknown in ["dataSource", "dataSourceRef"] {
            let mut back = made.clone();
            back["spec"].as_object_mut().expect("a spec").remove(unknown);
            let written = cluster.put(&format!("{claims}/{name}"), &back).expect(200);
            assert_eq!(written["spec"], made["spec"], "{given} without {unknown}");
        }
    }
}

#[test]
fn priorities() {
    let cluster = Cluster::new();
    let made = cluster.post(PODS, &pod("p")).expect(201);
    assert_eq!(
        (made["spec"]["priority"].as_i64(), made["spec"]["preemptionPolicy"].as_str()),
        (Some(0), Some("PreemptLowerPriority"))
    );
    let mut critical = pod("q");
    critical["spec"]["priorityClassName"] = "system-node-critical".into();
    assert_eq!(cluster.post(PODS, &critical).expect(201)["spec"]["priority"], 2_000_001_000);
    let mut unknown = pod("r");
    unknown["spec"]["priorityClassName"] = "none".into();
    cluster.post(PODS, &unknown).refused(403, "Forbidden", "no PriorityClass with name none was found");
    // The class says whether others make room, not the pod.
    let class = json!({"metadata": {"name": "patient"}, "value": 100, "preemptionPolicy": "Never"});
    cluster.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).expect(201);
    let mut patient = pod("s");
    patient["spec"]["priorityClassName"] = "patient".into();
    patient["spec"]["preemptionPolicy"] = "PreemptLowerPriority".into();
    cluster.post(PODS, &patient).refused(403, "Forbidden", "computed Never from the given PriorityClass name");
    patient["spec"]["preemptionPolicy"] = "Never".into();
    assert_eq!(cluster.post(PODS, &patient).expect(201)["spec"]["preemptionPolicy"], "Never");
}

/// Pods that name no class are of the one that says so, and who replaces such a pod need not repeat what it has of it.
#[test]
fn one_priority_class_may_be_that_of_all_others() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let cluster = Cluster::new();
    let class = |name: &str, default: bool| json!({"metadata": {"name": name}, "value": 7, "preemptionPolicy": "Never", "globalDefault": default});
    cluster.post(CLASSES, &class("usual", true)).expect(201);
    let of_class =
        |of: &Value| ["priorityClassName", "priority", "preemptionPolicy"].map(|field| of["spec"][field].clone());
    let usual = [json!("usual"), json!(7), json!("Never")];
    let mut made = cluster.post(PODS, &pod("p")).expect(201);
    assert_eq!(of_class(&made), usual);
    for field in ["priority", "preemptionPolicy"] {
        made["spec"].as_object_mut().expect("a spec").remove(field);
    }
    assert_eq!(of_class(&cluster.put(&format!("{PODS}/p"), &made).expect(200)), usual);
    let why = "PriorityClass usual is marked as the global default already";
    cluster.post(CLASSES, &class("other", true)).refused(403, "Forbidden", why);
    cluster.post(CLASSES, &class("other", false)).expect(201);
    cluster.merge(&format!("{CLASSES}/other"), &json!({"globalDefault": true})).refused(403, "Forbidden", why);
    cluster.merge(&format!("{CLASSES}/usual"), &json!({"description": "of most pods"})).expect(200);
    cluster.delete(&format!("{CLASSES}/usual")).expect(200);
    cluster.merge(&format!("{CLASSES}/other"), &json!({"globalDefault": true})).expect(200);
    let of_system = format!("{CLASSES}/system-cluster-critical");
    cluster.delete(&of_system).refused(403, "Forbidden", "is the system's and cannot be deleted");
}

#[test]
fn pods_at_gates_say_that_they_wait() {
    let cluster = Cluster::new();
    for (name, gates, reason) in
        [("p", json!([{"name": "example.com/later"}]), json!("SchedulingGated")), ("q", json!([]), Value::Null)]
    {
        let mut waits = pod(name);
        waits["spec"]["schedulingGates"] = gates;
        let made = cluster.post(PODS, &waits).expect(201);
        assert_eq!(made["status"]["conditions"][0]["reason"], reason, "{made}");
        assert_eq!(made["status"]["conditions"][0]["status"].as_str(), reason.is_string().then_some("False"), "{made}");
    }
}

#[test]
fn tolerations() {
    let check = |not_ready_s: Option<i64>, unreachable_s: Option<i64>, want: [i64; 2]| {
        let told = AdmissionConfiguration::default().tolerate(not_ready_s, unreachable_s);
        let cluster = Cluster::with(|config| config.admission = told);
        let made = cluster.post(PODS, &pod("p")).expect(201);
        let tolerations = made["spec"]["tolerations"].as_array().expect("tolerations");
        let told: Vec<_> = tolerations.iter().map(|t| (t["key"].as_str(), t["tolerationSeconds"].as_i64())).collect();
        let keys = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        assert_eq!(told, [(Some(keys[0]), Some(want[0])), (Some(keys[1]), Some(want[1]))]);
    };
    check(None, None, [300, 300]);
    check(Some(20), None, [20, 300]);
    check(Some(0), Some(7), [0, 7]);
}

#[test]
fn claims_get_the_default_class() {
    let cluster = Cluster::new();
    let class = json!({
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "example.com/p",
    });
    cluster.post("/apis/storage.k8s.io/v1/storageclasses", &class).expect(201);
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let made = cluster.post("/api/v1/namespaces/default/persistentvolumeclaims", &claim).expect(201);
    assert_eq!(made["spec"]["storageClassName"], "fast");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(made["status"]["phase"], "Pending");
}

/// As upstream's tests look for it ("should be protected by vac-protection finalizer", `test/e2e/storage/volume_attributes_class.go`).
#[test]
fn classes_of_attributes_are_protected_from_the_start() {
    let cluster = Cluster::new();
    let class = json!({"metadata": {"name": "gold"}, "driverName": "disks.example", "parameters": {"iops": "100"}});
    let made = cluster.post("/apis/storage.k8s.io/v1/volumeattributesclasses", &class).expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
}

#[test]
fn nothing_is_created_where_there_is_no_namespace() {
    let cluster = Cluster::new();
    cluster.post("/api/v1/namespaces/none/configmaps", &config_map("m", "x")).refused(
        404,
        "NotFound",
        "namespaces \"none\" not found",
    );
}

#[test]
fn a_node_writes_its_own_objects_only() {
    let cluster = Cluster::new();
    let node = |name: &str| json!({"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}});
    let send = |caller: &str, method: Method, path: &str, body: &Value| {
        let headers = [(
            "content-type",
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" },
        )];
        cluster.request(Caller::node(caller), method, path, &headers, body.to_string().into())
    };
    let made = send("n1", Method::POST, "/api/v1/nodes", &node("n1")).expect(201);
    assert_eq!(made["status"]["capacity"]["cpu"], "4");
    send("n1", Method::POST, "/api/v1/nodes", &node("n2")).refused(403, "Forbidden", "is not allowed to modify node");
    cluster.running_pod("p");
    let status = json!({"status": {"phase": "Running"}});
    send("n1", Method::PATCH, &format!("{PODS}/p/status"), &status).expect(200);
    send("n2", Method::PATCH, &format!("{PODS}/p/status"), &status).refused(
        403,
        "Forbidden",
        "can only update pod status for pods with spec.nodeName set to itself",
    );
}

/// A plugin as crates/virt registers them.
struct Painter;

impl AdmissionPlugin for Painter {
    fn name(&self) -> &'static str {
        "Painter"
    }
    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if attributes.is("", "configmaps") {
            attributes.object["data"]["painted"] = "yes".into();
        }
        Ok(())
    }
    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if attributes.is("", "configmaps") && attributes.object["data"]["v"] == "bad" {
            return Err(Status::invalid(
                "",
                "ConfigMap",
                &attributes.name,
                &[(
                    "FieldValueInvalid".to_owned(),
                    "data.v".to_owned(),
                    "Invalid value: \"bad\": not this one".to_owned(),
                )],
            ));
        }
        Ok(())
    }
}

#[test]
fn registered_plugins_take_part() {
    let cluster = Cluster::with(|config| config.plugins.push(Box::new(Painter)));
    let made = cluster.post(CONFIG_MAPS, &config_map("m", "good")).expect(201);
    assert_eq!(made["data"]["painted"], "yes");
    let refused = cluster.post(CONFIG_MAPS, &config_map("n", "bad")).refused(
        422,
        "Invalid",
        "ConfigMap \"n\" is invalid: data.v: Invalid value: \"bad\": not this one",
    );
    assert_eq!(refused["details"]["causes"][0]["field"], "data.v");
    cluster.merge(&format!("{CONFIG_MAPS}/m"), &json!({"data": {"v": "bad"}})).refused(422, "Invalid", "data.v");
}

#[test]
fn whole_pods_are_resized_where_nodes_declare_it() {
    let cluster = Cluster::new();
    cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).expect(201);
    let mut made = pod("p");
    made["spec"]["nodeName"] = "n1".into();
    made["spec"]["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    cluster.post(PODS, &made).expect(201);
    let resize = |cpu: &str| {
        let patch = json!({"spec": {"resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}}});
        cluster.patch(&format!("{PODS}/p/resize"), "application/strategic-merge-patch+json", &patch)
    };
    let why =
        "pod update requires features InPlacePodLevelResourcesVerticalScaling which are not available on node \"n1\"";
    resize("2").refused(403, "Forbidden", why);
    let declared = json!({"status": {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}});
    cluster.merge("/api/v1/nodes/n1/status", &declared).expect(200);
    assert_eq!(resize("2").expect(200)["spec"]["resources"]["limits"], json!({"cpu": "2", "memory": "64Mi"}));
}
