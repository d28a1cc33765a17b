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
//! The directories are held open: where they are mounted is the handler's matter, and may be gone as soon as it has begun.
//! Upstream reference: QEMU's qapi/block-core.json and job.json.

use crate::image::ImageFormat;
use crate::layout::Layout;
use crate::proto::CopiedDisk;
use crate::qmp::Qmp;
use crate::receive::{self, DOING, PARTIAL, WANTED, WHOLE};
use crate::spec::{DiskBus, DiskSource, DiskSpec, MachineSpec, OnError};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::sync::oneshot;

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

/// A copy that is being made.
#[derive(Debug)]
pub(crate) struct Copying {
    /// Whose it is: the pod's UID.
    pub id: String,
    directories: Vec<OwnedFd>,
    jobs: usize,
    /// Locked as long as this lives.
    doing: File,
    /// Why it is to fail.
    failed: Option<String>,
}

fn job(number: usize) -> String {
    format!("{PREFIX}{number}")
}

fn text(what: &str, error: impl std::fmt::Display) -> String {
    format!("{what}: {error}")
}

/// The disk of a volume, if it can be copied while the guest runs.
fn copyable<'a>(spec: &'a MachineSpec, volume: &str) -> Result<(usize, &'a DiskSpec), String> {
    let found = spec.disks.iter().enumerate().find(|(_, disk)| disk.name == volume);
    let (index, disk) = found.ok_or_else(|| format!("the machine has no disk {volume}"))?;
    let stops = disk.bus != DiskBus::Usb && matches!(disk.tuning.on_error, None | Some(OnError::Stop));
    if !matches!(disk.source, DiskSource::Persistent { .. }) {
        return Err(format!("disk {volume} is not on a claim"));
    }
    if !stops && !disk.read_only && !disk.cdrom {
        return Err(format!(
            "disk {volume} is copied only while the machine is off: its errors are told to the guest rather than stop it"
        ));
    }
    Ok((index, disk))
}

impl Copying {
    /// Begins. `unwanted` is told when nobody waits for the copy any more.
    ///
    /// # Errors
    /// Why not, for people; nothing is left then.
    pub async fn begin(
        id: &str,
        layout: &Layout,
        disks: &[CopiedDisk],
        qmp: &mut Qmp,
        unwanted: oneshot::Sender<()>,
    ) -> Result<Self, String> {
        let text_of = std::fs::read(layout.spec_file()).map_err(|error| text("no machine", error))?;
        let spec: MachineSpec = serde_json::from_slice(&text_of).map_err(|error| text("no machine", error))?;
        let first = disks.first().ok_or("nothing is to be copied")?;
        if !receive::is_wanted(&first.directory, &layout.uid) {
            return Err(format!("nobody waits for a copy in {}", first.directory.display()));
        }
        let wanted = File::open(first.directory.join(WANTED)).map_err(|error| text("nobody waits", error))?;
        let mut directories = Vec::new();
        for disk in disks {
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(&disk.directory, flags, Mode::empty());
            directories.push(opened.map_err(|error| text("a volume for a copy", error))?);
        }
        let doing = doing(&directories[0]).map_err(|error| text("a copy cannot be begun", error))?;
        let mut copying = Self { id: id.to_owned(), directories, jobs: disks.len(), doing, failed: None };
        if let Err(why) = copying.start(&spec, disks, qmp).await {
            copying.fail(&why);
            copying.close(qmp).await;
            return Err(why);
        }
        // It ends with this process, or when it has the lock: nobody waits for it.
        std::thread::spawn(move || {
            let released = rustix::fs::flock(&wanted, FlockOperation::LockShared);
            if released.is_ok() && unwanted.send(()).is_err() {
                tracing::debug!("the copy was done before");
            }
        });
        Ok(copying)
    }

    async fn start(&mut self, spec: &MachineSpec, disks: &[CopiedDisk], qmp: &mut Qmp) -> Result<(), String> {
        let execute = |error: crate::qmp::QmpError| error.to_string();
        let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true })).await.map_err(execute)?;
        let mut actions = Vec::new();
        for (number, disk) in disks.iter().enumerate() {
            let (index, _) = copyable(spec, &disk.volume)?;
            let node = format!("disk-{index}");
            let size = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node.as_str());
            let size = size.and_then(|found| found["image"]["virtual-size"].as_u64());
            let size = size.ok_or_else(|| format!("how large disk {} is cannot be told", disk.volume))?;
            let partial = disk.directory.join(PARTIAL);
            create(&partial, size).await?;
            let target = json!({
                "driver": ImageFormat::Qcow2.driver(), "node-name": job(number), "cache-size": TABLES_BYTES,
                "discard": "unmap", "backing": Value::Null,
                "file": { "driver": "file", "filename": partial, "locking": "on" } });
            qmp.execute("blockdev-add", target).await.map_err(execute)?;
            actions.push(json!({ "type": "blockdev-backup", "data": {
                "job-id": job(number), "device": node, "target": job(number), "sync": "full",
                "auto-dismiss": false, "on-source-error": "report", "on-target-error": "report",
                "x-perf": { "max-workers": WORKERS, "max-chunk": PIECE_BYTES } } }));
        }
        let transaction = json!({ "actions": actions, "properties": { "completion-mode": "grouped" } });
        qmp.execute("transaction", transaction).await.map(drop).map_err(execute)
    }

    /// Says why nothing comes of it; the first reason counts.
    pub fn fail(&mut self, why: &str) {
        if self.failed.is_some() {
            return;
        }
        tracing::warn!(why, "the disks are not copied");
        self.failed = Some(why.to_owned());
    }

    /// Looks how far the jobs are; whether all of them have concluded.
    pub async fn look(&mut self, qmp: &mut Qmp) -> bool {
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

    /// Ends it: the files are whole, or go.
    pub async fn close(mut self, qmp: &mut Qmp) {
        if let Err(why) = abandon(qmp, self.jobs).await {
            self.fail(&why);
        }
        if self.failed.is_none() {
            let kept = self.directories.iter().try_for_each(keep);
            if let Err(error) = kept {
                self.fail(&text("a copy cannot be kept", error));
            }
        }
        if let Some(why) = &self.failed {
            for directory in &self.directories {
                match rustix::fs::unlinkat(directory, PARTIAL, AtFlags::empty()) {
                    Err(errno) if errno != rustix::io::Errno::NOENT => {
                        tracing::warn!(%errno, "a copy that came to nothing is not removed");
                    }
                    _ => {}
                }
            }
            // Now that there is room, surely.
            if let Err(error) = self.doing.write_all_at(why.as_bytes(), 0) {
                tracing::warn!(%error, "why a copy failed cannot be told");
            }
        }
    }
}

/// Makes `doing`, locked from its first instant under that name.
fn doing(directory: &OwnedFd) -> io::Result<File> {
    const NEW: &str = "doing.new";
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(rustix::fs::openat(directory, NEW, flags, Mode::from_raw_mode(0o600))?);
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::renameat(directory, NEW, directory, DOING)?;
    Ok(file)
}

/// A copy appears under its name as a whole.
fn keep(directory: &OwnedFd) -> io::Result<()> {
    let file =
        rustix::fs::openat(directory, PARTIAL, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o660))?;
    rustix::fs::fsync(&file)?;
    rustix::fs::renameat(directory, PARTIAL, directory, WHOLE)?;
    Ok(rustix::fs::fsync(directory.as_fd())?)
}

async fn create(path: &Path, size_bytes: u64) -> Result<(), String> {
    let mut command = tokio::process::Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]).arg(path).arg(size_bytes.to_string());
    let done = command.stdin(Stdio::null()).output().await.map_err(|error| text("qemu-img", error))?;
    if done.status.success() {
        return Ok(());
    }
    Err(text("qemu-img failed", String::from_utf8_lossy(&done.stderr).trim()))
}

async fn own_jobs(qmp: &mut Qmp) -> Result<Vec<Value>, String> {
    let all = qmp.execute("query-jobs", json!({})).await.map_err(|error| error.to_string())?;
    let own = |job: &&Value| job["id"].as_str().is_some_and(|id| id.starts_with(PREFIX));
    Ok(all.as_array().into_iter().flatten().filter(own).cloned().collect())
}

/// Asks jobs to end that have not.
pub(crate) async fn cancel(qmp: &mut Qmp) {
    let jobs = own_jobs(qmp).await.unwrap_or_default();
    for job in jobs.iter().filter(|job| job["status"] != "concluded") {
        // One that has just ended refuses.
        if let Err(error) = qmp.execute("block-job-cancel", json!({ "device": job["id"], "force": true })).await {
            tracing::debug!(%error, "a job was not cancelled");
        }
    }
}

/// Ends all jobs of copies, and closes their files; what a monitor that takes over does with those that it finds.
///
/// # Errors
/// Why not, for people.
pub(crate) async fn abandon(qmp: &mut Qmp, nodes: usize) -> Result<(), String> {
    let mut looks = 0;
    loop {
        let jobs = own_jobs(qmp).await?;
        if jobs.iter().all(|job| job["status"] == "concluded") {
            for job in &jobs {
                qmp.execute("job-dismiss", json!({ "id": job["id"] })).await.map_err(|error| error.to_string())?;
            }
            break;
        }
        if looks == CANCEL_LOOKS {
            return Err("the jobs that copy disks do not end".to_owned());
        }
        if looks == 0 {
            cancel(qmp).await;
        }
        looks += 1;
        tokio::time::sleep(CANCEL_PERIOD).await;
    }
    for number in 0..nodes {
        // One that was never added is not there.
        if let Err(error) = qmp.execute("blockdev-del", json!({ "node-name": job(number) })).await {
            tracing::debug!(%error, "a copy was not open");
        }
    }
    Ok(())
}
