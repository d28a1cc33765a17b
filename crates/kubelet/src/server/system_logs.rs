//! The node's logs: `GET /logs/…`, files and lists of directories below `/var/log`, as upstream serves them
//! (`http.FileServer`), but for parts of files, and for an `index.html` in the place of a list.
//!
//! Links are followed that stay below the directory; `/var/log/containers` is full of them. Whoever may write there, such as a
//! pod with a volume of it, must not have the rest of the node read: where a path leads is found out first, and then that is
//! opened from the directory on without following anything.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::Bytes;
use carrack_engine::query_escape;
use http::{Response, StatusCode};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use super::connection::Shared;
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
enum Found {
    /// A file, its length, and whether it seems to be text.
    File(File, u64, bool),
    /// What is in a directory: names, and whether they are directories.
    List(Vec<(String, bool)>),
}

/// Answers: `way` is what follows `/logs` in the request's path.
pub(super) async fn answer(shared: &Shared, dir: &Path, way: &str) -> Result<Response<Reply>, Refusal> {
    // In a path a plus stands for itself.
    let decoded = query::decode(&way.replace('+', "%2B")).map_err(Refusal::bad)?;
    let dir = dir.to_owned();
    let found = tokio::task::spawn_blocking(move || find(&dir, &decoded)).await.map_err(Error::other).flatten();
    match found.map_err(|error| refused(&error))? {
        Found::List(names) if way.ends_with('/') => Ok(reply::html(page(&names))),
        // What the list names is relative to it.
        Found::List(_) => {
            let last = way.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or("logs");
            reply::moved(&format!("{last}/"))
        }
        Found::File(file, length, is_text) => {
            let (client, parts) = mpsc::channel(1);
            let (stall, mut ending) = (shared.settings.stall, shared.ending.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = send(file, length, &client, stall) => {}
                    // An error means that the server is gone, which is the end as well.
                    _ = ending.wait_for(|ending| *ending) => {}
                }
            });
            let content_type = if is_text { "text/plain; charset=utf-8" } else { "application/octet-stream" };
            Ok(reply::stream(content_type, parts))
        }
    }
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
    Ok(Found::File(file, metadata.len(), is_text))
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

/// Sends a file as long as it was when it was opened: who writes fast must not keep it.
async fn send(file: File, length: u64, client: &mpsc::Sender<Result<Bytes, Broken>>, stall: std::time::Duration) {
    let mut file = tokio::fs::File::from_std(file).take(length);
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
