//! What a node asks of the kernel's cgroups: that a process is moved into one without waiting.
//!
//! Whoever starts a container makes cgroups and moves its first process into them. The kernel holds up all forks and exits for that,
//! and to begin to do so waits for a grace period of its own, some 10 ms, two or three times for each pod that starts. With
//! `favordynmods` it is ready for it at any time (since 6.18 it holds up the moved process alone), and a fork costs a little more.
//! The option belongs to the machine's only hierarchy of version 2, wherever that is mounted, and is good for those of version 1 too;
//! it stays when the cluster ends, as other settings of the kernel do that the node needs (`ip_forward`).
//!
//! Upstream: `favordynmods` in the kernel's `Documentation/admin-guide/cgroup-v2.rst`. systemd's `nsdelegate` and others are set on the
//! same mount, and would go with a change that does not name them.

use std::io;

use carrack_disks::mounts::{self, MountPoint};
use rustix::fs::CWD;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

const OPTION: &str = "favordynmods";

/// Options that mountinfo shows and that are none of the hierarchy's own.
const OTHERS: [&str; 3] = ["rw", "ro", "seclabel"];

/// Has the kernel move processes between cgroups without waiting. Where it cannot, before 6.0, pods start as they would otherwise.
pub(crate) fn favour_moves() {
    match try_to() {
        Ok(true) => tracing::info!("cgroups: the kernel moves processes without waiting ({OPTION})"),
        Ok(false) => {}
        Err(error) => tracing::info!(%error, "cgroups: the kernel takes its time to move processes"),
    }
}

/// Whether it had to be set.
fn try_to() -> io::Result<bool> {
    let Some((path, options)) = missing(&mounts::all()?) else { return Ok(false) };
    let hierarchy = fspick(CWD, &path, FsPickFlags::FSPICK_CLOEXEC)?;
    for option in options.iter().map(String::as_str).chain([OPTION]) {
        fsconfig_set_flag(&hierarchy, option)?;
    }
    fsconfig_reconfigure(&hierarchy)?;
    Ok(true)
}

/// Where the hierarchy of version 2 is mounted that lacks the option, and the options that it has.
fn missing(mounts: &[MountPoint]) -> Option<(String, Vec<String>)> {
    let hierarchy = mounts.iter().find(|mount| mount.fs_type == "cgroup2")?;
    let own = hierarchy.super_options.split(',').filter(|option| !OTHERS.contains(option));
    let options: Vec<String> = own.map(str::to_owned).collect();
    (!options.iter().any(|option| option == OPTION)).then(|| (hierarchy.path.clone(), options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_hierarchy_has_is_kept() {
        let check = |table: &str, expected: Option<(&str, &[&str])>| {
            let found = missing(&mounts::parse(table.as_bytes()));
            let expected =
                expected.map(|(path, options)| (path.to_owned(), options.iter().map(|o| (*o).to_owned()).collect()));
            assert_eq!(found, expected, "{table}");
        };
        let v1 = "31 20 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        check(v1, None);
        let hybrid = format!("{v1}32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
        check(&hybrid, Some(("/sys/fs/cgroup/unified", &[])));
        let systemd =
            "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,seclabel,nsdelegate,memory_recursiveprot\n";
        check(systemd, Some(("/sys/fs/cgroup", &["nsdelegate", "memory_recursiveprot"])));
        check("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,favordynmods\n", None);
    }

    /// The kernel of this machine: it takes the option, or says that it does not know it.
    #[test]
    fn the_kernel_takes_it_or_does_not_know_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let before = mounts::all().expect("mounts");
        match try_to() {
            Ok(_) => {
                let after = mounts::all().expect("mounts");
                assert_eq!(missing(&after), None, "it has it, or there is no such hierarchy");
                let options = |mounts: &[MountPoint]| {
                    let of =
                        mounts.iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| mount.super_options.clone());
                    of.unwrap_or_default().replace(",favordynmods", "")
                };
                assert_eq!(options(&after), options(&before), "nothing else has changed");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(22), "{error}"),
        }
    }
}
