//! YAML to a value. Scalars are read as YAML 1.1 has them (`yes`, `0644`), as upstream's own
//! converter does; aliases and anchors are bounded, so that a small body cannot become a large one.

use super::json::{self, TOO_DEEP};
use super::{DecodeError, Limits, Parsed};

/// An alias may not multiply a body beyond this many events.
const MAX_EVENTS: usize = 500_000;

pub(super) fn parse(bytes: &[u8], limits: Limits) -> Result<Parsed, DecodeError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_EVENTS,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_depth: limits.max_depth * 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let parsed = serde_saphyr::with_deserializer_from_slice_with_options(bytes, options, |deserializer| {
        json::parse_with(deserializer, limits.max_depth)
    });
    parsed.map_err(|error| {
        let text = error.to_string();
        if text.contains(TOO_DEEP) {
            DecodeError::TooDeep { limit: limits.max_depth }
        } else {
            let first_line = text.lines().next().unwrap_or_default();
            DecodeError::Syntax(format!("error converting YAML to JSON: yaml: {first_line}"))
        }
    })
}
