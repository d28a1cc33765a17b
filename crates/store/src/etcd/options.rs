//! Where etcd is and how it is used.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::mem::{HistoryLimits, WATCH_BUFFER_EVENTS};
use crate::model::Value;

/// How etcd is reached and used.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port` of the members.
    pub endpoints: Vec<String>,
    /// With TLS, and what for; plain HTTP without it.
    pub tls: Option<Tls>,
    /// The keys that are read and written; others are left alone.
    pub prefix: String,
    /// How much history this process keeps for watches. What etcd keeps is up to `compact_every`.
    pub history: HistoryLimits,
    /// How many events a watcher may leave unread before it is dropped as lagging.
    pub watch_buffer_events: usize,
    /// How long etcd may take to answer, and its watch to bring a change that etcd has told of.
    pub timeout: Duration,
    /// How often etcd's history is compacted to what it was that long ago; `None` leaves it to others.
    pub compact_every: Option<Duration>,
    /// What becomes of a value without a place for its revision, as those are that somebody else has put there: the same in this
    /// process's form; none where it cannot be read. It is as it is then.
    pub foreign: fn(&[u8]) -> Option<Value>,
}

/// Whom to trust, and who to be. PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificate authority of etcd's certificate.
    pub ca: Vec<u8>,
    /// Certificate and key that this process shows; none where etcd asks for none.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults of an API server, which has etcd compacted every five minutes, as upstream does.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            tls: None,
            prefix: "/registry/".to_owned(),
            history: HistoryLimits::default(),
            watch_buffer_events: WATCH_BUFFER_EVENTS,
            timeout: Duration::from_secs(10),
            compact_every: Some(Duration::from_secs(300)),
            foreign: |_| None,
        }
    }

    pub(super) fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}")).collect()
    }

    pub(super) fn connect(&self) -> ConnectOptions {
        // A connection that has died silently is found out in the time that a request may take.
        let options = ConnectOptions::new()
            .with_connect_timeout(self.timeout)
            .with_keep_alive(self.timeout, self.timeout)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let Some(tls) = &self.tls else { return options };
        let mut config = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        options.with_tls(config)
    }
}
