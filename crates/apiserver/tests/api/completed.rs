//! What the server adds to objects of some kinds, and what it keeps of their statuses.

use std::sync::{Arc, Mutex};

use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup};
use carrack_apiserver::{Status, storage_prefix};
use carrack_store::{Op, Store, Txn, stamp_place};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, now, pod};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(name: &str) -> Value {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": spec}}})
}

#[test]
fn new_nodes_take_no_pods_until_somebody_saw_them_ready() {
    let cluster = Cluster::new();
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let made = cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).expect(201);
    assert_eq!(made["spec"]["taints"], json!([taint]));
    let own = json!({"key": "a", "effect": "NoExecute"});
    let node = json!({"metadata": {"name": "m"}, "spec": {"taints": [own, taint]}});
    assert_eq!(cluster.post("/api/v1/nodes", &node).expect(201)["spec"]["taints"], json!([own, taint]));
    // Who takes it away has taken it away.
    let ready = cluster.merge("/api/v1/nodes/n", &json!({"spec": {"taints": null}})).expect(200);
    assert_eq!(ready["spec"]["taints"], Value::Null);
}

/// A key and the object that is put under it.
type Meanwhile = Arc<Mutex<Option<(Arc<str>, String)>>>;

/// Somebody who writes while a priority level is on its way to the store, once.
struct Faster {
    store: Arc<dyn Store>,
    put: Meanwhile,
}

impl AdmissionPlugin for Faster {
    fn name(&self) -> &'static str {
        "Faster"
    }
    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let is_level = attributes.row.plural == "prioritylevelconfigurations";
        let put = if is_level { self.put.lock().expect("lock").take() } else { None };
        if let Some((key, text)) = put {
            let value = carrack_store::Value { stamp_at: stamp_place(text.as_bytes()), bytes: text.into() };
            now(self.store.transact(Txn { checks: Vec::new(), ops: vec![Op::Put(key, value)] })).expect("committed");
        }
        Ok(())
    }
}

#[test]
fn flow_schemas_say_whether_their_level_is_there() {
    let meanwhile_made: Meanwhile = Meanwhile::default();
    let cluster = Cluster::with(|config| {
        config.plugins.push(Box::new(Faster { store: config.store.clone(), put: meanwhile_made.clone() }));
    });
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let dangling = |name: &str| {
        let schema = cluster.get(&format!("{group}/flowschemas/{name}")).expect(200);
        let conditions = schema["status"]["conditions"].as_array().expect("conditions").clone();
        assert_eq!(conditions.len(), 1, "{schema}");
        (conditions[0]["type"].clone(), conditions[0]["status"].clone(), schema["metadata"]["generation"].clone())
    };
    let is = |status: &str| (json!("Dangling"), json!(status), json!(1));
    assert_eq!(dangling("catch-all"), is("False"));
    let spec = json!({"matchingPrecedence": 500, "priorityLevelConfiguration": {"name": "own"}});
    cluster.post(&format!("{group}/flowschemas"), &json!({"metadata": {"name": "s"}, "spec": spec})).expect(201);
    assert_eq!(dangling("s"), is("True"));
    let levels = format!("{group}/prioritylevelconfigurations");
    let spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}});
    cluster.post(&levels, &json!({"metadata": {"name": "own"}, "spec": spec})).expect(201);
    assert_eq!(dangling("s"), is("False"));
    cluster.delete(&format!("{levels}/own")).expect(200);
    assert_eq!(dangling("s"), is("True"));
    // One that was made while its level was, and that the level did not see.
    let key = storage_prefix("flowcontrol.apiserver.k8s.io", "flowschemas", None);
    let meanwhile = now(cluster.store.get(&(key.clone() + "s"))).expect("readable").0.expect("a schema");
    let text = String::from_utf8(meanwhile.value().to_vec()).expect("text");
    let text = text.replacen("\"name\":\"s\"", "\"name\":\"t\"", 1);
    let text = text.replacen(&format!("\"{}\"", meanwhile.mod_revision), "\"\"", 1);
    *meanwhile_made.lock().expect("lock") = Some(((key + "t").into(), text));
    let spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}});
    cluster.post(&levels, &json!({"metadata": {"name": "own"}, "spec": spec})).expect(201);
    assert_eq!((dangling("s"), dangling("t")), (is("False"), is("False")));
    cluster.delete(&format!("{levels}/own")).expect(200);
    assert_eq!((dangling("s"), dangling("t")), (is("True"), is("True")));
    // One that an earlier version left without a word of it says it from the next start on.
    let key = storage_prefix("flowcontrol.apiserver.k8s.io", "flowschemas", None) + "s";
    let entry = now(cluster.store.get(&key)).expect("readable").0.expect("a schema");
    let text = String::from_utf8(entry.value().to_vec()).expect("text");
    let (bare, _) = text.split_once(",\"status\":").expect("a status");
    let (front, rest) = bare.split_once(&format!("\"{}\"", entry.mod_revision)).expect("its revision");
    let bare = format!("{front}\"\"{rest}}}");
    let value = carrack_store::Value { stamp_at: stamp_place(bare.as_bytes()), bytes: bare.into() };
    cluster.store.commit(Txn { checks: Vec::new(), ops: vec![Op::Put(entry.key.clone(), value)] }).expect("committed");
    now(cluster.api.bootstrap()).expect("it starts");
    assert_eq!(dangling("s"), is("True"));
}

#[test]
fn jobs_are_given_their_selector() {
    let cluster = Cluster::new();
    let made = cluster.post(JOBS, &job("j")).expect(201);
    let uid = &made["metadata"]["uid"];
    assert_eq!(made["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    assert_eq!(
        made["spec"]["template"]["metadata"]["labels"],
        json!({"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid, "batch.kubernetes.io/job-name": "j", "job-name": "j"})
    );
    let generated =
        cluster.post(JOBS, &json!({"metadata": {"generateName": "g-"}, "spec": job("x")["spec"]})).expect(201);
    assert_eq!(generated["spec"]["template"]["metadata"]["labels"]["job-name"], generated["metadata"]["name"]);
    // A selector of one's own is taken only by who asks for it.
    let mut own = job("k");
    own["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
    cluster.post(JOBS, &own).refused(422, "Invalid", "`selector` does not match template `labels`");
    own["spec"]["template"]["metadata"] = json!({"labels": {"a": "b"}});
    own["spec"]["manualSelector"] = true.into();
    assert_eq!(cluster.post(JOBS, &own).expect(201)["spec"]["selector"], json!({"matchLabels": {"a": "b"}}));
    let changed = cluster.merge(&format!("{JOBS}/j"), &json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}));
    changed.refused(422, "Invalid", "field is immutable");
}

#[test]
fn profiles_of_annotations_are_told() {
    let cluster = Cluster::new();
    let mut annotated = pod("p");
    let name = annotated["spec"]["containers"][0]["name"].as_str().expect("a name").to_owned();
    let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
    annotated["metadata"]["annotations"] = json!({key.as_str(): "runtime/default"});
    let reply = cluster.post("/api/v1/namespaces/default/pods", &annotated);
    let told = reply.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    assert!(told.contains(&format!("metadata.annotations[{key}]: deprecated since v1.30")), "{told}");
    let made = reply.expect(201);
    let profile = &made["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
    assert_eq!(*profile, json!({"type": "RuntimeDefault"}));
}

#[test]
fn the_class_of_a_pod_stays() {
    let cluster = Cluster::new();
    let pods = "/api/v1/namespaces/default/pods";
    let mut made = cluster.post(pods, &pod("p")).expect(201);
    assert_eq!(made["status"]["qosClass"], "BestEffort");
    made["status"] = json!({"phase": "Running"});
    let status = format!("{pods}/p/status");
    let now = cluster.put(&status, &made).expect(200);
    assert_eq!((&now["status"]["qosClass"], &now["status"]["phase"]), (&json!("BestEffort"), &json!("Running")));
    let refused = cluster.merge(&status, &json!({"status": {"qosClass": "Guaranteed"}}));
    refused.refused(422, "Invalid", "status.qosClass: Invalid value: \"Guaranteed\": field is immutable");
}

#[test]
fn replies_and_bodies_of_other_types_are_refused() {
    let cluster = Cluster::new();
    let path = "/api/v1/namespaces/default/configmaps";
    cluster.get_as(path, "application/vnd.kubernetes.protobuf").refused(406, "NotAcceptable", "application/json");
    cluster.get_as(path, "application/vnd.kubernetes.protobuf,application/json").expect(200);
    let send = |content_type: &str| {
        let admin = carrack_auth::Caller::new("admin", ["system:masters"]);
        cluster.request(admin, Method::POST, path, &[("content-type", content_type)], "{}".into())
    };
    for content_type in ["text/plain", "application/x-protobuf", "application/merge-patch+json"] {
        send(content_type).refused(415, "UnsupportedMediaType", "application/json");
    }
    // What says it is protobuf and is not is a bad request, as any broken body is.
    send("application/vnd.kubernetes.protobuf").refused(400, "BadRequest", "");
}
