//! Lines of JSON over a unix socket, bounded in length: the form of QMP and of the command socket.

use futures::StreamExt as _;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The other side hung up.
    #[error("the connection was closed")]
    Closed,
    /// The other side sent more than a line may hold.
    #[error("a line longer than {0} bytes")]
    TooLong(usize),
    /// The line is not what it should be.
    #[error("a line that is not understood")]
    Malformed(#[from] serde_json::Error),
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[from] std::io::Error),
}

/// The reading side. Dropping a read half way loses nothing.
#[derive(Debug)]
pub struct LineReader {
    inner: FramedRead<OwnedReadHalf, LinesCodec>,
    limit_bytes: usize,
}

/// The writing side.
#[derive(Debug)]
pub struct LineWriter {
    inner: OwnedWriteHalf,
}

/// Splits a connection into its sides; a line may hold `limit_bytes`.
pub fn split(stream: UnixStream, limit_bytes: usize) -> (LineReader, LineWriter) {
    let (reader, writer) = stream.into_split();
    let inner = FramedRead::with_capacity(reader, LinesCodec::new_with_max_length(limit_bytes), 1024);
    (LineReader { inner, limit_bytes }, LineWriter { inner: writer })
}

impl LineReader {
    /// The next value.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<T, LineError> {
        match self.inner.next().await {
            None => Err(LineError::Closed),
            Some(Ok(line)) => Ok(serde_json::from_str(&line)?),
            Some(Err(LinesCodecError::MaxLineLengthExceeded)) => Err(LineError::TooLong(self.limit_bytes)),
            Some(Err(LinesCodecError::Io(error))) => Err(LineError::Io(error)),
        }
    }
}

impl LineWriter {
    /// Writes one value.
    pub async fn write<T: Serialize>(&mut self, value: &T) -> Result<(), LineError> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.inner.write_all(&line).await?;
        Ok(())
    }

    /// Writes one value, and hands an open file over with it.
    pub async fn write_with<T: Serialize>(&mut self, value: &T, file: BorrowedFd<'_>) -> Result<(), LineError> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        let stream: &UnixStream = self.inner.as_ref();
        let send = || {
            let files = [file];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::Error::other("no room for a file"));
            }
            Ok(rustix::net::sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?)
        };
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        self.inner.write_all(&line[sent..]).await?;
        Ok(())
    }

    /// Tells the other side that nothing more will come.
    pub async fn finish(&mut self) -> Result<(), LineError> {
        Ok(self.inner.shutdown().await?)
    }
}
