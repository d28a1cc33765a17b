//! Control groups that pods leave behind.
//!
//! A pod's group goes with it, unless something of it has not ended yet. It stays then, and so does one that was made for a pod that
//! is known here by what runs alone, which does not say its class. So the groups of every class are looked through for those of pods
//! that are not here any more (kubelet `cm/qos_container_manager_linux.go`, and `cleanupOrphanedPodCgroups`).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Hierarchy, here};
use crate::runtime::{Uid, is_uid};

/// Where pods' groups are, below the one of all pods.
const CLASSES: [&str; 3] = ["", "burstable", "besteffort"];

/// Removes a pod's control group with what is below it. What still holds processes stays.
pub fn remove(path: &str) {
    for root in here().map(roots).unwrap_or_default() {
        if let Err(error) = remove_below(&root.join(path.trim_start_matches('/'))) {
            tracing::debug!(path, %error, "a control group stays");
        }
    }
}

/// Removes the control groups of all pods but these, which are below `group`. The kernel removes none in which something runs.
///
/// # Errors
/// What it says of the first one that stays; the others are removed all the same.
pub fn sweep(group: &str, keep: &BTreeSet<Uid>) -> io::Result<()> {
    sweep_in(&roots(here()?), group, keep)
}

/// The directories that hierarchies are mounted at.
fn roots(hierarchy: &Hierarchy) -> Vec<&PathBuf> {
    match hierarchy {
        Hierarchy::V1(mounts) => mounts.iter().map(|(_, path)| path).collect(),
        Hierarchy::V2(root) => vec![root],
        Hierarchy::None => Vec::new(),
    }
}

fn sweep_in(roots: &[&PathBuf], group: &str, keep: &BTreeSet<Uid>) -> io::Result<()> {
    let mut first = Ok(());
    for root in roots {
        for class in CLASSES {
            let dir = root.join(group.trim_matches('/')).join(class);
            for left in left_in(&dir, keep)? {
                match remove_below(&left) {
                    Ok(()) => {
                        tracing::info!(group = %left.display(), "a control group of a pod that is gone is removed")
                    }
                    Err(error) => first = first.and(Err(error)),
                }
            }
        }
    }
    first
}

/// Groups in a directory that are of pods, and of none of these.
fn left_in(dir: &Path, keep: &BTreeSet<Uid>) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(told(dir, &error)),
    };
    let mut left = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| told(dir, &error))?;
        let name = entry.file_name();
        let uid = name.to_str().and_then(|name| name.strip_prefix("pod")).filter(|uid| is_uid(uid));
        if uid.is_some_and(|uid| !keep.contains(uid)) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            left.push(entry.path());
        }
    }
    Ok(left)
}

/// Removes a group with what is below it. One that is not there is removed.
fn remove_below(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_below(&entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(told(dir, &error)),
        _ => Ok(()),
    }
}

fn told(dir: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_pods_that_are_gone_go_whatever_their_class() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let make = |path: &str| fs::create_dir_all(root.join("kubepods").join(path)).unwrap();
        let there = |path: &str| root.join("kubepods").join(path).exists();
        let gone = ["podu1/c", "burstable/podu2", "besteffort/podu3/c/own"];
        let stay = ["podk1", "burstable/podk2/c", "burstable/other", "poda.b", "pod", "besteffort/x/podu9"];
        gone.iter().chain(&stay).for_each(|path| make(path));
        // What holds something stays, and keeps no other from going.
        make("burstable/podu0");
        fs::write(root.join("kubepods/burstable/podu0/held"), "").unwrap();
        let keep: BTreeSet<Uid> = ["k1", "k2"].map(Uid::from).into();
        assert!(sweep_in(&[&root], "/kubepods", &keep).is_err());
        fs::remove_file(root.join("kubepods/burstable/podu0/held")).unwrap();
        for path in ["podu1", "burstable/podu2", "besteffort/podu3"] {
            assert!(!there(path), "{path}");
        }
        assert!(there("burstable/podu0"));
        assert!(sweep_in(&[&root], "/kubepods", &keep).is_ok());
        assert!(!there("burstable/podu0"));
        for path in stay {
            assert!(there(path), "{path}");
        }
        // Without groups there are none to remove.
        assert!(sweep_in(&[&root], "/none", &keep).is_ok() && sweep_in(&[], "/kubepods", &keep).is_ok());
    }
}
