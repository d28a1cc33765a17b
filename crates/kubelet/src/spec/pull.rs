//! Credentials for pulling an image, from the pod's secrets of type `kubernetes.io/dockerconfigjson` and
//! `kubernetes.io/dockercfg` (<https://kubernetes.io/docs/concepts/containers/images/#config-json>).

use std::sync::Arc;
use std::time::Duration;

use carrack_types::duration;
use carrack_types::volume::digest;
use k8s_openapi::api::core::v1::Secret;

use crate::credentials::docker::{self, Entries, Fitting, fitting};
use crate::effects::RegistryAuth;
use crate::pulled::PullSecret;

/// Most bytes of all secrets together that are read: a secret has one MiB at most, and credentials some hundred bytes.
const MAX_BYTES: usize = 4 << 20;

/// Credentials, and whose they are.
#[derive(Clone, Debug)]
pub struct Credential {
    /// What the registry is told.
    pub auth: RegistryAuth,
    /// The secret that they are from.
    pub secret: PullSecret,
}

/// Credentials that fit an image, those for the longest part of its name first. What cannot be read is left out: the
/// registry's answer tells.
#[must_use]
pub fn credentials(image: &str, secrets: &[Arc<Secret>]) -> Vec<Credential> {
    let mut bytes = 0;
    let read = secrets.iter().take_while(|s| {
        bytes += payload(s).map_or(0, |(_, config)| config.len());
        bytes <= MAX_BYTES
    });
    let all = read.flat_map(|s| entries(s).into_iter().map(move |(server, entry)| (s, server, entry)));
    let credential = |found: Fitting<&Arc<Secret>>| {
        let credential_hash = hash(&found.auth.username, &found.auth.password, &found.email);
        Credential { secret: named(found.from, credential_hash), auth: found.auth }
    };
    fitting(image, all).into_iter().map(credential).collect()
}

fn named(secret: &Secret, credential_hash: String) -> PullSecret {
    let m = &secret.metadata;
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    PullSecret { namespace: text(&m.namespace), name: text(&m.name), uid: text(&m.uid), credential_hash }
}

/// The hash by which credentials are known again: upstream's, of its `AuthConfig` as Go writes it in JSON
/// (`hashAuthConfig`, `pkg/credentialprovider/keyring.go`).
fn hash(username: &str, password: &str, email: &str) -> String {
    let all = [("username", username), ("password", password), ("email", email)];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    let fields: Vec<String> = given.map(|(key, value)| format!("\"{key}\":{}", go_text(value))).collect();
    digest(&format!("{{{}}}", fields.join(",")))
}

/// A text in JSON as Go writes it: what means something to HTML is escaped.
fn go_text(text: &str) -> String {
    // A text alone: this cannot fail.
    let mut json = serde_json::to_string(text).unwrap_or_default();
    for (character, escaped) in
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
    {
        json = json.replace(character, escaped);
    }
    json
}

/// What a secret has of credentials, and whether it has more around them.
fn payload(secret: &Secret) -> Option<(bool, &[u8])> {
    let (key, wrapped) = match secret.type_.as_deref()? {
        "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", true),
        "kubernetes.io/dockercfg" => (".dockercfg", false),
        _ => return None,
    };
    Some((wrapped, secret.data.as_ref()?.get(key)?.0.as_slice()))
}

fn entries(secret: &Secret) -> Entries {
    payload(secret).and_then(|(is_wrapped, config)| docker::read(is_wrapped, config)).unwrap_or_default()
}

/// What is told of a pull that succeeded: how long it took, to the millisecond, without and with the wait for other pulls, and how
/// many bytes the image has.
#[must_use]
pub fn told(image: &str, (took, waited): (Duration, Duration), size_bytes: u64) -> String {
    let written = |span: Duration| {
        let ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        duration::format(ms.saturating_mul(1_000_000))
    };
    let (took, waited) = (written(took), written(waited));
    format!(
        "Successfully pulled image \"{image}\" in {took} ({waited} including waiting). Image size: {size_bytes} bytes."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    fn secret(kind: &str, key: &str, value: serde_json::Value) -> Arc<Secret> {
        let data = STANDARD.encode(value.to_string());
        Arc::new(serde_json::from_value(json!({"type": kind, "data": {key: data}})).unwrap())
    }

    #[test]
    fn the_fitting_credentials_the_longest_first() {
        let secrets = [
            secret(
                "kubernetes.io/dockerconfigjson",
                ".dockerconfigjson",
                json!({"auths": {
                    "r.example.com": {"username": "a", "password": "pw1"},
                    "https://r.example.com/team/": {"auth": STANDARD.encode("b:pw2:3")},
                    "*.cloud.example": {"username": "c", "password": "pw4"},
                    "https://index.docker.io/v1/": {"username": "hub", "password": "pw5"},
                    "r.example.com:5000": {"username": "p", "password": "pw6"},
                    "bad": {"auth": "%"}
                }}),
            ),
            secret(
                "kubernetes.io/dockercfg",
                ".dockercfg",
                json!({"old.example": {"username": "o", "password": "pw7"}}),
            ),
            secret("Opaque", ".dockerconfigjson", json!({"auths": {"r.example.com": {"username": "x"}}})),
        ];
        for (image, users) in [
            ("r.example.com/app:1", "a"),
            ("r.example.com/team/app@sha256:00", "b a"),
            ("r.example.com/teams/app", "a"),
            ("r.example.com:5000/app", "p"),
            ("eu.cloud.example/app", "c"),
            ("a.b.cloud.example/app", ""),
            ("nginx", "hub"),
            ("docker.io/library/nginx:1", "hub"),
            ("old.example/x", "o"),
            ("bad/x", "hub"),
        ] {
            let found = credentials(image, &secrets);
            let names: Vec<&str> = found.iter().map(|c| c.auth.username.as_str()).collect();
            assert_eq!(names.join(" "), users, "{image}");
            assert!(!format!("{found:?}").contains("pw"), "a password shows");
        }
        assert_eq!(credentials("r.example.com/team/x", &secrets)[0].auth.password, "pw2:3");
    }

    #[test]
    fn not_more_is_read_than_credentials_take() {
        let kind = "kubernetes.io/dockerconfigjson";
        let auths = json!({"r.io": {"username": "u", "password": "p"}});
        let padded = |text: &str| secret(kind, ".dockerconfigjson", json!({"auths": auths, "x": text}));
        for (before, found) in [(3, 4), (5, 4)] {
            let mut secrets = vec![padded(&"x".repeat(1_000_000)); before];
            secrets.push(padded(""));
            assert_eq!(credentials("r.io/a", &secrets).len(), found, "{before}");
        }
    }

    #[test]
    fn credentials_are_known_by_upstreams_hash() {
        for (username, password, email, expected) in [
            // printf '%s' '{"username":"u","password":"p"}' | sha256sum
            ("u", "p", "", "edbd57ca9372e64eb1c9070ecf3a049ac553596b0529acf034c7a71d4e618e88"),
            // Of '{"username":"u","password":"a\u003cb","email":"e@x"}'.
            ("u", "a<b", "e@x", "07d2968481f7afd358eeac6dc2baa511f874a8e33a4b9b7895a083117e2a4b26"),
        ] {
            assert_eq!(hash(username, password, email), expected, "{username}");
        }
        let config = json!({"auths": {"r.io": {"username": "u", "password": "p", "email": null}}}).to_string();
        let object = json!({"metadata": {"namespace": "n", "name": "s", "uid": "1"},
            "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": STANDARD.encode(config)}});
        let found = credentials("r.io/a", &[Arc::new(serde_json::from_value(object).unwrap())]);
        assert_eq!((found.len(), format!("{:?}", found[0].secret).as_str()), (1, "secret n/s (1)"));
        assert!(found[0].secret.credential_hash.starts_with("edbd57"));
    }

    /// Upstream's tests take it apart (`getDurationsFromPulledEventMsg`, `test/e2e_node/image_pull_test.go`).
    #[test]
    fn pulls_are_told_as_by_upstream() {
        for (us, expected, with_wait) in [
            (39_356_789, "39.356s", "41.356s"),
            (323_000, "323ms", "2.323s"),
            (62_500_000, "1m2.5s", "1m4.5s"),
            (0, "0s", "2s"),
        ] {
            let (took, waited) = (Duration::from_micros(us), Duration::from_micros(us + 2_000_000));
            let text = told("busybox:1.28", (took, waited), 41_901_587);
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(words.len(), 13, "{text}");
            assert_eq!((words[5], words[6]), (expected, format!("({with_wait}").as_str()), "{text}");
        }
    }
}
