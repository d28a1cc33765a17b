//! `metadata.managedFields`: who owns what, decoded as far as needed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::set::Set;
use super::text;

/// What made somebody a manager of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer<'a> {
    /// The manager's name.
    pub manager: &'a str,
    /// The `apiVersion` that the request speaks.
    pub api_version: &'a str,
    /// The subresource that it goes to; empty for the object itself.
    pub subresource: &'a str,
    /// The time, as RFC 3339 with whole seconds.
    pub now: &'a str,
}

/// One manager's fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    /// Empty when it is not known.
    pub time: String,
    pub fields: Fields,
}

/// A set, decoded when it is first needed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fields {
    /// As it is stored.
    Text(Box<str>),
    Set(Set),
}

impl Fields {
    pub(super) fn set_mut(&mut self) -> &mut Set {
        if let Fields::Text(text) = self {
            *self = Fields::Set(decoded(text));
        }
        match self {
            Fields::Set(set) => set,
            // It was made a set above.
            Fields::Text(_) => unreachable!(),
        }
    }

    pub(super) fn to_set(&self) -> Set {
        match self {
            Fields::Text(text) => decoded(text),
            Fields::Set(set) => set.clone(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Fields::Text(text) => &**text == "{}",
            Fields::Set(set) => set.is_empty(),
        }
    }

    /// Whether a set has a member in common with this one.
    pub(super) fn meet(&self, set: &Set) -> bool {
        match self {
            Fields::Text(text) => {
                text::meets(text, set).unwrap_or_else(|text::Odd| !set.intersection(&decoded(text)).is_empty())
            }
            Fields::Set(own) => !set.intersection(own).is_empty(),
        }
    }

    /// Adds a set.
    fn add(&mut self, set: Set) {
        if let Fields::Text(text) = self {
            if text::holds(text, &set) == Ok(true) {
                return;
            }
            if let Ok(both) = text::add(text, &set) {
                *self = Fields::Text(both.into());
                return;
            }
        }
        self.set_mut().add(set);
    }
}

/// What is stored, whoever wrote it.
fn decoded(text: &str) -> Set {
    text::read(text).or_else(|text::Odd| serde_json::from_str(text).map(Set::trusted)).unwrap_or_default()
}

/// An entry as it is stored.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Stored<'t> {
    #[serde(borrow)]
    manager: Cow<'t, str>,
    #[serde(borrow)]
    operation: Cow<'t, str>,
    #[serde(borrow)]
    api_version: Cow<'t, str>,
    #[serde(borrow)]
    subresource: Cow<'t, str>,
    #[serde(borrow)]
    time: Cow<'t, str>,
    #[serde(borrow, rename = "fieldsV1")]
    fields_v1: Option<&'t RawValue>,
}

/// The managers of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Managed {
    pub(super) entries: Vec<Entry>,
}

impl Managed {
    /// Reads what a client sent. None when it has not the form.
    #[must_use]
    pub fn parse(json: Value) -> Option<Managed> {
        let Value::Array(list) = json else { return None };
        let entries = list.into_iter().map(|entry| Entry::read(entry, &|json| Set::parse(json).map(Fields::Set)));
        Some(Managed { entries: entries.collect::<Option<_>>()? })
    }

    /// Takes what is stored, which [`Self::into_text`] wrote.
    #[must_use]
    pub fn stored(text: &str) -> Managed {
        let list: Vec<Stored<'_>> = serde_json::from_str(text).unwrap_or_default();
        Managed { entries: list.into_iter().map(Entry::of_stored).collect() }
    }

    /// Whether nobody is known to own anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As `metadata.managedFields`, in the form of a JSON tree.
    #[must_use]
    pub fn into_json(self) -> Option<Value> {
        serde_json::from_str(&self.into_text()?).ok()
    }

    /// As `metadata.managedFields`: appliers first, then by time and name. None when nobody owns
    /// anything.
    #[must_use]
    pub fn into_text(mut self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.sort_by(|a, b| {
            (a.operation, &a.time, &a.manager, &a.api_version, &a.subresource).cmp(&(
                b.operation,
                &b.time,
                &b.manager,
                &b.api_version,
                &b.subresource,
            ))
        });
        let mut out = String::with_capacity(2048);
        for (place, entry) in self.entries.iter().enumerate() {
            out.push(if place == 0 { '[' } else { ',' });
            entry.write(&mut out);
        }
        out.push(']');
        Some(out)
    }

    /// Where the writer's own entry is. Appliers are the same in every version.
    pub(super) fn find(&self, who: &Writer<'_>, operation: Operation) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.operation == operation
                && entry.manager == who.manager
                && entry.subresource == who.subresource
                && (operation == Operation::Apply || entry.api_version == who.api_version)
        })
    }

    /// Adds to what the writer owns by updates.
    pub(super) fn give(&mut self, who: &Writer<'_>, set: Set) {
        match self.find(who, Operation::Update) {
            Some(at) => {
                let entry = &mut self.entries[at];
                entry.fields.add(set);
                who.now.clone_into(&mut entry.time);
            }
            None => self.entries.push(Entry::of(who, Operation::Update, set)),
        }
    }
}

impl Entry {
    pub(super) fn of(who: &Writer<'_>, operation: Operation, set: Set) -> Entry {
        Entry {
            manager: who.manager.to_owned(),
            operation,
            api_version: who.api_version.to_owned(),
            subresource: who.subresource.to_owned(),
            time: who.now.to_owned(),
            fields: Fields::Set(set),
        }
    }

    fn read(json: Value, fields: &dyn Fn(Value) -> Option<Fields>) -> Option<Entry> {
        let Value::Object(map) = json else { return None };
        let mut entry = Entry {
            manager: String::new(),
            operation: Operation::Update,
            api_version: String::new(),
            subresource: String::new(),
            time: String::new(),
            fields: Fields::Set(Set::default()),
        };
        let (mut has_operation, mut has_type) = (false, false);
        for (key, value) in map {
            match (key.as_str(), value) {
                (_, Value::Null) => {}
                ("manager", Value::String(text)) => entry.manager = text,
                ("operation", Value::String(text)) => {
                    has_operation = true;
                    entry.operation = match text.as_str() {
                        APPLY => Operation::Apply,
                        UPDATE => Operation::Update,
                        _ => return None,
                    };
                }
                ("apiVersion", Value::String(text)) => entry.api_version = text,
                ("subresource", Value::String(text)) => entry.subresource = text,
                ("time", Value::String(text)) => entry.time = text,
                ("fieldsType", Value::String(text)) => has_type = text == "FieldsV1",
                ("fieldsV1", json @ Value::Object(_)) => entry.fields = fields(json)?,
                _ => return None,
            }
        }
        (has_operation && has_type).then_some(entry)
    }

    fn of_stored(stored: Stored<'_>) -> Entry {
        Entry {
            manager: stored.manager.into_owned(),
            operation: if stored.operation == APPLY { Operation::Apply } else { Operation::Update },
            api_version: stored.api_version.into_owned(),
            subresource: stored.subresource.into_owned(),
            time: stored.time.into_owned(),
            fields: Fields::Text(stored.fields_v1.map_or("{}", RawValue::get).into()),
        }
    }

    /// Fields in the order of the alphabet, as everywhere in what is stored.
    fn write(&self, out: &mut String) {
        let text = |name: &str, value: &str, out: &mut String| {
            if !value.is_empty() {
                out.push_str(name);
                text::string(value, out);
            }
        };
        out.push('{');
        if !self.api_version.is_empty() {
            text("\"apiVersion\":", &self.api_version, out);
            out.push(',');
        }
        out.push_str("\"fieldsType\":\"FieldsV1\",\"fieldsV1\":");
        match &self.fields {
            Fields::Text(text) => out.push_str(text),
            Fields::Set(set) => text::write(set, out),
        }
        text(",\"manager\":", &self.manager, out);
        let operation = match self.operation {
            Operation::Apply => APPLY,
            Operation::Update => UPDATE,
        };
        text(",\"operation\":", operation, out);
        text(",\"subresource\":", &self.subresource, out);
        text(",\"time\":", &self.time, out);
        out.push('}');
    }

    /// How a conflict names the manager.
    pub(super) fn display(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}
