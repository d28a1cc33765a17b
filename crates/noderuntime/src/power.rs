//! Switches one of several nodes off as a power cut does, and on again: for tests and drills.
//!
//! What a machine forgets without power is taken away (processes, mounts, links, the runtime's state, files of processes);
//! what its disk keeps stays, and the next start finds another boot's id.

use std::fs;
use std::io;

use crate::layout::Layout;
use crate::members::{boot_id_file, off_file};
use crate::teardown::{kill_left, remove_file, remove_tree, shim_sockets, unmount_all};

/// Ends everything of a node at once. Nothing is told to anybody, as with a power cut. The node stays off, also when the
/// cluster is started again, until [`switch_on`]. Run it in the node's network namespace, whose links go. Blocks.
///
/// # Errors
/// Something survives it.
pub fn cut(node: &Layout) -> io::Result<()> {
    // First, so that nobody starts the agent again meanwhile.
    fs::write(off_file(node), "")?;
    let sockets = shim_sockets(node);
    kill_left(node, &[node.pidfile(), node.containerd_pidfile()], Vec::new(), &mut |_| {})?;
    unmount_all(node)?;
    for link in links()? {
        let status = std::process::Command::new("ip").args(["link", "delete", &link]).output()?.status;
        tracing::debug!(link, %status, "a link goes");
    }
    for socket in sockets {
        remove_file(&socket)?;
    }
    for file in [node.pidfile(), node.containerd_pidfile(), node.containerd_socket()] {
        remove_file(&file)?;
    }
    remove_tree(&node.containerd_state())?;
    new_boot(node)
}

/// Lets a node start again. Whoever runs the cluster starts its agent.
///
/// # Errors
/// The mark stays.
pub fn switch_on(node: &Layout) -> io::Result<()> {
    remove_file(&off_file(node))
}

/// Gives a node a boot's id if it has none, and returns where it is.
///
/// # Errors
/// It cannot be written.
pub fn boot_id(node: &Layout) -> io::Result<std::path::PathBuf> {
    let file = boot_id_file(node);
    if !file.exists() {
        new_boot(node)?;
    }
    Ok(file)
}

fn new_boot(node: &Layout) -> io::Result<()> {
    // The kernel makes a new random UUID each time that this is read.
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    fs::write(boot_id_file(node), id)
}

/// Links of pods and their bridge in this namespace, as CNI's plugins name them. `/sys` shows another namespace's.
fn links() -> io::Result<Vec<String>> {
    let output = std::process::Command::new("ip").args(["-json", "link", "show"]).output()?;
    let all: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let names = all.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
    Ok(names.filter(|name| name.starts_with("veth") || name.starts_with("cni")).map(str::to_owned).collect())
}
