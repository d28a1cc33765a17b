//! From what schemars derives to what a CustomResourceDefinition takes.
//!
//! A structural schema knows no `$ref`, no `null` type, no `oneOf` over types, no formats of unsigned integers, and
//! wants every node typed. schemars inlines all references; the rest is rewritten here.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The structural schema of a type.
pub(crate) fn structural<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    rewrite(&mut schema);
    schema
}

/// Rewrites one node and all below it.
fn rewrite(schema: &mut Value) {
    let Value::Object(node) = schema else {
        // `true`: anything goes.
        *schema = json!({"x-kubernetes-preserve-unknown-fields": true});
        return;
    };
    for key in ["$schema", "title", "$defs", "definitions", "default"] {
        node.remove(key);
    }
    drop_null_type(node);
    unwrap_nullable(node);
    signed_formats(node);
    raise_required(node);
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.values_mut().for_each(rewrite);
        if properties.is_empty() {
            node.remove("properties");
        }
    }
    for key in ["items", "additionalProperties"] {
        match node.get_mut(key) {
            Some(Value::Bool(_)) => {
                node.remove(key);
            }
            Some(below) => rewrite(below),
            None => {}
        }
    }
}

/// Fields marked `x-required` go into their parent's `required`: schemars takes every field that has a serde
/// default for optional.
fn raise_required(node: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = node.get_mut("properties") else { return };
    let marked: Vec<Value> = properties
        .iter_mut()
        .filter_map(|(name, below)| below.as_object_mut()?.remove("x-required").map(|_| json!(name)))
        .collect();
    if !marked.is_empty() {
        node.insert("required".to_owned(), Value::Array(marked));
    }
}

/// `type: [x, null]` becomes `type: x`. As upstream, these fields are not nullable.
fn drop_null_type(node: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = node.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            node.insert("type".to_owned(), only);
        }
    }
}

/// `anyOf: [x, null]` becomes x.
fn unwrap_nullable(node: &mut Map<String, Value>) {
    if node.contains_key("x-kubernetes-int-or-string") {
        return;
    }
    let Some(Value::Array(mut choices)) = node.remove("anyOf") else { return };
    choices.retain(|choice| choice.get("type") != Some(&json!("null")));
    for choice in choices {
        if let Value::Object(choice) = choice {
            for (key, value) in choice {
                node.entry(key).or_insert(value);
            }
        }
    }
    // What came up may be of the same form again.
    drop_null_type(node);
}

/// Unsigned integers get the next larger signed format, which is what the API knows.
fn signed_formats(node: &mut Map<String, Value>) {
    let Some(Value::String(format)) = node.get("format") else { return };
    let signed = match format.as_str() {
        "uint8" | "uint16" | "int8" | "int16" => "int32",
        "uint32" | "uint64" | "uint" | "int" => "int64",
        _ => return,
    };
    node.insert("format".to_owned(), json!(signed));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::structural;
    use crate::kubevirt::vm::VirtualMachineSpec;

    #[test]
    fn derived_schemas_say_what_upstream_says() {
        let spec = structural::<VirtualMachineSpec>();
        let at = |path: &str| spec.pointer(path).cloned().unwrap_or(Value::Null);
        let template = "/properties/template/properties/spec";
        let disk = &format!("{template}/properties/domain/properties/devices/properties/disks/items");
        let memory = &format!("{template}/properties/domain/properties/memory/properties/guest");
        assert_eq!(at("/required"), serde_json::json!(["template"]));
        assert_eq!(at(&format!("{template}/required")), serde_json::json!(["domain"]));
        assert_eq!(at(&format!("{disk}/required")), serde_json::json!(["name"]));
        assert_eq!(at(&format!("{disk}/properties/dedicatedIOThread/type")), "boolean");
        assert_eq!(at(&format!("{memory}/x-kubernetes-int-or-string")), true);
        assert_eq!(at("/properties/template/properties/metadata/nullable"), true);
        assert_eq!(
            at(&format!("{template}/properties/tolerations/items/properties/tolerationSeconds/format")),
            "int64"
        );
    }
}
