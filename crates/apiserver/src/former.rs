//! Objects that an earlier version of this program left under other keys are moved to where they belong.

use std::sync::Arc;

use carrack_schema::table;
use carrack_store::{Check, Op, Range, Store, Txn, TxnOutcome};

use crate::status::Status;
use crate::{keys, stored};

/// How many objects are read at a time.
const BATCH: usize = 500;

/// Moves them; returns how many there were. An object that is in both places stays as it is in the new one.
pub(crate) async fn move_all(store: &dyn Store) -> Result<usize, Status> {
    let first = Range { prefix: "/registry/core/namespaces/".to_owned(), after: None, limit: 1, at: None };
    // Every cluster has namespaces.
    if store.range(first).await?.entries.is_empty() {
        return Ok(0);
    }
    let mut moved = 0;
    // Namespaces last, because they say whether there is something left to do.
    let (namespaces, others): (Vec<_>, Vec<_>) =
        table::builtin().iter().partition(|row| (&*row.group, &*row.plural) == ("", "namespaces"));
    for row in others.into_iter().chain(namespaces) {
        let (from, to) = (keys::former_prefix(row), keys::prefix(row, None));
        if from == to {
            continue;
        }
        loop {
            let page = store.range(Range { prefix: from.clone(), after: None, limit: BATCH, at: None }).await?;
            if page.entries.is_empty() {
                break;
            }
            for entry in page.entries {
                let key: Arc<str> = [&to, entry.key.strip_prefix(&*from).unwrap_or_default()].concat().into();
                let unchanged = Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision);
                let remove = Op::Delete(Arc::clone(&entry.key));
                let put = Op::Put(Arc::clone(&key), stored::unstamped(&entry));
                let txn = Txn { checks: vec![unchanged.clone(), Check::Absent(key)], ops: vec![put, remove.clone()] };
                if matches!(store.transact(txn).await?, TxnOutcome::Failed { .. }) {
                    store.transact(Txn { checks: vec![unchanged], ops: vec![remove] }).await?;
                }
                moved += 1;
            }
        }
    }
    Ok(moved)
}
