//! Drivers whose mounts are left dead or do not answer, and drivers that lie.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};

use super::*;
use crate::adapters::volumes::prepare_container;
use crate::runtime::{ContainerFiles, Mount};
use crate::volumes::{Origin, PodInfo, Secrets, VolumeKind};

/// Mounts a file system in user space, whose server stands still, and has ended when what this returns is dropped.
pub(in crate::adapters) fn mount_still(at: &Path) -> fs::File {
    let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    mount("still", at, "fuse", MountFlags::empty(), data.as_c_str()).unwrap();
    server
}

/// The drivers of a directory, which is the kubelet's, too.
pub(super) fn drivers_of(dir: &Path) -> Drivers {
    Drivers {
        csi: csi::Csi::default(),
        flex: flex::Flex::new(dir.to_owned(), "n"),
        root: dir.to_owned(),
        boot_id: "boot".into(),
        usages: usage::Usages::default(),
        looks: dead::Looks::default(),
    }
}

/// A directory with a driver that does this, for volumes without or with a device, and what calls it.
fn with_driver(script: &str) -> (tempfile::TempDir, Drivers) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("v~d/d");
    fs::create_dir(dir.path().join("v~d")).unwrap();
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let drivers = drivers_of(dir.path());
    (dir, drivers)
}

/// It mounts something for each pod.
const MOUNTS: &str = r#"[ "$1" = mount ] && mount -t tmpfs made "$2"
    echo '{"status": "Success", "capabilities": {"attach": false}}'"#;

/// A FlexVolume that is to be given to a pod.
pub(super) fn setup(path: &Path, confirm_only: bool) -> (VolumeSetup, Publishing) {
    let origin = Origin {
        spec_name: "v".into(),
        driver: Driver::Flex { driver: "v/d".into(), options: BTreeMap::new(), secret: None },
        claim: None,
        block: false,
        read_only: false,
        reads_by_choice: false,
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
    let (dir, drivers) = with_driver(MOUNTS);
    let at = dir.path().join("volume");
    fs::create_dir(&at).unwrap();
    drop(mount_still(&at));
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

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test]
async fn a_server_that_stands_still_keeps_one_thread_however_often_it_is_looked_at() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let (dir, drivers) = with_driver(MOUNTS);
    let at = dir.path().join("volume");
    fs::create_dir(&at).unwrap();
    let server = mount_still(&at);
    let path = at.to_string_lossy().into_owned();
    let (volume, publishing) = setup(&at, false);
    // Nothing says that it has ended. One thread waits, and another one does the rest.
    for _ in 0..2 {
        drivers.publish(&volume, &publishing).await.unwrap();
    }
    let before = threads();
    const LOOKS: usize = 60;
    for _ in 0..LOOKS {
        drivers.publish(&volume, &publishing).await.unwrap();
    }
    // The runtime makes another one for work that comes before the last thread is known to be idle; those stay, and do the next.
    assert!(threads() < before + LOOKS / 2, "each look keeps a thread");
    assert_eq!(mounts::at(&path).unwrap().map(|m| m.fs_type).as_deref(), Some("fuse"), "it stays as it is");
    // It ends: who waited has an answer, and the next look shows it.
    drop(server);
    while mounts::at(&path).unwrap().is_some_and(|m| m.fs_type == "fuse") {
        drivers.publish(&volume, &publishing).await.unwrap();
    }
    assert_eq!(mounts::at_or_below(&path).unwrap().len(), 1);
    mounts::unmount(&path).unwrap();
}

#[tokio::test]
async fn a_driver_that_names_a_file_for_a_device_is_refused_and_the_file_is_what_it_was() {
    let (dir, drivers) = with_driver("");
    let (victim, program) = (dir.path().join("victim"), dir.path().join("v~d/d"));
    fs::write(&victim, vec![0; 32 << 20]).unwrap();
    for (named, expected) in [
        (victim.to_string_lossy().into_owned(), "which is no block device"),
        (format!("{}/x/../../victim", dir.path().join("v~d").display()), "No such file"),
        ("/dev/null".into(), "which is no block device"),
    ] {
        let says = |answer: &str| format!(r#"echo '{{"status": "{answer}"}}'"#);
        let attached = format!(r#"echo '{{"status": "Success", "device": "{named}"}}'"#);
        let (can, cannot) = (says("Success"), says("Not supported"));
        let script =
            format!("#!/bin/sh\ncase $1 in init) {can} ;; attach|waitforattach) {attached} ;; *) {cannot} ;; esac\n");
        fs::write(&program, script).unwrap();
        let (_, publishing) = setup(&dir.path().join("volume"), false);
        let staging = Staging {
            id: "id".into(),
            origin: publishing.published.origin,
            path: dir.path().join("staged").to_string_lossy().into_owned(),
            device: None,
            identity: None,
            by_control_plane: false,
        };
        let refused = drivers.stage(&staging, &StageInputs::default()).await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{named}: {refused}");
    }
    assert_eq!(fs::read(&victim).unwrap(), vec![0; 32 << 20]);
}

#[tokio::test]
async fn a_local_volume_stays_with_the_group_of_who_had_it_first() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (dir, drivers) = with_driver("");
    let local = dir.path().join("disk");
    fs::create_dir(&local).unwrap();
    let mut given = Vec::new();
    for (pod, group, owner) in [("a", 4711, 4711), ("b", 4712, 4711)] {
        let at = dir.path().join("pods").join(pod).join("volumes/kubernetes.io~local-volume/pv");
        let (mut volume, mut publishing) = setup(&at, false);
        publishing.published.origin.driver = Driver::Local { path: local.to_string_lossy().into_owned() };
        publishing.group_policy = GroupPolicy::Always;
        volume.fs_group = Some(group);
        drivers.publish(&volume, &publishing).await.unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::gid(&fs::metadata(&local).unwrap()), owner, "{pod}");
        // As one leaves it who was killed on the way.
        if pod == "a" {
            std::os::unix::fs::chown(&local, None, Some(0)).unwrap();
            drivers.publish(&volume, &publishing).await.unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::gid(&fs::metadata(&local).unwrap()), owner, "it was left so");
        }
        given.push((pod, volume.path, publishing.published));
    }
    for (pod, path, published) in given {
        drivers.unpublish(&pod.into(), "v", &path, &published).await.unwrap();
        assert!(!Path::new(&path).exists(), "{pod}");
    }
    assert!(local.is_dir());
}

#[tokio::test]
async fn what_was_bound_by_who_ended_then_is_made_read_only() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (dir, drivers) = with_driver("");
    let local = dir.path().join("disk");
    fs::create_dir(&local).unwrap();
    for read_only in [true, false] {
        let at = dir.path().join(format!("pods/{read_only}/volumes/kubernetes.io~local-volume/pv"));
        let (volume, mut publishing) = setup(&at, false);
        publishing.published.origin.driver = Driver::Local { path: local.to_string_lossy().into_owned() };
        publishing.published.origin.read_only = read_only;
        fs::create_dir_all(&at).unwrap();
        mounts::bind(&local.to_string_lossy(), &volume.path, false).unwrap();
        drivers.publish(&volume, &publishing).await.unwrap();
        assert_eq!(fs::write(at.join("data"), "1").is_err(), read_only);
        fs::write(local.join("data"), "1").unwrap();
        drivers.unpublish(&volume.uid, "v", &volume.path, &publishing.published).await.unwrap();
    }
}

#[tokio::test]
async fn a_directory_that_does_not_answer_holds_up_nobody_else() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let (dir, drivers) = with_driver("");
    let at = dir.path().join("still");
    fs::create_dir(&at).unwrap();
    let server = mount_still(&at);
    // Whoever is held up goes on, late.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let serving = std::thread::spawn(move || {
        let _in_time = ended.recv_timeout(Duration::from_secs(10)).is_err();
        drop(server);
    });
    let (_, mut publishing) = setup(&dir.path().join("volume"), false);
    publishing.published.origin.driver = Driver::Local { path: at.to_string_lossy().into_owned() };
    let staging = Staging {
        id: "v".into(),
        origin: publishing.published.origin,
        path: dir.path().join("staged").to_string_lossy().into_owned(),
        device: None,
        identity: None,
        by_control_plane: false,
    };
    let inputs = StageInputs::default();
    let staged = tokio::time::timeout(Duration::from_millis(100), drivers.stage(&staging, &inputs)).await;
    make_dir(&at).unwrap();
    let log_directory = dir.path().join("logs").to_string_lossy().into_owned();
    let files = ContainerFiles { log_directory, ..ContainerFiles::default() };
    let given = Mount { host_path: at.to_string_lossy().into_owned(), ..Mount::default() };
    prepare_container(&files, &[given], false).unwrap();
    drop(end);
    serving.join().unwrap();
    while mounts::unmount(&at.to_string_lossy()).is_err() {
        std::thread::yield_now();
    }
    assert!(staged.is_err(), "{staged:?}");
}

#[test]
fn volumes_that_are_one_file_system_do_not_wait_for_each_other() {
    let staged = |at: &str, device: &str| mounts::MountPoint {
        path: at.into(),
        device: device.into(),
        root: "/".into(),
        fs_type: "f".into(),
        super_options: String::new(),
    };
    let all = [staged("/k/a", "0:60"), staged("/k/b", "0:60"), staged("/k/c", "8:16"), staged("/k/d", "8:16")];
    for (path, number, expected) in [
        ("/k/a", "0:60", &["/k/a", "/k/a", "/k/b"][..]),
        ("/k/e", "0:61", &["/k/e"]),
        // A device that goes would go from both.
        ("/k/c", "8:16", &["/k/c"]),
    ] {
        assert_eq!(of_node(path, number, &all), expected, "{path}");
    }
}
