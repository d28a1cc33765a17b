//! The roles as processes of their own, and how each is started: Carrack's with its own flags, another implementation with
//! upstream's.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_noderuntime::Layout;
use serde_json::{Value, json};

use super::sandbox::NODE_ADDRESS;
use crate::kubeconfig::CLUSTER;
use crate::roles::apiserver::now_unix_s;

/// The node's name.
pub const NODE: &str = "drill";
/// What the names of hollow nodes begin with.
pub const NODES_PREFIX: &str = "drill-";
/// The API server's port.
pub const API_PORT: u16 = 6443;

/// A role that a drill starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Apiserver,
    Controllers,
    Scheduler,
    VirtController,
    GpuExtender,
    Kubelet,
    VirtHandler,
    LocalStorage,
    GpuPlugin,
    Hollow,
}

impl Role {
    /// All that there are.
    #[cfg(test)]
    pub const ALL: [Self; 10] = [
        Self::Apiserver,
        Self::Controllers,
        Self::Scheduler,
        Self::VirtController,
        Self::GpuExtender,
        Self::Kubelet,
        Self::VirtHandler,
        Self::LocalStorage,
        Self::GpuPlugin,
        Self::Hollow,
    ];

    /// Its name, which is also its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apiserver => "apiserver",
            Self::Controllers => "controllers",
            Self::Scheduler => "scheduler",
            Self::VirtController => "virt-controller",
            Self::GpuExtender => "gpu-extender",
            Self::Kubelet => "kubelet",
            Self::VirtHandler => "virt-handler",
            Self::LocalStorage => "local-storage",
            Self::GpuPlugin => "gpu-plugin",
            Self::Hollow => "hollow",
        }
    }

    /// Whether it goes with its node's power.
    pub fn is_of_node(self) -> bool {
        matches!(self, Self::Kubelet | Self::VirtHandler | Self::LocalStorage | Self::GpuPlugin)
    }

    /// Who it is to the API server. One process speaks for all hollow nodes, and a plugin as its node's kubelet.
    fn identity(self) -> Identity {
        let node = || NODE.to_owned();
        match self {
            Self::Apiserver | Self::Hollow => Identity::Admin,
            Self::Controllers => Identity::ControllerManager,
            Self::Scheduler => Identity::Scheduler,
            Self::VirtController => Identity::VirtController,
            Self::GpuExtender => Identity::GpuExtender,
            Self::Kubelet | Self::GpuPlugin => Identity::Node { node: node() },
            Self::VirtHandler => Identity::VirtHandler { node: node() },
            Self::LocalStorage => Identity::LocalStorage { node: node() },
        }
    }
}

/// Where the roles' files lie.
#[derive(Debug, Clone)]
pub struct Places {
    /// The API server's data directory.
    pub api: Layout,
    /// The node's data directory.
    pub node: Layout,
    /// What roles are told: kubeconfigs, certificates, configurations.
    pub run: PathBuf,
    /// What roles say.
    pub logs: PathBuf,
}

impl Places {
    /// Below a drill's directory.
    pub fn new(dir: &Path) -> Self {
        Self {
            api: Layout::new(dir.join("api")),
            node: Layout::new(super::sandbox::node_dir(dir)),
            run: dir.join("run"),
            logs: dir.join("logs"),
        }
    }

    /// A role's kubeconfig.
    pub fn kubeconfig(&self, role: Role) -> PathBuf {
        self.run.join(format!("{}.yaml", role.name()))
    }

    /// What a role says.
    pub fn log(&self, role: Role) -> PathBuf {
        self.logs.join(format!("{}.log", role.name()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.run.join(name)
    }

    /// Writes a role's kubeconfig for this server.
    ///
    /// # Errors
    /// A certificate cannot be made, or a file cannot be written.
    pub fn write_kubeconfig(&self, pki: &Pki, role: Role, server: &str) -> anyhow::Result<()> {
        let identity = role.identity();
        let pair = pki.client(&identity, now_unix_s())?;
        let path = self.kubeconfig(role);
        Kubeconfig::for_certificate(CLUSTER, &identity.user(), server, pki.ca_pem(), &pair)
            .write(&path)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the administrator's kubeconfig for an API server that runs already: as this one, but for the server's address.
    /// Whom it trusts and who it is stay.
    ///
    /// # Errors
    /// It cannot be used, or the file cannot be written.
    pub fn write_theirs(&self, server: &str, from: &Path) -> anyhow::Result<()> {
        let context = || format!("cannot use {server} with the kubeconfig {}", from.display());
        let mut config = Kubeconfig::load(from).with_context(context)?;
        let named = config.contexts.iter().find(|named| named.name == config.current_context);
        let cluster = named.map(|named| named.context.cluster.clone());
        for named in config.clusters.iter_mut().filter(|named| Some(&named.name) == cluster.as_ref()) {
            server.clone_into(&mut named.cluster.server);
        }
        config.resolve(None).with_context(context)?;
        let path = self.kubeconfig(Role::Apiserver);
        config.write(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes what an agent serves with.
    ///
    /// # Errors
    /// As for [`Self::write_kubeconfig`].
    pub fn write_serving(&self, pki: &Pki) -> anyhow::Result<()> {
        let address: IpAddr = NODE_ADDRESS.parse().context("the node's address")?;
        let sans = Sans::loopback().with_name(NODE).with_address(address);
        let write = |name: &str, text: &str| {
            let path = self.file(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("ca.crt", pki.ca_pem())?;
        for (role, server) in [
            (Role::Kubelet, Server::Kubelet { node: NODE.to_owned() }),
            (Role::VirtHandler, Server::VirtHandler { node: NODE.to_owned() }),
        ] {
            let pair = pki.server(&server, &sans, now_unix_s())?;
            write(&format!("{}.crt", role.name()), &pair.certificate)?;
            write(&format!("{}.key", role.name()), pair.key.expose())?;
        }
        Ok(())
    }

    /// The flags of Carrack's own role.
    pub fn own_flags(&self, role: Role) -> Vec<OsString> {
        let mut flags = Flags::default();
        flags.word(role.name());
        if role == Role::Apiserver {
            flags.path("--data-dir", self.api.data_dir());
            flags.pair("--bind-address", "127.0.0.1");
            flags.pair("--https-port", &API_PORT.to_string());
            return flags.0;
        }
        flags.path("--kubeconfig", &self.kubeconfig(role));
        if role.is_of_node() {
            flags.path("--data-dir", self.node.data_dir());
            flags.pair("--node-name", NODE);
        }
        if matches!(role, Role::Kubelet | Role::VirtHandler) {
            flags.path("--tls-cert-file", &self.file(&format!("{}.crt", role.name())));
            flags.path("--tls-private-key-file", &self.file(&format!("{}.key", role.name())));
            flags.path("--client-ca-file", &self.file("ca.crt"));
        }
        match role {
            Role::Kubelet => flags.pair("--node-ip", NODE_ADDRESS),
            // Where the node has the program of containers of container disks.
            Role::VirtController => flags.path("--data-dir", self.node.data_dir()),
            Role::Scheduler => {
                flags.path("--config", &self.file("scheduler-config.yaml"));
                flags.pair("--secure-port", "0");
            }
            Role::Controllers => flags.pair("--secure-port", "0"),
            _ => {}
        }
        flags.0
    }

    /// Upstream's flags for a role that another program plays.
    pub fn upstream_flags(&self, role: Role) -> Vec<OsString> {
        let mut flags = Flags::default();
        flags.path("--kubeconfig", &self.kubeconfig(role));
        if role == Role::Kubelet {
            flags.path("--config", &self.file("kubelet-config.yaml"));
            flags.pair("--hostname-override", NODE);
            flags.pair("--node-ip", NODE_ADDRESS);
            flags.path("--root-dir", &self.node.kubelet_root());
        } else {
            flags.path("--config", &self.file("scheduler-config.yaml"));
        }
        flags.0
    }

    /// Writes the configurations of kubelet and scheduler. Upstream's scheduler finds its kubeconfig in there.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_configurations(&self, extenders: &Value) -> anyhow::Result<()> {
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": false},
                "x509": {"clientCAFile": self.file("ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": self.file("kubelet.crt"), "tlsPrivateKeyFile": self.file("kubelet.key"),
            "containerRuntimeEndpoint": format!("unix://{}", self.node.containerd_socket().display()),
            "cgroupRoot": format!("/{}", self.node.cgroup_root()), "cgroupDriver": "cgroupfs",
            "podLogsDir": self.node.pod_log_dir(), "volumePluginDir": self.node.volume_plugin_dir(),
            "failSwapOn": false, "enableControllerAttachDetach": true,
        });
        let scheduler = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": self.kubeconfig(Role::Scheduler)},
            "leaderElection": {"leaderElect": false}, "extenders": extenders,
        });
        for (name, value) in [("kubelet-config.yaml", kubelet), ("scheduler-config.yaml", scheduler)] {
            let path = self.file(name);
            // JSON is YAML.
            fs::write(&path, format!("{value:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Flags(Vec<OsString>);

impl Flags {
    fn word(&mut self, word: &str) {
        self.0.push(word.into());
    }
    fn pair(&mut self, flag: &str, value: &str) {
        self.0.extend([flag.into(), value.into()]);
    }
    fn path(&mut self, flag: &str, path: &Path) {
        self.0.extend([flag.into(), path.into()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn our_own_flags_are_ours() {
        let places = Places::new(Path::new("/tmp/carrack-drill-1"));
        for role in Role::ALL {
            let words = std::iter::once(OsString::from("carrack")).chain(places.own_flags(role));
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{}: {:?}", role.name(), parsed.err());
        }
    }

    #[test]
    fn the_address_that_is_asked_for_counts_and_not_that_of_the_kubeconfig() {
        let dir = tempfile::tempdir().expect("a temp dir");
        let places = Places::new(dir.path());
        let from = dir.path().join("admin.yaml");
        let cluster = |name: &str, server: &str| {
            let how = json!({"server": server, "certificate-authority-data": "Y2E=", "tls-server-name": name});
            json!({"name": name, "cluster": how})
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a@one",
            "clusters": [cluster("other", "https://10.0.0.1:1"), cluster("one", "https://10.0.0.2:2")],
            "users": [{"name": "a", "user": {"token": "t"}}],
            "contexts": [{"name": "a@one", "context": {"cluster": "one", "user": "a"}}],
        });
        std::fs::write(&from, config.to_string()).expect("written");
        let (ours, theirs) = ("https://10.0.0.3:6443", "http://10.0.0.3:8080");
        places.write_theirs(ours, &from).expect("written");
        let written = Kubeconfig::load(&places.kubeconfig(Role::Apiserver)).expect("read");
        let servers: Vec<&str> = written.clusters.iter().map(|named| named.cluster.server.as_str()).collect();
        assert_eq!(servers, ["https://10.0.0.1:1", ours]);
        let target = written.resolve(None).expect("resolved");
        assert_eq!((target.server.as_str(), target.ca_pem.as_deref()), (ours, Some("ca")));
        assert_eq!(target.tls_server_name.as_deref(), Some("one"));
        assert!(target.token.is_some());
        let refused = format!("{:#}", places.write_theirs(theirs, &from).expect_err("not over TLS"));
        assert!(refused.contains(theirs) && refused.contains("admin.yaml"), "{refused}");
    }

    #[test]
    fn configurations_are_what_our_own_roles_read() {
        let dir = tempfile::tempdir().expect("a temp dir");
        std::fs::create_dir(dir.path().join("run")).expect("made");
        let places = Places::new(dir.path());
        places.write_configurations(&json!([])).expect("written");
        crate::roles::kubelet::configuration(&places.file("kubelet-config.yaml")).expect("a kubelet's");
        crate::roles::scheduler::read_config(&places.file("scheduler-config.yaml")).expect("a scheduler's");
    }
}
