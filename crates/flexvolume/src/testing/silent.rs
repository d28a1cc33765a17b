//! A file system in user space whose server takes every question and answers none: who asks it for a file waits in the kernel,
//! and is not ended by being killed, as with a disk or a file server that does not answer.
//!
//! Its requests are as the kernel's `include/uapi/linux/fuse.h` has them. Only the first, which asks which version of the protocol
//! the server speaks, is answered: until then the others would not be sent, and those that are not sent end with who asks.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The first request of the kernel, and how long a request's head and the answer to that one are, in bytes.
const INIT: u32 = 26;
const HEAD: usize = 40;
const ANSWER: u32 = 80;
/// As much as the kernel wants to be able to send at once, in bytes.
const REQUEST: usize = 1 << 20;
/// How soon it ends, in nanoseconds.
const LOOK_NS: i64 = 20_000_000;

/// The file system. When it is dropped it is gone, and who waits for it is told so.
#[derive(Debug)]
pub struct Silent {
    at: PathBuf,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Silent {
    /// Mounts it at a place that is made.
    ///
    /// # Errors
    /// The kernel has no file systems in user space, or this process may not mount.
    pub fn mount(at: &Path) -> io::Result<Self> {
        fs::create_dir_all(at)?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount("silent", at, "fuse", MountFlags::empty(), CString::new(options)?.as_c_str())?;
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let server = std::thread::spawn(move || serve(device, &told));
        Ok(Self { at: at.to_owned(), over, server: Some(server) })
    }

    /// Who waits for an answer: processes that name the place in their command line.
    #[must_use]
    pub fn stuck(&self) -> Vec<u32> {
        let place = self.at.to_string_lossy().into_owned();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
            !read("stat").contains(") Z ") && read("cmdline").contains(&place)
        })
        .collect()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // With the server's own end everybody who waits has an answer.
        let _ended = self.server.take().map(JoinHandle::join);
        let _unmounted = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// Reads what comes, until it is over.
fn serve(mut device: File, over: &AtomicBool) {
    let mut request = vec![0; REQUEST];
    while !over.load(Ordering::Relaxed) {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        let mut polled = [PollFd::new(&device, PollFlags::IN)];
        match poll(&mut polled, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        // It was unmounted.
        let Ok(count) = device.read(&mut request) else { return };
        let Some(head) = request.get(..count.min(HEAD)).filter(|head| head.len() == HEAD) else { return };
        if head[4..8] == INIT.to_ne_bytes() && device.write_all(&hello(&head[8..16])).is_err() {
            return;
        }
    }
}

/// The answer to the first request, which has that number.
fn hello(unique: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    for word in [ANSWER, 0] {
        answer.extend(word.to_ne_bytes());
    }
    answer.extend(unique);
    // Version 7.31, nothing read ahead, no flags; the largest write is a page, all else is left to the kernel.
    for word in [7_u32, 31, 0, 0, 0, 4096, 1] {
        answer.extend(word.to_ne_bytes());
    }
    answer.resize(usize::try_from(ANSWER).unwrap_or_default(), 0);
    answer
}
