//! Names as parts of URLs.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A namespace or a name as one segment of a path. Some kinds may have names with nearly any character in them (those
/// of RBAC), and what refers to an object may name it as it likes: it must not end in another object, or in none.
/// Upstream reference: `PathEscape` in Go's net/url, but for what may stand in a segment as it is.
#[must_use]
pub fn segment(name: &str) -> Cow<'_, str> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b);
    // These two are no names to whoever makes paths short.
    if name.bytes().all(is_plain) && name != "." && name != ".." {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len() + 8);
    for b in name.bytes() {
        if is_plain(b) && b != b'.' {
            out.push(char::from(b));
        } else {
            // Writing to a String cannot fail.
            write!(out, "%{b:02X}").unwrap_or_default();
        }
    }
    Cow::Owned(out)
}
