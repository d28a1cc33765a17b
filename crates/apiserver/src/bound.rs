//! Looks up what tokens stand for: whose they are, and what those of service accounts are bound to.

use std::collections::BTreeMap;

use carrack_auth::authn::bootstrap_tokens::{self, BootstrapToken};
use carrack_auth::token::{BoundObject, Found};
use carrack_auth::{Caller, Secret};

use crate::keys;
use crate::object::meta_str;
use crate::server::Inner;
use crate::status::Status;
use crate::stored;

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

    /// Reads these objects. What cannot be read is not in the map, which means unknown.
    pub(crate) async fn bound_objects(&self, wanted: Vec<BoundObject>) -> BTreeMap<BoundObject, Option<Found>> {
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
            let found = entry.map(|entry| {
                let parsed = stored::parse(&entry);
                let deletion = meta_str(&parsed, "deletionTimestamp").parse::<jiff::Timestamp>();
                Found {
                    uid: meta_str(&parsed, "uid").to_owned(),
                    deletion_unix_s: deletion.ok().map(jiff::Timestamp::as_second),
                }
            });
            all.insert(object, found);
        }
        all
    }
}
