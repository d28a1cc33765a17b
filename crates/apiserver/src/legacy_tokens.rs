//! Tokens of Secrets are tracked: a Secret says on which day its token was last used, and a config map since when they do. So
//! an operator can tell which of them nobody needs, and have one refused before it goes.
//!
//! Upstream: `pkg/serviceaccount/legacy.go`, `pkg/controlplane/controller/legacytokentracking`.

use std::sync::Arc;

use carrack_auth::token::BoundObject;
use carrack_schema::table;
use carrack_store::{Check, Op, Txn};
use carrack_types::well_known::account_token::LAST_USED;
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::object::{child_mut, metadata_mut};
use crate::server::{ApiServer, Inner};
use crate::status::Status;
use crate::{convert, keys, stored};

/// Namespace and name of the config map that says since when they are tracked.
pub(crate) const TRACKING: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
const SINCE: &str = "since";

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

impl Inner {
    /// Says of the Secret that holds a token that it was used today, unless that is said. Should it fail, the next use says it.
    /// Where another server, whose clock is ahead, has said tomorrow, that stays: they would correct each other at midnight.
    pub(crate) async fn note_token_use(&self, secret: &BoundObject, last_used: &str) {
        let now = self.env.now();
        let (today, tomorrow) = (day(now), now.checked_add(SignedDuration::from_hours(24)).map(day));
        let BoundObject::Secret { namespace, name } = secret else { return };
        if last_used == today || tomorrow.is_ok_and(|tomorrow| last_used == tomorrow) {
            return;
        }
        let key = keys::of("", "secrets", Some(namespace)) + name;
        if let Err(why) = self.mark_used(&key, today).await {
            tracing::warn!(%why, namespace, name, "the use of a Secret's token is not noted");
        }
    }

    async fn mark_used(&self, key: &str, today: String) -> Result<(), Status> {
        let (entry, _) = self.store.get(key).await?;
        let (Some(entry), Some(row)) = (entry, table::find("", "secrets")) else { return Ok(()) };
        let mut secret = stored::parse(&entry);
        child_mut(metadata_mut(&mut secret), "labels").insert(LAST_USED.to_owned(), today.into());
        let (api_version, kind) = convert::storage_type(row);
        let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
        let ops = vec![Op::Put(Arc::clone(&entry.key), stored::encode(&secret, &api_version, &kind))];
        // Whoever was faster has said it, or the next use does.
        self.store.transact(Txn { checks, ops }).await?;
        Ok(())
    }
}

impl ApiServer {
    /// Sees to it that the config map is there, and says a day. Who issues no tokens has none to track.
    pub(crate) async fn ensure_token_tracking(&self) -> Result<(), Status> {
        if self.inner.issuer.is_none() {
            return Ok(());
        }
        let (namespace, name) = TRACKING;
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let metadata = json!({"name": name, "namespace": namespace});
        let empty = || json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        self.keep(&collection, name, |stored| {
            let mut map = stored.unwrap_or_else(empty);
            if map["data"][SINCE].as_str().is_some_and(|said| said.parse::<Date>().is_ok()) {
                return None;
            }
            map["data"][SINCE] = day(self.inner.env.now()).into();
            Some(map)
        })
        .await
    }
}
