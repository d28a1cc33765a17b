//! Certificate requests, bootstrap tokens, and roles made of others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::pki::Pki;
use carrack_auth::token::{DEFAULT_ISSUER, SigningKey, Verifier};
use carrack_auth::{Authenticator, Caller};
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::harness::{Cluster, now};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// Made with `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj …`.
const OF_JANE: &str = include_str!("../data/jane.csr.pem");
const OF_NODE: &str = include_str!("../data/node.csr.pem");

fn request(name: &str, pem: &str, signer: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"request": STANDARD.encode(pem), "signerName": signer,
        "usages": ["digital signature", "client auth"]}})
}

fn signing_cluster() -> Cluster {
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("a PKI");
    Cluster::with(|config| {
        let key = SigningKey::from_pem(pki.service_account_key()).expect("a key");
        let verifier = Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()]);
        config.authenticator = Some(Authenticator::new(verifier));
        config.signer = Some(pki.request_signer(1_800_000_000).expect("a signer"));
    })
}

fn certificate(object: &Value) -> Option<String> {
    let text = STANDARD.decode(object["status"]["certificate"].as_str()?).expect("base64");
    Some(String::from_utf8(text).expect("text"))
}

#[test]
fn what_is_approved_is_signed() {
    let cluster = signing_cluster();
    let made = cluster.post(REQUESTS, &request("jane", OF_JANE, "kubernetes.io/kube-apiserver-client")).expect(201);
    assert_eq!(certificate(&made), None);
    let approve =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Me", "message": "yes"}]}});
    let approval = |caller: Caller| {
        let headers = [("content-type", "application/merge-patch+json")];
        cluster.request(
            caller,
            Method::PATCH,
            &format!("{REQUESTS}/jane/approval"),
            &headers,
            approve.to_string().into(),
        )
    };
    let role = json!({"metadata": {"name": "approver"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["patch"]}]});
    cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).expect(201);
    let binding = json!({"metadata": {"name": "approver"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
        "name": "approver"}, "subjects": [{"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}]});
    cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).expect(201);
    approval(Caller::new("bob", [""; 0])).refused(
        403,
        "Forbidden",
        "user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\"",
    );
    let approved = approval(Caller::new("admin", ["system:masters"])).expect(200);
    assert!(certificate(&approved).is_some_and(|pem| pem.starts_with("-----BEGIN CERTIFICATE-----")), "{approved}");
    // When is the server's to say, and what was decided stays.
    let condition = &approved["status"]["conditions"][0];
    assert!(condition["lastUpdateTime"].is_string() && condition["lastTransitionTime"].is_string(), "{approved}");
    cluster.merge(&format!("{REQUESTS}/jane/approval"), &json!({"status": {"conditions": null}})).refused(
        422,
        "Invalid",
        "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"",
    );
    let other = json!({"status": {"certificate": "bm9uZQ=="}});
    cluster.merge(&format!("{REQUESTS}/jane/status"), &other).refused(
        422,
        "Invalid",
        "status.certificate: Forbidden: updates may not modify existing certificate content",
    );

    // Other signers bring certificates, and nothing else: what is there stays for good.
    let issued = certificate(&approved).expect("a certificate");
    cluster.post(REQUESTS, &request("joan", OF_JANE, "example.com/x")).expect(201);
    let bring = |pem: &str| {
        let status = json!({"status": {"certificate": STANDARD.encode(pem)}});
        cluster.merge(&format!("{REQUESTS}/joan/status"), &status)
    };
    let place = "status.certificate: Invalid value: \"<certificate data>\": ";
    for (pem, why) in [
        ("none", "must contain at least one CERTIFICATE PEM block"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "entry 0 does not parse as X.509"),
    ] {
        bring(pem).refused(422, "Invalid", &format!("{place}{why}"));
    }
    assert_eq!(certificate(&bring(&issued).expect(200)), Some(issued));
    cluster.post(REQUESTS, &request("bad", "nonsense", "example.com/x")).refused(
        422,
        "Invalid",
        "spec.request: Invalid value",
    );
}

#[test]
fn a_node_introduces_itself() {
    let cluster = signing_cluster();
    let secret = |id: &str, text: &str| {
        json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token", "stringData": {
            "token-id": id, "token-secret": text, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:nodes"}})
    };
    cluster.post("/api/v1/namespaces/kube-system/secrets", &secret("abcdef", "0123456789abcdef")).expect(201);
    let authenticate = |token: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        now(cluster.api.authenticate(None, "/", &headers))
    };
    assert_eq!(authenticate("abcdef.0123456789abcdee").map_err(|s| s.code), Err(401));
    assert_eq!(authenticate("abcdeg.0123456789abcdef").map_err(|s| s.code), Err(401));
    let caller = authenticate("abcdef.0123456789abcdef").expect("a caller");
    assert_eq!(caller.user, "system:bootstrap:abcdef");
    for (name, role) in
        [("a", "system:node-bootstrapper"), ("b", "system:certificates.k8s.io:certificatesigningrequests:nodeclient")]
    {
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": role}, "subjects": [{"kind": "Group", "name": "system:bootstrappers:nodes", "apiGroup": "rbac.authorization.k8s.io"}]});
        cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).expect(201);
    }
    let body = request("node", OF_NODE, "kubernetes.io/kube-apiserver-client-kubelet").to_string();
    let headers = [("content-type", "application/json")];
    let made = cluster.request(caller, Method::POST, REQUESTS, &headers, body.into()).expect(201);
    assert_eq!(made["status"]["conditions"][0]["reason"], "AutoApproved", "{made}");
    assert!(certificate(&made).is_some());
    // Nobody else gets a node's certificate without being asked.
    let other =
        cluster.post(REQUESTS, &request("other", OF_JANE, "kubernetes.io/kube-apiserver-client-kubelet")).expect(201);
    assert!(certificate(&other).is_none() && other["status"]["conditions"].is_null(), "{other}");
    // What somebody is to decide about stays what was asked for, and by whom.
    let forged = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"username": "admin", "groups": ["system:masters"],
        "request": STANDARD.encode(OF_NODE), "signerName": "kubernetes.io/kube-apiserver-client"}});
    let written = cluster.merge(&format!("{REQUESTS}/other"), &forged).expect(200);
    assert_eq!((&written["spec"], &written["metadata"]["labels"]["a"]), (&other["spec"], &json!("b")), "{written}");
    // Who writes the status signs, and does not approve.
    let now = "2027-01-15T08:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "x", "lastUpdateTime": now});
    let conditions = json!({"status": {"conditions": [condition("Approved"), condition("Failed")]}});
    let other = cluster.merge(&format!("{REQUESTS}/other/status"), &conditions).expect(200);
    assert_eq!(other["status"]["conditions"].as_array().map(Vec::len), Some(1), "{other}");
    assert!(certificate(&other).is_none() && other["status"]["conditions"][0]["type"] == "Failed", "{other}");
    // A node's token is good for this server alone.
    for (audiences, good) in [(json!([]), true), (json!(["vault"]), false)] {
        let review = json!({"spec": {"token": "abcdef.0123456789abcdef", "audiences": audiences}});
        let review = cluster.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).expect(201);
        assert_eq!(review["status"]["authenticated"], good, "{review}");
    }
}

#[test]
fn aggregated_roles_show_their_rules() {
    let cluster = Cluster::new();
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let view = cluster.get(&format!("{roles}/view")).expect(200);
    assert!(view["rules"].as_array().is_some_and(|rules| rules.len() > 3), "{view}");
    let rule = json!({"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]});
    let extra = json!({"metadata": {"name": "widgets", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}, "rules": [rule]});
    cluster.post(roles, &extra).expect(201);
    let has = |name: &str| {
        let role = cluster.get(&format!("{roles}/{name}")).expect(200);
        role["rules"].as_array().is_some_and(|rules| rules.contains(&rule))
    };
    assert!(has("view") && has("edit") && has("admin"));
    cluster.delete(&format!("{roles}/widgets")).expect(200);
    assert!(!has("view") && !has("edit") && !has("admin"));
    // Rules of one's own make room for those that are selected, once they are rules at all.
    let own = |rules: Value| {
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"own": "yes"}}]});
        json!({"metadata": {"name": "own"}, "aggregationRule": selectors, "rules": rules})
    };
    let bad = own(json!([{"apiGroups": [""], "resources": ["pods"]}]));
    let why = "rules[0].verbs: Required value: verbs must contain at least one value";
    cluster.post(roles, &bad).refused(422, "Invalid", why);
    assert_eq!(cluster.post(roles, &own(json!([rule]))).expect(201)["rules"], json!([]));
    cluster.put(&format!("{roles}/own"), &bad).refused(422, "Invalid", why);
}

#[test]
fn bundles_of_authorities_are_looked_into() {
    let cluster = Cluster::serving(&["certificates.k8s.io/v1beta1=true"]);
    let bundles = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let directory = tempfile::tempdir().expect("temporary directory");
    let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
    let bundle = |name: &str, signer: &str, text: &str| json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": text}});
    let (good, place) = (pki.ca_pem(), "spec.trustBundle: Invalid value: \"<value omitted>\": ");
    for (object, want) in [
        (bundle("a", "", "none"), format!("{place}at least one trust anchor must be provided")),
        (bundle("a", "", &format!("{good}{good}")), format!("{place}duplicate trust anchor (indices [0 1])")),
        (bundle("a:b", "", good), "without signer name must not have \":\" in its name".to_owned()),
        (bundle("a", "x.io/y", good), "must be named with prefix x.io:y:".to_owned()),
    ] {
        cluster.post(bundles, &object).refused(422, "Invalid", &want);
    }
    cluster.post(bundles, &bundle("x.io:y:one", "x.io/y", good)).expect(201);
    let path = format!("{bundles}/x.io:y:one");
    cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    cluster.merge(&path, &json!({"spec": {"trustBundle": "none"}})).refused(
        422,
        "Invalid",
        "at least one trust anchor",
    );
}
