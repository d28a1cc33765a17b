//! The node's logs: `GET /logs/…`, files, parts of them ([`file_parts`]) and lists of directories below `/var/log`, as upstream
//! serves them (`http.FileServer`), but for an `index.html` in the place of a list.
//!
//! Links are followed that stay below the directory; `/var/log/containers` is full of them. Whoever may write there, such as a
//! pod with a volume of it, must not have the rest of the node read: where a path leads is found out first, and then that is
//! opened from the directory on without following anything.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Error, ErrorKind, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use carrack_engine::{Time, query_escape};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, LAST_MODIFIED,
};
use http::{HeaderMap, Response, StatusCode};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::mpsc;

use super::connection::Shared;
use super::file_parts::{self, Part};
use super::query;
use super::reply::{self, Broken, Refusal, Reply};

/// How much is read at a time, in bytes.
const CHUNK_BYTES: usize = 32 * 1024;
/// How much of a file tells whether it is text, in bytes.
const HEAD_BYTES: usize = 512;
/// A way that follows no link, wherever it leads.
const STRAIGHT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What a path leads to.
#[derive(Debug)]
pub(super) enum Found {
    /// A file.
    File(Log),
    /// What is in a directory: names, and whether they are directories.
    List(Vec<(String, bool)>),
}

/// A file that was opened.
#[derive(Debug)]
pub(super) struct Log {
    pub file: File,
    pub length: u64,
    /// When it was changed last.
    changed: Option<Time>,
    /// Whether it seems to be text.
    is_text: bool,
}

/// Answers: `way` is what follows `/logs` in the request's path.
pub(super) async fn answer(
    shared: &Shared,
    dir: &Path,
    way: &str,
    headers: &HeaderMap,
) -> Result<Response<Reply>, Refusal> {
    // In a path a plus stands for itself.
    let decoded = query::decode(&way.replace('+', "%2B")).map_err(Refusal::bad)?;
    match found(dir, decoded).await.map_err(|error| refused(&error))? {
        Found::List(names) if way.ends_with('/') => Ok(reply::html(page(&names))),
        // What the list names is relative to it.
        Found::List(_) => {
            let last = way.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or("logs");
            reply::moved(&format!("{last}/"))
        }
        Found::File(log) => part(shared, log, headers),
    }
}

/// Answers a query for a file by its path.
pub(super) async fn file(
    shared: &Shared,
    dir: &Path,
    way: String,
    headers: &HeaderMap,
) -> Result<Response<Reply>, Refusal> {
    match found(dir, way).await.map_err(|error| refused(&error))? {
        Found::List(names) => Ok(reply::html(page(&names))),
        Found::File(log) => part(shared, log, headers),
    }
}

/// What a path below a directory leads to.
pub(super) async fn found(dir: &Path, way: String) -> std::io::Result<Found> {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || find(&dir, &way)).await.map_err(Error::other).flatten()
}

/// The part of a file that a request asks for.
fn part(shared: &Shared, log: Log, headers: &HeaderMap) -> Result<Response<Reply>, Refusal> {
    let Log { file, length, changed, is_text } = log;
    let asked = file_parts::asked(headers, length, changed);
    let (from, count) = match asked {
        Part::Whole => (0, length),
        Part::Bytes { from, count } => (from, count),
        Part::Unchanged => (0, 0),
        Part::Outside | Part::Invalid => {
            let is_outside = asked == Part::Outside;
            let text = if is_outside { "invalid range: failed to overlap\n" } else { "invalid range\n" };
            let mut response = reply::text(StatusCode::RANGE_NOT_SATISFIABLE, text);
            if is_outside {
                set(&mut response, CONTENT_RANGE, format!("bytes */{length}"))?;
            }
            return Ok(response);
        }
    };
    let content_type = if is_text { "text/plain; charset=utf-8" } else { "application/octet-stream" };
    let mut response = if asked == Part::Unchanged {
        let mut none = reply::text(StatusCode::NOT_MODIFIED, "");
        none.headers_mut().remove(CONTENT_TYPE);
        none
    } else {
        let mut some = reply::stream(content_type, sent(shared, file, from, count));
        set(&mut some, CONTENT_LENGTH, count.to_string())?;
        set(&mut some, ACCEPT_RANGES, "bytes".to_owned())?;
        some
    };
    if let Part::Bytes { .. } = asked {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        set(&mut response, CONTENT_RANGE, format!("bytes {from}-{}/{length}", from + count - 1))?;
    }
    if let Some(changed) = changed {
        set(&mut response, LAST_MODIFIED, changed.http_date())?;
    }
    Ok(response)
}

fn set(response: &mut Response<Reply>, name: HeaderName, value: String) -> Result<(), Refusal> {
    let value = HeaderValue::try_from(value)
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    response.headers_mut().insert(name, value);
    Ok(())
}

/// Sends so many bytes of a file from one on, until the server ends.
fn sent(shared: &Shared, file: File, from: u64, count: u64) -> mpsc::Receiver<Result<Bytes, Broken>> {
    let (client, parts) = mpsc::channel(1);
    let (stall, mut ending) = (shared.settings.stall, shared.ending.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = send(file, from, count, &client, stall) => {}
            // An error means that the server is gone, which is the end as well.
            _ = ending.wait_for(|ending| *ending) => {}
        }
    });
    parts
}

/// In upstream's words.
fn refused(error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            Refusal::not_found("404 page not found\n")
        }
        ErrorKind::PermissionDenied => Refusal::new(StatusCode::FORBIDDEN, "403 Forbidden\n"),
        _ => {
            tracing::warn!(%error, "reading the node's logs");
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
        }
    }
}

fn find(dir: &Path, way: &str) -> std::io::Result<Found> {
    let top = dir.canonicalize()?;
    let real = top.join(way.trim_start_matches('/')).canonicalize()?;
    let below = real.strip_prefix(&top).map_err(|_| Error::from(ErrorKind::NotFound))?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let of = rustix::fs::open(&top, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Nobody is to wait for a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat2(&of, below, flags, Mode::empty(), STRAIGHT)?);
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(Found::List(list(&file)?));
    }
    if !metadata.is_file() {
        return Err(ErrorKind::NotFound.into());
    }
    let mut head = [0; HEAD_BYTES];
    let read = file.read_at(&mut head, 0)?;
    let is_text = !head[..read].iter().any(|byte| is_binary(*byte));
    let changed = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(Found::File(Log { file, length: metadata.len(), changed: changed.map(|since| Time(0) + since), is_text }))
}

/// Whether a byte is in no text (<https://mimesniff.spec.whatwg.org/#binary-data-byte>).
fn is_binary(byte: u8) -> bool {
    matches!(byte, 0x00..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f)
}

fn list(dir: &File) -> std::io::Result<Vec<(String, bool)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push((name, entry.file_type() == FileType::Directory));
        }
    }
    names.sort();
    Ok(names)
}

fn page(names: &[(String, bool)]) -> String {
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for (name, is_dir) in names {
        let slash = if *is_dir { "/" } else { "" };
        // Writing to a String cannot fail.
        writeln!(page, "<a href=\"{}{slash}\">{}{slash}</a>", query_escape(name), shown(name)).unwrap_or_default();
    }
    page + "</pre>\n"
}

/// A name as text of a page.
fn shown(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

/// Sends no more of a file than there was when it was opened: who writes fast must not keep it.
async fn send(
    file: File,
    from: u64,
    count: u64,
    client: &mpsc::Sender<Result<Bytes, Broken>>,
    stall: std::time::Duration,
) {
    let mut file = tokio::fs::File::from_std(file);
    if let Err(error) = file.seek(SeekFrom::Start(from)).await {
        tracing::debug!(%error, "a log cannot be read from its middle");
        return;
    }
    let mut file = file.take(count);
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let part = match file.read(&mut chunk).await {
            Ok(0) => return,
            Ok(count) => {
                chunk.truncate(count);
                Ok(chunk.into())
            }
            Err(error) => Err(error.into()),
        };
        let broke_off = part.is_err();
        let taken = tokio::time::timeout(stall, client.send(part)).await;
        if broke_off || !matches!(taken, Ok(Ok(()))) {
            return;
        }
    }
}
