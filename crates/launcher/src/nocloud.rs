//! The NoCloud volume: an ISO 9660 image labelled `cidata` with user-data, meta-data and network-config.
//!
//! Upstream reference: the NoCloud data source of cloud-init.

use crate::spec::NoCloudSpec;
use hadris_fs::{Content, Node, Tree};
use hadris_iso::{IsoId, IsoOptions};
use hadris_storage::host::FileDevice;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The volume could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the NoCloud volume {}: {reason}", path.display())]
pub struct NoCloudError {
    path: PathBuf,
    reason: String,
}

/// Writes the volume to `out`, readable by nobody else: it may hold passwords.
///
/// # Errors
/// The file cannot be written.
pub fn write(out: &Path, data: &NoCloudSpec) -> Result<(), NoCloudError> {
    let failed = |reason: String| NoCloudError { path: out.to_path_buf(), reason };
    let mut files = vec![("user-data", data.user_data.clone()), ("meta-data", meta_data(data))];
    if let Some(network) = &data.network_data {
        files.push(("network-config", network.clone()));
    }
    let mut tree = Tree::new();
    for (name, text) in files {
        tree.insert(name, Node::file(Content::bytes(text))).map_err(|e| failed(e.to_string()))?;
    }
    // Linux prefers Rock Ridge names, other systems Joliet ones; the plain ones are cut to eight characters.
    let options = IsoOptions::default().with_id(IsoId::Volume, "cidata").with_rock_ridge().with_joliet();
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

/// JSON is YAML, and quotes what needs it.
fn meta_data(data: &NoCloudSpec) -> String {
    serde_json::json!({ "instance-id": data.instance_id, "local-hostname": data.local_hostname }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadris_fs::sync::Volume;
    use hadris_fs::{MountOptions, OpenOptions};
    use hadris_iso::sync::IsoFs;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    // That Linux reads it too is shown where the demo guest takes its name from it.
    #[test]
    fn label_files_and_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("seed.iso");
        let data = NoCloudSpec {
            user_data: "#cloud-config\nhostname: x\n".repeat(500),
            network_data: Some("version: 2\n".to_owned()),
            instance_id: "i-\"1\"".to_owned(),
            local_hostname: "demo".to_owned(),
        };
        write(&out, &data).expect("written");
        let label = &std::fs::read(&out).expect("read")[32808..32840];
        assert_eq!(String::from_utf8_lossy(label).trim_end(), "cidata");
        assert_eq!(std::fs::metadata(&out).expect("there").permissions().mode() & 0o777, 0o600);

        let device = FileDevice::open(&out).expect("opened");
        let volume = Volume::new(IsoFs::mount(device, MountOptions::new()).expect("mounted"));
        let read = |name: &str| {
            let mut text = String::new();
            let mut file = volume.open(name, OpenOptions::new().read()).expect("opened");
            file.read_to_string(&mut text).expect("read");
            text
        };
        assert_eq!(read("/user-data"), data.user_data);
        assert_eq!(read("/network-config"), "version: 2\n");
        assert_eq!(read("/meta-data"), r#"{"instance-id":"i-\"1\"","local-hostname":"demo"}"#);
    }
}
