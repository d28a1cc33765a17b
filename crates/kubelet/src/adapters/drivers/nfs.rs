//! Directories of NFS servers (upstream's `pkg/volume/nfs`), mounted for each pod by the system's `mount` and its helper.

use std::fs;
use std::net::Ipv6Addr;

use carrack_disks::system;

use super::failed;
use crate::effects::OpError;
use crate::volumes::Origin;

/// What `mount` is told. The server's name comes from whoever made the pod: it is no option of `mount`'s, whatever it begins with
/// (`--fstab=` would let a file in a volume of theirs say what is mounted).
fn arguments(origin: &Origin, server: &str, exported: &str, at: &str) -> Vec<String> {
    // The volume's own options come last, but nothing makes writable what is to be read alone.
    let mut options: Vec<&str> = origin.mount_options.iter().map(String::as_str).collect();
    if origin.read_only {
        options.retain(|option| *option != "rw");
        options.push("ro");
    }
    let mut told = vec!["-t".to_owned(), "nfs".to_owned()];
    if !options.is_empty() {
        told.extend(["-o".to_owned(), options.join(",")]);
    }
    let from = match server.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{server}]:{exported}"),
        Err(_) => format!("{server}:{exported}"),
    };
    told.extend(["--".to_owned(), from, at.to_owned()]);
    told
}

/// Whether a kernel's list of file systems has NFS.
fn is_known(filesystems: &str) -> bool {
    filesystems.lines().any(|line| line.split_whitespace().next_back().is_some_and(|name| name.starts_with("nfs")))
}

/// Mounts a directory of a server at a place that is there.
///
/// # Errors
/// What `mount` says; and that the kernel knows no NFS, where that is why.
pub(super) async fn mount(origin: &Origin, server: &str, exported: &str, at: &str) -> Result<(), OpError> {
    // Helpers of `mount` have options as well.
    if server.starts_with('-') {
        return failed(format!("{server:?} is no name of an NFS server"));
    }
    let told = arguments(origin, server, exported, at);
    let told: Vec<&str> = told.iter().map(String::as_str).collect();
    let Err(error) = system("mount", &told).await else { return Ok(()) };
    // Mounting loads the kernel's part where that is a module: what lacks then is not there at all.
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    match is_known(&known) {
        true => Err(error.into()),
        false => failed(format!("this node's kernel cannot mount NFS ({server}:{exported}): {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(read_only: bool, options: &[&str]) -> Origin {
        serde_json::from_value(serde_json::json!({
            "driver": {"kind": "nfs", "server": "s", "path": "/p"}, "specName": "pv", "block": false,
            "readOnly": read_only, "fsType": "", "mountOptions": options, "accessModes": [],
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_server_is_no_option() {
        let refused = mount(&origin(false, &[]), "--fstab=/a", "/p", "/nowhere").await.unwrap_err();
        assert!(refused.to_string().contains("is no name of an NFS server"), "{refused}");
    }

    #[test]
    fn what_mount_is_told() {
        for (read_only, options, server, expected) in [
            (false, &[][..], "files.example", "-t nfs -- files.example:/p /at"),
            (true, &[], "files.example", "-t nfs -o ro -- files.example:/p /at"),
            (false, &["ro"], "192.0.2.1", "-t nfs -o ro -- 192.0.2.1:/p /at"),
            (false, &["nfsvers=4.1", "hard"], "192.0.2.1", "-t nfs -o nfsvers=4.1,hard -- 192.0.2.1:/p /at"),
            (true, &["rw", "hard"], "2001:db8::1", "-t nfs -o hard,ro -- [2001:db8::1]:/p /at"),
            (false, &[], "--fstab=/a", "-t nfs -- --fstab=/a:/p /at"),
        ] {
            let told = arguments(&origin(read_only, options), server, "/p", "/at").join(" ");
            assert_eq!(told, expected, "{read_only} {options:?} {server}");
        }
    }

    #[test]
    fn kernels_that_know_nfs() {
        for (list, known) in [
            ("nodev\ttmpfs\n\text4\n", false),
            ("nodev\tnfs\n", true),
            ("nodev\tnfs4\n", true),
            ("nodev\tnonfs\n", false),
        ] {
            assert_eq!(is_known(list), known, "{list:?}");
        }
    }
}
