//! EventRateLimit: no more events are taken than so many a second; of whom, the configuration says. It is off unless it is named.
//!
//! ```text
//!   an event ─► each limit: whose is it? ─► a token of that bucket ─┬► there is one ─► taken
//!                                                                   └► none ─────────► 429
//! ```
//!
//! It is the one plugin that remembers something between requests. What it remembers is bounded, and each server has its own.
//!
//! Upstream: `plugin/pkg/admission/eventratelimit`. That counts the events of the group without a name alone; here those of
//! `events.k8s.io` count as well, which are the same objects.

mod buckets;
mod limits;

use std::sync::{Mutex, PoisonError};

use super::{AdmissionPlugin, Attributes, Lookup, Operation};
use crate::object::str_at;
use crate::status::Status;
use buckets::Buckets;
use limits::Of;

pub(crate) use limits::Limits;

const NAME: &str = "EventRateLimit";

/// As much of what somebody wrote is a key, in bytes: what an event is about has names that are shorter.
const KEY_BYTES: usize = 2048;

pub(super) struct EventRateLimit {
    limits: Vec<(Of, Mutex<Buckets>)>,
}

impl EventRateLimit {
    pub(super) fn new(limits: &Limits) -> EventRateLimit {
        let buckets = limits.0.iter().map(|limit| (limit.of, Mutex::new(Buckets::new(limit.rate, limit.kept))));
        EventRateLimit { limits: buckets.collect() }
    }
}

impl Of {
    /// Whose an event is.
    fn key(self, attributes: &Attributes<'_>) -> String {
        match self {
            Of::Server => String::new(),
            Of::Namespace => attributes.namespace.to_owned(),
            Of::User => attributes.caller.user.clone(),
            Of::SourceAndObject => {
                let is_of_core = attributes.row.group.is_empty();
                let (source, about) =
                    if is_of_core { ("source", "involvedObject") } else { ("deprecatedSource", "regarding") };
                let fields = [
                    (source, "component"),
                    (source, "host"),
                    (about, "kind"),
                    (about, "namespace"),
                    (about, "name"),
                    (about, "uid"),
                    (about, "apiVersion"),
                ];
                fields.iter().map(|&(part, field)| str_at(&attributes.object, &[part, field])).collect()
            }
        }
    }
}

impl AdmissionPlugin for EventRateLimit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn validate(&self, attributes: &Attributes<'_>, _lookup: &dyn Lookup) -> Result<(), Status> {
        let is_event = attributes.is("", "events") || attributes.is("events.k8s.io", "events");
        // What is not stored costs nothing.
        let is_written = matches!(attributes.operation, Operation::Create | Operation::Update) && !attributes.dry_run;
        if !is_event || !is_written {
            return Ok(());
        }
        let now = attributes.env.now();
        // Each limit counts it, whatever the others say, and all that refuse it are told.
        let mut refusals = Vec::new();
        for (of, buckets) in &self.limits {
            let mut key = of.key(attributes);
            key.truncate(key.floor_char_boundary(KEY_BYTES));
            let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
            if !buckets.take(&key, now) {
                refusals.push(format!("limit reached on type {} for key {key}", of.name()));
            }
        }
        match refusals.as_slice() {
            [] => Ok(()),
            [one] => Err(Status::over_limit(one)),
            all => Err(Status::over_limit(&format!("[{}]", all.join(", ")))),
        }
    }
}
