//! A CSI driver beside the cluster, which outlives agents. Its disks are directories; they are attached by whoever plays
//! its attacher.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_csi::registration::registration_server::{Registration, RegistrationServer};
use carrack_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use carrack_csi::v1 as csi;
use carrack_csi::v1::node_server::{Node, NodeServer};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What the driver was called for.
#[derive(Clone, Debug, Default)]
pub struct CsiCall {
    /// The method.
    pub method: &'static str,
    /// The volume.
    pub volume: String,
    /// What the attacher said.
    pub publish_context: BTreeMap<String, String>,
    /// What the kubelet said of the volume and the pod.
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Driver {
    name: String,
    /// Its disks, and its socket.
    dir: PathBuf,
    max_volumes: i64,
    calls: Arc<Mutex<Vec<CsiCall>>>,
    /// What is wrong with its volumes.
    wrong: Arc<Mutex<Option<String>>>,
}

/// A driver that serves until it is dropped.
#[derive(Debug)]
pub struct CsiDriver {
    driver: Driver,
    runtime: Option<Runtime>,
}

impl CsiDriver {
    /// Starts one of this name, with room for so many volumes on the node, in a kubelet's directory.
    ///
    /// # Panics
    /// Its directories or sockets cannot be made.
    #[must_use]
    pub fn start(kubelet: &Path, dir: &Path, name: &str, max_volumes: i64) -> Self {
        fs::create_dir_all(dir).expect("a directory");
        fs::create_dir_all(kubelet.join("plugins_registry")).expect("a directory");
        let driver = Driver {
            name: name.to_owned(),
            dir: dir.to_owned(),
            max_volumes,
            calls: Arc::default(),
            wrong: Arc::default(),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let announced = kubelet.join("plugins_registry").join(format!("{name}-reg.sock"));
        let (calls, announcements) = {
            let _inside = runtime.enter();
            (UnixListener::bind(driver.socket()).expect("a socket"), UnixListener::bind(announced).expect("a socket"))
        };
        let node = Server::builder().add_service(NodeServer::new(driver.clone()));
        runtime.spawn(node.serve_with_incoming(UnixListenerStream::new(calls)));
        let registration = Server::builder().add_service(RegistrationServer::new(driver.clone()));
        runtime.spawn(registration.serve_with_incoming(UnixListenerStream::new(announcements)));
        Self { driver, runtime: Some(runtime) }
    }

    /// From now on it finds this wrong with its volumes.
    pub fn finds_wrong(&self, what: &str) {
        *self.driver.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
    }

    /// What it was called for, first to last.
    #[must_use]
    pub fn calls(&self) -> Vec<CsiCall> {
        self.driver.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs a program that mounts or unmounts.
fn system(words: &[&str]) -> Result<(), Status> {
    let done = Command::new(words[0]).args(&words[1..]).output().map_err(|e| Status::internal(e.to_string()))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(Status::internal(format!("{}: {said}", words.join(" ")))) }
}

fn is_mounted(path: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn bind(from: &str, to: &str) -> Result<(), Status> {
    fs::create_dir_all(to).map_err(|e| Status::internal(e.to_string()))?;
    if is_mounted(to) { Ok(()) } else { system(&["mount", "--bind", from, to]) }
}

fn unbind(path: &str) -> Result<(), Status> {
    if is_mounted(path) { system(&["umount", path]) } else { Ok(()) }
}

impl Driver {
    fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    fn called(&self, call: CsiCall) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.socket().display().to_string(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let r = request.into_inner();
        let disk = self.dir.join(&r.volume_id);
        fs::create_dir_all(&disk).map_err(|e| Status::internal(e.to_string()))?;
        bind(&disk.display().to_string(), &r.staging_target_path)?;
        let (publish_context, volume_context) = (r.publish_context, r.volume_context);
        self.called(CsiCall { method: "NodeStageVolume", volume: r.volume_id, publish_context, volume_context });
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let r = request.into_inner();
        unbind(&r.staging_target_path)?;
        self.called(CsiCall { method: "NodeUnstageVolume", volume: r.volume_id, ..CsiCall::default() });
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let r = request.into_inner();
        bind(&r.staging_target_path, &r.target_path)?;
        let (publish_context, volume_context) = (r.publish_context, r.volume_context);
        self.called(CsiCall { method: "NodePublishVolume", volume: r.volume_id, publish_context, volume_context });
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let r = request.into_inner();
        unbind(&r.target_path)?;
        self.called(CsiCall { method: "NodeUnpublishVolume", volume: r.volume_id, ..CsiCall::default() });
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let condition = csi::VolumeCondition { abnormal: wrong.is_some(), message: wrong.unwrap_or_default() };
        let usage =
            vec![csi::VolumeUsage { available: 30, total: 40, used: 10, unit: csi::volume_usage::Unit::Bytes.into() }];
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) }))
    }

    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("it says that it does not expand"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::rpc::Type as Rpc;
        use csi::node_service_capability::{Rpc as Of, Type};
        let has = |rpc: Rpc| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Of { r#type: rpc.into() })) };
        let capabilities = [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::VolumeCondition].map(has).to_vec();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "its-node".to_owned(),
            max_volumes_per_node: self.max_volumes,
            accessible_topology: None,
        }))
    }
}
