//! Content negotiation: which form of an object a client takes, and what a body is.

use carrack_engine::accept::quality;
pub(crate) use carrack_engine::accept::{MediaRange, listed, ranges};
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};

use crate::status::Status;

/// The media types that replies can have, for the 406.
const OFFERED: &str = "application/json, application/yaml";

/// How objects are presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Object,
    /// As a `Table` of this version of meta.k8s.io, which kubectl prints.
    Table(&'static str),
    /// Metadata alone, in this version of meta.k8s.io.
    Metadata(&'static str),
}

/// Whether the client takes gzip: it is named, or what is not named is taken. A quality of 0 refuses either
/// (RFC 9110, section 12.5.3).
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let (mut named, mut others) = (None, false);
    for coding in listed(headers, ACCEPT_ENCODING) {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.filter_map(|part| part.split_once('=')).find_map(|(name, value)| quality(name, value));
        let is_taken = quality != Some(0);
        if name == "*" {
            others = is_taken;
        } else if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
            named = Some(is_taken);
        }
    }
    named.unwrap_or(others)
}

/// The form of a reply to a request for objects.
///
/// # Errors
/// 406 when nothing that is accepted can be made.
pub fn form(headers: &HeaderMap) -> Result<Form, Status> {
    form_among(headers, true)
}

/// The form of a watch that begins with all that is there, in place of a list: of such there are no tables
/// (`watchListEndpointRestrictions` of `k8s.io/apiserver/pkg/endpoints/handlers`).
///
/// # Errors
/// 406 when nothing else that is accepted can be made.
pub(crate) fn streamed_form(headers: &HeaderMap) -> Result<Form, Status> {
    form_among(headers, false)
}

fn form_among(headers: &HeaderMap, has_tables: bool) -> Result<Form, Status> {
    for range in ranges(headers) {
        if !range.takes_objects() {
            continue;
        }
        let meta_version = match range.param("v") {
            None | Some("v1") => "meta.k8s.io/v1",
            Some("v1beta1") => "meta.k8s.io/v1beta1",
            Some(_) => continue,
        };
        let known_group = matches!(range.param("g"), None | Some("meta.k8s.io"));
        match range.param("as") {
            None => return Ok(Form::Object),
            Some("Table") if known_group && has_tables => return Ok(Form::Table(meta_version)),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if known_group => {
                return Ok(Form::Metadata(meta_version));
            }
            Some(_) => {}
        }
    }
    Err(Status::not_acceptable(OFFERED))
}

/// Refuses a client that takes what is answered on the spot in another form alone: it has none.
///
/// # Errors
/// 406 then.
pub(crate) fn whole(headers: &HeaderMap) -> Result<(), Status> {
    let (others, plain): (Vec<_>, Vec<_>) =
        ranges(headers).into_iter().filter(MediaRange::takes_objects).partition(|range| range.param("as").is_some());
    if plain.is_empty() && !others.is_empty() { Err(Status::not_acceptable(OFFERED)) } else { Ok(()) }
}

/// Whether the reply is to be YAML: what is accepted best of what can be made.
pub fn wants_yaml(headers: &HeaderMap) -> bool {
    // Not many do; the header need not be taken apart for all others.
    let mentioned = headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|text| text.contains("yaml")));
    mentioned && ranges(headers).iter().find(|range| range.takes_objects()).is_some_and(|range| !range.takes_json())
}

/// The media type of a body, in lower case and without parameters; JSON when it is not said.
pub fn content_type(headers: &HeaderMap) -> String {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase())
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| "application/json".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn forms() {
        for (accept, want) in [
            (None, Ok(Form::Object)),
            (Some("application/json"), Ok(Form::Object)),
            (Some("*/*"), Ok(Form::Object)),
            (
                Some(
                    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                ),
                Ok(Form::Table("meta.k8s.io/v1")),
            ),
            (
                Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                Ok(Form::Metadata("meta.k8s.io/v1")),
            ),
            (Some("application/vnd.kubernetes.protobuf, application/json;q=0.5"), Ok(Form::Object)),
            (Some("application/vnd.kubernetes.protobuf"), Err(406)),
            (Some("text/html"), Err(406)),
            (Some("text/html, application/json;q=0"), Err(406)),
            (Some("text/html, application/json; Q=0.1"), Ok(Form::Object)),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(form(&headers).map_err(|s| s.code), want, "{accept:?}");
        }
    }

    #[test]
    fn lists_that_are_streamed_are_no_tables() {
        for (accept, want) in [
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Err(406)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Ok(Form::Object)),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(streamed_form(&headers).map_err(|s| s.code), want, "{accept}");
        }
    }

    #[test]
    fn who_takes_gzip() {
        for (value, wanted) in [
            ("gzip", true),
            ("x-gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip; q=0.001", true),
            ("gzip;q=0", false),
            ("gzip; Q=0.0, deflate", false),
            ("gzip;level=0", true),
            ("*", true),
            ("*;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0, gzip", true),
            ("identity;q=0, *;q=0.5", true),
            ("br", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(takes_gzip(&headers), wanted, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn what_has_one_form() {
        for (accept, is_taken) in [
            ("application/json", true),
            ("application/json;as=Table;v=v1;g=meta.k8s.io, application/json", true),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", false),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", false),
            ("application/vnd.kubernetes.protobuf", true),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(whole(&headers).map_err(|s| s.code), if is_taken { Ok(()) } else { Err(406) }, "{accept}");
        }
    }
}
