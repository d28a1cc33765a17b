//! The stored form of objects, made so that serving needs no parsing.
//!
//! ```text
//! {"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"<stamped by the store>","name":…},…}
//! ```
//!
//! `apiVersion`, `kind` and `metadata.resourceVersion` lead, at places that are found without a
//! parser: the store stamps the revision of the commit into the hole; a reader that wants another
//! `apiVersion`, or the revision of a deletion, splices the front and shares the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use carrack_schema::table::{ResourceInfo, Version};
use carrack_store::{Entry, Revision, Value as StoreValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert;
use crate::object;
use crate::protobuf;
use crate::status::Status;
use crate::texts::Texts;

const METADATA: &str = ",\"metadata\":{\"resourceVersion\":\"";

/// Objects up to this size may be kept parsed beside their bytes, which takes ten times as much.
const KEPT_PARSED_BYTES: usize = 2048;

const MANAGERS: &str = "managedFields";

/// The largest object that is stored, in bytes: twice what etcd takes.
const MAX_OBJECT_BYTES: usize = 3 << 20;

/// Serialises an object for the store; refuses one that is too large.
pub(crate) fn encode_bounded(object: &Map<String, Value>, api_version: &str, kind: &str) -> Result<StoreValue, Status> {
    encode_managed(object, None, api_version, kind)
}

/// The same for an object whose managers are apart.
pub(crate) fn encode_managed(
    object: &Map<String, Value>,
    managers: Option<&str>,
    api_version: &str,
    kind: &str,
) -> Result<StoreValue, Status> {
    let value = put_together(object, managers, api_version, kind);
    if value.bytes.len() > MAX_OBJECT_BYTES { Err(Status::too_large(MAX_OBJECT_BYTES)) } else { Ok(value) }
}

/// Serialises an object for the store. `apiVersion` and `kind` are set to those given.
pub(crate) fn encode(object: &Map<String, Value>, api_version: &str, kind: &str) -> StoreValue {
    put_together(object, None, api_version, kind)
}

fn put_together(object: &Map<String, Value>, managers: Option<&str>, api_version: &str, kind: &str) -> StoreValue {
    let mut out = Vec::with_capacity(4096);
    put_front(&mut out, api_version, kind);
    let stamp_at = out.len();
    out.extend_from_slice(b"\"");
    let mut managers = managers;
    let put_managers = |out: &mut Vec<u8>, text: &str| {
        out.extend_from_slice(b",\"managedFields\":");
        out.extend_from_slice(text.as_bytes());
    };
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
            // Where they would be in the order of the alphabet, so that the same object is the same bytes.
            if let Some(text) = managers.take_if(|_| key.as_str() > MANAGERS) {
                put_managers(&mut out, text);
            }
            field(&mut out, key, value);
        }
    }
    if let Some(text) = managers {
        put_managers(&mut out, text);
    }
    out.push(b'}');
    for (key, value) in object {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            field(&mut out, key, value);
        }
    }
    out.push(b'}');
    StoreValue { bytes: out.into(), stamp_at: Some(stamp_at) }
}

/// What somebody else has put into an etcd, in the stored form: JSON of whatever order, or upstream's protobuf of a
/// built-in kind. None for what is no object with a name.
#[must_use]
pub fn stored_form(value: &[u8]) -> Option<StoreValue> {
    let object: Map<String, Value> = match serde_json::from_slice(value) {
        Ok(object) => object,
        Err(_) => protobuf::decode_stored(value)?,
    };
    let text = |field: &str| object.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    (!object::name(&object).is_empty()).then(|| encode(&object, api_version, kind))
}

/// Whether an entry holds an object: not so what somebody else has put into an etcd and has no [`stored_form`].
pub(crate) fn is_readable(entry: &Entry) -> bool {
    entry.front_len() > 0
}

/// What [`encode`] and the store will make of an object.
pub(crate) fn encode_at(object: &Map<String, Value>, api_version: &str, kind: &str, revision: &str) -> Bytes {
    let value = encode(object, api_version, kind);
    let at = value.stamp_at.unwrap_or(0);
    [&value.bytes[..at], revision.as_bytes(), &value.bytes[at..]].concat().into()
}

/// How stored objects of a type begin, up to their revision.
pub(crate) fn front(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    put_front(&mut out, api_version, kind);
    out
}

fn put_front(out: &mut Vec<u8>, api_version: &str, kind: &str) {
    out.extend_from_slice(b"{\"apiVersion\":");
    string(out, api_version);
    out.extend_from_slice(b",\"kind\":");
    string(out, kind);
    out.extend_from_slice(METADATA.as_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    json(out, text);
}

fn field(out: &mut Vec<u8>, key: &str, value: &Value) {
    out.push(b',');
    string(out, key);
    out.push(b':');
    json(out, value);
}

fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    if let Err(error) = serde_json::to_writer(out, value) {
        // Writing text or a tree of JSON values to memory cannot fail.
        tracing::error!(%error, "an object cannot be written");
    }
}

/// The value as it was put, to be put under another key.
pub(crate) fn unstamped(entry: &Entry) -> StoreValue {
    let (value, front) = (entry.value(), entry.front_len());
    let digits = value[front..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let bytes = [&value[..front], &value[front + digits..]].concat();
    let stamp_at = carrack_store::stamp_place(&bytes);
    StoreValue { bytes: bytes.into(), stamp_at }
}

/// Whether the value is what the entry has already, but for the revision.
pub(crate) fn is_same(entry: &Entry, value: &StoreValue) -> bool {
    let held = entry.value();
    let Some(at) = value.stamp_at else { return held == value.bytes };
    let (Some(front), Some(rest)) = (held.get(..at), held.get(at..)) else { return false };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    *front == value.bytes[..at] && rest[digits..] == value.bytes[at..]
}

/// What readers derive from an entry, kept with it ([`Entry::memo`]).
#[derive(Debug)]
pub(crate) struct Memo {
    /// `metadata.labels`.
    pub labels: Texts,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.namespace`; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    object: OnceLock<Arc<Map<String, Value>>>,
    fields: OnceLock<Texts>,
    caught_up: Mutex<Option<Box<CaughtUp>>>,
}

/// For which definition it was looked at what has changed since an entry was written, and what became of it, if anything did.
type CaughtUp = (u64, Option<Arc<Entry>>);

#[derive(Deserialize)]
struct Partial {
    metadata: PartialMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialMetadata {
    labels: Option<BTreeMap<String, String>>,
    name: String,
    namespace: Option<String>,
}

impl PartialMetadata {
    /// Of an object with labels that are no texts, which an earlier version let in: it has a name all the same.
    fn odd(value: &[u8]) -> PartialMetadata {
        let object: Map<String, Value> = serde_json::from_slice(value).unwrap_or_default();
        let labels = object::meta(&object, "labels").and_then(Value::as_object).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        PartialMetadata {
            labels: Some(labels.map(|(key, value)| (key.clone(), text(value))).collect()),
            name: object::name(&object).to_owned(),
            namespace: Some(object::meta_str(&object, "namespace").to_owned()),
        }
    }
}

impl Memo {
    fn new(value: &[u8]) -> Memo {
        let partial = serde_json::from_slice::<Partial>(value);
        let metadata = partial.map_or_else(|_| PartialMetadata::odd(value), |partial| partial.metadata);
        Memo {
            labels: metadata.labels.unwrap_or_default().into_iter().collect(),
            name: metadata.name.into(),
            namespace: metadata.namespace.unwrap_or_default().into(),
            object: OnceLock::new(),
            fields: OnceLock::new(),
            caught_up: Mutex::default(),
        }
    }
}

/// The entry's memo; made where none is kept.
pub(crate) fn memo(entry: &Entry) -> Arc<Memo> {
    let kept = entry.memo.get_or_make(|| Arc::new(Memo::new(&entry.value())));
    // Nothing else in the process puts a memo on entries, so the type is ours.
    kept.downcast().unwrap_or_else(|_| Arc::new(Memo::new(&entry.value())))
}

/// Parses an entry's object.
pub(crate) fn parse(entry: &Entry) -> Map<String, Value> {
    // Entries are written by `encode` alone.
    serde_json::from_slice(&entry.value()).unwrap_or_default()
}

/// The parsed object of a small entry, kept with it: what admission looks up for every write is of this kind.
pub(crate) fn parsed(entry: &Entry) -> Option<Arc<Map<String, Value>>> {
    (entry.value_len() <= KEPT_PARSED_BYTES)
        .then(|| Arc::clone(memo(entry).object.get_or_init(|| Arc::new(parse(entry)))))
}

/// Parses an entry's object, and takes out its managers as the text that is stored: few look into it.
pub(crate) fn parse_apart(entry: &Entry) -> (Map<String, Value>, Option<Box<str>>) {
    match apart::parse(&entry.value()) {
        Ok(both) => both,
        Err(_) => {
            let mut object = parse(entry);
            let managers = object.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()?.remove(MANAGERS));
            (object, managers.map(|managers| managers.to_string().into()))
        }
    }
}

mod apart {
    //! Reads an object without reading its managers.

    use std::fmt;

    use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
    use serde_json::value::RawValue;
    use serde_json::{Map, Value};

    type Managers = Option<Box<str>>;

    pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<(Map<String, Value>, Managers)> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let mut managers = None;
        let object = Fields { managers: &mut managers, is_metadata: false }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        match object {
            Value::Object(object) => Ok((object, managers)),
            _ => Err(serde_json::Error::custom("not an object")),
        }
    }

    /// An object with the managers in it or in its metadata.
    struct Fields<'m> {
        managers: &'m mut Managers,
        is_metadata: bool,
    }

    impl<'de> DeserializeSeed<'de> for Fields<'_> {
        type Value = Value;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> Visitor<'de> for Fields<'_> {
        type Value = Value;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
            let mut map = Map::new();
            while let Some(key) = access.next_key::<String>()? {
                let value = match (self.is_metadata, key.as_str()) {
                    (false, "metadata") => {
                        access.next_value_seed(Fields { managers: &mut *self.managers, is_metadata: true })?
                    }
                    (true, super::MANAGERS) => {
                        *self.managers = Some(access.next_value::<&RawValue>()?.get().into());
                        continue;
                    }
                    _ => access.next_value()?,
                };
                map.insert(key, value);
            }
            Ok(Value::Object(map))
        }
    }
}

/// An entry with another object in its place; none when that would be the same.
pub(crate) fn instead(
    entry: &Arc<Entry>,
    object: &Map<String, Value>,
    api_version: &str,
    kind: &str,
) -> Option<Arc<Entry>> {
    let value = encode_at(object, api_version, kind, &entry.mod_revision.to_string());
    (value != entry.value())
        .then(|| Arc::new(Entry::new(Arc::clone(&entry.key), value, entry.create_revision, entry.mod_revision)))
}

/// A custom resource's entry as its definition would have it now; see [`convert::catch_up`].
pub(crate) fn caught_up(entry: Arc<Entry>, row: &ResourceInfo) -> Arc<Entry> {
    if entry.mod_revision.0 >= row.defined_at {
        return entry;
    }
    let make = || {
        let mut object = parse(&entry);
        convert::catch_up(row, &entry, &mut object);
        let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        Box::new((row.defined_at, instead(&entry, &object, &api_version, &row.kind)))
    };
    let memo = memo(&entry);
    // Nothing that holds it can panic half way.
    let mut known = memo.caught_up.lock().unwrap_or_else(PoisonError::into_inner);
    let now = match &*known {
        Some(made) if made.0 == row.defined_at => made.1.clone(),
        _ => known.insert(make()).1.clone(),
    };
    drop(known);
    now.unwrap_or(entry)
}

/// A selectable field's value, as text; empty when the object has none.
pub(crate) fn field_value(entry: &Entry, row: &ResourceInfo, version: &Version, path: &str) -> String {
    let memo = memo(entry);
    match path {
        "metadata.name" => return memo.name.to_string(),
        "metadata.namespace" => return memo.namespace.to_string(),
        _ => {}
    }
    let compute = || {
        let mut object = parse(entry);
        convert::catch_up(row, entry, &mut object);
        let object = Value::Object(convert::from_storage(row, version, object));
        version
            .selectable_fields
            .iter()
            .filter_map(|field| {
                let value = version.selectable_value(&object, &field.name)?;
                Some((field.name.to_string(), value.into_owned()))
            })
            .collect::<Texts>()
    };
    if row.is_custom || convert::is_view(row) {
        // A custom resource's selectable fields may change while the entry lives, and a view's
        // fields are not those that the memo holds.
        return compute().get(path).unwrap_or_default().to_owned();
    }
    memo.fields.get_or_init(compute).get(path).unwrap_or_default().to_owned()
}

/// The object's bytes behind another [`front`] and, if given, at another revision, without copying
/// more than the front. Usually one part, the stored value itself.
pub(crate) fn spliced(entry: &Entry, wanted: &Bytes, at: Option<Revision>) -> Vec<Bytes> {
    let value = entry.value();
    if at.is_none() && value.starts_with(wanted) {
        return vec![value];
    }
    let rest = value.slice(entry.front_len()..);
    let Some(at) = at else { return vec![wanted.clone(), rest] };
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut out = wanted.to_vec();
    out.extend_from_slice(at.to_string().as_bytes());
    vec![out.into(), rest.slice(digits..)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(object: &Value) -> Entry {
        let object = object.as_object().expect("object");
        Entry::new("/k".into(), encode_at(object, "v1", "Pod", "17"), Revision(17), Revision(17))
    }

    #[test]
    fn front_is_spliced() {
        let object = json!({
            "kind": "x", "spec": {"a": 1},
            "metadata": {"name": "n", "namespace": "s", "labels": {"a": "b"}, "resourceVersion": "1", "uid": "u"},
        });
        let entry = entry(&object);
        let text = |parts: Vec<Bytes>| String::from_utf8(parts.concat()).expect("utf-8");
        let stored = text(spliced(&entry, &front("v1", "Pod").into(), None));
        assert!(
            stored.starts_with(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"17","#),
            "{stored}"
        );
        let moved: Value =
            serde_json::from_str(&text(spliced(&entry, &front("g/v2", "Pod").into(), Some(Revision(230)))))
                .expect("json");
        assert_eq!(moved["apiVersion"], "g/v2");
        assert_eq!(moved["metadata"]["resourceVersion"], "230");
        assert_eq!(moved["metadata"]["name"], "n");
        assert_eq!(moved["spec"], json!({"a": 1}));
        let memo = memo(&entry);
        assert_eq!((&*memo.name, &*memo.namespace), ("n", "s"));
        assert_eq!(memo.labels.get("a"), Some("b"));
        let object = object.as_object().expect("object");
        assert_eq!(unstamped(&entry), encode(object, "v1", "Pod"));
        assert!(is_same(&entry, &encode(object, "v1", "Pod")));
        assert!(!is_same(&entry, &encode(object, "v1", "Pods")));
        assert!(!is_same(&entry, &encode(&Map::new(), "v1", "Pod")));
    }

    #[test]
    fn managers_go_apart_and_come_back() {
        for more in [json!({}), json!({"labels": {"a": "b"}}), json!({"namespace": "s", "uid": "u"})] {
            let mut object = json!({"kind": "Pod", "metadata": {"name": "n"}, "spec": {"x": [1, null, "é\\"]}});
            let managers = json!([{"manager": "m", "fieldsV1": {"f:a": {"k:{\"b\":\"c\"}": {}}}}]);
            object["metadata"].as_object_mut().expect("object").extend(more.as_object().cloned().expect("object"));
            let mut whole = object.clone();
            whole["metadata"]["managedFields"] = managers.clone();
            let (object, whole) = (object.as_object().expect("object"), whole.as_object().expect("object"));
            let stored = encode(whole, "v1", "Pod");
            let text = managers.to_string();
            assert_eq!(encode_managed(object, Some(&text), "v1", "Pod").expect("small"), stored);
            let (mut parsed, apart) = parse_apart(&entry(&Value::Object(whole.clone())));
            assert_eq!(apart.as_deref(), Some(text.as_str()));
            parsed.remove("apiVersion");
            parsed["metadata"].as_object_mut().expect("object").remove("resourceVersion");
            assert_eq!(parsed, *object);
        }
    }

    #[test]
    fn what_others_have_put_is_brought_into_form() {
        let protobuf = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0f\x0a\x05\x0a\x03bin\x12\x06\x0a\x01v\x12\x01x";
        let (of, b) = (|name: &str| json!({"metadata": {"name": name}, "data": {"v": "x"}}), Some("b"));
        for (value, want) in [
            (&br#"{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"v": "x"}}"#[..], Some("a")),
            (br#"{"data":{"v":"x"},"metadata":{"resourceVersion":"9","name":"b"},"kind":"ConfigMap","apiVersion":"v1"}"#, b),
            (protobuf, Some("bin")),
            (&protobuf[..20], None),
            (br#"{"kind": "ConfigMap", "metadata": {"name": "a"}}"#, None),
            (br#"{"kind": "ConfigMap", "apiVersion": "v1"}"#, None),
            (b"k8s\0", None),
            (b"[1]", None),
            (b"", None),
        ] {
            let want = want.map(|name| encode(of(name).as_object().expect("object"), "v1", "ConfigMap"));
            assert_eq!(stored_form(value), want, "{}", String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn bare_objects_encode() {
        let value = encode(&Map::new(), "v1", "X");
        assert_eq!(carrack_store::stamp_place(&value.bytes), value.stamp_at);
        let stamped = encode_at(&Map::new(), "v1", "X", "5");
        assert_eq!(value.stamp_at.map(|at| &value.bytes[..at]), Some(&stamped[..stamped.len() - 4]));
        let parsed: Value = serde_json::from_slice(&stamped).expect("json");
        assert_eq!(parsed["metadata"]["resourceVersion"], "5");
    }
}
