//! Values under sets of fields: which fields an applied object has, merging it, taking fields away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::set::{self, Set};
use super::view::{self, Items, Shape, field_or_any, shape};
use crate::schema::Schema;

/// The fields that applying an object claims: its leaves, the items of its lists, the keys of its
/// maps, and what it has that is null or an empty map. `node` is the object's resolved schema.
pub(super) fn claimed(object: &Map<String, Value>, node: &Schema) -> Set {
    let mut claims = Set::default();
    for (name, value) in object {
        let mut below = claimed_at(value, field_or_any(node, name));
        below.member |=
            value.is_null() || value.as_object().is_some_and(Map::is_empty) || node.property(name).is_none();
        claims.put(set::field(name), below);
    }
    claims
}

fn claimed_at(value: &Value, place: &Schema) -> Set {
    match (value, shape(place, value)) {
        (Value::Object(map), Shape::Fields(node)) => claimed(map, node),
        (Value::Array(list), Shape::Items(rule)) => match rule.list(list) {
            Some(items) => {
                let mut claims = Set::default();
                for (element, item) in items {
                    let mut below = claimed_at(item, rule.schema);
                    below.member = true;
                    claims.add(Set { member: false, children: BTreeMap::from([(element, below)]) });
                }
                claims
            }
            None => Set::leaf(),
        },
        _ => Set::leaf(),
    }
}

/// Merges an applied object into the live one. What only the live one has stays.
pub(super) fn merge(live: &mut Map<String, Value>, applied: &Map<String, Value>, node: &Schema) {
    for (name, value) in applied {
        let merged = match live.remove(name) {
            Some(old) => merge_values(old, value, field_or_any(node, name)),
            None => value.clone(),
        };
        live.insert(name.clone(), merged);
    }
}

fn merge_values(live: Value, applied: &Value, place: &Schema) -> Value {
    match (live, applied, shape(place, applied)) {
        (Value::Object(mut live), Value::Object(applied), Shape::Fields(node)) => {
            merge(&mut live, applied, node);
            Value::Object(live)
        }
        (Value::Array(live), Value::Array(list), Shape::Items(rule)) => {
            merge_lists(live, list, rule).map_or_else(|| applied.clone(), Value::Array)
        }
        _ => applied.clone(),
    }
}

/// Merges lists by item. Items of both come in the order of the applied list; those that only the
/// live list has stay behind the item that they stood behind.
fn merge_lists(live: Vec<Value>, applied: &[Value], rule: Items<'_>) -> Option<Vec<Value>> {
    let applied = rule.list(applied)?;
    let elements: Vec<String> = live.iter().map(|item| rule.element(item).ok()).collect::<Option<_>>()?;
    let wanted: BTreeSet<&String> = applied.iter().map(|(element, _)| element).collect();
    let known: BTreeSet<&String> = elements.iter().collect();
    // Items of both, in the order of the applied list: the next of them that is to come.
    let mut shared = applied.iter().map(|(element, _)| element).filter(|element| known.contains(element)).peekable();
    let mut values: BTreeMap<&String, VecDeque<Value>> = BTreeMap::new();
    for (element, item) in elements.iter().zip(live) {
        values.entry(element).or_default().push_back(item);
    }
    let mut take_live = |element: &String| -> Option<Value> { values.get_mut(element)?.pop_front() };
    let (mut out, mut done) = (Vec::new(), BTreeSet::new());
    let (mut left, mut right) = (elements.iter().peekable(), applied.iter().peekable());
    loop {
        if let (Some(mine), Some((theirs, _))) = (left.peek(), right.peek())
            && *mine != theirs
            && wanted.contains(*mine)
            && shared.peek().is_some_and(|next| next != mine)
        {
            // An item of both whose turn comes later, or has come.
            left.next();
            continue;
        }
        if let Some(mine) = left.peek() {
            if !wanted.contains(*mine) {
                out.extend(take_live(mine));
                left.next();
                continue;
            }
            if done.contains(*mine) {
                left.next();
                continue;
            }
        }
        let Some((element, item)) = right.next() else {
            if left.next().is_none() {
                return Some(out);
            }
            continue;
        };
        done.insert(element);
        if left.peek() == Some(&element) {
            left.next();
        }
        if shared.peek() == Some(&element) {
            shared.next();
        }
        out.push(match take_live(element) {
            Some(old) => merge_values(old, item, rule.schema),
            None => (*item).clone(),
        });
    }
}

/// What becomes of a field of which nothing is left.
#[derive(Clone, Copy)]
pub(super) enum Emptied<'a> {
    /// It goes as well, unless it is a member of this set.
    Goes(Option<&'a Set>),
    /// It is null, which is still there.
    IsNull,
}

impl Emptied<'_> {
    fn below(self, element: &str) -> Self {
        match self {
            Emptied::Goes(kept) => Emptied::Goes(kept.and_then(|set| set.children.get(element))),
            Emptied::IsNull => self,
        }
    }
}

/// Takes the members of a set, and all below them, out of an object.
pub(super) fn remove(object: &mut Map<String, Value>, gone: &Set, node: &Schema, emptied: Emptied<'_>) {
    for (element, below) in &gone.children {
        let Some(name) = element.strip_prefix("f:") else { continue };
        if below.member {
            object.remove(name);
        } else if let Some(value) = object.get_mut(name)
            && remove_at(value, below, field_or_any(node, name), emptied.below(element))
        {
            match emptied.below(element) {
                Emptied::Goes(Some(kept)) if kept.member => {}
                Emptied::Goes(_) => drop(object.remove(name)),
                Emptied::IsNull => *value = Value::Null,
            }
        }
    }
}

/// Whether nothing is left.
fn remove_at(value: &mut Value, gone: &Set, place: &Schema, emptied: Emptied<'_>) -> bool {
    match shape(place, value) {
        Shape::Fields(node) => {
            let Value::Object(map) = value else { return false };
            let before = map.len();
            remove(map, gone, node, emptied);
            map.is_empty() && before > 0
        }
        Shape::Items(rule) => {
            let Value::Array(list) = value else { return false };
            let before = list.len();
            list.retain_mut(|item| {
                let Ok(element) = rule.element(item) else { return true };
                let Some(below) = gone.children.get(&element) else { return true };
                if below.member {
                    return false;
                }
                // An item keeps the keys that tell it apart, so it is never left empty.
                remove_at(item, below, rule.schema, emptied.below(&element));
                true
            });
            list.is_empty() && before > 0
        }
        Shape::Leaf => false,
    }
}

/// Makes members of all fields that the schema names on the way to members: who owns something
/// below a struct has a share in the struct.
#[must_use]
pub(super) fn with_named(set: &Set, place: &Schema) -> Set {
    let node = place.resolve();
    let mut out = Set { member: set.member, children: BTreeMap::new() };
    for (element, below) in &set.children {
        let (schema, is_named) = match element.strip_prefix("f:") {
            Some(name) => (field_or_any(node, name), node.property(name).is_some()),
            None => (view::items(place).map_or(Schema::anything(), |rule| rule.schema), false),
        };
        let mut below = with_named(below, schema);
        below.member |= is_named;
        out.put(element.clone(), below);
    }
    out
}

/// The items of lists by their elements. There may be as many managers as a request has room for, and lists as long as one: each
/// list is gone through once and not for each manager. A list is known by where it is.
pub(super) type Listed<'v> = BTreeMap<*const Value, BTreeMap<String, &'v Value>>;

/// Folds a set that was made under another schema: what is below a leaf is the leaf.
fn fold<'v>(set: &mut Set, value: &'v Value, place: &Schema, listed: &mut Listed<'v>) {
    match (value, shape(place, value)) {
        (Value::Object(map), Shape::Fields(node)) => fold_root(set, map, node, listed),
        (Value::Array(_), Shape::Items(_)) if set.children.is_empty() => {}
        (Value::Array(list), Shape::Items(rule)) => {
            let by_element = || rule.list(list).unwrap_or_default().into_iter().collect();
            let items = listed.entry(list.as_ptr()).or_insert_with(by_element);
            let found = set.children.iter_mut().filter_map(|(element, below)| Some((below, *items.get(element)?)));
            for (below, item) in found.collect::<Vec<_>>() {
                fold(below, item, rule.schema, listed);
            }
        }
        _ if set.children.is_empty() => {}
        _ => *set = Set::leaf(),
    }
}

/// [`fold`] for a whole object.
pub(super) fn fold_root<'v>(set: &mut Set, object: &'v Map<String, Value>, node: &Schema, listed: &mut Listed<'v>) {
    for (element, below) in &mut set.children {
        let name = element.strip_prefix("f:").unwrap_or_default();
        if let Some(value) = object.get(name) {
            fold(below, value, field_or_any(node, name), listed);
        }
    }
}
