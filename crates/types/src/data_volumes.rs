//! DataVolumes and DataSources: `cdi.kubevirt.io/v1beta1`, of the CDI project.
//!
//! A DataVolume asks for a claim of its name, and says what is to be on it; CDI's controllers make and fill the claim. A
//! DataSource names what DataVolumes are copied from. Both are there where somebody has installed CDI. These types have what
//! is decided by; what is written of a DataVolume comes from a machine's template as it stands there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::json::or_none;
use crate::kubevirt::api::kind;

/// The kinds' group.
pub const GROUP: &str = "cdi.kubevirt.io";
/// Kind of DataVolumes, as owners of claims are named.
pub const DATA_VOLUME: &str = "DataVolume";
/// Annotation of a DataVolume: a claim of its name that is there already becomes its own.
pub const ALLOW_CLAIM_ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";

/// A claim that is filled, as far as its metadata and its status go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DataVolume {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// How far it is.
    #[serde(deserialize_with = "or_none")]
    pub status: DataVolumeStatus,
}

kind!(DataVolume, "cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes",
    NamespaceResourceScope, {; status: "status"});

/// How far a DataVolume is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolumeStatus {
    /// Its phase.
    #[serde(deserialize_with = "or_none")]
    pub phase: String,
    /// What holds of it.
    #[serde(deserialize_with = "or_none")]
    pub conditions: Vec<DataVolumeCondition>,
}

/// Something that holds of a DataVolume, or does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataVolumeCondition {
    /// What, such as `Bound`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

/// Phases that decide something.
pub mod phase {
    /// Nothing is done yet.
    pub const PENDING: &str = "Pending";
    /// The claim is filled.
    pub const SUCCEEDED: &str = "Succeeded";
    /// It never will be.
    pub const FAILED: &str = "Failed";
    /// The claim gets its volume once a pod that uses it has a node, and is filled by another pod after that.
    pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
    /// The claim gets its volume, filled, once a pod that uses it has a node.
    pub const PENDING_POPULATION: &str = "PendingPopulation";
}

impl DataVolume {
    /// A condition, if it is told.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&DataVolumeCondition> {
        self.status.conditions.iter().find(|condition| condition.r#type == kind)
    }
    /// Whether a pod may use its claim: it is filled, or will be before the pod begins.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
            && [phase::SUCCEEDED, phase::PENDING_POPULATION].contains(&self.status.phase.as_str())
    }
    /// Whether it never will be filled.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.status.phase == phase::FAILED
    }
    /// Whether its claim is filled only after a pod that uses it has been given a node.
    #[must_use]
    pub fn waits_for_consumer(&self) -> bool {
        self.metadata.deletion_timestamp.is_none() && self.status.phase == phase::WAIT_FOR_FIRST_CONSUMER
    }
}

/// What DataVolumes are copied from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DataSource {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What it names.
    pub spec: DataSourceSpec,
}

kind!(DataSource, "cdi.kubevirt.io", "v1beta1", "DataSource", "datasources",
    NamespaceResourceScope, {; spec: "spec"});

/// What a DataSource names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataSourceSpec {
    /// One of them.
    pub source: DataSourceSource,
}

/// A claim, or a snapshot of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataSourceSource {
    /// A claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<Place>,
    /// A VolumeSnapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Place>,
}

/// An object in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
