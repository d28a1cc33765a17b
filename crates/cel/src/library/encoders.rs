//! Base64.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::{Found, fail, text};
use crate::value::Value;

pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok()
}

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    match (function, args) {
        ("base64.encode", [Value::Bytes(bytes)]) => text(encode(bytes)),
        ("base64.decode", [Value::String(text)]) => match decode(text) {
            Some(bytes) => Some(Ok(Value::Bytes(bytes.into()))),
            None => fail("illegal base64 data"),
        },
        _ => None,
    }
}
