//! A resource quantity as it stands in KubeVirt's specs: a string such as `128Mi`, or a plain number.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount of something in Kubernetes' notation (`128Mi`, `500m`, `2`), as it was written.
///
/// The text is kept, since it goes back to where it came from; [`Quantity::amount`] computes with it. Manifests also
/// hold bare numbers (`cpu: 2`); they are read as their decimal text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantity(pub String);

impl Quantity {
    /// The amount; nothing when the text is no quantity.
    #[must_use]
    pub fn amount(&self) -> Option<crate::quantity::Quantity> {
        crate::quantity::Quantity::parse(&self.0).ok()
    }

    /// The amount in whole units (bytes, CPUs), rounded up; nothing when the text is no quantity.
    #[must_use]
    pub fn units(&self) -> Option<i64> {
        self.amount().map(crate::quantity::Quantity::units)
    }

    /// The amount in thousandths of a unit, rounded up; nothing when the text is no quantity.
    #[must_use]
    pub fn millis(&self) -> Option<i64> {
        self.amount().map(crate::quantity::Quantity::millis)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.0)
    }
}

/// None at all is written as upstream's zero value is: `0`.
impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0.is_empty() { "0" } else { &self.0 })
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity: a string or a number")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Quantity, E> {
                Ok(Quantity(v.to_owned()))
            }
            fn visit_string<E: de::Error>(self, v: String) -> Result<Quantity, E> {
                Ok(Quantity(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Quantity, E> {
                Ok(Quantity(v.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn strings_and_numbers_are_quantities() {
        let check = |json: &str, units: Option<i64>| {
            let read: Option<Quantity> = serde_json::from_str(json).ok();
            assert_eq!(read.and_then(|quantity| quantity.units()), units, "{json}");
        };
        check("\"128Mi\"", Some(128 * 1024 * 1024));
        check("2", Some(2));
        check("1.5", Some(2));
        check("\"1500m\"", Some(2));
        check("\"much\"", None);
        check("{}", None);
    }
}
