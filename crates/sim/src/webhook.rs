//! A mutating webhook that the simulated API server asks about pods: it answers late, fails, and lies.
//!
//! Its configuration says that failures do not matter (`failurePolicy: Ignore`), so a cluster must get on whatever it
//! does. What it is good for is the time that a write spends between what it read and what it stores.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use carrack_apiserver::{Answer, Call, CallError, Calling};
use carrack_engine::Rng;
use serde_json::{Value, json};

use crate::chance::Delay;
use crate::storage::Pace;

/// `[{"op":"add","path":"/metadata/annotations/hook.example.com~1seen","value":"yes"}]`, where there are annotations, is
/// what the webhook would say; where there are none, the whole of them.
const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2Fubm90YXRpb25zIiwidmFsdWUiOnsiaG9vay5leGFtcGxlLmNvbS9zZWVuIjoieWVzIn19XQ==";

/// The webhook's server.
pub(crate) struct Webhook(Mutex<State>);

struct State {
    rng: Rng,
    /// One in so many answers is wrong; 0 is none.
    wrong_one_in: u64,
    delay: Delay,
}

impl Webhook {
    pub(crate) fn new(rng: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { rng, wrong_one_in: 0, delay: Delay::micros(500) })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws other chances from here on.
    pub(crate) fn reseed(&self, rng: Rng) {
        self.lock().rng = rng;
    }

    pub(crate) fn set(&self, wrong_one_in: u64, delay: Delay) {
        let mut state = self.lock();
        (state.wrong_one_in, state.delay) = (wrong_one_in, delay);
    }

    /// The collection and the object by which the API server knows of it.
    pub(crate) fn configuration() -> (String, Value) {
        let collection = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations".to_owned();
        let rule = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        let hook = json!({
            "name": "seen.hook.example.com", "clientConfig": {"url": "https://hook.example.com/seen"}, "rules": [rule],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
        });
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "seen"}, "webhooks": [hook],
        });
        (collection, object)
    }

    /// A call of it: under way when it is polled first, answered when it is polled again.
    pub(crate) fn call(self: &Arc<Self>, pace: &Arc<Pace>, call: Call) -> Calling {
        Box::pin(Asked { webhook: self.clone(), pace: pace.clone(), call, under_way: false })
    }

    fn answer(&self, call: &Call) -> Result<Answer, CallError> {
        let review: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let mut uid = review["request"]["uid"].clone();
        let mut code = 200;
        let wrong = {
            let State { rng, wrong_one_in, .. } = &mut *self.lock();
            if rng.one_in(*wrong_one_in) { 1 + rng.below(4) } else { 0 }
        };
        match wrong {
            1 => return Err(CallError::Timeout),
            2 => return Err(CallError::Failed("connection refused".to_owned())),
            3 => code = 500,
            4 => uid = "another".into(),
            _ => {}
        }
        let mut response = json!({"uid": uid, "allowed": true});
        if review.pointer("/request/object/metadata/annotations").is_none() {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = PATCH.into();
        }
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Ok(Answer { code, headers: http::HeaderMap::new(), body: Bytes::from(body.to_string()) })
    }
}

struct Asked {
    webhook: Arc<Webhook>,
    pace: Arc<Pace>,
    call: Call,
    under_way: bool,
}

impl Future for Asked {
    type Output = Result<Answer, CallError>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if self.under_way {
            return Poll::Ready(self.webhook.answer(&self.call));
        }
        self.under_way = true;
        let wait = {
            let State { rng, delay, .. } = &mut *self.webhook.lock();
            delay.draw(rng)
        };
        self.pace.wait_for(wait);
        Poll::Pending
    }
}
