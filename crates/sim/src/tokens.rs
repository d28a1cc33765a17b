//! Tokens of pods' service accounts for CSI drivers (`tokenRequests`, `requiresRepublish`): who issues them, and a driver that
//! wants them again and again.
//!
//! ```text
//!   kubelet ─▶ TokenRequest: slow, refused, its answer lost ─▶ a token that says whose it is and how long it lasts
//!      └─▶ the driver's publish call: it may be down for a while, and forgets in its restart what it was given
//! ```
//!
//! Some clusters issue tokens that last for less than the time between two calls of a driver.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, Rng, StatusError, Time};
use carrack_kubelet::OpError;
use carrack_kubelet::volumes::{Driver as Of, VolumeKind, VolumeSetup};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Observer, deleting, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// Name of the driver.
pub(crate) const DRIVER: &str = "tokens.sim";
/// Under this name a driver gets its tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const AUDIENCE: &str = "vault";
/// How long after a token has expired it may still arrive: clocks differ, and calls take their time.
const SLACK_S: i64 = 20;
/// How often a driver is called again at the least, once nothing fails any more.
const AGAIN_WITHIN: Duration = Duration::from_secs(120);
/// A driver is back after this at the most.
const DOWN: Duration = Duration::from_secs(10);

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::SharedTokens | Bug::ExpiredTokens | Bug::PublishedOnce))
}

/// The driver, and pods that have volumes of it.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"],
            "tokenRequests": [{"audience": AUDIENCE, "expirationSeconds": 600}], "requiresRepublish": true}});
    let what = What::Create { resource: CSIDriver::resource(), object: driver, want: None };
    acts.push(Act { at: Duration::from_millis(100), what });
    for n in 0..1 + rng.below(4) {
        let name = format!("bearer{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let object = mounting(&name, 1 + rng.below(3), "vault", "csi", json!({"driver": DRIVER}));
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(2) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// Who issues tokens.
pub(crate) struct Issuer {
    rng: Rng,
    /// How long tokens last.
    life_s: i64,
    refuses_one_in: u64,
    slow_one_in: u64,
}

impl Issuer {
    pub(crate) fn new(mut rng: Rng, faults: bool, planted: Option<Bug>) -> Self {
        let brief = rng.one_in(2) || planted == Some(Bug::ExpiredTokens);
        let one_in = |n: u64| if faults { n } else { 0 };
        let (refuses_one_in, slow_one_in) = (one_in(2 + rng.below(6)), one_in(2 + rng.below(6)));
        Self { rng, life_s: if brief { 30 } else { 600 }, refuses_one_in, slow_one_in }
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&mut self) {
        (self.refuses_one_in, self.slow_one_in) = (0, 0);
    }

    /// Whether a request is for a token.
    pub(crate) fn is_asked(request: &ApiRequest) -> bool {
        request.path.contains("/serviceaccounts/") && request.path.ends_with("/token")
    }

    /// The answer to a request, and how long it takes.
    pub(crate) fn issue(
        &mut self,
        now: Time,
        request: &ApiRequest,
        observer: &Observer,
    ) -> (Result<ApiResponse, ApiError>, Duration) {
        let slow = self.rng.one_in(self.slow_one_in);
        let takes = if slow { between(&mut self.rng, Duration::from_secs(1), DOWN) } else { Duration::ZERO };
        let refused = |code: u16, reason: &str| {
            let status =
                StatusError { code, reason: reason.into(), message: "no token".into(), ..StatusError::default() };
            Err(ApiError::Status(Box::new(status)))
        };
        if self.rng.one_in(self.refuses_one_in) {
            return (refused(500, "InternalError"), takes);
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let bound = text(&body, "/spec/boundObjectRef/uid").to_owned();
        if !observer.all("pod").any(|pod| uid(pod) == bound) {
            return (refused(404, "NotFound"), takes);
        }
        let expires = now.unix_s() + self.life_s;
        let token = json!({"pod": bound, "expires": expires}).to_string();
        let status = json!({"token": token, "expirationTimestamp": Time::from_unix_s(expires).rfc3339()});
        let reply = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": self.life_s}, "status": status});
        (Ok(ApiResponse { status: 201, body: reply.to_string().into() }), takes)
    }
}

/// The driver on a node.
#[derive(Debug)]
pub(crate) struct Driver {
    rng: Rng,
    /// When it was last called for each volume, by pod UID and path.
    called: BTreeMap<(String, String), Time>,
    down_until: Time,
}

/// A volume of the driver that is to be published with tokens.
fn own(setup: &VolumeSetup) -> Option<Option<Value>> {
    let VolumeKind::Published(p) = &setup.kind else { return None };
    match &p.published.origin.driver {
        Of::Csi { driver, .. } if driver == DRIVER && !p.confirm_only => {
            Some(p.tokens.0.get(TOKENS).and_then(|text| serde_json::from_slice(text).ok()))
        }
        _ => None,
    }
}

impl Driver {
    /// Draws other chances from here on.
    pub(crate) fn reseed(&mut self, rng: Rng) {
        self.rng = rng;
    }

    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, called: BTreeMap::new(), down_until: Time::default() }
    }

    /// The driver is called for a volume, if it is its own; restarting, it says nothing.
    pub(crate) fn publish(
        &mut self,
        setup: &VolumeSetup,
        now: Time,
        fails: bool,
        breaches: &mut Vec<Breach>,
    ) -> Result<(), OpError> {
        let Some(tokens) = own(setup) else { return Ok(()) };
        let gone = || Err(OpError::Failed("connection refused".into()));
        if fails && now < self.down_until {
            return gone();
        }
        let restarts = fails && self.rng.one_in(4);
        let token = tokens.as_ref().map(|t| text(t, "/vault/token")).unwrap_or_default();
        let token: Value = serde_json::from_str(token).unwrap_or_default();
        let (of, expires) = (text(&token, "/pod"), token["expires"].as_i64().unwrap_or_default());
        let place = format!("{} of pod {}", setup.path, setup.uid);
        if of != &*setup.uid {
            breaches
                .push(Breach::new("tokens-are-the-pods-own", format!("{place} is published with a token of {of:?}")));
        } else if expires + SLACK_S < now.unix_s() {
            let what = format!("{place} is published with a token that expired {} s ago", now.unix_s() - expires);
            breaches.push(Breach::new("tokens-are-the-pods-own", what));
        }
        if restarts {
            // In the middle of the call: nobody knows whether it was done.
            self.called.clear();
            self.down_until = now + between(&mut self.rng, Duration::from_millis(100), DOWN);
            return gone();
        }
        self.called.insert((setup.uid.to_string(), setup.path.clone()), now);
        Ok(())
    }

    /// A volume is taken from its pod.
    pub(crate) fn unpublish(&mut self, uid: &str, path: &str) {
        self.called.remove(&(uid.to_owned(), path.to_owned()));
    }

    pub(crate) fn power_off(&mut self) {
        self.called.clear();
    }

    fn called(&self, uid: &str) -> Option<Time> {
        self.called.iter().find(|((of, _), _)| of == uid).map(|(_, at)| *at)
    }
}

/// Running pods with a volume of the driver: on which node, and when the driver was called last.
fn bearers<'a>(
    observer: &'a Observer,
    nodes: &'a BTreeMap<u8, Node>,
) -> impl Iterator<Item = (&'a str, u8, Option<Time>)> {
    let has = |pod: &&Value| {
        let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        volumes.into_iter().any(|v| v["csi"]["driver"] == DRIVER)
    };
    let runs = |pod: &&Value| !deleting(pod) && text(pod, "/status/phase") == "Running";
    observer.all("pod").filter(runs).filter(has).filter_map(|pod| {
        let node = named(nodes, text(pod, "/spec/nodeName")).filter(|n| n.up)?;
        Some((uid(pod), node.number, node.tokens.called(uid(pod))))
    })
}

/// Looks whether the driver is called again, now that nothing fails any more.
pub(crate) fn look(
    now: Time,
    healed: Time,
    observer: &Observer,
    nodes: &BTreeMap<u8, Node>,
    breaches: &mut Vec<Breach>,
) {
    for (uid, node, called) in bearers(observer, nodes) {
        // A node that was away comes to it when it is back.
        let booted = nodes.get(&node).map(|n| n.booted_at).unwrap_or_default();
        let since = called.unwrap_or(healed).max(healed).max(booted);
        if now.since(since) > AGAIN_WITHIN {
            let what = format!("the driver on node{node} was not called for pod {uid} since {}", since.rfc3339());
            breaches.push(Breach::new("drivers-are-called-again", what));
        }
    }
}

/// What is not as it is to be in the end: each volume has been published once more.
pub(crate) fn lack(healed: Time, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let late = |called: Option<Time>| called.is_none_or(|at| at <= healed);
    let found = bearers(observer, nodes).find(|(_, _, called)| late(*called));
    found.map(|(uid, ..)| format!("the driver of pod {uid}'s tokens was not called again"))
}
