//! The v2 document as protobuf: the messages of gnostic's `openapi.v2` that our documents use.
//!
//! Only fields that are ever set are declared; numbers are those of
//! <https://github.com/google/gnostic/blob/main/openapiv2/OpenAPIv2.proto>. A `oneof` is written as
//! optional fields, which are the same on the wire. What has no place in Swagger travels as text in
//! YAML, of which JSON is a part.

use prost::Message;
use serde_json::{Map, Value};

#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, tag = "1")]
    swagger: String,
    #[prost(message, optional, tag = "2")]
    info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<NamedSchemas>,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedPathItem {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct PathItem {
    #[prost(message, optional, tag = "2")]
    get: Option<Operation>,
    #[prost(message, optional, tag = "3")]
    put: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    post: Option<Operation>,
    #[prost(message, optional, tag = "5")]
    delete: Option<Operation>,
    #[prost(message, optional, tag = "6")]
    options: Option<Operation>,
    #[prost(message, optional, tag = "7")]
    head: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    patch: Option<Operation>,
    #[prost(message, repeated, tag = "9")]
    parameters: Vec<ParametersItem>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(string, repeated, tag = "1")]
    tags: Vec<String>,
    #[prost(string, tag = "5")]
    operation_id: String,
    #[prost(string, repeated, tag = "6")]
    produces: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    consumes: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    responses: Option<Responses>,
    #[prost(string, repeated, tag = "10")]
    schemes: Vec<String>,
    #[prost(message, repeated, tag = "13")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    parameter: Option<Parameter>,
}

#[derive(Clone, PartialEq, Message)]
struct Parameter {
    #[prost(message, optional, tag = "1")]
    body_parameter: Option<BodyParameter>,
    #[prost(message, optional, tag = "2")]
    non_body_parameter: Option<NonBodyParameter>,
}

#[derive(Clone, PartialEq, Message)]
struct BodyParameter {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    r#in: String,
    #[prost(bool, tag = "4")]
    required: bool,
    #[prost(message, optional, tag = "5")]
    schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct NonBodyParameter {
    #[prost(message, optional, tag = "3")]
    query_parameter_sub_schema: Option<QueryParameter>,
    #[prost(message, optional, tag = "4")]
    path_parameter_sub_schema: Option<PathParameter>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryParameter {
    #[prost(string, tag = "2")]
    r#in: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "6")]
    r#type: String,
    #[prost(bool, tag = "20")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PathParameter {
    #[prost(bool, tag = "1")]
    required: bool,
    #[prost(string, tag = "2")]
    r#in: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "5")]
    r#type: String,
    #[prost(bool, tag = "19")]
    unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Responses {
    #[prost(message, repeated, tag = "1")]
    response_code: Vec<NamedResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedResponseValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<ResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    description: String,
    #[prost(message, optional, tag = "2")]
    schema: Option<SchemaItem>,
}

#[derive(Clone, PartialEq, Message)]
struct SchemaItem {
    #[prost(message, optional, tag = "1")]
    schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedSchemas {
    #[prost(message, repeated, tag = "1")]
    additional_properties: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedSchema {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct Schema {
    #[prost(string, tag = "1")]
    r#ref: String,
    #[prost(string, tag = "2")]
    format: String,
    #[prost(string, tag = "3")]
    title: String,
    #[prost(string, tag = "4")]
    description: String,
    #[prost(double, tag = "7")]
    maximum: f64,
    #[prost(double, tag = "9")]
    minimum: f64,
    #[prost(int64, tag = "11")]
    max_length: i64,
    #[prost(int64, tag = "12")]
    min_length: i64,
    #[prost(string, tag = "13")]
    pattern: String,
    #[prost(int64, tag = "14")]
    max_items: i64,
    #[prost(int64, tag = "15")]
    min_items: i64,
    #[prost(string, repeated, tag = "19")]
    required: Vec<String>,
    #[prost(message, repeated, tag = "20")]
    r#enum: Vec<Any>,
    #[prost(message, optional, tag = "21")]
    additional_properties: Option<Box<AdditionalProperties>>,
    #[prost(message, optional, tag = "22")]
    r#type: Option<TypeItem>,
    #[prost(message, optional, tag = "23")]
    items: Option<ItemsItem>,
    #[prost(message, optional, tag = "25")]
    properties: Option<NamedSchemas>,
    #[prost(message, repeated, tag = "31")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct AdditionalProperties {
    #[prost(message, optional, boxed, tag = "1")]
    schema: Option<Box<Schema>>,
    #[prost(bool, optional, tag = "2")]
    boolean: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeItem {
    #[prost(string, repeated, tag = "1")]
    value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ItemsItem {
    #[prost(message, repeated, tag = "1")]
    schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "2")]
    yaml: String,
}

#[derive(Clone, PartialEq, Message)]
struct NamedAny {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

/// Encodes a document as [`super::swagger::document`] makes it.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let info = document.get("info").unwrap_or(&Value::Null);
    let message = Document {
        swagger: text(document, "swagger"),
        info: Some(Info { title: text(info, "title"), version: text(info, "version") }),
        paths: Some(Paths { path: entries(document, "paths").map(|(name, item)| path(name, item)).collect() }),
        definitions: Some(NamedSchemas { additional_properties: named_schemas(document, "definitions") }),
    };
    message.encode_to_vec()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn any(value: &Value) -> Any {
    Any { yaml: format!("{value}\n") }
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    let map = value.as_object().into_iter().flat_map(Map::iter);
    map.filter(|(key, _)| key.starts_with("x-"))
        .map(|(key, value)| NamedAny { name: key.clone(), value: Some(any(value)) })
        .collect()
}

fn path(name: &str, item: &Value) -> NamedPathItem {
    let at = |method: &str| item.get(method).map(operation);
    let value = PathItem {
        get: at("get"),
        put: at("put"),
        post: at("post"),
        delete: at("delete"),
        options: at("options"),
        head: at("head"),
        patch: at("patch"),
        parameters: parameters(item),
    };
    NamedPathItem { name: name.to_owned(), value: Some(value) }
}

fn operation(operation: &Value) -> Operation {
    Operation {
        tags: texts(operation, "tags"),
        operation_id: text(operation, "operationId"),
        produces: texts(operation, "produces"),
        consumes: texts(operation, "consumes"),
        parameters: parameters(operation),
        responses: Some(Responses {
            response_code: entries(operation, "responses").map(|(code, answer)| response(code, answer)).collect(),
        }),
        schemes: texts(operation, "schemes"),
        vendor_extension: extensions(operation),
    }
}

fn response(code: &str, response: &Value) -> NamedResponseValue {
    let schema = response.get("schema").map(|found| SchemaItem { schema: Some(schema(found)) });
    let response = Response { description: text(response, "description"), schema };
    NamedResponseValue { name: code.to_owned(), value: Some(ResponseValue { response: Some(response) }) }
}

fn parameters(value: &Value) -> Vec<ParametersItem> {
    let all = value.get("parameters").and_then(Value::as_array).into_iter().flatten();
    all.map(|found| ParametersItem { parameter: Some(parameter(found)) }).collect()
}

fn parameter(parameter: &Value) -> Parameter {
    let (place, name, type_) = (text(parameter, "in"), text(parameter, "name"), text(parameter, "type"));
    let required = parameter.get("required").and_then(Value::as_bool).unwrap_or_default();
    if place == "body" {
        let body = BodyParameter { name, r#in: place, required, schema: parameter.get("schema").map(schema) };
        return Parameter { body_parameter: Some(body), non_body_parameter: None };
    }
    let other = if place == "path" {
        let path = PathParameter { required, r#in: place, name, r#type: type_, unique_items: true };
        NonBodyParameter { query_parameter_sub_schema: None, path_parameter_sub_schema: Some(path) }
    } else {
        let query = QueryParameter { r#in: place, name, r#type: type_, unique_items: true };
        NonBodyParameter { query_parameter_sub_schema: Some(query), path_parameter_sub_schema: None }
    };
    Parameter { body_parameter: None, non_body_parameter: Some(other) }
}

fn named_schemas(value: &Value, key: &str) -> Vec<NamedSchema> {
    entries(value, key).map(|(name, value)| NamedSchema { name: name.clone(), value: Some(schema(value)) }).collect()
}

fn schema(value: &Value) -> Schema {
    let number = |key: &str| value.get(key).and_then(Value::as_f64).unwrap_or_default();
    let count = |key: &str| value.get(key).and_then(Value::as_i64).unwrap_or_default();
    let list = |key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
    Schema {
        r#ref: text(value, "$ref"),
        format: text(value, "format"),
        title: text(value, "title"),
        description: text(value, "description"),
        maximum: number("maximum"),
        minimum: number("minimum"),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        pattern: text(value, "pattern"),
        max_items: count("maxItems"),
        min_items: count("minItems"),
        required: texts(value, "required"),
        r#enum: list("enum").map(any).collect(),
        additional_properties: value.get("additionalProperties").map(|additional| {
            Box::new(match additional {
                Value::Bool(flag) => AdditionalProperties { schema: None, boolean: Some(*flag) },
                other => AdditionalProperties { schema: Some(Box::new(schema(other))), boolean: None },
            })
        }),
        r#type: value.get("type").and_then(Value::as_str).map(|name| TypeItem { value: vec![name.to_owned()] }),
        items: value.get("items").map(|items| ItemsItem { schema: vec![schema(items)] }),
        properties: value
            .get("properties")
            .map(|_| NamedSchemas { additional_properties: named_schemas(value, "properties") }),
        vendor_extension: extensions(value),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Decodes a document and gives back what tests ask about: the names of definitions, and the
    /// parameters of the patch at a path.
    pub(crate) fn read(bytes: &[u8], path: &str) -> (Vec<String>, Vec<String>) {
        let document = Document::decode(bytes).expect("a document");
        let names =
            document.definitions.expect("definitions").additional_properties.into_iter().map(|d| d.name).collect();
        let found = document.paths.expect("paths").path.into_iter().find(|p| p.name == path);
        let patch = found.and_then(|p| p.value).and_then(|v| v.patch).expect("a patch");
        let parameters =
            patch.parameters.into_iter().filter_map(|p| p.parameter?.non_body_parameter?.query_parameter_sub_schema);
        (names, parameters.map(|q| q.name).collect())
    }
}
