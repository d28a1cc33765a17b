//! Bindings, evictions, scale, tokens, approvals, and what goes on to kubelets.

use base64::Engine as _;
use bytes::Bytes;
use carrack_apiserver::{Body, Env};
use carrack_auth::token::{DEFAULT_ISSUER, Issuer, SigningKey, Verifier};
use carrack_auth::{Authenticator, Caller, pki::Pki};
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::harness::{Cluster, now, pod, revision};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[test]
fn a_pod_is_bound_once() {
    let cluster = Cluster::new();
    let made = cluster.post(PODS, &pod("p")).expect(201);
    let binding = |node: &str| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    cluster.post(&format!("{PODS}/p/binding"), &json!({"metadata": {"name": "p"}})).refused(
        422,
        "Invalid",
        "target.name: Required value",
    );
    let odd = json!({"metadata": {"name": "p"}, "target": {"kind": "Foo", "name": "n1"}});
    cluster.post(&format!("{PODS}/p/binding"), &odd).refused(
        422,
        "Invalid",
        "Binding \"p\" is invalid: target.kind: Unsupported value: \"Foo\": supported values: \"Node\", \"<empty>\"",
    );
    let mut stale = binding("n1");
    stale["metadata"]["uid"] = "other".into();
    cluster.post(&format!("{PODS}/p/binding"), &stale).refused(409, "Conflict", "UID in precondition");
    let mut strange = binding("n1");
    strange["metadata"]["namespace"] = "other".into();
    let why = "the namespace of the provided object does not match the namespace sent on the request";
    for path in [format!("{PODS}/p/binding"), "/api/v1/namespaces/default/bindings".to_owned()] {
        cluster.post(&path, &strange).refused(400, "BadRequest", why);
    }
    for path in [format!("{PODS}/p/binding"), "/api/v1/namespaces/default/bindings".to_owned()] {
        cluster.post(&format!("{path}?dryRun=All"), &binding("n2")).expect(201);
        assert_eq!(cluster.get(&format!("{PODS}/p")).expect(200), made, "{path}");
    }
    let done = cluster.post(&format!("{PODS}/p/binding"), &binding("n1")).expect(201);
    assert_eq!(done["status"], "Success");
    let bound = cluster.get(&format!("{PODS}/p")).expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert!(revision(&bound) > revision(&made));
    cluster.post("/api/v1/namespaces/default/bindings", &binding("n2")).refused(
        409,
        "Conflict",
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\"",
    );
    cluster.post(&format!("{PODS}/none/binding"), &json!({"target": {"name": "n"}})).refused(
        404,
        "NotFound",
        "pods \"none\" not found",
    );
}

/// Where a pod was to go is no news once it is there. What is written afterwards stays, as upstream: its pod strategy leaves
/// that to the writers of the status.
#[test]
fn a_binding_ends_a_nomination() {
    let cluster = Cluster::new();
    cluster.post(PODS, &pod("p")).expect(201);
    let nominate = |node: &str| {
        cluster.merge(&format!("{PODS}/p/status"), &json!({"status": {"nominatedNodeName": node}})).expect(200)
    };
    assert_eq!(nominate("n1")["status"]["nominatedNodeName"], "n1");
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    cluster.post(&format!("{PODS}/p/binding"), &binding).expect(201);
    assert_eq!(cluster.get(&format!("{PODS}/p")).expect(200)["status"]["nominatedNodeName"], Value::Null);
    assert_eq!(nominate("n2")["status"]["nominatedNodeName"], "n2");
}

#[test]
fn a_pod_on_a_node_carries_its_zone() {
    let cluster = Cluster::new();
    let own = json!({"app": "a", "topology.kubernetes.io/zone": "mine"});
    let carried = json!({"app": "a", "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
    let mut labels = carried.clone();
    labels["kubernetes.io/hostname"] = "n1".into();
    cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n1", "labels": labels}})).expect(201);
    for (name, target, want) in [
        ("known", json!({"kind": "Node", "name": "n1"}), &carried),
        ("unsaid", json!({"name": "n1"}), &own),
        ("unknown", json!({"kind": "Node", "name": "n2"}), &own),
    ] {
        let mut made = pod(name);
        made["metadata"]["labels"] = own.clone();
        cluster.post(PODS, &made).expect(201);
        let binding = json!({"metadata": {"name": name}, "target": target});
        cluster.post(&format!("{PODS}/{name}/binding"), &binding).expect(201);
        assert_eq!(cluster.get(&format!("{PODS}/{name}")).expect(200)["metadata"]["labels"], *want, "{name}");
    }
    // One that is made for a node needs no binding.
    let mut placed = pod("placed");
    placed["metadata"]["labels"] = own.clone();
    placed["spec"]["nodeName"] = "n1".into();
    assert_eq!(cluster.post(PODS, &placed).expect(201)["metadata"]["labels"], carried);
}

/// What a node cannot do is asked of it by nobody.
#[test]
fn pods_are_resized_as_their_nodes_declare() {
    let cluster = Cluster::new();
    cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).expect(201);
    for (name, node) in [("known", "n1"), ("lost", "n2")] {
        let mut made = pod(name);
        made["spec"]["nodeName"] = node.into();
        made["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
        cluster.post(PODS, &made).expect(201);
    }
    let resize = |name: &str, cpu: &str, memory: &str| {
        let all = json!({"cpu": cpu, "memory": memory});
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": all, "limits": all}}]}});
        cluster.patch(&format!("{PODS}/{name}/resize"), "application/strategic-merge-patch+json", &patch)
    };
    let why = "pod update requires features GuaranteedQoSPodCPUResize which are not available on node \"n1\"";
    resize("known", "2", "64Mi").refused(403, "Forbidden", why);
    resize("known", "1", "96Mi").expect(200);
    resize("lost", "2", "64Mi").refused(403, "Forbidden", "node \"n2\" not found");
    let declared = json!({"status": {"declaredFeatures": ["GuaranteedQoSPodCPUResize"]}});
    cluster.merge("/api/v1/nodes/n1/status", &declared).expect(200);
    resize("known", "2", "96Mi").expect(200);
}

#[test]
fn resizes_change_what_containers_have_and_nothing_else() {
    let cluster = Cluster::new();
    let mut sized = pod("p");
    sized["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}});
    let made = cluster.post(PODS, &sized).expect(201);
    let path = format!("{PODS}/p/resize");
    let mut wanted = made.clone();
    wanted["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("200m");
    // What is not to be resized stays, whatever is sent.
    wanted["spec"]["containers"][0]["image"] = json!("other");
    wanted["spec"]["hostname"] = json!("other");
    wanted["metadata"]["labels"] = json!({"a": "b"});
    wanted["status"]["phase"] = json!("Running");
    let resized = cluster.put(&path, &wanted).expect(200);
    let mut want = made.clone();
    want["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("200m");
    want["metadata"]["generation"] = json!(2);
    for field in ["resourceVersion", "managedFields"] {
        want["metadata"][field] = resized["metadata"][field].clone();
    }
    assert_eq!(resized, want);
    // The pod itself does not take it, nor its class another one.
    let cpu = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "300m"}}}]}});
    let strategic = "application/strategic-merge-patch+json";
    cluster.patch(&format!("{PODS}/p"), strategic, &cpu).refused(422, "Invalid", "pod updates may not change fields");
    let all = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": all}]}});
    let why = "Pod QOS Class may not change as a result of resizing";
    cluster.patch(&path, strategic, &patch).refused(422, "Invalid", why);
    let mut renamed = resized.clone();
    renamed["spec"]["containers"][0]["name"] = json!("d");
    cluster.put(&path, &renamed).refused(422, "Invalid", "containers may not be renamed or reordered on resize");
    // Nobody whose quota is used up.
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "250m"}}});
    cluster.post("/api/v1/namespaces/default/resourcequotas", &quota).expect(201);
    cluster.patch(&path, strategic, &cpu).refused(403, "Forbidden", "exceeded quota: q");
    // Nor do ephemeral containers bring anything along.
    let mut debugged = resized;
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i"}]);
    debugged["spec"]["hostname"] = json!("other");
    let debugged = cluster.put(&format!("{PODS}/p/ephemeralcontainers"), &debugged).expect(200);
    assert_eq!(
        (&debugged["spec"]["ephemeralContainers"][0]["name"], &debugged["spec"]["hostname"]),
        (&json!("e"), &Value::Null)
    );
    // As `kubectl debug` asks for another one.
    let patch = json!({"spec": {"ephemeralContainers": [{"name": "f", "image": "i"}]}});
    let both = cluster.patch(&format!("{PODS}/p/ephemeralcontainers"), strategic, &patch).expect(200);
    assert_eq!(both["spec"]["ephemeralContainers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn evictions_delete_gracefully() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    let mut eviction =
        json!({"apiVersion": "policy/v2", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}});
    cluster.post(&format!("{PODS}/p/eviction"), &eviction).refused(400, "BadRequest", "policy/v2");
    eviction["apiVersion"] = "policy/v1".into();
    // One of that name elsewhere is another pod.
    eviction["metadata"]["namespace"] = "other".into();
    let why = "the namespace of the provided object does not match the namespace sent on the request";
    cluster.post(&format!("{PODS}/p/eviction"), &eviction).refused(400, "BadRequest", why);
    assert!(cluster.get(&format!("{PODS}/p")).expect(200)["metadata"]["deletionTimestamp"].is_null());
    eviction["metadata"]["namespace"] = "default".into();
    assert_eq!(cluster.post(&format!("{PODS}/p/eviction"), &eviction).expect(201)["status"], "Success");
    let pod = cluster.get(&format!("{PODS}/p")).expect(200);
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    // Whoever counts its end is told that it did not fail by itself.
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let told = conditions.iter().find(|c| c["type"] == "DisruptionTarget").expect("a condition");
    assert_eq!(
        [&told["status"], &told["reason"], &told["message"]],
        ["True", "EvictionByEvictionAPI", "Eviction API: evicting"]
    );
    // Who is merely deleted says nothing.
    cluster.running_pod("q");
    cluster.delete(&format!("{PODS}/q")).expect(200);
    assert!(!cluster.get(&format!("{PODS}/q")).expect(200).to_string().contains("DisruptionTarget"));
}

#[test]
fn evictions_are_deletions_with_options() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    let evict = |options: Value| {
        cluster.post(&format!("{PODS}/p/eviction"), &json!({"metadata": {"name": "p"}, "deleteOptions": options}))
    };
    evict(json!({"preconditions": {"uid": "another"}})).refused(409, "Conflict", "does not match the UID in record");
    evict(json!({"propagationPolicy": "Upwards"})).refused(422, "Invalid", "propagationPolicy: Unsupported value");
    evict(json!({"propagationPolicy": "Orphan", "gracePeriodSeconds": 7})).expect(201);
    let metadata = &cluster.get(&format!("{PODS}/p")).expect(200)["metadata"];
    assert_eq!(
        (&metadata["finalizers"], &metadata["deletionGracePeriodSeconds"]),
        (&json!(["orphan"]), &json!(7)),
        "{metadata}"
    );
}

#[test]
fn evictions_keep_to_budgets() {
    let cluster = Cluster::new();
    let eviction = json!({"metadata": {"name": "p"}});
    let mut labelled = pod("p");
    labelled["metadata"]["labels"] = json!({"a": "b"});
    labelled["spec"]["nodeName"] = "n1".into();
    cluster.post(PODS, &labelled).expect(201);
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    cluster.merge(&format!("{PODS}/p/status"), &running).expect(200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    cluster.post(budgets, &budget).expect(201);
    let status = |allowed: i64| {
        let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1}});
        cluster.merge(&format!("{budgets}/b/status"), &status).expect(200);
    };
    status(0);
    let reply = cluster.post(&format!("{PODS}/p/eviction"), &eviction);
    assert!(!reply.headers.contains_key("retry-after"));
    let refused =
        reply.refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(
        refused["details"]["causes"],
        json!([{"reason": "DisruptionBudget", "message": "The disruption budget b needs 1 healthy pods and has 1 currently"}])
    );
    status(1);
    // Nobody can say of several budgets which one it takes from.
    let mut other = budget.clone();
    other["metadata"]["name"] = "other".into();
    cluster.post(budgets, &other).expect(201);
    let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    let reply = cluster.post(&format!("{PODS}/p/eviction"), &eviction).expect(500);
    assert_eq!([&reply["status"], &reply["message"]], ["Failure", why]);
    assert!(cluster.get(&format!("{PODS}/p")).expect(200)["metadata"]["deletionTimestamp"].is_null());
    cluster.delete(&format!("{budgets}/other")).expect(200);
    cluster.post(&format!("{PODS}/p/eviction?dryRun=All"), &eviction).expect(201);
    assert_eq!(cluster.get(&format!("{budgets}/b")).expect(200)["status"]["disruptionsAllowed"], 1);
    assert!(cluster.get(&format!("{PODS}/p")).expect(200)["metadata"]["deletionTimestamp"].is_null());
    cluster.post(&format!("{PODS}/p/eviction"), &eviction).expect(201);
    let charged = cluster.get(&format!("{budgets}/b")).expect(200);
    let deleted = cluster.get(&format!("{PODS}/p")).expect(200);
    assert_eq!(charged["status"]["disruptionsAllowed"], 0);
    assert!(charged["status"]["disruptedPods"]["p"].is_string());
    assert_eq!(revision(&charged), revision(&deleted), "one transaction");
}

#[test]
fn scale_of_built_in_kinds() {
    let cluster = Cluster::new();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "r"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    cluster.post(sets, &set).expect(201);
    let mut scale = cluster.get(&format!("{sets}/r/scale")).expect(200);
    assert_eq!(
        (scale["kind"].as_str(), scale["spec"]["replicas"].as_i64(), scale["status"]["selector"].as_str()),
        (Some("Scale"), Some(2), Some("a=b"))
    );
    let table = cluster.get_as(&format!("{sets}/r/scale"), "application/json;as=Table;v=v1;g=meta.k8s.io").expect(200);
    let headings = table["columnDefinitions"].as_array().expect("columns").iter().map(|column| &column["name"]);
    assert_eq!(headings.collect::<Vec<_>>(), ["Name", "Desired", "Available", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().expect("cells")[..3],
        [json!("r"), scale["spec"]["replicas"].clone(), json!(0)]
    );
    assert_eq!(table["rows"][0]["object"]["metadata"]["name"], "r");
    scale["spec"]["replicas"] = 5.into();
    cluster.put(&format!("{sets}/r/scale"), &scale).expect(200);
    assert_eq!(cluster.get(&format!("{sets}/r")).expect(200)["spec"]["replicas"], 5);
    cluster.put(&format!("{sets}/r/scale"), &scale).refused(409, "Conflict", "has been modified");
    scale["metadata"]["resourceVersion"] = "".into();
    scale["spec"]["replicas"] = (-1).into();
    cluster.put(&format!("{sets}/r/scale"), &scale).refused(422, "Invalid", "spec.replicas");
    // A count that is no number is not none.
    let why = "cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32";
    cluster.merge(&format!("{sets}/r/scale"), &json!({"spec": {"replicas": "3"}})).refused(422, "Invalid", why);
    scale["spec"]["replicas"] = "3".into();
    cluster.put(&format!("{sets}/r/scale"), &scale).refused(400, "BadRequest", why);
    // Nor is a scale that of another object, or of none.
    let other = "the name of the object (s) does not match the name on the URL (r)";
    let none = "the name of the object (r based on URL) was undeterminable: name must be provided";
    for (metadata, why) in [
        (json!({"name": "s"}), other),
        (json!({"name": null}), none),
        (json!({"namespace": "elsewhere"}), "does not match the namespace sent on the request"),
    ] {
        let patch = json!({"metadata": metadata, "spec": {"replicas": 9}});
        cluster.merge(&format!("{sets}/r/scale"), &patch).refused(400, "BadRequest", why);
        let mut whole = json!({"metadata": {"name": "r"}, "spec": {"replicas": 9}});
        whole["metadata"].as_object_mut().expect("metadata").extend(metadata.as_object().cloned().expect("fields"));
        cluster.put(&format!("{sets}/r/scale"), &whole).refused(400, "BadRequest", why);
    }
    let gone = json!([{"op": "replace", "path": "", "value": null}]);
    cluster.patch(&format!("{sets}/r/scale"), "application/json-patch+json", &gone).refused(400, "BadRequest", "");
    assert_eq!(cluster.get(&format!("{sets}/r")).expect(200)["spec"]["replicas"], 5);
}

/// A cluster that issues tokens.
fn issuing() -> Cluster {
    let directory = tempfile::tempdir().expect("temporary directory");
    let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
    let key = SigningKey::from_pem(pki.service_account_key()).expect("key");
    Cluster::with(|config| {
        config.authenticator =
            Some(Authenticator::new(Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()])));
        config.issuer = Some(Issuer::new(DEFAULT_ISSUER, key));
    })
}

/// Who presents a token.
fn presents(cluster: &Cluster, token: &str) -> Result<String, u16> {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {token}").parse().expect("header"));
    now(cluster.api.authenticate(None, "/", &headers)).map(|who| who.user).map_err(|status| status.code)
}

#[test]
fn secrets_of_accounts_get_tokens_when_the_account_is_named_by_its_uid() {
    let cluster = issuing();
    let account = cluster.get("/api/v1/namespaces/default/serviceaccounts/default").expect(200);
    let secrets = "/api/v1/namespaces/default/secrets";
    let name = "kubernetes.io/service-account.name";
    let uid = "kubernetes.io/service-account.uid";
    let type_ = "kubernetes.io/service-account-token";
    cluster.post(secrets, &json!({"metadata": {"name": "s"}, "type": type_})).refused(422, "Invalid", name);
    let secret = |uid_is: &serde_json::Value| json!({"metadata": {"name": "s", "annotations": {name: "default", uid: uid_is}}, "type": type_});
    // Who creates it is told nothing that only a reader may know.
    let made = cluster.post(secrets, &secret(&account["metadata"]["uid"])).expect(201);
    assert!(made["data"]["token"].is_null(), "{made}");
    cluster.delete(&format!("{secrets}/s")).expect(200);
    // Another account of that name has been there: nothing is given away.
    cluster.post(secrets, &secret(&json!("another"))).expect(201);
    let touch =
        |at: &str| cluster.merge(&format!("{secrets}/s"), &json!({"metadata": {"labels": {"at": at}}})).expect(200);
    assert!(touch("1")["data"]["token"].is_null());
    let named = json!({"metadata": {"annotations": {uid: account["metadata"]["uid"]}}});
    let dry = cluster.merge(&format!("{secrets}/s?dryRun=All"), &named).expect(200);
    assert!(dry["data"]["token"].is_null());
    let filled = cluster.merge(&format!("{secrets}/s"), &named).expect(200);
    let token = filled["data"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(touch("2")["data"]["token"], token, "it is made once");
    let token = base64::engine::general_purpose::STANDARD.decode(token).expect("base64");
    let token = String::from_utf8(token).expect("text");
    assert_eq!(presents(&cluster, &token), Ok("system:serviceaccount:default:default".to_owned()));
    cluster.delete(&format!("{secrets}/s")).expect(200);
    assert_eq!(presents(&cluster, &token), Err(401), "it dies with its Secret");
}

/// Which tokens of Secrets are used can be seen, and one that is not can be tried to be done without.
#[test]
fn tokens_of_secrets_are_tracked() {
    let cluster = issuing();
    let tracking = "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
    assert_eq!(cluster.get(tracking).expect(200)["data"], json!({"since": "2027-01-15"}));
    cluster.merge(tracking, &json!({"data": {"since": "soon"}})).expect(200);
    cluster.env.advance(24 * 3600);
    now(cluster.api.restore()).expect("restored");
    assert_eq!(cluster.get(tracking).expect(200)["data"], json!({"since": "2027-01-16"}));
    let account = cluster.get("/api/v1/namespaces/default/serviceaccounts/default").expect(200);
    let annotations = json!({"kubernetes.io/service-account.name": "default",
        "kubernetes.io/service-account.uid": account["metadata"]["uid"]});
    let (secrets, path) = ("/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/secrets/s");
    let type_ = "kubernetes.io/service-account-token";
    let secret = json!({"metadata": {"name": "s", "annotations": annotations}, "type": type_});
    let made = cluster.post(secrets, &secret).expect(201);
    let filled = cluster.merge(path, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    let text = |secret: &Value| {
        let token = secret["data"]["token"].as_str().expect("a token");
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(token).expect("base64")).expect("text")
    };
    let token = text(&filled);
    let (used, invalid) = ("kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since");
    let label = || cluster.get(path).expect(200)["metadata"]["labels"][used].clone();
    let known: Result<String, u16> = Ok("system:serviceaccount:default:default".to_owned());
    assert_eq!((label(), presents(&cluster, &token), label()), (Value::Null, known.clone(), json!("2027-01-16")));
    let at = revision(&cluster.get(path).expect(200));
    assert_eq!(
        (presents(&cluster, &token), revision(&cluster.get(path).expect(200))),
        (known.clone(), at),
        "once a day"
    );
    cluster.env.advance(24 * 3600);
    let mark = |since: Value| cluster.merge(path, &json!({"metadata": {"labels": {invalid: since}}})).expect(200);
    mark(json!("2027-01-17"));
    assert_eq!((presents(&cluster, &token), label()), (Err(401), json!("2027-01-17")), "refused, and seen");
    mark(Value::Null);
    assert_eq!(presents(&cluster, &token), known);
    // Another server's clock may be ahead.
    cluster.merge(path, &json!({"metadata": {"labels": {used: "2027-01-18"}}})).expect(200);
    assert_eq!((presents(&cluster, &token), label()), (known.clone(), json!("2027-01-18")));
    // One that is bound to the Secret is as those that Secrets held before.
    let bound = json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": made["metadata"]["uid"]});
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = cluster.post(tokens, &json!({"spec": {"boundObjectRef": bound}})).expect(201);
    let issued = issued["status"]["token"].as_str().expect("a token").to_owned();
    // What the Secret holds no more is good for nothing.
    let again = cluster.merge(path, &json!({"data": {"token": "YW5vdGhlcg=="}})).expect(200);
    assert_eq!(text(&again), "another");
    assert_eq!((presents(&cluster, &token), presents(&cluster, &issued)), (Err(401), known));
}

#[test]
fn tokens_are_issued_and_die_with_what_they_are_bound_to() {
    let cluster = issuing();
    let made = cluster.running_pod("p");
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let request = json!({"spec": {"expirationSeconds": 600, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}}});
    let issued = cluster.post(tokens, &request).expect(201);
    let token = issued["status"]["token"].as_str().expect("token").to_owned();
    assert_eq!(presents(&cluster, &token), Ok("system:serviceaccount:default:default".to_owned()));
    let review =
        cluster.post("/apis/authentication.k8s.io/v1/tokenreviews", &json!({"spec": {"token": token}})).expect(201);
    assert_eq!(
        (review["status"]["authenticated"].as_bool(), review["status"]["user"]["username"].as_str()),
        (Some(true), Some("system:serviceaccount:default:default"))
    );
    // Others can verify it: its key is among those that the server gives away, and its issuer is known.
    let openid = cluster.get("/.well-known/openid-configuration").expect(200);
    assert_eq!(openid["issuer"], DEFAULT_ISSUER);
    let keys = cluster.get("/openid/v1/jwks").expect(200);
    let head = token.split('.').next().expect("a token's head");
    let head = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(head).expect("base64");
    let head: serde_json::Value = serde_json::from_slice(&head).expect("JSON");
    assert_eq!((&keys["keys"][0]["kid"], &keys["keys"][0]["alg"]), (&head["kid"], &head["alg"]));
    // A node gets tokens for its own pods only.
    let as_node = |node: &str| {
        cluster.request(
            Caller::node(node),
            Method::POST,
            tokens,
            &[("content-type", "application/json")],
            request.to_string().into(),
        )
    };
    as_node("n1").expect(201);
    assert_eq!(as_node("n2").code, 403);
    cluster.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).expect(200);
    assert_eq!(presents(&cluster, &token), Err(401));
    let none = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}});
    cluster.post(tokens, &none).refused(404, "NotFound", "pods \"p\" not found");
    // Who names the account means this one, and none that was there before under its name.
    let account = cluster.get("/api/v1/namespaces/default/serviceaccounts/default").expect(200);
    let uid = &account["metadata"]["uid"];
    for (metadata, code, reason, message) in [
        (json!({"name": "other"}), 422, "Invalid", "must match the service account name if specified"),
        (json!({"namespace": "other"}), 400, "BadRequest", "does not match the namespace sent on the request"),
        (json!({"uid": "1"}), 409, "Conflict", "the UID in the token request (1) does not match the UID"),
    ] {
        cluster.post(tokens, &json!({"metadata": metadata})).refused(code, reason, message);
    }
    let own = json!({"metadata": {"name": "default", "namespace": "default", "uid": uid}});
    for request in [own, json!({})] {
        let issued = cluster.post(tokens, &request).expect(201);
        assert_eq!((&issued["metadata"]["name"], &issued["metadata"]["uid"]), (&json!("default"), uid));
        assert!(issued["metadata"]["creationTimestamp"].is_string());
    }
    let short = json!({"spec": {"expirationSeconds": 5}});
    cluster.post(tokens, &short).refused(422, "Invalid", "spec.expirationSeconds");
    // What cannot be read is not left out: the token would be good for everything.
    let mistyped = json!({"spec": {"audiences": "vault"}});
    cluster.post(tokens, &mistyped).refused(400, "BadRequest", "cannot unmarshal string");
    assert_eq!(presents(&cluster, "nonsense"), Err(401));
}

/// A program that reads its pod's token once goes on with it, and is counted.
#[test]
fn a_token_that_a_pod_is_given_outlives_what_its_kubelet_is_told() {
    let cluster = issuing();
    let made = cluster.running_pod("p");
    let mounted = &made["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]});
    let request = json!({"spec": {"expirationSeconds": mounted["expirationSeconds"], "boundObjectRef": bound}});
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = cluster.post(tokens, &request).expect(201);
    assert_eq!(issued["spec"]["expirationSeconds"], 3607);
    let told = issued["status"]["expirationTimestamp"].as_str().expect("a time").parse::<jiff::Timestamp>();
    assert_eq!(told.expect("a time").as_second(), cluster.env.now().as_second() + 3607);
    let token = issued["status"]["token"].as_str().expect("a token").to_owned();
    let used = |name: &str| {
        let metrics = cluster.get("/metrics").expect(200);
        let name = format!("serviceaccount_{name}_tokens_total ");
        let lines = metrics.as_str().into_iter().flat_map(str::lines);
        lines.filter_map(|line| line.strip_prefix(&name)).map(str::to_owned).collect::<String>()
    };
    for (seconds, counted) in [(3607, ["1", "0"]), (1, ["1", "1"]), (300 * 24 * 3600, ["1", "2"])] {
        cluster.env.advance(seconds);
        assert_eq!(presents(&cluster, &token), Ok("system:serviceaccount:default:default".to_owned()));
        assert_eq!(["valid", "stale"].map(used), counted);
    }
    cluster.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).expect(200);
    assert_eq!(presents(&cluster, &token), Err(401), "it dies with its pod");
}

/// Nodes get tokens for those alone for whom their pods want them.
#[test]
fn a_node_asks_for_the_audiences_of_its_pod() {
    let cluster = issuing();
    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    for (driver, audience) in [("inline", "inline"), ("disk", "disk"), ("other", "no")] {
        let name = format!("{driver}.example.com");
        let spec = json!({"tokenRequests": [{"audience": audience}], "volumeLifecycleModes": ["Ephemeral"]});
        cluster.post(drivers, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
    }
    let size = json!({"storage": "1Gi"});
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": size, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "disk.example.com", "volumeHandle": "h"}}});
    cluster.post("/api/v1/persistentvolumes", &volume).expect(201);
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "v",
        "resources": {"requests": size}}});
    cluster.post("/api/v1/namespaces/default/persistentvolumeclaims", &claim).expect(201);
    let mut wants = pod("p");
    wants["spec"]["nodeName"] = "n1".into();
    wants["spec"]["volumes"] = json!([
        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
        {"name": "i", "csi": {"driver": "inline.example.com"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "c"}},
    ]);
    let made = cluster.post(PODS, &wants).expect(201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let verb = "request-serviceaccounts-token-audience";
    let rules = json!([{"apiGroups": [""], "resources": ["registry"], "verbs": [verb]}]);
    cluster.post(&format!("{rbac}/clusterroles"), &json!({"metadata": {"name": "r"}, "rules": rules})).expect(201);
    let binding = json!({"metadata": {"name": "r"}, "subjects": [{"kind": "Group", "name": "system:nodes"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}});
    cluster.post(&format!("{rbac}/clusterrolebindings"), &binding).expect(201);
    for (audiences, want) in [
        (json!(["vault"]), 201),
        (json!(["inline"]), 201),
        (json!(["disk"]), 201),
        (json!(["registry"]), 201),
        // The API server's, which all pods want that are not told otherwise.
        (json!([]), 201),
        (json!(["no"]), 403),
        (json!(["vault", "disk"]), 403),
    ] {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]});
        let request = json!({"spec": {"audiences": audiences, "boundObjectRef": bound}}).to_string();
        let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let json = [("content-type", "application/json")];
        let as_node = cluster.request(Caller::node("n1"), Method::POST, tokens, &json, request.clone().into());
        assert_eq!(as_node.code, want, "{audiences}: {}", as_node.json);
        let as_admin = cluster.request(Caller::apiserver(), Method::POST, tokens, &json, request.into());
        assert_eq!(as_admin.code, 201, "{audiences}: {}", as_admin.json);
    }
}

#[test]
fn certificate_requests_name_their_sender() {
    let cluster = Cluster::new();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let pem = base64::engine::general_purpose::STANDARD.encode(include_str!("../data/jane.csr.pem"));
    let request = json!({
        "metadata": {"name": "c"},
        "spec": {"request": pem, "signerName": "example.com/s", "usages": ["client auth"], "username": "somebody-else",
            "uid": "theirs", "extra": {"authentication.kubernetes.io/node-name": ["n1"]}},
    });
    let made = cluster.post(path, &request).expect(201);
    assert_eq!(made["spec"]["username"], "admin");
    assert_eq!((&made["spec"]["uid"], &made["spec"]["extra"]), (&Value::Null, &Value::Null));
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}], "certificate": "AAAA"}});
    let done = cluster.merge(&format!("{path}/c/approval"), &approved).expect(200);
    assert_eq!(done["status"]["conditions"][0]["type"], "Approved");
    assert!(done["status"]["certificate"].is_null());
}

#[test]
fn logs_and_exec_go_to_the_node() {
    let cluster = Cluster::new();
    let node = json!({
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.1.2.3"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}},
    });
    cluster.post("/api/v1/nodes", &node).expect(201);
    cluster.running_pod("p");
    let target = |method: Method, path: &str| match cluster
        .raw(Caller::apiserver(), method, path, &[], Bytes::new())
        .into_body()
    {
        Body::Node(target) => format!("{} {}:{} {}", target.node, target.host, target.port, target.path_and_query),
        other => panic!("{other:?}"),
    };
    for (method, path, want) in [
        (
            Method::GET,
            format!("{PODS}/p/log?follow=true&tailLines=5"),
            "/containerLogs/default/p/c?follow=true&tailLines=5",
        ),
        (
            Method::POST,
            format!("{PODS}/p/exec?command=sh&command=-c%20x&stdin=true&stdout=true&tty=false"),
            "/exec/default/p/c?input=1&output=1&command=sh&command=-c%20x",
        ),
        (
            Method::GET,
            format!("{PODS}/p/attach?container=c&stdout=true&tty=true"),
            "/attach/default/p/c?output=1&tty=1",
        ),
        (Method::POST, format!("{PODS}/p/portforward"), "/portForward/default/p"),
        (Method::GET, "/api/v1/nodes/n1/proxy/stats/a%20b?only=cpu".to_owned(), "/stats/a%20b?only=cpu"),
        (Method::HEAD, "/api/v1/nodes/n1/proxy/healthz".to_owned(), "/healthz"),
        (Method::OPTIONS, "/api/v1/nodes/n1/proxy/pods/".to_owned(), "/pods/"),
    ] {
        assert_eq!(target(method, &path), format!("n1 10.1.2.3:10250 {want}"), "{path}");
    }
    for (method, path) in [(Method::HEAD, "p"), (Method::OPTIONS, "p/log")] {
        let refused = cluster.raw(Caller::apiserver(), method, &format!("{PODS}/{path}"), &[], Bytes::new());
        assert_eq!(refused.status(), 405, "{path}");
    }
    cluster.get(&format!("{PODS}/p/log?container=none")).refused(
        400,
        "BadRequest",
        "container none is not valid for pod p",
    );
    cluster.get(&format!("{PODS}/none/log")).refused(404, "NotFound", "pods \"none\" not found");
    let mut two = pod("two");
    two["spec"]["containers"] = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    cluster.post(PODS, &two).expect(201);
    cluster.get(&format!("{PODS}/two/log")).refused(
        400,
        "BadRequest",
        "a container name must be specified for pod two, choose one of: [a b]",
    );
    cluster.get(&format!("{PODS}/two/exec?container=a&command=x")).refused(
        400,
        "BadRequest",
        "pod two does not have a host assigned",
    );
}

#[test]
fn logs_are_not_asked_for_with_what_makes_no_sense() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    for (query, code, reason, want) in [
        (
            "tailLines=-1",
            422,
            "Invalid",
            "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        ("limitBytes=0", 422, "Invalid", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", 422, "Invalid", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "Invalid", "Forbidden: at most one of `sinceTime`"),
        ("stream=stdout", 422, "Invalid", "stream: Unsupported value: \"stdout\""),
        ("stream=Stdout&tailLines=1", 422, "Invalid", "Forbidden: `tailLines` and specific `stream`"),
        ("tailLines=x", 400, "BadRequest", "invalid value \"x\" of parameter tailLines: a number is needed"),
        ("sinceTime=yesterday", 400, "BadRequest", "parameter sinceTime: an RFC 3339 time is needed"),
    ] {
        cluster.get(&format!("{PODS}/p/log?{query}")).refused(code, reason, want);
    }
    // So it is where there is no such pod.
    cluster.get(&format!("{PODS}/none/log?limitBytes=-1")).refused(422, "Invalid", "PodLogOptions \"none\" is invalid");
}

#[test]
fn a_scale_takes_no_more_than_a_patch_may() {
    let cluster = Cluster::new();
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"a": "b"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod("p")["spec"]}}});
    cluster.post(deployments, &deployment).expect(201);
    let path = format!("{deployments}/d/scale");
    // Each copies all that the ones before have made.
    let bomb: Vec<Value> =
        (0..40).map(|i| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/n{i}")})).collect();
    let kind = "application/json-patch+json";
    cluster.patch(&path, kind, &json!(bomb)).refused(413, "RequestEntityTooLarge", "");
    let three = json!([{"op": "test", "path": "/spec/replicas", "value": 1},
        {"op": "replace", "path": "/spec/replicas", "value": 3}]);
    assert_eq!(cluster.patch(&path, kind, &three).expect(200)["spec"]["replicas"], 3);
    cluster.patch(&path, kind, &three).refused(422, "Invalid", "error in our request");
}
