//! The node service: volumes are attached, mounted, given to pods, and taken back.
//!
//! ```text
//!   volumes/<id>/disk ─loop device─▶ staging path (a mount) ─bind─▶ target path      a file system
//!                     └────────────────────────────────────bind─▶ target path      a device
//! ```

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use carrack_csi::v1 as csi;
use carrack_csi::v1::node_server::Node;
use carrack_disks::{DiskError, filesystem, loops, mounts};
use csi::node_service_capability::rpc::Type as Rpc;
use csi::volume_capability::AccessType;
use csi::volume_usage::Unit;
use tonic::{Request, Response, Status};

use super::controller::{check_capability, is_block};
use super::{Driver, named, now_unix_ns};

/// Key of the volume context by which a kubelet says that a volume lives with its pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// Attribute of such a volume: its size, as a quantity.
const SIZE: &str = "size";
/// Its size without that, in bytes.
const DEFAULT_SIZE: u64 = 1 << 30;

fn disk_error(e: DiskError) -> Status {
    match e {
        DiskError::InUse(text) => Status::failed_precondition(text),
        DiskError::Failed(text) => Status::internal(text),
        DiskError::TimedOut(_) => Status::deadline_exceeded(e.to_string()),
    }
}

fn io_error(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Status {
    move |e| Status::internal(format!("{what}: {e}"))
}

fn mounted(path: &str) -> Result<Option<mounts::MountPoint>, Status> {
    mounts::at(path).map_err(io_error("reading the mount table"))
}

/// A path that a kubelet names. Whether it can be one is said after whether there is such a volume (csi-sanity).
fn given<'a>(path: &'a str, what: &str) -> Result<&'a str, Status> {
    match path {
        "" => Err(Status::invalid_argument(format!("{what} is not given"))),
        path => Ok(path),
    }
}

/// A path that a kubelet names: absolute, and without a way back.
fn checked<'a>(path: &'a str, what: &str) -> Result<&'a str, Status> {
    let p = Path::new(path);
    let plain = p.components().all(|c| !matches!(c, std::path::Component::ParentDir));
    if path.is_empty() || !p.is_absolute() || !plain {
        return Err(Status::invalid_argument(format!("{what} {path:?} is no absolute path")));
    }
    Ok(path)
}

fn file_system(c: &csi::VolumeCapability) -> (String, Vec<String>) {
    match &c.access_type {
        Some(AccessType::Mount(m)) => (m.fs_type.clone(), m.mount_flags.clone()),
        _ => (String::new(), Vec::new()),
    }
}

/// Options of mounts that nobody has to ask for: a volume and what was made from it have the same UUID, and are at the
/// same node always; of two such, xfs mounts one alone unless it is told otherwise.
fn own_flags(fs_type: &str) -> Option<&'static str> {
    (fs_type == "xfs").then_some("nouuid")
}

fn capability(c: Option<csi::VolumeCapability>) -> Result<csi::VolumeCapability, Status> {
    let c = c.ok_or_else(|| Status::invalid_argument("no capability is asked for"))?;
    check_capability(&c)?;
    Ok(c)
}

impl Driver {
    async fn attach(&self, id: &str) -> Result<String, Status> {
        let known = id.to_owned();
        self.on_disk(move |library| library.volume(&known)).await?;
        loops::attach(&self.library.disk(id)).await.map_err(disk_error)
    }

    async fn detach(&self, id: &str) -> Result<(), Status> {
        loops::detach(&self.library.disk(id)).await.map_err(disk_error)
    }

    async fn mount(&self, id: &str, at: &str, c: &csi::VolumeCapability) -> Result<(), Status> {
        let device = self.attach(id).await?;
        let (fs_type, mut flags) = file_system(c);
        flags.extend(own_flags(&fs_type).map(str::to_owned));
        fs::create_dir_all(at).map_err(io_error(format!("creating {at}")))?;
        if mounted(at)?.is_some() {
            return Ok(());
        }
        // It may have been made from something smaller, or have grown while it was nowhere mounted.
        loops::resize(&device).await.map_err(disk_error)?;
        filesystem::grow_unmounted(&device).await.map_err(disk_error)?;
        filesystem::format_and_mount(&device, at, &fs_type, false, &flags).await.map_err(disk_error)?;
        match mounted(at)?.as_ref().map(|m| m.fs_type.as_str()) {
            // These grow while they are mounted, and only then.
            Some("xfs" | "btrfs") => filesystem::grow(&device, at).await.map_err(disk_error),
            _ => Ok(()),
        }
    }

    async fn stage(&self, r: csi::NodeStageVolumeRequest) -> Result<csi::NodeStageVolumeResponse, Status> {
        let _busy = self.begin(&r.volume_id)?;
        let at = checked(&r.staging_target_path, "the staging path")?;
        let c = capability(r.volume_capability)?;
        if is_block(Some(&c)) {
            self.attach(&r.volume_id).await?;
        } else {
            self.mount(&r.volume_id, at, &c).await?;
        }
        Ok(csi::NodeStageVolumeResponse {})
    }

    async fn unstage(&self, r: csi::NodeUnstageVolumeRequest) -> Result<csi::NodeUnstageVolumeResponse, Status> {
        let _busy = self.begin(&r.volume_id)?;
        let at = checked(&r.staging_target_path, "the staging path")?;
        if mounted(at)?.is_some() {
            mounts::unmount(at).map_err(io_error(format!("unmounting {at}")))?;
        }
        self.detach(&r.volume_id).await?;
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    async fn publish(&self, r: csi::NodePublishVolumeRequest) -> Result<csi::NodePublishVolumeResponse, Status> {
        let _busy = self.begin(&r.volume_id)?;
        let target = checked(&r.target_path, "the target path")?;
        let c = capability(r.volume_capability)?;
        let read_only = || mounts::make_read_only(target).map_err(io_error(format!("making {target} read-only")));
        if mounted(target)?.is_some() {
            if r.readonly {
                // Who mounted it may have ended before it was.
                read_only()?;
            }
            return Ok(csi::NodePublishVolumeResponse {});
        }
        let bind = |from: &str| {
            mounts::bind(from, target, r.readonly).map_err(io_error(format!("binding {from} to {target}")))
        };
        if r.volume_context.get(EPHEMERAL).is_some_and(|v| v == "true") {
            let wanted = r.volume_context.get(SIZE).map(|s| size(s)).transpose()?.unwrap_or(DEFAULT_SIZE);
            let id = r.volume_id.clone();
            self.on_disk(move |library| library.create(&id, wanted, 0, None, true, now_unix_ns())).await?;
            self.mount(&r.volume_id, target, &c).await?;
            if r.readonly {
                read_only()?;
            }
        } else if is_block(Some(&c)) {
            let device = self.attach(&r.volume_id).await?;
            fs::File::options()
                .create(true)
                .append(true)
                .open(target)
                .map_err(io_error(format!("creating {target}")))?;
            bind(&device)?;
        } else {
            let staged = checked(&r.staging_target_path, "the staging path")?;
            if mounted(staged)?.is_none() {
                return Err(Status::failed_precondition(format!("nothing is mounted at {staged}")));
            }
            fs::create_dir_all(target).map_err(io_error(format!("creating {target}")))?;
            bind(staged)?;
        }
        Ok(csi::NodePublishVolumeResponse {})
    }

    async fn unpublish(&self, r: csi::NodeUnpublishVolumeRequest) -> Result<csi::NodeUnpublishVolumeResponse, Status> {
        let _busy = self.begin(&r.volume_id)?;
        let target = checked(&r.target_path, "the target path")?;
        if mounted(target)?.is_some() {
            mounts::unmount(target).map_err(io_error(format!("unmounting {target}")))?;
        }
        match fs::symlink_metadata(target) {
            Ok(m) if m.is_dir() => fs::remove_dir(target).map_err(io_error(format!("removing {target}")))?,
            Ok(_) => fs::remove_file(target).map_err(io_error(format!("removing {target}")))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error(format!("looking at {target}"))(e)),
        }
        let id = r.volume_id.clone();
        let ephemeral = self.on_disk(move |library| Ok(library.volume(&id).is_ok_and(|v| v.ephemeral))).await?;
        if ephemeral {
            self.detach(&r.volume_id).await?;
            let id = r.volume_id.clone();
            self.on_disk(move |library| library.delete(&id)).await?;
        }
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    async fn stats(&self, r: csi::NodeGetVolumeStatsRequest) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        named(&r.volume_id)?;
        let path = given(&r.volume_path, "the volume's path")?.to_owned();
        let id = r.volume_id.clone();
        let about = self.on_disk(move |library| library.volume(&id)).await?;
        checked(&path, "the volume's path").map_err(|e| Status::not_found(e.message()))?;
        let there = fs::metadata(&path).map_err(|e| Status::not_found(format!("{path}: {e}")))?;
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let device = loops::find(&self.library.disk(&about.id)).map_err(disk_error)?;
        if there.file_type().is_block_device() {
            let total = signed(about.size_bytes);
            let usage = csi::VolumeUsage { total, unit: Unit::Bytes.into(), ..csi::VolumeUsage::default() };
            return Ok(csi::NodeGetVolumeStatsResponse {
                usage: vec![usage],
                volume_condition: Some(health(device.as_deref())),
            });
        }
        let on_its_own = mounted(&path)?.is_some();
        if !on_its_own {
            return Err(Status::not_found(format!("nothing is mounted at {path}")));
        }
        let u = filesystem::usage(Path::new(&path)).map_err(disk_error)?;
        let usage = |unit: Unit, total: u64, available: u64, used: u64| csi::VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(used),
            unit: unit.into(),
        };
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(Unit::Bytes, u.total_bytes, u.available_bytes, u.used_bytes),
                usage(Unit::Inodes, u.inodes, u.inodes_free, u.inodes.saturating_sub(u.inodes_free)),
            ],
            volume_condition: Some(health(device.as_deref())),
        })
    }

    async fn expand(&self, r: csi::NodeExpandVolumeRequest) -> Result<csi::NodeExpandVolumeResponse, Status> {
        let _busy = self.begin(&r.volume_id)?;
        let path = given(&r.volume_path, "the volume's path")?;
        let id = r.volume_id.clone();
        let about = self.on_disk(move |library| library.volume(&id)).await?;
        let path = checked(path, "the volume's path")?;
        let Some(device) = loops::find(&self.library.disk(&r.volume_id)).map_err(disk_error)? else {
            return Err(Status::failed_precondition(format!("volume {} is not attached", r.volume_id)));
        };
        loops::resize(&device).await.map_err(disk_error)?;
        let is_device = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        if !is_device && !is_block(r.volume_capability.as_ref()) {
            filesystem::grow(&device, path).await.map_err(disk_error)?;
        }
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes: i64::try_from(about.size_bytes).unwrap_or(i64::MAX) })
    }
}

/// Whether the kernel has found errors on a device's file system.
fn health(device: Option<&str>) -> csi::VolumeCondition {
    let name = device.and_then(|d| d.strip_prefix("/dev/")).unwrap_or_default();
    let errors = fs::read_to_string(format!("/sys/fs/ext4/{name}/errors_count")).ok();
    let errors: u64 = errors.and_then(|e| e.trim().parse().ok()).unwrap_or(0);
    match errors {
        0 => csi::VolumeCondition { abnormal: false, message: "no error is known".to_owned() },
        n => csi::VolumeCondition { abnormal: true, message: format!("the file system has had {n} errors") },
    }
}

/// A size as people write it.
fn size(text: &str) -> Result<u64, Status> {
    let q = carrack_types::quantity::Quantity::parse(text);
    q.ok()
        .and_then(|q| u64::try_from(q.units()).ok())
        .filter(|n| *n > 0)
        .ok_or_else(|| Status::invalid_argument(format!("attribute {SIZE}: {text:?} is no size")))
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodeStageVolume", &id, async move { driver.stage(r).await }).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodeUnstageVolume", &id, async move { driver.unstage(r).await }).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodePublishVolume", &id, async move { driver.publish(r).await }).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodeUnpublishVolume", &id, async move { driver.unpublish(r).await }).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodeGetVolumeStats", &id, async move { driver.stats(r).await }).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let r = request.into_inner();
        let (id, driver) = (r.volume_id.clone(), self.clone());
        self.faults.around("NodeExpandVolume", &id, async move { driver.expand(r).await }).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::{Rpc as Of, Type};
        let all = [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::VolumeCondition];
        let of = |rpc: Rpc| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Of { r#type: rpc.into() })) };
        let reply = csi::NodeGetCapabilitiesResponse { capabilities: all.map(of).to_vec() };
        self.faults.around("NodeGetCapabilities", "", async move { Ok(reply) }).await
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let info = csi::NodeGetInfoResponse {
            node_id: self.node.to_string(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.topology()),
        };
        self.faults.around("NodeGetInfo", "", async move { Ok(info) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::own_flags;

    #[test]
    fn a_copy_is_mounted_beside_its_source() {
        for (fs_type, expected) in [("xfs", Some("nouuid")), ("ext4", None), ("btrfs", None), ("", None)] {
            assert_eq!(own_flags(fs_type), expected, "{fs_type}");
        }
    }
}
