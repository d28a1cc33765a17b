//! Reading the files of a pod's volumes that its containers get variables from.
//!
//! A container has written them: what it put there may be a link that leads out of the volume, a pipe, a device that does
//! something as soon as it is opened, or endless.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use super::{io_error, volumes};
use crate::effects::OpError;
use crate::spec::env_file::{EnvFile, EnvFiles, EnvText};

/// Largest files of a container, all together, in bytes: they are held at once, and a pod may name very many.
const MAX_BYTES: u64 = 1 << 20;

/// Reads files, each in the directory of its volume.
///
/// # Errors
/// What the disk says; [`OpError::Failed`] for what is no file of the volume, or too large beside those before it.
pub fn read(files: &BTreeMap<EnvFile, String>) -> Result<EnvFiles, OpError> {
    let mut left = MAX_BYTES;
    let mut all = EnvFiles::new();
    for (file, dir) in files {
        let text = one(dir, &file.1, left)?;
        left = left.saturating_sub(text.as_ref().map_or(0, |text| text.0.len() as u64));
        all.insert(file.clone(), text);
    }
    Ok(all)
}

/// One of them, of no more than so many bytes.
fn one(dir: &str, path: &str, most: u64) -> Result<Option<EnvText>, OpError> {
    let failed = |why: &dyn std::fmt::Display| OpError::Failed(format!("file {path} with variables: {why}"));
    let root = volumes::open_dir(dir).map_err(|e| failed(&e))?;
    let found = match volumes::open_beneath(&root, path) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(failed(&e)),
    };
    if !found.metadata().map_err(io_error(format!("looking at {path}")))?.is_file() {
        return Err(failed(&"it is no file"));
    }
    let file =
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).map_err(io_error(format!("opening {path}")))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(io_error(format!("reading {path}")))?;
    if bytes.len() as u64 > most {
        return Err(failed(&format!("all of them together are larger than {MAX_BYTES} bytes")));
    }
    Ok(Some(EnvText(String::from_utf8_lossy(&bytes).into_owned())))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_read_is_a_file_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("d")).unwrap();
        fs::write(dir.path().join("outside"), "K='secret'").unwrap();
        fs::write(volume.join("d/a"), "K='1'").unwrap();
        fs::write(volume.join("large"), vec![b' '; (1 << 20) + 1]).unwrap();
        symlink("d/a", volume.join("inside")).unwrap();
        symlink("../outside", volume.join("out")).unwrap();
        symlink(dir.path().join("outside"), volume.join("absolute")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        // To open one fails, and is not tried.
        let _socket = std::os::unix::net::UnixListener::bind(volume.join("socket")).unwrap();
        let volume = volume.to_str().unwrap();
        for (path, expected) in [
            ("d/a", Ok(Some("K='1'"))),
            ("inside", Ok(Some("K='1'"))),
            ("none", Ok(None)),
            ("dangling", Ok(None)),
            ("out", Err("file out with variables")),
            ("absolute", Err("file absolute with variables")),
            ("up/outside", Err("file up/outside with variables")),
            ("../outside", Err("file ../outside with variables")),
            ("d", Err("it is no file")),
            ("socket", Err("it is no file")),
            ("large", Err("larger than")),
        ] {
            let file = ("v".to_owned(), path.to_owned());
            let found = read(&BTreeMap::from([(file.clone(), volume.to_owned())]));
            let found = found.map(|mut files| files.remove(&file).flatten());
            match (found, expected) {
                (Ok(found), Ok(text)) => assert_eq!(found.map(|t| t.0).as_deref(), text, "{path}"),
                (Err(e), Err(part)) => assert!(e.to_string().contains(part), "{path}: {e}"),
                (found, _) => panic!("{path}: {found:?}"),
            }
        }
    }

    #[test]
    fn all_files_together_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().to_str().unwrap();
        for (count, fits) in [(4, true), (5, false)] {
            let names = (0..count).map(|n: u32| n.to_string());
            let files = names.map(|name| {
                fs::write(dir.path().join(&name), vec![b' '; 1 << 18]).unwrap();
                (("v".to_owned(), name), volume.to_owned())
            });
            let found = read(&files.collect());
            assert_eq!(found.is_ok(), fits, "{count}: {found:?}");
        }
    }
}
