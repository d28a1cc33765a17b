//! The pod resources service, v1: which pod holds which devices, CPUs and memory, for monitors on this node.

mod alpha;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_deviceplugin::podresources as proto;
use k8s_openapi::api::core::v1::Pod;
use proto::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::backend::Published;
use super::{io_error, listening, remove};
use crate::cpus::CpuSet;
use crate::devices::{Device, DeviceView};
use crate::effects::OpError;
use crate::spec::pod::{self, ContainerKind};
use crate::topology::Nodes;

/// Devices as the core last published them.
pub(crate) type PublishedDevices = Arc<Mutex<Arc<DeviceView>>>;

/// The service.
#[derive(Clone)]
pub(crate) struct Lister {
    pub pods: Published,
    pub devices: PublishedDevices,
}

impl Lister {
    /// Serves at `pod-resources/kubelet.sock` below the kubelet's directory.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn serve(self, root: &Path) -> Result<JoinHandle<()>, OpError> {
        let path = root.join("pod-resources/kubelet.sock");
        remove::file(&path).map_err(io_error(format!("removing {}", path.display())))?;
        let listener = listening::private(&path).map_err(io_error(format!("listening at {}", path.display())))?;
        let server = move |listener| {
            tonic::transport::Server::builder()
                .concurrency_limit_per_connection(16)
                .add_service(alpha::server(self.clone()))
                .add_service(PodResourcesListerServer::new(self.clone()))
                .serve_with_incoming(UnixListenerStream::new(listener))
        };
        Ok(tokio::spawn(listening::serve(path, "monitors of pod resources", listening::private, listener, server)))
    }

    fn view(&self) -> (Arc<Vec<Arc<Pod>>>, Arc<DeviceView>) {
        // Values are replaced whole.
        (
            self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            self.devices.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        )
    }

    /// What pods hold that are not over.
    fn held(&self) -> Vec<proto::PodResources> {
        let (pods, view) = self.view();
        pods.iter().filter(|p| !pod::is_terminal(p)).map(|p| of_pod(p, &view)).collect()
    }
}

fn device(resource: &str, id: &str, listed: Option<&Device>) -> proto::ContainerDevices {
    let nodes: Vec<_> = listed.into_iter().flat_map(|d| &d.numa_nodes).map(|id| proto::NumaNode { id: *id }).collect();
    proto::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: Some(proto::TopologyInfo { nodes }).filter(|t| !t.nodes.is_empty()),
    }
}

fn cpu_ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

fn memory(kind: &str, bytes: u64, nodes: Nodes) -> proto::ContainerMemory {
    let nodes = nodes.numbers().map(|number| proto::NumaNode { id: i64::from(number) }).collect();
    proto::ContainerMemory { memory_type: kind.to_owned(), size: bytes, topology: Some(proto::NumaTopology { nodes }) }
}

fn of_pod(p: &Pod, view: &DeviceView) -> proto::PodResources {
    let held = view.held.get(&pod::uid(p));
    let own = view.cpus.assigned.get(&pod::uid(p));
    let kept = view.memory.assigned.get(&pod::uid(p));
    let containers = pod::init_containers(p)
        .filter(|(kind, _)| *kind == ContainerKind::Sidecar)
        .map(|(_, c)| c)
        .chain(&pod::spec(p).containers)
        .map(|c| proto::ContainerResources {
            name: c.name.clone(),
            devices: held
                .and_then(|h| h.get(&c.name))
                .into_iter()
                .flatten()
                .flat_map(|(resource, allocation)| {
                    let listed = view.listed.get(resource);
                    allocation.ids.iter().map(move |id| device(resource, id, listed.and_then(|l| l.get(id))))
                })
                .collect(),
            cpu_ids: own.and_then(|own| own.get(&c.name)).map(cpu_ids).unwrap_or_default(),
            memory: kept
                .and_then(|kept| kept.get(&c.name))
                .into_iter()
                .flatten()
                .map(|block| memory(&block.kind, block.bytes, block.nodes))
                .collect(),
            ..Default::default()
        })
        .collect();
    proto::PodResources {
        name: p.metadata.name.clone().unwrap_or_default(),
        namespace: p.metadata.namespace.clone().unwrap_or_default(),
        containers,
        ..Default::default()
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<proto::ListPodResourcesRequest>,
    ) -> Result<Response<proto::ListPodResourcesResponse>, Status> {
        Ok(Response::new(proto::ListPodResourcesResponse { pod_resources: self.held() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<proto::AllocatableResourcesRequest>,
    ) -> Result<Response<proto::AllocatableResourcesResponse>, Status> {
        let (_, view) = self.view();
        let devices = view
            .listed
            .iter()
            .flat_map(|(resource, list)| {
                list.values().filter(|d| d.healthy).map(move |d| device(resource, &d.id, Some(d)))
            })
            .collect();
        let kinds = view.memory.allocatable.iter().flat_map(|(number, sizes)| {
            let node = Nodes::of([i64::from(*number)]);
            sizes.iter().filter(|(_, bytes)| **bytes > 0).map(move |(kind, bytes)| memory(kind, *bytes, node))
        });
        let (cpu_ids, memory) = (cpu_ids(&view.cpus.assignable), kinds.collect());
        Ok(Response::new(proto::AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: Request<proto::GetPodResourcesRequest>,
    ) -> Result<Response<proto::GetPodResourcesResponse>, Status> {
        let r = request.into_inner();
        let (pods, view) = self.view();
        let found = pods.iter().find(|p| {
            p.metadata.name.as_deref() == Some(&r.pod_name) && p.metadata.namespace.as_deref() == Some(&r.pod_namespace)
        });
        let Some(p) = found else {
            return Err(Status::not_found(format!("pod {} in namespace {} not found", r.pod_name, r.pod_namespace)));
        };
        Ok(Response::new(proto::GetPodResourcesResponse { pod_resources: Some(of_pod(p, &view)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::sockets;
    use crate::cpus::CpuView;
    use crate::devices::Allocation;
    use crate::memory::{Block, MemoryView};
    use serde_json::json;
    use std::collections::{BTreeMap, BTreeSet};

    #[tokio::test]
    async fn monitors_see_who_holds_what() {
        let dir = tempfile::tempdir().unwrap();
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c"}, {"name": "d"}]}}))
        .unwrap();
        let listed = |id: &str, healthy| Device { id: id.into(), healthy, numa_nodes: vec![1] };
        let block = |bytes| Block { nodes: Nodes::of([0, 1]), kind: "memory".into(), bytes };
        let of_memory = |bytes: u64| BTreeMap::from([("memory".to_owned(), bytes)]);
        let allocation = Allocation { ids: BTreeSet::from(["a".to_owned()]), ..Allocation::default() };
        let view = DeviceView {
            held: BTreeMap::from([(
                "u".into(),
                BTreeMap::from([("c".to_owned(), BTreeMap::from([("x.io/r".to_owned(), allocation)]))]),
            )]),
            listed: BTreeMap::from([(
                "x.io/r".to_owned(),
                BTreeMap::from([("a".to_owned(), listed("a", true)), ("b".to_owned(), listed("b", false))]),
            )]),
            cpus: CpuView {
                assigned: BTreeMap::from([("u".into(), BTreeMap::from([("d".to_owned(), "2-3".parse().unwrap())]))]),
                assignable: "1-7".parse().unwrap(),
                ..CpuView::default()
            },
            memory: MemoryView {
                assigned: BTreeMap::from([("u".into(), BTreeMap::from([("d".to_owned(), vec![block(512)])]))]),
                allocatable: BTreeMap::from([(0, of_memory(900)), (1, of_memory(0))]),
                ..MemoryView::default()
            },
        };
        let lister = Lister {
            pods: Arc::new(Mutex::new(Arc::new(vec![Arc::new(pod)]))),
            devices: Arc::new(Mutex::new(Arc::new(view))),
        };
        let _server = lister.serve(dir.path()).unwrap();
        let socket = dir.path().join("pod-resources/kubelet.sock");
        let channel = sockets::dial(socket, "connecting to the service").await.unwrap();
        let mut client = proto::pod_resources_lister_client::PodResourcesListerClient::new(channel);
        let list = client.list(proto::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
        assert_eq!((list[0].containers.len(), &list[0].containers[1].devices), (2, &vec![]));
        let held = &list[0].containers[0].devices[0];
        assert_eq!((held.resource_name.as_str(), held.device_ids.as_slice()), ("x.io/r", &["a".to_owned()][..]));
        assert_eq!(held.topology.as_ref().unwrap().nodes[0].id, 1);
        let all = client.get_allocatable_resources(proto::AllocatableResourcesRequest {}).await.unwrap().into_inner();
        assert_eq!(all.devices.len(), 1, "the unhealthy one is none");
        assert_eq!(all.cpu_ids, [1, 2, 3, 4, 5, 6, 7]);
        let sizes = |list: &[proto::ContainerMemory]| -> Vec<(String, u64, Vec<i64>)> {
            let nodes = |m: &proto::ContainerMemory| m.topology.iter().flat_map(|t| &t.nodes).map(|n| n.id).collect();
            list.iter().map(|m| (m.memory_type.clone(), m.size, nodes(m))).collect()
        };
        assert_eq!(sizes(&all.memory), [("memory".to_owned(), 900, vec![0])]);
        assert!(list[0].containers[0].memory.is_empty());
        assert_eq!(sizes(&list[0].containers[1].memory), [("memory".to_owned(), 512, vec![0, 1])]);
        let cpus: Vec<_> = list[0].containers.iter().map(|c| c.cpu_ids.clone()).collect();
        assert_eq!(cpus, [vec![], vec![2, 3]]);
        let get = |name: &str| proto::GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "n".into() };
        assert_eq!(client.get(get("p")).await.unwrap().into_inner().pod_resources.unwrap(), list[0]);
        assert_eq!(client.get(get("q")).await.unwrap_err().code(), tonic::Code::NotFound);
    }
}
