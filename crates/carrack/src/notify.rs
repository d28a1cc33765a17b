//! Tells systemd that a service has come up: sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that all is ready, where this process is a service of `Type=notify`.
pub fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, b"READY=1\n") {
        tracing::warn!(%error, "systemd cannot be told that the cluster is ready");
    }
}

/// Sends a state to a socket with a path, or with an abstract name behind an `@`.
fn send(socket: &OsStr, state: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let name = format!("carrack-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&name).expect("a name");
        let listeners = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).expect("bound")),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&hidden).expect("bound")),
        ];
        for (socket, listener) in &listeners {
            send(socket, b"READY=1\n").expect("sent");
            let mut heard = [0; 16];
            let length = listener.recv(&mut heard).expect("received");
            assert_eq!(&heard[..length], b"READY=1\n", "{}", socket.display());
        }
        assert!(send(dir.path().join("none").as_os_str(), b"READY=1\n").is_err());
    }
}
