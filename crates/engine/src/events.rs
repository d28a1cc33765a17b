//! Records events about objects, so that many alike become one with a count.
//!
//! An event's name is derived from what it says and about whom, so that recording it again (after a
//! lost reply, or after a restart) finds the one that is there. Each object may cause only so many
//! events in a time; the rest are logged alone (client-go's event spam filter does the same).
//!
//! Events give way to what they tell of: only a few are written at a time, the others wait their turn, and when too many
//! wait, new ones are logged alone (client-go's broadcaster drops them too). A recorder may also have a bucket, out of which
//! each event takes one (the rate limiter of a client of client-go).

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use carrack_types::resource::Kind;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::bucket::Bucket;
use crate::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, Effects, Input, Rng, Time, TimerId, fnv1a};

/// Whether an event is routine or asks for attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// Routine.
    Normal,
    /// Asks for attention.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something to tell about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    /// About whom.
    pub regarding: ObjectReference,
    /// Routine or not.
    pub event_type: EventType,
    /// CamelCase reason.
    pub reason: String,
    /// For people.
    pub message: String,
    /// From which component, if not from the one that records it.
    pub component: Option<&'static str>,
    /// For programs: annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

impl EventRecord {
    /// A routine event.
    pub fn normal<K: Kind>(about: &K, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(about, EventType::Normal, reason, message)
    }
    /// An event that asks for attention.
    pub fn warning<K: Kind>(about: &K, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(about, EventType::Warning, reason, message)
    }
    fn new<K: Kind>(about: &K, event_type: EventType, reason: impl Into<String>, message: impl Into<String>) -> Self {
        let resource = K::resource();
        let meta = about.meta();
        Self {
            regarding: ObjectReference {
                api_version: Some(resource.api_version()),
                kind: Some(resource.kind.into_owned()),
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                field_path: None,
            },
            event_type,
            reason: reason.into(),
            message: message.into(),
            component: None,
            annotations: BTreeMap::new(),
        }
    }
    /// The same event, from a component other than its recorder's.
    #[must_use]
    pub fn of_component(mut self, component: &'static str) -> Self {
        self.component = Some(component);
        self
    }
    /// The same event with annotations.
    #[must_use]
    pub fn annotated(mut self, annotations: BTreeMap<String, String>) -> Self {
        self.annotations = annotations;
        self
    }
    /// The same event about a part of the object, such as `spec.containers{compute}`.
    #[must_use]
    pub fn at_field(mut self, path: impl Into<String>) -> Self {
        self.regarding.field_path = Some(path.into());
        self
    }
}

/// How many different events are remembered for counting.
const REMEMBERED: usize = 4096;
/// How many events one object may cause at once, and how fast that refills.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
const ATTEMPTS: u32 = 3;
/// How many events are written at a time, and how many may wait for that, in all of so many bytes: what an event says
/// may be as long as somebody's object lets it be (the name of an image that is not found).
const AT_ONCE: usize = 4;
const WAITING: usize = 20_000;
const WAITING_BYTES: usize = 32 << 20;
/// How long a name may be.
const LONGEST_NAME: usize = 253;

struct Series {
    count: i32,
    created: bool,
    /// One of it waits to be written; it will tell the count of all.
    waits: bool,
    last: Time,
}

struct Budget {
    left: u32,
    since: Time,
    /// Its number among all uses of budgets.
    used: u64,
}

struct InFlight {
    at: Time,
    name: String,
    record: EventRecord,
    attempt: u32,
    patch: bool,
    /// It was there before this recorder knew of it: how often it was told then is known when that is answered.
    found: bool,
}

impl InFlight {
    /// How much room it takes.
    fn bytes(&self) -> usize {
        let EventRecord { regarding: r, reason, message, annotations, .. } = &self.record;
        let texts = [&r.api_version, &r.field_path, &r.kind, &r.name, &r.namespace, &r.resource_version, &r.uid];
        let about: usize = texts.into_iter().flatten().map(String::len).sum();
        let noted: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        std::mem::size_of::<Self>() + self.name.len() + about + reason.len() + message.len() + noted
    }
}

/// Writes events. A part that a core embeds.
pub struct EventRecorder {
    component: Cow<'static, str>,
    host: Option<String>,
    series: BTreeMap<String, Series>,
    order: VecDeque<String>,
    budgets: BTreeMap<Arc<str>, Budget>,
    /// Whose budgets these are, in the order in which they were used; each has one place.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    calls: BTreeMap<CallId, InFlight>,
    waiting: VecDeque<InFlight>,
    waiting_bytes: usize,
    /// How often one may be written, if there is a limit.
    bucket: Option<Bucket>,
    /// When the next may.
    timer: Option<TimerId>,
}

impl EventRecorder {
    /// A recorder that signs its events with a component's name.
    #[must_use]
    pub fn new(component: impl Into<Cow<'static, str>>, _rng: Rng) -> Self {
        Self {
            component: component.into(),
            host: None,
            series: BTreeMap::new(),
            order: VecDeque::new(),
            budgets: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            calls: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            bucket: None,
            timer: None,
        }
    }
    /// Bounds how often events are written. Its core hands such a recorder timers, too.
    #[must_use]
    pub fn paced(mut self, bucket: Option<Bucket>) -> Self {
        self.bucket = bucket;
        self
    }
    /// Names the node that events come from.
    #[must_use]
    pub fn on_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Records an event.
    pub fn record<F>(&mut self, now: Time, record: EventRecord, fx: &mut Effects<F>) {
        let r = &record.regarding;
        let component = record.component.map_or_else(|| self.component.clone(), Cow::Borrowed);
        let uid = r.uid.clone().unwrap_or_default();
        tracing::debug!(
            component = &*component,
            kind = r.kind,
            namespace = r.namespace,
            name = r.name,
            reason = record.reason,
            message = record.message,
            "event"
        );
        if !self.spend(&uid, now) {
            return;
        }
        let hash = fnv1a(
            [
                &*component,
                self.host.as_deref().unwrap_or_default(),
                &uid,
                r.field_path.as_deref().unwrap_or_default(),
                record.event_type.as_str(),
                &record.reason,
                &record.message,
            ]
            .join("\0")
            .as_bytes(),
        );
        let name = event_name(r.name.as_deref().unwrap_or_default(), hash);
        let has_room = self.has_room();
        // Who waits comes first.
        let is_busy = !self.waiting.is_empty() || !self.takes_turn(now, fx);
        let series = self.series.entry(name.clone()).or_insert_with(|| {
            self.order.push_back(name.clone());
            Series { count: 0, created: false, waits: false, last: now }
        });
        series.count = series.count.saturating_add(1);
        series.last = now;
        let patch = series.created;
        let waits = series.waits;
        series.waits |= is_busy && has_room;
        while self.order.len() > REMEMBERED {
            if let Some(old) = self.order.pop_front() {
                self.series.remove(&old);
            }
        }
        let flight = InFlight { at: now, name, record, attempt: 0, patch, found: false };
        if !is_busy {
            self.send(flight, fx);
        } else if !waits && has_room {
            self.waiting_bytes += flight.bytes();
            self.waiting.push_back(flight);
        }
    }

    /// Takes the turn of one event, if it may be written now; else an answer or a timer says when to try again.
    fn takes_turn<F>(&mut self, now: Time, fx: &mut Effects<F>) -> bool {
        if self.calls.len() >= AT_ONCE {
            return false;
        }
        let Some(bucket) = &mut self.bucket else { return true };
        let taken = bucket.take(now);
        if let (Err(at), None) = (taken, self.timer) {
            self.timer = Some(fx.timer(at));
        }
        taken.is_ok()
    }

    /// Whether one more may wait.
    fn has_room(&self) -> bool {
        self.waiting.len() < WAITING && self.waiting_bytes < WAITING_BYTES
    }

    fn spend(&mut self, uid: &str, now: Time) -> bool {
        self.uses += 1;
        let owner: Arc<str> = match self.budgets.get_key_value(uid) {
            Some((owner, budget)) => {
                self.by_use.remove(&budget.used);
                owner.clone()
            }
            None => uid.into(),
        };
        self.by_use.insert(self.uses, owner.clone());
        if self.by_use.len() > REMEMBERED
            && let Some((_, idle)) = self.by_use.pop_first()
        {
            self.budgets.remove(&idle);
        }
        let b = self.budgets.entry(owner).or_insert(Budget { left: BURST, since: now, used: 0 });
        b.used = self.uses;
        let refills = u32::try_from(now.since(b.since).as_nanos() / REFILL.as_nanos()).unwrap_or(u32::MAX);
        if refills > 0 {
            b.left = b.left.saturating_add(refills).min(BURST);
            b.since = now;
        }
        let allowed = b.left > 0;
        b.left = b.left.saturating_sub(1);
        allowed
    }

    fn send<F>(&mut self, flight: InFlight, fx: &mut Effects<F>) {
        let r = &flight.record.regarding;
        // Events about cluster-scoped objects live in the default namespace.
        let namespace = r.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
        let (count, last) = self.series.get(&flight.name).map_or((1, flight.at), |s| (s.count, s.last));
        let component = flight.record.component.unwrap_or(&self.component).to_owned();
        let request = if flight.patch {
            let mut patch = json!({"lastTimestamp": last.rfc3339()});
            if !flight.found {
                patch["count"] = count.into();
            }
            ApiRequest::patch(&Event::resource(), &namespace, &flight.name, "", ContentType::MergePatch, &patch)
        } else {
            ApiRequest::create(&Event {
                metadata: ObjectMeta {
                    name: Some(flight.name.clone()),
                    namespace: Some(namespace),
                    annotations: Some(flight.record.annotations.clone()).filter(|all| !all.is_empty()),
                    ..ObjectMeta::default()
                },
                involved_object: r.clone(),
                type_: Some(flight.record.event_type.as_str().into()),
                reason: Some(flight.record.reason.clone()),
                message: Some(flight.record.message.clone()),
                count: Some(count),
                first_timestamp: Some(flight.at.meta()),
                last_timestamp: Some(last.meta()),
                source: Some(EventSource { component: Some(component.clone()), host: self.host.clone() }),
                reporting_component: Some(component),
                reporting_instance: self.host.clone(),
                ..Event::default()
            })
        };
        let id = fx.api(request);
        self.calls.insert(id, flight);
    }

    /// Takes an input if it is the reply to one of this recorder's writes, or its timer.
    pub fn step<E, F>(&mut self, now: Time, input: &Input<E>, fx: &mut Effects<F>) -> bool {
        match input {
            Input::Api { id, result } => {
                let Some(flight) = self.calls.remove(id) else { return false };
                self.answered(flight, result, fx);
            }
            Input::Timer(id) if self.timer == Some(*id) => self.timer = None,
            _ => return false,
        }
        while !self.waiting.is_empty() && self.takes_turn(now, fx) {
            let Some(mut next) = self.waiting.pop_front() else { break };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(next.bytes());
            // The first of its kind may have been written while it waited.
            if let Some(series) = self.series.get_mut(&next.name) {
                next.patch |= series.created;
                series.waits = false;
            }
            self.send(next, fx);
        }
        true
    }

    fn answered<F>(&mut self, mut flight: InFlight, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<F>) {
        match result {
            Ok(reply) => {
                if let Some(series) = self.series.get_mut(&flight.name) {
                    let told = reply.object::<Event>().map_or(0, |event| event.count.unwrap_or(1));
                    // An event from before a restart, or one that was forgotten, goes on counting where it was.
                    series.count = match flight.found && !series.created {
                        true => series.count.saturating_add(told),
                        false => series.count.max(told),
                    };
                    series.created = true;
                }
            }
            Err(e) if e.is_already_exists() && !flight.patch => {
                flight.patch = true;
                // Another request of this recorder may have made it, one that was lost or one that is under way.
                let is_known = self.series.get(&flight.name).is_some_and(|series| series.created);
                let is_made = self.calls.values().any(|other| other.name == flight.name);
                flight.found = flight.attempt == 0 && !is_known && !is_made;
                self.send(flight, fx);
            }
            // It has expired meanwhile.
            Err(e) if e.is_not_found() && flight.patch => {
                self.series.remove(&flight.name);
                flight.patch = false;
                flight.found = false;
                flight.attempt += 1;
                if flight.attempt < ATTEMPTS {
                    self.send(flight, fx);
                }
            }
            Err(e) if e.is_unknown() && flight.attempt + 1 < ATTEMPTS => {
                flight.attempt += 1;
                self.send(flight, fx);
            }
            Err(error) => {
                // A namespace that is going away takes no more events; that is no news.
                tracing::debug!(component = &*self.component, event = flight.name, %error, "an event was not recorded");
            }
        }
    }
}

/// The name of an event about an object. Some objects have names that no event can have: RBAC's, or one so long that
/// nothing has room behind it. Of such a name its hash is taken; upstream reference: `GenerateEventName` in
/// client-go's tools/record/util, which draws a UID then.
fn event_name(about: &str, hash: u64) -> String {
    let name = format!("{about}.{hash:016x}");
    if is_subdomain(&name) { name } else { format!("{:016x}.{hash:016x}", fnv1a(about.as_bytes())) }
}

/// Whether objects can have this name whose names are DNS subdomains, as those of events are.
fn is_subdomain(name: &str) -> bool {
    let is_end = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let label = label.as_bytes();
        let ends = [label.first(), label.last()];
        ends.into_iter().all(|end| end.is_some_and(|b| is_end(*b))) && label.iter().all(|b| is_end(*b) || *b == b'-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

/// The owner reference that makes `owner` the controller of a child.
#[must_use]
pub fn controller_ref<K: Kind>(owner: &K) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
    let resource = K::resource();
    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        api_version: resource.api_version(),
        kind: resource.kind.into_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
