//! A client of the guest agent (qemu-ga), over its channel's socket.
//!
//! QEMU gives the channel to one client at a time, and nobody can tell from the socket whether it is theirs. So clients take
//! turns by a lock, a connection lasts for one question or a few, and begins by synchronising: what the guest still had to
//! say to somebody else is dropped. How long an agent may take is counted from when it is one's turn: a probe that runs a
//! command in a slow guest makes others wait, and none of them believe that nobody is there.
//!
//! Nothing that a guest says is trusted: lines are bounded, answers have deadlines, and why it refuses is one short line.
//! Upstream reference: QEMU's docs/interop/qemu-ga-ref.

use crate::layout::{self, Layout};
use crate::lines::{LineError, LineReader, LineWriter, split};
use crate::said::{MOST_CHARS, one_line};
use base64::Engine as _;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest answer: the list of a guest's file systems and users is far shorter, the output of a command is cut.
const LINE_LIMIT_BYTES: usize = 1 << 20;

/// How long an agent may take to say that it is there.
const SYNC_DEADLINE: Duration = Duration::from_secs(2);

/// How long one's turn may take to come.
const TURN_DEADLINE: Duration = Duration::from_secs(15);

/// How often it is asked for.
const TURN_PERIOD: Duration = Duration::from_millis(20);

/// How often a command that runs in the guest is looked at.
const EXEC_PERIOD: Duration = Duration::from_millis(50);

/// Lines from before that are passed over while synchronising.
const STALE_LINES: usize = 64;

/// Why the agent gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no channel: the guest does not run.
    #[error("the guest agent's channel cannot be reached")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what came back was no answer.
    #[error("the guest agent's channel failed")]
    Line(#[from] LineError),
    /// Nothing in the guest answers, or not in time.
    #[error("the guest agent did not answer {0} in time")]
    Silent(&'static str),
    /// The agent refused.
    #[error("the guest agent refused {command}: {message}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The agent's words.
        message: String,
    },
    /// The answer is not what it should be.
    #[error("the guest agent's answer to {0} is not understood")]
    Odd(&'static str),
}

/// A synchronised connection.
#[derive(Debug)]
pub struct Agent {
    reader: LineReader,
    writer: LineWriter,
    /// It is this one's turn for as long as this is open.
    _turn: OwnedFd,
}

/// How a command in the guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status, or minus the signal that ended it.
    pub code: i64,
    /// What it wrote to its standard output.
    pub stdout: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "return", default)]
    value: Option<Value>,
    #[serde(default)]
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Agent {
    /// Connects to the channel at `socket` ([`Layout::agent_socket`]) and makes sure that somebody answers.
    ///
    /// # Errors
    /// Nobody does within two seconds, once others have asked what they had to.
    pub async fn connect(socket: &Path) -> Result<Self, AgentError> {
        let turn = turn(socket).await?;
        let sync = async {
            let stream = layout::connect(socket).await.map_err(AgentError::Connect)?;
            let (reader, writer) = split(stream, LINE_LIMIT_BYTES);
            let mut agent = Self { reader, writer, _turn: turn };
            let id = u64::from(std::process::id()) << 16 | (NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff);
            agent.writer.write(&json!({ "execute": "guest-sync", "arguments": { "id": id } })).await?;
            for _ in 0..STALE_LINES {
                match agent.reader.read::<Answer>().await {
                    Ok(answer) if answer.value == Some(json!(id)) => return Ok(agent),
                    // An answer to somebody who has hung up, or half of one.
                    Ok(_) | Err(LineError::Malformed(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(AgentError::Odd("guest-sync"))
        };
        tokio::time::timeout(SYNC_DEADLINE, sync).await.unwrap_or(Err(AgentError::Silent("guest-sync")))
    }

    /// Executes one of the agent's commands.
    ///
    /// # Errors
    /// See [`AgentError`]; only `Refused` says that it was not done.
    pub async fn execute(
        &mut self,
        command: &'static str,
        arguments: Value,
        deadline: Duration,
    ) -> Result<Value, AgentError> {
        let exchange = async {
            self.writer.write(&json!({ "execute": command, "arguments": arguments })).await?;
            let answer: Answer = self.reader.read().await?;
            match (answer.value, answer.error) {
                (_, Some(error)) => Err(AgentError::Refused { command, message: one_line(&error.desc, MOST_CHARS) }),
                (Some(value), None) => Ok(value),
                (None, None) => Err(AgentError::Odd(command)),
            }
        };
        tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(AgentError::Silent(command)))
    }

    /// Runs a program in the guest to its end.
    ///
    /// # Errors
    /// It could not be started, or did not end in time; then it may still run.
    pub async fn exec(&mut self, program: &str, arguments: &[String], deadline: Duration) -> Result<Exit, AgentError> {
        let start = json!({ "path": program, "arg": arguments, "capture-output": true });
        let started = self.execute("guest-exec", start, deadline).await?;
        let pid = started["pid"].as_i64().ok_or(AgentError::Odd("guest-exec"))?;
        let wait = async {
            loop {
                let status = self.execute("guest-exec-status", json!({ "pid": pid }), deadline).await?;
                if status["exited"] == true {
                    let code = status["exitcode"].as_i64().unwrap_or_else(|| -status["signal"].as_i64().unwrap_or(1));
                    return Ok(Exit { code, stdout: decoded(&status["out-data"]) });
                }
                // Nothing tells when a command in a guest ends.
                tokio::time::sleep(EXEC_PERIOD).await;
            }
        };
        tokio::time::timeout(deadline, wait).await.unwrap_or(Err(AgentError::Silent("guest-exec-status")))
    }
}

/// Says to the guest's probes, as long as it is held, that its file systems are being frozen or thawed. Its agent answers nobody
/// meanwhile, which may take a minute and is no sign of death.
#[derive(Debug)]
pub struct Freezing {
    /// On a directory beside that of the turns: probes do not wait for it.
    _lock: OwnedFd,
}

impl Freezing {
    /// Says so; nothing, where there is no guest.
    pub async fn say(layout: &Layout) -> Option<Self> {
        let lock = locked(&layout.private).await.ok()?;
        Some(Self { _lock: lock })
    }

    /// Waits until somebody says so.
    pub async fn heard(layout: &Layout) {
        while !Self::is_said(layout) {
            tokio::time::sleep(TURN_PERIOD).await;
        }
    }

    /// Whether somebody says so.
    fn is_said(layout: &Layout) -> bool {
        let taken = |directory: OwnedFd| flock(&directory, FlockOperation::NonBlockingLockShared);
        directory(&layout.private).is_ok_and(|found| taken(found) == Err(Errno::WOULDBLOCK))
    }
}

/// Waits for one's turn at a channel. The lock is on the directory that it lies in, where nothing has to be made for it, and ends
/// with its holder.
async fn turn(socket: &Path) -> Result<OwnedFd, AgentError> {
    locked(socket.parent().unwrap_or(socket)).await
}

fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Waits until a directory is nobody else's.
async fn locked(path: &Path) -> Result<OwnedFd, AgentError> {
    let refused = |error: Errno| AgentError::Connect(error.into());
    let directory = directory(path).map_err(refused)?;
    let wait = async {
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => tokio::time::sleep(TURN_PERIOD).await,
                taken => return taken.map_err(refused),
            }
        }
    };
    tokio::time::timeout(TURN_DEADLINE, wait).await.unwrap_or(Err(AgentError::Silent("somebody else")))?;
    Ok(directory)
}

fn decoded(value: &Value) -> String {
    let bytes = value.as_str().and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    /// An agent that first says what is left over from before, and then answers with these lines.
    async fn play(listener: UnixListener, answers: &[&str]) {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        writer.write_all(b"{\"return\": {}}\nrubbish}\n").await.expect("written");
        let sync: Value = serde_json::from_str(&lines.next_line().await.expect("read").expect("a line")).expect("JSON");
        let reply = format!("{{\"return\": {}}}\n", sync["arguments"]["id"]);
        writer.write_all(reply.as_bytes()).await.expect("written");
        for answer in answers {
            if lines.next_line().await.expect("read").is_none() {
                return;
            }
            writer.write_all(format!("{answer}\n").as_bytes()).await.expect("written");
        }
        // It keeps the connection until the client goes.
        while lines.next_line().await.ok().flatten().is_some() {}
    }

    #[tokio::test]
    async fn answers_refusals_and_silence() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("agent");
        let listener = layout::listen(&socket).expect("listens");
        let answers = [
            r#"{"return": {"id": "debian"}}"#,
            r#"{"error": {"class": "GenericError", "desc": "no\n\u001b[2J"}}"#,
            r#"{"return": {"pid": 7}}"#,
            r#"{"return": {"exited": false}}"#,
            r#"{"return": {"exited": true, "exitcode": 3, "out-data": "aGk="}}"#,
        ];
        let client = async {
            let short = Duration::from_secs(10);
            let mut agent = Agent::connect(&socket).await.expect("synchronised");
            let info = agent.execute("guest-get-osinfo", json!({}), short).await.expect("answered");
            assert_eq!(info["id"], "debian");
            let refused = agent.execute("guest-fsfreeze-freeze", json!({}), short).await;
            let said = |error: AgentError| match error {
                AgentError::Refused { message, .. } => Some(message),
                _ => None,
            };
            assert_eq!(refused.map_err(said), Err(Some("no  [2J".to_owned())));
            let exit = agent.exec("/bin/true", &[], short).await.expect("ended");
            assert_eq!(exit, Exit { code: 3, stdout: "hi".to_owned() });
            let silent = agent.execute("guest-ping", json!({}), Duration::from_millis(50)).await;
            assert!(matches!(silent, Err(AgentError::Silent("guest-ping"))), "{silent:?}");
        };
        tokio::join!(play(listener, &answers), client);
        assert!(matches!(Agent::connect(&dir.path().join("none")).await, Err(AgentError::Connect(_))));
    }

    #[tokio::test]
    async fn who_waits_for_its_turn_does_not_take_the_agent_for_silent() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("agent");
        let listener = layout::listen(&socket).expect("listens");
        let held = turn(&socket).await.expect("its turn");
        let (here, there) = (socket.clone(), tokio::sync::oneshot::channel());
        let waiting = tokio::spawn(async move {
            there.0.send(()).expect("heard");
            Agent::connect(&here).await.map(drop)
        });
        there.1.await.expect("it has begun");
        let mut knocks = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec::default();
        assert_eq!(rustix::event::poll(&mut knocks, Some(&none)), Ok(0), "the channel is somebody else's");
        drop(held);
        let (_, asked) = tokio::join!(play(listener, &[]), waiting);
        assert!(asked.expect("it ends").is_ok());
    }
}
