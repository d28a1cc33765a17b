//! Where the launcher's files and sockets lie, seen from the container or from the host.
//!
//! Three directories of the pod are shared with virt-handler, under KubeVirt's names: `sockets` with the
//! command socket, `public` with the domain's state, and `private` with everything of QEMU's.
//!
//! Whoever is in the container writes there what he likes: a link to a socket of the host, or the node of a device. So
//! nothing there is opened by its path alone, but only what lies in the directory itself and is what it should be.
//! Upstream reference: KubeVirt's `pkg/safepath`.

use crate::receive;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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

/// Connects to the unix socket at `path`, however long the path is. No link is followed, neither there nor in its
/// directory's place.
///
/// # Errors
/// Those of opening the directory and of connecting; what lies there is no socket.
pub async fn connect(path: &Path) -> io::Result<tokio::net::UnixStream> {
    let socket = found(path, FileType::Socket)?;
    tokio::net::UnixStream::connect(by_descriptor(&socket)).await
}

/// Opens the regular file at `path` to be read. No link is followed, neither there nor in its directory's place, and
/// nothing else is opened: not even to look at it, as that alone may start a device.
///
/// # Errors
/// Those of opening; what lies there is no regular file.
pub fn open_file(path: &Path) -> io::Result<std::fs::File> {
    let file = found(path, FileType::RegularFile)?;
    std::fs::File::open(by_descriptor(&file))
}

/// Opens the regular file at `path` of the file system whose root is `root`, as those who live there see it: links are
/// followed, and none leads out of it. Nothing else than a regular file is opened.
///
/// # Errors
/// Those of opening; what lies there is no regular file.
pub fn open_inside(root: &Path, path: &Path) -> io::Result<std::fs::File> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    is_kind(&found, path, FileType::RegularFile)?;
    std::fs::File::open(by_descriptor(&found))
}

/// Removes the file at `path`, or the link that lies there. No link in its directory's place is followed.
///
/// # Errors
/// Those of opening the directory and of removing.
pub fn remove_file(path: &Path) -> io::Result<()> {
    let (directory, name) = split(path)?;
    Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?)
}

/// What lies at `path`, itself and not opened, if it is of this kind.
fn found(path: &Path, kind: FileType) -> io::Result<OwnedFd> {
    let (directory, name) = split(path)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    is_kind(&found, path, kind)?;
    Ok(found)
}

fn is_kind(found: &OwnedFd, path: &Path, kind: FileType) -> io::Result<()> {
    let is = FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode);
    if is == kind {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is a {is:?} and no {kind:?}", path.display())))
}

/// The directory of a path, which is no link, and the name in it.
fn split(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file needs a directory and a name"));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((rustix::fs::open(parent, flags, Mode::empty())?, name))
}

/// A path to what is open.
fn by_descriptor(open: &impl AsRawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(open.as_raw_fd().to_string())
}

/// Listens on a unix socket at `path`, however long the path is, in place of what lies there.
///
/// # Errors
/// Those of opening the directory, removing the old socket and binding.
pub fn listen(path: &Path) -> io::Result<tokio::net::UnixListener> {
    receive::remove(CWD, path)?;
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
    let short = by_descriptor(&directory).join(name);
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

    #[test]
    fn links_are_followed_inside_a_root_only() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        for directory in ["etc", "run"] {
            std::fs::create_dir_all(root.join(directory)).expect("made");
        }
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "the host's").expect("written");
        std::fs::write(root.join("run/resolv.conf"), "its own").expect("written");
        symlink("/run/resolv.conf", root.join("etc/absolute")).expect("linked");
        symlink("../run/resolv.conf", root.join("etc/relative")).expect("linked");
        symlink(&secret, root.join("etc/out")).expect("linked");
        symlink("../../secret", root.join("etc/up")).expect("linked");
        let check = |name: &str, is_there: bool| {
            let opened = open_inside(&root, &Path::new("etc").join(name)).map(std::io::read_to_string);
            assert_eq!(opened.is_ok(), is_there, "{name}");
            if let Ok(text) = opened {
                assert_eq!(text.expect("read"), "its own", "{name}");
            }
        };
        check("absolute", true);
        check("relative", true);
        check("out", false);
        check("up", false);
        check("", false);
    }

    #[tokio::test]
    async fn what_a_container_puts_in_the_way_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (hosts, guests) = (dir.path().join("host"), dir.path().join("guest"));
        for directory in [&hosts, &guests] {
            std::fs::create_dir(directory).expect("made");
        }
        let (socket, secret) = (hosts.join("socket"), hosts.join("secret"));
        let _listener = listen(&socket).expect("listens");
        std::fs::write(&secret, "the host's").expect("written");
        let link = |to: &Path, name: &str| {
            let path = guests.join(name);
            std::os::unix::fs::symlink(to, &path).expect("linked");
            path
        };
        let directory = link(&hosts, "directory");
        connect(&socket).await.expect("the socket itself");
        assert!(connect(&link(&socket, "a-socket")).await.is_err());
        assert!(connect(&directory.join("socket")).await.is_err());
        assert!(connect(&secret).await.is_err());
        let read = |path: &Path| open_file(path).and_then(std::io::read_to_string);
        assert_eq!(read(&secret).expect("the file itself"), "the host's");
        let file = link(&secret, "a-file");
        assert!(read(&file).is_err() && read(&directory.join("secret")).is_err());
        // One that is opened as a file would be waited for.
        assert!(read(&socket).is_err() && read(Path::new("/dev/null")).is_err());
        remove_file(&file).expect("the link is removed");
        assert!(remove_file(&directory.join("secret")).is_err());
        assert!(!file.is_symlink() && secret.exists());
    }
}
