//! Who was known, who was let in, and what was noted of it.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/filters/metrics.go` and `k8s.io/apiserver/pkg/audit/metrics.go`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, DOUBLING_SECONDS};
use crate::audit::Level;

/// From half an hour to a year, and what is over.
const LEFT_SECONDS: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UserLabels {
    username: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PluginLabels {
    plugin: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LevelLabels {
    level: &'static str,
}

/// What came of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Yes,
    No,
    /// They could not be looked at.
    Error,
}

/// Metrics of access.
pub(crate) struct AccessMetrics {
    attempts: Family<ResultLabels, Counter>,
    durations: Family<ResultLabels, Histogram, Bounds>,
    users: Family<UserLabels, Counter>,
    certificates: Histogram,
    fresh_tokens: Counter,
    stale_tokens: Counter,
    held_tokens: Counter,
    authorizations: Family<ResultLabels, Counter>,
    authorization_durations: Family<ResultLabels, Histogram, Bounds>,
    events: Counter,
    lost_events: Family<PluginLabels, Counter>,
    levels: Family<LevelLabels, Counter>,
}

/// The name under which a user is counted: those of the cluster alone, and all others as one. Anybody can have any number of
/// names (`compressUsername`).
fn counted(user: &str) -> &'static str {
    match user {
        "admin" => "admin",
        "kube-apiserver" => "kube-apiserver",
        _ if user.starts_with("system:anonymous") => "system:anonymous",
        "client" => "client",
        "system:kube-controller-manager" => "system:kube-controller-manager",
        "system:kube-proxy" => "system:kube-proxy",
        "system:kube-scheduler" => "system:kube-scheduler",
        _ if user.contains('@') => "email_id",
        _ => "other",
    }
}

impl AccessMetrics {
    pub(super) fn new() -> Self {
        let family = || Family::new_with_constructor(Bounds(&DOUBLING_SECONDS));
        Self {
            attempts: Family::default(),
            durations: family(),
            users: Family::default(),
            certificates: Histogram::new(LEFT_SECONDS),
            fresh_tokens: Counter::default(),
            stale_tokens: Counter::default(),
            held_tokens: Counter::default(),
            authorizations: Family::default(),
            authorization_durations: family(),
            events: Counter::default(),
            lost_events: Family::default(),
            levels: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("authentication_attempts", "Number of attempts to authenticate", self.attempts.clone());
        registry.register(
            "authentication_duration_seconds",
            "Latency of authentication in seconds",
            self.durations.clone(),
        );
        registry.register(
            "authenticated_user_requests",
            "Number of authenticated requests, by user",
            self.users.clone(),
        );
        registry.register(
            "apiserver_client_certificate_expiration_seconds",
            "For how long the certificates of those who make requests are still valid, in seconds",
            self.certificates.clone(),
        );
        registry.register(
            "serviceaccount_valid_tokens",
            "Number of uses of pods' tokens before another was to take their place",
            self.fresh_tokens.clone(),
        );
        registry.register(
            "serviceaccount_stale_tokens",
            "Number of uses of pods' tokens after that: a program reads its token but once",
            self.stale_tokens.clone(),
        );
        registry.register(
            "serviceaccount_legacy_tokens",
            "Number of uses of tokens that Secrets hold",
            self.held_tokens.clone(),
        );
        registry.register(
            "authorization_attempts",
            "Number of decisions on what requests may do",
            self.authorizations.clone(),
        );
        registry.register(
            "authorization_duration_seconds",
            "Latency of authorization in seconds",
            self.authorization_durations.clone(),
        );
        registry.register("apiserver_audit_event", "Number of audit events that were written", self.events.clone());
        registry.register("apiserver_audit_error", "Number of audit events that were lost", self.lost_events.clone());
        registry.register(
            "apiserver_audit_level",
            "Number of requests by the level at which the policy has them noted",
            self.levels.clone(),
        );
    }

    /// Credentials were looked at for so long.
    pub(crate) fn authenticated(&self, known: Known, user: &str, elapsed_s: f64) {
        let result = match known {
            Known::Yes => "success",
            Known::No => "failure",
            Known::Error => "error",
        };
        self.attempts.get_or_create(&ResultLabels { result }).inc();
        self.durations.get_or_create(&ResultLabels { result }).observe(elapsed_s.max(0.0));
        if known == Known::Yes {
            self.users.get_or_create(&UserLabels { username: counted(user) }).inc();
        }
    }

    /// A request came over a connection whose client's certificate is valid for so long.
    pub(crate) fn certificate(&self, left_s: i64) {
        self.certificates.observe(left_s as f64);
    }

    /// A token was taken that is valid for longer than its holder is told, after that or before.
    pub(crate) fn extended_token(&self, is_stale: bool) {
        let counter = if is_stale { &self.stale_tokens } else { &self.fresh_tokens };
        counter.inc();
    }

    /// A token was used that a Secret holds.
    pub(crate) fn held_token(&self) {
        self.held_tokens.inc();
    }

    /// It was decided whether a request may be made; none when that is not known.
    pub(crate) fn authorized(&self, allowed: Option<bool>, elapsed_s: f64) {
        let result = match allowed {
            Some(true) => "allowed",
            Some(false) => "denied",
            None => "error",
        };
        self.authorizations.get_or_create(&ResultLabels { result }).inc();
        self.authorization_durations.get_or_create(&ResultLabels { result }).observe(elapsed_s.max(0.0));
    }

    /// A request is noted at this level, or not.
    pub(crate) fn noted(&self, level: Level) {
        self.levels.get_or_create(&LevelLabels { level: level.text() }).inc();
    }

    /// What audit events are counted by, and those of them that were lost, for those who write them.
    pub(crate) fn events(&self) -> [Counter; 2] {
        [self.events.clone(), self.lost_events.get_or_create_owned(&PluginLabels { plugin: "log" })]
    }
}
