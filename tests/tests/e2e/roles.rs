//! Roles as processes of their own, over HTTPS with their own certificates.

use carrack_e2e::{Sandbox, eventually_true};

#[test]
fn an_api_server_and_controllers_in_separate_processes_make_service_accounts() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubeconfig = sandbox.data_dir().join("kubeconfig.yaml");
    eventually_true("the API server made a kubeconfig", 30, || kubeconfig.exists());
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 30, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });

    let role = sandbox.home().join("controllers.yaml");
    std::fs::write(&role, sandbox.carrack(&["kubeconfig", "--user", "controllers"]).ok()).expect("written");
    let mut controllers =
        sandbox.carrack(&["controllers", "--kubeconfig", &role.display().to_string(), "--secure-port", "0"]).spawn();
    kubectl.ok(&["create", "namespace", "made"]);
    eventually_true("the new namespace has its service account", 30, || {
        kubectl.run(&["-n", "made", "get", "serviceaccount", "default"]).output().code == Some(0)
    });
    // A Secret that asks for the account's token gets one, which works, and goes with the account.
    kubectl.apply(
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\n\
         metadata: {name: lasting, annotations: {kubernetes.io/service-account.name: default}}\n",
    );
    eventually_true("the Secret is filled", 30, || {
        let secret = kubectl.get("secret", "lasting").unwrap_or_default();
        ["token", "ca.crt", "namespace"].iter().all(|key| secret["data"][key].is_string())
    });
    let token = kubectl.ok(&["get", "secret", "lasting", "-o", "go-template={{.data.token | base64decode}}"]);
    let review = format!(
        "{{\"apiVersion\": \"authentication.k8s.io/v1\", \"kind\": \"TokenReview\", \"spec\": {{\"token\": \"{}\"}}}}",
        token.trim()
    );
    let who = kubectl.run(&["create", "-f", "-", "-o", "jsonpath={.status.user.username}"]).input(review).ok();
    assert_eq!(who, "system:serviceaccount:default:default");
    kubectl.ok(&["delete", "serviceaccount", "default"]);
    eventually_true("the Secret goes with its account", 30, || kubectl.get("secret", "lasting").is_none());
    eventually_true("the Lease names the process", 30, || {
        let holder =
            kubectl.ok(&["-n", "kube-system", "get", "lease", "-o", "jsonpath={.items[*].spec.holderIdentity}"]);
        holder.contains('_')
    });
    for child in [&mut controllers, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
