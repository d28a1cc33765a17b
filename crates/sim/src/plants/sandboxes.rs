//! Planted bugs of sandboxes that end by themselves.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_SANDBOXES: &[Plant] = &[Plant {
    name: "hasty-sandboxes",
    what: "a sandbox that has died is stopped at once, and what runs in it is killed with that",
    found_by: crate::sandboxes::NAME,
    also: &[],
    bug: Bug::HastySandboxes,
}];
