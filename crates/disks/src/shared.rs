//! What files share with others: xfs and btrfs copy at a stroke, and both files have the same blocks until one is
//! written to.
//!
//! The kernel counts such blocks for each of the files (`st_blocks`), though whoever writes to them needs new ones.
//! Which they are is told by its map of a file's extents (Documentation/filesystems/fiemap.rst).

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `FS_IOC_FIEMAP`: its size is that of the head, which has four words of 64 bits.
const FIEMAP: Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
/// The file has no extent behind this one.
const LAST: u32 = 0x1;
/// Other files have it, too.
const SHARED: u32 = 0x2000;
/// How many extents are read at once.
const AT_ONCE: usize = 256;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for what is found.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; AT_ONCE],
}

/// How much of a file lies in blocks that other files have, too, in bytes. Nothing where the file system knows no such
/// blocks.
///
/// # Errors
/// What the kernel says.
pub fn bytes(file: &File) -> io::Result<u64> {
    let (mut shared, mut start) = (0_u64, 0);
    loop {
        let extents = match extents(file, start) {
            Ok(extents) => extents,
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => return Ok(0),
            Err(errno) => return Err(errno.into()),
        };
        shared += extents.iter().filter(|e| e.flags & SHARED != 0).map(|e| e.length).sum::<u64>();
        let next = extents.last().filter(|e| e.flags & LAST == 0).map(|e| e.logical.saturating_add(e.length));
        match next.filter(|next| *next > start) {
            Some(next) => start = next,
            None => return Ok(shared),
        }
    }
}

/// The first extents of a file from a place on.
#[expect(unsafe_code, reason = "the kernel tells it in no other way")]
fn extents(file: &File, start: u64) -> Result<Vec<Extent>, Errno> {
    let mut map = Map {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped: 0,
        count: u32::try_from(AT_ONCE).unwrap_or(0),
        reserved: 0,
        extents: [Extent::default(); AT_ONCE],
    };
    // SAFETY: FS_IOC_FIEMAP reads the head, and writes it and at most `count` extents behind it, for which there is
    // room.
    unsafe { ioctl(file.as_fd(), Updater::<FIEMAP, Map>::new(&mut map)) }?;
    let found = usize::try_from(map.mapped).unwrap_or(0).min(AT_ONCE);
    Ok(map.extents[..found].to_vec())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_was_copied_at_a_stroke_is_shared() {
        assert_eq!((FIEMAP, size_of::<Extent>(), std::mem::offset_of!(Map, extents)), (0xC020_660B, 56, 32));
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| File::options().read(true).write(true).create_new(true).open(dir.path().join(name));
        let (mut from, to) = (file("from").unwrap(), file("to").unwrap());
        from.write_all(&vec![7; 1 << 20]).unwrap();
        from.sync_all().unwrap();
        assert_eq!(bytes(&from).unwrap(), 0);
        let at_a_stroke = rustix::fs::ioctl_ficlone(&to, &from).is_ok();
        to.sync_all().unwrap();
        let expected = if at_a_stroke { 1 << 20 } else { 0 };
        assert_eq!((bytes(&from).unwrap(), bytes(&to).unwrap()), (expected, expected));
    }
}
