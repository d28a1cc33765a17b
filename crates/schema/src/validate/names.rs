//! The forms of names: DNS labels and subdomains, label keys and values, and the like.
//!
//! Each function gives nothing when the name is right, else the text of what is wrong.

/// Most bytes of a DNS label.
const MAX_LABEL: usize = 63;
/// Most bytes of a DNS subdomain.
const MAX_SUBDOMAIN: usize = 253;

/// What is wrong with a name, if anything.
pub type Problem = Option<String>;

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether all bytes are of the inner kind, and the first and last of theirs; not empty.
fn shaped(text: &str, first: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool, last: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(a), Some(z)) => first(*a) && last(*z) && bytes.iter().all(|b| inner(*b)),
        _ => false,
    }
}

fn is_label(text: &str) -> bool {
    shaped(text, is_lower_alphanumeric, |b| is_lower_alphanumeric(b) || b == b'-', is_lower_alphanumeric)
}

/// RFC 1123 label, such as `my-name`.
#[must_use]
pub fn dns1123_label(text: &str) -> Problem {
    if text.len() > MAX_LABEL {
        return Some(too_long(MAX_LABEL));
    }
    (!is_label(text)).then(|| {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an \
         alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    })
}

/// RFC 1123 subdomain, such as `example.com`.
#[must_use]
pub fn dns1123_subdomain(text: &str) -> Problem {
    if text.len() > MAX_SUBDOMAIN {
        return Some(too_long(MAX_SUBDOMAIN));
    }
    (!text.split('.').all(is_label)).then(|| {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with \
         an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            .to_owned()
    })
}

/// RFC 1035 label, which starts with a letter.
#[must_use]
pub fn dns1035_label(text: &str) -> Problem {
    if text.len() > MAX_LABEL {
        return Some(too_long(MAX_LABEL));
    }
    (!(is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()))).then(|| {
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end \
         with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    })
}

/// The name of a kind: such a label, but for the case of its letters.
#[must_use]
pub fn kind(text: &str) -> Problem {
    let problem = dns1035_label(&text.to_lowercase())?;
    Some(format!("may have mixed case, but should otherwise match: {problem}"))
}

/// What can stand as one segment of a URL's path.
#[must_use]
pub fn path_segment(text: &str) -> Problem {
    match text {
        "." | ".." => Some(format!("may not be '{text}'")),
        _ => ['/', '%'].into_iter().find(|c| text.contains(*c)).map(|c| format!("may not contain '{c}'")),
    }
}

fn is_name_part(text: &str) -> bool {
    shaped(
        text,
        |b| b.is_ascii_alphanumeric(),
        |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
        |b| b.is_ascii_alphanumeric(),
    )
}

/// A name with an optional DNS prefix, such as `example.com/my-name`: keys of labels and annotations,
/// finalizers, condition types.
#[must_use]
pub fn qualified_name(text: &str) -> Problem {
    const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
        character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let (prefix, name) = match text.split_once('/') {
        None => (None, text),
        Some((_, rest)) if rest.contains('/') => {
            return Some(format!(
                "a qualified name {FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".to_owned());
        }
        if let Some(problem) = dns1123_subdomain(prefix) {
            return Some(format!("prefix part {problem}"));
        }
    }
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > MAX_LABEL {
        return Some(format!("name part {}", too_long(MAX_LABEL)));
    }
    (!is_name_part(name)).then(|| format!("name part {FORM}"))
}

/// The value of a label.
#[must_use]
pub fn label_value(text: &str) -> Problem {
    if text.len() > MAX_LABEL {
        return Some(too_long(MAX_LABEL));
    }
    (!(text.is_empty() || is_name_part(text))).then(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
         an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
         '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .to_owned()
    })
}

/// A key of a ConfigMap or Secret.
#[must_use]
pub fn config_key(text: &str) -> Problem {
    if text.len() > MAX_SUBDOMAIN {
        return Some(too_long(MAX_SUBDOMAIN));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        return match text {
            "." => Some("must not be '.'".to_owned()),
            ".." => Some("must not be '..'".to_owned()),
            _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
            _ => None,
        };
    }
    Some(
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or \
         'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
            .to_owned(),
    )
}

/// The name of an environment variable.
#[must_use]
pub fn environment_variable(text: &str) -> Problem {
    let good = !text.is_empty() && text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
    (!good).then(|| {
        "a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()
    })
}

/// The name of a port.
#[must_use]
pub fn port_name(text: &str) -> Problem {
    if text.len() > 15 {
        return Some("must be no more than 15 bytes".to_owned());
    }
    if !text.bytes().all(|b| is_lower_alphanumeric(b) || b == b'-') {
        return Some("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        return Some("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        return Some("must not contain consecutive hyphens".to_owned());
    }
    (text.starts_with('-') || text.ends_with('-')).then(|| "must not begin or end with a hyphen".to_owned())
}

/// A port number.
#[must_use]
pub fn port_number(number: i64) -> Problem {
    (!(1..=65_535).contains(&number)).then(|| "must be between 1 and 65535, inclusive".to_owned())
}

/// The name of a CSI driver.
#[must_use]
pub fn csi_driver(text: &str) -> Problem {
    if text.len() > MAX_LABEL { Some(too_long(MAX_LABEL)) } else { dns1123_subdomain(&text.to_lowercase()) }
}

/// The name of a header of HTTP.
#[must_use]
pub fn http_header(text: &str) -> Problem {
    let good = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    (!good).then(|| {
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is \
         '[-A-Za-z0-9]+')"
            .to_owned()
    })
}

/// The name of a kernel parameter, its parts divided by dots or slashes.
#[must_use]
pub fn sysctl(text: &str) -> Problem {
    let part = |part: &str| {
        shaped(
            part,
            is_lower_alphanumeric,
            |b| is_lower_alphanumeric(b) || matches!(b, b'-' | b'_'),
            is_lower_alphanumeric,
        )
    };
    (text.len() > MAX_SUBDOMAIN || !text.split(['.', '/']).all(part)).then(|| {
        "must have at most 253 characters and match regex \
         ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_names() {
        let long_label = "a".repeat(64);
        let long_domain = ["a"; 130].join(".");
        type Row<'a> = (&'a str, fn(&str) -> Problem, &'a [&'a str], &'a [&'a str]);
        let table: [Row<'_>; 12] = [
            ("label", dns1123_label, &["a", "1", "a-b", "0a"], &["", "-a", "a-", "A", "a.b", "a_b", "ä", &long_label]),
            (
                "subdomain",
                dns1123_subdomain,
                &["a", "a.b", "1.2-3.c"],
                &["", ".", "a.", ".a", "a..b", "a.-b", "A.b", &long_domain],
            ),
            ("1035", dns1035_label, &["a", "a-1"], &["", "1a", "-a", "a-", "A"]),
            ("segment", path_segment, &["system:node", "a b", "A"], &[".", "..", "a/b", "a%b"]),
            (
                "qualified",
                qualified_name,
                &["a", "A_b.c", "x.y/Z", "a/b"],
                &["", "/a", "a/", "a/b/c", "-a", "A.B/c", &long_label],
            ),
            ("value", label_value, &["", "a", "A_b.c"], &["-a", "a/b", "a b", &long_label]),
            ("key", config_key, &["a", ".a", "A_b-c.d"], &["", ".", "..", "..a", "a/b", "a b"]),
            ("env", environment_variable, &["A", "a.b-c", "1", " "], &["", "a=b", "ä", "a\n"]),
            ("driver", csi_driver, &["a", "Disk.example.com"], &["", "a_b", &long_label]),
            ("header", http_header, &["X-A", "a1"], &["", "a b", "a:"]),
            ("sysctl", sysctl, &["kernel.shm_rmid", "net/ipv4/a", "a"], &["", "a..b", "A", "_a", "a."]),
            ("port", port_name, &["a", "http-80"], &["80", "a--b", "-a", "A", "aaaaaaaaaaaaaaaa", ""]),
        ];
        for (what, check, good, bad) in table {
            for text in good {
                assert_eq!(check(text), None, "{what} {text:?}");
            }
            for text in bad {
                assert!(check(text).is_some(), "{what} {text:?}");
            }
        }
    }
}
