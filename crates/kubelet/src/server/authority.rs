//! Who may use the kubelet besides those that it was told of: whomever the API server lets.

use carrack_auth::Caller;

use super::Answer;

/// Whoever knows who somebody is, and what they may. A question that cannot be answered is an error, never a yes or a no.
pub trait Authority: std::fmt::Debug + Send + Sync + 'static {
    /// Who has a token; none where it is nobody's.
    fn identify<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Caller>>;

    /// Whether somebody may do this to a subresource of the node.
    fn may<'a>(&'a self, caller: &'a Caller, verb: &'static str, subresource: &'static str) -> Answer<'a, bool>;
}
