//! Workloads: Deployments that are rolled, scaled and paused, and the others, on nodes that only pretend; and the claims and
//! volumes that their pods have, with a storage system beside them ([`storage`]).
//!
//! What people do is in [`acts`], what must hold at every step in [`Bounds`], what must be so in the end in [`lacks`].

mod absences;
mod acts;
mod attachments;
mod autoscalers;
mod bounds;
mod budgets;
mod claims;
mod definitions;
mod endings;
mod heirs;
mod policies;
mod quotas;
mod scratch;
mod services;
mod storage;
mod strangers;
mod times;
mod tolerations;
mod wants;

pub(crate) use absences::{AWAY, NAME as GONE_KEEP, RESTLESS};
pub(crate) use acts::acts;
pub(crate) use attachments::{NAME as ATTACH_FEW, PART as LIMITS, asks_for_limits, of_nobody};
pub(crate) use autoscalers::{
    Autoscaled, BOUNDS as AUTOSCALED_WITHIN, PART as AUTOSCALERS, SILENCE, is_asked as asks_for_metrics,
};
pub(crate) use bounds::Bounds;
pub(crate) use claims::{about, lacks as claim_lacks, left as volumes_left};
pub(crate) use definitions::{acts as definitions, belongings, left};
pub(crate) use policies::{NAME as PASS_HELD, Passing};
pub(crate) use quotas::{EDITS, edited as quota_edited, is_count, uncounted};
pub(crate) use storage::manager as storage;
pub(crate) use strangers::{left as strangers_left, with_raw_names};
pub(crate) use tolerations::NAME as TOLERATIONS_LAST;
pub(crate) use wants::{end, lacks};

/// How many nodes there are.
pub(crate) const NODES: usize = 4;

/// The label of nodes that only pretend, and its value: what is to run there alone asks for it.
pub(crate) const HOLLOW: (&str, &str) = ("sim", "hollow");

/// The nodes.
pub(crate) fn nodes() -> carrack_hollow::Config {
    carrack_hollow::Config {
        nodes: NODES,
        labels: [(HOLLOW.0.to_owned(), HOLLOW.1.to_owned())].into(),
        start_after: std::time::Duration::from_millis(300),
        stop_after: std::time::Duration::from_millis(700),
        attentive: true,
        ..carrack_hollow::Config::default()
    }
}
