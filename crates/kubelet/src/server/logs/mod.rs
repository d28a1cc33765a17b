//! Containers' logs: `GET /containerLogs/{namespace}/{pod}/{container}`.
//!
//! [`options`] reads the query, [`tail`] finds where to begin, [`render`] turns the runtime's records
//! ([`line`]) into what the client sees, [`follow`] reads and waits for [`changes`].

pub(crate) mod changes;
mod follow;
mod line;
mod options;
mod render;
mod tail;
#[cfg(test)]
mod tests;

pub(super) use follow::{MayWrite, Opened, Pace, send};
pub(super) use options::LogOptions;
