//! Where the launcher's files and sockets lie, seen from the container or from the host.
//!
//! Three directories of the pod are shared with virt-handler, under KubeVirt's names: `sockets` with the
//! command socket, `public` with the domain's state, and `private` with everything of QEMU's.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// Longer paths do not fit into a socket address (`sun_path` holds 108 bytes with its end).
const SOCKET_PATH_BYTES: usize = 107;

/// The three directories and the machine they are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// `/var/run/kubevirt/sockets` in the container.
    pub sockets: PathBuf,
    /// `/var/run/kubevirt` in the container.
    pub public: PathBuf,
    /// `/var/run/kubevirt-private` in the container.
    pub private: PathBuf,
    /// The VirtualMachineInstance's UID.
    pub uid: String,
}

impl Layout {
    /// The directories as the container sees them.
    pub fn in_container(uid: &str) -> Self {
        Self {
            sockets: "/var/run/kubevirt/sockets".into(),
            public: "/var/run/kubevirt".into(),
            private: "/var/run/kubevirt-private".into(),
            uid: uid.to_owned(),
        }
    }

    /// The directories as the host sees them: the emptyDir volumes `sockets`, `public` and `private` of a pod
    /// whose volumes lie under `pod_volumes` (`…/pods/<uid>/volumes/kubernetes.io~empty-dir`).
    pub fn on_host(pod_volumes: &Path, uid: &str) -> Self {
        Self {
            sockets: pod_volumes.join("sockets"),
            public: pod_volumes.join("public"),
            private: pod_volumes.join("private"),
            uid: uid.to_owned(),
        }
    }

    /// The command socket, on which the monitor answers virt-handler.
    pub fn command_socket(&self) -> PathBuf {
        self.sockets.join("launcher-sock")
    }

    /// The domain's last known state, as JSON; see [`crate::Domain`].
    pub fn domain_file(&self) -> PathBuf {
        self.public.join("domain.json")
    }

    /// Until when the guest may run; see [`crate::promise`].
    pub fn promise_file(&self) -> PathBuf {
        self.public.join("promise")
    }

    /// The directory of QEMU's sockets and scratch files.
    pub fn machine_dir(&self) -> PathBuf {
        self.private.join(&self.uid)
    }

    /// The guest's first serial port.
    pub fn serial_socket(&self) -> PathBuf {
        self.machine_dir().join("virt-serial0")
    }

    /// What the guest wrote to its first serial port.
    pub fn serial_log(&self) -> PathBuf {
        self.machine_dir().join("virt-serial0-log")
    }

    /// The guest's screen, as RFB.
    pub fn vnc_socket(&self) -> PathBuf {
        self.machine_dir().join("virt-vnc")
    }

    /// A picture of the screen.
    pub fn screenshot(&self, name: &str) -> PathBuf {
        self.machine_dir().join(format!("screenshot-{name}.png"))
    }

    /// The QMP socket that the monitor holds.
    pub fn monitor_qmp_socket(&self) -> PathBuf {
        self.machine_dir().join("qmp-monitor")
    }

    /// A second QMP socket, for diagnosis and for when there is no monitor.
    pub fn spare_qmp_socket(&self) -> PathBuf {
        self.machine_dir().join("qmp-spare")
    }

    /// A third QMP socket: copies of disks are made over it, so that nothing else waits for them.
    pub fn copy_qmp_socket(&self) -> PathBuf {
        self.machine_dir().join("qmp-copy")
    }

    /// The guest agent's channel.
    pub fn agent_socket(&self) -> PathBuf {
        self.machine_dir().join("guest-agent")
    }

    /// UEFI's variables, where they go with the machine.
    pub fn firmware_vars(&self) -> PathBuf {
        self.machine_dir().join("firmware-vars.fd")
    }

    /// The state of the trusted platform module.
    pub fn tpm_dir(&self) -> PathBuf {
        self.machine_dir().join("tpm")
    }

    /// The socket by which QEMU finds the trusted platform module.
    pub fn tpm_socket(&self) -> PathBuf {
        self.machine_dir().join("tpm-control")
    }

    /// Where the volume for a copy of a disk is, as long as the copy is begun; of several, the one with this number.
    pub fn copy_dir(&self, number: usize) -> PathBuf {
        self.machine_dir().join(format!("copy-{number}"))
    }

    /// The specification that QEMU was started from, for a monitor that takes over.
    pub fn spec_file(&self) -> PathBuf {
        self.machine_dir().join("machine.json")
    }

    /// Locked by the living monitor.
    pub fn monitor_lock(&self) -> PathBuf {
        self.private.join("monitor.lock")
    }
}

/// Connects to the unix socket at `path`, however long the path is.
///
/// # Errors
/// Those of opening the directory and of connecting.
pub async fn connect(path: &Path) -> io::Result<tokio::net::UnixStream> {
    let (_directory, path) = short(path)?;
    tokio::net::UnixStream::connect(path).await
}

/// Listens on a unix socket at `path`, however long the path is, in place of what lies there.
///
/// # Errors
/// Those of opening the directory, removing the old socket and binding.
pub fn listen(path: &Path) -> io::Result<tokio::net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (_directory, path) = short(path)?;
    tokio::net::UnixListener::bind(path)
}

/// A path for the same socket that fits into an address: pod directories on the host are often too deep.
fn short(path: &Path) -> io::Result<(Option<std::fs::File>, PathBuf)> {
    if path.as_os_str().len() <= SOCKET_PATH_BYTES {
        return Ok((None, path.to_path_buf()));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket needs a directory and a name"));
    };
    let directory = std::fs::File::open(parent)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((Some(directory), short))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn deep_sockets_can_be_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("x".repeat(60)).join("y".repeat(60));
        std::fs::create_dir_all(&deep).expect("made");
        for directory in [dir.path(), &deep] {
            let path = directory.join("socket");
            let first = listen(&path).expect("listens");
            drop(first);
            let listener = listen(&path).expect("listens in place of what is left");
            let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
            accepted.expect("accepted");
            connected.expect("connected");
        }
    }
}
