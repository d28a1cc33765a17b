//! The controller service: volumes and snapshots are made, enlarged and removed.

use std::collections::BTreeMap;

use carrack_csi::v1 as csi;
use carrack_csi::v1::controller_server::Controller;
use csi::controller_service_capability::rpc::Type as Rpc;
use csi::volume_capability::AccessType;
use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source as from;
use tonic::{Request, Response, Status};

use super::library::{About, Library, LibraryError, Source};
use super::{Driver, named, now_unix_ns};
use crate::TOPOLOGY;

/// Whether the driver can serve a volume this way.
pub(super) fn check_capability(c: &csi::VolumeCapability) -> Result<(), Status> {
    if c.access_type.is_none() {
        return Err(Status::invalid_argument("neither a file system nor a device is asked for"));
    }
    let mode = c.access_mode.as_ref().map_or(Mode::Unknown, csi::volume_capability::AccessMode::mode);
    match mode {
        Mode::Unknown => Err(Status::invalid_argument("no access mode is asked for")),
        Mode::SingleNodeWriter
        | Mode::SingleNodeReaderOnly
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter => Ok(()),
        // A disk of one node is not to be had at another.
        _ => {
            Err(Status::invalid_argument("volumes of this driver are for one node: ReadWriteOnce or ReadWriteOncePod"))
        }
    }
}

fn bytes(n: i64) -> Result<u64, Status> {
    u64::try_from(n).map_err(|_| Status::invalid_argument(format!("{n} bytes")))
}

fn range(r: Option<csi::CapacityRange>) -> Result<(u64, u64), Status> {
    let r = r.unwrap_or_default();
    let (required, limit) = (bytes(r.required_bytes)?, bytes(r.limit_bytes)?);
    match limit > 0 && limit < required {
        true => Err(Status::invalid_argument("the limit is below what is required")),
        false => Ok((required, limit)),
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Driver {
    fn volume(&self, about: &About) -> csi::Volume {
        let content_source = about.source.clone().map(|source| csi::VolumeContentSource {
            r#type: Some(match source {
                Source::Snapshot(snapshot_id) => from::Type::Snapshot(from::SnapshotSource { snapshot_id }),
                Source::Volume(volume_id) => from::Type::Volume(from::VolumeSource { volume_id }),
            }),
        });
        csi::Volume {
            capacity_bytes: signed(about.size_bytes),
            volume_id: about.id.clone(),
            volume_context: BTreeMap::new(),
            content_source,
            accessible_topology: vec![self.topology()],
        }
    }
}

fn snapshot(about: &About) -> csi::Snapshot {
    let source = match &about.source {
        Some(Source::Volume(id) | Source::Snapshot(id)) => id.clone(),
        None => String::new(),
    };
    let (seconds, nanos) = (about.made_unix_ns.div_euclid(1_000_000_000), about.made_unix_ns.rem_euclid(1_000_000_000));
    csi::Snapshot {
        size_bytes: signed(about.size_bytes),
        snapshot_id: about.id.clone(),
        source_volume_id: source,
        creation_time: Some(prost_types::Timestamp { seconds, nanos: i32::try_from(nanos).unwrap_or(0) }),
        ready_to_use: true,
    }
}

/// A page of a list: from an entry on, at most so many, and where the next page begins.
fn page<T>(all: Vec<T>, token: &str, most: i32) -> Result<(Vec<T>, String), Status> {
    let start: usize = match token {
        "" => 0,
        t => t.parse().map_err(|_| Status::aborted(format!("{t:?} begins no page")))?,
    };
    let most = usize::try_from(most).ok().filter(|n| *n > 0).unwrap_or(usize::MAX);
    let next = start.saturating_add(most);
    let token = if next < all.len() { next.to_string() } else { String::new() };
    Ok((all.into_iter().skip(start).take(most).collect(), token))
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let r = request.into_inner();
        let name = r.name.clone();
        let driver = self.clone();
        let work = async move {
            let _busy = driver.begin(&r.name)?;
            if r.volume_capabilities.is_empty() {
                return Err(Status::invalid_argument("no capability is asked for"));
            }
            r.volume_capabilities.iter().try_for_each(check_capability)?;
            if let Some(key) = r.parameters.keys().next() {
                return Err(Status::invalid_argument(format!("parameter {key:?} is not known")));
            }
            let here = |t: &csi::Topology| t.segments.get(TOPOLOGY).is_none_or(|n| **n == *driver.node);
            if let Some(wanted) = &r.accessibility_requirements
                && !wanted.requisite.is_empty()
                && !wanted.requisite.iter().any(here)
            {
                return Err(Status::resource_exhausted(format!(
                    "this is node {}, which was not asked for",
                    driver.node
                )));
            }
            let (required, limit) = range(r.capacity_range)?;
            let source = match r.volume_content_source.and_then(|s| s.r#type) {
                Some(from::Type::Snapshot(s)) => Some(Source::Snapshot(s.snapshot_id)),
                Some(from::Type::Volume(v)) => Some(Source::Volume(v.volume_id)),
                None => None,
            };
            // Nobody begins to use what is copied before it is.
            let _source_busy = match &source {
                Some(Source::Volume(of)) if *of != r.name => Some(driver.begin(of)?),
                _ => None,
            };
            let about = driver
                .on_disk(move |library| library.create(&r.name, required, limit, source, false, now_unix_ns()))
                .await?;
            Ok(csi::CreateVolumeResponse { volume: Some(driver.volume(&about)) })
        };
        self.faults.around("CreateVolume", &name, work).await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let name = id.clone();
        let driver = self.clone();
        let work = async move {
            let _busy = driver.begin(&id)?;
            let id = id.clone();
            driver.on_disk(move |library| library.delete(&id)).await?;
            Ok(csi::DeleteVolumeResponse {})
        };
        self.faults.around("DeleteVolume", &name, work).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let r = request.into_inner();
        named(&r.volume_id)?;
        if r.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("no capability is asked for"));
        }
        let id = r.volume_id.clone();
        self.on_disk(move |library| library.volume(&id)).await?;
        let reply = match r.volume_capabilities.iter().try_for_each(check_capability) {
            Ok(()) => csi::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(csi::validate_volume_capabilities_response::Confirmed {
                    volume_context: r.volume_context,
                    volume_capabilities: r.volume_capabilities,
                    parameters: r.parameters,
                }),
                message: String::new(),
            },
            Err(why) => csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message: why.message().to_owned() },
        };
        Ok(Response::new(reply))
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let r = request.into_inner();
        let driver = self.clone();
        let work = async move {
            let all = driver.on_disk(|library| library.volumes()).await?;
            let (all, next_token) = page(all, &r.starting_token, r.max_entries)?;
            let entry = |v: &About| csi::list_volumes_response::Entry { volume: Some(driver.volume(v)), status: None };
            Ok(csi::ListVolumesResponse { entries: all.iter().map(entry).collect(), next_token })
        };
        self.faults.around("ListVolumes", "", work).await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let r = request.into_inner();
        let elsewhere =
            r.accessible_topology.is_some_and(|t| t.segments.get(TOPOLOGY).is_some_and(|n| **n != *self.node));
        let driver = self.clone();
        let work = async move {
            let room = if elsewhere { 0 } else { signed(driver.on_disk(|library| library.room()).await?) };
            Ok(csi::GetCapacityResponse {
                available_capacity: room,
                maximum_volume_size: Some(room),
                minimum_volume_size: None,
            })
        };
        self.faults.around("GetCapacity", "", work).await
    }

    async fn controller_publish_volume(
        &self,
        _: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes of this driver are at their node always"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes of this driver are at their node always"))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        use csi::controller_service_capability::{Rpc as Of, Type};
        let all = [
            Rpc::CreateDeleteVolume,
            Rpc::ListVolumes,
            Rpc::GetCapacity,
            Rpc::CreateDeleteSnapshot,
            Rpc::ListSnapshots,
            Rpc::CloneVolume,
            Rpc::ExpandVolume,
        ];
        let of = |rpc: Rpc| csi::ControllerServiceCapability { r#type: Some(Type::Rpc(Of { r#type: rpc.into() })) };
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities: all.map(of).to_vec() }))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        let r = request.into_inner();
        let name = r.name.clone();
        let driver = self.clone();
        let work = async move {
            let _named = driver.begin_snapshot(&r.name)?;
            let _busy = driver.begin(&r.source_volume_id)?;
            if let Some(key) = r.parameters.keys().next() {
                return Err(Status::invalid_argument(format!("parameter {key:?} is not known")));
            }
            let (id, of) = (r.name, r.source_volume_id.clone());
            let about = driver.on_disk(move |library| library.take(&id, &of, now_unix_ns())).await?;
            Ok(csi::CreateSnapshotResponse { snapshot: Some(snapshot(&about)) })
        };
        self.faults.around("CreateSnapshot", &name, work).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        let name = id.clone();
        let driver = self.clone();
        let work = async move {
            let _named = driver.begin_snapshot(&id)?;
            driver.on_disk(move |library| library.delete_snapshot(&id)).await?;
            Ok(csi::DeleteSnapshotResponse {})
        };
        self.faults.around("DeleteSnapshot", &name, work).await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        let r = request.into_inner();
        let driver = self.clone();
        let work = async move {
            let id = r.snapshot_id;
            // Whoever asks for one is not told that it does not exist because nothing of it can be read.
            let found = move |library: &Library| match library.snapshot(&id) {
                _ if id.is_empty() => library.snapshots(),
                Err(LibraryError::NotFound(_)) => Ok(Vec::new()),
                one => one.map(|one| vec![one]),
            };
            let all = driver.on_disk(found).await?;
            let all: Vec<csi::Snapshot> = all
                .iter()
                .map(snapshot)
                .filter(|s| r.source_volume_id.is_empty() || s.source_volume_id == r.source_volume_id)
                .collect();
            let (all, next_token) = page(all, &r.starting_token, r.max_entries)?;
            let entries = all.into_iter().map(|s| csi::list_snapshots_response::Entry { snapshot: Some(s) }).collect();
            Ok(csi::ListSnapshotsResponse { entries, next_token })
        };
        self.faults.around("ListSnapshots", "", work).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let r = request.into_inner();
        let name = r.volume_id.clone();
        let driver = self.clone();
        let work = async move {
            let _busy = driver.begin(&r.volume_id)?;
            if r.capacity_range.is_none() {
                return Err(Status::invalid_argument("no size is asked for"));
            }
            let (required, limit) = range(r.capacity_range)?;
            let id = r.volume_id.clone();
            let about = driver.on_disk(move |library| library.grow(&id, required, limit)).await?;
            // A device that is attached has to notice, too.
            Ok(csi::ControllerExpandVolumeResponse {
                capacity_bytes: signed(about.size_bytes),
                node_expansion_required: true,
            })
        };
        self.faults.around("ControllerExpandVolume", &name, work).await
    }
}

/// Whether a device is asked for, rather than a file system.
pub(super) fn is_block(c: Option<&csi::VolumeCapability>) -> bool {
    matches!(c.and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tonic::Code;

    use super::super::Faults;
    use super::*;

    fn driver(dir: &std::path::Path) -> Driver {
        let library = Arc::new(Library::open(dir).unwrap());
        Driver { library, node: "n1".into(), faults: Faults::default(), busy: Arc::default() }
    }

    fn wanted(name: &str, of: Option<&str>) -> Request<csi::CreateVolumeRequest> {
        let mode = csi::volume_capability::AccessMode { mode: Mode::SingleNodeWriter.into() };
        let access_type = Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
        let source = |of: &str| from::Type::Volume(from::VolumeSource { volume_id: of.to_owned() });
        Request::new(csi::CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![csi::VolumeCapability { access_mode: Some(mode), access_type }],
            volume_content_source: of.map(|of| csi::VolumeContentSource { r#type: Some(source(of)) }),
            ..csi::CreateVolumeRequest::default()
        })
    }

    fn code<T>(answer: Result<Response<T>, Status>) -> Code {
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    #[tokio::test]
    async fn what_is_copied_is_left_alone_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let driver = driver(dir.path());
        assert_eq!(code(driver.create_volume(wanted("v", None)).await), Code::Ok);
        // Its node is about to mount it, say.
        let busy = driver.begin("v");
        assert_eq!(code(driver.create_volume(wanted("c", Some("v"))).await), Code::Aborted);
        assert_eq!(code(driver.create_volume(wanted("d", None)).await), Code::Ok);
        drop(busy);
        assert_eq!(code(driver.create_volume(wanted("c", Some("v"))).await), Code::Ok);
        assert_eq!(code(driver.create_volume(wanted("v", Some("v"))).await), Code::AlreadyExists);
    }

    /// What csi-sanity asks for (github.com/kubernetes-csi/csi-test).
    #[tokio::test]
    async fn what_says_too_little_is_refused() {
        use carrack_csi::v1::node_server::Node as _;

        let dir = tempfile::tempdir().unwrap();
        let driver = driver(dir.path());
        assert_eq!(code(driver.create_volume(wanted("v", None)).await), Code::Ok);
        let all = wanted("v", None).into_inner().volume_capabilities;
        for (id, volume_capabilities, expected) in [
            ("v", all.clone(), Code::Ok),
            ("v", Vec::new(), Code::InvalidArgument),
            ("", all.clone(), Code::InvalidArgument),
            ("none", all, Code::NotFound),
        ] {
            let request = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: id.to_owned(),
                volume_capabilities,
                ..csi::ValidateVolumeCapabilitiesRequest::default()
            };
            let found = code(driver.validate_volume_capabilities(Request::new(request)).await);
            assert_eq!(found, expected, "{id:?}");
        }
        for (id, capacity_range, expected) in [
            ("v", Some(csi::CapacityRange { required_bytes: 1, limit_bytes: 0 }), Code::Ok),
            ("v", None, Code::InvalidArgument),
            ("", None, Code::InvalidArgument),
        ] {
            let volume_id = id.to_owned();
            let request = csi::ControllerExpandVolumeRequest {
                volume_id,
                capacity_range,
                ..csi::ControllerExpandVolumeRequest::default()
            };
            let found = code(driver.controller_expand_volume(Request::new(request)).await);
            assert_eq!(found, expected, "{id:?}");
        }
        for (id, path, measured, expanded) in [
            ("", "/", Code::InvalidArgument, Code::InvalidArgument),
            ("v", "", Code::InvalidArgument, Code::InvalidArgument),
            ("v", "some/path", Code::NotFound, Code::InvalidArgument),
            ("none", "some/path", Code::NotFound, Code::NotFound),
        ] {
            let (volume_id, volume_path) = (id.to_owned(), path.to_owned());
            let stats = csi::NodeGetVolumeStatsRequest {
                volume_id: volume_id.clone(),
                volume_path: volume_path.clone(),
                ..csi::NodeGetVolumeStatsRequest::default()
            };
            let expand =
                csi::NodeExpandVolumeRequest { volume_id, volume_path, ..csi::NodeExpandVolumeRequest::default() };
            let measure = code(driver.node_get_volume_stats(Request::new(stats)).await);
            let expand = code(driver.node_expand_volume(Request::new(expand)).await);
            assert_eq!((measure, expand), (measured, expanded), "{id:?} {path:?}");
        }
    }

    #[tokio::test]
    async fn a_snapshot_that_cannot_be_read_is_not_said_to_be_gone() {
        let dir = tempfile::tempdir().unwrap();
        let driver = driver(dir.path());
        assert_eq!(code(driver.create_volume(wanted("v", None)).await), Code::Ok);
        for name in ["s", "t"] {
            driver.library.take(name, "v", 0).unwrap();
        }
        std::fs::write(dir.path().join("snapshots/s/about.json"), "{").unwrap();
        for (id, expected) in [("", Ok(1)), ("t", Ok(1)), ("none", Ok(0)), ("s", Err(Code::Internal))] {
            let request =
                csi::ListSnapshotsRequest { snapshot_id: id.to_owned(), ..csi::ListSnapshotsRequest::default() };
            let found = driver.list_snapshots(Request::new(request)).await;
            let found = found.map(|reply| reply.into_inner().entries.len()).map_err(|status| status.code());
            assert_eq!(found, expected, "{id:?}");
        }
    }

    #[tokio::test]
    async fn a_snapshot_is_not_taken_and_deleted_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let driver = driver(dir.path());
        assert_eq!(code(driver.create_volume(wanted("v", None)).await), Code::Ok);
        let take = |name: &str| {
            let (name, source_volume_id) = (name.to_owned(), "v".to_owned());
            let request =
                csi::CreateSnapshotRequest { name, source_volume_id, ..csi::CreateSnapshotRequest::default() };
            driver.create_snapshot(Request::new(request))
        };
        let delete = |name: &str| {
            let snapshot_id = name.to_owned();
            let request = csi::DeleteSnapshotRequest { snapshot_id, ..csi::DeleteSnapshotRequest::default() };
            driver.delete_snapshot(Request::new(request))
        };
        let taking = driver.begin_snapshot("s");
        assert_eq!((code(delete("s").await), code(take("s").await)), (Code::Aborted, Code::Aborted));
        assert_eq!(code(take("v").await), Code::Ok, "a snapshot may be called as its volume");
        drop(taking);
        assert_eq!((code(take("s").await), code(delete("s").await)), (Code::Ok, Code::Ok));
        assert_eq!((code(take("").await), code(delete("").await)), (Code::InvalidArgument, Code::InvalidArgument));
    }
}
