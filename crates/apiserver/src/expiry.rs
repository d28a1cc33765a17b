//! Events are forgotten after a while, so that they cannot fill the store: after an hour, unless the server is told otherwise
//! (upstream's `--event-ttl`). There each write has a lease of that length, and none where it is 0; here they are looked at now
//! and then, and go by when they happened last.

use std::sync::Arc;
use std::time::Duration;

use carrack_store::{Check, Op, Range, Txn};
use serde_json::Value;

use crate::keys;
use crate::object::{Object, meta_str, str_at};
use crate::server::ApiServer;
use crate::status::Status;
use crate::stored;

/// How long an event is kept after it happened last, unless the server is told otherwise.
pub(crate) const EVENT_TTL: Duration = Duration::from_secs(3600);
/// How many entries are looked at at a time.
const BATCH: usize = 500;

impl ApiServer {
    /// Removes events that are past their time. The shell calls this now and then.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn expire_events(&self) -> Result<usize, Status> {
        let store = &*self.inner.store;
        let ttl = self.inner.event_ttl;
        if ttl.is_zero() {
            return Ok(0);
        }
        let ttl_s = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let now_s = self.inner.env.now().as_second();
        let prefix = keys::of("", "events", None);
        let (mut after, mut removed) = (None, 0);
        loop {
            let page = store.range(Range { prefix: prefix.clone(), after, limit: BATCH, at: None }).await?;
            after = page.entries.last().map(|entry| entry.key.to_string());
            for entry in page.entries {
                if now_s.saturating_sub(last_seen_s(&stored::parse(&entry))) <= ttl_s {
                    continue;
                }
                // One that was counted up meanwhile stays.
                let txn = Txn {
                    checks: vec![Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)],
                    ops: vec![Op::Delete(Arc::clone(&entry.key))],
                };
                if matches!(store.transact(txn).await?, carrack_store::TxnOutcome::Committed { .. }) {
                    removed += 1;
                }
            }
            if page.remaining == 0 {
                return Ok(removed);
            }
        }
    }
}

/// When an event happened last, in seconds since the epoch.
fn last_seen_s(event: &Object) -> i64 {
    let times = [
        meta_str(event, "creationTimestamp"),
        str_at(event, &["firstTimestamp"]),
        str_at(event, &["lastTimestamp"]),
        str_at(event, &["eventTime"]),
        event.get("series").and_then(|series| series.get("lastObservedTime")).and_then(Value::as_str).unwrap_or(""),
    ];
    times
        .iter()
        .filter_map(|text| text.parse::<jiff::Timestamp>().ok())
        .map(jiff::Timestamp::as_second)
        .max()
        .unwrap_or(i64::MAX)
}
