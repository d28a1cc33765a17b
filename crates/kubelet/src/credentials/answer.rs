//! What a plugin is asked and what it answers (`CredentialProviderRequest` and `CredentialProviderResponse` of
//! `credentialprovider.kubelet.k8s.io`).

use std::time::Duration;

use carrack_types::duration::parse_unsigned;
use serde::Deserialize;
use serde_json::json;

use super::docker::{Entries, Entry};

/// For what an answer is good besides what was asked (`cacheKeyType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The repository alone.
    Image,
    /// All of its registry.
    Registry,
    /// Everything that the plugin is for.
    Global,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For what it is good.
    pub scope: Scope,
    /// For how long; for as long as the configuration says where it does not.
    pub lasts: Option<Duration>,
    /// What registries are told.
    pub entries: Entries,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<std::collections::BTreeMap<String, Login>>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// The question for a repository.
#[must_use]
pub fn question(api_version: &str, repository: &str) -> Vec<u8> {
    let document = json!({"apiVersion": api_version, "kind": "CredentialProviderRequest", "image": repository});
    document.to_string().into_bytes()
}

/// Reads an answer. What is wrong with it is told without a word of it, since there are credentials in it.
///
/// # Errors
/// It is none, or of another version than was asked in.
pub fn read(api_version: &str, bytes: &[u8]) -> Result<Answer, &'static str> {
    let document: Document =
        serde_json::from_slice(bytes).map_err(|_| "it answers with no CredentialProviderResponse")?;
    if document.kind != "CredentialProviderResponse" {
        return Err("it answers with no CredentialProviderResponse");
    }
    if document.api_version != api_version {
        return Err("it answers in another apiVersion than it was asked in");
    }
    let scope = match document.cache_key_type.as_str() {
        "Image" => Scope::Image,
        "Registry" => Scope::Registry,
        "Global" => Scope::Global,
        _ => return Err("its answer has no cacheKeyType that is known here"),
    };
    let span =
        |text: String| parse_unsigned(&text).ok_or("the cacheDuration of its answer is no duration such as 1m30s");
    let lasts = document.cache_duration.map(span).transpose()?;
    let logins = document.auth.unwrap_or_default();
    let entries = logins.into_iter().map(|(key, login)| (key, Entry::new(login.username, login.password))).collect();
    Ok(Answer { scope, lasts, entries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::providers::V1;

    #[test]
    fn a_plugin_is_asked_in_its_version() {
        let asked: serde_json::Value = serde_json::from_slice(&question(V1, "docker.io/library/nginx")).unwrap();
        let expected = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderRequest",
            "image": "docker.io/library/nginx"});
        assert_eq!(asked, expected);
    }

    #[test]
    fn answers_are_read_or_refused_without_their_words() {
        let entries = || Entries::from([("r.io".to_owned(), Entry::new("u".into(), "pw".into()))]);
        let auth = json!({"r.io": {"username": "u", "password": "pw"}});
        let minute = Some(Duration::from_secs(60));
        let good = |scope, lasts, entries| Ok(Answer { scope, lasts, entries });
        for (change, expected) in [
            (json!({}), good(Scope::Image, minute, entries())),
            (json!({"cacheKeyType": "Registry"}), good(Scope::Registry, minute, entries())),
            (json!({"cacheKeyType": "Global", "cacheDuration": null}), good(Scope::Global, None, entries())),
            (json!({"auth": null}), good(Scope::Image, minute, Entries::new())),
            (json!({"more": "pw"}), good(Scope::Image, minute, entries())),
            (json!({"cacheKeyType": "pw"}), Err("its answer has no cacheKeyType that is known here")),
            (json!({"cacheDuration": "pw"}), Err("the cacheDuration of its answer is no duration such as 1m30s")),
            (json!({"auth": "pw"}), Err("it answers with no CredentialProviderResponse")),
            (json!({"kind": "pw"}), Err("it answers with no CredentialProviderResponse")),
            (json!({"apiVersion": "pw"}), Err("it answers in another apiVersion than it was asked in")),
        ] {
            let mut document = json!({"apiVersion": V1, "kind": "CredentialProviderResponse", "cacheKeyType": "Image",
                "cacheDuration": "1m", "auth": auth});
            for (key, value) in change.as_object().unwrap() {
                document[key] = value.clone();
            }
            assert_eq!(read(V1, document.to_string().as_bytes()), expected, "{change}");
        }
        assert!(read(V1, b"pw").is_err());
    }
}
