//! The runtime form of a schema: a structural schema, or the OpenAPI subset of built-in types.
//!
//! One node is small, since a control plane keeps thousands of them; what few schemas have sits
//! behind one pointer ([`Rare`]). Built-in types refer to each other by name
//! ([`Schema::resolve`]); custom ones are trees. Descriptions are not kept: documents are made from
//! the raw form ([`crate::openapi`]).

use std::sync::{LazyLock, OnceLock};

use serde_json::Value;

/// Schemas of custom resources may nest so deep.
pub(crate) const MAX_DEPTH: usize = 128;

/// A schema node.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The type; [`Type::Any`] where it is not restricted.
    pub type_: Type,
    /// The format.
    pub format: Format,
    /// Name of the built-in type that this node stands for; the other fields of such a node are
    /// only what the place of use adds (patch and list facts, a default).
    pub reference: Option<Box<str>>,
    /// That type, once it has been looked for.
    pub(crate) resolved: Resolved,
    /// Properties, sorted by name.
    pub properties: Box<[(Box<str>, Schema)]>,
    /// Schema of the items of an array.
    pub items: Option<Box<Schema>>,
    /// What other properties may be.
    pub additional: Additional,
    /// Names of required properties.
    pub required: Box<[Box<str>]>,
    /// Whether `null` is a value of its own.
    pub nullable: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// How lists merge in server-side apply, and what must be unique in them.
    pub list: ListType,
    /// How lists and structs merge in strategic merge patches.
    pub patch: PatchRule,
    /// What few schemas have.
    pub rare: Option<Box<Rare>>,
}

/// What a reference stands for. It follows from the reference, so that it makes no difference between two schemas.
#[derive(Clone, Default)]
pub(crate) struct Resolved(OnceLock<&'static Schema>);

impl PartialEq for Resolved {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The schema may refer to itself.
        f.write_str(if self.0.get().is_some() { "found" } else { "not looked for" })
    }
}

/// The type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Type {
    /// Not restricted.
    #[default]
    Any,
    /// `object`.
    Object,
    /// `array`.
    Array,
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
}

/// The format of a value, as far as it changes what is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// None.
    #[default]
    None,
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// `byte`: base64.
    Byte,
    /// `date-time`: RFC 3339.
    DateTime,
    /// A resource quantity (a built-in type, not a format of OpenAPI).
    Quantity,
    /// Any other.
    Other(Box<str>),
}

/// What properties besides the named ones may be.
#[derive(Clone, Debug, Default)]
pub enum Additional {
    /// The schema does not say: they are unknown.
    #[default]
    Unspecified,
    /// `additionalProperties: true`.
    Anything,
    /// Values of a map.
    Of(Box<Schema>),
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// Not given, which means atomic.
    #[default]
    Unspecified,
    /// `atomic`.
    Atomic,
    /// `set`.
    Set,
    /// `map`, with its keys.
    Map(Box<[Box<str>]>),
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchRule {
    /// `merge`: lists merge item by item.
    pub merge: bool,
    /// `retainKeys`: a patch may say which keys stay.
    pub retain_keys: bool,
    /// The key that identifies items of a list of objects.
    pub key: Option<Box<str>>,
}

/// Parts of a schema that few schemas have.
#[derive(Clone, Debug, Default)]
pub struct Rare {
    /// The default.
    pub default: Option<Value>,
    /// The allowed values.
    pub enumeration: Box<[Value]>,
    /// Inclusive lower bound, unless `exclusive_minimum`.
    pub minimum: Option<f64>,
    /// Inclusive upper bound, unless `exclusive_maximum`.
    pub maximum: Option<f64>,
    /// Whether the lower bound is exclusive.
    pub exclusive_minimum: bool,
    /// Whether the upper bound is exclusive.
    pub exclusive_maximum: bool,
    /// What the number must be a multiple of.
    pub multiple_of: Option<f64>,
    /// Fewest characters.
    pub min_length: Option<u64>,
    /// Most characters.
    pub max_length: Option<u64>,
    /// Pattern of a string.
    pub pattern: Option<Pattern>,
    /// Fewest items.
    pub min_items: Option<u64>,
    /// Most items.
    pub max_items: Option<u64>,
    /// Whether items must differ.
    pub unique_items: bool,
    /// Fewest properties.
    pub min_properties: Option<u64>,
    /// Most properties.
    pub max_properties: Option<u64>,
    /// All of these must hold.
    pub all_of: Box<[Schema]>,
    /// One of these at least must hold.
    pub any_of: Box<[Schema]>,
    /// Exactly one of these must hold.
    pub one_of: Box<[Schema]>,
    /// This must not hold.
    pub not: Option<Box<Schema>>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    /// `x-kubernetes-validations`, as they are written.
    pub validations: Option<Value>,
}

/// A pattern, compiled once.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// As it is written.
    pub text: Box<str>,
    /// Compiled; none when the dialect has what the regex engine has not (upstream would refuse it too).
    pub regex: Option<Box<regex::Regex>>,
}

/// Why a value is not a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct SchemaError {
    /// Where in the schema, such as `properties[spec].items`.
    pub path: String,
    /// What is wrong.
    pub problem: String,
}

impl Schema {
    /// The schema that accepts anything and keeps all of it.
    #[must_use]
    pub fn anything() -> &'static Schema {
        static ANYTHING: LazyLock<Schema> = LazyLock::new(|| Schema {
            preserve_unknown: true,
            additional: Additional::Anything,
            nullable: true,
            ..Schema::default()
        });
        &ANYTHING
    }

    /// The node that describes the value: the built-in type where this node refers to one.
    #[must_use]
    pub fn resolve(&self) -> &Schema {
        match &self.reference {
            None => self,
            Some(name) => self.resolved.0.get_or_init(|| crate::builtin::schema(name).unwrap_or(Schema::anything())),
        }
    }

    /// A property by its name. The node must be resolved.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Schema> {
        let index = self.properties.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        self.properties.get(index).map(|(_, schema)| schema)
    }

    /// The schema of a key of an object: a property, or a value of the map. Resolves this node.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Schema> {
        let node = self.resolve();
        node.property(name).or(match &node.additional {
            Additional::Of(values) => Some(values),
            Additional::Anything => Some(Schema::anything()),
            Additional::Unspecified => None,
        })
    }

    /// The schema at a chain of property names (array items are stepped into).
    #[must_use]
    pub fn at(&self, fields: &[&str]) -> Option<&Schema> {
        let mut node = self.resolve();
        for field in fields {
            if let Some(items) = &node.items {
                node = items.resolve();
            }
            node = node.child(field)?.resolve();
        }
        Some(node)
    }

    /// The default of this place, if there is one.
    #[must_use]
    pub fn default_value(&self) -> Option<&Value> {
        self.rare.as_ref().and_then(|rare| rare.default.as_ref())
    }

    /// Parses a schema: `openAPIV3Schema` of a definition, or a built-in type of the data files.
    ///
    /// # Errors
    /// When the value has not the form of a schema. Whether a schema is structural is judged by
    /// [`crate::crd`].
    pub fn parse(value: &Value) -> Result<Schema, SchemaError> {
        parse_node(value, &mut String::new(), 0)
    }
}

fn problem(path: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError { path: path.trim_start_matches('.').to_owned(), problem: problem.into() }
}

fn with_path<T>(
    path: &mut String,
    step: &str,
    run: impl FnOnce(&mut String) -> Result<T, SchemaError>,
) -> Result<T, SchemaError> {
    let length = path.len();
    path.push('.');
    path.push_str(step);
    let result = run(path);
    path.truncate(length);
    result
}

fn parse_node(value: &Value, path: &mut String, depth: usize) -> Result<Schema, SchemaError> {
    if depth > MAX_DEPTH {
        return Err(problem(path, format!("nested more than {MAX_DEPTH} levels deep")));
    }
    let map = value.as_object().ok_or_else(|| problem(path, "must be an object"))?;
    let mut schema = Schema::default();
    let mut rare = Rare::default();
    let mut has_rare = false;
    let (mut patch, mut list_keys) = (PatchRule::default(), Vec::new());
    for (key, value) in map {
        let text = || value.as_str().ok_or_else(|| problem(path, format!("{key} must be a string")));
        let flag = || value.as_bool().ok_or_else(|| problem(path, format!("{key} must be a boolean")));
        let number = || value.as_f64().ok_or_else(|| problem(path, format!("{key} must be a number")));
        let count = || value.as_u64().ok_or_else(|| problem(path, format!("{key} must be a non-negative integer")));
        has_rare |= !matches!(
            key.as_str(),
            "type"
                | "format"
                | "$ref"
                | "properties"
                | "items"
                | "additionalProperties"
                | "required"
                | "nullable"
                | "description"
                | "title"
        ) && !key.starts_with("x-kubernetes-");
        match key.as_str() {
            "type" => {
                schema.type_ = parse_type(text()?).ok_or_else(|| problem(path, format!("unknown type {value}")))?
            }
            "format" => schema.format = parse_format(text()?),
            "$ref" => schema.reference = Some(text()?.rsplit('/').next().unwrap_or_default().into()),
            "properties" => {
                let map = value.as_object().ok_or_else(|| problem(path, "properties must be an object"))?;
                let mut properties = Vec::with_capacity(map.len());
                for (name, child) in map {
                    let child =
                        with_path(path, &format!("properties[{name}]"), |path| parse_node(child, path, depth + 1))?;
                    properties.push((Box::from(name.as_str()), child));
                }
                properties.sort_by(|(a, _): &(Box<str>, Schema), (b, _)| a.cmp(b));
                schema.properties = properties.into();
            }
            "items" => {
                schema.items = Some(Box::new(with_path(path, "items", |path| parse_node(value, path, depth + 1))?))
            }
            "additionalProperties" => {
                schema.additional = match value {
                    Value::Bool(false) => Additional::Unspecified,
                    Value::Bool(true) => Additional::Anything,
                    _ => Additional::Of(Box::new(with_path(path, "additionalProperties", |path| {
                        parse_node(value, path, depth + 1)
                    })?)),
                }
            }
            "required" => {
                schema.required =
                    parse_texts(value).ok_or_else(|| problem(path, "required must be a list of strings"))?
            }
            "nullable" => schema.nullable = flag()?,
            "x-kubernetes-int-or-string" => schema.int_or_string = flag()?,
            "x-kubernetes-preserve-unknown-fields" => schema.preserve_unknown = flag()?,
            "x-kubernetes-embedded-resource" => schema.embedded = flag()?,
            "x-kubernetes-list-type" => {
                schema.list = match text()? {
                    "atomic" => ListType::Atomic,
                    "set" => ListType::Set,
                    "map" => ListType::Map(Box::default()),
                    other => return Err(problem(path, format!("unknown list type {other:?}"))),
                }
            }
            "x-kubernetes-list-map-keys" => {
                list_keys = parse_texts(value)
                    .ok_or_else(|| problem(path, "list map keys must be a list of strings"))?
                    .into_vec();
            }
            "x-kubernetes-map-type" => {
                rare.atomic_map = text()? == "atomic";
                has_rare |= rare.atomic_map;
            }
            "x-kubernetes-validations" => {
                rare.validations = Some(value.clone());
                has_rare = true;
            }
            "x-kubernetes-patch-merge-key" => patch.key = Some(text()?.into()),
            "x-kubernetes-patch-strategy" => {
                for strategy in text()?.split(',') {
                    patch.merge |= strategy == "merge";
                    patch.retain_keys |= strategy == "retainKeys";
                }
            }
            "default" => rare.default = Some(value.clone()),
            "enum" => {
                rare.enumeration = value.as_array().ok_or_else(|| problem(path, "enum must be a list"))?.clone().into()
            }
            "minimum" => rare.minimum = Some(number()?),
            "maximum" => rare.maximum = Some(number()?),
            "exclusiveMinimum" => rare.exclusive_minimum = flag()?,
            "exclusiveMaximum" => rare.exclusive_maximum = flag()?,
            "multipleOf" => rare.multiple_of = Some(number()?),
            "minLength" => rare.min_length = Some(count()?),
            "maxLength" => rare.max_length = Some(count()?),
            "minItems" => rare.min_items = Some(count()?),
            "maxItems" => rare.max_items = Some(count()?),
            "minProperties" => rare.min_properties = Some(count()?),
            "maxProperties" => rare.max_properties = Some(count()?),
            "uniqueItems" => rare.unique_items = flag()?,
            "pattern" => {
                let text = text()?;
                let regex = carrack_cel::pattern(text);
                rare.pattern = Some(Pattern { text: text.into(), regex: regex.ok().map(Box::new) });
            }
            "allOf" => rare.all_of = parse_list(value, path, key, depth)?,
            "anyOf" => rare.any_of = parse_list(value, path, key, depth)?,
            "oneOf" => rare.one_of = parse_list(value, path, key, depth)?,
            "not" => rare.not = Some(Box::new(with_path(path, "not", |path| parse_node(value, path, depth + 1))?)),
            // Descriptions, titles, examples and further extensions do not change what is accepted.
            _ => {}
        }
    }
    if let ListType::Map(keys) = &mut schema.list {
        *keys = list_keys.into();
    }
    // `allOf` of one reference is how a reference with a description of its own is written.
    if let [only] = &*rare.all_of
        && let (None, Some(reference)) = (&schema.reference, &only.reference)
    {
        schema.reference = Some(reference.clone());
        rare.all_of = Box::default();
        has_rare = map.keys().any(|key| matches!(key.as_str(), "default" | "x-kubernetes-map-type"));
    }
    schema.patch = patch;
    schema.rare = has_rare.then(|| Box::new(rare));
    Ok(schema)
}

fn parse_list(value: &Value, path: &mut String, key: &str, depth: usize) -> Result<Box<[Schema]>, SchemaError> {
    let list = value.as_array().ok_or_else(|| problem(path, format!("{key} must be a list")))?;
    list.iter()
        .enumerate()
        .map(|(index, item)| with_path(path, &format!("{key}[{index}]"), |path| parse_node(item, path, depth + 1)))
        .collect()
}

fn parse_texts(value: &Value) -> Option<Box<[Box<str>]>> {
    value.as_array()?.iter().map(|item| item.as_str().map(Box::from)).collect()
}

fn parse_type(text: &str) -> Option<Type> {
    Some(match text {
        "" => Type::Any,
        "object" => Type::Object,
        "array" => Type::Array,
        "string" => Type::String,
        "integer" => Type::Integer,
        "number" => Type::Number,
        "boolean" => Type::Boolean,
        _ => return None,
    })
}

fn parse_format(text: &str) -> Format {
    match text {
        "" => Format::None,
        "int32" => Format::Int32,
        "int64" => Format::Int64,
        "byte" => Format::Byte,
        "date-time" => Format::DateTime,
        "quantity" => Format::Quantity,
        other => Format::Other(other.into()),
    }
}
