//! Manifests of static pods, wherever they are: every file of a directory, or one file; and what a URL answers.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::manifest_url::Fetcher;
use super::{blocking, io_error};
use crate::config::NodeConfig;
use crate::effects::OpError;
use crate::spec::manifest::{self, Manifest, Source};

/// Most manifests, and largest one in bytes.
const MAX_FILES: usize = 512;
const MAX_BYTES: u64 = 1 << 20;

/// Where those of a node are.
pub struct Manifests {
    path: Option<PathBuf>,
    url: Option<Fetcher>,
    node: String,
}

impl Manifests {
    /// Those of this node.
    ///
    /// # Errors
    /// Its URL cannot be asked at.
    pub fn of(config: &NodeConfig) -> Result<Self, OpError> {
        let url = config.static_pod_url.as_ref().map(Fetcher::new).transpose()?;
        Ok(Self { path: config.static_pod_path.as_ref().map(PathBuf::from), url, node: config.node_name.clone() })
    }

    /// Reads those of one place, completely or not at all.
    ///
    /// # Errors
    /// What the disk says, or who is asked.
    pub async fn read(&self, source: Source) -> Result<Vec<Manifest>, OpError> {
        match (source, &self.path, &self.url) {
            (Source::File, Some(path), _) => {
                let (path, node) = (path.clone(), self.node.clone());
                blocking(move || read(&path, &node)).await
            }
            (Source::Http, _, Some(url)) => url.read(&self.node).await,
            (Source::File | Source::Http, ..) => Ok(Vec::new()),
        }
    }
}

/// Reads all files. One that is wrong says so; a directory that cannot be read, or a file that cannot be looked at, fails the
/// whole, since their pods would seem to be gone. A directory that is not there holds none.
///
/// # Errors
/// What the disk says.
fn read(path: &Path, node: &str) -> Result<Vec<Manifest>, OpError> {
    let mut files = Vec::new();
    match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io_error(format!("looking at {}", path.display()))(e)),
        Ok(m) if m.is_dir() => {
            for entry in fs::read_dir(path).map_err(io_error(format!("reading {}", path.display())))? {
                let entry = entry.map_err(io_error(format!("reading {}", path.display())))?;
                // Editors' and tools' files are no manifests.
                if !entry.file_name().to_string_lossy().starts_with('.') && is_file(&entry.path())? {
                    files.push(entry.path());
                }
            }
        }
        Ok(_) => files.push(path.to_owned()),
    }
    files.sort();
    if files.len() > MAX_FILES {
        tracing::warn!(dir = %path.display(), count = files.len(), "only {MAX_FILES} manifests are read");
        files.truncate(MAX_FILES);
    }
    files.into_iter().map(|file| one(&file, node)).collect()
}

/// Whether there is a file behind a name, which may be a link. Only what surely is none, or not there, is left out.
fn is_file(path: &Path) -> Result<bool, OpError> {
    match fs::metadata(path) {
        Ok(m) => Ok(m.is_file()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io_error(format!("looking at {}", path.display()))(e)),
    }
}

fn one(file: &PathBuf, node: &str) -> Result<Manifest, OpError> {
    let path = file.display().to_string();
    let mut bytes = Vec::new();
    let read = fs::File::open(file).and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(io_error(format!("reading {path}")))?;
    let pod = if bytes.len() as u64 > MAX_BYTES {
        Err(format!("it is larger than {MAX_BYTES} bytes"))
    } else {
        manifest::read(&bytes, &path, node)
    };
    Ok(Manifest { path, pod: pod.map(Box::new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad_ones() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none"), "n").unwrap(), []);
        let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}]}\n";
        fs::write(dir.path().join("a.yaml"), good).unwrap();
        fs::write(dir.path().join("b.yaml"), "nonsense").unwrap();
        fs::write(dir.path().join(".c.swp"), good).unwrap();
        fs::write(dir.path().join("d.yaml"), vec![b' '; 2 << 20]).unwrap();
        let found = read(dir.path(), "n").unwrap();
        let said: Vec<String> = found
            .iter()
            .map(|m| match &m.pod {
                Ok(p) => p.metadata.name.clone().unwrap(),
                Err(e) => e.clone(),
            })
            .collect();
        assert_eq!((said.len(), said[0].as_str(), said[2].as_str()), (3, "a-n", "it is larger than 1048576 bytes"));
        assert!(said[1].contains("version/kind"), "{said:?}");
        assert_eq!(read(&dir.path().join("a.yaml"), "n").unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_be_looked_at_is_not_gone() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        symlink(dir.path().join("none"), dir.path().join("dangling.yaml")).unwrap();
        assert_eq!(read(dir.path(), "n").unwrap(), []);
        // A link to itself leads nowhere, and is there.
        symlink(dir.path().join("loop.yaml"), dir.path().join("loop.yaml")).unwrap();
        assert!(read(dir.path(), "n").unwrap_err().to_string().contains("loop.yaml"));
    }
}
