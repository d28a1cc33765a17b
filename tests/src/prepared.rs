//! What containerd has of the images that every cluster needs: made once, and given to all sandboxes.
//!
//! An import reads, hashes and writes half a gigabyte, most of it the development build itself, and takes longer than all else
//! of a cluster's start. So a cluster of its own does it once for each build, and its containerd's root is kept in `target`. A
//! sandbox begins with hard links to its files: containerd changes neither content nor the files of a layer, but only its
//! databases, which are copied. Where there can be no links, since the sandboxes lie on another file system, nothing is kept,
//! and each cluster imports for itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::{Sandbox, root};

/// The images.
const IMAGES: [&str; 2] = ["pause", "virt-launcher"];

/// Where it is kept.
fn kept() -> PathBuf {
    root().join("target/e2e-containerd")
}

/// Gives a cluster that has never been up a containerd's root that has the images: its only node, or each of so many.
pub(crate) fn give(sandbox: &Sandbox, nodes: Option<u32>) {
    let data_dir = sandbox.data_dir();
    let places: Vec<PathBuf> = match nodes {
        None => vec![data_dir],
        Some(count) => (1..=count).map(|number| data_dir.join(format!("nodes/node-{number}"))).collect(),
    };
    if places.iter().any(|place| place.join("containerd").exists()) {
        return;
    }
    // Cargo's own may lie elsewhere.
    fs::create_dir_all(root().join("target")).expect("a directory");
    let lock = File::create(root().join("target/e2e-containerd.lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a turn");
    if !keep(sandbox) {
        return;
    }
    for place in places {
        let containerd = place.join("containerd");
        fs::create_dir_all(&containerd).expect("a directory");
        link(sandbox, &kept().join("root"), &containerd.join("root"));
    }
}

/// Sees to it that what is kept is of the images as they are now. Whether there is anything.
fn keep(sandbox: &Sandbox) -> bool {
    let place = sandbox.scratch();
    let of = place.join("of");
    let arguments: Vec<&str> = ["image", "build", "--no-import"].into_iter().chain(IMAGES).collect();
    sandbox.carrack(&arguments).limit_s(300).done();
    let stamps = IMAGES.map(|image| fs::read_to_string(root().join(format!("target/e2e-images/{image}.json"))));
    let stamps = stamps.map(|stamp| stamp.expect("a built image has a stamp")).concat();
    if fs::read_to_string(kept().join("of")).is_ok_and(|of| of == stamps) {
        return true;
    }
    if kept().exists() {
        fs::remove_dir_all(kept()).expect("an older one goes");
    }
    fs::create_dir_all(kept()).expect("a directory");
    fs::create_dir_all(&place).expect("a directory");
    fs::write(&of, &stamps).expect("written");
    if fs::hard_link(&of, kept().join("reachable")).is_err() {
        return false;
    }
    let dir = place.join("d").display().to_string();
    sandbox.carrack(&["up", "--detach", "--data-dir", &dir]).limit_s(180).done();
    sandbox.carrack(&["down", "--data-dir", &dir]).limit_s(120).done();
    link(sandbox, &place.join("d/containerd/root"), &kept().join("root"));
    sandbox.carrack(&["down", "--purge", "--data-dir", &dir]).limit_s(120).done();
    // Last, since it says that all is there.
    fs::rename(&of, kept().join("of")).expect("kept");
    true
}

/// The same containerd's root at another place.
fn link(sandbox: &Sandbox, from: &Path, to: &Path) {
    sandbox.program("cp", &["-al", &from.display().to_string(), &to.display().to_string()]).done();
    for plugin in fs::read_dir(to).expect("a containerd's root") {
        let plugin = plugin.expect("an entry").path();
        for file in fs::read_dir(&plugin).into_iter().flatten() {
            let file = file.expect("an entry").path();
            if file.extension().is_some_and(|extension| extension == "db") {
                let own = file.with_extension("own");
                fs::copy(&file, &own).and_then(|_| fs::rename(&own, &file)).expect("a database of its own");
            }
        }
    }
}
