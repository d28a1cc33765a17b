//! Waits until something changes in a directory.
//!
//! One watch covers a container's log, its rotation and the files of its other runs. What the events
//! say does not matter: whoever is woken looks for itself. Where the machine gives no more inotify
//! instances, nobody is woken, and the follower looks at its own pace.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Changes of a directory.
#[derive(Debug)]
pub(crate) struct Changes(Option<AsyncFd<OwnedFd>>);

impl Changes {
    /// Starts to watch. A change after this wakes [`Self::next`].
    pub(crate) fn of(directory: &Path) -> Self {
        match watch(directory) {
            Ok(fd) => Self(Some(fd)),
            Err(error) => {
                tracing::debug!(%error, directory = %directory.display(), "no watch; looking from time to time instead");
                Self(None)
            }
        }
    }

    /// Returns when something has changed since the last time. May be cancelled without loss.
    pub(crate) async fn next(&self) {
        let Some(fd) = &self.0 else { return std::future::pending().await };
        let drained = fd.async_io(Interest::READABLE, |fd| {
            let mut events = [0; 4096];
            let n = rustix::io::read(fd, &mut events)?;
            Ok(n)
        });
        if let Err(error) = drained.await {
            tracing::debug!(%error, "inotify");
            std::future::pending::<()>().await;
        }
    }
}

fn watch(directory: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let flags =
        WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, directory, flags)?;
    #[expect(
        deprecated,
        reason = "sound for an OwnedFd, whose descriptor is its own; the successor needs an unsafe block"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
