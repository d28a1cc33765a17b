//! Config maps, secrets and tokens that pods are made of: read when first wanted, read again when old, or watched
//! ([`watched`]).
//!
//! A read that fails leaves what is known as it is. Decisions look through a [`SourceView`], which
//! notes what it lacked; the core then reads that. What was read for other pods says nothing to one that has come since: what it
//! is made of may have been changed, or made anew under the same name, before it was made itself (upstream reads claims and
//! volumes for each pod, and forgets what it has read of a config map or secret when a pod comes: `AddReference`,
//! `pkg/kubelet/util/manager/cache_based_manager.go`).

mod watched;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, Input, Rng, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::json;

use super::Fx;
use crate::config::ChangeDetection;
use crate::effects::{In, Op, OpId, Out, Outcome, Reply};
use crate::planted::Planted;
use crate::runtime::Uid;
use crate::spec::env::Sources;
use crate::spec::pod;
use crate::volumes::{NotReady, PayloadSources, Token};
use watched::{News, Watches};

/// How old a config map or secret may be that is not watched, as upstream has it by default, beside how often pods are looked at.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long what is not ready yet is believed: a claim that is not bound, a volume that is not attached.
const SOON: Duration = Duration::from_millis(500);
/// How long a failure or an absence is believed.
const RETRY: Duration = Duration::from_secs(2);
/// What has not been ready for long is asked for less often, but no less than that.
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How old a thing may at least be that is read whenever it is looked at: its own reply is a reason to look.
const AT_ONCE: Duration = Duration::from_secs(1);

/// gRPC's code of an attacher for which a node has no room left.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Something that pods are made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SourceKey {
    ConfigMap { namespace: String, name: String },
    Secret { namespace: String, name: String },
    RuntimeClass { name: String },
    Claim { namespace: String, name: String },
    Volume(String),
    CsiDriver(String),
    Attachment(String),
    FlexDriver(String),
    Token { namespace: String, account: String, pod: String, uid: Uid, audience: String, expiration_s: i64 },
}

#[derive(Clone, Debug)]
enum Value {
    ConfigMap(Option<Arc<ConfigMap>>),
    Secret(Option<Arc<Secret>>),
    RuntimeHandler(Option<String>),
    Claim(Option<Arc<PersistentVolumeClaim>>),
    Volume(Option<Arc<PersistentVolume>>),
    CsiDriver(Option<Arc<CSIDriver>>),
    Attachment(Option<Arc<VolumeAttachment>>),
    FlexAttaches(bool),
    /// With when it expires.
    Token(Token, Time),
}

#[derive(Debug, Default)]
struct Entry {
    value: Option<Value>,
    error: Option<String>,
    refresh_at: Time,
    call: Option<CallId>,
    /// When the request was sent whose reply is the value.
    asked_at: Time,
    /// When the last request was sent.
    sent_at: Time,
    /// Since when it has not been ready, not been there, or could not be read.
    lacks_since: Option<Time>,
    /// It can never be otherwise.
    stays: bool,
    /// Pods to look at when it changes, with when each wanted it first.
    users: BTreeMap<Uid, Time>,
}

impl Entry {
    /// How long it is believed that something is not ready: a tenth of the time for which it has not been. A pod may name thousands of
    /// claims that nobody will ever bind.
    fn patience(&mut self, now: Time, least: Duration) -> Duration {
        let since = *self.lacks_since.get_or_insert(now);
        least.max((now.since(since) / 10).min(LONGEST_RETRY))
    }

    /// Whether its value was asked for before this pod wanted it.
    fn is_from_before(&self, uid: &str) -> bool {
        self.users.get(uid).is_none_or(|since| self.asked_at < *since)
    }
}

/// What was read.
pub(super) struct SourceCache {
    entries: BTreeMap<SourceKey, Entry>,
    calls: BTreeMap<CallId, SourceKey>,
    detection: ChangeDetection,
    /// How often pods are looked at, and with that how old may be what they are made of.
    period: Duration,
    watches: Watches,
    /// CSI drivers whose limits change, and how often they are to be asked.
    limits: BTreeMap<String, Duration>,
    /// CSI drivers that had no room left when a disk was to be attached.
    exhausted: BTreeSet<String>,
    /// The Node of this kubelet, once it is known.
    pub node: Option<Arc<Node>>,
    pub planted: Option<Planted>,
}

/// A look at the cache on behalf of one pod.
pub(super) struct SourceView<'a> {
    cache: &'a SourceCache,
    now: Time,
    pod: &'a str,
    wanted: RefCell<BTreeSet<SourceKey>>,
    lacking: RefCell<bool>,
}

impl<'a> SourceView<'a> {
    pub fn new(cache: &'a SourceCache, now: Time, pod: &'a str) -> Self {
        Self { cache, now, pod, wanted: RefCell::default(), lacking: RefCell::new(false) }
    }
    /// What was asked for, and whether something of it has not been read at all yet.
    pub fn finish(self) -> (BTreeSet<SourceKey>, bool) {
        (self.wanted.into_inner(), self.lacking.into_inner())
    }
    /// The handler that a RuntimeClass names; none where there is no such class.
    pub fn runtime_handler(&self, name: &str) -> Result<Option<String>, NotReady> {
        match self.get(SourceKey::RuntimeClass { name: name.into() })? {
            Value::RuntimeHandler(h) => Ok(h),
            _ => Ok(None),
        }
    }
    fn get(&self, key: SourceKey) -> Result<Value, NotReady> {
        let entry = self.cache.entries.get(&key);
        let says = |entry: &&Entry| !ages(&key, self.cache.detection) || !entry.is_from_before(self.pod);
        let value = entry.filter(says).and_then(|entry| entry.value.clone());
        let result = match (value, entry.and_then(|entry| entry.error.clone())) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(NotReady::Failed(error)),
            (None, None) => {
                self.lacking.replace(true);
                Err(NotReady::Pending)
            }
        };
        self.wanted.borrow_mut().insert(key);
        result
    }
}

impl PayloadSources for SourceView<'_> {
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, NotReady> {
        match self.get(SourceKey::ConfigMap { namespace: namespace.into(), name: name.into() })? {
            Value::ConfigMap(v) => Ok(v),
            _ => Ok(None),
        }
    }
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, NotReady> {
        match self.get(SourceKey::Secret { namespace: namespace.into(), name: name.into() })? {
            Value::Secret(v) => Ok(v),
            _ => Ok(None),
        }
    }
    fn claim(&self, namespace: &str, name: &str) -> Result<Option<Arc<PersistentVolumeClaim>>, NotReady> {
        match self.get(SourceKey::Claim { namespace: namespace.into(), name: name.into() })? {
            Value::Claim(v) => Ok(v),
            _ => Ok(None),
        }
    }
    fn persistent_volume(&self, name: &str) -> Result<Option<Arc<PersistentVolume>>, NotReady> {
        match self.get(SourceKey::Volume(name.into()))? {
            Value::Volume(v) => Ok(v),
            _ => Ok(None),
        }
    }
    fn csi_driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, NotReady> {
        match self.get(SourceKey::CsiDriver(name.into()))? {
            Value::CsiDriver(v) if self.cache.planted == Some(Planted::PublishedOnce) => Ok(v.map(called_once)),
            Value::CsiDriver(v) => Ok(v),
            _ => Ok(None),
        }
    }
    fn flex_attaches(&self, driver: &str) -> Result<bool, NotReady> {
        match self.get(SourceKey::FlexDriver(driver.into()))? {
            Value::FlexAttaches(v) => Ok(v),
            _ => Err(NotReady::Pending),
        }
    }
    fn attachment(&self, name: &str) -> Result<(Option<Arc<VolumeAttachment>>, Time), NotReady> {
        let key = SourceKey::Attachment(name.into());
        let asked_at = self.cache.entries.get(&key).map(|e| e.asked_at).unwrap_or_default();
        match self.get(key)? {
            Value::Attachment(v) => Ok((v, asked_at)),
            _ => Ok((None, asked_at)),
        }
    }
    fn node(&self) -> Option<Arc<Node>> {
        self.cache.node.clone()
    }
    fn token(&self, pod: &Pod, projection: &ServiceAccountTokenProjection) -> Result<Token, NotReady> {
        let account = pod::spec(pod).service_account_name.clone().filter(|s| !s.is_empty());
        let key = SourceKey::Token {
            namespace: pod.namespace().to_owned(),
            account: account.unwrap_or_else(|| "default".into()),
            pod: pod.name().to_owned(),
            uid: pod::uid(pod),
            audience: projection.audience.clone().unwrap_or_default(),
            expiration_s: projection.expiration_seconds.unwrap_or(3600),
        };
        let planted = self.cache.planted;
        let shared = (planted == Some(Planted::SharedTokens)).then(|| self.cache.token_of_account(&key)).flatten();
        match self.get(key.clone())? {
            Value::Token(own, until) if self.now < until || planted == Some(Planted::ExpiredTokens) => {
                Ok(shared.unwrap_or(own))
            }
            // It has expired, and another one could not be had, or not yet (upstream's token manager hands out none then).
            _ => Err(match self.cache.entries.get(&key).and_then(|e| e.error.clone()) {
                Some(error) => NotReady::Failed(format!("the token has expired, and there is no other: {error}")),
                None => NotReady::Pending,
            }),
        }
    }
}

impl Sources for SourceView<'_> {
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
        PayloadSources::config_map(self, namespace, name).map_err(text)
    }
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, String> {
        PayloadSources::secret(self, namespace, name).map_err(text)
    }
}

fn text(e: NotReady) -> String {
    match e {
        NotReady::Pending => "it has not been read yet".into(),
        NotReady::Failed(e) => e,
    }
}

impl SourceCache {
    /// A cache that holds nothing.
    pub fn new(detection: ChangeDetection, period: Duration, rng: Rng) -> Self {
        let watches = Watches::new(rng);
        Self {
            entries: BTreeMap::new(),
            calls: BTreeMap::new(),
            detection,
            period: period.max(AT_ONCE),
            watches,
            limits: BTreeMap::new(),
            exhausted: BTreeSet::new(),
            node: None,
            planted: None,
        }
    }

    /// As a planted bug has it: a token of the same account, whichever pod it is of.
    fn token_of_account(&self, key: &SourceKey) -> Option<Token> {
        let SourceKey::Token { namespace, account, audience, .. } = key else { return None };
        self.entries.iter().find_map(|(other, entry)| match (other, &entry.value) {
            (SourceKey::Token { namespace: n, account: a, audience: u, .. }, Some(Value::Token(token, _))) => {
                (n == namespace && a == account && u == audience).then(|| token.clone())
            }
            _ => None,
        })
    }

    /// Whether CSI drivers are to be asked for their limits from time to time.
    pub fn limits_change(&self) -> bool {
        !self.limits.is_empty()
    }

    /// How often a CSI driver is to be asked for its limit, if it is.
    pub fn limit_period(&self, driver: &str) -> Option<Duration> {
        self.limits.get(driver).copied()
    }

    /// CSI drivers that have had no room left since this was asked.
    pub fn take_exhausted(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.exhausted)
    }

    /// Whether a driver whose limits change had no room left for an attachment.
    pub fn lacks_room(&self, driver: &str, attachment: &str) -> bool {
        let entry = self.entries.get(&SourceKey::Attachment(attachment.to_owned()));
        let Some(Value::Attachment(Some(attachment))) = entry.and_then(|entry| entry.value.as_ref()) else {
            return false;
        };
        self.limits.contains_key(driver) && found_no_room(attachment)
    }

    /// Notes what an answer says of a driver's limit.
    fn note_limit(&mut self, key: &SourceKey, value: &Value) {
        match (key, value) {
            (SourceKey::CsiDriver(driver), Value::CsiDriver(about)) => {
                let seconds = about.as_ref().and_then(|d| d.spec.node_allocatable_update_period_seconds);
                match seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0) {
                    Some(seconds) => self.limits.insert(driver.clone(), Duration::from_secs(seconds)),
                    None => self.limits.remove(driver),
                };
            }
            (SourceKey::Attachment(_), Value::Attachment(Some(attachment))) if found_no_room(attachment) => {
                self.exhausted.insert(attachment.spec.attacher.clone());
            }
            _ => {}
        }
    }

    /// The claim that a pod's volume is of, as far as it has been read.
    pub fn claim_of(&self, pod: &Pod, volume: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let volume = pod::spec(pod).volumes.iter().flatten().find(|v| v.name == volume)?;
        let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => claim.claim_name.clone(),
            (None, Some(_)) => format!("{}-{}", pod.name(), volume.name),
            (None, None) => return None,
        };
        let key = SourceKey::Claim { namespace: pod.namespace().to_owned(), name };
        match self.entries.get(&key)?.value.as_ref()? {
            Value::Claim(claim) => claim.clone(),
            _ => None,
        }
    }

    /// Reads what is wanted and not fresh. Returns when to look again.
    pub fn want(&mut self, now: Time, uid: &Uid, wanted: BTreeSet<SourceKey>, fx: &mut Fx) -> Option<Time> {
        let mut again: Option<Time> = None;
        for key in wanted {
            let entry = self.entries.entry(key.clone()).or_default();
            entry.users.entry(uid.clone()).or_insert(now);
            if self.detection == ChangeDetection::Watch && Watches::covers(&key) {
                if !entry.stays {
                    self.watches.begin(&key, fx);
                }
                continue;
            }
            if entry.call.is_some() {
                continue;
            }
            let is_known = (entry.value.is_some() || entry.error.is_some()) && now < entry.refresh_at;
            // What could not be read is not asked for more often for anybody.
            let is_too_old = ages(&key, self.detection) && entry.error.is_none() && entry.is_from_before(uid);
            if is_known && !is_too_old {
                // What is read at each look is no reason to look more often.
                let at_each_look = self.detection == ChangeDetection::Get && Watches::covers(&key);
                let due =
                    if at_each_look && entry.error.is_none() { entry.sent_at + self.period } else { entry.refresh_at };
                // It may have been asked for long ago.
                let due = due.max(now + AT_ONCE);
                again = Some(again.map_or(due, |a| a.min(due)));
                continue;
            }
            let call = match question(&key) {
                Question::Api(request) => fx.api(request),
                Question::Node(op) => {
                    // Numbers of calls and of operations are of one row.
                    let id = fx.fresh();
                    fx.own(Out { id: OpId(id), op });
                    CallId(id)
                }
            };
            entry.call = Some(call);
            entry.sent_at = now;
            self.calls.insert(call, key);
        }
        again
    }

    /// Takes the reply to one of the reads. Returns the pods to look at again.
    pub fn answered(&mut self, now: Time, id: CallId, result: &Result<ApiResponse, ApiError>) -> Option<BTreeSet<Uid>> {
        let key = self.calls.remove(&id)?;
        let age = if self.detection == ChangeDetection::Get { AT_ONCE } else { MAX_AGE };
        let period = self.period;
        let sent_at = self.entries.get(&key).map_or(now, |entry| entry.sent_at);
        let parsed = match (result, &key) {
            (Err(e), SourceKey::ConfigMap { .. }) if e.is_not_found() => Ok((Value::ConfigMap(None), RETRY)),
            (Err(e), SourceKey::Secret { .. }) if e.is_not_found() => Ok((Value::Secret(None), RETRY)),
            (Err(e), SourceKey::RuntimeClass { .. }) if e.is_not_found() => Ok((Value::RuntimeHandler(None), RETRY)),
            (Err(e), SourceKey::Claim { .. }) if e.is_not_found() => Ok((Value::Claim(None), RETRY)),
            (Err(e), SourceKey::Volume(_)) if e.is_not_found() => Ok((Value::Volume(None), RETRY)),
            (Err(e), SourceKey::CsiDriver(_)) if e.is_not_found() => Ok((Value::CsiDriver(None), period)),
            (Err(e), SourceKey::Attachment(_)) if e.is_not_found() => Ok((Value::Attachment(None), SOON)),
            (Err(e), _) => Err(e.to_string()),
            (Ok(_), SourceKey::FlexDriver(_)) => Err("the API does not know what drivers can".to_owned()),
            (Ok(reply), SourceKey::RuntimeClass { .. }) => reply
                .object::<RuntimeClass>()
                .map(|c| (Value::RuntimeHandler(Some(c.handler)), period))
                .map_err(|e| e.to_string()),
            (Ok(reply), SourceKey::ConfigMap { .. }) => reply
                .object::<ConfigMap>()
                .map(|v| (Value::ConfigMap(Some(Arc::new(v))), age))
                .map_err(|e| e.to_string()),
            (Ok(reply), SourceKey::Secret { .. }) => {
                reply.object::<Secret>().map(|v| (Value::Secret(Some(Arc::new(v))), age)).map_err(|e| e.to_string())
            }
            (Ok(reply), SourceKey::Claim { .. }) => parse(reply, |v: Arc<PersistentVolumeClaim>| {
                let bound = v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
                (Value::Claim(Some(v)), if bound { period } else { SOON })
            }),
            (Ok(reply), SourceKey::Volume(_)) => parse(reply, |v| (Value::Volume(Some(v)), period)),
            (Ok(reply), SourceKey::CsiDriver(_)) => parse(reply, |v| (Value::CsiDriver(Some(v)), period)),
            // Asked for only until the volume is there; then, the newer the better.
            (Ok(reply), SourceKey::Attachment(_)) => parse(reply, |v| (Value::Attachment(Some(v)), SOON)),
            (Ok(reply), SourceKey::Token { expiration_s, .. }) => reply
                .json::<TokenRequest>()
                .map_err(|e| e.to_string())
                .and_then(|t| {
                    let asked = Duration::from_secs(u64::try_from(*expiration_s).unwrap_or(3600));
                    let until = lasts_until(&t, sent_at).unwrap_or(now + asked);
                    let status = t.status.ok_or_else(|| "the token request has no status".to_owned())?;
                    let token = status.token.ok_or_else(|| "no token was given".to_owned())?;
                    Ok((token, status.expiration_timestamp, asked, until))
                })
                .map(|(token, expires, asked, until)| {
                    // Renewed at four fifths of its life, and at least daily, as upstream does.
                    let life = until.since(now).min(asked);
                    // One that is over at once, as by a clock that is ahead, is asked for again, and not at each reply.
                    let renewed_after = (life * 4 / 5).clamp(RETRY, Duration::from_secs(86_400));
                    let told = expires.map(|t| t.0.to_string()).unwrap_or_default();
                    (Value::Token(Token { token, expires: told }, until), renewed_after)
                }),
        };
        if let Ok((value, _)) = &parsed {
            self.note_limit(&key, value);
        }
        self.known(now, &key, parsed)
    }

    /// Takes the outcome of a question to the node, if it is one. Returns the pods to look at again.
    pub fn told(&mut self, now: Time, id: OpId, outcome: &Outcome) -> Option<BTreeSet<Uid>> {
        let key = self.calls.remove(&CallId(id.0))?;
        let parsed = match outcome {
            Ok(Reply::Attaches(attaches)) => Ok((Value::FlexAttaches(*attaches), self.period)),
            Ok(_) => Err("the answer was about something else".to_owned()),
            Err(e) => Err(e.to_string()),
        };
        self.known(now, &key, parsed)
    }

    fn known(
        &mut self,
        now: Time,
        key: &SourceKey,
        parsed: Result<(Value, Duration), String>,
    ) -> Option<BTreeSet<Uid>> {
        let entry = self.entries.get_mut(key)?;
        entry.call = None;
        match parsed {
            Ok((value, age)) => {
                entry.value = Some(value);
                entry.asked_at = entry.sent_at;
                entry.error = None;
                let age = if [SOON, RETRY].contains(&age) {
                    entry.patience(now, age)
                } else {
                    entry.lacks_since = None;
                    age
                };
                entry.refresh_at = now + age;
            }
            Err(e) => {
                // What is known stays known.
                entry.error = Some(e);
                entry.refresh_at = now + entry.patience(now, RETRY);
            }
        }
        Some(entry.users.keys().cloned().collect())
    }

    /// Takes an input if it is about something that is watched. Returns the pods to look at again.
    pub fn watched(&mut self, now: Time, input: &Input<In>, fx: &mut Fx) -> Option<BTreeSet<Uid>> {
        let (key, news) = self.watches.step(now, input, fx)?;
        let Some(entry) = self.entries.get_mut(&key) else { return Some(BTreeSet::new()) };
        match news {
            News::None => return Some(BTreeSet::new()),
            News::Seen { value, stays } => {
                entry.value = Some(value);
                entry.error = None;
                entry.stays = stays || self.planted == Some(Planted::ReadOnce);
                if entry.stays {
                    self.watches.end(&key, fx);
                }
            }
            // What is known stays known.
            News::Failed(error) => {
                entry.error = Some(error);
                if self.planted == Some(Planted::UnreadIsAbsent) {
                    entry.value = Some(absent(&key));
                }
            }
        }
        Some(entry.users.keys().cloned().collect())
    }

    /// What is known of it is old: it is read again when it is wanted next.
    pub fn stale(&mut self, key: &SourceKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.refresh_at = Time::default();
        }
    }

    /// Forgets what only this pod used.
    pub fn forget(&mut self, uid: &str, fx: &mut Fx) {
        let mut unused = Vec::new();
        self.entries.retain(|key, e| {
            if e.users.remove(uid).is_some() && e.users.is_empty() {
                unused.push(key.clone());
            }
            !e.users.is_empty()
        });
        for key in unused {
            self.watches.end(&key, fx);
        }
    }
}

/// Whether an attacher says that its node has no room left.
fn found_no_room(attachment: &VolumeAttachment) -> bool {
    let error = attachment.status.as_ref().and_then(|s| s.attach_error.as_ref());
    error.and_then(|e| e.error_code) == Some(RESOURCE_EXHAUSTED)
}

/// Whether it matters to a pod that something was asked for before the pod was there. What is watched is as new as it gets. A
/// token is the pod's own, a class never changes, and whoever looks at an attachment looks at when that was asked for.
fn ages(key: &SourceKey, detection: ChangeDetection) -> bool {
    match key {
        SourceKey::Claim { .. } | SourceKey::Volume(_) | SourceKey::CsiDriver(_) => true,
        SourceKey::ConfigMap { .. } | SourceKey::Secret { .. } => detection != ChangeDetection::Watch,
        SourceKey::RuntimeClass { .. }
        | SourceKey::Attachment(_)
        | SourceKey::FlexDriver(_)
        | SourceKey::Token { .. } => false,
    }
}

/// A driver as a planted bug has it: it does not want to be called again.
fn called_once(mut driver: Arc<CSIDriver>) -> Arc<CSIDriver> {
    Arc::make_mut(&mut driver).spec.requires_republish = None;
    driver
}

/// An object that is not there.
fn absent(key: &SourceKey) -> Value {
    match key {
        SourceKey::Secret { .. } => Value::Secret(None),
        _ => Value::ConfigMap(None),
    }
}

fn parse<T: serde::de::DeserializeOwned>(
    reply: &ApiResponse,
    value: impl FnOnce(Arc<T>) -> (Value, Duration),
) -> Result<(Value, Duration), String> {
    reply.json::<T>().map(|v| value(Arc::new(v))).map_err(|e| e.to_string())
}

/// Who is asked for something.
enum Question {
    Api(ApiRequest),
    Node(Op),
}

/// Until when a token lasts, by the clock by which it was asked for: it has been given for so long, and not before that. When it
/// expires by the API server's clock says nothing where the two are minutes apart.
fn lasts_until(reply: &TokenRequest, sent_at: Time) -> Option<Time> {
    let granted_s = reply.spec.as_ref().and_then(|spec| spec.expiration_seconds);
    let granted = granted_s.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let expires = || reply.status.as_ref()?.expiration_timestamp.as_ref().map(Time::from);
    granted.map(|granted| sent_at + granted).or_else(expires)
}

fn question(key: &SourceKey) -> Question {
    Question::Api(match key {
        SourceKey::FlexDriver(driver) => return Question::Node(Op::AskDriver(driver.clone())),
        SourceKey::Claim { namespace, name } => ApiRequest::get(&PersistentVolumeClaim::resource(), namespace, name),
        SourceKey::Volume(name) => ApiRequest::get(&PersistentVolume::resource(), "", name),
        SourceKey::CsiDriver(name) => ApiRequest::get(&CSIDriver::resource(), "", name),
        SourceKey::Attachment(name) => ApiRequest::get(&VolumeAttachment::resource(), "", name),
        SourceKey::ConfigMap { namespace, name } => ApiRequest::get(&ConfigMap::resource(), namespace, name),
        SourceKey::Secret { namespace, name } => ApiRequest::get(&Secret::resource(), namespace, name),
        SourceKey::RuntimeClass { name } => ApiRequest::get(&RuntimeClass::resource(), "", name),
        SourceKey::Token { namespace, account, pod, uid, audience, expiration_s } => {
            let audiences: Vec<&str> = Some(audience.as_str()).filter(|a| !a.is_empty()).into_iter().collect();
            ApiRequest::create_sub(
                &ServiceAccount::resource(),
                namespace,
                account,
                "token",
                &json!({
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {
                        "audiences": audiences,
                        "expirationSeconds": expiration_s,
                        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid.as_ref()},
                    }
                }),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use carrack_engine::Effect;

    use super::*;

    #[test]
    fn what_was_read_for_another_pod_is_read_again_for_a_new_one() {
        let (mut cache, mut fx) = (SourceCache::new(ChangeDetection::Watch, MAX_AGE, Rng::new(1)), Fx::new());
        // How a driver gives volumes to groups, as far as that is known to a pod.
        let look = |cache: &mut SourceCache, fx: &mut Fx, at_s: i64, pod: &str| {
            let (now, uid) = (Time::from_unix_s(at_s), Uid::from(pod));
            let view = SourceView::new(cache, now, pod);
            let policy = view.csi_driver("d").map(|driver| driver.and_then(|d| d.spec.fs_group_policy.clone()));
            let (wanted, _) = view.finish();
            cache.want(now, &uid, wanted, fx);
            policy
        };
        let answer = |cache: &mut SourceCache, fx: &mut Fx, at_s: i64, policy: &str| {
            let Some(Effect::Api(call, _)) = fx.pop() else { panic!("nothing was asked for {policy}") };
            let body = json!({"metadata": {"name": "d"}, "spec": {"fsGroupPolicy": policy}});
            let reply = Ok(ApiResponse { status: 200, body: serde_json::to_vec(&body).unwrap().into() });
            assert!(cache.answered(Time::from_unix_s(at_s), call, &reply).is_some());
            assert!(fx.pop().is_none());
        };
        let known = |policy: &str| Ok(Some(policy.to_owned()));
        assert_eq!(look(&mut cache, &mut fx, 10, "u"), Err(NotReady::Pending));
        answer(&mut cache, &mut fx, 11, "None");
        assert_eq!(look(&mut cache, &mut fx, 12, "u"), known("None"));
        assert!(fx.pop().is_none());
        // However new it is: it was asked for before this pod came.
        assert_eq!(look(&mut cache, &mut fx, 13, "v"), Err(NotReady::Pending));
        assert_eq!(look(&mut cache, &mut fx, 13, "u"), known("None"), "who was there before has what it had");
        answer(&mut cache, &mut fx, 14, "File");
        for pod in ["u", "v"] {
            assert_eq!(look(&mut cache, &mut fx, 15, pod), known("File"));
        }
        // The same of an answer that was on its way.
        look(&mut cache, &mut fx, 100, "u").unwrap();
        assert_eq!(look(&mut cache, &mut fx, 101, "w"), Err(NotReady::Pending));
        answer(&mut cache, &mut fx, 102, "File");
        assert_eq!(look(&mut cache, &mut fx, 103, "w"), Err(NotReady::Pending));
        answer(&mut cache, &mut fx, 104, "None");
        assert_eq!(look(&mut cache, &mut fx, 105, "w"), known("None"));
    }

    #[test]
    fn a_token_lasts_as_long_as_it_was_given_for() {
        for (granted, expires, expected_s) in [
            // Clocks that agree, one that is far ahead of the API server's, and one that is far behind.
            (json!(600), json!("1970-01-01T00:26:41Z"), Some(1600)),
            (json!(600), json!("1970-01-01T00:10:00Z"), Some(1600)),
            (json!(30), json!("1970-01-01T01:00:00Z"), Some(1030)),
            (json!(null), json!("1970-01-01T00:20:00Z"), Some(1200)),
            (json!(null), json!(null), None),
        ] {
            let reply = json!({"metadata": {}, "spec": {"audiences": [], "expirationSeconds": granted},
                "status": {"token": "t", "expirationTimestamp": expires}});
            let reply: TokenRequest = serde_json::from_value(reply).unwrap();
            let until = lasts_until(&reply, Time::from_unix_s(1000));
            assert_eq!(until.map(Time::unix_s), expected_s, "{granted}, {expires}");
        }
    }

    #[test]
    fn what_is_not_ready_for_long_is_asked_for_less_often() {
        let mut entry = Entry::default();
        for (after_s, least, expected_ms) in [
            (0, SOON, 500),
            (4, SOON, 500),
            (5, RETRY, 2000),
            (30, SOON, 3000),
            (30, RETRY, 3000),
            (5000, SOON, 10_000),
        ] {
            let now = Time::from_unix_s(1000 + after_s);
            assert_eq!(entry.patience(now, least), Duration::from_millis(expected_ms), "{after_s} {least:?}");
        }
    }
}
