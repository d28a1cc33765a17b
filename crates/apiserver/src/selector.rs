//! Label and field selectors: parsing and matching.
//!
//! Grammar: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#api>. They are read in time that is
//! proportional to their length, and that is bounded by the URI's, of which the HTTP library takes 64 KiB.

use std::collections::BTreeSet;

use crate::status::Status;

/// A parsed label selector: all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Reads `a=b,c!=d,e in (f,g),!h`.
    ///
    /// # Errors
    /// 400 with what is wrong.
    pub fn parse(text: &str) -> Result<LabelSelector, Status> {
        let mut parser = Parser { rest: text };
        let mut requirements = Vec::new();
        loop {
            parser.space();
            if parser.rest.is_empty() {
                break;
            }
            requirements.push(
                parser
                    .requirement()
                    .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?,
            );
            parser.space();
            if parser.rest.is_empty() {
                break;
            }
            if !parser.take(',') {
                return Err(Status::bad_request(format!(
                    "unable to parse requirement: found '{}', expected: ',' or 'end of string'",
                    parser.rest
                )));
            }
            parser.space();
            if parser.rest.is_empty() {
                return Err(Status::bad_request(
                    "unable to parse requirement: found '', expected: identifier after ','",
                ));
            }
        }
        Ok(LabelSelector(requirements))
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these labels satisfy it.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = label(&requirement.key);
            match &requirement.test {
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::In(set) => value.is_some_and(|v| set.contains(v)),
                Test::NotIn(set) => value.is_none_or(|v| !set.contains(v)),
                Test::Greater(than) => number(value).is_some_and(|v| v > *than),
                Test::Less(than) => number(value).is_some_and(|v| v < *than),
            }
        })
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value.and_then(|v| v.parse().ok())
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> String {
        self.space();
        let end = self.rest.find(|c: char| c.is_whitespace() || "=!,()<>".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        self.space();
        let absent = self.take('!');
        let key = self.word();
        check_key(&key)?;
        self.space();
        if absent {
            return Ok(Requirement { key, test: Test::Absent });
        }
        let one = |value: String| -> Result<BTreeSet<String>, String> {
            check_value(&value)?;
            Ok(BTreeSet::from([value]))
        };
        let test = if self.rest.is_empty() || self.rest.starts_with(',') {
            Test::Exists
        } else if self.take('=') {
            self.take('=');
            Test::In(one(self.word())?)
        } else if self.rest.starts_with("!=") {
            self.rest = &self.rest[2..];
            Test::NotIn(one(self.word())?)
        } else if self.take('>') {
            Test::Greater(self.integer()?)
        } else if self.take('<') {
            Test::Less(self.integer()?)
        } else {
            match self.word().as_str() {
                "in" => Test::In(self.set()?),
                "notin" => Test::NotIn(self.set()?),
                other => {
                    return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
                }
            }
        };
        Ok(Requirement { key, test })
    }

    fn integer(&mut self) -> Result<i64, String> {
        let word = self.word();
        word.parse().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {word:?}"))
    }

    fn set(&mut self) -> Result<BTreeSet<String>, String> {
        self.space();
        if !self.take('(') {
            return Err(format!("found '{}', expected: '('", self.rest));
        }
        let mut values = BTreeSet::new();
        loop {
            let value = self.word();
            check_value(&value)?;
            values.insert(value);
            self.space();
            if self.take(')') {
                return Ok(values);
            }
            if !self.take(',') {
                return Err(format!("found '{}', expected: ',', or ')'", self.rest));
            }
        }
    }
}

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let ok = !key.starts_with('/')
        && !name.is_empty()
        && name.len() <= 63
        && prefix.len() <= 253
        && name_like(name)
        && (prefix.is_empty() || name_like(prefix));
    if ok { Ok(()) } else { Err(format!("key: Invalid value: {key:?}: a qualified name is needed")) }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.len() <= 63 && (value.is_empty() || name_like(value)) {
        Ok(())
    } else {
        Err(format!(
            "values: Invalid value: {value:?}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
        ))
    }
}

fn name_like(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes().all(inner) && outer(text.as_bytes().first()) && outer(text.as_bytes().last())
}

/// A parsed field selector: (path, equal?, value), all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// Reads `a=b,c!=d`; `\`, `,` and `=` in values are escaped with `\`.
    ///
    /// # Errors
    /// 400 with what is wrong.
    pub fn parse(text: &str) -> Result<FieldSelector, Status> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (path, equal, value) = if let Some((path, value)) = term.split_once("!=") {
                (path, false, value)
            } else if let Some((path, value)) = term.split_once("==") {
                (path, true, value)
            } else if let Some((path, value)) = term.split_once('=') {
                (path, true, value)
            } else {
                return Err(Status::bad_request(format!(
                    "invalid field selector: {text:?}; can't understand {term:?}"
                )));
            };
            terms.push((path.to_owned(), equal, unescape(value)));
        }
        Ok(FieldSelector(terms))
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the requirement that a field has a value.
    pub fn require(&mut self, path: &str, value: &str) {
        self.0.push((path.to_owned(), true, value.to_owned()));
    }

    /// The value that a field must have, if the selector names one.
    pub fn exact(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|(p, equal, _)| *equal && p == path).map(|(_, _, v)| v.as_str())
    }

    /// The fields that are asked about.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(path, _, _)| path.as_str())
    }

    /// Whether the field values that `value_of` gives satisfy it; a field that is not there is empty.
    pub fn matches(&self, value_of: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|(path, equal, value)| (value_of(path) == *value) == *equal)
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = terms.last_mut() {
            last.push(c);
        }
    }
    terms
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn labels() -> BTreeMap<String, String> {
        [("app", "web"), ("tier", "2"), ("example.com/x", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn label_selectors() {
        let labels = labels();
        for (text, want) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("app=web", true),
            ("app==web,tier=2", true),
            ("app != web", false),
            ("none!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("none notin (a)", true),
            ("tier>1", true),
            ("tier<2", false),
            ("example.com/x=", true),
            ("example.com/x,!other", true),
        ] {
            let selector = LabelSelector::parse(text).expect(text);
            assert_eq!(selector.matches(|label| labels.get(label).map(String::as_str)), want, "{text}");
        }
        for bad in ["a b", "a in b", "a in (b", "=x", "a=b c", "a>x", "a=-b", "/x=1", "a=b,", ",a=b", "a, "] {
            assert_eq!(LabelSelector::parse(bad).map_err(|s| s.code), Err(400), "{bad}");
        }
    }

    /// As long as a URI may be.
    #[test]
    fn long_selectors() {
        let many = |text: &dyn Fn(usize) -> String| (0..6000).map(text).collect::<Vec<_>>().join(",");
        let labels = LabelSelector::parse(&format!("app in ({},web)", many(&|i| format!("v{i}")))).expect("labels");
        assert!(labels.matches(|label| (label == "app").then_some("web")));
        let fields = FieldSelector::parse(&many(&|i| format!("a!={i}"))).expect("fields");
        assert!(fields.matches(|_| "x".to_owned()) && !fields.matches(|_| "5999".to_owned()));
    }

    #[test]
    fn field_selectors() {
        let value = |path: &str| if path == "status.phase" { "Running".to_owned() } else { String::new() };
        for (text, want) in [
            ("", true),
            ("status.phase=Running", true),
            ("status.phase!=Running", false),
            ("spec.nodeName=", true),
            ("status.phase==Running,spec.nodeName!=x", true),
        ] {
            assert_eq!(FieldSelector::parse(text).expect(text).matches(value), want, "{text}");
        }
        assert!(FieldSelector::parse("nothing").is_err());
        assert_eq!(FieldSelector::parse("a=b\\,c").expect("escaped").exact("a"), Some("b,c"));
    }
}
