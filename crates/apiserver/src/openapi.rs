//! `/openapi/v2` and `/openapi/v3`: documents made from the catalog when they are asked for, and kept until what they
//! say changes.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use carrack_schema::openapi;
use carrack_schema::table::ResourceInfo;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use futures::future::join_all;
use futures::lock::Mutex;
use http::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use serde_json::Value;

use crate::accept::{ranges, takes_gzip};
use crate::aggregate::Part;
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

/// Documents by name. They are large and rarely asked for, so they are kept, and mostly sent, compressed.
#[derive(Default)]
pub(crate) struct Documents {
    /// Held while one is made: who asks for it meanwhile waits, without a thread.
    kept: Mutex<BTreeMap<String, Kept>>,
}

struct Kept {
    /// The generation of the catalog that it was held against last.
    generation: u64,
    /// What it says, in short: of this server's own, and of others.
    hash: String,
    others: String,
    document: Bytes,
}

impl Documents {
    /// A document. Where the catalog has changed since it was made, `hash` tells whether it would say something else, which
    /// costs less than to make it: of a definition that changes, only the documents of its group and the one of all are
    /// made again. `others` is what other servers say in it, in short.
    async fn get(
        &self,
        catalog: &Catalog,
        name: &str,
        others: &str,
        hash: impl FnOnce(&[&ResourceInfo]) -> String,
        make: impl FnOnce(&[&ResourceInfo]) -> Vec<u8>,
    ) -> Bytes {
        let generation = catalog.generation;
        let mut kept = self.kept.lock().await;
        let known = kept.get_mut(name).filter(|known| known.others == others);
        if let Some(known) = &known
            && known.generation == generation
        {
            return known.document.clone();
        }
        let rows: Vec<&ResourceInfo> = catalog.rows().iter().map(|row| &**row).collect();
        let hash = hash(&rows);
        if let Some(known) = known.filter(|known| known.hash == hash) {
            known.generation = generation;
            return known.document.clone();
        }
        let document = compressed(&make(&rows));
        // Those of groups that are gone would be asked for no more.
        kept.retain(|name, _| openapi::split_path(name).is_none_or(|(group, version)| catalog.serves(group, version)));
        kept.insert(name.to_owned(), Kept { generation, hash, others: others.to_owned(), document: document.clone() });
        document
    }
}

/// Answers a path below `/openapi/`.
pub(crate) async fn answer(server: &ApiServer, path: &str, headers: &HeaderMap) -> Result<Response, Status> {
    let catalog = server.catalog().await?;
    let documents = &server.inner.documents;
    match path {
        "/openapi/v2" => v2(server, &catalog, headers).await,
        "/openapi/v3" => {
            let remotes = server.inner.remotes().await?;
            // Side by side: several that are silent take no longer than one.
            let known = &server.inner.remote_documents;
            let asked = remotes.values().map(|remote| known.openapi(&server.inner, remote));
            let others: Vec<(String, String)> = join_all(asked).await.into_iter().flatten().collect();
            let state = |_: &[&ResourceInfo]| catalog.generation.to_string();
            let index = |rows: &[&ResourceInfo]| {
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
            };
            let document = documents.get(&catalog, "v3", &format!("{others:?}"), state, index).await;
            send(HeaderValue::from_static("application/json"), &document, headers)
        }
        _ => {
            let name = path.strip_prefix("/openapi/v3/").ok_or_else(Status::no_such_path)?;
            let (group, version) = openapi::split_path(name).ok_or_else(Status::no_such_path)?;
            if !catalog.serves(group, version) {
                return Err(Status::no_such_path());
            }
            let hash = |rows: &[&ResourceInfo]| openapi::v3_hash(group, version, rows);
            let whole = |rows: &[&ResourceInfo]| openapi::v3_document(group, version, rows);
            let document = documents.get(&catalog, name, "", hash, whole).await;
            send(HeaderValue::from_static("application/json"), &document, headers)
        }
    }
}

async fn v2(server: &ApiServer, catalog: &Catalog, headers: &HeaderMap) -> Result<Response, Status> {
    let (documents, remotes) = (&server.inner.documents, server.inner.remotes().await?);
    let known = &server.inner.remote_documents;
    let asked = remotes.values().map(|remote| known.v2_part(&server.inner, remote));
    let parts: Vec<Arc<Part>> = join_all(asked).await.into_iter().flatten().collect();
    let others: String = parts.iter().map(|part| part.hash.as_str()).collect();
    let parts: Vec<&Value> = parts.iter().map(|part| &part.said).collect();
    for range in ranges(headers) {
        if V2_PROTOBUF_ALIASES.contains(&range.media_type.as_str()) {
            let whole = |rows: &[&ResourceInfo]| openapi::v2_protobuf(rows, &parts);
            let document = documents.get(catalog, "v2.pb", &others, openapi::v2_hash, whole).await;
            let content_type = HeaderValue::from_static(V2_PROTOBUF_ANSWER);
            return send(content_type, &document, headers);
        }
        if range.takes_json() {
            let whole = |rows: &[&ResourceInfo]| openapi::v2_json(rows, &parts);
            let document = documents.get(catalog, "v2", &others, openapi::v2_hash, whole).await;
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::catalog::CatalogFold;
    use crate::follow::Fold as _;
    use crate::runtime_config::RuntimeConfig;

    #[test]
    fn documents_are_made_when_they_say_something_new() {
        let (documents, mut fold) = (Documents::default(), CatalogFold::new(&RuntimeConfig::default()));
        let mut made = 0;
        for (name, hash, others, changes, want) in [
            ("api/v1", "a", "", true, 1),
            ("v2", "a", "", true, 2),
            // The catalog has changed, and not what they say.
            ("api/v1", "a", "", true, 2),
            ("v2", "b", "", true, 3),
            ("api/v1", "b", "", true, 4),
            ("apis/gone.example.com/v1", "a", "", true, 5),
            // With one that was made anew, those of groups that are gone go.
            ("v2", "c", "", true, 6),
            ("apis/gone.example.com/v1", "a", "", true, 7),
            // Other servers say something else, or the same.
            ("v2", "c", "x", false, 8),
            ("v2", "c", "x", false, 8),
            ("v2", "c", "x", true, 8),
            ("v2", "c", "", true, 9),
        ] {
            if changes {
                fold.settle();
            }
            let catalog = fold.catalog();
            let make = |_: &[&ResourceInfo]| {
                made += 1;
                Vec::<u8>::new()
            };
            let document = documents.get(&catalog, name, others, |_| hash.to_owned(), make).now_or_never();
            assert!(document.is_some(), "nobody holds them");
            assert_eq!(made, want, "{name} {hash} {others}");
        }
    }
}
