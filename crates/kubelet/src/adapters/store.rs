//! The local record and the checkpoints of upstream's formats: small files, replaced whole and flushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::io_error;
use crate::effects::OpError;

/// A checkpoint that upstream's kubelet has, too.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    /// The device manager's.
    Devices,
    /// The CPU manager's.
    Cpus,
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
            Self::Allocated => "allocated_pods_state",
            Self::Actuated => "actuated_pods_state",
        }
    }
}

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
    temporary.push(".new");
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
        Ok(Self { records, root: root.to_owned() })
    }

    fn path(&self, name: &str) -> Result<PathBuf, OpError> {
        // UIDs come from the API: they name files only if they are plain.
        let plain =
            !name.is_empty() && name.len() < 200 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if plain {
            Ok(self.records.join(format!("{name}.json")))
        } else {
            Err(OpError::Failed(format!("{name:?} cannot name a record")))
        }
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
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(OpError::Failed(format!("removing {}: {e}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// All documents. One that cannot be read fails the whole: it may be of a pod that runs.
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
            let Some(name) = path.file_stem().and_then(|n| n.to_str()) else { continue };
            let bytes = fs::read(&path).map_err(io_error(format!("reading {}", path.display())))?;
            out.insert(name.to_owned(), bytes);
        }
        Ok(out)
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
        fs::write(dir.path().join("records/pod-3.json.new"), b"half").unwrap();
        assert_eq!(store.load().unwrap(), BTreeMap::from([("pod-1".to_owned(), b"b".to_vec())]));
        assert!(store.save("../escape", b"").is_err());
        for (which, body) in
            [(Kept::Devices, b"x"), (Kept::Cpus, b"y"), (Kept::Allocated, b"z"), (Kept::Actuated, b"a")]
        {
            assert_eq!(store.load_checkpoint(which).unwrap(), None);
            store.save_checkpoint(which, body).unwrap();
            assert_eq!(store.load_checkpoint(which).unwrap().as_deref(), Some(&body[..]));
        }
    }
}
