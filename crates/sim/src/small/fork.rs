//! A copy of this process, in which something is tried that leaves nothing behind here.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Does something in a copy of this process, and returns what that says. Nothing of what it changes is changed here. None: it
/// said nothing, since it panicked or was killed.
///
/// The copy has one thread, which goes on from here. So nothing may be done that waits for another thread.
///
/// # Errors
/// There is no room for another process.
pub(super) fn in_copy(act: impl FnOnce() -> Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    match fork()? {
        None => {
            drop(from);
            // What has panicked is played once more by whoever wants to see it.
            let said = catch_unwind(AssertUnwindSafe(act)).unwrap_or_default();
            let written = File::from(to).write_all(&said).is_ok();
            exit(if written { 0 } else { 1 })
        }
        Some(child) => {
            drop(to);
            let mut said = Vec::new();
            let read = File::from(from).read_to_end(&mut said);
            waitpid(Some(child), WaitOptions::empty())?;
            read?;
            Ok(Some(said).filter(|said| !said.is_empty()))
        }
    }
}

/// Makes the copy: none in there, its number here.
#[expect(unsafe_code, reason = "there is no other way to go on from the same memory several times")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the copy's one thread is this one, which holds no lock. `carrack sim` has no other, whatever its allocator is; where
    // tests have others, the allocator is the C library's, which keeps its locks in order.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Ends the copy: nothing that this process has buffered is written twice, and nobody cleans up after it.
#[expect(unsafe_code, reason = "std's exit does what is to be done once, in the process that was copied")]
fn exit(status: i32) -> ! {
    // SAFETY: it does not return, and runs nothing of this program.
    unsafe { libc::_exit(status) }
}
