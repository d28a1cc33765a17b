//! The client's side of TLS over memory of our own.
//!
//! The buffered API of the library reads four kilobytes a system call, which is most of what a client costs that is sent
//! much. Here a read takes what there is, up to [`INCOMING_BYTES`].

use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How much is read at a time.
const INCOMING_BYTES: usize = 256 * 1024;
/// What a record adds to the text in it, and how much text is in one at most; both with room to spare.
const RECORD_BYTES: usize = 128;
const RECORD_TEXT_BYTES: usize = 8 * 1024;

/// A connection to a server.
pub(super) struct Tls {
    stream: TcpStream,
    session: UnbufferedClientConnection,
    /// What came and is not decrypted yet: from `start` to `end`.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// What is to be sent, up to `ready`.
    outgoing: Vec<u8>,
    ready: usize,
}

/// Where the session stands when it has done all it could.
#[derive(Clone, Copy, PartialEq)]
enum Stands {
    /// It cannot go on without more from the server.
    Waits,
    /// It has something for the server.
    Sends,
    /// Text can go both ways.
    Open,
    /// The server is done.
    Closed,
}

impl Tls {
    /// Makes the handshake.
    ///
    /// # Errors
    /// It fails.
    pub(super) async fn handshake(
        stream: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> anyhow::Result<Self> {
        let session = UnbufferedClientConnection::new(config, name)?;
        let (incoming, outgoing) = (vec![0; INCOMING_BYTES], vec![0; RECORD_TEXT_BYTES]);
        let mut this = Self { stream, session, incoming, start: 0, end: 0, outgoing, ready: 0 };
        let mut early = Vec::new();
        loop {
            match this.advance(None, &mut early)? {
                Stands::Open => break,
                Stands::Sends => this.send().await?,
                Stands::Waits => this.receive().await?,
                Stands::Closed => bail!("the server hung up"),
            }
        }
        this.send().await?;
        Ok(this)
    }

    /// Sends text.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn write(&mut self, text: &[u8]) -> anyhow::Result<()> {
        let (mut left, mut read) = (Some(text), Vec::new());
        while left.is_some() {
            match self.advance(left, &mut read)? {
                Stands::Open => left = None,
                Stands::Sends => self.send().await?,
                Stands::Waits => self.receive().await?,
                Stands::Closed => bail!("the server hung up"),
            }
            anyhow::ensure!(read.is_empty(), "the server speaks unasked");
        }
        self.send().await
    }

    /// Appends text that has come, and waits until there is some; false when there will be none.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn read(&mut self, text: &mut Vec<u8>) -> anyhow::Result<bool> {
        let known = text.len();
        loop {
            let stands = self.advance(None, text)?;
            if stands == Stands::Sends {
                self.send().await?;
                continue;
            }
            if text.len() > known {
                return Ok(true);
            }
            if stands == Stands::Closed {
                return Ok(false);
            }
            self.receive().await?;
        }
    }

    /// Does all that can be done with what has come: takes text out, and puts `text` in.
    fn advance(&mut self, text: Option<&[u8]>, read: &mut Vec<u8>) -> anyhow::Result<Stands> {
        loop {
            let Self { session, incoming, start, end, outgoing, ready, .. } = self;
            let UnbufferedStatus { mut discard, state } = session.process_tls_records(&mut incoming[*start..*end]);
            let stands = match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        read.extend_from_slice(record.payload);
                    }
                    None
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    match data.encode(&mut outgoing[*ready..]) {
                        Ok(bytes) => *ready += bytes,
                        Err(EncodeError::InsufficientSize(error)) => {
                            outgoing.resize(*ready + error.required_size, 0);
                            *ready += data.encode(&mut outgoing[*ready..])?;
                        }
                        Err(error) => return Err(error.into()),
                    }
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    Some(Stands::Sends)
                }
                ConnectionState::BlockedHandshake => Some(Stands::Waits),
                ConnectionState::WriteTraffic(mut traffic) => {
                    if let Some(text) = text {
                        let records = text.len() / RECORD_TEXT_BYTES + 1;
                        let needed = *ready + text.len() + records * RECORD_BYTES;
                        if outgoing.len() < needed {
                            outgoing.resize(needed, 0);
                        }
                        *ready += match traffic.encrypt(text, &mut outgoing[*ready..]) {
                            Ok(bytes) => bytes,
                            Err(EncryptError::InsufficientSize(error)) => {
                                bail!("{} bytes are needed to send {}", error.required_size, text.len())
                            }
                            Err(error) => return Err(error.into()),
                        };
                    }
                    Some(Stands::Open)
                }
                ConnectionState::PeerClosed | ConnectionState::Closed => Some(Stands::Closed),
                other => bail!("an unknown state of TLS: {other:?}"),
            };
            *start += discard;
            if *start == *end {
                (*start, *end) = (0, 0);
            }
            if let Some(stands) = stands {
                return Ok(stands);
            }
        }
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        if self.ready > 0 {
            self.stream.write_all(&self.outgoing[..self.ready]).await.context("cannot send")?;
            self.ready = 0;
        }
        Ok(())
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        if self.incoming.len() - self.end < RECORD_TEXT_BYTES {
            // A record is never as long as the buffer, so this makes room.
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let came = self.stream.read(&mut self.incoming[self.end..]).await.context("cannot read")?;
        anyhow::ensure!(came > 0, "the server hung up");
        self.end += came;
        Ok(())
    }
}
