//! Subresources that are more than a part of their object.

mod audience;
pub(crate) mod binding;
pub(crate) mod connect;
mod disruption;
pub(crate) mod eviction;
pub(crate) mod proxy;
pub(crate) mod scale;
pub(crate) mod token;
