//! Volumes and snapshots as files.
//!
//! ```text
//!   volumes/<id>/disk         what is in it, as a loop device has it: sparse, of the volume's size
//!   volumes/<id>/about.json   what was asked for
//!   snapshots/<id>/…          the same
//!   */.new-<id>, */.gone-<id> being made, being removed: finished at the next start, or removed
//! ```
//!
//! A directory gets its name when all of it is on the disk, and loses it before any of it goes, so that what is there
//! under its name is whole. No more is promised than the disk has: a volume never finds the disk full because of
//! another volume.
//!
//! A copy is made at a stroke where the file system below can (xfs, btrfs). Where it cannot, what is mounted is frozen for
//! the time of the copy; a device in use that nobody can freeze is not copied.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use carrack_disks::{DiskError, filesystem, loops, mounts, shared};
use serde::{Deserialize, Serialize};

use super::promises::{Making, Promise, Promises};

/// Sizes are multiples of this, in bytes.
const GRAIN: u64 = 1 << 20;

/// What volumes and snapshots are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// A volume, by id.
    Volume(String),
    /// A snapshot, by id.
    Snapshot(String),
}

/// What is known of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Its id.
    pub id: String,
    /// Size, in bytes.
    pub size_bytes: u64,
    /// What it was made from.
    pub source: Option<Source>,
    /// It lives with a pod, and goes when it is taken from it.
    #[serde(default)]
    pub ephemeral: bool,
    /// When it was made, in nanoseconds since 1970.
    pub made_unix_ns: i64,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// There is no such thing.
    #[error("{0} does not exist")]
    NotFound(String),
    /// There is one of this name, and it is otherwise than asked for.
    #[error("{0}")]
    Differs(String),
    /// The disk has not enough room.
    #[error("{0}")]
    NoRoom(String),
    /// What is asked for cannot be had.
    #[error("{0}")]
    Invalid(String),
    /// Somebody uses it.
    #[error("{0}")]
    InUse(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl From<DiskError> for LibraryError {
    fn from(e: DiskError) -> Self {
        match e {
            DiskError::InUse(text) => Self::InUse(text),
            other => Self::Failed(other.to_string()),
        }
    }
}

fn io_error(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> LibraryError {
    move |e| match e.kind() {
        io::ErrorKind::StorageFull => LibraryError::NoRoom(format!("{what}: {e}")),
        _ => LibraryError::Failed(format!("{what}: {e}")),
    }
}

/// What an id may be: a name of a directory that leads nowhere else.
fn checked(id: &str) -> Result<&str, LibraryError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if id.is_empty() || id.len() > 128 || id.starts_with('.') || !id.chars().all(good) {
        return Err(LibraryError::NotFound(format!("{id:?}")));
    }
    Ok(id)
}

/// Volumes and snapshots below a directory.
#[derive(Debug)]
pub struct Library {
    root: PathBuf,
    promises: Promises,
}

impl Library {
    /// The library below a directory, which is made. What an earlier process left half done is removed, and what it
    /// left frozen goes on.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(root: &Path) -> Result<Self, LibraryError> {
        for shelf in ["volumes", "snapshots"] {
            let dir = root.join(shelf);
            fs::create_dir_all(&dir).map_err(io_error(format!("creating {}", dir.display())))?;
        }
        // Loop devices are found by the path of their file, which the kernel tells without links.
        let root = root.canonicalize().map_err(io_error(format!("looking at {}", root.display())))?;
        let library = Self { root, promises: Promises::default() };
        for shelf in ["volumes", "snapshots"] {
            for name in library.names(shelf)? {
                if name.starts_with(".new-") || name.starts_with(".gone-") {
                    let path = library.root.join(shelf).join(&name);
                    // It takes room, and keeps nobody from his volumes.
                    if let Err(error) = fs::remove_dir_all(&path) {
                        tracing::error!(path = %path.display(), %error, "what was left half done is not removed");
                    }
                }
            }
        }
        let (volumes, unread) = library.all("volumes")?;
        let (_, unread_snapshots) = library.all("snapshots")?;
        for (shelf, ids) in [("volumes", &unread), ("snapshots", &unread_snapshots)] {
            for id in ids {
                let path = library.root.join(shelf).join(id);
                tracing::error!(path = %path.display(), "nothing of it can be read: it is not served, and keeps its room");
            }
        }
        for id in volumes.into_iter().map(|volume| volume.id).chain(unread) {
            if let Some(path) = library.mounted_at(&id)?
                && freeze(&path, false).is_ok()
            {
                tracing::warn!(volume = id, "the file system had been left frozen");
            }
        }
        Ok(library)
    }

    fn names(&self, shelf: &str) -> Result<Vec<String>, LibraryError> {
        let dir = self.root.join(shelf);
        let what = || format!("listing {}", dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).map_err(io_error(what()))? {
            names.push(entry.map_err(io_error(what()))?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// All of a shelf, and the ids of those that are there and say nothing that can be read: a damaged file, or one of another
    /// version. The others are served without them.
    fn all(&self, shelf: &str) -> Result<(Vec<About>, Vec<String>), LibraryError> {
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        for id in self.names(shelf)?.into_iter().filter(|n| !n.starts_with('.')) {
            match self.read(shelf, &id) {
                Ok(about) => all.push(about),
                // It has gone since, or is somebody else's.
                Err(_) if !self.root.join(shelf).join(&id).join("disk").exists() => {}
                Err(error) => {
                    tracing::debug!(shelf, id, %error, "what is there is not known");
                    unread.push(id);
                }
            }
        }
        Ok((all, unread))
    }

    fn read(&self, shelf: &str, id: &str) -> Result<About, LibraryError> {
        let path = self.root.join(shelf).join(checked(id)?).join("about.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| LibraryError::Failed(format!("{} cannot be read: {e}", path.display()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(LibraryError::NotFound(format!("{id:?}"))),
            Err(e) => Err(io_error(format!("reading {}", path.display()))(e)),
        }
    }

    /// All volumes of which anything is known.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn volumes(&self) -> Result<Vec<About>, LibraryError> {
        self.all("volumes").map(|(volumes, _)| volumes)
    }

    /// All snapshots of which anything is known.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn snapshots(&self) -> Result<Vec<About>, LibraryError> {
        self.all("snapshots").map(|(snapshots, _)| snapshots)
    }

    /// A volume.
    ///
    /// # Errors
    /// [`LibraryError::NotFound`].
    pub fn volume(&self, id: &str) -> Result<About, LibraryError> {
        self.read("volumes", id)
    }

    /// A snapshot.
    ///
    /// # Errors
    /// [`LibraryError::NotFound`].
    pub fn snapshot(&self, id: &str) -> Result<About, LibraryError> {
        self.read("snapshots", id)
    }

    /// The file of a volume.
    #[must_use]
    pub fn disk(&self, id: &str) -> PathBuf {
        self.root.join("volumes").join(id).join("disk")
    }

    /// What can still be promised, in bytes: what is free, less what volumes may still grow into. What a volume shares
    /// with a copy it may write to as well, and needs other room then.
    ///
    /// # Errors
    /// When the disk or the volumes cannot be looked at.
    pub fn room(&self) -> Result<u64, LibraryError> {
        self.room_beside(&self.promises.all())
    }

    /// The same, with what is being made. That is looked at first, and the disk last: what is done meanwhile counts twice, and
    /// not never.
    fn room_beside(&self, making: &Making) -> Result<u64, LibraryError> {
        let mut promised = 0;
        for ((shelf, id), bytes) in making {
            let shelf = self.root.join(shelf);
            // Under its name it is whole, and a volume is counted below.
            if !shelf.join(id).exists() {
                promised += needed(&shelf.join(format!(".new-{id}")).join("disk"), *bytes, true)?;
            }
        }
        let (volumes, unread) = self.all("volumes")?;
        let copied =
            !unread.is_empty() || volumes.iter().any(|v| v.source.is_some()) || !self.names("snapshots")?.is_empty();
        for volume in volumes {
            promised += needed(&self.disk(&volume.id), volume.size_bytes, copied)?;
        }
        for id in unread {
            // As long as the volume is large; one that has gone meanwhile takes none.
            let disk = self.disk(&id);
            let size_bytes = fs::metadata(&disk).map_or(0, |disk| disk.len());
            promised += needed(&disk, size_bytes, copied)?;
        }
        let free = filesystem::usage(&self.root)?.available_bytes;
        Ok(free.saturating_sub(promised))
    }

    /// Makes a volume, or finds the one that was made by the same call before.
    ///
    /// # Errors
    /// As they are named.
    pub fn create(
        &self,
        id: &str,
        required_bytes: u64,
        limit_bytes: u64,
        source: Option<Source>,
        ephemeral: bool,
        now_unix_ns: i64,
    ) -> Result<About, LibraryError> {
        checked(id).map_err(|_| LibraryError::Invalid(format!("{id:?} cannot be the name of a volume")))?;
        // What was made already may have outlived what it was made from.
        match self.volume(id) {
            Ok(there) => {
                let fits = there.size_bytes >= required_bytes && (limit_bytes == 0 || there.size_bytes <= limit_bytes);
                return match fits && there.source == source {
                    true => Ok(there),
                    false => Err(LibraryError::Differs(format!("volume {id} exists, and is not as it is asked for"))),
                };
            }
            Err(LibraryError::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
        let least = match &source {
            Some(Source::Volume(of)) => self.volume(of)?.size_bytes,
            Some(Source::Snapshot(of)) => self.snapshot(of)?.size_bytes,
            None => GRAIN,
        };
        let size_bytes = required_bytes.max(1).div_ceil(GRAIN).saturating_mul(GRAIN).max(least);
        if limit_bytes > 0 && size_bytes > limit_bytes {
            return Err(LibraryError::Invalid(format!("{size_bytes} bytes are needed, {limit_bytes} are allowed")));
        }
        let _promise = self.promise("volumes", id, size_bytes)?;
        let about = About { id: id.to_owned(), size_bytes, source, ephemeral, made_unix_ns: now_unix_ns };
        self.put("volumes", &about, |file| {
            match &about.source {
                Some(Source::Snapshot(of)) => {
                    copy(&self.root.join("snapshots").join(of).join("disk"), file)?;
                }
                Some(Source::Volume(of)) => self.copy_volume(of, file)?,
                None => {}
            }
            file.set_len(size_bytes).map_err(io_error("sizing a volume"))
        })?;
        Ok(about)
    }

    /// Promises room to what is to be made, until it is there or was given up.
    fn promise(&self, shelf: &'static str, id: &str, bytes: u64) -> Result<Promise<'_>, LibraryError> {
        let all = self.promises.all();
        self.check_room(bytes, &all)?;
        Ok(self.promises.promise(all, (shelf, id.to_owned()), bytes))
    }

    fn check_room(&self, bytes: u64, making: &Making) -> Result<(), LibraryError> {
        let room = self.room_beside(making)?;
        if bytes > room {
            return Err(LibraryError::NoRoom(format!("{bytes} bytes are asked for, and {room} can be promised")));
        }
        Ok(())
    }

    /// Makes a directory with a file that `fill` fills, whole or not at all.
    fn put(
        &self,
        shelf: &str,
        about: &About,
        fill: impl FnOnce(&File) -> Result<(), LibraryError>,
    ) -> Result<(), LibraryError> {
        let shelf = self.root.join(shelf);
        let (new, named) = (shelf.join(format!(".new-{}", about.id)), shelf.join(&about.id));
        let what = || format!("making {}", named.display());
        remove_all(&new).map_err(io_error(what()))?;
        fs::create_dir(&new).map_err(io_error(what()))?;
        let make = || -> Result<(), LibraryError> {
            let disk = File::options().read(true).write(true).create_new(true).open(new.join("disk"));
            let disk = disk.map_err(io_error(what()))?;
            fill(&disk)?;
            disk.sync_all().map_err(io_error(what()))?;
            write_about(&new, about)?;
            sync_dir(&new)?;
            fs::rename(&new, &named).map_err(io_error(what()))
        };
        if let Err(error) = make() {
            // Nobody may ask for it again, and it would take others' room.
            if let Err(left) = remove_all(&new) {
                tracing::warn!(path = %new.display(), error = %left, "what was half made is not removed");
            }
            return Err(error);
        }
        sync_dir(&shelf)
    }

    /// Removes a volume; one that is not there is removed already.
    ///
    /// # Errors
    /// [`LibraryError::InUse`] while a device of it is; its data is untouched then.
    pub fn delete(&self, id: &str) -> Result<(), LibraryError> {
        let Ok(id) = checked(id) else { return Ok(()) };
        if let Some(device) = loops::find(&self.disk(id))? {
            return Err(LibraryError::InUse(format!("volume {id} is the device {device}")));
        }
        self.remove("volumes", id)
    }

    /// Removes a snapshot; one that is not there is removed already.
    ///
    /// # Errors
    /// What the system says.
    pub fn delete_snapshot(&self, id: &str) -> Result<(), LibraryError> {
        checked(id).map_or(Ok(()), |id| self.remove("snapshots", id))
    }

    fn remove(&self, shelf: &str, id: &str) -> Result<(), LibraryError> {
        let shelf = self.root.join(shelf);
        let (named, gone) = (shelf.join(id), shelf.join(format!(".gone-{id}")));
        let what = || format!("removing {}", named.display());
        match fs::rename(&named, &gone) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            r => {
                r.map_err(io_error(what()))?;
                sync_dir(&shelf)?;
            }
        }
        remove_all(&gone).map_err(io_error(what()))
    }

    /// Lets a volume grow. One that is large enough stays as it is; none ever shrinks.
    ///
    /// # Errors
    /// As they are named.
    pub fn grow(&self, id: &str, required_bytes: u64, limit_bytes: u64) -> Result<About, LibraryError> {
        let mut about = self.volume(id)?;
        if about.size_bytes >= required_bytes {
            return Ok(about);
        }
        let size_bytes = required_bytes.div_ceil(GRAIN).saturating_mul(GRAIN);
        if limit_bytes > 0 && size_bytes > limit_bytes {
            return Err(LibraryError::Invalid(format!("{size_bytes} bytes are needed, {limit_bytes} are allowed")));
        }
        let making = self.promises.all();
        self.check_room(size_bytes - about.size_bytes, &making)?;
        let path = self.disk(id);
        let what = || format!("enlarging {}", path.display());
        let disk = File::options().write(true).open(&path).map_err(io_error(what()))?;
        disk.set_len(size_bytes).map_err(io_error(what()))?;
        disk.sync_all().map_err(io_error(what()))?;
        about.size_bytes = size_bytes;
        write_about(&self.root.join("volumes").join(id), &about)?;
        Ok(about)
    }

    /// Takes a snapshot, or finds the one that was taken by the same call before.
    ///
    /// # Errors
    /// As they are named; [`LibraryError::InUse`] where the volume is in use and cannot be frozen.
    pub fn take(&self, id: &str, of: &str, now_unix_ns: i64) -> Result<About, LibraryError> {
        checked(id).map_err(|_| LibraryError::Invalid(format!("{id:?} cannot be the name of a snapshot")))?;
        let source = Some(Source::Volume(of.to_owned()));
        match self.snapshot(id) {
            Ok(there) if there.source == source => return Ok(there),
            Ok(_) => return Err(LibraryError::Differs(format!("snapshot {id} exists, and is of another volume"))),
            Err(LibraryError::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
        let volume = self.volume(of)?;
        let about = About {
            id: id.to_owned(),
            size_bytes: volume.size_bytes,
            source,
            ephemeral: false,
            made_unix_ns: now_unix_ns,
        };
        let path = self.disk(of);
        let what = || format!("looking at {}", path.display());
        let disk = File::open(&path).map_err(io_error(what()))?;
        let has = disk.metadata().map_err(io_error(what()))?.blocks() * 512;
        // What it shares with another copy is promised once more already.
        let shared = shared::bytes(&disk).map_err(io_error(what()))?;
        drop(disk);
        let _promise = self.promise("snapshots", id, has.saturating_sub(shared))?;
        self.put("snapshots", &about, |file| self.copy_volume(of, file))?;
        Ok(about)
    }

    /// Where a volume's file system is mounted, if it is.
    fn mounted_at(&self, id: &str) -> Result<Option<String>, LibraryError> {
        let Some(device) = loops::find(&self.disk(id))? else { return Ok(None) };
        Ok(mounts::of_device(&device).map_err(io_error("reading the mount table"))?.map(|m| m.path))
    }

    /// Copies a volume as it is at one moment.
    fn copy_volume(&self, id: &str, to: &File) -> Result<(), LibraryError> {
        let path = self.disk(id);
        let from = File::open(&path).map_err(io_error(format!("opening {}", path.display())))?;
        let mounted = self.mounted_at(id)?;
        let device = loops::find(&path)?;
        let _thaw = mounted.as_deref().map(Frozen::new).transpose()?;
        if rustix::fs::ioctl_ficlone(to, &from).is_ok() {
            return Ok(());
        }
        let Some(device) = device.filter(|_| mounted.is_none()) else { return copy(&path, to) };
        // Its own mount may be in a container, where it cannot be frozen from here; or it is used as a device.
        let prove_unused = || {
            filesystem::prove_unused_blocking(&device).map_err(|why| {
                LibraryError::InUse(format!(
                    "volume {id} is in use as a device ({why}), and the disk below cannot copy files at a stroke (xfs \
                     and btrfs can): end what uses it first"
                ))
            })
        };
        prove_unused()?;
        copy(&path, to)?;
        // A container that had been given it may have opened it meanwhile, and written where nothing was copied yet.
        prove_unused()
    }
}

/// A file system that stands still as long as this lives.
struct Frozen<'a>(&'a str);

impl<'a> Frozen<'a> {
    fn new(path: &'a str) -> Result<Self, LibraryError> {
        freeze(path, true)?;
        Ok(Self(path))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = freeze(self.0, false) {
            tracing::error!(path = self.0, %error, "the file system stays frozen");
        }
    }
}

fn freeze(path: &str, still: bool) -> Result<(), LibraryError> {
    let verb = if still { "--freeze" } else { "--unfreeze" };
    let output =
        std::process::Command::new("fsfreeze").args([verb, path]).output().map_err(io_error("running fsfreeze"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LibraryError::Failed(format!("fsfreeze {verb} {path}: {said}")))
}

fn write_about(dir: &Path, about: &About) -> Result<(), LibraryError> {
    let (new, named) = (dir.join("about.new"), dir.join("about.json"));
    let what = || format!("writing {}", named.display());
    let bytes = serde_json::to_vec(about).map_err(|e| LibraryError::Failed(format!("{}: {e}", what())))?;
    let mut file = File::create(&new).map_err(io_error(what()))?;
    file.write_all(&bytes).map_err(io_error(what()))?;
    file.sync_all().map_err(io_error(what()))?;
    fs::rename(&new, &named).map_err(io_error(what()))?;
    sync_dir(dir)
}

/// How much room a file may still take of its disk until it is of this size; one that is not there takes all of it.
fn needed(path: &Path, size_bytes: u64, copied: bool) -> Result<u64, LibraryError> {
    let what = || format!("looking at {}", path.display());
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(size_bytes),
        opened => opened.map_err(io_error(what()))?,
    };
    let has = file.metadata().map_err(io_error(what()))?.blocks() * 512;
    let shared = if copied { shared::bytes(&file).map_err(io_error(what()))? } else { 0 };
    Ok(still_needed(size_bytes, has, shared))
}

/// How much room a volume may still take of its disk: all that it has not for itself.
fn still_needed(size_bytes: u64, has_bytes: u64, shared_bytes: u64) -> u64 {
    size_bytes.saturating_sub(has_bytes.saturating_sub(shared_bytes))
}

/// Removes a directory with all in it. One that is not there is gone.
fn remove_all(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        r => r,
    }
}

fn sync_dir(dir: &Path) -> Result<(), LibraryError> {
    let what = || format!("writing {}", dir.display());
    File::open(dir).map_err(io_error(what()))?.sync_all().map_err(io_error(what()))
}

/// Copies a file, at a stroke if the file system can; holes stay holes.
fn copy(from: &Path, to: &File) -> Result<(), LibraryError> {
    let what = || format!("copying {}", from.display());
    let mut source = File::open(from).map_err(io_error(what()))?;
    if rustix::fs::ioctl_ficlone(to, &source).is_ok() {
        return Ok(());
    }
    let end = source.metadata().map_err(io_error(what()))?.len();
    let mut to = to;
    let mut at = 0;
    while at < end {
        let data = match rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(io_error(what())(e.into())),
        };
        let hole =
            rustix::fs::seek(&source, rustix::fs::SeekFrom::Hole(data)).map_err(|e| io_error(what())(e.into()))?;
        source.seek(SeekFrom::Start(data)).map_err(io_error(what()))?;
        to.seek(SeekFrom::Start(data)).map_err(io_error(what()))?;
        io::copy(&mut (&source).take(hole - data), &mut to).map_err(io_error(what()))?;
        at = hole;
    }
    to.set_len(end).map_err(io_error(what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    #[test]
    fn what_is_made_twice_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        let made = library.create("v", 3 * MI + 1, 0, None, false, 7).unwrap();
        assert_eq!((made.size_bytes, fs::metadata(library.disk("v")).unwrap().len()), (4 * MI, 4 * MI));
        assert_eq!(library.create("v", 3 * MI, 0, None, false, 9).unwrap(), made);
        for (required, limit, source) in
            [(5 * MI, 0, None), (MI, 2 * MI, None), (MI, 0, Some(Source::Volume("v".into())))]
        {
            let error = library.create("v", required, limit, source.clone(), false, 9).unwrap_err();
            assert!(matches!(error, LibraryError::Differs(_)), "{required} {limit} {source:?}: {error}");
        }
        library.delete("v").unwrap();
        library.delete("v").unwrap();
        assert_eq!(library.volumes().unwrap(), vec![]);
    }

    /// The answer to who asked first was lost.
    #[test]
    fn what_was_made_is_found_when_its_source_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        library.create("v", 2 * MI, 0, None, false, 1).unwrap();
        let taken = library.take("s", "v", 2).unwrap();
        let of = |source: Source| library.create("c", MI, 0, Some(source), false, 3);
        let made = of(Source::Snapshot("s".into())).unwrap();
        library.delete("v").unwrap();
        assert_eq!(library.take("s", "v", 4).unwrap(), taken);
        library.delete_snapshot("s").unwrap();
        assert_eq!(of(Source::Snapshot("s".into())).unwrap(), made);
        assert!(matches!(of(Source::Volume("v".into())), Err(LibraryError::Differs(_))));
        assert!(matches!(library.take("s", "v", 5), Err(LibraryError::NotFound(_))));
    }

    #[test]
    fn names_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(&dir.path().join("library")).unwrap();
        fs::create_dir(dir.path().join("library/victim")).unwrap();
        for id in ["", ".", "..", "../victim", "a/b", ".new-a", "a\0"] {
            assert!(library.create(id, MI, 0, None, false, 0).is_err(), "{id:?}");
            library.delete(id).unwrap();
            library.delete_snapshot(id).unwrap();
            assert!(library.grow(id, MI, 0).is_err(), "{id:?}");
        }
        assert!(dir.path().join("library/victim").exists());
    }

    #[test]
    fn no_more_is_promised_than_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        let room = library.room().unwrap();
        assert!(matches!(library.create("big", room + GRAIN, 0, None, false, 0), Err(LibraryError::NoRoom(_))));
        // Others write to this disk, too, meanwhile.
        let half = room / 2 / GRAIN * GRAIN;
        library.create("half", half, 0, None, false, 0).unwrap();
        assert!(library.room().unwrap() <= room - half / 2, "a sparse file counts whole");
        assert!(matches!(library.grow("half", room * 2, 0), Err(LibraryError::NoRoom(_))));
        assert!(matches!(library.grow("half", half + 1, half), Err(LibraryError::Invalid(_))));
        assert_eq!(library.grow("half", half + 1, 0).unwrap().size_bytes, half + GRAIN);
        assert_eq!(library.grow("half", MI, 0).unwrap().size_bytes, half + GRAIN, "it does not shrink");
    }

    #[test]
    fn what_takes_long_to_make_holds_up_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        let room = library.room().unwrap();
        let half = room / 2 / GRAIN * GRAIN;
        let copied = About { id: "slow".into(), size_bytes: half, source: None, ephemeral: false, made_unix_ns: 0 };
        let slow = library.promise("volumes", "slow", half).unwrap();
        let seen = |library: &Library| {
            // Others write to this disk, too, meanwhile.
            assert!(library.room().unwrap() <= room - half / 2, "it is promised to nobody else");
            assert!(matches!(library.create("big", room, 0, None, false, 0), Err(LibraryError::NoRoom(_))));
        };
        seen(&library);
        library
            .put("volumes", &copied, |file| {
                library.create("quick", MI, 0, None, false, 0)?;
                library.take("snapshot", "quick", 0)?;
                seen(&library);
                file.set_len(half).map_err(io_error("sizing a volume"))
            })
            .unwrap();
        seen(&library);
        drop(slow);
        seen(&library);
        assert!(library.promises.all().is_empty());
        assert_eq!(library.names("volumes").unwrap(), ["quick", "slow"]);
    }

    #[test]
    fn what_is_shared_is_needed_once_more() {
        for (size, has, shared, expected) in
            [(10, 0, 0, 10), (10, 4, 0, 6), (10, 10, 0, 0), (10, 10, 10, 10), (10, 10, 3, 3), (10, 11, 1, 0)]
        {
            assert_eq!(still_needed(size, has, shared), expected, "{size} {has} {shared}");
        }
    }

    #[test]
    fn copies_are_the_same_and_sparse() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        library.create("v", 64 * MI, 0, None, false, 0).unwrap();
        let mut disk = File::options().write(true).open(library.disk("v")).unwrap();
        disk.seek(SeekFrom::Start(40 * MI)).unwrap();
        disk.write_all(b"here").unwrap();
        let taken = library.take("s", "v", 5).unwrap();
        assert_eq!(library.take("s", "v", 6).unwrap(), taken);
        disk.seek(SeekFrom::Start(40 * MI)).unwrap();
        disk.write_all(b"gone").unwrap();
        library.create("c", 128 * MI, 0, Some(Source::Snapshot("s".into())), false, 0).unwrap();
        let mut copy = File::open(library.disk("c")).unwrap();
        let meta = copy.metadata().unwrap();
        assert_eq!(meta.len(), 128 * MI);
        assert!(meta.blocks() * 512 < MI, "{} blocks", meta.blocks());
        let mut text = [0; 4];
        copy.seek(SeekFrom::Start(40 * MI)).unwrap();
        copy.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"here");
        library.create("v2", 1, 0, Some(Source::Volume("v".into())), false, 0).unwrap();
        assert_eq!(library.volume("v2").unwrap().size_bytes, 64 * MI, "no smaller than what it is made from");
        assert!(matches!(library.take("s", "v2", 0), Err(LibraryError::Differs(_))));
        assert!(matches!(library.take("t", "none", 0), Err(LibraryError::NotFound(_))));
    }

    #[tokio::test]
    async fn what_a_container_has_open_is_not_copied_piece_by_piece() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        library.create("v", 4 * MI, 0, None, false, 0).unwrap();
        let [one, other] = ["one", "other"].map(|name| File::create_new(dir.path().join(name)).unwrap());
        let at_a_stroke = rustix::fs::ioctl_ficlone(&one, &other).is_ok();
        let device = loops::attach(&library.disk("v")).await.unwrap();
        // As QEMU has a disk: neither mounted nor claimed.
        let mut container = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("exec 3<{device}; echo there; read -r _")])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        container.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let taken = library.take("s", "v", 0);
        drop(container.stdin.take());
        container.wait().unwrap();
        match taken {
            Err(LibraryError::InUse(why)) if !at_a_stroke => assert!(why.contains("is open in process"), "{why}"),
            taken => assert!(at_a_stroke && taken.is_ok(), "{taken:?}"),
        }
        library.take("t", "v", 0).unwrap();
        loops::detach(&library.disk("v")).await.unwrap();
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        library.create("v", MI, 0, None, false, 0).unwrap();
        library.take("s", "v", 0).unwrap();
        fs::remove_file(dir.path().join("snapshots/s/disk")).unwrap();
        let of = || Some(Source::Snapshot("s".into()));
        assert!(matches!(library.create("c", MI, 0, of(), false, 0), Err(LibraryError::Failed(_))));
        assert_eq!(library.names("volumes").unwrap(), ["v"]);
        fs::write(dir.path().join("snapshots/s/disk"), "whole").unwrap();
        library.create("c", MI, 0, of(), false, 0).unwrap();
    }

    #[test]
    fn what_cannot_be_read_keeps_nobody_from_the_rest() {
        // The last is of a version that makes volumes from something else, too.
        let newer = r#"{"id":"v","sizeBytes":1048576,"source":{"image":"i"},"madeUnixNs":1}"#;
        for left in ["", "{", "\0\0\0", newer] {
            let dir = tempfile::tempdir().unwrap();
            let library = Library::open(dir.path()).unwrap();
            let room = library.room().unwrap();
            let half = room / 2 / GRAIN * GRAIN;
            library.create("v", half, 0, None, false, 1).unwrap();
            library.create("w", MI, 0, None, false, 1).unwrap();
            library.take("s", "v", 1).unwrap();
            library.take("t", "w", 1).unwrap();
            for about in ["volumes/v/about.json", "snapshots/s/about.json"] {
                fs::write(dir.path().join(about), left).unwrap();
            }
            fs::create_dir(dir.path().join("volumes/lost+found")).unwrap();
            fs::write(dir.path().join("volumes/README"), "not ours").unwrap();
            let library = Library::open(dir.path()).unwrap();
            let ids = |all: Vec<About>| all.into_iter().map(|about| about.id).collect::<Vec<_>>();
            assert_eq!(ids(library.volumes().unwrap()), ["w"]);
            assert_eq!(ids(library.snapshots().unwrap()), ["t"]);
            library.create("x", MI, 0, None, false, 1).unwrap();
            // Others write to this disk, too, meanwhile.
            assert!(library.room().unwrap() <= room - half / 2, "{left:?}: its room is promised to others");
            assert!(matches!(library.create("v", MI, 0, None, false, 1), Err(LibraryError::Failed(_))), "{left:?}");
            assert!(matches!(library.snapshot("s"), Err(LibraryError::Failed(_))), "it is not absent: {left:?}");
            library.delete("v").unwrap();
            assert!(!library.disk("v").exists());
        }
    }

    #[test]
    fn what_was_left_half_done_is_gone_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::open(dir.path()).unwrap();
        library.create("v", MI, 0, None, false, 0).unwrap();
        for name in ["volumes/.new-x", "volumes/.gone-y", "snapshots/.new-z"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("disk"), "half").unwrap();
        }
        let library = Library::open(dir.path()).unwrap();
        assert_eq!(library.names("volumes").unwrap(), ["v"]);
        assert_eq!(library.names("snapshots").unwrap(), Vec::<String>::new());
    }
}
