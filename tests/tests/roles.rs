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
    let mut controllers = sandbox.carrack(&["controllers", "--kubeconfig", &role.display().to_string()]).spawn();
    kubectl.ok(&["create", "namespace", "made"]);
    eventually_true("the new namespace has its service account", 30, || {
        kubectl.run(&["-n", "made", "get", "serviceaccount", "default"]).output().code == Some(0)
    });
    eventually_true("the Lease names the process", 30, || {
        let holder =
            kubectl.ok(&["-n", "kube-system", "get", "lease", "-o", "jsonpath={.items[*].spec.holderIdentity}"]);
        holder.contains('_')
    });
    for child in [&mut controllers, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
