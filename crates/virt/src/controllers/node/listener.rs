//! How long a node has been silent, by who listens.

use std::collections::BTreeMap;

use carrack_engine::Time;

/// What was last heard of each node, and when, on this process's clock. It is lost with the process, which then waits the
/// whole time again.
#[derive(Default)]
pub(super) struct Listener {
    heard: BTreeMap<String, (String, Time)>,
}

impl Listener {
    /// Takes note of what a node's last sign of life is; returns since when it has been this one. What the sign says of
    /// times is not read, and none at all is a sign that does not change.
    pub fn since(&mut self, node: &str, sign: &str, now: Time) -> Time {
        match self.heard.get_mut(node) {
            Some((known, at)) if known == sign => *at,
            Some(heard) => {
                *heard = (sign.to_owned(), now);
                now
            }
            None => {
                self.heard.insert(node.to_owned(), (sign.to_owned(), now));
                now
            }
        }
    }

    /// Nobody asks for this node any more.
    pub fn forget(&mut self, node: &str) {
        self.heard.remove(node);
    }
}
