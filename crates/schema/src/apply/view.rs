//! The typed view of values: what of them is owned as a whole, and what in parts.
//!
//! | schema | view |
//! | --- | --- |
//! | scalar, or nothing known of a list | leaf |
//! | `x-kubernetes-list-type: map` and its keys, or a merge key of strategic patches | items by key |
//! | `x-kubernetes-list-type: set`, or a strategic merge of primitives | items by value |
//! | other lists, `x-kubernetes-map-type: atomic` | leaf |
//! | objects and maps | by field |
//!
//! What the schema does not describe (`x-kubernetes-preserve-unknown-fields`, `RawExtension`) is
//! viewed by what it is: objects by field, all else as leaves.

use serde_json::{Map, Value};

use super::set;
use crate::builtin::{self, OBJECT_META};
use crate::schema::{Additional, ListType, Schema};

/// How a value is owned.
pub(super) enum Shape<'s> {
    /// As a whole.
    Leaf,
    /// By field; the schema is resolved.
    Fields(&'s Schema),
    /// By item.
    Items(Items<'s>),
}

/// How the items of a list are told apart.
#[derive(Clone, Copy)]
pub(super) struct Items<'s> {
    /// By these fields, or by their value if there are none.
    pub keys: &'s [Box<str>],
    /// The schema of an item.
    pub schema: &'s Schema,
}

/// The view of a value at a place.
pub(super) fn shape<'s>(place: &'s Schema, value: &Value) -> Shape<'s> {
    match value {
        Value::Object(_) => {
            let node = place.resolve();
            if is_atomic_map(place) || is_atomic_map(node) { Shape::Leaf } else { Shape::Fields(node) }
        }
        Value::Array(_) => items(place).map_or(Shape::Leaf, Shape::Items),
        _ => Shape::Leaf,
    }
}

fn is_atomic_map(schema: &Schema) -> bool {
    schema.rare.as_ref().is_some_and(|rare| rare.atomic_map)
}

/// How a list at a place is told apart by items; none when it is atomic.
pub(super) fn items(place: &Schema) -> Option<Items<'_>> {
    let node = place.resolve();
    let schema = node.items.as_deref()?;
    let list = if place.list == ListType::Unspecified { &node.list } else { &place.list };
    let keys: &[Box<str>] = match list {
        ListType::Atomic => return None,
        ListType::Set => &[],
        ListType::Map(keys) => keys,
        ListType::Unspecified => match (place.patch.merge, &place.patch.key) {
            (false, _) => return None,
            (true, Some(key)) => std::slice::from_ref(key),
            (true, None) => &[],
        },
    };
    Some(Items { keys, schema })
}

/// The schema of a field of a resolved node. None when it has no such field.
pub(super) fn field<'s>(node: &'s Schema, name: &str) -> Option<&'s Schema> {
    if let Some(property) = node.property(name) {
        return Some(property);
    }
    match &node.additional {
        Additional::Of(values) => Some(values),
        Additional::Anything => Some(Schema::anything()),
        Additional::Unspecified if node.embedded && matches!(name, "apiVersion" | "kind" | "metadata") => {
            let is_metadata = name == "metadata";
            Some(builtin::schema(OBJECT_META).filter(|_| is_metadata).unwrap_or(Schema::anything()))
        }
        // An object of which no field is described is free.
        Additional::Unspecified if node.preserve_unknown || node.properties.is_empty() => Some(Schema::anything()),
        Additional::Unspecified => None,
    }
}

/// The schema of a field, whatever it is.
pub(super) fn field_or_any<'s>(node: &'s Schema, name: &str) -> &'s Schema {
    field(node, name).unwrap_or(Schema::anything())
}

/// Defaults of keys of built-in types, which the schema data leaves out: (type, key, default).
const KEY_DEFAULTS: [(&str, &str, &str); 3] = [
    ("io.k8s.api.core.v1.ContainerPort", "protocol", "TCP"),
    ("io.k8s.api.core.v1.ServicePort", "protocol", "TCP"),
    ("io.k8s.api.core.v1.LocalObjectReference", "name", ""),
];

impl<'s> Items<'s> {
    /// The path element of an item.
    ///
    /// # Errors
    /// In words, when the item cannot be told apart.
    pub(super) fn element(&self, item: &Value) -> Result<String, String> {
        if self.keys.is_empty() {
            return match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
                scalar => Ok(set::item(scalar.clone())),
            };
        }
        let map = match item {
            Value::Object(map) => map,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let mut keys = Map::new();
        for key in self.keys {
            let value = map.get(&**key).filter(|value| !value.is_null()).cloned().or_else(|| self.default_of(key));
            if let Some(value) = value {
                keys.insert(key.to_string(), value);
            }
        }
        if keys.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields {:?} (and doesn't have default values for any key fields)",
                self.keys
            ));
        }
        Ok(set::key(keys))
    }

    /// What a key is where an item leaves it out.
    fn default_of(&self, key: &str) -> Option<Value> {
        if let Some(value) = self.schema.resolve().property(key).and_then(Schema::default_value) {
            return Some(value.clone());
        }
        let owner = self.schema.reference.as_deref()?;
        KEY_DEFAULTS.iter().find(|(name, field, _)| *name == owner && *field == key).map(|(.., value)| (*value).into())
    }

    /// The items with their elements, in their order. None when one cannot be told apart.
    pub(super) fn list<'v>(&self, list: &'v [Value]) -> Option<Vec<(String, &'v Value)>> {
        list.iter().map(|item| Some((self.element(item).ok()?, item))).collect()
    }
}
