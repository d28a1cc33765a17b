//! What sockets are told: small pieces go out at once, and a peer that has vanished without a word is found out about.
//! Else a stream on which nothing is said (an exec, a watch over HTTP/1.1) would keep its place for good.

use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// After how much silence a client is probed (`defaultKeepAlivePeriod` of
/// `k8s.io/apiserver/pkg/server/secure_serving.go`).
pub(super) const CLIENT_SILENCE: Duration = Duration::from_secs(180);
/// After how much silence a server that this one has called is probed.
pub(super) const SERVER_SILENCE: Duration = Duration::from_secs(30);

/// How often a peer that does not answer is probed, and how many times: both are Go's.
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 9;

/// Sets a connection up, whose peer is probed after so much silence.
///
/// # Errors
/// It is over already.
pub(super) fn prepare(stream: &TcpStream, silence: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, silence)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn both_ends_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (called, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (called, (accepted, _)) = (called.expect("connected"), accepted.expect("accepted"));
        for (stream, silence) in [(&called, SERVER_SILENCE), (&accepted, CLIENT_SILENCE)] {
            assert!(!sockopt::socket_keepalive(stream).expect("known"));
            prepare(stream, silence).expect("prepared");
            assert!(stream.nodelay().expect("known") && sockopt::socket_keepalive(stream).expect("known"));
            assert_eq!(sockopt::tcp_keepidle(stream).expect("known"), silence);
            assert_eq!(sockopt::tcp_keepintvl(stream).expect("known"), PROBE_EVERY);
            assert_eq!(sockopt::tcp_keepcnt(stream).expect("known"), PROBES);
        }
    }
}
