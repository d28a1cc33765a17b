//! A device plugin for tests, over real sockets: it can hang, die, flap, lie and answer late.
//!
//! ```text
//!   serve ─▶ register ─▶ list … ─▶ die (its sockets close; its file stays, as after kill -9)
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test whose plugin cannot be set up has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use crate::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::registration_client::RegistrationClient;
use crate::*;

/// What an Allocate is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// One answer for the container.
    #[default]
    Honest,
    /// None at all.
    Nothing,
    /// One too many.
    TooMuch,
    /// An error.
    Error,
    /// It never comes.
    Never,
}

/// How a plugin behaves. The default is well.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// What it answers to Allocate.
    pub allocate: Answer,
    /// How late it answers to Allocate.
    pub allocate_after: Duration,
    /// Its options.
    pub options: DevicePluginOptions,
    /// It sends its list again and again, as fast as it is taken.
    pub endless: bool,
    /// It never answers to GetDevicePluginOptions.
    pub options_hang: bool,
    /// PreStartContainer fails.
    pub pre_start_fails: bool,
    /// CDI names that Allocate adds.
    pub cdi_devices: Vec<String>,
    /// NUMA nodes by device.
    pub numa: BTreeMap<String, i64>,
}

/// A call that the plugin was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Allocate, with the devices.
    Allocate(Vec<String>),
    /// GetPreferredAllocation, with what is available and how many are wanted.
    Prefer(Vec<String>, i32),
    /// PreStartContainer, with the devices.
    PreStart(Vec<String>),
}

struct Shared {
    behaviour: Mutex<Behaviour>,
    devices: watch::Sender<Vec<(String, bool)>>,
    calls: Mutex<Vec<Call>>,
}

impl Shared {
    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn note(&self, call: Call) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

/// A plugin. Dropped, it dies.
pub struct Plugin {
    dir: PathBuf,
    endpoint: String,
    resource: String,
    shared: Arc<Shared>,
    server: Option<(JoinHandle<()>, watch::Sender<bool>)>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.die();
    }
}

impl Plugin {
    /// A plugin for a resource with these devices, not served yet.
    #[must_use]
    pub fn new(dir: &Path, resource: &str, devices: &[(&str, bool)]) -> Self {
        let list = devices.iter().map(|(id, healthy)| ((*id).to_owned(), *healthy)).collect();
        Self {
            dir: dir.to_owned(),
            endpoint: format!("{}.sock", resource.replace('/', "_")),
            resource: resource.to_owned(),
            shared: Arc::new(Shared {
                behaviour: Mutex::default(),
                devices: watch::Sender::new(list),
                calls: Mutex::default(),
            }),
            server: None,
        }
    }

    /// From now on it behaves otherwise.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Lists these devices.
    pub fn list(&self, devices: &[(&str, bool)]) {
        self.shared.devices.send_replace(devices.iter().map(|(id, ok)| ((*id).to_owned(), *ok)).collect());
    }

    /// What it was asked so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Name of its socket.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Serves its socket.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn serve(&mut self) -> io::Result<()> {
        self.die();
        let path = self.dir.join(&self.endpoint);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let (dead, ends) = watch::channel(false);
        let service = DevicePluginServer::new(Served { shared: self.shared.clone(), ends });
        let task = tokio::spawn(async move {
            let served = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await;
            drop(served);
        });
        self.server = Some((task, dead));
        Ok(())
    }

    /// Ends at once, as if killed: nobody is answered any more, its socket's file stays.
    pub fn die(&mut self) {
        if let Some((server, dead)) = self.server.take() {
            dead.send_replace(true);
            server.abort();
        }
    }

    /// Registers under its own names.
    ///
    /// # Errors
    /// What the kubelet says.
    pub async fn register(&self) -> Result<(), Status> {
        self.register_as(VERSION, &self.endpoint, &self.resource).await
    }

    /// Registers under any names.
    ///
    /// # Errors
    /// What the kubelet says.
    pub async fn register_as(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), Status> {
        let socket = self.dir.join(KUBELET_SOCKET);
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(tower::service_fn(move |_: http::Uri| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            }))
            .await
            .map_err(|e| Status::unavailable(e.to_string()))?;
        let request = RegisterRequest {
            version: version.into(),
            endpoint: endpoint.into(),
            resource_name: resource.into(),
            options: Some(self.shared.behaviour().options),
        };
        RegistrationClient::new(channel).register(request).await.map(drop)
    }

    /// Serves and registers whenever the kubelet's socket is there and new, as plugins do, until this is dropped.
    pub async fn keep_registered(mut self) {
        let mut with = None;
        loop {
            let kubelet = fs::metadata(self.dir.join(KUBELET_SOCKET)).ok().map(|m| (m.ino(), m.ctime_nsec()));
            if kubelet.is_some() && kubelet != with && self.serve().is_ok() && self.register().await.is_ok() {
                with = kubelet;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

struct Served {
    shared: Arc<Shared>,
    /// Whether the plugin is dead: connections outlive the task that accepted them.
    ends: watch::Receiver<bool>,
}

impl Served {
    fn alive(&self) -> Result<(), Status> {
        if *self.ends.borrow() { Err(Status::unavailable("it is dead")) } else { Ok(()) }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Served {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let behaviour = self.shared.behaviour();
        if behaviour.options_hang {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(behaviour.options))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (to, from) = mpsc::channel(1);
        let (shared, mut ends) = (self.shared.clone(), self.ends.clone());
        tokio::spawn(async move {
            let mut changes = shared.devices.subscribe();
            loop {
                let behaviour = shared.behaviour();
                let devices = changes
                    .borrow_and_update()
                    .iter()
                    .map(|(id, healthy)| Device {
                        id: id.clone(),
                        health: if *healthy { "Healthy".into() } else { "Unhealthy".into() },
                        topology: behaviour
                            .numa
                            .get(id)
                            .map(|node| TopologyInfo { nodes: vec![NumaNode { id: *node }] }),
                    })
                    .collect();
                if to.send(Ok(ListAndWatchResponse { devices })).await.is_err() {
                    return;
                }
                tokio::select! {
                    // An error means that the plugin is gone, too.
                    _ = ends.wait_for(|dead| *dead) => return,
                    changed = changes.changed() => if changed.is_err() {
                        return;
                    },
                    () = std::future::ready(()), if behaviour.endless => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let container_responses = request
            .into_inner()
            .container_requests
            .into_iter()
            .map(|r| {
                self.shared.note(Call::Prefer(r.available_device_i_ds.clone(), r.allocation_size));
                // What must be among them, and the last ones, so that it shows.
                let count = usize::try_from(r.allocation_size).unwrap_or(0);
                let must = r.must_include_device_i_ds;
                let rest = r.available_device_i_ds.into_iter().rev().filter(|id| !must.contains(id));
                let device_i_ds = must.iter().cloned().chain(rest).take(count).collect();
                ContainerPreferredAllocationResponse { device_i_ds }
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        self.alive()?;
        let behaviour = self.shared.behaviour();
        let mut container_responses = Vec::new();
        for r in request.into_inner().container_requests {
            self.shared.note(Call::Allocate(r.devices_ids.clone()));
            container_responses.push(ContainerAllocateResponse {
                envs: BTreeMap::from([("TEST_DEVICES".to_owned(), r.devices_ids.join(","))]),
                cdi_devices: behaviour.cdi_devices.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
                ..Default::default()
            });
        }
        tokio::time::sleep(behaviour.allocate_after).await;
        match behaviour.allocate {
            Answer::Honest => {}
            Answer::Nothing => container_responses.clear(),
            Answer::TooMuch => container_responses.extend(container_responses.clone()),
            Answer::Error => return Err(Status::internal("it is broken")),
            Answer::Never => std::future::pending::<()>().await,
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.shared.note(Call::PreStart(request.into_inner().devices_ids));
        if self.shared.behaviour().pre_start_fails {
            return Err(Status::internal("not now"));
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
