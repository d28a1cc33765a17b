//! A plugin against a small kubelet, over real sockets.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tonic::transport::Channel;

use super::pb::device_plugin_client::DevicePluginClient;
use super::pb::registration_server::{Registration, RegistrationServer};
use super::*;

/// Hands every registration on.
struct MiniKubelet(mpsc::UnboundedSender<pb::RegisterRequest>);

#[tonic::async_trait]
impl Registration for MiniKubelet {
    async fn register(&self, request: Request<pb::RegisterRequest>) -> Reply<pb::Empty> {
        self.0.send(request.into_inner()).map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(pb::Empty {}))
    }
}

/// Starts one in a directory, as a kubelet does: all sockets there go first.
fn kubelet(directory: &Path) -> (mpsc::UnboundedReceiver<pb::RegisterRequest>, CancellationToken) {
    for entry in std::fs::read_dir(directory).expect("listed") {
        std::fs::remove_file(entry.expect("listed").path()).expect("removed");
    }
    let (sender, registrations) = mpsc::unbounded_channel();
    let listener = UnixListener::bind(directory.join("kubelet.sock")).expect("listens");
    let stop = CancellationToken::new();
    let server = Server::builder()
        .add_service(RegistrationServer::new(MiniKubelet(sender)))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone().cancelled_owned());
    tokio::spawn(server);
    (registrations, stop)
}

async fn client(directory: &Path, endpoint: &str) -> DevicePluginClient<Channel> {
    let path = directory.join(endpoint);
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    DevicePluginClient::new(
        Endpoint::from_static("http://localhost").connect_with_connector(connect).await.expect("dialled"),
    )
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("in time")
}

#[tokio::test]
async fn registers_lists_allocates_and_registers_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let sockets = dir.path().join("device-plugins");
    std::fs::create_dir(&sockets).expect("made");
    let device = dir.path().join("kvm");
    std::fs::write(&device, "").expect("written");
    let (mut registrations, first) = kubelet(&sockets);
    let plugin = Plugin { resource: KVM_RESOURCE, name: "kvm", device: device.clone(), directory: sockets.clone() };
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = states.clone();
    let running = tokio::spawn(async move {
        plugin.run(|present, registered| seen.lock().expect("no panic").push((present, registered))).await;
    });

    let request = within(registrations.recv()).await.expect("registered");
    assert_eq!((request.version.as_str(), request.resource_name.as_str()), ("v1beta1", KVM_RESOURCE));
    let mut plugin = client(&sockets, &request.endpoint).await;
    let mut lists = plugin.list_and_watch(pb::Empty {}).await.expect("listed").into_inner();
    let mut health = async || {
        let list = within(lists.message()).await.expect("a list").expect("a list");
        assert_eq!(list.devices.len(), COUNT);
        list.devices[0].health.clone()
    };
    assert_eq!(health().await, "Healthy");
    std::fs::remove_file(&device).expect("removed");
    assert_eq!(health().await, "Unhealthy");
    std::fs::write(&device, "").expect("written");
    assert_eq!(health().await, "Healthy");

    let wanted = pb::ContainerAllocateRequest { devices_ids: vec!["kvm7".to_owned()] };
    let request = pb::AllocateRequest { container_requests: vec![wanted] };
    let reply = plugin.allocate(request).await.expect("allocated").into_inner();
    let devices = &reply.container_responses[0].devices;
    assert_eq!(devices[0].host_path, device.to_string_lossy());

    // A kubelet that starts anew finds the plugin registering by itself.
    first.cancel();
    let (mut registrations, _second) = kubelet(&sockets);
    let request = within(registrations.recv()).await.expect("registered again");
    assert_eq!(request.resource_name, KVM_RESOURCE);
    drop(client(&sockets, &request.endpoint).await);
    running.abort();
    let states = states.lock().expect("no panic").clone();
    assert!(states.starts_with(&[(true, false), (true, true), (false, true), (true, true)]), "{states:?}");
}
