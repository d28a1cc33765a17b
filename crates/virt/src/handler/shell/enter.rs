#![expect(clippy::disallowed_methods, reason = "shell: it waits, for a while, for a process in a container")]
//! Runs a program of a container's in that container, beside its first process.
//!
//! It becomes a process of that container in every respect that matters to it (files, network, processes), and ends
//! with it. What lies in a container's file system is its own: somebody in it may have put another program there. So this is
//! taken over:
//!
//! - its namespaces of mounts, processes, network, IPC and host name;
//! - its control groups, outside which the program could open the host's devices; it is charged there;
//! - the capabilities that the container's first process can have at most;
//! - that nothing is gained by what is run, where that process gains nothing (`no_new_privs`);
//! - when it is its turn as memory runs out, where this process's comes later.
//!
//! Nor has it anything of this process's environment or terminal; its time is bounded, and of what it says, no more is read than a
//! pipe holds.
//!
//! This is not taken over, so that whoever has put a program there has it run with less around it than his own:
//!
//! - the filter of system calls. The kernel gives a filter away only to a tracer (`PTRACE_SECCOMP_GET_FILTER`) with
//!   `CAP_SYS_ADMIN` that is not filtered itself, where it was built for checkpoints (`CONFIG_CHECKPOINT_RESTORE`): the
//!   container's first process, which looks after the guest, would have to be traced and stopped for it each time. What the
//!   bounding set forbids stays forbidden all the same;
//! - labels of AppArmor or SELinux: the program keeps this process's;
//! - user and groups: it is root, also where the container's processes are not;
//! - limits of resources (`setrlimit`).

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use super::disks::in_own_thread;
use super::{COMMAND_DEADLINE, kernel_text};

/// How often it is looked whether the program has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How much of what it says is repeated.
const SAID_BYTES: usize = 500;
/// Where programs are in a container.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The namespaces that make a container, by their names in `/proc/PID/ns`.
const SPACES: [(&str, LinkNameSpaceType); 5] = [
    ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("net", LinkNameSpaceType::Network),
    ("pid", LinkNameSpaceType::ProcessID),
    ("mnt", LinkNameSpaceType::Mount),
];

/// Runs a program to its end in the container of process `pid`.
///
/// # Errors
/// It could not be run, failed, or did not end in time; for people.
pub(super) fn run(pid: u32, program: &str, arguments: &[&str]) -> Result<(), String> {
    let problem = |error: &dyn std::fmt::Display| format!("the container of process {pid} cannot be entered: {error}");
    let status = kernel_text::read(format!("/proc/{pid}/status")).map_err(|error| problem(&error))?;
    let kept = bounding_set(&status).ok_or_else(|| problem(&"its capabilities are not known"))?;
    let gains_none = gains_none(&status);
    let open = |(name, kind): (&str, LinkNameSpaceType)| {
        let space = File::open(format!("/proc/{pid}/ns/{name}"))?;
        Ok::<_, std::io::Error>((space, kind))
    };
    let spaces = SPACES.into_iter().map(open).collect::<Result<Vec<_>, _>>().map_err(|error| problem(&error))?;
    let groups = groups(pid).map_err(|error| problem(&error))?;
    let score = sooner(pid).map_err(|error| problem(&error))?;
    // Before: what has that name in the container may be anything.
    let nothing = File::options().read(true).write(true).open("/dev/null").map_err(|error| problem(&error))?;
    let silence = nothing.try_clone().map_err(|error| problem(&error))?;
    in_own_thread(move || {
        for (space, kind) in &spaces {
            move_into_link_name_space(space.as_fd(), Some(*kind)).map_err(|error| problem(&error))?;
        }
        give_up_all_but(kept).map_err(|error| problem(&error))?;
        if gains_none {
            // Of this thread, and what it starts.
            set_no_new_privs(true).map_err(|error| problem(&error))?;
        }
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", PATH);
        command.stdin(nothing).stdout(silence).stderr(Stdio::piped());
        let child = set_apart(&mut command, groups, score).spawn();
        let mut child = child.map_err(|error| format!("{program} cannot be run: {error}"))?;
        wait(&mut child).map_err(|why| format!("{program}: {why}"))
    })
}

/// The score (`oom_score_adj`) of process `pid`, as text, where the kernel would come to it sooner than to this process.
fn sooner(pid: u32) -> std::io::Result<Option<String>> {
    let score = |process: &str| -> std::io::Result<i32> {
        let text = kernel_text::read(format!("/proc/{process}/oom_score_adj"))?;
        text.trim().parse().map_err(std::io::Error::other)
    };
    let theirs = score(&pid.to_string())?;
    Ok((score("self")? < theirs).then(|| theirs.to_string()))
}

/// Has a program begin in these control groups, with this score, and in a session of its own.
#[expect(unsafe_code, reason = "what is done between fork and exec can harm nothing of this process's")]
fn set_apart(command: &mut Command, groups: Vec<File>, score: Option<String>) -> &mut Command {
    let apart = move || -> std::io::Result<()> {
        rustix::process::setsid()?;
        for group in &groups {
            // Whoever writes it joins.
            rustix::io::write(group, b"0")?;
        }
        if let Some(score) = &score {
            // What has that name in the container may be anything, such as a pipe that nobody reads.
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let own = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
            rustix::io::write(&own, score.as_bytes())?;
        }
        Ok(())
    };
    // SAFETY: these are system calls alone, on what was made before: nothing is allocated, and no lock is taken.
    unsafe { command.pre_exec(apart) }
}

/// What is to be written to by a process that joins the control groups of process `pid`.
fn groups(pid: u32) -> std::io::Result<Vec<File>> {
    let theirs = kernel_text::read(format!("/proc/{pid}/cgroup"))?;
    let own = kernel_text::read("/proc/self/cgroup")?;
    let mounts = kernel_text::read("/proc/self/mountinfo")?;
    let open = |group: PathBuf| File::options().write(true).open(group.join("cgroup.procs"));
    other_groups(&mounts, &theirs, &own).into_iter().map(open).collect()
}

/// The directories of those control groups of `theirs` that are not in `own` (both as in `/proc/PID/cgroup`), by
/// `/proc/self/mountinfo`. A hierarchy that is not mounted has none. Upstream reference: cgroups(7).
fn other_groups(mounts: &str, theirs: &str, own: &str) -> Vec<PathBuf> {
    let directory = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        mounts.lines().find_map(|mount| {
            let (place, kind) = mount.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, at) = (place.next()?, place.next()?);
            let has = |name: &str| kind.rsplit(' ').next().unwrap_or_default().split(',').any(|known| known == name);
            let is_it = match kind.split(' ').next() {
                Some("cgroup2") => controllers.is_empty(),
                Some("cgroup") => !controllers.is_empty() && controllers.split(',').all(has),
                _ => false,
            };
            let below = Path::new(path).strip_prefix(root).ok().filter(|_| is_it)?;
            Some(Path::new(at).join(below))
        })
    };
    let is_own = |line: &&str| own.lines().any(|known| known == *line);
    theirs.lines().filter(|line| !is_own(line)).filter_map(directory).collect()
}

/// The capabilities that a process can have at most, from `/proc/PID/status`.
fn bounding_set(status: &str) -> Option<u64> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

/// Whether a process gains no privileges by what it runs, from `/proc/PID/status`.
fn gains_none(status: &str) -> bool {
    status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:")).is_some_and(|value| value.trim() != "0")
}

/// Programs that this thread starts from now on have these capabilities at most.
fn give_up_all_but(kept: u64) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)?;
    for bit in (0..u64::BITS).map(|number| 1u64 << number).filter(|bit| kept & bit == 0) {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(bit)) {
            // The kernel knows no such capability.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait(child: &mut Child) -> Result<(), String> {
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if began.elapsed() < COMMAND_DEADLINE => std::thread::sleep(LOOK),
            None => {
                child.kill().map_err(|error| error.to_string())?;
                child.wait().map_err(|error| error.to_string())?;
                return Err(format!("no end within {} s", COMMAND_DEADLINE.as_secs()));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(format!("{status}: {}", said(child)))
}

/// What it complained of. Whoever else may write there is not waited for.
fn said(child: &mut Child) -> String {
    let mut bytes = [0; SAID_BYTES];
    let count = child.stderr.take().and_then(|mut pipe| {
        ioctl_fionbio(&pipe, true).ok()?;
        pipe.read(&mut bytes).ok()
    });
    String::from_utf8_lossy(&bytes[..count.unwrap_or(0)]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends with its holder.
    struct Held(Child);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).ok();
        }
    }

    /// A process in namespaces of its own that can have fewer capabilities than this one, and whoever ends it.
    fn container() -> (Held, u32) {
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--uts", "--ipc", "--net", "--pid", "--mount-proc", "--fork"])
            .args(["--kill-child", "setpriv", "--bounding-set=-sys_admin,-mknod", "--no-new-privs", "sleep", "300"])
            .spawn()
            .map(Held)
            .expect("unshare runs (as root)");
        let children = format!("/proc/{0}/task/{0}/children", child.0.id());
        let comm = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let is_there = |pid: &u32| comm(*pid).is_ok_and(|name| name == "sleep\n");
        let began = Instant::now();
        loop {
            let first = std::fs::read_to_string(&children).ok().and_then(|pids| pids.trim().parse().ok());
            if let Some(pid) = first.filter(is_there) {
                return (child, pid);
            }
            assert!(began.elapsed() < COMMAND_DEADLINE, "no container");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_program_is_the_containers_own() {
        let (_held, pid) = container();
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("out");
        let script = format!(
            "test $(cut -d ' ' -f 6 /proc/$$/stat) = $$; \
             for space in uts ipc net pid mnt; do readlink /proc/self/ns/$space; done > {0}; \
             for line in CapBnd NoNewPrivs CapEff; do grep $line /proc/self/status; done >> {0}",
            out.display()
        );
        run(pid, "/bin/sh", &["-ec", &script]).expect("it ran");
        let text = std::fs::read_to_string(&out).expect("written");
        let found: Vec<&str> = text.lines().collect();
        let space = |(name, _): (&str, LinkNameSpaceType)| {
            let link = std::fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("a namespace");
            link.to_string_lossy().into_owned()
        };
        let spaces = SPACES.map(space);
        assert_eq!(found[..SPACES.len()], spaces);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        let kept = bounding_set(&status).expect("told");
        assert_eq!(bounding_set(&text), Some(kept));
        assert!(gains_none(&status) && gains_none(&text), "{text}");
        let effective = found.last().and_then(|line| line.strip_prefix("CapEff:")).expect("told");
        let effective = u64::from_str_radix(effective.trim(), 16).expect("a number");
        assert_eq!((effective & !kept, kept & CapabilitySet::SYS_ADMIN.bits()), (0, 0));
        // This process is what it was.
        let own = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        assert_ne!(bounding_set(&own), Some(kept));

        let failed = run(pid, "/bin/sh", &["-ec", "echo no such machine >&2; exit 3"]).expect_err("it failed");
        assert!(failed.contains("no such machine") && failed.contains('3'), "{failed}");
        let missing = run(pid, "/no/such/program", &[]).expect_err("it is not there");
        assert!(missing.contains("/no/such/program cannot be run"), "{missing}");
        assert!(run(0, "/bin/true", &[]).is_err(), "no process has this number");
    }

    #[test]
    fn a_program_is_not_kept_longer_than_its_container_when_memory_runs_out() {
        let (_held, pid) = container();
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "555").expect("anybody may come sooner");
        run(pid, "/bin/sh", &["-ec", "test $(cat /proc/self/oom_score_adj) = 555"]).expect("it has the container's");
    }

    /// A control group that is empty in the end.
    struct Group(PathBuf);

    impl Drop for Group {
        fn drop(&mut self) {
            let began = Instant::now();
            while std::fs::remove_dir(&self.0).is_err() && began.elapsed() < COMMAND_DEADLINE {
                std::thread::sleep(LOOK);
            }
        }
    }

    #[test]
    fn a_program_is_in_its_containers_control_groups() {
        let read = |path: &str| std::fs::read_to_string(path).expect("read");
        let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let name = format!("carrack-enter-{}", std::process::id());
        let below = |line: &str| format!("{}/{name}\n", line.trim_end_matches('/'));
        let wanted: String = own.lines().map(below).collect();
        // Not everywhere may groups be made, nor processes be put into each.
        let made = |path: PathBuf| std::fs::create_dir(&path).ok().map(|()| Group(path));
        let groups: Vec<Group> = other_groups(&mounts, &wanted, &own).into_iter().filter_map(made).collect();
        let (_held, pid) = container();
        for group in &groups {
            std::fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok();
        }
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("out");
        let script = format!("cat /proc/self/cgroup > {}", out.display());
        run(pid, "/bin/sh", &["-ec", &script]).expect("it ran");
        assert_eq!(std::fs::read_to_string(&out).expect("written"), read(&format!("/proc/{pid}/cgroup")));
    }

    #[test]
    fn control_groups_are_found_where_they_are_mounted() {
        let check = |mounts: &str, theirs: &str, expected: &[&str]| {
            let own = "4:memory:/\n3:cpu,cpuacct:/own\n0::/own\n";
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(other_groups(mounts, theirs, own), expected, "{theirs}");
        };
        let v1 = "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                  31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
        let v2 = "30 25 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        check(v2, "0::/kubepods/pod1/c\n", &["/sys/fs/cgroup/kubepods/pod1/c"]);
        check(v2, "0::/own\n", &[]);
        check(
            v1,
            "4:memory:/kubepods/c\n3:cpu,cpuacct:/c\n2:pids:/c\n0::/c\n",
            &["/sys/fs/cgroup/memory/kubepods/c", "/sys/fs/cgroup/cpu,cpuacct/c"],
        );
        // What a part of a hierarchy is mounted at.
        let part = "30 25 0:26 /outer /groups rw - cgroup2 none rw\n";
        check(part, "0::/outer/c\n", &["/groups/c"]);
        check(part, "0::/elsewhere\n", &[]);
        check("rubbish\n", "rubbish\n1:\n0::/c\n", &[]);
    }
}
