//! Where everything lies below the data directory, and the names derived from it.
//!
//! Several clusters may live on one machine, each with its data directory. What is global to the machine (a bridge,
//! the name of the CNI network) therefore takes its name from the data directory, except for the default one, whose
//! names are those that operators know (`cni0`, `/var/lib/kubelet`).

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The data directory where `--data-dir` is not given.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/carrack";

/// The longest data directory: a unix socket's path holds 107 bytes, and the longest one below the data directory
/// (`/kubelet/plugins_registry/local.carrack.io-reg.sock`) takes 51 of them.
pub const MAX_DATA_DIR_BYTES: usize = 56;

/// The paths and names of one cluster on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    data_dir: PathBuf,
}

impl Layout {
    /// The layout below `data_dir`, which must be absolute and free of `.` and `..` for its derived names to be stable.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into() }
    }

    /// The data directory itself.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Whether this is the machine's default cluster, which owns the well-known paths and names.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.data_dir == Path::new(DEFAULT_DATA_DIR)
    }

    /// Eight hexadecimal digits that stand for this data directory; empty for the default one.
    #[must_use]
    pub fn suffix(&self) -> String {
        if self.is_default() {
            return String::new();
        }
        let digest = Sha256::digest(self.data_dir.as_os_str().as_encoded_bytes());
        digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The pod bridge: `cni0`, or `cni-<suffix>` (12 of the 15 bytes that a link's name may have).
    #[must_use]
    pub fn bridge(&self) -> String {
        if self.is_default() { "cni0".to_owned() } else { format!("cni-{}", self.suffix()) }
    }

    /// The name of the CNI network, which the plugins put into rule comments and caches.
    #[must_use]
    pub fn cni_network(&self) -> String {
        if self.is_default() { "carrack".to_owned() } else { format!("carrack-{}", self.suffix()) }
    }

    /// The table of rules that keep pods from this machine's loopback addresses.
    #[must_use]
    pub fn loopback_table(&self) -> String {
        format!("{}-loopback", self.cni_network())
    }

    /// The cgroup that holds the pods' cgroups: `kubepods`, or `kubepods-<suffix>`.
    #[must_use]
    pub fn cgroup_root(&self) -> String {
        if self.is_default() { "kubepods".to_owned() } else { format!("kubepods-{}", self.suffix()) }
    }

    /// The kubelet's root directory: the well-known one for the default cluster, since device plugins and CSI drivers
    /// have its path built in.
    #[must_use]
    pub fn kubelet_root(&self) -> PathBuf {
        if self.is_default() { PathBuf::from("/var/lib/kubelet") } else { self.data_dir.join("kubelet") }
    }

    /// Programs of FlexVolume drivers: the well-known directory, or one below the data directory.
    #[must_use]
    pub fn volume_plugin_dir(&self) -> PathBuf {
        if self.is_default() {
            PathBuf::from("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")
        } else {
            self.data_dir.join("volume-plugins")
        }
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig.yaml")
    }

    /// Certificates, keys and the roles' kubeconfigs.
    #[must_use]
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    /// The embedded store's files.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.data_dir.join("store")
    }

    /// The pods' container logs: the well-known place for the default cluster.
    #[must_use]
    pub fn pod_log_dir(&self) -> PathBuf {
        if self.is_default() { PathBuf::from("/var/log/pods") } else { self.logs_dir().join("pods") }
    }

    /// The virt-handler's and launchers' state on this node.
    #[must_use]
    pub fn virt_dir(&self) -> PathBuf {
        self.data_dir.join("virt")
    }

    /// Volumes of claims on this node's own disk, and their snapshots.
    #[must_use]
    pub fn storage_dir(&self) -> PathBuf {
        self.data_dir.join("storage")
    }

    /// OCI archives that `carrack up` imports at its start.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    /// Logs of Carrack and of its containerd.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.data_dir.join("logs")
    }

    /// What a detached `carrack up` prints.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.logs_dir().join("carrack.log")
    }

    /// Which process runs `carrack up`.
    #[must_use]
    pub fn pidfile(&self) -> PathBuf {
        self.data_dir.join("carrack.pid")
    }

    /// Held locked by the process that runs `carrack up`, so that there is one.
    #[must_use]
    pub fn lockfile(&self) -> PathBuf {
        self.data_dir.join("carrack.lock")
    }

    /// Everything of our containerd.
    #[must_use]
    pub fn containerd_dir(&self) -> PathBuf {
        self.data_dir.join("containerd")
    }

    /// containerd's persistent root: content, snapshots, metadata.
    #[must_use]
    pub fn containerd_root(&self) -> PathBuf {
        self.containerd_dir().join("root")
    }

    /// containerd's state: running tasks, pods' network namespaces, runc's state.
    #[must_use]
    pub fn containerd_state(&self) -> PathBuf {
        self.containerd_dir().join("state")
    }

    /// containerd's socket, which serves CRI as well.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        self.containerd_dir().join("containerd.sock")
    }

    /// containerd's configuration, written at each start.
    #[must_use]
    pub fn containerd_config(&self) -> PathBuf {
        self.containerd_dir().join("config.toml")
    }

    /// Which process is our containerd.
    #[must_use]
    pub fn containerd_pidfile(&self) -> PathBuf {
        self.containerd_dir().join("containerd.pid")
    }

    /// containerd's log.
    #[must_use]
    pub fn containerd_log(&self) -> PathBuf {
        self.logs_dir().join("containerd.log")
    }

    /// CNI's configuration, watched by containerd.
    #[must_use]
    pub fn cni_conf_dir(&self) -> PathBuf {
        self.data_dir.join("cni").join("net.d")
    }

    /// The conflist of the pod network.
    #[must_use]
    pub fn cni_conflist(&self) -> PathBuf {
        self.cni_conf_dir().join("10-carrack.conflist")
    }

    /// All CNI plugins, as containerd finds them.
    #[must_use]
    pub fn cni_bin_dir(&self) -> PathBuf {
        self.data_dir.join("cni").join("bin")
    }

    /// What was made for pods on further networks.
    #[must_use]
    pub fn cni_networks_dir(&self) -> PathBuf {
        self.data_dir.join("cni").join("networks")
    }

    /// Configurations of further networks whose definitions have none.
    #[must_use]
    pub fn cni_networks_conf_dir(&self) -> PathBuf {
        self.data_dir.join("cni").join("networks.d")
    }

    /// Addresses handed out by host-local.
    #[must_use]
    pub fn cni_ipam_dir(&self) -> PathBuf {
        self.data_dir.join("cni").join("ipam")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_default_cluster_are_the_well_known_ones() {
        let layout = Layout::new(DEFAULT_DATA_DIR);
        assert_eq!(layout.bridge(), "cni0");
        assert_eq!((layout.cni_network().as_str(), layout.loopback_table().as_str()), ("carrack", "carrack-loopback"));
        assert_eq!(layout.kubelet_root(), Path::new("/var/lib/kubelet"));
    }

    #[test]
    fn names_of_another_cluster_are_its_own_and_fit_a_link() {
        let one = Layout::new("/tmp/a");
        let two = Layout::new("/tmp/b");
        assert_ne!(one.bridge(), two.bridge());
        assert!(one.bridge().len() <= 15);
        assert_eq!(one.bridge(), Layout::new("/tmp/a").bridge());
        assert!(!one.kubelet_root().starts_with("/var/lib/kubelet"));
    }
}
