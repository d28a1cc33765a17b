//! What is mounted and filled below the kubelet's directory, in one look: the mount table once, and the directories of
//! pods, whose layout is upstream's (`pods/<uid>/volumes/<plugin>/<name>`).

use std::fs;
use std::io;
use std::path::Path;

use carrack_disks::directories;

use super::mounts;
use crate::volumes::Found;

/// Looks.
///
/// # Errors
/// When any of it cannot be read: then nothing is known.
pub fn read(root: &Path) -> io::Result<Found> {
    // In the order of the table, so that of several mounts at one place the uppermost is left.
    let mounts = mounts::at_or_below(&root.to_string_lossy())?;
    let mut found = Found { mounts: mounts.into_iter().map(|m| (m.path, m.device)).collect(), ..Found::default() };
    for pod in directories(&root.join("pods"))? {
        for plugin in directories(&pod.join("volumes"))? {
            let volumes = directories(&plugin)?;
            found.directories.extend(volumes.into_iter().map(|path| path.to_string_lossy().into_owned()));
        }
        for plugin in directories(&pod.join("volumeDevices"))? {
            for device in fs::read_dir(&plugin)? {
                found.devices.insert(device?.path().to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_volumes_are_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Found::default());
        let volumes = dir.path().join("pods/u/volumes");
        let settings = volumes.join("kubernetes.io~configmap/settings");
        fs::create_dir_all(&settings).unwrap();
        fs::create_dir_all(dir.path().join("pods/u/plugins/other")).unwrap();
        fs::write(volumes.join("kubernetes.io~configmap/file"), "").unwrap();
        let device = dir.path().join("pods/u/volumeDevices/kubernetes.io~csi/disk");
        fs::create_dir_all(device.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        let found = read(dir.path()).unwrap();
        assert_eq!(found.devices.iter().collect::<Vec<_>>(), [device.to_str().unwrap()]);
        assert_eq!(found.directories.into_iter().collect::<Vec<_>>(), [settings.to_str().unwrap()]);
        assert!(found.mounts.is_empty());
        fs::write(dir.path().join("pods/u/volumes/kubernetes.io~configmap/settings/a"), "").unwrap();
        fs::remove_dir_all(&volumes).unwrap();
        fs::write(&volumes, "").unwrap();
        assert!(read(dir.path()).is_err(), "what is not as it should be is not known");
    }
}
