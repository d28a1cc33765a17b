//! Replies for people's eyes: JSON with line breaks and indentation, for those who ask for it and for
//! the clients behind which somebody sits, as Kubernetes has it.
//!
//! The bytes are walked once and only whitespace is put between them: the order of fields stays, and
//! nothing is parsed.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};

use crate::body::{Body, Response};
use crate::query::Query;

/// Whether the client wants to read the reply itself: `?pretty`, or else it is one of the tools that
/// people type commands into, or a browser.
pub(crate) fn wanted(query: &Query, headers: &HeaderMap) -> bool {
    if query.non_empty("pretty").is_some() {
        return query.flag("pretty");
    }
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
}

/// The reply with its JSON laid out; anything but whole JSON stays as it is.
pub(crate) fn lay_out(response: Response) -> Response {
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/json"));
    if !is_json || !matches!(response.body(), Body::Full(_) | Body::Parts(_)) {
        return response;
    }
    response.map(|body| {
        let bytes = body.into_bytes();
        let laid_out = if bytes.is_empty() { None } else { indented(&bytes) };
        Body::Full(laid_out.map_or(bytes, Bytes::from))
    })
}

/// How many times as long as it was a reply may become, and how long it may become in any case, in bytes.
const MAX_GROWTH: usize = 8;
const MIN_BOUND: usize = 1 << 16;

/// JSON with two spaces a level; none of what is nested so deep that there would be spaces most of all: a few megabytes
/// of short items would become some hundreds.
fn indented(json: &[u8]) -> Option<Vec<u8>> {
    let bound = json.len().saturating_mul(MAX_GROWTH).max(MIN_BOUND);
    let mut out = Vec::with_capacity(json.len() + json.len() / 2);
    let (mut depth, mut in_text, mut escaped, mut just_opened) = (0_usize, false, false, false);
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + 2 * depth, b' ');
    };
    for &byte in json {
        if out.len() > bound {
            return None;
        }
        if in_text {
            out.push(byte);
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(byte, b'}' | b']');
        // What is empty stays in one piece.
        if just_opened && !closes {
            line(&mut out, depth);
        }
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if !just_opened {
                    line(&mut out, depth);
                }
            }
            b'"' => in_text = true,
            _ => {}
        }
        just_opened = matches!(byte, b'{' | b'[');
        out.push(byte);
        match byte {
            b',' => line(&mut out, depth),
            b':' => out.push(b' '),
            _ => {}
        }
    }
    out.push(b'\n');
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn layout() {
        for (json, want) in [
            ("{}", "{}\n"),
            ("[ ]\n", "[]\n"),
            ("7", "7\n"),
            (r#"{"a":1,"b":[],"c":[1,{}]}"#, "{\n  \"a\": 1,\n  \"b\": [],\n  \"c\": [\n    1,\n    {}\n  ]\n}\n"),
            (r#"{"z":"a,b: {\" }\\","a":null}"#, "{\n  \"z\": \"a,b: {\\\" }\\\\\",\n  \"a\": null\n}\n"),
        ] {
            let laid_out = indented(json.as_bytes()).expect("it is not deep");
            assert_eq!(String::from_utf8_lossy(&laid_out), want, "{json}");
        }
        let deep = ["[".repeat(100), "1,".repeat(10_000), "1".to_owned(), "]".repeat(100)].concat();
        assert_eq!(indented(deep.as_bytes()), None);
    }

    #[test]
    fn who_gets_it() {
        for (query, agent, want) in [
            ("", "kubectl/v1.32.4", false),
            ("", "curl/7.88.1", true),
            ("", "Mozilla/5.0 (X11)", true),
            ("pretty=true", "kubectl/v1.32.4", true),
            ("pretty=1", "", true),
            ("pretty=false", "curl/7.88.1", false),
            ("pretty=0", "curl/7.88.1", false),
            ("pretty=", "curl/7.88.1", true),
        ] {
            let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(agent))]);
            assert_eq!(wanted(&Query::parse(query), &headers), want, "{query} {agent}");
        }
    }
}
