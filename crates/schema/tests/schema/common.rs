//! Objects made from schemas.

use carrack_schema::schema::{Additional, Format, Schema, Type};
use serde_json::{Map, Value, json};

/// Makes an object that conforms to a schema. `seed` decides all of it.
pub fn make(schema: &Schema, seed: &mut u64, depth: usize) -> Value {
    let mut draw = |below: u64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % below
    };
    let node = schema.resolve();
    if node.int_or_string {
        return if draw(2) == 0 { json!(draw(100)) } else { json!("25%") };
    }
    match (node.type_, &node.format) {
        (_, Format::Quantity) => json!(["1", "500m", "1Gi", "-2"][draw(4) as usize]),
        (_, Format::DateTime) => json!("2026-01-02T03:04:05Z"),
        (_, Format::Byte) => json!("eA=="),
        (Type::String, _) => {
            json!(["", "a", "b", "Always", "ClientIP", "LoadBalancer", "RollingUpdate", "x.y/z"][draw(8) as usize])
        }
        (Type::Integer, _) => json!(draw(3)),
        (Type::Number, _) => json!(0.5),
        (Type::Boolean, _) => json!(draw(2) == 0),
        (Type::Any, _) => match node.rare.as_ref().map(|rare| &*rare.one_of) {
            None | Some([]) => json!({"any": "thing"}),
            // A schema or a boolean, say: what is made has to be of one of them.
            Some(alternatives) if depth > 0 => {
                let chosen = &alternatives[draw(alternatives.len() as u64) as usize];
                make(chosen, seed, depth - 1)
            }
            Some(_) => Value::Null,
        },
        (Type::Array, _) => {
            let count = if depth == 0 { 0 } else { draw(3) };
            let items = node.items.as_deref().unwrap_or(Schema::anything());
            (0..count).map(|_| make(items, seed, depth - 1)).collect()
        }
        (Type::Object, _) if depth == 0 => json!({}),
        (Type::Object, _) => {
            let always = |name: &str| matches!(name, "spec" | "template" | "metadata");
            let chosen: Vec<_> = node.properties.iter().filter(|(name, _)| always(name) || draw(3) == 0).collect();
            let mut map: Map<_, _> = chosen
                .into_iter()
                .map(|(name, property)| (name.to_string(), make(property, seed, depth - 1)))
                .collect();
            if let Additional::Of(values) = &node.additional {
                map.insert("key".to_owned(), make(values, seed, depth - 1));
            }
            Value::Object(map)
        }
    }
}
