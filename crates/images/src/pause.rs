//! The pause image: the first process of every pod, which holds the pod's namespaces.
//!
//! It does three things: take in orphans when containers share its process namespace, end on SIGTERM or
//! SIGINT, and cost nothing. A hundred bytes of machine code do that in one page of memory, where any
//! program with a C library or a Rust runtime would take hundreds of times as much in every pod.

use crate::layer::{Content, Layer};
use crate::oci::{self, ImageConfig};
use crate::stamp::{Inputs, Recipe};
use crate::{Built, ImageError, reference};
use std::path::Path;

/// x86-64 code. Signals are blocked and read one by one from a descriptor: what is blocked is queued also for a first
/// process, which otherwise never sees a signal that it has no handler for. (`rt_sigtimedwait` would do as well, but Linux
/// unblocks what is waited for meanwhile, and then nobody can see in `/proc` that this process listens.)
#[rustfmt::skip]
const CODE: &[u8] = &[
    //         rt_sigprocmask(SIG_BLOCK, &mask, NULL, 8)
    0xb8, 0x0e, 0x00, 0x00, 0x00,             // mov $14, %eax
    0x31, 0xff,                               // xor %edi, %edi
    0x48, 0x8d, 0x35, 0x5d, 0x00, 0x00, 0x00, // lea mask(%rip), %rsi
    0x31, 0xd2,                               // xor %edx, %edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00,       // mov $8, %r10d
    0x0f, 0x05,                               // syscall
    //         signalfd4(-1, &mask, 8, 0)
    0xb8, 0x21, 0x01, 0x00, 0x00,             // mov $289, %eax
    0x83, 0xcf, 0xff,                         // or $-1, %edi
    0xba, 0x08, 0x00, 0x00, 0x00,             // mov $8, %edx
    0x45, 0x31, 0xd2,                         // xor %r10d, %r10d
    0x0f, 0x05,                               // syscall
    0x89, 0xc3,                               // mov %eax, %ebx
    // wait:   read(descriptor, below the stack, 128), of which the first four bytes are the signal
    0x31, 0xc0,                               // xor %eax, %eax
    0x89, 0xdf,                               // mov %ebx, %edi
    0x48, 0x8d, 0x74, 0x24, 0x80,             // lea -128(%rsp), %rsi
    0xba, 0x80, 0x00, 0x00, 0x00,             // mov $128, %edx
    0x0f, 0x05,                               // syscall
    0x85, 0xc0,                               // test %eax, %eax
    0x78, 0xec,                               // js wait
    0x83, 0x7c, 0x24, 0x80, 0x11,             // cmpl $SIGCHLD, -128(%rsp)
    0x75, 0x1b,                               // jne end
    // reap:   while (wait4(-1, NULL, WNOHANG, NULL) > 0);
    0xb8, 0x3d, 0x00, 0x00, 0x00,             // mov $61, %eax
    0x48, 0x83, 0xcf, 0xff,                   // or $-1, %rdi
    0x31, 0xf6,                               // xor %esi, %esi
    0xba, 0x01, 0x00, 0x00, 0x00,             // mov $WNOHANG, %edx
    0x45, 0x31, 0xd2,                         // xor %r10d, %r10d
    0x0f, 0x05,                               // syscall
    0x85, 0xc0,                               // test %eax, %eax
    0x7f, 0xe7,                               // jg reap
    0xeb, 0xca,                               // jmp wait
    // end:    SIGINT and SIGTERM end the process
    0xb8, 0x3c, 0x00, 0x00, 0x00,             // mov $60, %eax
    0x31, 0xff,                               // xor %edi, %edi
    0x0f, 0x05,                               // syscall: exit(0)
    // mask:   SIGINT, SIGTERM, SIGCHLD
    0x02, 0x40, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
];

const LOAD_ADDRESS: u64 = 0x40_0000;
const HEADERS_BYTES: u64 = 64 + 56;

/// An ELF executable with `code` as its only segment.
fn executable(code: &[u8]) -> Vec<u8> {
    let size = HEADERS_BYTES + code.len() as u64;
    let mut out = Vec::new();
    out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bits, little-endian, System V
    out.extend(2u16.to_le_bytes()); // an executable
    out.extend(62u16.to_le_bytes()); // for x86-64
    out.extend(1u32.to_le_bytes());
    out.extend((LOAD_ADDRESS + HEADERS_BYTES).to_le_bytes()); // entry point
    out.extend(64u64.to_le_bytes()); // program headers follow this header
    out.extend(0u64.to_le_bytes()); // no sections
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes()); // PT_LOAD
    out.extend(5u32.to_le_bytes()); // read, execute
    for word in [0, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 0x1000] {
        out.extend(word.to_le_bytes());
    }
    out.extend(code);
    out
}

/// The program itself, for containers with nothing else in them: virt-handler keeps those of container disks alive
/// with it.
pub fn pause_program() -> Vec<u8> {
    executable(CODE)
}

/// Builds `localhost/carrack/pause` in `dir`.
///
/// # Errors
/// The directory cannot be written.
pub fn build_pause(dir: &Path) -> Result<Built, ImageError> {
    let program = executable(CODE);
    let recipe = Recipe::new(dir, "pause", &[&program]);
    if let Some(built) = recipe.unchanged() {
        return Ok(built);
    }
    recipe.begin()?;
    let mut layer = Layer::new();
    layer.file("/pause", Content::Bytes(program), 0o755, 0);
    let blob = layer.write(&recipe.scratch("layer"))?;
    let config = ImageConfig { entrypoint: vec!["/pause".to_owned()], ..ImageConfig::default() };
    let built = oci::write(&recipe.tar(), &reference("pause"), &config, std::slice::from_ref(&blob))?;
    std::fs::remove_file(&blob.path).map_err(ImageError::io("cannot remove", &blob.path))?;
    recipe.finish(built, Inputs::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    fn start(dir: &Path) -> Child {
        let path = dir.join("pause");
        std::fs::write(&path, executable(CODE)).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
        Command::new(&path).spawn().expect("the program starts")
    }

    fn send(child: &Child, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(child), signal).expect("sent");
    }

    #[test]
    fn ends_on_the_stop_signals_only() {
        let dir = tempfile::tempdir().expect("a directory");
        for signal in [Signal::TERM, Signal::INT] {
            let mut child = start(dir.path());
            await_first_wait(&child);
            send(&child, Signal::CHILD);
            send(&child, signal);
            let status = child.wait().expect("waited for");
            assert_eq!((status.code(), status.signal()), (Some(0), None), "{signal:?}");
        }
    }

    /// Until the program sleeps in `read`, which is system call 0, with its signals blocked: before it runs, it does
    /// neither.
    fn await_first_wait(child: &Child) {
        let of =
            |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).expect("the process is there");
        // Whoever runs the tests may have blocked others.
        let blocks = |status: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
            Some(u64::from_str_radix(mask.trim(), 16).ok()? & 0x14002 == 0x14002)
        };
        let waits = |_: &u32| {
            std::thread::yield_now();
            of("syscall").starts_with("0 ") && blocks(&of("status")) == Some(true)
        };
        assert!((0..1_000_000).any(|turn| waits(&turn)), "it never waits for a signal");
    }

    #[test]
    fn takes_a_page_or_two() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = start(dir.path());
        await_first_wait(&child);
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id())).expect("readable");
        let pss_kib: u32 = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok())
            .expect("a Pss line");
        send(&child, Signal::TERM);
        assert!(child.wait().expect("waited for").success());
        assert!(pss_kib <= 32, "{pss_kib} KiB");
    }
}
