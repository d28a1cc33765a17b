//! Copies of a running machine's disks, made by its own QEMU at one point in time; the monitor's side of `receive`.
//!
//! ```text
//!   begin: `doing` locked ─▶ qcow2 files ─▶ one transaction: a backup job for each disk
//!   all jobs concluded ─▶ files closed, renamed ─▶ `doing` unlocked
//!   a job failed, nobody wants it any more, the monitor died ─▶ jobs cancelled, files closed and removed ─▶ `doing` unlocked
//! ```
//!
//! A job copies what a disk held when the transaction was carried out: what the guest overwrites afterwards is copied first.
//! A copy that cannot be written can hold up the guest's own write, which QEMU then treats as an error of the disk. So only
//! disks are copied whose errors stop the guest rather than reach it: the jobs are cancelled, and the guest goes on with the
//! same write as if nothing had been.
//!
//! Variables of firmware that are kept are an image, too. The firmware, in flash, is told of no error, and what it could not write is
//! lost; so their copy, of less than a mebibyte, is made in memory, which cannot fail, and written when it is whole.
//!
//! All of it is done beside the monitor's loop, over a QMP connection of its own: the guest is stopped in time however long the
//! copy's storage hangs. What may hang with it is done in threads that nobody waits for any longer than is said here.
//!
//! The directories are held open: where they are mounted is the handler's matter, and may be gone as soon as it has begun.
//! Whoever else may write there may put links there: files are made anew, and handed to QEMU open, never by a name.
//! Upstream reference: QEMU's qapi/block-core.json and job.json.

use crate::board::STATE_VOLUME;
use crate::image::ImageFormat;
use crate::layout::Layout;
use crate::proto::CopiedDisk;
use crate::qmp::{Qmp, QmpError};
use crate::receive::{self, DOING, PARTIAL, WHOLE, remove};
use crate::spec::{DiskBus, DiskSource, DiskSpec, MachineSpec, OnError};
use rustix::fs::{AtFlags, FlockOperation, MemfdFlags, Mode, OFlags};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};

/// Jobs and nodes of copies are called so, with the number of the disk.
const PREFIX: &str = "copy-";
/// A job works on so many pieces at once, each as large as this at most: what it takes of the pod's memory.
const WORKERS: u32 = 8;
const PIECE_BYTES: u64 = 1 << 20;
/// Of a copy's tables, so much is held in memory.
const TABLES_BYTES: u64 = 4 << 20;
/// How long cancelled jobs may take to conclude.
const CANCEL_LOOKS: u32 = 500;
const CANCEL_PERIOD: Duration = Duration::from_millis(20);

/// How long what is done to a directory may take.
const STORAGE_DEADLINE: Duration = Duration::from_secs(10);
/// How long an empty image may take to be made.
const CREATE_DEADLINE: Duration = Duration::from_secs(10);
/// How long the storage may take to write what it was given.
const SYNC_DEADLINE: Duration = Duration::from_secs(600);

/// How the work on copies ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Whose copy it was: the pod's UID. None when what a dead monitor had begun was ended.
    pub id: Option<String>,
    /// Why it came to nothing.
    pub failed: Option<String>,
    /// A guest's write that the copy could not follow has stopped the guest.
    pub stopped: bool,
    /// Locked until the monitor has taken note.
    _doing: Option<Arc<File>>,
}

/// A copy that is being made.
struct Copying {
    directories: Vec<Arc<OwnedFd>>,
    /// The files, one for each directory in which one was made.
    partials: Vec<Arc<File>>,
    /// Copies in memory, and the files that they are written to.
    held: Vec<(Arc<File>, Arc<File>)>,
    /// Locked as long as somebody wants the copy.
    wanted: Option<File>,
    doing: Arc<File>,
    jobs_began: bool,
    /// The guest has stopped.
    stopped: bool,
    /// Why it is to fail.
    failed: Option<String>,
}

fn job(number: usize) -> String {
    format!("{PREFIX}{number}")
}

fn text(what: &str, error: impl std::fmt::Display) -> String {
    format!("{what}: {error}")
}

/// The number of a volume's disk, if it can be copied while the guest runs.
fn copyable(spec: &MachineSpec, volume: &str) -> Result<usize, String> {
    let found = spec.disks.iter().enumerate().find(|(_, disk)| disk.name == volume);
    let (index, disk): (usize, &DiskSpec) = found.ok_or_else(|| format!("the machine has no disk {volume}"))?;
    let stops = disk.bus != DiskBus::Usb && matches!(disk.tuning.on_error, None | Some(OnError::Stop));
    if !matches!(disk.source, DiskSource::Persistent { .. }) {
        return Err(format!("disk {volume} is not on a claim"));
    }
    if !stops && !disk.read_only && !disk.cdrom {
        return Err(format!(
            "disk {volume} is copied only while the machine is off: its errors are told to the guest rather than stop it"
        ));
    }
    Ok(index)
}

/// QEMU's node of a volume, and for the firmware's variables the name of their file.
fn node<'a>(spec: &'a MachineSpec, volume: &str) -> Result<(String, Option<&'a OsStr>), String> {
    let kept = spec.board.nvram.as_deref().filter(|_| volume == STATE_VOLUME);
    match kept.and_then(Path::file_name) {
        Some(name) => Ok(("firmware-vars".to_owned(), Some(name))),
        None => Ok((format!("disk-{}", copyable(spec, volume)?), None)),
    }
}

/// Copies `disks` for the pod `id`. One copy is made at a time, by whose turn it is. `begun` is told when the jobs run.
pub(crate) async fn run(
    id: String,
    layout: Layout,
    disks: Vec<CopiedDisk>,
    turn: Arc<Mutex<()>>,
    begun: oneshot::Sender<()>,
) -> Ended {
    let _turn = turn.lock().await;
    let mut copying = match Copying::open(&layout, &disks).await {
        Ok(copying) => copying,
        Err(why) => return Ended { id: Some(id), failed: Some(why), stopped: false, _doing: None },
    };
    match Qmp::connect(&layout.copy_qmp_socket()).await {
        Ok(mut qmp) => copying.work(&layout, &disks, &mut qmp, begun).await,
        Err(error) => copying.fail(&refusal(error)),
    }
    copying.clear_up().await;
    let Copying { doing, failed, stopped, .. } = copying;
    Ended { id: Some(id), stopped, failed, _doing: Some(doing) }
}

/// Ends what a monitor that is dead had begun: whoever waits has been told by its death.
pub(crate) async fn end_old(layout: Layout, turn: Arc<Mutex<()>>) -> Ended {
    let _turn = turn.lock().await;
    let end = async {
        let mut qmp = Qmp::connect(&layout.copy_qmp_socket()).await.map_err(refusal)?;
        let any = abandon(&mut qmp).await?;
        Ok::<_, String>(any && has_stopped(&mut qmp).await)
    };
    let ended = end.await;
    if let Err(error) = &ended {
        tracing::error!(error, "copies of disks that were begun before cannot be ended");
    }
    Ended { id: None, stopped: ended == Ok(true), failed: ended.err(), _doing: None }
}

/// Whether the guest waits for a write that has failed.
async fn has_stopped(qmp: &mut Qmp) -> bool {
    qmp.run_state().await.is_ok_and(|state| state == "io-error")
}

impl Copying {
    /// Opens what is needed, and tells whoever waits that it is worked on.
    async fn open(layout: &Layout, disks: &[CopiedDisk]) -> Result<Self, String> {
        let paths: Vec<_> = disks.iter().map(|disk| disk.directory.clone()).collect();
        let uid = layout.uid.clone();
        let first = paths.first().ok_or("nothing is to be copied")?.clone();
        let opened = aside("a copy cannot be begun", STORAGE_DEADLINE, move || {
            let directories = paths.iter().map(|path| receive::open_directory(path).map(Arc::new));
            let directories = directories.collect::<io::Result<Vec<_>>>()?;
            let Some(first) = directories.first() else { return Ok(None) };
            let Ok(Some(wanted)) = receive::wanted(first, &uid) else { return Ok(None) };
            let doing = Arc::new(doing(first)?);
            Ok(Some(Self {
                directories,
                partials: Vec::new(),
                held: Vec::new(),
                wanted: Some(wanted),
                doing,
                jobs_began: false,
                stopped: false,
                failed: None,
            }))
        });
        opened.await?.ok_or_else(|| format!("nobody waits for a copy in {}", first.display()))
    }

    async fn work(&mut self, layout: &Layout, disks: &[CopiedDisk], qmp: &mut Qmp, begun: oneshot::Sender<()>) {
        match self.start(layout, disks, qmp).await {
            Ok(()) => {
                if begun.send(()).is_err() {
                    tracing::debug!("nobody waited for the copy's begin");
                }
                self.until_concluded(qmp).await;
            }
            Err(why) => self.fail(&why),
        }
        // The files are whole only when QEMU has closed them.
        if let Err(why) = abandon(qmp).await {
            self.fail(&why);
        }
        self.stopped = self.failed.is_some() && self.jobs_began && has_stopped(qmp).await;
        if self.failed.is_none()
            && let Err(why) = self.keep().await
        {
            self.fail(&why);
        }
    }

    async fn start(&mut self, layout: &Layout, disks: &[CopiedDisk], qmp: &mut Qmp) -> Result<(), String> {
        abandon(qmp).await?;
        let spec = std::fs::read(layout.spec_file()).map_err(|error| text("no machine", error))?;
        let spec: MachineSpec = serde_json::from_slice(&spec).map_err(|error| text("no machine", error))?;
        let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true })).await.map_err(refusal)?;
        let mut actions = Vec::new();
        for (number, (disk, directory)) in disks.iter().zip(self.directories.clone()).enumerate() {
            let (node, variables) = node(&spec, &disk.volume)?;
            let size = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node.as_str());
            let size = size.and_then(|found| found["image"]["virtual-size"].as_u64());
            let size = size.ok_or_else(|| format!("how large disk {} is cannot be told", disk.volume))?;
            let name = variables.map(OsStr::to_owned);
            let made = aside("a copy's file", STORAGE_DEADLINE, move || {
                name.map_or(Ok(()), |name| receive::keep_name(&directory, name.as_encoded_bytes()))?;
                new_file(&directory, PARTIAL)
            });
            let partial = Arc::new(made.await?);
            self.partials.push(partial.clone());
            let mut image = partial.clone();
            if variables.is_some() {
                let memory = rustix::fs::memfd_create("copied-variables", MemfdFlags::CLOEXEC);
                image = Arc::new(File::from(memory.map_err(|errno| text("no memory for a copy", errno))?));
                self.held.push((image.clone(), partial));
            }
            create(&image, size).await?;
            let file = qmp.add_file(image.as_fd(), &job(number)).await.map_err(refusal)?;
            let target = json!({
                "driver": ImageFormat::Qcow2.driver(), "node-name": job(number), "cache-size": TABLES_BYTES,
                "discard": "unmap", "backing": Value::Null,
                "file": { "driver": "file", "filename": file, "locking": "on" } });
            qmp.execute("blockdev-add", target).await.map_err(refusal)?;
            actions.push(json!({ "type": "blockdev-backup", "data": {
                "job-id": job(number), "device": node, "target": job(number), "sync": "full",
                "auto-dismiss": false, "on-source-error": "report", "on-target-error": "report",
                "x-perf": { "max-workers": WORKERS, "max-chunk": PIECE_BYTES } } }));
        }
        let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true })).await.map_err(refusal)?;
        for number in 0..actions.len() {
            let node = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == job(number).as_str());
            holds_itself(node.unwrap_or(&Value::Null)).map_err(|why| format!("{}: {why}", job(number)))?;
        }
        let transaction = json!({ "actions": actions, "properties": { "completion-mode": "grouped" } });
        self.jobs_began = true;
        qmp.execute("transaction", transaction).await.map(drop).map_err(refusal)
    }

    /// Says why nothing comes of it; the first reason counts.
    fn fail(&mut self, why: &str) {
        if self.failed.is_some() {
            return;
        }
        tracing::warn!(why, "the disks are not copied");
        self.failed = Some(why.to_owned());
    }

    /// Until all jobs have concluded, or have to be ended.
    async fn until_concluded(&mut self, qmp: &mut Qmp) {
        let mut unwanted = self.wanted.take().map(unlocked);
        let mut why: Option<String> = None;
        loop {
            let concluded = self.look(qmp).await;
            if let Some(why) = why.filter(|_| !concluded) {
                self.fail(&why);
                return;
            }
            if concluded {
                return;
            }
            why = tokio::select! {
                why = news(qmp) => why,
                Some(()) = told(&mut unwanted) => Some("nobody wants the copy any more".to_owned()),
            };
        }
    }

    /// Looks how far the jobs are; whether all of them have concluded.
    async fn look(&mut self, qmp: &mut Qmp) -> bool {
        match own_jobs(qmp).await {
            Ok(jobs) => {
                let error = jobs.iter().find_map(|job| Some(job["error"].as_str()?.to_owned()));
                if let Some(why) = error {
                    self.fail(&why);
                }
                jobs.iter().all(|job| job["status"] == "concluded")
            }
            Err(why) => {
                self.fail(&why);
                true
            }
        }
    }

    /// The copies appear under their names, as wholes.
    async fn keep(&self) -> Result<(), String> {
        let what = "a copy cannot be kept";
        let (partials, held) = (self.partials.clone(), self.held.clone());
        let write = move || {
            held.iter().try_for_each(|(memory, file)| pour(memory, file))?;
            partials.iter().try_for_each(|file| file.sync_data())
        };
        aside(what, SYNC_DEADLINE, write).await?;
        let copies: Vec<_> = self.directories.iter().cloned().zip(self.partials.clone()).collect();
        let keep = move || copies.iter().try_for_each(|(directory, file)| keep(directory, file));
        aside(what, STORAGE_DEADLINE, keep).await
    }

    /// Removes what came to nothing, and tells why.
    async fn clear_up(&self) {
        let Some(why) = self.failed.clone() else { return };
        let (directories, partials, doing) = (self.directories.clone(), self.partials.clone(), self.doing.clone());
        let cleared = aside("a copy that came to nothing", STORAGE_DEADLINE, move || {
            let removed = directories.iter().map(|directory| remove(directory, PARTIAL)).collect::<Vec<_>>();
            // They are open still, and a file keeps its room as long as it is.
            partials.iter().try_for_each(|file| file.set_len(0))?;
            // Now that there is room, surely.
            doing.write_all_at(why.as_bytes(), 0)?;
            removed.into_iter().collect::<io::Result<()>>()
        });
        if let Err(error) = cleared.await {
            tracing::warn!(error, "what is left of a copy is not removed");
        }
    }
}

fn refusal(error: QmpError) -> String {
    error.to_string()
}

/// Does what may hang with the storage in a thread of its own. What comes of it too late is dropped, and the process can end
/// meanwhile, which it could not if the thread were the runtime's.
async fn aside<T: Send + 'static>(
    what: &str,
    deadline: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let (tell, done) = oneshot::channel();
    std::thread::spawn(move || {
        if tell.send(work()).is_err() {
            tracing::warn!("a copy's storage has answered too late");
        }
    });
    match tokio::time::timeout(deadline, done).await {
        Ok(Ok(result)) => result.map_err(|error| text(what, error)),
        Ok(Err(_)) => Err(text(what, "its thread has failed")),
        Err(_) => Err(text(what, format!("the storage does not answer within {} s", deadline.as_secs()))),
    }
}

/// Tells when nobody holds the lock of `file` any more. The thread ends with the process or with whoever holds the lock.
fn unlocked(file: File) -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let released = rustix::fs::flock(&file, FlockOperation::LockShared);
        if released.is_ok() && tell.send(()).is_err() {
            tracing::debug!("the copy was done before");
        }
    });
    told
}

/// Until it is told; none when nobody will.
async fn told(by: &mut Option<oneshot::Receiver<()>>) -> Option<()> {
    let told = by.as_mut()?.await.ok();
    *by = None;
    told
}

/// Until a job may have got on; tells why it has to be ended, if so.
async fn news(qmp: &mut Qmp) -> Option<String> {
    loop {
        match qmp.event().await {
            Ok(event) if event.name == "JOB_STATUS_CHANGE" => return None,
            Ok(event) if event.name == "BLOCK_IO_ERROR" => return Some("a disk failed while it was copied".to_owned()),
            Ok(_) => {}
            Err(error) => return Some(refusal(error)),
        }
    }
}

/// Makes a file that was not there; one of this name, or a link, goes first.
fn new_file(directory: &OwnedFd, name: &str) -> io::Result<File> {
    remove(directory, name)?;
    receive::open(directory, name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)
}

/// Makes `doing`, locked from its first instant under that name.
fn doing(directory: &OwnedFd) -> io::Result<File> {
    const NEW: &str = "doing.new";
    let file = new_file(directory, NEW)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::renameat(directory, NEW, directory, DOING)?;
    Ok(file)
}

/// Writes what is in memory.
fn pour(memory: &File, file: &File) -> io::Result<()> {
    let length = usize::try_from(memory.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, 0)?;
    file.write_all_at(&bytes, 0)
}

/// A copy appears under its name, unless somebody has put something else in its place.
fn keep(directory: &OwnedFd, file: &File) -> io::Result<()> {
    let (ours, named) = (rustix::fs::fstat(file)?, rustix::fs::statat(directory, PARTIAL, AtFlags::SYMLINK_NOFOLLOW)?);
    if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) {
        return Err(io::Error::other(format!("{PARTIAL} was put in its place")));
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o660))?;
    file.sync_all()?;
    rustix::fs::renameat(directory, PARTIAL, directory, WHOLE)?;
    Ok(rustix::fs::fsync(directory)?)
}

/// Makes an empty image in an open file, which is the program's standard input.
async fn create(file: &File, size_bytes: u64) -> Result<(), String> {
    let input = file.try_clone().map_err(|error| text("qemu-img", error))?;
    let mut command = tokio::process::Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "/proc/self/fd/0", &size_bytes.to_string()]);
    let done = command.stdin(Stdio::from(input)).kill_on_drop(true).output();
    let silent = |_| format!("qemu-img did not end within {} s", CREATE_DEADLINE.as_secs());
    let done = tokio::time::timeout(CREATE_DEADLINE, done).await.map_err(silent)?;
    let done = done.map_err(|error| text("qemu-img", error))?;
    if done.status.success() {
        return Ok(());
    }
    Err(text("qemu-img failed", String::from_utf8_lossy(&done.stderr).trim()))
}

async fn own_jobs(qmp: &mut Qmp) -> Result<Vec<Value>, String> {
    let all = qmp.execute("query-jobs", json!({})).await.map_err(refusal)?;
    let own = |job: &&Value| job["id"].as_str().is_some_and(|id| id.starts_with(PREFIX));
    Ok(all.as_array().into_iter().flatten().filter(own).cloned().collect())
}

/// Asks jobs to end that have not.
async fn cancel(qmp: &mut Qmp) {
    let jobs = own_jobs(qmp).await.unwrap_or_default();
    for job in jobs.iter().filter(|job| job["status"] != "concluded") {
        // One that has just ended refuses.
        if let Err(error) = qmp.execute("block-job-cancel", json!({ "device": job["id"], "force": true })).await {
            tracing::debug!(%error, "a job was not cancelled");
        }
    }
}

/// Ends all jobs of copies, and closes their files; whether there were jobs.
///
/// # Errors
/// Why not, for people: QEMU may have files open.
async fn abandon(qmp: &mut Qmp) -> Result<bool, String> {
    let mut looks = 0;
    let any = loop {
        let jobs = own_jobs(qmp).await?;
        if jobs.iter().all(|job| job["status"] == "concluded") {
            for job in &jobs {
                qmp.execute("job-dismiss", json!({ "id": job["id"] })).await.map_err(refusal)?;
            }
            break !jobs.is_empty();
        }
        if looks == CANCEL_LOOKS {
            return Err("the jobs that copy disks do not end".to_owned());
        }
        if looks == 0 {
            cancel(qmp).await;
        }
        looks += 1;
        tokio::time::sleep(CANCEL_PERIOD).await;
    };
    let is_own = |name: &Value| name.as_str().is_some_and(|name| name.starts_with(PREFIX));
    let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true })).await.map_err(refusal)?;
    let nodes = nodes.as_array().into_iter().flatten().map(|node| &node["node-name"]);
    for name in nodes.filter(|name| is_own(name)) {
        qmp.execute("blockdev-del", json!({ "node-name": name })).await.map_err(refusal)?;
    }
    let sets = qmp.execute("query-fdsets", json!({})).await.map_err(refusal)?;
    for set in sets.as_array().into_iter().flatten() {
        if set["fds"].as_array().into_iter().flatten().any(|file| is_own(&file["opaque"])) {
            qmp.execute("remove-fd", json!({ "fdset-id": set["fdset-id"] })).await.map_err(refusal)?;
        }
    }
    Ok(any)
}

/// Whether what a copy is written to is in the file that was made for it. Whoever has the copy's claim may have put another
/// header into it before QEMU read it: one that says that the data is in another file, which is then QEMU's to overwrite.
fn holds_itself(node: &Value) -> Result<(), &'static str> {
    let specific = &node["image"]["format-specific"];
    if specific["type"] != ImageFormat::Qcow2.driver() {
        return Err("it is not open as what it was made");
    }
    if !specific["data"]["data-file"].is_null() {
        return Err("somebody has made its file one whose data is in another file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_holds_itself_is_written_to() {
        let check = |specific: Value, good: bool| {
            let node = json!({ "image": { "format-specific": specific } });
            assert_eq!(holds_itself(&node).is_ok(), good, "{node}");
        };
        check(json!({ "type": "qcow2", "data": { "compat": "1.1" } }), true);
        check(json!({ "type": "qcow2", "data": { "compat": "1.1", "data-file": "/var/run/other" } }), false);
        check(json!({ "type": "vmdk", "data": {} }), false);
        check(Value::Null, false);
    }
}
