//! A driver that starts again, one that has another's name, and what drivers are told.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use carrack_csi::registration::registration_server::{Registration, RegistrationServer};
use carrack_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use csi::node_server::{Node, NodeServer};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::super::tests::{drivers_of, setup};
use super::following::Asking;
use super::*;
use crate::effects::In;
use crate::volumes::GroupPolicy;

/// What a driver was told.
#[derive(Clone, Debug, Default)]
struct Told {
    registered: Vec<String>,
    published: Vec<csi::NodePublishVolumeRequest>,
}

#[derive(Clone, Debug)]
struct Fake {
    endpoint: PathBuf,
    max_volumes: i64,
    mounts_for_groups: bool,
    told: Arc<Mutex<Told>>,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Registration for Fake {
    async fn get_info(&self, _: Request<InfoRequest>) -> Reply<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: "d".into(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }
    async fn notify_registration_status(&self, r: Request<RegistrationStatus>) -> Reply<RegistrationStatusResponse> {
        self.told.lock().unwrap().registered.push(r.into_inner().error);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn nothing<T>() -> Reply<T> {
    Err(Status::unimplemented("not asked for"))
}

#[tonic::async_trait]
impl Node for Fake {
    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Reply<csi::NodeGetInfoResponse> {
        let info = csi::NodeGetInfoResponse {
            node_id: "n".into(),
            max_volumes_per_node: self.max_volumes,
            ..csi::NodeGetInfoResponse::default()
        };
        Ok(Response::new(info))
    }
    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Reply<csi::NodeGetCapabilitiesResponse> {
        let rpc = csi::node_service_capability::Rpc { r#type: NodeRpc::VolumeMountGroup as i32 };
        let capability = csi::NodeServiceCapability { r#type: Some(csi::node_service_capability::Type::Rpc(rpc)) };
        let capabilities = if self.mounts_for_groups { vec![capability] } else { Vec::new() };
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }
    async fn node_publish_volume(
        &self,
        r: Request<csi::NodePublishVolumeRequest>,
    ) -> Reply<csi::NodePublishVolumeResponse> {
        let r = r.into_inner();
        fs::create_dir_all(&r.target_path).unwrap();
        self.told.lock().unwrap().published.push(r);
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }
    async fn node_stage_volume(&self, _: Request<csi::NodeStageVolumeRequest>) -> Reply<csi::NodeStageVolumeResponse> {
        nothing()
    }
    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Reply<csi::NodeUnstageVolumeResponse> {
        nothing()
    }
    async fn node_unpublish_volume(
        &self,
        _: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Reply<csi::NodeUnpublishVolumeResponse> {
        nothing()
    }
    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Reply<csi::NodeGetVolumeStatsResponse> {
        nothing()
    }
    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Reply<csi::NodeExpandVolumeResponse> {
        nothing()
    }
}

/// A driver of one life, announced at this socket.
struct Life {
    told: Arc<Mutex<Told>>,
    serving: [JoinHandle<()>; 2],
}

impl Life {
    fn begin(dir: &Path, announced: &str, max_volumes: i64, mounts_for_groups: bool) -> Self {
        let endpoint = dir.join(format!("{announced}.calls"));
        let told = Arc::new(Mutex::new(Told::default()));
        let fake = Fake { endpoint: endpoint.clone(), max_volumes, mounts_for_groups, told: told.clone() };
        let listen = |path: PathBuf| {
            let _gone = fs::remove_file(&path);
            UnixListenerStream::new(UnixListener::bind(path).unwrap())
        };
        let registration = Server::builder().add_service(RegistrationServer::new(fake.clone()));
        let node = Server::builder().add_service(NodeServer::new(fake));
        let announcing = registration.serve_with_incoming(listen(dir.join("registry").join(announced)));
        let answering = node.serve_with_incoming(listen(endpoint));
        let serving = [
            tokio::spawn(async move { announcing.await.unwrap() }),
            tokio::spawn(async move { answering.await.unwrap() }),
        ];
        Self { told, serving }
    }

    fn registered(&self) -> Vec<String> {
        self.told.lock().unwrap().registered.clone()
    }

    /// It ends, and leaves its sockets.
    async fn end(self) {
        for task in self.serving {
            task.abort();
            let _aborted = task.await;
        }
    }
}

/// What the kubelet hears when it looks once, and as many answer as are waited for.
async fn look_for(drivers: &Csi, dir: &Path, asking: &mut Asking, answers: usize) -> Vec<String> {
    let heard = Mutex::new(Vec::new());
    let report = |event: In| {
        heard.lock().unwrap().push(match event {
            In::CsiUp { driver, info } => format!("{driver} up, {}", info.max_volumes),
            In::CsiDown { driver } => format!("{driver} down"),
            other => format!("{other:?}"),
        });
    };
    drivers.look(&dir.join("registry"), asking, &report).await;
    for _ in 0..answers {
        let Some(answer) = asking.tasks.join_next_with_id().await else { break };
        drivers.answered(answer, asking, &report);
    }
    heard.into_inner().unwrap()
}

/// What the kubelet hears when it looks once and all have answered.
async fn look(drivers: &Csi, dir: &Path) -> Vec<String> {
    look_for(drivers, dir, &mut Asking::default(), usize::MAX).await
}

/// Announces something else than a driver, and counts how often it is asked.
struct Other(Arc<AtomicUsize>);

#[tonic::async_trait]
impl Registration for Other {
    async fn get_info(&self, _: Request<InfoRequest>) -> Reply<PluginInfo> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(PluginInfo { r#type: "DevicePlugin".into(), ..PluginInfo::default() }))
    }
    async fn notify_registration_status(&self, _: Request<RegistrationStatus>) -> Reply<RegistrationStatusResponse> {
        nothing()
    }
}

#[tokio::test]
async fn who_hangs_holds_up_nobody_and_who_is_no_driver_is_asked_once() {
    let dir = tempfile::tempdir().unwrap();
    let registry = dir.path().join("registry");
    fs::create_dir(&registry).unwrap();
    // It takes connections and never says a word.
    let _hangs = UnixListener::bind(registry.join("a.sock")).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let listener = UnixListener::bind(registry.join("b.sock")).unwrap();
    let serving = Server::builder()
        .add_service(RegistrationServer::new(Other(asked.clone())))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let other = tokio::spawn(serving);
    let _driver = Life::begin(dir.path(), "c.sock", 3, false);
    // One that is about to be given another name.
    let _hidden = UnixListener::bind(registry.join(".d.sock")).unwrap();
    let (drivers, mut asking) = (Csi::default(), Asking::default());
    assert_eq!(look_for(&drivers, dir.path(), &mut asking, 2).await, ["d up, 3"]);
    assert_eq!(look_for(&drivers, dir.path(), &mut asking, 0).await, [""; 0]);
    assert_eq!((asked.load(Ordering::Relaxed), asking.tasks.len()), (1, 1), "only the one that hangs is being asked");
    // Nobody is taken for gone where the directory cannot be read.
    fs::rename(&registry, dir.path().join("away")).unwrap();
    assert_eq!(look_for(&drivers, dir.path(), &mut asking, 0).await, [""; 0]);
    fs::create_dir(&registry).unwrap();
    assert_eq!(look_for(&drivers, dir.path(), &mut asking, 0).await, ["d down"]);
    other.abort();
}

#[tokio::test]
async fn a_driver_that_starts_again_is_registered_anew_and_its_name_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("registry")).unwrap();
    let drivers = Csi::default();
    let first = Life::begin(dir.path(), "a.sock", 3, false);
    assert_eq!(look(&drivers, dir.path()).await, ["d up, 3"]);
    assert_eq!(look(&drivers, dir.path()).await, [""; 0], "it is known");
    assert_eq!(first.registered(), [""]);
    // Between two looks another one has taken its place.
    first.end().await;
    let second = Life::begin(dir.path(), "a.sock", 5, false);
    assert_eq!(look(&drivers, dir.path()).await, ["d up, 5"]);
    assert_eq!(second.registered(), [""]);
    // Somebody else comes with its name.
    let other = Life::begin(dir.path(), "b.sock", 7, false);
    assert_eq!(look(&drivers, dir.path()).await, [""; 0]);
    let told = other.registered();
    assert!(told[0].contains("another driver of the name d is registered"), "{told:?}");
    // It is let in when nobody is behind the other socket any more.
    second.end().await;
    assert_eq!(look(&drivers, dir.path()).await, ["d up, 7"]);
    for socket in ["a.sock", "b.sock"] {
        fs::remove_file(dir.path().join("registry").join(socket)).unwrap();
    }
    assert_eq!(look(&drivers, dir.path()).await, ["d down"]);
    let counted = drivers.times.all();
    let infos = counted.iter().filter(|(call, _)| call.method == "/csi.v1.Node/NodeGetInfo" && call.status == "OK");
    assert_eq!(infos.map(|(_, times)| times.count).sum::<u64>(), 3, "{counted:?}");
}

fn origin(access_modes: &[&str]) -> Origin {
    serde_json::from_value(serde_json::json!({
        "driver": {"kind": "csi", "driver": "d", "handle": "h", "attributes": {}, "ephemeral": false},
        "specName": "pv", "block": false, "readOnly": false, "fsType": "ext4", "mountOptions": [],
        "accessModes": access_modes,
    }))
    .unwrap()
}

#[tokio::test]
async fn a_volume_is_given_to_the_group_by_its_driver_or_by_the_kubelet() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (by_driver, group, owner) in [(false, "", 4711), (true, "4711", 0)] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("registry")).unwrap();
        let life = Life::begin(dir.path(), "a.sock", 0, by_driver);
        let drivers = drivers_of(dir.path());
        look(&drivers.csi, dir.path()).await;
        let at = dir.path().join("volume/mount");
        let (mut setup, mut publishing) = setup(&at, false);
        publishing.published.origin = origin(&["ReadWriteOnce"]);
        publishing.group_policy = GroupPolicy::Always;
        setup.fs_group = Some(4711);
        drivers.publish(&setup, &publishing).await.unwrap();
        let told = life.told.lock().unwrap().published.remove(0).volume_capability.unwrap();
        let Some(csi::volume_capability::AccessType::Mount(mount)) = told.access_type else { panic!("{told:?}") };
        assert_eq!(
            (mount.volume_mount_group.as_str(), fs::metadata(&at).unwrap().gid()),
            (group, owner),
            "{by_driver}"
        );
    }
}

#[tokio::test]
async fn a_group_is_not_forgotten_while_the_driver_has_not_registered() {
    use rustix::mount::{MountFlags, mount};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("registry")).unwrap();
    // As a kubelet leaves it that is killed between the mount and the group.
    let at = dir.path().join("volume/mount");
    fs::create_dir_all(&at).unwrap();
    mount("made", &at, "tmpfs", MountFlags::empty(), None).unwrap();
    let (mut setup, mut publishing) = setup(&at, false);
    publishing.published.origin = origin(&["ReadWriteOnce"]);
    publishing.group_policy = GroupPolicy::Always;
    setup.fs_group = Some(4711);
    let drivers = drivers_of(dir.path());
    let refused = drivers.publish(&setup, &publishing).await.unwrap_err().to_string();
    assert!(refused.contains("driver d has not registered yet"), "{refused}");
    let _life = Life::begin(dir.path(), "a.sock", 0, false);
    look(&drivers.csi, dir.path()).await;
    drivers.publish(&setup, &publishing).await.unwrap();
    assert_eq!(fs::metadata(&at).unwrap().gid(), 4711);
    // The next life of the kubelet finds it given, and needs no driver for that.
    drivers_of(dir.path()).publish(&setup, &publishing).await.unwrap();
    crate::adapters::mounts::unmount(&at.to_string_lossy()).unwrap();
}

#[tokio::test]
async fn access_modes_are_told_as_far_as_the_driver_knows_them() {
    use Mode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
    };
    for (modes, older, newer) in [
        (&["ReadWriteOnce"][..], SingleNodeWriter, SingleNodeMultiWriter),
        (&["ReadWriteOncePod"], SingleNodeWriter, SingleNodeSingleWriter),
        (&["ReadOnlyMany"], MultiNodeReaderOnly, MultiNodeReaderOnly),
        (&["ReadWriteMany"], MultiNodeMultiWriter, MultiNodeMultiWriter),
        (&["ReadWriteOnce", "ReadOnlyMany"], SingleNodeWriter, SingleNodeMultiWriter),
        (&["ReadOnlyMany", "ReadWriteOnce"], MultiNodeReaderOnly, MultiNodeReaderOnly),
        (&[], SingleNodeWriter, SingleNodeMultiWriter),
    ] {
        for (single_node_modes, expected) in [(false, older), (true, newer)] {
            let registered = Registered {
                node: NodeClient::new(Endpoint::from_static("http://nobody").connect_lazy()),
                stages: false,
                expands: false,
                measures: false,
                judges: false,
                mount_group: false,
                single_node_modes,
                socket: Socket { path: PathBuf::new(), file: (0, 0, 0) },
            };
            let told = capability(&origin(modes), &registered, None).access_mode.unwrap().mode();
            assert_eq!(told, expected, "{modes:?} {single_node_modes}");
        }
    }
}
