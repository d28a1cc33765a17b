//! The handler's side of the command socket.
//!
//! A call is a connection of its own: nothing is left over from one that failed or timed out. Who answers is in a container, and
//! not trusted: answers are bounded, and what is in them for people is made fit for them.

use crate::domain::Domain;
use crate::layout;
use crate::lines::{LineError, LineReader, LineWriter, split};
use crate::proto::{Call, Request, Response, VERSION};
use crate::said::{MOST_CHARS, one_line};
use std::path::Path;
use std::time::Duration;

/// Longest answer. The other end is in a container, and whoever is there may send what he likes.
const ANSWER_LIMIT_BYTES: usize = 256 << 10;

/// Why a call brought no domain.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens: the launcher is not there yet, its monitor is dead, or the machine is over.
    #[error("cannot reach the launcher")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what answers is not the launcher. The monitor may have died.
    #[error("the connection to the launcher failed")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time. What was asked for may still be done.
    #[error("the launcher did not answer in {} ms", .0.as_millis())]
    Silent(Duration),
    /// The launcher refused.
    #[error("the launcher refused: {0}")]
    Refused(String),
}

impl From<LineError> for ClientError {
    fn from(error: LineError) -> Self {
        Self::Broken(Box::new(error))
    }
}

/// Asks the launcher behind `socket` ([`crate::Layout::command_socket`]) and returns the domain afterwards.
///
/// # Errors
/// See [`ClientError`]; only `Refused` says that nothing was done.
pub async fn call(socket: &Path, call: Call, deadline: Duration) -> Result<Domain, ClientError> {
    let exchange = async {
        let (mut reader, _writer) = open(socket, call).await?;
        answer(&mut reader).await
    };
    tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(ClientError::Silent(deadline)))
}

async fn open(socket: &Path, call: Call) -> Result<(LineReader, LineWriter), ClientError> {
    let stream = layout::connect(socket).await.map_err(ClientError::Connect)?;
    let (reader, mut writer) = split(stream, ANSWER_LIMIT_BYTES);
    writer.write(&Request { v: VERSION, call }).await?;
    Ok((reader, writer))
}

async fn answer(reader: &mut LineReader) -> Result<Domain, ClientError> {
    match reader.read().await? {
        Response::Domain(domain) => Ok(fit_for_people(domain)),
        Response::Error(reason) => Err(ClientError::Refused(one_line(&reason, MOST_CHARS))),
    }
}

/// A domain whose words may be shown, wherever they are.
fn fit_for_people(mut domain: Domain) -> Domain {
    let details = domain.end.iter_mut().map(|end| &mut end.detail);
    let said = domain.warning.iter_mut().chain(details).chain(&mut domain.machine_type);
    for text in said.chain([&mut domain.uid]) {
        *text = one_line(text, MOST_CHARS);
    }
    domain
}

/// A stream of a domain's states.
#[derive(Debug)]
pub struct Watch {
    reader: LineReader,
    /// Kept, since the launcher takes a half-closed connection for a closed one.
    _writer: LineWriter,
}

impl Watch {
    /// Starts to watch the launcher behind `socket`.
    ///
    /// # Errors
    /// The launcher cannot be reached.
    pub async fn open(socket: &Path) -> Result<Self, ClientError> {
        let (reader, writer) = open(socket, Call::Watch).await?;
        Ok(Self { reader, _writer: writer })
    }

    /// The domain at first, and then after each change. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection broke: the monitor died (the machine may well run on), or, after an end was reported,
    /// the launcher is done.
    pub async fn next(&mut self) -> Result<Domain, ClientError> {
        answer(&mut self.reader).await
    }
}

#[cfg(test)]
mod tests {
    use super::fit_for_people;
    use crate::domain::{Domain, End, EndReason};

    #[test]
    fn what_a_container_says_is_fit_for_people() {
        let mut said = Domain::waiting("u1");
        said.warning = Some(format!("\u{1b}]0;x\u{7}{}", "y".repeat(1 << 20)));
        said.end = Some(End { reason: EndReason::Crashed, detail: "it\nended".to_owned() });
        said.machine_type = Some("pc\nq35".to_owned());
        let shown = fit_for_people(said);
        let warning = shown.warning.expect("there");
        assert!(warning.starts_with(" ]0;x y") && warning.len() == 1000, "{}", warning.len());
        assert_eq!(shown.end.map(|end| end.detail).as_deref(), Some("it ended"));
        assert_eq!((shown.uid.as_str(), shown.machine_type.as_deref()), ("u1", Some("pc q35")));
    }
}
