//! Has etcd forget history by age, once for all API servers on it.
//!
//! The protocol is upstream's (`k8s.io/apiserver/pkg/storage/etcd3/compact.go`), so that both kinds of
//! server can share an etcd: a key `compact_rev_key` is written by whoever finds it as they saw it last,
//! and the winner compacts to the revision that it had seen one interval before.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use super::Shared;
use super::errors::is_out_of_range;

const KEY: &str = "compact_rev_key";

/// Runs until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>, every: Duration) {
    let (mut version, mut revision) = (0, 0);
    loop {
        tokio::time::sleep(every).await;
        match tokio::time::timeout(every, turn(&shared, version, revision)).await {
            Ok(Ok(seen)) => (version, revision) = seen,
            Ok(Err(error)) => tracing::warn!(%error, "etcd is not compacted this time"),
            Err(_) => tracing::warn!("etcd is not compacted this time: it does not answer"),
        }
    }
}

/// One turn; returns the key's version and etcd's revision as they are now.
async fn turn(shared: &Shared, version: i64, revision: i64) -> Result<(i64, i64), etcd_client::Error> {
    let mut kv = shared.client.kv_client();
    let txn = Txn::new()
        .when([Compare::version(KEY, CompareOp::Equal, version)])
        .and_then([TxnOp::put(KEY, revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let reply = kv.txn(txn).await?;
    let now = reply.header().map_or(0, etcd_client::ResponseHeader::revision);
    if !reply.succeeded() {
        // Another one was faster, or this one has just started.
        let version = reply
            .op_responses()
            .iter()
            .find_map(|reply| match reply {
                TxnOpResponse::Get(found) => found.kvs().first().map(etcd_client::KeyValue::version),
                _ => None,
            })
            .unwrap_or(0);
        return Ok((version, now));
    }
    if revision > 0 {
        match kv.compact(revision, None).await {
            Ok(_) => tracing::debug!(revision, "etcd is compacted"),
            Err(error) if is_out_of_range(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((version + 1, now))
}
