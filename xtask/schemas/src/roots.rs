//! The types whose schemas are collected, with everything they refer to: every kind in its served
//! versions, and every list.

use std::collections::BTreeMap;

use k8s_openapi::ListableResource;
use schemars::{JsonSchema, SchemaGenerator};

use k8s_openapi::api::admissionregistration::v1 as admissionregistration_v1;
use k8s_openapi::api::apiserverinternal::v1alpha1 as apiserverinternal_v1alpha1;
use k8s_openapi::api::apps::v1 as apps_v1;
use k8s_openapi::api::authentication::v1 as authentication_v1;
use k8s_openapi::api::authorization::v1 as authorization_v1;
use k8s_openapi::api::autoscaling::v1 as autoscaling_v1;
use k8s_openapi::api::autoscaling::v2 as autoscaling_v2;
use k8s_openapi::api::batch::v1 as batch_v1;
use k8s_openapi::api::certificates::v1 as certificates_v1;
use k8s_openapi::api::certificates::v1beta1 as certificates_v1beta1;
use k8s_openapi::api::coordination::v1 as coordination_v1;
use k8s_openapi::api::coordination::v1beta1 as coordination_v1beta1;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::api::events::v1 as events_v1;
use k8s_openapi::api::flowcontrol::v1 as flowcontrol_v1;
use k8s_openapi::api::networking::v1 as networking_v1;
use k8s_openapi::api::node::v1 as node_v1;
use k8s_openapi::api::policy::v1 as policy_v1;
use k8s_openapi::api::rbac::v1 as rbac_v1;
use k8s_openapi::api::resource::v1 as resource_v1;
use k8s_openapi::api::resource::v1alpha3 as resource_v1alpha3;
use k8s_openapi::api::resource::v1beta2 as resource_v1beta2;
use k8s_openapi::api::scheduling::v1 as scheduling_v1;
use k8s_openapi::api::scheduling::v1alpha2 as scheduling_v1alpha2;
use k8s_openapi::api::storage::v1 as storage_v1;
use k8s_openapi::api::storagemigration::v1beta1 as storagemigration_v1beta1;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions_v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta_v1;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration_v1;

/// Full type names of kinds that have lists, and the kinds of the lists.
pub type Lists = BTreeMap<String, &'static str>;

fn kind<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

fn listed<T: JsonSchema + ListableResource>(generator: &mut SchemaGenerator, lists: &mut Lists) {
    kind::<T>(generator);
    lists.insert(T::schema_name().into_owned(), T::LIST_KIND);
}

/// Has the generator collect all types.
pub fn collect(g: &mut SchemaGenerator) -> Lists {
    let l = &mut Lists::new();
    listed::<admissionregistration_v1::MutatingAdmissionPolicy>(g, l);
    listed::<admissionregistration_v1::MutatingAdmissionPolicyBinding>(g, l);
    listed::<admissionregistration_v1::MutatingWebhookConfiguration>(g, l);
    listed::<admissionregistration_v1::ValidatingAdmissionPolicy>(g, l);
    listed::<admissionregistration_v1::ValidatingAdmissionPolicyBinding>(g, l);
    listed::<admissionregistration_v1::ValidatingWebhookConfiguration>(g, l);
    listed::<apiserverinternal_v1alpha1::StorageVersion>(g, l);
    listed::<apps_v1::ControllerRevision>(g, l);
    listed::<apps_v1::DaemonSet>(g, l);
    listed::<apps_v1::Deployment>(g, l);
    listed::<apps_v1::ReplicaSet>(g, l);
    listed::<apps_v1::StatefulSet>(g, l);
    kind::<authentication_v1::SelfSubjectReview>(g);
    kind::<authentication_v1::TokenRequest>(g);
    kind::<authentication_v1::TokenReview>(g);
    kind::<authorization_v1::LocalSubjectAccessReview>(g);
    kind::<authorization_v1::SelfSubjectAccessReview>(g);
    kind::<authorization_v1::SelfSubjectRulesReview>(g);
    kind::<authorization_v1::SubjectAccessReview>(g);
    listed::<autoscaling_v1::HorizontalPodAutoscaler>(g, l);
    kind::<autoscaling_v1::Scale>(g);
    listed::<autoscaling_v2::HorizontalPodAutoscaler>(g, l);
    listed::<batch_v1::CronJob>(g, l);
    listed::<batch_v1::Job>(g, l);
    listed::<certificates_v1::CertificateSigningRequest>(g, l);
    listed::<certificates_v1beta1::ClusterTrustBundle>(g, l);
    listed::<certificates_v1beta1::PodCertificateRequest>(g, l);
    listed::<coordination_v1::Lease>(g, l);
    listed::<coordination_v1beta1::LeaseCandidate>(g, l);
    kind::<core_v1::Binding>(g);
    listed::<core_v1::ComponentStatus>(g, l);
    listed::<core_v1::ConfigMap>(g, l);
    listed::<core_v1::Endpoints>(g, l);
    listed::<core_v1::Event>(g, l);
    listed::<core_v1::LimitRange>(g, l);
    listed::<core_v1::Namespace>(g, l);
    listed::<core_v1::Node>(g, l);
    listed::<core_v1::PersistentVolume>(g, l);
    listed::<core_v1::PersistentVolumeClaim>(g, l);
    listed::<core_v1::Pod>(g, l);
    listed::<core_v1::PodTemplate>(g, l);
    listed::<core_v1::ReplicationController>(g, l);
    listed::<core_v1::ResourceQuota>(g, l);
    listed::<core_v1::Secret>(g, l);
    listed::<core_v1::Service>(g, l);
    listed::<core_v1::ServiceAccount>(g, l);
    listed::<discovery_v1::EndpointSlice>(g, l);
    listed::<events_v1::Event>(g, l);
    listed::<flowcontrol_v1::FlowSchema>(g, l);
    listed::<flowcontrol_v1::PriorityLevelConfiguration>(g, l);
    listed::<networking_v1::Ingress>(g, l);
    listed::<networking_v1::IngressClass>(g, l);
    listed::<networking_v1::IPAddress>(g, l);
    listed::<networking_v1::NetworkPolicy>(g, l);
    listed::<networking_v1::ServiceCIDR>(g, l);
    listed::<node_v1::RuntimeClass>(g, l);
    kind::<policy_v1::Eviction>(g);
    listed::<policy_v1::PodDisruptionBudget>(g, l);
    listed::<rbac_v1::ClusterRole>(g, l);
    listed::<rbac_v1::ClusterRoleBinding>(g, l);
    listed::<rbac_v1::Role>(g, l);
    listed::<rbac_v1::RoleBinding>(g, l);
    listed::<resource_v1::DeviceClass>(g, l);
    listed::<resource_v1::ResourceClaim>(g, l);
    listed::<resource_v1::ResourceClaimTemplate>(g, l);
    listed::<resource_v1::ResourceSlice>(g, l);
    listed::<resource_v1alpha3::DeviceTaintRule>(g, l);
    listed::<resource_v1alpha3::ResourcePoolStatusRequest>(g, l);
    listed::<resource_v1beta2::DeviceTaintRule>(g, l);
    listed::<scheduling_v1::PriorityClass>(g, l);
    listed::<scheduling_v1alpha2::PodGroup>(g, l);
    listed::<scheduling_v1alpha2::Workload>(g, l);
    listed::<storage_v1::CSIDriver>(g, l);
    listed::<storage_v1::CSINode>(g, l);
    listed::<storage_v1::CSIStorageCapacity>(g, l);
    listed::<storage_v1::StorageClass>(g, l);
    listed::<storage_v1::VolumeAttachment>(g, l);
    listed::<storage_v1::VolumeAttributesClass>(g, l);
    listed::<storagemigration_v1beta1::StorageVersionMigration>(g, l);
    listed::<apiextensions_v1::CustomResourceDefinition>(g, l);
    kind::<meta_v1::APIGroup>(g);
    kind::<meta_v1::APIGroupList>(g);
    kind::<meta_v1::APIResourceList>(g);
    kind::<meta_v1::APIVersions>(g);
    kind::<meta_v1::Status>(g);
    listed::<apiregistration_v1::APIService>(g, l);
    kind::<meta_v1::DeleteOptions>(g);
    kind::<meta_v1::ListMeta>(g);
    std::mem::take(l)
}
