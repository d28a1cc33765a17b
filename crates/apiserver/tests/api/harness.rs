//! A cluster of one API server over a store in memory, and the means to ask it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use carrack_apiserver::body::Lines;
use carrack_apiserver::{ApiServer, Body, Config, Env, Response, RuntimeConfig};
use carrack_auth::Caller;
use carrack_store::MemStore;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use serde_json::Value;

/// A clock that is set and numbers that count.
pub struct TestEnv {
    now_s: AtomicI64,
    random: AtomicU64,
}

impl TestEnv {
    pub fn advance(&self, seconds: i64) {
        self.now_s.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Env for TestEnv {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.now_s.load(Ordering::Relaxed)).expect("in range")
    }
    fn random(&self) -> u64 {
        // SplitMix64, so that the numbers look random and are the same in each run.
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Polls a future that must be ready at once.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the logic waited for something"),
    }
}

pub struct Cluster {
    pub api: ApiServer,
    pub env: Arc<TestEnv>,
    pub store: Arc<MemStore>,
}

pub struct Reply {
    pub code: u16,
    pub headers: HeaderMap,
    pub json: Value,
}

impl Reply {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.json);
        self.json
    }

    /// A refusal with this code, reason and message.
    #[track_caller]
    pub fn refused(self, code: u16, reason: &str, message: &str) -> Value {
        assert_eq!((self.code, self.json["reason"].as_str().unwrap_or("")), (code, reason), "{}", self.json);
        assert_eq!(self.json["kind"], "Status");
        assert_eq!(self.json["code"], code);
        assert!(
            self.json["message"].as_str().unwrap_or("").contains(message),
            "{:?} is not in {}",
            message,
            self.json["message"]
        );
        self.json
    }
}

impl Cluster {
    /// A cluster with its bootstrap objects and the default service account of `default`.
    pub fn new() -> Cluster {
        Cluster::with(|_| {})
    }

    /// The same with more APIs, or fewer, in the words of `--runtime-config`.
    pub fn serving(words: &[&str]) -> Cluster {
        let runtime = RuntimeConfig::parse(words.iter().copied()).expect("a configuration");
        Cluster::with(|config| config.runtime = runtime)
    }

    pub fn with(configure: impl FnOnce(&mut Config)) -> Cluster {
        let env = Arc::new(TestEnv { now_s: AtomicI64::new(1_800_000_000), random: AtomicU64::new(7) });
        let store = Arc::new(MemStore::default());
        let mut config = Config::new(store.clone(), env.clone());
        configure(&mut config);
        let api = ApiServer::new(config);
        now(api.bootstrap()).expect("bootstrap");
        let cluster = Cluster { api, env, store };
        let account = serde_json::json!({"metadata": {"name": "default"}});
        cluster.post("/api/v1/namespaces/default/serviceaccounts", &account).expect(201);
        cluster
    }

    pub fn raw(&self, caller: Caller, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Response {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        now(self.api.handle(request.body(body).expect("request"), caller))
    }

    pub fn request(&self, caller: Caller, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let response = self.raw(caller, method, path, headers, body);
        let (head, body) = response.into_parts();
        let bytes = body.into_bytes();
        let json = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Reply { code: head.status.as_u16(), headers: head.headers, json }
    }

    fn admin(&self, method: Method, path: &str, content_type: &str, body: &Value) -> Reply {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.request(Caller::new("admin", ["system:masters"]), method, path, &[("content-type", content_type)], body)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.admin(Method::GET, path, "application/json", &Value::Null)
    }

    pub fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.request(Caller::apiserver(), Method::GET, path, &[("accept", accept)], Bytes::new())
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.admin(Method::POST, path, "application/json", body)
    }

    pub fn put(&self, path: &str, body: &Value) -> Reply {
        self.admin(Method::PUT, path, "application/json", body)
    }

    pub fn merge(&self, path: &str, patch: &Value) -> Reply {
        self.admin(Method::PATCH, path, "application/merge-patch+json", patch)
    }

    pub fn patch(&self, path: &str, content_type: &str, patch: &Value) -> Reply {
        self.admin(Method::PATCH, path, content_type, patch)
    }

    pub fn delete(&self, path: &str) -> Reply {
        self.admin(Method::DELETE, path, "application/json", &Value::Null)
    }

    pub fn delete_with(&self, path: &str, options: &Value) -> Reply {
        self.admin(Method::DELETE, path, "application/json", options)
    }

    pub fn user(&self, user: &str, method: Method, path: &str, body: &Value) -> Reply {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.request(Caller::new(user, [""; 0]), method, path, &[("content-type", "application/json")], body)
    }

    #[track_caller]
    pub fn watch(&self, path: &str) -> Watching {
        self.watch_as(path, "application/json")
    }

    #[track_caller]
    pub fn watch_as(&self, path: &str, accept: &str) -> Watching {
        let caller = Caller::new("admin", ["system:masters"]);
        let response = self.raw(caller, Method::GET, path, &[("accept", accept)], Bytes::new());
        assert_eq!(response.status(), 200);
        match response.into_body() {
            Body::Watch { lines, .. } => Watching { lines, rest: Vec::new(), ended: false },
            other => panic!("no watch: {other:?}"),
        }
    }

    /// Creates a pod bound to a node, so that it is deleted gracefully.
    pub fn running_pod(&self, name: &str) -> Value {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = "n1".into();
        self.post("/api/v1/namespaces/default/pods", &pod).expect(201)
    }
}

/// A pod that is valid and asks for nothing.
pub fn pod(name: &str) -> Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

/// A config map with one value.
pub fn config_map(name: &str, value: &str) -> Value {
    serde_json::json!({"metadata": {"name": name}, "data": {"v": value}})
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub struct Watching {
    lines: Lines,
    rest: Vec<u8>,
    pub ended: bool,
}

impl Watching {
    /// All events that are there now.
    pub fn events(&mut self) -> Vec<Value> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match Pin::as_mut(&mut self.lines).poll_next(&mut cx) {
                Poll::Ready(Some(bytes)) => self.rest.extend_from_slice(&bytes),
                Poll::Ready(None) => {
                    self.ended = true;
                    break;
                }
                Poll::Pending => break,
            }
        }
        let text = String::from_utf8(std::mem::take(&mut self.rest)).expect("utf-8");
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// The events as `TYPE name`.
    pub fn summary(&mut self) -> Vec<String> {
        self.events()
            .iter()
            .map(|event| {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
                format!("{} {name}", event["type"].as_str().unwrap_or("?"))
            })
            .collect()
    }
}

/// The resourceVersion of an object or list, as a number.
pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("resourceVersion")
}

/// The names in a list.
pub fn names(list: &Value) -> Vec<String> {
    list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}
