//! What differs between two objects, as sets of fields.
//!
//! Equal parts are not looked at twice and need no schema, so that the cost is that of what has
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::{Set, field};
use super::view::{Items, Shape, field_or_any, shape};
use crate::schema::Schema;

/// What differs.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What is new or has another value.
    pub changed: Set,
    /// What is there no more.
    pub removed: Set,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    fn put(&mut self, element: String, below: Changes) {
        if below.is_empty() {
            return;
        }
        self.removed.put(element.clone(), below.removed);
        self.changed.put(element, below.changed);
    }

    fn modified() -> Changes {
        Changes { changed: Set::leaf(), removed: Set::default() }
    }
}

/// Compares two objects; `node` is the resolved schema of both.
pub(super) fn fields(old: &Map<String, Value>, new: &Map<String, Value>, node: &Schema) -> Changes {
    let mut changes = Changes::default();
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            before => changes.put(field(name), values(before, Some(value), field_or_any(node, name))),
        }
    }
    for (name, value) in old.iter().filter(|(name, _)| !new.contains_key(*name)) {
        changes.removed.put(field(name), whole(value, field_or_any(node, name)));
    }
    changes
}

fn values(old: Option<&Value>, new: Option<&Value>, place: &Schema) -> Changes {
    match (old, new) {
        (None, None) => Changes::default(),
        (None, Some(new)) => Changes { changed: whole(new, place), removed: Set::default() },
        (Some(old), None) => Changes { changed: Set::default(), removed: whole(old, place) },
        (Some(old), Some(new)) if old == new => Changes::default(),
        // Null is as good as an empty one of what stands against it.
        (Some(Value::Null), Some(new)) if !new.is_null() => match shape(place, new) {
            Shape::Leaf => Changes::modified(),
            _ => Changes { changed: inside(new, place), removed: Set::default() },
        },
        (Some(old), Some(Value::Null)) => match shape(place, old) {
            Shape::Leaf => Changes::modified(),
            _ => Changes { changed: Set::default(), removed: inside(old, place) },
        },
        (Some(Value::Object(old)), Some(Value::Object(new_map))) => match shape(place, new.unwrap_or(&Value::Null)) {
            Shape::Fields(node) => fields(old, new_map, node),
            _ => Changes::modified(),
        },
        (Some(Value::Array(old)), Some(Value::Array(new_list))) => match shape(place, new.unwrap_or(&Value::Null)) {
            Shape::Items(rule) => items(old, new_list, rule),
            _ => Changes::modified(),
        },
        // One kind of value became another.
        (Some(old), Some(_)) => Changes { changed: Set::leaf(), removed: inside(old, place) },
    }
}

fn items(old: &[Value], new: &[Value], rule: Items<'_>) -> Changes {
    let (Some(old_items), Some(new_items)) = (rule.list(old), rule.list(new)) else {
        return Changes::modified();
    };
    let group = |items: Vec<(String, _)>| {
        let mut groups: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for (element, item) in items {
            groups.entry(element).or_default().push(item);
        }
        groups
    };
    let (old, new) = (group(old_items), group(new_items));
    let mut changes = Changes::default();
    let elements: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for element in elements {
        let none = Vec::new();
        let (before, after) = (old.get(element).unwrap_or(&none), new.get(element).unwrap_or(&none));
        let below = match (&before[..], &after[..]) {
            ([], [one]) => values(None, Some(one), rule.schema),
            ([one], []) => values(Some(one), None, rule.schema),
            ([before], [after]) => values(Some(before), Some(after), rule.schema),
            // Items that are there twice are owned as one.
            (before, after) if before == after => Changes::default(),
            (_, []) => Changes { changed: Set::default(), removed: Set::leaf() },
            _ => Changes::modified(),
        };
        changes.put(element.clone(), below);
    }
    changes
}

/// Everything at and below a place, each container included.
fn whole(value: &Value, place: &Schema) -> Set {
    let mut set = inside(value, place);
    set.member = true;
    set
}

/// Everything below a place.
fn inside(value: &Value, place: &Schema) -> Set {
    let mut set = Set::default();
    match (value, shape(place, value)) {
        (Value::Object(map), Shape::Fields(node)) => {
            for (name, value) in map {
                set.put(field(name), whole(value, field_or_any(node, name)));
            }
        }
        (Value::Array(list), Shape::Items(rule)) => {
            for (element, item) in rule.list(list).unwrap_or_default() {
                set.add(Set { member: false, children: BTreeMap::from([(element, whole(item, rule.schema))]) });
            }
        }
        _ => {}
    }
    set
}
