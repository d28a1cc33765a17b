//! Whole numbers that are written with a point or an exponent.
//!
//! Go's decoder takes none for an integer: what is `1.0` in a JSON body of a built-in kind is of the wrong type. Where upstream reads
//! a value without a type first, it is a number like any other, and is written as Go writes one, which is without a point: in YAML,
//! in custom resources, in strategic patches (`sigs.k8s.io/json`, `sigs.k8s.io/yaml`, `k8s.io/apimachinery/pkg/runtime/converter.go`).

use serde_json::Value;

/// Beyond what no `i64` goes.
const MOST: f64 = 9_223_372_036_854_775_808.0;

/// Writes whole numbers as such, however they were written, at any depth.
pub fn whole_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < MOST);
            if let Some(whole) = whole {
                #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and within the bounds")]
                let whole = whole as i64;
                *value = whole.into();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_lose_their_point() {
        for (written, want) in [
            (r#"{"a":[1.0,-2.0,1e3]}"#, r#"{"a":[1,-2,1000]}"#),
            ("[0.5,-0.0,1e18,1e300]", "[0.5,0,1000000000000000000,1e300]"),
            (r#"["1.0",null,true,9223372036854775807]"#, r#"["1.0",null,true,9223372036854775807]"#),
        ] {
            let mut value: Value = serde_json::from_str(written).expect("JSON");
            whole_numbers(&mut value);
            let want: Value = serde_json::from_str(want).expect("JSON");
            assert_eq!(value, want, "{written}");
        }
    }
}
