//! Looks up what tokens stand for: whose they are, and what those of service accounts are bound to.

use std::collections::BTreeMap;

use carrack_auth::authn::bootstrap_tokens::{self, BootstrapToken};
use carrack_auth::authn::{AuthnError, Presented};
use carrack_auth::token::{BoundObject, Found};
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
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Identity {
    uid: String,
    deletion_timestamp: Option<String>,
}

impl Bound {
    /// Reads a stored object.
    fn read(value: &[u8]) -> Found {
        // Entries are written by `stored::encode` alone; what has no UID is bound to nothing.
        let Identity { uid, deletion_timestamp } = serde_json::from_slice::<Self>(value).unwrap_or_default().metadata;
        let deletion = deletion_timestamp.and_then(|at| at.parse::<jiff::Timestamp>().ok());
        Found { uid, deletion_unix_s: deletion.map(jiff::Timestamp::as_second) }
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
        let caller = presented.confirm(now_unix_s, &found)?;
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
            assert_eq!((found.uid.as_str(), found.deletion_unix_s), (uid, deletion_unix_s), "{value}");
        }
    }
}
