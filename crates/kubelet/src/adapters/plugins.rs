//! Device plugins over their unix sockets (v1beta1).
//!
//! ```text
//!  plugin ──Register──▶ kubelet.sock
//!  plugin ◀─options, ListAndWatch, Allocate…── dial back, one connection a registration
//! ```
//!
//! Each registration has an epoch of its own. A plugin that hangs up, or that is registered anew,
//! ends its epoch; calls that name an older one fail.

mod announced;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrack_schema::validate::names;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::sockets::CONNECT;
use super::{io_error, listening, sockets};
use crate::devices::{AllocateReply, Device, PluginOptions, from_wire, is_extended};
use crate::effects::{In, OpError};
use carrack_deviceplugin as proto;
use carrack_deviceplugin::device_plugin_client::DevicePluginClient;
use carrack_deviceplugin::registration_server::{Registration, RegistrationServer};
use carrack_deviceplugin::{KUBELET_SOCKET, VERSION};

const PRE_START: Duration = Duration::from_secs(30);
/// Upstream waits for an Allocate without end; a container that starts is worth two minutes.
const ALLOCATE: Duration = Duration::from_secs(120);
/// How soon after a list the next one is read.
const PACE: Duration = Duration::from_millis(20);
/// How much later for each device of it: what follows of a list takes as long as it is large, and lists are not to pile up.
const PACE_OF_EACH: Duration = Duration::from_micros(20);
/// Largest message, in bytes, as upstream allows.
const MAX_MESSAGE: usize = 16 << 20;
/// Most devices of one resource, and longest id in bytes.
const MAX_DEVICES: usize = 100_000;
const MAX_ID: usize = 1024;
/// How much of what a plugin says is told in an event, in characters.
const MAX_TOLD: usize = 300;
/// Most NUMA nodes of a device, as many as are told apart.
const MAX_NODES: usize = 64;

struct Connected {
    epoch: u64,
    client: DevicePluginClient<Channel>,
    watch: AbortHandle,
}

type Report = Arc<dyn Fn(In) + Send + Sync>;

struct State {
    dir: PathBuf,
    report: Report,
    plugins: Mutex<BTreeMap<String, Connected>>,
    epochs: AtomicU64,
}

/// The kubelet's side of the protocol.
#[derive(Clone)]
pub struct Plugins(Arc<State>);

impl Plugins {
    /// Plugins that have their sockets in a directory; what they say goes to `report`.
    #[must_use]
    pub fn new(dir: PathBuf, report: impl Fn(In) + Send + Sync + 'static) -> Self {
        Self(Arc::new(State { dir, report: Arc::new(report), plugins: Mutex::default(), epochs: AtomicU64::new(1) }))
    }

    /// Opens the registration socket. Plugins' sockets of before are removed, which tells the plugins
    /// to register again.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn serve(&self) -> Result<JoinHandle<()>, OpError> {
        let dir = &self.0.dir;
        fs::create_dir_all(dir).map_err(io_error(format!("creating {}", dir.display())))?;
        for entry in fs::read_dir(dir).map_err(io_error(format!("reading {}", dir.display())))?.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_socket()) {
                fs::remove_file(entry.path()).map_err(io_error(format!("removing {}", entry.path().display())))?;
            }
        }
        let path = dir.join(KUBELET_SOCKET);
        let listener = listening::open(&path).map_err(io_error(format!("listening at {}", path.display())))?;
        let this = self.clone();
        let server = move |listener| {
            tonic::transport::Server::builder()
                .add_service(RegistrationServer::new(Register(this.clone())))
                .serve_with_incoming(UnixListenerStream::new(listener))
        };
        Ok(tokio::spawn(listening::serve(path, "device plugins", listening::open, listener, server)))
    }

    fn plugins(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Connected>> {
        // Entries are put in and taken out whole.
        self.0.plugins.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn client(&self, resource: &str, epoch: u64) -> Result<DevicePluginClient<Channel>, OpError> {
        self.plugins()
            .get(resource)
            .filter(|c| c.epoch == epoch)
            .map(|c| c.client.clone())
            .ok_or_else(|| OpError::Failed(format!("the device plugin of {resource} has hung up")))
    }

    async fn register(&self, r: proto::RegisterRequest) -> Result<(), String> {
        if r.version != VERSION {
            return Err(format!("version {:?} is not supported, {VERSION} is", r.version));
        }
        let plain = Path::new(&r.endpoint).file_name().is_some_and(|f| f == r.endpoint.as_str());
        if !plain || r.endpoint == KUBELET_SOCKET {
            return Err(format!("the endpoint {:?} is no name of a socket", r.endpoint));
        }
        if let Some(problem) = name_problem(&r.resource_name) {
            return Err(problem);
        }
        self.take(r.resource_name, self.0.dir.join(&r.endpoint)).await.map(drop)
    }

    /// Tells of a plugin that is not taken, or not whole.
    fn refuse(&self, resource: &str, why: &str) {
        tracing::warn!(resource, why, "a device plugin was refused");
        (self.0.report)(In::PluginRefused { resource: told(resource), why: told(why) });
    }

    /// Connects to the plugin of a resource that has a name for one, and follows what it lists. Returns the epoch of this
    /// registration.
    async fn take(&self, resource: String, socket: PathBuf) -> Result<u64, String> {
        let mut client = connect(socket).await?;
        let options = within(CONNECT, client.get_device_plugin_options(proto::Empty {}))
            .await
            .map_err(|e| format!("options: {e}"))?;
        let (epoch, old) = {
            // Of several at once the one that is announced last is the one that is kept: the core asks no other. And one that hangs
            // up at once is taken out after it was put in.
            let mut plugins = self.plugins();
            let epoch = self.0.epochs.fetch_add(1, Ordering::Relaxed);
            // It is announced before anything that it lists can be.
            (self.0.report)(In::PluginUp {
                resource: resource.clone(),
                epoch,
                options: PluginOptions {
                    pre_start_required: options.pre_start_required,
                    preferred_allocation: options.get_preferred_allocation_available,
                },
            });
            let watch = tokio::spawn(self.clone().watch(resource.clone(), epoch, client.clone())).abort_handle();
            (epoch, plugins.insert(resource, Connected { epoch, client, watch }))
        };
        if let Some(old) = old {
            old.watch.abort();
        }
        Ok(epoch)
    }

    /// Follows a plugin's list of devices until it hangs up.
    async fn watch(self, resource: String, epoch: u64, mut client: DevicePluginClient<Channel>) {
        match client.list_and_watch(proto::Empty {}).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                let (mut last, mut left_out) = (None, 0);
                loop {
                    match stream.message().await {
                        Ok(Some(list)) => {
                            let all = list.devices.len();
                            let devices: Vec<_> =
                                list.devices.into_iter().take(MAX_DEVICES).filter_map(device).collect();
                            if all - devices.len() > left_out {
                                left_out = all - devices.len();
                                self.refuse(&resource, &not_taken(left_out, all));
                            }
                            let pace = PACE + PACE_OF_EACH * u32::try_from(devices.len()).unwrap_or(u32::MAX);
                            if last.as_ref() != Some(&devices) {
                                last = Some(devices.clone());
                                (self.0.report)(In::PluginDevices { resource: resource.clone(), epoch, devices });
                            }
                            // One that lists without end is read at this pace, and waits for it.
                            tokio::time::sleep(pace).await;
                        }
                        Ok(None) => break,
                        Err(error) => {
                            // A list that is longer than a message may be ends the registration.
                            if error.code() == Code::OutOfRange {
                                self.refuse(&resource, error.message());
                            }
                            tracing::info!(resource, error = error.message(), "the device plugin's list ended");
                            break;
                        }
                    }
                }
            }
            Err(error) => tracing::warn!(resource, error = error.message(), "the device plugin lists nothing"),
        }
        drop(self.forget(&resource, epoch));
        (self.0.report)(In::PluginDown { resource, epoch });
    }

    /// Forgets a registration, unless the plugin has been registered anew.
    fn forget(&self, resource: &str, epoch: u64) -> Option<Connected> {
        let mut plugins = self.plugins();
        let is_it = plugins.get(resource).is_some_and(|c| c.epoch == epoch);
        if is_it { plugins.remove(resource) } else { None }
    }

    /// Asks for devices of one container.
    ///
    /// # Errors
    /// What the plugin says, or that it is not there.
    pub async fn allocate(&self, resource: &str, epoch: u64, ids: BTreeSet<String>) -> Result<AllocateReply, OpError> {
        let mut client = self.client(resource, epoch)?;
        let r = proto::AllocateRequest {
            container_requests: vec![proto::ContainerAllocateRequest { devices_ids: ids.into_iter().collect() }],
        };
        let mut reply = within(ALLOCATE, client.allocate(r)).await?;
        match reply.container_responses.len() {
            1 => Ok(from_wire(reply.container_responses.remove(0))),
            n => Err(OpError::Failed(format!("the device plugin of {resource} gave {n} answers for one container"))),
        }
    }

    /// Asks which devices a plugin would rather give, of those that are available, with those that are required.
    ///
    /// # Errors
    /// What the plugin says, or that it is not there.
    pub async fn prefer(
        &self,
        resource: &str,
        epoch: u64,
        (available, required): (BTreeSet<String>, BTreeSet<String>),
        count: usize,
    ) -> Result<Vec<String>, OpError> {
        let mut client = self.client(resource, epoch)?;
        let r = proto::PreferredAllocationRequest {
            container_requests: vec![proto::ContainerPreferredAllocationRequest {
                available_device_i_ds: available.into_iter().collect(),
                must_include_device_i_ds: required.into_iter().collect(),
                allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
            }],
        };
        let reply = within(PRE_START, client.get_preferred_allocation(r)).await?;
        Ok(reply.container_responses.into_iter().next().map(|r| r.device_i_ds).unwrap_or_default())
    }

    /// Tells a plugin that a container is about to start.
    ///
    /// # Errors
    /// What the plugin says, or that it is not there.
    pub async fn pre_start(&self, resource: &str, epoch: u64, ids: BTreeSet<String>) -> Result<(), OpError> {
        let mut client = self.client(resource, epoch)?;
        let r = proto::PreStartContainerRequest { devices_ids: ids.into_iter().collect() };
        within(PRE_START, client.pre_start_container(r)).await.map(drop)
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, OpError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(r)) => Ok(r.into_inner()),
        Ok(Err(s)) => Err(OpError::Failed(s.message().to_owned())),
        Err(_) => Err(OpError::TimedOut(limit.as_secs())),
    }
}

async fn connect(socket: PathBuf) -> Result<DevicePluginClient<Channel>, String> {
    let channel = sockets::dial(socket, "connecting to the plugin").await?;
    Ok(DevicePluginClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

/// What is wrong with the name of a resource (upstream's `IsExtendedResourceName`, `pkg/apis/core/v1/helper`): it has a domain that is
/// not Kubernetes' own, and the name under which quotas count it is one, too.
fn name_problem(resource: &str) -> Option<String> {
    let why = if is_extended(resource) {
        names::qualified_name(&format!("requests.{resource}"))?
    } else {
        "it is to have a domain, and not one of Kubernetes' own".to_owned()
    };
    Some(format!("the ResourceName {resource:?} is invalid: {why}"))
}

/// The beginning of what a plugin says, without what moves a terminal's cursor.
fn told(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TOLD).collect()
}

/// What is said of devices that are left out.
fn not_taken(left_out: usize, all: usize) -> String {
    format!(
        "{left_out} of the {all} devices that it lists are left out: no more than {MAX_DEVICES} are taken, whose ids have 1 to {MAX_ID} \
         bytes"
    )
}

fn device(d: proto::Device) -> Option<Device> {
    (!d.id.is_empty() && d.id.len() <= MAX_ID).then(|| Device {
        healthy: d.health == "Healthy",
        numa_nodes: d.topology.into_iter().flat_map(|t| t.nodes).take(MAX_NODES).map(|n| n.id).collect(),
        id: d.id,
    })
}

struct Register(Plugins);

#[tonic::async_trait]
impl Registration for Register {
    async fn register(&self, request: Request<proto::RegisterRequest>) -> Result<Response<proto::Empty>, Status> {
        let r = request.into_inner();
        let resource = r.resource_name.clone();
        match self.0.register(r).await {
            Ok(()) => Ok(Response::new(proto::Empty {})),
            Err(error) => {
                self.0.refuse(&resource, &error);
                Err(Status::invalid_argument(error))
            }
        }
    }
}

#[cfg(test)]
#[path = "plugins_tests.rs"]
mod tests;
