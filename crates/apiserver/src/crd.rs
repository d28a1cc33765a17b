//! The end of a CustomResourceDefinition: its custom resources go first, then it.
//!
//! ```text
//!   DELETE definition ─► finalizer set, instances deleted ─► none left? ─► finalizer removed: gone
//!                              │                 └─ some wait for their own finalizers; the last of
//!                              │                    them to go takes the definition along
//!                              └─ never served, or a built-in kind has its place: there are none
//! ```

use std::sync::Arc;

use carrack_auth::Caller;
use carrack_schema::table::ResourceInfo;
use carrack_store::{Check, Entry, Op, Range, StoreError, Txn, TxnOutcome};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use crate::admission::{CLEANUP_FINALIZER, accepted, set_condition, settle};
use crate::audit::Notes;
use crate::catalog::{CRD_GROUP, CRDS, is_established};
use crate::context::{Cx, definition_key};
use crate::env::rfc3339_s;
use crate::keys;
use crate::object::{child_mut, finalizers, is_deleting, meta, set_finalizers, set_meta};
use crate::query::Query;
use crate::registry::create::{TRIES, busy};
use crate::registry::delete::remove_at;
use crate::registry::delete_options::DeleteOptions;
use crate::route::ResourceRequest;
use crate::server::Inner;
use crate::status::Status;
use crate::{aggregate, convert, stored};

/// After so many instances that cannot be deleted the others are left for the next time.
const MOST_FAILED: usize = 10;

/// Marks a definition that is about to be deleted, so that it waits for its instances.
pub(crate) fn before_delete(cx: &Cx<'_>, object: &mut crate::object::Object) {
    if !is_definition(cx) {
        return;
    }
    let mut all = finalizers(object);
    if !all.iter().any(|f| f == CLEANUP_FINALIZER) {
        all.push(CLEANUP_FINALIZER.to_owned());
        set_finalizers(object, all);
    }
    let now = rfc3339_s(cx.server.env.now());
    let status = child_mut(object, "status");
    if !status.get("conditions").is_some_and(Value::is_array) {
        status.insert("conditions".to_owned(), Value::Array(Vec::new()));
    }
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        let message = "CustomResource deletion is in progress";
        set_condition(conditions, "Terminating", "True", "InstanceDeletionInProgress", message, &now);
    }
}

fn is_definition(cx: &Cx<'_>) -> bool {
    (&*cx.row.group, &*cx.row.plural) == (CRD_GROUP, CRDS)
}

/// After a definition has been written: names that it has given up are free, and what it says to serve has its APIServices.
pub(crate) async fn after_write(cx: &Cx<'_>) -> Result<(), Status> {
    if !is_definition(cx) {
        return Ok(());
    }
    if let Some((_, group)) = cx.name().split_once('.').filter(|_| cx.request.named_in_path) {
        accept_names(cx.server, group).await?;
    }
    aggregate::sync(cx.server, true).await
}

/// Looks again at the definitions of a group that wait for names: one that had them is gone, or is called otherwise.
async fn accept_names(server: &Inner, group: &str) -> Result<(), Status> {
    let Some(row) = carrack_schema::table::find(CRD_GROUP, CRDS) else { return Ok(()) };
    let (api_version, kind) = convert::storage_type(row);
    let prefix = keys::of(CRD_GROUP, CRDS, None);
    for _ in 0..TRIES {
        let page = server.store.range(Range { prefix: prefix.clone(), after: None, limit: 0, at: None }).await?;
        let all = accepted::of_group(page.entries.iter().map(|entry| &**entry), group);
        let now = rfc3339_s(server.env.now());
        let next = all.iter().filter(|one| one.waits()).find_map(|one| {
            let is_it = |entry: &&Arc<Entry>| entry.key.strip_prefix(&*prefix) == Some(one.definition());
            let entry = page.entries.iter().find(is_it)?;
            let definition = stored::parse(entry);
            let mut settled = definition.clone();
            settle(&mut settled, Some(&definition), Some(&definition), &all, &now);
            (settled != definition && !is_deleting(&definition)).then_some((entry, settled))
        });
        let Some((entry, settled)) = next else { return Ok(()) };
        let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
        let ops = vec![Op::Put(Arc::clone(&entry.key), stored::encode(&settled, &api_version, &kind))];
        // Whoever was faster has had it settled by their own write. What it gets is not there for the next one.
        server.store.transact(Txn { checks, ops }).await?;
    }
    Err(busy())
}

/// After a deletion: if it was of definitions, deletes the instances; if it was of an instance whose
/// definition waits, and it was the last one, lets the definition go.
pub(crate) async fn after_delete(cx: &Cx<'_>) -> Result<(), Status> {
    if is_definition(cx) {
        match (cx.dry_run()?, cx.request.named_in_path) {
            (true, _) => {}
            (false, true) => pursue(cx.server, cx.name()).await,
            (false, false) => finish_all(cx.server).await?,
        }
    } else if cx.row.is_custom {
        match is_emptied(cx).await {
            Ok(true) => pursue(cx.server, &cx.row.group_resource()).await,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, row = %cx.row.group_resource(), "whether a definition is to go is not known")
            }
        }
    }
    Ok(())
}

/// What of a definition says whether it is to go. That is asked whenever an instance has gone, so the rest, which may be long, is
/// passed over.
#[derive(Deserialize)]
struct Definition {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<String>,
}

/// Whether the definition of the request's kind is to go, and has no instance left. While it has others they are not looked at:
/// there may be thousands, each of which has still to go.
async fn is_emptied(cx: &Cx<'_>) -> Result<bool, StoreError> {
    let (entry, _) = cx.server.store.get(&definition_key(&cx.row)).await?;
    let is_to_go = entry.is_some_and(|entry| {
        let definition = serde_json::from_slice::<Definition>(&entry.value());
        definition.is_ok_and(|definition| definition.metadata.deletion_timestamp.is_some())
    });
    if !is_to_go {
        return Ok(false);
    }
    let instances = Range { prefix: keys::prefix(&cx.row, None), after: None, limit: 1, at: None };
    Ok(cx.server.store.range(instances).await?.entries.is_empty())
}

/// Goes on with the deletion of all definitions that are being deleted. One that stays for now holds up none of the others.
pub(crate) async fn finish_all(server: &Inner) -> Result<(), Status> {
    let prefix = keys::of(CRD_GROUP, CRDS, None);
    let page = server.store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
    for entry in page.entries {
        pursue(server, &stored::memo(&entry).name).await;
    }
    Ok(())
}

/// Goes on with the deletion of a definition as far as that goes. What is left for now, because a webhook that converts does not
/// answer, is no fault of the request that came by: [`finish_all`] tries again until the definition is gone.
async fn pursue(server: &Inner, name: &str) {
    if let Err(status) = finish(server, name).await {
        tracing::warn!(%status, definition = name, "a definition that is to go stays for now");
    }
}

/// Goes on with the deletion of a definition, if it is being deleted.
async fn finish(server: &Inner, name: &str) -> Result<(), Status> {
    let key = keys::of(CRD_GROUP, CRDS, None) + name;
    for _ in 0..TRIES {
        let (Some(entry), _) = server.store.get(&key).await? else { return Ok(()) };
        let mut definition = stored::parse(&entry);
        if !is_deleting(&definition) || !finalizers(&definition).iter().any(|f| f == CLEANUP_FINALIZER) {
            return Ok(());
        }
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        // What was never served has no instances: another has its names. Upstream's finalizer does not look for any, either
        // (`NeverEstablished` in `k8s.io/apiextensions-apiserver/pkg/controller/finalizer`).
        if is_established(&definition) {
            let catalog = server.catalog().await?;
            let Some(row) = catalog.find(group, plural) else { return Ok(()) };
            // Where a built-in kind has its place, whatever its status says, it has none either: what is stored is that kind's.
            if row.is_custom && !remove_instances(server, row).await? {
                return Ok(());
            }
        }
        let mut left = finalizers(&definition);
        left.retain(|f| f != CLEANUP_FINALIZER);
        set_finalizers(&mut definition, left.clone());
        let op = if left.is_empty() {
            Op::Delete(Arc::clone(&entry.key))
        } else {
            let generation = meta(&definition, "generation").cloned().unwrap_or_default();
            set_meta(&mut definition, "generation", generation);
            let row = carrack_schema::table::find(CRD_GROUP, CRDS).ok_or_else(Status::no_such_path)?;
            let (api_version, kind) = convert::storage_type(row);
            Op::Put(Arc::clone(&entry.key), stored::encode(&definition, &api_version, &kind))
        };
        let checks = vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
        if let TxnOutcome::Committed { .. } = server.store.transact(Txn { checks, ops: vec![op] }).await? {
            accept_names(server, group).await?;
            return aggregate::sync(server, true).await;
        }
    }
    Err(busy())
}

/// Deletes all instances of a kind. Whether none waits for anything more.
async fn remove_instances(server: &Inner, row: &Arc<ResourceInfo>) -> Result<bool, Status> {
    let all = Range { prefix: keys::prefix(row, None), after: None, limit: 0, at: None };
    let all = server.store.range(all).await?;
    let caller = Caller::apiserver();
    let (query, headers, audited) = (Query::default(), HeaderMap::new(), Notes::default());
    // As upstream's finalizer: a webhook whose program is gone holds up no definition for ever.
    let own = DeleteOptions { own: true, ..DeleteOptions::default() };
    let (mut waiting, mut failed) = (false, Vec::new());
    for instance in &all.entries {
        let memo = stored::memo(instance);
        let request = ResourceRequest {
            group: row.group.to_string(),
            resource: row.plural.to_string(),
            namespace: Some(memo.namespace.to_string()).filter(|n| !n.is_empty()),
            name: Some(memo.name.to_string()),
            named_in_path: true,
            ..ResourceRequest::default()
        };
        let version_index = row.versions.iter().position(|v| v.storage).unwrap_or(0);
        let cx = Cx {
            server,
            caller: &caller,
            limited: None,
            request: &request,
            verb: "delete",
            query: &query,
            headers: &headers,
            row: Arc::clone(row),
            version_index,
            warnings: Vec::new(),
            notes: std::sync::Mutex::default(),
            audited: &audited,
        };
        match remove_at(&cx, &instance.key, &memo.name, &own).await {
            Ok(crate::registry::delete::Deleted::Gone(..)) => {}
            Ok(_) => waiting = true,
            Err(status) if status.code == 404 => {}
            // One that stays holds up none of the others. Many of them say that none can go now, and each takes its time.
            Err(status) => failed.push(status),
        }
        if failed.len() == MOST_FAILED {
            break;
        }
    }
    failed.pop().map_or(Ok(!waiting), Err)
}
