//! Bodies in Kubernetes' protobuf encoding, which Go clients send for built-in kinds.
//!
//! ```text
//!   "k8s\0" Unknown{ TypeMeta, raw } ─► raw + field numbers + OpenAPI schema ─► JSON object
//! ```
//!
//! Only field numbers are kept here ([`numbers`]); names and types come from the same schemas that
//! JSON bodies are checked against. Replies are always JSON, which these clients accept as well.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding>

mod message;
mod numbers;
mod wire;

use serde_json::{Map, Value};

use carrack_schema::builtin;
use carrack_schema::table::{self, SchemaSource};

/// The media type.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Messages nest no deeper.
const MAX_DEPTH: usize = 64;

/// A body that has been read.
pub(crate) struct Decoded {
    pub object: Map<String, Value>,
    /// Fields that the schema does not have.
    pub unknown: Vec<String>,
}

/// What a body says of itself, and what it says it of.
#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Self, String> {
        let rest = body.strip_prefix(MAGIC).ok_or("it does not begin with k8s\\0")?;
        let mut envelope = Self::default();
        for field in wire::fields(rest) {
            let (number, value) = field?;
            match (number, value) {
                (1, wire::Value::Bytes(type_meta)) => {
                    for field in wire::fields(type_meta) {
                        let (number, value) = field?;
                        let place = match number {
                            1 => &mut envelope.api_version,
                            2 => &mut envelope.kind,
                            _ => continue,
                        };
                        if let wire::Value::Bytes(text) = value {
                            *place = String::from_utf8_lossy(text).into_owned();
                        }
                    }
                }
                (2, wire::Value::Bytes(bytes)) => envelope.raw = bytes,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

/// Reads an object as upstream stores it: which built-in type it is of, it says itself. None for what cannot be read.
pub(crate) fn decode_stored(value: &[u8]) -> Option<Map<String, Value>> {
    let Envelope { api_version, kind, .. } = Envelope::read(value).ok()?;
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version.as_str()));
    let version = table::find_kind(group, &kind)?.version(version)?;
    let SchemaSource::Builtin(type_name) = &version.schema else { return None };
    decode(value, type_name.as_ref()).ok().map(|decoded| decoded.object)
}

/// Reads a body as an object of a built-in type, given by its OpenAPI name. The error says what is
/// wrong with it.
pub(crate) fn decode(body: &[u8], type_name: &str) -> Result<Decoded, String> {
    let Envelope { api_version, kind, raw } = Envelope::read(body)?;
    let schema = builtin::schema(type_name).ok_or_else(|| format!("{type_name} is not known"))?;
    let fields = numbers::of(type_name).ok_or_else(|| format!("{type_name} has no protobuf form"))?;
    let mut reader = message::Reader::default();
    let mut object = Map::new();
    reader.message(raw, fields, schema, &mut object, MAX_DEPTH)?;
    for (key, text) in [("apiVersion", api_version), ("kind", kind)] {
        if !text.is_empty() {
            object.insert(key.to_owned(), text.into());
        }
    }
    Ok(Decoded { object, unknown: reader.unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn what_kubectl_sends_for_a_config_map() {
        // `kubectl create configmap x --from-literal=a=b`, as seen on the wire.
        let raw = [
            &[0x0a, 0x11, 0x0a, 0x01, b'x', 0x12, 0x00, 0x1a, 0x00, 0x22, 0x00, 0x2a, 0x00, 0x32, 0x00][..],
            &[0x38, 0x00, 0x42, 0x00, 0x12, 0x06, 0x0a, 0x01, b'a', 0x12, 0x01, b'b'],
        ]
        .concat();
        let decoded = decode(&envelope("v1", "ConfigMap", &raw), "io.k8s.api.core.v1.ConfigMap").expect("decodes");
        assert_eq!(
            Value::Object(decoded.object),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}})
        );
        assert!(decoded.unknown.is_empty());
    }

    #[test]
    fn the_peculiar_types() {
        // A Secret's bytes; a Probe's inlined handler with an int-or-string; a quantity; a time.
        let secret = field(2, &[field(1, b"k"), field(2, &[0, 255])].concat());
        let decoded = decode(&envelope("v1", "Secret", &secret), "io.k8s.api.core.v1.Secret").expect("decodes");
        assert_eq!(decoded.object["data"], json!({"k": "AP8="}));

        let port = [vec![0x08, 0x00, 0x10, 0x50], field(3, b"")].concat();
        let http_get = [field(1, b"/x"), field(2, &port)].concat();
        let probe = [field(1, &field(2, &http_get)), vec![0x18, 0x00, 0x20, 0x05]].concat();
        let container = [
            field(1, b"c"),
            field(10, &probe),
            field(8, &field(2, &[field(1, b"cpu"), field(2, &field(1, b"100m"))].concat())),
        ]
        .concat();
        let pod = [
            field(1, &[field(1, b"p"), field(9, &[0x08, 0x80, 0x94, 0xeb, 0xdc, 0x03])].concat()),
            field(2, &field(2, &container)),
        ]
        .concat();
        let decoded = decode(&envelope("v1", "Pod", &pod), "io.k8s.api.core.v1.Pod").expect("decodes");
        let container = &decoded.object["spec"]["containers"][0];
        assert_eq!(container["livenessProbe"], json!({"httpGet": {"path": "/x", "port": 80}, "periodSeconds": 5}));
        assert_eq!(container["resources"]["requests"], json!({"cpu": "100m"}));
        assert_eq!(decoded.object["metadata"]["deletionTimestamp"], "2001-09-09T01:46:40Z");
    }

    /// What a definition says beyond OpenAPI has dashes in its name, and none in a message.
    #[test]
    fn extensions_of_schemas() {
        let rule = field(1, b"true");
        let schema = [
            field(5, b"object"),
            // Nullable 37, preserving 38, embedded 39 and a rule 44, whose tags take two bytes.
            vec![0xa8, 0x02, 0x00, 0xb0, 0x02, 0x01, 0xb8, 0x02, 0x00, 0xe2, 0x02, 0x06],
            rule,
        ]
        .concat();
        let version = [field(1, b"v1"), field(4, &field(1, &schema))].concat();
        let definition =
            envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &field(2, &field(7, &version)));
        let type_name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        let decoded = decode(&definition, type_name).expect("decodes");
        assert_eq!(
            decoded.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": [{"rule": "true"}]})
        );
        assert_eq!(decoded.unknown, [""; 0]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_end_in_an_object_or_a_reason(raw in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
            for type_name in ["io.k8s.api.core.v1.Pod", "io.k8s.api.core.v1.Secret", "io.k8s.api.apps.v1.Deployment"] {
                let whole = decode(&envelope("v1", "X", &raw), type_name);
                proptest::prop_assert!(whole.is_ok() || whole.is_err_and(|why| !why.is_empty()));
            }
        }
    }

    #[test]
    fn bodies_that_are_broken() {
        for body in
            [&b"{}"[..], b"k8s\0\x12", b"k8s\0\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"k8s\0\x12\x05ab"]
        {
            assert!(decode(body, "io.k8s.api.core.v1.Pod").is_err(), "{body:?}");
        }
        // Nested without end.
        let mut raw = Vec::new();
        for _ in 0..40 {
            raw = field(1, &raw);
        }
        assert!(decode(&envelope("v1", "Pod", &raw), "io.k8s.api.core.v1.Pod").is_ok());
        let unknown = decode(&envelope("v1", "Pod", &[0x98, 0x3e, 0x01]), "io.k8s.api.core.v1.Pod").expect("decodes");
        assert_eq!(unknown.unknown, ["<field 995>"]);
    }
}
