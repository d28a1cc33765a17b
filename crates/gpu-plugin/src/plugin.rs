//! The shell: sockets, the registration with the kubelet, live reads.
//!
//! ```text
//!   serving both sockets ──Register──▶ registered ──kubelet.sock or ours replaced──▶ serving anew
//! ```
#![expect(clippy::disallowed_methods, reason = "shell: looks at sockets and GPUs at its own pace")]

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_deviceplugin as pb;
use carrack_engine::{ApiRequest, ContentType, Transport, causes, derived_suffix};
use carrack_gpu_extender::Names;
use carrack_types::resource::Kind as _;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Node;
use pb::device_plugin_server::{DevicePlugin, DevicePluginServer};
use pb::registration_client::RegistrationClient;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::checkpoint::{self, Held};
use crate::inventory::Inventory;
use crate::numbers;
use crate::nvml::Driver;
use crate::owner::{self, Known, Trouble};
use crate::taken;

/// How often sockets are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often the driver is asked about its GPUs.
const ASK: Duration = Duration::from_secs(10);
/// How long the kubelet may take to register a plugin; it dials back meanwhile.
const REGISTER: Duration = Duration::from_secs(10);
/// How long a container's pod is looked for.
const FIND: Duration = Duration::from_secs(20);
/// The longest wait between two looks: each is a list of the node's pods.
const MOST_WAIT: Duration = Duration::from_secs(4);

/// Where GPUs come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// NVIDIA's driver.
    Nvml,
    /// They are made up.
    MadeUp(Inventory),
}

/// What the plugin is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of resources and annotations.
    pub names: Names,
    /// This node.
    pub node: String,
    /// The kubelet's directory of plugin sockets.
    pub sockets: PathBuf,
    /// Where GPUs come from.
    pub source: Source,
}

/// The GPUs that there are.
///
/// # Errors
/// There is no driver to ask, or it does not answer.
pub fn look(source: &Source) -> Result<Inventory, String> {
    Gpus::of(source)?.look()
}

enum Gpus {
    Driver(Box<Driver>),
    MadeUp(Inventory),
}

impl Gpus {
    fn of(source: &Source) -> Result<Self, String> {
        Ok(match source {
            Source::Nvml => Self::Driver(Box::new(Driver::load()?)),
            Source::MadeUp(inventory) => Self::MadeUp(inventory.clone()),
        })
    }
    fn look(&self) -> Result<Inventory, String> {
        match self {
            Self::Driver(driver) => driver.inventory(),
            Self::MadeUp(inventory) => Ok(inventory.clone()),
        }
    }
}

/// Offers the node's GPUs until `stop`.
///
/// # Errors
/// There is no driver to ask.
pub async fn run(config: Config, api: Arc<dyn Transport>, stop: CancellationToken) -> Result<(), String> {
    let gpus = Arc::new(Gpus::of(&config.source)?);
    let found = gpus.look()?;
    let first = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        first = numbers::recall(&config, &*api, found) => first,
    };
    for (number, gpu) in first.gpus.iter().enumerate() {
        tracing::info!(number, uuid = gpu.uuid, memory_mib = gpu.memory_mib, near = gpu.near.join("/"), "a GPU");
    }
    let (tell, known) = watch::channel(Arc::new(first));
    let names = config.names.clone();
    let shared = Arc::new(Shared { config, api, known, verified: Mutex::default() });
    let core = Plugin { shared: shared.clone(), resource: names.core, kind: Kind::Core };
    let memory = Plugin { shared: shared.clone(), resource: names.memory, kind: Kind::Memory };
    tokio::select! {
        () = stop.cancelled() => {}
        () = core.run() => {}
        () = memory.run() => {}
        () = watch_gpus(&gpus, &tell) => {}
        () = annotate(&shared) => {}
    }
    Ok(())
}

/// Asks the driver again and again: a GPU may break, and one that was lost may keep its number only. A driver may also hang on a
/// question about a broken one: who asks for devices meanwhile does not wait for that.
async fn watch_gpus(gpus: &Arc<Gpus>, tell: &watch::Sender<Arc<Inventory>>) {
    loop {
        tokio::time::sleep(ASK).await;
        let asked = gpus.clone();
        let found = tokio::task::spawn_blocking(move || asked.look()).await;
        match found.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(found) => tell.send_if_modified(|known| {
                let found = found.numbered_as(known);
                let differs = **known != found;
                if differs {
                    *known = Arc::new(found);
                }
                differs
            }),
            Err(error) => {
                tracing::error!(error, "the driver does not answer; what it said last stays");
                false
            }
        };
    }
}

/// Writes onto the node which GPUs it has, whenever that changes, until it is written.
async fn annotate(shared: &Shared) {
    let mut known = shared.known.clone();
    loop {
        let text = known.borrow_and_update().annotation();
        let Config { names, node, .. } = &shared.config;
        let patch = json!({"metadata": {"annotations": {names.devices.clone(): text}}});
        let kind = ContentType::MergePatch;
        let written = shared.api.send(ApiRequest::patch(&Node::resource(), "", node, "", kind, &patch)).await;
        let wait = match written {
            Ok(_) => None,
            // Before the kubelet has registered its node, there is none.
            Err(error) => {
                tracing::debug!(%error, "the node's GPUs are not written on it yet");
                Some(Duration::from_secs(1))
            }
        };
        match wait {
            Some(wait) => tokio::time::sleep(wait).await,
            // The node may be made anew, and has to be told again then.
            None => {
                let again = tokio::time::sleep(Duration::from_secs(60));
                tokio::select! { () = again => {}, _ = known.changed() => {} }
            }
        }
    }
}

struct Shared {
    config: Config,
    api: Arc<dyn Transport>,
    known: watch::Receiver<Arc<Inventory>>,
    /// Grants that were found right.
    verified: Mutex<Vec<Held>>,
}

impl Shared {
    /// Whether all that the kubelet has noted of these devices was found right before, and works still: a bound pod's choice moves no
    /// more, and its container may have to start again while the API server does not answer.
    fn is_verified(&self, ids: &BTreeSet<String>) -> bool {
        let Ok(held) = self.held() else { return false };
        let inventory = self.known.borrow().clone();
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let mut granted = owner::granted(&held, ids).peekable();
        granted.peek().is_some() && granted.all(|held| verified.contains(held) && owner::work(held, &inventory))
    }
    /// What the kubelet has noted of these devices, as it was read, was found right.
    fn remember(&self, held: &[Held], ids: &BTreeSet<String>) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.retain(|known| held.contains(known) && known.ids != *ids);
        verified.extend(owner::granted(held, ids).cloned());
    }
    fn held(&self) -> Result<Vec<Held>, String> {
        let path = self.config.sockets.join(checkpoint::FILE);
        match std::fs::read(&path) {
            Ok(bytes) => checkpoint::read(&bytes, &self.config.names.core),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Asks a question about pods and holdings until it has an answer, or for long enough. What no waiting helps is said at once.
    async fn find<T>(&self, ask: impl Fn(Known<'_>) -> Result<T, Trouble>) -> Result<T, Status> {
        let deadline = tokio::time::Instant::now() + FIND;
        let mut wait = LOOK;
        loop {
            let Config { names, node, .. } = &self.config;
            let pods = numbers::pods(&*self.api, node).await;
            let inventory = self.known.borrow().clone();
            let answer = match (pods, self.held()) {
                (Ok(pods), Ok(held)) => ask(Known { names, node, pods: &pods, held: &held, inventory: &inventory }),
                (Err(error), _) | (_, Err(error)) => Err(Trouble::Unknown(error)),
            };
            let now = tokio::time::Instant::now();
            match answer {
                Ok(found) => return Ok(found),
                Err(Trouble::Unknown(error)) if now < deadline => tracing::debug!(error, "will look again"),
                Err(Trouble::Unknown(error) | Trouble::Final(error)) => {
                    return Err(Status::failed_precondition(error));
                }
            }
            tokio::time::sleep_until((now + wait).min(deadline)).await;
            wait = (wait * 2).min(MOST_WAIT);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Core,
    Memory,
}

impl Kind {
    /// Name of the socket of a resource, in the directory that all plugins of the node share. Plugins with other prefixes have
    /// others, and a path may have no more than 107 bytes, so the prefix is not in it as it is.
    fn endpoint(self, resource: &str) -> String {
        let kind = match self {
            Self::Core => "core",
            Self::Memory => "mem",
        };
        format!("carrack-gpu-{kind}-{}.sock", derived_suffix(&[resource], 8))
    }
}

#[derive(Clone)]
struct Plugin {
    shared: Arc<Shared>,
    resource: String,
    kind: Kind,
}

impl Plugin {
    async fn run(&self) {
        loop {
            match self.serve().await {
                Ok(()) => tracing::info!(resource = self.resource, "the kubelet is another one"),
                // Before the kubelet has started this is the normal state of things.
                Err(error) => tracing::debug!(resource = self.resource, error, "not registered"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Serves and registers, until the kubelet is another one.
    async fn serve(&self) -> Result<(), String> {
        let sockets = &self.shared.config.sockets;
        let kubelet_socket = sockets.join(pb::KUBELET_SOCKET);
        let kubelet = identity(&kubelet_socket).ok_or("the kubelet does not listen")?;
        let endpoint = self.kind.endpoint(&self.resource);
        let socket = sockets.join(&endpoint);
        if let Err(error) = std::fs::remove_file(&socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(format!("{}: {error}", socket.display()));
        }
        let listener = UnixListener::bind(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        let own = identity(&socket);
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let server = Server::builder()
            .add_service(DevicePluginServer::new(self.clone()))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned());
        let watching = async {
            let registered = tokio::time::timeout(REGISTER, self.register(&kubelet_socket, &endpoint)).await;
            registered.map_err(|_| "the kubelet did not answer the registration".to_owned())??;
            tracing::info!(resource = self.resource, "registered");
            while identity(&kubelet_socket) == Some(kubelet) && identity(&socket) == own {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        tokio::select! {
            ended = server => Err(ended.err().map_or_else(|| "the server ended".to_owned(), |error| causes(&error))),
            ended = watching => ended,
        }
    }

    async fn register(&self, kubelet: &Path, endpoint: &str) -> Result<(), String> {
        let path = kubelet.to_owned();
        let connect = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await;
        let request = pb::RegisterRequest {
            version: pb::VERSION.to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: self.resource.clone(),
            options: Some(self.options()),
        };
        let mut client = RegistrationClient::new(channel.map_err(|error| causes(&error))?);
        client.register(request).await.map(drop).map_err(|status| status.to_string())
    }

    fn options(&self) -> pb::DevicePluginOptions {
        pb::DevicePluginOptions {
            pre_start_required: self.kind == Kind::Core,
            get_preferred_allocation_available: false,
        }
    }

    async fn grant(&self, ids: &BTreeSet<String>) -> Result<pb::ContainerAllocateResponse, Status> {
        let free = |known: Known<'_>| owner::of(known, ids).and_then(|grant| taken::checked(known, grant));
        let grant = self.shared.find(|known| free(known).map_err(Trouble::Unknown)).await?;
        let inventory = self.shared.known.borrow().clone();
        let mut files = inventory.shared_files.clone();
        for gpu in grant.devices(&inventory).map_err(Status::failed_precondition)? {
            files.extend(gpu.files.iter().cloned());
        }
        tracing::info!(pod = grant.pod, container = grant.container, gpus = ?grant.gpus, "GPUs are handed out");
        let device = |path: &PathBuf| {
            let path = path.display().to_string();
            pb::DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".to_owned() }
        };
        Ok(pb::ContainerAllocateResponse {
            envs: grant.env(&inventory).into_iter().collect(),
            devices: files.iter().map(device).collect(),
            ..pb::ContainerAllocateResponse::default()
        })
    }
}

/// Which file this is: a socket that was made anew is another one.
fn identity(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<pb::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<pb::Empty>) -> Answer<pb::DevicePluginOptions> {
        Ok(Response::new(self.options()))
    }

    async fn list_and_watch(&self, _: Request<pb::Empty>) -> Answer<Self::ListAndWatchStream> {
        let kind = self.kind;
        let lists = WatchStream::new(self.shared.known.clone()).map(move |known| {
            let devices = match kind {
                Kind::Core => known.core_devices(),
                Kind::Memory => known.memory_devices(),
            };
            let device = |(id, healthy): (String, bool)| {
                let health = if healthy { "Healthy" } else { "Unhealthy" };
                pb::Device { id, health: health.to_owned(), topology: None }
            };
            Ok(pb::ListAndWatchResponse { devices: devices.into_iter().map(device).collect() })
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<pb::PreferredAllocationRequest>,
    ) -> Answer<pb::PreferredAllocationResponse> {
        Ok(Response::new(pb::PreferredAllocationResponse::default()))
    }

    async fn allocate(&self, request: Request<pb::AllocateRequest>) -> Answer<pb::AllocateResponse> {
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let ids: BTreeSet<String> = asked.devices_ids.into_iter().collect();
            container_responses.push(match self.kind {
                Kind::Core => self.grant(&ids).await?,
                // Memory comes with the cores of the same container.
                Kind::Memory => pb::ContainerAllocateResponse::default(),
            });
        }
        Ok(Response::new(pb::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<pb::PreStartContainerRequest>,
    ) -> Answer<pb::PreStartContainerResponse> {
        let ids: BTreeSet<String> = request.into_inner().devices_ids.into_iter().collect();
        if !self.shared.is_verified(&ids) {
            let right = |known: Known<'_>| {
                owner::verify(known, &ids)?;
                self.shared.remember(known.held, &ids);
                Ok(())
            };
            self.shared.find(right).await?;
        }
        Ok(Response::new(pb::PreStartContainerResponse::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_of_different_prefixes_have_sockets_of_their_own() {
        let mut endpoints = BTreeSet::new();
        for prefix in ["tencent.com", "example.org", "a.b".repeat(60).as_str()] {
            let names = Names::new(prefix);
            for (kind, resource) in [(Kind::Core, &names.core), (Kind::Memory, &names.memory)] {
                let endpoint = kind.endpoint(resource);
                let path = format!("/var/lib/kubelet/device-plugins/{endpoint}");
                assert!(path.len() <= 107 && endpoints.insert(endpoint), "{path}");
            }
        }
        assert_eq!(endpoints.len(), 6);
    }
}
