//! Merge patches: JSON merge patch (RFC 7386) and Kubernetes' strategic merge patch.
//!
//! A strategic merge patch is a merge patch that also merges lists: the schema says for which lists
//! (`x-kubernetes-patch-strategy: merge`) and by which key items are the same
//! (`x-kubernetes-patch-merge-key`). Directives in the patch say more:
//!
//! | directive | meaning |
//! | --- | --- |
//! | `$patch: replace` in a map | the map replaces the original |
//! | `$patch: delete` in a map | the map (or, in a list, the item with this key) goes |
//! | `$patch: replace` in a list's item | the rest of the list replaces the original list |
//! | `$retainKeys: [..]` | keys of the original that are not named go |
//! | `$deleteFromPrimitiveList/f: [..]` | these values leave the list `f` |
//! | `$setElementOrder/f: [..]` | the order of the list `f` afterwards |
//!
//! <https://github.com/kubernetes/community/blob/main/contributors/devel/sig-api-machinery/strategic-merge-patch.md>

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::schema::{PatchRule, Schema};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Patches nest no deeper than objects may.
const MAX_DEPTH: usize = 128;

/// Why a patch cannot be applied. The client gets a 400 `BadRequest`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// A directive has not its form.
    #[error("{0}")]
    Malformed(String),
    /// `$retainKeys` does not name a key of the patch. The client gets a 422.
    #[error("patch content doesn't match retainKeys list")]
    RetainKeys,
    /// An item of a merged list lacks the key that identifies it.
    #[error("map: {item} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// The item.
        item: String,
        /// The key.
        key: String,
    },
    /// A list that should be ordered has an item that the order does not name.
    #[error("The order in patch list:\n{list}\n doesn't match $setElementOrder list:\n{order}\n")]
    Order {
        /// The patch's list.
        list: String,
        /// The order.
        order: String,
    },
    /// The patch is nested too deeply.
    #[error("the patch is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
}

type Done<T> = Result<T, PatchError>;
type Object = Map<String, Value>;

/// Applies a strategic merge patch to an object; `schema` is that of its kind.
///
/// # Errors
/// When a directive is malformed or an item lacks its merge key.
pub fn apply(original: Value, patch: Value, schema: &Schema) -> Result<Value, PatchError> {
    match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => merge_map(original, patch, schema, 0).map(Value::Object),
        (_, patch) => Ok(drop_directives(patch).unwrap_or(Value::Null)),
    }
}

fn merge_map(mut original: Object, mut patch: Object, schema: &Schema, depth: usize) -> Done<Object> {
    if depth > MAX_DEPTH {
        return Err(PatchError::TooDeep);
    }
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(how)) => match how.as_str() {
            "replace" => return Ok(drop_directives_of_map(patch)),
            "delete" => return Ok(Map::new()),
            "merge" => {}
            other => return Err(PatchError::Malformed(format!("unknown patch type found in map: {other}"))),
        },
        Some(other) => return Err(PatchError::Malformed(format!("unknown patch type found in map: {other}"))),
    }
    if let Some(kept) = patch.remove(RETAIN_KEYS) {
        retain_keys(&mut original, &patch, &kept)?;
    }
    let (orders, deletions) = take_list_directives(&mut patch)?;
    for (field, values) in deletions {
        if let Some(Value::Array(list)) = original.get_mut(&field) {
            let gone = Places::of(&values, None);
            list.retain(|item| gone.place(item).is_none());
        }
    }
    for (field, order) in orders {
        let rule = rule_of(schema, &field);
        order_list(&mut original, patch.remove(&field), &field, &order, rule, schema, depth)?;
    }
    for (field, value) in patch {
        if value.is_null() {
            original.remove(&field);
            continue;
        }
        let rule = rule_of(schema, &field);
        let merged = match (original.remove(&field), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                Some(Value::Object(merge_map(old, new, child(schema, &field), depth + 1)?))
            }
            (Some(Value::Array(old)), Value::Array(new)) if rule.is_some_and(|r| r.merge) => {
                Some(Value::Array(merge_list(old, new, child(schema, &field), rule, depth + 1)?))
            }
            (_, new) => drop_directives(new),
        };
        if let Some(merged) = merged {
            original.insert(field, merged);
        }
    }
    Ok(original)
}

fn child<'a>(schema: &'a Schema, field: &str) -> &'a Schema {
    schema.child(field).unwrap_or(Schema::anything())
}

fn rule_of<'a>(schema: &'a Schema, field: &str) -> Option<&'a PatchRule> {
    schema.child(field).map(|child| &child.patch)
}

fn retain_keys(original: &mut Object, patch: &Object, kept: &Value) -> Done<()> {
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let kept = kept.as_array().ok_or_else(malformed)?;
    let names: BTreeSet<&str> = kept.iter().map(|name| name.as_str().ok_or_else(malformed)).collect::<Done<_>>()?;
    let named = |key: &String| names.contains(&key.as_str());
    if patch.iter().any(|(key, value)| !value.is_null() && !key.starts_with('$') && !named(key)) {
        return Err(PatchError::RetainKeys);
    }
    original.retain(|key, _| names.contains(&key.as_str()));
    Ok(())
}

type ListDirectives = BTreeMap<String, Vec<Value>>;

/// Takes `$setElementOrder/…` and `$deleteFromPrimitiveList/…` out of a patch.
fn take_list_directives(patch: &mut Object) -> Done<(ListDirectives, ListDirectives)> {
    let (mut orders, mut deletions) = (BTreeMap::new(), BTreeMap::new());
    let keys: Vec<String> =
        patch.keys().filter(|key| key.starts_with(SET_ORDER) || key.starts_with(DELETE_FROM)).cloned().collect();
    for key in keys {
        let Some(Value::Array(list)) = patch.remove(&key) else {
            return Err(PatchError::Malformed(format!("{key} must be a list")));
        };
        if let Some(field) = key.strip_prefix(SET_ORDER) {
            orders.insert(field.to_owned(), list);
        } else if let Some(field) = key.strip_prefix(DELETE_FROM) {
            deletions.insert(field.to_owned(), list);
        }
    }
    Ok((orders, deletions))
}

/// Merges a list and gives it the order that the patch asks for.
fn order_list(
    original: &mut Object,
    patch: Option<Value>,
    field: &str,
    order: &[Value],
    rule: Option<&PatchRule>,
    schema: &Schema,
    depth: usize,
) -> Done<()> {
    let key = rule.and_then(|r| r.key.as_deref());
    if let Some(Value::Array(list)) = &patch {
        let places = Places::of(order, key);
        let unordered = list.iter().filter(|item| !is_deletion(item)).any(|item| places.place(item).is_none());
        if unordered {
            return Err(PatchError::Order {
                list: Value::from(list.clone()).to_string(),
                order: Value::from(order.to_vec()).to_string(),
            });
        }
    }
    let old = match original.remove(field) {
        Some(Value::Array(list)) => Some(list),
        _ => None,
    };
    let server_order = old.clone().unwrap_or_default();
    let merged = match (old, patch) {
        (_, Some(Value::Null)) | (None, None) => return Ok(()),
        (Some(old), Some(Value::Array(new))) if rule.is_some_and(|r| r.merge) => {
            merge_list(old, new, child(schema, field), rule, depth + 1)?
        }
        (Some(old), None) => old,
        (_, Some(new)) => match drop_directives(new) {
            Some(Value::Array(list)) => list,
            Some(other) => {
                original.insert(field.to_owned(), other);
                return Ok(());
            }
            None => return Ok(()),
        },
    };
    original.insert(field.to_owned(), Value::Array(in_order(merged, order, &server_order, key)));
    Ok(())
}

fn is_deletion(item: &Value) -> bool {
    item.get(PATCH).is_some()
}

/// Where the items of a list are, by what tells them apart: the key for objects, else the value. A list may be as long as
/// a request, so that nothing looks through it for each item of another.
struct Places<'k> {
    key: Option<&'k str>,
    places: BTreeMap<String, usize>,
}

impl<'k> Places<'k> {
    fn of(list: &[Value], key: Option<&'k str>) -> Places<'k> {
        let mut all = Places { key, places: BTreeMap::new() };
        for (place, item) in list.iter().enumerate() {
            all.add(item, place);
        }
        all
    }

    /// None for an object that lacks the key, which is the same as no other.
    fn identity(&self, item: &Value) -> Option<String> {
        match self.key {
            Some(key) => item.get(key).map(Value::to_string),
            None => Some(item.to_string()),
        }
    }

    /// Of items that are the same one, the first counts.
    fn add(&mut self, item: &Value, place: usize) {
        if let Some(identity) = self.identity(item) {
            self.places.entry(identity).or_insert(place);
        }
    }

    fn place(&self, item: &Value) -> Option<usize> {
        self.places.get(&self.identity(item)?).copied()
    }
}

fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    schema: &Schema,
    rule: Option<&PatchRule>,
    depth: usize,
) -> Done<Vec<Value>> {
    let key = rule.and_then(|r| r.key.as_deref());
    let Some(key) = key else {
        // A list of primitives is a set.
        let (mut merged, mut places) = (Vec::new(), Places::of(&[], None));
        for value in original.iter().chain(&patch) {
            if places.place(value).is_none() {
                places.add(value, merged.len());
                merged.push(value.clone());
            }
        }
        return Ok(in_order(merged, &patch, &original, None));
    };
    let items_schema = schema.resolve().items.as_deref().unwrap_or(Schema::anything());
    let server_order = original.clone();
    let (mut merged, patch) = take_item_directives(original, patch, key)?;
    let mut places = Places::of(&merged, Some(key));
    for item in &patch {
        let Value::Object(new) = item else {
            return Err(PatchError::Malformed(format!(
                "expected a map in a list that is merged by {key}, found {item}"
            )));
        };
        if !new.contains_key(key) {
            return Err(PatchError::NoMergeKey { item: item.to_string(), key: key.to_owned() });
        }
        match places.place(item).and_then(|place| merged.get_mut(place)) {
            Some(old) => {
                let Value::Object(map) = old.take() else { continue };
                *old = Value::Object(merge_map(map, new.clone(), items_schema, depth + 1)?);
            }
            None => {
                places.add(item, merged.len());
                merged.extend(drop_directives(item.clone()));
            }
        }
    }
    Ok(in_order(merged, &patch, &server_order, Some(key)))
}

/// Carries out `$patch` in items: deletions leave the original, a replacement empties it. What is
/// left of the patch is to be merged.
fn take_item_directives(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Done<(Vec<Value>, Vec<Value>)> {
    let mut left = Vec::with_capacity(patch.len());
    let mut gone = Places::of(&[], Some(key));
    let mut replace = false;
    for mut item in patch {
        let directive = item.as_object_mut().and_then(|map| map.remove(PATCH));
        match directive.as_ref().map(Value::as_str) {
            None => left.push(item),
            Some(Some("delete")) => {
                if item.get(key).is_none() {
                    return Err(PatchError::NoMergeKey { item: item.to_string(), key: key.to_owned() });
                }
                gone.add(&item, 0);
            }
            Some(Some("replace")) => replace = true,
            Some(Some("merge")) => {
                return Err(PatchError::Malformed("merging lists cannot yet be specified in the patch".to_owned()));
            }
            Some(_) => {
                return Err(PatchError::Malformed(format!(
                    "unknown patch type found in a list: {}",
                    directive.unwrap_or_default()
                )));
            }
        }
    }
    if replace {
        original.clear();
    }
    original.retain(|old| gone.place(old).is_none());
    Ok((original, left))
}

/// Orders a merged list: items that the patch names as it has them, the others as the server had
/// them, and where the two do not compare, the patch's first.
fn in_order(merged: Vec<Value>, patch_order: &[Value], server_order: &[Value], key: Option<&str>) -> Vec<Value> {
    let (patch, server) = (Places::of(patch_order, key), Places::of(server_order, key));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for item in merged {
        let at_server = server.place(&item);
        match patch.place(&item) {
            Some(place) => ours.push((place, at_server, item)),
            None => theirs.push((at_server, item)),
        }
    }
    ours.sort_by_key(|(place, ..)| *place);
    theirs.sort_by_key(|(at_server, _)| *at_server);
    let mut out = Vec::with_capacity(ours.len() + theirs.len());
    let (mut ours, mut theirs) = (ours.into_iter().peekable(), theirs.into_iter().peekable());
    loop {
        let server_first = match (ours.peek(), theirs.peek()) {
            (Some((_, Some(our), _)), Some((Some(their), _))) => their < our,
            (Some(_), _) => false,
            (None, Some(_)) => true,
            (None, None) => return out,
        };
        out.extend(if server_first { theirs.next().map(|(_, item)| item) } else { ours.next().map(|(.., item)| item) });
    }
}

/// A value that is new, without the directives that only merging has use for, and without nulls in
/// maps. None when a directive deletes it.
fn drop_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) => {
            if map.get(PATCH).and_then(Value::as_str) == Some("delete") {
                return None;
            }
            Value::Object(drop_directives_of_map(map))
        }
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|item| !(item.get(PATCH).is_some() && item.as_object().is_some_and(|map| map.len() == 1)))
                .filter_map(drop_directives)
                .collect(),
        ),
        other => other,
    })
}

fn drop_directives_of_map(map: Object) -> Object {
    map.into_iter()
        .filter(|(key, value)| {
            !(value.is_null()
                || key == PATCH
                || key == RETAIN_KEYS
                || key.starts_with(SET_ORDER)
                || key.starts_with(DELETE_FROM))
        })
        .filter_map(|(key, value)| Some((key, drop_directives(value)?)))
        .collect()
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests;
