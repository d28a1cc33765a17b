//! The service as it was before v1, at the same socket: older monitors of GPUs know no other (upstream's
//! `v1alpha1PodResourcesServer`, `pkg/kubelet/apis/podresources`). It knows of devices alone.

use carrack_deviceplugin::podresources as newer;
use carrack_deviceplugin::podresources_v1alpha1 as proto;
use proto::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use tonic::{Request, Response, Status};

use super::Lister;

/// Answers it with what the newer one knows.
pub(super) fn server(lister: Lister) -> PodResourcesListerServer<Lister> {
    PodResourcesListerServer::new(lister)
}

fn older(pod: newer::PodResources) -> proto::PodResources {
    let device = |d: newer::ContainerDevices| proto::ContainerDevices {
        resource_name: d.resource_name,
        device_ids: d.device_ids,
    };
    let container = |c: newer::ContainerResources| proto::ContainerResources {
        name: c.name,
        devices: c.devices.into_iter().map(device).collect(),
    };
    proto::PodResources {
        name: pod.name,
        namespace: pod.namespace,
        containers: pod.containers.into_iter().map(container).collect(),
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<proto::ListPodResourcesRequest>,
    ) -> Result<Response<proto::ListPodResourcesResponse>, Status> {
        let pod_resources = self.held().into_iter().map(older).collect();
        Ok(Response::new(proto::ListPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::Pod;
    use proto::pod_resources_lister_client::PodResourcesListerClient;
    use serde_json::json;

    use super::*;
    use crate::adapters::sockets;
    use crate::devices::{Allocation, DeviceView};

    #[tokio::test]
    async fn monitors_of_old_see_who_holds_what() {
        let dir = tempfile::tempdir().unwrap();
        let pod = |name: &str, phase: &str| -> Arc<Pod> {
            let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
                "spec": {"containers": [{"name": "c"}, {"name": "d"}]}, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let allocation = Allocation { ids: BTreeSet::from(["a".to_owned()]), ..Allocation::default() };
        let of_container = BTreeMap::from([("c".to_owned(), BTreeMap::from([("x.io/r".to_owned(), allocation)]))]);
        let view = DeviceView { held: BTreeMap::from([("p".into(), of_container)]), ..DeviceView::default() };
        let lister = Lister {
            pods: Arc::new(Mutex::new(Arc::new(vec![pod("p", "Running"), pod("over", "Succeeded")]))),
            devices: Arc::new(Mutex::new(Arc::new(view))),
        };
        let _server = lister.serve(dir.path()).unwrap();
        let socket = dir.path().join("pod-resources/kubelet.sock");
        let channel = sockets::dial(socket, "connecting to the service").await.unwrap();
        let mut client = PodResourcesListerClient::new(channel);
        let list = client.list(proto::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
        let device = proto::ContainerDevices { resource_name: "x.io/r".into(), device_ids: vec!["a".into()] };
        let expected = proto::PodResources {
            name: "p".into(),
            namespace: "n".into(),
            containers: vec![
                proto::ContainerResources { name: "c".into(), devices: vec![device] },
                proto::ContainerResources { name: "d".into(), devices: vec![] },
            ],
        };
        assert_eq!(list, [expected]);
    }
}
