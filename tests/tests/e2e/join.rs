//! A node's agent joins a cluster with a bootstrap token alone: it asks for its credentials, keeps them, and comes back
//! with them.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use carrack_e2e::{Sandbox, Spawned, assert_contains, eventually, eventually_true};
use serde_json::{Value, json};

/// What kubeadm makes in a new cluster: who may ask for a node's certificate, and for another of its own.
const BINDINGS: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:node-bootstrapper'}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:bootstrappers:new'}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrap-approve}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: 'system:certificates.k8s.io:certificatesigningrequests:nodeclient'
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:bootstrappers:new'}]
---
apiVersion: v1
kind: Secret
type: bootstrap.kubernetes.io/token
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: 'true'
  auth-extra-groups: 'system:bootstrappers:new'
";

/// Killed when this is dropped.
struct Agent(Spawned);

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait().map(drop)).unwrap_or_default();
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// What an agent has that joins by a bootstrap token.
struct Joining<'a> {
    sandbox: &'a Sandbox,
    token: PathBuf,
    kubeconfig: PathBuf,
    data: PathBuf,
}

impl<'a> Joining<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        let home = sandbox.home();
        // The administrator's kubeconfig with a token in place of the certificate.
        let text = std::fs::read(sandbox.data_dir().join("kubeconfig.yaml")).expect("a kubeconfig");
        let mut bootstrap: Value = serde_json::from_slice(&text).expect("JSON");
        bootstrap["users"][0]["user"] = json!({"token": "abcdef.0123456789abcdef"});
        let token = home.join("bootstrap.yaml");
        std::fs::write(&token, bootstrap.to_string()).expect("written");
        Self { sandbox, token, kubeconfig: home.join("kubelet.yaml"), data: home.join("joined") }
    }

    /// Starts the agent, with the bootstrap token or without.
    fn start(&self, bootstrap: bool) -> Agent {
        let (token, kubeconfig, data) = (display(&self.token), display(&self.kubeconfig), display(&self.data));
        let mut arguments = vec![
            "kubelet",
            "--kubeconfig",
            &kubeconfig,
            "--data-dir",
            &data,
            "--node-name",
            "joined",
            "--port",
            "10350",
            "--node-ip",
            "192.0.2.10",
            "--rotate-certificates",
            "--rotate-server-certificates",
        ];
        if bootstrap {
            arguments.extend(["--bootstrap-kubeconfig", &token]);
        }
        Agent(self.sandbox.carrack(&arguments).spawn())
    }
}

#[test]
fn an_agent_joins_with_a_bootstrap_token_alone() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let joining = Joining::new(&sandbox);
    let (kubeconfig, data, path) = (&joining.kubeconfig, &joining.data, display);
    let agent = joining.start(true);

    // Nobody believes the token yet, and nobody may ask; the agent asks again.
    assert!(kubectl.get("node", "joined").is_none());
    kubectl.apply(BINDINGS);
    eventually_true("the node is there", 60, || kubectl.get("node", "joined").is_some());
    let requests = || kubectl.ok(&["get", "csr", "-o", "json"]);
    let listed: Value = serde_json::from_str(&requests()).expect("JSON");
    let of = |signer: &str| -> Vec<Value> {
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().filter(|r| r["spec"]["signerName"] == format!("kubernetes.io/{signer}")).collect()
    };
    let client = of("kube-apiserver-client-kubelet");
    assert_eq!(client.len(), 1, "{listed}");
    assert_eq!(client[0]["spec"]["username"], "system:bootstrap:abcdef");
    assert_eq!(client[0]["status"]["conditions"][0]["reason"], "AutoApproved");
    assert!(client[0]["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("node-csr-")));

    // The files are private, and the kubeconfig rests on them.
    let current = data.join("kubelet/pki/kubelet-client-current.pem");
    for file in [kubeconfig, &current] {
        let mode = std::fs::metadata(file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let written = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    assert_contains(&written, &["kubelet-client-current.pem", "default-auth"]);
    assert!(!written.contains("0123456789abcdef"), "{written}");
    let who = kubectl.ok(&["--kubeconfig", &path(kubeconfig), "auth", "whoami", "-o", "json"]);
    assert_contains(&who, &["system:node:joined", "system:nodes"]);

    // Nobody has approved its serving certificate: there is no handshake until somebody does.
    let healthz = || kubectl.run(&["get", "--raw", "/api/v1/nodes/joined/proxy/healthz"]).output();
    let serving = eventually("the serving certificate is asked for", 30, || {
        let listed: Value = serde_json::from_str(&requests()).expect("JSON");
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let found = items.into_iter().find(|r| r["spec"]["signerName"] == "kubernetes.io/kubelet-serving");
        found.ok_or_else(|| listed.to_string())
    });
    assert_eq!(serving["spec"]["username"], "system:node:joined");
    assert!(serving["status"]["conditions"].is_null(), "{serving}");
    assert!(healthz().code != Some(0));
    kubectl.ok(&["certificate", "approve", serving["metadata"]["name"].as_str().expect("a name")]);
    eventually("the agent serves", 60, || {
        let said = healthz();
        if said.code == Some(0) && said.stdout.trim() == "ok" { Ok(()) } else { Err(said.to_string()) }
    });

    // A restart needs no token, and asks for nothing.
    drop(agent);
    kubectl.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    kubectl.ok(&["delete", "node", "joined"]);
    let _agent = joining.start(false);
    eventually_true("the node is there again", 60, || kubectl.get("node", "joined").is_some());
    eventually_true("the agent serves", 60, || healthz().code == Some(0));
    let after: Value = serde_json::from_str(&requests()).expect("JSON");
    assert_eq!(after["items"].as_array().map(Vec::len), Some(2), "{after}");
}

/// Nodes may have another certificate of their own: what kubeadm binds for that.
const ROTATION: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: rotate-approve}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: 'system:certificates.k8s.io:certificatesigningrequests:selfnodeclient'
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:nodes'}]
";

/// How long certificates last here. Nine tenths of that and of the five minutes that they are dated back are over after 24
/// seconds: by then each is exchanged, and many are as soon as they are there.
const LASTS_S: u64 = 60;

#[test]
fn an_agent_outlives_its_certificates() {
    let sandbox = Sandbox::new();
    sandbox.start(&["--cluster-signing-duration", &format!("{LASTS_S}s")]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(BINDINGS);
    kubectl.apply(ROTATION);
    let joining = Joining::new(&sandbox);
    let agent = joining.start(true);
    let files = joining.data.join("kubelet/pki");
    let read = |name: &str| std::fs::read_to_string(files.join(name)).unwrap_or_default();
    eventually_true("the node is there", 60, || kubectl.get("node", "joined").is_some());
    kubectl.ok(&["-n", "kube-system", "delete", "secret", "bootstrap-token-abcdef"]);
    let requests = || -> Vec<Value> {
        let listed: Value = serde_json::from_str(&kubectl.ok(&["get", "csr", "-o", "json"])).expect("JSON");
        listed["items"].as_array().cloned().unwrap_or_default()
    };
    // Serving certificates are a person's to approve.
    let is_open =
        |r: &&Value| r["spec"]["signerName"] == "kubernetes.io/kubelet-serving" && r["status"]["conditions"].is_null();
    let approve = || {
        for request in requests().iter().filter(is_open) {
            kubectl.ok(&["certificate", "approve", request["metadata"]["name"].as_str().expect("a name")]);
        }
    };
    let healthz = || kubectl.run(&["get", "--raw", "/api/v1/nodes/joined/proxy/healthz"]).output();
    let serves = |what: &str| {
        eventually(what, 60, || {
            approve();
            let said = healthz();
            if said.code == Some(0) { Ok(()) } else { Err(said.to_string()) }
        });
    };
    serves("the agent serves");
    let current = ["kubelet-client-current.pem", "kubelet-server-current.pem"];
    let first = current.map(read);
    assert!(first.iter().all(|pem| pem.contains("BEGIN CERTIFICATE")), "{first:?}");

    let lasts = |pem: &str| {
        let look = sandbox.program("openssl", &["x509", "-noout", "-checkend", "0"]);
        look.input(pem).output().code == Some(0)
    };
    // Both are exchanged before they end, the client's without anybody's help.
    for (name, before) in current.iter().zip(&first) {
        eventually_true(&format!("{name} is another one"), LASTS_S, || {
            approve();
            read(name) != *before
        });
        assert!(lasts(before), "{name} was exchanged too late");
    }
    let own = |r: &&Value| {
        r["spec"]["username"] == "system:node:joined"
            && r["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
            && r["status"]["certificate"].is_string()
    };
    let listed = requests();
    let rotated = listed.iter().find(own).expect("it asked for another one by itself");
    assert_eq!(rotated["status"]["conditions"][0]["reason"], "AutoApproved");

    // The first ones have ended: whoever is still there has new ones, and a restart finds them.
    eventually_true("the first certificates have ended", LASTS_S + 30, || {
        approve();
        !first.iter().any(|pem| lasts(pem))
    });
    serves("the agent serves with another certificate");
    drop(agent);
    kubectl.ok(&["delete", "node", "joined"]);
    let _agent = joining.start(false);
    eventually_true("the node is there again", 60, || kubectl.get("node", "joined").is_some());
    serves("the agent serves after a restart");
}
