//! Reading and writing objects as JSON, each type in one place.
//!
//! serde's code is made anew for each type in each crate that reads it, and a pod's is half a megabyte. Here it is made once for the
//! kinds that many crates read: what is generic over kinds goes through [`Json`], and never through serde itself.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde::{Deserialize, Deserializer};
use serde_json::{Error, Value};

use crate::resource::PartialObject;

/// What can be read from JSON and written as it.
pub trait Json: Sized {
    /// Reads it from text.
    ///
    /// # Errors
    /// It is no JSON, or not of this type.
    fn from_json(text: &[u8]) -> Result<Self, Error>;
    /// Reads it from a value.
    ///
    /// # Errors
    /// The value is not of this type.
    fn from_value(value: Value) -> Result<Self, Error>;
    /// Writes it as text.
    ///
    /// # Errors
    /// It has no form in JSON, as a map whose keys are no strings.
    fn to_json(&self) -> Result<Vec<u8>, Error>;
    /// Writes it as a value.
    ///
    /// # Errors
    /// As of [`Self::to_json`].
    fn to_value(&self) -> Result<Value, Error>;
}

/// Has types that serde reads and writes read and written where this stands.
#[macro_export]
macro_rules! json_here {
    ($($of:ty),+ $(,)?) => {$(
        impl $crate::json::Json for $of {
            fn from_json(text: &[u8]) -> Result<Self, serde_json::Error> {
                // Text that is known to be such is read as it is, and is not looked at once more for each string in it.
                let text = std::str::from_utf8(text).map_err(<serde_json::Error as serde::de::Error>::custom)?;
                serde_json::from_str(text)
            }
            fn from_value(value: serde_json::Value) -> Result<Self, serde_json::Error> {
                serde_json::from_value(value)
            }
            fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
                serde_json::to_vec(self)
            }
            fn to_value(&self) -> Result<serde_json::Value, serde_json::Error> {
                serde_json::to_value(self)
            }
        }
    )+};
}

json_here! {
    APIService, Binding, CSIDriver, CSINode, CSIStorageCapacity, CertificateSigningRequest, ClusterRole, ClusterRoleBinding, ConfigMap, ControllerRevision,
    CronJob, DaemonSet, Deployment, EndpointSlice, Endpoints, Event, HorizontalPodAutoscaler, Job, Lease, Namespace, Node, PartialObject,
    PersistentVolume, PersistentVolumeClaim, Pod, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController, ResourceQuota, Role,
    RoleBinding, RuntimeClass, Secret, Service, ServiceAccount, StatefulSet, StorageClass, ValidatingAdmissionPolicy, VolumeAttachment,
    VolumeAttributesClass,
}

/// [`Json::from_value`] of the type that is wanted.
///
/// # Errors
/// The value is not of this type.
pub fn from_value<T: Json>(value: Value) -> Result<T, Error> {
    T::from_value(value)
}

/// Reads `null` as the default, as Go's decoder does: Go's servers write so what others leave out.
///
/// # Errors
/// The field is of another type.
pub fn or_none<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
