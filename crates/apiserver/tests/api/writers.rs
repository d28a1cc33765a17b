//! Many writers at once, on the store that writes to disk: no write that was acknowledged is lost, and
//! none is made on the grounds of what is no longer so.
#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use carrack_apiserver::{ApiServer, Config, Env};
use carrack_engine::{ApiError, ApiRequest, ContentType, Method, Transport};
use carrack_store::EmbeddedStore;
use carrack_store::embedded::Options;
use serde_json::{Value, json};

struct TestEnv(AtomicU64);

impl Env for TestEnv {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
    fn random(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

fn request(method: Method, path: &str, content_type: ContentType, body: &Value) -> ApiRequest {
    let mut request = ApiRequest::new(method, path);
    request.content_type = content_type;
    if !body.is_null() {
        request.body = body.to_string().into();
    }
    request
}

async fn read(client: &dyn Transport, path: &str) -> Value {
    let reply = client.send(request(Method::Get, path, ContentType::Json, &Value::Null)).await.expect("get");
    reply.json().expect("json")
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 8;
const WRITES: usize = 25;

async fn server(directory: &tempfile::TempDir) -> ApiServer {
    let store = EmbeddedStore::open(directory.path(), Options::default()).expect("store");
    let api = ApiServer::new(Config::new(Arc::new(store), Arc::new(TestEnv(AtomicU64::new(1)))));
    api.bootstrap().await.expect("bootstrap");
    api
}

/// Each finds things missing that another one makes meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_together_on_one_store_all_start() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store = Arc::new(EmbeddedStore::open(directory.path(), Options::default()).expect("store"));
    let start = |seed: u64| {
        let store = store.clone();
        tokio::spawn(async move {
            ApiServer::new(Config::new(store, Arc::new(TestEnv(AtomicU64::new(seed))))).bootstrap().await
        })
    };
    for server in [start(1), start(2), start(3)] {
        assert_eq!(server.await.expect("no panic"), Ok(()));
    }
}

/// So do those that find the same things removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_on_one_store_all_restore_what_was_removed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store = Arc::new(EmbeddedStore::open(directory.path(), Options::default()).expect("store"));
    let servers =
        [1, 2, 3].map(|seed| ApiServer::new(Config::new(store.clone(), Arc::new(TestEnv(AtomicU64::new(seed))))));
    for server in &servers {
        server.bootstrap().await.expect("bootstrap");
    }
    let client = servers[0].client_as("admin", ["system:masters"]);
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let paths = [
        format!("{flow}/flowschemas/catch-all"),
        format!("{flow}/prioritylevelconfigurations/catch-all"),
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps".to_owned(),
    ];
    for path in &paths {
        client.send(request(Method::Delete, path, ContentType::Json, &Value::Null)).await.expect("deleted");
    }
    // Who meets another one looks again.
    for _ in 0..2 {
        let restoring = servers.clone().map(|server| tokio::spawn(async move { server.restore().await }));
        for server in restoring {
            assert_eq!(server.await.expect("no panic"), Ok(()));
        }
    }
    for path in &paths {
        read(&client, path).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_increment_is_lost() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let api = server(&directory).await;
    let client = api.client_as("admin", ["system:masters"]);
    let made = json!({"metadata": {"name": "m"}, "data": {"count": "0"}});
    client.send(request(Method::Post, MAPS, ContentType::Json, &made)).await.expect("created");
    let path = format!("{MAPS}/m");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (client, path) = (client.clone(), path.clone());
            tokio::spawn(async move {
                let mut conflicts = 0;
                for i in 0..WRITES {
                    loop {
                        let mut object = read(&client, &path).await;
                        let count: usize =
                            object["data"]["count"].as_str().and_then(|c| c.parse().ok()).expect("count");
                        object["data"]["count"] = (count + 1).to_string().into();
                        match client.send(request(Method::Put, &path, ContentType::Json, &object)).await {
                            Ok(_) => break,
                            Err(error) if error.is_conflict() => conflicts += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    // Patches without a revision are applied to whatever is newest.
                    let patch = json!({"data": {format!("w{writer}-{i}"): "done"}});
                    client.send(request(Method::Patch, &path, ContentType::MergePatch, &patch)).await.expect("patched");
                }
                conflicts
            })
        })
        .collect();
    let mut conflicts = 0;
    for writer in writers {
        conflicts += writer.await.expect("writer");
    }
    let object = read(&client, &path).await;
    assert_eq!(object["data"]["count"], (WRITERS * WRITES).to_string());
    assert_eq!(object["data"].as_object().map(serde_json::Map::len), Some(WRITERS * WRITES + 1));
    assert!(conflicts > 0, "the writers never met");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_created_in_a_namespace_that_has_ended() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let api = server(&directory).await;
    let client = api.client_as("admin", ["system:masters"]);
    for round in 0..10 {
        let name = format!("n{round}");
        let namespace = json!({"metadata": {"name": name}});
        client.send(request(Method::Post, "/api/v1/namespaces", ContentType::Json, &namespace)).await.expect("created");
        let inside = format!("/api/v1/namespaces/{name}/configmaps");
        let creators: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, inside) = (client.clone(), inside.clone());
                tokio::spawn(async move {
                    for i in 0..20 {
                        let object = json!({"metadata": {"name": format!("m{writer}-{i}")}});
                        match client.send(request(Method::Post, &inside, ContentType::Json, &object)).await {
                            Ok(_) => {}
                            Err(ApiError::Status(status)) if status.code == 403 => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        let path = format!("/api/v1/namespaces/{name}");
        let marked =
            client.send(request(Method::Delete, &path, ContentType::Json, &Value::Null)).await.expect("deleted");
        let ended = marked.json::<Value>().expect("json")["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|r| r.parse::<u64>().ok());
        for creator in creators {
            creator.await.expect("creator");
        }
        let list = read(&client, &inside).await;
        let late: Vec<_> = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .filter(|item| item["metadata"]["resourceVersion"].as_str().and_then(|r| r.parse().ok()) > ended)
            .collect();
        assert!(late.is_empty(), "created after the end: {late:?}");
    }
}

#[tokio::test]
async fn a_second_start_writes_nothing() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let first = server(&directory).await;
    let before = first.store().revision();
    first.bootstrap().await.expect("bootstrap");
    assert_eq!(first.store().revision(), before);
}

/// Who deletes a collection is answered with all of it, unless nobody reads that.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_not_put_together() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let client = server(&directory).await.client_as("admin", ["system:masters"]);
    for unread in [false, true] {
        for name in ["a", "b"] {
            let made = json!({"metadata": {"name": name, "labels": {"mine": "yes"}}});
            client.send(request(Method::Post, MAPS, ContentType::Json, &made)).await.expect("created");
        }
        let all = format!("{MAPS}?labelSelector=mine");
        let delete = request(Method::Delete, &all, ContentType::Json, &Value::Null);
        let reply = client.send(if unread { delete.unread() } else { delete }).await.expect("deleted");
        assert_eq!(reply.body.is_empty(), unread);
        assert_eq!(read(&client, &all).await["items"], json!([]), "{unread}");
        let missing = request(Method::Delete, &format!("{MAPS}/a"), ContentType::Json, &Value::Null).unread();
        let refused = client.send(missing).await.expect_err("it is gone");
        assert!(refused.is_not_found(), "what is refused is told: {refused}");
    }
}
