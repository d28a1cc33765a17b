//! The world of an API server in tests on real sockets: today's clock, numbers that count up, calls that go out.

use std::sync::atomic::{AtomicU64, Ordering};

use carrack_apiserver::serve::Outbound;
use carrack_apiserver::{Call, Calling, Dialing, Env};

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
