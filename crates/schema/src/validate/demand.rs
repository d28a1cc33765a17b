//! Demands on fields as data: a row is a path and what holds of the values there.
//!
//! A path goes through objects by dots and through the items of lists by `[]`, such as
//! `ports[].containerPort`. Where a part of the path before its end is absent, nothing is demanded:
//! whoever must be there has a row of its own. No text is made unless something is wrong.

use std::collections::BTreeSet;

use carrack_types::quantity::Quantity;
use serde_json::Value;

use super::access::{Errors, Place};
use super::{alike, names, workloads};
use crate::error::FieldError;

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const NOT_POSITIVE: &str = "must be greater than zero";
pub(super) const NOT_AN_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
pub(super) const NOT_A_RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const NOT_A_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
/// Largest user and group id.
const MAX_ID: i64 = i32::MAX as i64;

/// What holds of a value. All but [`Demand::Required`] and its like hold of what is absent.
#[derive(Clone, Copy)]
pub(super) enum Demand {
    /// It is there, and no empty text or collection.
    Required,
    /// The same, with a reason.
    Needed(&'static str),
    /// A text that is one of these.
    OneOf(&'static [&'static str]),
    /// A text of this form, if it is not empty.
    Form(fn(&str) -> names::Problem),
    /// A text of this form, its letters being lower case.
    LowerForm(fn(&str) -> names::Problem),
    /// Texts of a list, each of this form.
    Each(fn(&str) -> names::Problem),
    /// A number from and to, both inclusive.
    Between(i64, i64),
    /// A number that is not less than this one, else the text.
    AtLeast(i64, &'static str),
    /// A number that is not negative.
    NotNegative,
    /// The number of a port, or its name.
    Port,
    /// An IP address.
    Address,
    /// Texts of a list, each a CIDR.
    Ranges,
    /// Permissions of a file.
    Mode,
    /// A path without `..`.
    NoBacksteps,
    /// A path within a directory.
    Relative,
    /// The same, whose first name does not begin with `..`.
    NotReserved,
    /// A path from the root.
    Absolute,
    /// A quantity that is not negative.
    Amount,
    /// A quantity that is more than nothing.
    PositiveAmount,
    /// A user's or a group's id.
    Id,
    /// Labels.
    Labels,
    /// A label selector.
    Selector,
}

/// A path and what is demanded there.
pub(super) type Row = (&'static str, Demand);

/// Holds an object against rows.
pub(super) fn check(object: &Place<'_>, rows: &[Row], errors: &mut Errors) {
    for (path, demand) in rows {
        walk(object.value, &object.path, path, &mut |found, trail| apply(found, trail, *demand, errors));
    }
}

/// Goes where a path leads from a place, and tells of what is there; of nothing where it is the last step that leads nowhere.
pub(super) fn walk(value: &Value, base: &str, path: &str, tell: &mut dyn FnMut(Option<&Value>, &Trail<'_>)) {
    visit(value, path, &mut Trail { base, path, indexes: Vec::new() }, tell);
}

/// Where a walk has come to.
pub(super) struct Trail<'a> {
    base: &'a str,
    path: &'a str,
    indexes: Vec<usize>,
}

impl Trail<'_> {
    pub fn text(&self) -> String {
        let mut text = self.base.to_owned();
        for (at, part) in self.path.split("[]").enumerate() {
            if let Some(index) = at.checked_sub(1).and_then(|before| self.indexes.get(before)) {
                text.push_str(&format!("[{index}]"));
            }
            if at == 0 && !text.is_empty() && !part.is_empty() {
                text.push('.');
            }
            text.push_str(part);
        }
        text
    }
}

fn visit(value: &Value, rest: &str, trail: &mut Trail<'_>, tell: &mut dyn FnMut(Option<&Value>, &Trail<'_>)) {
    let (step, rest) = match rest.split_once('.') {
        None => (rest, None),
        Some((step, rest)) => (step, Some(rest)),
    };
    let (name, in_list) = match step.strip_suffix("[]") {
        None => (step, false),
        Some(name) => (name, true),
    };
    let found = value.get(name).filter(|found| !found.is_null());
    match (found, in_list, rest) {
        (found, false, None) => tell(found, trail),
        (None, ..) => {}
        (Some(found), false, Some(rest)) => visit(found, rest, trail, tell),
        (Some(found), true, rest) => {
            for (index, item) in found.as_array().into_iter().flatten().enumerate() {
                trail.indexes.push(index);
                match rest {
                    None => tell(Some(item), trail),
                    Some(rest) => visit(item, rest, trail, tell),
                }
                trail.indexes.pop();
            }
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn apply(found: Option<&Value>, trail: &Trail<'_>, demand: Demand, errors: &mut Errors) {
    let Some(value) = found else {
        match demand {
            Demand::Required => errors.push(FieldError::required(trail.text(), "")),
            Demand::Needed(why) => errors.push(FieldError::required(trail.text(), why)),
            _ => {}
        }
        return;
    };
    let text = value.as_str().unwrap_or_default();
    let number = value.as_i64();
    let problem: Option<String> = match demand {
        Demand::Required | Demand::Needed(_) => {
            if is_empty(value) {
                apply(None, trail, demand, errors);
            }
            return;
        }
        Demand::OneOf(allowed) => {
            if !allowed.contains(&text) {
                errors.push(FieldError::not_supported(trail.text(), text, allowed));
            }
            return;
        }
        Demand::Each(form) => {
            each(value, trail, form, errors);
            return;
        }
        Demand::Ranges => {
            each(value, trail, |text| (!is_range(text.trim())).then(|| NOT_A_RANGE.to_owned()), errors);
            return;
        }
        Demand::Labels => {
            super::metadata::label_map(&Place { value, path: trail.text() }, errors);
            return;
        }
        Demand::Selector => {
            workloads::selector(&Place { value, path: trail.text() }, errors);
            return;
        }
        Demand::Relative | Demand::NotReserved => {
            relative_path(text, demand, trail, errors);
            return;
        }
        _ if text.is_empty() && number.is_none() => return,
        Demand::Form(form) => form(text),
        Demand::LowerForm(form) => form(&text.to_lowercase()),
        Demand::Between(from, to) => number
            .filter(|number| !(from..=to).contains(number))
            .map(|_| format!("must be between {from} and {to}, inclusive")),
        Demand::AtLeast(least, why) => number.filter(|number| *number < least).map(|_| why.to_owned()),
        Demand::NotNegative => number.filter(|number| *number < 0).map(|_| NOT_NEGATIVE.to_owned()),
        Demand::Port => number.map_or_else(|| names::port_name(text), names::port_number),
        Demand::Address => text.parse::<std::net::IpAddr>().is_err().then(|| NOT_AN_ADDRESS.to_owned()),
        Demand::Mode => number.filter(|mode| !(0..=0o777).contains(mode)).map(|_| NOT_A_MODE.to_owned()),
        Demand::NoBacksteps => has_backsteps(text).then(|| "must not contain '..'".to_owned()),
        Demand::Absolute => (!text.starts_with('/')).then(|| "must be an absolute path".to_owned()),
        Demand::Amount => quantity(value).filter(|amount| amount.is_negative()).map(|_| NOT_NEGATIVE.to_owned()),
        Demand::PositiveAmount => {
            quantity(value).filter(|amount| amount.is_negative() || amount.is_zero()).map(|_| NOT_POSITIVE.to_owned())
        }
        Demand::Id => {
            number.filter(|id| !(0..=MAX_ID).contains(id)).map(|_| format!("must be between 0 and {MAX_ID}, inclusive"))
        }
    };
    errors.extend(problem.map(|problem| FieldError::invalid(trail.text(), value.clone(), problem)));
}

fn each(list: &Value, trail: &Trail<'_>, form: impl Fn(&str) -> names::Problem, errors: &mut Errors) {
    for (index, text) in list.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate() {
        if let Some(problem) = form(text) {
            errors.push(FieldError::invalid(format!("{}[{index}]", trail.text()), text, problem));
        }
    }
}

pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

fn relative_path(path: &str, demand: Demand, trail: &Trail<'_>, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(trail.text(), path, "must be a relative path"));
    }
    if has_backsteps(path) {
        errors.push(FieldError::invalid(trail.text(), path, "must not contain '..'"));
    } else if matches!(demand, Demand::NotReserved) && path.starts_with("..") {
        errors.push(FieldError::invalid(trail.text(), path, "must not start with '..'"));
    }
}

/// Whether a text is an address and a length of prefix.
pub(super) fn is_range(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(bits)) = (address.parse::<std::net::IpAddr>(), bits.parse::<u8>()) else { return false };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

/// A quantity, as text or as a number.
pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// What of a field may change in an update.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// Nothing: `Invalid value: …: field is immutable`.
    Never,
    /// Nothing, with `Forbidden` and a reason.
    Forbidden(&'static str),
    /// It may be set once: afterwards `Invalid value`, with this reason.
    Once(&'static str),
    /// It may be set once: afterwards `Forbidden`, with this reason.
    ForbiddenOnce(&'static str),
}

/// A path and what may change there.
pub(super) type Fixed = (&'static str, Change);

/// Holds a changed object against what it was. Absent and empty are the same, here and below.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, rows: &[Fixed], errors: &mut Errors) {
    let present = |value: &Value| !value.is_null() && !is_empty(value);
    for (path, change) in rows {
        let steps: Vec<&str> = path.split('.').collect();
        let (now, before) = (new.at(&steps), old.at(&steps));
        let name = steps.last().copied().unwrap_or_default();
        let same = alike::same(name, now.value, before.value) || (!present(now.value) && !present(before.value));
        match change {
            _ if same => {}
            Change::Once(_) | Change::ForbiddenOnce(_) if !present(before.value) => {}
            Change::Never => errors.push(FieldError::invalid(now.path, now.value.clone(), "field is immutable")),
            Change::Once(why) => errors.push(FieldError::invalid(now.path, now.value.clone(), *why)),
            Change::Forbidden(why) | Change::ForbiddenOnce(why) => errors.push(FieldError::forbidden(now.path, *why)),
        }
    }
}

/// Errors about items of a list that say the same as an earlier one.
pub(super) fn unique<'a, T: Ord>(
    list: impl Iterator<Item = Place<'a>>,
    identity: impl Fn(&Place<'a>) -> Option<T>,
    report: impl Fn(&Place<'a>) -> FieldError,
    errors: &mut Errors,
) {
    let mut seen = BTreeSet::new();
    for item in list {
        if identity(&item).is_some_and(|identity| !seen.insert(identity)) {
            errors.push(report(&item));
        }
    }
}
