//! The world of an API server in tests on real sockets: today's clock, numbers that count up, calls that go out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use carrack_apiserver::serve::Outbound;
use carrack_apiserver::{Call, Calling, Dialing, Env, storage_prefix};
use carrack_store::{Op, Store, Txn, stamp_place};
use serde_json::Value;

pub struct TestEnv {
    random: AtomicU64,
    outbound: Outbound,
}

impl TestEnv {
    pub fn new(outbound: Outbound) -> TestEnv {
        TestEnv { random: AtomicU64::new(1), outbound }
    }
}

impl Env for TestEnv {
    #[expect(clippy::disallowed_methods, reason = "certificates are valid now, and only now")]
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
    fn call(&self, call: Call) -> Calling {
        self.outbound.call(call)
    }
    fn dial(&self, call: &Call) -> Dialing {
        self.outbound.dial(call)
    }
}

/// Puts a slice of endpoints into the store: the API takes none that are in this machine.
pub async fn put_slice(store: &dyn Store, name: &str, slice: &Value) {
    let key = storage_prefix("discovery.k8s.io", "endpointslices", Some("default")) + name;
    let text = slice.to_string();
    let value = carrack_store::Value { stamp_at: stamp_place(text.as_bytes()), bytes: text.into() };
    let ops = vec![Op::Put(Arc::from(key), value)];
    store.transact(Txn { checks: Vec::new(), ops }).await.expect("committed");
}
