//! The pod that uses an instance's claims before there is anything on them.
//!
//! Where volumes are made for their first consumer, a claim has none until a pod that uses it is given a node, and CDI begins to
//! fill it only then, in a pod of its own. The launcher is to come when it is filled. So this one goes before it: each of its
//! containers asks for what one of the launcher's will ask for, so that the volume is made where the guest can run. It does
//! nothing, and goes as soon as the claim has its volume. It is no launcher: it bears no launcher's label, and no guest is ever
//! started in it. (Upstream: `RenderLaunchManifestNoVm` in pkg/virt-controller/services, whose pod looks like a launcher but for
//! an annotation.)

use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::{APP_LABEL, COMPUTE_CONTAINER, EPHEMERAL_PROVISIONING_ANNOTATION};
use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, PodSpec, SecurityContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::identity::consumer_pod_name;

/// The pod that goes before this launcher.
pub(in crate::controllers::vmi) fn before(vmi: &VirtualMachineInstance, launcher: Pod) -> Pod {
    // What is to stay away from the machine's like stays away from this, too.
    let mut labels = launcher.metadata.labels.unwrap_or_default();
    labels.remove(APP_LABEL);
    let spec = launcher.spec.unwrap_or_default();
    let compute = spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER);
    let (image, pull) = compute.map(|compute| (compute.image.clone(), compute.image_pull_policy.clone())).unzip();
    // One for each, since all of them have to find room on the node.
    let idle = |container: Container| Container {
        name: container.name,
        image: image.clone().flatten(),
        image_pull_policy: pull.clone().flatten(),
        command: Some(["/usr/bin/carrack", "version"].map(str::to_owned).into()),
        resources: container.resources,
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let claims = spec.volumes.into_iter().flatten().filter(|volume| volume.persistent_volume_claim.is_some());
    Pod {
        metadata: ObjectMeta {
            name: Some(consumer_pod_name(vmi.name(), vmi.uid())),
            namespace: launcher.metadata.namespace,
            labels: Some(labels),
            annotations: Some([(EPHEMERAL_PROVISIONING_ANNOTATION.to_owned(), "true".to_owned())].into()),
            owner_references: launcher.metadata.owner_references,
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: spec.containers.into_iter().map(idle).collect(),
            volumes: Some(claims.collect()),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(1),
            node_selector: spec.node_selector,
            affinity: spec.affinity,
            tolerations: spec.tolerations,
            topology_spread_constraints: spec.topology_spread_constraints,
            scheduler_name: spec.scheduler_name,
            runtime_class_name: spec.runtime_class_name,
            priority_class_name: spec.priority_class_name,
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            ..PodSpec::default()
        }),
        status: None,
    }
}
