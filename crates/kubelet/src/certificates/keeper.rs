//! When a certificate is asked for, and what becomes of the request.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::pki::CertificateFacts;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Core, Effects, Informer, Input, Rng, Selector, Time, TimerId,
};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::json;

use super::Wanted;

/// Requests that fail are tried again after so long, twice as long each time, up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(32);
/// After a request was denied, the next one is not made before this.
const AFTER_DENIAL: Duration = Duration::from_secs(300);

/// A request for a certificate, whose key is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// A name for the key, which the request's is derived from.
    pub fingerprint: String,
    /// The request, PEM.
    pub request: String,
}

/// What the files hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// What the certificate in use says; none where there is no usable one.
    pub current: Option<CertificateFacts>,
    /// A key that was made for a request, with a request for it.
    pub asked: Option<Asked>,
}

/// What is to be done with the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Read them.
    Load,
    /// Make a key, keep it, and make a request for it.
    Ask,
    /// Keep this certificate (PEM) beside the key that was made for it, and use both.
    Keep(String),
    /// Drop the key that was made: nothing will come of it.
    Drop,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Of [`Task::Load`].
    Loaded(Result<Held, String>),
    /// Of [`Task::Ask`].
    Asked(Result<Asked, String>),
    /// Of [`Task::Keep`].
    Kept(Result<CertificateFacts, Unkept>),
    /// Of [`Task::Drop`].
    Dropped(Result<(), String>),
}

/// Why a certificate was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// It is not one for the key that was made, or not what was asked for.
    Unfit(String),
    /// The disk failed.
    Disk(String),
}

/// What follows a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Load,
    Ask,
    Create,
    Drop,
}

enum State {
    /// Something is being done with the files.
    Files,
    /// The certificate in use is good until it is to be exchanged.
    InUse(TimerId),
    /// The request is being created.
    Creating(CallId),
    /// Somebody is to approve or sign it.
    Waiting(Box<Informer<CertificateSigningRequest>>),
    Pause(TimerId, Next),
}

/// Sees to one certificate.
pub struct Keeper {
    wanted: Wanted,
    rng: Rng,
    state: State,
    current: Option<CertificateFacts>,
    asked: Option<Asked>,
    failures: u32,
    /// The last request came to nothing.
    denied: bool,
}

/// When a certificate is to be exchanged: within this span, from 70 to 90 % of its life. Where in it is left to chance, so
/// that nodes that joined together do not ask together for ever (client-go `util/certificate`, `nextRotationDeadline`).
#[must_use]
pub(super) fn rotation_window(facts: &CertificateFacts) -> (Time, Time) {
    let life_s = u64::try_from(facts.not_after_unix_s.saturating_sub(facts.not_before_unix_s)).unwrap_or(0);
    let after = |percent: u64| Duration::from_millis(life_s.saturating_mul(percent).saturating_mul(10));
    let born = Time::from_unix_s(facts.not_before_unix_s);
    (born + after(70), born + after(90))
}

/// What a request's state asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Somebody has still to decide or to sign.
    Wait,
    /// This is the certificate (PEM).
    Signed(String),
    /// Nothing will come of it, for this reason.
    Hopeless(String),
}

/// Reads a request as the API shows it.
pub(super) fn judge(wanted: &Wanted, shown: &CertificateSigningRequest) -> Verdict {
    if shown.spec.signer_name != wanted.signer {
        return Verdict::Hopeless(format!("its name is taken by a request to {}", shown.spec.signer_name));
    }
    let status = shown.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    if let Some(c) = conditions.iter().find(|c| c.type_ == "Denied" || c.type_ == "Failed") {
        let (reason, message) = (c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default());
        return Verdict::Hopeless(format!("{}, reason: {reason}, message: {message}", c.type_.to_lowercase()));
    }
    let approved = conditions.iter().any(|c| c.type_ == "Approved");
    match status.certificate.filter(|c| approved && !c.0.is_empty()) {
        Some(certificate) => match String::from_utf8(certificate.0) {
            Ok(pem) => Verdict::Signed(pem),
            Err(_) => Verdict::Hopeless("its certificate is no PEM".into()),
        },
        None => Verdict::Wait,
    }
}

impl Keeper {
    /// One that has not started.
    #[must_use]
    pub fn new(wanted: Wanted, rng: Rng) -> Self {
        Self { wanted, rng, state: State::Files, current: None, asked: None, failures: 0, denied: false }
    }

    fn files(&mut self, task: Task, fx: &mut Effects<Task>) {
        self.state = State::Files;
        fx.own(task);
    }

    fn pause(&mut self, now: Time, why: &str, next: Next, fx: &mut Effects<Task>) {
        let delay = if std::mem::take(&mut self.denied) {
            AFTER_DENIAL
        } else {
            (FIRST_BACKOFF * 2_u32.saturating_pow(self.failures.min(8))).min(MAX_BACKOFF)
        };
        self.failures += 1;
        let delay = self.rng.jitter(delay, 10);
        tracing::warn!(signer = self.wanted.signer, why, again_in_s = delay.as_secs(), "no certificate yet");
        self.state = State::Pause(fx.timer(now + delay), next);
    }

    fn go_on(&mut self, next: Next, fx: &mut Effects<Task>) {
        match next {
            Next::Load => self.files(Task::Load, fx),
            Next::Ask => self.files(Task::Ask, fx),
            Next::Create => self.create(fx),
            Next::Drop => self.files(Task::Drop, fx),
        }
    }

    /// Uses what there is until it is to be exchanged, or asks for another.
    fn decide(&mut self, now: Time, fx: &mut Effects<Task>) {
        let due = self.current.as_ref().map(rotation_window).map(|(from, to)| {
            let span = u64::try_from(to.since(from).as_nanos()).unwrap_or(u64::MAX);
            from + Duration::from_nanos(self.rng.below(span))
        });
        match due.filter(|at| *at > now) {
            Some(at) => {
                tracing::debug!(signer = self.wanted.signer, at = at.rfc3339(), "the certificate is to be exchanged");
                self.state = State::InUse(fx.timer(at));
            }
            None => self.create(fx),
        }
    }

    fn name(&self) -> String {
        let fingerprint = self.asked.as_ref().map_or("", |asked| &asked.fingerprint);
        format!("{}{fingerprint}", self.wanted.prefix)
    }

    fn create(&mut self, fx: &mut Effects<Task>) {
        let Some(asked) = &self.asked else { return self.files(Task::Ask, fx) };
        let resource = CertificateSigningRequest::resource();
        let request = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {"name": self.name()},
            "spec": {
                "request": STANDARD.encode(&asked.request),
                "signerName": self.wanted.signer,
                // A key on an elliptic curve enciphers no other keys.
                "usages": ["digital signature", self.wanted.usage],
            },
        });
        self.state = State::Creating(fx.api(ApiRequest::create_value(&resource, "", &request)));
    }

    fn created(&mut self, now: Time, result: Result<ApiResponse, ApiError>, fx: &mut Effects<Task>) {
        match result.and_then(|reply| reply.object::<CertificateSigningRequest>()) {
            Ok(shown) => self.shown(&shown, fx),
            Err(error) if error.is_already_exists() => self.wait(fx),
            Err(ApiError::Status(s)) if s.code == 401 && self.expired(now) => {
                fx.exit("the client certificate has expired, and the API server answers");
            }
            Err(error) => self.pause(now, &error.to_string(), Next::Create, fx),
        }
    }

    /// There was a certificate, and its time is over.
    fn expired(&self, now: Time) -> bool {
        self.current.as_ref().is_some_and(|facts| facts.not_after_unix_s <= now.unix_s())
    }

    fn wait(&mut self, fx: &mut Effects<Task>) {
        let selector = Selector::fields(format!("metadata.name={}", self.name()));
        let mut informer = Informer::new(CertificateSigningRequest::resource(), selector, self.rng.fork("request"));
        informer.start(fx);
        self.state = State::Waiting(Box::new(informer));
    }

    /// Nothing comes of this request: the next one is made with another key.
    fn give_up(&mut self, why: &str, fx: &mut Effects<Task>) {
        tracing::warn!(request = self.name(), signer = self.wanted.signer, why, "a request for a certificate failed");
        self.denied = true;
        self.files(Task::Drop, fx);
    }

    fn shown(&mut self, shown: &CertificateSigningRequest, fx: &mut Effects<Task>) {
        match judge(&self.wanted, shown) {
            Verdict::Signed(pem) => self.files(Task::Keep(pem), fx),
            Verdict::Hopeless(why) => self.give_up(&why, fx),
            Verdict::Wait => {
                if !matches!(self.state, State::Waiting(_)) {
                    tracing::info!(request = self.name(), signer = self.wanted.signer, "waiting for a certificate");
                    self.wait(fx);
                }
            }
        }
    }

    /// The request's informer saw something.
    fn watched(&mut self, now: Time, mut informer: Box<Informer<CertificateSigningRequest>>, fx: &mut Effects<Task>) {
        let shown = informer.cache().iter().next().cloned();
        match shown {
            Some(shown) if judge(&self.wanted, &shown) == Verdict::Wait => self.state = State::Waiting(informer),
            Some(shown) => {
                informer.stop(fx);
                self.shown(&shown, fx);
            }
            // It was cleaned up, and is made again.
            None if informer.synced() => {
                informer.stop(fx);
                self.pause(now, "the request is gone", Next::Create, fx);
            }
            None => self.state = State::Waiting(informer),
        }
    }

    fn done(&mut self, now: Time, done: Done, fx: &mut Effects<Task>) {
        match done {
            Done::Loaded(Ok(held)) => {
                self.current = held.current.filter(|facts| facts.satisfies(&self.wanted.subject));
                self.asked = held.asked;
                self.decide(now, fx);
            }
            Done::Loaded(Err(why)) => self.pause(now, &why, Next::Load, fx),
            Done::Asked(Ok(asked)) => {
                self.asked = Some(asked);
                self.create(fx);
            }
            Done::Asked(Err(why)) => self.pause(now, &why, Next::Ask, fx),
            Done::Kept(Ok(facts)) => {
                tracing::info!(
                    signer = self.wanted.signer,
                    until = Time::from_unix_s(facts.not_after_unix_s).rfc3339(),
                    "a new certificate is in use"
                );
                self.asked = None;
                let lasts = rotation_window(&facts).1 > now;
                self.current = Some(facts);
                if lasts {
                    self.failures = 0;
                    self.decide(now, fx);
                } else {
                    self.pause(now, "the certificate is near its end already", Next::Ask, fx);
                }
            }
            Done::Kept(Err(Unkept::Unfit(why))) => self.give_up(&why, fx),
            // The request is still there, and so is its certificate.
            Done::Kept(Err(Unkept::Disk(why))) => self.pause(now, &why, Next::Create, fx),
            Done::Dropped(Ok(())) => {
                self.asked = None;
                self.pause(now, "another request is made", Next::Ask, fx);
            }
            Done::Dropped(Err(why)) => self.pause(now, &why, Next::Drop, fx),
        }
    }
}

impl Core for Keeper {
    type In = Done;
    type Out = Task;

    fn step(&mut self, now: Time, input: Input<Done>, fx: &mut Effects<Task>) {
        match std::mem::replace(&mut self.state, State::Files) {
            State::Waiting(mut informer) => match informer.step(now, &input, fx) {
                Some(_) => return self.watched(now, informer, fx),
                None => self.state = State::Waiting(informer),
            },
            other => self.state = other,
        }
        match (input, &self.state) {
            (Input::Start, _) => self.files(Task::Load, fx),
            (Input::Own(done), _) => self.done(now, done, fx),
            (Input::Api { id, result }, State::Creating(call)) if id == *call => self.created(now, result, fx),
            (Input::Timer(id), State::InUse(timer)) if id == *timer => self.create(fx),
            (Input::Timer(id), State::Pause(timer, next)) if id == *timer => {
                let next = *next;
                self.go_on(next, fx);
            }
            _ => {}
        }
    }
}
