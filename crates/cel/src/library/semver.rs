//! Semantic versions. <https://semver.org/spec/v2.0.0.html>

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Found, Opaque, fail, truth};
use crate::value::Value;

/// A version; what follows a `+` does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Semver {
    numbers: [u64; 3],
    before: Vec<String>,
}

impl Semver {
    fn parse(text: &str, lenient: bool) -> Option<Semver> {
        let text = if lenient { text.trim_start_matches('v') } else { text };
        let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
        let mut numbers = [0; 3];
        let parts: Vec<&str> = core.split('.').collect();
        if parts.len() > 3 || (parts.len() < 3 && !lenient) {
            return None;
        }
        for (slot, part) in numbers.iter_mut().zip(&parts) {
            let leading_zero = part.len() > 1 && part.starts_with('0') && !lenient;
            if part.is_empty() || leading_zero || !part.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *slot = part.parse().ok()?;
        }
        let identifiers = |text: Option<&str>| -> Option<Vec<String>> {
            let Some(text) = text else { return Some(Vec::new()) };
            let well = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
            parts.iter().all(|part| well(part)).then_some(parts)
        };
        identifiers(build)?;
        Some(Semver { numbers, before: identifiers(before)? })
    }

    /// Bytes of what comes before the release.
    pub(super) fn size(&self) -> u64 {
        self.before.iter().map(|part| part.len() as u64 + 1).sum::<u64>().max(1)
    }

    fn order(&self, other: &Semver) -> Ordering {
        let released = self.before.is_empty().cmp(&other.before.is_empty());
        self.numbers.cmp(&other.numbers).then(released).then_with(|| {
            for (a, b) in self.before.iter().zip(&other.before) {
                let order = match (a.parse::<u64>(), b.parse::<u64>()) {
                    (Ok(a), Ok(b)) => a.cmp(&b),
                    (Ok(_), Err(_)) => Ordering::Less,
                    (Err(_), Ok(_)) => Ordering::Greater,
                    _ => a.cmp(b),
                };
                if order != Ordering::Equal {
                    return order;
                }
            }
            self.before.len().cmp(&other.before.len())
        })
    }
}

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    match (function, args) {
        ("semver" | "isSemver", [Value::String(text), rest @ ..]) => {
            let lenient = matches!(rest, [Value::Bool(true)]);
            let parsed = Semver::parse(text, lenient);
            if function == "isSemver" {
                return truth(parsed.is_some());
            }
            match parsed {
                Some(version) => Some(Ok(Value::Opaque(Opaque::Semver(Arc::new(version))))),
                None => fail(format!("invalid semantic version {text:?}")),
            }
        }
        ("major" | "minor" | "patch", [Value::Opaque(Opaque::Semver(version))]) => {
            let [major, minor, patch] = version.numbers;
            let number = match function {
                "major" => major,
                "minor" => minor,
                _ => patch,
            };
            Some(Ok(Value::Int(i64::try_from(number).unwrap_or(i64::MAX))))
        }
        (_, [Value::Opaque(Opaque::Semver(a)), Value::Opaque(Opaque::Semver(b))]) => {
            let order = a.order(b);
            match function {
                "isLessThan" => truth(order == Ordering::Less),
                "isGreaterThan" => truth(order == Ordering::Greater),
                "compareTo" => Some(Ok(Value::Int(order as i64))),
                _ => None,
            }
        }
        _ => None,
    }
}
