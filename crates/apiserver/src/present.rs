//! Objects as a client wants to see them: whole, as a table, or metadata alone.
//!
//! Whole objects are shared bytes of the store; only tables and metadata are made anew.

use std::sync::Arc;

use bytes::Bytes;
use carrack_schema::table::{ResourceInfo, Version};
use carrack_store::{Entry, Revision};
use serde_json::{Value, json};

use crate::accept::Form;
use crate::body::{self, Body, Response};
use crate::convert;
use crate::env::Env;
use crate::object::Object;
use crate::part::Part;
use crate::printing;
use crate::query::Query;
use crate::status::Status;
use crate::stored;

/// How much of an object goes into a table's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    Nothing,
    Metadata,
    Object,
}

/// Shows objects of one resource in one version and form.
#[derive(Clone)]
pub(crate) struct Presenter {
    pub row: Arc<ResourceInfo>,
    pub form: Form,
    version: usize,
    include: Include,
    env: Arc<dyn Env>,
    api_version: String,
    /// Objects are other than they are stored, by more than how they begin.
    differs: bool,
    /// How objects begin, see [`stored::front`].
    front: Bytes,
}

/// What a list says about itself.
#[derive(Debug, Default)]
pub(crate) struct ListMeta {
    pub revision: Revision,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

impl ListMeta {
    fn to_json(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continue_token {
            meta["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
        meta
    }
}

impl Presenter {
    pub(crate) fn new(
        row: Arc<ResourceInfo>,
        version: usize,
        form: Form,
        query: &Query,
        env: Arc<dyn Env>,
    ) -> Result<Presenter, Status> {
        let include = match query.get("includeObject").unwrap_or("Metadata") {
            "None" => Include::Nothing,
            "" | "Metadata" => Include::Metadata,
            "Object" => Include::Object,
            other => {
                return Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}")));
            }
        };
        let api_version = row.api_version(&row.versions[version].name);
        let front = stored::front(&api_version, &row.kind).into();
        // Asked once: lists have many objects.
        let differs = convert::differs(&row, &row.versions[version]);
        Ok(Presenter { row, form, version, include, env, api_version, differs, front })
    }

    pub(crate) fn version(&self) -> &Version {
        &self.row.versions[self.version]
    }

    pub(crate) fn api_version(&self) -> &str {
        &self.api_version
    }

    /// One object, in parts that together are its JSON; at another revision if given.
    pub(crate) fn parts(&self, entry: &Entry, at: Option<Revision>) -> Vec<Bytes> {
        match self.form {
            Form::Object if !self.differs => stored::spliced(entry, &self.front, at),
            Form::Object => vec![bytes_of(&Value::Object(self.object(entry, at)))],
            Form::Metadata(version) => vec![bytes_of(&metadata_only(&self.object(entry, at), version))],
            Form::Table(version) => vec![bytes_of(&self.table(
                version,
                self.object(entry, at),
                &ListMeta { revision: at.unwrap_or(entry.mod_revision), ..ListMeta::default() },
                true,
            ))],
        }
    }

    /// Adds one object as it is stored to the parts of a reply: lists have thousands, so each is a part and nothing besides.
    fn add_to(&self, parts: &mut Vec<Part>, entry: &Arc<Entry>) {
        match self.form {
            Form::Object if !self.differs => parts.push(Part::Object(Arc::clone(entry), self.front.clone())),
            _ => parts.extend(self.parts(entry, None).into_iter().map(Part::from)),
        }
    }

    /// Like [`Self::parts`] for an event after the first: tables come without their headings.
    pub(crate) fn event_parts(&self, entry: &Entry, at: Option<Revision>, first: bool) -> Vec<Bytes> {
        match self.form {
            Form::Table(version) if !first => {
                let object = self.object(entry, at);
                let meta = ListMeta { revision: at.unwrap_or(entry.mod_revision), ..ListMeta::default() };
                vec![bytes_of(&self.table(version, object, &meta, false))]
            }
            _ => self.parts(entry, at),
        }
    }

    /// An object that carries nothing but a revision, for bookmarks.
    pub(crate) fn bookmark(&self, revision: Revision, annotations: Value) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        match self.form {
            Form::Object => json!({"kind": self.row.kind, "apiVersion": self.api_version(), "metadata": metadata}),
            Form::Metadata(version) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
            }
            Form::Table(version) => {
                let object = json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
                json!({
                    "kind": "Table", "apiVersion": version,
                    "metadata": {"resourceVersion": revision.to_string()},
                    "columnDefinitions": null,
                    "rows": [{"cells": [], "object": object}],
                })
            }
        }
    }

    /// The object of an entry in the wanted version.
    pub(crate) fn object(&self, entry: &Entry, at: Option<Revision>) -> Object {
        let mut object = convert::from_storage(&self.row, self.version(), stored::parse(entry));
        if let Some(at) = at {
            crate::object::set_meta(&mut object, "resourceVersion", at.to_string());
        }
        object
    }

    /// A reply with one object.
    pub(crate) fn one(&self, code: u16, entry: &Arc<Entry>) -> Response {
        let mut parts = Vec::with_capacity(1);
        self.add_to(&mut parts, entry);
        body::json(code, Body::Parts(parts))
    }

    /// A reply with one object as it was when it went at a revision.
    pub(crate) fn one_at(&self, code: u16, entry: &Entry, at: Revision) -> Response {
        body::json(code, Body::Parts(self.parts(entry, Some(at)).into_iter().map(Part::from).collect()))
    }

    /// A reply with an object that is not (or not so) in the store.
    pub(crate) fn unstored(&self, code: u16, object: &Object, revision: Revision) -> Response {
        let value = match self.form {
            Form::Object => Value::Object(object.clone()),
            Form::Metadata(version) => metadata_only(object, version),
            Form::Table(version) => {
                self.table(version, object.clone(), &ListMeta { revision, ..ListMeta::default() }, true)
            }
        };
        body::value(code, &value)
    }

    /// A reply with a list.
    pub(crate) fn list(&self, entries: &[Arc<Entry>], meta: &ListMeta) -> Response {
        match self.form {
            Form::Object => {
                let head =
                    json!({"kind": self.row.list_kind, "apiVersion": self.api_version(), "metadata": meta.to_json()});
                self.concatenated(&head, entries)
            }
            Form::Metadata(version) => {
                let head =
                    json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": meta.to_json()});
                self.concatenated(&head, entries)
            }
            Form::Table(version) => {
                let columns = printing::columns(&self.row, self.version());
                let rows = entries.iter().map(|entry| self.table_row(version, self.object(entry, None)));
                body::json(200, Body::Full(table_text(version, meta.to_json(), columns, rows)))
            }
        }
    }

    /// A reply with the `Scale` of an object.
    pub(crate) fn scale(&self, scale: &Value) -> Response {
        let object = || scale.as_object().cloned().unwrap_or_default();
        let value = match self.form {
            Form::Object => scale.clone(),
            Form::Metadata(version) => metadata_only(&object(), version),
            Form::Table(version) => {
                let (columns, row) = printing::scale(scale, self.env.now(), self.shown(&object(), version));
                table_of(version, json!({"resourceVersion": scale["metadata"]["resourceVersion"]}), columns, vec![row])
            }
        };
        body::value(200, &value)
    }

    fn shown(&self, object: &Object, version: &str) -> Value {
        match self.include {
            Include::Nothing => Value::Null,
            Include::Metadata => metadata_only(object, version),
            Include::Object => Value::Object(object.clone()),
        }
    }

    fn concatenated(&self, head: &Value, entries: &[Arc<Entry>]) -> Response {
        let mut front = bytes_of(head).to_vec();
        front.pop();
        front.extend_from_slice(b",\"items\":[");
        let mut parts: Vec<Part> = Vec::with_capacity(entries.len() * 2 + 2);
        parts.push(Bytes::from(front).into());
        for (i, entry) in entries.iter().enumerate() {
            if i > 0 {
                parts.push(Bytes::from_static(b",").into());
            }
            self.add_to(&mut parts, entry);
        }
        parts.push(Bytes::from_static(b"]}\n").into());
        body::json(200, Body::Parts(parts))
    }

    /// A table of one object.
    fn table(&self, version: &str, object: Object, meta: &ListMeta, headings: bool) -> Value {
        let columns = if headings { printing::columns(&self.row, self.version()) } else { Value::Null };
        table_of(version, meta.to_json(), columns, vec![self.table_row(version, object)])
    }

    fn table_row(&self, version: &str, object: Object) -> Value {
        let shown = self.shown(&object, version);
        printing::row(&self.row, self.version(), object, self.env.now(), shown)
    }
}

fn table_of(version: &str, meta: Value, columns: Value, rows: Vec<Value>) -> Value {
    json!({"kind": "Table", "apiVersion": version, "metadata": meta, "columnDefinitions": columns, "rows": rows})
}

/// The same as bytes, with rows that are made one after the other: as trees, all objects of a long list take ten times as much as their
/// text.
fn table_text(version: &str, meta: Value, columns: Value, rows: impl Iterator<Item = Value>) -> Bytes {
    let head = json!({"kind": "Table", "apiVersion": version, "metadata": meta, "columnDefinitions": columns});
    let mut text = bytes_of(&head).to_vec();
    text.pop();
    // Behind all others in the order of the alphabet.
    text.extend_from_slice(b",\"rows\":[");
    for (i, row) in rows.enumerate() {
        if i > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&bytes_of(&row));
    }
    text.extend_from_slice(b"]}");
    text.into()
}

/// An object's `PartialObjectMetadata`.
fn metadata_only(object: &Object, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version,
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// A value as JSON bytes.
pub(crate) fn bytes_of(value: &Value) -> Bytes {
    // Writing a tree of JSON values to memory cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_the_same_row_by_row() {
        for count in [0, 1, 3] {
            let rows: Vec<Value> = (0..count).map(|n| json!({"cells": [n, "]}"], "object": null})).collect();
            let (meta, columns) = (json!({"resourceVersion": "7"}), json!([{"name": "Name"}]));
            let whole = bytes_of(&table_of("meta.k8s.io/v1", meta.clone(), columns.clone(), rows.clone()));
            assert_eq!(table_text("meta.k8s.io/v1", meta, columns, rows.into_iter()), whole, "{count}");
        }
    }
}
