//! A cluster of its own for each end-to-end test, on real parts: containerd, QEMU, sockets, mounts.
//!
//! ```text
//!   Sandbox ── network namespace, another machine beside it, data directory
//!      ├── prepared   a containerd's root with the images of every cluster, linked from `target`
//!      ├── Run    a command in that namespace, with a limit in time, its output kept
//!      ├── pages  what they tell a reader to type, as a Run
//!      ├── Kubectl  the one in PATH, or Debian's, on the sandbox's kubeconfig; objects that are waited for come without it
//!      └── drop: `carrack down --purge`, then `scripts/leftovers`, which must print nothing
//! ```
//!
//! Tests need root and what `scripts/install-deps test` brings. They wait for conditions ([`eventually`]), never for
//! time to pass.
#![expect(clippy::disallowed_methods, reason = "shell: waits for processes and conditions with a deadline")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test whose preparation fails has failed")]

mod csi;
mod flexdisks;
mod guest;
mod kubectl;
mod machines;
mod objects;
mod pages;
mod plugin;
mod power;
mod prepared;
mod qmp;
mod run;
mod sandbox;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use csi::{CsiCall, CsiDriver};
pub use flexdisks::{Disks, may_grow_mounted};
pub use kubectl::{Kubectl, debian_kubectl};
pub use machines::{BOOT_S, CALLS, demo_machine, hasty_machine};
pub use pages::blocks;
pub use plugin::Plugin;
pub use qmp::Qemu;
pub use run::{Output, Run, Spawned};
pub use sandbox::{LIMITS, NODE_IP, OUTSIDE_IP, Sandbox, wait_gone};

/// The repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// The program under test: `CARRACK_BIN`, or the development build.
#[must_use]
pub fn carrack() -> PathBuf {
    let path = std::env::var_os("CARRACK_BIN").map_or_else(|| root().join("target/debug/carrack"), PathBuf::from);
    assert!(path.exists(), "{} is not there: run scripts/build, or set CARRACK_BIN", path.display());
    path
}

/// The machine's CPUs as the kernel lists them, if a pod can have one to itself beside the first, which is kept back. Where none can,
/// the test that asks is told of as skipped.
#[must_use]
pub fn several_cpus() -> Option<String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = online.trim().to_owned();
    if online == "0" {
        eprintln!("skipped: a CPU of one's own needs a second one, and there is only {online}");
        return None;
    }
    Some(online)
}

/// The shortest pause between two times of asking, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Asks until the answer is there, and returns it. The last reason why it is not there ends up in the panic.
///
/// What takes long to ask is asked less often: who waits is to leave the machine to what is waited for.
///
/// # Panics
/// It is not there within the limit.
pub fn eventually<T>(what: &str, limit_s: u64, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    loop {
        let asked = Instant::now();
        match ask() {
            Ok(answer) => return answer,
            Err(why) if Instant::now() >= deadline => panic!("{what}: not within {limit_s} s: {why}"),
            // The pace of asking, not the condition.
            Err(_) => std::thread::sleep((asked.elapsed() * 3).clamp(PAUSE.0, PAUSE.1)),
        }
    }
}

/// As [`eventually`], for a condition that is true or not.
///
/// # Panics
/// It is not true within the limit.
pub fn eventually_true(what: &str, limit_s: u64, mut condition: impl FnMut() -> bool) {
    eventually(what, limit_s, || if condition() { Ok(()) } else { Err("it is not so".to_owned()) });
}

/// Sees to it that something stays so for a while.
///
/// # Panics
/// It is not so at some moment of that time.
pub fn stays(what: &str, for_s: u64, mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(for_s);
    while Instant::now() < end {
        if let Err(why) = check() {
            panic!("{what}: not for {for_s} s: {why}");
        }
        // The pace of asking.
        std::thread::sleep(Duration::from_secs(1).min(end.saturating_duration_since(Instant::now())));
    }
}

/// Asserts that `text` holds each of `parts`.
///
/// # Panics
/// One is missing.
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}
