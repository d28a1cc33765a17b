//! Sets of fields, in memory and as `FieldsV1`.
//!
//! A set is a tree. An edge is a path element in its serialised form, so that what is stored needs
//! no further decoding and two elements are the same if their texts are:
//!
//! | element | stands for |
//! | --- | --- |
//! | `f:name` | a field of an object, or a key of a map |
//! | `k:{"name":"x"}` | the item of a list with these keys, sorted and without spaces |
//! | `v:"x"` | the item of a set with this value |
//! | `i:0` | an item by its place (nobody writes it any more, some send it) |
//!
//! A node is a member of the set if it is marked so, whatever is below it: in `FieldsV1` by `.`, or
//! by having no children. <https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/#fieldsv1-v1-meta>

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::decode::shorten;

/// A set of fields below some place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Whether the place itself is a member.
    pub(super) member: bool,
    /// What is below it. No child is empty.
    pub(super) children: BTreeMap<String, Set>,
}

impl Set {
    /// A set of the place itself alone.
    pub(super) fn leaf() -> Set {
        Set { member: true, children: BTreeMap::new() }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    /// Reads `fieldsV1`. None when it has not that form.
    #[must_use]
    pub fn parse(json: Value) -> Option<Set> {
        let mut set = Set::read(json, &canonical)?;
        set.tidy();
        set.member = false;
        Some(set)
    }

    /// Takes `fieldsV1` that was written here, so that its elements are canonical already.
    pub(super) fn trusted(json: Value) -> Set {
        let mut set = Set::read(json, &Some).unwrap_or_default();
        set.member = false;
        set
    }

    fn read(json: Value, element: &dyn Fn(String) -> Option<String>) -> Option<Set> {
        let Value::Object(map) = json else { return None };
        let mut set = Set { member: map.is_empty(), children: BTreeMap::new() };
        for (key, below) in map {
            if key == "." {
                set.member = true;
            } else {
                let below = Set::read(below, element)?;
                set.children.insert(element(key)?, below);
            }
        }
        Some(set)
    }

    /// As `fieldsV1`.
    #[must_use]
    pub fn into_json(self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        map.extend(self.children.into_iter().map(|(element, below)| (element, below.into_json())));
        Value::Object(map)
    }

    /// Drops empty children.
    pub(super) fn tidy(&mut self) {
        self.children.retain(|_, child| {
            child.tidy();
            !child.is_empty()
        });
    }

    /// Puts a child there, if it is not empty.
    pub(super) fn put(&mut self, element: String, child: Set) {
        if !child.is_empty() {
            self.children.insert(element, child);
        }
    }

    /// Adds all of another set.
    pub(super) fn add(&mut self, other: Set) {
        self.member |= other.member;
        for (element, child) in other.children {
            match self.children.get_mut(&element) {
                Some(own) => own.add(child),
                None => {
                    self.children.insert(element, child);
                }
            }
        }
    }

    /// Takes away the members of another set; what is below them stays.
    pub(super) fn subtract(&mut self, other: &Set) {
        self.member &= !other.member;
        for (element, child) in &other.children {
            if let Some(own) = self.children.get_mut(element) {
                own.subtract(child);
                if own.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    /// The members that both have.
    #[must_use]
    pub(super) fn intersection(&self, other: &Set) -> Set {
        let mut common = Set { member: self.member && other.member, children: BTreeMap::new() };
        for (element, child) in &self.children {
            if let Some(theirs) = other.children.get(element) {
                common.put(element.clone(), child.intersection(theirs));
            }
        }
        common
    }

    /// Drops what is at and below a path.
    pub(super) fn drop_below(&mut self, path: &[&str]) {
        match path {
            [] => {}
            [last] => {
                self.children.remove(*last);
            }
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(*first) {
                    child.drop_below(rest);
                    if child.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// The paths of all members, as people read them: `.spec.containers[name="x"].image`.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let (mut paths, mut path) = (Vec::new(), String::new());
        self.collect_paths(&mut path, &mut paths);
        paths
    }

    fn collect_paths(&self, path: &mut String, paths: &mut Vec<String>) {
        if self.member {
            paths.push(path.clone());
        }
        for (element, child) in &self.children {
            let length = path.len();
            path.push_str(&display(element));
            // A long one would be there once for each of all that is below it.
            shorten(path);
            child.collect_paths(path, paths);
            path.truncate(length);
        }
    }
}

/// The element of a field.
pub(super) fn field(name: &str) -> String {
    let mut element = String::with_capacity(name.len() + 2);
    element.push_str("f:");
    element.push_str(name);
    element
}

/// The element of a list's item with these keys.
pub(super) fn key(keys: Map<String, Value>) -> String {
    format!("k:{}", Value::Object(keys.into_iter().map(|(name, value)| (name, plain(value))).collect()))
}

/// The element of a set's item.
pub(super) fn item(value: Value) -> String {
    format!("v:{}", plain(value))
}

/// A number in the form that equal numbers share.
fn plain(value: Value) -> Value {
    match value.as_f64() {
        // Whole numbers up to 2^53 are exact.
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => {
            Value::from(number as i64)
        }
        _ => value,
    }
}

/// An element in its canonical form. None when it is none.
fn canonical(element: String) -> Option<String> {
    let (kind, rest) = element.split_once(':')?;
    match kind {
        "f" => Some(element),
        "i" => rest.parse::<u32>().ok().map(|_| element),
        "v" => serde_json::from_str(rest).ok().map(item),
        "k" => serde_json::from_str(rest).ok().map(key),
        _ => None,
    }
}

/// An element as people read it.
pub(super) fn display(element: &str) -> String {
    let (kind, rest) = element.split_once(':').unwrap_or_default();
    match kind {
        "f" => format!(".{rest}"),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        "v" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms() {
        let json = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {"v:\"x\"": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}},
        });
        let set = Set::parse(json.clone()).expect("a set");
        assert_eq!(
            set.paths(),
            [
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.containers[name=\"a\"]",
                ".spec.containers[name=\"a\"].image",
            ]
        );
        assert_eq!(set.into_json(), json);
    }

    #[test]
    fn long_paths_are_cut() {
        let key = format!("f:{}", "k".repeat(5000));
        let set = Set::parse(json!({key.as_str(): {"f:a": {}, "f:b": {}}})).expect("a set");
        assert!(set.paths().len() == 2 && set.paths().iter().all(|path| path.len() <= 1024));
    }

    #[test]
    fn foreign_forms_become_canonical() {
        for (given, want) in [
            (json!({"k:{\"b\": 80.0, \"a\":1}": {}}), Some(json!({"k:{\"a\":1,\"b\":80}": {}}))),
            (json!({"v: 5": {}}), Some(json!({"v:5": {}}))),
            (json!({"i:3": {"f:x": {}}}), Some(json!({"i:3": {"f:x": {}}}))),
            (json!({}), Some(json!({}))),
            (json!({"x:3": {}}), None),
            (json!({"f:a": 1}), None),
            (json!({"k:x": {}}), None),
            (json!([]), None),
        ] {
            assert_eq!(Set::parse(given.clone()).map(Set::into_json), want, "{given}");
        }
    }
}
