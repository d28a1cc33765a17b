//! The API server asked about those who come to the kubelet's server: who has a token (TokenReview), and whether somebody
//! may (SubjectAccessReview). What it said of a token counts as long as the configuration says
//! (`authentication.webhook.cacheTTL`), what it said of rights as long as upstream's kubelet keeps it by default.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_auth::Caller;
use carrack_engine::{ApiRequest, Method, Time, Transport};
use carrack_types::volume::digest;
use serde_json::{Value, json};

use super::now;
use crate::effects::OpError;
use crate::server::{Answer, Authority};

const ALLOWED: Duration = Duration::from_secs(300);
const DENIED: Duration = Duration::from_secs(30);
/// Most answers of a kind that are kept.
const MOST: usize = 1024;

/// Answers that count until a time.
struct Kept<K, V>(BTreeMap<K, (Time, V)>);

impl<K: Ord, V: Clone> Kept<K, V> {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn get(&self, now: Time, key: &K) -> Option<V> {
        self.0.get(key).filter(|(until, _)| now < *until).map(|(_, value)| value.clone())
    }

    fn put(&mut self, now: Time, key: K, value: V, counts_for: Duration) {
        if self.0.len() >= MOST {
            self.0.retain(|_, (until, _)| now < *until);
        }
        // Nobody is to fill the memory by asking.
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(key, (now + counts_for, value));
    }
}

/// Who asks for what: user, UID, groups, the rest that is known of them, verb and subresource.
type Question = (String, String, Vec<String>, BTreeMap<String, Vec<String>>, &'static str, &'static str);

struct Known {
    /// By digest: a token is kept nowhere.
    tokens: Kept<String, Option<Caller>>,
    verdicts: Kept<Question, bool>,
}

/// Asks the API server, under the kubelet's own identity.
pub(crate) struct Reviews {
    api: Arc<dyn Transport>,
    node: String,
    /// How long a token is believed; without it none is, and nobody is asked.
    tokens_kept: Option<Duration>,
    known: Mutex<Known>,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").field("node", &self.node).finish_non_exhaustive()
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Whom a TokenReview names, if anybody.
fn named(review: &Value) -> Option<Caller> {
    let (status, user) = (&review["status"], &review["status"]["user"]);
    if status["authenticated"] != true {
        return None;
    }
    let extra = user["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), texts(v))).collect();
    let uid = user["uid"].as_str().unwrap_or_default().to_owned();
    Some(Caller { uid, extra, ..Caller::new(user["username"].as_str()?, texts(&user["groups"])) })
}

impl Reviews {
    pub fn new(api: Arc<dyn Transport>, node: &str, tokens_kept: Option<Duration>) -> Self {
        let known = Mutex::new(Known { tokens: Kept::new(), verdicts: Kept::new() });
        Self { api, node: node.to_owned(), tokens_kept, known }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Answers are put in whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, path: &str, review: &Value) -> Result<Value, OpError> {
        let failed = |e: &dyn std::fmt::Display| OpError::Failed(format!("the API server was asked: {e}"));
        let body = serde_json::to_vec(review).map_err(|e| failed(&e))?.into();
        let request = ApiRequest { body, ..ApiRequest::new(Method::Post, path) };
        self.api.send(request).await.and_then(|reply| reply.json()).map_err(|e| failed(&e))
    }
}

impl Authority for Reviews {
    fn identify<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Caller>> {
        Box::pin(async move {
            let Some(kept) = self.tokens_kept else { return Ok(None) };
            let key = digest(token);
            if let Some(known) = self.known().tokens.get(now(), &key) {
                return Ok(known);
            }
            let review =
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
            let told = named(&self.ask("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?);
            self.known().tokens.put(now(), key, told.clone(), kept);
            Ok(told)
        })
    }

    fn may<'a>(&'a self, caller: &'a Caller, verb: &'static str, subresource: &'static str) -> Answer<'a, bool> {
        Box::pin(async move {
            let Caller { user, uid, groups, extra } = caller.clone();
            let question = (user, uid, groups, extra, verb, subresource);
            if let Some(known) = self.known().verdicts.get(now(), &question) {
                return Ok(known);
            }
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": caller.user, "uid": caller.uid, "groups": caller.groups, "extra": caller.extra,
                "resourceAttributes": {
                    "verb": verb, "group": "", "version": "v1", "resource": "nodes", "subresource": subresource,
                    "name": self.node,
                },
            }});
            let told = self.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
            let allowed = told["status"]["allowed"] == true;
            self.known().verdicts.put(now(), question, allowed, if allowed { ALLOWED } else { DENIED });
            Ok(allowed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_a_while() {
        let at = Time::from_unix_s;
        let mut kept = Kept::new();
        kept.put(at(0), "a", 1, Duration::from_secs(10));
        assert_eq!((kept.get(at(9), &"a"), kept.get(at(10), &"a"), kept.get(at(0), &"b")), (Some(1), None, None));
    }

    #[test]
    fn answers_are_not_too_many() {
        let at = Time::from_unix_s;
        let mut kept = Kept::new();
        for n in 0..MOST {
            kept.put(at(0), n, n, Duration::from_secs(if n == 0 { 100 } else { 10 }));
        }
        kept.put(at(50), MOST, MOST, Duration::from_secs(10));
        assert_eq!((kept.0.len(), kept.get(at(50), &0)), (2, Some(0)), "those that count no more go first");
        for n in 0..2 * MOST {
            kept.put(at(50), n, n, Duration::from_secs(10));
        }
        assert!(kept.0.len() <= MOST);
    }

    #[test]
    fn a_review_names_somebody_or_nobody() {
        let user = json!({"username": "u", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        let named_by = |authenticated| named(&json!({"status": {"authenticated": authenticated, "user": user}}));
        let caller = named_by(true).unwrap();
        assert_eq!((caller.user.as_str(), caller.uid.as_str()), ("u", "1"));
        assert!(caller.in_group("g") && caller.extra["k"] == ["v"]);
        assert_eq!(named_by(false), None);
        assert_eq!(named(&json!({})), None);
    }
}
