//! Credentials for registries that are the node's own, for pods that give none which do: files of docker's, and plugins that are run
//! (<https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/>; upstream: `pkg/credentialprovider`).
//!
//! ```text
//!  image ─▶ the pod's secrets ─▶ the first of docker's files that can be read ─▶ plugins that are for the image, as configured
//!              └ what fits the longest part of the name first           kept answer, else asked ┘
//! ```
//!
//! Each is tried in turn until the registry takes one. An image that was pulled with one of the node's own is open to all pods of the
//! node, as with upstream: nobody needs credentials of his own for it, so [`crate::pulled`] notes that none were needed.
//!
//! What is decided is here; `adapters/credentials.rs` reads the files, and runs the plugins.

pub mod answer;
pub mod docker;
pub mod kept;
pub mod providers;

use std::path::{Path, PathBuf};

use self::docker::{Entries, fitting};
use self::providers::Provider;
use crate::effects::RegistryAuth;

/// Where a node has credentials of its own from.
#[derive(Clone, Debug, Default)]
pub struct NodeCredentials {
    /// Files of docker's; the first that can be read counts.
    pub files: Vec<PathBuf>,
    /// Plugins.
    pub providers: Vec<Provider>,
    /// Where the plugins' programs are.
    pub program_dir: PathBuf,
}

/// The names of docker's files, in the order in which they are looked for everywhere, and whether more is around the entries.
const NAMES: [(&str, bool); 3] = [("config.json", true), (".dockercfg", false), (".dockerconfigjson", true)];

/// Where docker's files may be: in the kubelet's directory, then in these homes. Upstream's kubelet looks into the directory in which
/// it was started as well, which says nothing of a node.
#[must_use]
pub fn files(root: &Path, homes: &[PathBuf]) -> Vec<PathBuf> {
    let of = |(name, _): (&str, bool)| {
        // Only the newest form has a directory of its own.
        let in_home = if name == "config.json" { ".docker/config.json" } else { name };
        std::iter::once(root.join(name)).chain(homes.iter().map(|home| home.join(in_home))).collect::<Vec<_>>()
    };
    NAMES.into_iter().flat_map(of).collect()
}

/// Whether a file of docker's has more around its entries.
#[must_use]
pub fn is_wrapped(file: &Path) -> bool {
    NAMES.iter().any(|(name, is_wrapped)| *is_wrapped && file.ends_with(name))
}

/// The node's own credentials that fit an image, in the order in which they are tried: of the file, then of the plugins, which are in
/// the order of their configuration.
#[must_use]
pub fn own(image: &str, of_file: Entries, of_plugins: Vec<Entries>) -> Vec<RegistryAuth> {
    let mut out = Vec::new();
    for group in [vec![of_file], of_plugins] {
        let all = group.into_iter().flatten().map(|(server, entry)| ((), server, entry));
        out.extend(fitting(image, all).into_iter().map(|fitting| fitting.auth));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::docker::Entry;

    fn entries(all: &[(&str, &str)]) -> Entries {
        all.iter().map(|(key, user)| ((*key).to_owned(), Entry::new((*user).to_owned(), "p".into()))).collect()
    }

    #[test]
    fn files_are_looked_for_in_upstreams_order() {
        let found = files(Path::new("/k"), &["/home/a".into(), "/".into()]);
        let expected = [
            ("/k/config.json", true),
            ("/home/a/.docker/config.json", true),
            ("/.docker/config.json", true),
            ("/k/.dockercfg", false),
            ("/home/a/.dockercfg", false),
            ("/.dockercfg", false),
            ("/k/.dockerconfigjson", true),
            ("/home/a/.dockerconfigjson", true),
            ("/.dockerconfigjson", true),
        ];
        let all: Vec<(&str, bool)> = found.iter().map(|file| (file.to_str().unwrap(), is_wrapped(file))).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn the_file_comes_before_the_plugins_and_the_longest_key_first() {
        let file = entries(&[("r.io", "f"), ("r.io/team", "ft"), ("s.io", "no"), ("docker.io/library", "l")]);
        let plugins =
            vec![entries(&[("r.io", "p"), ("*.io", "g")]), entries(&[("r.io", "q"), ("r.io/team/app", "qa")])];
        for (image, expected) in [
            ("r.io/team/app:1", "ft f qa g p q"),
            ("r.io/other", "f g p q"),
            ("s.io/x", "no g"),
            ("t.com/x", ""),
            // What is short for something is that.
            ("nginx:1", "l"),
            ("library/nginx", "l"),
            ("docker.io/library/nginx", "l"),
            ("team/nginx", ""),
        ] {
            let users = own(image, file.clone(), plugins.clone());
            let users: Vec<&str> = users.iter().map(|auth| auth.username.as_str()).collect();
            assert_eq!(users.join(" "), expected, "{image}");
        }
    }
}
