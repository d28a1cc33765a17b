//! Clients in other languages, as their programs use them. kubectl in two versions is in `bad_input.rs` and `pods.rs`.

use carrack_e2e::{Sandbox, root};

#[test]
fn the_python_client_lives_on_it() {
    let fetched = std::process::Command::new(root().join("scripts/python-kubernetes")).output().expect("a shell");
    if !fetched.status.success() {
        // As with Debian's kubectl: without PyPI there is no such client here.
        eprintln!("{}", String::from_utf8_lossy(&fetched.stderr));
        return;
    }
    let sandbox = Sandbox::up(&["busybox"]);
    let script = format!(
        "KUBECONFIG={} PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 python3 {} localhost/carrack/busybox:0.1.0",
        sandbox.data_dir().join("kubeconfig.yaml").display(),
        root().join("target/python-kubernetes").display(),
        root().join("tests/clients/client.py").display(),
    );
    let said = sandbox.shell(&script).limit_s(300).ok();
    assert_eq!(said.trim(), "done");
}
