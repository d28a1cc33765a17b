//! Planted bugs of sandboxes that end by themselves, and of runtimes that do not show everything.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_SANDBOXES: &[Plant] = &[
    Plant {
        name: "hasty-sandboxes",
        what: "a sandbox that has died is stopped at once, and what runs in it is killed with that",
        found_by: crate::sandboxes::NAME,
        also: &[],
        bug: Bug::HastySandboxes,
    },
    Plant {
        name: "unread-is-gone",
        what: "a container counts as gone when its status could not be read",
        found_by: crate::node::ONCE,
        also: &["wanted-containers-are-not-killed", "volume-in-use-stays"],
        bug: Bug::UnreadIsGone,
    },
    Plant {
        name: "unknown-is-over",
        what: "a container that the runtime has lost sight of counts as over, and another one starts beside it",
        found_by: crate::node::ONCE,
        also: &["wanted-containers-are-not-killed", "volume-in-use-stays"],
        bug: Bug::UnknownIsOver,
    },
];
