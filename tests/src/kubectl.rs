//! kubectl, in two versions: the one in PATH, and Debian's, which is years older.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Run, Sandbox, eventually_true, root};

/// A kubectl on a sandbox's cluster, as its administrator.
#[derive(Debug)]
pub struct Kubectl<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) program: PathBuf,
}

impl Kubectl<'_> {
    /// With these arguments, not yet run.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Run {
        let mut command = self.sandbox.inside(&self.program);
        command.env("KUBECONFIG", self.sandbox.data_dir().join("kubeconfig.yaml"));
        // Its cache of the API's discovery must not outlive the cluster.
        command.env("HOME", self.sandbox.home());
        Run::new(command).args(arguments)
    }

    /// `kubectl …`, which must succeed; what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).ok()
    }

    /// `kubectl …`, which must fail; what it said.
    #[must_use]
    pub fn fails(&self, arguments: &[&str]) -> String {
        self.run(arguments).fails()
    }

    /// `kubectl apply -f -`
    pub fn apply(&self, manifest: &str) {
        self.run(&["apply", "-f", "-"]).input(manifest).done();
    }

    /// Makes a claim of 24 MiB, and waits until it is bound to a directory of the node.
    ///
    /// # Panics
    /// It is not.
    pub fn claim(&self, name: &str, directory: &Path) {
        let spec = "accessModes: [ReadWriteOnce]\n  storageClassName: \"\"";
        self.apply(&format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  capacity: {{storage: 24Mi}}\n  \
             claimRef: {{namespace: default, name: {name}}}\n  hostPath: {{path: {}}}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  volumeName: {name}\n  \
             resources: {{requests: {{storage: 24Mi}}}}\n",
            directory.display()
        ));
        eventually_true("the claim is bound", 60, || self.field("pvc", name, "/status/phase") == "Bound");
    }

    /// An object of the namespace `default` or of none, as the API server tells it; none where it does not exist.
    ///
    /// # Panics
    /// No such kind is served, or the server's answer is another.
    #[must_use]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        crate::objects::get(self.sandbox, kind, name)
    }

    /// A field of an object, by JSON pointer; `null` where there is none.
    #[must_use]
    pub fn field(&self, kind: &str, name: &str, pointer: &str) -> Value {
        self.get(kind, name).and_then(|object| object.pointer(pointer).cloned()).unwrap_or_default()
    }
}

/// Debian's kubectl as `scripts/debian-kubectl` unpacked it; none where no mirror could be reached.
#[must_use]
pub fn debian_kubectl() -> Option<PathBuf> {
    let path = root().join("target/debian-kubectl/usr/bin/kubectl");
    path.exists().then_some(path)
}

/// The kubectl that a person would get.
pub(crate) fn from_path() -> PathBuf {
    let output = Command::new("sh").args(["-c", "command -v kubectl"]).output().expect("sh runs");
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(!path.is_empty(), "no kubectl in PATH: run scripts/install-deps test");
    PathBuf::from(path)
}
