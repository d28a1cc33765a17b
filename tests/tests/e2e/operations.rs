//! What `docs/operations.md` tells who keeps a cluster to type, done as it stands there, on a sandbox's directories.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use carrack_e2e::{Run, Sandbox, assert_contains, blocks};

const PAGE: &str = "docs/operations.md";

/// What is typed in the home directory.
fn run(sandbox: &Sandbox, block: &str) -> Run {
    sandbox.typed(&sandbox.home(), block)
}

#[test]
fn a_cluster_is_restored_from_its_backup() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}}"#);
    let credentials = sandbox.home().join("before.yaml");
    fs::copy(sandbox.data_dir().join("kubeconfig.yaml"), &credentials).expect("copied");
    let blocks = blocks(PAGE, "Backup and restore");
    let [backup, restore] = &blocks[..] else { panic!("two blocks: {blocks:?}") };
    run(&sandbox, backup).done();
    let file = sandbox.home().join("backup/monday").display().to_string();
    assert_contains(&sandbox.carrack(&["store", "check", &file]).ok(), &["objects at revision", "whole"]);
    assert_contains(&sandbox.carrack(&["store", "backup", &file]).fails(), &["exists already"]);
    assert_contains(&sandbox.carrack(&["store", "restore", &file]).fails(), &["error: the store in", "is in use by"]);

    kubectl.ok(&["delete", "configmap", "kept"]);
    sandbox.carrack(&["down", "--purge", "--grace", "0"]).done();
    assert!(!sandbox.data_dir().exists());
    run(&sandbox, restore).done();
    assert_eq!(kubectl.field("configmap", "kept", "/data/a"), "b");
    // It has the same authority: who had credentials still has them.
    let credentials = credentials.display().to_string();
    kubectl.ok(&["--kubeconfig", &credentials, "get", "configmap", "kept"]);
}

#[test]
fn a_program_is_exchanged_under_a_cluster() {
    let sandbox = Sandbox::up(&[]);
    let pid = sandbox.pid();
    let blocks = blocks(PAGE, "Upgrade");
    let [exchange] = &blocks[..] else { panic!("one block: {blocks:?}") };
    run(&sandbox, exchange).done();
    assert_ne!(sandbox.pid(), pid);
    sandbox.kubectl().ok(&["get", "--raw", "/readyz"]);
}

/// Who administers a cluster from elsewhere, and another machine's agents: what is made for them is good where they are, and theirs alone.
#[test]
fn credentials_for_other_machines_are_made() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let (admin, agents) = (blocks(PAGE, "From another machine"), blocks(PAGE, "Another machine's agents"));
    let ([admin], [agents, _]) = (&admin[..], &agents[..]) else { panic!("one block and two: {admin:?}, {agents:?}") };
    run(&sandbox, admin).done();
    run(&sandbox, agents).done();
    let home = sandbox.home();
    for name in ["cluster", "n2-kubelet", "n2-virt-handler", "n2-local-storage"] {
        let file = home.join(format!("{name}.yaml"));
        let mode = fs::metadata(&file).expect("a kubeconfig").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
        let text = fs::read_to_string(&file).expect("a kubeconfig");
        assert_contains(&text, &["https://192.0.2.10:6443"]);
        kubectl.ok(&["--kubeconfig", &file.display().to_string(), "get", "--raw", "/api"]);
    }
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        for dir in ["n2-kubelet", "n2-virt-handler"] {
            assert!(home.join(dir).join(file).exists(), "{dir}/{file}");
        }
    }
}
