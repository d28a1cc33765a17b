//! The local record and the checkpoints of upstream's formats: small files, replaced whole and flushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::io_error;
use crate::effects::OpError;
use crate::pulled::{PULLED_PREFIX, PULLING_PREFIX};

/// A checkpoint that upstream's kubelet has, too.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    /// The device manager's.
    Devices,
    /// The CPU manager's.
    Cpus,
    /// The memory manager's.
    Memory,
    /// What is allocated to pods.
    Allocated,
    /// What of it was brought about.
    Actuated,
}

impl Kept {
    /// Where upstream has it, below the kubelet's directory.
    fn place(self) -> &'static str {
        match self {
            Self::Devices => "device-plugins/kubelet_internal_checkpoint",
            Self::Cpus => "cpu_manager_state",
            Self::Memory => "memory_manager_state",
            Self::Allocated => "allocated_pods_state",
            Self::Actuated => "actuated_pods_state",
        }
    }
}

/// Documents of pulls, by the prefix of their names: where upstream has its files, below the kubelet's directory.
const OF_PULLS: [(&str, &str); 2] =
    [(PULLED_PREFIX, "image_manager/pulled"), (PULLING_PREFIX, "image_manager/pulling")];
/// How the names of these files begin.
const OF_A_PULL: &str = "sha256-";
/// How the name of a file ends that is being written. Upstream's kubelet passes it over, too.
const UNFINISHED: &str = ".tmp";

/// Where documents are kept.
#[derive(Clone, Debug)]
pub struct Store {
    records: PathBuf,
    root: PathBuf,
}

/// Writes a file so that after a crash it is the old one or the new one, and after success the new.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(UNFINISHED);
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

impl Store {
    /// A store under the kubelet's directory.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn new(root: &Path) -> Result<Self, OpError> {
        let (records, plugins) = (root.join("records"), root.join("device-plugins"));
        for dir in [&records, &plugins] {
            fs::create_dir_all(dir).map_err(io_error(format!("creating {}", dir.display())))?;
        }
        // Who pulled what with whose secret is nobody's affair.
        for (_, place) in OF_PULLS {
            let dir = root.join(place);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(io_error(format!("creating {}", dir.display())))?;
        }
        Ok(Self { records, root: root.to_owned() })
    }

    fn path(&self, name: &str) -> Result<PathBuf, OpError> {
        // UIDs come from the API: they name files only if they are plain.
        let plain =
            !name.is_empty() && name.len() < 200 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !plain {
            return Err(OpError::Failed(format!("{name:?} cannot name a record")));
        }
        for (prefix, place) in OF_PULLS {
            if let Some(file) = name.strip_prefix(prefix) {
                return Ok(self.root.join(place).join(file));
            }
        }
        Ok(self.records.join(format!("{name}.json")))
    }

    /// Keeps a document.
    ///
    /// # Errors
    /// What the disk says.
    pub fn save(&self, name: &str, body: &[u8]) -> Result<(), OpError> {
        let path = self.path(name)?;
        replace(&path, body).map_err(io_error(format!("writing {}", path.display())))
    }

    /// Drops a document.
    ///
    /// # Errors
    /// What the disk says.
    pub fn drop_record(&self, name: &str) -> Result<(), OpError> {
        let path = self.path(name)?;
        super::remove::file(&path).map_err(io_error(format!("removing {}", path.display())))
    }

    /// All documents. One that cannot be read fails the whole: it may be of a pod that runs. What has a name that none can have is
    /// somebody else's.
    ///
    /// # Errors
    /// What the disk says.
    pub fn load(&self) -> Result<BTreeMap<String, Vec<u8>>, OpError> {
        let what = || format!("reading {}", self.records.display());
        let mut out = BTreeMap::new();
        for entry in fs::read_dir(&self.records).map_err(io_error(what()))? {
            let path = entry.map_err(io_error(what()))?.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let name = path.file_stem().and_then(|n| n.to_str());
            let Some(name) = name.filter(|name| self.path(name).is_ok()) else { continue };
            let bytes = fs::read(&path).map_err(io_error(format!("reading {}", path.display())))?;
            out.insert(name.to_owned(), bytes);
        }
        for (prefix, place) in OF_PULLS {
            self.load_pulls(prefix, place, &mut out)?;
        }
        Ok(out)
    }

    /// Documents of pulls. One that cannot be read says nothing, and is there.
    fn load_pulls(&self, prefix: &str, place: &str, out: &mut BTreeMap<String, Vec<u8>>) -> Result<(), OpError> {
        let dir = self.root.join(place);
        let what = || format!("reading {}", dir.display());
        for entry in fs::read_dir(&dir).map_err(io_error(what()))? {
            let entry = entry.map_err(io_error(what()))?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|n| n.starts_with(OF_A_PULL) && !n.ends_with(UNFINISHED)) else {
                continue;
            };
            let bytes = fs::read(entry.path()).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %entry.path().display(), "a document about a pull cannot be read");
                Vec::new()
            });
            out.insert(format!("{prefix}{name}"), bytes);
        }
        Ok(())
    }

    /// Keeps a checkpoint.
    ///
    /// # Errors
    /// What the disk says.
    pub fn save_checkpoint(&self, which: Kept, bytes: &[u8]) -> Result<(), OpError> {
        let path = self.root.join(which.place());
        replace(&path, bytes).map_err(io_error(format!("writing {}", path.display())))
    }

    /// A checkpoint, if there is one.
    ///
    /// # Errors
    /// What the disk says.
    pub fn load_checkpoint(&self, which: Kept) -> Result<Option<Vec<u8>>, OpError> {
        let path = self.root.join(which.place());
        match fs::read(&path) {
            Ok(b) => Ok(Some(b)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error(format!("reading {}", path.display()))(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_kept_replaced_and_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path()).unwrap();
        store.save("pod-1", b"a").unwrap();
        store.save("pod-1", b"b").unwrap();
        store.save("pod-2", b"c").unwrap();
        store.drop_record("pod-2").unwrap();
        store.drop_record("pod-2").unwrap();
        // What a crash leaves half-written is not a document.
        fs::write(dir.path().join("records/pod-3.json.tmp"), b"half").unwrap();
        fs::write(dir.path().join("records/pod-1 (copy).json"), b"a").unwrap();
        assert_eq!(store.load().unwrap(), BTreeMap::from([("pod-1".to_owned(), b"b".to_vec())]));
        assert!(store.save("../escape", b"").is_err());
        for (which, body) in [
            (Kept::Devices, b"x"),
            (Kept::Cpus, b"y"),
            (Kept::Memory, b"m"),
            (Kept::Allocated, b"z"),
            (Kept::Actuated, b"a"),
        ] {
            assert_eq!(store.load_checkpoint(which).unwrap(), None);
            store.save_checkpoint(which, body).unwrap();
            assert_eq!(store.load_checkpoint(which).unwrap().as_deref(), Some(&body[..]));
        }
    }

    #[test]
    fn documents_of_pulls_are_where_upstream_has_them() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path()).unwrap();
        store.save("pulled-sha256-00", b"a").unwrap();
        store.save("pulling-sha256-11", b"b").unwrap();
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("image_manager/pulled"), mode("image_manager/pulled/sha256-00")), (0o700, 0o600));
        assert_eq!((mode("image_manager/pulling"), mode("image_manager/pulling/sha256-11")), (0o700, 0o600));
        fs::write(dir.path().join("image_manager/pulled/sha256-22.tmp"), b"half").unwrap();
        fs::create_dir(dir.path().join("image_manager/pulled/sha256-33")).unwrap();
        let kept = [("pulled-sha256-00", &b"a"[..]), ("pulled-sha256-33", &b""[..]), ("pulling-sha256-11", &b"b"[..])];
        let kept = kept.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
        assert_eq!(store.load().unwrap(), BTreeMap::from(kept));
        store.drop_record("pulling-sha256-11").unwrap();
        assert_eq!(store.load().unwrap().len(), 2);
    }
}
