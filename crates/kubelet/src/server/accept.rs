//! Who comes next to a listener, at whichever port: what every loop that lets connections in has to do beside that.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// Listens at an address, which is called by the field of the configuration that says it.
pub(super) async fn listen(at: SocketAddr, field: &str) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|error| Error::new(error.kind(), refused(at, field, &error)))
}

/// Why nobody listens there, and what can be done.
fn refused(at: SocketAddr, field: &str, error: &Error) -> String {
    let way_out = match error.kind() {
        ErrorKind::AddrInUse => format!("; another process has port {}: end it, or change {field}", at.port()),
        _ => String::new(),
    };
    format!("cannot listen at {at} ({field}): {error}{way_out}")
}

/// Waits for who comes next.
///
/// # Errors
/// The listener has failed for good.
pub(super) async fn next(listener: &TcpListener, pause: Duration) -> Result<TcpStream> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of file descriptors, most likely: give the others a moment to end.
                tokio::time::sleep(pause).await;
            }
        }
    }
}

fn is_fatal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_port_that_is_taken_is_told_what_to_do() {
        let at = SocketAddr::from(([192, 0, 2, 1], 10255));
        for (kind, expected) in [
            (
                ErrorKind::AddrInUse,
                "cannot listen at 192.0.2.1:10255 (readOnlyPort): no; another process has port 10255: end it, or change \
                 readOnlyPort",
            ),
            (ErrorKind::PermissionDenied, "cannot listen at 192.0.2.1:10255 (readOnlyPort): no"),
        ] {
            assert_eq!(refused(at, "readOnlyPort", &Error::new(kind, "no")), expected);
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let taken = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "port").await.expect("a port");
        let at = taken.local_addr().expect("an address");
        let why = listen(at, "readOnlyPort").await.expect_err("it is taken").to_string();
        assert!(why.contains(&at.to_string()) && why.ends_with("or change readOnlyPort"), "{why}");
    }
}
