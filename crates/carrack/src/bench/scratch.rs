//! A directory for what is measured, which goes whatever ends the measure: its end, an error, or a signal.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::output;

/// Below the directory for temporary files, named after this process. Dropped, it is removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// One for measuring `what`. It is made by whoever writes to it.
    #[must_use]
    pub fn new(what: &str) -> Self {
        Self(std::env::temp_dir().join(format!("carrack-bench-{what}-{}", std::process::id())))
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
        let scratch = Scratch::new("scratch");
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("store")).expect("made");
        drop(scratch);
        assert!(!path.exists());
        drop(Scratch::new("scratch"));
    }
}
