//! ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_types::well_known::account_token;
use serde_json::{Map, Value};

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

/// Most bytes of all values.
const MAX_BYTES: usize = 1 << 20;

/// How many bytes a base64 text stands for.
fn decoded_length(text: &str) -> usize {
    let digits = text.bytes().filter(|b| !matches!(b, b'=' | b'\r' | b'\n')).count();
    digits * 3 / 4
}

fn keys(object: &Place<'_>, name: &str, errors: &mut Errors) {
    for (key, _) in object.entries(name) {
        errors.extend(
            names::config_key(key).map(|problem| FieldError::invalid(format!("{name}[{key}]"), key.as_str(), problem)),
        );
    }
}

fn length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

pub(super) fn config_map(object: &Place<'_>, errors: &mut Errors) {
    keys(object, "data", errors);
    keys(object, "binaryData", errors);
    for (key, _) in object.entries("binaryData") {
        if object.field("data").some(key).is_some() {
            errors.push(FieldError::invalid(
                format!("binaryData[{key}]"),
                key.as_str(),
                "duplicate of key present in data",
            ));
        }
    }
    let texts: usize = object.entries("data").map(|(_, value)| length(value)).sum();
    let bytes: usize =
        object.entries("binaryData").map(|(_, value)| decoded_length(value.as_str().unwrap_or_default())).sum();
    if texts + bytes > MAX_BYTES {
        // Upstream names no field either.
        errors.push(FieldError::too_long("[]", MAX_BYTES as u64));
    }
}

pub(super) fn secret(object: &Place<'_>, errors: &mut Errors) {
    keys(object, "data", errors);
    let bytes: usize =
        object.entries("data").map(|(_, value)| decoded_length(value.as_str().unwrap_or_default())).sum();
    if bytes > MAX_BYTES {
        errors.push(FieldError::too_long("data", MAX_BYTES as u64));
    }
    let has = |key: &str| object.field("data").some(key).is_some();
    let mut needs = |keys: &[&str]| {
        for key in keys.iter().filter(|key| !has(key)) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match object.text("type") {
        "kubernetes.io/tls" => needs(&["tls.crt", "tls.key"]),
        "kubernetes.io/dockerconfigjson" => credentials(object, ".dockerconfigjson", errors),
        "kubernetes.io/dockercfg" => credentials(object, ".dockercfg", errors),
        "kubernetes.io/ssh-auth" => needs(&["ssh-privatekey"]),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => needs(&["username", "password"]),
        account_token::TYPE => {
            let annotations = object.at(&["metadata", "annotations"]);
            if annotations.text(account_token::ACCOUNT_NAME).is_empty() {
                let field = format!("metadata.annotations[{}]", account_token::ACCOUNT_NAME);
                errors.push(FieldError::required(field, ""));
            }
        }
        _ => {}
    }
}

/// Credentials for registries are an object of JSON. What they say is told to nobody.
fn credentials(secret: &Place<'_>, key: &str, errors: &mut Errors) {
    let path = format!("data[{key}]");
    let Some(given) = secret.field("data").some(key) else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    // What is no base64 is told by decoding.
    let text = given.value.as_str().unwrap_or_default().replace(['\r', '\n'], "");
    let Ok(bytes) = STANDARD.decode(text) else { return };
    let problem = match serde_json::from_slice::<Value>(&bytes) {
        Err(error) => error.to_string(),
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(_) => "must be a JSON object".to_owned(),
    };
    errors.push(FieldError::invalid(path, "<secret contents redacted>", problem));
}

/// What a map has in it; one that is empty is as good as absent.
fn filled<'a>(object: &Place<'a>, field: &str) -> Option<&'a Map<String, Value>> {
    object.field(field).map().filter(|map| !map.is_empty())
}

/// What was made immutable stays so, and its data too.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, fields: &[&str], errors: &mut Errors) {
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
    for field in fields.iter().filter(|field| filled(new, field) != filled(old, field)) {
        errors.push(FieldError::forbidden(*field, "field is immutable when `immutable` is set"));
    }
}
