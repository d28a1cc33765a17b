//! Whether the servers behind APIServices answer: their `Available` condition.

use std::sync::Arc;

use carrack_schema::table::find;
use carrack_store::{Check, Op, Txn};
use serde_json::{Value, json};

use super::{API_SERVICES, GROUP, Remote, remote};
use crate::admission::set_condition;
use crate::env::rfc3339_s;
use crate::locate;
use crate::object::{child_mut, str_at};
use crate::server::{ApiServer, Inner};
use crate::status::Status;
use crate::{convert, keys, stored};

impl ApiServer {
    /// Asks the servers behind APIServices for their resources, and notes in the objects whether they answer.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn check_api_services(&self) -> Result<(), Status> {
        let server = &*self.inner;
        for remote in server.remotes().await?.values() {
            let (status, reason, message) = check(server, remote).await;
            note(server, remote, status, reason, &message).await?;
        }
        Ok(())
    }
}

async fn check(server: &Inner, remote: &Remote) -> (&'static str, &'static str, String) {
    let (namespace, name) = (&remote.namespace, &remote.service);
    if let Err(status) = locate::service(&*server.store, &*server.env, namespace, name, remote.port).await {
        let reason = if status.message.contains("not found") {
            "ServiceNotFound"
        } else if status.message.contains("no endpoints") {
            "MissingEndpoints"
        } else {
            "ServicePortError"
        };
        return ("False", reason, format!("service/{name} in \"{namespace}\" is not there: {}", status.message));
    }
    match remote::fetch(server, remote).await {
        Ok(_) => ("True", "Passed", "all checks passed".to_owned()),
        Err(why) => ("False", "FailedDiscoveryCheck", why),
    }
}

/// Writes the condition, if it is another one.
async fn note(server: &Inner, remote: &Remote, status: &str, reason: &str, message: &str) -> Result<(), Status> {
    let name = format!("{}.{}", remote.version, remote.group);
    let key = keys::of(GROUP, API_SERVICES, None) + &name;
    let (Some(entry), _) = server.store.get(&key).await? else { return Ok(()) };
    let mut object = stored::parse(&entry);
    let known = object.get("status").and_then(|status| status.pointer("/conditions/0")).cloned().unwrap_or_default();
    if known["status"] == status && known["reason"] == reason {
        return Ok(());
    }
    tracing::info!(name, status, reason, message, "an aggregated API");
    let now = rfc3339_s(server.env.now());
    let slot = child_mut(&mut object, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(conditions) = slot {
        set_condition(conditions, "Available", status, reason, message, &now);
    }
    debug_assert!(!str_at(&object, &["metadata", "name"]).is_empty(), "it has been stored");
    let Some(row) = find(GROUP, API_SERVICES) else { return Ok(()) };
    let (api_version, kind) = convert::storage_type(row);
    let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
    let ops = vec![Op::Put(Arc::clone(&entry.key), stored::encode(&object, &api_version, &kind))];
    // When somebody else was faster, the next round looks again.
    server.store.transact(Txn { checks, ops }).await?;
    Ok(())
}
