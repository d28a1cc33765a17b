//! CSI drivers: found by their registration sockets, called over their own.
//!
//! ```text
//!  plugins_registry/<driver>-reg.sock ──GetInfo──▶ endpoint ──NodeGetInfo──▶ CSINode
//!                                     ◀─NotifyRegistrationStatus
//! ```
//!
//! A driver that is not there, or dies in a call, fails the call; the volume manager calls again. All of the
//! calls made here may be made twice.

mod following;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrack_csi::v1 as csi;
use carrack_csi::v1::node_client::NodeClient;
use carrack_types::volume::digest;
use csi::node_service_capability::rpc::Type as NodeRpc;
use csi::volume_capability::access_mode::Mode;
use tonic::Code;
use tonic::transport::Channel;

use super::{failed, make_dir, mounted};
use crate::adapters::now;
use crate::adapters::sockets::{self, File};
use crate::adapters::storage_times::{CsiCall, CsiTimes};
use crate::effects::OpError;
use crate::runtime::Uid;
use crate::volumes::staged::{Secrets, StageInputs};
use crate::volumes::{CsiNodeInfo, Driver, Expanding, Origin, Published, Publishing, Staging, VolumeSetup};

/// Upstream's limit of a call.
const CALL: Duration = Duration::from_secs(120);

/// A driver that registered.
#[derive(Clone, Debug)]
struct Registered {
    node: NodeClient<Channel>,
    stages: bool,
    expands: bool,
    measures: bool,
    judges: bool,
    mount_group: bool,
    single_node_modes: bool,
    /// The registration socket that announced it.
    socket: Socket,
}

/// A socket: where it is, and which of those that were there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Socket {
    path: PathBuf,
    file: File,
}

/// What a driver measured: available, in total, used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes.
    pub bytes: Option<(u64, u64, u64)>,
    /// Files.
    pub inodes: Option<(u64, u64, u64)>,
}

/// The CSI drivers of this node.
#[derive(Clone, Debug, Default)]
pub struct Csi {
    drivers: Arc<Mutex<BTreeMap<String, Registered>>>,
    /// How long calls took.
    pub times: CsiTimes,
}

async fn dial(socket: PathBuf) -> Result<Channel, OpError> {
    let what = format!("connecting to {}", socket.display());
    sockets::dial(socket, &what).await.map_err(OpError::Failed)
}

/// Makes a call within its time.
async fn call<T>(
    what: &str,
    future: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, OpError> {
    match tokio::time::timeout(CALL, future).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => {
            let text = format!("{what}: rpc error: code = {} desc = {}", status_name(status.code()), status.message());
            Err(match status.code() {
                // As upstream takes them (`isInfeasibleError`, `pkg/volume/csi/expander.go`).
                Code::InvalidArgument | Code::OutOfRange | Code::NotFound => OpError::Infeasible(text),
                _ => OpError::Failed(text),
            })
        }
        Err(_) => Err(OpError::TimedOut(CALL.as_secs())),
    }
}

/// A status as gRPC's implementation in Go writes it.
fn status_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

impl Csi {
    fn drivers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Registered>> {
        // Entries are put in and taken out whole.
        self.drivers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes a call to a driver's node service within its time, and counts it.
    async fn ask<T>(
        &self,
        driver: &str,
        method: &str,
        future: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, OpError> {
        let (began, mut status) = (now(), Code::DeadlineExceeded);
        let outcome = call(method, async {
            let reply = future.await;
            status = reply.as_ref().err().map_or(Code::Ok, tonic::Status::code);
            reply
        });
        let outcome = outcome.await;
        let of = CsiCall {
            driver: driver.to_owned(),
            method: format!("/csi.v1.Node/{method}"),
            status: status_name(status),
        };
        self.times.ended(of, now().since(began));
        outcome
    }

    fn driver(&self, name: &str) -> Result<Registered, OpError> {
        let known = self.drivers().get(name).cloned();
        known.ok_or_else(|| {
            OpError::Failed(format!("driver name {name} not found in the list of registered CSI drivers"))
        })
    }

    async fn connect(
        &self,
        socket: &Socket,
        info: &carrack_csi::registration::PluginInfo,
    ) -> Result<(Registered, CsiNodeInfo), OpError> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        if info.name.is_empty() || info.name.len() > 63 || !info.name.chars().all(good) {
            return failed(format!("{:?} is no name of a CSI driver", info.name));
        }
        if !info.supported_versions.iter().any(|v| v.trim_start_matches('v').starts_with("1.")) {
            return failed(format!("versions {:?} are not supported, 1.0.0 is", info.supported_versions));
        }
        let mut node = NodeClient::new(dial(PathBuf::from(&info.endpoint)).await?);
        let about = self.ask(&info.name, "NodeGetInfo", node.node_get_info(csi::NodeGetInfoRequest {})).await?;
        let can = self
            .ask(&info.name, "NodeGetCapabilities", node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}))
            .await?;
        let has = |wanted: NodeRpc| {
            can.capabilities.iter().any(|c| {
                let Some(csi::node_service_capability::Type::Rpc(rpc)) = &c.r#type else { return false };
                rpc.r#type == wanted as i32
            })
        };
        let registered = Registered {
            stages: has(NodeRpc::StageUnstageVolume),
            expands: has(NodeRpc::ExpandVolume),
            measures: has(NodeRpc::GetVolumeStats),
            judges: has(NodeRpc::VolumeCondition),
            mount_group: has(NodeRpc::VolumeMountGroup),
            single_node_modes: has(NodeRpc::SingleNodeMultiWriter),
            node,
            socket: socket.clone(),
        };
        Ok((registered, of_node(about)))
    }

    /// What a driver says of this node now.
    ///
    /// # Errors
    /// What the driver says; and while it is not registered.
    pub async fn about_node(&self, driver: &str) -> Result<CsiNodeInfo, OpError> {
        let mut d = self.driver(driver)?;
        let about = self.ask(driver, "NodeGetInfo", d.node.node_get_info(csi::NodeGetInfoRequest {})).await?;
        Ok(of_node(about))
    }

    /// NodeStageVolume, where the driver has it.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn stage(&self, s: &Staging, inputs: &StageInputs) -> Result<(), OpError> {
        let Driver::Csi { driver, handle, attributes, .. } = &s.origin.driver else { return Ok(()) };
        let mut d = self.driver(driver)?;
        if !d.stages {
            return Ok(());
        }
        make_dir(&s.path)?;
        let publish_context = match &inputs.attached {
            crate::volumes::staged::Attached::With { context, .. } => context.clone(),
            _ => BTreeMap::new(),
        };
        let request = csi::NodeStageVolumeRequest {
            volume_id: handle.clone(),
            publish_context,
            staging_target_path: s.path.clone(),
            volume_capability: Some(capability(&s.origin, &d, inputs.fs_group)),
            secrets: text(&inputs.secrets)?,
            volume_context: attributes.clone(),
        };
        self.ask(driver, "NodeStageVolume", d.node.node_stage_volume(request)).await.map(drop)
    }

    /// NodeUnstageVolume, where the driver has it.
    ///
    /// # Errors
    /// What the driver says; and while it is not registered.
    pub async fn unstage(&self, s: &Staging) -> Result<(), OpError> {
        let Driver::Csi { driver, handle, .. } = &s.origin.driver else { return Ok(()) };
        let mut d = self.driver(driver)?;
        if !d.stages {
            return Ok(());
        }
        let request = csi::NodeUnstageVolumeRequest { volume_id: handle.clone(), staging_target_path: s.path.clone() };
        self.ask(driver, "NodeUnstageVolume", d.node.node_unstage_volume(request)).await.map(drop)
    }

    /// Whether a volume's driver gives what is in it to the pod's group itself (`VOLUME_MOUNT_GROUP`), so that nobody else does;
    /// none while it has not registered.
    pub fn mounts_for_groups(&self, driver: &str) -> Option<bool> {
        self.drivers().get(driver).map(|d| d.mount_group)
    }

    /// Whether a volume's driver says how volumes are, beside how full they are.
    pub fn judges(&self, p: &Published) -> bool {
        let Driver::Csi { driver, .. } = &p.origin.driver else { return false };
        self.drivers().get(driver).is_some_and(|d| d.measures && d.judges)
    }

    /// NodeGetVolumeStats; none where the driver does not have it. And how it finds the volume, if it says.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn stats(
        &self,
        path: &str,
        p: &Published,
        uid: &Uid,
        name: &str,
    ) -> Result<Option<(Measured, Option<csi::VolumeCondition>)>, OpError> {
        let Driver::Csi { driver, handle, ephemeral, .. } = &p.origin.driver else { return Ok(None) };
        let mut d = self.driver(driver)?;
        if !d.measures {
            return Ok(None);
        }
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: if *ephemeral { inline_handle(uid, name) } else { handle.clone() },
            volume_path: path.to_owned(),
            staging_target_path: if d.stages && !ephemeral { p.stage_path.clone() } else { String::new() },
        };
        let reply = self.ask(driver, "NodeGetVolumeStats", d.node.node_get_volume_stats(request)).await?;
        let mut measured = Measured::default();
        for usage in reply.usage {
            // What is negative is not known.
            let value = |n: i64| u64::try_from(n).unwrap_or(0);
            let found = Some((value(usage.available), value(usage.total), value(usage.used)));
            match usage.unit() {
                csi::volume_usage::Unit::Bytes => measured.bytes = found,
                csi::volume_usage::Unit::Inodes => measured.inodes = found,
                csi::volume_usage::Unit::Unknown => {}
            }
        }
        Ok(Some((measured, reply.volume_condition)))
    }

    /// NodeExpandVolume, where the driver has it.
    ///
    /// # Errors
    /// What the driver says; and when it makes it smaller than it is to be.
    pub async fn expand(&self, e: &Expanding) -> Result<(), OpError> {
        let p = &e.published;
        let Driver::Csi { driver, handle, .. } = &p.origin.driver else { return Ok(()) };
        let mut d = self.driver(driver)?;
        if !d.expands {
            return Ok(());
        }
        let bytes = i64::try_from(e.bytes()).unwrap_or(i64::MAX);
        let request = csi::NodeExpandVolumeRequest {
            volume_id: handle.clone(),
            volume_path: e.path.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: if d.stages { p.stage_path.clone() } else { String::new() },
            volume_capability: Some(capability(&p.origin, &d, None)),
            secrets: text(&e.secrets)?,
        };
        let reply = self.ask(driver, "NodeExpandVolume", d.node.node_expand_volume(request)).await?;
        // A size that is not told is none.
        if reply.capacity_bytes > 0 && reply.capacity_bytes < bytes {
            return failed(format!("CSI driver {driver} made {handle} {} bytes of {bytes}", reply.capacity_bytes));
        }
        Ok(())
    }

    /// NodePublishVolume.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn publish(&self, setup: &VolumeSetup, p: &Publishing) -> Result<(), OpError> {
        let origin = &p.published.origin;
        let Driver::Csi { driver, handle, attributes, ephemeral, .. } = &origin.driver else { return Ok(()) };
        let mut d = self.driver(driver)?;
        // The driver makes the last part of the path.
        if let Some(parent) = Path::new(&setup.path).parent() {
            make_dir(parent)?;
        }
        let mut volume_context = attributes.clone();
        if p.pod_info {
            let about = [
                ("pod.name", p.pod.name.clone()),
                ("pod.namespace", p.pod.namespace.clone()),
                ("pod.uid", p.pod.uid.to_string()),
                ("serviceAccount.name", p.pod.service_account.clone()),
                ("ephemeral", ephemeral.to_string()),
            ];
            volume_context.extend(about.map(|(k, v)| (format!("csi.storage.k8s.io/{k}"), v)));
        }
        volume_context.extend(text(&p.tokens)?);
        let request = csi::NodePublishVolumeRequest {
            volume_id: if *ephemeral { inline_handle(&setup.uid, &setup.name) } else { handle.clone() },
            publish_context: p.publish_context.clone(),
            staging_target_path: if d.stages && !ephemeral { p.published.stage_path.clone() } else { String::new() },
            target_path: setup.path.clone(),
            volume_capability: Some(capability(origin, &d, setup.fs_group)),
            readonly: origin.read_only,
            secrets: text(&p.secrets)?,
            volume_context,
        };
        self.ask(driver, "NodePublishVolume", d.node.node_publish_volume(request)).await?;
        if !origin.block && mounted(&setup.path)?.is_none() && !Path::new(&setup.path).is_dir() {
            return failed(format!("CSI driver {driver} says that it published {}, and nothing is there", setup.path));
        }
        Ok(())
    }

    /// NodeUnpublishVolume.
    ///
    /// # Errors
    /// What the driver says; and while it is not registered.
    pub async fn unpublish(&self, path: &str, p: &Published, uid: &Uid, name: &str) -> Result<(), OpError> {
        let Driver::Csi { driver, handle, ephemeral, .. } = &p.origin.driver else { return Ok(()) };
        let mut d = self.driver(driver)?;
        let volume_id = if *ephemeral { inline_handle(uid, name) } else { handle.clone() };
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: path.to_owned() };
        self.ask(driver, "NodeUnpublishVolume", d.node.node_unpublish_volume(request)).await.map(drop)
    }
}

fn of_node(about: csi::NodeGetInfoResponse) -> CsiNodeInfo {
    let topology = about.accessible_topology.map(|t| t.segments).unwrap_or_default();
    CsiNodeInfo { node_id: about.node_id, max_volumes: about.max_volumes_per_node.max(0), topology }
}

/// The id of a volume that lives with its pod: the same each time it is asked for.
fn inline_handle(uid: &str, name: &str) -> String {
    format!("csi-{}", digest(&format!("{uid}/{name}")))
}

/// Secrets go to drivers as text.
fn text(secrets: &Secrets) -> Result<BTreeMap<String, String>, OpError> {
    let entry = |(k, v): (&String, &Vec<u8>)| match String::from_utf8(v.clone()) {
        Ok(v) => Ok((k.clone(), v)),
        Err(_) => failed(format!("the secret's entry {k} is no text")),
    };
    secrets.0.iter().map(entry).collect()
}

fn capability(origin: &Origin, d: &Registered, fs_group: Option<i64>) -> csi::VolumeCapability {
    // As upstream: the first that is asked for, and the widest of those that a driver of before 1.5 knows for one node.
    let mode = match (origin.access_modes.first().map(String::as_str), d.single_node_modes) {
        (Some("ReadWriteMany"), _) => Mode::MultiNodeMultiWriter,
        (Some("ReadOnlyMany"), _) => Mode::MultiNodeReaderOnly,
        (Some("ReadWriteOncePod"), true) => Mode::SingleNodeSingleWriter,
        (_, true) => Mode::SingleNodeMultiWriter,
        (_, false) => Mode::SingleNodeWriter,
    };
    let access_type = if origin.block {
        csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {})
    } else {
        csi::volume_capability::AccessType::Mount(csi::volume_capability::MountVolume {
            fs_type: origin.fs_type.clone(),
            mount_flags: origin.mount_options.clone(),
            volume_mount_group: fs_group.filter(|_| d.mount_group).map(|g| g.to_string()).unwrap_or_default(),
        })
    };
    csi::VolumeCapability {
        access_mode: Some(csi::volume_capability::AccessMode { mode: mode as i32 }),
        access_type: Some(access_type),
    }
}

#[cfg(test)]
mod tests;
