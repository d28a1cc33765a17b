//! Looks up what tokens stand for: whose they are, and what those of service accounts are bound to.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::authn::bootstrap_tokens::{self, BootstrapToken};
use carrack_auth::authn::{AuthnError, Presented};
use carrack_auth::token::{BoundObject, Found, TokenError};
use carrack_auth::{Caller, Secret};
use serde::Deserialize;

use crate::keys;
use crate::server::Inner;
use crate::status::Status;

/// What of an object says whether it is still the one that a token is bound to. It is read for each request that comes
/// with the token, so the rest, which can be a whole pod, is passed over.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Bound {
    metadata: Identity,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Identity {
    uid: String,
    deletion_timestamp: Option<String>,
    labels: Option<Labels>,
}

/// What a Secret says of the token that it holds (`carrack_types::well_known::account_token`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Labels {
    #[serde(rename = "kubernetes.io/legacy-token-invalid-since")]
    invalid_since: String,
    #[serde(rename = "kubernetes.io/legacy-token-last-used")]
    last_used: String,
}

/// What a Secret holds, base64 as it is stored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    token: Option<String>,
}

impl Data {
    fn token(&self) -> Option<Secret> {
        let bytes = STANDARD.decode(self.token.as_deref()?).ok().filter(|bytes| !bytes.is_empty())?;
        String::from_utf8(bytes).ok().map(Secret::new)
    }
}

impl Bound {
    /// Reads a stored object.
    fn read(value: &[u8]) -> Found {
        // Entries are written by `stored::encode` alone; what has no UID is bound to nothing.
        let Self { metadata, data } = serde_json::from_slice(value).unwrap_or_default();
        let deletion = metadata.deletion_timestamp.and_then(|at| at.parse::<jiff::Timestamp>().ok());
        let labels = metadata.labels.unwrap_or_default();
        Found {
            uid: metadata.uid,
            deletion_unix_s: deletion.map(jiff::Timestamp::as_second),
            token: data.and_then(|data| data.token()),
            is_invalidated: !labels.invalid_since.is_empty(),
            last_used: labels.last_used,
        }
    }
}

impl Inner {
    /// Whose bootstrap token, or token of a provider, this is; none when it is neither.
    pub(crate) async fn token_caller(&self, token: &Secret) -> Result<Option<Caller>, Status> {
        match self.bootstrap_caller(token).await? {
            None => self.providers.caller(&*self.env, token).await,
            known => Ok(known),
        }
    }

    /// Whose bootstrap token this is; none when it is no such token.
    async fn bootstrap_caller(&self, token: &Secret) -> Result<Option<Caller>, Status> {
        let Some(token) = BootstrapToken::parse(token) else { return Ok(None) };
        let key = keys::of("", "secrets", Some(bootstrap_tokens::NAMESPACE)) + &token.secret_name();
        let (entry, _) = self.store.get(&key).await?;
        // Another authenticator may know it.
        let Some(entry) = entry else { return Ok(None) };
        match token.caller(&entry.value(), self.env.now().as_second()) {
            Ok(caller) => Ok(Some(caller)),
            Err(why) => {
                tracing::debug!(why, "a bootstrap token is not accepted");
                Err(Status::unauthorized())
            }
        }
    }

    /// Whose credentials these are, once what they are bound to has been looked up.
    ///
    /// # Errors
    /// When something is gone, or unknown.
    pub(crate) async fn confirmed(&self, presented: Presented, now_unix_s: i64) -> Result<Caller, AuthnError> {
        let found = self.bound_objects(presented.needs()).await;
        let is_stale = presented.is_stale(now_unix_s);
        let held_in = presented.held_in();
        let outcome = presented.confirm(now_unix_s, &found);
        // Who goes on with a token that is refused needs another.
        let is_used = matches!(&outcome, Ok(_) | Err(AuthnError::Rejected(TokenError::Invalidated(_))));
        if let Some(secret) = held_in.filter(|_| is_used) {
            self.metrics.access.held_token();
            let last_used = found.get(&secret).and_then(Option::as_ref).map_or("", |found| found.last_used.as_str());
            self.note_token_use(&secret, last_used).await;
        }
        let caller = outcome?;
        if let Some(is_stale) = is_stale {
            self.metrics.access.extended_token(is_stale);
        }
        Ok(caller)
    }

    /// Reads these objects. What cannot be read is not in the map, which means unknown.
    async fn bound_objects(&self, wanted: Vec<BoundObject>) -> BTreeMap<BoundObject, Option<Found>> {
        let mut all = BTreeMap::new();
        for object in wanted {
            let key = match &object {
                BoundObject::ServiceAccount { namespace, name } => {
                    keys::of("", "serviceaccounts", Some(namespace)) + name
                }
                BoundObject::Pod { namespace, name } => keys::of("", "pods", Some(namespace)) + name,
                BoundObject::Secret { namespace, name } => keys::of("", "secrets", Some(namespace)) + name,
                BoundObject::Node { name } => keys::of("", "nodes", None) + name,
            };
            let Ok((entry, _)) = self.store.get(&key).await else { continue };
            all.insert(object, entry.map(|entry| Bound::read(&entry.value())));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use carrack_types::well_known::account_token::{INVALID_SINCE, LAST_USED};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_a_token_is_bound_to() {
        for (value, uid, deletion_unix_s) in [
            (r#"{"kind":"Pod","metadata":{"name":"p","uid":"1","labels":{"uid":"2"}},"spec":{"uid":[3]}}"#, "1", None),
            (r#"{"spec":{},"metadata":{"uid":"1","deletionTimestamp":"1970-01-01T00:01:00Z"}}"#, "1", Some(60)),
            (r#"{"metadata":{"uid":"1","deletionTimestamp":null}}"#, "1", None),
            (r#"{"metadata":{"uid":"1","deletionTimestamp":"soon"}}"#, "1", None),
            (r#"{"metadata":{"name":"p"}}"#, "", None),
            ("{}", "", None),
            ("nothing", "", None),
        ] {
            let found = Bound::read(value.as_bytes());
            let want = Found { uid: uid.to_owned(), deletion_unix_s, ..Found::default() };
            assert_eq!(found, want, "{value}");
        }
    }

    #[test]
    fn the_token_that_a_secret_holds() {
        let found = |token: Option<&str>, is_invalidated: bool, last_used: &str| Found {
            uid: "1".to_owned(),
            token: token.map(Secret::new),
            is_invalidated,
            last_used: last_used.to_owned(),
            ..Found::default()
        };
        for (labels, data, want) in [
            (json!({"a": "b"}), json!({"token": "c2VjcmV0", "ca.crt": "x"}), found(Some("secret"), false, "")),
            (Value::Null, Value::Null, found(None, false, "")),
            (json!({}), json!({"token": "?"}), found(None, false, "")),
            (json!({}), json!({"token": ""}), found(None, false, "")),
            (json!({}), json!({"token": null}), found(None, false, "")),
            (json!({LAST_USED: "2027-01-15", INVALID_SINCE: "2027-01-16"}), json!({}), found(None, true, "2027-01-15")),
        ] {
            let value = json!({"metadata": {"uid": "1", "labels": labels}, "data": data}).to_string();
            assert_eq!(Bound::read(value.as_bytes()), want, "{value}");
        }
    }
}
