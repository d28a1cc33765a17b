//! Kubernetes' named formats: `format.dns1123Label().validate(x)` lists what is wrong, or is empty.

use std::sync::LazyLock;

use regex::Regex;

use super::{Found, Opaque, encoders};
use crate::value::Value;

const NAMES: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// The form of a name, its longest length, and what is said of one that has not the form.
struct Form {
    regex: Regex,
    max: usize,
    text: &'static str,
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

static FORMS: LazyLock<Vec<(&str, Form)>> = LazyLock::new(|| {
    let value = "[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?";
    let all = [
        ("dns1123Label", "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?".to_owned(), 63, LABEL),
        (
            "dns1123Subdomain",
            "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*".to_owned(),
            253,
            SUBDOMAIN,
        ),
        ("dns1035Label", "[a-z](?:[-a-z0-9]*[a-z0-9])?".to_owned(), 63, LABEL_1035),
        ("labelValue", format!("(?:{value})?"), 63, VALUE),
        ("qualifiedName", format!("(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{value}"), 316, QUALIFIED),
    ];
    all.into_iter()
        .filter_map(|(name, regex, max, text)| {
            Some((name, Form { regex: Regex::new(&format!("^(?:{regex})$")).ok()?, max, text }))
        })
        .collect()
});

fn problem(format: &str, given: &str) -> Option<String> {
    let fits = match format {
        "uri" => matches!(super::net::call("isURL", &[given.into()]), Some(Ok(Value::Bool(true)))),
        "uuid" => {
            let parts: Vec<usize> = given.split('-').map(str::len).collect();
            parts == [8, 4, 4, 4, 12] && given.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
        }
        "byte" => encoders::decode(given).is_some(),
        "date" => given.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => given.parse::<jiff::Timestamp>().is_ok(),
        name => {
            // A prefix may end where a name goes on.
            let (name, given) = match name.strip_suffix("Prefix") {
                Some(name) => (name, given.trim_end_matches(['-', '.'])),
                None => (name, given),
            };
            let (_, form) = FORMS.iter().find(|(known, _)| *known == name)?;
            if given.len() > form.max {
                return Some(format!("must be no more than {} bytes", form.max));
            }
            return (!form.regex.is_match(given)).then(|| form.text.to_owned());
        }
    };
    (!fits).then(|| format!("invalid {format}"))
}

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    let named = |name: &str| NAMES.iter().find(|known| **known == name).map(|name| Value::Opaque(Opaque::Format(name)));
    match (function, args) {
        ("format.named", [Value::String(name)]) => Some(Ok(Value::optional(named(name)))),
        ("validate", [Value::Opaque(Opaque::Format(format)), Value::String(text)]) => {
            let problem = problem(format, text).map(|problem| Value::list(vec![problem.as_str().into()]));
            Some(Ok(Value::optional(problem)))
        }
        (_, []) => named(function.strip_prefix("format.")?).map(Ok),
        _ => None,
    }
}
