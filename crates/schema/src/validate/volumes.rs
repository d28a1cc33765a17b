//! Volumes of pods.

use serde_json::Value;

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

/// Checks the volumes of a pod and gives their names.
pub(super) fn check<'a>(spec: &Place<'a>, errors: &mut Errors) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for volume in spec.items("volumes") {
        if let Some(name) = volume.needs_text("name", errors) {
            volume.has_form("name", names::dns1123_label, errors);
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(volume.path_of("name"), name));
            }
            seen.push(name);
        }
        source(&volume, errors);
    }
    seen
}

fn source(volume: &Place<'_>, errors: &mut Errors) {
    let sources: Vec<&String> = volume
        .map()
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "name" && !value.is_null())
        .map(|(key, _)| key)
        .collect();
    match sources.as_slice() {
        [] => errors.push(FieldError::required(volume.path.clone(), "must specify a volume type")),
        [_] => {}
        [_, more @ ..] => {
            for extra in more {
                errors.push(FieldError::forbidden(volume.path_of(extra), "may not specify more than 1 volume type"));
            }
        }
    }
    for kind in sources {
        let source = volume.field(kind);
        match kind.as_str() {
            "hostPath" => host_path(&source, errors),
            "secret" => {
                source.needs_text("secretName", errors);
                items(&source, errors);
            }
            "configMap" => {
                source.needs_text("name", errors);
                items(&source, errors);
            }
            "downwardAPI" => items(&source, errors),
            "persistentVolumeClaim" => drop(source.needs_text("claimName", errors)),
            "projected" => projected(&source, errors),
            "nfs" => {
                source.needs_text("server", errors);
                source.needs_text("path", errors);
            }
            "csi" => drop(source.needs_text("driver", errors)),
            "flexVolume" => drop(source.needs_text("driver", errors)),
            _ => {}
        }
    }
}

fn host_path(source: &Place<'_>, errors: &mut Errors) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if let Some(path) = source.needs_text("path", errors)
        && path.split('/').any(|part| part == "..")
    {
        errors.push(FieldError::invalid(source.path_of("path"), path, "must not contain '..'"));
    }
    source.one_of("type", &TYPES, errors);
}

/// Paths of files in a volume.
fn items(source: &Place<'_>, errors: &mut Errors) {
    for item in source.items("items") {
        if let Some(path) = item.needs_text("path", errors) {
            relative_path(&item, "path", path, errors);
        }
    }
    if let Some(mode) = source.number("defaultMode").filter(|mode| !(0..=0o777).contains(mode)) {
        errors.push(FieldError::invalid(
            source.path_of("defaultMode"),
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}

pub(super) fn relative_path(place: &Place<'_>, field: &str, path: &str, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(place.path_of(field), path, "must be a relative path"));
    }
    if path.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(place.path_of(field), path, "must not contain '..'"));
    }
}

fn projected(source: &Place<'_>, errors: &mut Errors) {
    for projection in source.items("sources") {
        let count = projection.map().map_or(0, |map| map.values().filter(|v| !v.is_null()).count());
        if count != 1 {
            let text = if count == 0 {
                "must specify a projection type"
            } else {
                "may not specify more than 1 volume type per source"
            };
            errors.push(FieldError::forbidden(projection.path.clone(), text));
        }
        if let Some(token) = projection.some("serviceAccountToken") {
            if let Some(seconds) = token.value.get("expirationSeconds").and_then(Value::as_i64).filter(|s| *s < 600) {
                errors.push(FieldError::invalid(
                    token.path_of("expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                ));
            }
            token.needs_text("path", errors);
        }
        for kind in ["configMap", "secret", "downwardAPI"] {
            if let Some(inner) = projection.some(kind) {
                if kind != "downwardAPI" {
                    inner.needs_text("name", errors);
                }
                items(&inner, errors);
            }
        }
    }
    items(source, errors);
}
