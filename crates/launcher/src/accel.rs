#![expect(clippy::disallowed_methods, reason = "shell: it runs QEMU and watches the clock")]
//! Finds out whether KVM really runs guests on this machine, or whether they must be emulated.
//!
//! A `/dev/kvm` that opens and answers proves nothing: under some nested hypervisors guests run in real mode
//! and then hang for ever. So a guest that goes all the way to 64-bit code is run, with the very QEMU, chip
//! set and accelerator that real guests get, and is given a deadline. It is 200 bytes of code in place of
//! the firmware, and ends in a few hundredths of a second where KVM works.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// How guest code is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// By the processor.
    Kvm,
    /// By QEMU's emulator.
    Tcg,
}

impl Accel {
    /// QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// What the probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The accelerator to use.
    pub accel: Accel,
    /// Why, in words for an operator.
    pub reason: String,
}

/// How long the probe guest may take. On a loaded machine QEMU itself needs most of it.
pub const PROBE_DEADLINE: Duration = Duration::from_millis(2500);

/// Runs the probe guest on KVM and falls back to the emulator. Tells besides whether that holds for as long as the
/// machine is up, and can be kept under its boot id. It does not where no guest could be tried, as before KVM's module
/// is loaded, nor where the machine is so busy that the emulator does not finish in time either.
pub async fn probe(deadline: Duration) -> (Probe, bool) {
    match try_accel(Accel::Kvm, deadline).await {
        Ok(took) => {
            let reason = format!("a 64-bit guest ran on KVM in {} ms", took.as_millis());
            (Probe { accel: Accel::Kvm, reason }, true)
        }
        Err(Failure::Untried(reason)) => (Probe { accel: Accel::Tcg, reason }, false),
        Err(Failure::Tried(reason)) => {
            let in_time = try_accel(Accel::Tcg, deadline).await.is_ok();
            (Probe { accel: Accel::Tcg, reason }, in_time)
        }
    }
}

/// Why a probe guest did not succeed, in words for an operator.
#[derive(Debug)]
enum Failure {
    /// It was not even started.
    Untried(String),
    /// It was.
    Tried(String),
}

/// Runs the probe guest on `accel`: how long it took, or why it did not succeed.
async fn try_accel(accel: Accel, deadline: Duration) -> Result<Duration, Failure> {
    let untried = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::Untried(format!("{what}: {error}"))
    };
    if accel == Accel::Kvm {
        let opened = std::fs::File::options().read(true).write(true).open("/dev/kvm");
        opened.map_err(untried("/dev/kvm cannot be opened"))?;
    }
    let mut rom = tempfile::NamedTempFile::new().map_err(untried("no temporary file"))?;
    rom.write_all(&rom_image()).map_err(untried("no temporary file"))?;
    let started = Instant::now();
    let child = spawn(accel, &["-bios".as_ref(), rom.path().as_ref()])
        .map_err(|error| Failure::Untried(format!("{} cannot be started: {error}", crate::argv::PROGRAM)))?;
    let outcome = match tokio::time::timeout(deadline, child.wait_with_output()).await {
        Err(_) => Err(format!("a 64-bit guest on {} did not finish in {} ms", accel.name(), deadline.as_millis())),
        Ok(Err(error)) => Err(format!("QEMU cannot be waited for: {error}")),
        Ok(Ok(output)) if output.status.code() == Some(SUCCESS_STATUS) => Ok(started.elapsed()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("it said nothing");
            Err(format!("QEMU with {} failed ({}): {said:.200}", accel.name(), output.status))
        }
    };
    outcome.map_err(Failure::Tried)
}

/// Starts QEMU with the probe guest. Where KVM hangs, so would that QEMU, at a full core and for ever, if this process
/// ended before it: the kernel kills it then, however this process ends and whenever.
fn spawn(accel: Accel, more: &[&OsStr]) -> io::Result<Child> {
    let qemu = [&[crate::argv::PROGRAM, "-accel", accel.name()].map(OsStr::new), more].concat();
    let parent = std::process::id().to_string();
    match start(&[&bound(&parent, MOST_CPU_S).map(OsStr::new), &qemu[..]].concat()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            start(&[&within(MOST_CPU_S).map(OsStr::new), &qemu[..]].concat())
        }
        outcome => outcome,
    }
}

/// How long the processors may work for the probe guest, in seconds: no deadline is as long, and of what hangs there is an end.
const MOST_CPU_S: &str = "30";

/// What the words after it are run by, so that they end with this parent. util-linux's program sets `PR_SET_PDEATHSIG` and becomes
/// the shell. A parent that had died before that is not the shell's parent, and nothing is run any more; one that dies later takes it
/// along. The bound on processor time holds in any case.
fn bound<'a>(parent: &'a str, most_cpu_s: &'a str) -> [&'a str; 10] {
    let script = r#"test "$PPID" = "$1" && ulimit -t "$2" && shift 2 && exec "$@""#;
    ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", script, "probe", parent, most_cpu_s]
}

/// As [`bound`], where there is no such program.
fn within(most_cpu_s: &str) -> [&str; 5] {
    ["sh", "-c", r#"ulimit -t "$1" && shift && exec "$@""#, "probe", most_cpu_s]
}

fn start(words: &[&OsStr]) -> io::Result<Child> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(program)
        .args(arguments)
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35", "-m", "16"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// The byte that the guest writes to the debug port, and the exit status that QEMU makes of it.
const SUCCESS_BYTE: u8 = 0x31;
const SUCCESS_STATUS: i32 = (SUCCESS_BYTE as i32) << 1 | 1;

/// The code is seen at 0xf0000, and the processor starts 16 bytes below its end.
const ROM_BYTES: usize = 0x1_0000;

/// x86 code from reset through protected mode and paging into 64-bit mode.
#[rustfmt::skip]
const CODE: &[u8] = &[
    // 16 bits. Load the segment table and switch protection on.
    /* 00 */ 0xfa,                                                 // cli
    /* 01 */ 0x2e, 0x66, 0x0f, 0x01, 0x16, 0xb2, 0x00,             // lgdtl %cs:0xb2
    /* 08 */ 0x0f, 0x20, 0xc0,                                     // mov %cr0, %eax
    /* 0b */ 0x0c, 0x01,                                           // or $1, %al
    /* 0d */ 0x0f, 0x22, 0xc0,                                     // mov %eax, %cr0
    /* 10 */ 0x66, 0xea, 0x18, 0x00, 0x0f, 0x00, 0x08, 0x00,       // ljmpl $0x08, $0xf0018
    // 32 bits. Page tables at 0x1000, 0x2000 and 0x3000 map the first gibibyte onto itself.
    /* 18 */ 0x66, 0xb8, 0x10, 0x00,                               // mov $0x10, %ax
    /* 1c */ 0x8e, 0xd8,                                           // mov %ax, %ds
    /* 1e */ 0x8e, 0xc0,                                           // mov %ax, %es
    /* 20 */ 0x8e, 0xd0,                                           // mov %ax, %ss
    /* 22 */ 0x31, 0xc0,                                           // xor %eax, %eax
    /* 24 */ 0xbf, 0x00, 0x10, 0x00, 0x00,                         // mov $0x1000, %edi
    /* 29 */ 0xb9, 0x00, 0x0c, 0x00, 0x00,                         // mov $0xc00, %ecx
    /* 2e */ 0xf3, 0xab,                                           // rep stosl
    /* 30 */ 0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20, 0x00, 0x00, // movl $0x2003, 0x1000
    /* 3a */ 0xc7, 0x05, 0x00, 0x20, 0x00, 0x00, 0x03, 0x30, 0x00, 0x00, // movl $0x3003, 0x2000
    /* 44 */ 0xbf, 0x00, 0x30, 0x00, 0x00,                         // mov $0x3000, %edi
    /* 49 */ 0xb8, 0x83, 0x00, 0x00, 0x00,                         // mov $0x83, %eax: present, writable, 2 MiB
    /* 4e */ 0xb9, 0x00, 0x02, 0x00, 0x00,                         // mov $512, %ecx
    /* 53 */ 0x89, 0x07,                                           // 1: mov %eax, (%edi)
    /* 55 */ 0x05, 0x00, 0x00, 0x20, 0x00,                         // add $0x200000, %eax
    /* 5a */ 0x83, 0xc7, 0x08,                                     // add $8, %edi
    /* 5d */ 0xe2, 0xf4,                                           // loop 1b
    /* 5f */ 0xb8, 0x00, 0x10, 0x00, 0x00,                         // mov $0x1000, %eax
    /* 64 */ 0x0f, 0x22, 0xd8,                                     // mov %eax, %cr3
    /* 67 */ 0x0f, 0x20, 0xe0,                                     // mov %cr4, %eax
    /* 6a */ 0x83, 0xc8, 0x20,                                     // or $PAE, %eax
    /* 6d */ 0x0f, 0x22, 0xe0,                                     // mov %eax, %cr4
    /* 70 */ 0xb9, 0x80, 0x00, 0x00, 0xc0,                         // mov $EFER, %ecx
    /* 75 */ 0x0f, 0x32,                                           // rdmsr
    /* 77 */ 0x0d, 0x00, 0x01, 0x00, 0x00,                         // or $LME, %eax
    /* 7c */ 0x0f, 0x30,                                           // wrmsr
    /* 7e */ 0x0f, 0x20, 0xc0,                                     // mov %cr0, %eax
    /* 81 */ 0x0d, 0x00, 0x00, 0x00, 0x80,                         // or $PG, %eax
    /* 86 */ 0x0f, 0x22, 0xc0,                                     // mov %eax, %cr0
    /* 89 */ 0xea, 0x90, 0x00, 0x0f, 0x00, 0x18, 0x00,             // ljmp $0x18, $0xf0090
    // 64 bits. A 64-bit value goes through memory and back, then the byte says so.
    /* 90 */ 0x48, 0xc7, 0xc4, 0x00, 0x90, 0x00, 0x00,             // mov $0x9000, %rsp
    /* 97 */ 0x48, 0xb8, 0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, // movabs $0x123456789abcdef0, %rax
    /* a1 */ 0x50,                                                 // push %rax
    /* a2 */ 0x5b,                                                 // pop %rbx
    /* a3 */ 0x48, 0x39, 0xc3,                                     // cmp %rax, %rbx
    /* a6 */ 0x75, 0x07,                                           // jne 2f
    /* a8 */ 0xb0, SUCCESS_BYTE,                                   // mov $SUCCESS_BYTE, %al
    /* aa */ 0x66, 0xba, 0xf4, 0x00,                               // mov $0xf4, %dx
    /* ae */ 0xee,                                                 // out %al, (%dx)
    /* af */ 0xf4,                                                 // 2: hlt
    /* b0 */ 0xeb, 0xfd,                                           // jmp 2b
    // The segment table: limit, address, and null, 32-bit code, data, 64-bit code.
    /* b2 */ 0x1f, 0x00, 0xb8, 0x00, 0x0f, 0x00,
    /* b8 */ 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    /* c0 */ 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00,
    /* c8 */ 0xff, 0xff, 0x00, 0x00, 0x00, 0x92, 0xcf, 0x00,
    /* d0 */ 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xaf, 0x00,
];

/// The processor's first instruction: ljmp $0xf000, $0.
const RESET_VECTOR: &[u8] = &[0xea, 0x00, 0x00, 0x00, 0xf0];

fn rom_image() -> Vec<u8> {
    let mut rom = vec![0; ROM_BYTES];
    rom[..CODE.len()].copy_from_slice(CODE);
    rom[ROM_BYTES - 16..ROM_BYTES - 16 + RESET_VECTOR.len()].copy_from_slice(RESET_VECTOR);
    rom
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[tokio::test]
    async fn the_guest_itself_is_sound() {
        // The emulator executes what a processor should, so that a failure on KVM is KVM's.
        try_accel(Accel::Tcg, Duration::from_secs(60)).await.expect("it runs to its end");
    }

    #[test]
    fn its_qemu_ends_with_whoever_started_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        // To the kernel, the parent is the thread that started it. A guest that is held at its first instruction stays.
        let start = || {
            let _inside = runtime.enter();
            let child = spawn(Accel::Tcg, &["-S".as_ref()]).expect("QEMU");
            let name = format!("/proc/{}/comm", child.id().expect("it runs"));
            while !std::fs::read_to_string(&name).expect("its name").starts_with("qemu") {
                std::thread::yield_now();
            }
            child
        };
        let mut child = std::thread::scope(|scope| scope.spawn(start).join()).expect("no panic");
        let ended = runtime.block_on(child.wait()).expect("an end");
        assert_eq!(ended.signal(), Some(9), "{ended}");
    }

    #[test]
    fn nothing_runs_for_a_parent_that_has_died_before() {
        let own = std::process::id().to_string();
        // Nobody is the child of the other one.
        for (parent, expected) in [(own.as_str(), "ran\n"), ("0", "")] {
            let words = bound(parent, MOST_CPU_S);
            let mut command = std::process::Command::new(words[0]);
            let output = command.args(&words[1..]).args(["echo", "ran"]).output().expect("it is run");
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{parent}: {output:?}");
        }
    }

    #[test]
    fn what_hangs_at_a_full_core_ends_by_itself() {
        let own = std::process::id().to_string();
        let spins = ["sh", "-c", "while :; do :; done"];
        for words in [&bound(&own, "1")[..], &within("1")[..]] {
            let mut command = std::process::Command::new(words[0]);
            let ended = command.args(&words[1..]).args(spins).status().expect("it is run");
            assert!(ended.signal().is_some(), "{words:?}: {ended}");
        }
    }

    #[tokio::test]
    async fn an_answer_comes_within_the_deadline() {
        let started = Instant::now();
        let (found, lasting) = probe(PROBE_DEADLINE).await;
        assert!(started.elapsed() < PROBE_DEADLINE * 3, "{found:?} after {:?}", started.elapsed());
        assert!(!found.reason.is_empty() && (lasting || found.accel == Accel::Tcg), "{found:?}");
    }

    #[tokio::test]
    async fn no_time_means_emulation_for_now() {
        let (found, lasting) = probe(Duration::ZERO).await;
        assert_eq!((found.accel, lasting), (Accel::Tcg, false), "{}", found.reason);
    }
}
