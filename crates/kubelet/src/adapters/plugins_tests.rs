//! A device plugin and the kubelet's side of the protocol, over real sockets.

use std::pin::Pin;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use carrack_deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use carrack_deviceplugin::registration_client::RegistrationClient;

const RESOURCE: &str = "devices.kubevirt.io/kvm";

/// A plugin as plugins are: a socket of its own, a list that changes.
struct Plugin {
    devices: watch::Receiver<Vec<(String, bool)>>,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(proto::DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }))
    }
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;
    async fn list_and_watch(&self, _: Request<proto::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (to, from) = mpsc::channel(4);
        let mut devices = self.devices.clone();
        tokio::spawn(async move {
            loop {
                let list = devices.borrow_and_update().clone();
                let devices_list = list
                    .into_iter()
                    .map(|(id, healthy)| proto::Device {
                        id,
                        health: if healthy { "Healthy".into() } else { "Unhealthy".into() },
                        topology: None,
                    })
                    .collect();
                let sent = to.send(Ok(proto::ListAndWatchResponse { devices: devices_list })).await;
                if sent.is_err() || devices.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }
    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let r = request.into_inner().container_requests.remove(0);
        let last = r.available_device_i_ds.into_iter().next_back().into_iter().collect();
        Ok(Response::new(proto::PreferredAllocationResponse {
            container_responses: vec![proto::ContainerPreferredAllocationResponse { device_i_ds: last }],
        }))
    }
    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        if ids.iter().any(|id| id == "broken") {
            return Err(Status::internal("it is broken"));
        }
        Ok(Response::new(proto::AllocateResponse {
            container_responses: vec![proto::ContainerAllocateResponse {
                devices: ids
                    .iter()
                    .map(|id| proto::DeviceSpec {
                        container_path: "/dev/kvm".into(),
                        host_path: format!("/dev/{id}"),
                        permissions: "rw".into(),
                    })
                    .collect(),
                ..Default::default()
            }],
        }))
    }
    async fn pre_start_container(
        &self,
        _: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        Ok(Response::new(proto::PreStartContainerResponse {}))
    }
}

/// Serves a plugin until the handle is aborted; `devices` changes its list.
fn serve_plugin(dir: &Path, name: &str, list: &[(&str, bool)]) -> (JoinHandle<()>, watch::Sender<Vec<(String, bool)>>) {
    let path = dir.join(name);
    if path.exists() {
        fs::remove_file(&path).unwrap();
    }
    let (to, devices) = watch::channel(list.iter().map(|(id, ok)| ((*id).to_owned(), *ok)).collect());
    let listener = UnixListener::bind(path).unwrap();
    let task = tokio::spawn(async move {
        tonic::transport::Server::builder()
            .add_service(DevicePluginServer::new(Plugin { devices }))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    });
    (task, to)
}

async fn register(dir: &Path, version: &str, endpoint: &str, resource: &str) -> Result<(), Status> {
    let socket = dir.join(KUBELET_SOCKET);
    let channel = Endpoint::try_from("http://localhost")
        .unwrap()
        .connect_with_connector(tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
        .unwrap();
    RegistrationClient::new(channel)
        .register(proto::RegisterRequest {
            version: version.into(),
            endpoint: endpoint.into(),
            resource_name: resource.into(),
            options: None,
        })
        .await
        .map(drop)
}

/// The kubelet's side, with what it reports.
fn kubelet(dir: &Path) -> (Plugins, JoinHandle<()>, mpsc::UnboundedReceiver<In>) {
    let (to, from) = mpsc::unbounded_channel();
    let plugins = Plugins::new(dir.to_owned(), move |event| drop(to.send(event)));
    let task = plugins.serve().unwrap();
    (plugins, task, from)
}

async fn next(events: &mut mpsc::UnboundedReceiver<In>) -> In {
    tokio::time::timeout(Duration::from_secs(10), events.recv()).await.expect("an event in time").unwrap()
}

async fn up(events: &mut mpsc::UnboundedReceiver<In>) -> u64 {
    match next(events).await {
        In::PluginUp { resource, epoch, options } if resource == RESOURCE => {
            assert!(options.pre_start_required && options.preferred_allocation);
            epoch
        }
        other => panic!("{other:?}"),
    }
}

async fn listed(events: &mut mpsc::UnboundedReceiver<In>, of: u64) -> Vec<(String, bool)> {
    match next(events).await {
        In::PluginDevices { epoch, devices, .. } if epoch == of => {
            devices.into_iter().map(|d| (d.id, d.healthy)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn ids(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[tokio::test]
async fn a_plugin_registers_lists_allocates_dies_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (plugins, kubelet_task, mut events) = kubelet(dir);
    let (plugin, devices) = serve_plugin(dir, "kvm.sock", &[("a", true), ("b", true)]);
    register(dir, VERSION, "kvm.sock", RESOURCE).await.unwrap();
    let first = up(&mut events).await;
    assert_eq!(listed(&mut events, first).await, [("a".into(), true), ("b".into(), true)]);

    let reply = plugins.allocate(RESOURCE, first, ids(&["a"])).await.unwrap();
    assert_eq!(reply.devices[0].host_path, "/dev/a");
    assert_eq!(plugins.prefer(RESOURCE, first, ids(&["a", "b"]), 1).await.unwrap(), ["b"]);
    plugins.pre_start(RESOURCE, first, ids(&["a"])).await.unwrap();
    assert_eq!(plugins.allocate(RESOURCE, first, ids(&["broken"])).await, Err(OpError::Failed("it is broken".into())));

    devices.send(vec![("a".into(), false)]).unwrap();
    assert_eq!(listed(&mut events, first).await, [("a".into(), false)]);

    // The plugin dies: it hangs up, and its epoch is over.
    plugin.abort();
    drop(devices);
    assert!(matches!(next(&mut events).await, In::PluginDown { epoch, .. } if epoch == first));
    assert!(plugins.allocate(RESOURCE, first, ids(&["a"])).await.is_err());

    // It comes back under a new epoch.
    let (plugin, devices) = serve_plugin(dir, "kvm.sock", &[("a", true)]);
    register(dir, VERSION, "kvm.sock", RESOURCE).await.unwrap();
    let second = up(&mut events).await;
    assert!(second > first);
    assert_eq!(listed(&mut events, second).await, [("a".into(), true)]);
    assert!(plugins.allocate(RESOURCE, first, ids(&["a"])).await.is_err(), "the old epoch stays over");

    // The kubelet restarts: its directory is cleared, which tells plugins to register again.
    kubelet_task.abort();
    drop(plugins);
    let (plugins, _task, mut events) = kubelet(dir);
    assert!(!dir.join("kvm.sock").exists() && dir.join(KUBELET_SOCKET).exists());
    plugin.abort();
    drop(devices);
    let (_plugin, _devices) = serve_plugin(dir, "kvm.sock", &[("a", true)]);
    register(dir, VERSION, "kvm.sock", RESOURCE).await.unwrap();
    let third = up(&mut events).await;
    listed(&mut events, third).await;
    assert!(plugins.allocate(RESOURCE, third, ids(&["a"])).await.is_ok());
}

#[tokio::test]
async fn what_is_no_plugin_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_plugins, _task, mut events) = kubelet(dir);
    let (_plugin, _devices) = serve_plugin(dir, "kvm.sock", &[]);
    for (version, endpoint, resource, message) in [
        ("v1alpha", "kvm.sock", RESOURCE, "not supported"),
        (VERSION, "kvm.sock", "cpu", "invalid"),
        (VERSION, "kvm.sock", "kubernetes.io/x", "invalid"),
        (VERSION, "../kvm.sock", RESOURCE, "no name of a socket"),
        (VERSION, "kubelet.sock", RESOURCE, "no name of a socket"),
        (VERSION, "missing.sock", RESOURCE, "connecting"),
    ] {
        let refused = register(dir, version, endpoint, resource).await.unwrap_err();
        assert!(refused.message().contains(message), "{}", refused.message());
    }
    assert!(events.try_recv().is_err());
}
