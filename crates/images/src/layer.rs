//! A layer: the files of an image, in the order and with the owners and times that make its bytes reproducible.

use crate::ImageError;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where a file's bytes come from.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// A file of the host, followed through symbolic links.
    Host(PathBuf),
}

/// What stands at a path.
#[derive(Debug, Clone)]
enum Kind {
    Directory,
    File(Content),
    Symlink(String),
}

#[derive(Debug, Clone)]
struct Entry {
    kind: Kind,
    mode: u32,
    owner: u32,
}

/// The files of one layer, by their path in the image.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    entries: BTreeMap<String, Entry>,
}

/// A layer as written: its digest is at once the blob's digest and the diff id, since it is not compressed.
#[derive(Debug, Clone)]
pub struct LayerBlob {
    /// The tar file.
    pub path: PathBuf,
    /// `sha256:…` of the file.
    pub digest: String,
    /// Its length in bytes.
    pub size_bytes: u64,
}

impl Layer {
    /// A layer without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file. `path` is absolute in the image; directories above it are added as needed.
    pub fn file(&mut self, path: &str, content: Content, mode: u32, owner: u32) -> &mut Self {
        self.insert(path, Kind::File(content), mode, owner)
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str, mode: u32, owner: u32) -> &mut Self {
        self.insert(path, Kind::Directory, mode, owner)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.insert(path, Kind::Symlink(target.to_owned()), 0o777, 0)
    }

    /// Adds a host file under the same path.
    pub fn host(&mut self, path: &Path, mode: u32) -> &mut Self {
        self.file(&path.to_string_lossy(), Content::Host(path.to_path_buf()), mode, 0)
    }

    fn insert(&mut self, path: &str, kind: Kind, mode: u32, owner: u32) -> &mut Self {
        let path = path.trim_matches('/').to_owned();
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert(Entry { kind: Kind::Directory, mode: 0o755, owner: 0 });
        }
        self.entries.insert(path, Entry { kind, mode, owner });
        self
    }

    /// The host files that this layer is made from.
    pub fn host_files(&self) -> impl Iterator<Item = &Path> {
        self.entries.values().filter_map(|entry| match &entry.kind {
            Kind::File(Content::Host(path)) => Some(path.as_path()),
            _ => None,
        })
    }

    /// Writes the layer to `out` as a tar file.
    ///
    /// # Errors
    /// A host file that cannot be read, or `out` that cannot be written.
    pub fn write(&self, out: &Path) -> Result<LayerBlob, ImageError> {
        let file = File::create(out).map_err(ImageError::io("cannot create", out))?;
        let mut builder = tar::Builder::new(Hashing::new(BufWriter::with_capacity(1 << 18, file)));
        for (path, entry) in &self.entries {
            let mut header = header(entry.mode, entry.owner);
            match &entry.kind {
                Kind::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_size(0);
                    builder.append_data(&mut header, format!("{path}/"), io::empty())
                }
                Kind::Symlink(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_size(0);
                    builder.append_link(&mut header, path, target)
                }
                Kind::File(Content::Bytes(bytes)) => {
                    header.set_size(bytes.len() as u64);
                    builder.append_data(&mut header, path, bytes.as_slice())
                }
                Kind::File(Content::Host(source)) => {
                    let read = ImageError::io("cannot read", source);
                    let opened = File::open(source).and_then(|file| Ok((file.metadata()?.len(), file)));
                    let (size_bytes, file) = opened.map_err(read)?;
                    header.set_size(size_bytes);
                    builder.append_data(&mut header, path, file)
                }
            }
            .map_err(ImageError::io("cannot write", out))?;
        }
        let hashing = builder.into_inner().map_err(ImageError::io("cannot write", out))?;
        hashing.finish(out)
    }
}

/// A tar header with everything fixed that would differ from one run to the next.
pub(crate) fn header(mode: u32, owner: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(mode);
    header.set_uid(u64::from(owner));
    header.set_gid(u64::from(owner));
    header.set_mtime(0);
    header
}

/// Hashes and counts what passes through.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size_bytes: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), size_bytes: 0 }
    }

    fn finish(mut self, path: &Path) -> Result<LayerBlob, ImageError> {
        self.inner.flush().map_err(ImageError::io("cannot write", path))?;
        Ok(LayerBlob {
            path: path.to_path_buf(),
            digest: format!("sha256:{:x}", self.hash.finalize()),
            size_bytes: self.size_bytes,
        })
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.size_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
