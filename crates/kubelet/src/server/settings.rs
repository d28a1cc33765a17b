//! What the server serves, and its bounds in size and time.

use std::path::PathBuf;
use std::time::Duration;

use carrack_engine::Time;
use carrack_engine::zpages::flagz::Flags;

/// What is served, and bounds; the defaults suit a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether anybody may look into containers, run commands there and read logs (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// The directory of the node's logs, which those may read who may read its logs; nobody without it
    /// (`enableSystemLogHandler`).
    pub system_logs: Option<PathBuf>,
    /// Whether those may ask for the logs of services, too (`enableSystemLogQuery`).
    pub log_queries: bool,
    /// The program that tells these, with its first arguments.
    pub journal: Vec<String>,
    /// Whether who shows nothing is the anonymous user, who may do what the API server says (`authentication.anonymous`).
    pub anonymous: bool,
    /// What is told of the process that serves, among the metrics; nothing without it.
    pub process: Option<fn() -> String>,
    /// Its command line.
    pub flags: Flags,
    /// When it began, where that is known.
    pub started: Option<Time>,
    /// Most connections at a time that are asked one thing after another; more wait.
    pub max_connections: usize,
    /// Most that go on beside these, by exec, attach, port-forward and those who follow logs; one more is refused. However many there
    /// are, whoever looks after the node is answered.
    pub max_streams: usize,
    /// How many of them may be of others than the API server and `system:masters`, but for streams that go on; with one more the
    /// oldest of these ends.
    pub max_strangers: usize,
    /// Largest head of a request, in bytes. A command of exec is part of it.
    pub max_head_bytes: usize,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long a request's head may take, and how long a connection may wait for the next request.
    pub head: Duration,
    /// How long connecting to the runtime's streaming server may take.
    pub connect: Duration,
    /// How long the runtime's streaming server may take to answer.
    pub answer: Duration,
    /// How long a command of `/run` may take.
    pub run: Duration,
    /// How often a follower of a log looks whether the container is over.
    pub follow_check: Duration,
    /// How long a follower waits for a last record in a log that was renamed.
    pub rotation: Duration,
    /// How long a client may take nothing of what it asked for.
    pub stall: Duration,
    /// How long a silent connection stays before the peer is probed.
    pub keep_alive: Duration,
    /// How long requests may go on after shutdown has begun.
    pub drain: Duration,
    /// How long to wait after a connection could not be accepted.
    pub accept_pause: Duration,
    /// How long to wait where the port of `/healthz` is taken.
    pub listen_retry: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            debugging: true,
            system_logs: None,
            log_queries: false,
            journal: vec!["journalctl".to_owned()],
            anonymous: false,
            process: None,
            flags: Flags::new(),
            started: None,
            max_connections: 1024,
            max_streams: 4096,
            max_strangers: 512,
            max_head_bytes: 256 << 10,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            run: Duration::from_secs(120),
            follow_check: Duration::from_secs(1),
            rotation: Duration::from_millis(100),
            stall: Duration::from_secs(4 * 3600),
            keep_alive: Duration::from_secs(60),
            drain: Duration::from_secs(5),
            accept_pause: Duration::from_millis(100),
            listen_retry: Duration::from_secs(5),
        }
    }
}
