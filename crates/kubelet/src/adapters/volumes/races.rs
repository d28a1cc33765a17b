//! Directories that are swapped for links while a part of their volume is bound: whoever can write to a volume can do that
//! at any time, and must not get at anything of the node.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

/// How often a part is bound at least.
const ROUNDS: u32 = 400;
/// And at most, until swaps have fallen on both sides.
const MOST_ROUNDS: u32 = 40_000;

/// Swaps two paths again and again until it is told to stop.
fn swap(one: &Path, other: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // One of them is missing while another thread has the directory above in its hands.
        if renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Takes a directory away and puts it back.
fn hide(path: &Path, stop: &AtomicBool) {
    let aside = path.with_extension("aside");
    while !stop.load(Ordering::Relaxed) {
        if fs::rename(path, &aside).is_ok() {
            std::thread::yield_now();
            // What the kubelet made meanwhile is empty and gives way.
            if fs::rename(&aside, path).is_err() {
                fs::remove_dir_all(&aside).unwrap_or_default();
            }
        }
    }
}

/// What lies below a directory of the node, by name.
fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
            names.push(entry.path().to_string_lossy().into_owned());
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            }
        }
    }
    names.sort();
    names
}

/// Binds `part` while `attack` is made on the volume, until it was bound and refused often enough.
fn check(part: &str, enough: impl Fn(u32, u32) -> bool, attack: impl Fn(&Path, &AtomicBool) + Sync) {
    let dir = tempfile::tempdir().unwrap();
    let (volume, secret) = (dir.path().join("pods/u/volumes/p/v"), dir.path().join("secret"));
    fs::create_dir_all(volume.join("a/b")).unwrap();
    fs::create_dir_all(secret.join("b")).unwrap();
    fs::write(secret.join("key"), "of the node").unwrap();
    fs::write(secret.join("b/key"), "of the node").unwrap();
    std::os::unix::fs::symlink(&secret, volume.join("to-secret")).unwrap();
    std::os::unix::fs::symlink("../../../../../../secret/b", volume.join("a/to-b")).unwrap();
    let (before, stop) = (listing(&secret), AtomicBool::new(false));
    let bind_at = dir.path().join("pods/u/volume-subpaths/v/c/0");
    let sub_path = SubPath { path: part.into(), bind_at: bind_at.to_string_lossy().into_owned() };
    let (mut bound, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| attack(&volume, &stop));
        for round in 0..MOST_ROUNDS {
            if round >= ROUNDS && enough(bound, refused) {
                break;
            }
            match bind_part(&volume.to_string_lossy(), &sub_path) {
                Ok(()) => {
                    bound += 1;
                    let found = fs::read_dir(&bind_at).map(|entries| entries.flatten().map(|e| e.file_name()));
                    let found: Vec<_> = found.into_iter().flatten().collect();
                    let leaks = found.iter().any(|name| name == "key");
                    unmount_below(&sub_path.bind_at).unwrap();
                    if leaks {
                        stop.store(true, Ordering::Relaxed);
                        panic!("round {round}: {found:?} of the node is in the container");
                    }
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(listing(&secret), before, "something was made outside the volume");
    // A test in which nothing was swapped would show nothing.
    assert!(enough(bound, refused), "{part}: bound {bound} times, refused {refused} times");
}

#[test]
fn links_that_take_the_place_of_directories_lead_nowhere() {
    // Binding takes privileges.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    type Attack = fn(&Path, &AtomicBool);
    let attacks: [(&str, Attack); 4] = [
        ("a/b", |volume, stop| swap(&volume.join("a"), &volume.join("to-secret"), stop)),
        ("a/b", |volume, stop| swap(&volume.join("a/b"), &volume.join("a/to-b"), stop)),
        ("to-secret/b", |volume, stop| swap(&volume.join("a"), &volume.join("to-secret"), stop)),
        ("a/to-b/new", |volume, stop| swap(&volume.join("a/b"), &volume.join("a/to-b"), stop)),
    ];
    for (part, attack) in attacks {
        check(part, |bound, refused| bound > 0 && refused > 0, attack);
    }
}

#[test]
fn what_vanishes_while_it_is_bound_is_made_inside() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    check("a/b/c", |bound, _| bound > 0, |volume, stop| hide(&volume.join("a/b"), stop));
}
