//! Remembers what an image was made from, so that unchanged inputs cost a few `stat` calls and no build.
//!
//! An input is known by its path, length and modification time, as `make` knows it. Everything that is not
//! a host file (recipes, embedded scripts, the entrypoint) is in the recipe's key.

use crate::{Built, ImageError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Raised when the way images are written changes.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    size_bytes: u64,
    mtime_ns: i128,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stamp {
    key: String,
    reference: String,
    digest: String,
    /// How long the image's file is: after a power cut less of it may be on the disk. Older stamps do not say.
    #[serde(default)]
    tar_bytes: Option<u64>,
    inputs: Vec<Input>,
}

/// The files of one image in the cache directory.
#[derive(Debug)]
pub struct Recipe<'a> {
    dir: &'a Path,
    name: &'a str,
    key: String,
}

impl<'a> Recipe<'a> {
    /// The image `name` in the directory `dir`, made by a recipe that `parts` (beside the host files) describe.
    pub fn new(dir: &'a Path, name: &'a str, parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update(FORMAT.to_le_bytes());
        hash.update(crate::reference(name));
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self { dir, name, key: format!("{:x}", hash.finalize()) }
    }

    /// Where the image's tar file lies.
    pub fn tar(&self) -> PathBuf {
        self.dir.join(format!("{}.tar", self.name))
    }

    /// Where a work file of the build lies.
    pub fn scratch(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}.{suffix}", self.name))
    }

    fn stamp(&self) -> PathBuf {
        self.dir.join(format!("{}.json", self.name))
    }

    /// The image from an earlier run, if it lies there and nothing it was made from has changed.
    pub fn unchanged(&self) -> Option<Built> {
        let stamp: Stamp = serde_json::from_slice(&std::fs::read(self.stamp()).ok()?).ok()?;
        let same = stamp.key == self.key
            && std::fs::metadata(self.tar())
                .is_ok_and(|tar| tar.is_file() && stamp.tar_bytes.is_none_or(|bytes| bytes == tar.len()))
            && stamp.inputs.iter().all(|input| look(&input.path).is_ok_and(|now| now == *input));
        same.then(|| Built { reference: stamp.reference, tar: self.tar(), digest: stamp.digest, fresh: false })
    }

    /// Makes the directory and forgets what an earlier run left, before a build starts.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn begin(&self) -> Result<(), ImageError> {
        std::fs::create_dir_all(self.dir).map_err(ImageError::io("cannot create", self.dir))?;
        match std::fs::remove_file(self.stamp()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ImageError::io("cannot remove", &self.stamp())(error))
            }
            _ => Ok(()),
        }
    }

    /// Remembers `built` with the inputs it came from, as they were seen before the build.
    ///
    /// # Errors
    /// The image cannot be looked at, or the stamp cannot be written.
    pub fn finish(&self, built: Built, inputs: Inputs) -> Result<Built, ImageError> {
        let tar = std::fs::metadata(&built.tar).map_err(ImageError::io("cannot look at", &built.tar))?;
        let stamp = Stamp {
            key: self.key.clone(),
            reference: built.reference.clone(),
            digest: built.digest.clone(),
            tar_bytes: Some(tar.len()),
            inputs: inputs.0,
        };
        let path = self.stamp();
        let write = |source| ImageError::io("cannot write", &path)(source);
        let text = serde_json::to_vec_pretty(&stamp).map_err(|error| write(error.into()))?;
        std::fs::write(&path, text).map_err(write)?;
        Ok(built)
    }
}

/// Host files as they were before a build read them.
#[derive(Debug, Default)]
pub struct Inputs(Vec<Input>);

impl Inputs {
    /// Looks at each of `paths`.
    ///
    /// # Errors
    /// A file that cannot be looked at.
    pub fn of<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<Self, ImageError> {
        paths.map(look).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

fn look(path: &Path) -> Result<Input, ImageError> {
    let meta = std::fs::metadata(path).map_err(ImageError::io("cannot look at", path))?;
    Ok(Input {
        path: path.to_path_buf(),
        size_bytes: meta.len(),
        mtime_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_a_power_cut_cut_short_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let recipe = Recipe::new(dir.path(), "x", &[b"1".as_slice()]);
        for (left, is_whole) in [("whole", true), ("", false), ("who", false)] {
            recipe.begin().expect("begun");
            std::fs::write(recipe.tar(), "whole").expect("written");
            let (reference, digest) = ("r".to_owned(), "sha256:00".to_owned());
            let built = Built { reference, tar: recipe.tar(), digest, fresh: true };
            recipe.finish(built, Inputs::default()).expect("finished");
            std::fs::write(recipe.tar(), left).expect("written");
            assert_eq!(recipe.unchanged().is_some(), is_whole, "{left:?}");
        }
        std::fs::remove_file(recipe.tar()).expect("removed");
        assert!(recipe.unchanged().is_none());
    }
}
