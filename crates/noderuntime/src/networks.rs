//! Pods' networks: the plugin for them in the pod network's conflist, and what of theirs is cleared up.
//!
//! The plugin is this program under another name ([`carrack_networks::PLUGIN`]), in a directory of the cluster's own that has all
//! other plugins as links: the runtime looks for plugins in one place only, and nothing is written where the machine's own are. There
//! it is `loopback`, too, which the runtime calls for every sandbox.
//! What nobody knows any more is collected by the plugin itself: networks and addresses of sandboxes that a containerd was making
//! when it died, at the next one's start; all of them, with the bridges that were made for them, when the cluster goes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use carrack_networks::plugin::ANNOTATIONS_CAPABILITY;
use carrack_networks::pod_network::PORTS_CAPABILITY;
use carrack_networks::pod_network::addresses::Addresses;
use carrack_networks::{PLUGIN, loopback, record};
use serde_json::{Value, json};

use crate::host::{CNI_BIN_DIRS, HostFacts};
use crate::layout::Layout;

/// Where the operator of a node, or Multus, keeps configurations of networks.
const NODE_CONF_DIR: &str = "/etc/cni/net.d";

/// What the plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FurtherNetworks {
    /// The program.
    pub program: PathBuf,
    /// Credentials of the node: it reads definitions and tells its pods what they got.
    pub kubeconfig: PathBuf,
}

/// The plugin's part of the conflist, which is all of it.
#[must_use]
pub fn plugin(layout: &Layout, pod_cidr: &str, networks: &FurtherNetworks) -> Value {
    json!({
        "type": PLUGIN,
        "capabilities": { ANNOTATIONS_CAPABILITY: true, PORTS_CAPABILITY: true },
        "podNetwork": { "bridge": layout.bridge(), "subnet": pod_cidr, "dataDir": layout.cni_ipam_dir() },
        "kubeconfig": networks.kubeconfig,
        "stateDir": layout.cni_networks_dir(),
        "binDirs": CNI_BIN_DIRS,
        "confDir": layout.cni_conf_dir(),
        "nodeConfDirs": [layout.cni_networks_conf_dir(), PathBuf::from(NODE_CONF_DIR)],
    })
}

/// What the conflist says that was written last; none where it has no such plugin.
#[must_use]
pub fn configured(layout: &Layout) -> Option<FurtherNetworks> {
    let section = section(layout)?;
    let kubeconfig = PathBuf::from(section["kubeconfig"].as_str()?);
    // The program may have been moved since; this one is as good.
    let linked = fs::read_link(layout.cni_bin_dir().join(PLUGIN)).ok().filter(|program| program.exists());
    Some(FurtherNetworks { program: linked.or_else(|| std::env::current_exe().ok())?, kubeconfig })
}

/// The conflist as it lies there.
fn conflist(layout: &Layout) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(layout.cni_conflist()).ok()?).ok()
}

/// The plugin's part of the conflist as it lies there, with what the runtime adds.
fn section(layout: &Layout) -> Option<Value> {
    let conflist = conflist(layout)?;
    let mut section = conflist["plugins"].as_array()?.iter().find(|plugin| plugin["type"] == PLUGIN)?.clone();
    section["name"] = conflist["name"].clone();
    section["cniVersion"] = conflist["cniVersion"].clone();
    Some(section)
}

/// Makes the directory in which the runtime finds all plugins.
///
/// # Errors
/// It cannot be written, or the machine's plugins cannot be listed.
pub fn link_plugins(layout: &Layout, host: &HostFacts, networks: &FurtherNetworks) -> io::Result<()> {
    let dir = layout.cni_bin_dir();
    fs::create_dir_all(&dir)?;
    let ours = [PLUGIN, loopback::PLUGIN];
    let mut wanted: Vec<(OsString, PathBuf)> = ours.map(|name| (name.into(), networks.program.clone())).into();
    for entry in fs::read_dir(&host.cni_bin_dir)? {
        let entry = entry?;
        if !ours.iter().any(|name| entry.file_name() == *name) {
            wanted.push((entry.file_name(), entry.path()));
        }
    }
    for (name, target) in &wanted {
        let link = dir.join(name);
        if fs::read_link(&link).is_ok_and(|there| there == *target) {
            continue;
        }
        // In one step: a plugin may be called at any time.
        let part = dir.join(format!(".{}.part", name.to_string_lossy()));
        crate::teardown::remove_file(&part)?;
        std::os::unix::fs::symlink(target, &part)?;
        fs::rename(&part, &link)?;
    }
    let names: BTreeSet<_> = wanted.iter().map(|(name, _)| name.clone()).collect();
    for entry in fs::read_dir(&dir)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            crate::teardown::remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// The sandboxes for which networks were made, or begun. None where the conflist is another's.
///
/// # Errors
/// They cannot be listed.
pub fn sandboxes(layout: &Layout) -> io::Result<BTreeSet<String>> {
    if section(layout).is_none() {
        return Ok(BTreeSet::new());
    }
    let mut sandboxes: BTreeSet<String> = record::sandboxes(&layout.cni_networks_dir())?.into_iter().collect();
    let addresses = Addresses::new(&layout.cni_ipam_dir(), &layout.cni_network()).owners()?;
    sandboxes.extend(addresses.into_iter().map(|owner| owner.sandbox));
    Ok(sandboxes)
}

/// The range that the pods were made with, by the conflist as it lies there.
#[must_use]
pub fn configured_pod_cidr(layout: &Layout) -> Option<String> {
    let conflist = conflist(layout)?;
    let first = &conflist["plugins"][0];
    let bridge = &first["ipam"]["ranges"][0][0]["subnet"];
    first["podNetwork"]["subnet"].as_str().or_else(|| bridge.as_str()).map(str::to_owned)
}

/// Undoes what was made for `stale` sandboxes. Blocks.
///
/// # Errors
/// Some of it stays; it is tried again the next time.
pub fn collect(layout: &Layout, stale: &BTreeSet<String>) -> io::Result<()> {
    if stale.is_empty() {
        return Ok(());
    }
    call(layout, Some(stale))
}

/// Undoes everything, once no pod is left: for the end of the cluster. Blocks.
///
/// # Errors
/// Some of it stays.
pub fn collect_all(layout: &Layout) -> io::Result<()> {
    if !layout.cni_networks_dir().exists() {
        return Ok(());
    }
    call(layout, None)
}

/// Has the plugin collect what was made for these sandboxes, or all, and the bridges then, too.
fn call(layout: &Layout, stale: Option<&BTreeSet<String>>) -> io::Result<()> {
    let linked = layout.cni_bin_dir().join(PLUGIN);
    let program = if linked.exists() { linked } else { std::env::current_exe()? };
    let Some(mut config) = section(layout) else {
        return Err(io::Error::other(format!("{} does not name {PLUGIN} any more", layout.cni_conflist().display())));
    };
    config["stale"] = json!(stale);
    config["removeBridges"] = json!(stale.is_none());
    let mut child = Command::new(&program)
        .arg0(PLUGIN)
        .env("CNI_COMMAND", "GC")
        .env("CNI_PATH", layout.cni_bin_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A key that interrupts us is not for it: it is through in a moment.
        .process_group(0)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{} cannot be run: {error}", program.display())))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(config.to_string().as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        // Such as a record that was put aside.
        let said = String::from_utf8_lossy(&output.stderr);
        if !said.trim().is_empty() {
            tracing::warn!(said = said.trim(), "what was made for pods' networks is undone");
        }
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(io::Error::other(format!("networks of pods: {}", String::from_utf8_lossy(&said).trim())))
}

/// Whether the containerd that runs was told to look for plugins elsewhere.
#[must_use]
pub fn moved(layout: &Layout, wanted: &str) -> bool {
    let dir = |toml: &str| toml.lines().find(|line| line.starts_with("bin_dir = ")).map(str::to_owned);
    let there = fs::read_to_string(layout.containerd_config()).ok();
    there.is_some_and(|there| dir(&there) != dir(wanted))
}

/// The directory with the plugins that the runtime is told.
#[must_use]
pub fn bin_dir(layout: &Layout, host: &HostFacts, networks: Option<&FurtherNetworks>) -> PathBuf {
    if networks.is_some() { layout.cni_bin_dir() } else { Path::to_owned(&host.cni_bin_dir) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NodeSettings, cni_conflist, containerd_toml};

    fn host(dir: &Path) -> HostFacts {
        HostFacts {
            can_lower_oom_score: true,
            overlayfs: true,
            cni_bin_dir: dir.to_owned(),
            containerd: "/usr/bin/containerd".into(),
        }
    }

    #[test]
    fn what_is_configured_is_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path().join("d"));
        let plugins = dir.path().join("plugins");
        fs::create_dir_all(&plugins).expect("made");
        fs::write(plugins.join("bridge"), "").expect("written");
        fs::write(plugins.join("loopback"), "").expect("written");
        let networks = FurtherNetworks { program: "/bin/true".into(), kubeconfig: "/d/node.yaml".into() };
        assert_eq!(configured(&layout), None);
        let settings = NodeSettings {
            pod_cidr: "10.9.0.0/24".to_owned(),
            sandbox_image: String::new(),
            masquerade: false,
            networks: Some(networks.clone()),
        };
        link_plugins(&layout, &host(&plugins), &networks).expect("linked");
        fs::create_dir_all(layout.cni_conf_dir()).expect("made");
        fs::write(layout.cni_conflist(), cni_conflist(&layout, &settings)).expect("written");
        assert_eq!(configured(&layout), Some(networks.clone()));
        assert_eq!(fs::read_link(layout.cni_bin_dir().join("bridge")).expect("a link"), plugins.join("bridge"));
        for name in [PLUGIN, loopback::PLUGIN] {
            assert_eq!(fs::read_link(layout.cni_bin_dir().join(name)).expect("a link"), networks.program);
        }
        assert_eq!(configured_pod_cidr(&layout).as_deref(), Some("10.9.0.0/24"));

        // What the machine has not any more, and what it has anew.
        fs::remove_file(plugins.join("bridge")).expect("removed");
        fs::write(plugins.join("ptp"), "").expect("written");
        link_plugins(&layout, &host(&plugins), &networks).expect("linked");
        assert!(!layout.cni_bin_dir().join("bridge").is_symlink() && layout.cni_bin_dir().join("ptp").is_symlink());

        // A containerd that was started before there was the plugin looks elsewhere.
        let with = containerd_toml(&layout, &host(&plugins), &settings);
        assert!(!moved(&layout, &with), "there was none before");
        fs::create_dir_all(layout.containerd_dir()).expect("made");
        fs::write(layout.containerd_config(), &with).expect("written");
        assert!(!moved(&layout, &with));
        let without = NodeSettings { networks: None, ..settings };
        fs::write(layout.containerd_config(), containerd_toml(&layout, &host(&plugins), &without)).expect("written");
        assert!(moved(&layout, &with));

        // What another writes is not ours to collect, and its range is known.
        let stock = cni_conflist(&layout, &without);
        fs::write(layout.cni_conflist(), stock).expect("written");
        let owned = layout.cni_ipam_dir().join(layout.cni_network());
        fs::create_dir_all(&owned).expect("made");
        fs::write(owned.join("10.9.0.2"), "s1\r\neth0").expect("written");
        assert_eq!(configured_pod_cidr(&layout).as_deref(), Some("10.9.0.0/24"));
        assert_eq!(sandboxes(&layout).expect("listed"), BTreeSet::new());
        let with = NodeSettings { networks: Some(networks), ..without };
        fs::write(layout.cni_conflist(), cni_conflist(&layout, &with)).expect("written");
        assert_eq!(sandboxes(&layout).expect("listed"), BTreeSet::from(["s1".to_owned()]));
    }
}
