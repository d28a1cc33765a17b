//! The serial console's log as the log of a container: `guest-console-log` in the pod.
//!
//! It copies what the guest writes to its first serial port to the standard output, from the beginning, and ends when
//! the guest has ended: a pod is over only when all its containers are.

use crate::client::Watch;
use crate::domain::Phase;
use crate::layout::Layout;
use rustix::fs::inotify;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// How often it is looked whether the launcher answers yet, or again.
const RETRY: Duration = Duration::from_millis(200);

/// Copies until the guest has ended.
///
/// # Errors
/// The log cannot be read, or the standard output is gone.
pub(crate) async fn follow(layout: &Layout) -> io::Result<()> {
    let ended = ended(layout);
    tokio::pin!(ended);
    let log = layout.serial_log();
    let mut file = loop {
        match File::open(&log) {
            Ok(file) => break file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => tokio::select! {
                () = &mut ended => return Ok(()),
                () = tokio::time::sleep(RETRY) => {}
            },
            Err(error) => return Err(error),
        }
    };
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watch, &log, inotify::WatchFlags::MODIFY)?;
    // Read like a pipe: what the events say does not matter, only that there are some.
    let mut watch = Receiver::from_file_unchecked(File::from(watch))?;
    let mut events = [0; 1024];
    let mut at = 0;
    loop {
        copy(&mut file, &mut at)?;
        tokio::select! {
            () = &mut ended => {
                // What was written last.
                copy(&mut file, &mut at)?;
                return Ok(());
            }
            read = watch.read(&mut events) => read.map(drop)?,
        }
    }
}

/// Copies what is new. The monitor cuts a log that is too long; it is then read from its new beginning.
fn copy(file: &mut File, at: &mut u64) -> io::Result<()> {
    if file.metadata()?.len() < *at {
        *at = 0;
    }
    file.seek(SeekFrom::Start(*at))?;
    let mut out = io::stdout().lock();
    *at += io::copy(file, &mut out)?;
    out.flush()
}

/// Until the guest has ended. A launcher that does not answer says nothing about its guest; what it last wrote down
/// does.
async fn ended(layout: &Layout) {
    loop {
        if let Ok(mut watch) = Watch::open(&layout.command_socket()).await {
            while let Ok(domain) = watch.next().await {
                if domain.phase == Phase::Ended {
                    return;
                }
            }
        }
        let written = std::fs::read(layout.domain_file()).ok();
        let domain: Option<crate::Domain> = written.and_then(|text| serde_json::from_slice(&text).ok());
        if domain.is_some_and(|domain| domain.phase == Phase::Ended) {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
