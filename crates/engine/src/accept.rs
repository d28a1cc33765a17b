//! The `Accept` header taken apart, and others that are lists (RFC 9110, section 12.5).

use http::HeaderMap;
use http::header::{ACCEPT, HeaderName};

/// The media type of YAML.
const YAML: &str = "application/yaml";

/// One media range of an `Accept` header.
#[derive(Debug)]
pub struct MediaRange<'a> {
    /// `type/subtype`, in lower case.
    pub media_type: String,
    params: Vec<(&'a str, &'a str)>,
}

impl MediaRange<'_> {
    /// A parameter of the range.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| *v)
    }

    /// Whether this range takes objects, as JSON or as the YAML that is made of it.
    #[must_use]
    pub fn takes_objects(&self) -> bool {
        self.takes_json() || self.media_type == YAML
    }

    /// Whether this range takes JSON.
    #[must_use]
    pub fn takes_json(&self) -> bool {
        matches!(self.media_type.as_str(), "application/json" | "*/*" | "application/*")
    }
}

/// The elements of a header that is a list.
pub fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// How much somebody wants what he wants most, in thousandths.
const MAX_QUALITY: u32 = 1000;

/// How much something is wanted, in thousandths, which is all that a header can say; none where the parameter is
/// another, or no number (RFC 9110, section 12.4.2).
#[must_use]
pub fn quality(name: &str, value: &str) -> Option<u32> {
    if !name.trim().eq_ignore_ascii_case("q") {
        return None;
    }
    let quality: f64 = value.trim().parse().ok()?;
    Some((quality.clamp(0.0, 1.0) * f64::from(MAX_QUALITY)).round() as u32)
}

/// The ranges of the `Accept` header, best first, without those that are refused. No header is `*/*`.
#[must_use]
pub fn ranges(headers: &HeaderMap) -> Vec<MediaRange<'_>> {
    let mut ranges: Vec<(u32, MediaRange<'_>)> = listed(headers, ACCEPT)
        .filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().filter(|t| !t.is_empty())?.to_ascii_lowercase();
            let params: Vec<_> = parts.filter_map(|p| p.split_once('=')).collect();
            let quality = params.iter().find_map(|(name, value)| quality(name, value)).unwrap_or(MAX_QUALITY);
            Some((quality, MediaRange { media_type, params }))
        })
        .collect();
    if ranges.is_empty() {
        return vec![MediaRange { media_type: "*/*".to_owned(), params: Vec::new() }];
    }
    ranges.retain(|(quality, _)| *quality > 0);
    ranges.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    ranges.into_iter().map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_best_range_comes_first() {
        for (accept, expected) in [
            ("", &["*/*"][..]),
            ("text/plain;q=0.5, Application/JSON", &["application/json", "text/plain"]),
            ("text/plain;q=0, */*;Q=0.1", &["*/*"]),
            ("a/b, c/d", &["a/b", "c/d"]),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            let found: Vec<String> = ranges(&headers).into_iter().map(|range| range.media_type).collect();
            assert_eq!(found, expected, "{accept}");
        }
    }
}
