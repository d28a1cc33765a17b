//! containerd's configuration and the pod network's, as pure functions of the layout and of what the host offers.
//!
//! Written at each start, so that a changed flag or a changed machine takes effect with the next containerd. Nothing in
//! them names a registry: images are built and imported locally, and an image that is missing is reported, not fetched.

use std::fmt::Write as _;

use serde_json::json;

use crate::host::HostFacts;
use crate::layout::Layout;
use crate::networks::{self, FurtherNetworks};

/// What the cluster says about one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// The image of a pod's sandbox container, which must be there: nothing is ever fetched.
    pub sandbox_image: String,
    /// The node's range of pod addresses, as CIDR (`10.42.0.0/24`).
    pub pod_cidr: String,
    /// Whether the pod network hides pods behind the node's address towards the outside. Of several nodes on one
    /// machine each does that by itself, since other nodes' pods are no outside.
    pub masquerade: bool,
    /// What makes pods' networks; absent, CNI's programs make the pod network, and further ones are left to others.
    pub networks: Option<FurtherNetworks>,
}

/// The version of CNI's specification that the conflist speaks.
pub(crate) const CNI_VERSION: &str = "0.4.0";

/// Plugins of containerd that this node never uses; each costs memory, a probe at start or a warning in the log.
const DISABLED_PLUGINS: [&str; 8] = [
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.internal.v1.tracing",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
];

/// containerd's `config.toml`.
#[must_use]
pub fn containerd_toml(layout: &Layout, host: &HostFacts, settings: &NodeSettings) -> String {
    let path = |path: std::path::PathBuf| quote(&path.display().to_string());
    let socket = layout.containerd_socket().display().to_string();
    let disabled: Vec<String> = DISABLED_PLUGINS.iter().map(|plugin| quote(plugin)).collect();
    let mut toml = String::new();
    let mut line = |text: String| {
        // Writing to a String cannot fail; the result is looked at all the same.
        if writeln!(toml, "{text}").is_err() {
            tracing::error!("a line of containerd's configuration was lost");
        }
    };
    line("# Written by `carrack up` at each start. Changes made here are lost.".to_owned());
    line("version = 2".to_owned());
    line(format!("root = {}", path(layout.containerd_root())));
    line(format!("state = {}", path(layout.containerd_state())));
    line(format!("disabled_plugins = [{}]", disabled.join(", ")));
    line("[grpc]".to_owned());
    line(format!("address = {}", quote(&socket)));
    line("[ttrpc]".to_owned());
    line(format!("address = {}", quote(&format!("{socket}.ttrpc"))));
    line(r#"[plugins."io.containerd.grpc.v1.cri"]"#.to_owned());
    line(format!("sandbox_image = {}", quote(&settings.sandbox_image)));
    line(format!("restrict_oom_score_adj = {}", !host.can_lower_oom_score));
    // Namespaces of pods then lie below the data directory, where their owner can be told.
    line("netns_mounts_under_state_dir = true".to_owned());
    line(r#"stream_server_address = "127.0.0.1""#.to_owned());
    line(r#"stream_server_port = "0""#.to_owned());
    line("max_container_log_line_size = 16384".to_owned());
    line(r#"[plugins."io.containerd.grpc.v1.cri".cni]"#.to_owned());
    line(format!("bin_dir = {}", path(networks::bin_dir(layout, host, settings.networks.as_ref()))));
    line(format!("conf_dir = {}", path(layout.cni_conf_dir())));
    line("max_conf_num = 1".to_owned());
    line(r#"[plugins."io.containerd.grpc.v1.cri".containerd]"#.to_owned());
    line(format!("snapshotter = {}", quote(snapshotter(host))));
    line(r#"default_runtime_name = "runc""#.to_owned());
    line(r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]"#.to_owned());
    line(r#"runtime_type = "io.containerd.runc.v2""#.to_owned());
    line(r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]"#.to_owned());
    line("SystemdCgroup = false".to_owned());
    line(format!("Root = {}", path(layout.containerd_state().join("runc"))));
    toml
}

/// The snapshotter that this host can use.
#[must_use]
pub fn snapshotter(host: &HostFacts) -> &'static str {
    if host.overlayfs { "overlayfs" } else { "native" }
}

/// The conflist of the pod network: a bridge, addresses, host ports, and further networks, all by the plugin of our own; where
/// there is none, by CNI's programs, which do the same but for further networks.
#[must_use]
pub fn cni_conflist(layout: &Layout, settings: &NodeSettings) -> String {
    let plugins = match &settings.networks {
        Some(networks) => json!([networks::plugin(layout, &settings.pod_cidr, networks)]),
        None => json!([
            {
                "type": "bridge",
                "bridge": layout.bridge(),
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": settings.pod_cidr }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                    "dataDir": layout.cni_ipam_dir(),
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ]),
    };
    let conflist = json!({ "cniVersion": CNI_VERSION, "name": layout.cni_network(), "plugins": plugins });
    format!("{conflist:#}\n")
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(can_lower_oom_score: bool, overlayfs: bool) -> HostFacts {
        HostFacts {
            can_lower_oom_score,
            overlayfs,
            cni_bin_dir: "/usr/lib/cni".into(),
            containerd: "/usr/bin/containerd".into(),
        }
    }

    fn settings() -> NodeSettings {
        NodeSettings {
            pod_cidr: "10.9.0.0/24".to_owned(),
            sandbox_image: "localhost/pause:1".to_owned(),
            masquerade: true,
            networks: None,
        }
    }

    #[test]
    fn the_configuration_follows_the_host() {
        let layout = Layout::new("/d\"x");
        let toml = containerd_toml(&layout, &host(false, false), &settings());
        assert!(toml.contains("restrict_oom_score_adj = true"));
        assert!(toml.contains("snapshotter = \"native\""));
        assert!(toml.contains(r#"root = "/d\"x/containerd/root""#), "{toml}");
        let toml = containerd_toml(&layout, &host(true, true), &settings());
        assert!(toml.contains("restrict_oom_score_adj = false"));
        assert!(toml.contains("snapshotter = \"overlayfs\""));
    }

    #[test]
    fn the_conflist_names_this_clusters_bridge_and_range() {
        let layout = Layout::new("/tmp/x");
        let text = cni_conflist(&layout, &settings());
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["plugins"][0]["bridge"], layout.bridge());
        assert_eq!(value["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.9.0.0/24");
        assert_eq!(value["name"], layout.cni_network());

        let networks = FurtherNetworks { program: "/c".into(), kubeconfig: "/k".into() };
        let ours = NodeSettings { networks: Some(networks), ..settings() };
        let value: serde_json::Value = serde_json::from_str(&cni_conflist(&layout, &ours)).expect("JSON");
        let expected = json!({"bridge": layout.bridge(), "subnet": "10.9.0.0/24", "dataDir": layout.cni_ipam_dir()});
        assert_eq!((&value["plugins"][0]["podNetwork"], &value["plugins"][1]), (&expected, &serde_json::Value::Null));
        assert_eq!(value["name"], layout.cni_network());
    }
}
