//! Texts: the language's own functions, cel-go's strings library, Kubernetes' regex library.

use std::fmt::Write as _;

use super::{Cx, Found, convert, fail, text, truth};
use crate::budget::{BYTES_PER_UNIT, EvalError};
use crate::pattern;
use crate::value::Value;

/// Units that it costs to compile a pattern, besides one for each byte of it: far more than to use it.
const COMPILING: u64 = 100;

pub(super) fn call(function: &str, args: &[Value], cx: &mut Cx<'_>) -> Found {
    use Value::{Int, List, String as Text};
    const COPY: [&str; 7] =
        ["jsonpatch.escapeKey", "lowerAscii", "reverse", "strings.quote", "substring", "trim", "upperAscii"];
    if let [Text(a), ..] = args
        && COPY.contains(&function)
        && let Err(error) = cx.budget.allocate(a.len())
    {
        return Some(Err(error));
    }
    match (function, args) {
        ("contains", [Text(a), Text(b)]) => truth(a.contains(&**b)),
        ("startsWith", [Text(a), Text(b)]) => truth(a.starts_with(&**b)),
        ("endsWith", [Text(a), Text(b)]) => truth(a.ends_with(&**b)),
        ("matches" | "find" | "findAll", [Text(a), Text(b), rest @ ..]) => Some(regex(function, a, b, rest, cx)),
        ("charAt", [Text(a), Int(at)]) => {
            let found = usize::try_from(*at).ok().filter(|at| *at <= a.chars().count());
            match found {
                Some(at) => text(a.chars().nth(at).map(String::from).unwrap_or_default()),
                None => fail(format!("index out of range: {at}")),
            }
        }
        ("indexOf" | "lastIndexOf", [Text(a), Text(b), rest @ ..]) => {
            let at = match rest {
                [] => None,
                [Int(at)] => match usize::try_from(*at).ok().filter(|at| *at <= a.chars().count()) {
                    Some(at) => Some(at),
                    None => return fail(format!("index out of range: {at}")),
                },
                _ => return None,
            };
            Some(Ok(Int(place_of(a, b, at, function == "lastIndexOf"))))
        }
        ("join", [List(list), rest @ ..]) => {
            let separator = match rest {
                [] => "",
                [Text(separator)] => separator,
                _ => return None,
            };
            let mut out = String::new();
            for (index, item) in list.items.iter().enumerate() {
                let Text(item) = item else { return None };
                if index > 0 {
                    out.push_str(separator);
                }
                out.push_str(item);
                if let Err(error) = cx.budget.allocate(separator.len() + item.len()) {
                    return Some(Err(error));
                }
            }
            text(out)
        }
        ("lowerAscii", [Text(a)]) => text(a.to_ascii_lowercase()),
        ("upperAscii", [Text(a)]) => text(a.to_ascii_uppercase()),
        ("replace", [Text(a), Text(from), Text(to), rest @ ..]) => {
            let limit = match rest {
                [] => usize::MAX,
                [Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => return None,
            };
            let places = a.matches(&**from).count().min(limit);
            let bytes = a.len().saturating_add(places.saturating_mul(to.len()));
            Some(
                cx.budget
                    .spend(bytes as u64 / BYTES_PER_UNIT)
                    .and_then(|()| cx.budget.allocate(bytes))
                    .map(|()| Value::String(a.replacen(&**from, to, limit).into())),
            )
        }
        ("split", [Text(a), Text(separator), rest @ ..]) => {
            let limit = match rest {
                [] => usize::MAX,
                [Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => return None,
            };
            Some(split(a, separator, limit, cx))
        }
        ("substring", [Text(a), Int(from), rest @ ..]) => {
            let length = a.chars().count();
            let to = match rest {
                [] => length,
                [Int(to)] => match usize::try_from(*to).ok().filter(|to| *to <= length) {
                    Some(to) => to,
                    None => return fail(format!("index out of range: {to}")),
                },
                _ => return None,
            };
            match usize::try_from(*from).ok().filter(|from| *from <= length) {
                Some(from) if from <= to => text(a.chars().skip(from).take(to - from).collect::<String>()),
                Some(from) => fail(format!("invalid substring range. start: {from}, end: {to}")),
                None => fail(format!("index out of range: {from}")),
            }
        }
        ("trim", [Text(a)]) => text(a.trim()),
        ("reverse", [Text(a)]) => text(a.chars().rev().collect::<String>()),
        ("strings.quote", [Text(a)]) => text(format!("{a:?}")),
        ("jsonpatch.escapeKey", [Text(a)]) => text(a.replace('~', "~0").replace('/', "~1")),
        ("format", [Text(a), List(list)]) => Some(format(a, &list.items, cx)),
        _ => None,
    }
}

fn regex(function: &str, a: &str, given: &str, rest: &[Value], cx: &mut Cx<'_>) -> Result<Value, EvalError> {
    let made;
    let regex = match cx.regex {
        Some(regex) => regex,
        None => {
            cx.budget.spend(given.len() as u64 + COMPILING)?;
            made = pattern::bounded(given, pattern::MAX_BYTES_OF_VALUE)
                .map_err(|error| EvalError::new(format!("error parsing regexp: {error}")))?;
            &made
        }
    };
    match (function, rest) {
        ("matches", []) => Ok(Value::Bool(regex.is_match(a))),
        ("find", []) => Ok(regex.find(a).map_or("", |found| found.as_str()).into()),
        ("findAll", []) | ("findAll", [Value::Int(_)]) => {
            let limit = match rest {
                [Value::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            let mut items = Vec::new();
            for found in regex.find_iter(a).take(limit) {
                cx.budget.allocate(found.len() + size_of::<Value>())?;
                items.push(found.as_str().into());
            }
            Ok(Value::list(items))
        }
        _ => Err(EvalError::new("no such overload")),
    }
}

/// Where a text begins in another, in characters; -1 when it does not.
fn place_of(a: &str, b: &str, at: Option<usize>, last: bool) -> i64 {
    let byte = |chars: usize| a.char_indices().nth(chars).map_or(a.len(), |(byte, _)| byte);
    let found = match (last, at) {
        (false, at) => {
            let from = at.map_or(0, byte);
            a[from..].find(b).map(|place| place + from)
        }
        (true, None) => a.rfind(b),
        (true, Some(at)) => {
            let end = (byte(at) + b.len()).min(a.len());
            let end = (end..=a.len()).find(|end| a.is_char_boundary(*end)).unwrap_or(a.len());
            a[..end].rfind(b)
        }
    };
    found.map_or(-1, |byte| i64::try_from(a[..byte].chars().count()).unwrap_or(-1))
}

fn split(a: &str, separator: &str, limit: usize, cx: &mut Cx<'_>) -> Result<Value, EvalError> {
    let mut items = Vec::new();
    if limit == 0 {
        return Ok(Value::list(items));
    }
    cx.budget.allocate(a.len().saturating_mul(if separator.is_empty() { size_of::<Value>() * 2 } else { 2 }))?;
    if separator.is_empty() {
        let mut rest = a;
        while let Some(c) = rest.chars().next() {
            let width = if items.len() + 1 == limit { rest.len() } else { c.len_utf8() };
            items.push(rest[..width].into());
            rest = &rest[width..];
        }
    } else {
        for part in a.splitn(limit, separator) {
            cx.budget.allocate(size_of::<Value>())?;
            items.push(part.into());
        }
    }
    Ok(Value::list(items))
}

/// `'%s'.format([x])`
fn format(template: &str, args: &[Value], cx: &mut Cx<'_>) -> Result<Value, EvalError> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut chars = template.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut precision = None;
        let mut verb = chars.next();
        if verb == Some('.') {
            let mut digits = String::new();
            verb = chars.next();
            while let Some(digit) = verb.filter(char::is_ascii_digit) {
                digits.push(digit);
                verb = chars.next();
            }
            precision = digits.parse::<usize>().ok();
        }
        let Some(verb) = verb else { return Err(EvalError::new("unexpected end of string")) };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let value = args.next().ok_or_else(|| EvalError::new("index out of range in format arguments"))?;
        let before = out.len();
        // A value that is in others many times over is shown no further than it is paid for.
        let most = before.saturating_add(cx.budget.too_many_bytes());
        clause(&mut out, verb, precision.unwrap_or(6).min(100), value, most)?;
        cx.budget.spend((out.len() - before) as u64 / BYTES_PER_UNIT)?;
        cx.budget.allocate(out.len() - before)?;
    }
    cx.budget.allocate(template.len())?;
    Ok(Value::String(out.into()))
}

/// Writes a value, and stops once the text has `most` bytes.
fn clause(out: &mut String, verb: char, precision: usize, value: &Value, most: usize) -> Result<(), EvalError> {
    let bad = || EvalError::new(format!("error during formatting: %{verb} does not take {}", value.type_name()));
    let number = || match value {
        Value::Double(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        _ => None,
    };
    let written = match (verb, value) {
        ('s', _) => {
            render(out, value, 0, most);
            Ok(())
        }
        ('d', Value::Int(number)) => write!(out, "{number}"),
        ('d', Value::Uint(number)) => write!(out, "{number}"),
        ('f', _) => write!(out, "{:.precision$}", number().ok_or_else(bad)?),
        ('e', _) => {
            let text = format!("{:.precision$e}", number().ok_or_else(bad)?);
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let negative = exponent.starts_with('-');
            write!(out, "{digits}e{}{:0>2}", if negative { '-' } else { '+' }, exponent.trim_start_matches('-'))
        }
        ('b', Value::Int(number)) => write!(out, "{}{:b}", if *number < 0 { "-" } else { "" }, number.unsigned_abs()),
        ('b', Value::Uint(number)) => write!(out, "{number:b}"),
        ('b', Value::Bool(value)) => write!(out, "{}", u8::from(*value)),
        ('o', Value::Int(number)) => write!(out, "{}{:o}", if *number < 0 { "-" } else { "" }, number.unsigned_abs()),
        ('o', Value::Uint(number)) => write!(out, "{number:o}"),
        ('x' | 'X', _) => {
            let text = match value {
                Value::Int(number) => format!("{}{:x}", if *number < 0 { "-" } else { "" }, number.unsigned_abs()),
                Value::Uint(number) => format!("{number:x}"),
                Value::String(text) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
                Value::Bytes(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
                _ => return Err(bad()),
            };
            out.push_str(&if verb == 'X' { text.to_uppercase() } else { text });
            Ok(())
        }
        _ => return Err(bad()),
    };
    written.map_err(|_| bad())
}

/// A value as `%s` shows it, until the text has `most` bytes.
fn render(out: &mut String, value: &Value, depth: usize, most: usize) {
    if out.len() >= most {
        return;
    }
    if depth > 16 {
        out.push('…');
        return;
    }
    match value {
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                render(out, item, depth + 1, most);
                if out.len() >= most {
                    return;
                }
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                render(out, &key.value(), depth + 1, most);
                out.push_str(": ");
                render(out, item, depth + 1, most);
                if out.len() >= most {
                    return;
                }
            }
            out.push('}');
        }
        Value::Bytes(bytes) => out.push_str(&String::from_utf8_lossy(bytes)),
        other => out.push_str(&convert::text(other).unwrap_or_else(|| other.type_name().to_owned())),
    }
}
