//! Two connections whose bytes go from the one to the other, and how both of them end.
//!
//! ```text
//!   client ──▶ what one says ──▶ runtime      one has said all:  the other is told so, and may go on
//!          ◀── what the other says ◀──        one takes no more: what it still says is carried to its end
//!                                             one breaks off:    both are told that it is over
//! ```
//!
//! A runtime that has ended reads nothing any more, and yet its last words and the outcome of a command may be on their way.
//! And whoever is left without the goodbye of TLS cannot tell an end from a connection that broke.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The most that is read at a time.
const PIECE: usize = 16 << 10;
/// How long one side may take to be told that it is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// Carries bytes both ways until both sides have said all, one of them breaks off, or `until` is there.
///
/// # Errors
/// Why a side broke off. Both have been told even so.
pub async fn join(
    one: impl AsyncRead + AsyncWrite,
    other: impl AsyncRead + AsyncWrite,
    until: impl Future<Output = ()>,
) -> io::Result<()> {
    let (mut from_one, mut to_one) = tokio::io::split(one);
    let (mut from_other, mut to_other) = tokio::io::split(other);
    let carried = async { tokio::try_join!(carry(&mut from_one, &mut to_other), carry(&mut from_other, &mut to_one)) };
    let ended = tokio::select! {
        ended = carried => ended.map(|((), ())| ()),
        () = until => Ok(()),
    };
    tokio::join!(goodbye(&mut to_one), goodbye(&mut to_other));
    ended
}

/// From one side to the other, until the one has said all or the other takes no more.
async fn carry(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 || put(to, &buffer[..count]).await.is_err() {
            goodbye(to).await;
            return Ok(());
        }
    }
}

async fn put(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// Tells a side that nothing more comes. One that is gone, or takes nothing, is not told.
async fn goodbye(to: &mut (impl AsyncWrite + Unpin)) {
    drop(tokio::time::timeout(GOODBYE, to.shutdown()).await);
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{DuplexStream, ReadBuf, duplex};

    use super::*;

    /// A connection that was reset.
    struct Reset;

    impl AsyncRead for Reset {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    /// What a side hears to its end, which comes in order.
    async fn heard(mut side: DuplexStream) -> String {
        let mut text = String::new();
        side.read_to_string(&mut text).await.expect("an end in order");
        text
    }

    /// A side that takes nothing.
    fn deaf() -> DuplexStream {
        let (ours, theirs) = duplex(64);
        drop(theirs);
        ours
    }

    #[tokio::test]
    async fn each_side_may_end_first() {
        let ((client, mut theirs), (runtime, mut its)) = (duplex(64), duplex(64));
        let client_side = async {
            theirs.write_all(b"input").await.expect("writes");
            theirs.shutdown().await.expect("has said all");
            heard(theirs).await
        };
        let runtime_side = async {
            let mut text = String::new();
            its.read_to_string(&mut text).await.expect("the end of what goes in");
            its.write_all(format!("{text} was read").as_bytes()).await.expect("writes");
            drop(its);
        };
        let (ended, text, ()) = tokio::join!(join(client, runtime, pending()), client_side, runtime_side);
        assert!(ended.is_ok());
        assert_eq!(text, "input was read");
    }

    #[tokio::test]
    async fn who_takes_no_more_is_heard_to_the_end() {
        let (client, mut theirs) = duplex(64);
        theirs.write_all(b"more input").await.expect("writes");
        let runtime = tokio::io::join(&b"the outcome"[..], deaf());
        let (ended, text) = tokio::join!(join(client, runtime, pending()), heard(theirs));
        assert!(ended.is_ok());
        assert_eq!(text, "the outcome");
    }

    #[tokio::test]
    async fn whoever_breaks_off_the_other_is_told() {
        let (client, theirs) = duplex(64);
        let runtime = tokio::io::join((&b"half of"[..]).chain(Reset), tokio::io::sink());
        let (ended, text) = tokio::join!(join(client, runtime, pending()), heard(theirs));
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionReset));
        assert_eq!(text, "half of");
    }

    #[tokio::test]
    async fn both_are_told_when_it_has_to_end() {
        let ((client, theirs), (runtime, its)) = (duplex(64), duplex(64));
        let (ended, of_client, of_runtime) = tokio::join!(join(client, runtime, ready(())), heard(theirs), heard(its));
        assert!(ended.is_ok());
        assert_eq!((of_client, of_runtime), (String::new(), String::new()));
    }
}
