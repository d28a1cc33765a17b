//! What may be asked of a container's log. The API server looks at it first, and a kubelet is asked by others, too.
//!
//! Upstream: `ValidatePodLogOptions` of `pkg/apis/core/validation`.

use crate::error::FieldError;

/// The outputs that can be asked for, as the API names them.
const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

/// The options of a log (`PodLogOptions`) that can be wrong although each can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogLimits<'a> {
    /// `tailLines`
    pub tail_lines: Option<i64>,
    /// `limitBytes`
    pub limit_bytes: Option<i64>,
    /// `sinceSeconds`
    pub since_s: Option<i64>,
    /// Whether there is a `sinceTime`.
    pub has_since_time: bool,
    /// `stream`
    pub stream: Option<&'a str>,
}

impl LogLimits<'_> {
    /// What is wrong with them.
    #[must_use]
    pub fn faults(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        let since_s = self.since_s.filter(|_| !self.has_since_time);
        for (field, value, least, detail) in [
            ("tailLines", self.tail_lines, 0, "must be greater than or equal to 0"),
            ("limitBytes", self.limit_bytes, 1, "must be greater than 0"),
            ("sinceSeconds", since_s, 1, "must be greater than 0"),
        ] {
            if let Some(value) = value.filter(|value| *value < least) {
                faults.push(FieldError::invalid(field, value, detail));
            }
        }
        if self.since_s.is_some() && self.has_since_time {
            faults.push(FieldError::forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
        }
        if let Some(stream) = self.stream {
            if !STREAMS.contains(&stream) {
                faults.push(FieldError::not_supported("stream", stream, &STREAMS));
            }
            if stream != "All" && self.tail_lines.is_some() {
                let detail = "`tailLines` and specific `stream` are mutually exclusive for now";
                faults.push(FieldError::forbidden("", detail));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults() {
        let limits = LogLimits::default();
        for (limits, want) in [
            (limits, &[][..]),
            (LogLimits { tail_lines: Some(0), limit_bytes: Some(1), since_s: Some(1), ..limits }, &[]),
            (LogLimits { tail_lines: Some(3), has_since_time: true, stream: Some("All"), ..limits }, &[]),
            (LogLimits { stream: Some("Stderr"), ..limits }, &[]),
            (
                LogLimits { tail_lines: Some(-1), limit_bytes: Some(0), since_s: Some(-5), ..limits },
                &[
                    "tailLines: Invalid value: -1: must be greater than or equal to 0",
                    "limitBytes: Invalid value: 0: must be greater than 0",
                    "sinceSeconds: Invalid value: -5: must be greater than 0",
                ],
            ),
            (
                LogLimits { since_s: Some(0), has_since_time: true, ..limits },
                &[": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"],
            ),
            (
                LogLimits { tail_lines: Some(1), stream: Some("stdout"), ..limits },
                &[
                    "stream: Unsupported value: \"stdout\": supported values: \"All\", \"Stderr\", \"Stdout\"",
                    ": Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
                ],
            ),
        ] {
            let got: Vec<String> = limits.faults().iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{limits:?}");
        }
    }
}
