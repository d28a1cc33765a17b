//! What a kubelet may do.
//!
//! [`graph::Graph`] knows which pods run on which node and what they refer to; [`authorize`] lets a
//! node read that and no more; [`restriction`] is the admission that keeps a node to its own
//! objects where the request's content decides.
//! Upstream: `plugin/pkg/auth/authorizer/node`, `plugin/pkg/admission/noderestriction`.

mod authorize;
pub mod graph;
pub mod restriction;

pub use authorize::authorize;
pub use graph::Graph;
