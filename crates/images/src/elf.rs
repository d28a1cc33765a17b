//! The shared libraries that an executable needs, as its own loader finds them.
//!
//! The loader named in the executable is asked (`ld.so --list`), so that run paths, hardware capabilities
//! and the host's loader cache are judged by the one that will judge them later.

use crate::ImageError;
use crate::layer::{Content, Layer};
use crate::program::apart;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const PT_INTERP: u32 = 3;

/// The loader that the ELF64 executable asks for; none for a static one.
///
/// # Errors
/// The file cannot be read or is no little-endian ELF64 file.
pub fn interpreter(path: &Path) -> Result<Option<PathBuf>, ImageError> {
    let unusable = |reason: &str| ImageError::Unusable { path: path.to_path_buf(), reason: reason.to_owned() };
    let file = File::open(path).map_err(ImageError::io("cannot read", path))?;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).map_err(|_| unusable("too short for an ELF file"))?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return Err(unusable("not a 64-bit little-endian ELF file"));
    }
    let table = u64_at(&head, 32);
    let (entry_bytes, count) = (u16_at(&head, 54), u16_at(&head, 56));
    for index in 0..u64::from(count) {
        let mut entry = [0; 56];
        let at = table.saturating_add(index * u64::from(entry_bytes));
        file.read_exact_at(&mut entry, at).map_err(|_| unusable("its program headers are cut off"))?;
        if u32_at(&entry, 0) == PT_INTERP {
            let size = u64_at(&entry, 32).min(4096) as usize;
            let mut name = vec![0; size];
            file.read_exact_at(&mut name, u64_at(&entry, 8))
                .map_err(|_| unusable("its interpreter name is cut off"))?;
            let text = String::from_utf8_lossy(&name);
            return Ok(Some(PathBuf::from(text.trim_end_matches('\0'))));
        }
    }
    Ok(None)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The loader and the libraries of `executable`: path in an image → host file.
///
/// A library keeps the name that it is asked for by; the directories above it are the real ones, so that a
/// merged `/usr` looks in the image as it does on the host.
///
/// # Errors
/// The file cannot be read, the loader cannot be run, or a library is not found.
pub fn closure(executable: &Path) -> Result<BTreeMap<PathBuf, PathBuf>, ImageError> {
    let Some(loader) = interpreter(executable)? else { return Ok(BTreeMap::new()) };
    listed(&loader, executable)
}

/// [`closure`] of a shared object that names no loader itself, such as a plug-in.
///
/// # Errors
/// As for [`closure`].
pub fn listed(loader: &Path, object: &Path) -> Result<BTreeMap<PathBuf, PathBuf>, ImageError> {
    let output = apart(loader)
        .arg("--list")
        .arg(object)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(ImageError::io("cannot run", loader))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(ImageError::Program {
            program: format!("{} --list {}", loader.display(), object.display()),
            detail: shorten(&output.stderr),
        });
    }
    let mut files = BTreeMap::new();
    files.insert(real_directory(loader)?, loader.to_path_buf());
    for line in text.lines() {
        match parse_line(line) {
            Line::Library(path) => {
                files.insert(real_directory(&path)?, path);
            }
            Line::Missing(name) => {
                return Err(ImageError::Unusable {
                    path: object.to_path_buf(),
                    reason: format!("its library {name} is not found"),
                });
            }
            Line::Other => {}
        }
    }
    Ok(files)
}

#[derive(Debug, PartialEq)]
enum Line {
    Library(PathBuf),
    Missing(String),
    Other,
}

/// One line of `ld.so --list`: `name => /path (0x…)`, `/path (0x…)`, or something without a file.
fn parse_line(line: &str) -> Line {
    let line = line.trim();
    let (name, target) = match line.split_once(" => ") {
        Some((name, target)) => (name, target),
        None => (line, line),
    };
    if target.starts_with("not found") {
        return Line::Missing(name.to_owned());
    }
    match target.split_once(" (0x") {
        Some((path, _)) if path.starts_with('/') => Line::Library(PathBuf::from(path)),
        _ => Line::Other,
    }
}

fn real_directory(path: &Path) -> Result<PathBuf, ImageError> {
    let unusable = || ImageError::Unusable { path: path.to_path_buf(), reason: "it has no directory".to_owned() };
    let parent = path.parent().ok_or_else(unusable)?;
    let name = path.file_name().ok_or_else(unusable)?;
    let parent = parent.canonicalize().map_err(ImageError::io("cannot resolve", parent))?;
    Ok(parent.join(name))
}

/// Puts `executable`, under its own path, and everything that it loads into `layer`.
///
/// # Errors
/// As for [`closure`].
pub fn add(layer: &mut Layer, executable: &Path) -> Result<(), ImageError> {
    let libraries = closure(executable)?;
    layer.host(&real_directory(executable)?, 0o755);
    add_files(layer, libraries);
    Ok(())
}

/// Puts a closure into `layer`.
pub fn add_files(layer: &mut Layer, files: BTreeMap<PathBuf, PathBuf>) {
    for (path, source) in files {
        layer.file(&path.to_string_lossy(), Content::Host(source), 0o755, 0);
    }
}

/// Adds the links of a merged `/usr` (`/lib` → `usr/lib` …) that the host has.
pub fn add_usr_links(layer: &mut Layer) {
    for name in ["bin", "lib", "lib32", "lib64", "sbin"] {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            layer.directory(&target.to_string_lossy(), 0o755, 0);
            layer.symlink(name, &target.to_string_lossy());
        }
    }
}

/// The first lines of a program's output, short enough for an error.
pub(crate) fn shorten(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    match text.char_indices().nth(400) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_lines() {
        let library = |path: &str| Line::Library(PathBuf::from(path));
        let cases = [
            ("\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)", library("/lib/x86_64-linux-gnu/libz.so.1")),
            ("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", library("/lib64/ld-linux-x86-64.so.2")),
            ("\tlinux-vdso.so.1 (0x00007f)", Line::Other),
            ("\tlibx.so => not found", Line::Missing("libx.so".to_owned())),
            ("\tstatically linked", Line::Other),
            ("", Line::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(parse_line(line), expected, "{line:?}");
        }
    }

    #[test]
    fn this_test_needs_a_libc() {
        let own = std::env::current_exe().expect("a test has an executable");
        let files = closure(&own).expect("its libraries are found");
        assert!(files.keys().any(|path| path.to_string_lossy().contains("libc.so")), "{files:?}");
    }

    #[test]
    fn a_text_is_no_executable() {
        let dir = tempfile::tempdir().expect("a directory");
        for content in [&b"#!/bin/sh\n"[..], &[0x7f; 200]] {
            let path = dir.path().join("x");
            std::fs::write(&path, content).expect("written");
            assert!(matches!(interpreter(&path), Err(ImageError::Unusable { .. })));
        }
    }
}
