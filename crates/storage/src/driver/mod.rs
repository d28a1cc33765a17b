#![expect(clippy::disallowed_methods, reason = "shell: volumes bear the time at which they were made")]
//! The driver: its sockets, and what it says of itself.
//!
//! Everything that it knows is on the disk and in the kernel's tables, so it can be killed at any time: what it was doing
//! is asked for again, and found done or done anew. Volumes stay attached and mounted while it is gone.

mod controller;
mod faults;
pub mod library;
mod node;
mod promises;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use carrack_csi::registration::registration_server::{Registration, RegistrationServer};
use carrack_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use carrack_csi::v1 as csi;
use carrack_csi::v1::controller_server::ControllerServer;
use carrack_csi::v1::identity_server::{Identity, IdentityServer};
use carrack_csi::v1::node_server::NodeServer;
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub use faults::Faults;
use library::{Library, LibraryError};

use crate::{DRIVER, TOPOLOGY};

/// Where a driver is and serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of volumes and snapshots.
    pub dir: PathBuf,
    /// The kubelet's directory, in which its sockets are.
    pub kubelet_dir: PathBuf,
    /// Name of the node.
    pub node: String,
    /// How it misbehaves, in tests.
    pub faults: Faults,
}

impl Settings {
    /// The socket on which it is called.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(DRIVER).join("csi.sock")
    }

    /// The socket by which the kubelet finds it.
    #[must_use]
    pub fn registration_socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
    }
}

/// Why the driver cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Its directory cannot be used.
    #[error("volumes cannot be kept in {0}: {1}")]
    Library(PathBuf, LibraryError),
    /// A socket cannot be made.
    #[error("cannot listen at {0}: {1}")]
    Listen(PathBuf, io::Error),
    /// A server ended.
    #[error("serving volumes ended: {0}")]
    Ended(String),
}

/// The driver's services.
#[derive(Clone)]
pub(crate) struct Driver {
    library: Arc<Library>,
    node: Arc<str>,
    faults: Faults,
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// A volume that nobody else works on as long as this lives.
pub(crate) struct Busy {
    id: String,
    all: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl Driver {
    /// One operation at a time for each volume, as the protocol has it.
    fn begin(&self, id: &str) -> Result<Busy, Status> {
        named(id)?;
        match self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned()) {
            true => Ok(Busy { id: id.to_owned(), all: self.busy.clone() }),
            false => Err(Status::aborted(format!("an operation on {id} is under way"))),
        }
    }

    /// The same for a snapshot: one that were deleted while it is being taken would be there afterwards, and nobody's.
    fn begin_snapshot(&self, id: &str) -> Result<Busy, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("no snapshot is named"));
        }
        // No volume's name has a blank.
        self.begin(&format!("snapshot {id}"))
    }

    /// Disk work, off the event loop.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T, LibraryError> + Send + 'static,
    ) -> Result<T, Status> {
        let library = self.library.clone();
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        done.map_err(|e| Status::internal(e.to_string()))?.map_err(status)
    }

    fn topology(&self) -> csi::Topology {
        csi::Topology { segments: BTreeMap::from([(TOPOLOGY.to_owned(), self.node.to_string())]) }
    }
}

/// A request names a volume.
fn named(id: &str) -> Result<(), Status> {
    match id {
        "" => Err(Status::invalid_argument("no volume is named")),
        _ => Ok(()),
    }
}

fn status(e: LibraryError) -> Status {
    let text = e.to_string();
    match e {
        LibraryError::NotFound(_) => Status::not_found(text),
        LibraryError::Differs(_) => Status::already_exists(text),
        LibraryError::NoRoom(_) => Status::resource_exhausted(text),
        LibraryError::Invalid(_) => Status::out_of_range(text),
        LibraryError::InUse(_) => Status::failed_precondition(text),
        LibraryError::Failed(_) => Status::internal(text),
    }
}

fn now_unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let info = csi::GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: BTreeMap::new(),
        };
        self.faults.around("GetPluginInfo", "", async move { Ok(info) }).await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        use csi::plugin_capability::{Service as Of, Type, VolumeExpansion};
        let service = |of: Service| Type::Service(Of { r#type: of.into() });
        let all = [
            service(Service::ControllerService),
            service(Service::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online.into() }),
        ];
        let capabilities = all.map(|t| csi::PluginCapability { r#type: Some(t) }).to_vec();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        self.faults.around("Probe", "", async { Ok(csi::ProbeResponse { ready: Some(true) }) }).await
    }
}

/// Tells the kubelet where the driver is.
struct Announcement {
    endpoint: PathBuf,
    faults: Faults,
}

#[tonic::async_trait]
impl Registration for Announcement {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        self.faults.around("GetInfo", "", async move { Ok(info) }).await
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let told = request.into_inner();
        if !told.plugin_registered {
            tracing::warn!(error = told.error, "the kubelet did not take the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Opens a socket, in place of one that an earlier process left.
fn listen(path: &Path) -> Result<UnixListener, DriverError> {
    let failed = |e| DriverError::Listen(path.to_owned(), e);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    carrack_disks::remove::file(path).map_err(failed)?;
    UnixListener::bind(path).map_err(failed)
}

/// Serves the driver until `stop`. What is attached and mounted stays.
///
/// # Errors
/// [`DriverError`].
pub async fn serve(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), DriverError> {
    let dir = settings.dir.clone();
    let library = tokio::task::spawn_blocking(move || Library::open(&dir))
        .await
        .map_err(|e| DriverError::Ended(e.to_string()))?
        .map_err(|e| DriverError::Library(settings.dir.clone(), e))?;
    let driver = Driver {
        library: Arc::new(library),
        node: settings.node.as_str().into(),
        faults: settings.faults.clone(),
        busy: Arc::default(),
    };
    let calls = listen(&settings.socket())?;
    let services = Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(NodeServer::new(driver))
        .serve_with_incoming(UnixListenerStream::new(calls));
    // The kubelet is told of it only when it can be called.
    let announcements = listen(&settings.registration_socket())?;
    let announcement = Announcement { endpoint: settings.socket(), faults: settings.faults.clone() };
    let registration = Server::builder()
        .add_service(RegistrationServer::new(announcement))
        .serve_with_incoming(UnixListenerStream::new(announcements));
    tracing::info!(driver = DRIVER, dir = %settings.dir.display(), "the driver serves");
    let ended = tokio::select! {
        () = stop => return Ok(()),
        r = services => r,
        r = registration => r,
    };
    Err(DriverError::Ended(ended.map_or_else(|e| e.to_string(), |()| "nobody listens any more".to_owned())))
}
