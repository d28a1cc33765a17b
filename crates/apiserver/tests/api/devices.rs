//! Claims for devices, and certificates of pods.

use carrack_auth::Caller;
use carrack_auth::pki::{Identity, Pki, SIGNER_CLIENT};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, Reply, pod};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CERTIFICATES: &str = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";

fn claim(name: &str, admin: bool) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "adminAccess": admin}}]}}})
}

/// Who may make claims is no administrator of devices by that.
#[test]
fn only_marked_namespaces_look_at_devices_of_others() {
    let cluster = Cluster::new();
    let template = |name: &str| json!({"metadata": {"name": name}, "spec": {"spec": claim("x", true)["spec"].clone()}});
    let why = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    cluster.post(CLAIMS, &claim("a", true)).refused(422, "Invalid", why);
    cluster.post(TEMPLATES, &template("a")).refused(422, "Invalid", why);
    cluster.post(CLAIMS, &claim("b", false)).expect(201);
    let result = json!({"request": "a", "driver": "d.example.com", "pool": "n1", "device": "d0", "adminAccess": true});
    let given = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    cluster.merge(&format!("{CLAIMS}/b/status"), &given).refused(422, "Invalid", why);
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    cluster.merge("/api/v1/namespaces/default", &label).expect(200);
    cluster.post(CLAIMS, &claim("a", true)).expect(201);
    cluster.post(TEMPLATES, &template("a")).expect(201);
    cluster.merge(&format!("{CLAIMS}/b/status"), &given).expect(200);
}

#[test]
fn devices_that_are_taken_back_are_forgotten() {
    let cluster = Cluster::new();
    cluster.post(CLAIMS, &claim("a", false)).expect(201);
    let device = json!({"driver": "d.example.com", "pool": "n1", "device": "d0"});
    let mut result = device.clone();
    result["request"] = "a".into();
    let given = json!({"status": {"allocation": {"devices": {"results": [result]}}, "devices": [device]}});
    cluster.merge(&format!("{CLAIMS}/a/status"), &given).expect(200);
    let taken = cluster.merge(&format!("{CLAIMS}/a/status"), &json!({"status": {"allocation": null}})).expect(200);
    assert_eq!(taken["status"], json!({}));
    let asks_more = json!({"spec": {"devices": {"requests": []}}});
    cluster.merge(&format!("{CLAIMS}/a"), &asks_more).refused(422, "Invalid", "spec: Invalid value");
}

/// Lets the driver's account do something.
fn allow(cluster: &Cluster, name: &str, [group, resource, verb]: [&str; 3]) {
    let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]);
    let role = json!({"metadata": {"name": name}, "rules": rules});
    cluster.post(&format!("{RBAC}/clusterroles"), &role).expect(201);
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "driver"}]});
    cluster.post(&format!("{RBAC}/clusterrolebindings"), &binding).expect(201);
}

/// The driver's account, whose pod is on a node.
fn driver() -> Caller {
    let mut driver = Caller::service_account("default", "driver", "u");
    driver.extra.insert("authentication.kubernetes.io/node-name".to_owned(), vec!["n1".to_owned()]);
    driver
}

/// What comes of it when the driver writes a part of an object.
fn say(cluster: &Cluster, path: &str, patch: &Value) -> Reply {
    let headers = [("content-type", "application/merge-patch+json")];
    cluster.request(driver(), Method::PATCH, path, &headers, patch.to_string().into())
}

/// The scheduler says which devices a claim has, drivers how theirs are.
#[test]
fn parts_of_the_status_take_rights_of_their_own() {
    let cluster = Cluster::new();
    cluster.post(CLAIMS, &claim("a", false)).expect(201);
    let say = |status: &Value| say(&cluster, &format!("{CLAIMS}/a/status"), &json!({"status": status}));
    let allow = |name: &str, resource: &str, verb: &str| allow(&cluster, name, ["resource.k8s.io", resource, verb]);
    let device = json!({"driver": "d.example.com", "pool": "n1", "device": "d0"});
    let mut result = device.clone();
    result["request"] = "a".into();
    let here = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
    let given = json!({"allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": here}}});
    let told = json!({"devices": [device]});
    allow("status", "resourceclaims/status", "patch");
    let why = "status: Forbidden: changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"patch\" permission";
    say(&given).refused(422, "Invalid", why);
    allow("binding", "resourceclaims/binding", "patch");
    say(&given).expect(200);
    let why = "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[associated-node:patch arbitrary-node:patch]\" permission";
    say(&told).refused(422, "Invalid", why);
    allow("driver", "resourceclaims/driver", "associated-node:patch");
    say(&told).expect(200);
    // What is told goes with the devices, whoever may take them.
    cluster.delete(&format!("{RBAC}/clusterrolebindings/driver")).expect(200);
    let taken = say(&json!({"allocation": null})).expect(200);
    assert_eq!(taken["status"], json!({}));
}

const JANE: &str = include_str!("../data/jane.csr.pem");

/// A request in DER, in base64: what is between the lines of its PEM.
fn stub() -> String {
    JANE.lines().filter(|line| !line.starts_with("-----")).collect()
}

#[test]
fn certificates_of_pods_are_for_their_keys() {
    let cluster = Cluster::serving(&["certificates.k8s.io/v1beta1/podcertificaterequests=true"]);
    let request = |name: &str, stub: &str| {
        json!({"metadata": {"name": name}, "spec": {"signerName": "example.com/pods", "podName": "p", "podUID": "1",
            "serviceAccountName": "s", "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3",
            "stubPKCS10Request": stub}})
    };
    cluster.post(CERTIFICATES, &request("a", "AAAA")).refused(422, "Invalid", "spec.stubPKCS10Request: Invalid value");
    let made = cluster.post(CERTIFICATES, &request("a", &stub())).expect(201);
    assert_eq!(made["spec"]["maxExpirationSeconds"], 86_400);
    assert_eq!(made["status"], json!({}), "signers add to it");
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("a PKI");
    let another = pki.client(&Identity::Admin, 1_800_000_000).expect("a certificate").certificate;
    let status = |chain: &str| {
        json!({"status": {"certificateChain": chain, "notBefore": "2027-01-15T08:00:00Z", "notAfter": "2027-01-15T20:00:00Z",
            "beginRefreshAt": "2027-01-15T16:00:00Z", "conditions": [{"type": "Issued", "status": "True", "reason": "R",
                "message": "", "lastTransitionTime": "2027-01-15T08:00:00Z"}]}})
    };
    let path = format!("{CERTIFICATES}/a/status");
    cluster.merge(&path, &status("x")).refused(422, "Invalid", "must contain at least one certificate");
    cluster.merge(&path, &status(&another)).refused(422, "Invalid", "was not issued to the requested public key");
    // One for the key, by who may sign.
    let usages = ["digital signature".to_owned(), "client auth".to_owned()];
    let signer = pki.request_signer(1_800_000_000).expect("a signer");
    let signed = signer.sign(JANE.as_bytes(), SIGNER_CLIENT, &usages, Some(36_000), 1_800_000_000);
    let mut issued = status(&signed.expect("a certificate"));
    issued["status"]["notBefore"] = "2027-01-15T07:55:00Z".into();
    issued["status"]["notAfter"] = "2027-01-15T18:00:00Z".into();
    // When it came to be so is the server's to say where the signer does not; who signs leaves the rest alone.
    issued["status"]["conditions"][0]["lastTransitionTime"] = Value::Null;
    issued["metadata"] = json!({"labels": {"a": "b"}, "finalizers": ["example.com/x"]});
    allow(&cluster, "status", ["certificates.k8s.io", "podcertificaterequests/status", "patch"]);
    let why = "spec.signerName: Forbidden: User \"system:serviceaccount:default:driver\" is not permitted to \"sign\"";
    say(&cluster, &path, &issued).refused(422, "Invalid", why);
    allow(&cluster, "sign", ["certificates.k8s.io", "signers", "sign"]);
    let issued = say(&cluster, &path, &issued).expect(200);
    assert_eq!(issued["status"]["conditions"][0]["lastTransitionTime"], "2027-01-15T08:00:00Z");
    assert_eq!((&issued["metadata"]["labels"], &issued["metadata"]["finalizers"]), (&Value::Null, &Value::Null));
}

/// Who has taken over a node gets no certificates for pods of others, nor from whom its own do not ask for any.
#[test]
fn nodes_ask_for_certificates_of_their_own_pods() {
    let cluster = Cluster::serving(&["certificates.k8s.io/v1beta1/podcertificaterequests=true"]);
    let uid = |object: &Value| object["metadata"]["uid"].as_str().expect("a UID").to_owned();
    let running = |name: &str, node: &str| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = node.into();
        let certificate = json!({"signerName": "example.com/pods", "keyType": "ED25519", "keyPath": "k"});
        pod["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [{"podCertificate": certificate}]}}]);
        cluster.post("/api/v1/namespaces/default/pods", &pod).expect(201)
    };
    let node = cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).expect(201);
    let account = cluster.get("/api/v1/namespaces/default/serviceaccounts/default").expect(200);
    let (here, elsewhere) = (running("p", "n1"), running("q", "n2"));
    let own = json!({"signerName": "example.com/pods", "podName": "p", "podUID": uid(&here), "nodeName": "n1",
        "nodeUID": uid(&node), "serviceAccountName": "default", "serviceAccountUID": uid(&account),
        "stubPKCS10Request": stub()});
    let ask = |spec: &Value| {
        let body = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let headers = [("content-type", "application/json")];
        cluster.request(Caller::node("n1"), Method::POST, CERTIFICATES, &headers, body.into())
    };
    for (changed, code, reason, why) in [
        (json!({"nodeName": "n2"}), 403, "Forbidden", "which is not the requesting node \"n1\""),
        (json!({"nodeUID": "x"}), 409, "Conflict", "it names nodes \"n1\" with the UID \"x\""),
        (json!({"podUID": "x"}), 409, "Conflict", "it names pods \"p\" with the UID \"x\""),
        (json!({"podName": "none"}), 409, "Conflict", "where there is the UID \"\""),
        (json!({"podName": "q", "podUID": uid(&elsewhere)}), 403, "Forbidden", "is not running on node \"n1\""),
        (json!({"serviceAccountName": "s"}), 403, "Forbidden", "that differs from running pod (\"default\")"),
        (json!({"serviceAccountUID": "x"}), 409, "Conflict", "it names serviceaccounts \"default\""),
        (
            json!({"signerName": "example.com/x"}),
            403,
            "Forbidden",
            "signer \"example.com/x\" not found in pod spec volume",
        ),
    ] {
        let mut spec = own.clone();
        for (field, value) in changed.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        ask(&spec).refused(code, reason, why);
    }
    ask(&own).expect(201);
    let list = |selector: &str| {
        let path = format!("/apis/certificates.k8s.io/v1beta1/podcertificaterequests?{selector}");
        cluster.request(Caller::node("n1"), Method::GET, &path, &[], String::new().into())
    };
    assert_eq!(list("fieldSelector=spec.nodeName%3Dn1").expect(200)["items"][0]["metadata"]["name"], "a");
    list("").refused(403, "Forbidden", "can only list/watch podcertificaterequests with nodeName field selector");
    let get = |node: &str| {
        let path = format!("{CERTIFICATES}/a");
        cluster.request(Caller::node(node), Method::GET, &path, &[], String::new().into())
    };
    get("n1").expect(200);
    get("n2").refused(403, "Forbidden", "no relationship found between node 'n2' and this object");
}
