//! Where a node has credentials for registries of its own from.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use carrack_kubelet::credentials::providers::{self, Provider};
use carrack_kubelet::credentials::{NodeCredentials, files};
use carrack_noderuntime::Layout;

use super::{files_of, named};

/// Of a node that may share its machine with whoever has made the cluster: docker's files in its own directory, and nobody's home.
#[must_use]
pub fn of_node(layout: &Layout) -> NodeCredentials {
    NodeCredentials { files: files(&layout.kubelet_root(), &[]), ..NodeCredentials::default() }
}

/// Of a kubelet that has its machine for itself: docker's files where upstream's looks for them, and plugins.
///
/// # Errors
/// The plugins' configuration cannot be read, or is wrong.
pub fn of_machine(
    layout: &Layout,
    config: Option<&Path>,
    program_dir: Option<PathBuf>,
) -> anyhow::Result<NodeCredentials> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let homes: Vec<PathBuf> = home.into_iter().chain([PathBuf::from("/")]).collect();
    Ok(NodeCredentials {
        files: files(&layout.kubelet_root(), &homes),
        providers: config.map(plugins).transpose()?.unwrap_or_default(),
        program_dir: program_dir.unwrap_or_default(),
    })
}

/// Reads a configuration of plugins: a file, or all those of a directory that are named so, in the order of their names.
fn plugins(path: &Path) -> anyhow::Result<Vec<Provider>> {
    let what = || format!("the configuration of credential providers {}", path.display());
    let paths = if path.is_dir() {
        files_of(path, &["json", "yaml", "yml"]).with_context(what)?
    } else {
        vec![path.to_owned()]
    };
    let all = named(&paths).with_context(what)?;
    providers::read(&all).map_err(anyhow::Error::msg).with_context(what)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(name: &str) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  \
             matchImages: [r.io]\n  defaultCacheDuration: 1m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
        )
    }

    #[test]
    fn a_configuration_is_a_file_or_a_directory_of_them() {
        let dir = tempfile::tempdir().unwrap();
        for (name, provider) in [("b.yaml", "b"), ("a.json.bak", "c"), ("a.yml", "a")] {
            fs::write(dir.path().join(name), file(provider)).unwrap();
        }
        let names = |path: &Path| -> Vec<String> { plugins(path).unwrap().into_iter().map(|p| p.name).collect() };
        assert_eq!(names(&dir.path().join("b.yaml")), ["b"]);
        assert_eq!(names(dir.path()), ["a", "b"]);
        fs::write(dir.path().join("c.yaml"), file("a")).unwrap();
        let said = format!("{:#}", plugins(dir.path()).unwrap_err());
        assert!(said.contains("c.yaml") && said.contains("another provider"), "{said}");
        assert!(plugins(&dir.path().join("none")).is_err());
    }
}
