//! The device plugins for KVM, TUN and vhost-net.
//!
//! ```text
//!   absent ──device appears──▶ serving ──Register──▶ registered ──kubelet.sock or our socket replaced──▶ serving
//!     ▲                                                  │
//!     └───────────────── device disappears ◀─────────────┘
//! ```
//!
//! A kubelet that starts removes every socket in its directory and knows no plugin; each plugin sees that and begins
//! anew. Of each device there are 1000, as upstream: they are shared, and the count only bounds the pods.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use carrack_engine::shell::EventSink;
use carrack_types::well_known::kubevirt::{KVM_RESOURCE, TUN_RESOURCE, VHOST_NET_RESOURCE};
use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::KVM;
use crate::handler::effects::In;

use carrack_deviceplugin as pb;
use pb::device_plugin_server::{DevicePlugin, DevicePluginServer};
use pb::registration_client::RegistrationClient;

/// Devices of each resource.
const COUNT: usize = 1000;
/// How often sockets and devices are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long the kubelet may take to register a plugin; it dials back meanwhile.
const REGISTER_DEADLINE: Duration = Duration::from_secs(10);
/// Waits after failures.
const RETRIES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10)];
/// Version of the protocol.
const VERSION: &str = "v1beta1";

/// Resource, its name in socket and device names, its device node.
const DEVICES: [(&str, &str, &str); 3] = [
    (KVM_RESOURCE, "kvm", KVM),
    (TUN_RESOURCE, "tun", "/dev/net/tun"),
    (VHOST_NET_RESOURCE, "vhost-net", "/dev/vhost-net"),
];

/// Runs all plugins, for ever. `directory` is the kubelet's directory of plugin sockets.
pub(super) async fn run_all(directory: PathBuf, events: EventSink<In>) {
    let [kvm, tun, vhost_net] = DEVICES.map(|(resource, name, device)| {
        let plugin = Plugin { resource, name, device: device.into(), directory: directory.clone() };
        let events = events.clone();
        async move {
            plugin
                .run(|present, registered| {
                    events.send(In::Device { resource: resource.to_owned(), present, registered });
                })
                .await;
        }
    });
    tokio::join!(kvm, tun, vhost_net);
}

struct Plugin {
    resource: &'static str,
    name: &'static str,
    device: PathBuf,
    directory: PathBuf,
}

impl Plugin {
    /// Runs for ever; `report` hears of every change: the device is there, the plugin is registered.
    async fn run(&self, report: impl Fn(bool, bool)) {
        let mut failures = 0;
        let mut last = None;
        loop {
            if !self.device.exists() {
                if last != Some(false) {
                    tracing::info!(resource = self.resource, device = %self.device.display(), "not on this node");
                    report(false, false);
                    last = Some(false);
                }
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if last != Some(true) {
                report(true, false);
            }
            // Whatever state is reported next, it is a new one.
            last = None;
            match self.serve(&report).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    // Before the kubelet has ever started this is the normal state of things.
                    tracing::debug!(resource = self.resource, error, "the device plugin is not registered");
                    let wait = RETRIES[failures.min(RETRIES.len() - 1)];
                    failures += 1;
                    self.until_kubelet_changes(wait).await;
                    last = self.device.exists().then_some(true);
                }
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(format!("kubevirt-{}.sock", self.name))
    }

    fn kubelet_socket(&self) -> PathBuf {
        self.directory.join("kubelet.sock")
    }

    /// Serves and registers, until the kubelet or the device is another one.
    async fn serve(&self, report: &impl Fn(bool, bool)) -> Result<(), String> {
        let kubelet = identity(&self.kubelet_socket()).ok_or("the kubelet does not listen")?;
        let socket = self.socket();
        if let Err(error) = std::fs::remove_file(&socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(format!("{}: {error}", socket.display()));
        }
        let listener = UnixListener::bind(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        let own = identity(&socket);
        let (health, healths) = watch::channel(true);
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let service = Service { name: self.name, device: self.device.clone(), health: healths };
        let server = Server::builder()
            .add_service(DevicePluginServer::new(service))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned());
        let watching = async {
            tokio::time::timeout(REGISTER_DEADLINE, self.register())
                .await
                .map_err(|_| "the kubelet did not answer the registration".to_owned())??;
            report(true, true);
            tracing::info!(resource = self.resource, "device plugin registered");
            let mut present = true;
            loop {
                tokio::time::sleep(LOOK).await;
                if identity(&self.kubelet_socket()) != Some(kubelet) || identity(&socket) != own {
                    return Ok(());
                }
                if self.device.exists() != present {
                    present = !present;
                    health.send_replace(present);
                    report(present, true);
                }
            }
        };
        tokio::select! {
            ended = server => Err(ended.err().map_or_else(|| "the server ended".to_owned(), |error| error.to_string())),
            ended = watching => ended,
        }
    }

    async fn register(&self) -> Result<(), String> {
        let path = self.kubelet_socket();
        let connect = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connect)
            .await
            .map_err(|error| carrack_engine::causes(&error))?;
        let endpoint = self.socket().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let request = pb::RegisterRequest {
            version: VERSION.to_owned(),
            endpoint,
            resource_name: self.resource.to_owned(),
            options: Some(pb::DevicePluginOptions::default()),
        };
        RegistrationClient::new(channel).register(request).await.map_err(|status| status.to_string()).map(drop)
    }

    /// Waits, but no longer than until another kubelet listens.
    async fn until_kubelet_changes(&self, most: Duration) {
        let before = identity(&self.kubelet_socket());
        let mut waited = Duration::ZERO;
        while waited < most && identity(&self.kubelet_socket()) == before {
            tokio::time::sleep(LOOK).await;
            waited += LOOK;
        }
    }
}

/// Which file this is: a socket that was made anew is another one.
fn identity(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

struct Service {
    name: &'static str,
    device: PathBuf,
    health: watch::Receiver<bool>,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<pb::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<pb::Empty>) -> Reply<pb::DevicePluginOptions> {
        Ok(Response::new(pb::DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<pb::Empty>) -> Reply<Self::ListAndWatchStream> {
        let name = self.name;
        let lists = WatchStream::new(self.health.clone()).map(move |healthy| {
            let health = if healthy { "Healthy" } else { "Unhealthy" };
            let device = |index| pb::Device { id: format!("{name}{index}"), health: health.to_owned(), topology: None };
            Ok(pb::ListAndWatchResponse { devices: (0..COUNT).map(device).collect() })
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<pb::PreferredAllocationRequest>,
    ) -> Reply<pb::PreferredAllocationResponse> {
        Ok(Response::new(pb::PreferredAllocationResponse::default()))
    }

    async fn allocate(&self, request: Request<pb::AllocateRequest>) -> Reply<pb::AllocateResponse> {
        let path = self.device.to_string_lossy().into_owned();
        let spec = pb::DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".to_owned() };
        let one = pb::ContainerAllocateResponse { devices: vec![spec], ..pb::ContainerAllocateResponse::default() };
        let container_responses = request.into_inner().container_requests.iter().map(|_| one.clone()).collect();
        Ok(Response::new(pb::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<pb::PreStartContainerRequest>,
    ) -> Reply<pb::PreStartContainerResponse> {
        Ok(Response::new(pb::PreStartContainerResponse::default()))
    }
}

#[cfg(test)]
mod tests;
