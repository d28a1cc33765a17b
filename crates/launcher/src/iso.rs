//! Volumes that are made for one guest: ISO 9660 images with cloud-init's data, or with the files of a directory.
//!
//! Upstream references: the NoCloud and ConfigDrive data sources of cloud-init; KubeVirt's config disks.

use crate::spec::{ConfigDriveSpec, NoCloudSpec};
use base64::Engine as _;
use hadris_fs::{Content, Node, Tree};
use hadris_iso::{IsoId, IsoOptions};
use hadris_storage::host::FileDevice;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Most bytes of a directory's files that make a volume: Secrets and ConfigMaps hold one mebibyte each.
const MAX_FILES_BYTES: u64 = 64 << 20;

/// Depth to which a directory is looked into.
const MAX_DEPTH: usize = 8;

/// The volume could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the volume {}: {reason}", path.display())]
pub struct VolumeError {
    path: PathBuf,
    reason: String,
}

/// Writes a NoCloud volume: label `cidata`, with user-data, meta-data and network-config.
///
/// # Errors
/// The file cannot be written.
pub fn no_cloud(out: &Path, data: &NoCloudSpec) -> Result<(), VolumeError> {
    let mut meta = json!({ "instance-id": data.instance_id, "local-hostname": data.local_hostname });
    if !data.public_keys.is_empty() {
        meta["public-keys"] = json!(data.public_keys);
    }
    let mut files = BTreeMap::from([
        ("user-data".to_owned(), user_data(out, &data.user_data, data.user_data_base64.as_deref())?),
        // JSON is YAML, and quotes what needs it.
        ("meta-data".to_owned(), meta.to_string().into_bytes()),
    ]);
    if let Some(network) = &data.network_data {
        files.insert("network-config".to_owned(), network.clone().into_bytes());
    }
    write(out, "cidata", files)
}

/// Writes a config drive: label `config-2`, with OpenStack's files.
///
/// # Errors
/// The file cannot be written.
pub fn config_drive(out: &Path, data: &ConfigDriveSpec) -> Result<(), VolumeError> {
    const LATEST: &str = "openstack/latest";
    let mut meta = Map::new();
    for (name, value) in [
        ("instance_id", &data.instance_id),
        ("uuid", &data.instance_id),
        ("hostname", &data.hostname),
        ("local_hostname", &data.hostname),
    ] {
        meta.insert(name.to_owned(), json!(value));
    }
    if !data.public_keys.is_empty() {
        meta.insert("public_keys".to_owned(), json!(data.public_keys));
    }
    let mut files = BTreeMap::from([
        (format!("{LATEST}/meta_data.json"), Value::Object(meta).to_string().into_bytes()),
        (format!("{LATEST}/user_data"), user_data(out, &data.user_data, data.user_data_base64.as_deref())?),
    ]);
    if let Some(network) = &data.network_data {
        files.insert(format!("{LATEST}/network_data.json"), network.clone().into_bytes());
    }
    write(out, "config-2", files)
}

/// Writes a volume with the files of a directory. The kubelet keeps several states of a directory and links to one of
/// them; its own names begin with two dots and are left out, and links are followed.
///
/// # Errors
/// A file cannot be read, there is too much, or the volume cannot be written.
pub fn directory(out: &Path, label: &str, directory: &Path) -> Result<(), VolumeError> {
    let mut found = BTreeMap::new();
    let mut left = MAX_FILES_BYTES;
    collect(directory, "", &mut found, &mut left, MAX_DEPTH)
        .map_err(|reason| VolumeError { path: out.to_path_buf(), reason })?;
    write(out, label, found)
}

fn collect(
    directory: &Path,
    prefix: &str,
    found: &mut BTreeMap<String, Vec<u8>>,
    left: &mut u64,
    depth: usize,
) -> Result<(), String> {
    let problem = |path: &Path, error: std::io::Error| format!("cannot read {}: {error}", path.display());
    if depth == 0 {
        return Err(format!("{} is too deep", directory.display()));
    }
    for entry in std::fs::read_dir(directory).map_err(|error| problem(directory, error))? {
        let path = entry.map_err(|error| problem(directory, error))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.starts_with("..")) else {
            continue;
        };
        let at = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let meta = std::fs::metadata(&path).map_err(|error| problem(&path, error))?;
        if meta.is_dir() {
            collect(&path, &at, found, left, depth - 1)?;
        } else if meta.is_file() {
            *left =
                left.checked_sub(meta.len()).ok_or_else(|| format!("more than {MAX_FILES_BYTES} bytes of files"))?;
            found.insert(at, std::fs::read(&path).map_err(|error| problem(&path, error))?);
        }
    }
    Ok(())
}

/// User data, of which some is no text: cloud-init takes it compressed, too.
fn user_data(out: &Path, text: &str, encoded: Option<&str>) -> Result<Vec<u8>, VolumeError> {
    let Some(encoded) = encoded else { return Ok(text.as_bytes().to_vec()) };
    let failed =
        |error: base64::DecodeError| VolumeError { path: out.to_path_buf(), reason: format!("user data: {error}") };
    base64::engine::general_purpose::STANDARD.decode(encoded).map_err(failed)
}

/// Writes a volume, readable by nobody else: it may hold passwords.
fn write(out: &Path, label: &str, files: BTreeMap<String, Vec<u8>>) -> Result<(), VolumeError> {
    let failed = |reason: String| VolumeError { path: out.to_path_buf(), reason };
    let mut tree = Tree::new();
    for (name, bytes) in files {
        tree.insert(&name, Node::file(Content::bytes(bytes))).map_err(|e| failed(format!("{name}: {e}")))?;
    }
    // Linux prefers Rock Ridge names, other systems Joliet ones; the plain ones are cut to eight characters.
    let options = IsoOptions::default().with_id(IsoId::Volume, label).with_rock_ridge().with_joliet();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(out)
        .map_err(|error| failed(error.to_string()))?;
    let device = FileDevice::new(file).map_err(|error| failed(error.to_string()))?;
    hadris_iso::sync::write(device, &tree, &options).map_err(|error| failed(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadris_fs::sync::Volume;
    use hadris_fs::{MountOptions, OpenOptions};
    use hadris_iso::sync::IsoFs;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    // That Linux reads them too is shown where the demo guest takes its name from one.
    #[track_caller]
    fn check(out: &Path, label: &str, expected: &[(&str, &str)]) {
        let found = &std::fs::read(out).expect("read")[32808..32840];
        assert_eq!(String::from_utf8_lossy(found).trim_end(), label);
        assert_eq!(std::fs::metadata(out).expect("there").permissions().mode() & 0o777, 0o600);
        let device = FileDevice::open(out).expect("opened");
        let volume = Volume::new(IsoFs::mount(device, MountOptions::new()).expect("mounted"));
        for (name, wanted) in expected {
            let mut text = String::new();
            let mut file = volume.open(name, OpenOptions::new().read()).expect("opened");
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, *wanted, "{name}");
        }
    }

    #[test]
    fn no_cloud_volumes() {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("seed.iso");
        let mut data = NoCloudSpec {
            user_data: "#cloud-config\nhostname: x\n".repeat(500),
            network_data: Some("version: 2\n".to_owned()),
            instance_id: "i-\"1\"".to_owned(),
            local_hostname: "demo".to_owned(),
            ..NoCloudSpec::default()
        };
        no_cloud(&out, &data).expect("written");
        let meta = r#"{"instance-id":"i-\"1\"","local-hostname":"demo"}"#;
        check(
            &out,
            "cidata",
            &[("/user-data", &data.user_data), ("/network-config", "version: 2\n"), ("/meta-data", meta)],
        );
        data.public_keys.insert("0".to_owned(), "ssh-ed25519 A".to_owned());
        data.user_data_base64 = Some("I3g=".to_owned());
        no_cloud(&out, &data).expect("written");
        check(&out, "cidata", &[("/user-data", "#x")]);
        let meta = r#"{"instance-id":"i-\"1\"","local-hostname":"demo","public-keys":{"0":"ssh-ed25519 A"}}"#;
        check(&out, "cidata", &[("/meta-data", meta)]);
    }

    #[test]
    fn config_drives() {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("seed.iso");
        let data = ConfigDriveSpec {
            user_data: "#!/bin/sh\n".to_owned(),
            network_data: Some("{}".to_owned()),
            instance_id: "demo.default".to_owned(),
            hostname: "demo".to_owned(),
            ..ConfigDriveSpec::default()
        };
        config_drive(&out, &data).expect("written");
        let meta = r#"{"hostname":"demo","instance_id":"demo.default","local_hostname":"demo","uuid":"demo.default"}"#;
        check(
            &out,
            "config-2",
            &[
                ("/openstack/latest/user_data", "#!/bin/sh\n"),
                ("/openstack/latest/meta_data.json", meta),
                ("/openstack/latest/network_data.json", "{}"),
            ],
        );
        config_drive(&out, &ConfigDriveSpec { user_data_base64: Some("I3g=".to_owned()), ..data }).expect("written");
        check(&out, "config-2", &[("/openstack/latest/user_data", "#x")]);
    }

    #[test]
    fn directories_as_the_kubelet_keeps_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir_all(source.join("..2026/sub")).expect("made");
        std::fs::write(source.join("..2026/key"), "value").expect("written");
        std::fs::write(source.join("..2026/sub/deep"), "below").expect("written");
        std::os::unix::fs::symlink("..2026", source.join("..data")).expect("linked");
        std::os::unix::fs::symlink("..data/key", source.join("key")).expect("linked");
        std::os::unix::fs::symlink("..data/sub", source.join("sub")).expect("linked");
        let out = dir.path().join("files.iso");
        directory(&out, "cfgdata", &source).expect("written");
        check(&out, "cfgdata", &[("/key", "value"), ("/sub/deep", "below")]);
        // A link to itself is too deep and no endless loop.
        std::os::unix::fs::symlink(".", source.join("loop")).expect("linked");
        assert!(directory(&out, "cfgdata", &source).is_err());
        assert!(directory(&out, "cfgdata", &dir.path().join("none")).is_err());
    }
}
