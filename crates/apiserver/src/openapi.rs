//! `/openapi/v2` and `/openapi/v3`: documents made from the catalog, kept until it changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use carrack_schema::openapi;
use carrack_schema::table::ResourceInfo;
use http::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};

use crate::accept::ranges;
use crate::body::{Body, Response, json, typed};
use crate::catalog::Catalog;
use crate::server::ApiServer;
use crate::status::Status;

/// The media type of the protobuf form, which older clients ask for and nothing else.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The name without the version, and newer clients' spelling of it.
const V2_PROTOBUF_ALIASES: [&str; 3] = [
    V2_PROTOBUF,
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.googleapis.gnostic.openapiv2+protobuf",
];

/// Documents by name, for one generation of the catalog.
#[derive(Default)]
pub(crate) struct Documents {
    kept: Mutex<(u64, BTreeMap<String, Bytes>)>,
}

impl Documents {
    fn get(&self, catalog: &Catalog, name: &str, make: impl FnOnce(&[&ResourceInfo]) -> Vec<u8>) -> Bytes {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 != catalog.generation {
            *kept = (catalog.generation, BTreeMap::new());
        }
        if let Some(document) = kept.1.get(name) {
            return document.clone();
        }
        let rows: Vec<&ResourceInfo> = catalog.rows().iter().map(|row| &**row).collect();
        let document = Bytes::from(make(&rows));
        kept.1.insert(name.to_owned(), document.clone());
        document
    }
}

/// Answers a path below `/openapi/`.
pub(crate) async fn answer(server: &ApiServer, path: &str, headers: &HeaderMap) -> Result<Response, Status> {
    let catalog = server.catalog().await?;
    let documents = &server.inner.documents;
    match path {
        "/openapi/v2" => v2(documents, &catalog, headers),
        "/openapi/v3" => {
            let document = documents.get(&catalog, "v3", |rows| {
                let paths: Vec<(String, String)> = openapi::v3_paths(rows)
                    .into_iter()
                    .map(|path| {
                        let hash = v3_hash(&catalog, &path);
                        (path, hash)
                    })
                    .collect();
                openapi::v3_index(&paths)
            });
            Ok(with_etag(json(200, Body::Full(document.clone())), &document, headers))
        }
        _ => {
            let name = path.strip_prefix("/openapi/v3/").ok_or_else(Status::no_such_path)?;
            let (group, version) = group_version(name).ok_or_else(Status::no_such_path)?;
            if !catalog.serves(group, version) {
                return Err(Status::no_such_path());
            }
            let document = documents.get(&catalog, name, |rows| openapi::v3_document(group, version, rows));
            Ok(with_etag(json(200, Body::Full(document.clone())), &document, headers))
        }
    }
}

fn group_version(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("api/") {
        Some(version) => Some(("", version)),
        None => path.strip_prefix("apis/")?.split_once('/'),
    }
}

/// What a document is made of, in short: clients keep documents by this. Rows of built-in groups never
/// change within one build; those of custom groups change with the catalog.
fn v3_hash(catalog: &Catalog, path: &str) -> String {
    let custom = group_version(path)
        .is_some_and(|(group, _)| catalog.rows().iter().any(|row| row.group == group && row.is_custom));
    let generation = if custom { catalog.generation } else { 0 };
    let mut seed = format!("{}/{generation}/{path}", env!("CARGO_PKG_VERSION"));
    if custom {
        for row in catalog.rows().iter().filter(|row| row.is_custom) {
            seed.push_str(&format!("{row:?}"));
        }
    }
    format!("{:016X}", fnv(seed.as_bytes()))
}

fn v2(documents: &Documents, catalog: &Arc<Catalog>, headers: &HeaderMap) -> Result<Response, Status> {
    for range in ranges(headers) {
        if V2_PROTOBUF_ALIASES.contains(&range.media_type.as_str()) {
            let document = documents.get(catalog, "v2.pb", openapi::v2_protobuf);
            let content_type = HeaderValue::from_static(V2_PROTOBUF);
            return Ok(with_etag(typed(200, content_type, Body::Full(document.clone())), &document, headers));
        }
        if range.takes_json() {
            let document = documents.get(catalog, "v2", openapi::v2_json);
            return Ok(with_etag(json(200, Body::Full(document.clone())), &document, headers));
        }
    }
    Err(Status::not_acceptable("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf"))
}

fn with_etag(mut response: Response, document: &Bytes, headers: &HeaderMap) -> Response {
    let etag = format!("\"{:016X}\"", fnv(document));
    if headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == etag.as_bytes()) {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::Full(Bytes::new());
    }
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

/// A 64-bit FNV-1a hash: names a document's content, and protects nothing.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
