//! Credentials as docker writes them down, and which of them fit an image
//! (<https://kubernetes.io/docs/concepts/containers/images/#config-json>).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_types::glob::glob;
use serde::Deserialize;

use crate::effects::RegistryAuth;
use crate::spec::image_name::ImageName;

/// Most registries that are looked at for one image.
const MAX_ENTRIES: usize = 256;

/// What one registry is told.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Entry {
    username: String,
    password: String,
    email: Option<String>,
    auth: String,
}

/// Nothing of it is shown.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

/// By registry, or by a part of one.
pub type Entries = BTreeMap<String, Entry>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: Entries,
}

impl Entry {
    /// One with a name and a password.
    #[must_use]
    pub fn new(username: String, password: String) -> Self {
        Self { username, password, ..Self::default() }
    }

    fn login(&self) -> Option<(String, String)> {
        if !self.username.is_empty() {
            return Some((self.username.clone(), self.password.clone()));
        }
        let text = String::from_utf8(STANDARD.decode(self.auth.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some((user.to_owned(), password.trim_end_matches('\0').to_owned()))
    }
}

/// Reads a file of docker's; none where it is not one. `is_wrapped` says that it has more around the entries (`config.json`).
#[must_use]
pub fn read(is_wrapped: bool, bytes: &[u8]) -> Option<Entries> {
    if is_wrapped {
        return serde_json::from_slice::<DockerConfig>(bytes).ok().map(|config| config.auths);
    }
    serde_json::from_slice(bytes).ok()
}

/// Credentials that fit an image, and where they are from.
pub struct Fitting<T> {
    /// Where from.
    pub from: T,
    /// What the registry is told.
    pub auth: RegistryAuth,
    /// What else was written down with it.
    pub email: String,
}

/// Those that fit an image, for the longest part of its name first, and else in the order in which they come.
#[must_use]
pub fn fitting<T>(image: &str, all: impl IntoIterator<Item = (T, String, Entry)>) -> Vec<Fitting<T>> {
    // Keys go by names in full, as upstream: a plugin that is asked for `docker.io/library/nginx` may answer for just that.
    let full = ImageName::parse(image).map(|name| name.repository);
    let (host, path) = repository(full.as_deref().unwrap_or(image));
    let mut out: Vec<(usize, Fitting<T>)> = Vec::new();
    for (from, server, entry) in all.into_iter().take(MAX_ENTRIES) {
        let (key_host, key_path) = registry(&server);
        if !host_matches(&key_host, &host) || !path_matches(&key_path, &path) {
            continue;
        }
        if let Some((username, password)) = entry.login() {
            let auth = RegistryAuth { server, username, password };
            out.push((key_path.len(), Fitting { from, auth, email: entry.email.unwrap_or_default() }));
        }
    }
    out.sort_by_key(|(length, _)| Reverse(*length));
    out.into_iter().map(|(_, fitting)| fitting).collect()
}

/// Whether a pattern of images is for this repository, which is given in full. The path ends where a part of it does: `r.io/team` is
/// not for `r.io/teams`, other than upstream, which goes by the text alone.
#[must_use]
pub fn is_for(pattern: &str, repository: &str) -> bool {
    let ((pattern_host, pattern_path), (host, path)) = (cut(pattern), cut(repository));
    host_matches(pattern_host, host) && path_matches(pattern_path, path)
}

/// A host, with its port, and the path after it.
fn cut(text: &str) -> (&str, &str) {
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    (host, path.trim_end_matches('/'))
}

/// The registry and the repository of an image.
fn repository(image: &str) -> (String, String) {
    let name = image.split('@').next().unwrap_or(image);
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    let is_host = first.contains('.') || first.contains(':') || first == "localhost";
    let (host, rest) = if is_host { (first, rest) } else { ("index.docker.io", name) };
    let host = if host == "docker.io" { "index.docker.io" } else { host };
    let path = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => rest,
    };
    (host.to_owned(), path.to_owned())
}

/// The host, with its port, and the path that a key names.
fn registry(key: &str) -> (String, String) {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    let (host, path) = cut(key);
    // What docker itself writes for its hub.
    let path = if path == "v1" || path == "v2" { "" } else { path };
    let host = if host == "docker.io" { "index.docker.io" } else { host };
    (host.to_owned(), path.to_owned())
}

/// Label by label; `*` stands for any characters within one.
fn host_matches(pattern: &str, host: &str) -> bool {
    let split = |s: &str| -> (Vec<String>, Option<String>) {
        let (name, port) = match s.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.to_owned())),
            None => (s, None),
        };
        (name.split('.').map(str::to_lowercase).collect(), port)
    };
    let ((pattern, pattern_port), (host, port)) = (split(pattern), split(host));
    pattern_port == port && pattern.len() == host.len() && pattern.iter().zip(&host).all(|(p, h)| glob(p, h))
}

fn path_matches(key: &str, path: &str) -> bool {
    path.strip_prefix(key).is_some_and(|rest| key.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_for_repositories() {
        for (pattern, repository, expected) in [
            ("docker.io", "docker.io/library/nginx", true),
            ("docker.io", "index.docker.io/library/nginx", false),
            ("*.io", "docker.io/library/nginx", true),
            ("*", "docker.io/library/nginx", false),
            ("*.dkr.ecr.*.example.com", "1234.dkr.ecr.eu-1.example.com/app", true),
            ("*.example.com", "a.b.example.com/app", false),
            ("r.io/team", "r.io/team/app", true),
            ("r.io/team/", "r.io/team/app", true),
            ("r.io/team", "r.io/teams/app", false),
            ("r.io/team/app", "r.io/team", false),
            ("r.io:5000", "r.io:5000/app", true),
            ("r.io:5000", "r.io/app", false),
            ("r.io", "r.io:5000/app", false),
            ("localhost:*", "localhost:5000/app", false),
        ] {
            assert_eq!(is_for(pattern, repository), expected, "{pattern} {repository}");
        }
    }

    #[test]
    fn files_of_both_forms_are_read() {
        let entry = Entry::new("u".into(), "p".into());
        for (is_wrapped, text, expected) in [
            (true, r#"{"auths": {"r.io": {"username": "u", "password": "p"}}, "credsStore": "x"}"#, Some(1)),
            (false, r#"{"r.io": {"username": "u", "password": "p"}}"#, Some(1)),
            (true, "{}", Some(0)),
            (true, "auths", None),
            (false, r#"{"auths": 1}"#, None),
        ] {
            let found = read(is_wrapped, text.as_bytes());
            assert_eq!(found.as_ref().map(BTreeMap::len), expected, "{text}");
            assert!(found.iter().flatten().all(|(_, found)| *found == entry), "{text}");
            assert!(!format!("{found:?}").contains("\"u\""), "it shows");
        }
    }
}
