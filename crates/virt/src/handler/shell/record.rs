//! The local record: one small file for each instance, written whole and durably.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::handler::effects::Record;

/// Largest file that is read of a secret, bytes; the API's own bound on a whole Secret.
const MAX_SECRET_FILE: u64 = 1 << 20;

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("guests")
}

fn path(state_dir: &Path, uid: &str) -> io::Result<PathBuf> {
    if uid.is_empty() || uid.contains(['/', '.']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no UID"));
    }
    Ok(directory(state_dir).join(format!("{uid}.json")))
}

/// Whether a name is a UID as the API server makes them.
fn is_uid(name: &str) -> bool {
    name.len() == 36 && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Reads all records. One that cannot be read is of a guest that may run all the same: only its UID is known then.
pub(super) fn load(state_dir: &Path) -> io::Result<Vec<Record>> {
    let directory = directory(state_dir);
    fs::create_dir_all(&directory)?;
    let mut records = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let uid = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let read = fs::read(&path).and_then(|bytes| match serde_json::from_slice::<Record>(&bytes)? {
            record if record.place.uid == uid => Ok(record),
            _ => Err(io::Error::other("it is another instance's")),
        });
        match read {
            Ok(record) => records.push(record),
            Err(error) if is_uid(uid) => {
                tracing::error!(path = %path.display(), %error, "a local record cannot be read: its guest may run");
                records.push(Record::unread(uid));
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "what is no local record is left out");
            }
        }
    }
    records.sort_by(|a: &Record, b| a.place.uid.cmp(&b.place.uid));
    Ok(records)
}

/// Keeps a record.
pub(super) fn save(state_dir: &Path, record: &Record) -> io::Result<()> {
    fs::create_dir_all(directory(state_dir))?;
    replace(&path(state_dir, &record.place.uid)?, &serde_json::to_vec(record)?)
}

/// Drops a record.
pub(super) fn drop(state_dir: &Path, uid: &str) -> io::Result<()> {
    match fs::remove_file(path(state_dir, uid)?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file so that it is there as a whole or as it was, also after a loss of power.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// The files of a secret volume, by name. Not all are text, such as user data that is compressed.
pub(super) fn read_files(directory: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // The kubelet's own names: the links behind which it swaps contents.
        if name.starts_with("..") {
            continue;
        }
        let mut bytes = Vec::new();
        File::open(entry.path())?.take(MAX_SECRET_FILE).read_to_end(&mut bytes)?;
        files.insert(name, bytes);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{drop, load, save};
    use crate::handler::effects::{Place, Record};

    #[test]
    fn records_come_back() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(load(dir.path()).expect("read"), []);
        let place = Place { uid: "u1".to_owned(), pod_uid: "p".to_owned(), compute_id: "c".to_owned() };
        let mut record = Record { name: "demo".to_owned(), place, ..Record::default() };
        save(dir.path(), &record).expect("kept");
        record.started = true;
        save(dir.path(), &record).expect("kept");
        std::fs::write(dir.path().join("guests/odd.json"), "{").expect("written");
        assert_eq!(load(dir.path()).expect("read"), [record.clone()]);
        let lost = "0f0e0d0c-0b0a-4908-8706-050403020100";
        for left in ["", "{", "\0\0\0", "{}", r#"{"started":"surely"}"#] {
            std::fs::write(dir.path().join("guests").join(format!("{lost}.json")), left).expect("written");
            assert_eq!(load(dir.path()).expect("read"), [Record::unread(lost), record.clone()], "{left:?}");
        }
        drop(dir.path(), lost).expect("dropped");
        drop(dir.path(), "u1").expect("dropped");
        drop(dir.path(), "u1").expect("dropped again");
        assert_eq!(load(dir.path()).expect("read"), []);
        assert!(drop(dir.path(), "../x").is_err());
    }
}
