//! Sockets of the kubelet's own that others come to: each is made again when somebody removes it, as who cleans up a directory does.
//! Whoever looks for the kubelet there would else not find it until it is started again.

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;

/// How often a socket is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How a socket is made.
type Listen = fn(&Path) -> io::Result<UnixListener>;

/// Listens, with the directory's permissions alone to keep others out.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn open(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    UnixListener::bind(path)
}

/// Listens for the kubelet's own user alone.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn private(path: &Path) -> io::Result<UnixListener> {
    let listener = open(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves what comes to a socket, and to a new one (`listen`) whenever somebody has removed the last one. `what` says to whom it
/// matters.
pub(super) async fn serve<S, E>(
    path: PathBuf,
    what: &str,
    listen: Listen,
    mut listener: UnixListener,
    mut server: impl FnMut(UnixListener) -> S,
) where
    S: Future<Output = Result<(), E>>,
    E: Display,
{
    loop {
        let own = inode(&path);
        let served = server(listener);
        let replaced = async {
            // Without a file at all it was removed already.
            while own.is_some() && inode(&path) == own {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            Err(error) = served => tracing::error!(%error, what, "the server has ended; listening anew"),
            () = replaced => tracing::warn!(socket = %path.display(), what, "the socket was removed; listening anew"),
            else => {}
        }
        listener = loop {
            match listen(&path) {
                Ok(listener) => break listener,
                // Another kubelet's socket, or no directory: not to be taken away, but told.
                Err(error) => {
                    tracing::error!(%error, socket = %path.display(), what, "nobody listens");
                    tokio::time::sleep(LOOK * 10).await;
                }
            }
        };
    }
}

/// Which file is at a path; none where there is none.
fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|m| m.ino())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    /// Says what it is to whoever comes.
    async fn greet(listener: UnixListener) -> Result<(), Infallible> {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Who has gone again is told nothing.
            drop(stream.write_all(b"x").await);
        }
        Ok(())
    }

    async fn is_greeted(path: &Path) -> bool {
        let mut heard = [0; 1];
        match UnixStream::connect(path).await {
            Ok(mut stream) => stream.read_exact(&mut heard).await.is_ok() && heard == *b"x",
            Err(_) => false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_removed_is_made_again() {
        for (listen, mode) in [(open as Listen, None), (private as Listen, Some(0o600))] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("own/kubelet.sock");
            let listener = listen(&path).expect("it listens");
            let task = tokio::spawn(serve(path.clone(), "nobody", listen, listener, greet));
            assert!(is_greeted(&path).await);
            for whole in [false, true] {
                if whole {
                    fs::remove_dir_all(dir.path().join("own")).expect("removed");
                } else {
                    fs::remove_file(&path).expect("removed");
                }
                while !is_greeted(&path).await {
                    tokio::time::sleep(LOOK).await;
                }
                let found = fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
                assert!(mode.is_none_or(|mode| mode == found), "{found:o}");
            }
            task.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_removed_before_anybody_looks_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kubelet.sock");
        let listener = open(&path).expect("it listens");
        fs::remove_file(&path).expect("removed");
        let task = tokio::spawn(serve(path.clone(), "nobody", open, listener, greet));
        let greeted = async {
            while !is_greeted(&path).await {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LOOK * 600, greeted).await.expect("somebody listens again");
        task.abort();
    }
}
