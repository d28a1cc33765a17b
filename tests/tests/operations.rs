//! What `docs/operations.md` tells who keeps a cluster to type, done as it stands there, on a sandbox's directories.
#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]

use std::fs;

use carrack_e2e::{Run, Sandbox, assert_contains, carrack, root};

/// The blocks of commands below a heading of the page, in their order.
fn blocks(heading: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/operations.md")).expect("the page");
    let section =
        page.split("\n## ").find(|section| section.starts_with(&format!("{heading}\n"))).expect("the heading");
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned());
    blocks.collect()
}

/// Runs a block: `carrack` is the program under test, and the machine's directories are the sandbox's.
fn run(sandbox: &Sandbox, block: &str) -> Run {
    let (home, data_dir) = (sandbox.home(), sandbox.data_dir());
    let bin = home.join("bin");
    fs::create_dir_all(&bin).expect("a directory");
    let program = bin.join("carrack");
    if !program.exists() {
        std::os::unix::fs::symlink(carrack(), &program).expect("linked");
    }
    let block = block
        .replace("/var/lib/carrack", &data_dir.display().to_string())
        .replace("/srv/backup", &home.join("backup").display().to_string());
    let exports = [
        ("PATH", format!("{}:$PATH", bin.display())),
        ("CARRACK_IMAGES_DIR", root().join("target/e2e-images").display().to_string()),
        ("CARRACK_BOOT_ID_FILE", sandbox.boot_id_file().display().to_string()),
        ("CARRACK_KUBELET_CONFIG", home.join("limits.yaml").display().to_string()),
    ];
    let exports: String = exports.iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
    sandbox.shell(&format!("set -e\n{exports}{block}")).limit_s(300)
}

#[test]
fn a_cluster_is_restored_from_its_backup() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}}"#);
    let credentials = sandbox.home().join("before.yaml");
    fs::copy(sandbox.data_dir().join("kubeconfig.yaml"), &credentials).expect("copied");
    let blocks = blocks("Backup and restore");
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
    let blocks = blocks("Upgrade");
    let [exchange] = &blocks[..] else { panic!("one block: {blocks:?}") };
    run(&sandbox, exchange).done();
    assert_ne!(sandbox.pid(), pid);
    sandbox.kubectl().ok(&["get", "--raw", "/readyz"]);
}
