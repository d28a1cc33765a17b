//! Reads a container's log and, when asked to follow it, goes on until the container is over.
//!
//! ```text
//!   read to the end ──▶ another file under the name? ──▶ over? ──▶ wait: a change, a while, the client gone
//!        ▲                  │ seen twice                   └─▶ end                     │
//!        └── switch ◀───────┘                                                          │
//!        └─────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The log is rotated by renaming it and having the runtime open a new one under the old name. The
//! old file is left only when it was read to its end after the new one was seen, twice: the runtime
//! may still be writing a last record. A file that became shorter is read from its start.

use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::changes::Changes;
use super::options::LogOptions;
use super::render::Render;
use super::tail::start_of_tail;
use crate::server::reply::Broken;

/// How much is read at a time, in bytes.
const CHUNK_BYTES: usize = 32 * 1024;

/// How fast a follower is.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Pace {
    /// How often to look whether the container is over.
    pub check: Duration,
    /// How long to wait for a last record in a file that was renamed.
    pub rotation: Duration,
    /// How long a client may take nothing.
    pub stall: Duration,
}

/// A log that could be opened.
#[derive(Debug)]
pub(in crate::server) struct Opened {
    path: PathBuf,
    file: File,
    position: u64,
    /// Where a reader that does not follow stops: a container that writes fast must not keep it.
    end: u64,
    identity: (u64, u64),
}

impl Opened {
    /// Opens a log and finds where to begin.
    pub(in crate::server) async fn open(path: PathBuf, options: &LogOptions) -> std::io::Result<Self> {
        let tail_lines = options.tail_lines;
        let (path, file, position, end, identity) = tokio::task::spawn_blocking(move || {
            let mut file = open(&path)?;
            let metadata = file.metadata()?;
            let end = metadata.len();
            let position = match tail_lines {
                Some(lines) => start_of_tail(&mut file, end, lines)?,
                None => 0,
            };
            Ok::<_, std::io::Error>((path, file, position, end, identity(&metadata)))
        })
        .await
        .map_err(std::io::Error::other)??;
        let mut file = File::from_std(file);
        file.seek(SeekFrom::Start(position)).await?;
        Ok(Self { path, file, position, end, identity })
    }

    /// The file that now has the log's name, if it is another one.
    async fn successor(&self) -> std::io::Result<Option<Opened>> {
        match self.named().await {
            Ok((file, identity)) if identity != self.identity => {
                Ok(file.map(|file| Opened { path: self.path.clone(), file, position: 0, end: 0, identity }))
            }
            Ok(_) => Ok(None),
            // It is being renamed, or it went with its pod.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file that has the log's name, opened if it seems to be another one.
    async fn named(&self) -> std::io::Result<(Option<File>, (u64, u64))> {
        let found = identity(&tokio::fs::metadata(&self.path).await?);
        if found == self.identity {
            return Ok((None, found));
        }
        let path = self.path.clone();
        let file = tokio::task::spawn_blocking(move || open(&path)).await.map_err(std::io::Error::other)??;
        let file = File::from_std(file);
        let found = identity(&file.metadata().await?);
        Ok((Some(file), found))
    }

    /// Goes to the start if the file is shorter than what was read of it.
    async fn rewind_if_cut(&mut self) -> std::io::Result<bool> {
        let cut = self.file.metadata().await?.len() < self.position;
        if cut {
            self.file.seek(SeekFrom::Start(0)).await?;
            self.position = 0;
        }
        Ok(cut)
    }
}

/// Opens a log. Who may write to the directories of logs may put something else there, and nobody is to wait for a pipe.
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("it is no file")),
    }
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Whether the container may still write. An error is no answer, and the follower goes on.
pub(in crate::server) trait MayWrite: Send {
    /// Asks.
    fn may_write(&mut self) -> impl Future<Output = Result<bool, String>> + Send;
}

/// Sends a log until there is no more of it, all was sent that was asked for, or nobody wants it.
pub(in crate::server) async fn send(
    log: Opened,
    options: LogOptions,
    mut container: impl MayWrite,
    client: mpsc::Sender<Result<Bytes, Broken>>,
    mut ending: watch::Receiver<bool>,
    pace: Pace,
) {
    let sending = async {
        let render = Render::new(&options);
        let mut sender = Sender { render, client: client.clone(), stall: pace.stall, buffer: vec![0; CHUNK_BYTES] };
        let result = if options.follow {
            follow(log, &mut sender, &mut container, pace).await
        } else {
            let mut log = log;
            let end = log.end;
            pump(&mut log, Some(end), &mut sender).await.map(|_| ())
        };
        if let Err(error) = result {
            tracing::warn!(%error, "reading a container's log");
            // When the client is gone too, there is nobody left to tell.
            drop(client.send(Err(error.into())).await);
        }
    };
    tokio::select! {
        () = sending => {}
        () = client.closed() => {}
        // An error means that the server is gone, which is the end as well.
        _ = ending.wait_for(|ending| *ending) => {}
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    More,
    Enough,
}

struct Sender {
    render: Render,
    client: mpsc::Sender<Result<Bytes, Broken>>,
    stall: Duration,
    buffer: Vec<u8>,
}

impl Sender {
    /// Sends what is to be shown of the first `n` bytes of the buffer.
    async fn send(&mut self, n: usize) -> Next {
        let mut out = Vec::new();
        self.render.feed(&self.buffer[..n], &mut out);
        if !out.is_empty() {
            let sent = tokio::time::timeout(self.stall, self.client.send(Ok(out.into()))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return Next::Enough;
            }
        }
        if self.render.is_full() { Next::Enough } else { Next::More }
    }
}

/// Sends what there is up to `end`, or up to the end of the file.
async fn pump(log: &mut Opened, end: Option<u64>, sender: &mut Sender) -> std::io::Result<Next> {
    if sender.render.is_full() {
        return Ok(Next::Enough);
    }
    loop {
        let left = end.map_or(u64::MAX, |end| end.saturating_sub(log.position));
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(sender.buffer.len());
        if want == 0 {
            return Ok(Next::More);
        }
        let n = log.file.read(&mut sender.buffer[..want]).await?;
        if n == 0 {
            return Ok(Next::More);
        }
        log.position += n as u64;
        if sender.send(n).await == Next::Enough {
            return Ok(Next::Enough);
        }
    }
}

async fn follow(
    mut log: Opened,
    sender: &mut Sender,
    container: &mut impl MayWrite,
    pace: Pace,
) -> std::io::Result<()> {
    let changes = Changes::for_follower(log.path.parent().unwrap_or(&log.path));
    let mut check = tokio::time::interval(pace.check);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut over, mut renamed) = (false, false);
    loop {
        if pump(&mut log, None, sender).await? == Next::Enough {
            return Ok(());
        }
        let successor = log.successor().await?;
        match successor {
            Some(next) if renamed || over => {
                // The old file was read to its end above, but the new one may be younger than that.
                if pump(&mut log, None, sender).await? == Next::Enough {
                    return Ok(());
                }
                sender.render.restart();
                (log, renamed) = (next, false);
                continue;
            }
            Some(_) => {
                renamed = true;
                tokio::time::sleep(pace.rotation).await;
                continue;
            }
            None => renamed = false,
        }
        if log.rewind_if_cut().await? {
            sender.render.restart();
            continue;
        }
        if over {
            return Ok(());
        }
        tokio::select! {
            () = changes.next() => {}
            _ = check.tick() => match container.may_write().await {
                Ok(may) => over = !may,
                Err(error) => tracing::debug!(%error, "whether a container is over is unknown; its log is followed on"),
            },
        }
    }
}
