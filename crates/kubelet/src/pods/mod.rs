//! The life of one pod on this node: what to do next, and how long to wait before it.

pub mod backoff;
pub mod dead;
pub mod plan;
pub mod records;
pub mod rounds;
