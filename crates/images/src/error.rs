//! What can go wrong while an image is made or imported.

use std::path::{Path, PathBuf};

/// Why an image could not be made or imported.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file of the host is missing; the Debian package that has it is named.
    #[error("{what} is missing: install the Debian package {package}")]
    MissingPackage {
        /// What is missing, in words or as a path.
        what: String,
        /// The package, as `apt-get install` takes it.
        package: &'static str,
    },
    /// A file could not be read or written.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried, such as `cannot read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A host program failed.
    #[error("{program} failed: {detail}")]
    Program {
        /// The program.
        program: String,
        /// Its exit status and what it wrote to standard error, shortened.
        detail: String,
    },
    /// A host file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// The guest's disk image could not be laid out.
    #[error("the guest's disk cannot be laid out: {0}")]
    Disk(String),
}

impl ImageError {
    /// An [`ImageError::Io`] as a closure for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

/// The source file at `path`, or an error that names the package which has it.
pub(crate) fn require(path: &str, package: &'static str) -> Result<PathBuf, ImageError> {
    if Path::new(path).exists() {
        Ok(PathBuf::from(path))
    } else {
        Err(ImageError::MissingPackage { what: path.to_owned(), package })
    }
}
