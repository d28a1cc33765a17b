//! The keys of a provider: fetched when they are first needed, again when a token was signed by none of them, and each hour.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use carrack_auth::token::{ForeignKeys, ForeignToken};
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Map, Value};

use super::config::Provider;
use crate::call::{Call, Destination, Trust};
use crate::env::Env;
use crate::status::Status;

/// How long a provider may take.
const TIMEOUT_MS: u64 = 10_000;
/// Longest document that is read.
const MAX_BYTES: usize = 1 << 20;
/// A provider is asked no more often than this: anybody can make tokens that no key has signed.
const PAUSE_S: i64 = 10;
/// Keys that a provider has withdrawn are good for so long, if it can be asked.
const MAX_AGE_S: i64 = 3600;

/// What is known of a provider's keys. Whose token none of them has signed waits while they are fetched; nobody else does,
/// since anybody can have a provider asked, which may be slow.
#[derive(Debug, Default)]
pub(super) struct Keys {
    held: Mutex<Held>,
    /// Taken by who asks the provider.
    fetching: futures::lock::Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct Held {
    keys: Arc<ForeignKeys>,
    /// When they were fetched, and when that was last tried, in seconds since the epoch.
    fetched_s: Option<i64>,
    tried_s: Option<i64>,
    /// Why they could not be fetched.
    fault: Option<String>,
}

impl Held {
    /// The claims of a token that the provider has signed, as far as keys say so that are young enough.
    fn claims(&self, token: &ForeignToken<'_>, now_s: i64) -> Option<Map<String, Value>> {
        let is_fresh = self.fetched_s.is_some_and(|at| now_s - at < MAX_AGE_S);
        is_fresh.then(|| token.verify(&self.keys)).flatten()
    }
}

impl Keys {
    /// The claims of a token that the provider has signed.
    pub(super) async fn verify(
        &self,
        env: &dyn Env,
        provider: &Provider,
        token: &ForeignToken<'_>,
    ) -> Result<Map<String, Value>, Status> {
        if let Some(claims) = self.held().claims(token, env.now().as_second()) {
            return Ok(claims);
        }
        let _fetching = self.fetching.lock().await;
        // Somebody else may have asked meanwhile.
        let (mut held, now_s) = (self.held(), env.now().as_second());
        if let Some(claims) = held.claims(token, now_s) {
            return Ok(claims);
        }
        if held.tried_s.is_none_or(|at| now_s - at >= PAUSE_S) {
            held.tried_s = Some(now_s);
            // Whoever waits for this may go away, and it counts as tried.
            self.publish(&held);
            match fetch(env, provider).await {
                Ok(keys) => {
                    (held.keys, held.fetched_s, held.fault) = (Arc::new(keys), Some(env.now().as_second()), None);
                }
                Err(why) => {
                    tracing::warn!(issuer = provider.url, %why, "a provider's keys are not to be had");
                    held.fault = Some(why);
                }
            }
            self.publish(&held);
        }
        match (token.verify(&held.keys), &held.fault) {
            (Some(claims), _) => Ok(claims),
            // A key that is new may have signed it.
            (None, Some(why)) => Err(Status::unavailable(format!("the credentials could not be checked: {why}"))),
            (None, None) => Err(Status::unauthorized()),
        }
    }

    fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets everybody know; only for who is `fetching`.
    fn publish(&self, held: &Held) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held.clone();
    }
}

/// Asks a provider where its keys are, and for them.
async fn fetch(env: &dyn Env, provider: &Provider) -> Result<ForeignKeys, String> {
    let url = provider
        .discovery_url
        .clone()
        .unwrap_or_else(|| format!("{}/.well-known/openid-configuration", provider.url.trim_end_matches('/')));
    let document: Value =
        serde_json::from_slice(&get(env, provider, &url).await?).map_err(|error| format!("{url}: {error}"))?;
    if document["issuer"] != provider.url.as_str() {
        return Err(format!("{url}: the issuer is {}, not {:?}", document["issuer"], provider.url));
    }
    let url = document["jwks_uri"].as_str().ok_or_else(|| format!("{url}: there is no jwks_uri"))?;
    ForeignKeys::parse(&get(env, provider, url).await?).map_err(|error| format!("{url}: {error}"))
}

async fn get(env: &dyn Env, provider: &Provider, url: &str) -> Result<Bytes, String> {
    let Destination { host, port, path_and_query } = Destination::parse(url)?;
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let call = Call {
        method: Method::GET,
        server_name: host.clone(),
        host,
        place: None,
        port,
        path_and_query,
        trust: provider.authorities_pem.clone().map_or(Trust::Own, Trust::Authorities),
        credentials: None,
        headers,
        body: Bytes::new(),
        timeout_ms: TIMEOUT_MS,
        max_reply_bytes: MAX_BYTES,
    };
    let answer = env.call(call).await.map_err(|error| format!("{url}: {error}"))?;
    if answer.code == 200 { Ok(answer.body) } else { Err(format!("{url}: HTTP status {}", answer.code)) }
}
