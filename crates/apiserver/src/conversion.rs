//! Custom resources whose versions differ: their definition names a webhook that converts between them.
//!
//! ```text
//!   read:  stored ─► in the version that is asked for (many of a list in one review)
//!   write: in the request's version ─► admission, validation ─► in the version that is stored
//! ```
//!
//! What comes back is checked: a conversion changes no identity, and of the metadata only labels and
//! annotations. Upstream: `k8s.io/apiextensions-apiserver/pkg/apiserver/conversion`.

use std::sync::Arc;

use carrack_schema::table::ResourceInfo;
use carrack_schema::validate;
use carrack_store::{Entry, Store};
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::admission::webhook::{Client, brief, post, review_version, type_of};
use crate::env::{Env, new_uid};
use crate::kinds;
use crate::metrics::{ConversionMetrics, Failure};
use crate::object::{Object, meta_str, str_at};
use crate::status::Status;
use crate::stored;

/// How long a conversion may take, in milliseconds.
const TIMEOUT_MS: u64 = 30_000;

/// How much is converted at a time, in bytes: webhooks take no more than a few megabytes, and of their answers no more is read.
const BATCH_BYTES: usize = 2 << 20;

/// Objects in as few reviews as they have room in.
fn batches(objects: Vec<Value>) -> Vec<Vec<Value>> {
    let mut all: Vec<Vec<Value>> = Vec::new();
    let mut bytes = 0;
    for object in objects {
        let own = object.to_string().len();
        bytes += own;
        match all.last_mut() {
            Some(last) if bytes <= BATCH_BYTES => last.push(object),
            _ => {
                bytes = own;
                all.push(vec![object]);
            }
        }
    }
    all
}

/// Converts objects of one resource. It holds what it needs, so that a watch can keep it.
#[derive(Clone)]
pub(crate) struct Converter {
    pub store: Arc<dyn Store>,
    pub env: Arc<dyn Env>,
    pub row: Arc<ResourceInfo>,
    pub metrics: ConversionMetrics,
}

/// Why objects are not converted: for the metrics, and for the client.
type Fault = (Failure, Status);

impl Converter {
    /// Whether objects as they are stored may be in another form than those of this version.
    pub(crate) fn is_needed(&self) -> bool {
        self.row.conversion.is_some()
    }

    /// Objects in a version of the row. Those that are in it are left alone.
    pub(crate) async fn objects(&self, objects: Vec<Object>, version: usize) -> Result<Vec<Object>, Status> {
        self.made(objects, version, true).await
    }

    /// The same without the defaults of that version: what managers own is judged by what objects say, and a
    /// default would stand in for what was taken out.
    pub(crate) async fn undefaulted(&self, objects: Vec<Object>, version: usize) -> Result<Vec<Object>, Status> {
        self.made(objects, version, false).await
    }

    async fn made(&self, objects: Vec<Object>, version: usize, defaults: bool) -> Result<Vec<Object>, Status> {
        let Some(config) = &self.row.conversion else { return Ok(objects) };
        let api_version = self.row.api_version(&self.row.versions[version].name);
        let is_there = |object: &Object| object.get("apiVersion").is_some_and(|given| *given == *api_version);
        let others: Vec<Value> =
            objects.iter().filter(|object| !is_there(object)).map(|object| Value::Object(object.clone())).collect();
        let Some(first) = others.first() else { return Ok(objects) };
        let from = first["apiVersion"].as_str().and_then(|given| given.rsplit('/').next()).unwrap_or_default();
        let (from, to) = (from.to_owned(), &*self.row.versions[version].name);
        let began = self.env.now();
        let outcome = self.convert(config, (objects, others), version, &api_version, defaults).await;
        let failure = outcome.as_ref().err().map(|(failure, _)| *failure);
        let took = self.env.now().duration_since(began);
        self.metrics.converted(&self.row.group_resource(), (from.as_str(), to), failure, took);
        outcome.map_err(|(_, status)| status)
    }

    /// Has those of the objects converted, `others`, that are in another version than the one of that `apiVersion`.
    async fn convert(
        &self,
        config: &Value,
        (objects, others): (Vec<Object>, Vec<Value>),
        version: usize,
        api_version: &str,
        defaults: bool,
    ) -> Result<Vec<Object>, Fault> {
        let mut all = Vec::with_capacity(others.len());
        for some in batches(others) {
            all.extend(self.ask(config, some, api_version).await?);
        }
        let mut converted = all.into_iter();
        let mut out = Vec::with_capacity(objects.len());
        for object in objects {
            if str_at(&object, &["apiVersion"]) == api_version {
                out.push(object);
                continue;
            }
            let made = converted.next().unwrap_or_default();
            let mut made = self.checked(&object, made, api_version)?;
            let version = &self.row.versions[version];
            kinds::conform(&self.row, version, &mut made)
                .map_err(|error| (Failure::Invalid, Status::internal(error)))?;
            if defaults {
                kinds::default(&self.row, version, &mut made);
            }
            out.push(made);
        }
        Ok(out)
    }

    /// One object in a version of the row.
    pub(crate) async fn object(&self, object: Object, version: usize) -> Result<Object, Status> {
        Ok(self.objects(vec![object], version).await?.pop().unwrap_or_default())
    }

    /// Entries as if they had been stored in a version of the row, as it is defined now.
    pub(crate) async fn entries(&self, entries: Vec<Arc<Entry>>, version: usize) -> Result<Vec<Arc<Entry>>, Status> {
        if !self.row.is_custom {
            return Ok(entries);
        }
        let entries: Vec<Arc<Entry>> = entries.into_iter().map(|entry| stored::caught_up(entry, &self.row)).collect();
        if !self.is_needed() {
            return Ok(entries);
        }
        let api_version = self.row.api_version(&self.row.versions[version].name);
        let objects = entries.iter().map(|entry| stored::parse(entry)).collect();
        let converted = self.objects(objects, version).await?;
        let made = |(entry, object): (Arc<Entry>, Object)| {
            stored::instead(&entry, &object, &api_version, &self.row.kind).unwrap_or(entry)
        };
        Ok(entries.into_iter().zip(converted).map(made).collect())
    }

    /// One entry, as if it had been stored in a version of the row.
    pub(crate) async fn entry(&self, entry: Arc<Entry>, version: usize) -> Result<Arc<Entry>, Status> {
        if !self.row.is_custom {
            return Ok(entry);
        }
        let entries = self.entries(vec![entry], version).await?;
        entries.into_iter().next().ok_or_else(|| Status::internal("a conversion lost its object"))
    }

    /// The same for one that keeps it.
    pub(crate) fn later(
        &self,
        entries: Vec<Arc<Entry>>,
        version: usize,
    ) -> BoxFuture<'static, Result<Vec<Arc<Entry>>, Status>> {
        let this = self.clone();
        Box::pin(async move { this.entries(entries, version).await })
    }

    fn failed(&self, failure: Failure, why: &str) -> Fault {
        self.fault(failure, &format!("failed: {why}"))
    }

    fn fault(&self, failure: Failure, what: &str) -> Fault {
        let kind = format!(
            "{}, Kind={}",
            self.row.api_version(self.row.storage_version().map_or("", |v| &v.name)),
            self.row.kind
        );
        (failure, Status::internal(format!("conversion webhook for {kind} {what}")))
    }

    async fn ask(&self, config: &Value, objects: Vec<Value>, api_version: &str) -> Result<Vec<Value>, Fault> {
        const EXPECTED: &str = "apiextensions.k8s.io/v1, Kind=ConversionReview";
        let count = objects.len();
        let uid = new_uid(&*self.env);
        let Some(version) = review_version(&config["conversionReviewVersions"]) else {
            return Err((Failure::Call, Status::internal("no supported conversion review versions")));
        };
        let review = json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        });
        let client = Client::read(&config["clientConfig"]);
        let answer = post((&*self.store, &*self.env), &client, None, &review, TIMEOUT_MS)
            .await
            .map_err(|why| self.failed(Failure::Call, &why))?;
        let (response, found) = (&answer["response"], type_of(&answer));
        let malformed = |why: &str| self.failed(Failure::Malformed, why);
        // Of the older version upstream has never asked for more than a response.
        let is_checked = version == "v1";
        if is_checked && found != EXPECTED {
            return Err(malformed(&format!("expected webhook response of {EXPECTED}, got {found}")));
        }
        if !response.is_object() {
            return Err(malformed("no response provided"));
        }
        if is_checked && response["uid"] != uid {
            let found = brief(response["uid"].as_str().unwrap_or_default());
            return Err(malformed(&format!("expected response.uid={uid:?}, got {found:?}")));
        }
        let text = |field: &str| response["result"][field].as_str().unwrap_or_default();
        match (text("status"), text("message")) {
            ("Success", _) => {}
            (status, "") => {
                return Err(malformed(&format!("response.result.status was '{}', not 'Success'", brief(status))));
            }
            (_, message) => return Err(malformed(message)),
        }
        match response["convertedObjects"].as_array() {
            Some(converted) if converted.len() == count => Ok(converted.clone()),
            found => {
                let found = found.map_or(0, Vec::len);
                Err(self.fault(Failure::Partial, &format!("returned {found} objects, expected {count}")))
            }
        }
    }

    /// The converted object, if it is the one that was given.
    fn checked(&self, before: &Object, after: Value, api_version: &str) -> Result<Object, Fault> {
        let invalid = |why: String| self.fault(Failure::Invalid, &format!("returned invalid object: {why}"));
        let Value::Object(mut after) = after else { return Err(invalid("it is none".to_owned())) };
        let kind = str_at(before, &["kind"]);
        for (field, what, expected) in [("apiVersion", "groupVersion", api_version), ("kind", "kind", kind)] {
            let received = str_at(&after, &[field]);
            if received != expected {
                let received = brief(received);
                return Err(invalid(format!("invalid {what} (expected {expected}, received {received})")));
            }
        }
        for (field, what) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
            let (was, is) = (meta_str(before, field), meta_str(&after, field));
            if was != is {
                return Err(invalid(format!("must have the same {what}: {was} != {}", brief(is))));
            }
        }
        let metadata = restored(before, after.get("metadata"))
            .map_err(|why| self.fault(Failure::Invalid, &format!("returned invalid metadata: {why}")))?;
        after.insert("metadata".to_owned(), metadata.into());
        Ok(after)
    }
}

/// The metadata as it was, with the labels and annotations of what came back.
fn restored(before: &Object, after: Option<&Value>) -> Result<Map<String, Value>, String> {
    /// More of what is wrong helps nobody.
    const MAX_TOLD: usize = 10;
    let after = after.ok_or("missing metadata in converted object")?;
    let own = after.as_object().ok_or("invalid metadata in converted object")?;
    let mut metadata = before.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let value = own.get(field).unwrap_or(&Value::Null);
        if value.is_null() {
            metadata.remove(field);
            continue;
        }
        let map = value.as_object().ok_or_else(|| format!("invalid metadata.{field} in converted object"))?;
        if let Some((key, _)) = map.iter().find(|(_, value)| !value.is_string()) {
            return Err(format!("metadata.{field}[{}] must be a string in converted object", brief(key)));
        }
        if metadata.get(field) != Some(value) {
            let faults = validate::written(field, value);
            if !faults.is_empty() {
                let told: Vec<String> = faults.iter().take(MAX_TOLD).map(ToString::to_string).collect();
                return Err(told.join(", "));
            }
        }
        metadata.insert(field.to_owned(), value.clone());
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_converted_in_batches() {
        let of = |bytes: usize| json!("x".repeat(bytes));
        for (sizes, wanted) in [
            (vec![], vec![]),
            (vec![1, 1, 1], vec![3]),
            (vec![BATCH_BYTES, 1, 1], vec![1, 2]),
            (vec![BATCH_BYTES / 2, BATCH_BYTES / 3, BATCH_BYTES / 3], vec![2, 1]),
            (vec![3 * BATCH_BYTES, 3 * BATCH_BYTES], vec![1, 1]),
        ] {
            let objects: Vec<Value> = sizes.iter().copied().map(of).collect();
            let found = batches(objects.clone());
            assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), wanted, "{sizes:?}");
            assert_eq!(found.concat(), objects);
        }
    }

    #[test]
    fn labels_and_annotations_are_taken_over_if_they_are_good() {
        let before = json!({"metadata": {"name": "a", "labels": {"a b": "old"}, "annotations": {"x": "y"}}});
        let before = before.as_object().cloned().unwrap_or_default();
        for (after, want) in [
            (json!({"name": "b", "labels": {"c": "d"}}), Ok(json!({"name": "a", "labels": {"c": "d"}}))),
            // What was let in before may stay.
            (json!({"labels": {"a b": "old"}}), Ok(json!({"name": "a", "labels": {"a b": "old"}}))),
            (json!({"labels": {"a b": "new"}}), Err("metadata.labels: Invalid value: \"a b\": ")),
            (json!({"annotations": {"a b": "new"}}), Err("metadata.annotations: Invalid value: \"a b\": ")),
            (json!({"labels": {"a": 1}}), Err("metadata.labels[a] must be a string in converted object")),
            (json!({"annotations": []}), Err("invalid metadata.annotations in converted object")),
            (json!([]), Err("invalid metadata in converted object")),
        ] {
            match (restored(&before, Some(&after)), want) {
                (Ok(found), Ok(want)) => assert_eq!(Value::Object(found), want, "{after}"),
                (Err(why), Err(want)) => assert!(why.starts_with(want), "{after}: {why}"),
                (found, _) => panic!("{after}: {found:?}"),
            }
        }
        assert_eq!(restored(&before, None), Err("missing metadata in converted object".to_owned()));
    }
}
