//! `/openapi/v2` and `/openapi/v3`: documents made from the catalog, kept until it changes.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use carrack_schema::openapi;
use carrack_schema::table::ResourceInfo;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};

use crate::accept::{ranges, takes_gzip};
use crate::body::Response;
use crate::catalog::Catalog;
use crate::etag;
use crate::server::ApiServer;
use crate::status::Status;

/// The media type of the protobuf form, which older clients ask for and nothing else.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// What the protobuf form is called in answers: Go refuses a media type with `@` in it, and with it
/// Debian's kubectl the whole answer.
const V2_PROTOBUF_ANSWER: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The name without the version, and newer clients' spelling of it.
const V2_PROTOBUF_ALIASES: [&str; 3] = [
    V2_PROTOBUF,
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.googleapis.gnostic.openapiv2+protobuf",
];

/// What names of the index begin with.
const INDEX: &str = "v3 ";

/// Documents by name, for one generation of the catalog. They are large and rarely asked for, so they
/// are kept, and mostly sent, compressed.
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
        let document = compressed(&make(&rows));
        // Of the index there is one for each state of the other servers, of which the last counts.
        kept.1.retain(|known, _| !(known.starts_with(INDEX) && name.starts_with(INDEX)));
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
            let remotes = server.inner.remotes().await?;
            let id = |remote: &crate::aggregate::Remote| {
                (format!("apis/{}/{}", remote.group, remote.version), format!("{:016X}", remote.revision))
            };
            let others: Vec<(String, String)> = remotes.values().map(|remote| id(remote)).collect();
            let document = documents.get(&catalog, &format!("{INDEX}{others:?}"), |rows| {
                let mut paths: Vec<(String, String)> = openapi::v3_paths(rows)
                    .into_iter()
                    .map(|path| {
                        let (group, version) = openapi::split_path(&path).unwrap_or_default();
                        let hash = openapi::v3_hash(group, version, rows);
                        (path, hash)
                    })
                    .collect();
                paths.extend(others.iter().cloned());
                openapi::v3_index(&paths)
            });
            send(HeaderValue::from_static("application/json"), &document, headers)
        }
        _ => {
            let name = path.strip_prefix("/openapi/v3/").ok_or_else(Status::no_such_path)?;
            let (group, version) = openapi::split_path(name).ok_or_else(Status::no_such_path)?;
            if !catalog.serves(group, version) {
                return Err(Status::no_such_path());
            }
            let document = documents.get(&catalog, name, |rows| openapi::v3_document(group, version, rows));
            send(HeaderValue::from_static("application/json"), &document, headers)
        }
    }
}

fn v2(documents: &Documents, catalog: &Arc<Catalog>, headers: &HeaderMap) -> Result<Response, Status> {
    for range in ranges(headers) {
        if V2_PROTOBUF_ALIASES.contains(&range.media_type.as_str()) {
            let document = documents.get(catalog, "v2.pb", openapi::v2_protobuf);
            let content_type = HeaderValue::from_static(V2_PROTOBUF_ANSWER);
            return send(content_type, &document, headers);
        }
        if range.takes_json() {
            let document = documents.get(catalog, "v2", openapi::v2_json);
            return send(HeaderValue::from_static("application/json"), &document, headers);
        }
    }
    Err(Status::not_acceptable("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf"))
}

fn compressed(document: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail; a client would see an empty document.
    encoder.write_all(document).and_then(|()| encoder.finish()).unwrap_or_default().into()
}

/// Sends a compressed document as the client takes it.
fn send(content_type: HeaderValue, document: &Bytes, headers: &HeaderMap) -> Result<Response, Status> {
    let (tag, zipped) = (etag::of(document), takes_gzip(headers));
    let body = match (etag::is_known(headers, &tag), zipped) {
        (true, _) => None,
        (false, true) => Some(document.clone()),
        (false, false) => {
            let mut plain = Vec::new();
            GzDecoder::new(&document[..]).read_to_end(&mut plain).map_err(Status::internal)?;
            Some(plain.into())
        }
    };
    let is_sent = body.is_some();
    let mut response = etag::reply(content_type, &tag, "Accept-Encoding, Accept", body);
    if zipped && is_sent {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}
