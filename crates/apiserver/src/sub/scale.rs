//! scale: the number of replicas of any kind that has one, as `autoscaling/v1 Scale`.

use serde_json::{Value, json};

use crate::accept::content_type;
use crate::body::Response;
use crate::context::Cx;
use crate::convert::set_type;
use crate::object::{Object, at, child_mut, meta, meta_str, put_meta, str_at};
use crate::registry::apply::{self, Outcome};
use crate::registry::create::Made;
use crate::registry::meta as metadata;
use crate::registry::operations::{self, Missing};
use crate::registry::patch::{read_operations, refused, untaken};
use crate::registry::strategy::Half;
use crate::registry::update::{Changed, change};
use crate::registry::{decode, read};
use crate::status::Status;
use crate::{convert, stored};
use carrack_schema::builtin;
use carrack_schema::error::FieldError;
use carrack_schema::table::ScalePaths;
use carrack_schema::validate::scale as numbers;

/// The count in a scale of what has none.
const NO_COUNT: i64 = i32::MIN as i64;

/// The subresource's name.
pub(crate) const NAME: &str = "scale";
/// The OpenAPI name of its type.
const TYPE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Where the request's object has the numbers of its scale.
fn paths(cx: &Cx<'_>) -> ScalePaths {
    cx.version().subresource(NAME).and_then(|sub| sub.scale.clone()).unwrap_or_else(|| ScalePaths {
        spec_replicas: ".spec.replicas".to_owned(),
        status_replicas: ".status.replicas".to_owned(),
        label_selector: None,
    })
}

/// The scale of an object: what those see who are asked about a change of it.
pub(crate) fn shown(cx: &Cx<'_>, object: &Object) -> Value {
    scale_of(cx, object, &paths(cx))
}

/// Takes over the scale that they made of it.
pub(crate) fn take(cx: &Cx<'_>, object: &mut Object, scale: &Object) {
    let wanted = at(scale, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
    set(object, &paths(cx).spec_replicas, wanted);
}

/// Gets, updates or patches the scale of the request's object.
pub(crate) async fn answer(cx: &mut Cx<'_>, verb: &str, body: &[u8]) -> Result<Response, Status> {
    let paths = paths(cx);
    let presenter = cx.presenter()?;
    let reply = |cx: &Cx<'_>, object: &Object| presenter.scale(&scale_of(cx, object, &paths));
    if verb == "get" {
        let entry = read::fetch(cx).await?;
        let object = convert::load(cx, &entry).await?;
        if !has_count(cx, &object, &paths)? {
            let path = &paths.spec_replicas;
            return Err(Status::internal(format!("the spec replicas field {path:?} does not exist")));
        }
        return Ok(reply(cx, &object));
    }
    let media_type = content_type(cx.headers);
    if verb == "patch" && media_type == apply::MEDIA_TYPE {
        let object = applied(cx, &paths, body).await?;
        return Ok(reply(cx, &object));
    }
    let body = body.to_vec();
    let outcome = change(cx, &Half::Main, |cx, old| {
        let mut scale = scale_of(cx, old, &paths);
        if !has_count(cx, old, &paths)? {
            scale["spec"]["replicas"] = NO_COUNT.into();
        }
        patched(cx, &mut scale, verb, &media_type, &body)?;
        let Value::Object(mut scale) = scale else { return Err(Status::bad_request("the patch leaves no object")) };
        metadata::settle_namespace(cx, &mut scale)?;
        metadata::check_path_name(cx, &scale)?;
        let wanted = at(&scale, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
        if cx.row.is_custom && wanted == NO_COUNT {
            let path = &paths.spec_replicas;
            return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
        }
        // Of a custom resource the number is checked where it is written.
        if wanted < 0 && !cx.row.is_custom {
            return Err(Status::invalid(
                "autoscaling",
                "Scale",
                cx.name(),
                &[(
                    "FieldValueInvalid".to_owned(),
                    "spec.replicas".to_owned(),
                    format!("Invalid value: {wanted}: must be greater than or equal to 0"),
                )],
            ));
        }
        let mut new = old.clone();
        for field in ["resourceVersion", "uid"] {
            put_meta(&mut new, field, meta(&scale, field).cloned());
        }
        set(&mut new, &paths.spec_replicas, wanted);
        Ok(new)
    })
    .await?;
    let object = match outcome {
        Changed::Stored(entry) => convert::from_storage(&cx.row, cx.version(), stored::parse(&entry)),
        Changed::Dry(object, _) | Changed::Gone(object, _) => object,
    };
    Ok(reply(cx, &object))
}

/// Applies a scale: the object's count of replicas belongs to the applier.
async fn applied(cx: &mut Cx<'_>, paths: &ScalePaths, body: &[u8]) -> Result<Object, Status> {
    let scale = apply::read(cx, body)?;
    if let Some(given) = ["autoscaling/v1"].iter().find(|wanted| str_at(&scale, &["apiVersion"]) != **wanted) {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {given}",
            str_at(&scale, &["apiVersion"])
        )));
    }
    decode::check_type(&scale, "autoscaling/v1", "Scale")?;
    let mut config = Object::new();
    set_type(&mut config, &cx.api_version(), &cx.row.kind);
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        put_meta(&mut config, field, meta(&scale, field).cloned());
    }
    if let Some(wanted) = at(&scale, &["spec", "replicas"]) {
        let wanted = wanted.as_i64().filter(|wanted| (0..=i64::from(i32::MAX)).contains(wanted));
        let wanted =
            wanted.ok_or_else(|| Status::bad_request("spec.replicas must be a number that is not negative"))?;
        set(&mut config, &paths.spec_replicas, wanted);
    }
    Ok(match apply::run(cx, &Half::Main, config).await? {
        Outcome::Created(Made::Stored(entry)) | Outcome::Changed(Changed::Stored(entry)) => {
            convert::from_storage(&cx.row, cx.version(), stored::parse(&entry))
        }
        Outcome::Created(Made::Dry(object)) | Outcome::Changed(Changed::Dry(object, _) | Changed::Gone(object, _)) => {
            object
        }
    })
}

fn patched(cx: &Cx<'_>, scale: &mut Value, verb: &str, media_type: &str, body: &[u8]) -> Result<(), Status> {
    let parse = || -> Result<Value, Status> {
        serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("the body cannot be read: {error}")))
    };
    if verb == "update" {
        let new = decode::any(cx, body, TYPE)?;
        decode::check_type(&new, "autoscaling/v1", "Scale")?;
        *scale = Value::Object(new);
        return Ok(());
    }
    match media_type {
        "application/json-patch+json" => {
            let (patch, _findings) = read_operations(body)?;
            operations::apply(scale, &patch, Missing::Fault).map_err(|fault| refused(&fault))?;
        }
        "application/merge-patch+json" => carrack_schema::strategic::merge(scale, &parse()?),
        // A Scale has no lists, so both merge alike.
        "application/strategic-merge-patch+json" if !cx.row.is_custom => {
            let mut patch = parse()?;
            carrack_schema::decode::whole_numbers(&mut patch);
            carrack_schema::strategic::merge(scale, &patch);
        }
        _ => return Err(untaken(cx)),
    }
    conform(scale)
}

/// Refuses what a patch made of a scale when it is none any more: a count that is no number is not none.
fn conform(scale: &mut Value) -> Result<(), Status> {
    let Some(schema) = builtin::schema(TYPE) else { return Ok(()) };
    match carrack_schema::decode::conform(scale, schema) {
        Ok(_unknown) => Ok(()),
        Err(error) => {
            let fault = FieldError::invalid("patch", scale.to_string(), error.to_string());
            Err(Status::faulty("", "", "", &[fault]))
        }
    }
}

fn keys(path: &str) -> Vec<&str> {
    path.split('.').filter(|key| !key.is_empty()).collect()
}

fn set(object: &mut Object, path: &str, value: i64) {
    let keys = keys(path);
    let Some((last, parents)) = keys.split_last() else { return };
    let parent = parents.iter().fold(object, |object, key| child_mut(object, key));
    parent.insert((*last).to_owned(), value.into());
}

/// Whether an object has the number of its replicas. A custom resource may be older than what its definition says of its scale.
fn has_count(cx: &Cx<'_>, object: &Object, paths: &ScalePaths) -> Result<bool, Status> {
    if !cx.row.is_custom {
        return Ok(true);
    }
    numbers::number(object, &paths.status_replicas).map_err(Status::internal)?;
    if let Some(path) = &paths.label_selector {
        numbers::text(object, path).map_err(Status::internal)?;
    }
    Ok(numbers::number(object, &paths.spec_replicas).map_err(Status::internal)?.is_some())
}

fn scale_of(cx: &Cx<'_>, object: &Object, paths: &ScalePaths) -> Value {
    let number = |path: &str| at(object, &keys(path)).and_then(Value::as_i64).unwrap_or(0);
    let selector = match &paths.label_selector {
        Some(path) => at(object, &keys(path)).and_then(Value::as_str).unwrap_or_default().to_owned(),
        None if cx.row.is_custom => String::new(),
        None => selector_text(at(object, &["spec", "selector"])),
    };
    let mut status = json!({"replicas": number(&paths.status_replicas)});
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta_str(object, "name"),
            "namespace": meta_str(object, "namespace"),
            "uid": meta_str(object, "uid"),
            "resourceVersion": meta_str(object, "resourceVersion"),
            "creationTimestamp": meta(object, "creationTimestamp").cloned().unwrap_or_default(),
        },
        "spec": {"replicas": number(&paths.spec_replicas)},
        "status": status,
    })
}

/// A `LabelSelector` (or a plain map, as ReplicationControllers have it) in its text form.
pub(super) fn selector_text(selector: Option<&Value>) -> String {
    let Some(Value::Object(selector)) = selector else { return String::new() };
    let structured = selector.contains_key("matchLabels") || selector.contains_key("matchExpressions");
    let labels = if structured { selector.get("matchLabels").and_then(Value::as_object) } else { Some(selector) };
    let mut terms: Vec<String> =
        labels.into_iter().flatten().filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
        let values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let (key, values) = (text("key"), values.join(","));
        match text("operator") {
            "In" => terms.push(format!("{key} in ({values})")),
            "NotIn" => terms.push(format!("{key} notin ({values})")),
            "Exists" => terms.push(key.to_owned()),
            "DoesNotExist" => terms.push(format!("!{key}")),
            _ => {}
        }
    }
    terms.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_as_text() {
        for (selector, want) in [
            (json!({"matchLabels": {"a": "b", "c": "d"}}), "a=b,c=d"),
            (json!({"app": "x"}), "app=x"),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "Exists"}]}),
                "a in (x,y),b",
            ),
            (json!(null), ""),
        ] {
            assert_eq!(selector_text(Some(&selector)), want);
        }
    }
}
