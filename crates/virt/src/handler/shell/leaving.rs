//! Asks what holds the container disks of a pod to end.

use std::io;
use std::path::Path;

use rustix::process::Signal;

use crate::paths::KEEP_ALIVE_FILE;

/// Sends SIGTERM to the programs that hold a pod's container disks, as far as they would hear of it: to one that does
/// not listen yet it would be lost.
///
/// # Errors
/// Processes could not be listed, or one could not be asked. Some may have been.
pub(super) fn end_disks(proc: &Path, pod_uid: &str) -> io::Result<usize> {
    carrack_processes::end_in_pod(proc, pod_uid, awaits_its_end)
}

/// Whether a process, by what the kernel says of its status, is the program that keeps containers of container disks
/// alive, and has SIGTERM blocked, as ours reads it, or a handler for it, as KubeVirt's has. The command line would
/// name it, too, but reading that may hang with the process.
fn awaits_its_end(status: &str) -> bool {
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let has_term = |key: &str| {
        let mask = field(key).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    };
    field("Name:") == Some(KEEP_ALIVE_FILE) && (has_term("SigBlk:") || has_term("SigCgt:"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;
    use crate::handler::keep_alive;

    #[test]
    fn only_what_holds_a_disk_of_the_pod_and_listens_is_asked_to_end() {
        let check = |name: &str, group: &str, masks: &str, is_asked: bool| {
            let proc = tempfile::tempdir().expect("a directory");
            // The kernel knows it as something else; what counts is what is read here.
            let mut child = Command::new("sleep").arg("300").spawn().expect("sleep runs");
            let dir = proc.path().join(child.id().to_string());
            fs::create_dir(&dir).expect("made");
            fs::write(dir.join("cgroup"), format!("0::{group}\n")).expect("written");
            fs::write(dir.join("status"), format!("Name:\t{name}\nState:\tS\n{masks}\n")).expect("written");
            let asked = end_disks(proc.path(), "1111-2222");
            // Whichever of the two signals came first.
            child.kill().expect("killed");
            let signal = child.wait().expect("waited for").signal();
            let expected = if is_asked { Signal::TERM } else { Signal::KILL };
            assert_eq!(
                (signal, asked.ok()),
                (Some(expected.as_raw()), Some(is_asked.into())),
                "{name} {group} {masks}"
            );
        };
        let (group, blocked, caught) =
            ("/kubepods/pod1111-2222/c", "SigBlk:\t0000000000014002", "SigCgt:\t0000000000004000");
        check("container-disk", group, blocked, true);
        check("container-disk", "/kubepods-pod1111_2222.slice/c.scope", blocked, true);
        check("container-disk", group, caught, true);
        // It has just been started, and would never hear of it.
        check("container-disk", group, "SigBlk:\t0000000000000000\nSigCgt:\t0000000000000000", false);
        check("container-disk", group, "", false);
        check("container-disk", "/kubepods/pod3333-4444/c", blocked, false);
        check("qemu-system-x86", group, caught, false);
        assert!(end_disks(Path::new("/no/such/directory"), "1111-2222").is_err());
    }

    /// The masks above are what the kernel says of the program itself.
    #[test]
    fn the_program_that_holds_a_disk_ends_when_it_is_asked() {
        let dir = tempfile::tempdir().expect("a directory");
        keep_alive::install(dir.path(), &carrack_images::pause_program()).expect("installed");
        // A process that another test begins has the file open for a moment, as it was written, and nothing runs meanwhile.
        let start = |_: u32| match Command::new(dir.path().join(KEEP_ALIVE_FILE)).spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now();
                None
            }
            started => Some(started),
        };
        let mut child = (0..1_000_000).find_map(start).expect("it is closed").expect("the program starts");
        let (proc, real) = (dir.path().join("proc"), format!("/proc/{}/status", child.id()));
        let process = proc.join(child.id().to_string());
        fs::create_dir_all(&process).expect("made");
        fs::write(process.join("cgroup"), "0::/kubepods/pod1111-2222/c\n").expect("written");
        std::os::unix::fs::symlink(real, process.join("status")).expect("linked");
        let is_asked = |_: &u32| {
            std::thread::yield_now();
            end_disks(&proc, "1111-2222").expect("looked at") == 1
        };
        assert!((0..1_000_000).any(|turn| is_asked(&turn)), "it never listens");
        assert_eq!(child.wait().expect("waited for").code(), Some(0));
    }
}
