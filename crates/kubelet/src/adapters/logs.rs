//! Rotation of containers' logs, as upstream's kubelet names and keeps them
//! (kubernetes pkg/kubelet/logs/container_log_manager.go): `0.log`, `0.log.20060102-150405`, older ones `.gz`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::cri::Cri;
use super::io_error;
use crate::effects::OpError;

/// Puts logs aside that are larger than `max_bytes`. One that cannot be does not hold up the others.
///
/// # Errors
/// What went wrong, of all logs.
pub async fn rotate(cri: &Cri, logs: Vec<(String, String)>, max_bytes: u64, max_files: usize) -> Result<(), OpError> {
    let mut problems = Vec::new();
    for (id, path) in logs {
        if let Err(error) = one(cri, &id, PathBuf::from(path), max_bytes, max_files).await {
            problems.push(error.to_string());
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(OpError::Failed(problems.join("; "))) }
}

async fn one(cri: &Cri, id: &str, path: PathBuf, max_bytes: u64, max_files: usize) -> Result<(), OpError> {
    let log = path.clone();
    let aside = super::blocking(move || put_aside(&log, max_bytes, max_files)).await?;
    let aside = match aside {
        Looked::Small => return Ok(()),
        Looked::Missing => None,
        Looked::Aside(file) => Some(file),
    };
    let Err(error) = cri.reopen_log(id).await else { return Ok(()) };
    if let Some(aside) = aside {
        // The runtime still writes to the old file: it gets its name back.
        super::blocking(move || {
            if path.exists() {
                return Ok(());
            }
            fs::rename(&aside, &path).map_err(io_error(format!("naming {} back", aside.display())))
        })
        .await?;
    }
    // A container that is over has no log to reopen.
    if matches!(error, OpError::NotFound(_)) { Ok(()) } else { Err(error) }
}

/// What was found of a log.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    /// It stays as it is.
    Small,
    /// It has no file of its name: who put it aside was killed before the runtime was told, and that writes to another file ever
    /// since, which nobody would put aside any more (upstream: `rotateLog` in `container_log_manager.go`).
    Missing,
    /// It was put aside, under this name.
    Aside(PathBuf),
}

/// Renames a log that has grown too large, after making room among its older files.
fn put_aside(path: &Path, max_bytes: u64, max_files: usize) -> Result<Looked, OpError> {
    let size = match fs::metadata(path) {
        Ok(m) => m.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Looked::Missing),
        Err(e) => return Err(io_error(format!("looking at {}", path.display()))(e)),
    };
    if size < max_bytes {
        return Ok(Looked::Small);
    }
    let older = older(path)?;
    // The open one and the one that is put aside now count, too.
    let keep = max_files.saturating_sub(2);
    let (gone, kept) = older.split_at(older.len().saturating_sub(keep));
    for file in gone {
        fs::remove_file(file).map_err(io_error(format!("removing {}", file.display())))?;
    }
    for file in kept.iter().filter(|f| f.extension().is_none_or(|e| e != "gz")) {
        // On a full disk the log has to be put aside all the same, so that the oldest of it goes one day.
        if let Err(error) = compress(file) {
            tracing::warn!(%error, "a log that was put aside stays as large as it is");
        }
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", stamp()));
    let aside = PathBuf::from(name);
    fs::rename(path, &aside).map_err(io_error(format!("renaming {}", path.display())))?;
    Ok(Looked::Aside(aside))
}

/// Rotated files of a log, the oldest first: their names hold their times. Half-written ones are removed.
fn older(path: &Path) -> Result<Vec<PathBuf>, OpError> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{name}.");
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error(format!("reading {}", dir.display())))?.flatten() {
        if !entry.file_name().to_str().is_some_and(|n| n.starts_with(&prefix)) {
            continue;
        }
        let file = entry.path();
        if file.extension().is_some_and(|e| e == "tmp") {
            fs::remove_file(&file).map_err(io_error(format!("removing {}", file.display())))?;
        } else {
            out.push(file);
        }
    }
    out.sort();
    Ok(out)
}

/// Removes a log with its rotated files, of a container that is forgotten (upstream's `Clean`, in
/// `pkg/kubelet/logs/container_log_manager.go`). What is not there is no failure.
///
/// # Errors
/// What cannot be read or removed.
pub fn remove(path: &Path) -> Result<(), OpError> {
    if !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    for file in older(path)?.iter().map(PathBuf::as_path).chain([path]) {
        super::remove::file(file).map_err(io_error(format!("removing {}", file.display())))?;
    }
    Ok(())
}

fn compress(file: &Path) -> Result<(), OpError> {
    let with = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (temporary, target) = (with(".tmp"), with(".gz"));
    let work = || -> io::Result<()> {
        let mut encoder = GzEncoder::new(File::create(&temporary)?, Compression::default());
        io::copy(&mut File::open(file)?, &mut encoder)?;
        encoder.finish()?.sync_all()?;
        fs::rename(&temporary, &target)?;
        fs::remove_file(file)
    };
    let compressed = work();
    if compressed.is_err()
        && let Err(error) = super::remove::file(&temporary)
    {
        tracing::warn!(file = %temporary.display(), %error, "half of a compressed log is left");
    }
    compressed.map_err(io_error(format!("compressing {}", file.display())))
}

/// The time in upstream's form, to the second.
fn stamp() -> String {
    let text = super::now().rfc3339();
    let digits: String = text.chars().filter(char::is_ascii_digit).take(14).collect();
    let (day, time) = digits.split_at(digits.len().min(8));
    format!("{day}-{time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logs_go_aside_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        assert_eq!(put_aside(&log, 10, 3).unwrap(), Looked::Missing, "none yet");
        fs::write(&log, "small").unwrap();
        assert_eq!(put_aside(&log, 10, 3).unwrap(), Looked::Small);
        for old in ["20200101-000000.gz", "20200102-000000.gz", "20200103-000000", "20200103-000000.tmp"] {
            fs::write(dir.path().join(format!("0.log.{old}")), "old").unwrap();
        }
        fs::write(&log, "larger than ten bytes").unwrap();
        let Looked::Aside(aside) = put_aside(&log, 10, 3).unwrap() else { panic!("it is too large") };
        assert_eq!(fs::read_to_string(&aside).unwrap(), "larger than ten bytes");
        let mut names: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(names[0], "0.log.20200103-000000.gz");
        let stamp = aside.extension().unwrap().to_str().unwrap();
        assert!(stamp.len() == 15 && stamp.as_bytes()[8] == b'-', "{stamp}");
    }

    #[test]
    fn what_cannot_be_compressed_leaves_nothing_and_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (log, old) = (dir.path().join("0.log"), dir.path().join("0.log.20200103-000000"));
        fs::write(&log, "larger than ten bytes").unwrap();
        fs::write(&old, "old").unwrap();
        // In the way of the file that is compressed, as a full disk is.
        let half = dir.path().join("0.log.20200103-000000.gz");
        fs::create_dir(&half).unwrap();
        compress(&old).unwrap_err();
        assert!(old.exists() && !dir.path().join("0.log.20200103-000000.tmp").exists());
        assert!(matches!(put_aside(&log, 10, 5).unwrap(), Looked::Aside(_)));
        assert!(old.exists() && !log.exists());
    }

    #[test]
    fn a_log_goes_with_what_was_put_aside_of_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["0.log", "0.log.20200101-000000.gz", "0.log.20200102-000000", "1.log", "10.log"] {
            fs::write(dir.path().join(name), "text").unwrap();
        }
        remove(&dir.path().join("0.log")).unwrap();
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["1.log", "10.log"]);
        remove(&dir.path().join("0.log")).unwrap();
        remove(&dir.path().join("gone/0.log")).unwrap();
    }
}
