//! The JSONPath subset of printer columns and selectable fields.
//!
//! A path is a chain of steps: `.name`, `['name']`, `[3]`, `[-1]`, `[*]`, `.*`, `..name`, the slice
//! `[1:3]` with a step behind it if there is one, several of what stands in brackets (`[0,2]`), and the
//! filter `[?(@.a.b=="text")]` with `==`, `!=`, `<`, `<=`, `>`, `>=` or mere existence. It may be
//! written with or without `$` and braces. A dot in a name is escaped with a backslash.
//! <https://kubernetes.io/docs/reference/kubectl/jsonpath/>

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    /// The items from a place up to another, or every second of them and so on.
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: Option<i64>,
    },
    /// What each of these finds.
    Union(Vec<Step>),
    Wildcard,
    Recursive(String),
    Filter {
        path: JsonPath,
        test: Option<(Comparison, Value)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Why a path could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at} of {path:?}")]
pub struct JsonPathError {
    /// What is wrong.
    pub problem: &'static str,
    /// Where.
    pub at: usize,
    /// The whole path.
    pub path: String,
}

/// More than these are of no use. `..a..a..a` finds each way through fields of fields of one name, and there are more of them
/// than anybody could go.
const MAX_FOUND: usize = 4096;
/// Nesting of filters in filters is bounded.
const MAX_FILTER_DEPTH: usize = 4;

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// When the text is not of the subset.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.trim();
        let inner = inner.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(inner);
        let mut parser = Parser { text: inner, at: 0 };
        let path = parser.path(0).map_err(|problem| JsonPathError { problem, at: parser.at, path: text.to_owned() })?;
        if parser.at == inner.len() {
            Ok(path)
        } else {
            Err(JsonPathError { problem: "unexpected text", at: parser.at, path: text.to_owned() })
        }
    }

    /// Everything the path finds, in document order; no more than some thousands.
    #[must_use]
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut current = vec![root];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in current {
                step.apply(value, &mut next);
                if next.len() > MAX_FOUND {
                    next.truncate(MAX_FOUND);
                    break;
                }
            }
            if next.is_empty() {
                return next;
            }
            current = next;
        }
        current
    }

    /// The names of the path where it is a plain chain of fields, such as `["spec", "replicas"]`.
    #[must_use]
    pub fn plain_fields(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value, out: &mut Vec<&'a Value>) {
        match self {
            Step::Field(name) => out.extend(value.get(name)),
            Step::Index(index) => {
                if let Some(list) = value.as_array() {
                    out.extend(position(*index, list.len()).and_then(|p| list.get(p)));
                }
            }
            Step::Slice { from, to, step } => {
                let Some(list) = value.as_array() else { return };
                let from = from.map_or(Some(0), |from| position(from, list.len()));
                let to = to.map_or(Some(list.len()), |to| position(to, list.len()));
                let step = usize::try_from(step.unwrap_or(1)).ok().filter(|step| *step > 0);
                // What reaches beyond the list finds nothing, as upstream has it.
                if let (Some(from), Some(to), Some(step)) = (from, to, step) {
                    out.extend(list.get(from..to).into_iter().flatten().step_by(step));
                }
            }
            Step::Union(steps) => {
                for step in steps {
                    step.apply(value, out);
                    if out.len() > MAX_FOUND {
                        break;
                    }
                }
            }
            Step::Wildcard => match value {
                Value::Array(list) => out.extend(list),
                Value::Object(map) => out.extend(map.values()),
                _ => {}
            },
            Step::Recursive(name) => descend(value, name, out),
            Step::Filter { path, test } => {
                if let Some(list) = value.as_array() {
                    out.extend(list.iter().filter(|item| passes(item, path, test.as_ref())));
                }
            }
        }
    }
}

/// Where a place is in a list of this length: one below 0 is counted from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    if index < 0 { length.checked_sub(index.unsigned_abs() as usize) } else { usize::try_from(index).ok() }
}

fn descend<'a>(value: &'a Value, name: &str, out: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                if key == name {
                    out.push(child);
                }
                descend(child, name, out);
            }
        }
        Value::Array(list) => list.iter().for_each(|child| descend(child, name, out)),
        _ => {}
    }
}

fn passes(item: &Value, path: &JsonPath, test: Option<&(Comparison, Value)>) -> bool {
    let found = path.find(item);
    let Some((comparison, wanted)) = test else { return !found.is_empty() };
    found.iter().any(|value| compare(value, *comparison, wanted))
}

fn compare(value: &Value, comparison: Comparison, wanted: &Value) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let ordering = match (value, wanted) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b)),
        _ => None,
    };
    match (comparison, ordering) {
        (Comparison::Equal, order) => order == Some(Equal),
        (Comparison::NotEqual, order) => order != Some(Equal),
        (Comparison::Less, order) => order == Some(Less),
        (Comparison::LessOrEqual, order) => matches!(order, Some(Less | Equal)),
        (Comparison::Greater, order) => order == Some(Greater),
        (Comparison::GreaterOrEqual, order) => matches!(order, Some(Greater | Equal)),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

type Parsed<T> = Result<T, &'static str>;

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn skip_spaces(&mut self) {
        while self.eat(" ") {}
    }

    /// Steps up to the end, or up to what cannot be a step (inside a filter).
    fn path(&mut self, depth: usize) -> Parsed<JsonPath> {
        let mut steps = Vec::new();
        if !self.eat("$") {
            self.eat("@");
        }
        loop {
            if self.eat("..") {
                steps.push(Step::Recursive(self.name()?));
            } else if self.eat(".") {
                if self.eat("*") {
                    steps.push(Step::Wildcard);
                } else if self.rest().starts_with('[') || self.rest().is_empty() {
                    // `.[0]` and a lone `.` are the value itself.
                } else {
                    steps.push(Step::Field(self.name()?));
                }
            } else if self.eat("[") {
                steps.push(self.bracket(depth)?);
            } else if steps.is_empty() && self.rest().starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                steps.push(Step::Field(self.name()?));
            } else {
                return Ok(JsonPath { steps });
            }
        }
    }

    fn name(&mut self) -> Parsed<String> {
        let mut name = String::new();
        let mut escaped = false;
        let mut length = 0;
        for c in self.rest().chars() {
            if !escaped && c == '\\' {
                escaped = true;
            } else if !escaped
                && matches!(c, '.' | '[' | ']' | '=' | '!' | '<' | '>' | ')' | '(' | ' ' | '}' | '{' | '\'' | '"')
            {
                break;
            } else {
                name.push(c);
                escaped = false;
            }
            length += c.len_utf8();
        }
        self.at += length;
        if name.is_empty() { Err("a field name is missing") } else { Ok(name) }
    }

    fn bracket(&mut self, depth: usize) -> Parsed<Step> {
        let first = self.in_bracket(depth)?;
        let mut others = Vec::new();
        self.skip_spaces();
        while self.eat(",") {
            self.skip_spaces();
            others.push(self.in_bracket(depth)?);
            self.skip_spaces();
        }
        if !self.eat("]") {
            return Err("a bracket is not closed");
        }
        if others.is_empty() {
            return Ok(first);
        }
        others.insert(0, first);
        Ok(Step::Union(others))
    }

    fn in_bracket(&mut self, depth: usize) -> Parsed<Step> {
        Ok(if self.eat("*") {
            Step::Wildcard
        } else if self.eat("?(") {
            if depth >= MAX_FILTER_DEPTH {
                return Err("filters are nested too deeply");
            }
            let step = self.filter(depth)?;
            if !self.eat(")") {
                return Err("a filter is not closed");
            }
            step
        } else if self.rest().starts_with(['\'', '"']) {
            Step::Field(self.quoted()?)
        } else {
            let end = self.rest().find([']', ',']).ok_or("a bracket is not closed")?;
            let step = places(self.rest().get(..end).unwrap_or_default())?;
            self.at += end;
            step
        })
    }

    fn filter(&mut self, depth: usize) -> Parsed<Step> {
        self.skip_spaces();
        let path = self.path(depth + 1)?;
        self.skip_spaces();
        const OPERATORS: [(&str, Comparison); 6] = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let Some((_, comparison)) = OPERATORS.into_iter().find(|(token, _)| self.eat(token)) else {
            return Ok(Step::Filter { path, test: None });
        };
        self.skip_spaces();
        let wanted = self.literal()?;
        self.skip_spaces();
        Ok(Step::Filter { path, test: Some((comparison, wanted)) })
    }

    fn literal(&mut self) -> Parsed<Value> {
        if self.rest().starts_with(['\'', '"']) {
            return self.quoted().map(Value::String);
        }
        let end = self.rest().find([')', ' ']).ok_or("a filter is not closed")?;
        let value = self
            .rest()
            .get(..end)
            .and_then(|text| serde_json::from_str(text).ok())
            .ok_or("a value is neither quoted nor a number")?;
        self.at += end;
        Ok(value)
    }

    fn quoted(&mut self) -> Parsed<String> {
        let quote = if self.eat("'") {
            '\''
        } else if self.eat("\"") {
            '"'
        } else {
            return Err("a quote is missing");
        };
        let mut out = String::new();
        let mut escaped = false;
        let mut length = 0;
        for c in self.rest().chars() {
            length += c.len_utf8();
            if escaped {
                out.push(c);
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == quote {
                self.at += length;
                return Ok(out);
            } else {
                out.push(c);
            }
        }
        Err("a quote is not closed")
    }
}

/// What stands for places in a list: one of them, or a slice with up to three numbers, any of which may be missing.
fn places(text: &str) -> Parsed<Step> {
    let numbers: Vec<Option<i64>> = text.split(':').map(number).collect::<Parsed<_>>()?;
    match numbers.as_slice() {
        // Nothing at all is the first item.
        [index] => Ok(Step::Index(index.unwrap_or(0))),
        [from, to] => Ok(Step::Slice { from: *from, to: *to, step: None }),
        [from, to, step] => Ok(Step::Slice { from: *from, to: *to, step: *step }),
        _ => Err("a slice has too many numbers"),
    }
}

fn number(text: &str) -> Parsed<Option<i64>> {
    match text.trim() {
        "" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| "an index is not a number"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds() {
        let pod = json!({"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "n": 3}, {"type": "Old", "status": "False"}]}});
        let table = [
            (".metadata.name", json!(["a"])),
            ("metadata.name", json!(["a"])),
            ("{.metadata.name}", json!(["a"])),
            ("$.metadata.name", json!(["a"])),
            (r".metadata.labels.app\.kubernetes\.io/name", json!(["x"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["x"])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Ready')].status", json!(["True"])),
            (".status.conditions[?(@.type != 'Ready')].status", json!(["False"])),
            (".status.conditions[?(@.n>=3)].type", json!(["Ready"])),
            (".status.conditions[?(@.n)].type", json!(["Ready"])),
            (".status.conditions[*].type", json!(["Ready", "Old"])),
            (".status.conditions[-1].type", json!(["Old"])),
            (".status.conditions[1].type", json!(["Old"])),
            (".status.conditions[7].type", json!([])),
            (".status.conditions[].type", json!(["Ready"])),
            (".status.conditions[-1:].type", json!(["Old"])),
            (".status.conditions[:1].type", json!(["Ready"])),
            (".status.conditions[0:2].type", json!(["Ready", "Old"])),
            (".status.conditions[::2].type", json!(["Ready"])),
            (".status.conditions[0:7].type", json!([])),
            (".status.conditions[1:0].type", json!([])),
            (".status.conditions[::0].type", json!([])),
            (".status.nothing[-1:].type", json!([])),
            (".status.conditions[1, 0].type", json!(["Old", "Ready"])),
            (".status.conditions[0]['type','n']", json!(["Ready", 3])),
            ("..type", json!(["Ready", "Old"])),
            (".status.nothing.here", json!([])),
        ];
        for (path, expected) in table {
            let found: Vec<_> = JsonPath::parse(path).expect(path).find(&pod).into_iter().cloned().collect();
            assert_eq!(Value::Array(found), expected, "{path}");
        }
    }

    #[test]
    fn finds_no_more_than_can_be_told() {
        let deep = (0..60).fold(json!({}), |inner, _| json!({"a": inner}));
        let path = JsonPath::parse(&"..a".repeat(20)).expect("a path");
        assert!(path.find(&deep).len() <= MAX_FOUND);
    }

    #[test]
    fn refuses() {
        for path in [
            ".a[",
            ".a[x]",
            ".a[1:x]",
            ".a[1:2:3:4]",
            ".a[1,",
            ".a['b]",
            ".a[?(@.b==)]",
            ".a[?(@.b=='c']",
            ".a b",
            "..",
            ".a]",
        ] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
