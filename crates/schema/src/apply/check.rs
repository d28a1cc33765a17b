//! Whether an applied object fits its schema so that its fields can be owned: every field is
//! declared, every item of a list can be told apart.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::set;
use super::view::{Shape, field, shape};
use crate::decode::shorten;
use crate::schema::{Format, Schema, Type};

/// The faults, each with its path in front. No more than a few.
pub(super) fn faults(object: &Map<String, Value>, schema: &Schema) -> Vec<String> {
    let mut walk = Walk { faults: Vec::new(), path: String::new() };
    walk.fields(object, schema.resolve());
    walk.faults
}

const MAX_FAULTS: usize = 100;

struct Walk {
    faults: Vec<String>,
    path: String,
}

impl Walk {
    fn fault(&mut self, text: &str) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(format!("{}: {text}", self.path));
        }
    }

    fn at(&mut self, element: &str, run: impl FnOnce(&mut Walk)) {
        let length = self.path.len();
        self.path.push_str(&set::display(element));
        shorten(&mut self.path);
        run(self);
        self.path.truncate(length);
    }

    fn fields(&mut self, map: &Map<String, Value>, node: &Schema) {
        for (name, value) in map {
            self.at(&set::field(name), |walk| match field(node, name) {
                Some(place) => walk.value(value, place),
                None => walk.fault("field not declared in schema"),
            });
        }
    }

    fn value(&mut self, value: &Value, place: &Schema) {
        let node = place.resolve();
        if value.is_null() || node.int_or_string || node.format == Format::Quantity {
            return;
        }
        match (node.type_, value) {
            (Type::Object, Value::Object(_))
            | (Type::Array, Value::Array(_))
            | (Type::Any, _)
            | (Type::String, Value::String(_))
            | (Type::Boolean, Value::Bool(_))
            | (Type::Integer | Type::Number, Value::Number(_)) => {}
            (Type::Object, other) => return self.fault(&format!("expected map, got {other}")),
            (Type::Array, other) => return self.fault(&format!("expected list, got {other}")),
            (Type::String, other) => return self.fault(&format!("expected string, got {other}")),
            (Type::Boolean, other) => return self.fault(&format!("expected boolean, got {other}")),
            (Type::Integer | Type::Number, other) => {
                return self.fault(&format!("expected numeric (int or float), got {other}"));
            }
        }
        match (value, shape(place, value)) {
            // What is owned as a whole is still made of declared fields.
            (Value::Object(map), _) => self.fields(map, node),
            (Value::Array(list), Shape::Items(rule)) => {
                let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
                for (index, item) in list.iter().enumerate() {
                    match rule.element(item) {
                        Err(why) => self.fault(&format!("element {index}: {why}")),
                        Ok(element) => {
                            self.at(&element, |walk| walk.value(item, rule.schema));
                            if !seen.insert(element.clone()) && twice.insert(element.clone()) {
                                self.fault(&format!("duplicate entries for key {}", set::display(&element)));
                            }
                        }
                    }
                }
            }
            (Value::Array(list), _) => {
                let Some(items) = &node.items else { return };
                for (index, item) in list.iter().enumerate() {
                    self.at(&format!("i:{index}"), |walk| walk.value(item, items));
                }
            }
            _ => {}
        }
    }
}
