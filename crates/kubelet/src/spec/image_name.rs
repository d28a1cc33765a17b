//! Names of images: as pods write them, and in full (the rules of `distribution/reference`, `ParseNormalizedNamed`).

/// The registry of names that give none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The name of an image in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// Registry and repository, such as `docker.io/library/nginx`.
    pub repository: String,
    /// The tag that it gives.
    pub tag: Option<String>,
    /// The digest that it gives.
    pub digest: Option<String>,
}

impl ImageName {
    /// Reads a name as a pod gives it; none where it is no image's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (text, None),
        };
        let (registry, path) =
            named.split_once('/').filter(|(first, _)| names_registry(first)).unwrap_or((DEFAULT_REGISTRY, named));
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        let is_id = named.len() == 64 && named.bytes().all(|b| b.is_ascii_hexdigit());
        let is_name = is_registry(registry)
            && path.split('/').all(is_component)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(|d| d.split_once(':').is_some_and(|(kind, hex)| !kind.is_empty() && !hex.is_empty()));
        if is_id || !is_name {
            return None;
        }
        let is_official = registry == DEFAULT_REGISTRY && !path.contains('/');
        let repository = if is_official { format!("{registry}/library/{path}") } else { format!("{registry}/{path}") };
        Some(Self { repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
    }

    /// The name under which a runtime lists the image.
    #[must_use]
    pub fn listed(&self) -> String {
        match &self.digest {
            Some(digest) => format!("{}@{digest}", self.repository),
            None => format!("{}:{}", self.repository, self.tag.as_deref().unwrap_or("latest")),
        }
    }
}

/// Whether the first part of a name is a registry, and not of its repository.
fn names_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_registry(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'))
}

fn is_component(part: &str) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    let at_ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = part.as_bytes();
    at_ends(bytes.first()) && at_ends(bytes.last()) && bytes.iter().all(|b| inside(*b))
}

fn is_tag(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=128).contains(&text.len()) && !text.starts_with(['.', '-']) && text.bytes().all(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_full() {
        let hex = "0".repeat(64);
        for (text, repository, listed) in [
            ("nginx", "docker.io/library/nginx", "docker.io/library/nginx:latest"),
            ("a/b:1", "docker.io/a/b", "docker.io/a/b:1"),
            ("docker.io/nginx:1", "docker.io/library/nginx", "docker.io/library/nginx:1"),
            ("index.docker.io/a/b", "docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost/a", "localhost/a", "localhost/a:latest"),
            ("r.example.com:5000/a/b:v1", "r.example.com:5000/a/b", "r.example.com:5000/a/b:v1"),
            ("Registry/a", "Registry/a", "Registry/a:latest"),
            ("r.io/a:1@sha256:00", "r.io/a", "r.io/a@sha256:00"),
            ("", "", ""),
            ("A", "", ""),
            ("a//b", "", ""),
            ("a:", "", ""),
            ("a b", "", ""),
            ("a@", "", ""),
            ("-a", "", ""),
            (hex.as_str(), "", ""),
        ] {
            let name = ImageName::parse(text);
            let found = name.as_ref().map(|n| (n.repository.as_str(), n.listed())).unwrap_or_default();
            assert_eq!(found, (repository, listed.to_owned()), "{text}");
        }
    }
}
