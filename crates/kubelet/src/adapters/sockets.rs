//! The unix sockets of plugins and drivers: which there are in a directory, and gRPC over one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// How long a plugin has to be connected to.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Most sockets of a directory that are asked at once.
pub(super) const MAX_ASKED: usize = 256;

/// Which file a socket is: a number of a file is given to the next one.
pub(super) type File = (u64, i64, i64);

/// The sockets in a directory, but for those whose names begin with a dot: they are about to be given another.
///
/// # Errors
/// What cannot be read: then it is not known which are there.
pub(super) async fn listed(dir: &Path) -> io::Result<BTreeMap<PathBuf, File>> {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || list(&dir)).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn list(dir: &Path) -> io::Result<BTreeMap<PathBuf, File>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match entry.metadata() {
            Ok(m) if m.file_type().is_socket() => {
                found.insert(entry.path(), (m.ino(), m.ctime(), m.ctime_nsec()));
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Connects to a plugin's socket.
///
/// # Errors
/// What `what` is about, and why it failed.
pub async fn dial(socket: PathBuf, what: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::try_from("http://localhost").map_err(|e| e.to_string())?;
    let dial = endpoint.connect_with_connector(tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }));
    match tokio::time::timeout(CONNECT, dial).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) => Err(format!("{what}: {e}")),
        Err(_) => Err(format!("{what} took too long")),
    }
}
