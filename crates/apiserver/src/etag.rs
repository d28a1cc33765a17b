//! Documents that clients keep: they are sent again only when they have changed (`ETag` and `If-None-Match`; RFC 9110,
//! section 13.1.2).

use bytes::Bytes;
use carrack_engine::fnv1a;
use http::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY};

use crate::accept::listed;
use crate::body::{Body, Response, typed};

/// The tag of a document.
pub(crate) fn of(document: &[u8]) -> String {
    format!("\"{:016X}\"", fnv1a(document))
}

/// Whether the client has the document with this tag already.
pub(crate) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    listed(headers, IF_NONE_MATCH).any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// A reply with the document of this tag; without it, where the client has it. `vary` names the headers on which it
/// depends.
pub(crate) fn reply(content_type: HeaderValue, tag: &str, vary: &'static str, document: Option<Bytes>) -> Response {
    let status = if document.is_some() { 200 } else { 304 };
    let mut response = typed(status, content_type, Body::Full(document.unwrap_or_default()));
    response.headers_mut().insert(VARY, HeaderValue::from_static(vary));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known() {
        let tag = of(b"document");
        for (header, want) in [
            (None, false),
            (Some(tag.clone()), true),
            (Some(format!("W/{tag}")), true),
            (Some(format!("\"other\", {tag}")), true),
            (Some("*".to_owned()), true),
            (Some("\"other\"".to_owned()), false),
            (Some(tag.trim_matches('"').to_owned()), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(text) = &header {
                headers.insert(IF_NONE_MATCH, HeaderValue::from_str(text).expect("a header"));
            }
            assert_eq!(is_known(&headers, &tag), want, "{header:?}");
        }
    }
}
