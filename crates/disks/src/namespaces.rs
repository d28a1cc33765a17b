//! Who else has a file system mounted, in whichever mount namespace.
//!
//! A mount that lies on a shared one is copied to every namespace that gets what is mounted there: to those of most services of
//! a machine with systemd, to containers that see the node's directories (`HostToContainer`), to drivers in pods
//! (`Bidirectional`). The kernel takes such a copy away with the mount that it is of, unless something in it is in use, and then
//! it takes away neither (`propagate_umount`, `propagate_mount_busy` in its `fs/pnode.c`). So a copy is nobody's use; one on
//! which something else is mounted stays, though, and counts.
//!
//! ```text
//!   node:      / (shared:1) ── globalmount             the mount
//!   service:   / (master:1) ── globalmount             its copy, which goes with it
//!   service:   / (private)  ── globalmount             as it was when the service began: it stays
//!   container: / (overlay)  ── /data                   a user
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::mounts::{Line, below, seen_by, without_links};
use crate::{is_gone, processes};

/// What concerns a part of a file system in a mount namespace, as a process sees it.
struct Namespace {
    /// The process.
    pid: String,
    /// Mounts of the part, those that they lie on, and those that lie on them.
    mounts: Vec<Line>,
    /// Groups of mounts, each with one that gets what is mounted on it.
    passes: BTreeSet<(u64, u64)>,
}

impl Namespace {
    /// The rest of a long table is not kept: there are as many as there are containers.
    fn of(pid: String, mut mounts: Vec<Line>, part: &Part<'_>) -> Self {
        let mut passes = BTreeSet::new();
        for line in &mounts {
            if let Some(to) = line.shared {
                passes.extend(line.from.iter().map(|from| (*from, to)));
            }
        }
        let (ids, parents): (BTreeSet<u64>, BTreeSet<u64>) =
            mounts.iter().filter(|line| part.is(line)).map(|line| (line.id, line.parent)).unzip();
        mounts.retain(|line| part.is(line) || parents.contains(&line.id) || ids.contains(&line.parent));
        Self { pid, mounts, passes }
    }
}

/// A part of a device's file system.
struct Part<'a> {
    device: &'a str,
    root: &'a str,
}

impl Part<'_> {
    /// Whether a mount is of it, or of something within it.
    fn is(&self, mount: &Line) -> bool {
        mount.point.device == self.device && below(&mount.point.root, self.root).is_some()
    }
}

/// Where on the file system of the mount that it lies on a mount is: that file system's device, and the path in it.
fn place<'a>(mount: &Line, on: &'a Line) -> Option<(&'a str, String)> {
    let rest = below(&mount.point.path, &on.point.path)?;
    Some((on.point.device.as_str(), format!("{}{rest}", on.point.root.trim_end_matches('/'))))
}

fn lies_on<'a>(mount: &Line, all: &'a [Line]) -> Option<&'a Line> {
    all.iter().find(|line| line.id == mount.parent)
}

/// Groups of mounts that get what is mounted on those of one, as far as the namespaces show.
fn receivers(of: u64, all: &[Namespace]) -> BTreeSet<u64> {
    let mut groups = BTreeSet::from([of]);
    loop {
        let known = groups.len();
        for (from, to) in all.iter().flat_map(|namespace| &namespace.passes) {
            if groups.contains(from) {
                groups.insert(*to);
            }
        }
        if groups.len() == known {
            return groups;
        }
    }
}

/// What goes when mounts of this namespace go.
struct Copies<'a> {
    /// Where those are.
    places: BTreeSet<(&'a str, String)>,
    /// Groups that hear of it.
    groups: BTreeSet<u64>,
}

impl<'a> Copies<'a> {
    /// For the mounts at paths that lie on shared ones, by the group of those.
    fn of(ours: &[String], own: &'a [Line], all: &[Namespace]) -> Vec<Self> {
        let mut by_group: BTreeMap<u64, BTreeSet<(&str, String)>> = BTreeMap::new();
        for at in ours {
            let Some(mount) = own.iter().rev().find(|line| line.point.path == *at) else { continue };
            let Some(on) = lies_on(mount, own) else { continue };
            if let (Some(group), Some(place)) = (on.shared, place(mount, on)) {
                by_group.entry(group).or_default().insert(place);
            }
        }
        let copies = |(group, places)| Self { places, groups: receivers(group, all) };
        by_group.into_iter().map(copies).collect()
    }

    fn has(&self, mount: &Line, all: &[Line]) -> bool {
        let Some(on) = lies_on(mount, all) else { return false };
        let gets = on.shared.iter().chain(&on.from).any(|group| self.groups.contains(group));
        let is_there = place(mount, on).is_some_and(|at| self.places.contains(&at));
        gets && is_there && all.iter().all(|line| line.parent != mount.id)
    }
}

/// The first that has it: its process, and where. A mount has one number for all who see it: by that it is ours, whatever
/// namespace it is seen in, and by that it is a copy for those, too, who do not see what it lies on.
fn user(part: &Part<'_>, ours: &[String], own: &[Line], all: &[Namespace]) -> Option<(String, String)> {
    let copies = Copies::of(ours, own, all);
    let nodes = own.iter().filter(|line| ours.contains(&line.point.path)).map(|line| line.id);
    let mut idle: BTreeSet<u64> = nodes.collect();
    for namespace in all {
        let is_copy = |m: &&Line| part.is(m) && copies.iter().any(|copies| copies.has(m, &namespace.mounts));
        idle.extend(namespace.mounts.iter().filter(is_copy).map(|m| m.id));
    }
    all.iter().find_map(|namespace| {
        let other = namespace.mounts.iter().find(|m| part.is(m) && !idle.contains(&m.id))?;
        Some((namespace.pid.clone(), other.point.path.clone()))
    })
}

/// What a process sees mounts of: its namespace, and the directory that it is shut into.
fn view_of(pid: &str) -> io::Result<(PathBuf, PathBuf)> {
    Ok((fs::read_link(format!("/proc/{pid}/ns/mnt"))?, fs::read_link(format!("/proc/{pid}/root"))?))
}

/// Who has a part of a device's file system, or something within it, mounted elsewhere than at paths of ours, in any mount
/// namespace: the process through which the namespace was seen, and the mount point there. What goes when our mounts go does
/// not count; once they have gone, it does. A process that ends meanwhile is left out; one that cannot be looked at is an error,
/// since then nothing is known.
///
/// Where the part is a directory of a larger file system, whoever has the larger one mounted does not count: it is there
/// for its own sake.
///
/// # Errors
/// When a namespace cannot be looked at.
pub fn elsewhere(device: &str, root: &str, ours: &[String]) -> io::Result<Option<(String, String)>> {
    let part = Part { device, root };
    let ours: Vec<String> = ours.iter().map(|path| without_links(path)).collect();
    let mut seen: BTreeSet<(PathBuf, PathBuf)> = BTreeSet::new();
    let mut all = Vec::new();
    for pid in processes()? {
        let view = match view_of(&pid) {
            Ok(view) => Some(view),
            Err(e) if is_gone(&e) => continue,
            // A process with more rights than ours does not show where it is. Its mounts show all the same.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            Err(e) => return Err(e),
        };
        if view.as_ref().is_some_and(|view| !seen.insert(view.clone())) {
            continue;
        }
        match seen_by(&pid) {
            Ok(mounts) => all.push(Namespace::of(pid, mounts, &part)),
            // The namespace may have other processes: the next of them is looked at.
            Err(e) if is_gone(&e) || e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                seen.retain(|known| Some(known) != view.as_ref());
            }
            Err(e) => return Err(e),
        }
    }
    // Read last: what the numbers say of it is not older than what they say of others.
    let own = seen_by("self")?;
    Ok(user(&part, &ours, &own, &all))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::mounts::{self, lines};
    use crate::testing::apart;

    #[test]
    fn copies_that_go_with_the_mount_are_no_use_of_it() {
        let own = "1 0 8:1 / / rw shared:1 - ext4 a rw\n2 1 7:0 / /k/global rw shared:9 - ext4 b rw\n";
        let private = own.replace("shared:1 ", "");
        let twice = format!("{own}3 1 7:0 / /k/other rw - ext4 b rw\n");
        let service =
            |tag: &str| format!("11 10 8:1 / / rw {tag}- ext4 a rw\n12 11 7:0 / /k/global rw master:9 - ext4 b rw\n");
        let below = |tag: &str, root: &str| {
            format!(
                "20 19 0:30 / / rw - overlay o rw\n21 20 8:1 {root} /host rw {tag}- ext4 a rw\n\
                 22 21 7:0 / /host/global rw master:9 - ext4 b rw\n"
            )
        };
        // What its root lies on is not seen from there.
        let shut = |id: &str| format!("{id} 7:0 / /global rw master:9 - ext4 b rw\n");
        let user = "20 19 0:30 / / rw - overlay o rw\n23 20 7:0 / /data rw master:9 - ext4 b rw\n".to_owned();
        let more = |of: &str| format!("{of}30 22 0:40 / /host/global/more rw - tmpfs t rw\n");
        let ours = ["/k/global".to_owned()];
        let slave = "11 10 8:1 / / rw shared:5 master:1 - ext4 a rw\n".to_owned();
        for (what, own, others, expected) in [
            ("nobody", own, vec![], None),
            ("who is shut into a directory of the node's", own, vec![shut("2 1")], None),
            ("who is shut into a directory of another's", own, vec![shut("40 39")], Some("/global")),
            ("the same, whose copy is seen by another", own, vec![service("master:1 "), shut("12 11")], None),
            ("a service", own, vec![service("master:1 ")], None),
            ("a peer", own, vec![service("shared:1 ")], None),
            ("a namespace of before", own, vec![service("")], Some("/k/global")),
            ("what others get", own, vec![service("master:4 ")], Some("/k/global")),
            ("what gets it from one that gets it", own, vec![service("master:5 "), slave], None),
            ("what is not shared", private.as_str(), vec![service("master:1 ")], Some("/k/global")),
            ("the node's directory in a container", own, vec![below("master:1 ", "/k")], None),
            ("another directory", own, vec![below("master:1 ", "/other")], Some("/host/global")),
            ("what has something on it", own, vec![more(&below("master:1 ", "/k"))], Some("/host/global")),
            ("another place of the node", twice.as_str(), vec![], Some("/k/other")),
            ("a container that has the volume", own, vec![service("master:1 "), user], Some("/data")),
        ] {
            let part = Part { device: "7:0", root: "/" };
            let seen_by = |pid: &str, text: &str| Namespace::of(pid.to_owned(), lines(text.as_bytes()), &part);
            let mut all = vec![seen_by("1", own)];
            all.extend(others.iter().map(|text| seen_by("2", text)));
            let found = super::user(&part, &ours, &lines(own.as_bytes()), &all).map(|(_, at)| at);
            assert_eq!(found.as_deref(), expected, "{what}");
        }
    }

    fn mount(arguments: &[&str]) {
        let output = Command::new("mount").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn other_namespaces_hold_what_they_keep_when_the_mount_goes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // In a namespace of a user's copies are locked, and go nevertheless with what they are of.
        let cases: [(&str, &[&str], bool); 4] = [
            ("slave", &[], false),
            ("slave", &["--user", "--map-root-user"], false),
            ("shared", &[], false),
            ("private", &[], true),
        ];
        for (propagation, more, holds) in cases {
            let dir = tempfile::tempdir().unwrap();
            let shared = dir.path().to_string_lossy().into_owned();
            mount(&["-t", "tmpfs", "node", &shared]);
            mount(&["--make-shared", &shared]);
            let at = format!("{shared}/volume");
            fs::create_dir(&at).unwrap();
            mount(&["-t", "tmpfs", "volume", &at]);
            let device = mounts::at(&at).unwrap().unwrap().device;
            let waits = ["--mount", "--propagation", propagation, "sh", "-c", "echo there; read -r _"];
            let mut other = apart(&[more, waits.as_slice()].concat());
            let pid = other.id().to_string();
            let own = seen_by("self").unwrap();
            let part = Part { device: &device, root: "/" };
            let all = [Namespace::of(pid.clone(), seen_by(&pid).unwrap(), &part)];
            let found = user(&part, std::slice::from_ref(&at), &own, &all);
            assert_eq!(found, holds.then(|| (pid.clone(), at.clone())), "{propagation}");
            mounts::unmount(&at).unwrap();
            let stays = seen_by(&pid).unwrap().iter().any(|line| line.point.path == at);
            assert_eq!(stays, holds, "{propagation}: what is said of it is true");
            drop(other.stdin.take());
            other.wait().unwrap();
            mounts::unmount(&shared).unwrap();
        }
    }
}
