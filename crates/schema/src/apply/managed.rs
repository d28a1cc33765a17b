//! `metadata.managedFields`: who owns what, decoded as far as needed.

use serde_json::{Map, Value};

use super::set::Set;

/// What made somebody a manager of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

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
    Json(Value),
    Set(Set),
}

impl Fields {
    pub(super) fn set_mut(&mut self) -> &mut Set {
        if let Fields::Json(json) = self {
            *self = Fields::Set(Set::trusted(std::mem::take(json)));
        }
        match self {
            Fields::Set(set) => set,
            // It was made a set above.
            Fields::Json(_) => unreachable!(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Fields::Json(json) => json.as_object().is_none_or(Map::is_empty),
            Fields::Set(set) => set.is_empty(),
        }
    }

    /// Whether a set has a member in common with this one.
    pub(super) fn meet(&self, set: &Set) -> bool {
        match self {
            Fields::Json(json) => set.meets(json),
            Fields::Set(own) => !set.intersection(own).is_empty(),
        }
    }
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

    /// Takes what is stored, which was written here.
    #[must_use]
    pub fn stored(json: Value) -> Managed {
        let Value::Array(list) = json else { return Managed::default() };
        Managed {
            entries: list
                .into_iter()
                .filter_map(|entry| Entry::read(entry, &|json| Some(Fields::Json(json))))
                .collect(),
        }
    }

    /// Whether nobody is known to own anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As `metadata.managedFields`: appliers first, then by time and name. None when nobody owns
    /// anything.
    #[must_use]
    pub fn into_json(mut self) -> Option<Value> {
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
        Some(self.entries.into_iter().map(Entry::into_json).collect())
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
                entry.fields.set_mut().add(set);
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
                        "Apply" => Operation::Apply,
                        "Update" => Operation::Update,
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

    fn into_json(self) -> Value {
        let mut map = Map::new();
        let mut text = |key: &str, value: String| {
            if !value.is_empty() {
                map.insert(key.to_owned(), Value::String(value));
            }
        };
        text("manager", self.manager);
        text("operation", format!("{:?}", self.operation));
        text("apiVersion", self.api_version);
        text("subresource", self.subresource);
        text("time", self.time);
        text("fieldsType", "FieldsV1".to_owned());
        let fields = match self.fields {
            Fields::Json(json) => json,
            Fields::Set(set) => set.into_json(),
        };
        map.insert("fieldsV1".to_owned(), fields);
        Value::Object(map)
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
