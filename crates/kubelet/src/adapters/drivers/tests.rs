//! Drivers whose mounts are left dead.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;

use rustix::mount::{MountFlags, mount};

use super::*;
use crate::volumes::{Origin, PodInfo, Secrets};

/// Mounts a file system in user space whose server has ended.
fn mount_dead(at: &Path) {
    let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    mount("dead", at, "fuse", MountFlags::empty(), data.as_c_str()).unwrap();
}

/// A FlexVolume that is to be given to a pod.
fn setup(path: &Path, confirm_only: bool) -> (VolumeSetup, Publishing) {
    let origin = Origin {
        spec_name: "v".into(),
        driver: Driver::Flex { driver: "v/d".into(), options: BTreeMap::new(), secret: None },
        claim: None,
        block: false,
        read_only: false,
        fs_type: String::new(),
        mount_options: Vec::new(),
        access_modes: Vec::new(),
    };
    let publishing = Publishing {
        published: Published { id: None, stage_path: String::new(), origin },
        staging: None,
        publish_context: BTreeMap::new(),
        secrets: Secrets::default(),
        pod: PodInfo::default(),
        pod_info: false,
        tokens: Secrets::default(),
        republish: false,
        group_policy: GroupPolicy::None,
        confirm_only,
    };
    let setup = VolumeSetup {
        uid: "u".into(),
        name: "v".into(),
        path: path.to_string_lossy().into_owned(),
        kind: VolumeKind::Published(Box::new(publishing.clone())),
        fs_group: None,
    };
    (setup, publishing)
}

#[tokio::test]
async fn a_mount_whose_server_has_ended_is_made_anew() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("v~d/d");
    fs::create_dir(dir.path().join("v~d")).unwrap();
    let script = r#"#!/bin/sh
        [ "$1" = mount ] && mount -t tmpfs made "$2"
        echo '{"status": "Success", "capabilities": {"attach": false}}'
    "#;
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let drivers = Drivers {
        csi: csi::Csi::default(),
        flex: flex::Flex::new(dir.path().to_owned(), "n"),
        root: dir.path().to_owned(),
        boot_id: "boot".into(),
        usages: usage::Usages::default(),
    };
    let at = dir.path().join("volume");
    fs::create_dir(&at).unwrap();
    mount_dead(&at);
    let path = at.to_string_lossy().into_owned();
    assert!(mounts::is_dead(&path));
    // While it is not known how it is made, it stays as it was left.
    let (volume, publishing) = setup(&at, true);
    drivers.publish(&volume, &publishing).await.unwrap();
    assert!(mounts::is_dead(&path));
    let (volume, publishing) = setup(&at, false);
    drivers.publish(&volume, &publishing).await.unwrap();
    assert!(!mounts::is_dead(&path));
    assert_eq!(mounts::at_or_below(&path).unwrap().len(), 1, "it lies on top of the dead one");
    // What lives stays.
    fs::write(at.join("data"), "1").unwrap();
    drivers.publish(&volume, &publishing).await.unwrap();
    assert_eq!(fs::read_to_string(at.join("data")).unwrap(), "1");
    mounts::unmount(&path).unwrap();
}
