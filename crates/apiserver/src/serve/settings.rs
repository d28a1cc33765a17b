//! Bounds of the HTTPS shell.

use std::time::Duration;

/// Bounds in size and time; the defaults suit a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Largest head of a request, in bytes.
    pub max_head_bytes: usize,
    /// Most connections at a time; who comes then takes the place of one from where there are most.
    pub max_connections: usize,
    /// Most requests at a time on one HTTP/2 connection.
    pub max_streams: u32,
    /// Most requests that are worked on at a time, divided among the priority levels; watches and other
    /// long-lived ones are counted until their answer begins.
    pub max_in_flight: usize,
    /// How long a request may wait for its turn, where a quarter of its time is longer (`getRequestWaitContext` of
    /// `k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`).
    pub max_wait: Duration,
    /// How long a request may be worked on.
    pub request: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long a request's head may take.
    pub head: Duration,
    /// How long a request's body may take, if something of it comes now and then.
    pub body: Duration,
    /// How long connecting to a kubelet may take.
    pub node_connect: Duration,
    /// How long a kubelet, or what a request is proxied to, may take to begin its answer.
    pub node_answer: Duration,
    /// How often an idle HTTP/2 connection is probed.
    pub keep_alive: Duration,
    /// How long everything goes on after shutdown was asked for, but that `/readyz` says no: until load
    /// balancers have noticed.
    pub shutdown_delay: Duration,
    /// How long requests may go on after shutdown has begun.
    pub drain: Duration,
    /// How often expired events are removed.
    pub housekeeping: Duration,
    /// How often this server says that it is there, and looks whether what every cluster has is.
    pub presence: Duration,
    /// How often the servers of other APIs are asked whether they answer.
    pub api_services: Duration,
    /// How long to wait after a connection could not be accepted.
    pub accept_pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_body_bytes: 3 << 20,
            max_head_bytes: 1 << 20,
            max_connections: 4096,
            max_streams: 250,
            max_in_flight: 600,
            max_wait: Duration::from_secs(60),
            request: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            node_connect: Duration::from_secs(10),
            node_answer: Duration::from_secs(60),
            keep_alive: Duration::from_secs(30),
            shutdown_delay: Duration::ZERO,
            drain: Duration::from_secs(10),
            housekeeping: Duration::from_secs(300),
            presence: Duration::from_secs(10),
            api_services: Duration::from_secs(10),
            accept_pause: Duration::from_millis(100),
        }
    }
}
