#![expect(clippy::disallowed_methods, reason = "shell: `sinceSeconds` counts from the present")]
//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use carrack_engine::Time;

/// The present.
pub(crate) fn now() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(0) + since_epoch
}
