//! Followers of real files: what they send while logs grow, are rotated, cut and end.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::*;

/// Nothing here takes so long, unless it never comes.
const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Flags {
    over: Arc<AtomicBool>,
    unknown: Arc<AtomicBool>,
}

impl MayWrite for Flags {
    async fn may_write(&mut self) -> Result<bool, String> {
        if self.unknown.load(Ordering::SeqCst) {
            return Err("the runtime does not answer".into());
        }
        Ok(!self.over.load(Ordering::SeqCst))
    }
}

struct Follower {
    parts: mpsc::Receiver<Result<bytes::Bytes, crate::server::reply::Broken>>,
    seen: String,
    flags: Flags,
    ending: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Follower {
    async fn start(path: &Path, options: LogOptions, pace: Pace) -> Self {
        let opened = Opened::open(path.to_owned(), &options).await.expect("opens");
        let (client, parts) = mpsc::channel(1);
        let (ending, ended) = watch::channel(false);
        let flags = Flags::default();
        let task = tokio::spawn(send(opened, options, flags.clone(), client, ended, pace));
        Self { parts, seen: String::new(), flags, ending, task }
    }

    /// Waits until all that was seen is this, and nothing else.
    async fn sees(&mut self, expected: &str) {
        while self.seen.len() < expected.len() {
            let part = tokio::time::timeout(LONG, self.parts.recv()).await;
            let part = part.unwrap_or_else(|_| panic!("only {:?} came", self.seen)).expect("not over").expect("reads");
            self.seen.push_str(std::str::from_utf8(&part).expect("text"));
        }
        assert_eq!(self.seen, expected);
    }

    async fn ends(mut self) {
        let rest = tokio::time::timeout(LONG, self.parts.recv()).await.expect("ends");
        assert!(rest.is_none(), "{rest:?} came after {:?}", self.seen);
        tokio::time::timeout(LONG, self.task).await.expect("in time").expect("no panic");
    }
}

fn following() -> LogOptions {
    LogOptions { follow: true, ..LogOptions::default() }
}

/// `check` is short where a test waits for what no change tells.
fn pace(check: Duration) -> Pace {
    Pace { check, rotation: Duration::from_millis(5), stall: LONG }
}

const OFTEN: Duration = Duration::from_millis(10);

fn log_in(dir: &tempfile::TempDir) -> (PathBuf, File) {
    let path = dir.path().join("0.log");
    let file = append(&path);
    (path, file)
}

fn append(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("opens")
}

fn line(mut file: &File, text: &str) {
    file.write_all(format!("2016-10-06T00:17:01.5Z stdout F {text}\n").as_bytes()).expect("writes");
}

#[tokio::test]
async fn growth_wakes_and_the_end_ends() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, mut file) = log_in(&dir);
    line(&file, "1");
    // Looking for the end only once an hour: changes alone wake it.
    let mut follower = Follower::start(&path, following(), pace(Duration::from_secs(3600))).await;
    follower.sees("1\n").await;
    line(&file, "2");
    follower.sees("1\n2\n").await;
    // A record that comes in parts.
    file.write_all(b"2016-10-06T00:17:01.5Z std").expect("writes");
    file.write_all(b"out F thr").expect("writes");
    follower.sees("1\n2\nthr").await;
    file.write_all(b"ee\n").expect("writes");
    follower.sees("1\n2\nthree\n").await;
    drop(follower.parts);
    tokio::time::timeout(LONG, follower.task).await.expect("ends with its client").expect("no panic");
}

#[tokio::test]
async fn ends_with_the_container_after_all_was_sent() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, file) = log_in(&dir);
    let mut follower = Follower::start(&path, following(), pace(OFTEN)).await;
    line(&file, "1");
    follower.sees("1\n").await;
    follower.flags.unknown.store(true, Ordering::SeqCst);
    follower.flags.over.store(true, Ordering::SeqCst);
    line(&file, "2");
    // Nobody knows whether it is over: it goes on.
    follower.sees("1\n2\n").await;
    line(&file, "3");
    follower.sees("1\n2\n3\n").await;
    follower.flags.unknown.store(false, Ordering::SeqCst);
    follower.ends().await;
}

#[tokio::test]
async fn rotation_loses_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, mut file) = log_in(&dir);
    let mut follower = Follower::start(&path, following(), pace(OFTEN)).await;
    let mut expected = String::new();
    for round in 0..5 {
        for what in ["before", "renamed", "reopened"] {
            let text = format!("{round} {what}");
            expected.push_str(&text);
            expected.push('\n');
            match what {
                "renamed" => std::fs::rename(&path, dir.path().join(format!("0.log.{round}"))).expect("renames"),
                "reopened" => file = append(&path),
                _ => {}
            }
            line(&file, &text);
            if round % 2 == 0 {
                follower.sees(&expected).await;
            }
        }
    }
    // The last rotation and the end come together.
    std::fs::rename(&path, dir.path().join("0.log.last")).expect("renames");
    line(&file, "old");
    line(&append(&path), "new");
    follower.flags.over.store(true, Ordering::SeqCst);
    follower.sees(&format!("{expected}old\nnew\n")).await;
    follower.ends().await;
}

#[tokio::test]
async fn a_log_that_was_cut_is_read_from_its_start() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, file) = log_in(&dir);
    line(&file, "a long first line");
    let mut follower = Follower::start(&path, following(), pace(OFTEN)).await;
    follower.sees("a long first line\n").await;
    file.set_len(0).expect("cuts");
    line(&file, "2");
    follower.sees("a long first line\n2\n").await;
    // Its pod goes, and the file with it.
    std::fs::remove_file(&path).expect("removes");
    follower.flags.over.store(true, Ordering::SeqCst);
    follower.ends().await;
}

#[tokio::test]
async fn tail_limit_and_shutdown() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, file) = log_in(&dir);
    for n in 0..1000 {
        line(&file, &n.to_string());
    }
    let options = LogOptions { tail_lines: Some(2), ..following() };
    let mut follower = Follower::start(&path, options, pace(Duration::from_secs(3600))).await;
    follower.sees("998\n999\n").await;
    line(&file, "x");
    follower.sees("998\n999\nx\n").await;
    follower.ending.send_replace(true);
    follower.ends().await;
    let options = LogOptions { tail_lines: Some(0), limit_bytes: Some(3), ..following() };
    let mut follower = Follower::start(&path, options, pace(Duration::from_secs(3600))).await;
    line(&file, "yz and more");
    follower.sees("yz ").await;
    follower.ends().await;
}

#[tokio::test]
async fn without_following_a_fast_writer_keeps_nobody() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, file) = log_in(&dir);
    line(&file, "1");
    let opened = Opened::open(path, &LogOptions::default()).await.expect("opens");
    line(&file, "2");
    let (client, mut parts) = mpsc::channel(1);
    let (_end, ending) = watch::channel(false);
    let task = tokio::spawn(send(opened, LogOptions::default(), Flags::default(), client, ending, pace(OFTEN)));
    assert_eq!(parts.recv().await.expect("comes").expect("reads"), "1\n");
    assert!(parts.recv().await.is_none());
    task.await.expect("no panic");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_left() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, file) = log_in(&dir);
    for _ in 0..100 {
        line(&file, &"x".repeat(10_000));
    }
    let pace = Pace { stall: Duration::from_millis(20), ..pace(OFTEN) };
    let follower = Follower::start(&path, following(), pace).await;
    tokio::time::timeout(LONG, follower.task).await.expect("ends").expect("no panic");
}

#[tokio::test]
async fn what_is_no_file_is_not_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("0.log");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).expect("a pipe");
    // Whoever opens it for reading alone waits for a writer.
    let opened = tokio::time::timeout(LONG, Opened::open(pipe, &LogOptions::default())).await.expect("an answer");
    assert_eq!(opened.expect_err("no log").to_string(), "it is no file");
}
