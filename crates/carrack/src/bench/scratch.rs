//! A directory for what is measured, which goes whatever ends the measure: its end, an error, or a signal.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

use crate::output;

/// Makes a directory that this user alone may enter. Its place is everybody's and its name can be guessed: one that is there
/// already is somebody else's, and what he has put into it would be worked with.
///
/// # Errors
/// It is there, or cannot be made.
pub fn make(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.with_context(|| format!("cannot make the directory {} (of an earlier run? remove it)", path.display()))
}

/// How many this process has made.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Below the directory for temporary files, named after this process. Dropped, it is removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// One for measuring `what`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(what: &str) -> anyhow::Result<Self> {
        let (pid, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("carrack-bench-{what}-{pid}-{number}"));
        make(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != ErrorKind::NotFound
        {
            output::say(format_args!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_what_is_in_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new("scratch").expect("made");
        let path = scratch.path().to_owned();
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o700);
        assert!(make(&path).is_err(), "it is somebody's");
        std::fs::create_dir_all(path.join("store")).expect("made");
        drop(scratch);
        assert!(!path.exists());
    }
}
