//! Finds the processes of containers and pods by their control groups, whatever the runtime.
//!
//! `proc` is the kernel's directory of processes, `/proc` but in tests. With both layouts of control groups and both of the
//! runtimes' drivers (`cgroupfs`, `systemd`) a group's path has the pod's UID and the container's id in it.

pub mod group;
pub mod tasks;

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Most of a command line that is read: a process can make its own as long as its memory. QEMU's has some kilobytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The first process of a container, by the container's id; none when there surely is no process of it.
///
/// # Errors
/// Processes could not be listed.
pub fn init_of(proc: &Path, container_id: &str) -> io::Result<Option<u32>> {
    let names = of_container(container_id)?;
    let mut found = None;
    each(proc, |pid, dir| {
        if !in_group(dir, &names)? {
            return Ok(());
        }
        // In a process namespace of its own it is number 1; else it is the one that was there first.
        if is_first_in_namespace(dir)? {
            found = Some((0, pid));
        } else if found.is_none_or(|(rank, first)| rank > 0 && pid < first) {
            found = Some((1, pid));
        }
        Ok(())
    })?;
    Ok(found.map(|(_, pid)| pid))
}

/// Whether any process of a pod is left.
///
/// # Errors
/// Processes could not be listed: then nobody knows.
pub fn any_left(proc: &Path, pod_uid: &str) -> io::Result<bool> {
    let names = of_pod(pod_uid)?;
    let mut left = false;
    each(proc, |_, dir| {
        left = left || (in_group(dir, &names)? && !is_zombie(dir)?);
        Ok(())
    })?;
    Ok(left)
}

/// Whether any process bears a text of eight bytes or more on its command line. Of each the first MiB is read.
///
/// # Errors
/// The text is too short to tell one from another, or processes could not be listed: then nobody knows.
pub fn any_bears(proc: &Path, text: &str) -> io::Result<bool> {
    if text.len() < 8 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no UID"));
    }
    let mut found = false;
    each(proc, |_, dir| {
        let mut line = Vec::new();
        fs::File::open(dir.join("cmdline"))?.take(MAX_LINE_BYTES).read_to_end(&mut line)?;
        found = found || line.windows(text.len()).any(|part| part == text.as_bytes());
        Ok(())
    })?;
    Ok(found)
}

/// Kills all processes of a pod. Returns how many there were.
///
/// # Errors
/// Processes could not be listed, or one could not be killed.
pub fn kill_pod(proc: &Path, pod_uid: &str) -> io::Result<usize> {
    signal(proc, &of_pod(pod_uid)?, Signal::KILL, |_| Ok(true))
}

/// Sends SIGTERM to those processes of a pod of whose `status` file this holds. Returns how many there were.
///
/// # Errors
/// Processes could not be listed, or one could not be asked.
pub fn end_in_pod(proc: &Path, pod_uid: &str, wanted: impl Fn(&str) -> bool) -> io::Result<usize> {
    signal(proc, &of_pod(pod_uid)?, Signal::TERM, |dir| Ok(wanted(&text(dir, "status")?)))
}

fn of_container(id: &str) -> io::Result<[String; 1]> {
    if id.len() < 12 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no container id"));
    }
    Ok([id.to_owned()])
}

/// What groups of a pod have in their names. systemd's slices have no hyphens in their parts.
fn of_pod(uid: &str) -> io::Result<[String; 2]> {
    if uid.len() < 8 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no pod UID"));
    }
    Ok([format!("pod{uid}"), format!("pod{}", uid.replace('-', "_"))])
}

fn signal(
    proc: &Path,
    names: &[String],
    signal: Signal,
    wanted: impl Fn(&Path) -> io::Result<bool>,
) -> io::Result<usize> {
    let mut sent = 0;
    each(proc, |pid, dir| {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        if !in_group(dir, names)? {
            return Ok(());
        }
        // What is read from here on is about the process that gets the signal: had its number gone to another one in
        // between, it would have ended, and nobody got the signal.
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        if in_group(dir, names)? && wanted(dir)? {
            pidfd_send_signal(&handle, signal)?;
            sent += 1;
        }
        Ok(())
    })?;
    Ok(sent)
}

/// Visits all processes. One that ends meanwhile is none; any other failure is one.
fn each(proc: &Path, mut visit: impl FnMut(u32, &Path) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match visit(pid, &entry.path()) {
            Err(error) if !has_ended(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// A file of a process as text. What a process calls itself, and what a group is called, are bytes that anybody has chosen: they
/// must keep nobody from finding another's processes.
fn text(dir: &Path, file: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(dir.join(file))?).into_owned())
}

fn in_group(dir: &Path, names: &[String]) -> io::Result<bool> {
    let groups = text(dir, "cgroup")?;
    Ok(groups.lines().any(|line| {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        names.iter().any(|name| path.contains(name.as_str()))
    }))
}

fn status_field(dir: &Path, key: &str) -> io::Result<Option<String>> {
    let status = text(dir, "status")?;
    Ok(status.lines().find_map(|line| line.strip_prefix(key).map(|rest| rest.trim().to_owned())))
}

fn is_first_in_namespace(dir: &Path) -> io::Result<bool> {
    let pids = status_field(dir, "NSpid:")?.unwrap_or_default();
    let pids: Vec<&str> = pids.split_whitespace().collect();
    Ok(pids.len() > 1 && pids.last() == Some(&"1"))
}

/// Whether nothing of a process is left but its number. Its first thread may be over while another still writes.
fn is_zombie(dir: &Path) -> io::Result<bool> {
    let is_over = status_field(dir, "State:")?.is_some_and(|state| state.starts_with('Z'));
    if !is_over {
        return Ok(false);
    }
    let has_others = status_field(dir, "Threads:")?.is_some_and(|threads| threads.parse().is_ok_and(|n: u32| n > 1));
    Ok(!has_others)
}

#[cfg(test)]
mod tests {
    use super::{any_left, init_of};

    #[test]
    fn found_by_control_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let process = |pid: u32, group: &str, pids: &str, state: &str| {
            let at = dir.path().join(pid.to_string());
            std::fs::create_dir_all(&at).expect("made");
            std::fs::write(at.join("cgroup"), format!("0::{group}\n")).expect("written");
            std::fs::write(at.join("status"), format!("State:\t{state}\nNSpid:\t{pids}\n")).expect("written");
        };
        let (id, other) = ("a".repeat(64), "b".repeat(64));
        process(1, "/init.scope", "1", "S (sleeping)");
        process(50, &format!("/kubepods/burstable/pod1111-2222/{id}"), "50 7", "S (sleeping)");
        process(60, &format!("/kubepods/burstable/pod1111-2222/{id}"), "60 1", "S (sleeping)");
        process(70, &format!("/kubepods-pod3333_4444.slice/cri-containerd-{other}.scope"), "70 1", "Z (zombie)");
        // Its first thread is over, and another hangs in its storage.
        let hangs = format!("/kubepods/pod7777-8888/{id}");
        process(80, &hangs, "80 9", "Z (zombie)\nThreads:\t2");
        std::fs::create_dir(dir.path().join("90")).expect("made");
        // Neither its name nor that of its group is text.
        process(95, "", "", "");
        std::fs::write(dir.path().join("95/cgroup"), b"0::/kubepods/pod9999-0000/\xff\n").expect("written");
        std::fs::write(dir.path().join("95/status"), b"Name:\t\xff\nState:\tS (sleeping)\n").expect("written");
        let found = |id: &str| init_of(dir.path(), id).expect("listed");
        assert_eq!(found(&id), Some(60));
        assert_eq!(found(&other), Some(70));
        assert_eq!(found(&"c".repeat(64)), None);
        assert!(init_of(dir.path(), "").is_err());
        let left = |uid: &str| any_left(dir.path(), uid).expect("listed");
        assert!(left("1111-2222"));
        assert!(!left("3333-4444"));
        assert!(!left("5555-6666"));
        assert!(left("7777-8888"));
        assert!(left("9999-0000"));
        assert!(any_left(&dir.path().join("none"), "1111-2222").is_err());
    }
}
