//! Definitions, admission and subresources in the real API server over a store in memory.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and its inputs are its own")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use carrack_apiserver::{ApiServer, Body, Config, Env};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_VIRT_HANDLERS, USER_VIRT_CONTROLLER};
use carrack_store::MemStore;
use carrack_types::kubevirt::crds;
use carrack_virt::admission::{CloneAdmission, VirtAdmission};
use carrack_virt::api::Subresources;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

#[path = "api/data_volumes.rs"]
mod data_volumes;
#[path = "api/launchers.rs"]
mod launchers;
#[path = "api/presets.rs"]
mod presets;

const VMS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const VMIS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
const CALLS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default";

struct TestEnv(AtomicU64);

impl Env for TestEnv {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("in range")
    }
    fn random(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).rotate_left(17)
    }
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the logic waited for something"),
    }
}

struct Cluster(ApiServer);

impl Cluster {
    fn new() -> Self {
        let mut config = Config::new(Arc::new(MemStore::default()), Arc::new(TestEnv(AtomicU64::new(7))));
        config.plugins.push(Box::new(VirtAdmission));
        config.plugins.push(Box::new(CloneAdmission::default()));
        config.apis.push(Arc::new(Subresources::new()));
        let cluster = Self(ApiServer::new(config));
        now(cluster.0.bootstrap()).expect("bootstrap");
        for crd in crds() {
            cluster.admin(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd, 201);
        }
        cluster
    }

    fn call(&self, caller: Caller, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let merge = method == Method::PATCH;
        let media = if merge { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", media);
        let response = now(self.0.handle(request.body(body).expect("a request"), caller));
        let code = response.status().as_u16();
        if let Body::Node(target) = response.body() {
            return (code, json!({"node": target.node, "port": target.port, "path": target.path_and_query}));
        }
        let bytes = response.into_body().into_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// What its maker is warned of.
    fn warnings(&self, path: &str, object: &Value) -> Vec<String> {
        let request =
            http::Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
        let request = request.body(Bytes::from(object.to_string())).expect("a request");
        let response = now(self.0.handle(request, Caller::new("admin", ["system:masters"])));
        assert_eq!(response.status().as_u16(), 201, "{object}");
        let told = response.headers().get_all("warning").iter().filter_map(|warning| warning.to_str().ok());
        told.map(str::to_owned).collect()
    }

    #[track_caller]
    fn admin(&self, method: Method, path: &str, body: &Value, code: u16) -> Value {
        let (got, reply) = self.call(Caller::new("admin", ["system:masters"]), method, path, body);
        assert_eq!(got, code, "{path}: {reply}");
        reply
    }
}

fn vm(more: Value) -> Value {
    let mut vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "demo"},
        "spec": {"runStrategy": "Always", "template": {"metadata": {"creationTimestamp": null}, "spec": {
            "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}, "memory": {"guest": "64Mi"}},
            "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]}}}});
    merge(&mut vm, more);
    vm
}

fn vmi() -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "demo"},
        "spec": vm(json!({}))["spec"]["template"]["spec"]})
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

#[test]
fn a_machine_is_completed_shown_and_served_in_both_versions() {
    let cluster = Cluster::new();
    let made = cluster.admin(Method::POST, VMS, &vm(json!({})), 201);
    assert_eq!(made["spec"]["template"]["spec"]["domain"]["machine"]["type"], "q35");
    assert_eq!(made["spec"]["template"]["spec"]["architecture"], "amd64");
    // The template of a machine keeps what its user left to the instance.
    assert_eq!(made["spec"]["template"]["spec"]["domain"]["cpu"], Value::Null);
    let old = cluster.admin(Method::GET, &VMS.replace("v1/", "v1alpha3/"), &Value::Null, 200);
    assert_eq!(old["items"][0]["apiVersion"], "kubevirt.io/v1alpha3");
    let instance = cluster.admin(Method::POST, VMIS, &vmi(), 201);
    assert_eq!(instance["spec"]["domain"]["cpu"]["cores"], 1);
    assert_eq!(instance["spec"]["networks"][0]["name"], "default");
    assert_eq!(instance["spec"]["domain"]["firmware"]["uuid"].as_str().map(str::len), Some(36));
}

#[test]
fn faults_are_told_by_field() {
    let cluster = Cluster::new();
    let check = |more: Value, code: u16, field: &str| {
        let reply = cluster.admin(Method::POST, VMS, &vm(more), code);
        let causes = reply["details"]["causes"].as_array().cloned().unwrap_or_default();
        assert!(causes.iter().any(|cause| cause["field"] == field), "{reply}");
    };
    let domain = |domain: Value| json!({"spec": {"template": {"spec": {"domain": domain}}}});
    check(
        domain(json!({"devices": {"disks": [{"name": "gone"}]}})),
        422,
        "spec.template.spec.domain.devices.disks[0].name",
    );
    check(json!({"spec": {"running": true}}), 422, "spec.running");
    check(json!({"spec": {"template": null}}), 422, "spec.template");
    check(domain(json!({"memory": {"guest": "lots"}})), 422, "spec.template.spec.domain.memory.guest");
    check(domain(json!({"cpu": {"cores": "two"}})), 422, "spec.template.spec.domain.cpu.cores");
    check(
        domain(json!({"devices": {"disks": [{"disk": {}}]}})),
        422,
        "spec.template.spec.domain.devices.disks[0].name",
    );
    // What the schema leaves open is checked all the same.
    let odd = json!({"spec": {"template": {"metadata": {"labels": {"a": 5}}}}});
    let reply = cluster.admin(Method::POST, VMS, &vm(odd), 400);
    assert!(reply["message"].as_str().is_some_and(|m| m.contains("spec.template.metadata.labels[a]: ")), "{reply}");
    // One without a value is empty, as Go's decoder reads it.
    let blank =
        json!({"spec": {"template": {"metadata": {"annotations": {"a": null}}}}, "metadata": {"name": "blank"}});
    let made = cluster.admin(Method::POST, VMS, &vm(blank), 201);
    assert_eq!(made["spec"]["template"]["metadata"]["annotations"], json!({"a": ""}), "{made}");
    let unknown = domain(json!({"devices": {"dsiks": []}}));
    let reply = cluster.admin(Method::POST, &format!("{VMS}?fieldValidation=Strict"), &vm(unknown.clone()), 400);
    assert!(
        reply["message"].as_str().is_some_and(|m| m.contains("spec.template.spec.domain.devices.dsiks")),
        "{reply}"
    );
    let made = cluster.admin(Method::POST, &format!("{VMS}?fieldValidation=Ignore"), &vm(unknown), 201);
    assert_eq!(made["spec"]["template"]["spec"]["domain"]["devices"].get("dsiks"), None);
}

#[test]
fn fields_that_are_to_go_are_warned_of() {
    let cluster = Cluster::new();
    let check = |name: &str, spec: Value, wanted: usize| {
        let mut machine = vm(json!({"metadata": {"name": name}}));
        machine["spec"].as_object_mut().expect("a spec").remove("runStrategy");
        merge(&mut machine, json!({ "spec": spec }));
        let told = cluster.warnings(VMS, &machine);
        let told = told.iter().filter(|told| told.contains("spec.running is deprecated")).count();
        assert_eq!(told, wanted, "{spec}");
    };
    check("a", json!({"running": false}), 1);
    check("b", json!({"running": true}), 1);
    check("c", json!({"runStrategy": "Halted"}), 0);
}

#[test]
fn settings_are_one_object() {
    let cluster = Cluster::new();
    let kubevirts = |namespace: &str| format!("/apis/kubevirt.io/v1/namespaces/{namespace}/kubevirts");
    let settings = |name: &str, configuration: Value| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": name},
            "spec": {"configuration": configuration}})
    };
    let make =
        |namespace: &str, object: Value, code: u16| cluster.admin(Method::POST, &kubevirts(namespace), &object, code);
    let wrong = [
        (json!({"vmRolloutStrategy": "Sometimes"}), "spec.configuration.vmRolloutStrategy"),
        (
            json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS9"}}),
            "spec.configuration.tlsConfiguration.minTLSVersion",
        ),
        (json!({"tlsConfiguration": {"ciphers": ["a"]}}), "spec.configuration.tlsConfiguration.ciphers"),
    ];
    for (configuration, field) in &wrong {
        let reply = make("default", settings("one", configuration.clone()), 422);
        assert_eq!(reply["details"]["causes"][0]["field"], *field, "{reply}");
    }
    make("default", settings("one", json!({"vmRolloutStrategy": "LiveUpdate"})), 201);
    cluster.admin(Method::POST, "/api/v1/namespaces", &json!({"metadata": {"name": "other"}}), 201);
    for (namespace, name) in [("default", "two"), ("other", "one")] {
        let reply = make(namespace, settings(name, json!({})), 400);
        assert_eq!(reply["message"], "Kubevirt is already created");
    }
    // That is told otherwise of the same one, and it can be changed and replaced.
    make("default", settings("one", json!({})), 409);
    let path = format!("{}/one", kubevirts("default"));
    for (configuration, _) in &wrong {
        cluster.admin(Method::PATCH, &path, &json!({"spec": {"configuration": configuration}}), 422);
    }
    cluster.admin(Method::PATCH, &path, &json!({"spec": {"configuration": {"machineType": "pc"}}}), 200);
    cluster.admin(Method::DELETE, &path, &Value::Null, 200);
    make("other", settings("one", json!({})), 201);
}

/// What comes first on the way from a volume and has the label counts.
#[test]
fn a_machine_has_its_size_from_where_its_volume_comes_from() {
    let cluster = Cluster::new();
    let labels = |name: &str, kind: &str| {
        let mut labels = json!({"instancetype.kubevirt.io/default-instancetype": name,
            "instancetype.kubevirt.io/default-preference": "linux"});
        if !kind.is_empty() {
            labels["instancetype.kubevirt.io/default-instancetype-kind"] = json!(kind);
        }
        labels
    };
    let place = |namespace: &str, of: &str| match of {
        "persistentvolumeclaims" => format!("/api/v1/namespaces/{namespace}/{of}"),
        _ => format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/{of}"),
    };
    let make = |of: &str, kind: &str, (namespace, name): (&str, &str), labels: Value, spec: Value| {
        let version = if of == "persistentvolumeclaims" { "v1" } else { "cdi.kubevirt.io/v1beta1" };
        let object =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec});
        cluster.admin(Method::POST, &place(namespace, of), &object, 201);
    };
    let claim = |place: (&str, &str), labels: Value| {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        make("persistentvolumeclaims", "PersistentVolumeClaim", place, labels, spec);
    };
    for (plural, kind) in [("datavolumes", "DataVolume"), ("datasources", "DataSource")] {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.cdi.kubevirt.io")},
            "spec": {"group": "cdi.kubevirt.io", "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        cluster.admin(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition, 201);
    }
    cluster.admin(Method::POST, "/api/v1/namespaces", &json!({"metadata": {"name": "images"}}), 201);
    let size = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
        "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}}});
    let sizes = "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterinstancetypes";
    cluster.admin(Method::POST, sizes, &size, 201);

    claim(("default", "labelled"), labels("small", ""));
    claim(("default", "bare"), json!({}));
    claim(("images", "golden"), labels("own", "VirtualMachineInstancetype"));
    let volume = |name: &str, labels: Value, spec: Value| {
        make("datavolumes", "DataVolume", ("default", name), labels, spec);
    };
    let golden = || json!({"pvc": {"namespace": "images", "name": "golden"}});
    volume("itself", labels("small", ""), json!({"source": golden()}));
    volume("copy", json!({}), json!({"source": golden()}));
    volume("blank", json!({}), json!({"source": {"blank": {}}}));
    let source = |name: &str, labels: Value, spec: Value| {
        make("datasources", "DataSource", ("images", name), labels, json!({ "source": spec }));
        let reference = json!({"kind": "DataSource", "namespace": "images", "name": name});
        volume(name, json!({}), json!({"sourceRef": reference}));
    };
    source("told", labels("small", ""), golden());
    source("through", json!({}), golden());
    source("nothing", json!({}), json!({"snapshot": {}}));
    volume("nowhere", json!({}), json!({"sourceRef": {"kind": "DataSource", "name": "gone"}}));
    volume("odd", json!({}), json!({"sourceRef": {"kind": "Other", "name": "gone"}}));

    // What a machine becomes whose volume that is, or why there is none.
    let ask = |source: Value, matcher: Value, code: u16| {
        let mut machine = vm(json!({"metadata": {"name": "asked"}, "spec": {"instancetype": matcher}}));
        let domain = &mut machine["spec"]["template"]["spec"]["domain"];
        if matcher["inferFromVolumeFailurePolicy"] != "Ignore" {
            domain.as_object_mut().expect("a domain").remove("memory");
        }
        let mut data = json!({"name": "root"});
        merge(&mut data, source);
        machine["spec"]["template"]["spec"]["volumes"] = json!([data]);
        cluster.admin(Method::POST, &format!("{VMS}?dryRun=All"), &machine, code)
    };
    let of_claim = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let of_data = |name: &str| json!({"dataVolume": {"name": name}});
    let infer = || json!({"inferFromVolume": "root"});
    let found = |source: Value, name: &str, kind: &str| {
        let made = ask(source, infer(), 201);
        let kind = format!("VirtualMachine{kind}");
        assert_eq!(made["spec"]["instancetype"], json!({"name": name, "kind": kind}), "{made}");
    };
    let (cluster_wide, own) = ("ClusterInstancetype", "Instancetype");
    found(of_claim("labelled"), "small", cluster_wide);
    found(of_data("labelled"), "small", cluster_wide);
    found(of_data("itself"), "small", cluster_wide);
    found(of_data("copy"), "own", own);
    found(of_data("told"), "small", cluster_wide);
    found(of_data("through"), "own", own);

    let lenient = || json!({"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"});
    // A machine that may go without is then as if it had not asked; otherwise it has no memory of its own beside its size.
    let made = ask(of_claim("labelled"), lenient(), 201);
    assert_eq!(made["spec"]["instancetype"]["name"], "small");
    assert_eq!(made["spec"]["template"]["spec"]["domain"].get("memory"), None, "{made}");
    let untold = |source: Value, why: &str| {
        assert_eq!(ask(source.clone(), infer(), 400)["message"], why);
        let made = ask(source, lenient(), 201);
        assert_eq!(made["spec"].get("instancetype"), None, "{made}");
        assert_eq!(made["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "64Mi");
    };
    let label = "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume";
    untold(of_claim("bare"), label);
    untold(of_data("bare"), label);
    untold(of_data("blank"), "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported");
    untold(of_data("odd"), "unable to infer defaults from DataVolumeSourceRef as Kind Other is not supported");
    untold(of_data("nothing"), "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC");
    untold(
        json!({"containerDisk": {"image": "demo:1"}}),
        "unable to infer defaults from volume root as type is not supported",
    );
    for matcher in [infer(), lenient()] {
        let missing = |source: Value, why: &str| {
            assert_eq!(ask(source, matcher.clone(), 400)["message"], why);
        };
        missing(of_claim("gone"), "persistentvolumeclaims \"gone\" not found");
        missing(of_data("gone"), "persistentvolumeclaims \"gone\" not found");
        missing(of_data("nowhere"), "datasources.cdi.kubevirt.io \"gone\" not found");
    }
    let reply = ask(of_claim("labelled"), json!({"inferFromVolume": "other"}), 400);
    assert_eq!(reply["message"], "unable to find volume other to infer defaults");

    // What is inferred is applied as if it had been named: its memory is in the way.
    let data = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "labelled"}}]);
    let spec = json!({"instancetype": infer(), "template": {"spec": {"volumes": data}}});
    let reply = cluster.admin(Method::POST, VMS, &vm(json!({ "spec": spec })), 422);
    assert_eq!(reply["details"]["causes"][0]["field"], "spec.template.spec.domain.memory.guest", "{reply}");
    // A preference is found the same way, and whoever names one that is not there is told so.
    let spec = json!({"preference": infer(), "template": {"spec": {"volumes": data}}});
    let told = cluster.warnings(VMS, &vm(json!({ "spec": spec })));
    let missing = "virtualmachineclusterpreferences.instancetype.kubevirt.io";
    assert!(told.iter().any(|told| told.contains(missing)), "{told:?}");
    let made = cluster.admin(Method::GET, &format!("{VMS}/demo"), &Value::Null, 200);
    let preference = json!({"name": "linux", "kind": "VirtualMachineClusterPreference"});
    assert_eq!(made["spec"]["preference"], preference);
}

/// It waits for its size, as its status will say.
#[test]
fn a_machine_may_be_there_before_what_it_names() {
    let cluster = Cluster::new();
    let early = json!({"spec": {"instancetype": {"name": "none"}, "preference": {"name": "none"}}});
    let made = cluster.admin(Method::POST, VMS, &vm(early), 201);
    assert_eq!(made["spec"]["instancetype"]["kind"], "VirtualMachineClusterInstancetype");
}

/// What is wrong with it came later: with a rule of another version, or as here with what it names.
#[test]
fn a_machine_that_could_not_be_made_any_more_can_be_stopped() {
    let cluster = Cluster::new();
    let preferences = "/apis/instancetype.kubevirt.io/v1beta1/namespaces/default/virtualmachinepreferences";
    let preference = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachinePreference",
        "metadata": {"name": "fast"}, "spec": {"devices": {"preferredDiskBus": "virtio"}}});
    cluster.admin(Method::POST, preferences, &preference, 201);
    let volume = json!({"name": "root", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}});
    let template =
        json!({"spec": {"domain": {"devices": {"disks": [{"name": "root", "disk": {}}]}}, "volumes": [volume]}});
    let named = json!({"name": "fast", "kind": "VirtualMachinePreference"});
    cluster.admin(Method::POST, VMS, &vm(json!({"spec": {"preference": named, "template": template}})), 201);
    cluster.admin(Method::DELETE, &format!("{preferences}/fast"), &Value::Null, 200);
    let path = format!("{VMS}/demo");
    let patch = |spec: Value, code: u16| cluster.admin(Method::PATCH, &path, &json!({ "spec": spec }), code);
    patch(json!({"runStrategy": "Halted"}), 200);
    patch(json!({"runStrategy": "Sometimes"}), 422);
    patch(json!({"dataVolumeTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}), 422);
    let reply = patch(json!({"template": {"spec": {"terminationGracePeriodSeconds": 5}}}), 422);
    let causes = reply["details"]["causes"].as_array().cloned().unwrap_or_default();
    let field = "spec.template.spec.domain.devices.disks[0].disk.bus";
    assert!(causes.iter().any(|cause| cause["field"] == field), "{reply}");
}

#[test]
fn what_an_instance_is_is_said_by_components() {
    let cluster = Cluster::new();
    let none: [&str; 0] = [];
    let controller = || Caller::new(USER_VIRT_CONTROLLER, none);
    let mut forged = vmi();
    forged["status"] = json!({"phase": "Running", "nodeName": "n1"});
    let rights = json!({"metadata": {"name": "all"}, "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    cluster.admin(Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rights, 201);
    let bob = || Caller::new("bob", none);
    let (code, made) = cluster.call(bob(), Method::POST, VMIS, &forged);
    assert_eq!((code, made.get("status")), (201, None), "{made}");
    let path = format!("{VMIS}/demo");
    let claim = json!({"status": {"phase": "Scheduled", "nodeName": "n1"}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &claim).0, 403);
    assert_eq!(cluster.call(controller(), Method::PATCH, &path, &claim).0, 200);
    let spec = json!({"spec": {"domain": {"memory": {"guest": "1Gi"}}}});
    let (code, reply) = cluster.call(bob(), Method::PATCH, &path, &spec);
    assert_eq!((code, &reply["details"]["causes"][0]["field"]), (422, &json!("spec")), "{reply}");
    let grace = json!({"spec": {"terminationGracePeriodSeconds": 5}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &grace).0, 200);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &labels).0, 200);
    // Where it is to run is its machine's affair.
    let placed = json!({"spec": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &placed).0, 422);
    assert_eq!(cluster.call(controller(), Method::PATCH, &path, &placed).0, 200);
    assert_eq!(cluster.call(controller(), Method::PATCH, &path, &spec).0, 422);
    // A handler speaks of the instances of its own node only.
    let running = json!({"status": {"phase": "Running"}});
    assert_eq!(cluster.call(Caller::virt_handler("n2"), Method::PATCH, &path, &running).0, 403);
    assert!(Caller::virt_handler("n1").groups.iter().any(|group| group == GROUP_VIRT_HANDLERS));
    assert_eq!(cluster.call(Caller::virt_handler("n1"), Method::PATCH, &path, &running).0, 200);
    // Its guest runs on for as long as its finalizer holds it.
    assert_eq!(cluster.call(bob(), Method::DELETE, &path, &Value::Null).0, 200);
    let failed = json!({"status": {"phase": "Failed"}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &failed).0, 403);
    let bound = json!({"metadata": {"annotations": {"kubevirt.io/failover": "true"}}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &bound).0, 422);
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &spec).0, 422);
    let labels = json!({"metadata": {"labels": {"a": "c"}}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &labels).0, 200);
    assert_eq!(cluster.call(controller(), Method::PATCH, &path, &failed).0, 200);
    let free = json!({"metadata": {"finalizers": []}});
    assert_eq!(cluster.call(bob(), Method::PATCH, &path, &free).0, 200);
}

#[test]
fn calls_change_machines_or_go_to_the_node() {
    let cluster = Cluster::new();
    let made = cluster.admin(Method::POST, VMS, &vm(json!({"spec": {"runStrategy": "Halted"}})), 201);
    let put = |path: &str, body: Value, code: u16| cluster.admin(Method::PUT, &format!("{CALLS}/{path}"), &body, code);
    let strategy =
        || cluster.admin(Method::GET, &format!("{VMS}/demo"), &Value::Null, 200)["spec"]["runStrategy"].clone();
    let refused = put("virtualmachines/demo/stop", json!({}), 409);
    assert!(refused["message"].as_str().is_some_and(|m| m.contains("VM is not running")), "{refused}");
    put("virtualmachines/demo/start", json!({"dryRun": ["All"]}), 202);
    // What is not understood is not carried out as if it were not there.
    let refused = put("virtualmachines/demo/start", json!({"dryRun": ["all"]}), 422);
    let why = "dryRun: Unsupported value: [\"all\"]: supported values: \"All\"";
    assert_eq!(refused["message"], format!("PatchOptions.meta.k8s.io \"\" is invalid: {why}"));
    for options in [json!({"paused": "true"}), json!({"dryRun": "All"}), json!({"dryRun": [1]})] {
        let refused = put("virtualmachines/demo/start", options, 400);
        let says = refused["message"].as_str().unwrap_or_default();
        assert!(says.starts_with("Can not unmarshal Request body to struct, error: "), "{refused}");
    }
    assert_eq!(strategy(), "Halted");
    put("virtualmachines/demo/start", Value::Null, 202);
    assert_eq!(strategy(), "Always");
    put("virtualmachines/demo/start", json!({}), 409);
    put("virtualmachines/none/start", json!({}), 404);
    // No part of a path that is asked for in the server's name.
    put("virtualmachines/demo%3Fpretty=1/restart", json!({}), 404);
    put("virtualmachines/demo%2Fstatus/restart", json!({}), 404);
    put("virtualmachines/demo/stop", json!({"gracePeriod": -1}), 400);
    put("virtualmachines/demo/stop", json!({"gracePeriod": "5"}), 400);
    put("virtualmachines/demo/stop", json!([]), 400);
    cluster.admin(Method::GET, &format!("{CALLS}/virtualmachines/demo/start"), &Value::Null, 405);
    put("virtualmachines/demo/explode", json!({}), 404);

    let mut instance = vmi();
    instance["metadata"]["ownerReferences"] = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "name": "demo", "uid": made["metadata"]["uid"], "controller": true}]);
    instance["status"] = json!({"phase": "Scheduled", "nodeName": "n1"});
    cluster.admin(Method::POST, VMIS, &instance, 201);
    let console = |code: u16| {
        cluster.admin(Method::GET, &format!("{CALLS}/virtualmachineinstances/demo/console"), &Value::Null, code)
    };
    assert!(console(400)["message"].as_str().is_some_and(|m| m.contains("VMI is not running")));
    cluster.admin(Method::PATCH, &format!("{VMIS}/demo"), &json!({"status": {"phase": "Running"}}), 200);
    console(404);
    let node = json!({"metadata": {"name": "n1", "annotations": {"kubevirt.io/virt-handler-port": "9186"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}});
    cluster.admin(Method::POST, "/api/v1/nodes", &node, 201);
    cluster.admin(Method::PATCH, "/api/v1/nodes/n1/status", &json!({"status": node["status"]}), 200);
    let target = console(200);
    assert_eq!(target["port"], 9186);
    assert_eq!(target["path"], "/v1/namespaces/default/virtualmachineinstances/demo/console");
    let forward = format!("{CALLS}/virtualmachines/demo/portforward/22/tcp");
    let target = cluster.admin(Method::GET, &forward, &Value::Null, 200);
    assert_eq!(target["path"], "/v1/namespaces/default/virtualmachineinstances/demo/portforward/22/tcp");

    put("virtualmachines/demo/restart", json!({"gracePeriodSeconds": 0}), 202);
    let status = cluster.admin(Method::GET, &format!("{VMS}/demo"), &Value::Null, 200)["status"].clone();
    assert_eq!(status["stateChangeRequests"][0]["data"]["gracePeriod"], "0");
    assert_eq!(status["stateChangeRequests"][1]["action"], "Start");
    let underway = put("virtualmachines/demo/restart", json!({}), 500);
    assert!(underway["message"].as_str().is_some_and(|m| m.contains("stop/start already underway")), "{underway}");
    put("virtualmachines/demo/restart", json!({"gracePeriodSeconds": 5}), 400);
    let unpause = || format!("{CALLS}/virtualmachineinstances/demo/unpause");
    let paused = json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}});
    cluster.admin(Method::PATCH, &format!("{VMIS}/demo"), &paused, 200);
    cluster.admin(Method::PUT, &unpause(), &json!({"dryRun": ["all"]}), 422);
    cluster.admin(Method::PUT, &unpause(), &json!({}), 200);
    let kept = json!({"status": {"snapshotInProgress": "s"}});
    cluster.admin(Method::PATCH, &format!("{VMS}/demo/status"), &kept, 200);
    let held = cluster.admin(Method::PUT, &unpause(), &json!({}), 409);
    assert!(held["message"].as_str().is_some_and(|m| m.contains("VM snapshot is in progress")), "{held}");
}

/// Its owner asked that it be moved, and nobody can.
#[test]
fn a_launcher_whose_guest_cannot_be_moved_is_not_evicted() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let cluster = Cluster::new();
    let account = json!({"metadata": {"name": "default"}});
    cluster.admin(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account, 201);
    let mut instance = vmi();
    instance["spec"]["evictionStrategy"] = json!("LiveMigrate");
    instance["status"] = json!({"phase": "Running"});
    let made = cluster.admin(Method::POST, VMIS, &instance, 201);
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "demo",
        "uid": made["metadata"]["uid"], "controller": true});
    let launcher = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "launcher",
        "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "compute", "image": "i"}]}});
    cluster.admin(Method::POST, PODS, &launcher, 201);
    let evict = |code: u16| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "launcher"}});
        cluster.admin(Method::POST, &format!("{PODS}/launcher/eviction"), &eviction, code)
    };
    let refused = evict(429);
    assert!(refused["message"].as_str().is_some_and(|m| m.contains("not live-migratable")), "{refused}");
    // Nor when somebody has taken its labels off.
    cluster.admin(Method::PATCH, &format!("{PODS}/launcher"), &json!({"metadata": {"labels": null}}), 200);
    evict(429);
    cluster.admin(Method::PATCH, &format!("{VMIS}/demo"), &json!({"status": {"phase": "Succeeded"}}), 200);
    evict(201);
}

/// Somebody else moves it, and learns of the eviction by the instance.
#[test]
fn an_eviction_tells_whoever_moves_the_guest() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let cluster = Cluster::new();
    let account = json!({"metadata": {"name": "default"}});
    cluster.admin(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account, 201);
    let mut instance = vmi();
    instance["spec"]["evictionStrategy"] = json!("External");
    instance["status"] = json!({"phase": "Running", "nodeName": "n1"});
    let made = cluster.admin(Method::POST, VMIS, &instance, 201);
    let launcher = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "launcher",
        "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": made["metadata"]["uid"]},
        "annotations": {"kubevirt.io/domain": "demo"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "compute", "image": "i"}]}});
    cluster.admin(Method::POST, PODS, &launcher, 201);
    let evict = |query: &str, options: Value| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "launcher"},
            "deleteOptions": options});
        cluster.admin(Method::POST, &format!("{PODS}/launcher/eviction{query}"), &eviction, 429)["message"].clone()
    };
    let marked = || {
        let vmi = cluster.admin(Method::GET, &format!("{VMIS}/demo"), &Value::Null, 200);
        assert_eq!(vmi["spec"]["evictionStrategy"], "External");
        vmi["status"]["evacuationNodeName"].as_str().unwrap_or_default().to_owned()
    };
    let told = "Eviction triggered evacuation of VMI \"default/demo\"";
    assert_eq!(evict("?dryRun=All", Value::Null), told);
    assert_eq!(evict("", json!({"dryRun": ["All"]})), told);
    assert_eq!(marked(), "");
    assert_eq!(evict("", Value::Null), told);
    assert_eq!(marked(), "n1");
    assert_eq!(evict("", Value::Null), format!("Evacuation in progress: {told}"));
    let cancel = format!("{CALLS}/virtualmachineinstances/demo/evacuate/cancel");
    cluster.admin(Method::PUT, &cancel, &json!({"dryRun": ["All"]}), 200);
    assert_eq!(marked(), "n1");
    cluster.admin(Method::PUT, &cancel, &json!({}), 200);
    assert_eq!(marked(), "");
}

#[test]
fn discovery_lists_the_calls() {
    let cluster = Cluster::new();
    for version in ["v1", "v1alpha3"] {
        let list = cluster.admin(Method::GET, &format!("/apis/subresources.kubevirt.io/{version}"), &Value::Null, 200);
        let names: Vec<&str> =
            list["resources"].as_array().into_iter().flatten().filter_map(|r| r["name"].as_str()).collect();
        for name in ["virtualmachines/start", "virtualmachineinstances/console", "version"] {
            assert!(names.contains(&name), "{names:?}");
        }
    }
    let version = cluster.admin(Method::GET, "/apis/subresources.kubevirt.io/v1/version", &Value::Null, 200);
    assert_eq!(version["gitVersion"], carrack_virt::KUBEVIRT_VERSION);
}

#[test]
fn a_content_stands_as_long_as_it_is_there() {
    const CONTENTS: &str = "/apis/snapshot.kubevirt.io/v1beta1/namespaces/default/virtualmachinesnapshotcontents";
    let cluster = Cluster::new();
    let content = json!({"apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineSnapshotContent",
        "metadata": {"name": "c", "finalizers": ["example.com/held"]},
        "spec": {"virtualMachineSnapshotName": "s", "source": {"virtualMachine": {"metadata": {"name": "demo"},
            "spec": {"template": {"spec": {"domain": {"devices": {}}}}}}},
            "volumeBackups": [{"volumeName": "d", "volumeSnapshotName": "x", "persistentVolumeClaim": {"spec": {}}}]}});
    cluster.admin(Method::POST, CONTENTS, &content, 201);
    let path = format!("{CONTENTS}/c");
    let change = |what: Value, code: u16| cluster.admin(Method::PATCH, &path, &what, code);
    change(json!({"metadata": {"labels": {"a": "b"}}}), 200);
    for _ in ["there", "going"] {
        let refused = change(json!({"spec": {"volumeBackups": []}}), 422);
        assert_eq!(refused["details"]["causes"][0]["message"], "spec in immutable after creation", "{refused}");
        cluster.admin(Method::DELETE, &path, &Value::Null, 200);
    }
    change(json!({"metadata": {"finalizers": null}}), 200);
}

#[test]
fn clones_are_completed_and_then_stand() {
    let cluster = Cluster::new();
    let clones = |version: &str| format!("/apis/clone.kubevirt.io/{version}/namespaces/default/virtualmachineclones");
    let clone = |version: &str, target: Value| {
        let mut clone = json!({"apiVersion": format!("clone.kubevirt.io/{version}"), "kind": "VirtualMachineClone",
            "metadata": {"name": "c"}, "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "golden"},
                "newSMBiosSerial": "mine"}});
        if !target.is_null() {
            clone["spec"]["target"] = target;
        }
        clone
    };
    let wrong =
        cluster.admin(Method::POST, &clones("v1beta1"), &clone("v1beta1", json!({"kind": "Pod", "name": "x"})), 422);
    assert_eq!(wrong["details"]["causes"][0]["field"], "spec.Target.Kind");
    // The older version has the same shape.
    let made = cluster.admin(Method::POST, &clones("v1alpha1"), &clone("v1alpha1", Value::Null), 201);
    let name = made["spec"]["target"]["name"].as_str().expect("a name");
    assert!(name.starts_with("clone-golden-") && name.len() == 18, "{name}");
    let path = format!("{}/c", clones("v1beta1"));
    let stored = cluster.admin(Method::GET, &path, &Value::Null, 200);
    assert_eq!(
        (stored["spec"]["target"]["name"].as_str(), &stored["spec"]["newSMBiosSerial"]),
        (Some(name), &json!("mine"))
    );
    let changed = cluster.admin(Method::PATCH, &path, &json!({"spec": {"newSMBiosSerial": "other"}}), 422);
    assert_eq!(changed["details"]["causes"][0]["field"], "spec");
    cluster.admin(Method::PATCH, &path, &json!({"metadata": {"labels": {"a": "b"}}}), 200);
    cluster.admin(
        Method::PATCH,
        &format!("{path}/status"),
        &json!({"status": {"phase": "Succeeded", "targetName": name}}),
        200,
    );
    cluster.admin(Method::PATCH, &format!("{path}/status"), &json!({"status": {"targetName": null}}), 200);
}
