//! Names of images: as pods write them, and in full (the rules of `distribution/reference`, `ParseNormalizedNamed`).

/// The registry of names that give none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Longest path of a repository, without its registry.
const LONGEST_PATH: usize = 255;
/// Longest tag.
const LONGEST_TAG: usize = 128;
/// Least digits of a digest, of whatever kind it is.
const LEAST_DIGITS: usize = 32;
/// Kinds of digests, and how many digits each has.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

const INVALID: &str = "invalid reference format";

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
    /// Reads a name as a pod gives it.
    ///
    /// # Errors
    /// It is no image's. Why is told in the library's words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() == 64 && text.bytes().all(is_digit) {
            return Err(format!("invalid repository name ({text}), cannot specify 64-byte hexadecimal strings"));
        }
        let named = text.split_once('/').filter(|(first, _)| names_registry(first));
        let (registry, rest) = named.unwrap_or((DEFAULT_REGISTRY, text));
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let (named, digest) = cut(rest, '@');
        let (path, tag) = cut(named, ':');
        let is_official = registry == DEFAULT_REGISTRY && !rest.contains('/');
        let path = if is_official { format!("library/{path}") } else { path.to_owned() };
        // The library looks at all before the first colon: with a digest and no tag that is a part of the digest, too.
        let shown = match (tag, digest) {
            (None, Some(digest)) => format!("{path}@{}", cut(digest, ':').0),
            _ => path.clone(),
        };
        if shown.to_lowercase() != shown {
            return Err(format!("{INVALID}: repository name ({shown}) must be lowercase"));
        }
        // What looks like a registry and is none may be a part of the path still.
        let is_apart = is_registry(registry);
        let is_name = (is_apart || is_component(registry)) && path.split('/').all(is_component);
        if !is_name || !tag.is_none_or(is_tag) || !digest.is_none_or(is_digest) {
            return Err(INVALID.to_owned());
        }
        let repository = format!("{registry}/{path}");
        let length = if is_apart { path.len() } else { repository.len() };
        if length > LONGEST_PATH {
            return Err(format!("repository name must not be more than {LONGEST_PATH} characters"));
        }
        if let Some(why) = digest.and_then(unusable) {
            return Err(why.to_owned());
        }
        Ok(Self { repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
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
    first == "localhost" || first.contains(['.', ':']) || first.to_lowercase() != first
}

/// The part before a character and the one after it, if it is there.
fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// A host, or an IPv6 address in brackets, with or without a port.
fn is_registry(text: &str) -> bool {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(inside) = text.strip_prefix('[') {
        let (address, port) = cut(inside, ']');
        let is_address = |byte: u8| byte.is_ascii_hexdigit() || byte == b':';
        let is_end = |port: &str| port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return !address.is_empty() && address.bytes().all(is_address) && port.is_some_and(is_end);
    }
    let (host, port) = cut(text, ':');
    let is_label = |label: &str| {
        let is_inside = !label.starts_with('-') && !label.ends_with('-');
        !label.is_empty() && is_inside && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

/// Lowercase letters and digits, with a period, one or two underscores or any number of dashes between them.
fn is_component(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_separator = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|byte| byte == b'-');
    text.starts_with(is_letter) && text.ends_with(is_letter) && text.split(is_letter).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_plain = text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'));
    is_plain && text.len() <= LONGEST_TAG && text.bytes().next().is_some_and(is_word)
}

/// Whether it has a digest's form, which one that cannot be used may have.
fn is_digest(text: &str) -> bool {
    let (kind, digits) = cut(text, ':');
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_long = |digits: &str| digits.len() >= LEAST_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    kind.split(['-', '_', '+', '.']).all(is_part) && digits.is_some_and(is_long)
}

/// What is wrong with a digest.
fn unusable(digest: &str) -> Option<&'static str> {
    let (kind, digits) = cut(digest, ':');
    let digits = digits.unwrap_or_default();
    match DIGESTS.iter().find(|(known, _)| *known == kind) {
        None => Some("unsupported digest algorithm"),
        Some((_, length)) if digits.len() != *length => Some("invalid checksum digest length"),
        Some(_) if !digits.bytes().all(is_digit) => Some("invalid checksum digest format"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_full() {
        let hex = "0".repeat(64);
        for (text, repository, listed) in [
            ("nginx", "docker.io/library/nginx", "docker.io/library/nginx:latest"),
            ("nginx:Latest_1.2-x", "docker.io/library/nginx", "docker.io/library/nginx:Latest_1.2-x"),
            ("a/b:1", "docker.io/a/b", "docker.io/a/b:1"),
            ("docker.io/nginx:1", "docker.io/library/nginx", "docker.io/library/nginx:1"),
            ("index.docker.io/a/b", "docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost/a", "localhost/a", "localhost/a:latest"),
            ("r.example.com:5000/a/b:v1", "r.example.com:5000/a/b", "r.example.com:5000/a/b:v1"),
            ("r.io/a__b/c.d-e---f", "r.io/a__b/c.d-e---f", "r.io/a__b/c.d-e---f:latest"),
            ("[fd00::1]:5000/a", "[fd00::1]:5000/a", "[fd00::1]:5000/a:latest"),
            ("[fd00::1]/a", "[fd00::1]/a", "[fd00::1]/a:latest"),
            ("no_host.io/a", "no_host.io/a", "no_host.io/a:latest"),
            // What has a letter that no repository has is a registry.
            ("Registry/a", "Registry/a", "Registry/a:latest"),
            (&format!("r.io/a:1@sha256:{hex}"), "r.io/a", &format!("r.io/a@sha256:{hex}")),
            (&format!("sha256:{hex}"), "docker.io/library/sha256", &format!("docker.io/library/sha256:{hex}")),
        ] {
            let found = ImageName::parse(text).map(|name| (name.repository.clone(), name.listed()));
            assert_eq!(found, Ok((repository.to_owned(), listed.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_says_why() {
        let (hex, path) = ("0123456789abcdef".repeat(4), "a/".repeat(127));
        for (text, expected) in [
            ("", INVALID),
            ("a:", INVALID),
            (":1", INVALID),
            ("a//b", INVALID),
            ("a/", INVALID),
            ("/a", INVALID),
            ("https://a/b", INVALID),
            ("ghcr.io/${{x}}:1", INVALID),
            ("a b", INVALID),
            ("a..b", INVALID),
            ("a___b", INVALID),
            ("-a", INVALID),
            ("a:1:2", INVALID),
            ("a:-1", INVALID),
            ("a@", INVALID),
            ("a@sha256:12", INVALID),
            ("localhost:port/a", INVALID),
            ("[fd00::1/a", INVALID),
            (&format!("a:{}", "x".repeat(129)), INVALID),
            ("A", "invalid reference format: repository name (library/A) must be lowercase"),
            ("a/B:1", "invalid reference format: repository name (a/B) must be lowercase"),
            (
                &format!("a@SHA256:{hex}"),
                "invalid reference format: repository name (library/a@SHA256) must be lowercase",
            ),
            (&hex, &format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings")),
            (&format!("a@md5:{hex}"), "unsupported digest algorithm"),
            (&format!("a@sha512:{hex}"), "invalid checksum digest length"),
            (&format!("a@sha256:{}", hex.to_uppercase()), "invalid checksum digest format"),
            (&format!("quay.io/{path}ab"), "repository name must not be more than 255 characters"),
        ] {
            assert_eq!(ImageName::parse(text), Err(expected.to_owned()), "{text}");
        }
        assert!(ImageName::parse(&format!("quay.io/{path}a")).is_ok());
    }
}
