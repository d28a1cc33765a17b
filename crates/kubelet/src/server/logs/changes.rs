//! Waits until something changes in a directory.
//!
//! One watch covers a container's log, its rotation and the files of its other runs. What the events
//! say does not matter: whoever is woken looks for itself. Where the machine gives no more inotify
//! instances, nobody is woken, and the follower looks at its own pace. The kernel counts them by user, so followers
//! of logs, of whom anybody makes as many as they like, leave most of root's to the rest of the machine.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most followers of logs that are woken, of the 128 instances that a user has by default (`fs.inotify.max_user_instances`).
const MOST_FOLLOWERS: usize = 32;
static FOLLOWERS: Semaphore = Semaphore::const_new(MOST_FOLLOWERS);

/// Changes of a directory.
#[derive(Debug)]
pub(crate) struct Changes {
    watch: Option<AsyncFd<OwnedFd>>,
    _place: Option<SemaphorePermit<'static>>,
}

impl Changes {
    /// Starts to watch. A change after this wakes [`Self::next`].
    pub(crate) fn of(directory: &Path) -> Self {
        let watch = watch(directory).inspect_err(|error| {
            tracing::debug!(%error, directory = %directory.display(), "no watch; looking from time to time instead");
        });
        Self { watch: watch.ok(), _place: None }
    }

    /// The same for a follower of a log.
    pub(super) fn for_follower(directory: &Path) -> Self {
        Self::among(&FOLLOWERS, directory)
    }

    fn among(places: &'static Semaphore, directory: &Path) -> Self {
        match places.try_acquire() {
            Ok(place) => Self { _place: Some(place), ..Self::of(directory) },
            Err(_) => Self { watch: None, _place: None },
        }
    }

    /// Returns when something has changed since the last time. May be cancelled without loss.
    pub(crate) async fn next(&self) {
        let Some(fd) = &self.watch else { return std::future::pending().await };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_followers_leave_watches_to_others() {
        static PLACES: Semaphore = Semaphore::const_new(2);
        let dir = tempfile::tempdir().expect("a directory");
        let all: Vec<Changes> = (0..4).map(|_| Changes::among(&PLACES, dir.path())).collect();
        assert_eq!(all.iter().map(|c| c.watch.is_some()).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(Changes::of(dir.path()).watch.is_some());
        drop(all);
        assert!(Changes::among(&PLACES, dir.path()).watch.is_some(), "a place is free again");
    }
}
