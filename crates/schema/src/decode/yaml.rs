//! YAML to a value. Octal numbers are read as YAML 1.1 has them (`0644`), since manifests have file
//! modes; `yes` and `on` are texts, since manifests have those as texts more often. Aliases and anchors are bounded, so that a small body cannot become a large one.

use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error, Options};

use super::json::{self, TOO_DEEP};
use super::{DecodeError, Finding, Limits, Parsed, numbers};

/// An alias may not multiply a body beyond this many events.
const MAX_EVENTS: usize = 500_000;
/// Nor may all texts together be longer than the longest body this many times over.
const MAX_GROWTH: usize = 4;
/// The parser needs much stack for each level; kubectl itself sends JSON.
const MAX_DEPTH: usize = 64;

fn options(limits: Limits, policy: DuplicateKeyPolicy) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_EVENTS,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_depth: MAX_DEPTH.min(limits.max_depth),
            max_total_scalar_bytes: limits.max_bytes.saturating_mul(MAX_GROWTH),
            flow_nesting_limit: MAX_DEPTH.min(limits.max_depth),
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
        duplicate_keys: policy,
        legacy_octal_numbers: true,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// Reads the first document.
fn read<E>(
    bytes: &[u8],
    limits: Limits,
    policy: DuplicateKeyPolicy,
    fault: impl FnOnce(Error) -> E,
) -> Result<Parsed, E> {
    let options = options(limits, policy);
    let mut first = Parsed { value: Value::Null, findings: Vec::new() };
    let whole = serde_saphyr::with_deserializer_from_slice_with_options(bytes, options, |deserializer| {
        first = json::parse_with(deserializer, limits.max_depth)?;
        Ok(())
    });
    match whole {
        // Like upstream's decoder, which looks at nothing behind the first document.
        Ok(()) | Err(Error::MultipleDocuments { .. }) => Ok(first),
        Err(error) => Err(fault(error)),
    }
}

pub(super) fn parse(bytes: &[u8], limits: Limits) -> Result<Parsed, DecodeError> {
    let mut parsed = read(bytes, limits, DuplicateKeyPolicy::LastWins, |error| {
        let text = error.to_string();
        if text.contains(TOO_DEEP) || text.contains("depth") {
            DecodeError::TooDeep { limit: MAX_DEPTH.min(limits.max_depth) }
        } else {
            let first_line = text.lines().next().unwrap_or_default();
            DecodeError::Syntax(format!("error converting YAML to JSON: yaml: {first_line}"))
        }
    })?;
    // It is made JSON by Go before it is read.
    numbers::whole_numbers(&mut parsed.value);
    if let Some(first) = parsed.findings.first_mut()
        && let Some(twice) = twice(bytes, limits)
    {
        *first = twice;
    }
    Ok(parsed)
}

/// The first key that its mapping has already: where it is, only the parser knows.
fn twice(bytes: &[u8], limits: Limits) -> Option<Finding> {
    let found = read(bytes, limits, DuplicateKeyPolicy::Error, |error| match error {
        Error::DuplicateMappingKey { key: Some(key), location } => Some(Finding::Twice { key, line: location.line() }),
        _ => None,
    });
    found.err().flatten()
}
