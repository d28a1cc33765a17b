//! A client of QEMU's monitor protocol, as small as the launcher needs it.
//!
//! The existing crates bring types for every command and event of QEMU, generated at build time, where the
//! launcher sends ten commands and reads the few fields named in [`crate::domain`].
//!
//! One task owns a connection: it executes commands one after the other and takes events in between. Events
//! that come while a command is under way wait in order. Upstream reference: QEMU's docs/interop/qmp-spec.

use crate::layout;
use crate::lines::{LineError, LineReader, LineWriter, split};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

/// QEMU's answers to the commands used here are a few kilobytes.
const LINE_LIMIT_BYTES: usize = 1 << 20;

/// A guest that floods the monitor with events cannot make it grow without bound.
const WAITING_EVENTS: usize = 1024;

/// QEMU answers these commands from its main loop, at once unless the host is stuck.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// Why a command or a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No connection.
    #[error("cannot connect to QEMU")]
    Connect(#[source] std::io::Error),
    /// The connection broke.
    #[error("the connection to QEMU failed")]
    Line(#[source] LineError),
    /// QEMU refused the command.
    #[error("QEMU refused {command}: {message}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's words.
        message: String,
    },
    /// No answer in time.
    #[error("QEMU did not answer {command} in {} s", ANSWER_DEADLINE.as_secs())]
    Silent {
        /// The command.
        command: String,
    },
}

impl QmpError {
    /// Whether the connection is gone, and with it probably QEMU.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Line(_))
    }
}

/// An event as QEMU sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its name, such as `SHUTDOWN`.
    pub name: String,
    /// Its data; null when it has none.
    pub data: Value,
}

/// A connection in command mode.
#[derive(Debug)]
pub struct Qmp {
    reader: LineReader,
    writer: LineWriter,
    events: VecDeque<Event>,
    next_id: u64,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    event: Option<String>,
    #[serde(default)]
    data: Value,
    #[serde(rename = "return", default)]
    result: Value,
    #[serde(default)]
    error: Option<Refusal>,
    #[serde(default)]
    id: Option<u64>,
    #[serde(rename = "QMP", default)]
    greeting: Option<Value>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

impl Qmp {
    /// Connects to the QMP socket at `path` and leaves the negotiation mode.
    ///
    /// # Errors
    /// Nobody listens, somebody else holds the connection, or what answers is not QEMU.
    pub async fn connect(path: &Path) -> Result<Self, QmpError> {
        let stream = layout::connect(path).await.map_err(QmpError::Connect)?;
        let (reader, writer) = split(stream, LINE_LIMIT_BYTES);
        let mut qmp = Self { reader, writer, events: VecDeque::new(), next_id: 1 };
        let greeting = tokio::time::timeout(ANSWER_DEADLINE, qmp.reader.read::<Message>());
        match greeting.await {
            Err(_) => return Err(QmpError::Silent { command: "the greeting".to_owned() }),
            Ok(Err(error)) => return Err(QmpError::Line(error)),
            Ok(Ok(message)) if message.greeting.is_none() => {
                return Err(QmpError::Refused {
                    command: "the connection".to_owned(),
                    message: "no QMP greeting".to_owned(),
                });
            }
            Ok(Ok(_)) => {}
        }
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// The connection broke, QEMU refused, or it did not answer in time.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.in_time(command, arguments, None).await
    }

    /// Hands an open file over to QEMU, which keeps it in a set of its own; tells the path by which commands name it.
    /// `purpose` is told again by `query-fdsets`.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub async fn add_file(&mut self, file: BorrowedFd<'_>, purpose: &str) -> Result<String, QmpError> {
        let command = "add-fd";
        let added = self.in_time(command, json!({ "opaque": purpose }), Some(file)).await?;
        let refused = || QmpError::Refused { command: command.to_owned(), message: format!("it said {added}") };
        Ok(format!("/dev/fdset/{}", added["fdset-id"].as_u64().ok_or_else(refused)?))
    }

    async fn in_time(
        &mut self,
        command: &str,
        arguments: Value,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Value, QmpError> {
        let answer = self.exchange(command, arguments, file);
        match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
            Ok(result) => result,
            Err(_) => Err(QmpError::Silent { command: command.to_owned() }),
        }
    }

    async fn exchange(
        &mut self,
        command: &str,
        arguments: Value,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Value, QmpError> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "execute": command, "arguments": arguments, "id": id });
        let written = match file {
            Some(file) => self.writer.write_with(&request, file).await,
            None => self.writer.write(&request).await,
        };
        written.map_err(QmpError::Line)?;
        loop {
            let message: Message = self.reader.read().await.map_err(QmpError::Line)?;
            if let Some(name) = message.event {
                self.hold(Event { name, data: message.data });
            } else if message.id == Some(id) {
                return match message.error {
                    None => Ok(message.result),
                    Some(error) => Err(QmpError::Refused { command: command.to_owned(), message: error.desc }),
                };
            }
            // Anything else answers a command that was given up.
        }
    }

    fn hold(&mut self, event: Event) {
        if self.events.len() == WAITING_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The next event. Dropping the future loses none.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn event(&mut self) -> Result<Event, QmpError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(event);
        }
        loop {
            let message: Message = self.reader.read().await.map_err(QmpError::Line)?;
            if let Some(name) = message.event {
                return Ok(Event { name, data: message.data });
            }
        }
    }

    /// An event that came while a command was under way, if one waits.
    pub fn waiting_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// QEMU's run state, such as `running`.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub async fn run_state(&mut self) -> Result<String, QmpError> {
        let status = self.execute("query-status", json!({})).await?;
        Ok(status["status"].as_str().unwrap_or_default().to_owned())
    }

    /// The machine's type as QEMU has resolved it, such as `pc-q35-7.2`; none when it does not say.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub async fn machine_type(&mut self) -> Result<Option<String>, QmpError> {
        let class = self.execute("qom-get", json!({ "path": "/machine", "property": "type" })).await?;
        Ok(class.as_str().and_then(|class| class.strip_suffix("-machine")).map(str::to_owned))
    }

    /// Whether the guest has opened what a character device is connected to; none when QEMU does not say. Upstream
    /// reference: `frontend-open` in QEMU's qapi/char.json.
    ///
    /// # Errors
    /// As for [`Self::execute`].
    pub async fn is_open(&mut self, chardev: &str) -> Result<Option<bool>, QmpError> {
        let devices = self.execute("query-chardev", json!({})).await?;
        let device = devices.as_array().into_iter().flatten().find(|device| device["label"] == chardev);
        Ok(device.and_then(|device| device["frontend-open"].as_bool()))
    }
}
